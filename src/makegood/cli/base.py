"""What all commands have in common: `--json`, `--debug`, where the store is, and the refusal of what is not built yet."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from makegood.errors import NotBuilt

if TYPE_CHECKING:
    from makegood.settings import Settings
    from makegood.tasks.client import Client

F = TypeVar("F", bound=Callable[..., Any])

REPLY_S = 4.0
"""How long a command waits for one reply of the store; it asks twice."""

LIST_LIMIT = 100
"""How many elements a list shows unless told otherwise."""


@dataclass(slots=True)
class State:
    """The options that every command has; click hands it to all of them."""

    json: bool = False
    debug: bool = False
    url: str | None = None
    broker_url: str | None = None

    def settings(self, **overrides: object) -> Settings:
        """The settings of this command. `--url` alone also names the broker, as in `Client(url)`. Raises SettingsError."""
        from makegood.settings import Settings

        return Settings.load(redis_url=self.url, broker_url=self.broker_url or self.url, **overrides)

    def client(self) -> Client:
        """A client for the store that this command was pointed at; a context manager.

        Somebody waits at the terminal: a server that does not answer is said to be away sooner than a producer would say it.
        """
        from makegood.store.connect import open_sync
        from makegood.store.sync_store import SyncStore
        from makegood.tasks.client import Client

        settings = self.settings()
        client = Client(settings.redis_url, broker_url=settings.broker_url)
        client.store.close()
        client.store = SyncStore(client.url, client=open_sync(client.url, retries=1, reply_s=REPLY_S))
        return client


class Command(click.Command):
    """A command that accepts `--json` and `--debug`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += [
            click.Option(
                ["--json", "json_"],
                is_flag=True,
                expose_value=False,
                callback=_remember("json"),
                help="Print JSON.",
            ),
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_remember("debug"),
                help="Print a traceback with an error.",
            ),
        ]


class Group(click.Group):
    """A group of commands; knows the names that the interface promises but nobody has built yet."""

    command_class = Command

    def __init__(self, *args: Any, later: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.later = frozenset(later)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.later:
            raise NotBuilt(f"{ctx.command_path} {name} is not built yet.")
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"There is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


class Root(Group):
    """The outermost group. Ctrl-C and a reader that went away end a command quietly."""

    group_class = Group

    def invoke(self, ctx: click.Context) -> Any:
        from makegood.cli.exits import Exit, forget_stdout

        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise click.exceptions.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            forget_stdout()
            raise click.exceptions.Exit(Exit.BROKEN_PIPE) from None


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number of seconds above 0."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < 1e9:
            self.fail(f"{value!r} is no number of seconds above 0", param, ctx)
        return seconds


def _remember(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that keeps an option in the State."""

    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.ensure_object(State), name, value)

    return keep


def store_options(command: F) -> F:
    """`--url` and `--broker-url`, for every command that talks to the store."""
    for name, text in (
        ("broker_url", "The broker; default: --url if given, else MAKEGOOD_BROKER_URL."),
        ("url", "The state store; default: MAKEGOOD_REDIS_URL."),
    ):
        option = f"--{name.replace('_', '-')}"
        command = click.option(
            option, name, metavar="URL", expose_value=False, callback=_remember(name), help=text
        )(command)
    return command


def limit_option(command: F) -> F:
    """`--limit` of a list."""
    return click.option(
        "--limit",
        type=click.IntRange(1, 100_000),
        default=LIST_LIMIT,
        show_default=True,
        help="How many, newest first.",
    )(command)


def timeout_option(text: str) -> Callable[[F], F]:
    """`--timeout` in seconds."""
    return click.option("--timeout", type=Seconds(), default=None, metavar="SECONDS", help=text)


def actor_options(command: F) -> F:
    """`--actor` and `--reason`, which go to the audit log."""
    command = click.option("--reason", default="", help="Why, for the audit log.")(command)
    return click.option("--actor", default=None, help="Who; default: the user of the operating system.")(
        command
    )


def decision_options(command: F) -> F:
    """`--actor`, a `--reason` that must be given, and `--expected-version`, for what a person decides."""
    command = click.option(
        "--expected-version",
        type=click.IntRange(0),
        metavar="N",
        help="Do nothing if the run has another version by now.",
    )(command)
    command = click.option("--reason", required=True, help="Why, for the audit log.")(command)
    return click.option("--actor", default=None, help="Who; default: the user of the operating system.")(
        command
    )


def actor_or_user(actor: str | None) -> str:
    """Who acts: what was given, else the user of the operating system."""
    if actor:
        return actor
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"

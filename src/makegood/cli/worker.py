"""`makegood worker`: check what can be checked, then supervise the worker processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from makegood.cli.base import Command, State, store_options
from makegood.cli.output import fail, print_line, say, warn

if TYPE_CHECKING:
    from makegood.settings import Settings

QUEUES = ("runs", "cleanup")


class QueueNames(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """`runs,cleanup`, in any order, each at most once."""

    name = "queues"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = value if isinstance(value, tuple) else tuple(part.strip() for part in str(value).split(","))
        if len(set(names)) < len(names) or not set(names) <= set(QUEUES):
            self.fail(f"{value!r} must be runs, cleanup, or both with a comma between them", param, ctx)
        return names


@click.command("worker", cls=Command)
@click.option(
    "--queues",
    type=QueueNames(),
    default="runs,cleanup",
    show_default=True,
    metavar="NAMES",
    help="What to serve.",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1, 10_000),
    help="Runs in flight per process; default MAKEGOOD_CONCURRENCY.",
)
@click.option(
    "--processes", type=click.IntRange(1, 256), help="Processes for runs; default MAKEGOOD_PROCESSES."
)
@click.option("--embedded", is_flag=True, help="Start a Valkey server of its own, and stop it at the end.")
@click.option("--strict", is_flag=True, help="Refuse to start when the server check has a warning.")
@store_options
@click.pass_obj
def worker(
    state: State,
    queues: tuple[str, ...],
    concurrency: int | None,
    processes: int | None,
    embedded: bool,
    strict: bool,
) -> int:
    """Run agents: start processes, restart what dies, end in order.

    The agents are those of MAKEGOOD_AGENTS. Once every queue consumes it says `ready queues=… slots=…` on standard error.
    SIGTERM or Ctrl-C stops it at the next step boundaries, a second one at once.
    """
    from makegood.cli.supervise import supervise

    if embedded and state.url:
        raise click.UsageError("--embedded starts a server of its own and goes without --url")
    settings = state.settings(concurrency=concurrency, processes=processes)
    refused = check_agents(settings)
    if refused:
        return refused
    if embedded:
        return with_embedded_server(state, settings, queues, strict=strict)
    check_store(settings.redis_url, strict=strict)
    announce_start(state, settings, queues, settings.redis_url)
    return supervise(settings, queues, environment(settings))


def with_embedded_server(state: State, settings: Settings, queues: tuple[str, ...], *, strict: bool) -> int:
    """Own the server here and run the supervisor, which forks and so has no threads or servers, in a process below."""
    from makegood.cli.supervise import keep_server, start_supervisor
    from makegood.workers.embedded import EmbeddedServer

    with EmbeddedServer(settings.data_dir, ephemeral=False) as server:
        say(
            f"The embedded server is at {server.url}; point other commands at it with --url or MAKEGOOD_REDIS_URL."
        )
        check_store(server.url, strict=strict)
        announce_start(state, settings, queues, server.url)
        own = {"MAKEGOOD_REDIS_URL": server.url, "MAKEGOOD_BROKER_URL": state.broker_url or server.url}
        return keep_server(server, start_supervisor(queues, environment(settings) | own))


def environment(settings: Settings) -> dict[str, str]:
    """The environment of the worker processes: this one's, with what the command's options say."""
    return os.environ | {
        "MAKEGOOD_REDIS_URL": settings.redis_url,
        "MAKEGOOD_BROKER_URL": settings.broker_url,
        "MAKEGOOD_CONCURRENCY": str(settings.concurrency),
        "MAKEGOOD_PROCESSES": str(settings.processes),
    }


def check_agents(settings: Settings) -> int:
    """Try to load the agents, in a process that ends with the answer, so that the supervisor stays free of their code.

    It takes their import time, and says what is wrong before the seconds that the model library takes. Returns 0, or the
    exit code after the one sentence was printed.
    """
    from makegood.errors import MakegoodError
    from makegood.tasks.loading import load_agents

    if not settings.agents:
        load_agents("")
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            fail(
                f"Loading MAKEGOOD_AGENTS ended with signal {-code}; look at what the modules do when they are imported."
            )
        return code if code >= 0 else 1
    code = 1
    try:
        os.dup2(2, 1)
        agents = load_agents(",".join(settings.agents))
        for tool in (tool for agent in agents.values() for tool in agent.tools.values()):
            tool.check_masking(settings.secret_fields)
        code = 0
    except MakegoodError as error:
        fail(str(error))
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        fail(f"Loading MAKEGOOD_AGENTS failed: {type(error).__name__}: {error}")
        code = 2
    finally:
        os._exit(code)


def check_store(url: str, *, strict: bool) -> None:
    """Print the warnings of the server check. Raises UnsupportedServer, StoreUnreachable."""
    from makegood.store.connect import open_sync
    from makegood.workers.server_check import check_server, raise_for

    with open_sync(url) as client:
        findings = check_server(client)
    raise_for(findings, strict=strict)
    for finding in findings:
        if finding.level == "warn":
            warn(finding.text)


def announce_start(state: State, settings: Settings, queues: tuple[str, ...], url: str) -> None:
    """With `--json`: one object that says what is being started."""
    from makegood.cli.supervise import count_slots
    from makegood.urls import mask_url

    if state.json:
        print_line({"queues": list(queues), "slots": count_slots(settings, queues), "url": mask_url(url)})

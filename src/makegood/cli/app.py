"""The tree of commands."""

from __future__ import annotations

import click

from makegood.cli.base import Root
from makegood.cli.breakers import breakers
from makegood.cli.catalog import agents, messages
from makegood.cli.config import config
from makegood.cli.demo import demo
from makegood.cli.doctor import doctor
from makegood.cli.enqueue import enqueue
from makegood.cli.monitor import monitor
from makegood.cli.review import review
from makegood.cli.runs import runs
from makegood.cli.stats import stats
from makegood.cli.timeouts import timeouts
from makegood.cli.worker import worker

LATER = ("approvals",)
"""Commands of the interface that nobody has built yet."""


@click.group(
    cls=Root,
    later=LATER,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(None, "--version", package_name="makegood", message="makegood %(version)s")
def cli() -> None:
    """Run LLM agents as Celery tasks; every run ends finished, or made good.

    Data goes to standard output, messages to standard error. Every command takes --json and --debug.
    """


for command in (
    demo,
    worker,
    enqueue,
    runs,
    review,
    stats,
    agents,
    breakers,
    timeouts,
    messages,
    monitor,
    doctor,
    config,
):
    cli.add_command(command)

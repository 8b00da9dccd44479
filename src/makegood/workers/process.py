"""The process that the supervisor starts: one Celery worker on one queue."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import logging
import secrets
import sys
import warnings

from makegood.store.scripts import load_all
from makegood.tasks.child import die_with_parent

COLLECT_AFTER = 10_000
"""Objects more than before, after which Python looks for cycles among the young ones (its own default: 700)."""

PRELOADED = (
    "celery.apps.worker",
    "celery.concurrency.thread",
    "kombu.transport.redis",
    "makegood.workers.boot",
)
"""What every worker process needs and takes long to import."""


def main(argv: list[str] | None = None) -> None:
    """`python -m makegood.workers.process --queue … --concurrency …`: a worker process without a supervisor."""
    parser = argparse.ArgumentParser(prog="makegood.workers.process")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--boot-id", default=secrets.token_hex(4))
    options = parser.parse_args(argv)
    sys.exit(serve(options.queue, options.concurrency, options.ready_fd, options.boot_id))


def serve(queue: str, concurrency: int, pulse_fd: int | None, boot_id: str) -> int:
    """Run a Celery worker until it is told to stop; returns its exit code."""
    die_with_parent()
    from celery.platforms import SecurityWarning

    from makegood.workers.app import app, boot, settings

    load_all()
    set_up_logging(settings.log_level)
    warnings.filterwarnings(
        "ignore", category=SecurityWarning
    )  # JSON only: root can be told nothing it would run
    if pulse_fd is not None:
        boot.supervised(pulse_fd, boot_id)
    calm_collector()
    worker = app.Worker(
        pool_cls="threads",
        concurrency=concurrency,
        queues=[queue],
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def calm_collector() -> None:
    """Let Python's collector of cycles run less often: a step allocates hundreds of objects, nearly none in cycles.

    Measured with 200 runs at once: a tenth of the CPU of a step.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def preload(*, model: bool) -> None:
    """Import once what every process needs, so that a fork of this one is ready at once. Starts no thread."""
    for name in PRELOADED:
        importlib.import_module(name)
    load_all()
    if model:
        asyncio.run(_warm_up())
    gc.freeze()


async def _warm_up() -> None:
    from makegood.tasks.model.adapter import litellm_adapter

    adapter = litellm_adapter()
    await adapter.warm_up()
    await adapter.aclose()


def set_up_logging(level: str) -> None:
    """One line per record on standard error; libraries speak from WARNING on."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("makegood").setLevel(level)


if __name__ == "__main__":
    main()

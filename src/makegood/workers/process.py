"""The process that the supervisor starts: one Celery worker on one queue."""

from __future__ import annotations

import argparse
import logging
import sys

from makegood.tasks.child import die_with_parent


def main(argv: list[str] | None = None) -> None:
    """Run a Celery worker until it is told to stop."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="makegood.workers.process")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args(argv)

    from makegood.workers.app import app, boot, settings

    set_up_logging(settings.log_level)
    boot.announce_on(options.ready_fd)
    worker = app.Worker(
        pool_cls="threads",
        concurrency=options.concurrency,
        queues=[options.queue],
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    sys.exit(worker.exitcode or 0)


def set_up_logging(level: str) -> None:
    """One line per record on standard error; libraries speak from WARNING on."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("makegood").setLevel(level)


if __name__ == "__main__":
    main()

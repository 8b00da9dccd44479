"""`makegood monitor`: serve the numbers of a store over HTTP."""

from __future__ import annotations

import click

from makegood.cli.base import Command, State, store_options
from makegood.cli.output import print_line, say

SERVER_PACKAGES = ("fastapi", "starlette", "uvicorn", "prometheus_client")


@click.command("monitor", cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9464,
    show_default=True,
    help="Where to listen; 0 takes a free one.",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Accept a --host that other machines reach: the numbers are then readable by whoever reaches the port.",
)
@store_options
@click.pass_obj
def monitor(state: State, host: str, port: int, allow_remote: bool) -> int:
    """Serve /metrics for Prometheus, /healthz and /readyz.

    One of these is enough for all workers of a store. Once it serves it says `ready http://…/metrics` on standard error;
    SIGTERM or Ctrl-C ends it. It starts without the store too, and then says so in /metrics.
    """
    from makegood.errors import SettingsError

    settings = state.settings()
    try:
        from makegood.monitoring import server
        from makegood.monitoring.collector import StoreCollector, registry_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SERVER_PACKAGES:
            raise
        raise SettingsError(
            f"The monitor needs the package {error.name}: pip install 'makegood[server]' where it runs."
        ) from error
    with server.listen(host, port, allow_remote=allow_remote) as listener:
        url = server.address_of(listener)
        _set_up_logging(settings.log_level)
        collector = StoreCollector(settings.redis_url, settings.broker_url)
        routers = (server.metrics_router(registry_of(collector)), server.health_router(collector.not_ready))

        def ready() -> None:
            say(f"ready {url}/metrics")
            if state.json:
                print_line({"url": url})

        try:
            collector.warm_up()
            server.serve(server.make_app(*routers), listener, ready)
        finally:
            collector.close()
    return 0


def _set_up_logging(level: str) -> None:
    """As workers log: warnings of libraries, and what the setting says of makegood."""
    from makegood.workers.process import set_up_logging

    set_up_logging(level)

"""The embedded server of `makegood worker --embedded`: started, brought back when it dies, stopped at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from makegood.errors import MakegoodError
from makegood.workers.embedded import EmbeddedServer

LOOK_S = 0.5
"""How often the watching thread asks whether it should end."""


@contextlib.contextmanager
def kept_server(data_dir: Path | None, say: Callable[[str], None]) -> Iterator[str]:
    """The URL of a running embedded server with lasting data; a crash of it is repaired at the same URL."""
    with EmbeddedServer(data_dir, ephemeral=False) as server:
        say(f"The embedded server is at {server.url}; point other commands at it with --url or MAKEGOOD_REDIS_URL.")
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(server, over, say), name="embedded-server", daemon=True)
        watcher.start()
        try:
            yield server.url
        finally:
            over.set()
            watcher.join()


def _watch(server: EmbeddedServer, over: threading.Event, say: Callable[[str], None]) -> None:
    while not over.is_set():
        try:
            code = server.wait(LOOK_S)
        except TimeoutError:
            continue
        if over.is_set():
            return
        say(f"The embedded server ended with code {code}; it is started again with its data.")
        try:
            server.start()
        except MakegoodError as error:
            say(f"{error} The worker stops.")
            os.kill(os.getpid(), signal.SIGTERM)
            return

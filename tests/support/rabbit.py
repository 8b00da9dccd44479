"""A RabbitMQ of the test session's own: private node name, ports and data, on the loopback; ended by its pid."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from makegood.workers.embedded_process import free_port

START_S = 120.0
SCRIPTS = Path("/usr/lib/rabbitmq/bin")


class Rabbit:
    """A started server."""

    def __init__(self, folder: Path) -> None:
        server = SCRIPTS / "rabbitmq-server"
        if not server.exists() and shutil.which("rabbitmq-server") is None:
            pytest.fail(
                "RabbitMQ is not installed; run: apt-get install -y --no-install-recommends rabbitmq-server"
            )
        self.port, self._dist_port, epmd_port = free_port(), free_port(), free_port()
        self._folder = folder
        node = f"makegood{os.getpid()}@localhost"
        config = folder / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\nloopback_users = none\n")
        (folder / "enabled_plugins").write_text("[].\n")
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }
        self._log = (folder / "out.log").open("ab")
        # Without a name daemon of the machine's: this one belongs to the server and ends with it.
        self._epmd = subprocess.Popen(
            ["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)], stdout=self._log, stderr=self._log
        )
        self._process = subprocess.Popen(
            [str(server) if server.exists() else "rabbitmq-server"],
            env=self._env,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            cwd=folder,
        )
        self._await_listening()

    @property
    def url(self) -> str:
        """As Celery takes it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def url_of(self, user: str, password: str) -> str:
        """The URL for another user."""
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}//"

    def add_user(self, user: str, password: str, configure: str, write: str, read: str) -> str:
        """A user with these permissions (patterns of names); returns its URL."""
        self._control("add_user", user, password)
        self._control("set_permissions", "-p", "/", user, configure, write, read)
        return self.url_of(user, password)

    def _control(self, *words: str) -> None:
        """Ask the server's own tool, which talks to it with the cookie in its folder."""
        tool = str(SCRIPTS / "rabbitmqctl") if (SCRIPTS / "rabbitmqctl").exists() else "rabbitmqctl"
        command = [tool, "-n", self._env["RABBITMQ_NODENAME"], *words]
        subprocess.run(command, env=self._env, check=True, stdout=self._log, stderr=self._log, timeout=60)

    def _await_listening(self) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"AMQP\x00\x00\x09\x01")
                    if probe.recv(1):
                        return
            except OSError:
                time.sleep(0.1)
        text = (self._folder / "out.log").read_text(errors="replace")
        self.stop()
        pytest.fail(f"RabbitMQ did not start:\n{text[-3000:]}")

    def stop(self) -> None:
        """End it and its name daemon."""
        for process in (self._process, self._epmd):
            if process.poll() is None:
                process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._epmd.wait(timeout=30)
        self._log.close()


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """A RabbitMQ for the module's tests."""
    server = Rabbit(tmp_path_factory.mktemp("rabbit"))
    yield server
    server.stop()

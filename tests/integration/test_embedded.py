"""The embedded server starts, keeps its data, and never outlives its owner."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from kombu import Connection

from makegood.errors import Conflict, SettingsError, StoreUnreachable
from makegood.urls import broker_url_for
from makegood.workers import embedded
from makegood.workers.embedded import EmbeddedServer
from makegood.workers.embedded_files import default_data_dir, last_line
from support.servers import ServerFactory, kill

OWNER = """
import os, sys
from pathlib import Path
from makegood.workers.embedded import EmbeddedServer
folder = Path(sys.argv[1]) if sys.argv[1] else None
server = EmbeddedServer(folder, ephemeral=folder is None).start()
if len(sys.argv) > 2 and os.fork() == 0:      # a forked child must not keep the server alive
    sys.stdin.read()
    os._exit(0)
print(os.getpid(), server.pid, server.data_dir, flush=True)
sys.stdin.read()
"""


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


@pytest.fixture
def owners() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that own a server; what is left of them is ended (a closed stdin ends their forked children)."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for owner in started:
        owner.kill()
        owner.communicate()


def start_owner(owners: list[subprocess.Popen[str]], *arguments: str) -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    owners.append(owner)
    return owner


def read_pids(owner: subprocess.Popen[str]) -> tuple[int, Path]:
    """(the server's pid, its data folder), once the owner has started it."""
    assert owner.stdout is not None
    _, server_pid, data_dir = owner.stdout.readline().split()
    return int(server_pid), Path(data_dir)


def wait_for_end(pid: int) -> bool:
    """Whether a process that is not our child ends within 30 s."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 30)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("unix_socket", [True, False], ids=["unix", "port"])
def test_it_answers_as_soon_as_start_returns(fresh_server: ServerFactory, unix_socket: bool) -> None:
    """start() returns a server that answers, and is set to lose and evict nothing."""
    server = fresh_server(unix_socket=unix_socket)
    assert server.url.startswith("unix:///" if unix_socket else "redis://127.0.0.1:")
    settings = client(server).config_get("append*", "save", "maxmemory-policy")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["save"] == ""
    assert settings["maxmemory-policy"] == "noeviction"


def test_a_unix_server_listens_on_no_port_and_only_for_its_user(fresh_server: ServerFactory) -> None:
    """The private socket is the only way in."""
    server = fresh_server()
    assert client(server).config_get("port") == {"port": "0"}
    socket_file = Path(server.url.removeprefix("unix://"))
    assert socket_file.stat().st_mode & 0o077 == 0
    assert socket_file.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("unix_socket", [True, False], ids=["unix", "port"])
def test_data_survives_sigkill_of_the_server(fresh_server: ServerFactory, unix_socket: bool) -> None:
    """An acknowledged write is there after kill -9 and start(), at the same URL."""
    server = fresh_server(unix_socket=unix_socket)
    url = server.url
    client(server).set("run", "accepted")
    kill(server)
    assert not server.alive
    server.start()
    assert server.url == url
    assert client(server).get("run") == "accepted"


def test_data_survives_stop_and_a_new_owner(tmp_path: Path) -> None:
    """The data belongs to the folder, not to the object."""
    with EmbeddedServer(tmp_path / "data", ephemeral=False) as server:
        client(server).set("run", "accepted")
        pid = server.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with EmbeddedServer(tmp_path / "data", ephemeral=False) as server:
        assert client(server).get("run") == "accepted"


def test_starting_twice_is_one_server(fresh_server: ServerFactory) -> None:
    """start() on a server that runs changes nothing."""
    server = fresh_server()
    pid = server.pid
    assert server.start().pid == pid


def test_an_ephemeral_server_leaves_nothing() -> None:
    """Its folder goes with it."""
    with EmbeddedServer(ephemeral=True) as server:
        folder = server.data_dir
        assert folder.exists()
    assert not folder.exists()
    assert not server.alive


@pytest.mark.parametrize("with_forked_child", [False, True], ids=["alone", "forked child lives on"])
def test_sigkill_of_the_owner_leaves_no_orphan(
    owners: list[subprocess.Popen[str]], with_forked_child: bool
) -> None:
    """The server ends with its owner however that ended, and its temporary folder is removed."""
    owner = start_owner(owners, "", *(["fork"] if with_forked_child else []))
    server_pid, data_dir = read_pids(owner)
    guard = psutil.Process(server_pid).parent()
    assert guard is not None
    owner.kill()
    owner.wait()
    assert wait_for_end(server_pid)
    assert wait_for_end(guard.pid)
    assert not data_dir.exists()


def test_sigkill_of_the_guard_ends_the_server_too(
    owners: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Nobody would watch the server any more, so it goes."""
    owner = start_owner(owners, str(tmp_path))
    server_pid, _ = read_pids(owner)
    guard = psutil.Process(server_pid).parent()
    assert guard is not None
    guard.kill()
    assert wait_for_end(server_pid)


def test_a_second_owner_is_refused(
    owners: list[subprocess.Popen[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One sentence names the process that owns the folder; the first server goes on."""
    owner = start_owner(owners, str(tmp_path))
    server_pid, _ = read_pids(owner)
    with pytest.raises(Conflict, match=rf"in use by the embedded server of process {owner.pid}: stop that"):
        EmbeddedServer(tmp_path, ephemeral=False).start()
    assert psutil.pid_exists(server_pid)
    owner.communicate("")
    with EmbeddedServer(tmp_path, ephemeral=False) as server:
        assert server.alive


def test_an_owner_right_after_a_killed_one_waits_for_its_server_to_end(
    owners: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A service that is restarted after SIGKILL starts at the first try, even while the old server is still there."""
    owner = start_owner(owners, str(tmp_path))
    server_pid, _ = read_pids(owner)
    os.kill(server_pid, signal.SIGSTOP)  # it cannot end yet
    owner.kill()
    owner.wait()
    successor = start_owner(owners, str(tmp_path))
    assert successor.stdout is not None
    assert not select.select([successor.stdout], [], [], 0.5)[0]
    os.kill(server_pid, signal.SIGCONT)
    new_pid, _ = read_pids(successor)
    assert new_pid != server_pid


def test_only_the_owner_stops_it(fresh_server: ServerFactory) -> None:
    """A forked child that leaves the `with` block, or calls stop(), leaves the server and its data alone."""
    server = fresh_server()
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    os.waitpid(child, 0)
    assert client(server).ping()


def test_a_server_that_ignores_sigterm_is_killed(
    fresh_server: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stop() ends a frozen server after its limit."""
    monkeypatch.setattr("makegood.workers.embedded_process.STOP_LIMIT_S", 0.2)
    server = fresh_server()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    server.stop()
    assert wait_for_end(pid)


def test_a_data_folder_with_a_long_path_works(tmp_path: Path) -> None:
    """The kernel's limit on the length of a socket's path does not reach the user."""
    folder = tmp_path / ("x" * 120)
    with EmbeddedServer(folder, ephemeral=False) as server:
        assert len(server.url) < 110
        socket_dir = Path(server.url.removeprefix("unix://")).parent
        assert socket_dir.stat().st_mode & 0o077 == 0
        assert client(server).ping()
    assert not socket_dir.exists()


def test_a_stale_socket_is_no_obstacle(tmp_path: Path) -> None:
    """What a crash left in the folder is replaced."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "valkey.sock"))
    with EmbeddedServer(tmp_path, ephemeral=False) as server:
        assert client(server).ping()


def test_a_data_folder_with_odd_characters_works(tmp_path: Path) -> None:
    """Paths are passed on as they are, and the URL can be parsed."""
    with EmbeddedServer(tmp_path / "my data, 100% #1", ephemeral=False) as server:
        assert client(server).ping()


@pytest.mark.parametrize("unix_socket", [True, False], ids=["unix", "port"])
def test_celery_finds_its_queue_at_the_broker_url(fresh_server: ServerFactory, unix_socket: bool) -> None:
    """What kombu publishes to `broker_url_for(url)` is in the database that the URL names."""
    url = fresh_server(unix_socket=unix_socket).url
    url = f"{url}?db=3" if unix_socket else url.replace("/0", "/3")
    with Connection(broker_url_for(url)) as connection, connection.SimpleQueue("hints") as queue:
        queue.put({"run_id": "r1"})
    with redis.Redis.from_url(url) as database:
        assert database.llen("hints") == 1


def test_a_failed_start_says_what_the_log_says(tmp_path: Path) -> None:
    """One sentence, with the server's own last words and where its log is; the folder is free again."""
    with EmbeddedServer(tmp_path, ephemeral=False) as server:
        client(server).set("run", "accepted")
    (manifest,) = (tmp_path / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    with pytest.raises(
        StoreUnreachable, match=r"did not start \(it ended with code 1\): .+; its log is .+log\.$"
    ):
        EmbeddedServer(tmp_path, ephemeral=False).start()
    with pytest.raises(StoreUnreachable, match="Invalid AOF manifest"):
        EmbeddedServer(tmp_path, ephemeral=False).start()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """One sentence names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"cannot use the folder .*/file/data \(.+\): choose another"):
        EmbeddedServer(tmp_path / "file" / "data", ephemeral=False).start()


def test_a_binary_that_cannot_run_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the program cannot even be executed."""
    monkeypatch.setattr(embedded, "server_binary", lambda: tmp_path / "missing")
    with pytest.raises(StoreUnreachable, match=r"cannot execute .*missing: No such file or directory"):
        EmbeddedServer(tmp_path / "data", ephemeral=False).start()


def test_a_guard_that_cannot_run_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken installation is no traceback either."""
    monkeypatch.setattr("makegood.workers.embedded_process.GUARD_SCRIPT", tmp_path / "gone.py")
    with pytest.raises(StoreUnreachable, match=r"its guard ended with code 2\): .*gone\.py"):
        EmbeddedServer(tmp_path / "data", ephemeral=False).start()


def test_an_ephemeral_server_takes_no_data_folder(tmp_path: Path) -> None:
    """Nobody's data is removed by mistake."""
    with pytest.raises(SettingsError, match="makes its own data folder"):
        EmbeddedServer(tmp_path, ephemeral=True)


def test_the_url_is_unknown_before_start() -> None:
    """Asking too early says what to do."""
    with pytest.raises(StoreUnreachable, match=r"call start\(\) first"):
        _ = EmbeddedServer(ephemeral=True).url


def test_the_default_folder_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """An absolute XDG_STATE_HOME counts, a relative one is ignored."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_data_dir({"XDG_STATE_HOME": "/var/state"}) == Path("/var/state/makegood/valkey")
    assert default_data_dir({"XDG_STATE_HOME": "here"}) == Path("/home/somebody/.local/state/makegood/valkey")
    assert default_data_dir({}) == Path("/home/somebody/.local/state/makegood/valkey")


def test_the_last_line_of_a_log_is_shown_without_its_stamp(tmp_path: Path) -> None:
    """Only what this start wrote counts."""
    log = tmp_path / "valkey.log"
    log.write_text("1:M 29 Nov 2026 23:00:19.123 # old trouble\n")
    size = log.stat().st_size
    assert last_line(log, size) == ""
    with log.open("a") as file:
        file.write("1:M 29 Nov 2026 23:00:20.123 # Fatal error: no space\n\n")
    assert last_line(log, size) == "Fatal error: no space"

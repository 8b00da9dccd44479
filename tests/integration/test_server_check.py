"""What `makegood doctor` and a starting worker say about a real server."""

from __future__ import annotations

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from makegood.errors import StoreUnreachable
from makegood.workers.embedded import EmbeddedServer
from makegood.workers.server_check import Finding, check_server, raise_for
from support.servers import ServerFactory, free_port, kill


def connect(url: str, **options: object) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)


def finding(findings: list[Finding], name: str) -> Finding:
    (found,) = [finding for finding in findings if finding.name == name]
    return found


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
def test_the_embedded_server_has_no_fault(store_url: str, decode: bool) -> None:
    """Its settings are the ones we ask of everybody; a client of either kind may ask."""
    findings = check_server(connect(store_url, decode_responses=decode))
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert {finding.name for finding in findings} == {
        "version",
        "scripts",
        "role",
        "cluster",
        "durability",
        "eviction",
        "memory",
        "clock",
    }
    assert finding(findings, "version").text.startswith("Valkey 9.")


def test_a_server_that_syncs_once_a_second_is_a_warning(fresh_server: ServerFactory) -> None:
    """It runs, but acknowledged writes can be lost; strict refuses it."""
    client = connect(fresh_server().url)
    client.config_set("appendfsync", "everysec")
    findings = check_server(client)
    assert findings[0].level == "warn"
    assert "appendfsync everysec" in findings[0].text
    raise_for(findings, strict=False)


def test_a_full_server_is_an_error(fresh_server: ServerFactory) -> None:
    """Nothing could be written any more."""
    client = connect(fresh_server().url)
    client.config_set("maxmemory", client.info("memory")["used_memory"])
    assert finding(check_server(client), "memory").level == "error"


def test_a_replica_is_an_error(fresh_server: ServerFactory) -> None:
    """It would refuse every write."""
    primary = fresh_server(unix_socket=False)
    replica = connect(fresh_server().url)
    replica.replicaof("127.0.0.1", primary.url.rpartition(":")[2].partition("/")[0])
    assert finding(check_server(replica), "role").level == "error"


def test_a_user_without_config_and_scripts_gets_sentences(fresh_server: ServerFactory) -> None:
    """What the server forbids is named, not raised."""
    server = fresh_server()
    admin = connect(server.url)
    admin.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "+info", "+time")
    findings = check_server(connect(server.url, username="plain", password="pw"))
    assert finding(findings, "scripts").level == "error"
    assert "NOPERM" in finding(findings, "scripts").text or "permissions" in finding(findings, "scripts").text
    assert "does not say when it writes" in finding(findings, "durability").text
    assert finding(findings, "eviction").level == "ok"


def test_a_user_without_info_gets_one_sentence(fresh_server: ServerFactory) -> None:
    """Nothing can be checked, and that is an error."""
    server = fresh_server()
    connect(server.url).execute_command("ACL", "SETUSER", "blind", "on", ">pw", "~*", "+ping")
    (only,) = check_server(connect(server.url, username="blind", password="pw"))
    assert only.level == "error"
    assert "allow this user the commands INFO" in only.text


def test_a_server_that_is_gone_is_unreachable(fresh_server: ServerFactory) -> None:
    """One sentence names the address."""
    server: EmbeddedServer = fresh_server()
    client = connect(server.url)
    kill(server)
    with pytest.raises(StoreUnreachable, match=r"unix:///.*valkey\.sock cannot be reached"):
        check_server(client)


def test_no_message_shows_a_password(fresh_server: ServerFactory) -> None:
    """Neither when nobody listens nor when the password is wrong."""
    with pytest.raises(StoreUnreachable) as nobody:
        check_server(connect(f"redis://somebody:hunter2@127.0.0.1:{free_port()}/0"))
    server = fresh_server(unix_socket=False)
    address = server.url.removeprefix("redis://")
    with pytest.raises(StoreUnreachable, match=r"cannot be reached \(.*password") as wrong:
        check_server(connect(f"redis://somebody:hunter2@{address}"))
    for error in (nobody.value, wrong.value):
        assert "hunter2" not in str(error)

"""Settings come from MAKEGOOD_* and /run/secrets; a mistake is one sentence, and no password is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from makegood import settings as settings_module
from makegood.errors import SettingsError
from makegood.settings import Settings, setting_docs
from makegood.urls import broker_url_for, live_url_for, mask_url


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No setting from outside; /run/secrets is a folder of the test (not there yet)."""
    for name in list(os.environ):
        if name.upper().startswith("MAKEGOOD_") or name == "SENTRY_DSN":
            monkeypatch.delenv(name)
    monkeypatch.setattr(settings_module, "SECRETS_DIR", tmp_path / "secrets")
    return tmp_path / "secrets"


def test_everything_has_a_default() -> None:
    """An empty environment is a valid one."""
    settings = Settings.load()
    assert settings.redis_url == settings.broker_url == settings.live_url == "redis://localhost:6379/0"
    assert (settings.lease_s, settings.concurrency, settings.sync_threads) == (10, 100, 32)
    assert settings.agents == ()


def test_every_setting_is_documented() -> None:
    """Name, type, default, sentence and example are there, and the example is accepted."""
    for doc in setting_docs():
        assert all([doc.name, doc.kind, doc.default, doc.description.endswith("."), doc.example]), doc
        Settings.load(**{doc.field: doc.example})


def test_the_environment_sets_and_overrides_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line before environment; None and the empty string set nothing."""
    monkeypatch.setenv("MAKEGOOD_LEASE_S", "4")
    monkeypatch.setenv("MAKEGOOD_CONCURRENCY", "")
    assert Settings.load().lease_s == 4
    assert Settings.load(lease_s=None).lease_s == 4
    assert Settings.load(lease_s=6).lease_s == 6
    assert Settings.load().concurrency == 100


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks around and empty parts do not count."""
    monkeypatch.setenv("MAKEGOOD_AGENTS", "shop.agents, billing:support,")
    monkeypatch.setenv("MAKEGOOD_SECRET_FIELDS", "card")
    settings = Settings.load()
    assert settings.agents == ("shop.agents", "billing:support")
    assert settings.secret_fields == ("card",)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("MAKEGOOD_LEESE_S", r"MAKEGOOD_LEESE_S is no setting of makegood: did you mean MAKEGOOD_LEASE_S\?"),
        ("MAKEGOOD_REDISURL", r"did you mean MAKEGOOD_REDIS_URL\?"),
        ("makegood_redis", r"makegood_redis is no setting of makegood: did you mean MAKEGOOD_REDIS_URL\?"),
        ("MAKEGOOD_SENTRY_DSN", r"did you mean SENTRY_DSN\?"),
        ("MAKEGOOD_XYZZY_1234", r"MAKEGOOD_XYZZY_1234 is no setting of makegood: remove it\."),
    ],
)
def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, sentence: str) -> None:
    """One sentence names it and the nearest one there is."""
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=sentence):
        Settings.load()


@pytest.mark.parametrize(
    "name",
    [
        "MAKEGOOD_SERVICE_HOST",
        "MAKEGOOD_REDIS_SERVICE_PORT",
        "MAKEGOOD_SERVICE_PORT_HTTP",
        "MAKEGOOD_PORT",
        "MAKEGOOD_PORT_6379_TCP",
        "MAKEGOOD_REDIS_PORT_6379_TCP_ADDR",
    ],
)
def test_service_links_of_kubernetes_are_no_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A service called makegood or makegood-redis adds these to every container beside it."""
    monkeypatch.setenv(name, "tcp://10.0.0.1:6379")
    Settings.load()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "LEASE_S",
            "1",
            r"MAKEGOOD_LEASE_S is '1', but it should be greater than or equal to 2; for example 5\.",
        ),
        ("LEASE_S", "soon", r"MAKEGOOD_LEASE_S is 'soon', but it should be a valid number"),
        ("LEASE_S", "nan", r"MAKEGOOD_LEASE_S is 'nan', but it should be a finite number"),
        ("CONCURRENCY", "0", r"MAKEGOOD_CONCURRENCY is '0', but it should be greater"),
        (
            "AGENTS",
            "shop/agents.py",
            r"MAKEGOOD_AGENTS .* but 'shop/agents.py' must be module or module:name",
        ),
        (
            "REDIS_URL",
            "localhost:6379",
            r"MAKEGOOD_REDIS_URL is 'localhost:6379', but it must be a URL that begins",
        ),
        ("BROKER_URL", "rabbit", r"MAKEGOOD_BROKER_URL is 'rabbit', but it must be a URL such as"),
        ("LOG_LEVEL", "loud", r"MAKEGOOD_LOG_LEVEL is 'loud', but it should be 'DEBUG', 'INFO'"),
    ],
)
def test_an_invalid_value_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    """It names the variable, its value, what is wrong and an example."""
    monkeypatch.setenv(f"MAKEGOOD_{name}", value)
    with pytest.raises(SettingsError, match=sentence) as error:
        Settings.load()
    assert "\n" not in str(error.value)


def test_an_invalid_value_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence about a URL masks it."""
    monkeypatch.setenv("MAKEGOOD_REDIS_URL", "http://user:hunter2@host")
    with pytest.raises(SettingsError, match=r"'http://user:\*\*\*@host'") as error:
        Settings.load()
    assert "hunter2" not in str(error.value)


def test_secrets_come_from_files(clean_environment: Path) -> None:
    """A file named like the variable sets it; the environment comes first; an unknown name is an error there too."""
    clean_environment.mkdir()
    (clean_environment / "makegood_redis_url").write_text("redis://:hunter2@valkey/0\n")
    (clean_environment / "sentry_dsn").write_text("https://key@sentry.example.com/1\n")
    (clean_environment / "somebody_elses").write_text("x")
    settings = Settings.load()
    assert settings.redis_url == "redis://:hunter2@valkey/0"
    assert settings.sentry_dsn is not None
    assert settings.sentry_dsn.get_secret_value() == "https://key@sentry.example.com/1"
    (clean_environment / "makegood_redis_ulr").write_text("x")
    with pytest.raises(SettingsError, match=r"makegood_redis_ulr \(a file in .*secrets\) is no setting"):
        Settings.load()


def test_nothing_printed_shows_a_secret() -> None:
    """Neither redacted() nor repr(); redacted() is JSON-able and has every setting."""
    settings = Settings.load(
        redis_url="redis://u:hunter2@host/0",
        broker_url="amqp://u:hunter2@rabbit",
        sentry_dsn="https://hunter2@s/1",
    )
    shown = settings.redacted()
    assert "hunter2" not in json.dumps(shown) + repr(settings)
    assert list(shown) == [doc.name for doc in setting_docs()]
    assert shown["MAKEGOOD_BROKER_URL"] == "amqp://u:***@rabbit"
    assert shown["SENTRY_DSN"] == "***"


def test_the_broker_follows_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless set, it is the same server; a unix socket is named the way Celery wants it, also when set."""
    monkeypatch.setenv("MAKEGOOD_REDIS_URL", "unix:///run/valkey.sock")
    assert Settings.load().broker_url == "redis+socket:///run/valkey.sock"
    assert Settings.load().live_url == "unix:///run/valkey.sock"
    monkeypatch.setenv("MAKEGOOD_BROKER_URL", "unix:///run/other.sock")
    assert Settings.load().broker_url == "redis+socket:///run/other.sock"


@pytest.mark.parametrize(
    ("url", "broker_url"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("rediss://:pw@host/1?ssl_cert_reqs=none", "rediss://:pw@host/1?ssl_cert_reqs=none"),
        ("unix:///a/b.sock", "redis+socket:///a/b.sock"),
        ("unix:///a/b.sock?db=2", "redis+socket:///a/b.sock?virtual_host=2"),
        ("unix://u:pw@/a/b.sock?db=2", "redis+socket://u:pw@/a/b.sock?virtual_host=2"),
        ("amqp://rabbit", "amqp://rabbit"),
    ],
)
def test_broker_urls(url: str, broker_url: str) -> None:
    """Only a unix socket is named differently."""
    assert broker_url_for(url) == broker_url


@pytest.mark.parametrize(
    ("broker_url", "live_url"),
    [
        ("redis://broker/1", "redis://broker/1"),
        ("redis+socket:///b.sock?virtual_host=1", "unix:///b.sock?db=1"),
        ("amqp://rabbit", "redis://store/0"),
    ],
)
def test_live_urls(broker_url: str, live_url: str) -> None:
    """Live output goes to the broker when it is Redis, else to the store."""
    assert live_url_for(broker_url, "redis://store/0") == live_url


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:pw@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:p@s/s:w@host/0", "rediss://user:***@host/0"),
        ("redis://host/0?password=pw&db=1", "redis://host/0?password=***&db=1"),
        ("unix://user:pw@/a/b.sock?db=2", "unix://user:***@/a/b.sock?db=2"),
        ("unix:///a/b.sock", "unix:///a/b.sock"),
        ("redis+socket:///a/b.sock?virtual_host=1", "redis+socket:///a/b.sock?virtual_host=1"),
    ],
)
def test_masked_urls(url: str, masked: str) -> None:
    """Passwords go, all else stays readable; also with unescaped signs in the password."""
    assert mask_url(url) == masked

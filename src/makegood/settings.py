"""The settings of a process: environment variables `MAKEGOOD_…`, or files of the same names in /run/secrets.

Every setting has a default, a type, a sentence and an example (`setting_docs()`; `makegood config` prints them). A name
that begins with MAKEGOOD_ and is no setting is an error, so that a typing mistake never goes unnoticed; only the
variables that Kubernetes adds for a service called `makegood…` are passed over.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from makegood.errors import SettingsError
from makegood.urls import STORE_SCHEMES, broker_url_for, is_broker_url, live_url_for, mask_url

PREFIX = "MAKEGOOD_"
SECRETS_DIR = Path("/run/secrets")

KUBERNETES_LINK = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)

AGENT_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?")


def _store_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if scheme not in STORE_SCHEMES or not separator or not rest:
        raise ValueError("it must be a URL that begins with redis://, rediss:// or unix:///")
    return url


def _broker_url(url: str) -> str:
    broker = broker_url_for(url)
    if not is_broker_url(broker):
        raise ValueError("it must be a URL such as redis://host:6379/1 or amqp://host")
    return broker


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
    return value


def _agent_places(places: tuple[str, ...]) -> tuple[str, ...]:
    for place in places:
        if not AGENT_PLACE.fullmatch(place):
            raise ValueError(f"{place!r} must be module or module:name")
    return places


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


StoreUrl = Annotated[str, AfterValidator(_store_url)]
BrokerUrl = Annotated[str, AfterValidator(_broker_url)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)]


def _extra(kind: str, example: str, default: str | None = None) -> dict[str, Any]:
    """What the docs show of a setting beyond its sentence."""
    return {"kind": kind, "example": example, "default_text": default}


class Settings(BaseSettings):
    """All settings of a process; frozen. Make one with `Settings.load()`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        validate_default=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    redis_url: StoreUrl = Field(
        "redis://localhost:6379/0",
        repr=False,
        description="The state store, one server and no cluster. It must not lose writes: Redis 7.0 or Valkey 8, "
        "appendfsync always, noeviction.",
        json_schema_extra=_extra("URL", "redis://:password@valkey:6379/0"),
    )
    broker_url: BrokerUrl = Field(
        default_factory=lambda values: str(values.get("redis_url", "redis://localhost:6379/0")),
        repr=False,
        description="Celery's broker, which carries only wake-ups. unix:// becomes redis+socket://.",
        json_schema_extra=_extra("URL", "amqp://user:password@rabbitmq", "MAKEGOOD_REDIS_URL"),
    )
    live_url: StoreUrl = Field(
        default_factory=lambda values: live_url_for(
            str(values.get("broker_url", "")), str(values.get("redis_url", "redis://localhost:6379/0"))
        ),
        repr=False,
        description="The server for live output; it may lose data.",
        json_schema_extra=_extra(
            "URL", "redis://valkey:6379/1", "the broker if it is Redis, else MAKEGOOD_REDIS_URL"
        ),
    )
    agents: Annotated[Names, AfterValidator(_agent_places)] = Field(
        (),
        description="Where a worker finds its agents; the working directory is importable.",
        json_schema_extra=_extra("module[:name],…", "shop.agents,billing:support"),
    )
    secret_fields: Names = Field(
        (),
        description="Names of tool arguments and results that are masked before anything sees them.",
        json_schema_extra=_extra("name,…", "card_number,password"),
    )
    data_dir: Path | None = Field(
        None,
        description="The embedded server's data folder.",
        json_schema_extra=_extra("folder", "/var/lib/makegood", "$XDG_STATE_HOME/makegood/valkey"),
    )
    lease_s: float = Field(
        10,
        ge=2,
        le=3600,
        description="After how long without a sign of life a worker's runs are taken over, when its host is gone.",
        json_schema_extra=_extra("seconds, 2 to 3600", "5"),
    )
    processes: int = Field(
        1,
        ge=1,
        le=256,
        description="Worker processes for runs under one `makegood worker`.",
        json_schema_extra=_extra("number, 1 to 256", "4"),
    )
    concurrency: int = Field(
        100,
        ge=1,
        le=10_000,
        description="Runs in flight in one worker process; in the one for cleanup, cleanups.",
        json_schema_extra=_extra("number, 1 to 10000", "200"),
    )
    sync_threads: int = Field(
        32,
        ge=1,
        le=1_000,
        description="Threads of one worker process for tools that are not async.",
        json_schema_extra=_extra("number, 1 to 1000", "64"),
    )
    grace_s: float = Field(
        30,
        ge=2,
        le=3600,
        description="How long a worker that is told to stop may take to hand its runs over.",
        json_schema_extra=_extra("seconds, 2 to 3600", "60"),
    )
    loop_lag_ms: int = Field(
        250,
        ge=1,
        le=60_000,
        description="A worker whose event loop is later than this claims no run.",
        json_schema_extra=_extra("milliseconds, 1 to 60000", "500"),
    )
    loop_stall_s: float = Field(
        30,
        ge=1,
        le=3600,
        description="A worker process whose event loop has not answered for so long ends and is replaced; no run is blamed for it.",
        json_schema_extra=_extra("seconds, 1 to 3600", "60"),
    )
    liveness_file: Path | None = Field(
        None,
        description="A file that the worker's event loop touches every second, for liveness probes.",
        json_schema_extra=_extra("file", "/tmp/makegood-alive", "none"),
    )
    log_level: LogLevel = Field(
        "INFO",
        description="The least severe log records that are written.",
        json_schema_extra=_extra("DEBUG, INFO, WARNING, ERROR or CRITICAL", "DEBUG"),
    )
    sentry_dsn: SecretStr | None = Field(
        None,
        validation_alias="SENTRY_DSN",
        description="Where alerts and unexpected errors go.",
        json_schema_extra=_extra("URL", "https://key@sentry.example.com/1", "none"),
    )
    sentry_traces: float = Field(
        0,
        ge=0,
        le=1,
        description="The share of attempts that are traced in Sentry, one span per model request and try of a call; 0: none.",
        json_schema_extra=_extra("number, 0 to 1", "0.1", "0"),
    )
    sentry_payloads: bool = Field(
        False,
        description="Whether Sentry gets prompts, tool arguments and results (in spans, MAKEGOOD_SECRET_FIELDS masked, at most 4 KiB each) and the texts of errors.",
        json_schema_extra=_extra("true or false", "true", "false"),
    )
    sentry_span_items: bool = Field(
        True,
        description="Whether spans leave as items of their own; false: inside their transaction, for a self-hosted Sentry that shows no others.",
        json_schema_extra=_extra("true or false", "false", "true"),
    )

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """The settings from the environment, /run/secrets and `overrides` (by field name; None is no override).

        Raises SettingsError with one sentence that names the variable, for an unknown name or an invalid value.
        """
        secrets_dir = SECRETS_DIR if os.access(SECRETS_DIR, os.R_OK | os.X_OK) else None
        check_names(os.environ, "")
        if secrets_dir is not None:
            check_names((path.name for path in secrets_dir.iterdir()), f" (a file in {secrets_dir})")
        given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(_secrets_dir=secrets_dir, **given)
        except ValidationError as error:
            raise SettingsError(_sentence(error, {**os.environ, **given})) from None

    def redacted(self) -> dict[str, object]:
        """Variable → value, JSON-able and without passwords; what `makegood config --redacted` prints."""
        return {doc.name: _redact(getattr(self, doc.field)) for doc in setting_docs()}


@dataclass(frozen=True)
class SettingDoc:
    """What there is to know about one setting: all texts, for docs and `makegood config`."""

    name: str
    field: str
    kind: str
    default: str
    description: str
    example: str


def setting_docs() -> list[SettingDoc]:
    """All settings, in the order of the class."""
    docs = []
    for field, info in Settings.model_fields.items():
        extra = info.json_schema_extra
        assert isinstance(extra, dict)
        default = extra["default_text"]
        docs.append(
            SettingDoc(
                name=str(info.validation_alias or f"{PREFIX}{field.upper()}"),
                field=field,
                kind=str(extra["kind"]),
                default=str(default) if default else _default_text(info.default),
                description=str(info.description),
                example=str(extra["example"]),
            )
        )
    return docs


def check_names(names: Iterable[str], where: str) -> None:
    """Raise SettingsError for the first name that begins with MAKEGOOD_ and is no setting; suggests the nearest."""
    known = [doc.name for doc in setting_docs()]
    for name in sorted(names):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known or KUBERNETES_LINK.search(upper):
            continue
        near = difflib.get_close_matches(upper, [*known, f"{PREFIX}SENTRY_DSN"], n=1, cutoff=0.6)
        meant = near[0] if near and near[0] in known else "SENTRY_DSN"
        advice = f"did you mean {meant}?" if near else "remove it."
        raise SettingsError(
            f"{name}{where} is no setting of makegood: {advice} `makegood config` lists all settings."
        )


def _default_text(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(default) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _redact(value: object) -> object:
    match value:
        case SecretStr():
            return "***"
        case str():
            return mask_url(value)
        case Path():
            return str(value)
        case tuple():
            return list(value)
        case _:
            return value


def _sentence(error: ValidationError, values: Mapping[str, object]) -> str:
    """One sentence for the first thing that is wrong; it shows no value of a secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = str(first["loc"][0]) if first["loc"] else ""
    doc = next((doc for doc in setting_docs() if place in (doc.field, doc.name)), None)
    if doc is None:
        return f"{place} is no setting of makegood: `makegood config` lists all settings."
    why = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    value = next((values[name] for name in (doc.field, doc.name, doc.name.lower()) if name in values), None)
    shown = f" is {mask_url(str(value))!r}" if value is not None and doc.field != "sentry_dsn" else ""
    return f"{doc.name}{shown}, but {why if why.startswith(('it ', chr(39))) else 'it ' + why}; for example {doc.example}."

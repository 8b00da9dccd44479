"""URLs of stores and brokers: what may be shown of them, and how each library wants them. Imports nothing heavy."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

STORE_SCHEMES = ("redis", "rediss", "unix")
BROKER_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel", "amqp", "amqps", "pyamqp", "memory")

URL_PASSWORD = re.compile(r"://([^:/@]*):.*@")
URL_SECRET = re.compile(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&#]*", re.IGNORECASE)


def mask_url(url: str) -> str:
    """The URL with its password, and whatever its query calls a secret, replaced by `***`; for logs and messages."""
    return URL_SECRET.sub(r"\1***", URL_PASSWORD.sub(r"://\1:***@", url))


def broker_url_for(url: str) -> str:
    """The URL as Celery's transports want it: `unix:///p?db=2` becomes `redis+socket:///p?virtual_host=2`."""
    return _with_scheme(url, "unix", "redis+socket", "db", "virtual_host")


def live_url_for(broker_url: str, store_url: str) -> str:
    """Where live output goes unless set: the broker if it is Redis, else the store; as a Redis client wants it."""
    url = _with_scheme(broker_url, "redis+socket", "unix", "virtual_host", "db")
    return url if url.partition("://")[0] in STORE_SCHEMES else store_url


def is_broker_url(url: str) -> bool:
    """Whether the URL names a broker that Celery and makegood know."""
    scheme, separator, rest = url.partition("://")
    return scheme in BROKER_SCHEMES and bool(separator) and (bool(rest) or scheme == "memory")


def _with_scheme(url: str, old: str, new: str, old_db: str, new_db: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme != old:
        return url
    path, _, query = rest.partition("?")
    pairs = [(new_db if name == old_db else name, value) for name, value in parse_qsl(query)]
    return f"{new}://{path}{'?' + urlencode(pairs) if pairs else ''}"

"""Large bodies: written ahead in pieces of at most 64 KiB, so that no single write makes everybody wait (invariant 7)."""

from __future__ import annotations

import hashlib
from typing import Any

from makegood.store import keys
from makegood.store.scripts import Op

PIECE_BYTES = 64 * 1024
"""Largest single write. An fsync'd write of 1 MB was measured at 10 ms, in which everybody waits."""

ORPHAN_S = 3600
"""A body that nothing came to refer to is dropped after this many seconds."""

_MARK = b"@blob:"


def spill(run_id: str, body: bytes) -> tuple[bytes, list[str], list[Op[None]]]:
    """What to store in place of a body, the digests it refers to, and the writes that go ahead.

    A JSON body never begins with the mark, so a reference cannot be mistaken for a value.
    """
    if len(body) <= PIECE_BYTES:
        return body, [], []
    digest = hashlib.sha256(body).hexdigest()[:32]
    pieces = [body[i : i + PIECE_BYTES] for i in range(0, len(body), PIECE_BYTES)]
    key = keys.blob_key(run_id, digest)
    ahead = [Op("put_piece", (key,), (i, piece, ORPHAN_S), _nothing) for i, piece in enumerate(pieces)]
    return _MARK + f"{digest}:{len(pieces)}".encode(), [digest], ahead


def reference(value: bytes | str) -> str | None:
    """Digest of the body that a stored value refers to; None when the value is the body itself."""
    raw = value.encode() if isinstance(value, str) else value
    return raw[len(_MARK) :].split(b":")[0].decode() if raw.startswith(_MARK) else None


def read_blob(run_id: str, digest: str) -> Op[bytes]:
    """The body behind a reference, whole."""

    def parse(reply: Any) -> bytes:
        flat = (
            list(reply.items())
            if isinstance(reply, dict)
            else list(zip(reply[::2], reply[1::2], strict=True))
        )
        return b"".join(piece for _, piece in sorted(flat, key=lambda item: int(item[0])))

    return Op(None, (), ("HGETALL", keys.blob_key(run_id, digest)), parse)


def _nothing(reply: Any) -> None:
    return None

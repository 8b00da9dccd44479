"""Kinds of resources: which are known, what each keeps, and how each comes back (CONTRACT E2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from makegood import resource
from makegood.errors import DeclarationError
from makegood.tasks import rollbacks
from makegood.tasks.rollbacks import check_declaration, prior_of, rollback_of

URL = "redis://store:6379/0"
seen: list[tuple[Any, ...]] = []


@resource("bucket_of_kinds_test")
async def empty_bucket(ctx: Any, id: str, prior: object | None) -> None:  # noqa: A002
    seen.append(("async", ctx, id, prior))


@resource("table_of_kinds_test")
def drop_table(ctx: Any, id: str, prior: object | None) -> None:  # noqa: A002
    seen.append(("sync", ctx, id, prior))


class Undo:
    """Where a callback may stand."""

    @staticmethod
    def row(ctx: Any, id: str, prior: object | None) -> None:  # noqa: A002
        seen.append(("callback", ctx, id, prior))


ROW = "unit.test_rollback_kinds:Undo.row"


@pytest.mark.parametrize(
    ("kind", "id", "prior"),
    [
        ("redis_key", "cart:7", None),
        ("redis_key", "redis://cache:6379/1#cart:7", None),
        ("path", "/tmp/report.csv", None),
        ("callback", "json:JSONEncoder.default", None),
        ("table_of_kinds_test", "t", {"rows": 3}),
    ],
)
def test_what_can_be_rolled_back_may_be_declared(kind: str, id: str, prior: Any) -> None:  # noqa: A002
    """Every built-in kind and those of @resource."""
    if kind == "callback":
        with pytest.raises(DeclarationError, match="must take"):
            check_declaration(kind, id, prior, URL)
        return
    check_declaration(kind, id, prior, URL)


@pytest.mark.parametrize(
    ("kind", "id", "prior", "says"),
    [
        ("tabel", "t", None, "No kind of resource is registered as 'tabel'"),
        (7, "t", None, "No kind of resource"),
        ("table_of_kinds_test", "", None, "1 to 1000 characters"),
        ("table_of_kinds_test", "x" * 1001, None, "1 to 1000 characters"),
        ("table_of_kinds_test", Path("/x"), None, "1 to 1000 characters"),
        ("path", "relative", None, "not absolute"),
        ("path", "/x", "prior", "leave prior out"),
        ("redis_key", "redis://cache:6379/1", None, "names no key"),
        ("redis_key", "mg:{00}:run:x", None, "belongs to makegood"),
        ("callback", "no.such.module:f", None, "cannot be imported"),
        ("callback", "json", None, "cannot be imported"),
        ("callback", "json:nothing", None, "cannot be imported"),
        ("callback", "json:dumps.x", None, "cannot be imported"),
        ("callback", "json:decoder", None, "needs a function"),
    ],
)
def test_what_could_not_be_rolled_back_is_refused(kind: Any, id: Any, prior: Any, says: str) -> None:  # noqa: A002
    """One sentence that says what to do."""
    with pytest.raises(DeclarationError, match=says) as caught:
        check_declaration(kind, id, prior, URL)
    assert str(caught.value).endswith(".")


def test_kinds_that_are_registered_elsewhere_count() -> None:
    """A child process has only imported its tool."""
    check_declaration("of the worker", "t", None, URL, {"of the worker"})
    with pytest.raises(DeclarationError):
        check_declaration("table_of_kinds_test", "t", None, URL, {"of the worker"})


def test_each_kind_has_its_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the context alone, and whether it is async."""
    seen.clear()
    monkeypatch.setattr(rollbacks, "_callback", lambda id: Undo.row)  # noqa: A006
    for kind, name in (("bucket_of_kinds_test", "b"), ("table_of_kinds_test", "t"), ("callback", ROW)):
        fn, is_async = rollback_of(kind, name, {"p": 1}, URL)
        made = fn("ctx")
        if is_async:
            asyncio.run(made)
    assert seen == [
        ("async", "ctx", "b", {"p": 1}),
        ("sync", "ctx", "t", {"p": 1}),
        ("callback", "ctx", ROW, {"p": 1}),
    ]
    path = tmp_path / "file"
    prior = asyncio.run(prior_of("path", str(path), URL))
    path.write_text("made")
    fn, is_async = rollback_of("path", str(path), prior, URL)
    assert is_async
    for _ in range(2):
        asyncio.run(fn(None))
        assert not path.exists()


def test_a_kind_that_this_process_does_not_know_is_said() -> None:
    """Cleanup makes a question for a person of it."""
    for kind, name in (("gone", "t"), ("callback", "no.such:f")):
        with pytest.raises(DeclarationError):
            rollback_of(kind, name, None, URL)

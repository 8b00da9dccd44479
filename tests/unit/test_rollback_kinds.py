"""Kinds of resources: which are known, what each keeps, and how each comes back (CONTRACT E2)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from makegood import resource
from makegood.errors import DeclarationError
from makegood.tasks import rollbacks
from makegood.tasks.rollbacks import check_declaration, look_of, rollback_of

URL = "redis://store:6379/0"
seen: list[tuple[Any, ...]] = []


@resource("bucket_of_kinds_test")
async def empty_bucket(ctx: Any, id: str, prior: object | None) -> None:  # noqa: A002
    seen.append(("async", ctx, id, prior))


@resource("table_of_kinds_test")
def drop_table(ctx: Any, id: str, prior: object | None) -> None:  # noqa: A002
    seen.append(("sync", ctx, id, prior))


class Context:
    """What roll-backs of built-in kinds use of theirs."""

    def __init__(self, *, may_act: bool = True) -> None:
        self.may_act = may_act

    def _check_may_act(self) -> None:
        if not self.may_act:
            raise TimeoutError("told to stop")

    def _call_async(self, fn: Any) -> Any:
        return asyncio.run(fn("own"))


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
    look, is_async = look_of("path", str(path), URL)
    assert not is_async
    prior = look()
    path.write_text("made")
    fn, is_async = rollback_of("path", str(path), prior, URL)
    assert not is_async
    with pytest.raises(TimeoutError):
        fn(Context(may_act=False))
    assert path.exists()
    for _ in range(2):
        fn(Context())
        assert not path.exists()


def test_an_async_callback_gets_a_context_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is async is only known in the thread in which it is imported."""
    (tmp_path / "async_callback.py").write_text("async def back(ctx, id, prior): return ctx, id, prior\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    fn, is_async = rollback_of("callback", "async_callback:back", 7, URL)
    assert not is_async
    assert "async_callback" not in sys.modules
    assert fn(Context()) == ("own", "async_callback:back", 7)


def test_a_kind_that_this_process_does_not_know_is_said() -> None:
    """Cleanup makes a question for a person of it; a callback is only looked for in its thread."""
    with pytest.raises(DeclarationError, match="'gone'"):
        rollback_of("gone", "t", None, URL)
    fn, _ = rollback_of("callback", "no.such:f", None, URL)
    with pytest.raises(DeclarationError, match="cannot be imported"):
        fn(Context())


@pytest.mark.parametrize(
    "breaks",
    [
        "raise SystemExit(3)",
        "import os; os.environ['NO_SUCH_SETTING']",
        "1/0",
        "def f(:",
        "raise GeneratorExit",
    ],
)
def test_a_module_that_breaks_when_it_is_imported_is_one_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """Whatever it raises: declaring says so, and no worker ends by it."""
    (tmp_path / "breaks_when_imported.py").write_text(f"{breaks}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DeclarationError, match="cannot be imported") as caught:
        check_declaration("callback", "breaks_when_imported:f", None, URL)
    assert str(caught.value).endswith(".")
    assert "breaks_when_imported" not in sys.modules

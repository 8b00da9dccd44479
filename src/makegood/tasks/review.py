"""What a person is shown of a run in review: every open question with its intent, what is known, and how to answer it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from makegood.errors import Conflict
from makegood.store.ops import reads
from makegood.store.ops.review import read_audit
from makegood.store.states import State
from makegood.tasks.flows import Flow
from makegood.tasks.journal import Entry, load_journal, record
from makegood.tasks.queries import load_record, load_state, newest_records, what_follows
from makegood.tasks.rules.rows import Row

SHOWN = ("tool", "status", "effect", "args", "response", "error", "tries", "started_at", "ended_at", "compensation",
         "idempotency_key", "attempt", "step")  # fmt: skip
"""Fields of the journal row that stand in an item."""

LOOK = "Look at the run's events."
"""What to do about a question that names no call."""


def list_reviews(agent: str | None, limit: int) -> Flow[list[dict[str, Any]]]:
    """The newest runs in review, the one that came there last first."""
    records = yield from newest_records([State.REVIEW], agent, limit, without=("input", "output"))
    return [
        {**summary(each), "items": [_brief(item) for item in stored_items(each)]}
        for each in sorted(records, key=lambda each: int(each.get("rv_at") or 0), reverse=True)
    ]


def load_review(run_id: str) -> Flow[dict[str, Any]]:
    """The review of a run, also after a retry or resolve. Raises RunNotFound, Conflict (no review, or resumed)."""
    stored = yield from load_record(run_id)
    if stored["state"] != State.REVIEW and not stored.get("rv_at"):
        raise Conflict(
            f"Run {run_id} is {stored['state']} and has no review; look at it with `makegood runs show {run_id}`."
        )
    entries = yield from load_journal(run_id)
    (audited,) = yield [read_audit(run_id)]
    left = yield from resources_left(run_id)
    waits = stored["state"] == State.REVIEW
    review = summary(stored)
    items = [
        item_view(review, item, entries, waits and is_question(item, entries, left))
        for item in whole_items(stored, entries)
    ]
    return {
        **review,
        "items": items,
        "decisions": _decisions(review, entries) if waits else [],
        "journal": [record(entry) for entry in entries],
        "audit": audited,
    }


def load_audit(run_id: str) -> Flow[list[dict[str, Any]]]:
    """Who asked for what, oldest first. Raises RunNotFound."""
    yield from load_state(run_id)
    (audited,) = yield [read_audit(run_id)]
    found: list[dict[str, Any]] = audited
    return found


def summary(stored: Mapping[str, str]) -> dict[str, Any]:
    """What a list shows of a review; `error` is the run's own, `target` what follows when its cleanup succeeds."""
    code = stored.get("error_code") or None
    return {
        "run_id": stored["id"],
        "agent": stored["agent"],
        "state": stored["state"],
        "version": int(stored.get("version") or 0),
        "opened_at": reads.iso(int(stored["rv_at"])) if stored.get("rv_at") else None,
        "code": stored.get("rv_code") or None,
        "message": stored.get("rv_message") or "",
        "error": {"code": code, "message": stored.get("error_message", "")} if code else None,
        "target": what_follows(stored),
        "times": int(stored.get("reviews") or 0),
    }


# --- items ------------------------------------------------------------------------------------------------------------


def stored_items(stored: Mapping[str, str]) -> list[dict[str, Any]]:
    """The questions as cleanup has written them down."""
    found: list[dict[str, Any]] = orjson.loads(stored.get("rv_items") or "[]")
    return found


def whole_items(stored: Mapping[str, str], entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The stored questions, and what is open without one: a cleanup that killed its processes could write none down."""
    items = stored_items(stored)
    if stored.get("rv_code") == "POISON" and not any(item["kind"] == "poison" for item in items):
        items.append({"kind": "poison", "code": "POISON", "message": stored.get("rv_message") or ""})
    asked = {(item.get("call_key"), item.get("generation")) for item in items}
    goes_on = stored["state"] == State.CLEANING  # what is undone right now was no question
    for row in (entry.row for entry in entries):
        begun = undo_open(row) and not goes_on
        if (row.open or begun) and (row.call_key, row.generation) not in asked:
            named = {"call_key": row.call_key, "generation": row.generation, "tool": row.tool}
            items.append({"kind": "compensation" if begun else "unknown", **named})
    return items


def undo_open(row: Row) -> bool:
    """Whether its undo was begun and has not succeeded: the effect may be half undone, and no attempt may rely on it."""
    return row.undo in ("started", "failed", "unknown")


def resources_left(run_id: str) -> Flow[list[dict[str, str]]]:
    """Kind and id of what was declared and is not rolled back, newest first; passwords masked."""
    from makegood.tasks.rollbacks import load_resources  # pydantic: only where somebody looks at a review

    declared = yield from load_resources(run_id)
    return [{"kind": each.kind, "id": each.shown} for each in reversed(declared) if each.open]


def is_question(item: Mapping[str, Any], entries: Sequence[Entry], left: Sequence[Mapping[str, str]]) -> bool:
    """Whether a person still has to say something, by what the call or the resource is now; `left`: resources."""
    if item["kind"] == "resource":
        named = item.get("resource") or {}
        return any((each["kind"], each["id"]) == (named.get("kind"), named.get("id")) for each in left)
    entry = _entry_of(item, entries)
    if entry is None or item["kind"] == "poison":
        return True
    row = entry.row
    if undo_open(row):
        return True
    return row.open if item["kind"] == "unknown" else row.has_effect and row.undo != "kept"


def item_view(
    review: Mapping[str, Any], item: Mapping[str, Any], entries: Sequence[Entry], is_open: bool
) -> dict[str, Any]:
    """One question with its journal row and, while it is open, the commands that answer it; `review` as `summary` gives it."""
    entry = _entry_of(item, entries)
    row = {} if entry is None else record(entry)
    known = {name: row.get(name) for name in SHOWN}
    return {
        **_brief(item),
        "open": is_open,
        "why": {"code": item.get("code"), "message": item.get("message") or ""} if item.get("code") else None,
        **known,
        "tool": item.get("tool") or known["tool"],
        "question": _question(item, entry),
        "answers": _answers(review, item, entry) if is_open else [],
    }


def _entry_of(item: Mapping[str, Any], entries: Sequence[Entry]) -> Entry | None:
    named = (item.get("call_key"), item.get("generation"))
    return next((each for each in entries if (each.row.call_key, each.row.generation) == named), None)


def _brief(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item.get(name) or None for name in ("kind", "call_key", "generation", "tool", "resource")}


def _question(item: Mapping[str, Any], entry: Entry | None) -> str:
    tool, said = item.get("tool") or "the call", str(item.get("message") or "Cleanup could not go on.")
    if item["kind"] == "resource":
        resource = item.get("resource") or {}
        named = f"{resource.get('kind')} {resource.get('id')}"
        return f"{named} could not be rolled back. Repair the cause or do it by hand; if it may stay, resume or resolve."
    if entry is None or item["kind"] == "poison":
        what = {
            "poison": "Find the cause before anything runs again.",
            "timeout": "Some of what it had to do was not tried.",
        }
        return f"{said} {what.get(item['kind'], LOOK)}"
    if item["kind"] == "unknown" and not undo_open(entry.row):
        return f"Did {tool} take effect? Nobody knows; look for the idempotency key downstream."
    if item["kind"] == "irreversible":
        return f"{tool} took effect, and nothing can undo it. May it stand?"
    if undo_open(entry.row) and not entry.row.has_effect:
        return f"{tool} had no effect, but undoing it was begun. Make sure that nothing of it is left."
    if entry.row.undo == "unknown":
        key = f"{entry.row.idempotency_key}:undo"
        return f"Was {tool} undone? Nobody knows, and trying again may not be safe; look for the key {key} downstream."
    tries = entry.row.undo_tries
    times = f"failed {tries} times" if tries > 1 else "did not succeed"
    return f"Undoing {tool} {times}. Repair the cause, or say whether the effect is gone or may stay."


def _command(review: Mapping[str, Any], how: str, *more: str) -> str:
    """What to type; of two people who answer the same page only the first one is heard."""
    words = ("makegood review", how, review["run_id"], *more)
    return " ".join((*words, f"--expected-version {review['version']}", "--reason …"))


def _answers(review: Mapping[str, Any], item: Mapping[str, Any], entry: Entry | None) -> list[dict[str, str]]:
    retry = _command(review, "retry")
    says: tuple[tuple[str, str], ...] = ()
    if item["kind"] == "resource":
        says = (("the cause is repaired, or it is done by hand", retry),)
    elif item["kind"] == "timeout":
        says = (("what was slow is quick again, or Timeouts.cleanup is longer", retry),)
    elif entry is not None and item["kind"] != "poison":
        call, generation = shlex.quote(entry.row.call_key), f"--generation {entry.row.generation}"
        done, undone = (_command(review, "mark", call, how, generation) for how in ("done", "undone"))
        says = (("it may stay", done), ("it is undone, by hand", undone))
        if undo_open(entry.row) and not entry.row.has_effect:
            says = (("nothing of it is left", undone),)
        elif item["kind"] == "unknown" and not undo_open(entry.row):
            says = (("it took effect", done), ("it did not", undone))
        elif item["kind"] != "irreversible" and entry.row.undo != "unknown":  # else it may not be repeated
            says = (("the cause is repaired: undo it now", retry), *says)
    return [{"means": means, "command": command} for means, command in says]


def _decisions(review: Mapping[str, Any], entries: Iterable[Entry]) -> list[dict[str, str]]:
    says = [("go on with the cleanup, then with what was to follow", "retry")]
    if not any(entry.row.open or undo_open(entry.row) for entry in entries):
        says.append(("begin a new attempt; what stands now stays", "resume"))
    says.append(("end the run as it stands; this is final", "resolve"))
    return [{"means": means, "command": _command(review, how)} for means, how in says]

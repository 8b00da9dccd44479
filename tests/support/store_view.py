"""What the server really holds, read in two round trips, and what has to be true of it whatever was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from makegood.store.states import TERMINAL, State, may_go
from support.store import PREFIX
from support.store_model_run import Run

VOLATILE = ("woken:", "sweep:")
"""Short-lived keys that only say who announces a run."""

KINDS = {
    "run": "hgetall", "j": "hgetall", "s": "hgetall", "r": "hgetall", "beats": "hgetall", "claimed": "hgetall",
    "counters": "hgetall", "cancels": "hgetall", "lat": "hgetall", "l": "smembers", "held": "smembers",
    "agents": "smembers", "e": "xlen", "a": "xlen", "claim": "get",
    "h": "hgetall", "c": "hgetall", "series": "smembers", "key": "get", "dup": "get", "d": "get",
}  # fmt: skip
"""How a key is read; all others are sorted sets."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything in the shard and in the locks: name without the prefix → content."""

    keys: Mapping[str, Any]

    def record(self, run_id: str) -> dict[str, str]:
        """The run's record."""
        found: dict[str, str] = self.keys[f"run:{run_id}"]
        return found

    def number(self, run_id: str, name: str) -> int:
        """A number of the record; missing is 0."""
        return int(self.record(run_id).get(name) or 0)

    def members(self, name: str) -> set[str]:
        """Of a set or a sorted set; a missing one is empty."""
        return set(self.keys.get(name, ()))

    def scores(self, name: str) -> dict[str, float]:
        """Of a sorted set."""
        found: dict[str, float] = self.keys.get(name, {})
        return found

    def indexes(self, run_id: str) -> set[str]:
        """Names of all sets in which the run stands, apart from those of its agents and journals."""
        return {name for name, content in self.keys.items() if _is_index(name) and run_id in content}

    def line(self, run_id: str, field: str) -> list[str]:
        """A status line of the journal, split."""
        found: list[str] = self.keys.get(f"j:{run_id}", {}).get(field, "").split("|")
        return found

    @property
    def run_ids(self) -> list[str]:
        """All runs."""
        return [name[4:] for name in self.keys if name.startswith("run:")]


def _is_index(name: str) -> bool:
    kind = name.partition(":")[0]
    return kind not in KINDS or kind in ("held", "cancels")


def look(raw: Any) -> View:
    """Read everything."""
    names = sorted(name.decode() for name in raw.keys("mg:{*"))
    names = [name for name in names if not name.removeprefix(PREFIX).startswith(VOLATILE)]
    pipe = raw.pipeline(transaction=False)
    for name in names:
        _read(pipe, name)
    return View(
        {
            name.removeprefix(PREFIX): plain(content)
            for name, content in zip(names, pipe.execute(), strict=True)
        }
    )


def _read(pipe: Any, name: str) -> None:
    kind = name.removeprefix(PREFIX).partition(":")[0]
    if name.startswith("mg:{lock:"):
        kind = "run" if name.endswith(":held") else "key"
    command = KINDS.get(kind)
    if command is None:
        pipe.zrange(name, 0, -1, withscores=True)
    else:
        getattr(pipe, command)(name)


def plain(content: Any) -> Any:
    """Bytes as text, pairs as a mapping."""
    if isinstance(content, bytes):
        return content.decode()
    if isinstance(content, dict):
        return {plain(name): plain(value) for name, value in content.items()}
    if isinstance(content, set):
        return {plain(member) for member in content}
    if isinstance(content, list):
        return {plain(member): score for member, score in content}
    return content


# --- what is always true ----------------------------------------------------------------------------------------------


def check_step(before: View, after: View) -> None:
    """States move only along the table and with a new version; an undo that succeeded stays as it is."""
    for run_id in before.run_ids:
        was, now = before.record(run_id), after.record(run_id)
        moved = was["state"] != now["state"]
        assert not moved or may_go(State(was["state"]), State(now["state"])), (was["state"], now["state"])
        assert int(now["version"]) >= int(was["version"]) + moved
        for field, line in before.keys.get(f"j:{run_id}", {}).items():
            if field.endswith(".u") and line.startswith("succeeded|"):
                assert after.keys[f"j:{run_id}"][field] == line, f"{field} was undone and began again"


def check_run(view: View, run_id: str) -> None:
    """The run stands in the indexes of its state and in no other; its counts are those of its journal."""
    record = view.record(run_id)
    state = State(record["state"])
    homes = _homes(record, run_id, state, view)
    homes |= set() if state in TERMINAL else {f"since:{state}"}
    assert view.indexes(run_id) == homes, (view.indexes(run_id), homes)
    effects = recounted(view, run_id, state)
    assert {name: view.number(run_id, name) for name in effects} == effects
    undos = [
        line.partition("|")[0] for f, line in view.keys.get(f"j:{run_id}", {}).items() if f.endswith(".u")
    ]
    assert view.number(run_id, "undo_open") == sum(each in ("started", "failed", "unknown") for each in undos)
    assert view.number(run_id, "locks") == len(view.members(f"l:{run_id}"))
    left = [line for field, line in view.keys.get(f"r:{run_id}", {}).items() if field.endswith(".s")]
    assert view.number(run_id, "resources") == sum(line.startswith(("declared|", "failed|")) for line in left)
    if state in TERMINAL and state != State.RESOLVED:
        assert effects["fx_unknown"] == effects["fx_open"] == view.number(run_id, "locks") == 0


def _homes(record: Mapping[str, str], run_id: str, state: State, view: View) -> set[str]:
    agent, worker = record["agent"], record.get("worker")
    homes = {f"st:{agent}:{state}"}
    if worker is not None:
        assert state in (State.RUNNING, State.STOPPING, State.CLEANING)
        assert worker in view.scores("lease")
        homes.add(f"held:{worker}")
    elif state == State.CLEANING:
        homes.add(f"cleaning_alone:{agent}" if record.get("cl_suspect") == "1" else f"cleaning:{agent}")
    elif state == State.QUEUED:
        homes.add(f"suspects:{agent}" if record.get("suspect") == "1" else f"queued:{agent}")
        homes |= {"expires"} if "expires_at" in record else set()
    elif state == State.PARKED:
        homes.add("due")
    elif state in TERMINAL:
        homes.add("retain")
    else:
        assert state == State.REVIEW, f"nobody has run {run_id}, which is {state}"
    if "cancel" in record and state in (State.RUNNING, State.STOPPING):
        homes |= {"cancels"} & view.indexes(run_id)  # who claims a run that was told reads it in the record
    return homes


def recounted(view: View, run_id: str, state: State) -> dict[str, int]:
    """The effects of a run as its journal says."""
    journal = view.keys.get(f"j:{run_id}", {})
    lines = [
        (line.partition("|")[0], view.line(run_id, f"{field[:-2]}.u")[0])
        for field, line in journal.items()
        if field.endswith(".s") and not field.startswith("read")
    ]
    standing = [status for status, undo in lines if undo != "succeeded"]
    is_open, is_unknown = standing.count("started"), standing.count("unknown")
    if state == State.RESOLVED:
        is_open, is_unknown = 0, is_open + is_unknown
    return {
        "fx_open": is_open,
        "fx_unknown": is_unknown,
        "fx_committed": standing.count("succeeded"),
        "fx_compensated": sum(undo == "succeeded" for _, undo in lines),
        "fx_not_started": standing.count("aborted_before_dispatch"),
    }


# --- what the model says ----------------------------------------------------------------------------------------------


def check_model(view: View, run: Run) -> None:
    """The record, the journal and what is held are those of the model."""
    record = view.record(run.id)
    assert stored(view, run.id) == wanted(run)
    fence = record.get("fence", "")
    assert fence == run.fence or (run.fence is None and not fence.partition(":")[0].isdigit())
    journal = view.keys.get(f"j:{run.id}", {})
    assert {field[:-2] for field in journal if field.endswith(".s")} == set(run.rows)
    for row_id, row in run.rows.items():
        assert view.line(run.id, f"{row_id}.s")[0] == row.status, row_id
        undo = view.line(run.id, f"{row_id}.u")
        assert undo[0] == row.undo, row_id
        assert not row.undo or row.undo == "kept" or int(undo[4]) == row.tries <= 3
    for key, resource in run.resources.items():
        line = view.keys[f"r:{run.id}"][f"{key}.s"].split("|")
        assert (line[0], int(line[3])) == (resource.status, resource.tries), key
    assert view.members(f"l:{run.id}") == {"|".join(map(str, each)) for each in run.registered}


FLAGS = ("cancel", "cannot_continue", "cl_cancelled", "cl_open", "cl_poison")
NUMBERS = (
    "attempt", "fence_n", "step", "ended_step", "continuations", "crashes", "process_deaths", "quarantine_deaths",
    "open_calls", "cl_round", "reviews", "cl_passes", "cl_deaths", "cl_alone", "cl_losses", "suspect", "cl_suspect",
    "continued",
)  # fmt: skip
WORDS = ("agent", "state", "worker", "verdict", "cl_cause", "cl_target", "cl_end")


def stored(view: View, run_id: str) -> dict[str, Any]:
    """What the record says."""
    record = view.record(run_id)
    return {
        **{name: record.get(name) for name in WORDS},
        **{name: name in record for name in FLAGS},
        **{name: view.number(run_id, name) for name in NUMBERS},
    }


def wanted(run: Run) -> dict[str, Any]:
    """What the model says it should."""
    made = run.cleaning
    words = (run.agent, run.state, run.worker, run.verdict)
    numbers = (
        run.attempt, run.fence_n, run.step, run.ended_step, run.continuations, run.crashes, run.deaths,
        run.alone_deaths, run.open_calls, run.round, run.reviews,
    )  # fmt: skip
    cleaning = (made.passes, made.deaths, made.alone, made.losses) if made else (0, 0, 0, 0)
    flags = (run.suspect, bool(made and made.suspect), run.continued)
    why = (made.cause, made.target, made.end) if made else (None, None, None)
    told = (made.cancelled, made.open, made.poison) if made else (False, False, False)
    return {
        **dict(zip(WORDS, (*words, *why), strict=True)),
        **dict(zip(FLAGS, (run.cancel, run.cannot_continue, *told), strict=True)),
        **dict(zip(NUMBERS, (*numbers, *cleaning, *flags), strict=True)),
    }


COUNTED = (
    "runs_finished_total", "timed_out_runs_total", "retried_runs_total", "compensations_total",
    "unknown_outcomes_total", "cleanups_total", "reviews_total", "reviews_resolved_total",
)  # fmt: skip


def counters(view: View) -> dict[str, int]:
    """The counters that the model keeps, too."""
    found = view.keys.get("counters", {})
    return {name: int(n) for name, n in found.items() if name.partition("|")[0] in COUNTED}

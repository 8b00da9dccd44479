"""Counters are counted with the transition they count, so they equal a recount of the records (CONTRACT I2)."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import redis

from makegood import ALL, tool
from makegood.store.keys import all_prefixes, state_index
from makegood.store.states import State
from makegood.testing import Behaviour, Reply, RequestRecord, Stall, Status
from support.engine import LONG_S, MakeProvider, Workers, begun_anew, calls, eventually, limits, make_agent


@tool(effect="write", identity=ALL)
async def act(ctx: Any, n: int) -> str:
    """Does something; 13 is a bug."""
    if n == 13:
        raise ZeroDivisionError
    return "acted"


def answer(request: RequestRecord) -> Behaviour:
    """What each kind of run does, by the first word of its input."""
    words = request.messages[0]["content"].split()
    match words[0]:
        case "ok":
            return Reply("done") if request.results else calls(("act", {"n": 1}))
        case "fails":
            return Status(401)
        case "unknown":
            return Reply("done") if request.results else calls(("act", {"n": 13}))
        case "late":
            return Reply("done") if begun_anew(request) else Stall()
        case _:
            return Stall()


@pytest.mark.contract("I2")
def test_after_a_mixed_load_with_repeats_the_counters_equal_a_recount(
    worker: Workers, model: MakeProvider
) -> None:
    """Two workers, doubled enqueues and wake-ups, every kind of end, one hand-over: each run counts once."""
    agent = make_agent(model(answer), act, timeouts=limits(step=2), max_attempts=2)
    first = worker.start(agent, slots=4)
    worker.start(agent, slots=4)
    kinds = ["ok"] * 8 + ["fails"] * 3 + ["unknown"] * 2 + ["late"] * 3 + ["never"] * 2
    runs = [worker.enqueue(agent, f"{kind} {n}", key=f"k{n}") for n, kind in enumerate(kinds)]
    again = [worker.enqueue(agent, f"{kind} {n}", key=f"k{n}") for n, kind in enumerate(kinds)]
    assert [run.id for run in runs] == [run.id for run in again]
    threads = [threading.Thread(target=first.perform, args=(run.id,)) for run in runs]
    for thread in threads:
        thread.start()
    cancelled = worker.enqueue(agent, "never c")
    eventually(lambda: cancelled.status() in ("running", "queued"), "the run is there")
    cancelled.cancel(wait=True, timeout=LONG_S)
    cancelled.cancel()
    results = [run.wait(2 * LONG_S) for run in (*runs, cancelled)]
    for thread in threads:
        thread.join(LONG_S)
    ends = Counter(result.state for result in results)
    assert ends == Counter(succeeded=11, failed=3, requires_manual_review=2, timed_out=2, cancelled=1)

    counted = worker.counters()
    assert counted["runs_enqueued_total|a"] == 19
    assert counted["runs_deduplicated_total|a"] == 18
    finished = {k.rpartition("|")[2]: n for k, n in counted.items() if k.startswith("runs_finished_total|")}
    assert finished == {state: n for state, n in ends.items() if state != State.REVIEW}
    reviews = {k: n for k, n in counted.items() if k.startswith("reviews_total|a|")}
    assert sum(reviews.values()) == ends[State.REVIEW]
    retried = Counter(result.state for result in results if result.attempts > 1)
    assert {
        k.rpartition("|")[2]: n for k, n in counted.items() if k.startswith("retried_runs_total|")
    } == retried
    assert counted["timed_out_runs_total|a|yes"] == 2
    assert counted["timed_out_runs_total|a|no"] == 0
    for state in State:
        size = sum(worker.client.store.redis.zcard(state_index(p, "a", state)) for p in all_prefixes())
        assert size == ends.get(str(state), 0), state
    assert sum(result.effects.committed for result in results) == 8
    assert sum(result.effects.unknown for result in results) == 2


@pytest.mark.contract("I2")
def test_the_effects_of_a_result_equal_a_recount_of_its_journal(worker: Workers, model: MakeProvider) -> None:
    """Committed, unknown and not started, over replays and two attempts."""
    from makegood import ToolError

    @tool(effect="write", identity=ALL)
    async def refuse(ctx: Any) -> None:
        raise ToolError("no")

    def script(request: RequestRecord) -> Behaviour:
        if not request.results:
            return calls(("act", {"n": 1}), ("act", {"n": 2}), ("refuse", {}))
        return Reply("done") if begun_anew(request) else Stall()

    agent = make_agent(model(script), act, refuse, timeouts=limits(step=1.5))
    result, run = worker.run(agent)
    assert (result.state, result.attempts) == ("succeeded", 2)
    by_status = Counter(row["status"] for row in run.journal())
    assert result.effects.committed == by_status["succeeded"] == 2
    assert result.effects.unknown == by_status["unknown"] == 0
    assert result.calls == 4, "two acts, and the refused call once in each attempt"


@pytest.mark.contract("I2")
@pytest.mark.parametrize(
    ("policy", "state", "cleaned"),
    [("rollback", "requires_manual_review", "no"), ("keep", "timed_out", "yes")],
)
def test_a_timed_out_run_whose_effects_stand_against_its_policy_does_not_count_as_cleaned_up(
    worker: Workers, model: MakeProvider, policy: str, state: str, cleaned: str
) -> None:
    """The same effect is what `keep` wants, and what `rollback` would have undone if it could."""

    @tool(effect="irreversible", identity=ALL)
    async def print_label(ctx: Any) -> str:
        return "printed"

    def script(request: RequestRecord) -> Behaviour:
        return Stall() if request.results else calls(("print_label", {}))

    agent = make_agent(
        model(script), print_label, timeouts=limits(step=1.5), max_attempts=1, on_failure=policy
    )
    result, _ = worker.run(agent)
    assert (result.state, result.effects.committed, result.effects.unknown) == (state, 1, 0)
    counted = {k: n for k, n in worker.counters().items() if k.startswith("timed_out_runs_total|")}
    assert counted == {f"timed_out_runs_total|a|{cleaned}": 1}


END = "that was all"


class Watched:
    """The commands that the store executes while it is open."""

    def __init__(self, url: str) -> None:
        self.seen: list[str] = []
        self.url = url

    def __enter__(self) -> Watched:
        self.client = redis.Redis.from_url(self.url)
        self.monitor = self.client.monitor().__enter__()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()
        return self

    def _listen(self) -> None:
        while True:
            command = str(self.monitor.next_command()["command"])
            if END in command:
                return
            self.seen.append(command)

    def __exit__(self, *_: object) -> None:
        with redis.Redis.from_url(self.url) as other:
            other.echo(END)  # all that was sent before is seen before
        self.thread.join(LONG_S)
        self.client.close()

    def counter_writes(self) -> int:
        """Writes to counters, histograms and the hours."""
        writes = [line for line in self.seen if line.startswith(("HSET", "HINCRBY"))]
        return sum("}:c:" in line or "}:counters" in line or "}:h:" in line for line in writes)


@pytest.mark.contract("I2")
def test_a_step_costs_three_counter_writes(worker: Workers, model: MakeProvider) -> None:
    """Its tokens, its call and its duration, beside the latency buckets: as two runs that differ by three steps show."""

    def script(request: RequestRecord) -> Behaviour:
        wanted = int(request.messages[0]["content"])
        made = len(request.results)
        return Reply("done") if made == wanted else calls(("act", {"n": 100 + made}))

    agent = make_agent(model(script), act)
    worker.run(agent, "1")
    writes = []
    for steps in ("2", "5"):
        with Watched(worker.client.url) as watched:
            result, _ = worker.run(agent, steps)
        assert result.steps == int(steps) + 1
        writes.append(watched.counter_writes())
    assert writes[1] - writes[0] == 3 * 3

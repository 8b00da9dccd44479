"""Model requests that fail: one policy, every try visible, never more than what is left allows (CONTRACT C)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from makegood import BreakerPolicy, RetryPolicy, tool
from makegood.store.keys import prefix_of, run_key
from makegood.tasks.client import Run
from makegood.testing import (
    Close,
    ErrorEvent,
    Garbage,
    Html200,
    Provider,
    Reply,
    RequestRecord,
    Reset,
    Stall,
    Status,
)
from support.engine import LONG_S, MakeProvider, Workers, calls, events_of, eventually, limits, make_agent

FAST = RetryPolicy(retries=2, backoff=0.01, max_backoff=0.02, assumed_cost=0.5)


@tool(effect="read")
async def look(ctx: Any, n: int) -> str:
    """Look something up."""
    return f"seen {n}"


def code_of(run: Run) -> str:
    """The error code of an ended run."""
    error = run.result().error
    assert error is not None
    return error.code


@pytest.mark.contract("C1", "C3", "C5")
@pytest.mark.parametrize(
    "fault",
    [Status(429), Status(500), Status(503), Reset(), Close(), Garbage(), Html200(), Reply("", usage=None)],
    ids=["429", "500", "503", "reset", "closed", "garbage", "html", "empty"],
)
def test_a_transient_failure_is_retried_and_leaves_no_trace_in_the_history(
    worker: Workers, model: MakeProvider, fault: Any
) -> None:
    """The retry sends the same bytes; each failed try is an event, and one llm.retry stands before the wait."""
    provider = model([fault, Reply("fine")])
    result, run = worker.run(make_agent(provider, look))
    assert (result.state, result.output, result.steps) == ("succeeded", "fine", 1)
    assert provider.requests[0].raw == provider.requests[1].raw
    (retry,) = events_of(run, "llm.retry")
    assert retry["data"]["retry"] == 1
    assert retry["data"]["delay_s"] >= 0
    assert retry["data"]["cause"]
    tries = events_of(run, "llm.attempt")
    assert [bool(event["data"].get("failure")) for event in tries] == [True, False]


@pytest.mark.contract("C1")
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Status(401), "AUTH"),
        (Status(402), "QUOTA"),
        (Status(429, {"error": {"message": "x", "code": "insufficient_quota"}}), "QUOTA"),
        (Status(400), "INVALID_REQUEST"),
        (
            Status(400, {"error": {"message": "x", "code": "context_length_exceeded"}}),
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        (Reply("", finish_reason="content_filter"), "CONTENT_FILTER"),
    ],
)
def test_a_final_failure_is_sent_once_and_ends_the_run_with_its_code(
    worker: Workers, model: MakeProvider, fault: Any, code: str
) -> None:
    """Never retried, recorded once."""
    provider = model([fault])
    result, run = worker.run(make_agent(provider))
    assert result.state == "failed"
    assert code_of(run) == code
    assert len(provider.requests) == 1
    assert len(events_of(run, "run.ended")) == 1
    assert not events_of(run, "llm.retry")


@pytest.mark.contract("C2", "C5")
def test_at_most_five_retries_are_made_and_the_failure_is_recorded_once(
    worker: Workers, model: MakeProvider
) -> None:
    """Six requests, five llm.retry, one error; no second attempt."""
    provider = model(lambda _: Status(500))
    result, run = worker.run(make_agent(provider))
    assert len(provider.requests) == 6
    assert code_of(run) == "SERVER"
    assert result.attempts == 1
    assert [event["data"]["retry"] for event in events_of(run, "llm.retry")] == [1, 2, 3, 4, 5]
    assert result.steps == 0


@pytest.mark.contract("J11")
def test_waits_double_and_stay_at_the_cap(worker: Workers, model: MakeProvider) -> None:
    """20 → 40 → 50 → 50 ms with a cap of 50, without jitter."""
    provider = model(lambda _: Status(500))
    policy = RetryPolicy(retries=4, backoff=0.02, max_backoff=0.05, jitter=0)
    _, run = worker.run(make_agent(provider, retry=policy))
    assert [event["data"]["delay_s"] for event in events_of(run, "llm.retry")] == [0.02, 0.04, 0.05, 0.05]
    gaps = [b.at_s - a.at_s for a, b in zip(provider.requests, provider.requests[1:], strict=False)]
    assert all(gap >= wait for gap, wait in zip(gaps, [0.02, 0.04, 0.05, 0.05], strict=True))


@pytest.mark.contract("J12")
def test_a_backoff_of_zero_does_not_wait(worker: Workers, model: MakeProvider) -> None:
    """Every delay is 0."""
    provider = model(lambda _: Status(500))
    _, run = worker.run(make_agent(provider, retry=RetryPolicy(retries=3, backoff=0)))
    assert [event["data"]["delay_s"] for event in events_of(run, "llm.retry")] == [0, 0, 0]


@pytest.mark.contract("J13")
def test_a_blocked_model_call_times_out_after_exactly_two_requests(
    worker: Workers, model: MakeProvider
) -> None:
    """Limit 20 ms, one retry: TIMEOUT_CALL, and both connections were closed by us."""
    provider = model(lambda _: Stall())
    agent = make_agent(provider, timeouts=limits(model=0.02), retry=RetryPolicy(retries=1, backoff=0))
    _, run = worker.run(agent)
    assert code_of(run) == "TIMEOUT_CALL"
    assert len(provider.requests) == 2
    assert all(request.connection.peer_closed.wait() for request in provider.requests)


@pytest.mark.contract("J14", "F7")
def test_a_run_that_is_cancelled_before_its_first_step_sends_no_request(
    worker: Workers, model: MakeProvider
) -> None:
    """The hook cancels; the model is never asked."""
    provider = model()
    result, run = worker.run(make_agent(provider, before_step=lambda ctx: ctx.cancel("not today")))
    assert result.state == "cancelled"
    assert code_of(run) == "CANCELLED"
    assert not provider.requests


@pytest.mark.contract("J15")
def test_a_late_first_token_times_out_after_two_requests(worker: Workers, model: MakeProvider) -> None:
    """First output after 1 s, first-token limit 20 ms, one retry."""
    provider = model(lambda _: Reply("late", delay_s=1))
    agent = make_agent(
        provider,
        model_args={"stream": True},
        timeouts=limits(first_token=0.02),
        retry=RetryPolicy(retries=1, backoff=0),
    )
    _, run = worker.run(agent)
    assert code_of(run) == "TIMEOUT_FIRST_TOKEN"
    assert len(provider.requests) == 2


@pytest.mark.contract("J16")
def test_a_first_token_within_its_limit_needs_one_request(worker: Workers, model: MakeProvider) -> None:
    """Output after 10 ms, limit 200 ms (here 2 s, for slow machines)."""
    provider = model([Reply("soon", delay_s=0.01)])
    agent = make_agent(provider, model_args={"stream": True}, timeouts=limits(first_token=2))
    result, _ = worker.run(agent)
    assert result.output == "soon"
    assert len(provider.requests) == 1


def test_without_a_listener_a_reply_that_breaks_off_may_be_retried(
    worker: Workers, model: MakeProvider
) -> None:
    """Half a stream, then an error inside it: nobody heard it, so it is asked again; nothing of it is kept."""
    provider = model([ErrorEvent({"message": "overloaded", "code": 503}, text="hel"), Reply("hello")])
    result, _ = worker.run(make_agent(provider, model_args={"stream": True}))
    assert result.output == "hello"
    assert len(provider.requests) == 2


@pytest.mark.contract("C7", "J21")
def test_a_retry_that_does_not_fit_what_is_left_is_skipped_with_both_numbers(
    worker: Workers, model: MakeProvider
) -> None:
    """10 s of L3 left; the retry would wait 8 s and may take 10 s: the event names 18 and what is left."""
    provider = model(lambda _: Status(429, headers={"retry-after": "8"}))
    agent = make_agent(provider, timeouts=limits(run=10, step=60), retry=RetryPolicy(jitter=0))
    result, run = worker.run(agent)
    assert result.state == "failed"
    assert code_of(run) == "RATE_LIMIT"
    assert len(provider.requests) == 1
    (skipped,) = events_of(run, "llm.retry_skipped")
    assert skipped["data"]["needed_s"] == pytest.approx(18)
    assert skipped["data"]["level"] == "run"
    assert 0 < skipped["data"]["left_s"] <= 10
    assert not events_of(run, "llm.retry")


@pytest.mark.contract("C2")
@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
def test_no_request_is_sent_earlier_than_the_provider_allowed(
    worker: Workers, model: MakeProvider, header: str
) -> None:
    """A wait under the cap is followed exactly, not our own shorter backoff."""
    value = "1" if header == "retry-after" else "300"
    wait_s = 1.0 if header == "retry-after" else 0.3
    provider = model([Status(429, headers={header: value}), Reply("ok")])
    result, _ = worker.run(make_agent(provider, retry=RetryPolicy(backoff=0.001)))
    first, second = provider.requests
    assert result.state == "succeeded"
    assert second.at_s - first.at_s >= wait_s


@pytest.mark.contract("C3")
def test_backing_off_can_be_read_from_outside_and_ends_at_once_on_cancel(
    worker: Workers, model: MakeProvider
) -> None:
    """The run says what it does while it waits 9 s; a cancel does not wait for the end of it."""
    provider = model(lambda _: Status(429, headers={"retry-after": "9"}))
    agent = make_agent(provider, retry=RetryPolicy())
    worker.start(agent)
    run = worker.enqueue(agent)
    info = eventually(lambda: (i := run.info())["activity"] and i, "an activity")
    assert info["activity"] == "backing_off"
    assert info["activity_detail"]["cause"] == "RATE_LIMIT"
    assert info["state"] == "running"
    assert info["activity_detail"]["delay_s"] >= 9
    began_s = time.monotonic()
    assert run.cancel(wait=True, timeout=LONG_S) == "cancelled"
    assert time.monotonic() - began_s < 5
    assert len(provider.requests) == 1


@pytest.mark.contract("C3")
def test_a_run_no_longer_says_that_it_backs_off_once_it_tries_again(
    worker: Workers, model: MakeProvider
) -> None:
    """The wait is over and the next request is under way: no activity is shown."""
    provider = model([Status(500), Stall()])
    agent = make_agent(provider)
    worker.start(agent)
    run = worker.enqueue(agent)
    assert provider.arrived(2).wait(LONG_S)
    assert run.info()["activity"] is None
    run.cancel(wait=True, timeout=LONG_S)


def wake_now(worker: Workers, run: Run) -> None:
    """Back-date a parked run, so that the next sweep finds it due."""
    worker.client.store.redis.zadd(prefix_of(run.id) + "due", {run.id: 1})


@pytest.mark.contract("C2")
def test_a_long_wait_parks_the_run_and_goes_on_in_the_same_step(worker: Workers, model: MakeProvider) -> None:
    """Retry-After of 100 s: no slot is held, L2 and L3 stand still, the same request is sent, the retry stays used."""
    provider = model(
        [calls(("look", {"n": 1})), Status(429, headers={"retry-after": "100"}), Status(500), Reply("ok")]
    )
    agent = make_agent(provider, look, retry=RetryPolicy(retries=2, backoff=0.01))
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    eventually(lambda: run.status() == "parked", "the run is parked")
    eventually(lambda: not runtime.attempts, "the slot is free")
    (parked,) = events_of(run, "run.parked")
    assert parked["data"]["for_s"] >= 100
    assert len(provider.requests) == 2
    wake_now(worker, run)
    result = run.wait(LONG_S)
    assert result.state == "succeeded"
    assert result.attempts == 1
    assert result.steps == 2
    assert provider.requests[1].raw == provider.requests[2].raw == provider.requests[3].raw
    assert [event["data"]["retry"] for event in events_of(run, "llm.retry")] == [1, 2]
    kinds = [event["type"] for event in events_of(run, "attempt.started", "run.continued", "run.claimed")]
    assert kinds.count("attempt.started") == 1
    assert kinds.count("run.continued") == 1


@pytest.mark.contract("A1")
def test_time_that_a_step_used_before_it_was_parked_is_charged_to_it(
    worker: Workers, model: MakeProvider
) -> None:
    """L2 is an amount: a step does not get its whole limit again because it waited in between."""
    provider = model([Status(429, headers={"retry-after": "100"}, delay_s=0.5), Stall()])
    agent = make_agent(provider, timeouts=limits(step=20), retry=RetryPolicy(assumed_cost=0.1))
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    eventually(lambda: run.status() == "parked", "the run is parked")
    used_ms = int(worker.client.store.redis.hget(run_key(run.id), "l2_used_ms"))  # type: ignore[arg-type]
    assert 500 <= used_ms < 20_000
    wake_now(worker, run)
    assert provider.arrived(2).wait(LONG_S)
    assert runtime.attempts[run.id].step_deadline().left_s(time.monotonic()) <= 20 - used_ms / 1000
    run.cancel(wait=True, timeout=LONG_S)


@pytest.mark.contract("C2")
def test_a_wait_longer_than_the_total_is_not_begun(worker: Workers, model: MakeProvider) -> None:
    """Retry-After of an hour, total of 60 s: skipped with both numbers."""
    provider = model([Status(429, headers={"retry-after": "3600"})])
    agent = make_agent(provider, timeouts=limits(total=60), retry=RetryPolicy())
    _, run = worker.run(agent)
    (skipped,) = events_of(run, "llm.retry_skipped")
    assert code_of(run) == "RATE_LIMIT"
    assert skipped["data"]["level"] == "total"
    assert skipped["data"]["needed_s"] >= 3600


@pytest.mark.contract("C12")
def test_fallback_models_follow_exhausted_retries_and_count_in_the_bound(
    worker: Workers, model: MakeProvider
) -> None:
    """1 + retries + fallback models requests, each switch an event, the failure of the last one the run's."""
    provider = model(lambda _: Status(500))
    agent = make_agent(provider, retry=FAST, fallback_models=("openai/gpt-5-nano", "openai/gpt-4.1"))
    _, run = worker.run(agent)
    assert code_of(run) == "SERVER"
    assert len(provider.requests) == agent.max_sends_per_step() == 5
    models = [request.body["model"] for request in provider.requests]
    assert models == ["gpt-5-mini"] * 3 + ["gpt-5-nano", "gpt-4.1"]
    assert [e["data"]["to"] for e in events_of(run, "llm.fallback")] == [
        "openai/gpt-5-nano",
        "openai/gpt-4.1",
    ]


@pytest.mark.contract("C2", "C12")
def test_a_retry_after_above_the_cap_takes_the_fallback_model_at_once(
    worker: Workers, model: MakeProvider
) -> None:
    """No wait of a minute when another model may answer now."""

    def answer(request: RequestRecord) -> Any:
        if request.body["model"] == "gpt-5-mini":
            return Status(429, headers={"retry-after": "60"})
        return Reply("from the other")

    provider = model(answer)
    result, run = worker.run(make_agent(provider, fallback_models=("openai/gpt-5-nano",)))
    assert result.output == "from the other"
    assert len(provider.requests) == 2
    assert len(events_of(run, "llm.fallback")) == 1
    assert not events_of(run, "llm.retry")


@pytest.mark.contract("C9")
def test_an_open_breaker_of_a_model_takes_the_fallback_without_a_request(
    worker: Workers, model: MakeProvider
) -> None:
    """Once the first model's breaker is open its server hears nothing any more."""
    provider = model(lambda r: Status(500) if r.body["model"] == "gpt-5-mini" else Reply("ok"))
    agent = make_agent(
        provider,
        retry=RetryPolicy(retries=1, backoff=0),
        breaker=BreakerPolicy(failures=2),
        fallback_models=("openai/gpt-5-nano",),
    )
    _, first = worker.run(agent)
    assert len(events_of(first, "breaker.opened")) == 1
    result, second = worker.run(agent)
    assert result.state == "succeeded"
    assert events_of(second, "breaker.rejected")
    assert [r.body["model"] for r in provider.requests].count("gpt-5-mini") == 2


@pytest.mark.contract("C9")
def test_an_open_breaker_of_the_only_model_parks_the_run_until_it_may_be_tried(
    worker: Workers, model: MakeProvider
) -> None:
    """No slot is held while the model's breaker is open; then one probe closes it."""
    provider: Provider = model([Status(500), Status(500), Reply("ok")])
    agent = make_agent(
        provider, retry=RetryPolicy(retries=1, backoff=0), breaker=BreakerPolicy(failures=2, open_for=0.5)
    )
    _, failed = worker.run(agent)
    assert code_of(failed) == "SERVER"
    result, run = worker.run(agent)
    assert result.state == "succeeded"
    assert len(provider.requests) == 3
    (parked,) = events_of(run, "run.parked")
    assert parked["data"]["reason"] == "BREAKER_OPEN"
    assert events_of(run, "breaker.closed")

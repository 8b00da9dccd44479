"""Every event of a run: when it is written and what its data says. Documentation, and a contract that tests hold.

An event has `id, type, at, attempt, step, call_key, data`; `step` and `call_key` are null where an event is about neither.
It is appended by the script that makes it true, so that no event is of something that did not happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EventType:
    """One type of event.

    Attributes:
        type: its name, `subject.what`.
        when: at which moment it is written.
        data: what `data` may hold → its meaning. One that says "only" is left out of the other events of its type.
    """

    type: str
    when: str
    data: Mapping[str, str] = field(default_factory=dict, hash=False)


TOOL = "name of the tool"
MODEL = "name of the model"
CAUSE = "code of the failure"
CODE = "error code, null without an error"
DELAY_S = "seconds until the next try"
RETRY = "number of the retry, the first is 1"
NEEDED_S = "seconds that the wait and one full try need"
LEFT_S = "seconds that are left"
LEVEL = "limit that fired: call, step, run or total, null when none did"
LEFT_LEVEL = "limit that leaves too little: step, run or total"
RESULT = "how the last try ended: ok, error, timeout, aborted, breaker_open, none when nothing was sent"
BREAKER = "name of the breaker"
UNTIL_MS = "when it lets the next try pass, in ms since 1970, null while an operator holds it open"
WORKER = "name of the worker process"

RUN = (
    EventType("run.enqueued", "The run is accepted and durable.", {"agent": "name of the agent"}),
    EventType("run.claimed", "A worker has taken the run.", {"worker": WORKER}),
    EventType("run.parked", "The run waits without a slot until a time has passed.", {"for_s": "seconds that it waits", "reason": "code of the failure that it waits for to pass, BREAKER_OPEN for an open breaker"}),
    EventType("run.continued", "A worker goes on with the attempt where it was left.", {"after": "why it was left: lost (its worker died or fell silent), handed_over or parked"}),
    EventType("run.handed_over", "A worker that stops has given the run back at a step boundary.", {"worker": WORKER}),
    EventType("run.stopping", "Work does not end although its limit or a cancel ended it.", {"activity": "always hanging", "call": "what hangs: a tool, a model, or other code of the agent", "call_key": "the call, if it is one, else null", "for_s": "seconds since it should have ended"}),
    EventType("run.ended", "The run has reached a terminal state; once more when a cleanup asked for later has ended.", {"state": "the terminal state", "code": CODE}),
)  # fmt: skip

ATTEMPT = (
    EventType("attempt.started", "An attempt begins."),
    EventType("attempt.ended", "An attempt is over.", {"code": CODE, "message": "the error in one sentence", "then": "state that follows at once, null when that depends on what has to be cleaned up"}),
    EventType("step.started", "The model's decision is stored, and the step begins."),
    EventType("step.ended", "All calls of the step have ended.", {"ms": "milliseconds that it took"}),
)  # fmt: skip

LLM = (
    EventType("llm.attempt", "A request to a model has ended.", {"model": MODEL, "try": "number of the try, the first is 1", "usage": "tokens, prompt_tokens and completion_tokens, only when the model answered", "failure": "message and code, with status, retry_after_ms, request_id and cause where known, only when the request failed", "cut_by": "the limit or the cause that ended it, only when the run stopped it"}),
    EventType("llm.retry", "A request is sent again after a wait.", {"model": MODEL, "retry": RETRY, "delay_s": DELAY_S, "cause": CAUSE}),
    EventType("llm.retry_skipped", "A retry of a request, or another attempt, was due and does not fit into what is left.", {"model": MODEL + ", only of a request", "what": "always attempt, only of an attempt", "reason": "always deadline", "level": LEFT_LEVEL + ", only of a request", "needed_s": NEEDED_S, "left_s": LEFT_S, "cause": CAUSE + ", only of a request"}),
    EventType("llm.fallback", "The next model is asked from now on.", {"from": "model that failed", "to": "model that is asked", "cause": CAUSE}),
)  # fmt: skip

CALL = (
    EventType("tool.started", "A call is recorded as started; nothing was sent before.", {"tool": TOOL}),
    EventType("tool.retry", "A try has ended, and the call is tried again under the same key; or a cleanup has sent it once more.", {"tool": TOOL, "retry": RETRY, "delay_s": DELAY_S, "cause": CAUSE + ", WORKER_LOST or HANDED_OVER when another worker takes the call up, UNKNOWN_OUTCOME when a cleanup does", "message": "the failure in one sentence", "result": RESULT, "level": LEVEL}),
    EventType("tool.retry_skipped", "A retry was due and is not made.", {"tool": TOOL, "reason": "deadline or breaker", "level": LEFT_LEVEL + ", only with deadline", "needed_s": NEEDED_S + ", only with deadline", "left_s": LEFT_S + ", only with deadline", "cause": CAUSE + ", only with deadline", "until_ms": UNTIL_MS + ", only with breaker"}),
    EventType("tool.replayed", "A call was answered from the journal; nothing was sent.", {"tool": TOOL}),
    EventType("tool.ended", "A call has ended.", {"tool": TOOL, "status": "status of the row in the journal, not_called for a call that was refused and has no row", "code": CODE, "tries": "how often it was sent, only of a call with a row", "result": RESULT + ", only of a call that this worker made", "level": LEVEL + ", only of a call that this worker made", "restored": "true, only of a call that a worker put back after the store had lost it"}),
)  # fmt: skip

BREAKERS = (
    EventType("breaker.opened", "A failure of this run has opened the breaker.", {"name": BREAKER}),
    EventType("breaker.half_open", "A try of this run is the probe of an open breaker.", {"name": BREAKER}),
    EventType("breaker.closed", "A try of this run has closed the breaker.", {"name": BREAKER}),
    EventType("breaker.rejected", "An open breaker has refused a try.", {"name": BREAKER, "until_ms": UNTIL_MS}),
)  # fmt: skip

CLEANUP = (
    EventType("cleanup.started", "A worker has taken the run's cleanup.", {"pass": "number of the pass, the first is 1", "cause": "timeout, failure, cancel, crash, manual, or unknown (the run would succeed if a call's outcome were known)", "worker": WORKER}),
    EventType("cleanup.settled", "A call's outcome was unknown and is known now, or an operator lets its effect stand.", {"tool": TOOL, "outcome": "happened, not_happened, or kept (by an operator)", "how": "probe, repeat or operator"}),
    EventType("cleanup.rolled_back", "A declared resource is as it was before.", {"what": "always resource", "kind": "kind of the resource", "id": "name of the resource"}),
    EventType("cleanup.compensated", "A call's effect is undone.", {"tool": TOOL, "what": "always compensation", "code": "always null", "how": "always operator, only when a person marked it as undone"}),
    EventType("cleanup.failed", "An undo has failed; whether it is tried again says the journal.", {"what": "compensation or resource", "tool": TOOL + ", only of a compensation", "kind": "kind of the resource, only of a resource", "id": "name of the resource, only of a resource", "code": "error code"}),
    EventType("cleanup.ended", "A cleanup is over.", {"state": "state that follows", "result": "clean; partial when something stays that a person has accepted; failed when a person has to decide"}),
)  # fmt: skip

REVIEW = (
    EventType("review.opened", "The run waits for a person.", {"code": "error code", "items": "number of open questions", "tools": "tools that they are about, at most 20"}),
    EventType("review.resolved", "A person has decided about the run as a whole.", {"action": "retry, resume or resolve"}),
)  # fmt: skip

EVENTS: tuple[EventType, ...] = (*RUN, *ATTEMPT, *LLM, *CALL, *BREAKERS, *CLEANUP, *REVIEW)
"""The table, in the order of a run's life."""

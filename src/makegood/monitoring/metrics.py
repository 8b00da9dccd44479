"""Every metric there is, once: exporter, documentation, dashboards and alert rules read this table.

It needs no package beyond makegood's own, so that a test or a document may read it without the exporter's extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from makegood.store import buckets
from makegood.store.states import TERMINAL, State

PREFIX = "makegood_"

Type = Literal["counter", "gauge", "histogram"]

Where = Literal[
    "counters",  # the counters of shards, breakers and limits, summed: `name|label|…`
    "tool", "agent", "model", "queue", "all",  # one hash for each tool (agent, …) and shard; its name is the first label
    "breakers",
    "states", "since",  # how many runs are in a state, and for how long the oldest
    "workers", "broker", "limits", "exporter",
]  # fmt: skip
"""Where the exporter finds a metric."""

QUEUE_OF = {
    str(state): "cleanup" if state in (State.CLEANING, State.REVIEW) else "runs"
    for state in State
    if state not in TERMINAL
}
"""State of a run that has not ended → the queue whose workers have it, or wait for it."""

OUTCOMES = tuple(str(state) for state in State if state in TERMINAL)
CLEANED_OUTCOMES = ("succeeded", "failed", "timed_out", "cancelled", "requires_manual_review")
RESULTS = ("ok", "error", "timeout", "aborted", "replayed", "breaker_open")
BREAKER_STATES = ("closed", "open", "half_open")
QUEUES = ("runs", "cleanup", "quarantine")
ACTIONS = (
    "retry", "resume", "resolve", "mark", "cleanup",
    "timeout_verdict", "timeout_set", "breaker_open", "breaker_close",
)  # fmt: skip
"""What operators do: decide about runs, judge and set limits, hold breakers."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: without the prefix; a counter's ends in `_total`.
        labels: names of its labels, in order.
        meaning: one sentence.
        where: where the exporter finds it.
        values: labels whose values are a closed list. A counter of which only the agent, tool, model or breaker is
            open is shown from 0 on for each that is known, so that its first increase is seen.
        unit: of the value.
        buckets: upper bounds of a histogram, in its unit; above the last is `+Inf`.
        stored_name: its name in the store, where that is another.
        scale: what a stored number (of a histogram: its sum) is multiplied with to be in the unit.
    """

    name: str
    type: Type
    labels: tuple[str, ...]
    meaning: str
    where: Where
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    unit: str = "1"
    buckets: tuple[float, ...] = ()
    stored_name: str = ""
    scale: float = 1.0

    @property
    def full_name(self) -> str:
        """The name as it is exported (of a histogram: that of the family)."""
        return PREFIX + self.name

    @property
    def stored_as(self) -> str:
        """Its name in the store's hashes."""
        return self.stored_name or self.name

    @property
    def own_labels(self) -> tuple[str, ...]:
        """Labels that stand in the fields of its hash; the first of a series is the name of the hash."""
        return self.labels[1:] if self.where in ("tool", "agent", "model", "queue") else self.labels


def sample_names(metric: Metric) -> set[str]:
    """The full names of its samples, as Prometheus knows them."""
    if metric.type == "histogram":
        return {f"{metric.full_name}{end}" for end in ("_bucket", "_sum", "_count")}
    return {metric.full_name}


def _counter(
    name: str, labels: str, meaning: str, where: Where = "counters", **values: tuple[str, ...]
) -> Metric:
    return Metric(name, "counter", tuple(labels.split()), meaning, where, values)


def _gauge(
    name: str, labels: str, meaning: str, where: Where, unit: str = "1", **values: tuple[str, ...]
) -> Metric:
    return Metric(name, "gauge", tuple(labels.split()), meaning, where, values, unit)


def _seconds(
    name: str, labels: str, bounds: tuple[float, ...], meaning: str, where: Where, **values: tuple[str, ...]
) -> Metric:
    return Metric(
        name, "histogram", tuple(labels.split()), meaning, where, values, "seconds", bounds, scale=0.001
    )


def _counts(name: str, labels: str, meaning: str, **values: tuple[str, ...]) -> Metric:
    bounds = tuple(float(bound) for bound in buckets.COUNTS)
    return Metric(name, "histogram", tuple(labels.split()), meaning, "agent", values, buckets=bounds)


RUNS = (
    _counter("runs_enqueued_total", "agent", "Runs that were accepted and are durable."),
    _counter("runs_deduplicated_total", "agent", "Requests that named a key which already had its run."),
    _counter("runs_finished_total", "agent outcome", "Runs that ended, each once, at its first end.", outcome=OUTCOMES),
    _counter("retried_runs_total", "agent outcome", "Ended runs that had more than one attempt or lost a worker; those that succeeded were recovered.", outcome=CLEANED_OUTCOMES),
    _counter("timed_out_runs_total", "agent cleaned", "Runs that a limit ended, each once, by whether everything they did was made good.", cleaned=("yes", "no")),
    _gauge("runs_state", "agent state", "Runs that are in each state now; ended ones as long as they are kept.", "states", state=tuple(map(str, State))),
    _gauge("runs_oldest_age_seconds", "queue state", "How long the run that is in a state for longest has been in it; 0 when none is.", "since", "seconds", queue=("runs", "cleanup"), state=tuple(QUEUE_OF)),
    _seconds("run_duration_seconds", "agent outcome", buckets.RUN_S, "From the first start of a run to its end (L3).", "agent", outcome=OUTCOMES),
    _seconds("run_queue_wait_seconds", "queue", buckets.STEP_S, "How long runs and cleanups waited until a worker took them.", "queue", queue=("runs", "cleanup")),
    _counts("run_steps", "agent", "Steps of each ended run."),
    _counts("run_calls", "agent kind", "Calls of each ended run, to tools and to the model.", kind=("tool", "model")),
)  # fmt: skip

CALLS = (
    Metric("calls_total", "counter", ("tool", "result"), "Tries of calls to a tool; replayed ones and those that an open breaker refused did not go out.", "tool", {"result": RESULTS}),
    _seconds("call_duration_seconds", "tool result", buckets.CALL_S, "How long one try of a call took (L1).", "tool", result=RESULTS[:4]),
    _seconds("step_duration_seconds", "agent", buckets.STEP_S, "How long a step took, all its calls and retries included (L2).", "agent"),
    _counter("effects_deduplicated_total", "tool", "Doubled effects that did not happen: the call had been made before."),
    _counter("unknown_outcomes_total", "tool settled", "Calls of which nobody knew whether they took place, by what was found out.", settled=("happened", "not_happened", "compensated", "requires_manual_review")),
    Metric("tokens_total", "counter", ("model", "direction"), "Tokens that models were sent and answered with.", "model", {"direction": ("prompt", "completion")}, "tokens"),
    Metric("cost_usd_total", "counter", ("model",), "What the model calls cost, in US dollars.", "model", unit="USD", stored_name="cost_nano_usd", scale=1e-9),
)  # fmt: skip

TIMES = (
    _counter("timeouts_total", "agent level", "Limits that fired: of a call, a step, an attempt (run), or a whole run.", level=("call", "step", "run", "total")),
    _counter("timeout_verdicts_total", "agent verdict", "What became known of work that a limit cut off: whether it would have ended by itself.", verdict=("true_kill", "false_kill", "unknown")),
    _gauge("timeout_threshold_seconds", "target level", "The limit that holds for a tool (call) or an agent (step, run).", "limits", "seconds", level=("call", "step", "run")),
    _gauge("timeout_suggested_seconds", "target level", "The limit that what was measured suggests; absent while there are too few samples.", "limits", "seconds", level=("call", "step", "run")),
    _gauge("timeout_samples", "target level", "How many durations the suggestion is made of.", "limits", level=("call", "step", "run")),
    _gauge("timeout_false_kill_ratio", "agent", "Of the last 7 days: false kills of all kills whose verdict is known; absent without one.", "limits"),
)  # fmt: skip

RECOVERY = (
    _counter("retries_total", "what cause", "Repetitions of model calls, tool calls and attempts.", what=("model", "tool", "attempt")),
    _counter("retries_skipped_total", "reason", "Repetitions that were due but not made.", reason=("deadline", "breaker")),
    _counter("recoveries_total", "how", "Runs that went on after their worker was lost.", how=("continued", "restarted")),
    _seconds("recovery_seconds", "", buckets.STEP_S, "From the loss of a worker to the moment its run goes on.", "all"),
    _counter("redeliveries_total", "decision", "Messages for a run that was taken before, by what was done about them.", decision=("resumed", "done", "fenced")),
    _gauge("breaker_state", "name state", "1 for the state that a breaker is in, 0 for the two others.", "breakers", state=BREAKER_STATES),
    _counter("breaker_transitions_total", "name to", "Changes of a breaker's state.", to=("open", "half_open", "closed")),
    _counter("breaker_rejected_total", "name", "Tries that an open breaker refused."),
)  # fmt: skip

CLEANUP = (
    _counter("cleanups_total", "agent cause result", "Cleanups that ended.", cause=("timeout", "failure", "cancel", "crash", "unknown", "manual"), result=("clean", "partial", "failed")),
    _counter("compensations_total", "tool result", "Tries to undo a call, by how they ended.", result=("succeeded", "failed", "unknown")),
    _seconds("cleanup_duration_seconds", "agent", buckets.STEP_S, "How long a cleanup took.", "agent"),
    _counter("reviews_total", "agent reason", "Runs that began to wait for a person."),
    _counter("reviews_resolved_total", "agent action", "Runs that a person decided about.", action=("retry", "resume", "resolve")),
    _counter("operator_actions_total", "action result", "What operators asked for, and whether it was done.", action=ACTIONS, result=("done", "refused")),
)  # fmt: skip

SYSTEM = (
    _gauge("workers_alive", "queue", "Worker processes that are alive.", "workers", queue=QUEUES),
    _gauge("worker_slots", "queue", "Runs or cleanups that the living processes can have in flight.", "workers", queue=QUEUES),
    _gauge("worker_loop_lag_seconds", "queue", "How late the event loop of the process that is furthest behind is; absent without a process.", "workers", "seconds", queue=QUEUES),
    _gauge("worker_stuck_threads", "queue", "Threads that hang in tools which did not stop.", "workers", queue=QUEUES),
    _gauge("queue_length", "queue", "Messages that wait in the broker; absent when the broker does not answer.", "broker", queue=QUEUES),
    _gauge("store_up", "", "1 when the state store answered this scrape, else 0.", "exporter"),
    _gauge("exporter_last_success_timestamp_seconds", "", "When the store was last read whole, in seconds since 1970; 0: not since this exporter began.", "exporter", "seconds"),
    _gauge("build_info", "version", "1; the version of the exporter.", "exporter"),
)  # fmt: skip

METRICS: tuple[Metric, ...] = (*RUNS, *CALLS, *TIMES, *RECOVERY, *CLEANUP, *SYSTEM)
"""The table."""

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})

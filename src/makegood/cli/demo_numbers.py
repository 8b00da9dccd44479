"""The last scene of `makegood demo`: what `makegood stats` says of the runs that were just played."""

from __future__ import annotations

from collections import Counter

from makegood.cli.demo_play import Scene
from makegood.cli.demo_world import World
from makegood.cli.output import column_lines
from makegood.cli.stats import counts, mean, more_lines, share
from makegood.monitoring.stats import Ratio, RunNumbers, Stats, load_stats
from makegood.tasks.records import Result

COLUMNS = ("AGENT", "ENDED", "STEPS/RUN", "CALLS/RUN", "CLEANED UP", "RECOVERED")
"""What fits into 80 columns; `makegood stats` shows more."""

SHOWN = ("cleanups", "reviews", "skipped retries", "recoveries", "breakers now")


def numbers(world: World) -> Scene:
    """The table, against the records, the model's endpoint and the scenes before."""
    scene = Scene("The numbers", "What `makegood stats` says of all this; each run counts once.")
    runs, found = world.client.runs(), world.client.run_flow(load_stats("1h"))
    rows = [row_of(each, each.agent or "all") for each in (*found.agents, found.all)]
    scene.lines += column_lines(COLUMNS, rows)
    scene.lines += [f"{name}: {text}" for name, text in more_lines(found) if name in SHOWN]
    scene.facts |= {"stats": found.to_dict()}
    claim_means(scene, found.all, runs, len(world.model.requests))
    claim_repairs(scene, found, runs)
    return scene


def row_of(of: RunNumbers, name: str) -> tuple[str, ...]:
    """The numbers of one agent as cells."""
    means = (mean(of.steps), mean(of.tool_calls))
    return (name, str(of.finished), *means, share(of.cleaned), share(of.recovered))


def claim_means(scene: Scene, found: RunNumbers, runs: list[Result], requests: int) -> None:
    """Ends, steps and calls equal those of the records; model requests those that arrived."""
    ends = Counter(str(run.state) for run in runs)
    counted = {outcome: count for outcome, count in found.outcomes.items() if count}
    scene.claim(f"all {len(runs)} runs have ended and count once: {counts(counted)}", counted == ends)
    steps, calls = sum(run.steps for run in runs), sum(run.calls for run in runs)
    scene.claim(f"the records of the runs have {steps} steps", found.steps == Ratio(steps, len(runs)))
    scene.claim(f"they have {calls} tool calls", found.tool_calls == Ratio(calls, len(runs)))
    scene.claim(
        f"the model's endpoint was asked {requests} times", found.model_requests == Ratio(requests, len(runs))
    )


def claim_repairs(scene: Scene, found: Stats, runs: list[Result]) -> None:
    """What the scenes before have shown, one by one."""
    scene.claim("one run timed out, and it was cleaned up", found.all.cleaned == Ratio(1, 1))
    # One, unless somebody has killed the worker once more by hand while this went on: then what the records say.
    retried = [run for run in runs if run.crashes or run.attempts > 1]
    recovered = Ratio(sum(run.state == "succeeded" for run in retried), len(retried))
    lost = "one run lost its worker" if len(retried) == 1 else f"{len(retried)} runs lost their worker"
    scene.claim(f"{lost}, and {recovered.numerator} recovered", found.all.recovered == recovered)
    losses = sum(run.crashes for run in runs)
    scene.claim("each was continued where it was", found.recoveries == {"continued": losses, "restarted": 0})
    scene.claim(
        "one retry was skipped for lack of time", found.retries_skipped == {"deadline": 1, "breaker": 0}
    )
    scene.claim(
        "one run waited for a person, who has decided",
        (found.reviews_opened, sum(found.reviews_resolved.values())) == (1, 1),
    )
    scene.claim(
        "the breaker 'warehouse' is the only one that is not closed",
        [each.name for each in found.breakers] == ["warehouse"],
    )

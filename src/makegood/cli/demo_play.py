"""What every scene of `makegood demo` is made of: a run that is played to its end, and claims about what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from makegood.cli.demo_world import World
from makegood.tasks.client import Run
from makegood.tasks.records import Result

WAIT_S = 60.0
"""A scene takes 2 to 5 s; what takes longer has failed."""


@dataclass(slots=True)
class Scene:
    """What a scene has to show: lines to read, facts for programs, and claims with whether they hold."""

    title: str
    story: str
    lines: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    claims: list[tuple[str, bool]] = field(default_factory=list)

    def claim(self, text: str, holds: bool) -> None:
        """Note a claim that was checked."""
        self.claims.append((text, bool(holds)))

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(holds for _, holds in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """The scene as JSON."""
        claims = [{"text": text, "holds": holds} for text, holds in self.claims]
        return {"title": self.title, "story": self.story, "holds": self.holds, "claims": claims, **self.facts}


def play(world: World, scene: Scene, agent: str, text: str) -> tuple[Run, Result]:
    """Enqueue a run, wait for its end, and show what it did."""
    run = world.client.enqueue(agent, text)
    return run, conclude(scene, run, agent, text)


def conclude(scene: Scene, run: Run, agent: str, text: str) -> Result:
    """Wait for the end of a run, and show what it did."""
    result = run.wait(WAIT_S)
    scene.lines.append(f"Run {run.id} of agent {agent}: {text}")
    for row in run.journal():
        error = "" if row["error"] is None else f", {row['error']['code']}"
        arguments = ", ".join(f"{name}={value!r}" for name, value in row["args"].items())
        scene.lines.append(
            f"  step {row['step']}  {row['tool']}({arguments}) -> {row['status']}, {tries(row)}{error}"
        )
        if row["compensation"] is not None:
            undo = row["compensation"]
            scene.lines.append(f"          its compensation -> {undo['status']}, {tries(undo)}")
    scene.lines.append(f"  {ended(result)}")
    scene.facts.setdefault("runs", []).append(result.to_dict())
    return result


def ended(result: Result) -> str:
    """How a run ended, in words."""
    said = result.output if result.error is None else f"{result.error.code}: {result.error.message}"
    return f"{result.state}: {said}"


def tries(counted: Mapping[str, Any]) -> str:
    """How often it was tried, in words."""
    return f"{counted['tries']} {'try' if counted['tries'] == 1 else 'tries'}"


def code_of(result: Result) -> str | None:
    """The code of a run's error."""
    return None if result.error is None else result.error.code

"""`makegood demo`: everything that is built, shown on this machine, with every claim checked."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any

import click

from makegood.cli.base import Command, State
from makegood.cli.output import clean, fail, print_json, say, styled

if TYPE_CHECKING:
    from makegood.cli.demo_play import Scene
    from makegood.cli.demo_world import World


@click.command("demo", cls=Command)
@click.pass_obj
def demo(state: State) -> int:
    """Show it on this machine: runs that succeed, what is done about faults, and what is undone after them.

    Starts a Valkey server, a worker, a shop with a faulty HTTP API and a scripted model behind a real HTTP endpoint. Every
    claim is checked against them; exit code 1 when one does not hold. Nothing is left behind.
    """
    from makegood.cli.demo_scenes import scenes
    from makegood.cli.demo_world import world
    from makegood.cli.exits import Exit
    from makegood.errors import WaitTimeout

    began_s = time.monotonic()
    played: list[Scene] = []
    with world(say) as stage:
        ready_s = time.monotonic() - began_s
        say(f"The worker is ready after {ready_s:.1f} s.")
        try:
            for number, scene in enumerate(scenes(stage), start=1):
                played.append(scene)
                if not state.json:
                    show(number, scene)
        except WaitTimeout as error:
            fail(f"The demo stops: {error}")
            return Exit.FAILED
        numbers = count(stage)
    holds = all(scene.holds for scene in played)
    numbers |= {"ready_s": round(ready_s, 1), "seconds": round(time.monotonic() - began_s, 1)}
    if state.json:
        print_json({"ok": holds, "scenes": [scene.to_dict() for scene in played], "numbers": numbers})
    else:
        show_numbers(numbers, sum(len(scene.claims) for scene in played))
    if holds:
        return Exit.FINE
    broken = [text for scene in played for text, held in scene.claims if not held]
    fail(f"Not true: {'; '.join(broken)}.")
    return Exit.FAILED


def show(number: int, scene: Scene) -> None:
    """Print a scene."""
    click.echo("\n" + styled(f"{number}. {scene.title}", bold=True))
    click.echo(f"   {scene.story}\n")
    for line in scene.lines:
        click.echo(f"   {clean(line)}".rstrip())
    for text, holds in scene.claims:
        click.echo(f"   {styled('ok ', fg='green') if holds else styled('NOT', fg='red')} {clean(text)}")


def count(stage: World) -> dict[str, Any]:
    """The numbers of the whole demo, from the store, the shop and the model."""
    runs = stage.client.runs()
    happened = [{each["type"] for each in stage.client.get(run.run_id).events()} for run in runs]
    effects = {
        name: sum(run.effects[name] for run in runs)
        for name in ("not_started", "committed", "compensated", "unknown")
    }
    return {
        "runs": dict(sorted(collections.Counter(run.state for run in runs).items())),
        "steps": sum(run.steps for run in runs),
        "calls": sum(run.calls for run in runs),
        "effects": effects,
        "cleaned": sum("cleanup.ended" in types for types in happened),
        "reviewed": sum("review.opened" in types for types in happened),
        "model_requests": len(stage.model.requests),
        "shop_requests": len(stage.shop.requests),
        "tickets": len(stage.shop.tickets),
        "orders": len(stage.shop.orders),
    }


def show_numbers(numbers: dict[str, Any], claims: int) -> None:
    """Print the numbers."""
    click.echo("\n" + styled("Numbers", bold=True))
    states = ", ".join(f"{count} {state}" for state, count in numbers["runs"].items())
    effects = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in numbers["effects"].items())
    click.echo(f"   runs      {sum(numbers['runs'].values())}: {states}")
    click.echo(f"   steps     {numbers['steps']}, with {numbers['calls']} tool calls")
    click.echo(f"   effects   {effects}")
    click.echo(
        f"   cleanup   {numbers['cleaned']} runs cleaned up, {numbers['reviewed']} of them with a person's help"
    )
    click.echo(
        f"   requests  {numbers['model_requests']} to the model, {numbers['shop_requests']} to the shop"
    )
    click.echo(f"   claims    {claims} checked")
    click.echo(
        f"   time      {numbers['seconds']} s, of which {numbers['ready_s']} s until the worker was ready"
    )

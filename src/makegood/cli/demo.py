from __future__ import annotations
import click
from makegood.cli.base import Command, State
@click.command("demo", cls=Command)
@click.pass_obj
def demo(state: State) -> int:
    """Show it all on this machine."""
    return 0

"""The command `makegood`; what each command does stands in docs/cli.md.

Modules of this package load nothing but click and the standard library when they are imported, so that help and shell
completion are instant; a command loads what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    try:
        from makegood.cli.exits import run
    except KeyboardInterrupt:  # before anything is there that would be quiet about it
        sys.exit(130)
    sys.exit(run(arguments))

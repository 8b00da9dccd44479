"""From an exception to an exit code and one sentence."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum

import click

from makegood import errors
from makegood.cli.base import State
from makegood.cli.output import clean, fail


class Exit(IntEnum):
    """Exit codes of all commands; docs/cli.md lists them."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    CONFLICT = 5
    PARTLY_DONE = 6
    ENDED_BADLY = 7
    UNREACHABLE = 8
    WAITED_OUT = 9
    INTERRUPTED = 130
    BROKEN_PIPE = 141


CODES: tuple[tuple[type[errors.MakegoodError], Exit], ...] = (
    (errors.RunNotFound, Exit.NOT_FOUND),
    (errors.UnknownAgent, Exit.NOT_FOUND),
    (errors.NotAllowed, Exit.NOT_ALLOWED),
    (errors.KeyConflict, Exit.CONFLICT),
    (errors.Conflict, Exit.CONFLICT),
    (errors.StaleFence, Exit.CONFLICT),
    (errors.WaitTimeout, Exit.WAITED_OUT),
    (errors.StillStopping, Exit.WAITED_OUT),
    (errors.StoreUnreachable, Exit.UNREACHABLE),
    (errors.BrokerUnreachable, Exit.UNREACHABLE),
    (errors.InvalidInput, Exit.USAGE),
    (errors.SettingsError, Exit.USAGE),
    (errors.DeclarationError, Exit.USAGE),
    (errors.NotBuilt, Exit.USAGE),
)


def code_for(error: errors.MakegoodError) -> Exit:
    """The exit code of an error."""
    return next((code for kind, code in CODES if isinstance(error, kind)), Exit.FAILED)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every error becomes one sentence on standard error and an exit code."""
    state = State()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from makegood.cli.app import cli

        code = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="makegood",
            standalone_mode=False,
            obj=state,
        )
        return code if isinstance(code, int) else Exit.FINE
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        forget_stdout()
        return Exit.BROKEN_PIPE
    except Exception as error:
        if state.debug:
            traceback.print_exc()
        return explain(error)


def explain(error: Exception) -> int:
    """Say what went wrong, in one sentence; returns the exit code."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return Exit.USAGE
        case click.UsageError():
            path = error.ctx.command_path if error.ctx is not None else "makegood"
            message = error.format_message().rstrip(".")
            fail(f"{message}{'' if message.endswith('?') else ';'} see `{path} --help`.")
            return Exit.USAGE
        case click.ClickException():
            fail(error.format_message())
            return error.exit_code
        case errors.MakegoodError():
            fail(str(error))
            return code_for(error)
        case _:
            first = next(iter(str(error).splitlines()), "")[:300]
            fail(
                f"unexpected {type(error).__name__}: {clean(first)}; run it again with --debug and report what it prints."
            )
            return Exit.FAILED


def forget_stdout() -> None:
    """The reader of our output is gone: nothing more is written, and nothing complains when the process ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)

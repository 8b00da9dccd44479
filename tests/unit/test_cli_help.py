"""Help, completion and the list of commands: instant, complete, and the same as in docs/cli.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from makegood.cli.app import cli
from support.cli import environment, makegood

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "cli.md").read_text()
SCRIPT = Path(sys.executable).with_name("makegood")


def commands(group: click.Group = cli, path: str = "makegood") -> dict[str, click.Command]:
    """All commands by what one types."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands(command, f"{path} {name}")
        else:
            found[f"{path} {name}"] = command
    return found


def test_help_loads_no_heavy_library() -> None:
    """`makegood --help` and shell completion need neither Celery nor LiteLLM nor a Redis client nor pydantic."""
    code = (
        "import sys\nfrom makegood.cli.exits import run\nassert run(['--help']) == 0\nassert run(['runs', '--help']) == 0\n"
        "heavy = {'celery', 'kombu', 'litellm', 'redis', 'pydantic', 'httpx', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(commands()))
def test_every_command_has_help_and_the_two_common_options(path: str) -> None:
    """A first sentence, a help text for each option of its own, --json and --debug."""
    command = commands()[path]
    options = {option for parameter in command.params for option in parameter.opts}
    assert command.help
    assert {"--json", "--debug"} <= options
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))


@pytest.mark.parametrize("path", sorted(commands()))
def test_the_docs_name_every_command_and_option(path: str) -> None:
    """docs/cli.md cannot fall behind."""
    assert f"`{path}" in DOCS
    for parameter in commands()[path].params:
        if isinstance(parameter, click.Option):
            assert any(f"`{option}" in DOCS for option in parameter.opts), parameter.opts


def test_the_version_is_that_of_the_package() -> None:
    """Both ways to start it are the same command."""
    by_module = makegood("--version")
    by_script = subprocess.run(
        [SCRIPT, "--version"], check=True, capture_output=True, text=True, env=environment()
    )
    assert by_module.code == 0
    assert by_module.out == by_script.stdout
    assert by_module.out.startswith("makegood 0.")


def test_completion_completes_commands() -> None:
    """click's completion works for the installed command, and a setting of makegood cannot break it."""
    env = environment(_MAKEGOOD_COMPLETE="bash_complete", COMP_WORDS="makegood review r", COMP_CWORD="2")
    done = subprocess.run([SCRIPT], check=False, capture_output=True, text=True, env=env)
    assert done.stdout.splitlines() == ["plain,resolve", "plain,resume", "plain,retry"]


@pytest.mark.parametrize(
    "words",
    [
        "approvals", "messages requeue", "messages drop",
    ],
)  # fmt: skip
def test_what_nobody_has_built_yet_is_refused_by_name(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands of the interface that do not exist yet say so, with exit code 2."""
    from makegood.cli.exits import run

    assert run(words.split()) == 2
    named = words if words.split(maxsplit=1)[0] == "messages" else words.split(maxsplit=1)[0]
    assert capsys.readouterr().err == f"Error: makegood {named} is not built yet.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("lst", "There is no command 'lst'"),
        ("runs lst", "There is no command 'lst'; did you mean 'list'? see `makegood runs --help`."),
        ("runs list --limit 0", "Invalid value for '--limit'"),
        ("runs show", "Missing argument 'RUN'"),
        ("runs list --bogus", "No such option"),
        ("enqueue a b --timeout 3", "--timeout goes with --wait or --follow"),
        ("enqueue a b --wait --timeout nan", "Invalid value for '--timeout'"),
        ("runs events 1 --from x", "--from 'x' is no id of an event"),
        ("worker --queues runs,runs", "Invalid value for '--queues'"),
        ("worker --embedded --url redis://x", "--embedded starts a server of its own"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence says where to read on."""
    from makegood.cli.exits import run

    assert run(words.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"Error: {sentence}")
    assert len(err.splitlines()) == 1
    assert "--help`." in err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, with exit code 2: nothing was done."""
    from makegood.cli.exits import run

    assert run([]) == 2
    assert capsys.readouterr().err.startswith("Usage: makegood")


def test_a_wrong_setting_is_named_not_traced() -> None:
    """A name that is no setting is refused by every command that reads settings; nothing is written anywhere."""
    ran = makegood("runs", "list", env=environment(MAKEGOOD_LEESE_S="5"))
    assert ran.code == 2
    assert "MAKEGOOD_LEASE_S" in ran.sentence
    assert ran.out == ""


def test_an_unexpected_error_is_one_sentence_unless_debugging(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """With --debug the traceback is printed too."""
    from makegood.cli import base
    from makegood.cli.exits import run

    def broken(_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(base.State, "client", broken)
    assert run(["runs", "list"]) == 1
    quiet = capsys.readouterr().err
    assert (
        quiet
        == "Error: unexpected RuntimeError: first line; run it again with --debug and report what it prints.\n"
    )
    assert run(["runs", "list", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err

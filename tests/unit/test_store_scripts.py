"""Header, stub and script of every store operation are held together; scripts keep to the rules of the house."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest

import makegood.store.ops as ops_package
from makegood.store import keys
from makegood.store.codes import Code
from makegood.store.scripts import Op, load_script, script_names, wire

FOLDER = Path(str(resources.files("makegood.store").joinpath("lua")))
PRELUDE = (FOLDER / "_prelude.lua").read_text()
NAMES = script_names()

KEYWORDS = set(
    re.findall(
        r"\w+",
        "and break do else elseif end false for function if in local nil not or repeat return then true until while",
    )
)
GIVEN = {"redis", "KEYS", "ARGV", "ALLOWED", "TERMINAL", "BUCKETS", "HOURS_KEPT_S"}
LIBRARY = {"tonumber", "tostring", "ipairs", "pairs", "string", "table", "math"}

every_script = pytest.mark.parametrize("name", NAMES)


def source(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text()


def header(name: str) -> dict[str, str]:
    """The parts of the header: `-- KEYS: …` up to the next part, on one line."""
    found: dict[str, str] = {}
    part = ""
    for line in source(name).splitlines():
        if not line.startswith("--"):
            break
        text = line.removeprefix("--").strip()
        if match := re.match(r"(KEYS|ARGV|RETURNS|EVENTS): (.*)", text):
            part, text = match.groups()
            found[part] = text
        elif part:
            found[part] += f" {text}"
    return found


def items(text: str) -> list[str]:
    """What a header lists: split at the commas that stand outside of brackets."""
    if text == "none":
        return []
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def code(text: str) -> str:
    """A script without comments and with empty strings."""
    text = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "''", re.sub(r"'[^'\n]*\"[^'\n]*'", "''", text))
    return re.sub(r"--[^\n]*", "", text)


def takes(name: str) -> list[str]:
    """How a script reads ARGV, in order: `one`, or the width of a list."""
    found = re.findall(r"take(?:_n)?\(\)|take_list\((\d+)\)", code(source(name)))
    return [width or "one" for width in found]


# --- stubs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stub:
    """Where Python builds an operation: the script's name, and how many keys it hands over."""

    script: str
    n_keys: int
    place: str


def stubs() -> Iterator[Stub]:
    """Every `Op("name", (keys…), …)` in store/ops."""
    for path in sorted(Path(ops_package.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Op":
                name, given = node.args[0], node.args[1]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    assert isinstance(given, ast.Tuple)
                    yield Stub(name.value, len(given.elts), f"{path.name}:{node.lineno}")


def test_every_script_has_a_stub_and_every_stub_a_script() -> None:
    """One place in Python builds each operation."""
    assert sorted(stub.script for stub in stubs()) == NAMES


@every_script
def test_the_name_says_what_is_done_to_what(name: str) -> None:
    """`verb_noun.lua`; breakers may begin with their noun."""
    assert re.fullmatch(r"[a-z]+_[a-z]+", name)


@every_script
def test_the_header_says_keys_arguments_reply_and_events(name: str) -> None:
    """And begins with what the operation is for."""
    first = source(name).removeprefix("-- STANDALONE\n").splitlines()[0]
    assert re.match(r"-- [A-Z].{15,}", first)
    assert list(header(name)) == ["KEYS", "ARGV", "RETURNS", "EVENTS"]


@every_script
def test_keys_of_header_stub_and_script_agree(name: str) -> None:
    """Each has a number in the header; the script touches no other."""
    numbered = [int(number) for number in re.findall(r"(?:^|, )(\d) ", header(name)["KEYS"])]
    (stub,) = (stub for stub in stubs() if stub.script == name)
    assert numbered == list(range(1, stub.n_keys + 1)), stub.place
    text = source(name) if "STANDALONE" in source(name) else PRELUDE + source(name)
    assert {int(number) for number in re.findall(r"KEYS\[(\d+)\]", text)} == set(numbered)


@every_script
def test_arguments_of_header_and_script_agree(name: str) -> None:
    """As many as are read, lists where lists are read."""
    listed = items(header(name)["ARGV"])
    if "STANDALONE" in source(name):
        read = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", source(name))}
        assert read == set(range(1, len(listed) + 1))
        return
    kinds = takes(name)
    assert len(listed) == len(kinds)
    for item, kind in zip(listed, kinds, strict=True):
        assert ("(list" in item) == (kind != "one"), item
        if "(list of:" in item and kind != "one":
            assert len(items(item.partition("(list of:")[2].removesuffix(")"))) == int(kind), item


@every_script
def test_return_codes_of_header_and_script_agree(name: str) -> None:
    """Every code that a script answers with stands in its header, and no other; errors have a name in codes.py."""
    answered = set(re.findall(r"return \{([A-Z_]+)", code(source(name))))
    assert answered == set(re.findall(r"\{([A-Z_]{3,})", header(name)["RETURNS"]))
    assert answered <= {each.name for each in Code}


@every_script
def test_events_of_header_and_script_agree(name: str) -> None:
    """Those that the script names itself, and whether it appends those handed in."""
    text = header(name)["EVENTS"]
    own = set(re.findall(r"emit\([^\n]*?'([a-z]+\.[a-z_]+)'", source(name)))
    own |= set(re.findall(r"'((?:run|attempt)\.[a-z_]+)'", source(name)))
    assert own == set() if text.startswith("none") else own <= set(re.findall(r"[a-z]+\.[a-z_]+", text))
    emits = "emit_all(" in source(name) or "emit_list(" in source(name)
    assert emits == ("handed in" in text or "run.enqueued" in text)


def test_error_codes_are_the_same_numbers_on_both_sides() -> None:
    """codes.py and the prelude."""
    names, numbers = re.search(r"local ((?:[A-Z_]+(?:, )?)+) = ((?:-\d+(?:, )?)+)\n", PRELUDE).groups()  # type: ignore[union-attr]
    given = dict(zip(names.split(", "), map(int, numbers.split(", ")), strict=True))
    assert given == {each.name: int(each) for each in Code}


# --- the rules of the house -----------------------------------------------------------------------------------------


def declared(text: str) -> set[str]:
    """Names that a script declares: locals, functions, their arguments, loop variables."""
    found: set[str] = set()
    for names in re.findall(r"\blocal (?!function)([\w, ]+?)\s*(?:=|\n|;)", text):
        found |= set(names.replace(" ", "").split(","))
    for name, arguments in re.findall(r"\blocal function (\w+)\(([^)]*)\)", text):
        found |= {name, *arguments.replace(" ", "").split(",")}
    for names in re.findall(r"\bfor ([\w, ]+?)\s*(?:=|\bin\b)", text):
        found |= set(names.replace(" ", "").split(","))
    return found


def exported(line: str) -> list[str]:
    """Names that a line at the top of the prelude gives to the scripts behind it."""
    if line.startswith("local function"):
        return re.findall(r"local function (\w+)", line)
    return line.removeprefix("local ").partition("=")[0].replace(" ", "").split(",")


@pytest.mark.parametrize("name", ["_prelude", *NAMES])
def test_scripts_use_no_globals(name: str) -> None:
    """Neither assigned nor read: a server refuses the one, and the other is a typing mistake."""
    text = code(source(name))
    known = declared(text) | GIVEN | LIBRARY
    if "STANDALONE" not in source(name):
        known |= {
            name
            for line in code(PRELUDE).splitlines()
            if line.startswith("local ")
            for name in exported(line)
        }
    used = {word for dot, word in re.findall(r"(\.\s*)?\b([A-Za-z_]\w*)\b", text) if not dot}
    assert used - KEYWORDS - known == set()


@pytest.mark.parametrize("name", ["_prelude", *NAMES])
def test_scripts_unpack_no_lists_and_need_no_json(name: str) -> None:
    """A long list overflows the stack, and JSON belongs to Python."""
    for word in ("unpack", "cjson", "cmsgpack", "loadstring", "KEYS *", "'KEYS'", "FLUSH"):
        assert word not in source(name)


@every_script
def test_every_refusal_comes_before_the_first_write(name: str) -> None:
    """A script that fails keeps what it wrote: so it checks everything first (invariant 7)."""
    text = code_with_commands(source(name))
    writes = [text.index(each) for each in WRITES if each in text]
    refusals = [match.start() for match in re.finditer(r"return \{[A-Z_]{3,}", text)]
    if writes and refusals:
        assert max(refusals) < min(writes)


WRITES = (
    "'HSET'", "'HDEL'", "'HINCRBY'", "'SET'", "'ZADD'", "'ZREM'", "'SADD'", "'SREM'", "'XADD'", "'PERSIST'",
    "remember(", "finish(", "move(", "enter_state(", "emit(", "emit_all(", "emit_list(", "let_go(", "keep_blobs(",
    "count(", "count_latencies(", "count_settled(", "add(", "observe(",
)  # fmt: skip


def code_with_commands(text: str) -> str:
    """A script without comments, its command names kept, and without the functions that it declares inside."""
    text = re.sub(r"--[^\n]*", "", text)
    return re.sub(r"\nlocal function .*?\nend\n", "\n", text, flags=re.DOTALL)


@every_script
def test_keys_that_are_built_begin_with_the_declared_prefix(name: str) -> None:
    """So that every script is safe on a cluster."""
    for built in re.findall(r"redis\.call\('[A-Z]+', ([^,)]+)", code_with_commands(source(name))):
        assert re.match(
            r"P \.\.|run_key\(|held_key\(|queue_key\(|cleaning_key\(|KEYS\[\d\]|key\b|journal\b|queue\b|declared\b|registered\b",
            built,
        ), built


def test_every_door_sends_the_same_command() -> None:
    """EVALSHA with the hash of the very source that is loaded."""
    op = Op("end_run", (keys.prefix(3),), ("a", b"b", 1), lambda reply: reply)
    assert wire(op) == ("EVALSHA", load_script("end_run").sha, 1, "mg:{03}:", b"a", b"b", 1)
    assert len({load_script(name).sha for name in NAMES}) == len(NAMES)


def test_stubs_are_documented() -> None:
    """Every public function of store/ops says what it is for."""
    for path in Path(ops_package.__path__[0]).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"
    assert inspect.getdoc(Op)

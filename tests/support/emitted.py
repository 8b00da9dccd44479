"""Which events the source emits with which data: read from the source itself, for the test of the table of events."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

Emitted = dict[str, set[str]]

# --- Python ---------------------------------------------------------------------------------------------------------


def emitted_by_python(source: Path) -> Emitted:
    """Every `NewEvent(type, data)` below a folder."""
    found: Emitted = {}
    for path in sorted(source.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in _calls_in(function):
                    data = call.args[1] if len(call.args) > 1 else ast.Dict([], [])
                    names = _keys(data, function, call.lineno)
                    for kind in _texts(call.args[0], function, call.lineno):
                        found.setdefault(kind, set()).update(names)
    return found


def _calls_in(function: ast.AST) -> Iterator[ast.Call]:
    """Calls in a function, those of functions inside it left out: they are visited themselves."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) == "NewEvent":
            yield child
        yield from _calls_in(child)


def _texts(node: ast.expr, function: ast.AST, line: int) -> set[str]:
    """Every text that an expression can be."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp():
            return _texts(node.body, function, line) | _texts(node.orelse, function, line)
        case ast.Name():
            return _texts(_assigned(node.id, function, line), function, line)
        case _:
            raise AssertionError(
                f"line {line}: the type of an event is {ast.unparse(node)}; write it as a text"
            )


def _keys(node: ast.expr, function: ast.AST, line: int) -> set[str]:
    """Every key that a dict can have at a line."""
    match node:
        case ast.Dict():
            found: set[str] = set()
            for key, value in zip(node.keys, node.values, strict=True):
                found |= _keys(value, function, line) if key is None else {ast.literal_eval(key)}
            return found
        case ast.IfExp():
            return _keys(node.body, function, line) | _keys(node.orelse, function, line)
        case ast.Name():
            return _keys(_assigned(node.id, function, line), function, line) | _added(node.id, function, line)
        case _:
            raise AssertionError(
                f"line {line}: the data of an event is {ast.unparse(node)}; write it as a dict"
            )


def _assigned(name: str, function: ast.AST, line: int) -> ast.expr:
    """What a name was given last before a line."""
    values = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                values[node.lineno] = value
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                values[node.lineno] = value
    before = [each for each in values if each <= line]
    assert before, f"line {line}: {name} is not assigned in the function that emits an event"
    return values[max(before)]


def _added(name: str, function: ast.AST, line: int) -> set[str]:
    """Keys that a dict was given one by one before a line."""
    found = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=key))]
            ) if target == name and node.lineno <= line:
                found.add(str(key))
    return found


# --- Lua ------------------------------------------------------------------------------------------------------------


def emitted_by_lua(folder: Path) -> Emitted:
    """Every `emit(id, attempt, type, step, call_key, data)` of the scripts; data is JSON, or the end of a run.

    Left out: events that are handed in as a whole, and those of marks, which `emitted_by_marks` finds.
    """
    prelude = (folder / "_prelude.lua").read_text(encoding="utf-8")
    end_text = re.search(r"function end_text.*?^end", prelude, re.MULTILINE | re.DOTALL)
    assert end_text is not None
    found: Emitted = {}
    for path in sorted(set(folder.glob("*.lua")) - {folder / "_prelude.lua", folder / "mark_call.lua"}):
        text = path.read_text(encoding="utf-8")
        for kind, data in re.findall(r"emit\(id, [^,]+, ([^,]+), .*?, .*?, (.*)\)$", text, re.MULTILINE):
            if not data.startswith("ARGV"):
                (name,) = re.findall(r"^'([a-z]+\.[a-z_]+)'$", kind)
                local = re.findall(rf"^local {re.escape(data)} = (.*)$", text, re.MULTILINE)
                written = end_text[0] if data.startswith("end_text(") else local[0] if local else data
                found.setdefault(name, set()).update(re.findall(r'"(\w+)":', written))
    return found


def emitted_by_marks(ops: Path) -> Emitted:
    """What `mark_call` emits: the data that store/ops/review.py hands in, of a call that is settled and of its effect.

    An effect that an operator lets stand is told as settled (`outcome`), one that was undone by hand as compensated.
    """
    settled, effect = _dumped(ops / "review.py", "_said")
    return {"cleanup.settled": settled, "cleanup.compensated": effect - {"outcome"}}


def _dumped(path: Path, function: str) -> list[set[str]]:
    """Keys of everything that a function gives to `orjson.dumps`, in order."""
    (node,) = (
        each
        for each in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef) and each.name == function
    )
    return [
        _keys(call.args[0], node, call.lineno)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "orjson.dumps"
    ]

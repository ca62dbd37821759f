"""Finds waits under a lock: `.wait(` and `.result(` in the body of `with ...lock:`, or in what that body calls. Part of `make lint`.

in: PLACES, or paths. out: a line per finding; exit code 1 when there is one. Usage: python tools/waits.py [paths]

Who waits under a lock makes everybody wait who wants it, and one of those may be an I/O loop. Calls are followed within a module, by the
names of its functions and methods; a wait in another module is seen where that module is checked. A condition's own wait lets go of its
lock and is none of these.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WAITS = ("wait", "result")
PLACES = ("src", "tests/twins", "tests/drivers")
# Waits that are right: module -> why. Whoever adds one says which threads want the lock, and why none of them is a loop.
ALLOWED: dict[str, str] = {
    "src/flintmq/dataplane/subscriptions.py": "a subscription's lock is wanted by threads of channels only, one set is decided at a time",
    "src/flintmq/dataplane/stages.py": "a scope's lock is wanted by threads of channels only; housekeeping passes over one that is in use",
}


def is_lock(node: ast.expr) -> bool:
    """Whether it is named like a lock: `self._lock`, `scope.lock`, `LOCK`, `table_lock`, or a call that takes one."""
    if isinstance(node, ast.Call):
        return is_lock(node.func)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lower().endswith("lock")


@dataclass
class Function:
    """What one function does. waits: (line, text); calls: names of this module's functions; under_*: the same, under a lock."""

    name: str
    waits: list[tuple[int, str]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    under_waits: list[tuple[int, str]] = field(default_factory=list)
    under_calls: list[tuple[int, str, str]] = field(default_factory=list)


class Reader(ast.NodeVisitor):
    """Collects the functions of a module."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self._inside = [Function("")]
        self._held: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        # What is defined under a lock runs later, and somewhere else.
        held, self._held = self._held, []
        function = Function(getattr(node, "name", "<lambda>"))
        if function.name in self.functions:  # methods of one name in two classes: what either does
            function = self.functions[function.name]
        elif function.name != "<lambda>":
            self.functions[function.name] = function
        self._inside.append(function)
        for child in ast.iter_child_nodes(node):
            self.visit(child)
        self._inside.pop()
        self._held = held

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_Lambda = visit_FunctionDef

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        locks = [ast.unparse(item.context_expr) for item in node.items if is_lock(item.context_expr)]
        for item in node.items:
            self.visit(item.context_expr)
        self._held += locks
        for one in node.body:
            self.visit(one)
        del self._held[len(self._held) - len(locks) :]

    visit_AsyncWith = visit_With

    def visit_Call(self, node: ast.Call) -> None:
        function = self._inside[-1]
        if isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            if name in WAITS and owner not in self._held:
                function.waits.append((node.lineno, f"{owner}.{name}("))
                if self._held:
                    function.under_waits.append((node.lineno, f"{owner}.{name}( under {self._held[-1]}"))
            self._call(function, node, name if owner in ("self", "cls") else "")
        elif isinstance(node.func, ast.Name):
            self._call(function, node, node.func.id)
        self.generic_visit(node)

    def _call(self, function: Function, node: ast.Call, name: str) -> None:
        if name:
            function.calls.append(name)
            if self._held:
                function.under_calls.append((node.lineno, name, self._held[-1]))


def waiting(functions: dict[str, Function]) -> dict[str, str]:
    """Function -> what it waits for, itself or in what it calls."""
    found = {name: one.waits[0][1] for name, one in functions.items() if one.waits}
    grown = True
    while grown:
        grown = False
        for name, one in functions.items():
            through = next((call for call in one.calls if call in found and call != name), None)
            if name not in found and through is not None:
                found[name] = f"{found[through]} in {through}"
                grown = True
    return found


def findings(path: str, source: str) -> Iterator[str]:
    """Lines for people: each wait under a lock."""
    reader = Reader()
    reader.visit(ast.parse(source, path))
    waits = waiting(reader.functions)
    for one in reader.functions.values():
        for line, what in one.under_waits:
            yield f"{path}:{line}: {one.name} waits: {what}; wait before the lock is taken, or use a callback"
        for line, name, lock in one.under_calls:
            if name in waits:
                yield f"{path}:{line}: {one.name} calls {name} under {lock}, which waits: {waits[name]}; use a callback"


def main() -> int:
    paths = [Path(name) for name in sys.argv[1:]] or sorted(path for place in PLACES for path in Path(place).rglob("*.py"))
    lines = [line for path in paths if path.as_posix() not in ALLOWED for line in findings(path.as_posix(), path.read_text())]
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

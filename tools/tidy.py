"""Rules that no other linter checks: size of modules and functions, parameters, marks of unfinished work, tests that documents name, a test
behind each yes of a matrix.

Exit code 1 with one line per finding.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# the package, and what is compiled for its tests
PLACES = ("src", "tests/twins", "tests/drivers")
LINES_MAX = 900
# generated, or data: size says nothing about them
LARGE_ALLOWED = {"src/flintmq/protocol/v0_9_1/spec.py"}
# of a function, its signature included, decorators left aside
FUNCTION_LINES_MAX = 70
# longer functions, module -> names: this list only shrinks
LONG = {
    "src/flintmq/queue/entry_list.py": {"_scan_from"},
    "src/flintmq/store/log/writer.py": {"one_pass"},
}
# arguments by position, `self` left aside
POSITIONAL_MAX = 8
# functions that take as many as they get
VARIADIC = {"Table", "guarded", "pack", "select"}
# functions of more parameters, module -> names: this list only shrinks
WIDE = {
    "src/flintmq/queue/restoring.py": {"list_insert"},
    "src/flintmq/store/log/log.py": {"content_write_small"},
    "src/flintmq/store/log/reader.py": {"block_bytes"},
    "src/flintmq/store/log/record.pxd": {"record_encode"},
    "src/flintmq/store/message_log.py": {"_write_dequeue", "ml_dequeue_tx"},
    "src/flintmq/streams/control.py": {"StreamQueue.__cinit__"},
}
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
DOCUMENTS = ("*.md", "docs/**/*.md", "examples/**/*.md", "src/**/*.md")
# `tests/a/test_b.py`, `tests/a/test_b.py::test_c[d]`, and behind one of these `::test_e`, which is of the same file
_TEST = re.compile(r"`(tests/[\w/]+\.py)?((?:::\w+)*)[^`]*`")


def tests_of(text: str) -> set[tuple[str, str]]:
    """(file, name or "") of every test that a document names."""
    found = set()
    for line in text.splitlines():
        last = ""
        for path, names in _TEST.findall(line):
            last = path or last
            if last and (path or names):
                found |= {(last, name) for name in names.split("::")[1:]} or {(last, "")}
    return found


def unproven(text: str) -> list[str]:
    """Rows of the tables of docs/FEATURES.md whose last column says yes and names no test."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return [row[0] for row in rows if row[-1].startswith("yes") and not tests_of(row[-1])]


def wide(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, finding) of each function with more than POSITIONAL_MAX parameters by position, and of each call with more arguments."""
    known = {one.rpartition(".")[2] for names in WIDE.values() for one in names}
    known |= {one.partition(".")[0] for names in WIDE.values() for one in names if "." in one} | VARIADIC
    owners = {id(inner): f"{node.name}." for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for inner in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = sum(argument.arg not in ("self", "cls") for argument in (*node.args.posonlyargs, *node.args.args))
            full = owners.get(id(node), "") + node.name
            if count > POSITIONAL_MAX and full not in WIDE.get(name, ()):
                yield node.lineno, f"{full} has {count} parameters by position, at most {POSITIONAL_MAX}: group those of one subject"
        elif isinstance(node, ast.Call):
            count = sum(not isinstance(argument, ast.Starred) for argument in node.args)
            callee = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
            if count > POSITIONAL_MAX and callee not in known:
                yield node.lineno, f"{callee} gets {count} arguments by position, at most {POSITIONAL_MAX}: name them"


def long(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, finding) of each function with more than FUNCTION_LINES_MAX lines, and of each exception that is none any more."""
    known = set(LONG.get(name, ()))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines <= FUNCTION_LINES_MAX:
                continue
            if node.name not in known:
                yield node.lineno, f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}: make functions of its parts"
            known.discard(node.name)
    for one in sorted(known):
        yield 1, f"{one} is not too long any more, or gone: take it out of LONG in tools/tidy.py"


def gone() -> Iterator[str]:
    """Lists of exceptions that name a module which is gone."""
    for list_name, names in (("LONG", LONG), ("WIDE", WIDE), ("LARGE_ALLOWED", LARGE_ALLOWED)):
        for name in sorted(names):
            if not (ROOT / name).exists():
                yield f"{name} is gone: take it out of {list_name} in tools/tidy.py"


def findings() -> list[str]:
    found = [f"docs/FEATURES.md: {feature!r} says yes and names no test" for feature in unproven((ROOT / "docs/FEATURES.md").read_text())]
    found += gone()
    for path in sorted(path for place in PLACES for pattern in ("**/*.py", "**/*.pxd") for path in (ROOT / place).glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        lines = text.count("\n")
        if lines > LINES_MAX and name not in LARGE_ALLOWED:
            found.append(f"{name}: {lines} lines, at most {LINES_MAX}: split it by subject")
        if name.startswith("src/") and path.suffix == ".py":
            tree = ast.parse(text)
            found += [f"{name}:{line}: {finding}" for check in (wide, long) for line, finding in check(name, tree)]
        for number, line in enumerate(text.splitlines(), 1):
            if MARKS.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    for document in sorted(path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        for file, name in sorted(tests_of(document.read_text())):
            path = ROOT / file
            if not path.exists() or (name and not re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", path.read_text(), re.MULTILINE)):
                found.append(f"{document.relative_to(ROOT)} names {file}{name and '::' + name}, which does not exist")
    return found


if __name__ == "__main__":
    problems = findings()
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)

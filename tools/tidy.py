"""Rules that no other linter checks: module size, marks of unfinished work, tests that documents name, a test behind each yes of a matrix.

Exit code 1 with one line per finding.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# the package, and what is compiled for its tests
PLACES = ("src", "tests/twins", "tests/drivers")
LINES_MAX = 900
# generated, or data: size says nothing about them
LARGE_ALLOWED = {"src/flintmq/protocol/v0_9_1/spec.py"}
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


def findings() -> list[str]:
    found = [f"docs/FEATURES.md: {feature!r} says yes and names no test" for feature in unproven((ROOT / "docs/FEATURES.md").read_text())]
    for path in sorted(path for place in PLACES for pattern in ("**/*.py", "**/*.pxd") for path in (ROOT / place).glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        lines = text.count("\n")
        if lines > LINES_MAX and name not in LARGE_ALLOWED:
            found.append(f"{name}: {lines} lines, at most {LINES_MAX}: split it by subject")
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

"""Rules that no other linter checks: module size, marks of unfinished work, test ids that PROMISES.md names.

Exit code 1 with one line per finding.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 900
# generated, or data: size says nothing about them
LARGE_ALLOWED = {"src/flintmq/protocol/v0_9_1/spec.py"}
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def findings() -> list[str]:
    found = []
    for path in sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.pxd")]):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        lines = text.count("\n")
        if lines > LINES_MAX and name not in LARGE_ALLOWED:
            found.append(f"{name}: {lines} lines, at most {LINES_MAX}: split it by subject")
        for number, line in enumerate(text.splitlines(), 1):
            if MARKS.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    promises = ROOT / "docs" / "PROMISES.md"
    if promises.exists():
        for test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", promises.read_text()):
            path = ROOT / test[0]
            if not path.exists() or f"def {test[1]}" not in path.read_text():
                found.append(f"docs/PROMISES.md names {test[0]}::{test[1]}, which does not exist")
    return found


if __name__ == "__main__":
    problems = findings()
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)

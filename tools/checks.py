"""`python tools/checks.py [--list]`: does each check of an invariant say which one it is? Part of `make lint`.

in: src. out: a line per finding and exit code 1 if there is one; with --list the checks, by module.

A check is a call of `check` from core/check.pxd (compiled modules) or flintmq/invariant.py (Python).

K1  Its name is a constant: the module, a label of that module's header, and what is looked at.
K2  No two checks have the same name, so the line that a check writes tells where it stands.
K3  A label stands in a header once.
K4  Where bytes of peers or of the disk are read there is none: what is wrong with them is an error, and never the end of the process.
K5  There are not fewer of them than there were.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# checks that there are at least: raised when some are added, lowered only together with the code that they were for
LEAST = 200
# packages and modules that read what is not our own code's: bytes of peers, requests, bytes of the disk
FOREIGN = (
    "access",
    "admin",
    "pipeline",
    "protocol",
    "session/handshake",
    "session/methods",
    "store/content_reader",
    "store/log/containers",
    "store/log/inspect",
    "store/log/reader",
    "store/log/record",
    "store/log/repair",
    "store/log/scan",
    "store/recovery",
    "store/sql",
    "store/stream/stream_reader",
    "streams/group_state",
)
SOURCES = ("cython.cimports.flintmq.core.check", "flintmq.invariant")
_LABEL = re.compile(r"^(?:# ?)?([A-Z]\d+)  \S", re.MULTILINE)
_NAME = re.compile(r"^(\w+) ([A-Z]\d+) \S.*\S$")
_CALL = re.compile(r'\bcheck\(.*?b"([^"]*)"', re.DOTALL)


@dataclass
class Check:
    """One call. name: None when it is no constant."""

    place: str
    line: int
    name: str | None


def header(path: Path) -> str:
    """What stands at the top of a module: its docstring, or the comment that a .pxd begins with."""
    text = path.read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text), clean=False) or ""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line)
    return "\n".join(lines)


def labels(path: Path) -> list[str]:
    """Labels of the module that the file belongs to: those of its .py and of its .pxd."""
    return [label for one in (path.with_suffix(".py"), path.with_suffix(".pxd")) if one.exists() for label in _LABEL.findall(header(one))]


def checks_of(path: Path, name: str) -> Iterator[Check]:
    """The checks of a file. Those of a .pxd are found by their text: there is no parser for it here."""
    text = path.read_text()
    if path.suffix == ".pxd":
        if "flintmq.core.check cimport check" in text:
            for found in _CALL.finditer(text):
                yield Check(name, text.count("\n", 0, found.start()) + 1, found[1])
        return
    tree = ast.parse(text)
    if not any(isinstance(one, ast.ImportFrom) and one.module in SOURCES for one in ast.walk(tree)):
        return
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "check":
            value = one.args[1].value if len(one.args) > 1 and isinstance(one.args[1], ast.Constant) else None
            said = value.decode("ascii", "replace") if isinstance(value, bytes) else value
            yield Check(name, one.lineno, said if isinstance(said, str) else None)


def all_checks(root: Path) -> list[Check]:
    """Every check below src/flintmq, by file and line."""
    found: list[Check] = []
    for path in sorted(root.glob("src/flintmq/**/*.p*")):
        if path.suffix in (".py", ".pxd") and path.name not in ("check.pxd", "invariant.py"):
            found.extend(sorted(checks_of(path, path.relative_to(root).as_posix()), key=lambda one: one.line))
    return found


def findings(root: Path = ROOT, least: int = LEAST) -> list[str]:
    """What is wrong, a line for each."""
    checks = all_checks(root)
    names = Counter(one.name for one in checks)
    wrong = []
    for one in checks:
        path = root / one.place
        at = f"{one.place}:{one.line}"
        parts = _NAME.match(one.name or "")
        if parts is None:
            wrong.append(f"{at}: a check's name is a constant: module, label, what is looked at (K1)")
            continue
        if parts[1] != path.stem or parts[2] not in labels(path):
            wrong.append(f"{at}: the header of {path.stem} has no {parts[2]}, or '{parts[1]}' is another module (K1)")
        if names[one.name] > 1:
            wrong.append(f"{at}: another check is called '{one.name}' (K2)")
        module = path.relative_to(root / "src" / "flintmq").with_suffix("").as_posix()
        if any(module == foreign or module.startswith((f"{foreign}/", f"{foreign}_")) for foreign in FOREIGN):
            wrong.append(f"{at}: bytes of peers or of the disk are read here: answer with an error (K4)")
    for place in sorted({one.place for one in checks}):
        for label, count in Counter(labels(root / place)).items():
            if count > 1:
                wrong.append(f"{place}: {label} stands {count} times in the header (K3)")
    if len(checks) < least:
        wrong.append(f"{len(checks)} checks, and there were {least} (K5)")
    return wrong


def main() -> int:
    if "--list" in sys.argv:
        checks = all_checks(ROOT)
        for place, count in Counter(one.place for one in checks).items():
            print(f"{place}: {count}")
            for one in checks:
                if one.place == place:
                    print(f"    {one.line}: {one.name}")
        print(f"{len(checks)} checks")
    wrong = findings()
    for one in wrong:
        print(one)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

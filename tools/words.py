"""The words of Style 2 and 6 of CONTRIBUTING.md, as `make lint` holds them.

in: the modules of src, their comments, the pages of docs. out: a line for each finding.

W1  A variable or argument says its kind: not `found`, `what`, `at`, `left`, `more`, `told`, `again`, `_went`. `left` beside `right`, an
    operand, is one. A function inside a function, a callback, has a name of its kind too.
W2  A noun stands where a noun exists: no clause "who holds it", "what goes before" as the object or subject of a sentence.

Known exceptions stand below by package, with their number, which only shrinks: a change that mends some lowers it.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = frozenset(("found", "what", "at", "left", "more", "told", "again", "_went"))
# a clause in the place of a noun: behind a preposition or a verb of giving and taking, or as the subject at the head of a sentence
CLAUSE = re.compile(
    r"(?:\b(?:by|of|for|from|to|with|than|behind|before|after|beside|against|at|on|in|tells|told|asks|wakes|gives|lets) (?:who|what)"
    r"|(?:^|[.:;] )(?:Who|What)) (?:is|was|has|had|holds|held|waits|waited|wants|goes|went|comes|came|can|may|stands|stood"
    r"|asks|asked|takes|took|makes|made|gets|got)\b"
)
KNOWN: dict[str, int] = {}


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of each variable and argument that `tree` binds, those of lambdas and handlers and the
    functions in functions too; fields and methods of a class are none."""
    fields = {
        id(field.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }
    inner = {
        id(node) for function in _functions(tree) for node in function.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in ast.walk(tree):
        if id(node) in fields:
            continue
        if id(node) in inner:
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield node.lineno, node.name
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.lineno, node.name


def names(source: str) -> list[tuple[int, str]]:
    """W1: (line, name), once for each line and name."""
    tree = ast.parse(source)
    operands = {spot for function in _functions(tree) if "right" in {name for _, name in bound(function)} for spot in bound(function)}
    return sorted({(line, name) for line, name in bound(tree) if name in NAMES and not (name == "left" and (line, name) in operands)})


def prose(source: str) -> list[tuple[int, str]]:
    """(line, text) of the comments and docstrings of a module; a comment's lines and those of a docstring are joined line by line."""
    lines = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines.append((token.start[0], token.string.lstrip("# ")))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            text = source.split("\n")[first.lineno - 1 : first.end_lineno]
            lines += [(first.lineno + number, line.strip().strip('"')) for number, line in enumerate(text)]
    return lines


def clauses(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """W2: (line, the clause)."""
    return [(number, match[0].strip(".:; ")) for number, text in lines for match in CLAUSE.finditer(text)]


def pxd_prose(source: str) -> list[tuple[int, str]]:
    """The comments of a .pxd, which no Python parser reads."""
    return [(number, line.split("#", 1)[1].strip()) for number, line in enumerate(source.split("\n"), 1) if "#" in line]


@functools.cache
def scan() -> dict[str, list[str]]:
    """The findings of each file."""
    texts: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        name, source = path.relative_to(ROOT).as_posix(), path.read_text()
        texts[name] = [f"{name}:{line}: W1 `{word}` does not say its kind" for line, word in names(source)]
        texts[name] += [f"{name}:{line}: W2 a noun in the place of {clause!r}" for line, clause in clauses(prose(source))]
    for path in sorted((ROOT / "src").rglob("*.pxd")):
        name = path.relative_to(ROOT).as_posix()
        texts[name] = [f"{name}:{line}: W2 a noun in the place of {clause!r}" for line, clause in clauses(pxd_prose(path.read_text()))]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for path in sorted(pages):
        name = path.relative_to(ROOT).as_posix()
        lines = [(number, re.sub(r"`[^`]*`|\"[^\"]*\"", "", line)) for number, line in enumerate(path.read_text().split("\n"), 1)]
        texts[name] = [f"{name}:{line}: W2 a noun in the place of {clause!r}" for line, clause in clauses(lines)]
    return texts


def findings() -> list[str]:
    """What KNOWN does not allow, and what it allows in vain."""
    packages, result = _by_package(scan()), []
    for package, lines in packages.items():
        if len(lines) > KNOWN.get(package, 0):
            result += lines
    done = sorted(package for package in KNOWN if not packages.get(package))
    return result + [f"{package} has no finding any more: take it out of KNOWN in tools/words.py" for package in done]


def _by_package(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """The findings of each folder below src/flintmq, and of each other place by its first folder or its name."""
    packages: dict[str, list[str]] = {}
    for name, lines in texts.items():
        parts = name.split("/")
        packages.setdefault("/".join(parts[:3] if len(parts) > 3 else parts[:2] if len(parts) > 2 else parts[:1]), []).extend(lines)
    return packages


def main() -> int:
    problems = findings()
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes compiled modules as docs/adr/0011-language.md wants them: short names of Cython, and the types of the .pxd in each signature.

in: `.py` files with a `.pxd` beside them. out: the same files changed in place (then `ruff check --select I001,F401 --fix` and `ruff
format` on them); a line for what was left alone, and why. What is right already stays as it is, so a second run changes nothing.

Usage: short_names.py [FILE...]  (without: all of src and tests)
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.pxd import ROOT, Declarations, annotation, compiled_modules, imported, read_pxd, spelled

# Names of Cython that Python has for something else. `const` is none: Cython does not know it under a name that was imported.
RENAMED = {"int": "c_int", "float": "c_float"}
LONG = frozenset(("cimports", "const"))
# a local with the name of an operator gets another one
LOCALS = {"address": "memory"}
TYPES = frozenset(
    (
        "bint",
        "void",
        "long",
        "double",
        "char",
        "size_t",
        "ssize_t",
        "Py_ssize_t",
        "short",
        "p_void",
        "p_char",
        "uchar",
        "uint",
        "ulong",
        "ulonglong",
        "longlong",
        "c_int",
        "c_float",
        "pointer",
    )
)
# decorators that say what the .pxd says
SAID = re.compile(r"(cython\.)?(cfunc|nogil|inline|with_gil|exceptval\(check=False\))")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Change:
    """Edits of one module: (begin, end, new bytes); names to be imported from cython; cimports by module; what was left alone."""

    source: bytes
    tree: ast.Module
    edits: list[tuple[int, int, bytes]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    cimports: dict[str, set[str]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [0]
        for line in self.source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def begin(self, node: ast.expr | ast.stmt | ast.arg) -> int:
        """Offset of its first byte."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.arg) -> int:
        """Offset behind its last byte."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def lines(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Offsets of its first line and of the one behind its last."""
        assert node.end_lineno is not None
        return self._starts[node.lineno - 1], self._starts[node.end_lineno]

    def result(self) -> bytes:
        """The module with the edits."""
        text = bytearray(self.source)
        for begin, end, new in sorted(self.edits, key=lambda edit: edit[:2], reverse=True):
            text[begin:end] = new
        return bytes(text)


def _is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cython"


def shorten(change: Change) -> None:
    """`cython.cast` -> `cast`, `cython.pointer(T)` -> `pointer[T]`; a local of the same name is renamed."""
    nodes = list(ast.walk(change.tree))
    taken = {node.id for node in nodes if isinstance(node, ast.Name)} | {node.arg for node in nodes if isinstance(node, ast.arg)}
    known = {alias.asname or alias.name for node in change.tree.body if _imports_cython(node) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_long(node) and node.attr not in LONG:
            short = RENAMED.get(node.attr, node.attr)
            if short in taken - known - set(LOCALS):
                change.left.append(f"{node.lineno}: cython.{node.attr}: {short} is something else here")
                continue
            change.names.add(short)
            change.edits.append((change.begin(node), change.end(node), short.encode()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_long(node.func) and node.func.attr == "pointer":
            opening, closing = change.end(node.func), change.end(node)
            change.edits += [(opening, opening + 1, b"["), (closing - 1, closing, b"]")]
    for old, new in LOCALS.items():
        if old not in (change.names & taken) - known:
            continue
        change.left.append(f"the local {old} is {new} now")
        for node in nodes:
            if isinstance(node, ast.Name) and node.id == old:
                change.edits.append((change.begin(node), change.end(node), new.encode()))
            elif isinstance(node, ast.arg) and node.arg == old:
                change.edits.append((change.begin(node), change.begin(node) + len(old), new.encode()))


def _imports_cython(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "cython"


def _colon(source: bytes, at: int) -> int:
    """Where the colon of the `def` at this offset stands."""
    depth = 0
    while source[at : at + 1] != b":" or depth:
        letter = source[at : at + 1]
        if letter == b"#":
            at = source.index(b"\n", at)
        elif letter in (b"'", b'"'):
            at = source.index(letter, at + 1)
        depth += (letter in (b"(", b"[", b"{")) - (letter in (b")", b"]", b"}"))
        at += 1
    return at


def _need(change: Change, word: str, told: Declarations, origin: dict[str, str]) -> None:
    """The names that an annotation uses are imported."""
    for name in re.findall(r"[\w.]+", word):
        if name in TYPES:
            change.names.add(name)
        elif name in origin:
            change.cimports.setdefault(f"cython.cimports.{origin[name]}", set()).add(name)


def sign(change: Change, node: Function, owner: str, told: Declarations, origin: dict[str, str]) -> None:
    """The types of the .pxd are written into the signature; decorators that say what it says go."""
    declared = told.functions[owner, node.name]
    arguments = [*node.args.posonlyargs, *node.args.args]
    if len(arguments) != len(declared.arguments):
        change.left.append(f"{node.lineno}: {node.name} has {len(arguments)} arguments, {len(declared.arguments)} in the .pxd")
        return
    for decorator in node.decorator_list:
        if SAID.fullmatch(ast.unparse(decorator)):
            begin, end = change.lines(decorator)
            change.edits = [edit for edit in change.edits if not (begin <= edit[0] and edit[1] <= end)] + [(begin, end, b"")]
    for number, (one, other) in enumerate(zip(arguments, declared.arguments, strict=True)):
        if one.annotation is not None or (owner and number == 0):
            continue
        type_ = other.type if other.type or other.name == one.arg else other.name
        word = annotation(type_, other.not_none, told)
        if word is None:
            change.left.append(f"{node.lineno}: {node.name}: {type_} can't be written")
            continue
        change.edits.append((change.end(one), change.end(one), f": {word}".encode()))
        _need(change, word, told, origin)
    word = spelled(declared.result)
    if node.returns is None and word is not None:
        colon = _colon(change.source, change.begin(node))
        change.edits.append((colon, colon, f" -> {word}".encode()))
        _need(change, word, told, origin)


def _import_lines(change: Change) -> None:
    """Puts the imports in front of the first one of Cython; `import cython` goes when nothing needs it."""
    body = change.tree.body
    used = {node.id for node in ast.walk(ast.parse(change.result())) if isinstance(node, ast.Name)}
    known = {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    full = {new: old for old, new in RENAMED.items()}
    names = [f"{full[name]} as {name}" if name in full else name for name in sorted((change.names & used) - known)]
    lines = f"from cython import {', '.join(names)}\n" if names else ""
    for module, wanted in sorted(change.cimports.items()):
        if wanted - known:
            lines += f"from {module} import {', '.join(sorted(wanted - known))}\n"
    whole = next((node for node in body if isinstance(node, ast.Import) and node.names[0].name == "cython"), None)
    first = next((node for node in body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cython")), None)
    if "cython" in used and whole is None:
        lines = "import cython\n" + lines
    if whole is not None and "cython" not in used:
        begin, end = change.lines(whole)
        change.edits.append((begin, end, lines.encode()))
    elif lines:
        place = whole or first or next(node for node in body if not isinstance(node, ast.Expr))
        begin = change.lines(place)[0]
        change.edits.append((begin, begin, lines.encode()))


def write(path: Path) -> tuple[bool, list[str]]:
    """Changes one module. Returns whether it did, and what it left alone."""
    pxd = path.with_suffix(".pxd").read_text()
    told, origin = read_pxd(pxd), imported(pxd)
    source = path.read_bytes()
    change = Change(source, ast.parse(source))
    shorten(change)
    for node in change.tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else ""
        for one in inside:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and (owner, one.name) in told.functions:
                sign(change, one, owner, told, origin)
    if change.edits:
        _import_lines(change)
        path.write_bytes(change.result())
    return bool(change.edits), change.left


def main(arguments: list[str]) -> int:
    changed = []
    for path in [Path(one).resolve() for one in arguments] or compiled_modules():
        done, left = write(path)
        changed += [str(path)] if done else []
        for line in left:
            print(f"{path.relative_to(ROOT)}: {line}")
    if changed:
        ruff = Path(sys.executable).with_name("ruff")
        subprocess.run([ruff, "check", "--quiet", "--select", "I001,F401", "--fix", *changed], cwd=ROOT, check=False)
        subprocess.run([ruff, "format", "--quiet", *changed], cwd=ROOT, check=True)
    print(f"{len(changed)} modules changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

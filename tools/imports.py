"""Reads which module imports which: the imports of `.py` and `.pyi`, their `cython.cimports`, and the `cimport` lines of `.pxd`.

in: a folder with packages (src). out: Source: modules, imports, libraries, module names that stand in strings. Used by tools/layers.py.

What counts
* AT_LOAD: an import that runs when the module is loaded, and every cimport: a compiled module loads what it cimports.
* INSIDE: an import in a function.
* FOR_TYPES: under `if TYPE_CHECKING`, and all of a `.pyi`: nothing is loaded, but who names a type knows its package.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

AT_LOAD, INSIDE, FOR_TYPES = "at load", "inside", "for types"
CIMPORTS = "cython.cimports."
# What comes with Python or Cython, and is no library of others.
OWN = sys.stdlib_module_names | {"cython", "libc", "libcpp", "cpython", "posix"}
_CIMPORT = re.compile(
    r"^[ \t]*from[ \t]+(?P<module>[\w.]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|(?:[^\n\\]|\\\n)*)|^[ \t]*c?import[ \t]+(?P<whole>[^\n]*)",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")
# A string that is the name of a module, or of something in it: "flintmq.cli.serve:serve"; of an f-string its start: "flintmq.arrow.".
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+\.?)(?::\w+)?")


@dataclass(frozen=True)
class Import:
    """One module names another, or a library (a name that is no module here)."""

    module: str
    target: str
    kind: str
    path: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass
class Source:
    """What stands in a folder of packages. Module names are full (`flintmq.core.buffer`), paths relative to `root`."""

    root: Path
    folder: str = "src"
    paths: dict[str, list[Path]] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    imports: list[Import] = field(default_factory=list)
    libraries: list[Import] = field(default_factory=list)
    strings: dict[str, set[str]] = field(default_factory=dict)

    def name(self, module: str, attribute: str = "") -> str:
        """The module that `from module import attribute` reaches, "" when it is none of this tree's."""
        if attribute and f"{module}.{attribute}" in self.paths:
            return f"{module}.{attribute}"
        while module and module not in self.paths:
            module = module.rpartition(".")[0]
        return module


def _of_python(tree: ast.Module, package: str, pure_types: bool) -> Iterator[tuple[int, str, str, str]]:
    """(line, module, attribute, kind) of each import of a Python file, and (line, name, "", "string") of strings that name a module."""
    waiting: list[tuple[ast.AST, str]] = [(tree, FOR_TYPES if pure_types else AT_LOAD)]
    while waiting:
        node, kind = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, "", kind
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = package.split(".")
                module = ".".join([*parts[: len(parts) - node.level + 1], *([module] if module else [])])
            for alias in node.names:
                yield node.lineno, module, alias.name, kind
        elif isinstance(node, ast.Constant):
            named = _named(node)
            if named:
                yield node.lineno, named, "", "string"
        elif isinstance(node, ast.If) and _for_types(node.test):
            waiting += [(one, FOR_TYPES) for one in node.body]
            waiting += [(one, kind) for one in node.orelse]
        else:
            if kind == AT_LOAD and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                kind = INSIDE
            if isinstance(node, ast.Call) and node.args and _name_of(node.func) in ("import_module", "__import__"):
                named = _named(node.args[0]).rstrip(".")
                if named:
                    yield node.lineno, named, "", INSIDE
            waiting += [(one, kind) for one in ast.iter_child_nodes(node)]


def _named(node: ast.expr) -> str:
    """The module that a string names, "" when it names none; ends in a point when an f-string goes on there."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0] if isinstance(node.values[0], ast.Constant) else node
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
        found = _NAME.fullmatch(node.value)
        return found[1] if found else ""
    return ""


def _for_types(test: ast.expr) -> bool:
    return _name_of(test) == "TYPE_CHECKING"


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _of_definitions(text: str) -> Iterator[tuple[int, str, str, str]]:
    """The same of a `.pxd`."""
    text = _COMMENT.sub("", text)
    for found in _CIMPORT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["module"]:
            for name in found["names"].replace("\\", " ").strip("() \t\n").split(","):
                if name.strip():
                    yield line, found["module"], name.split()[0], AT_LOAD
        else:
            for name in found["whole"].split(","):
                if name.strip():
                    yield line, name.split()[0], "", AT_LOAD


def read(root: Path, folder: str = "src") -> Source:
    """Reads all that stands in root/folder. Raises: OSError, SyntaxError. Cost: each file is parsed once, about 2 ms each."""
    source = Source(root, folder)
    for ending in ("py", "pxd", "pyi"):
        for path in (root / folder).rglob(f"*.{ending}"):
            parts = path.relative_to(root / folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            source.paths.setdefault(name, []).append(path)
            if parts[-1] == "__init__":
                source.packages.add(name)
    for name in sorted(source.paths):
        for path in source.paths[name]:
            _read_one(source, name, path)
    return source


def _read_one(source: Source, name: str, path: Path) -> None:
    """Adds what one file imports; several names of one module in one line count once."""
    text = path.read_text()
    if path.suffix == ".pxd":
        found = _of_definitions(text)
    else:
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        found = _of_python(ast.parse(text, str(path)), package, path.suffix == ".pyi")
    ours = {one.partition(".")[0] for one in source.packages}
    seen = set()
    for line, module, attribute, kind in found:
        if kind == "string":
            if module.partition(".")[0] in ours:
                source.strings.setdefault(name, set()).add(module)
            continue
        module = module.removeprefix(CIMPORTS)
        first = module.partition(".")[0]
        target = source.name(module, attribute) if first in ours else module
        if not target or target == name or (target, kind, line) in seen:
            continue
        seen.add((target, kind, line))
        one = Import(name, target, kind, path.relative_to(source.root).as_posix(), line)
        (source.imports if first in ours else source.libraries).append(one)

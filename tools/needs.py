"""`python -m tools.needs FILE...`: the compiled modules that these files need, theirs included, of the package and of the tests.

in: Python files. out: names of modules with a `.pxd` beside their `.py`, sorted; one line with commas, for `FLINTMQ_ONLY`.

What a module imports or cimports when it is loaded counts, in its `.py` and in its `.pxd`; what a function imports when it runs does not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# first part of a module's name -> where that package stands
PLACES = {"flintmq": ROOT / "src", "tests": ROOT}
_CIMPORT = re.compile(r"^\s*(?:from\s+((?:flintmq|tests)\.[\w.]*)\s+cimport\s+(.+)|cimport\s+((?:flintmq|tests)\.[\w.]*))", re.MULTILINE)


def _of_body(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements import when they run; of `from a import b` both a and a.b."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from _of_body([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _of_body(node.body)


def _imports(text: str) -> set[str]:
    return {name.removeprefix("cython.cimports.") for name in _of_body(ast.parse(text).body)}


def _cimports(text: str) -> set[str]:
    found = set()
    for module, names, whole in _CIMPORT.findall(text):
        found |= {whole} if whole else {module, *(f"{module}.{name.split()[0]}" for name in names.strip("() ").split(",") if name.strip())}
    return found


def needed(files: Iterable[Path]) -> list[str]:
    """Names of the compiled modules that the files need. Raises: OSError, SyntaxError. Cost: each module is read once."""
    waiting = {name for file in files for name in _imports(file.read_text())}
    seen: set[str] = set()
    compiled = []
    while waiting:
        name = waiting.pop()
        place = PLACES.get(name.split(".")[0])
        if name in seen or place is None:
            continue
        seen.add(name)
        waiting.update(".".join(name.split(".")[:count]) for count in range(1, name.count(".") + 1))  # its packages are loaded before it
        path = place / name.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        definitions = path.with_suffix(".pxd")
        if source.exists():
            waiting |= _imports(source.read_text())
            if definitions.exists() and not path.is_dir():
                compiled.append(name)
        if definitions.exists():
            waiting |= _cimports(definitions.read_text())
    return sorted(compiled)


if __name__ == "__main__":
    print(",".join(needed(Path(name) for name in sys.argv[1:])))

"""Rules of compiled modules: every `.py` in src/flintmq or tests with a `.pxd` of its own beside it (docs/adr/0011-language.md).

in: src/flintmq, tests, pyproject.toml. out: one line for each finding, exit code 1 with any.

C1  The lists of compiled modules in pyproject.toml (of ruff and of mypy) are derived. `--write` writes them.
C2  A name that ruff finds undefined in a compiled module (F821, ignored there) is a name of its .pxd or a C local.
C3  A `.pyi` says what its module has: the same functions, methods, arguments and defaults, properties and attributes; of a class and of
    constants (cpdef enum) it shows all that are public.
C4  A constant of a .pxd is defined nowhere else with the same value.
C5  A compiled function shows, where it is written, the argument names and the types that its .pxd declares.
C6  Names of Cython are imported from it and written short: `cast(pointer[queue_t], context)`. Only `cython.const` is written so, because
    Cython does not know it under a name that was imported.
C7  Imports of C names are in order, and fill their lines: one name a line would be 3,000 lines. `--write` writes them.

Usage: compiled.py [--write]
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.pxd import ROOT, Declarations, annotation, compiled_modules, read_pxd, spelled

PROJECT = ROOT / "pyproject.toml"
BEGIN, END = "# written by tools/compiled.py --write", "# end of what tools/compiled.py writes"
# F821: names come from the .pxd, C2 checks them. B007: a loop variable has its C type declared. SIM: what is shorter in Python makes
# objects or needs the interpreter in C (`any`, `enumerate`, `contextlib.suppress`; `nogil` stands alone in its `with`). I001: C7.
IGNORED = ("F821", "B007", "SIM", "I001")
WIDTH = 140
# Readers that stand apart from the broker's own code on purpose, and what may not import it.
APART = {
    "tests/oracle/log.py": "the second reader of the format",
    "tests/oracle/records.py": "the second reader of the format",
    "src/flintmq/store/log/inspect.py": "record.pxd is no module of Python's",
    "src/flintmq/store/log/record_fields.py": "record.pxd is no module of Python's",
    "src/flintmq/protocol/v0_9_1/spec.py": "generated for Python, as ids.pxd is for compiled modules",
    "src/flintmq/transactions/bulk.py": "knows the ports only",
    "src/flintmq/dataplane/sets.py": "may not know the pipeline, whose rows they are",
    "tests/twins/disk_images.py": "the sectors of a disk, not those of the log",
    "src/flintmq/store/log/containers.py": "record.pxd is no module of Python's",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- C1 ---------------------------------------------------------------------------------------------------------------------


def lists(modules: list[Path], root: Path = ROOT) -> tuple[str, str]:
    """What stands between the marks in pyproject.toml: ruff's ignores, mypy's module names."""
    folders: dict[Path, list[str]] = defaultdict(list)
    for module in modules:
        folders[module.relative_to(root).parent].append(module.stem)
    rules = ", ".join(f'"{rule}"' for rule in IGNORED)
    ruff = ""
    for folder, names in sorted(folders.items()):
        one = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
        ruff += f'"{folder.as_posix()}/{one}.py" = [{rules}]\n'
    names = [module.relative_to(root / "src").with_suffix("") for module in modules if module.is_relative_to(root / "src")]
    mypy = "".join(f'    "{".".join(name.parts)}",\n' for name in names)
    return ruff, mypy


def with_lists(text: str, modules: list[Path], root: Path = ROOT) -> str:
    """pyproject.toml with the lists as they should be. Raises: ValueError: its marks are gone."""
    parts = re.split(f"({re.escape(BEGIN)}\n|{re.escape(END)}\n)", text)
    if len(parts) != 9:
        raise ValueError(f"pyproject.toml should have two places between '{BEGIN}' and '{END}'")
    parts[2], parts[6] = lists(modules, root)
    return "".join(parts)


# --- C2 ---------------------------------------------------------------------------------------------------------------------


def undefined(declared: dict[Path, Declarations], root: Path = ROOT) -> list[str]:
    """Names that neither the .py nor its .pxd brings."""
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--isolated", "--no-cache", "--select", "F821", "--output-format", "json", *map(str, declared)]
    found: list[str] = []
    locals_: dict[Path, set[str]] = {}
    for one in json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout):
        path, name = Path(one["filename"]), re.search(r"`(\w+)`", one["message"])
        if path not in locals_:
            locals_[path] = {
                node.target.id
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            }
        if name is None or name[1] not in declared[path].words | locals_[path]:
            found.append(f"{path.relative_to(root)}:{one['location']['row']}: {one['message']}, nor is it a name of the .pxd")
    return found


# --- C3 ---------------------------------------------------------------------------------------------------------------------


def _named(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Statements of a module or class by the name that they define."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.Assign):
            found.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def _decorators(node: Function) -> set[str]:
    return {ast.unparse(one).removeprefix("cython.") for one in node.decorator_list}


def _arguments(node: Function) -> list[str]:
    """Each argument with its kind and default, without its type."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    found = [one.arg + ("" if default is None else f"={ast.unparse(default)}") for one, default in zip(plain, defaults, strict=True)]
    found += [f"*{arguments.vararg.arg if arguments.vararg else ''}"] if arguments.vararg or arguments.kwonlyargs else []
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(one.arg + ("" if default is None else f"={ast.unparse(default)}"))
    return found + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def _is_c(node: Function, owner: str, declared: Declarations) -> bool:
    """Whether Python has no such function: it is C's alone."""
    told = declared.functions.get((owner, node.name))
    if "ccall" in _decorators(node) or (told is not None and told.shown):
        return False
    return told is not None or "cfunc" in _decorators(node)


@dataclass
class Module:
    """A compiled module: its statements, and its .pxd."""

    body: list[ast.stmt]
    declared: Declarations


def _whole(name: str, modules: dict[str, tuple[ast.ClassDef, Module]]) -> tuple[dict[str, ast.stmt], set[str]]:
    """Statements of a class and its compiled bases by name, and its attributes that Python sees."""
    found: dict[str, ast.stmt] = {}
    attributes: set[str] = set()
    while name in modules:
        node, module = modules[name]
        found = _named(node.body) | found
        attributes |= {one for (owner, one), how in module.declared.attributes.items() if owner == name and how}
        if name not in module.declared.classes:  # a class of Python: what its methods assign
            attributes |= {
                one.attr
                for one in ast.walk(node)
                if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self"
            }
        name = ast.unparse(node.bases[0]) if node.bases else ""
    if "__cinit__" in found:
        found.setdefault("__init__", found["__cinit__"])
    return found, attributes


def _differs(node: Function, there: Function) -> str:
    """How a function of a .pyi differs from the one it stands for; "" for not at all. A default may be left open: `...`."""
    told, real = _arguments(node), _arguments(there)
    same = len(told) == len(real) and all(
        one == other or (one.endswith("=...") and other.startswith(one[:-3])) for one, other in zip(told, real, strict=True)
    )
    if not same:
        return f"{node.name}({', '.join(told)}) is {there.name}({', '.join(real)})"
    if ("property" in _decorators(node)) != ("property" in _decorators(there)):
        return f"{node.name} is a property in one of the two"
    return ""


def _class(where: str, name: str, told: ast.ClassDef, modules: dict[str, tuple[ast.ClassDef, Module]]) -> list[str]:
    """What a .pyi says of a class, beside what is there."""
    found = []
    has, attributes = _whole(name, modules)
    says = _named(told.body)
    for one, node in says.items():
        there = has.get(one)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(there, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(f"{where}: {name}.{one} is not there")
            elif difference := _differs(node, there):
                found.append(f"{where}: {name}.{difference}")
        elif one not in attributes and there is None:
            found.append(f"{where}: {name}.{one} is no attribute that Python sees")
    for one, there in _named(modules[name][0].body).items():
        hidden = one in says or one.startswith("_") or not isinstance(there, ast.FunctionDef | ast.AsyncFunctionDef)
        if not hidden and not _is_c(there, name, modules[name][1].declared):
            found.append(f"{where}: {name}.{one} is missing")
    return found


def _stub(where: str, told: list[ast.stmt], module: Module, modules: dict[str, tuple[ast.ClassDef, Module]]) -> list[str]:
    found = []
    has = _named(module.body)
    says = _named(told)
    for name, node in says.items():
        there = has.get(name)
        if isinstance(node, ast.ClassDef) and name.startswith("_") and there is None:
            continue  # a Protocol of the .pyi's own
        if isinstance(node, ast.ClassDef):
            found += _class(where, name, node, modules) if isinstance(there, ast.ClassDef) else [f"{where}: there is no class {name}"]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(there, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(f"{where}: {name} is not there")
            elif _is_c(there, "", module.declared):
                found.append(f"{where}: {name} can't be called from Python")
            elif difference := _differs(node, there):
                found.append(f"{where}: {difference}")
        elif isinstance(node, ast.AnnAssign) and there is None and name not in module.declared.shown:
            found.append(f"{where}: there is no {name}")
    return found + [f"{where}: {name} is missing" for name in sorted(module.declared.shown - set(says))]


def stubs(declared: dict[Path, Declarations], root: Path = ROOT) -> list[str]:
    """Where a .pyi and its module differ."""
    bodies = {path: Module(ast.parse(path.read_text()).body, told) for path, told in declared.items()}
    classes = {node.name: (node, module) for module in bodies.values() for node in module.body if isinstance(node, ast.ClassDef)}
    found = []
    for stub in sorted([*root.glob("src/flintmq/**/*.pyi"), *root.glob("tests/**/*.pyi")]):
        name, module = stub.relative_to(root).as_posix(), bodies.get(stub.with_suffix(".py"))
        if module is None:
            found.append(f"{name}: its module is not compiled, so it needs none")
            continue
        own = classes | {node.name: (node, module) for node in module.body if isinstance(node, ast.ClassDef)}
        found += _stub(name, ast.parse(stub.read_text()).body, module, own)
    return found


# --- C4 ---------------------------------------------------------------------------------------------------------------------


def _value(text: str) -> str:
    """`1 << 4`, `0x10` and `16` are one value."""
    try:
        return repr(eval(compile(ast.parse(text, mode="eval"), "<constant>", "eval"), {"__builtins__": {}}))
    except (NameError, SyntaxError, TypeError, ArithmeticError, AttributeError):
        return text


def _defined(path: Path) -> list[tuple[int, str, str]]:
    """(line, name, value) of the constants that a .py defines."""
    found = []
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        value = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("cython.declare", "declare") and len(value.args) == 2:
            value = value.args[1]
        name = node.targets[0].id.lstrip("_")
        if name.isupper():
            found.append((node.lineno, name, _value(ast.unparse(value))))
    return found


def constants(root: Path = ROOT) -> list[str]:
    """Constants of a .pxd that another file defines again."""
    first: dict[tuple[str, str], str] = {}
    found = []
    for path in sorted((root / "src").glob("flintmq/**/*.pxd")):
        name = path.relative_to(root).as_posix()
        for constant, text in read_pxd(path.read_text()).constants.items():
            before = first.setdefault((constant, _value(text)), name)
            if before != name:
                found.append(f"{name}: {constant} stands in {before}, too: cimport it")
    for path in sorted((root / "src").glob("flintmq/**/*.py")):
        name = path.relative_to(root).as_posix()
        if name in APART:
            continue
        for line, constant, value in _defined(path):
            if (constant, value) in first:
                found.append(f"{name}:{line}: {constant} stands in {first[constant, value]}, too: import it (cpdef enum) or cimport it")
    return found


# --- C5, C6 -----------------------------------------------------------------------------------------------------------------


def _same(written: str, wanted: str) -> bool:
    """A function that never gets None may say so by leaving it out."""
    return written in (wanted, wanted.removesuffix(" | None"))


def _signature(node: Function, declared: Declarations, owner: str) -> list[str]:
    told = declared.functions[owner, node.name]
    arguments = [*node.args.posonlyargs, *node.args.args]
    if len(arguments) != len(told.arguments):
        return [f"{node.name} has {len(arguments)} arguments, {len(told.arguments)} in the .pxd"]
    found = []
    for number, (one, other) in enumerate(zip(arguments, told.arguments, strict=True)):
        if owner and number == 0:
            continue  # self
        type_, name = (other.type, other.name) if other.type or other.name == one.arg else (other.name, one.arg)
        wanted = annotation(type_, other.not_none, declared)
        written = ast.unparse(one.annotation) if one.annotation else "nothing"
        if name != one.arg:
            found.append(f"{node.name}: argument {one.arg} is {name} in the .pxd")
        if wanted is not None and not _same(written, wanted):
            found.append(f"{node.name}: argument {one.arg} is written as {written}, the .pxd says {wanted}")
    wanted = spelled(told.result)
    written = ast.unparse(node.returns) if node.returns else "nothing"
    if wanted is not None and written != wanted:
        found.append(f"{node.name} returns {written}, the .pxd says {wanted}")
    return found


def signatures(declared: dict[Path, Declarations], root: Path = ROOT) -> list[str]:
    """Compiled functions whose types differ from those in the .pxd, and long names of Cython."""
    found = []
    for path, told in declared.items():
        name, tree = path.relative_to(root).as_posix(), ast.parse(path.read_text())
        owned = [("", node) for node in tree.body]
        owned += [(owner.name, node) for owner in tree.body if isinstance(owner, ast.ClassDef) for node in owner.body]
        for owner, node in owned:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (owner, node.name) in told.functions:
                found += [f"{name}:{node.lineno}: {finding}" for finding in _signature(node, told, owner)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cython" and node.attr != "const":
                found.append(f"{name}:{node.lineno}: cython.{node.attr}: import it from cython, C's int and float as c_int and c_float")
    return found


# --- C7 ---------------------------------------------------------------------------------------------------------------------


def _rank(alias: ast.alias) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    name = alias.name
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def cimport(node: ast.ImportFrom) -> str:
    """The statement as it is to stand: in one line, or in lines that are filled."""
    names = [f"{one.name} as {one.asname}" if one.asname else one.name for one in sorted(node.names, key=_rank)]
    line = f"from {node.module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    lines = [f"from {node.module} import (", "   "]
    for name in names:
        if len(lines[-1]) + len(name) + 2 > WIDTH:
            lines.append("   ")
        lines[-1] += f" {name},"
    return "\n".join([*lines, ")  # fmt: skip"])


def with_cimports(text: str) -> str:
    """The text of a module with its imports of C names in order and filled. A comment among them stays with the statement behind it."""
    lines = text.splitlines(keepends=True)
    found = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cython"]
    for node in reversed(found):
        assert node.end_lineno is not None
        if any("#" in line and "fmt: skip" not in line for line in lines[node.lineno - 1 : node.end_lineno]):
            continue  # a comment says something of one name
        lines[node.lineno - 1 : node.end_lineno] = [cimport(node) + "\n"]
    return _in_order("".join(lines))


def _in_order(text: str) -> str:
    """Imports of C names that stand one behind the other are sorted by their modules."""
    lines = text.splitlines(keepends=True)
    runs: list[list[ast.ImportFrom]] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cython":
            if runs and runs[-1][-1].end_lineno == node.lineno - 1:
                runs[-1].append(node)
            else:
                runs.append([node])
    for run in runs:
        pieces = ["".join(lines[node.lineno - 1 : node.end_lineno]) for node in sorted(run, key=lambda node: node.module or "")]
        lines[run[0].lineno - 1 : run[-1].end_lineno] = "".join(pieces).splitlines(keepends=True)
    return "".join(lines)


def cimports(modules: list[Path], root: Path = ROOT) -> list[str]:
    """Modules whose imports of C names are out of order, or not filled."""
    found = []
    for path in modules:
        name, text = path.relative_to(root).as_posix(), path.read_text()
        if with_cimports(text) != text:
            found.append(f"{name}: its cimports do not fill their lines, or their names are out of order: run tools/compiled.py --write")
        imported = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cython")]
        for one, other in pairwise(imported):
            if (one.module or "") > (other.module or ""):
                found.append(f"{name}:{other.lineno}: {other.module} comes before {one.module}: imports of C names are in order")
    return found


def main(arguments: list[str]) -> int:
    modules = compiled_modules()
    text = PROJECT.read_text()
    wanted = with_lists(text, modules)
    if arguments == ["--write"]:
        PROJECT.write_text(wanted)
        for module in modules:
            module.write_text(with_cimports(module.read_text()))
        return 0
    declared = {module: read_pxd(module.with_suffix(".pxd").read_text()) for module in modules}
    found = [] if text == wanted else ["pyproject.toml: its lists of compiled modules are not what src has: run tools/compiled.py --write"]
    found += undefined(declared) + stubs(declared) + constants() + signatures(declared) + cimports(modules)
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

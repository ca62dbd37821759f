"""`python tools/layers.py`: does the code keep to the table of tools/layers.toml? Part of `make lint`.

in: src (imports and cimports: tools/imports.py), tools/layers.toml. out: a line per finding, with what to do; exit code 1 if there is one.

Checked
L1  The table is a layering: a package may use lower layers alone; every package has a line; a name that nothing uses has gone.
L2  Every import between packages, of whatever kind, is in the table; known exceptions are named, module by module; no new ones.
L3  No circle between packages, none between modules, whatever kind of import closes it: known ones are named, and only shrink.
L4  Libraries are imported where the table says; banned modules nowhere; what a package may never reach it doesn't reach by way of others.
L5  Every module of src is reached from an entry point, else only tests import it.
L6  docs/ARCHITECTURE.md shows the layers as the table has them.
L7  Each package has a README.md of at most 15 lines: in, out, what it may use (as the table has it), what must never be in it.

`--write` puts the lines "May use" of the READMEs right.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.imports import AT_LOAD, OWN, Import, Source, read

ROOT = Path(__file__).resolve().parent.parent
TABLE = "tools/layers.toml"
MAIN = "flintmq"
# where `python -m flintmq....` makes a module an entry point
DOCUMENTS = ("Makefile", "README.md", "docs/**/*.md", "examples/**/*", "tools/*.sh", "tools/**/*.py", "src/**/*.py")
ARCHITECTURE = "docs/ARCHITECTURE.md"
README_LINES = 15
_ROW = re.compile(r"^\| (-?\d+) \| (`[^|]*) \|", re.MULTILINE)
_QUOTED = re.compile(r"`([\w.]+)`")
_STARTED = re.compile(r"-m[\"',\s]+((?:flintmq|pyspark_flintmq)(?:\.\w+)*)")


def short(module: str) -> str:
    """A module or package as the table names it: without `flintmq.`."""
    return module.removeprefix(f"{MAIN}.")


class Table:
    """tools/layers.toml. layer: package -> its layer; uses: package -> packages it may use; libraries: library -> packages."""

    def __init__(self, text: str) -> None:
        data = tomllib.loads(text)
        self.layer: dict[str, int] = {}
        self.uses: dict[str, list[str]] = {}
        self.twice: list[str] = []
        for number, packages in data["layers"].items():
            for package, uses in packages.items():
                if package in self.layer:
                    self.twice.append(package)
                self.layer[package] = int(number)
                self.uses[package] = uses.split()
        self.libraries: dict[str, list[str]] = {name: packages.split() for name, packages in data.get("libraries", {}).items()}
        self.banned: dict[str, str] = data.get("banned", {})
        self.never: dict[str, tuple[list[str], str]] = {
            package: (names.split(), why) for package, (names, why) in data.get("never", {}).items()
        }
        self.exceptions: dict[str, str] = data.get("exceptions", {})
        self.circles: dict[str, str] = data.get("circles", {})
        self.outside: dict[str, str] = data.get("outside", {})
        self.only_tests: dict[str, str] = data.get("only_tests", {})

    def package(self, module: str) -> str:
        """The package of a module (both as the table names them), "" when the table has none. `flintmq` itself is its `__init__` alone."""
        while module not in self.layer and "." in module:
            module = module.rpartition(".")[0]
        return module if module in self.layer else ""

    def reached(self, package: str) -> dict[str, str]:
        """Package or library -> the way there, over what the table allows."""
        ways = {package: package}
        waiting = [package]
        while waiting:
            one = waiting.pop()
            libraries = [library for library, packages in self.libraries.items() if one in packages]
            for other in [*self.uses.get(one, ()), *libraries]:
                if other not in ways:
                    ways[other] = f"{ways[one]} > {other}"
                    waiting.append(other)
        return ways


@dataclass
class Edge:
    """The imports of one package that name another one."""

    user: str
    used: str
    imports: list[Import]


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, sorted (Tarjan). Without recursion: module graphs are deep."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    groups = []
    for start in sorted(graph):
        if start in index:
            continue
        work: list[tuple[str, Iterator[str]]] = []
        node: str | None = start
        while node is not None or work:
            if node is not None:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
                work.append((node, iter(sorted(graph.get(node, ())))))
                node = None
            current, others = work[-1]
            for other in others:
                if other not in index:
                    node = other
                    break
                if other in on_stack:
                    low[current] = min(low[current], index[other])
            if node is not None:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[current])
            if low[current] == index[current]:
                at = stack.index(current)
                group, stack[at:] = stack[at:], []
                on_stack.difference_update(group)
                if len(group) > 1:
                    groups.append(sorted(group))
    return sorted(groups)


def way_round(graph: Mapping[str, Iterable[str]], group: list[str]) -> list[str]:
    """The shortest circle through the first of a group that reach each other: [a, b, a]."""
    members = set(group)
    before = {group[0]: ""}
    for node in (queue := [group[0]]):
        for other in sorted(members.intersection(graph.get(node, ()))):
            if other == group[0]:
                way = [other]
                while node:
                    way.append(node)
                    node = before[node]
                return way[::-1]
            if other not in before:
                before[other] = node
                queue.append(other)
    return group


class Check:
    """One run over one tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = Table((root / TABLE).read_text())
        self.source: Source = read(root)
        self.findings: list[str] = []
        self.edges: dict[tuple[str, str], Edge] = {}
        for one in self.source.imports:
            user, used = self.table.package(short(one.module)), self.table.package(short(one.target))
            if user and used and user != used:
                self.edges.setdefault((user, used), Edge(user, used, [])).imports.append(one)

    def run(self) -> list[str]:
        self.check_table()
        self.check_edges()
        self.check_package_circles()
        self.check_module_circles()
        self.check_libraries()
        self.check_never()
        self.check_users()
        self.check_documents()
        self.check_readmes()
        return self.findings

    def say(self, line: str) -> None:
        self.findings.append(line)

    # ------------------------------------------------------------------ L1
    def check_table(self) -> None:
        table = self.table
        for package in table.twice:
            self.say(f"{TABLE}: {package} has two lines")
        for module in sorted(self.source.paths):
            if not table.package(short(module)):
                self.say(f"{self.path_of(module)}: {short(module)} has no line in {TABLE}: give it a layer and what it may use")
        for package, uses in table.uses.items():
            if not self.exists(package):
                self.say(f"{TABLE}: {package} is no package of src: delete its line")
            for used in uses:
                if used not in table.layer:
                    self.say(f"{TABLE}: {package} names {used}, which has no line")
                elif table.layer[used] >= table.layer[package]:
                    self.say(
                        f"{TABLE}: {package} (layer {table.layer[package]}) may not use {used} (layer {table.layer[used]}): only "
                        "lower layers; move the code that both need below both"
                    )

    def exists(self, package: str) -> bool:
        return package in self.source.paths or f"{MAIN}.{package}" in self.source.paths

    def path_of(self, module: str) -> str:
        return self.source.paths[module][0].relative_to(self.root).as_posix()

    # ------------------------------------------------------------------ L2
    def check_edges(self) -> None:
        table = self.table
        known = set()
        for (user, used), edge in sorted(self.edges.items()):
            if used in table.uses[user]:
                continue
            for one in edge.imports:
                name = f"{short(one.module)} > {short(one.target)}"
                if name in table.exceptions:
                    known.add(name)
                    continue
                higher = table.layer[used] >= table.layer[user]
                what = (
                    f"{used} is not in a lower layer: move what both need below both, or let it be handed in"
                    if higher
                    else f"do it with what {user} may use, or decide to add {used} to its line"
                )
                self.say(f"{one.place}: {user} may not use {used} ({short(one.target)}, {one.kind}): {what} ({TABLE})")
        for user, uses in table.uses.items():
            for used in uses:
                if (user, used) not in self.edges and used in table.layer:
                    self.say(f"{TABLE}: {user} may use {used} and doesn't any more: delete {used} from its line")
        for name in table.exceptions:
            if name not in known:
                self.say(f"{TABLE}: the exception {name} is gone from the code, or allowed: delete its line")

    # ------------------------------------------------------------------ L3
    def check_package_circles(self) -> None:
        graph: dict[str, set[str]] = defaultdict(set)
        first: dict[tuple[str, str], str] = {}
        for (user, used), edge in self.edges.items():
            new = [one for one in edge.imports if f"{short(one.module)} > {short(one.target)}" not in self.table.exceptions]
            if new:
                graph[user].add(used)
                first[user, used] = new[0].place
        for group in circles(graph):
            way = way_round(graph, group)
            places = ", ".join(first[pair] for pair in pairwise(way))
            self.say(f"circle between packages: {' > '.join(way)} ({places}): move what they share below both")

    def check_module_circles(self) -> None:
        """Of what is imported when modules are loaded: none. With what functions and the type checker import: none but the known ones."""
        at_load = self.module_circles(AT_LOAD)
        for text in at_load.values():
            self.say(text)
        known = set()
        for name, text in self.module_circles("").items():
            if name in self.table.circles:
                known.add(name)
            elif name not in at_load:
                self.say(text)
        for name in self.table.circles:
            if name not in known:
                self.say(f"{TABLE}: the circle {name} is gone, or another one: delete its line")

    def module_circles(self, kind: str) -> dict[str, str]:
        """Names of the modules of each circle -> the finding. kind: of the imports that count; "": every one."""
        graph: dict[str, set[str]] = defaultdict(set)
        first: dict[tuple[str, str], str] = {}
        for one in self.source.imports:
            if kind in ("", one.kind):
                graph[one.module].add(one.target)
                first.setdefault((one.module, one.target), one.place)
        found = {}
        for group in circles(graph):
            name = " ".join(short(module) for module in group)
            way = way_round(graph, group)
            places = ", ".join(first[pair] for pair in pairwise(way))
            found[name] = (
                f"circle between modules: {' > '.join(map(short, way))} ({places}): move what they share into a third (all of it: {name})"
            )
        return found

    # ------------------------------------------------------------------ L4
    def check_libraries(self) -> None:
        table = self.table
        used = set()
        for one in self.source.libraries:
            library, package = one.target.partition(".")[0], table.package(short(one.module))
            if library in table.banned:
                self.say(f"{one.place}: {library} is imported nowhere: {table.banned[library]}")
            elif library not in OWN and package:
                used.add((library, package))
                if package not in table.libraries.get(library, ()):
                    self.say(f"{one.place}: {package} may not use the library {library} ({one.kind}); {TABLE} says who may")
        for library, packages in table.libraries.items():
            for package in packages:
                if (library, package) not in used:
                    self.say(f"{TABLE}: {package} may use the library {library} and doesn't any more: delete it there")

    def check_never(self) -> None:
        for package, (names, why) in self.table.never.items():
            ways = self.table.reached(package)
            for name in names:
                if name not in self.table.layer and name not in self.table.libraries:
                    self.say(f"{TABLE}: never: {name} is neither a package nor a library of the table")
                if name in ways:
                    self.say(f"{TABLE}: {package} reaches {name} ({ways[name]}), which it never may: {why}")

    # ------------------------------------------------------------------ L5
    def check_users(self) -> None:
        """Who is reached from no entry point. A module is loaded with its packages; its name in a string counts too (lazy imports)."""
        graph: dict[str, set[str]] = defaultdict(set)
        for one in self.source.imports:
            graph[one.module].add(one.target)
        for module, names in self.source.strings.items():
            for name in names:
                # a name that a `{}` of an f-string ends may be any module of that package
                target = self.source.name(name.rstrip("."))
                if target:
                    graph[module].add(target)
                    if name.endswith("."):
                        graph[module].update(other for other in self.source.paths if other.startswith(name))
        roots = self.entry_points()
        reached: set[str] = set()
        waiting = list(roots)
        while waiting:
            module = waiting.pop()
            if module and module not in reached:
                reached.add(module)
                waiting += [*graph[module], module.rpartition(".")[0]]
        for module in sorted(set(self.source.paths) - reached - self.source.packages):
            if short(module) not in self.table.only_tests:
                self.say(
                    f"{self.path_of(module)}: only tests import {short(module)}, or nobody does: move it to tests (twins, drivers, support)"
                    f" or delete it (or name it under [outside] of {TABLE} if others load it)"
                )
        for name in self.table.only_tests:
            module = name if name in self.source.paths else f"{MAIN}.{name}"
            if module not in self.source.paths or module in reached:
                self.say(f"{TABLE}: {name} is no longer a module that only tests import: delete its line")

    def entry_points(self) -> set[str]:
        """Scripts and plugins of pyproject.toml, modules that are started with `python -m`, and the table's [outside]."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text()).get("project", {})
        groups = [project.get("scripts", {}), project.get("gui-scripts", {}), *project.get("entry-points", {}).values()]
        found = {value.partition(":")[0] for group in groups for value in group.values()}
        for pattern in DOCUMENTS:
            for path in self.root.glob(pattern):
                if path.is_file() and path.suffix not in (".pyc", ".so"):
                    found.update(_STARTED.findall(path.read_text(errors="replace")))
        found.update(f"{name}.__main__" for name in list(found) if name in self.source.packages)
        for name in self.table.outside:
            full = name if name.partition(".")[0] in self.source.packages else f"{MAIN}.{name}"
            if full.endswith(".*"):
                matching = {module for module in self.source.paths if module.startswith(full[:-1])}
            else:
                matching = {full} & set(self.source.paths)
            if not matching:
                self.say(f"{TABLE}: [outside] names {name}, which is no module: delete its line")
            found |= matching
        return {name for name in found if name in self.source.paths}

    # ------------------------------------------------------------------ L6
    def check_documents(self) -> None:
        path = self.root / ARCHITECTURE
        if not path.exists():
            return
        shown = {int(number): set(_QUOTED.findall(packages)) for number, packages in _ROW.findall(path.read_text())}
        for number in sorted(set(self.table.layer.values()) | set(shown)):
            meant = {package for package, layer in self.table.layer.items() if layer == number}
            if shown.get(number, set()) != meant:
                self.say(f"{ARCHITECTURE}: layer {number} is {', '.join(sorted(meant)) or 'none'} in {TABLE}")

    # ------------------------------------------------------------------ L7
    def readmes(self) -> Iterator[tuple[str, Path]]:
        """Packages that are folders, but for the roots, and where their README stands."""
        for package in self.table.layer:
            for full in (package, f"{MAIN}.{package}"):
                if full in self.source.packages and full != MAIN:
                    yield package, self.root / self.source.folder / full.replace(".", "/") / "README.md"

    def check_readmes(self) -> None:
        for package, path in self.readmes():
            name = path.relative_to(self.root).as_posix()
            if not path.exists():
                self.say(f"{name}: {package} has none: what comes in, what goes out, what it may use, what must never be in it")
                continue
            lines = path.read_text().splitlines()
            if len(lines) > README_LINES:
                self.say(f"{name}: {len(lines)} lines, at most {README_LINES}: the rest belongs to docs/ or to a module's header")
            for word in ("In:", "Out:", "Never:"):
                if not any(line.startswith(word) for line in lines):
                    self.say(f'{name}: no line begins with "{word}"')
            if self.may_use(package) not in lines:
                self.say(f'{name}: the line "May use" is not as the table has it: python tools/layers.py --write')

    def may_use(self, package: str) -> str:
        return "May use: " + (", ".join(f"`{used}`" for used in self.table.uses[package]) or "nothing of FlintMQ") + "."

    def write_readmes(self) -> None:
        for package, path in self.readmes():
            if path.exists():
                text = path.read_text()
                new = re.sub(r"^May use:.*$", self.may_use(package), text, count=1, flags=re.MULTILINE)
                if new != text:
                    path.write_text(new)


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--write"]
    check = Check(Path(arguments[0]).resolve() if arguments else ROOT)
    if "--write" in sys.argv:
        check.write_readmes()
    findings = check.run()
    for line in findings:
        print(line)
    table = check.table
    known = [("import", table.exceptions), ("circle of modules", table.circles), ("module that only tests import", table.only_tests)]
    for what, names in known:
        for name, why in names.items():
            print(f"layers: known {what}, to be mended: {name} ({why})")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

"""Names that src defines and uses nowhere: functions, methods, classes, constants, enum values, fields, declarations of a .pxd.

    python tools/unused.py

A name counts as used when it stands anywhere in src but where it is defined or imported; a use by tests alone is none. Names are compared,
not what they mean: a dead function whose name something else has is not found. Exit code 1 with one line per finding.
"""

from __future__ import annotations

import ast
import collections
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Names = collections.Counter[str]
Places = dict[str, list[str]]

# What is kept all the same: file below src (or folder), names, reason. A name that src uses again, or that is gone, has to leave the table.
KEPT = (
    ("flintmq/protocol/v0_9_1/ids.pxd", "*", "generated: every number of the specification"),
    ("flintmq/protocol/v0_9_1/spec.py", "*", "generated"),
    ("flintmq/core/failpoints.pxd", "*", "every failpoint has its number; Python hits some by name"),
    ("flintmq/store/log/record.pxd", "*", "every type of record, as docs/FORMAT.md lists them"),
    ("flintmq/arrow/blocks.pxd", "*", "the columns of a batch in their order"),
    ("flintmq/core/memory_account.pxd", "MEMORY_CONNECTIONS", "kinds that Python counts, by their numbers"),
    ("flintmq/errors.py", "INVALID_PATH", "every reply code of the specification"),
    ("flintmq/transactions/xa_status.py", "XA_HEURHAZ XA_HEURMIX XA_RDONLY", "every status of AMQP 0-10's class dtx"),
    ("flintmq/transactions/coordinator.py", "get_timeout", "a command of the class dtx"),
    ("flintmq/scheduler/types.pxd", "*", "every outcome, space and policy; the simulator has some of its own"),
    ("flintmq/scheduler/outcomes.py", "TEST COLD PULL PYTHON", "spaces of actors by their numbers"),
    ("flintmq/store/log/record_fields.py", "UNDO_NEXT TRANSACTION EXPIRES", "every flag of a record"),
    ("flintmq/access/oauth_keys.py", "redirect_request", "urllib calls it"),
    ("flintmq/access/audit.py", "emit", "logging calls it"),
    ("flintmq/admin/protocol.py", "*", "uvicorn calls it"),
    ("flintmq/shovel/peer.py", "eof_received pause_writing resume_writing", "asyncio calls it"),
    ("flintmq/flight", "sending_headers call_completed start_call is_valid", "pyarrow calls it"),
    ("flintmq/cli", "list_commands get_command format_commands", "click calls it"),
    ("pyspark_flintmq", "*", "Spark calls it"),
    ("flintmq/pipeline/jobs", "ARCHIVE REPLAY duration_ms", "found by the name of the job; a field of a report for programs"),
    ("flintmq/clock.py", "ManualClock", "the clock of tests, beside the port that it implements"),
    ("flintmq/core/clock.py", "stand_at", "the compiled half's clock in tests"),
    (
        "flintmq/queue",
        "new_owner free_owner take_head take_expired publish_held take_at last_value_count once_figures",
        "tests drive a queue by hand",
    ),
    ("flintmq/queue/delivered.pxd", "delivered_set_steps", "tests have short steps"),
    ("flintmq/streams/control.py", "set_clock step_reads reads_waiting", "tests drive a stream by hand"),
    ("flintmq/scheduler/system.py", "next_ns actor_bytes", "tests drive the actor system by hand; bench/actors.py measures an actor"),
    ("flintmq/store/log/managed.py", "written_by used_bytes set_reserves", "tests drive a log by hand"),
    ("flintmq/net/loop.py", "turns_waiting", "tests look at a loop"),
    ("flintmq/channel/connection.py", "channel_numbers", "tests look at a connection"),
    ("flintmq/routing/topic.py", "node_count", "tests look at the trie"),
    ("flintmq/routing", "content_route_count content_route_bytes deciding_bytes", "tests look at remembered routes"),
    ("flintmq/protocol/v0_9_1/tracing.py", "trace_header", "tests compare it with a second writer"),
    ("flintmq/selectors/program.py", "selects", "tests run a selector by itself"),
    ("flintmq/shovel/mover.py", "unsettled", "tests look at a shovel"),
    ("flintmq/access/users.py", "set_password", "tests make users"),
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CIMPORT = re.compile(r"from [\w.]+ cimport (\([^)]*\)|[^\n]*)")
# in a .pxd: a value of an enum, a function, a field
_DECLARED = (
    re.compile(r"\s+([A-Za-z_]\w*)\s*=\s*[-\w<>| ]+$"),
    re.compile(r"cdef\s[^=]*?\b(\w+)\("),
    re.compile(r"\s+(?:const )?(?:unsigned )?\w+(?: long)? \*{0,2}([A-Za-z_]\w*)(?:\[.*\])?$"),
)


def python_names(text: str) -> tuple[Names, Names, Places]:
    """Names of a .py: how often each stands there (in texts, too, but not in docstrings and comments), how often it is imported, and the
    lines that define it."""
    words, imported, defined = Names(), Names(), collections.defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            words[token.string] += 1
        elif token.type == tokenize.STRING and '"""' not in token.string:
            words.update(_WORD.findall(token.string))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported.update(alias.name.split(".")[-1] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            called = [one for one in node.decorator_list if isinstance(one, ast.Call) or ".command" in ast.unparse(one)]
            if not called or isinstance(node, ast.ClassDef):  # a command of click is used by its decorator
                defined[node.name].append(str(node.lineno))
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
                for target in targets:
                    for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                        if isinstance(one, ast.Name):
                            defined[one.id].append(str(statement.lineno))
    return words, imported, defined


def pxd_names(text: str) -> tuple[Names, Names, Places]:
    """The same for a .pxd."""
    bare = re.sub(r"#.*", "", text)
    imported, defined = Names(), collections.defaultdict(list)
    for found in _CIMPORT.finditer(bare):
        imported.update(_WORD.findall(found[1]))
    for number, line in enumerate(bare.splitlines(), 1):
        match = next((found for pattern in _DECLARED if (found := pattern.match(line.rstrip()))), None)
        if match is not None:
            defined[match[1]].append(str(number))
    return Names(_WORD.findall(bare)), imported, defined


def unused(root: Path) -> dict[str, str]:
    """Name -> file below src and line, of what nothing in src uses."""
    total, imported, places = Names(), Names(), collections.defaultdict(list)
    for path in sorted((*root.glob("src/**/*.py"), *root.glob("src/**/*.pxd"))):
        words, taken, defined = (python_names if path.suffix == ".py" else pxd_names)(path.read_text())
        total += words
        imported += taken
        for name, lines in defined.items():
            places[name] += [f"{path.relative_to(root / 'src').as_posix()}:{line}" for line in set(lines)]
    dead = (name for name, where in places.items() if not name.startswith("__") and total[name] - imported[name] <= len(where))
    return {name: places[name][0] for name in dead}


def findings(root: Path, kept: tuple[tuple[str, str, str], ...] = KEPT) -> list[str]:
    """One line for each name that nothing uses and nothing keeps, and for each kept name that needs it no more."""
    found, needed = [], set()
    for name, place in unused(root).items():
        rule = next(((file, names) for file, names, _ in kept if place.startswith(file) and (names == "*" or name in names.split())), None)
        if rule is None:
            found.append(f"src/{place}: {name} is used nowhere in src: remove it, or say in tools/unused.py why it stays")
        else:
            needed.add((rule[0], name if rule[1] != "*" else "*"))
    for file, names, _ in kept:
        found += [f"tools/unused.py: {name} of {file} needs no exception" for name in names.split() if (file, name) not in needed]
    return sorted(found)


if __name__ == "__main__":
    lines = findings(ROOT)
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(1 if lines else 0)

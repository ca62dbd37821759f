"""Mutants of the algorithms of shared queues: each has one mistake, and a history that must show it.

    python -m tools.linearizability.mutants [--windows N] [--only NAME]

A mutant whose text is no longer in the sources is an error: the list has to follow the code.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import flintmq
from tools.linearizability import owners, values
from tools.linearizability.checker import Verdict
from tools.linearizability.code import Code

SOURCES = Path(flintmq.__file__).parent
# in the order of their imports
_MODULES = ("recipes/session", "recipes/queue", "shared/taking_over", "shared/queue_log", "shared/batches")

Run = Callable[[int, Code], Verdict]


def _staged(seed: int, code: Code) -> Verdict:
    return values.in_memory(seed, "staged", code)


def _naive(seed: int, code: Code) -> Verdict:
    return values.in_memory(seed, "dequeue", code)


def _mixed(seed: int, code: Code) -> Verdict:
    return values.in_memory(seed, "mixed", code)


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces `old` by `new` in a module of flintmq. run: the histories that show it."""

    name: str
    module: str
    old: str
    new: str
    run: Run


MUTANTS = (
    Mutant(
        "an enqueue takes the index of the tail",
        "recipes/queue",
        "self._items + (index + 1 + place)",
        "self._items + (index + place)",
        _naive,
    ),
    Mutant("an enqueue looks at the head for the tail", "recipes/queue", "1, 1, reverse=True)", "1, 1)", _naive),
    Mutant(
        "a dequeue does not compare what it takes",
        "recipes/queue",
        "await self._session.commit(rows, deletes=[key for key, _ in rows])",
        "await self._session.commit((), deletes=[key for key, _ in rows])",
        _naive,
    ),
    Mutant(
        "a dequeue forgets the last value that it took",
        "recipes/queue",
        "return [value for _, value in rows]\n",
        "return [value for _, value in rows[:2]]\n",
        _naive,
    ),
    Mutant("the fulfiller does not compare the values", "recipes/queue", "                conditions.append((item, value))\n", "", _mixed),
    Mutant("the fulfiller leaves the values", "recipes/queue", "                deletes.append(item)\n", "", _staged),
    Mutant(
        "two clients are the fulfiller",
        "recipes/queue",
        "Commit([(self._baton, mine), *commit.conditions], puts, commit.deletes)",
        "Commit([], puts, commit.deletes)",
        _staged,
    ),
    Mutant("an unknown outcome counts as none", "recipes/session", "is_done = await self._has(marker)", "is_done = False", _naive),
    Mutant("an unknown outcome counts as success", "recipes/session", "is_done = await self._has(marker)", "is_done = True", _naive),
    Mutant(
        "a late commit may still happen",
        "recipes/session",
        'Commit([(self._row, b"%d" % number), *conditions], {**(puts or {}), marker: b""}, [*deletes, *over])',
        'Commit(conditions, {**(puts or {}), marker: b""}, [*deletes, *over])',
        _naive,
    ),
    Mutant(
        "the owner's commits do not compare its row",
        "shared/queue_log",
        "commit = Commit([(owner_key(self._queue), self.owner.pack())], rows, deletes, clears)",
        "commit = Commit([], rows, deletes, clears)",
        owners.gets,
    ),
    Mutant(
        "a batch is settled before it is in",
        "shared/queue_log",
        "self._flights.get(self._settled + 1)) is not None and flight.is_in:",
        "self._flights.get(self._settled + 1)) is not None:",
        owners.gets,
    ),
    Mutant(
        "a batch behind a gap counts after an unknown outcome",
        "shared/queue_log",
        "flight.is_in = not late and is_there",
        "flight.is_in = is_there",
        owners.gets,
    ),
    Mutant(
        "after an unknown outcome the epoch stays",
        "shared/queue_log",
        "        if self._late_ones:\n            flown",
        "        if False:\n            flown",
        owners.gets,
    ),
    Mutant(
        "the missing batches are not sent again",
        "shared/queue_log",
        "            if not flight.is_in:\n                self._start(self._fly(flight))",
        "            flight.is_in = True",
        owners.gets,
    ),
    Mutant(
        "ends that did not arrive are not written again",
        "shared/queue_log",
        "        self._soil([*ends.gone, *ends.written])\n",
        "",
        owners.gets,
    ),
    Mutant(
        "a queue is handed over while its rows are on their way",
        "shared/queue_log",
        "        while self._flights or self._mirror.unsent or self._mirror.ended_rows or self._line is not None or self._doubt:",
        "        while False:",
        owners.gets,
    ),
    Mutant(
        "a segment that ended is forgotten and not deleted",
        "shared/queue_log",
        "        ends.deletes.append(segment_key(self._queue, position))\n",
        "",
        owners.gets,
    ),
    Mutant(
        "a new owner does not flag what was delivered",
        "shared/taking_over",
        "    seen = quiet is None and value is not None\n",
        "    seen = False\n",
        owners.gets,
    ),
    Mutant("a new owner reads no ends", "shared/taking_over", 'ends.get(position, b"")', 'b""', owners.gets),
    Mutant(
        "a new owner forgets the rows behind the mark",
        "shared/taking_over",
        "    await reader.put(sorted(one for one in behind if row_numbers(head_of(one[1]))[1] <= last))\n",
        "",
        owners.gets,
    ),
    Mutant(
        "a take-over does not raise the epoch",
        "shared/taking_over",
        "before.next(node, life)",
        "Owner(before.epoch, node, life)",
        owners.gets,
    ),
    Mutant(
        "the row of a set goes before its ends are written",
        "shared/batches",
        "            await self._log.ends_written()  # B3\n",
        "",
        owners.sets,
    ),
    Mutant(
        "a new owner does not hold what sets have",
        "shared/batches",
        "                    self._core.hold(position)",
        "                    pass",
        owners.sets,
    ),
    Mutant(
        "the row of a set is written without a look at its subscription",
        "shared/batches",
        "(subscription_key(identity), value), (key, None)]",
        "(key, None)]",
        owners.sets,
    ),
    Mutant(
        "a set that was committed goes back",
        "shared/batches",
        "        if verdict is Fate.ENDS:",
        "        if False:",
        owners.sets,
    ),
    Mutant(
        "a set begins behind the head",
        "shared/batches",
        "            position = self._core.next_available(0)\n            while",
        "            position = self._core.next_available(self._core.next_available(0) + 1)\n            while",
        owners.sets,
    ),
    Mutant(
        "the plan of a set is made anew each time",
        "shared/batches",
        "            if subscription.sealed is not None:\n                return subscription.sealed\n",
        "",
        owners.sets,
    ),
    Mutant(
        "messages that the engine does not have are given to sets",
        "shared/batches",
        " and self._mirror.is_settled(position):",
        ":",
        owners.sets,
    ),
)


@contextlib.contextmanager
def loaded(mutant: Mutant | None) -> Iterator[Code]:
    """The code with the mutant's mistake. Raises: ValueError: its text is not there, or not once."""
    names = ["flintmq." + name.replace("/", ".") for name in _MODULES]
    before = {name: sys.modules.get(name) for name in names}
    made: dict[str, types.ModuleType] = {}
    try:
        for name, full in zip(_MODULES, names, strict=True):
            file = SOURCES / f"{name}.py"
            text = file.read_text()
            if mutant is not None and mutant.module == name:
                if text.count(mutant.old) != 1:
                    raise ValueError(f"{mutant.name}: its text stands {text.count(mutant.old)} times in {name}.py")
                text = text.replace(mutant.old, mutant.new)
            module = types.ModuleType(full)
            sys.modules[full] = made[name] = module
            exec(compile(text, str(file), "exec"), module.__dict__)
        names_of = {key: value for module in made.values() for key, value in vars(module).items()}
        yield Code(*(names_of[name] for name in Code._fields))
    finally:
        for full, module_before in before.items():
            if module_before is None:
                sys.modules.pop(full, None)
            else:
                sys.modules[full] = module_before


def hunt(mutant: Mutant, windows: int, first: int = 1) -> tuple[int, str]:
    """(window that shows it, how): 0, "" when none of them does."""
    with loaded(mutant) as code:
        for number in range(windows):
            try:
                verdict = mutant.run(first + number, code)
            except Exception as error:  # a client of it met what can't be
                return number + 1, f"{type(error).__name__}: {error}"[:70]
            if not verdict.ok:
                return number + 1, "not linearizable" if verdict.decided else "not decided"
    return 0, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=200, help="at most, for each mutant")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        if options.only and options.only not in mutant.name:
            continue
        began_s = time.monotonic()
        window, how = hunt(mutant, options.windows)
        missed += not window
        shown = f"window {window}: {how}" if window else "NOT FOUND"
        print(f"| {mutant.name} | {shown} | {time.monotonic() - began_s:.1f} s |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

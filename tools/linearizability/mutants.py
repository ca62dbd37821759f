"""Mutants of the queue's algorithm: each has one mistake, and a check that must notice.

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

import flintmq.shared
from tools.linearizability.checker import Verdict
from tools.linearizability.histories import Code, Window
from tools.linearizability.runs import in_memory

SOURCES = Path(flintmq.shared.__file__).parent
# in the order of their imports
_MODULES = ("keys", "queue", "staged", "owners")


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces `old` by `new` in a module of flintmq/shared. shape: the windows that show it."""

    name: str
    module: str
    old: str
    new: str
    ordered: bool = True
    staged: bool = False
    unknown: bool = False


MUTANTS = (
    Mutant(
        "a take does not declare the messages that it takes",
        "queue",
        "            transaction.require(key)\n            transaction.clear(key)\n            order =",
        "            transaction.clear(key)\n            order =",
    ),
    Mutant(
        "a node that was declared gone goes on",
        "queue",
        '        if transaction.get(owner_row(self.owner, b"e")) != ALIVE:\n            raise Fenced',
        "        if False:\n            raise Fenced",
    ),
    Mutant(
        "its life is read without being declared",
        "queue",
        '        if transaction.get(owner_row(self.owner, b"e")) != ALIVE:\n            raise Fenced',
        '        if transaction.get(owner_row(self.owner, b"e"), snapshot=True) != ALIVE:\n            raise Fenced',
    ),
    Mutant("after an unknown outcome the transaction is always made anew", "queue", "return known == number", "return False"),
    Mutant("an unknown outcome counts as success", "queue", "return known == number", "return True"),
    Mutant(
        "a transaction does not write its number",
        "queue",
        "                if wrote:\n                    transaction.set(self.keys.request(self.owner), number)\n",
        "",
    ),
    Mutant(
        "a message that comes back goes to the end",
        "queue",
        "transaction.set(self.keys.ready + one.order, one.meta.returned(delivered).pack() + value[META_BYTES:])",
        'transaction.set_stamped(self.keys.ready, b"", one.meta.returned(delivered).pack() + value[META_BYTES:])',
    ),
    Mutant(
        "a message that comes back is not flagged",
        "queue",
        "one.meta.returned(delivered).pack() + value[META_BYTES:]",
        "one.meta.pack() + value[META_BYTES:]",
    ),
    Mutant("a take leaves the message ready", "queue", "            transaction.clear(key)\n            order =", "            order ="),
    Mutant(
        "a settled lease stays",
        "queue",
        "                transaction.clear(leases + one.order)\n                if one.blob",
        "                if one.blob",
    ),
    Mutant(
        "an enqueue goes behind the tail that it saw",
        "queue",
        '                transaction.set_stamped(ready, number.to_bytes(_NUMBER, "big"), value)\n',
        "                last = transaction.range(ready, after(ready), 1, reverse=True, snapshot=True)\n"
        "                tail = last[0][0][len(ready) :] if last else bytes(10)\n"
        "                transaction.set(ready + tail + secrets.token_bytes(4), value)\n",
    ),
    Mutant(
        "a take begins behind the head",
        "queue",
        "for key, value in transaction.range(prefix, after(prefix), min(count, self.batch), snapshot=True):\n"
        "            meta, rest = opened(value)\n"
        "            size",
        "for key, value in transaction.range(prefix, after(prefix), min(count, self.batch) + 1, snapshot=True)[-count:]:\n"
        "            meta, rest = opened(value)\n"
        "            size",
    ),
    Mutant(
        "a purge does not declare what it ends",
        "queue",
        "            transaction.require(key)\n            transaction.clear(key)\n            if meta.flags",
        "            transaction.clear(key)\n            if meta.flags",
    ),
    Mutant(
        "an enqueue writes only its first message",
        "queue",
        "for number, (value, chunks, blob) in enumerate(rows):",
        "for number, (value, chunks, blob) in enumerate(rows[:1]):",
    ),
    Mutant("a sweep does not flag what it gives back", "owners", "meta.returned(True).pack()", "meta.pack()"),
    Mutant(
        "a sweep leaves the lease",
        "owners",
        "        transaction.clear(key)\n        transaction.set(keys.ready",
        "        transaction.set(keys.ready",
    ),
    Mutant(
        "a sweep forgets what it found",
        "owners",
        "        transaction.set(keys.ready + key[len(prefix) :], value)\n",
        "",
    ),
    Mutant(
        "a node is swept before it is declared gone",
        "owners",
        '            transaction.set(owner_row(owner, b"e"), GONE)\n            return True',
        "            return True",
    ),
    Mutant(
        "a fulfilment does not declare the messages that it gives",
        "staged",
        "                    transaction.require(message)\n",
        "",
        staged=True,
    ),
    Mutant(
        "a fulfilment does not declare the requests that it answers",
        "staged",
        "                transaction.require(key)\n",
        "",
        staged=True,
    ),
    Mutant(
        "a waiter is told empty because others had what was read",
        "staged",
        "                if index >= len(rows) and len(rows) == at_once:\n"
        "                    return False  # there may be more than was read\n",
        "",
        staged=True,
    ),
    Mutant(
        "a fulfilment gives the lease to nobody",
        "staged",
        "                    transaction.set(self.keys.leases(owner) + message[len(ready) :], content)\n",
        "",
        staged=True,
    ),
    Mutant(
        "an answer is forgotten",
        "staged",
        '                transaction.set(self._answer_of(request), b"".join(bytes([len(order)]) + order for order in orders))',
        '                transaction.set(self._answer_of(request), b"")',
        staged=True,
    ),
    Mutant(
        "the seed's index looks at what is ready alone",
        "queue",
        "        return max(tail, self._highest_index(transaction)) + 1",
        "        return tail + 1",
        ordered=False,
    ),
    Mutant(
        "the index of a node that is gone is forgotten",
        "owners",
        "        transaction.set(keys.highest(BASE), highest)\n",
        "",
        ordered=False,
    ),
)


@contextlib.contextmanager
def loaded(mutant: Mutant | None) -> Iterator[Code]:
    """The queue's code with the mutant's mistake. Raises: ValueError: its text is not there, or not once."""
    names = [f"flintmq.shared.{name}" for name in _MODULES]
    before = {name: sys.modules.get(name) for name in names}
    made: dict[str, types.ModuleType] = {}
    try:
        for name, full in zip(_MODULES, names, strict=True):
            text = (SOURCES / f"{name}.py").read_text()
            if mutant is not None and mutant.module == name:
                if text.count(mutant.old) != 1:
                    raise ValueError(f"{mutant.name}: its text stands {text.count(mutant.old)} times in {name}.py")
                text = text.replace(mutant.old, mutant.new)
            module = types.ModuleType(full)
            module.__file__ = str(SOURCES / f"{name}.py")
            sys.modules[full] = made[name] = module
            exec(compile(text, module.__file__, "exec"), module.__dict__)
        queue, staged, owners = made["queue"], made["staged"], made["owners"]
        yield Code(queue.declare_queue, staged.StagedQueue, owners.Owners, queue.Fenced)
    finally:
        for full, module_before in before.items():
            if module_before is None:
                sys.modules.pop(full, None)
            else:
                sys.modules[full] = module_before


def hunt(mutant: Mutant, windows: int, first: int = 1, run: Callable[[Window], Verdict] = in_memory) -> tuple[int, str]:
    """(window that shows it, how): 0, "" when none of them does."""
    with loaded(mutant) as code:
        for number in range(windows):
            seed = first + number
            unknown = mutant.unknown or seed % 3 == 0
            window = Window(seed, ordered=mutant.ordered, staged=mutant.staged, unknown=unknown, code=code)
            try:
                verdict = run(window)
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
        began = time.monotonic()
        window, how = hunt(mutant, options.windows)
        missed += not window
        print(f"| {mutant.name} | {f'window {window}: {how}' if window else 'NOT FOUND'} | {time.monotonic() - began:.1f} s |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

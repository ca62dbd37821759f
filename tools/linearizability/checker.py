"""The search for a linearization, after Wing and Gong, with Lowe's memory of what was tried.

in: operations with the times of their calls and answers, and a model. out: a verdict.

L1  An operation takes effect at one moment between its call and its answer. One without an answer takes effect at any later moment, or
    never.
L2  A set of operations that led to a state is tried once: another order that leads to the same state is the same from there on.
L3  The search gives up after `steps_max` states, and says so: what is not decided is no success.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# states of one search: a right history of 200 operations needs some hundreds
STEPS_MAX = 300_000


class _Unknown:
    """The outcome of an operation that has no answer."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class Operation:
    """client: whose; kind, arguments: what was asked; outcome: UNKNOWN when nobody knows; called, returned: on one clock that only grows.
    `returned` does not count for one that is unknown."""

    client: int
    kind: str
    arguments: tuple[Any, ...]
    outcome: Any
    called: int
    returned: int

    @property
    def is_open(self) -> bool:
        return self.outcome is UNKNOWN

    def __str__(self) -> str:
        end = "?" if self.is_open else self.returned
        return f"[{self.called}, {end}] client {self.client} {self.kind}{self.arguments} -> {self.outcome}"


class Model(Protocol):
    """What the object is when one thing happens after the other. States are hashable."""

    @property
    def initial(self) -> Hashable: ...
    def steps(self, state: Any, operation: Operation) -> Iterable[Hashable]:
        """The states that the operation can lead to with its outcome; none: it can't have this outcome here."""
        ...

    def rank(self, operation: Operation) -> int:
        """Of operations that may come next the one with the least rank is tried first. It is a guess, and changes no verdict."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """ok: there is a linearization; decided: the search came to an end; stuck: what the longest attempt could not explain."""

    ok: bool
    decided: bool
    states: int
    order: tuple[Operation, ...]
    stuck: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        if self.ok:
            return f"linearizable ({self.states} states)"
        word = "not linearizable" if self.decided else "not decided"
        last = "\n  ".join(str(one) for one in self.order[-8:])
        stuck = "\n  ".join(str(one) for one in self.stuck)
        return f"{word} ({self.states} states). The longest order ends with\n  {last}\nand none of these can come next:\n  {stuck}"


class _Search:
    """One search. `done`: a bit for each operation that is in the order so far."""

    def __init__(self, model: Model, operations: Sequence[Operation]) -> None:
        self.model = model
        self.operations = sorted(operations, key=lambda one: one.called)
        self.ranks = [model.rank(one) for one in self.operations]
        closed = [number for number, one in enumerate(self.operations) if not one.is_open]
        self.by_return = sorted(closed, key=lambda number: self.operations[number].returned)
        self.needed = sum(1 << number for number in closed)

    def candidates(self, done: int) -> list[int]:
        """What may come next: called before the first answer among those that are not in the order yet."""
        first = next(number for number in self.by_return if not done >> number & 1)
        limit = self.operations[first].returned
        found: list[int] = []
        for number, one in enumerate(self.operations):
            if one.called > limit:
                break
            if not done >> number & 1:
                found.append(number)
        return sorted(found, key=lambda number: (self.operations[number].is_open, self.ranks[number], self.operations[number].returned))

    def next_states(self, state: Hashable, done: int) -> Iterator[tuple[int, Hashable]]:
        for number in self.candidates(done):
            for after in self.model.steps(state, self.operations[number]):
                yield number, after


def check(model: Model, operations: Sequence[Operation], steps_max: int = STEPS_MAX) -> Verdict:
    """Looks for an order of the operations that the model allows and that respects L1."""
    search = _Search(model, operations)
    state: Hashable = model.initial
    seen: set[tuple[int, Hashable]] = {(0, state)}
    order: list[int] = []
    longest: tuple[list[int], int] = ([], 0)
    done = 0
    if not search.needed:
        return Verdict(True, True, 1, ())
    frames = [(search.next_states(state, 0), 0)]
    while frames:
        choices, before = frames[-1]
        for number, after in choices:
            done = before | 1 << number
            if (done, after) in seen:
                continue
            if len(seen) >= steps_max:
                return _verdict(search, longest, len(seen), decided=False)
            seen.add((done, after))
            order.append(number)
            if done & search.needed == search.needed:
                return Verdict(True, True, len(seen), tuple(search.operations[one] for one in order))
            if len(order) > len(longest[0]):
                longest = (list(order), done)
            frames.append((search.next_states(after, done), done))
            break
        else:
            frames.pop()
            if order:
                order.pop()
    return _verdict(search, longest, len(seen), decided=True)


def _verdict(search: _Search, longest: tuple[list[int], int], states: int, decided: bool) -> Verdict:
    order, done = longest
    stuck = tuple(search.operations[number] for number in search.candidates(done))
    return Verdict(False, decided, states, tuple(search.operations[number] for number in order), stuck)

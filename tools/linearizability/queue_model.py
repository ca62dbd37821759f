"""A shared queue as one thing after the other, and the oracle of its order.

in: operations of nodes. out: the states that they lead to.

A state is (messages, fenced): each message that is not gone as (id, holder, flagged) in the order of the queue, where holder 0 means ready,
and the nodes that were declared gone.

| kind | arguments | outcome |
|---|---|---|
| enqueue | node, ids | None |
| take | node, count, whole | ((id, flagged), ...): the first ready ones; `whole`: as many as there are, up to `count`; else one at least |
| settle | node, ids | None |
| give_back | node, ((id, delivered), ...) | None |
| fence | node | None: what the node says from now on does not count |
| sweep | node | None: all that a fenced node holds is ready again, flagged |
| purge | node, limit | how many ready messages ended |
| count | node | how many are ready; asked when nothing else is under way |

A take happens when it reads: what it got is the head of that moment, and nobody else had it until the take committed. A message that came
back in between is passed by it. Who counts what is committed at such a moment sees one without the other, so counts are asked at rest.

FENCED is an outcome of each kind that names a node: the node had been declared gone, and nothing happened.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from tools.linearizability.checker import Operation

FENCED = "fenced"
READY = 0
Entry = tuple[int, int, bool]
State = tuple[tuple[Entry, ...], frozenset[int]]


class QueueModel:
    """Args: ordered: a take gets the head (order "strict"); otherwise any ready messages; operations: for the guess of what came first."""

    initial: State = ((), frozenset())

    def __init__(self, ordered: bool, operations: Sequence[Operation] = ()) -> None:
        self.ordered = ordered
        self._taken: dict[int, int] = {}  # id -> when a take that got it was called first
        for one in operations:
            if one.kind == "take" and isinstance(one.outcome, tuple):
                for message, _ in one.outcome:
                    self._taken[message] = min(one.called, self._taken.get(message, one.called))

    def rank(self, operation: Operation) -> int:
        """Overlapping enqueues: the one whose message was taken first."""
        if operation.kind != "enqueue":
            return -1
        return min((self._taken.get(message, 1 << 62) for message in operation.arguments[1]), default=0)

    def steps(self, state: State, operation: Operation) -> Iterable[State]:
        messages, fenced = state
        node = operation.arguments[0]
        if operation.kind == "fence":
            return [(messages, fenced | {node})]
        if operation.kind == "sweep":
            if node not in fenced:
                return []
            return [(tuple((m, READY, True) if holder == node else (m, holder, flag) for m, holder, flag in messages), fenced)]
        if operation.outcome == FENCED:
            return [state] if node in fenced else []
        if node in fenced:
            return []
        return [(after, fenced) for after in getattr(self, f"_{operation.kind}")(messages, operation)]

    def _enqueue(self, messages: tuple[Entry, ...], operation: Operation) -> list[tuple[Entry, ...]]:
        return [messages + tuple((message, READY, False) for message in operation.arguments[1])]

    def _take(self, messages: tuple[Entry, ...], operation: Operation) -> list[tuple[Entry, ...]]:
        node, count, whole = operation.arguments
        ready = [(message, flag) for message, holder, flag in messages if holder == READY]
        most = min(count, len(ready))
        counts = [most] if whole else list(range(min(1, most), most + 1))
        if operation.is_open:
            if self.ordered:
                return [_held(messages, {message for message, _ in ready[:size]}, node) for size in counts]
            return [_held(messages, {m for m, _ in chosen}, node) for size in counts for chosen in itertools.combinations(ready, size)]
        taken = operation.outcome
        right = ready[: len(taken)] == list(taken) if self.ordered else set(taken) <= set(ready)
        if len(taken) not in counts or not right:
            return []
        return [_held(messages, {message for message, _ in taken}, node)]

    def _settle(self, messages: tuple[Entry, ...], operation: Operation) -> list[tuple[Entry, ...]]:
        node, ids = operation.arguments
        left = tuple(entry for entry in messages if not (entry[0] in ids and entry[1] == node))
        return [left] if len(messages) - len(left) == len(ids) else []

    def _give_back(self, messages: tuple[Entry, ...], operation: Operation) -> list[tuple[Entry, ...]]:
        node, pairs = operation.arguments
        back = dict(pairs)
        if sum(holder == node and message in back for message, holder, _ in messages) != len(back):
            return []
        return [tuple((m, READY, flag or back[m]) if holder == node and m in back else (m, holder, flag) for m, holder, flag in messages)]

    def _purge(self, messages: tuple[Entry, ...], operation: Operation) -> list[tuple[Entry, ...]]:
        ready = [message for message, holder, _ in messages if holder == READY]
        gone = ready[: min(operation.arguments[1], len(ready))]
        if not operation.is_open and (operation.outcome != len(gone) or (not self.ordered and 0 < len(gone) < len(ready))):
            return []
        return [tuple(entry for entry in messages if entry[0] not in gone)]

    def _count(self, messages: tuple[Entry, ...], operation: Operation) -> list[tuple[Entry, ...]]:
        ready = sum(holder == READY for _, holder, _ in messages)
        return [messages] if operation.is_open or operation.outcome == ready else []


def _held(messages: tuple[Entry, ...], chosen: set[int], node: int) -> tuple[Entry, ...]:
    return tuple((m, node, flag) if m in chosen else (m, holder, flag) for m, holder, flag in messages)


def swapped(operations: Sequence[Operation], drained: Sequence[Any]) -> list[tuple[Operation, Operation]]:
    """The oracle of the order: pairs of enqueues that did not overlap and whose messages stand the other way round in `drained`, the ids in
    the order in which one node took all that was left. Empty: they did not swap."""
    place = {message: number for number, message in enumerate(drained)}
    known = [one for one in operations if one.kind == "enqueue" and any(message in place for message in one.arguments[1])]
    found = []
    for first, second in itertools.permutations(known, 2):
        if first.is_open or first.returned > second.called:
            continue
        last = max(place[message] for message in first.arguments[1] if message in place)
        if last > min(place[message] for message in second.arguments[1] if message in place):
            found.append((first, second))
    return found

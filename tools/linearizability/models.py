"""Shared queues as one thing after the other: that of the recipe, one with an owner, and one that a subscription reads.

in: operations. out: the states that they lead to.

| model | kind | arguments | outcome |
|---|---|---|---|
| all | enqueue | id | None |
| ValuesModel | take | count | ids of the head, at least one where there are some |
| OwnedQueueModel | take | | ((id, flagged),): the head; (): empty |
| | settle, give_back | id; id, whether it was delivered | None |
| | emptied | | None: a client has taken all that was there |
| | take_over, hand_over | | None: another owner, of one that is gone; of one that gave everything away first |
| SetsModel | plan | number | ids of the head: the set of that number, the same each time until it is decided |
| | commit, reset | number | None: its messages end; they go back to their places |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tools.linearizability.checker import Operation

Ids = tuple[int, ...]


class _Ranked:
    """What the history itself says of the order, so that a search need not try the others.

    Overlapping enqueues: the one whose message was taken first is tried first. Behind a message that leaves later there is no way out, and
    an enqueue without an answer of which nobody saw the message is left out.
    """

    def __init__(self, operations: Sequence[Operation] = ()) -> None:
        self._first: dict[int, tuple[Operation, int]] = {}  # id -> the first operation that got it, and its place there
        for one in sorted(operations, key=lambda one: one.called):
            for place, message in enumerate(self._ids(one.outcome) if one.kind in ("take", "plan") and not one.is_open else ()):
                self._first.setdefault(message, (one, place))

    @staticmethod
    def _ids(outcome: Any) -> Iterable[int]:
        return outcome

    def rank(self, operation: Operation) -> int:
        if operation.kind != "enqueue":
            return -1
        first = self._first.get(operation.arguments[0])
        return 1 << 62 if first is None else first[0].called

    def _is_before(self, message: int, other: int) -> bool:
        """Whether it left before the other one, for sure."""
        if message not in self._first or other not in self._first:
            return False
        (one, place), (two, behind) = self._first[message], self._first[other]
        return one.returned < two.called or (one is two and place < behind)

    def _is_hopeless(self, operation: Operation, queue: Iterable[int]) -> bool:
        """Whether it is no use to enqueue now, behind these."""
        message = operation.arguments[0]
        return (operation.is_open and message not in self._first) or any(self._is_before(message, other) for other in queue)


class ValuesModel(_Ranked):
    """A state is the ids in their order."""

    initial: Ids = ()

    def steps(self, state: Ids, operation: Operation) -> Iterable[Ids]:
        if operation.kind == "enqueue":
            return [] if self._is_hopeless(operation, state) else [(*state, operation.arguments[0])]
        if operation.is_open:
            return [state[count:] for count in range(1, min(operation.arguments[0], len(state)) + 1)]
        taken = operation.outcome
        is_right = state[: len(taken)] == taken and len(taken) <= operation.arguments[0] and (taken or not state)
        return [state[len(taken) :]] if is_right else []


# of a message: nobody has it; somebody has; it has ended, at its owner; the present owner may have it or not; `_MAYBE` is decided by what
# is taken next: a message behind it, and it is not there
_READY, _HELD, _ENDED, _MAYBE = range(4)
# whether it is flagged: not; it is; either
_FRESH, _SEEN, _EITHER = range(3)
Entry = tuple[int, int, int]
Entries = tuple[Entry, ...]


class OwnedQueueModel(_Ranked):
    """A state is each message that may still be given to somebody, in the order of the queue: (id, place, flag).

    Args: is_watched: each change of the owner is an operation. Otherwise there may be one at any time: a message that was taken may come
    back with a flag, again and again; without one it comes once. An owner that does not know whether it is one answers a get with nothing
    (broker/pausing.py), so an empty answer says nothing there, and the window ends with `emptied`.
    """

    initial: Entries = ()

    def __init__(self, operations: Sequence[Operation] = (), is_watched: bool = True) -> None:
        super().__init__(operations)
        self._is_watched = is_watched
        # The owner may die before the engine has them, although somebody was given them.
        self._doubtful = {one.arguments[0] for one in operations if one.kind == "enqueue" and one.is_open}

    @staticmethod
    def _ids(outcome: Any) -> Iterable[int]:
        return [message for message, _ in outcome]

    def steps(self, state: Entries, operation: Operation) -> Iterable[Entries]:
        steps: Iterable[Entries] = getattr(self, f"_{operation.kind}")(state, operation)
        return steps

    def _enqueue(self, state: Entries, operation: Operation) -> list[Entries]:
        (message,) = operation.arguments
        if self._is_hopeless(operation, (entry[0] for entry in state if self._is_watched)):
            return []
        place = _MAYBE if message in self._doubtful and not self._is_watched else _READY
        return [(*state, (message, place, _FRESH))]

    def _take(self, state: Entries, operation: Operation) -> list[Entries]:
        if operation.is_open:  # nobody knows who got the head
            head = next((number for number, entry in enumerate(state) if entry[1] == _READY), None)
            return [] if head is None else [(*state[:head], self._given(state[head]), *state[head + 1 :])]
        if not operation.outcome and not self._is_watched:
            return [state]
        passed: list[Entry] = []
        for number, entry in enumerate(state):
            message, place, flag = entry
            if operation.outcome and message == operation.outcome[0][0]:
                if place in (_HELD, _ENDED) or not self._may_be(flag, operation.outcome[0][1]):
                    return []
                taken = (message, _HELD, flag) if self._is_watched else self._given(entry, operation.outcome[0][1])
                return [(*passed, taken, *state[number + 1 :])]
            if place == _READY:
                return []
            if place != _MAYBE or not self._is_watched:
                passed.append(entry)
        return [] if operation.outcome else [tuple(passed)]

    def _emptied(self, state: Entries, operation: Operation) -> list[Entries]:
        return [state] if all(entry[1] == _MAYBE for entry in state) else []

    def _may_be(self, flag: int, flagged: bool) -> bool:
        if not self._is_watched:
            return flagged or flag == _FRESH
        return flag == _EITHER or flagged == (flag == _SEEN)

    def _given(self, entry: Entry, flagged: bool = False) -> Entry:
        message, _, flag = entry
        return (message, _HELD, flag) if self._is_watched else (message, _MAYBE, flag if flagged else _SEEN)

    def _settle(self, state: Entries, operation: Operation) -> list[Entries]:
        (message,) = operation.arguments
        return self._of_held(state, message, lambda flag: (message, _ENDED, _SEEN))

    def _give_back(self, state: Entries, operation: Operation) -> list[Entries]:
        message, delivered = operation.arguments
        return self._of_held(state, message, lambda flag: (message, _READY, _SEEN if delivered else flag))

    def _of_held(self, state: Entries, message: int, after: Any) -> list[Entries]:
        if not any(entry[:2] == (message, _HELD) for entry in state):
            return []
        return [tuple(after(entry[2]) if entry[0] == message else entry for entry in state)]

    def _take_over(self, state: Entries, operation: Operation) -> list[Entries]:
        return [tuple(self._taken_over(entry) for entry in state)]

    def _taken_over(self, entry: Entry) -> Entry:
        message, place, flag = entry
        after = _MAYBE if place in (_ENDED, _MAYBE) or message in self._doubtful else _READY
        return (message, after, _SEEN if flag == _SEEN or place in (_HELD, _ENDED) else _EITHER)

    def _hand_over(self, state: Entries, operation: Operation) -> list[Entries]:
        return [] if any(entry[1] == _HELD for entry in state) else [tuple(entry for entry in state if entry[1] != _ENDED)]


class SetsModel(_Ranked):
    """A state is the ids that have not ended, in their order, and the set that is read: (number, ids)."""

    initial: tuple[Ids, tuple[int, Ids]] = ((), (0, ()))

    def steps(self, state: Any, operation: Operation) -> Iterable[Any]:
        ids, current = state
        number = operation.arguments[0]
        if operation.kind == "enqueue":
            return [] if self._is_hopeless(operation, ids) else [((*ids, number), current)]
        if operation.kind == "plan":
            taken = operation.outcome
            if current[1]:
                return [state] if current == (number, taken) else []
            return [(ids, (number, taken) if taken else current)] if ids[: len(taken)] == taken else []
        if current[0] != number or not current[1]:
            return []
        after = ids if operation.kind == "reset" else tuple(one for one in ids if one not in current[1])
        return [(after, (0, ()))]

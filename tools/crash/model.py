"""What recovery may find: an oracle of the store's promises, independent of the store's code.

in: the operations that were asked for, in order, and when each was told durable. out: for every point of the journal the states that a
restart may show. Two logs, two orders: a state is what the first m operations of the message log and the first t of the transaction
log come to, m and t at least what was told, and no transaction record without every message record that was asked for before it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

NEVER = 1 << 60

State = frozenset[tuple[object, ...]]


@dataclass(slots=True)
class Operation:
    """One call of the store. issued, told: journal positions before the call, and when its callback ran (NEVER: not yet)."""

    kind: str  # enqueue, dequeue, block, drop, tx enqueue, tx dequeue, prepare, commit, rollback
    issued: int
    queue: int = 0
    position: int = 0
    message: int = 0
    expires: int = 0
    tx: int = 0
    xid: bytes = b""
    first_positions: dict[int, int] = field(default_factory=dict)
    parts: list[Operation] = field(default_factory=list)  # of a block: enqueues and dequeues, which become durable together
    told: int = NEVER

    @property
    def in_transaction_log(self) -> bool:
        return self.kind in ("prepare", "commit", "rollback")


@dataclass(slots=True)
class Transaction:
    """A transaction as the fold of the operations has it."""

    xid: bytes = b""
    prepared: bool = False
    ended: str = ""
    enqueues: list[tuple[int, int, int, int]] = field(default_factory=list)  # queue, message, expiry, position (0: given at commit)
    dequeues: list[tuple[int, int]] = field(default_factory=list)  # queue, position


class Live:
    """Entries and transactions after some operations."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], tuple[int, int]] = {}  # (queue, position) -> (message, expiry)
        self.transactions: dict[int, Transaction] = {}

    def copy(self) -> Live:
        other = Live()
        other.entries = dict(self.entries)
        other.transactions = {
            tx: Transaction(record.xid, record.prepared, record.ended, list(record.enqueues), list(record.dequeues))
            for tx, record in self.transactions.items()
        }
        return other

    def apply(self, operation: Operation) -> None:
        kind = operation.kind
        place = (operation.queue, operation.position)
        if kind == "enqueue":
            self.entries[place] = (operation.message, operation.expires)
        elif kind == "dequeue":
            self.entries.pop(place, None)
        elif kind == "block":
            for part in operation.parts:
                self.apply(part)
        elif kind == "drop":
            for found in [found for found in self.entries if found[0] == operation.queue]:
                del self.entries[found]
            for record in self.transactions.values():
                record.enqueues = [item for item in record.enqueues if item[0] != operation.queue]
                record.dequeues = [item for item in record.dequeues if item[0] != operation.queue]
        else:
            record = self.transactions.setdefault(operation.tx, Transaction(operation.xid))
            if kind == "tx enqueue":
                record.enqueues.append((operation.queue, operation.message, operation.expires, operation.position))
            elif kind == "tx dequeue":
                record.dequeues.append(place)
            elif kind == "prepare":
                record.prepared = True
            elif kind == "rollback":
                record.ended = kind
            elif kind == "commit":
                record.ended = kind
                following = dict(operation.first_positions)
                for taken in record.dequeues:
                    self.entries.pop(taken, None)
                for queue, message, expires, position in record.enqueues:
                    self.entries[queue, position or following[queue]] = (message, expires)
                    if not position:
                        following[queue] += 1

    def in_doubt(self) -> dict[int, Transaction]:
        return {tx: record for tx, record in self.transactions.items() if record.prepared and not record.ended}

    def state(self) -> State:
        """What a restart shows: live entries, marked where an undecided transaction wants them, and undecided transactions."""
        undecided = self.in_doubt()
        held = {place for record in undecided.values() for place in record.dequeues}
        found: set[tuple[object, ...]] = {(*place, message, expires, place in held) for place, (message, expires) in self.entries.items()}
        found.update(("in doubt", record.xid) for record in undecided.values())
        return frozenset(found)


class Oracle:
    """Operations of one life of the store on top of what its recovery found (`base`, all of it durable)."""

    def __init__(self, base: Live) -> None:
        self.base = base
        self.operations: list[Operation] = []
        self._cache: dict[tuple[int, int, int, int], dict[State, tuple[int, int]]] = {}
        self._told_message: list[tuple[int, int]] = []  # (journal position, operations of the message log told by then)
        self._told_transaction: list[tuple[int, int]] = []

    def add(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        return operation

    def told(self, operation: Operation, position: int) -> None:
        """The store called the operation durable at this position of the journal."""
        operation.told = min(operation.told, position)
        same = [other for other in self.operations if other.in_transaction_log == operation.in_transaction_log]
        count = next(index for index, other in enumerate(same) if other is operation) + 1
        record = self._told_transaction if operation.in_transaction_log else self._told_message
        record.append((position, max(count, record[-1][1] if record else 0)))

    @staticmethod
    def _at(record: list[tuple[int, int]], position: int) -> int:
        index = bisect_right(record, (position, NEVER))
        return record[index - 1][1] if index else 0

    def bounds(self, position: int) -> tuple[int, int, int, int]:
        """Operations (message log: told, asked for; transaction log: told, asked for) when `position` operations were in the journal."""
        asked = asked_transaction = 0
        for operation in self.operations:
            if operation.issued > position:
                break
            if operation.in_transaction_log:
                asked_transaction += 1
            else:
                asked += 1
        return self._at(self._told_message, position), asked, self._at(self._told_transaction, position), asked_transaction

    def acceptable(self, position: int) -> dict[State, tuple[int, int]]:
        """States that a restart may show after power loss at `position`, each with its (m, t)."""
        bounds = self.bounds(position)
        if bounds not in self._cache:
            self._cache[bounds] = self._states(*bounds)
        return self._cache[bounds]

    def _states(self, told: int, asked: int, told_tx: int, asked_tx: int) -> dict[State, tuple[int, int]]:
        found: dict[State, tuple[int, int]] = {}
        for upto_tx in range(told_tx, asked_tx + 1):
            needed = self._needed(upto_tx)
            for upto in range(max(told, needed), asked + 1):
                found.setdefault(self.fold(upto, upto_tx).state(), (upto, upto_tx))
        return found

    def _needed(self, upto_tx: int) -> int:
        """Records of the message log that were asked for before the last of `upto_tx` transaction records."""
        if not upto_tx:
            return 0
        seen = messages = 0
        for operation in self.operations:
            if operation.in_transaction_log:
                seen += 1
                if seen == upto_tx:
                    break
            else:
                messages += 1
        return messages

    def fold(self, upto: int, upto_tx: int) -> Live:
        """The first `upto` operations of the message log with the first `upto_tx` of the transaction log."""
        live = self.base.copy()
        messages = transactions = 0
        for operation in self.operations:
            if operation.in_transaction_log:
                transactions += 1
                if transactions <= upto_tx:
                    live.apply(operation)
            else:
                messages += 1
                if messages <= upto:
                    live.apply(operation)
            if messages >= upto and transactions >= upto_tx:
                break
        return live

    def closest(self, state: State, position: int) -> str:
        """How `state` differs from the acceptable state nearest to it."""
        best: tuple[int, str] | None = None
        for other, (upto, upto_tx) in self.acceptable(position).items():
            missing, extra = sorted(map(str, other - state)), sorted(map(str, state - other))
            text = f"against {upto} message and {upto_tx} transaction records: missing {missing[:6]}, not expected {extra[:6]}"
            if best is None or len(missing) + len(extra) < best[0]:
                best = (len(missing) + len(extra), text)
        return best[1] if best else "nothing is acceptable"

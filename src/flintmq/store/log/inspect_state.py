"""The meaning of a store's records: live messages, queues, transactions, and references that lead nowhere.

in: a StoreView (inspect.py). out: `State`, the data behind `flintmq log verify` and `flintmq log stats`.

Transactions are read before messages, as recovery does. Nothing is guessed: a record that speaks of a message or transaction that is
missing above its log's base is reported; one below the base belongs to something that ended.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from flintmq.store.log import record_fields as kinds
from flintmq.store.log.inspect import Damage, Log, StoreView
from flintmq.store.log.record_fields import Malformed, Record, fields_of

# At most so many findings of one kind are listed one by one.
LISTED_MAX = 1000

_MESSAGE_STARTS = frozenset((kinds.START, kinds.MESSAGE, kinds.COPY))
_TX_STARTS = frozenset((kinds.DTX_START, kinds.TX_START, kinds.TX_COPY))


@dataclass(slots=True)
class Transaction:
    """A transaction as the log tells it. rows: queue -> positions that the Commit gives, in order, as ranges (first, count); sets: runs of
    positions that it dequeues, (queue, first, count); empty once it ended."""

    id: int
    state: str
    time_us: int
    xid: bytes = b""
    heuristic: str = "none"
    ended: bool = False
    deleted: bool = False
    rows: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    sets: list[tuple[int, int, int]] = field(default_factory=list)

    def position(self, queue: int, number: int) -> int:
        """The position that the Commit gives the transaction's `number`-th enqueue on the queue; 0: none."""
        for first, count in self.rows.get(queue, []):
            if number < count:
                return first + number if first else 0
            number -= count
        return 0


def _rows(values: dict[str, Any]) -> dict[int, list[tuple[int, int]]]:
    rows: dict[int, list[tuple[int, int]]] = {}
    for queue, first, count in values["rows"]:
        rows.setdefault(queue, []).append((first, count))
    return rows


@dataclass(slots=True)
class Spot:
    """A place of a live message. position 0: not known (yet). enqueued_by, dequeued_by: transactions, 0 = none."""

    queue: int
    position: int
    enqueued_by: int = 0
    dequeued_by: int = 0


@dataclass(slots=True)
class Message:
    """A message that has not ended. size: of its whole content; here: content bytes found so far."""

    id: int
    lsn: int
    time_us: int
    body: int
    size: int
    here: int
    spots: list[Spot] = field(default_factory=list)


@dataclass(slots=True)
class State:
    """All that was found out about a store. by_type, bytes_by_type: log -> record name -> number, bytes."""

    by_type: dict[str, Counter[str]] = field(default_factory=dict)
    bytes_by_type: dict[str, Counter[str]] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    notes: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    started: int = 0
    ended_queues: set[int] = field(default_factory=set)
    damage: list[Damage] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)
    missing_messages: set[int] = field(default_factory=set)
    missing_transactions: set[int] = field(default_factory=set)
    tx_tail: int = 0

    def tx_state(self, number: int) -> str:
        """State of a transaction: "lost" when its start never became durable, "unknown" when the log does not name it any more."""
        transaction = self.transactions.get(number)
        if transaction is not None:
            return transaction.state
        return "lost" if number >= self.tx_tail else "unknown"

    def spots(self, message: Message) -> list[Spot]:
        """Places where the message stands, or may stand once a transaction is decided."""
        return [
            spot
            for spot in message.spots
            if spot.queue not in self.ended_queues and not (spot.enqueued_by and self.tx_state(spot.enqueued_by) in ("rolled back", "lost"))
        ]

    def visible(self, spot: Spot) -> bool:
        """Whether consumers see the place: what undecided transactions enqueue they do not."""
        return not spot.enqueued_by or self.tx_state(spot.enqueued_by) in ("committed", "unknown")


class Replay:
    """Reads all records of a store and works out their meaning."""

    def __init__(self, view: StoreView) -> None:
        self.view = view
        self.state = State()
        self.purges: dict[int, list[tuple[int, int]]] = {}  # queue -> runs of positions, (first, last)
        self.shapes: dict[int, dict[str, Any]] = {}  # LSN of a Message-Shape -> its fields, of the container that is read
        self.shapeless: dict[int, Record] = {}  # Messages that name none of them, and have no end yet

    def run(self) -> State:
        """Reads both logs; a log that was not opened counts as empty."""
        if "transactions" in self.view.logs:
            self.state.tx_tail = self.view.logs["transactions"].tail
        for name, apply in (("transactions", self._transaction), ("messages", self._message)):
            log = self.view.logs.get(name)
            if log is None:
                continue
            by_type = self.state.by_type.setdefault(name, Counter())
            sizes = self.state.bytes_by_type.setdefault(name, Counter())
            for item in log.records():
                if isinstance(item, Damage):
                    self.state.damage.append(item)
                    continue
                by_type[item.name] += 1
                sizes[item.name] += item.length
                try:
                    values = fields_of(item, log.number)
                except Malformed as error:
                    self._report(log, "malformed", item, f"{item.name}: {error}")
                    continue
                if item.lsn >= log.base:
                    apply(log, item, values)
        if "messages" in self.view.logs:
            self._apply_purges()
            self._apply_sets()
            self._check_messages(self.view.logs["messages"])
        return self.state

    def _report(self, log: Log, kind: str, record: Record, text: str) -> None:
        self.state.remarks[kind] += 1
        if self.state.remarks[kind] <= LISTED_MAX:
            self.state.damage.append(log.damaged(kind, record.lsn, record.lsn + record.length, text))

    # --- transactions

    def _transaction(self, log: Log, record: Record, values: dict[str, Any]) -> None:
        known = self.state.transactions
        kind, number = record.type, record.undo_prev
        if kind in (kinds.DTX_START, kinds.TX_START):
            known[record.lsn] = Transaction(record.lsn, "open", record.time_us, values.get("xid", b""))
            return
        if kind == kinds.NOTE:
            key = (values["kind"], values["key"])
            if values["value"]:
                self.state.notes[key] = values["value"]
            else:
                self.state.notes.pop(key, None)
            return
        if kind == kinds.TX_COPY:
            number = number or record.lsn
            copy = Transaction(number, values["state"], record.time_us, values["xid"], values["heuristic"], values["ended"])
            copy.rows = _rows(values)
            copy.sets = [] if copy.ended else values.get("sets", [])
            known[number] = copy
            return
        transaction = known.get(number)
        if transaction is None:
            if number >= log.base and not log.has_record(number, _TX_STARTS):
                self.state.missing_transactions.add(number)
                self._report(log, "reference", record, f"{record.name} of transaction {number}, whose start is not in the log")
            return
        if kind == kinds.PREPARE:
            transaction.state = "prepared"
        elif kind == kinds.COMMIT:
            transaction.state = "committed"
            transaction.rows = _rows(values)
        elif kind == kinds.ROLLBACK:
            transaction.state = "rolled back"
        elif kind == kinds.HEURISTIC:
            transaction.heuristic = values["outcome"]
        elif kind == kinds.ACQUIRE_SET:
            transaction.sets = transaction.sets + values["sets"]
        elif kind == kinds.END:
            transaction.ended = True
            transaction.sets = []
        elif kind == kinds.TX_DELETE:
            transaction.deleted = True

    def _apply_purges(self) -> None:
        """What purges ended: their records name positions, not messages. A position is used once, so their order says nothing."""
        for runs in self.purges.values():
            runs.sort()
        for message in list(self.state.messages.values()) if self.purges else ():
            remaining = [spot for spot in message.spots if not self._purged(spot)]
            if len(remaining) < len(message.spots):
                message.spots = remaining
                if not remaining:
                    del self.state.messages[message.id]

    def _purged(self, spot: Spot) -> bool:
        runs = self.purges.get(spot.queue, [])
        index = bisect.bisect(runs, (spot.position, 2**64)) - 1
        return index >= 0 and bool(spot.position) and spot.position <= runs[index][1]

    def _apply_sets(self) -> None:
        """What prepared transactions hold as runs; committed ones without End take what still stands there when the store opens."""
        ranges: dict[int, list[tuple[int, int, int]]] = {}
        for transaction in self.state.transactions.values():
            if transaction.state in ("prepared", "committed"):
                for queue, first, count in transaction.sets:
                    ranges.setdefault(queue, []).append((first, count, transaction.id))
        for rows in ranges.values():
            rows.sort()
        if not ranges:
            return
        for message in list(self.state.messages.values()):
            for spot in list(message.spots):
                rows = ranges.get(spot.queue, [])
                index = bisect.bisect(rows, (spot.position, float("inf"), 0)) - 1
                if index < 0 or not spot.position or spot.position >= rows[index][0] + rows[index][1]:
                    continue
                if self.state.tx_state(rows[index][2]) == "prepared":
                    spot.dequeued_by = rows[index][2]
                else:
                    message.spots.remove(spot)
            if not message.spots:
                del self.state.messages[message.id]

    # --- messages

    def _message(self, log: Log, record: Record, values: dict[str, Any]) -> None:
        state, kind = self.state, record.type
        if record.tx:
            self._check_transaction(log, record)
        if kind == kinds.START:
            state.started += 1
            size = values["body"] + values["header"] + values["route"]
            state.messages[record.lsn] = Message(record.lsn, record.lsn, record.time_us, values["body"], size, values["here"])
            return
        if kind in (kinds.SHAPE, kinds.MESSAGE):
            self._brief(log, record, values)
            return
        if kind == kinds.QUEUE_END:
            state.ended_queues.add(values["queue"])
            return
        if kind == kinds.QUEUE_PURGE:
            self.purges.setdefault(values["queue"], []).extend(values["ranges"])
            return
        if kind not in (kinds.CHUNK, kinds.MESSAGE_DELETE, kinds.ENQUEUE, kinds.DEQUEUE, kinds.COPY):
            return
        number = record.undo_prev
        self.shapeless.pop(number, None)
        if kind == kinds.COPY:
            self._copied(record, values)
            return
        message = state.messages.get(number)
        if message is None:
            if number >= log.base and not log.has_record(number, _MESSAGE_STARTS):
                state.missing_messages.add(number)
                self._report(log, "reference", record, f"{record.name} of message {number}, whose start is not in the log")
        elif kind == kinds.CHUNK:
            if values["offset"] == message.here:
                message.here += values["here"]
        elif kind == kinds.MESSAGE_DELETE:
            del state.messages[number]
        elif kind == kinds.ENQUEUE:
            position = self._position(record.tx, values["queue"], values["position"], values.get("number"))
            message.spots.append(Spot(values["queue"], position, record.tx))
        else:
            self._dequeued(message, record, values)

    def _brief(self, log: Log, record: Record, values: dict[str, Any]) -> None:
        """A Message-Shape, or a Message: a Message-Start and its one Message-Enqueue."""
        container = record.lsn // log.container_size
        if record.type == kinds.SHAPE:
            if self.shapes and next(iter(self.shapes)) // log.container_size != container:
                self.shapes.clear()
            self.shapes[record.lsn] = values
            return
        self.state.started += 1
        shape = self.shapes.get(record.undo_prev)
        if shape is None or record.undo_prev // log.container_size != container:
            self.shapeless[record.lsn] = record
            return
        size = values["body"] + shape["header"] + shape["route"]
        spot = Spot(shape["queue"], shape["position"] + values["distance"])
        self.state.messages[record.lsn] = Message(record.lsn, record.lsn, record.time_us, values["body"], size, size, [spot])

    def _check_transaction(self, log: Log, record: Record) -> None:
        transactions = self.view.logs.get("transactions")
        if transactions is None or record.tx in self.state.transactions or record.tx < transactions.base:
            return
        if record.tx >= transactions.tail:
            # The message log is synced first: after a crash it may know a transaction whose start was never durable.
            self.state.remarks["of a transaction that never became durable"] += 1
        elif not transactions.has_record(record.tx, _TX_STARTS):
            self.state.missing_transactions.add(record.tx)
            self._report(log, "reference", record, f"{record.name} in transaction {record.tx}, whose start is not in the log")

    def _position(self, number: int, queue: int, position: int, order: int | None) -> int:
        """The position that a record says, or that the Commit of transaction `number` gives its `order`-th enqueue on the queue; 0: it has
        not committed, or gave none."""
        if order is None:
            return position
        transaction = self.state.transactions.get(number)
        return transaction.position(queue, order) if transaction is not None and transaction.state == "committed" else 0

    def _copied(self, record: Record, values: dict[str, Any]) -> None:
        size = values["body"] + values["header"] + values["route"]
        old = self.state.messages.get(record.undo_prev)
        message = Message(record.undo_prev, record.lsn, old.time_us if old else record.time_us, values["body"], size, values["here"])
        for place in values["places"]:
            if place.dequeued_by and self.state.tx_state(place.dequeued_by) == "committed":
                continue
            position = self._position(place.enqueued_by, place.queue, place.position, place.number)
            message.spots.append(Spot(place.queue, position, place.enqueued_by, place.dequeued_by))
        self.state.messages[record.undo_prev] = message

    def _dequeued(self, message: Message, record: Record, values: dict[str, Any]) -> None:
        spot = next((s for s in message.spots if s.queue == values["queue"] and s.position == values["position"]), None)
        if record.tx and self.state.tx_state(record.tx) != "committed":
            if spot is not None and self.state.tx_state(record.tx) not in ("rolled back", "lost"):
                spot.dequeued_by = record.tx
            return
        if spot is None:
            self.state.remarks["dequeued from a place that no record put it on"] += 1
        else:
            message.spots.remove(spot)
        if record.flags & kinds.LAST:
            self.state.messages.pop(message.id, None)

    def _check_messages(self, log: Log) -> None:
        """The rest: messages with places must have all of their content, and their transactions must be known."""
        for record in self.shapeless.values():
            self.state.missing_messages.add(record.lsn)
            self._report(log, "reference", record, f"{record.name} that names the shape {record.undo_prev}, which is not in its container")
        for message in self.state.messages.values():
            spots = self.state.spots(message)
            if not spots:
                continue
            where = f"message {message.id} (queue {spots[0].queue}, position {spots[0].position})"
            if message.here < message.size:
                text = f"{where} has {message.here} of its {message.size} bytes of content"
                self._lost(log, message, text)
            for spot in spots:
                if not spot.position and spot.enqueued_by and self.state.tx_state(spot.enqueued_by) == "committed":
                    text = f"message {message.id} has no position in queue {spot.queue}"
                    self._lost(log, message, f"{text}: the commit of transaction {spot.enqueued_by} gave too few")
                for number in (spot.enqueued_by, spot.dequeued_by):
                    if number and self.state.tx_state(number) == "unknown":
                        self._lost(log, message, f"{where} waits for transaction {number}, which the log does not know any more")

    def _lost(self, log: Log, message: Message, text: str) -> None:
        self.state.remarks["lost"] += 1
        if self.state.remarks["lost"] <= LISTED_MAX:
            self.state.damage.append(log.damaged("lost", message.lsn, message.lsn, text))


def read_state(view: StoreView) -> State:
    """The meaning of a store's records."""
    return Replay(view).run()

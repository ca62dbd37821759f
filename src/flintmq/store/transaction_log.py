"""The transaction log and its table: states, outcomes and notes, as records of docs/FORMAT.md.

in: the store's calls, recovered transactions. out: records of the transaction log, transactions in doubt.

I1  A transaction's id is the LSN of its start record; it stays valid while a logged message names it (the reference rule of seed 003):
    its Delete is written when it has ended and its last message is gone.
I2  End is written after its effects are in the message log and the queues; recovery needs no End to be right, it only saves work.
I3  Commit and Rollback of a prepared transaction find room: prepare refuses while the disk has none for the container behind the present
    one. A container that is only not made yet is no reason: its maker comes to it before anything else may take that room (log/space.py).
I4  A transaction goes one way: open, perhaps prepared, then committed or rolled back. End comes after that.
I5  A record that replaces another one (a copy, a note) stands behind it in the log. `table` and `notes` are in the order of their records:
    what lives below an LSN is found at their beginnings.

All methods are called under the store's transaction lock.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import takewhile
from typing import Any, NamedTuple

from flintmq.errors import NoRoomError
from flintmq.invariant import check
from flintmq.ports import NOTE_DELIVERIES, NOTE_LETTERS, TxState
from flintmq.slotted import slotted
from flintmq.store.log.containers import TRANSACTIONS
from flintmq.store.log.record_fields import (
    ACQUIRE_SET,
    COMMIT,
    DTX_START,
    END,
    HEURISTIC,
    HEURISTICS,
    NOTE,
    PREPARE,
    ROLLBACK,
    TX_COPY,
    TX_DELETE,
    TX_START,
    TX_STATES,
    is_known,
    own_fields,
)

XID_BYTES_MAX = 512

# state numbers of Tx-Copy
STATES = (TxState.OPEN, TxState.PREPARED, TxState.COMMITTED, TxState.ROLLED_BACK)
# rows in one Acquire-Set: it must fit into the smallest write buffer
SET_ROWS_MAX = 512
# rows of all sets of a transaction: a Tx-Copy holds them in one record
SETS_ROWS_MAX = 20_000
# kind of the note that marks a clean stop
NOTE_RUN = 0
# notes about entries, which end with them; their keys are queue id and position
NOTES_OF_ENTRIES = (NOTE_DELIVERIES, NOTE_LETTERS)
ENTRY_KEY = struct.Struct(">QQ")


class Enqueue(NamedTuple):
    """A message that enters a queue if the transaction commits. `position` 0: given at commit, which counts from the transaction's
    first enqueue on the queue: this is its `number`-th, from 0 on (-1: its position was known before)."""

    queue_id: int
    message_id: int
    position: int
    expires_at_ms: int
    number: int = -1


class Dequeue(NamedTuple):
    """An entry that leaves its queue if the transaction commits."""

    queue_id: int
    position: int
    message_id: int


class Heuristic(NamedTuple):
    """An operator's decision that was not forgotten yet."""

    tx: int
    xid: bytes
    committed: bool


class Row(NamedTuple):
    """The transaction's next `length` enqueues on the queue, by their numbers, take positions from `first` on; 0: they are lost."""

    queue_id: int
    first: int
    length: int


@slotted(eq=False)
class Transaction:
    """One transaction. `at`: LSN of its start or its last copy; `references`: live messages whose records name it."""

    tx: int
    at: int
    xid: bytes | None = None
    state: TxState = TxState.OPEN
    rows: tuple[Row, ...] = ()
    heuristic: int = 0
    ended: bool = False
    enqueues: list[Enqueue] = field(default_factory=list)
    dequeues: list[Dequeue] = field(default_factory=list)
    messages: set[int] = field(default_factory=set)
    references: int = 0
    sets: list[Row] = field(default_factory=list)  # runs of positions that it dequeues, in the order in which they were acquired
    consumer_id: int = 0  # that the log names for them
    acquired_us: int = 0  # wall clock; 0 = not known
    stage: Any = None  # Stage of tx_sets.py
    bulk: bool = False  # has sets or staged messages: its effects take their time, End comes when `bulk` is cleared

    @property
    def decided(self) -> bool:
        """It has its outcome."""
        return self.state in (TxState.COMMITTED, TxState.ROLLED_BACK)


class TransactionLog:
    """The table over the log. `log`: a ManagedLog (append, mark_live, mark_dead)."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.table: dict[int, Transaction] = {}
        self.by_xid: dict[bytes, Transaction] = {}
        self.notes: dict[tuple[int, bytes], tuple[int, bytes]] = {}  # (kind, key) -> (LSN, value)

    # --- life of one ------------------------------------------------------------------------------------------------

    def begin(self, xid: bytes | None) -> Transaction:
        """Raises: ValueError when the xid is too long or in use; StoreError."""
        if xid is not None:
            if len(xid) > XID_BYTES_MAX:
                raise ValueError(f"an xid has at most {XID_BYTES_MAX} bytes")
            known = self.by_xid.get(xid)
            if known is not None and not known.decided:  # a decided one stays for its messages' sake; its name is free
                raise ValueError("this xid is in use")
            lsn, end = self.log.append(DTX_START, struct.pack("<H", len(xid)) + xid)
        else:
            lsn, end = self.log.append(TX_START)
        self.log.mark_live(lsn, end - lsn)
        transaction = Transaction(lsn, lsn, xid)
        check(lsn not in self.table, "transaction_log I1 a new transaction has an id of its own", lsn)
        self.table[lsn] = transaction
        if xid is not None:
            self.by_xid[xid] = transaction
        return transaction

    def known(self, tx: int) -> Transaction:
        """Raises: KeyError for an id that never was, ValueError for one that has ended."""
        transaction = self.table.get(tx)
        if transaction is None or transaction.decided:
            if 0 < tx < self.log.tail:
                raise ValueError(f"transaction {tx} has ended")
            raise KeyError(f"no transaction {tx}")
        return transaction

    def open(self, tx: int) -> Transaction:
        """As `known`, and it is not prepared. Raises: ValueError."""
        transaction = self.known(tx)
        if transaction.state is not TxState.OPEN:
            raise ValueError(f"transaction {tx} is {transaction.state.value}")
        return transaction

    def name(self, transaction: Transaction, message_id: int) -> None:
        """A record of this message names the transaction."""
        if message_id not in transaction.messages:
            transaction.messages.add(message_id)
            transaction.references += 1

    def acquire(self, transaction: Transaction, rows: Sequence[Row], consumer_id: int, acquired_us: int) -> None:
        """Acquire-Set: the transaction dequeues the entries at these positions."""
        for start in range(0, len(rows), self.set_rows_max):
            part = rows[start : start + self.set_rows_max]
            self.log.append(ACQUIRE_SET, _set_of(part, consumer_id), transaction.tx)
        transaction.sets.extend(rows)
        transaction.consumer_id = consumer_id
        transaction.acquired_us = acquired_us

    @property
    def set_rows_max(self) -> int:
        """Rows of one Acquire-Set."""
        return min(SET_ROWS_MAX, self.rows_max)

    @property
    def rows_max(self) -> int:
        """Rows, of a Commit or of all sets, that fit into one record: a transaction has at most so many of each."""
        return int(min(SETS_ROWS_MAX, max(16, (self.log.container_size - 4096) // 64)))

    def prepare(self, transaction: Transaction) -> int:
        """Returns the LSN behind the record. Raises: ValueError not distributed; NoRoomError without room for the outcome."""
        if transaction.xid is None:
            raise ValueError("only a distributed transaction is prepared")
        if not self.has_room:
            raise NoRoomError("no room for the outcome of another prepared transaction: free disk space")
        check(transaction.state is TxState.OPEN, "transaction_log I4 what is prepared was open", transaction.tx, transaction.state.value)
        _, end = self.log.append(PREPARE, b"", transaction.tx)
        transaction.state = TxState.PREPARED
        return int(end)

    @property
    def has_room(self) -> bool:
        """Whether outcomes find room (I3). `low` is what the last try to make a container found. O(1), any thread."""
        return self.log.ready_ahead >= 1 or not self.log.low

    def commit(self, transaction: Transaction, rows: Sequence[Row]) -> int:
        """Returns the LSN behind the record: the transaction has happened once that is durable."""
        payload = struct.pack("<II", len(rows), 0) + b"".join(struct.pack("<QQQ", *row) for row in rows)
        check(not transaction.decided, "transaction_log I4 what is committed was not decided", transaction.tx, transaction.state.value)
        _, end = self.log.append(COMMIT, payload, transaction.tx)
        transaction.state = TxState.COMMITTED
        transaction.rows = tuple(rows)
        return int(end)

    def rollback(self, transaction: Transaction) -> int:
        """Returns the LSN behind the record."""
        check(
            transaction.state is not TxState.COMMITTED,
            "transaction_log I4 what is rolled back was not committed",
            transaction.tx,
            transaction.state.value,
        )
        _, end = self.log.append(ROLLBACK, b"", transaction.tx)
        transaction.state = TxState.ROLLED_BACK
        return int(end)

    def end(self, transaction: Transaction) -> None:
        """Its effects are applied to all queues. Its Delete follows when no message names it any more."""
        if transaction.ended or transaction.bulk:
            return
        check(transaction.decided, "transaction_log I4 what ends was decided", transaction.tx, transaction.state.value)
        self.log.append(END, b"", transaction.tx)
        transaction.ended = True
        transaction.enqueues = []
        transaction.dequeues = []
        transaction.messages = set()
        transaction.sets = []
        transaction.stage = None
        self.collect(transaction)

    def release(self, tx: int, messages: int = 1) -> None:
        """So many messages that named the transaction are gone."""
        transaction = self.table.get(tx)
        if transaction is not None:
            transaction.references -= messages
            self.collect(transaction)

    def collect(self, transaction: Transaction) -> None:
        """Writes its Delete when nothing needs it (I1)."""
        if not transaction.ended or transaction.references > 0 or transaction.heuristic or transaction.tx not in self.table:
            return
        _, end = self.log.append(TX_DELETE, b"", transaction.tx)
        self.log.mark_dead(transaction.at, end)
        del self.table[transaction.tx]
        if transaction.xid is not None and self.by_xid.get(transaction.xid) is transaction:
            del self.by_xid[transaction.xid]

    # --- heuristics, notes --------------------------------------------------------------------------------------------

    def heuristic(self, transaction: Transaction, committed: bool) -> int:
        """Notes an operator's decision; kept until forgotten. Returns the LSN behind the record."""
        outcome = 1 if committed else 2
        _, end = self.log.append(HEURISTIC, bytes([outcome]), transaction.tx)
        transaction.heuristic = outcome
        return int(end)

    def forget(self, tx: int) -> int:
        """The transaction manager knows of the heuristic outcome. Returns the LSN behind the record. Raises: KeyError."""
        transaction = self.table.get(tx)
        if transaction is None or not transaction.heuristic:
            raise KeyError(f"no heuristic outcome of transaction {tx}")
        _, end = self.log.append(HEURISTIC, b"\0", transaction.tx)
        transaction.heuristic = 0
        self.collect(transaction)
        return int(end)

    def note(self, kind: int, key: bytes, value: bytes) -> int:
        """Sets a note, or removes it (empty value). Returns the LSN behind the record."""
        lsn, end = self.log.append(NOTE, struct.pack("<HHI", kind, len(key), len(value)) + key + value)
        old = self.notes.pop((kind, key), None)
        if old is not None:
            check(lsn > old[0], "transaction_log I5 a note stands behind the one that it replaces", lsn, old[0])
            self.log.mark_dead(old[0], end)
        if value:
            self.log.mark_live(lsn, end - lsn)
            self.notes[kind, key] = (lsn, value)
        return int(end)

    def end_notes(self, kind: int, keys: Iterable[bytes], by: int) -> None:
        """Removes notes from memory, whose subjects have ended: that stands elsewhere, in front of the record that ends at LSN `by`."""
        for key in keys:
            old = self.notes.pop((kind, key), None)
            if old is not None:
                self.log.mark_dead(old[0], by)

    def take_notes(self, kind: int) -> list[tuple[bytes, int, bytes]]:
        """(key, LSN, value) of all notes of a kind, in the order of LSNs. They live in the log still: whoever takes them keeps them."""
        taken = [(key, lsn, value) for (one, key), (lsn, value) in self.notes.items() if one == kind]
        for key, _, _ in taken:
            del self.notes[kind, key]
        return taken

    # --- recovery and copy-forward --------------------------------------------------------------------------------------

    def adopt(self, transaction: Transaction, size: int = 64) -> None:
        """A recovered transaction."""
        self.table[transaction.tx] = transaction
        if transaction.xid is not None:
            self.by_xid[transaction.xid] = transaction
        self.log.mark_live(transaction.at, size)

    def in_doubt(self) -> Iterator[Transaction]:
        """Prepared transactions, oldest first."""
        return (self.table[tx] for tx in sorted(self.table) if self.table[tx].state is TxState.PREPARED)

    def copy_below(self, lsn: int) -> int:
        """Writes transactions and notes that live below `lsn` anew, so that the base can pass. Returns how many were copied: its cost
        is O(that)."""
        transactions = list(takewhile(lambda one: one.at < lsn, self.table.values()))
        notes = list(takewhile(lambda one: one[1][0] < lsn, self.notes.items()))
        for transaction in transactions:
            self.copy(transaction)
        for (kind, key), (_, value) in notes:
            self.note(kind, key, value)
        return len(transactions) + len(notes)

    def copy(self, transaction: Transaction) -> None:
        """Tx-Copy: all that is known of it, at the tail."""
        lsn, end = self.log.append(TX_COPY, self._copy_of(transaction), transaction.tx)
        check(lsn > transaction.at, "transaction_log I5 a copy of a transaction stands behind it", lsn, transaction.at)
        self.log.mark_live(lsn, end - lsn)
        self.log.mark_dead(transaction.at, end)
        transaction.at = lsn
        self.table[transaction.tx] = self.table.pop(transaction.tx)

    @staticmethod
    def _copy_of(transaction: Transaction) -> bytes:
        xid = transaction.xid or b""
        head = bytes([STATES.index(transaction.state) + 1, transaction.heuristic, int(transaction.ended), int(bool(transaction.sets))])
        head += struct.pack("<H", len(xid)) + xid
        head += bytes(-len(head) % 4)
        rows = b"".join(struct.pack("<QQQ", *row) for row in transaction.rows)
        sets = _set_of(transaction.sets, transaction.consumer_id) if transaction.sets else b""
        return head + struct.pack("<II", len(transaction.rows), 0) + rows + sets


def _set_of(rows: Sequence[Row], consumer_id: int) -> bytes:
    """A table of rows with the consumer, as Acquire-Set has it."""
    return struct.pack("<II", len(rows), consumer_id) + b"".join(struct.pack("<QQQ", *row) for row in rows)


# --- reading the log at a start -----------------------------------------------------------------------------------------------------

# states of a transaction, as Tx-Copy writes them
OPEN, PREPARED, COMMITTED, ROLLED_BACK = 1, 2, 3, 4
STATE_NUMBERS = {text: number for number, text in TX_STATES.items()}
HEURISTIC_NUMBERS = {text: number for number, text in HEURISTICS.items()}


@slotted()
class RecoveredTx:
    """A transaction that the log still has.

    was_open: it had no outcome when the broker stopped and counts as rolled back: a Rollback is to be logged. start_lost: not even its
    start became durable: a Tx-Copy is to be logged for it, and the transaction log has to go on above its id. references: live messages
    that name it; at 0 a transaction with an outcome may be deleted, once the homeless messages are. Prepared ones only: `enqueues`
    (queue id, message id, expires_at_ms, position or 0, body length, number) in the order of the calls (per queue; over queues as far as
    the log tells), where `number` is the running number of an enqueue that waits for its position, else -1; and `dequeues` (queue id,
    position, message id) in LSN order. `sets`: rows (queue id, first position, count) that it dequeues, for
    consumer_id, acquired at acquired_us
    (microseconds of the wall clock, 0 not known); empty once
    it ended.
    """

    id: int
    xid: bytes = b""
    state: int = OPEN
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    heuristic: int = 0
    ended: bool = False
    references: int = 0
    was_open: bool = False
    start_lost: bool = False
    enqueues: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    dequeues: list[tuple[int, int, int]] = field(default_factory=list)
    sets: list[tuple[int, int, int]] = field(default_factory=list)
    consumer_id: int = 0
    acquired_us: int = 0


def in_call_order(items: list[Any]) -> list[Any]:
    """Enqueues of a transaction in doubt. items: (order in the log, queue id, ..., number), as RecoveredTx has them behind the first.

    Within a queue the numbers say the order. Over queues it is the order of the records, which a Message-Copy changes: of the first ones
    of each queue that are left, the one that stands first in the log comes next.
    """
    queues: dict[int, list[Any]] = {}
    for item in sorted(items, key=lambda item: (item[6], item[0]), reverse=True):
        queues.setdefault(item[1], []).append(item)
    heads = [queue.pop() for queue in queues.values()]
    heapq.heapify(heads)
    ordered = []
    while heads:
        item = heads[0]
        queue = queues[item[1]]
        if queue:
            heapq.heapreplace(heads, queue.pop())
        else:
            heapq.heappop(heads)
        ordered.append(item[1:])
    return ordered


def read_record(
    table: dict[int, RecoveredTx], notes: dict[tuple[int, bytes], bytes], lsn: int, kind: int, tx_id: int, data: bytes, time_us: int
) -> bool:
    """Takes one record of the transaction log into the table of transactions and the notes. False: a note that says nothing (a filler).

    Raises: Malformed for fields that make no sense.
    """
    if not is_known(kind, TRANSACTIONS):
        return True
    values = own_fields(kind, data, TRANSACTIONS)
    if kind in (TX_START, DTX_START):
        table[lsn] = RecoveredTx(lsn, values.get("xid", b""))
    elif kind == NOTE:
        if values["kind"] == NOTE_RUN:
            return False
        key = (values["kind"], values["key"])
        if values["value"]:
            notes[key] = values["value"]
        else:
            notes.pop(key, None)
    elif kind == TX_COPY:
        table[tx_id] = RecoveredTx(
            tx_id,
            values["xid"],
            STATE_NUMBERS[values["state"]],
            values["rows"],
            HEURISTIC_NUMBERS[values["heuristic"]],
            values["ended"],
            sets=values.get("sets", []),
            consumer_id=values.get("consumer", 0),
        )
    elif tx_id in table:  # else it was deleted, and the base has passed its start
        _follow(table, tx_id, kind, values, time_us)
    return True


def _follow(table: dict[int, RecoveredTx], tx_id: int, kind: int, values: dict[str, Any], time_us: int) -> None:
    """A record of a transaction that the log still has."""
    tx = table[tx_id]
    if kind == PREPARE:
        tx.state = PREPARED
    elif kind == COMMIT:
        tx.state = COMMITTED
        tx.rows = values["rows"]
    elif kind == ROLLBACK:
        tx.state = ROLLED_BACK
    elif kind == END:
        tx.ended = True
        tx.sets = []
    elif kind == ACQUIRE_SET:
        tx.sets += values["sets"]
        tx.consumer_id = values["consumer"]
        tx.acquired_us = time_us
    elif kind == HEURISTIC:
        tx.heuristic = HEURISTIC_NUMBERS[values["outcome"]]
    elif kind == TX_DELETE:
        del table[tx_id]

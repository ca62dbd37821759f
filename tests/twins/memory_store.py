"""MemoryStore: the Store port in memory, the reference that real stores are tested against, and a stage for faults.

in: calls of the port. out: what a log on disk would answer, durability included: `hold()` keeps everything written after it
undurable until `release()`, and `crash()` gives the store that a restart would find.

I1  Durable state is the fold of the records at or below `durable_lsn`; nothing else survives `crash()`.
I2  A transaction takes effect at its commit record, whole.
I3  A message is kept while an entry, or a transaction that has not ended, refers to it; and before its first enqueue.
"""

from __future__ import annotations

import copy
import heapq
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from flintmq.ports import DequeueReason, TxState
from tests.support.stored import StoredContent, StoredEntry

XID_BYTES_MAX = 512


@dataclass(slots=True)
class _Entry:
    message_id: int
    expires_at_ms: int
    taken_by: int = 0  # transaction that wants to dequeue it


@dataclass(slots=True)
class _Tx:
    xid: bytes | None
    state: TxState = TxState.OPEN
    enqueues: list[tuple[int, int, int]] = field(default_factory=list)  # queue, message, expiry
    dequeues: list[tuple[int, int]] = field(default_factory=list)  # queue, position


class _State:
    """Everything a log's records add up to. Methods are the records; they never fail: MemoryStore checks first."""

    def __init__(self) -> None:
        self.contents: dict[int, StoredContent] = {}
        self.priorities: dict[int, int | None] = {}
        self.references: dict[int, int] = {}
        self.queues: dict[int, dict[int, _Entry]] = {}
        self.transactions: dict[int, _Tx] = {}

    def content(self, message_id: int, content: StoredContent, priority: int | None = None) -> None:
        self.contents[message_id] = content
        self.priorities[message_id] = priority

    def enqueue(self, queue_id: int, position: int, message_id: int, expires_at_ms: int, tx: int) -> None:
        self.references[message_id] = self.references.get(message_id, 0) + 1
        if tx:
            self.transactions[tx].enqueues.append((queue_id, message_id, expires_at_ms))
        else:
            self.queues.setdefault(queue_id, {})[position] = _Entry(message_id, expires_at_ms)

    def dequeue(self, queue_id: int, position: int, tx: int) -> None:
        if tx:
            self.queues[queue_id][position].taken_by = tx
            self.transactions[tx].dequeues.append((queue_id, position))
            return
        entries = self.queues[queue_id]
        message_id = entries.pop(position).message_id
        if not entries:
            del self.queues[queue_id]
        self._unrefer(message_id)

    def begin(self, tx: int, xid: bytes | None) -> None:
        self.transactions[tx] = _Tx(xid)

    def prepare(self, tx: int) -> None:
        self.transactions[tx].state = TxState.PREPARED

    def commit(self, tx: int, first_positions: Mapping[int, int]) -> None:
        ended = self.transactions.pop(tx)
        following = dict(first_positions)
        for queue_id, position in ended.dequeues:
            self.dequeue(queue_id, position, 0)
        for queue_id, message_id, expires_at_ms in ended.enqueues:
            self.queues.setdefault(queue_id, {})[following[queue_id]] = _Entry(message_id, expires_at_ms)
            following[queue_id] += 1

    def rollback(self, tx: int) -> None:
        ended = self.transactions.pop(tx)
        for queue_id, position in ended.dequeues:
            self.queues[queue_id][position].taken_by = 0
        for _, message_id, _ in ended.enqueues:
            self._unrefer(message_id)

    def drop_queue(self, queue_id: int) -> None:
        for tx in self.transactions.values():
            for queue, message_id, _ in tx.enqueues:
                if queue == queue_id:
                    self._unrefer(message_id)
            tx.enqueues = [item for item in tx.enqueues if item[0] != queue_id]
            tx.dequeues = [item for item in tx.dequeues if item[0] != queue_id]
        for entry in self.queues.pop(queue_id, {}).values():
            self._unrefer(entry.message_id)

    def _unrefer(self, message_id: int) -> None:
        self.references[message_id] -= 1
        if not self.references[message_id]:
            del self.references[message_id]
            del self.contents[message_id], self.priorities[message_id]

    def recover(self) -> None:
        """What a restart does: open transactions are rolled back, messages nobody refers to go."""
        for tx in [tx for tx, record in self.transactions.items() if record.state is TxState.OPEN]:
            self.rollback(tx)
        for message_id in [message_id for message_id in self.contents if message_id not in self.references]:
            del self.contents[message_id], self.priorities[message_id]


class MemoryStore:
    """See ports.Store. LSNs count records: 1, 2, 3, ..."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = _State()
        self._lsn = 0
        self._durable_lsn = 0
        self._held: _State | None = None  # durable state while held back
        self._journal: list[tuple[int, Callable[[_State], None]]] = []  # records above durable_lsn, only while held
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    # --- the test switch ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on nothing becomes durable: the disk is slow."""
        with self._lock:
            if self._held is None:
                self._held = copy.deepcopy(self._state)

    def release(self, lsn: int | None = None) -> None:
        """Makes everything durable up to `lsn` (stays held), or all of it and ends the hold (None). Runs the callbacks due."""
        with self._lock:
            if self._held is not None:
                limit = self._lsn if lsn is None else min(lsn, self._lsn)
                while self._journal and self._journal[0][0] <= limit:
                    self._journal.pop(0)[1](self._held)
                self._durable_lsn = max(self._durable_lsn, limit)
                if lsn is None:
                    self._held = None
        self._run_due()

    def crash(self) -> MemoryStore:
        """The store as a restart finds it: durable records only, prepared transactions in doubt. This one must not be used again."""
        with self._lock:
            found = MemoryStore()
            found._state = copy.deepcopy(self._state if self._held is None else self._held)
            found._state.recover()
            # LSNs go on above everything ever handed out: what was lost is not counted again.
            found._lsn = found._durable_lsn = self._lsn
            return found

    # --- the port -------------------------------------------------------------------------------------------------------

    @property
    def durable_lsn(self) -> int:
        return self._durable_lsn

    def append_content(self, content: StoredContent, *, priority: int | None = None) -> int:
        with self._lock:
            message_id = self._lsn + 1
            return self._write(lambda state: state.content(message_id, content, priority))

    def enqueue(self, queue_id: int, position: int, message_id: int, *, tx: int = 0, expires_at_ms: int = 0) -> int:
        with self._lock:
            if message_id not in self._state.contents:
                raise KeyError(f"no message {message_id}")
            if tx:
                self._open(tx)
            if (position != 0) == (tx != 0) or position < 0:
                raise ValueError("a position is given outside a transaction, and only there")
            if position in self._state.queues.get(queue_id, {}):
                raise ValueError(f"position {position} of queue {queue_id} is taken")
            lsn = self._write(lambda state: state.enqueue(queue_id, position, message_id, expires_at_ms, tx))
            return 0 if tx else lsn

    def dequeue(
        self,
        queue_id: int,
        position: int,
        reason: DequeueReason,
        *,
        tx: int = 0,
        delivery_count: int = 0,
        first_delivery_ms: int = 0,
        consumer: str = "",
        group: str = "",
    ) -> int:
        with self._lock:
            if tx:
                self._open(tx)
            entry = self._state.queues.get(queue_id, {}).get(position)
            if entry is None or entry.taken_by:
                raise KeyError(f"no entry {position} in queue {queue_id}")
            lsn = self._write(lambda state: state.dequeue(queue_id, position, tx))
            return 0 if tx else lsn

    def begin(self, xid: bytes | None = None) -> int:
        with self._lock:
            if xid is not None:
                if len(xid) > XID_BYTES_MAX:
                    raise ValueError(f"an xid has at most {XID_BYTES_MAX} bytes")
                if any(tx.xid == xid for tx in self._state.transactions.values()):
                    raise ValueError("this xid is in use")
            tx = self._lsn + 1
            return self._write(lambda state: state.begin(tx, xid))

    def prepare(self, tx: int) -> int:
        with self._lock:
            if self._open(tx).xid is None:
                raise ValueError("only a distributed transaction is prepared")
            return self._write(lambda state: state.prepare(tx))

    def commit(self, tx: int, first_positions: Mapping[int, int] | None = None) -> int:
        with self._lock:
            record = self._known(tx)
            positions = dict(first_positions or {})
            following = dict(positions)
            for queue_id, _, _ in record.enqueues:
                if following.get(queue_id, 0) <= 0:
                    raise ValueError(f"no first position for queue {queue_id}")
                if following[queue_id] in self._state.queues.get(queue_id, {}):
                    raise ValueError(f"position {following[queue_id]} of queue {queue_id} is taken")
                following[queue_id] += 1
            return self._write(lambda state: state.commit(tx, positions))

    def rollback(self, tx: int) -> int:
        with self._lock:
            self._known(tx)
            return self._write(lambda state: state.rollback(tx))

    def on_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (lsn, next(self._order), callback))
        self._run_due()

    def entries(self, queue_id: int) -> Iterator[StoredEntry]:
        with self._lock:
            found = []
            for position, entry in sorted(self._state.queues.get(queue_id, {}).items()):
                taker = self._state.transactions.get(entry.taken_by)
                doubt = entry.taken_by if taker is not None and taker.state is TxState.PREPARED else 0
                found.append(StoredEntry(queue_id, position, entry.message_id, entry.expires_at_ms, doubt))
        return iter(found)

    def in_doubt(self) -> Sequence[bytes]:
        with self._lock:
            prepared = (tx for tx in self._state.transactions.values() if tx.state is TxState.PREPARED)
            return [tx.xid for tx in prepared if tx.xid is not None]

    def transaction_of(self, xid: bytes) -> int:
        """Id of the transaction with this xid, to decide an in-doubt one. Raises: KeyError."""
        with self._lock:
            for tx, record in self._state.transactions.items():
                if record.xid == xid:
                    return tx
        raise KeyError("no transaction with this xid")

    def drop_queue(self, queue_id: int) -> int:
        with self._lock:
            return self._write(lambda state: state.drop_queue(queue_id))

    def content_of(self, message_id: int) -> StoredContent:
        """The message's bytes, as a read of the log. Raises: KeyError when it is gone."""
        with self._lock:
            return self._state.contents[message_id]

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _write(self, record: Callable[[_State], None]) -> int:
        self._lsn += 1
        record(self._state)
        if self._held is None:
            self._durable_lsn = self._lsn
        else:
            self._journal.append((self._lsn, record))
        return self._lsn

    def _known(self, tx: int) -> _Tx:
        record = self._state.transactions.get(tx)
        if record is None:
            if 0 < tx <= self._lsn:
                raise ValueError(f"transaction {tx} has ended")
            raise KeyError(f"no transaction {tx}")
        return record

    def _open(self, tx: int) -> _Tx:
        record = self._known(tx)
        if record.state is not TxState.OPEN:
            raise ValueError(f"transaction {tx} is {record.state.value}")
        return record

    def _run_due(self) -> None:
        """Runs callbacks whose LSN is durable, in order, without the lock (they may call back)."""
        while True:
            with self._lock:
                if not self._waiting or self._waiting[0][0] > self._durable_lsn:
                    return
                callback = heapq.heappop(self._waiting)[2]
            callback()

"""LogStore with calls for single messages, for tests and tools that have no broker: tests/support/stored.py, `Store`.

in: contents, enqueues and dequeues, single ones of distributed transactions too. out: records of the logs as FORMAT.md has them.

The broker writes such records of distributed transactions no more (it stages blocks and holds runs), and reads them for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from cython import NULL, address, cclass, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, CONTENT_PRIORITY, content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.types import restored_t
from cython.cimports.flintmq.store.enrolment import LogEnrolment
from cython.cimports.flintmq.store.log.log import LSN_NEVER, content_write, log_begin, log_end
from cython.cimports.flintmq.store.log.record import RECORD_START, position_waiting
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.flintmq.store.message_log import (
    ENQUEUE_MOST, list_find, list_new, list_next_message, location_t, message_add, message_find, message_t, ml_dequeue_plain, ml_dequeue_tx,
    ml_enqueue_tx, ml_write_enqueue,
)  # fmt: skip
from cython.cimports.flintmq.store.recovery import Recovery
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t

from flintmq.ports import TxState
from flintmq.store.log.containers import MESSAGES, TRANSACTIONS
from flintmq.store.transaction_log import Dequeue, Enqueue, Row
from tests.drivers.recovered import entries_of
from tests.support.stored import StoredContent, StoredEntry, rows_of

# RecoveredTx.state
PREPARED_STATE = 2


def content_of(store: LogStore, message_id: int) -> StoredContent:
    """A message's bytes. Raises: KeyError when it is gone or unreadable."""
    found: pointer[content_t] = store.load_now(message_id)
    try:
        return StoredContent(*content_tuple(found))
    finally:
        content_decref(found)


@cclass
class DrivenStore(LogStore):
    """See module. Made by `DrivenStore.open`."""

    def __cinit__(self):
        self.numbers = {}

    def append_content(self, content: StoredContent, *, priority: int | None = None) -> int:
        """See Store. Raises: StoreError."""
        flags: c_int = CONTENT_PERSISTENT | (0 if priority is None else CONTENT_PRIORITY)
        made: pointer[content_t] = content_from_bytes(
            content.exchange, content.routing_key, content.header, content.body, flags, priority or 0
        )
        message_id: uint64_t
        message: pointer[message_t] = NULL
        log_begin(self.logs.ml.log)
        message_id = content_write(self.logs.ml.log, RECORD_START, self.logs.ml.split_above, ENQUEUE_MOST, made)
        if message_id != LSN_NEVER:
            message = list_new(address(self.logs.ml.messages), message_id)
            if message != NULL:
                message.holds = 1
        log_end(self.logs.ml.log)
        content_decref(made)
        if message == NULL:
            raise self.logs.error()
        self.writer.kick()
        return message_id

    def content(self, message_id: int) -> StoredContent:
        """The message's bytes. Raises: KeyError when it is gone or unreadable."""
        return content_of(self, message_id)

    def enqueue(self, queue_id: int, position: int, message_id: int, *, tx: int = 0, expires_at_ms: int = 0) -> int:
        """See Store. `message_id`: of append_content."""
        lsn: uint64_t
        waiting: uint64_t
        known: uint64_t = message_id
        if (position != 0) == (tx != 0) or position < 0:
            raise ValueError("a position is given outside a transaction, and only there")
        with self.lock:
            if tx:
                transaction = self.transactions.open(tx)
                if not self._listed(known):
                    raise KeyError(f"no message {message_id}")
                number = self.numbers.get((tx, queue_id), 0)
                self.numbers[tx, queue_id] = number + 1
                waiting = position_waiting(number)
                lsn = ml_enqueue_tx(address(self.logs.ml), tx, queue_id, waiting, NULL, NULL, address(known), expires_at_ms)
                if lsn == LSN_NEVER:
                    raise self.logs.error()
                transaction.enqueues.append(Enqueue(queue_id, message_id, 0, expires_at_ms, number))
                self.transactions.name(transaction, message_id)
                return 0
            if not self._listed(known):
                raise KeyError(f"no message {message_id}")
            lsn = self._enqueue_plain(queue_id, position, known, expires_at_ms)
            if lsn == 0:
                raise ValueError(f"position {position} of queue {queue_id} is taken")
            if lsn == LSN_NEVER:
                raise self.logs.error()
            return self.logs.ticket(lsn, 0)

    def _listed(self, message_id):
        from_list: pointer[message_t]
        log_begin(self.logs.ml.log)
        from_list = list_find(address(self.logs.ml.messages), message_id)
        log_end(self.logs.ml.log)
        return from_list != NULL

    def dequeue(
        self,
        queue_id: int,
        position: int,
        reason: int,
        *,
        tx: int = 0,
        delivery_count: int = 0,
        first_delivery_ms: int = 0,
        consumer: str = "",
        group: str = "",
        message_id: int = 0,
    ) -> int:
        """See Store. `message_id` spares the search for it: O(entries) otherwise."""
        lsn: uint64_t
        with self.lock:
            transaction = self.transactions.open(tx) if tx else None
            message_id = message_id or self._message_at(queue_id, position)
            if tx:
                lsn = ml_dequeue_tx(
                    address(self.logs.ml), tx, queue_id, position, message_id, 0, reason, first_delivery_ms * 1000, delivery_count
                )
            else:
                lsn = ml_dequeue_plain(
                    address(self.logs.ml), queue_id, position, message_id, 0, reason, first_delivery_ms * 1000, delivery_count
                )
            if lsn == 0:
                raise KeyError(f"no entry {position} in queue {queue_id}")
            if lsn == LSN_NEVER:
                raise self.logs.error()
            if transaction is not None:
                transaction.dequeues.append(Dequeue(queue_id, position, message_id))
                self.transactions.name(transaction, message_id)
                return 0
            return self.logs.ticket(lsn, 0)

    def _message_at(self, queue_id, position):
        """Id of the message at this place: from the queue itself, the message list, or what recovery found. Raises: KeyError."""
        handle: QueueHandle
        found: uint64_t = 0
        handle = self.queues.get(queue_id)
        if handle is not None:
            found = handle.message_id_at(position)  # first: the list is searched from end to end
        if found == 0:
            found = self._find_listed(queue_id, position)
        if found:
            return found
        if self.recovery is not None:
            for entry in entries_of(self.recovery, queue_id):
                if entry[0] == position and self.is_live(entry[1]):
                    return entry[1]
        raise KeyError(f"no entry {position} in queue {queue_id}")

    def enqueues_in_doubt(self, tx: int) -> list:
        """(queue id, message id, expires_at_ms, priority or None, body length) of the single enqueues of a prepared transaction."""
        with self.lock:
            found = self.transactions.table[tx].enqueues
            return [(one.queue_id, one.message_id, one.expires_at_ms, *self.logs.facts(one.message_id)) for one in found]

    def _enqueue_plain(self, queue_id: uint64_t, position: uint64_t, message_id: uint64_t, expires_at_ms: int64_t) -> uint64_t:
        lsn: uint64_t = 0
        message: pointer[message_t]
        log_begin(self.logs.ml.log)
        message = list_find(address(self.logs.ml.messages), message_id)
        if message != NULL and message_find(message, queue_id, position) == NULL:
            message.holds = 0
            if message_add(message, queue_id, position, expires_at_ms) != NULL:
                lsn = ml_write_enqueue(self.logs.ml.log, message_id, queue_id, position, expires_at_ms, 0)
        log_end(self.logs.ml.log)
        return lsn

    def _find_listed(self, queue_id: uint64_t, position: uint64_t) -> uint64_t:
        """The listed message that has a place at (queue, position), 0: none. O(listed messages)."""
        cursor: uint64_t = 0
        found: uint64_t = 0
        message: pointer[message_t]
        log_begin(self.logs.ml.log)
        message = list_next_message(address(self.logs.ml.messages), address(cursor))
        while found == 0 and message != NULL:
            if message_find(message, queue_id, position) != NULL:
                found = message.id
            message = list_next_message(address(self.logs.ml.messages), address(cursor))
        log_end(self.logs.ml.log)
        return found

    # --- distributed transactions by their ids

    def begin(self, xid: bytes | None = None) -> int:
        with self.lock:
            return self.transactions.begin(xid).tx

    def transaction_of(self, xid: bytes) -> int:
        return self.transactions.by_xid[xid].tx

    def in_doubt_entries(self, tx: int) -> tuple:
        """Single dequeues as (queue id, position); runs, consumer id, when they were acquired (microseconds). Raises: KeyError."""
        found = self.transactions.table[tx]
        return [(one.queue_id, one.position) for one in found.dequeues], (list(found.sets), found.consumer_id, found.acquired_us)

    def prepare(self, tx: int) -> int:
        return self._enrolment(tx).prepare()

    def rollback(self, tx: int) -> int:
        return self._enrolment(tx).rollback()

    def _enrolment(self, tx):
        with self.lock:
            return self._driven(self.transactions.known(tx))

    def _driven(self, transaction: object) -> DrivenEnrolment:
        driven: DrivenEnrolment = DrivenEnrolment(self.logs, self.bulk)
        driven.driver = self
        return driven.take(transaction)

    def commit(self, tx: int, places: object = None) -> int:
        """See Store.commit. Args: places: queue id -> first position, or rows (queue id, first position, count)."""
        with self.lock:
            transaction = self.transactions.known(tx)
            if not isinstance(places, Mapping) and places is not None:
                return self._commit(transaction, [Row(*row) for row in places])
            counts: dict = {}
            for one in transaction.enqueues:
                if one.position == 0:
                    counts[one.queue_id] = counts.get(one.queue_id, 0) + 1
            rows = []
            for queue_id, number in counts.items():
                first = (places or {}).get(queue_id, 0)
                if first <= 0:
                    raise ValueError(f"no first position for queue {queue_id}")
                rows.append(Row(queue_id, first, number))
            return self._commit(transaction, rows)

    def _commit(self, transaction, rows):
        positions: dict = {}
        for row in rows:
            positions.setdefault(row.queue_id, []).extend(range(row.first, row.first + row.length))
        numbers: dict = {}
        for one in transaction.enqueues:
            if one.position == 0:
                numbers.setdefault(one.queue_id, []).append(one.number)
        for queue_id, waiting in numbers.items():
            waiting.sort()
            if len(waiting) > len(positions.get(queue_id, ())):
                raise ValueError(f"no first position for queue {queue_id}")
        if any(len(row) != len(numbers.get(queue_id, ())) for queue_id, row in positions.items()):
            raise ValueError("more positions than entries")
        written = [row for queue_id, waiting in numbers.items() for row in rows_of(queue_id, waiting, positions[queue_id])]
        lsn = self.transactions.commit(transaction, written)
        places = {(queue_id, *place) for queue_id, waiting in numbers.items() for place in zip(waiting, positions[queue_id], strict=True)}
        given = {(queue_id, number): position for queue_id, number, position in places}
        transaction.enqueues = [one._replace(position=one.position or given[one.queue_id, one.number]) for one in transaction.enqueues]
        return self._driven(transaction)._finish(lsn)

    def give_positions(self, transaction: object) -> None:
        """Its Commit is durable. The entries get their positions only now: a copy that is written before must not tell a position whose
        Commit may be lost."""
        for one in transaction.enqueues:
            if one.number >= 0:
                self._give_position(transaction.tx, one.message_id, one.queue_id, position_waiting(one.number), one.position)

    def _give_position(self, tx: uint64_t, message_id: uint64_t, queue_id: uint64_t, waiting: uint64_t, position: uint64_t) -> void:
        message: pointer[message_t]
        location: pointer[location_t]
        i: uint32_t
        log_begin(self.logs.ml.log)
        message = list_find(address(self.logs.ml.messages), message_id)
        if message != NULL:
            for i in range(message.count):
                location = address(message.locations[i])
                if location.enqueued_by == tx and location.queue_id == queue_id and location.position == waiting:
                    location.position = position
                    break
        log_end(self.logs.ml.log)

    def entries(self, queue_id: int) -> object:
        """See Store: what a restart would put back now. Writes what is buffered and reads the whole log: O(log)."""
        number: uint64_t = 0
        i: uint64_t
        found: list = []
        fresh: Recovery
        entries: pointer[restored_t]
        with self.lock:
            while self.writer.thread is None and self.flush() == 1:
                pass
            fresh = Recovery()
            fresh.run(
                LogScan(self.files, self.messages.directory, MESSAGES, self.messages.store_uuid),
                LogScan(self.files, self.transaction_records.directory, TRANSACTIONS, self.messages.store_uuid),
                {queue_id},
                2**63,
            )
            doubt = {
                position: tx
                for tx, one in fresh.transactions.items()
                if one.state == PREPARED_STATE
                for queue, position, _ in one.dequeues
                if queue == queue_id
            }
            sets = [
                (first, first + count, tx)
                for tx, one in fresh.transactions.items()
                if one.state == PREPARED_STATE
                for queue, first, count in one.sets
                if queue == queue_id
            ]
            entries = fresh.entries(queue_id, address(number))
            for i in range(number):
                for first, end_, tx in sets:
                    if first <= entries[i].position < end_:
                        doubt[entries[i].position] = tx
                found.append(
                    StoredEntry(
                        queue_id,
                        entries[i].position,
                        entries[i].message_id,
                        entries[i].expires_at_ms,
                        doubt.get(entries[i].position, 0),
                    )
                )
        return iter(found)


@cclass
class DrivenEnrolment(LogEnrolment):
    """One whose enqueues are single records."""

    def _settle(self) -> None:
        if self.transaction.state is TxState.COMMITTED:
            with self.logs.lock:
                self.driver.give_positions(self.transaction)
        LogEnrolment._settle(self)

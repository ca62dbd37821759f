"""LogStore: ports.Store over the logs (seed 003): what Python callers (distributed transactions, the pipeline, tools) use.

in: their calls, any thread. out: records of the logs, callbacks when they are durable.

LSNs that this face gives out are tickets: numbers that grow, over both logs. The message path sees LSNs of the message log.
I1  A callback runs when everything up to its ticket is on disk, in ticket order, never after a failure.
"""

from __future__ import annotations

import heapq
import logging

from cython import NULL, address, bint, cclass, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, CONTENT_PRIORITY, content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.queue.handle import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.types import restored_t
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_begin, log_end
from cython.cimports.flintmq.store.log.record import position_waiting
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.log_engine import LogEngine
from cython.cimports.flintmq.store.message_list import list_find, message_t
from cython.cimports.flintmq.store.message_log import (
    ml_dequeue_plain,
    ml_dequeue_tx,
    ml_drop_places,
    ml_drop_queue,
    ml_enqueue_plain,
    ml_enqueue_tx,
    ml_find_listed,
    ml_give_position,
    ml_undo_dequeues,
    ml_write_content,
)
from cython.cimports.flintmq.store.recovery import Recovery
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t

from flintmq.clock import SystemClock
from flintmq.errors import OperatorError
from flintmq.ports import StoredContent, StoredEntry, TxState
from flintmq.store import marks
from flintmq.store.log.containers import MESSAGES, TRANSACTIONS
from flintmq.store.log.file_port import OsFiles
from flintmq.store.maintenance import Maintenance
from flintmq.store.transaction_log import Dequeue, Enqueue, Heuristic, Row, rows_of
from flintmq.store.tx_runs import BulkTransactions

log = logging.getLogger("flintmq.store")

# RecoveredTx.state
PREPARED_STATE = 2


@cclass
class LogStore(LogEngine):
    """See module. Made by `LogStore.open`."""

    # --- opening ------------------------------------------------------------------------------------------------------

    @staticmethod
    def open(
        files: object,
        directory: str,
        *,
        container_size: int,
        initial_containers: int = 2,
        max_write_buffers: int = 10,
        store_uuid: bytes = bytes(16),
        known_queues: object = (),
        queue_high_water: int = 2**63,
        threads: bool = True,
        clock: object = None,
        retain_bytes: int = 0,
        retain_s: int = 0,
        hot_bytes: int = 4 << 20,
        spill: bool = True,
        archive_dir: str | None = None,
        actors: object = None,
        limits: object = None,
    ) -> LogStore:
        """Opens or creates the logs under `directory` (which exists) and recovers them.

        Args: files: file port, None for the operating system; sizes in bytes; known_queues: ids of durable queues; queue_high_water: no
        id above it was ever given out; archive_dir: where dead containers are copied before they go (its parent exists); threads: False:
        nothing runs by itself, see flush() and maintain() (tests); actors: the ActorSystem that reads of cold messages run on (None: a
        small one of the store's own); limits: cold_* (None: the defaults).
        Raises: OperatorError (69): another broker has the store; StoreError: another store's logs, unknown format, damage that can't be
        set aside.
        """
        store: LogStore = LogStore()
        store.files = files or OsFiles()
        store.directory = directory
        store.clock = clock or SystemClock()
        try:
            store.lock_file = store.files.lock(f"{directory}/lock")
        except BlockingIOError:
            raise OperatorError(f"store {directory} is open in another broker: stop that one, or give another --store-dir", 69) from None
        try:
            store._open(
                container_size,
                initial_containers,
                max_write_buffers,
                store_uuid,
                set(known_queues),
                queue_high_water,
                threads,
                retain_bytes,
                retain_s,
                hot_bytes,
                spill,
                archive_dir,
                actors,
                limits,
            )
        except BaseException:
            store.files.close(store.lock_file)
            raise
        return store

    def _new_bulk(self, threads):
        return BulkTransactions(self, threads)

    def _new_maintenance(self):
        return Maintenance(self)

    # --- ports.Store ----------------------------------------------------------------------------------------------------

    @property
    def durable_lsn(self) -> int:
        """Highest ticket up to which everything is durable."""
        with self.lock:
            self._collect_tickets()
            return self.durable_ticket

    def append_content(self, content: StoredContent, *, priority: int | None = None) -> int:
        """See ports.Store. Raises: StoreError."""
        flags: c_int = CONTENT_PERSISTENT | (0 if priority is None else CONTENT_PRIORITY)
        made: pointer[content_t] = content_from_bytes(
            content.exchange, content.routing_key, content.header, content.body, flags, priority or 0
        )
        message_id: uint64_t = ml_write_content(address(self.ml), made)
        content_decref(made)
        if message_id == LSN_NEVER:
            raise self._error()
        self.writer.kick()
        return message_id

    def content(self, message_id: int) -> StoredContent:
        """The message's bytes. Raises: KeyError when it is gone or unreadable."""
        found: pointer[content_t] = self.load_now(message_id)
        try:
            return StoredContent(*content_tuple(found))
        finally:
            content_decref(found)

    def enqueue(self, queue_id: int, position: int, message_id: int, *, tx: int = 0, expires_at_ms: int = 0) -> int:
        """See ports.Store. `message_id`: of append_content."""
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
                number = transaction.next_number(queue_id)
                waiting = position_waiting(number)
                lsn = ml_enqueue_tx(address(self.ml), tx, queue_id, waiting, NULL, NULL, address(known), expires_at_ms)
                if lsn == LSN_NEVER:
                    raise self._error()
                transaction.enqueues.append(Enqueue(queue_id, message_id, 0, expires_at_ms, number))
                self.transactions.name(transaction, message_id)
                return 0
            if not self._listed(known):
                raise KeyError(f"no message {message_id}")
            lsn = ml_enqueue_plain(address(self.ml), queue_id, position, known, expires_at_ms)
            if lsn == 0:
                raise ValueError(f"position {position} of queue {queue_id} is taken")
            if lsn == LSN_NEVER:
                raise self._error()
            return self._ticket(lsn, 0)

    def _listed(self, message_id):
        from_list: pointer[message_t]
        log_begin(self.ml.log)
        from_list = list_find(address(self.ml.messages), message_id)
        log_end(self.ml.log)
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
        """See ports.Store. `message_id` spares the search for it: O(entries) otherwise."""
        lsn: uint64_t
        with self.lock:
            transaction = self.transactions.open(tx) if tx else None
            message_id = message_id or self._message_at(queue_id, position)
            if tx:
                lsn = ml_dequeue_tx(
                    address(self.ml), tx, queue_id, position, message_id, 0, reason, first_delivery_ms * 1000, delivery_count
                )
            else:
                lsn = ml_dequeue_plain(
                    address(self.ml), queue_id, position, message_id, 0, reason, first_delivery_ms * 1000, delivery_count
                )
            if lsn == 0:
                raise KeyError(f"no entry {position} in queue {queue_id}")
            if lsn == LSN_NEVER:
                raise self._error()
            if transaction is not None:
                transaction.dequeues.append(Dequeue(queue_id, position, message_id))
                self.transactions.name(transaction, message_id)
                return 0
            return self._ticket(lsn, 0)

    def _message_at(self, queue_id, position):
        """Id of the message at this place: from the queue itself, the message list, or what recovery found. Raises: KeyError."""
        number: uint64_t = 0
        entries: pointer[restored_t]
        i: uint64_t
        handle: QueueHandle
        found: uint64_t = 0
        handle = self.queues.get(queue_id)
        if handle is not None:
            found = handle.message_id_at(position)  # first: the list is searched from end to end
        if found == 0:
            found = ml_find_listed(address(self.ml), queue_id, position)
        if found:
            return found
        if self.recovery is not None:
            entries = self.recovery.entries(queue_id, address(number))
            for i in range(number):
                if entries[i].position == position and self.is_live(entries[i].message_id):
                    return entries[i].message_id
        raise KeyError(f"no entry {position} in queue {queue_id}")

    def begin(self, xid: bytes | None = None) -> int:
        """See ports.Store."""
        with self.lock:
            return self.transactions.begin(xid).tx

    def prepare(self, tx: int) -> int:
        """See ports.Store."""
        with self.lock:
            return self._ticket(0, self.transactions.prepare(self.transactions.open(tx)))

    def commit(self, tx: int, first_positions: object = None) -> int:
        """See ports.Store."""
        with self.lock:
            transaction = self.transactions.known(tx)
            counts: dict = {}
            for one in transaction.enqueues:
                if one.position == 0:
                    counts[one.queue_id] = counts.get(one.queue_id, 0) + 1
            rows = []
            for queue_id, number in counts.items():
                first = (first_positions or {}).get(queue_id, 0)
                if first <= 0:
                    raise ValueError(f"no first position for queue {queue_id}")
                rows.append(Row(queue_id, first, number))
            return self._commit(transaction, rows)

    def commit_rows(self, tx: int, rows: object) -> int:
        """As `commit`, with any number of rows (queue id, first position, count) per queue."""
        with self.lock:
            return self._commit(self.transactions.known(tx), [Row(*row) for row in rows])

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
        return self._finish(transaction, lsn)

    def rollback(self, tx: int) -> int:
        """See ports.Store."""
        with self.lock:
            transaction = self.transactions.known(tx)
            prepared: bint = transaction.state is TxState.PREPARED
            lsn = self.transactions.rollback(transaction)
            for one in transaction.dequeues:
                ml_undo_dequeues(address(self.ml), tx, one.message_id, prepared)
            return self._finish(transaction, lsn)

    def _finish(self, transaction, lsn):
        """The outcome is written: its effects follow when it is durable."""
        ticket = self._ticket(0, lsn)
        heapq.heappush(self.waiting, (ticket, -1, lambda: self.tx_apply(transaction)))
        self._count_waiting()
        self.writer.kick()
        return ticket

    def tx_apply(self, transaction: object) -> None:
        """The outcome of a distributed transaction is durable.

        Its entries get their positions only now: a copy that is written before must not tell a position whose Commit may be lost.
        """
        with self.lock:
            if transaction.state is TxState.COMMITTED:
                for one in transaction.enqueues:
                    if one.number >= 0:
                        ml_give_position(
                            address(self.ml),
                            transaction.tx,
                            one.message_id,
                            one.queue_id,
                            position_waiting(one.number),
                            one.position,
                        )
            self._apply(transaction)

    def on_durable(self, lsn: int, callback: object) -> None:
        """See ports.Store."""
        with self.lock:
            heapq.heappush(self.waiting, (lsn, next(self.order), callback))
            self._count_waiting()
        self._run_due()
        self.writer.kick()

    def when_durable(self, lsn: int, callback: object) -> None:
        """See LogPort: `lsn` is one of the message log."""
        with self.lock:
            ticket = self._ticket(lsn, 0)
        self.on_durable(ticket, callback)

    def in_doubt(self) -> list:
        """See ports.Store."""
        with self.lock:
            return [transaction.xid for transaction in self.transactions.in_doubt()]

    def transaction_of(self, xid: bytes) -> int:
        """Id of the transaction with this xid. Raises: KeyError."""
        with self.lock:
            return self.transactions.by_xid[xid].tx

    def in_doubt_entries(self, tx: int) -> tuple:
        """What a prepared transaction holds: enqueues as (queue id, message id, expires_at_ms, priority or None, body length), dequeues as
        (queue id, position), and runs: (rows as (queue id, first position, count), consumer id, when they were acquired).

        Reads the first record of every message it enqueues. Raises: KeyError.
        """
        with self.lock:
            transaction = self.transactions.table[tx]
            return (
                [(one.queue_id, one.message_id, one.expires_at_ms, *self._facts(one.message_id)) for one in transaction.enqueues],
                [(one.queue_id, one.position) for one in transaction.dequeues],
                (list(transaction.sets), transaction.consumer_id, transaction.acquired_us),
            )

    def _facts(self, message_id):
        """(priority or None, body length) of a message. What can't be read has neither: delivery will find that out."""
        body_len: uint32_t = 0
        flags: uint8_t = 0
        priority: uint8_t = 0
        with self.reader_lock:
            self.reader.facts(message_id, address(body_len), address(flags), address(priority))
        return (priority if flags & CONTENT_PRIORITY else None, body_len)

    def note_heuristic(self, tx: int, committed: bool) -> int:
        """An operator decided a prepared transaction; kept over restarts until forgotten."""
        with self.lock:
            return self._ticket(0, self.transactions.heuristic(self.transactions.known(tx), committed))

    def heuristics(self) -> list:
        """(tx, xid, committed) of every decision that was not forgotten, oldest first."""
        with self.lock:
            table = self.transactions.table
            return [Heuristic(tx, table[tx].xid, table[tx].heuristic == 1) for tx in sorted(table) if table[tx].heuristic]

    def forget_heuristic(self, tx: int) -> int:
        """Raises: KeyError."""
        with self.lock:
            return self._ticket(0, self.transactions.forget(tx))

    def note(self, kind: int, key: bytes, value: bytes) -> int:
        """A small durable fact of the pipeline (subscriptions, scopes); an empty value removes it."""
        with self.lock:
            return self._ticket(0, self.transactions.note(kind, key, value))

    def notes(self, kind: int) -> dict:
        """key -> value of all notes of a kind."""
        with self.lock:
            return {key: value for (one, key), (_, value) in self.transactions.notes.items() if one == kind}

    def drop_queue(self, queue_id: int) -> int:
        """See ports.Store: writes Queue-End, which ends every entry of the queue. A queue that logs here (`attach`) is swept afterwards
        (queue/purge.py), which gives the room of its entries back; of another one that is done here: O(listed messages)."""
        message_id: uint64_t
        wanted: uint64_t = queue_id
        with self.lock:
            known = self.queues.pop(queue_id, None) is not None and self.recovery is None
            if self.recovery is not None:
                self.recovery.marks.pop(queue_id, None)
            end: uint64_t = marks.write_queue_end(self, queue_id)
            for transaction in self.transactions.table.values():
                if transaction.stage is not None and queue_id in transaction.stage.numbers:
                    known = False  # its messages stand nowhere yet, so no sweep finds them
                for one in (*transaction.enqueues, *transaction.dequeues):
                    if one.queue_id == queue_id:
                        message_id = one.message_id
                        ml_drop_places(address(self.ml), wanted, message_id)
                transaction.enqueues = [one for one in transaction.enqueues if one.queue_id != queue_id]
                transaction.dequeues = [one for one in transaction.dequeues if one.queue_id != queue_id]
                transaction.sets = [one for one in transaction.sets if one.queue_id != queue_id]
                if transaction.stage is not None:
                    transaction.stage.drop_queue(queue_id)
            if not known:
                ml_drop_queue(address(self.ml), wanted)
            return self._ticket(end, 0)

    def entries(self, queue_id: int) -> object:
        """See ports.Store: what a restart would put back now. Writes what is buffered and reads the whole log: O(log)."""
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

    # --- tickets --------------------------------------------------------------------------------------------------------

    def _ticket(self, message_lsn: uint64_t, transaction_lsn: uint64_t) -> uint64_t:
        self.last_ticket += 1
        self.tickets.append((self.last_ticket, message_lsn, transaction_lsn))
        self.writer.kick()
        return self.last_ticket

    def _collect_tickets(self):
        messages: uint64_t = at_load64(address(self.messages.log.durable))
        transactions: uint64_t = at_load64(address(self.transaction_records.log.durable))
        while self.tickets:
            ticket, message_lsn, transaction_lsn = self.tickets[0]
            if message_lsn > messages or transaction_lsn > transactions:
                return
            self.tickets.popleft()
            check(ticket > self.durable_ticket, b"log_store I1 tickets become durable in their order", ticket, self.durable_ticket)
            self.durable_ticket = ticket

    def _count_waiting(self):
        self.writer.want_callbacks(len(self.waiting))

    def _run_due(self):
        """Runs the callbacks whose ticket is durable, in order, without the lock. One thread at a time: it also runs what others added."""
        while True:
            with self.lock:
                self._collect_tickets()
                if self.running:
                    return
                if not self.waiting or self.waiting[0][0] > self.durable_ticket:
                    self._count_waiting()
                    return
                callback = heapq.heappop(self.waiting)[2]
                self.running = True
            try:
                callback()
            except Exception:
                log.exception("internal error in a durability callback")
            finally:
                with self.lock:
                    self.running = False

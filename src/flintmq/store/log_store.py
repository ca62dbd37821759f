"""LogStore: the durable store (seed 003): ports.Store for Python callers, LogPort for the message path.

in: the queue core's enqueues and dequeues, transactions of sessions and of the coordinator. out: logs on disk; what a restart finds.

I1  A confirm, a commit-ok or an on_durable callback is sent for what is on disk, never earlier.
I2  A Commit record is on disk only after all messages of its transaction (writer.py I1), and its effects are applied after that.
I3  After a failure of the disk nothing becomes durable any more; `failure` says what happened.

LSNs that the Python face gives out are tickets: numbers that grow, over both logs. The message path sees LSNs of the message log.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections import deque
from itertools import count

import cython
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.core.hash64 import map64_put
from cython.cimports.flintmq.queue.handle import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.queue_core import queue_next_redelivered, queue_peek, queue_restore_many, queue_set_tail, queue_tail
from cython.cimports.flintmq.queue.types import ENTRY_COUNT_SHIFT, delivery_t, queue_t, restored_t, slot_t
from cython.cimports.flintmq.store.content_loader import ContentLoader, store_load
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_begin, log_end, log_live
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.record import BLOCK_CLEAN
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.log.writer import LogWriter
from cython.cimports.flintmq.store.message_list import list_find, list_free_all, list_new, location_t, message_add, message_name, message_t
from cython.cimports.flintmq.store.message_log import (
    ml_dequeue,
    ml_dequeue_plain,
    ml_dequeue_tx,
    ml_durable_lsn,
    ml_enqueue,
    ml_enqueue_plain,
    ml_enqueue_tx,
    ml_find_listed,
    ml_give_position,
    ml_kick,
    ml_placed,
    ml_pressure,
    ml_settle_tx,
    ml_spill,
    ml_unspill,
    ml_write_content,
)
from cython.cimports.flintmq.store.recovery import Recovery, live_t
from cython.cimports.flintmq.store.recovery import location_t as recovered_location_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset
from flintmq.clock import SystemClock
from flintmq.errors import StoreError
from flintmq.ports import StoredContent, StoredEntry, TxState
from flintmq.store import marks
from flintmq.store.log.containers import MESSAGES, PAGES, TRANSACTIONS, sequence_of
from flintmq.store.log.file_port import OsFiles
from flintmq.store.opening import quarantine, repair_tail
from flintmq.store.transaction_log import NOTE_RUN, Dequeue, Enqueue, Row, Transaction, TransactionLog

log = logging.getLogger("flintmq.store")

# bytes of a write buffer; a smaller container is one buffer
BUFFER_SIZE = 1 << 20
# containers of the transaction and page log kept ready
SMALL_AHEAD = 2
PERSISTENT = 1


@cython.cclass
class LogStore(LogPort):
    """See module. Made by `LogStore.open`."""

    def __cinit__(self):
        memset(cython.address(self.ml), 0, cython.sizeof(self.ml))
        self.queues = {}
        self.tickets = deque()
        self.waiting = []
        self.order = count()
        self.lock = threading.RLock()
        self.reader_lock = threading.Lock()
        self.failure = None
        self.on_failure = None
        self.on_maintain = None
        self.lock_file = None
        self.closed = False
        self.maintenance = None

    def __dealloc__(self):
        list_free_all(cython.address(self.ml.messages))
        free(self.ml.released)

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
    ) -> LogStore:
        """Opens or creates the logs under `directory` (which exists) and recovers them.

        Args: files: file port, None for the operating system; sizes in bytes; known_queues: ids of durable queues; queue_high_water: no
        id above it was ever given out; threads: False: nothing runs by itself, see flush() and maintain() (tests).
        Raises: StoreError: another broker has the store, another store's logs, unknown format, damage that can't be set aside.
        """
        store: LogStore = LogStore()
        store.files = files or OsFiles()
        store.directory = directory
        store.clock = clock or SystemClock()
        try:
            store.lock_file = store.files.lock(f"{directory}/lock")
        except BlockingIOError:
            raise StoreError(f"store {directory} is open in another broker") from None
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
            )
        except BaseException:
            store.files.close(store.lock_file)
            raise
        return store

    def _open(
        self, container_size, initial, buffers, uuid, known, high_water, threads, retain_bytes, retain_s, hot_bytes, spill
    ):
        message_scan: LogScan = LogScan(self.files, f"{self.directory}/messages", MESSAGES, uuid)
        transaction_scan: LogScan = LogScan(self.files, f"{self.directory}/transactions", TRANSACTIONS, uuid)
        self.recovery = Recovery()
        self.recovery.run(message_scan, transaction_scan, known, high_water)
        self.report = self.recovery.report
        self.was_clean = message_scan.clean and transaction_scan.clean
        for damage in message_scan.damage:
            copy = quarantine(self.files, self.directory, "messages", f"{self.directory}/messages", damage.lsn // message_scan.container_size)
            log.error("damaged container %s: %s%s", damage.file, damage, f"; copied to {copy}" if copy else "")
        epoch = max(message_scan.epoch, transaction_scan.epoch) + 1
        self.messages = self._open_log("messages", MESSAGES, message_scan, uuid, container_size, initial, epoch, retain_bytes, retain_s)
        small = container_size
        self.transaction_records = self._open_log(
            "transactions", TRANSACTIONS, transaction_scan, uuid, small, min(initial, SMALL_AHEAD), epoch, retain_bytes, retain_s
        )
        if spill:
            self._clear_pages()
            self.pages = ManagedLog(
                self.files, f"{self.directory}/pages", "pages", PAGES, uuid, container_size, BUFFER_SIZE, False, self.clock
            )
            self.ml.pages = self.pages.log
        self.ml.log = self.messages.log
        self.ml.buffers_max = buffers
        self.ml.split_above = min(16384, self.messages.log.buffer_size // 4)
        self.writer = LogWriter(self.files)
        self.writer.add(self.messages.log)
        self.writer.add(self.transaction_records.log)
        if self.pages is not None:
            self.writer.add(self.pages.log)
        self.writer.writer.port = cython.address(self.port)
        self.writer.on_callbacks = self._durability_moved
        self.writer.on_progress = self._progress
        self.writer.on_failed = self._disk_failed
        self.ml.writer = cython.address(self.writer.writer)
        self.reader = ContentReader(self.messages, self.pages)
        self.loader = ContentLoader(ContentReader(self.messages, self.pages))
        self.ml.loader = cython.address(self.loader.loader)
        self.transactions = TransactionLog(self.transaction_records)
        self.last_ticket = self.durable_ticket = max(self.messages.tail, self.transaction_records.tail)
        self._adopt_recovered()
        self.port.context = cython.address(self.ml)
        self.port.hot_bytes = hot_bytes
        self.port.enqueue = ml_enqueue
        self.port.dequeue = ml_dequeue
        self.port.placed = ml_placed
        if self.pages is not None:
            self.port.spill = ml_spill
            self.port.unspill = ml_unspill
        self.port.load = store_load
        self.port.durable_lsn = ml_durable_lsn
        self.port.kick = ml_kick
        self.port.pressure = ml_pressure
        if threads:
            from flintmq.store.maintenance import Maintenance

            self.writer.start()
            self.loader.start()
            self.maintenance = Maintenance(self)
            self.maintenance.start()
        self._settle_recovered()

    def _open_log(self, name, log_id, scan, uuid, container_size, initial, epoch, retain_bytes, retain_s):
        directory: str = f"{self.directory}/{name}"
        managed: ManagedLog
        if scan.container_size and scan.container_size != container_size:
            log.warning("%s keeps its container size of %d bytes: --container-size is ignored", name, scan.container_size)
            container_size = scan.container_size
        managed = ManagedLog(
            self.files,
            directory,
            name,
            log_id,
            uuid,
            container_size,
            min(BUFFER_SIZE, container_size),
            True,
            self.clock,
            retain_bytes,
            retain_s,
        )
        managed.set_ahead(max(2, initial))
        if not scan.container_size:
            managed.clear_temporaries()
            managed.open_new(initial, epoch)
            return managed
        if not scan.clean:
            repair_tail(self.files, directory, scan.tail, container_size)
        managed.clear_temporaries()
        managed.open_at(scan.tail, scan.last_block, epoch, scan.base)
        first = scan.base // container_size
        for sequence in sorted(number for number in map(sequence_of, self.files.list_dir(directory)) if number is not None):
            if sequence < first:
                managed.adopt_dead(sequence)
            else:
                managed.adopt(sequence)
        managed.prepare(True)
        return managed

    def _clear_pages(self):
        """Spilled transient messages don't survive: their log starts empty."""
        directory = f"{self.directory}/pages"
        names = self.files.list_dir(directory)
        for name in names:
            self.files.unlink(f"{directory}/{name}")
        self.files.make_dir(directory)
        if names:
            self.files.sync_dir(directory)

    def _adopt_recovered(self):
        """Live maps, message list and transactions as recovery found them. Nothing runs yet."""
        i: uint64_t
        j: uint32_t
        at: uint64_t = 0
        live: cython.pointer(live_t)
        place: cython.pointer(recovered_location_t)
        message: cython.pointer(message_t)
        location: cython.pointer(location_t)
        names: dict = {}
        for tx, found in sorted(self.recovery.transactions.items()):
            transaction = Transaction(
                tx, found.at, found.xid, found.state, tuple(Row(*row) for row in found.rows), found.heuristic, found.ended
            )
            transaction.enqueues = [Enqueue(queue_id, message_id, 0, expires) for queue_id, message_id, expires in found.enqueues]
            transaction.dequeues = [Dequeue(*one) for one in found.dequeues]
            transaction.references = found.references
            self.transactions.adopt(transaction)
            for one in (*transaction.enqueues, *transaction.dequeues):
                transaction.messages.add(one.message_id)
            for message_id in found.named_by:
                names.setdefault(message_id, []).append(tx)
        for key, (lsn, value) in self.recovery.notes.items():
            if key[0] != NOTE_RUN:
                self.transactions.notes[key] = (lsn, value)
                self.transaction_records.mark_live(lsn, 32 + len(value))
        log_begin(self.messages.log)
        for i in range(self.recovery.live_count):
            live = cython.address(self.recovery.live[i])
            log_live(self.messages.log, live.lsn, live.bytes)
            if live.id != live.lsn:
                map64_put(cython.address(self.messages.log.moved), live.id, live.lsn)
            if live.places == 0:
                continue
            message = list_new(cython.address(self.ml.messages), live.id)
            for j in range(live.places):
                place = cython.address(self.recovery.locations[at + j])
                if message == cython.NULL:
                    break
                location = message_add(message, place.queue_id, place.position, place.expires_at_ms)
                if location != cython.NULL:
                    # A decided transaction is a name only; an undecided one is still to end.
                    found = self.transactions.table.get(place.enqueued_by)
                    location.enqueued_by = place.enqueued_by if found is not None and not found.decided else 0
                    location.dequeued_by = place.dequeued_by
            at += live.places
            if message != cython.NULL and names:
                for tx in names.get(live.id, ()):
                    message_name(message, tx)
        log_end(self.messages.log)

    def _settle_recovered(self):
        """Transactions that were open are rolled back; those that are decided and applied are ended. Logged, not waited for."""
        for transaction in list(self.transactions.table.values()):
            if transaction.state is TxState.OPEN:
                self.transactions.rollback(transaction)
                transaction.references = 0
            if transaction.decided:
                self.transactions.end(transaction)

    def restore(self, handle: QueueHandle) -> int:
        """Puts the recovered entries of a queue into it. Returns how many. Called once per durable queue, before it is used."""
        number: uint64_t = 0
        entries: cython.pointer(restored_t)
        level: uint32_t = 0
        restored: uint64_t = 0
        if self.recovery is None:
            return 0
        entries = self.recovery.entries(handle.queue.id, cython.address(number))
        if number:
            restored = queue_restore_many(handle.queue, entries, number)
            if restored != number:
                raise StoreError(f"queue id {handle.queue.id}: {number - restored} recovered entries do not fit its priority levels")
        for tail in self.recovery.marks.get(handle.queue.id, ()):
            if tail > queue_tail(handle.queue, level):
                queue_set_tail(handle.queue, level, tail)
            level += 1
        handle.queue.logged_at = self.messages.log.base
        return restored

    def restored(self) -> None:
        """All queues have their entries: recovery's memory is given back."""
        self.recovery = None

    def attach(self, handle: QueueHandle) -> None:
        """A durable queue that logs here."""
        with self.lock:
            self.queues[handle.queue.id] = handle

    # --- stopping -----------------------------------------------------------------------------------------------------

    def close(self, clean: bool = True) -> None:
        """Writes what is buffered and closes. clean: nobody uses the store any more, so the next start need not flag redeliveries."""
        if self.closed:
            return
        self.closed = True
        if self.maintenance is not None:
            self.maintenance.stop()
        self.loader.stop()
        if clean and self.failure is None:
            marks.write_redelivered(self, [self._redelivered(handle) for handle in self.queues.values()])
            marks.write_marks(self, self._tails(0))
        self.writer.stop()
        if clean and self.failure is None:
            while self.writer.flush() == 1:
                pass
            marks.write_clean(self)
            self.writer.flush(BLOCK_CLEAN)
        self._run_due()
        self.reader.close()
        for managed in (self.messages, self.transaction_records, self.pages):
            if managed is not None:
                managed.close()
        self.files.close(self.lock_file)

    def _redelivered(self, handle: QueueHandle):
        """(queue id, ranges of positions that were delivered before)."""
        first: uint64_t = 0
        last: uint64_t = 0
        position: uint64_t = 1
        ranges: list = []
        while queue_next_redelivered(handle.queue, position, cython.address(first), cython.address(last)):
            ranges.append((first, last))
            position = last + 1
        return handle.queue.id, ranges

    def _tails(self, below: int):
        """(queue id, highest index per level, handle) of queues whose last record in the log is below that LSN (0: of all)."""
        handle: QueueHandle
        level: uint32_t
        result: list = []
        with self.lock:
            handles = list(self.queues.values())
        for handle in handles:
            if below and at_load64(cython.address(handle.queue.logged_at)) >= below:
                continue
            tails = [queue_tail(handle.queue, level) for level in range(handle.queue.entries.level_count)]
            if any(tails):
                result.append((handle.queue.id, tails, handle))
        return result

    def tails_below(self, lsn: int) -> list:
        """Marks that must be written anew before the base passes `lsn`."""
        return self._tails(lsn)

    def marked(self, handle: QueueHandle, lsn: int) -> None:
        """A mark of the queue stands at this LSN."""
        if lsn > handle.queue.logged_at:
            handle.queue.logged_at = lsn

    # --- running without threads (tests), maintenance -------------------------------------------------------------------

    def flush(self) -> int:
        """Writes and syncs what is buffered, on the caller's thread. Returns what the writer's pass came to."""
        what = self.writer.flush()
        self._run_due()
        return what

    def take_released(self) -> list:
        """Transactions that dead messages named, one for each such message, since the last call."""
        released: list = []
        i: uint32_t
        if not at_load32(cython.address(self.ml.released_count)):
            return released
        log_begin(self.ml.log)
        for i in range(self.ml.released_count):
            released.append(self.ml.released[i])
        at_store32(cython.address(self.ml.released_count), 0)
        log_end(self.ml.log)
        return released

    @property
    def disk_low(self) -> bool:
        """True while nothing but the reserve is left."""
        return at_load32(cython.address(self.ml.disk_low)) != 0

    def copy_transactions(self, below: int) -> int:
        """Writes transactions and notes that live below that LSN anew. Returns how many."""
        with self.lock:
            return self.transactions.copy_below(below)

    def maintain(self) -> None:
        """One pass of the maintenance, on the caller's thread (tests)."""
        if self.maintenance is None:
            from flintmq.store.maintenance import Maintenance

            self.maintenance = Maintenance(self)
        self.maintenance.once()

    def set_disk_low(self, low: bool) -> None:
        """Publishers are blocked while nothing but the reserve is left."""
        at_store32(cython.address(self.ml.disk_low), 1 if low else 0)

    def _progress(self):
        if self.on_maintain is not None:
            self.on_maintain()

    def _disk_failed(self, error, log_id, lsn, what):
        source: ManagedLog = self.transaction_records if log_id == TRANSACTIONS else self.pages if log_id == PAGES else self.messages
        path = source.path_of(lsn // source.container_size)
        self.failed(StoreError(f"{what} of {path} at offset {lsn % source.container_size} failed: {os.strerror(error)}"))

    def failed(self, error: object) -> None:
        """Latches a failure of the disk: nothing becomes durable any more. The first one counts."""
        if self.failure is None:
            self.failure = error
            log.critical("the store has failed and stops: %s", error)
            for managed in (self.messages, self.transaction_records, self.pages):
                if managed is not None:
                    managed.latch(5)
            if self.on_failure is not None:
                self.on_failure(error)

    # --- LogPort: local transactions ------------------------------------------------------------------------------------

    def tx_begin(self):
        with self.lock:
            return self.transactions.begin(None).tx

    def tx_enqueue(self, tx, queue, position, slot, expires_at_ms):
        message_id: uint64_t = slot.message_id
        with self.lock:
            transaction = self.transactions.open(tx)
            if ml_enqueue_tx(
                cython.address(self.ml), tx, queue.id, position, slot, slot.content, cython.address(message_id), expires_at_ms
            ) == LSN_NEVER:
                raise self._error()
            queue.logged_at = self.messages.log.tail
            transaction.enqueues.append(Enqueue(queue.id, message_id, position, expires_at_ms))
            self.transactions.name(transaction, message_id)
        return 0

    def tx_dequeue(self, tx, queue, position, slot, owner, reason, delivered_us):
        lsn: uint64_t
        with self.lock:
            transaction = self.transactions.open(tx)
            lsn = ml_dequeue_tx(
                cython.address(self.ml),
                tx,
                queue.id,
                position,
                slot.message_id,
                owner,
                reason,
                delivered_us,
                cython.cast(uint32_t, (at_load64(cython.address(slot.state)) >> ENTRY_COUNT_SHIFT) & 0xFFFF),
            )
            if lsn == LSN_NEVER:
                raise self._error()
            if lsn == 0:
                raise KeyError(f"no entry {position} in queue {queue.id}")
            transaction.dequeues.append(Dequeue(queue.id, position, slot.message_id))
            self.transactions.name(transaction, slot.message_id)
        return 0

    def tx_commit(self, tx):
        with self.lock:
            return self.transactions.commit(self.transactions.open(tx), ())

    def tx_durable(self, ticket):
        return at_load64(cython.address(self.transaction_records.log.durable)) >= ticket

    def tx_applied(self, tx):
        with self.lock:
            transaction = self.transactions.table.get(tx)
            if transaction is not None:
                self._apply(transaction)
        return 0

    def tx_abandon(self, tx: int) -> None:
        """Rolls a local transaction back."""
        with self.lock:
            transaction = self.transactions.open(tx)
            self.transactions.rollback(transaction)
            self._apply(transaction)

    def _apply(self, transaction):
        """The outcome is durable: places become plain or go, dead messages are deleted, End is written."""
        committed: cython.bint = transaction.state is TxState.COMMITTED
        dead: list = []
        for message_id in sorted(transaction.messages):
            if ml_settle_tx(cython.address(self.ml), transaction.tx, message_id, committed):
                dead.append(message_id)
        try:
            self.transactions.end(transaction)
        except StoreError:
            pass  # the disk failed: recovery ends it
        self.collect_released()
        return dead

    def collect_released(self) -> None:
        """Transactions whose last message is gone get their Delete record."""
        with self.lock:
            for tx in self.take_released():
                self.transactions.release(tx)

    def load_now(self, message_id):
        content: cython.pointer(content_t)
        wanted: uint64_t = message_id
        with self.reader_lock:
            with cython.nogil:
                content = self.reader.read(wanted)
        if content == cython.NULL:
            raise KeyError(message_id)
        return content

    def note_consumer(self, consumer_id, tag, group):
        self.messages.append(*marks.name_record(consumer_id, tag, group))
        return 0

    def _error(self):
        return self.failure or StoreError("the log has failed")

    # --- ports.Store ----------------------------------------------------------------------------------------------------

    @property
    def durable_lsn(self) -> int:
        """Highest ticket up to which everything is durable."""
        with self.lock:
            self._collect_tickets()
            return self.durable_ticket

    def append_content(self, content: StoredContent, flags: int = PERSISTENT, priority: int = 0) -> int:
        """See ports.Store. Raises: StoreError."""
        made: cython.pointer(content_t) = content_from_bytes(
            content.exchange, content.routing_key, content.header, content.body, flags, priority
        )
        message_id: uint64_t = ml_write_content(cython.address(self.ml), made)
        content_decref(made)
        if message_id == LSN_NEVER:
            raise self._error()
        self.writer.kick()
        return message_id

    def content(self, message_id: int) -> StoredContent:
        """The message's bytes. Raises: KeyError when it is gone or unreadable."""
        found: cython.pointer(content_t) = self.load_now(message_id)
        try:
            return StoredContent(*content_tuple(found))
        finally:
            content_decref(found)

    def enqueue(self, queue_id: int, position: int, message_id: int, *, tx: int = 0, expires_at_ms: int = 0) -> int:
        """See ports.Store. `message_id`: of append_content."""
        lsn: uint64_t
        known: uint64_t = message_id
        if (position != 0) == (tx != 0) or position < 0:
            raise ValueError("a position is given outside a transaction, and only there")
        with self.lock:
            if tx:
                transaction = self.transactions.open(tx)
                if not self._listed(known):
                    raise KeyError(f"no message {message_id}")
                lsn = ml_enqueue_tx(
                    cython.address(self.ml), tx, queue_id, 0, cython.NULL, cython.NULL, cython.address(known), expires_at_ms
                )
                if lsn == LSN_NEVER:
                    raise self._error()
                transaction.enqueues.append(Enqueue(queue_id, message_id, 0, expires_at_ms))
                self.transactions.name(transaction, message_id)
                return 0
            if not self._listed(known):
                raise KeyError(f"no message {message_id}")
            lsn = ml_enqueue_plain(cython.address(self.ml), queue_id, position, known, expires_at_ms)
            if lsn == 0:
                raise ValueError(f"position {position} of queue {queue_id} is taken")
            if lsn == LSN_NEVER:
                raise self._error()
            return self._ticket(lsn, 0)

    def _listed(self, message_id):
        from_list: cython.pointer(message_t)
        log_begin(self.ml.log)
        from_list = list_find(cython.address(self.ml.messages), message_id)
        log_end(self.ml.log)
        return from_list != cython.NULL

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
                    cython.address(self.ml), tx, queue_id, position, message_id, 0, reason, first_delivery_ms * 1000, delivery_count
                )
            else:
                lsn = ml_dequeue_plain(
                    cython.address(self.ml), queue_id, position, message_id, 0, reason, first_delivery_ms * 1000, delivery_count
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
        """Id of the message at this place: from the message list, the queue itself, or what recovery found. Raises: KeyError."""
        delivery: delivery_t
        number: uint64_t = 0
        entries: cython.pointer(restored_t)
        i: uint64_t
        handle: QueueHandle
        found: uint64_t = ml_find_listed(cython.address(self.ml), queue_id, position)
        if found:
            return found
        handle = self.queues.get(queue_id)
        if handle is not None:
            message_id = handle.message_id_at(position)
            if message_id:
                return message_id
        if self.recovery is not None:
            entries = self.recovery.entries(queue_id, cython.address(number))
            for i in range(number):
                if entries[i].position == position and self.is_live(entries[i].message_id):
                    return entries[i].message_id
        raise KeyError(f"no entry {position} in queue {queue_id}")

    def is_live(self, message_id: int) -> bool:
        """Whether a message with this id is in the log and has a place."""
        return self.messages.is_live(message_id)

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
            positions.setdefault(row.queue_id, []).extend(range(row.first, row.first + row.count))
        used: dict = {}
        given = []
        for one in transaction.enqueues:
            if one.position:
                given.append(one)
                continue
            at = used.get(one.queue_id, 0)
            if at >= len(positions.get(one.queue_id, ())):
                raise ValueError(f"no first position for queue {one.queue_id}")
            used[one.queue_id] = at + 1
            given.append(one._replace(position=positions[one.queue_id][at]))
        lsn = self.transactions.commit(transaction, rows)
        for before, one in zip(transaction.enqueues, given, strict=True):
            if before.position == 0:
                ml_give_position(cython.address(self.ml), transaction.tx, one.message_id, one.queue_id, one.position)
        transaction.enqueues = given
        return self._finish(transaction, lsn)

    def rollback(self, tx: int) -> int:
        """See ports.Store."""
        with self.lock:
            transaction = self.transactions.known(tx)
            return self._finish(transaction, self.transactions.rollback(transaction))

    def _finish(self, transaction, lsn):
        """The outcome is written: its effects follow when it is durable."""
        ticket = self._ticket(0, lsn)
        heapq.heappush(self.waiting, (ticket, -1, lambda: self.tx_apply(transaction)))
        self._count_waiting()
        self.writer.kick()
        return ticket

    def tx_apply(self, transaction: object) -> None:
        """The outcome of a distributed transaction is durable."""
        with self.lock:
            self._apply(transaction)

    def on_durable(self, lsn: int, callback: object) -> None:
        """See ports.Store."""
        with self.lock:
            heapq.heappush(self.waiting, (lsn, next(self.order), callback))
            self._count_waiting()
        self._run_due()
        self.writer.kick()

    def in_doubt(self) -> list:
        """See ports.Store."""
        with self.lock:
            return [transaction.xid for transaction in self.transactions.in_doubt()]

    def transaction_of(self, xid: bytes) -> int:
        """Id of the transaction with this xid. Raises: KeyError."""
        with self.lock:
            return self.transactions.by_xid[xid].tx

    def in_doubt_entries(self, tx: int) -> tuple:
        """(enqueues as (queue id, message id, expires_at_ms), dequeues as (queue id, position)) of a prepared transaction."""
        with self.lock:
            transaction = self.transactions.table[tx]
            return (
                [(one.queue_id, one.message_id, one.expires_at_ms) for one in transaction.enqueues],
                [(one.queue_id, one.position) for one in transaction.dequeues],
            )

    def note_heuristic(self, tx: int, committed: bool) -> int:
        """An operator decided a prepared transaction; kept over restarts until forgotten."""
        with self.lock:
            return self._ticket(0, self.transactions.heuristic(self.transactions.known(tx), committed))

    def heuristics(self) -> list:
        """(tx, xid, committed) of every decision that was not forgotten, oldest first."""
        with self.lock:
            table = self.transactions.table
            return [(tx, table[tx].xid, table[tx].heuristic == 1) for tx in sorted(table) if table[tx].heuristic]

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
        """See ports.Store: writes Queue-End. The caller purges the queue; entries in consumers' hands end with it, too."""
        with self.lock:
            self.queues.pop(queue_id, None)
            return self._ticket(marks.write_queue_end(self, queue_id), 0)

    def entries(self, queue_id: int) -> object:
        """See ports.Store: what a restart would put back now. Writes what is buffered and reads the whole log: O(log)."""
        number: uint64_t = 0
        i: uint64_t
        found: list = []
        fresh: Recovery
        entries: cython.pointer(restored_t)
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
                if one.state is TxState.PREPARED
                for queue, position, _ in one.dequeues
                if queue == queue_id
            }
            entries = fresh.entries(queue_id, cython.address(number))
            for i in range(number):
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

    def _ticket(self, message_lsn, transaction_lsn):
        self.last_ticket += 1
        self.tickets.append((self.last_ticket, message_lsn, transaction_lsn))
        self.writer.kick()
        return self.last_ticket

    def _collect_tickets(self):
        messages: uint64_t = at_load64(cython.address(self.messages.log.durable))
        transactions: uint64_t = at_load64(cython.address(self.transaction_records.log.durable))
        while self.tickets:
            ticket, message_lsn, transaction_lsn = self.tickets[0]
            if message_lsn > messages or transaction_lsn > transactions:
                return
            self.tickets.popleft()
            self.durable_ticket = ticket

    def _count_waiting(self):
        self.writer.want_callbacks(len(self.waiting))

    def _durability_moved(self):
        self._run_due()

    def _run_due(self):
        """Runs the callbacks whose ticket is durable, in order, without the lock."""
        while True:
            with self.lock:
                self._collect_tickets()
                if not self.waiting or self.waiting[0][0] > self.durable_ticket:
                    self._count_waiting()
                    return
                callback = heapq.heappop(self.waiting)[2]
            try:
                callback()
            except Exception:
                log.exception("internal error in a durability callback")

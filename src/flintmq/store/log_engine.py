"""LogEngine: the logs of a durable store, opened, recovered, closed; and the message path's port (LogPort) onto them.

in: the file port, what recovery found, local transactions of sessions. out: logs on disk, recovered entries in their queues.

I1  Nothing is appended before the tail that a scan found was made durable again (opening.py).
I2  A Commit record is on disk only after all messages of its transaction (writer.py I1), and its effects are applied after that.
I3  After a failure of the disk nothing becomes durable any more; `failure` says what happened.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from itertools import count

from cython import NULL, address, cclass, nogil, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32, at_store64
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.hash64 import map64_put
from cython.cimports.flintmq.queue.handle import QueueHandle
from cython.cimports.flintmq.queue.log_port import log_port_wake
from cython.cimports.flintmq.queue.queue_core import queue_next_redelivered, queue_restore_many, queue_set_tail, queue_tail
from cython.cimports.flintmq.queue.types import REASON_ACK, restored_t
from cython.cimports.flintmq.store.content_loader import ContentLoader, store_load
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_begin, log_end, log_live
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.record import BLOCK_CLEAN
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.log.writer import PASS_IDLE, PASS_PROGRESS, PASS_STARVED, LogWriter
from cython.cimports.flintmq.store.message_list import list_free_all, list_new, location_t, message_add, message_name, message_t
from cython.cimports.flintmq.store.message_log import (
    ml_dequeue,
    ml_dequeue_plain,
    ml_durable_lsn,
    ml_enqueue,
    ml_kick,
    ml_placed,
    ml_pressure,
    ml_spill,
    ml_sweep,
    ml_unspill,
)
from cython.cimports.flintmq.store.recovery import Recovery, live_t
from cython.cimports.flintmq.store.recovery import location_t as recovered_location_t
from cython.cimports.flintmq.store.stream.stream_log import StreamSpace
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset

from flintmq.config import Limits
from flintmq.core import failpoints
from flintmq.errors import StoreBusyError, StoreError
from flintmq.ports import TxState
from flintmq.store import marks
from flintmq.store.log.containers import MESSAGES, PAGES, STREAMS, TRANSACTIONS
from flintmq.store.log.opening import check_whole, clear_pages, open_log, set_damage_aside, take_back_clean
from flintmq.store.log.space import message_floors, page_floors
from flintmq.store.transaction_log import NOTE_RUN, STATES, Dequeue, Enqueue, Row, Transaction, TransactionLog

log = logging.getLogger("flintmq.store")

# bytes that --max-write-buffers counts in
WRITE_BUFFER = 1 << 20
# containers of the transaction and page log kept ready
SMALL_AHEAD = 2
# bytes of a transaction log container at most
SMALL_CONTAINER = 1 << 20


@cclass
class LogEngine(LogPort):
    """See module. Made by `LogStore.open`, its subclass."""

    def __cinit__(self):
        memset(address(self.ml), 0, sizeof(self.ml))
        self.queues = {}
        self.tickets = deque()
        self.waiting = []
        self.order = count()
        self.lock = threading.RLock()
        self.reader_lock = threading.Lock()
        self.failure = None
        self.on_failure = None
        self.lock_file = None
        self.closed = False
        self.maintenance = None
        self.bulk = None
        self.streams = None

    def __dealloc__(self):
        list_free_all(address(self.ml.messages))
        free(self.ml.released)

    def _open(
        self,
        container_size,
        initial,
        buffers,
        uuid,
        known,
        high_water,
        threads,
        retain_bytes,
        retain_s,
        hot_bytes,
        spill,
        archive,
        actors,
        limits,
    ):
        limits = limits or Limits()
        message_scan: LogScan = LogScan(self.files, f"{self.directory}/messages", MESSAGES, uuid)
        transaction_scan: LogScan = LogScan(self.files, f"{self.directory}/transactions", TRANSACTIONS, uuid)
        self.recovery = Recovery()
        self.recovery.run(message_scan, transaction_scan, known, high_water)
        check_whole(self.files, self.directory, {"messages": message_scan.last_block, "transactions": transaction_scan.last_block})
        self.report = self.recovery.report
        self.was_clean = message_scan.clean and transaction_scan.clean
        set_damage_aside(self.files, self.directory, "messages", message_scan.damage, message_scan.container_size)
        epoch = max(message_scan.epoch, transaction_scan.epoch) + 1
        if spill:
            clear_pages(self.files, f"{self.directory}/pages")  # first: a full disk has room for the rest then
        floors = message_floors(message_scan.container_size or container_size, buffers * WRITE_BUFFER)
        given: dict = {"epoch": epoch, "clock": self.clock, "floors": floors, "keeping": (retain_bytes, retain_s, archive)}
        path: str = f"{self.directory}/messages"
        self.messages = open_log(self.files, path, MESSAGES, message_scan, uuid, container_size, initial, **given)
        # Transactions are small and short: containers of their own size would mostly hold nothing.
        small = min(container_size, SMALL_CONTAINER)
        ahead = min(initial, SMALL_AHEAD)
        path = f"{self.directory}/transactions"
        self.transaction_records = open_log(self.files, path, TRANSACTIONS, transaction_scan, uuid, small, ahead, **given)
        if spill:
            self.pages = ManagedLog(
                self.files, f"{self.directory}/pages", "pages", PAGES, uuid, container_size, container_size, False, self.clock
            )
            self.pages.set_floors(page_floors(floors))
            self.ml.pages = self.pages.log
        self.ml.log = self.messages.log
        self.ml.unwritten_max = buffers * WRITE_BUFFER
        self.ml.hold_at = LSN_NEVER
        self.ml.split_above = min(16384, self.messages.log.buffer_size // 4)
        self.writer = LogWriter(self.files)
        self.writer.writer.soon_ms = limits.log_soon_ms
        self.ml.soon_bytes = min(limits.log_soon_bytes, self.ml.unwritten_max // 2)
        self.writer.add(self.messages.log)
        self.writer.add(self.transaction_records.log)
        if self.pages is not None:
            self.writer.add(self.pages.log)
        self.writer.writer.port = address(self.port)
        self.writer.on_callbacks = self._run_due
        self.writer.on_failed = self._disk_failed
        self.ml.writer = address(self.writer.writer)
        self.reader = ContentReader(self.messages, self.pages)
        self.loader = ContentLoader(self.messages, self.pages, limits)
        self.loader.watch(address(self.ml.hot_arrivals))
        self.ml.loader = address(self.loader.loader)
        self.transactions = TransactionLog(self.transaction_records)
        self.last_ticket = self.durable_ticket = max(self.messages.tail, self.transaction_records.tail)
        self._adopt_recovered()
        self.port.context = address(self.ml)
        self.port.hot_bytes = hot_bytes
        self.port.enqueue = ml_enqueue
        self.port.dequeue = ml_dequeue
        self.port.sweep = ml_sweep
        self.port.placed = ml_placed
        if self.pages is not None:
            self.port.spill = ml_spill
            self.port.unspill = ml_unspill
        self.port.load = store_load
        self.port.durable_lsn = ml_durable_lsn
        self.port.kick = ml_kick
        self.port.pressure = ml_pressure
        self.bulk = self._new_bulk(threads)  # as _new_maintenance and _run_due: of LogStore, which knows what stands on it
        self._settle_recovered()
        self._prove_tail({"messages": message_scan.last_block, "transactions": transaction_scan.last_block})
        self._open_streams(known, high_water, container_size, limits, threads)
        if threads:
            self.writer.start()
            self.maintenance = self._new_maintenance()
            self.maintenance.start()
        if threads or actors is not None:
            self.loader.start(actors)

    def _open_streams(self, known, high_water, container_size, limits, threads):
        from flintmq.store.stream.stream_store import StreamStore

        self.streams = StreamStore(self, known, high_water, container_size, limits, overlap=threads)
        space: StreamSpace = self.streams.space
        self.ml.stream_unwritten = address(space.space.unwritten)

    def _prove_tail(self, last_blocks):
        """The first block of this run goes to disk before anything that the old base gave up is touched: until then the block that told
        the base has no durable hint above it, and a crash in the middle of recycling would look like damage."""
        reopened = [managed for managed in (self.messages, self.transaction_records) if managed.dead]
        # Nor may the mark of a clean stop be the last block while this run delivers messages: deliveries are not logged.
        if not reopened and not self.was_clean:
            return
        marks.write_nothing(self)
        self.writer.flush()
        for managed in reopened:
            if managed.durable_lsn >= managed.tail:
                managed.release_dead()
        if not self.was_clean:
            return
        for managed in (self.messages, self.transaction_records):
            if managed.durable_lsn < managed.tail and last_blocks[managed.name]:
                # No container, and no room for one: then the mark itself goes.
                take_back_clean(self.files, managed, last_blocks[managed.name])

    def _adopt_recovered(self):
        """Live maps, message list and transactions as recovery found them. Nothing runs yet."""
        i: uint64_t
        j: uint32_t
        at: uint64_t = 0
        name: uint64_t = 0
        live: pointer[live_t]
        place: pointer[recovered_location_t]
        message: pointer[message_t]
        location: pointer[location_t]
        for tx, found in sorted(self.recovery.transactions.items()):
            transaction = Transaction(
                tx,
                tx,
                found.xid or None,
                STATES[found.state - 1],
                tuple(Row(*row) for row in found.rows),
                found.heuristic,
                found.ended,
            )
            transaction.enqueues = [
                Enqueue(queue_id, message_id, position, expires, number)
                for queue_id, message_id, expires, position, _, number in found.enqueues
            ]
            transaction.dequeues = [Dequeue(*one) for one in found.dequeues]
            transaction.messages = {one.message_id for one in (*transaction.enqueues, *transaction.dequeues)}
            transaction.sets = [Row(*row) for row in found.sets]
            transaction.consumer_id = found.consumer_id
            transaction.acquired_us = found.acquired_us
            transaction.bulk = bool(transaction.sets) and transaction.state is TxState.PREPARED
            transaction.references = found.references
            self.transactions.adopt(transaction)
        log_begin(self.messages.log)
        for i in range(self.recovery.live_count):
            live = address(self.recovery.live[i])
            log_live(self.messages.log, live.lsn, live.bytes)
            if live.id != live.lsn:
                map64_put(address(self.messages.log.moved), live.id, live.lsn)
            if live.places == 0:
                continue
            message = list_new(address(self.ml.messages), live.id)
            for j in range(live.places):
                place = address(self.recovery.locations[at + j])
                if message == NULL:
                    break
                location = message_add(message, place.queue_id, place.position, place.expires_at_ms)
                if location != NULL:
                    location.enqueued_by = place.enqueued_by
                    location.dequeued_by = place.dequeued_by
            at += live.places
            if message != NULL:
                while name < self.recovery.name_count and self.recovery.names[name].message_id == live.id:
                    message_name(message, self.recovery.names[name].tx)
                    name += 1
        log_end(self.messages.log)

    def _settle_recovered(self):
        """What recovery decided is logged, so that the next one need not: rollbacks, ends, deletions. Not waited for."""
        transactions = self.transactions
        # The message log may name a transaction whose start was lost: a new one must not get its id.
        while self.transaction_records.tail <= self.recovery.named_tx_max:
            self.transaction_records.append(*marks.filler(self.recovery.named_tx_max - self.transaction_records.tail))
        for message_id in self.recovery.homeless:
            self.messages.append(marks.MESSAGE_DELETE, b"", message_id)
        # Sets whose Commit was durable and whose End was not: what still stands is dequeued now, and not put back.
        for queue_id, position, message_id, consumer_id, acquired_us in self.recovery.taken:
            ml_dequeue_plain(address(self.ml), queue_id, position, message_id, consumer_id, REASON_ACK, acquired_us, 0)
        for transaction in list(transactions.table.values()):
            found = self.recovery.transactions[transaction.tx]
            if transaction.tx < self.transaction_records.base or found.start_lost:
                transactions.copy(transaction)
            elif found.was_open:
                transactions.rollback(transaction)
            if transaction.decided:
                transactions.end(transaction)
                transactions.collect(transaction)
        for (kind, key), value in self.recovery.notes.items():
            if kind != NOTE_RUN:
                transactions.note(kind, key, value)

    def restore(self, handle: QueueHandle) -> int:
        """Puts the recovered entries of a queue into it. Returns how many. Called once per durable queue, before it is used."""
        number: uint64_t = 0
        entries: pointer[restored_t]
        level: uint32_t = 0
        restored: uint64_t = 0
        if self.recovery is None:
            return 0
        entries = self.recovery.entries(handle.queue.id, address(number))
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
        if self.bulk is not None:
            self.bulk.stop()
        self.closed = True
        if self.maintenance is not None:
            self.maintenance.stop()
        self.loader.stop()
        if clean and self.failure is None:
            marks.write_redelivered(self, [self._redelivered(handle) for handle in self.queues.values()])
            marks.write_marks(self, self.tails_below(0))
        self.writer.stop()
        written = self.failure is None and self._write_rest()
        while clean and written and self.streams is not None and self.streams.mark():
            written = self._write_rest()
        if clean and written:
            failpoints.hit("restart-marked")
            marks.write_nothing(self)
            self.writer.flush(BLOCK_CLEAN)
        self._run_due()
        self.reader.close()
        if self.streams is not None:
            self.streams.close()
        for managed in (self.messages, self.transaction_records, self.pages):
            if managed is not None:
                managed.close()
        self.files.close(self.lock_file)

    def _write_rest(self):
        """Writes all that is buffered; containers are made as far as the disk has room. False: it is full or has failed. What is left
        out then was never confirmed, and what it ended comes back."""
        what: c_int
        while True:
            what = self.writer.flush()
            if what == PASS_STARVED:
                made = 0
                for managed in (self.messages, self.transaction_records):
                    managed.set_ahead(0)
                    made += managed.prepare(False)
                if self.streams is not None:
                    made += self.streams.prepare()
                if not made:
                    log.warning(
                        "the disk is full: %d bytes that were not confirmed are left out; the next start flags its deliveries as "
                        "redelivered",
                        self.messages.tail - self.messages.durable_lsn,
                    )
                    return False
            elif what != PASS_PROGRESS:
                return what == PASS_IDLE

    def _redelivered(self, handle: QueueHandle):
        """(queue id, ranges of positions that were delivered before)."""
        first: uint64_t = 0
        last: uint64_t = 0
        position: uint64_t = 1
        ranges: list = []
        while queue_next_redelivered(handle.queue, position, address(first), address(last)):
            ranges.append((first, last))
            position = last + 1
        return handle.queue.id, ranges

    def tails_below(self, below: int) -> list:
        """(queue id, highest index per level, handle) of queues whose last record in the log is below that LSN (0: of all): their marks
        must be written anew before the base passes it.

        A queue of several levels is always among them: its last record says nothing of the other levels. So are those that recovery
        found and that are not back yet (handle None).
        """
        handle: QueueHandle
        level: uint32_t
        result: list = []
        recovered: dict = dict(self.recovery.marks) if self.recovery is not None else {}
        with self.lock:
            handles = list(self.queues.values())
        for handle in handles:
            found = recovered.pop(handle.queue.id, ())
            if below and handle.queue.entries.level_count == 1 and at_load64(address(handle.queue.logged_at)) > below:
                continue
            tails = [queue_tail(handle.queue, level) for level in range(handle.queue.entries.level_count)]
            for level in range(min(len(found), len(tails))):
                tails[level] = max(tails[level], found[level])
            if any(tails):
                result.append((handle.queue.id, tails, handle))
        result.extend((queue_id, list(levels), None) for queue_id, levels in recovered.items() if any(levels))
        return result

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
        """(transaction, messages that named it and are dead) since the last call."""
        released: list = []
        i: uint32_t
        if not at_load32(address(self.ml.released_count)):
            return released
        log_begin(self.ml.log)
        for i in range(self.ml.released_count):
            released.append((self.ml.released[i].tx, self.ml.released[i].messages))
        at_store32(address(self.ml.released_count), 0)
        log_end(self.ml.log)
        return released

    @property
    def disk_low(self) -> bool:
        """True while nothing but the reserve is left."""
        return at_load32(address(self.ml.disk_low)) != 0

    def copy_transactions(self, below: int) -> int:
        """Writes transactions and notes that live below that LSN anew. Returns how many."""
        with self.lock:
            return self.transactions.copy_below(below)

    def maintain(self) -> None:
        """One pass of the maintenance, on the caller's thread (tests)."""
        if self.maintenance is None:
            self.maintenance = self._new_maintenance()
        self.maintenance.once()

    def set_disk_low(self, low: bool) -> None:
        """Publishers are blocked while nothing but the reserve is left."""
        at_store32(address(self.ml.disk_low), 1 if low else 0)

    def hold_publishers(self, at: int | None) -> None:
        """Publishers wait from when the tail of the message log has come to this LSN; None: they don't."""
        lsn: uint64_t = LSN_NEVER if at is None else at
        before: uint64_t = at_load64(address(self.ml.hold_at))
        if lsn != before:
            at_store64(address(self.ml.hold_at), lsn)
            if lsn > before:  # who waits for it looks again
                log_port_wake(address(self.port))

    def _run_due(self):
        """Durability moved: callbacks (LogStore)."""

    def _disk_failed(self, error, log_id, lsn, what):
        if log_id == STREAMS:
            self.failed(StoreError(f"{what} of {self.streams.failed_path(lsn)} failed: {os.strerror(error)}"))
            return
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
            if self.streams is not None:
                self.streams.latch(5)
            if self.on_failure is not None:
                self.on_failure(error)

    # --- transactions -------------------------------------------------------------------------------------------------

    def collect_released(self) -> None:
        """Transactions whose last message is gone get their Delete record."""
        with self.lock:
            for tx, messages in self.take_released():
                self.transactions.release(tx, messages)

    def load_now(self, message_id):
        content: pointer[content_t]
        wanted: uint64_t = message_id
        with self.reader_lock:
            with nogil:
                content = self.reader.read(wanted)
            busy = content == NULL and self.reader.no_means
        if busy:
            raise StoreBusyError(f"message {message_id} can't be read now: no file descriptor or memory; raise the limit (ulimit -n)")
        if content == NULL:
            raise KeyError(message_id)
        return content

    def note_consumer(self, consumer_id, tag, group):
        if not self.messages.failed:  # a name is for the pipeline: the failure itself is told elsewhere
            self.messages.append(*marks.name_record(consumer_id, tag, group))
        return 0

    def _error(self):
        return self.failure or StoreError("the log has failed")

    def is_live(self, message_id: int) -> bool:
        """Whether a message with this id is in the log and has a place."""
        return self.messages.is_live(message_id)

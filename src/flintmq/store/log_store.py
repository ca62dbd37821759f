"""LogStore: a durable store: its logs opened, recovered, closed; the message path's port (LogPort) onto them; its transactions.

in: the file port, what recovery found; calls of the broker, any thread. out: logs on disk, recovered entries in their queues, records.

LSNs that this face gives out are tickets (store/logs).
I1  Nothing is appended before the tail that a scan found was made durable again (managed I6).
I2  A Commit record is on disk only after all messages of its transaction (writer.py I1), and its effects are applied after that.
I3  After a failure of the disk nothing becomes durable any more; `failure` says what happened.
"""

from __future__ import annotations

import logging
import os
import struct

from cython import NULL, address, cast, cclass, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64, at_store64
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.hash64 import map64_put
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.delivered import delivered_rest, delivered_restore, delivered_write
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.entry_list import list_set_segments
from cython.cimports.flintmq.queue.log_port import log_port_forget, log_port_wake
from cython.cimports.flintmq.queue.queue_core import queue_next_redelivered, queue_restore_many, queue_set_tail, queue_tail
from cython.cimports.flintmq.queue.types import REASON_ACK, queue_t, restored_t
from cython.cimports.flintmq.store.checkpoints import Checkpoints
from cython.cimports.flintmq.store.content_loader import ContentLoader, store_load
from cython.cimports.flintmq.store.count_notes import CountNotes, counts_note
from cython.cimports.flintmq.store.enrolment import LogEnrolment
from cython.cimports.flintmq.store.entry_pager import EntryPager
from cython.cimports.flintmq.store.index_log import IndexLog
from cython.cimports.flintmq.store.index_scan import IndexScan
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_begin, log_died, log_doubt, log_end, log_live
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.record import (
    BLOCK_CLEAN, RECORD_DELIVERED, RECORD_MESSAGE_DELETE, RECORD_QUEUE_END, RECORD_QUEUE_MARK, RECORD_REDELIVERED,
)  # fmt: skip
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.log.writer import PASS_IDLE, PASS_PROGRESS, PASS_STARVED, LogWriter
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import (
    list_new, location_t, message_add, message_name, message_t, ml_delivered, ml_dequeue, ml_dequeue_plain, ml_drop_places, ml_drop_queue,
    ml_durable_lsn, ml_enqueue, ml_kick, ml_letter, ml_placed, ml_pressure, ml_spill, ml_sweep, ml_unspill,
)  # fmt: skip
from cython.cimports.flintmq.store.past import Past
from cython.cimports.flintmq.store.past_restore import PastRestore
from cython.cimports.flintmq.store.recovery import live_t
from cython.cimports.flintmq.store.recovery import location_t as recovered_location_t
from cython.cimports.flintmq.store.stream.stream_log import StreamSpace
from cython.cimports.flintmq.store.stream_inbox import StreamInbox
from cython.cimports.flintmq.store.tx_block import BlockEnrolment
from cython.cimports.libc.stdint import uint32_t, uint64_t

from flintmq.slotted import replaced
from flintmq.core import failpoints
from flintmq.errors import OperatorError, StoreError
from flintmq.ports import NOTE_DELIVERIES, TxState
from flintmq.store.index_log import INDEX_CONTAINER, clear_index
from flintmq.store.log.containers import INDEX, MESSAGES, PAGES, STREAMS, TRANSACTIONS, LogSettings
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log.managed import open_log, set_damage_aside, take_back_clean
from flintmq.store.log.space import message_reserves, page_reserves
from flintmq.store.logs import filler, nothing
from flintmq.store.maintenance import Maintenance
from flintmq.store.options import StoreOptions
from flintmq.store.start import doubtful_containers, read_store
from flintmq.store.transaction_log import ENTRY_KEY, NOTE_RUN, NOTES_OF_ENTRIES, STATES, Dequeue, Enqueue, Heuristic, Row, Transaction
from flintmq.store.tx_sets import BulkTransactions
from flintmq.store.verifying import Verifier

log = logging.getLogger("flintmq.store")

# ranges in one Queue-Redelivered: it must fit into the smallest write buffer
RANGES_MAX = 128
# containers of the transaction and page log kept ready
SMALL_AHEAD = 2
# of the index log
INDEX_AHEAD = 1
# entries of a queue's first segment at most
SEGMENT_FIRST = 16
# bytes of a transaction log container at most
SMALL_CONTAINER = 1 << 20


@cclass
class LogStore(LogPort):
    """See module. Made by `LogStore.open`."""

    def __cinit__(self):
        self.logs = Logs()
        self.lock = self.logs.lock
        self.queues = {}
        self._copied_delivered = {}  # queue id -> LSN behind the mark that was written anew of a queue that is not back yet

    # --- opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, files: object, directory: str, **options: object) -> LogStore:
        """Opens or creates the logs under `directory` (which exists) and recovers them.

        Args: files: file port, None for the operating system; options: those of StoreOptions.
        Raises: OperatorError (69): another broker has the store; StoreError: another store's logs, unknown format, damage that can't be
        set aside.
        """
        given = StoreOptions(**options)
        store: LogStore = cls()
        store.files = files or OsFiles()
        store.directory = directory
        store.clock = given.clock
        try:
            store.lock_file = store.files.lock(f"{directory}/lock")
        except BlockingIOError:
            raise OperatorError(f"store {directory} is open in another broker: stop that one, or give another --store-dir", 69) from None
        try:
            store._open(given)
        except BaseException:
            store.files.close(store.lock_file)
            raise
        return store

    def _open(self, options):
        start = read_store(self.files, self.directory, options.store_uuid, options.known_queues, options.queue_high_water)
        message_scan: LogScan = start.messages
        transaction_scan: LogScan = start.transactions
        last_blocks: dict = {}
        self.recovery = start.recovery
        for reason in start.refused:
            log.info("not used: %s", reason)
        last_blocks["messages"] = message_scan.last_block
        last_blocks["transactions"] = transaction_scan.last_block
        check_whole(self.files, self.directory, last_blocks)
        self.report = self.recovery.report
        self.was_clean = message_scan.clean and transaction_scan.clean
        set_damage_aside(self.files, self.directory, "messages", message_scan.damage, message_scan.container_size)
        self._open_logs(options, message_scan, transaction_scan, start.index)
        self._start_writer(options)
        self.loader = ContentLoader(self.messages, self.pages, options.limits)
        self.loader.watch(address(self.logs.ml.hot_arrivals))
        self.logs.ml.loader = address(self.loader.loader)
        self.logs.begin(self.messages, self.transaction_records, self.pages, self.writer)
        self.transactions = self.logs.transactions
        self.counts = CountNotes(self.logs)
        self._adopt_recovered(message_scan)
        self._fill_port(options)
        self._page_entries(options.limits.entry_segment)
        self.checkpoints = Checkpoints(self, options.limits, options.threads)
        self.pager.after_round = self.checkpoints.once
        if self.recovery.past is not None:
            self.past = PastRestore(self.recovery, self.logs)
            self.past.pager = address(self.pager.pager)
        self.bulk = BulkTransactions(self.logs, options.threads)
        self._settle_recovered()
        self._prove_tail(last_blocks)
        self._open_streams(options)
        if options.threads:
            self.writer.start()
            self.maintenance = Maintenance(self)
            self.maintenance.start()
            self.pager.start()
        if options.threads or options.actors is not None:
            self.loader.start(options.actors)

    def _open_logs(self, options, message_scan, transaction_scan, index_scan):
        """All logs, ready to append."""
        epoch = max(message_scan.epoch, transaction_scan.epoch) + 1
        if options.spill:
            clear_pages(self.files, f"{self.directory}/pages")  # first: a full disk has room for the rest then
        settings = LogSettings(
            name="messages",
            log_id=MESSAGES,
            store_uuid=options.store_uuid,
            container_size=options.container_size,
            clock=self.clock,
            reserves=message_reserves(
                message_scan.container_size or options.container_size, options.unwritten_max, options.disk_free_limit
            ),
            retain_bytes=options.retain_bytes,
            retain_s=options.retain_s,
            archive=options.archive_dir,
        )
        # Transactions are small and short: containers of their own size would mostly hold nothing.
        small = min(options.container_size, SMALL_CONTAINER)
        transactions = replaced(settings, name="transactions", log_id=TRANSACTIONS, container_size=small)
        ahead = min(options.initial_containers, SMALL_AHEAD)
        path: str = f"{self.directory}/messages"
        self.messages = open_log(self.files, path, message_scan, settings, options.initial_containers, epoch)
        path = f"{self.directory}/transactions"
        self.transaction_records = open_log(self.files, path, transaction_scan, transactions, ahead, epoch)
        if options.spill:
            pages = LogSettings(
                name="pages",
                log_id=PAGES,
                store_uuid=options.store_uuid,
                container_size=options.container_size,
                clock=self.clock,
                syncs=False,
                reserves=page_reserves(settings.reserves),
            )
            self.pages = ManagedLog(self.files, f"{self.directory}/pages", pages)
        self._open_index(replaced(settings, container_size=min(options.container_size, INDEX_CONTAINER)), epoch, index_scan)

    def _open_index(self, settings, epoch, scan: IndexScan | None):
        """The index log, ready to append: as the scan found it, or empty when no checkpoint of it is used (None)."""
        path: str = f"{self.directory}/index"
        index: ManagedLog
        own = replaced(settings, name="index", log_id=INDEX, reserves=page_reserves(settings.reserves), retain_bytes=0, archive=None)
        if scan is None:
            clear_index(self.files, path)
            index = ManagedLog(self.files, path, own)
            index.open_later(INDEX_AHEAD, epoch)
        else:
            index = open_log(self.files, path, scan.scan, own, INDEX_AHEAD, max(epoch, scan.scan.epoch + 1))
            log_begin(index.log)
            complete: bint = scan.adopt(index.log, self.recovery.past)
            log_end(index.log)
            if not complete:
                raise MemoryError("no memory for the runs of the index log")
            # What the checkpoint names stays until the next one is on disk.
            index.set_keep(index.tail)
        self.index = IndexLog(index)
        self.index.index.disk_low = address(self.logs.ml.disk_low)

    def _start_writer(self, options):
        """The writer of all logs, and what the message path knows of them."""
        if self.pages is not None:
            self.logs.ml.pages = self.pages.log
        self.logs.ml.log = self.messages.log
        self.logs.ml.unwritten_max = options.unwritten_max
        self.logs.ml.hold_at = LSN_NEVER
        self.logs.ml.split_above = min(16384, self.messages.log.buffer_size // 4)
        self.writer = LogWriter(self.files)
        self.writer.writer.soon_ms = options.limits.log_soon_ms
        self.logs.ml.soon_bytes = min(options.limits.log_soon_bytes, self.logs.ml.unwritten_max // 2)
        self.writer.add(self.messages.log)
        self.writer.add(self.transaction_records.log)
        if self.pages is not None:
            self.writer.add(self.pages.log)
        self.writer.add(self.index.log.log)
        self.index.index.writer = address(self.writer.writer)
        self.writer.writer.port = address(self.port)
        self.writer.on_failed = self._disk_failed
        self.logs.ml.writer = address(self.writer.writer)

    def _fill_port(self, options):
        self.port.context = address(self.logs.ml)
        self.port.hot_bytes = options.hot_bytes
        self.port.rest_bytes = options.hot_bytes
        self.port.rest_least = min(options.rest_least, options.hot_bytes)
        self.port.content_bytes = options.content_bytes
        self.port.enqueue = ml_enqueue
        self.port.letter = ml_letter
        self.port.dequeue = ml_dequeue
        self.port.counted = counts_note
        self.port.delivered = ml_delivered
        self.port.sweep = ml_sweep
        self.port.placed = ml_placed
        if self.pages is not None:
            self.port.spill = ml_spill
            self.port.unspill = ml_unspill
        self.port.load = store_load
        self.port.durable_lsn = ml_durable_lsn
        self.port.kick = ml_kick
        self.port.pressure = ml_pressure

    def _page_entries(self, segment_entries):
        """From now on entries of cold backlogs may leave memory."""
        list_set_segments(min(SEGMENT_FIRST, segment_entries), segment_entries)
        self.pager = EntryPager(self)
        self.pager.pager.ml = address(self.logs.ml)
        self.pager.pager.index = address(self.index.index)
        self.pager.on_failed = lambda text: self.failed(StoreError(f"{text}; the next start reads the message log instead"))
        self.logs.ml.pages_out = address(self.pager.pager)
        self.pager.fill_port(address(self.port))

    def _open_streams(self, options):
        from flintmq.store.stream.stream_store import StreamStore

        self.streams = StreamStore(self, options)
        self.bulk.streams = self.streams
        space: StreamSpace = self.streams.space
        self.logs.ml.stream_unwritten = address(space.space.unwritten)

    def _prove_tail(self, last_blocks):
        """The first block of this run goes to disk before anything that the old base gave up is touched: until then the block that told
        the base has no durable hint above it, and a crash in the middle of recycling would look like damage."""
        reopened = [managed for managed in (self.messages, self.transaction_records) if managed.dead]
        # Nor may the mark of a clean stop be the last block while this run delivers messages: deliveries are not logged.
        if not reopened and not self.was_clean:
            return
        self.write_nothing()
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

    def _adopt_recovered(self, message_scan: LogScan):
        """Dead maps, message list and transactions as recovery found them. Nothing runs yet."""
        self._adopt_transactions()
        self._adopt_messages(message_scan)

    def _adopt_transactions(self):
        for tx, recovered in sorted(self.recovery.transactions.items()):
            transaction = Transaction(
                tx,
                tx,
                recovered.xid or None,
                STATES[recovered.state - 1],
                tuple(Row(*row) for row in recovered.rows),
                recovered.heuristic,
                recovered.ended,
            )
            transaction.enqueues = [
                Enqueue(queue_id, message_id, position, expires, number)
                for queue_id, message_id, expires, position, _, number in recovered.enqueues
            ]
            transaction.dequeues = [Dequeue(*one) for one in recovered.dequeues]
            transaction.messages = {one.message_id for one in (*transaction.enqueues, *transaction.dequeues)}
            transaction.sets = [Row(*row) for row in recovered.sets]
            transaction.consumer_id = recovered.consumer_id
            transaction.acquired_us = recovered.acquired_us
            transaction.bulk = bool(transaction.sets) and transaction.state is TxState.PREPARED
            transaction.references = recovered.references
            self.transactions.adopt(transaction)

    def _adopt_messages(self, message_scan: LogScan):
        """Dead maps and message list. Raises: MemoryError."""
        i: uint64_t
        j: uint32_t
        places: uint64_t = 0
        name: uint64_t = 0
        live: pointer[live_t]
        place: pointer[recovered_location_t]
        message: pointer[message_t]
        location: pointer[location_t]
        complete: bint = True
        past: Past = self.recovery.past
        begin: uint64_t = 0 if past is None else past.past.begin
        log_begin(self.messages.log)
        if past is not None:
            complete = past.adopt_containers(self.messages.log)
        for number in doubtful_containers(message_scan):
            complete = complete and log_doubt(self.messages.log, number)
        for i in range(self.recovery.kept_count):
            live = address(self.recovery.live[i])
            if live.id == 0:
                continue
            if live.lsn >= begin:  # else the checkpoint has counted it
                log_live(self.messages.log, live.lsn, live.bytes)
            if live.id != live.lsn:
                map64_put(address(self.messages.log.moved), live.id, live.lsn)
            if live.places == 0:
                continue
            message = list_new(address(self.logs.ml.messages), live.id)
            for j in range(live.places):
                place = address(self.recovery.locations[places + j])
                if message == NULL:
                    break
                location = message_add(message, place.queue_id, place.position, place.expires_at_ms)
                if location != NULL:
                    location.enqueued_by = place.enqueued_by
                    location.dequeued_by = place.dequeued_by
            places += live.places
            if message != NULL:
                while name < self.recovery.name_count and self.recovery.names[name].message_id == live.id:
                    message_name(message, self.recovery.names[name].tx)
                    name += 1
        for i in range(self.recovery.kept_count):
            live = address(self.recovery.live[i])
            complete = complete and (live.id != 0 or log_died(self.messages.log, live.lsn, live.bytes))
        if past is not None:
            complete = complete and past.adopt_ends(self.messages.log)
        log_end(self.messages.log)
        if not complete:
            raise MemoryError("no memory for the maps of what died in the log")

    def _settle_recovered(self):
        """What recovery decided is logged, so that the next one need not: rollbacks, ends, deletions. Not waited for."""
        transactions = self.transactions
        # The message log may name a transaction whose start was lost: a new one must not get its id.
        while self.transaction_records.tail <= self.recovery.named_tx_max:
            self.transaction_records.append(*filler(self.recovery.named_tx_max - self.transaction_records.tail))
        for message_id in self.recovery.homeless:
            self.messages.append(RECORD_MESSAGE_DELETE, b"", message_id)
        # Sets whose Commit was durable and whose End was not: what still stands is dequeued now, and not put back.
        for queue_id, position, message_id, consumer_id, acquired_us in self.recovery.taken:
            ml_dequeue_plain(address(self.logs.ml), queue_id, position, message_id, consumer_id, REASON_ACK, acquired_us, 0)
        for transaction in list(transactions.table.values()):
            recovered = self.recovery.transactions[transaction.tx]
            if transaction.tx < self.transaction_records.base or recovered.start_lost:
                transactions.copy(transaction)
            elif recovered.was_open:
                transactions.rollback(transaction)
            if transaction.decided:
                transactions.end(transaction)
                transactions.collect(transaction)
        for (kind, key), value in self.recovery.notes.items():
            if kind != NOTE_RUN and not (kind in NOTES_OF_ENTRIES and len(key) == ENTRY_KEY.size and not self._stands(key)):
                transactions.note(kind, key, value)

    def _stands(self, key):
        """Whether recovery found the entry that a note is about: else it has ended, and the note with it."""
        return self.recovery.stands(*ENTRY_KEY.unpack(key))

    def restore(self, handle: QueueHandle) -> int:
        """Puts the recovered entries of a queue into it. Returns how many. Called once per durable queue, before it
        is used, and after it got this log."""
        number: uint64_t = 0
        entries: pointer[restored_t]
        level: uint32_t = 0
        restored: uint64_t = 0
        if self.recovery is None:
            return 0
        entries = self.recovery.entries(handle.queue.id, address(number))
        if self.past is not None:
            restored = self.past.restore(handle.queue)
        elif number:
            restored = queue_restore_many(handle.queue, entries, number)
            if restored != number:
                raise StoreError(f"queue id {handle.queue.id}: {number - restored} recovered entries do not fit its priority levels")
        for tail in self.recovery.marks.get(handle.queue.id, ()):
            if tail > queue_tail(handle.queue, level):
                queue_set_tail(handle.queue, level, tail)
            level += 1
        handle.queue.logged_at = self.messages.log.base
        self._restore_delivered(handle)
        return restored

    def _restore_delivered(self, handle: QueueHandle):
        """The queue goes on with the mark of deliveries that the log has. A log without one (of an older version), or with damage, gets one
        that covers every entry that is flagged, lest the next start finds less."""
        queue: pointer[queue_t] = handle.queue
        level: uint32_t
        mark: uint64_t
        flagged: uint64_t
        known = self.recovery.delivered.get(queue.id)
        if known is None and queue.id not in self.recovery.marks:
            return  # nothing was ever logged for it
        judged = known is not None and not self.recovery.report.damage
        writes = not judged
        for level in range(queue.entries.level_count):
            # Below its first entry nothing can come back.
            mark = self.recovery.lowest(queue.id, level)
            mark = mark - 1 if mark else queue_tail(queue, level)
            if known is not None and level < len(known):
                mark = max(mark, cast(uint64_t, known[level]))
            flagged = mark if judged else max(mark, cast(uint64_t, self.recovery.flagged(queue.id, level)))
            delivered_restore(queue, level, flagged, flagged if known is None else mark)
        if writes:
            delivered_write(queue)
        else:
            queue.marked_at = max(self.messages.log.base, cast(uint64_t, 1))

    def restore_inbox(self, queue_id: int) -> int:
        """Messages that committed transactions have for a stream and that have no end in the message log: those that are not in the stream
        yet go there. Returns how many there are. Called once per stream, before it is used."""
        number: uint64_t = 0
        if self.recovery is None:
            return 0
        entries: pointer[restored_t] = self.recovery.entries(queue_id, address(number))
        inbox: StreamInbox = self.bulk.inbox(queue_id) if number else None
        if inbox is not None:
            inbox.restore(entries, number)
        return number

    def restored(self) -> None:
        """All queues have their entries: recovery's memory is given back."""
        if self.past is not None:
            self.past.finish()
            self.checkpoints.adopt(self.recovery.past)
            self.verifier = Verifier(self, self.recovery.past.begin)
            if self.maintenance is not None:  # a store with threads
                self.verifier.start()
        self.past = None
        self.recovery = None

    def attach(self, handle: QueueHandle, queue_id: object = None) -> None:
        """A durable queue that logs here. queue_id: its id as the caller keeps it, which need not be kept twice then."""
        with self.lock:
            self.queues[queue_id or handle.queue.id] = handle

    # --- LogPort ------------------------------------------------------------------------------------------------------------

    def load_now(self, message_id: uint64_t) -> pointer[content_t]:
        return self.logs.load(message_id)

    def note_consumer(self, consumer_id: uint32_t, tag: bytes | None, group: bytes | None) -> c_int:
        return self.logs.note_consumer(consumer_id, tag, group)

    def enrol(self) -> Enrolment:
        return LogEnrolment(self.logs, self.bulk).begin()

    def enrol_small(self) -> Enrolment:
        return BlockEnrolment(self.logs, self.bulk)

    def when_durable(self, lsn: int, callback: object) -> None:
        """See LogPort: `lsn` is one of the message log."""
        with self.lock:
            ticket = self.logs.ticket(lsn, 0)
        self.logs.on_durable(ticket, callback)

    def tail_lsn(self) -> int:
        """See LogPort."""
        return self.messages.tail

    # --- TransactionStore ----------------------------------------------------------------------------------------------------

    @property
    def durable_lsn(self) -> int:
        """See TransactionStore."""
        return self.logs.durable()

    def on_durable(self, lsn: int, callback: object) -> None:
        """See TransactionStore."""
        self.logs.on_durable(lsn, callback)

    def branch(self, xid: bytes, queues: object, enrolments_max: int) -> LogEnrolment:
        """See TransactionStore."""
        return LogEnrolment(self.logs, self.bulk, xid, queues, enrolments_max)

    def recovered_branch(self, xid: bytes, queues: object, enrolments_max: int) -> LogEnrolment:
        """See TransactionStore."""
        enrolment: LogEnrolment = LogEnrolment(self.logs, self.bulk, xid, queues, enrolments_max)
        with self.lock:
            enrolment.take(self.transactions.by_xid[xid])
        enrolment.recover()
        return enrolment

    def in_doubt(self) -> list:
        """See TransactionStore."""
        with self.lock:
            return [transaction.xid for transaction in self.transactions.in_doubt()]

    def note_heuristic(self, tx: int, committed: bool) -> int:
        """An operator decided a prepared transaction; kept over restarts until forgotten."""
        with self.lock:
            return self.logs.ticket(0, self.transactions.heuristic(self.transactions.known(tx), committed))

    def heuristics(self) -> list:
        """(tx, xid, committed) of every decision that was not forgotten, oldest first."""
        with self.lock:
            table = self.transactions.table
            return [Heuristic(tx, table[tx].xid, table[tx].heuristic == 1) for tx in sorted(table) if table[tx].heuristic]

    def forget_heuristic(self, tx: int) -> int:
        """Raises: KeyError."""
        with self.lock:
            return self.logs.ticket(0, self.transactions.forget(tx))

    def note(self, kind: int, key: bytes, value: bytes) -> int:
        """A small durable fact of the pipeline (subscriptions, scopes); an empty value removes it."""
        with self.lock:
            return self.logs.ticket(0, self.transactions.note(kind, key, value))

    def note_entry(self, kind: int, key: bytes, value: bytes) -> bool:
        """A note about an entry, of NOTES_OF_ENTRIES; whether it is the first one with this key. Not waited for. Raises: StoreError."""
        with self.lock:
            first = (kind, key) not in self.transactions.notes
            self.transactions.note(kind, key, value)
        ml_kick(self.port.context, False)
        return first

    def end_notes(self, kind: int, keys: object) -> None:
        """Their entries have ended, by records that were logged before this call: whoever recovers finds no entry for such a note, and
        leaves it out. So all of them take one record, behind which their containers are free. Raises: StoreError."""
        with self.lock:
            self.transactions.end_notes(kind, keys, self.transaction_records.append(*filler(0))[1])

    def notes(self, kind: int) -> dict:
        """key -> value of all notes of a kind."""
        with self.lock:
            return {key: value for (one, key), (_, value) in self.transactions.notes.items() if one == kind}

    def take_counts(self) -> list:
        """(key, LSN, value) of the notes of delivery counts that recovery read, by LSN: `counts` has them from now on (`adopt`)."""
        with self.lock:
            return self.transactions.take_notes(NOTE_DELIVERIES)

    def drop_queue(self, queue_id: int) -> int:
        """Writes Queue-End, which ends every entry of a deleted queue. Returns the LSN; an unknown id is no error (recovery may repeat it).

        A queue that logs here (`attach`) is swept afterwards (queue/purge.py), which gives the room of its entries back; of another one
        that is done here: O(listed messages)."""
        message_id: uint64_t
        wanted: uint64_t = queue_id
        with self.lock:
            handle = self.queues.pop(queue_id, None)
            if handle is not None:
                self.checkpoints.ended(handle)
            known = handle is not None and self.recovery is None
            if self.recovery is not None:
                self.recovery.marks.pop(queue_id, None)
                self.recovery.delivered.pop(queue_id, None)
            end: uint64_t = self.messages.append(RECORD_QUEUE_END, struct.pack("<Q", queue_id))[1]
            self.bulk.drop_inbox(queue_id)
            for transaction in self.transactions.table.values():
                if transaction.stage is not None and queue_id in transaction.stage.numbers:
                    known = False  # its messages stand nowhere yet, so no sweep finds them
                for one in (*transaction.enqueues, *transaction.dequeues):
                    if one.queue_id == queue_id:
                        message_id = one.message_id
                        ml_drop_places(address(self.logs.ml), wanted, message_id)
                transaction.enqueues = [one for one in transaction.enqueues if one.queue_id != queue_id]
                transaction.dequeues = [one for one in transaction.dequeues if one.queue_id != queue_id]
                transaction.sets = [one for one in transaction.sets if one.queue_id != queue_id]
                if transaction.stage is not None:
                    transaction.stage.drop_queue(queue_id)
            if not known:
                ml_drop_queue(address(self.logs.ml), wanted)
            return self.logs.ticket(end, 0)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def close(self, clean: bool = True) -> None:
        """Writes what is buffered and closes. clean: nobody uses the store any more, so the next start need not flag redeliveries."""
        if self.logs.closed:
            return
        if self.bulk is not None:
            self.bulk.stop()
        self.logs.closed = True
        if self.verifier is not None:
            self.verifier.stop()
        self.pager.stop()
        if clean and self.logs.failure is None:
            self.checkpoints.finish()  # while containers are made for what it writes
        if self.maintenance is not None:
            self.maintenance.stop()
        self.loader.stop()
        if clean and self.logs.failure is None:
            self.write_redelivered([self._redelivered(handle) for handle in self.queues.values()])
            self.write_marks(self.tails_below(0))
            for handle in self.queues.values():
                self._rest_delivered(handle)
        self.writer.stop()
        written = self.logs.failure is None and self._write_rest()
        while clean and written and self.streams is not None and self.streams.mark():
            written = self._write_rest()
        if clean and written:
            failpoints.hit("restart-marked")
            self.write_nothing()
            self.writer.flush(BLOCK_CLEAN)
        self.logs.run_due()
        self.logs.reader.close()
        if self.streams is not None:
            self.streams.close()
        for managed in (self.messages, self.transaction_records, self.pages):
            if managed is not None:
                managed.close()
        self.index.close()
        self.files.close(self.lock_file)
        self.counts.clear()
        # Queues keep their log, unseen by the cycle collector (QueueHandle.attach_log): it must not lead to them, nor to the broker.
        log_port_forget(address(self.port))
        self.queues.clear()
        self.checkpoints.forget()
        nobody: object = None
        self.on_failure = nobody
        self.logs.waiting.clear()

    def _write_rest(self):
        """Writes all that is buffered; containers are made as far as the disk has room. False: it is full or has failed. The rest
        out then was never confirmed, and what it ended comes back."""
        outcome: c_int
        while True:
            outcome = self.writer.flush()
            if outcome == PASS_STARVED:
                made = 0
                for managed in (self.messages, self.transaction_records, self.index.log):
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
            elif outcome != PASS_PROGRESS:
                return outcome == PASS_IDLE

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
            handle_tails = recovered.pop(handle.queue.id, ())
            if below and handle.queue.entries.level_count == 1 and at_load64(address(handle.queue.logged_at)) > below:
                continue
            tails = [queue_tail(handle.queue, level) for level in range(handle.queue.entries.level_count)]
            for level in range(min(len(handle_tails), len(tails))):
                tails[level] = max(tails[level], handle_tails[level])
            if any(tails):
                result.append((handle.queue.id, tails, handle))
        result.extend((queue_id, list(levels), None) for queue_id, levels in recovered.items() if any(levels))
        return result

    def write_marks(self, tails: object, known_at: int = 0) -> int:
        """Queue-Mark for each (queue id, highest index per level, handle or None). Returns how many were written.

        known_at: tail of the log before the indexes were read: what came after that has a record of its own at or above it.
        """
        handle: QueueHandle
        lsn: uint64_t = known_at
        written = 0
        for queue_id, levels, handle in tails:
            self.messages.append(RECORD_QUEUE_MARK, struct.pack(f"<QII{len(levels)}Q", queue_id, len(levels), 0, *levels))
            if handle is not None and lsn > handle.queue.logged_at:
                handle.queue.logged_at = lsn
            written += 1
        return written

    def write_delivered(self, below: int) -> None:
        """Writes the marks of deliveries anew whose records are below that LSN: the base is to pass them. O(queues)."""
        handle: QueueHandle
        limit: uint64_t = below
        recovered: dict = dict(self.recovery.delivered) if self.recovery is not None else {}
        with self.lock:
            handles = list(self.queues.values())
        for handle in handles:
            recovered.pop(handle.queue.id, None)
            if 0 < at_load64(address(handle.queue.marked_at)) <= limit:
                delivered_write(handle.queue)
        for queue_id, levels in recovered.items():  # which are not back yet
            if self._copied_delivered.get(queue_id, 0) <= below:
                payload = struct.pack(f"<QII{len(levels)}Q", queue_id, len(levels), 0, *levels)
                self._copied_delivered[queue_id] = self.messages.append(RECORD_DELIVERED, payload)[1]

    def _rest_delivered(self, handle: QueueHandle):
        delivered_rest(handle.queue, True)

    def write_redelivered(self, queues: object) -> None:
        """Queue-Redelivered: the entries that were delivered before, as (queue id, ranges of positions)."""
        for queue_id, ranges in queues:
            for start in range(0, len(ranges), RANGES_MAX):
                part = ranges[start : start + RANGES_MAX]
                payload = struct.pack("<QII", queue_id, len(part), 0) + b"".join(struct.pack("<QQ", *one) for one in part)
                self.messages.append(RECORD_REDELIVERED, payload)

    def write_nothing(self) -> None:
        """One record in each log that says nothing: the first block of a run needs one, and the block that says "stopped cleanly"."""
        for one in (self.messages, self.transaction_records):
            one.append(*nothing(one))

    # --- running without threads (tests), maintenance -------------------------------------------------------------------

    def flush(self) -> int:
        """Writes and syncs what is buffered, on the caller's thread. Returns what the writer's pass came to."""
        outcome = self.writer.flush()
        self.logs.run_due()
        return outcome

    def copy_transactions(self, below: int) -> int:
        """Writes transactions and notes that live below that LSN anew. Returns how many."""
        with self.lock:
            return self.transactions.copy_below(below) + self.counts.copy_below(below)

    def maintain(self) -> None:
        """One pass of the maintenance, on the caller's thread (tests)."""
        if self.maintenance is None:
            self.maintenance = Maintenance(self)
        self.maintenance.once()

    def hold_publishers(self, limit_lsn: int | None) -> None:
        """Publishers wait from when the tail of the message log has come to this LSN; None: they don't."""
        lsn: uint64_t = LSN_NEVER if limit_lsn is None else limit_lsn
        before: uint64_t = at_load64(address(self.logs.ml.hold_at))
        if lsn != before:
            at_store64(address(self.logs.ml.hold_at), lsn)
            if lsn > before:  # who waits for it looks again
                log_port_wake(address(self.port))

    @property
    def failure(self) -> StoreError | None:
        """StoreError once the disk has failed, else None."""
        return self.logs.failure

    @property
    def disk_low(self) -> bool:
        """True while nothing but the reserve is left."""
        return self.logs.disk_low

    def _disk_failed(self, error, log_id, lsn, operation):
        if log_id == STREAMS:
            self.failed(StoreError(f"{operation} of {self.streams.failed_path(lsn)} failed: {os.strerror(error)}"))
            return
        logs: dict = {TRANSACTIONS: self.transaction_records, PAGES: self.pages, INDEX: self.index.log}
        source: ManagedLog = logs.get(log_id, self.messages)
        path = source.path_of(lsn // source.container_size)
        self.failed(StoreError(f"{operation} of {path} at offset {lsn % source.container_size} failed: {os.strerror(error)}"))

    def failed(self, error: object) -> None:
        """Latches a failure of the disk: nothing becomes durable any more. The first one counts."""
        if self.logs.failure is None:
            self.logs.failure = error
            log.critical("the store has failed and stops: %s", error)
            for managed in (self.messages, self.transaction_records, self.pages, self.index.log):
                if managed is not None:
                    managed.latch(5)
            if self.streams is not None:
                self.streams.latch(5)
            if self.on_failure is not None:
                self.on_failure(error)

    @property
    def recovering(self) -> bool:
        """Whether the entries of some queues are not back yet."""
        return self.recovery is not None

    @property
    def from_checkpoint(self) -> bool:
        """Whether the start read a checkpoint, and the message log from there on."""
        return self.past is not None or self.verifier is not None

    def is_live(self, message_id: int) -> bool:
        """Whether a message with this id is in the log and has a place."""
        return self.messages.is_live(message_id)


def check_whole(files: object, store_dir: str, last_blocks: dict) -> None:
    """Both logs are there, or none is. Args: last_blocks: log -> LSN of its last block, 0 for one without any.

    A directory that is there and empty stands for a log that somebody gave up. Raises: StoreError.
    """
    names = files.list_dir(store_dir)
    for missing, other in (("messages", "transactions"), ("transactions", "messages")):
        if missing not in names and last_blocks[other]:
            raise StoreError(missing_text(f"{store_dir}/{missing}", f"{store_dir}/{other} is a log in use"))


def missing_text(path: str, why: str) -> str:
    """What to say of a log's directory that should be there."""
    return (
        f"{path} is missing, but {why}: starting without it would lose what it holds. Put it back (is its disk mounted?); to go on"
        " without it, make an empty directory of that name"
    )


def clear_pages(files: object, directory: str) -> None:
    """Spilled transient messages don't survive: their log starts empty."""
    names = files.list_dir(directory)
    for name in names:
        files.unlink(f"{directory}/{name}")
    files.make_dir(directory)
    if names:
        files.sync_dir(directory)

"""Sets of distributed transactions: their records in the log, and their effects there; the store's port for sets and stages.

in: the coordinator's calls. out: Acquire-Set records, rows and contents for readers, dequeues of committed sets, Ends.

B1  The log's lock is held for at most SECTION messages, the GIL not at all while messages are gone through.
B2  A set's entries are dequeued by plain records after its Commit is durable, and End is written after them: a restart in between finds
    Commit without End, and dequeues the entries that still stand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, pointer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_load32, at_load64
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.crc32c import crc32c
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.held_runs import RUN_LOGGED, RUN_REDELIVERED, Run, run_entry_t, run_settle
from cython.cimports.flintmq.queue.queue_core import queue_borrow
from cython.cimports.flintmq.queue.types import MESSAGE_SPILLED_BIT, REASON_ACK
from cython.cimports.flintmq.store.log.log import LSN_NEVER, content_copy_out, content_total, log_begin, log_end, log_where
from cython.cimports.flintmq.store.log.record import le64, set16, set32, set64
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import message_log_t, ml_dequeue_locked
from cython.cimports.flintmq.store.stream.stream_files import Stream
from cython.cimports.flintmq.store.stream_inbox import StreamInbox
from cython.cimports.flintmq.store.tx_stage import CHUNK, SECTION
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t

from flintmq.store.tx_stage import check_block

# bytes appended and not written above which these loops wait for the writer: others' confirms must not stand behind them
UNWRITTEN_MAX = declare(uint64_t, 2 << 20)
PAUSE_S = 0.0005
# bytes of a row (transactions/bulk.py)
ROW = declare(uint64_t, 32)
# a content that was copied forward counts as written when the log is durable so far behind it
COPY_SLACK = declare(uint64_t, 256 << 10)
# ids of consumers that are named by their callers: the same after a restart, and never those of consumers
NAMED_CONSUMER = declare(uint32_t, 0x80000000)


# --- sets -----------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _dequeue_run(
    ml: pointer[message_log_t],
    queue_id: uint64_t,
    entries: pointer[run_entry_t],
    count: uint64_t,
    owner: uint32_t,
    delivered_us: uint64_t,
) -> bint:
    """Logs the dequeues. False: the log has failed."""
    at: uint64_t = 0
    until: uint64_t
    lsn: uint64_t = 0
    entry: pointer[run_entry_t]
    while at < count and lsn != LSN_NEVER:
        until = min(count, at + SECTION)
        log_begin(ml.log)
        while at < until and lsn != LSN_NEVER:
            entry = entries + at
            at += 1
            if entry.flags & RUN_LOGGED and entry.message_id:
                lsn = ml_dequeue_locked(ml, queue_id, entry.position, entry.message_id, owner, REASON_ACK, delivered_us, entry.deliveries)
        log_end(ml.log)
    return lsn != LSN_NEVER


@cclass
class HeldSet:
    """See HeldRun in transactions/bulk.py."""

    def __cinit__(self, logs: Logs, run: Run, opened: int):
        self.logs = logs
        self.run = run
        self.opened = opened

    @property
    def queue_id(self) -> int:
        return self.run.queue_id

    @property
    def count(self) -> int:
        return self.run.count

    @property
    def bytes(self) -> int:
        return self.run.bytes

    def ranges(self) -> list:
        return self.run.ranges()

    def positions(self) -> list:
        """Of all its entries, in order."""
        return [self.run.run.entries[number].position for number in range(self.run.run.count)]

    def rows(self, first: int, count: int) -> tuple:
        """See HeldRun.rows. Raises: KeyError, StoreError."""
        start: uint64_t = min(cast(uint64_t, first), self.run.run.count)
        number: uint64_t = min(cast(uint64_t, count), self.run.run.count - start)
        inside: uint64_t = 0
        i: uint64_t
        rows: bytes = PyBytes_FromStringAndSize(NULL, number * ROW)
        out: pointer[uint8_t] = cast(pointer[uint8_t], PyBytes_AS_STRING(rows))
        contents: list = []
        with self.run.lock, nogil:
            inside = self._rows(start, number, out)
        if inside:
            for i in range(number):
                if le64(out + i * ROW + 16) == 0:
                    contents.append(self._inline(le64(out + i * ROW), le64(out + i * ROW + 8)))
                    if le64(out + i * ROW + 8) >> MESSAGE_SPILLED_BIT:
                        set64(out + i * ROW + 8, 0)
        return rows, contents

    def _rows(self, start: uint64_t, number: uint64_t, out: pointer[uint8_t]) -> uint64_t:
        """Writes the rows. Returns how many contents are not where a reader of containers finds them."""
        at: uint64_t = 0
        until: uint64_t
        inside: uint64_t = 0
        durable: uint64_t
        where: uint64_t
        entry: pointer[run_entry_t]
        ml: pointer[message_log_t] = address(self.logs.ml)
        while at < number:
            until = min(number, at + 256)
            log_begin(ml.log)
            durable = at_load64(address(ml.log.durable))
            while at < until:
                entry = self.run.run.entries + start + at
                where = 0
                if entry.flags & RUN_LOGGED:
                    where = log_where(ml.log, entry.message_id)
                    if where == entry.message_id:
                        if durable < self.run.appended:
                            where = 0
                    elif where >= self.opened and durable < where + entry.body_len + COPY_SLACK:
                        where = 0
                inside += where == 0
                set64(out, entry.position)
                # An id of the page log is needed for a moment only, see rows().
                set64(out + 8, entry.message_id)
                set64(out + 16, where)
                set32(out + 24, entry.body_len)
                set16(out + 28, entry.deliveries)
                out[30] = entry.flags & RUN_REDELIVERED
                out[31] = 0
                out += ROW
                at += 1
            log_end(ml.log)
        return inside

    def _inline(self, position, message_id):
        """The INLINE header (length, header length, publish time), then the content's bytes."""
        known: uint64_t = 0
        total: uint32_t
        content: pointer[content_t] = queue_borrow(self.run.handle.queue, position, address(known))
        if content == NULL:
            if message_id == 0:
                raise KeyError(position)
            content = self.logs.load(message_id)
        total = content_total(content)
        run: bytes = PyBytes_FromStringAndSize(NULL, 16 + total)
        out: pointer[uint8_t] = cast(pointer[uint8_t], PyBytes_AS_STRING(run))
        set32(out, total)
        set32(out + 4, content.header_len)
        set64(out + 8, 0)
        content_copy_out(content, 0, total, out + 16)
        content_decref(content)
        return run


# --- the store's face -------------------------------------------------------------------------------------------------------------


@cclass
class BulkTransactions:
    """See BulkStore in transactions/ports.py. Made by LogStore."""

    def __cinit__(self, logs: Logs, threads: bool):
        self.logs = logs
        self.named = set()
        self.opened = logs.messages.log.tail
        self.inboxes = {}
        self.worker = None
        if threads:
            from flintmq.store.tx_sets import Background

            self.worker = Background()

    def stop(self) -> None:
        """Ends the thread when the work that it has is done."""
        if self.worker is not None:
            self.worker.stop()

    def in_background(self, work: object) -> None:
        """Runs it on a thread that may take its time; without threads, at once."""
        if self.worker is None:
            work()
        else:
            self.worker.run(work)

    def inbox(self, queue_id: int) -> object:
        """Where transactions put messages for a stream; None: the queue is none, or is gone."""
        stream: Stream = None if self.streams is None else self.streams.get(queue_id)
        found: StreamInbox = self.inboxes.get(queue_id)
        if stream is None:
            return None
        if found is None or found.stream is not stream:
            found = self.inboxes[queue_id] = StreamInbox(stream, self.logs, self)
        return found

    def drop_inbox(self, queue_id: int) -> None:
        """The queue was deleted, if it was a stream. Under the lock of `logs`."""
        found = self.inboxes.pop(queue_id, None)
        if found is not None:
            found.drop()

    @property
    def stopping(self) -> bool:
        """Whether what takes long is to be left to the next start."""
        return bool(self.logs.closed or (self.worker is not None and self.worker.stopping))

    @property
    def rows_max(self) -> int:
        """Runs of positions that one transaction may hold, or that its Commit may name."""
        return self.logs.transactions.rows_max

    @property
    def disk_low(self) -> bool:
        return self.logs.disk_low

    def check(self, block: bytes, routes: int) -> tuple:
        """See check_block."""
        return check_block(block, routes)

    def let_write(self, most: int = 0) -> None:
        """Waits until at most `most` bytes (0: a default) of the message log are not written yet. Not for the log's own threads."""
        limit: uint64_t = most or UNWRITTEN_MAX
        ml: pointer[message_log_t] = address(self.logs.ml)
        thread = self.logs.writer.thread
        if ml.log.tail <= at_load64(address(ml.log.durable)) + limit:
            return
        self.logs.writer.kick()
        if thread is None or thread is threading.current_thread():
            return
        while (
            ml.log.tail > at_load64(address(ml.log.durable)) + limit
            and not at_load32(address(ml.log.failed))
            and not self.logs.closed
            and not (self.worker is not None and self.worker.stopping)
        ):
            time.sleep(PAUSE_S)

    # --- sets

    def consumer(self, name: str) -> int:
        """The consumer id that the log names for this name, noted there once a run; 0 for no name."""
        if not name:
            return 0
        tag: bytes = name.encode()[:255]
        size: int = len(tag)
        consumer_id: uint32_t = crc32c(0, PyBytes_AS_STRING(tag), size) | NAMED_CONSUMER
        with self.logs.lock:
            if consumer_id not in self.named:
                self.logs.note_consumer(consumer_id, tag, b"spark")
                self.named.add(consumer_id)
        return consumer_id

    def taken(self, run: Run) -> None:
        """The run has grown: everything that it holds was appended before now."""
        run.appended = self.logs.messages.tail  # not asked for a run that a restart put back: all of it was durable

    def held(self, run: Run) -> object:
        """The run as its readers see it."""
        return HeldSet(self.logs, run, self.opened)

    def look(self, handle: QueueHandle, positions: object, appended: int) -> HeldSet:
        """See BulkStore."""
        run: Run = Run(handle)
        run.look(positions)
        run.appended = appended
        return HeldSet(self.logs, run, self.opened)

    def dequeue_run(self, run: Run, consumer_id: int) -> None:
        """The commit is durable: the entries of the run are dequeued, in the log and in their queue. Returns when they are."""
        at: uint64_t = 0
        count: uint64_t
        ok: bint = True
        owner: uint32_t = consumer_id
        ml: pointer[message_log_t] = address(self.logs.ml)
        while at < run.run.count:
            count = min(CHUNK, run.run.count - at)
            with nogil:
                if ok:
                    ok = _dequeue_run(ml, run.handle.queue.id, run.run.entries + at, count, owner, run.acquired_us)
                run_settle(run.handle.queue, run.run.entries + at, count)
            at += count
            if ok:
                self.let_write()


# --- one thread for work that follows a durable outcome and takes its time, so that the log's writer goes on ----------------------

log = logging.getLogger("flintmq.store")


class Background:
    """Threading: `run` from any thread."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name="flintmq-transactions", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Runs it soon; at once, in the caller's thread, after `stop`."""
        with self._wake:
            if not self.stopping:
                self._work.append(work)
                self._wake.notify()
                return
        self._do(work)

    def stop(self) -> None:
        """Ends the thread when everything was done."""
        with self._wake:
            self.stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._work and not self.stopping:
                    self._wake.wait()
                if not self._work:
                    return
                work = self._work.popleft()
            self._do(work)

    @staticmethod
    def _do(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("internal error in the work of a transaction's outcome")

"""StreamInbox: messages that transactions bring into a stream, on their way from the message log into the stream's own.

in: messages of committed transactions, which have a position each under the stream's id in the message log; after a restart those that have
no end there. out: messages of the stream, each once; ends of the originals.

B1  Positions rise, and that of a message is at most its offset in the stream + 1: what is looked for after a crash begins there.
B2  Messages are appended in the order of their positions, and a Stream-Message names the one that it had: what is at or below the highest
    one that the stream has is there.
B3  An original ends after its message is durable in the stream; retention waits until these ends are durable, too.
B4  Nothing passes a message that could not be appended: it waits in the message log for the next start.

A Commit of the transaction is durable before anything of it comes here. A crash leaves messages in the message log, in the stream, or in
both; `restore` compares. It waits for the disk, so it runs on the store's thread for outcomes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from cython import NULL, address, bint, cast, cclass, declare, nogil, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.held_runs import placed_t
from cython.cimports.flintmq.queue.types import REASON_MOVE, restored_t
from cython.cimports.flintmq.store.log.log import LSN_NEVER, log_begin, log_end
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import ml_dequeue_locked
from cython.cimports.flintmq.store.stream.stream_files import Stream
from cython.cimports.flintmq.store.stream.stream_log import STREAM_FAILED, stream_append
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdlib import calloc, free

from flintmq.core import failpoints

log = logging.getLogger("flintmq.transactions")

# messages that are read and appended under the reader's lock, or ended under the log's: about 100 us
SECTION = declare(uint64_t, 64)
# bytes and messages of a piece; two pieces at most are on their way to the disk
PIECE_BYTES = declare(uint64_t, 2 << 20)
PIECE_MESSAGES = declare(uint64_t, 8192)
PAUSE_S = 0.0005
# seconds after which others on the thread get their turn, and how many without progress (a full disk) when nobody else will have one
TURN_S, STALL_S = 0.1, 0.25
# positions of a stream that can't be opened, whose offsets nobody knows: above all that it can have given
UNKNOWN = declare(uint64_t, 1 << 48)
# results of `_append`
APPENDED = declare(c_int, 0)
UNREADABLE = declare(c_int, 1)
LATER = declare(c_int, 2)
REFUSED = declare(c_int, 3)


@cclass
class Batch:
    """See the .pxd."""

    def __cinit__(self):
        self.placed = NULL
        self.marks = []

    def __dealloc__(self):
        if self.keep is None:
            free(self.placed)


@cclass
class StreamInbox:
    """See module. Args: stream; logs, bulk: of its store."""

    def __cinit__(self, stream: Stream, logs: Logs, bulk: object):
        self.stream = stream
        self.logs = logs
        self.bulk = bulk
        self.lock = threading.Lock()
        self.pumping = threading.Lock()
        self.batches = deque()

    def reserve(self, placed: pointer[placed_t], count: uint64_t) -> uint64_t:
        """A transaction commits: its messages get their positions. They come by `take`. Returns count."""
        i: uint64_t
        with self.lock:
            self.tail = max(self.tail, cast(uint64_t, UNKNOWN if self.stream.broken else self.stream.visible))
            for i in range(count):
                placed[i].position = self.tail + 1 + i
            self.tail += count
            self.stream.inbound += count
        return count

    def take(self, placed: pointer[placed_t], count: uint64_t, keep: object) -> object:
        """The commit is durable: the messages go into the stream. The part beyond a turn follows later. Args: keep: owns
        `placed`."""
        batch: Batch = Batch()
        batch.keep = keep
        batch.placed = placed
        batch.count = count
        self._add(batch)
        self.pump()

    def restore(self, entries: pointer[restored_t], count: uint64_t) -> object:
        """After a restart: what committed transactions have for the stream and that has no end, by rising positions (B2)."""
        i: uint64_t
        highest: uint64_t = 0
        begin: uint64_t = entries[0].position - 1
        batch: Batch = Batch()
        batch.placed = cast(pointer[placed_t], calloc(count, sizeof(placed_t)))
        if batch.placed == NULL:
            raise MemoryError
        batch.count = count
        try:
            # Offsets that are lower than before, or were not known: damage.
            highest = self.stream.last_origin(begin if begin <= self.stream.visible else 0)
        except OSError as error:
            log.error("%s: %d messages of committed transactions wait for the next start", error, count)
            self.stuck = True
        for i in range(count):
            batch.placed[i].message_id = entries[i].message_id
            batch.placed[i].position = entries[i].position
            batch.placed[i].body_len = entries[i].body_len
            batch.at += entries[i].position <= highest
        if batch.at:
            batch.marks.append((batch.at, -1))
        self.tail = max(self.tail, entries[count - 1].position)
        self.stream.inbound += count
        self._add(batch)
        self.bulk.in_background(self.pump)

    def drop(self) -> None:
        """The stream was deleted: the messages have no place any more. Under the lock of `logs`."""
        self.dropped = True

    def _add(self, batch: Batch) -> None:
        with self.lock:
            self.batches.append(batch)

    def pump(self) -> None:
        """Brings what waits into the stream, as far as the disk goes along."""
        with self.pumping:
            self.again = False
            while self.batches and not self.stuck:
                if self.dropped:
                    self.batches.clear()
                elif self._deliver(self.batches[0]):
                    self.batches.popleft()
                elif not self.stuck and not self.bulk.stopping and not self.again:
                    self.again = True
                    self.bulk.in_background(self.pump)
                    return
                else:
                    return

    def _deliver(self, batch: Batch) -> bint:
        """False: it did not come to its end."""
        since = began = time.monotonic()
        while batch.ended < batch.count and not self.dropped:
            if time.monotonic() > began + TURN_S and not self.bulk.stopping:
                return False
            if batch.at < batch.count and len(batch.marks) < 2:
                if not self._piece(batch):
                    return False
                continue
            end, offset = batch.marks[0]
            if cast(object, self.stream.visible) > offset:
                batch.marks.pop(0)
                failpoints.hit("stream-appended")
                if not self._finish(batch, end):
                    return False
                since = time.monotonic()
            elif at_load32(address(self.logs.ml.log.failed)):
                self.stuck = True
                return False
            elif time.monotonic() > since + STALL_S:
                return False
            else:
                self._wait()
        return True

    def _wait(self) -> None:
        writer = self.logs.writer
        if writer.thread is None:  # a store without threads
            self.stream.prepare()
            writer.flush()
        else:
            time.sleep(PAUSE_S)

    def _piece(self, batch: Batch) -> bint:
        """Appends some. False: it has to wait, or can't be done."""
        size: uint64_t = 0
        last: uint64_t = 0
        start: uint64_t = batch.at
        lost: uint64_t = 0
        offset: object = -1
        outcome: c_int = APPENDED
        while batch.at < batch.count and batch.at - start < PIECE_MESSAGES and size < PIECE_BYTES and outcome <= UNREADABLE:
            with self.logs.reader_lock, nogil:
                outcome = self._append(batch, address(size), address(last))
            if outcome == UNREADABLE:
                lost += 1
                batch.at += 1
        if last:
            offset = last - 1
        if lost:
            log.critical("stream %d: %d messages of a committed transaction can't be read from the message log", self.stream.queue_id, lost)
        if batch.at > start:
            batch.marks.append((batch.at, offset))
            self.logs.writer.kick()
        if outcome == REFUSED:
            self.stuck = True
            if not self.dropped and not self.logs.closed:
                text = "stream %d takes no message: %d of a committed transaction wait in the message log for the next start"
                log.error(text, self.stream.queue_id, batch.count - batch.at)
        return outcome <= UNREADABLE

    def _append(self, batch: Batch, bytes: pointer[uint64_t], last: pointer[uint64_t]) -> c_int:
        """Appends up to SECTION messages. last: offset of the last one, + 1."""
        until: uint64_t = min(batch.count, batch.at + SECTION)
        offset: uint64_t
        ticket: uint64_t = 0
        one: pointer[placed_t]
        content: pointer[content_t]
        while batch.at < until and bytes[0] < PIECE_BYTES:
            one = batch.placed + batch.at
            if one.message_id:
                content = self.logs.reader.read(one.message_id)
                if content == NULL:
                    return LATER if self.logs.reader.no_means else UNREADABLE
                offset = stream_append(self.stream.stream, content, one.position, address(ticket))
                content_decref(content)
                if offset == STREAM_FAILED:
                    return REFUSED
                check(
                    one.position <= offset + 1 or one.position > UNKNOWN,
                    b"stream_inbox B1 a position is not behind its offset",
                    one.position,
                    offset,
                )
                last[0] = offset + 1
                bytes[0] += one.body_len + 64
            batch.at += 1
        return APPENDED

    def _finish(self, batch: Batch, end: uint64_t) -> bint:
        """The originals up to number `end` are durable in the stream: they end (B3). False: the log has failed."""
        until: uint64_t
        ok: bint = True
        start: uint64_t = batch.ended
        while batch.ended < end:
            until = min(end, batch.ended + SECTION)
            with self.logs.lock:
                if self.dropped:
                    return True
                with nogil:
                    ok = self._end(batch, until)
            if not ok:
                self.stuck = True
                return False
            self.bulk.let_write()
        with self.logs.lock:
            ticket = self.logs.ticket(self.logs.messages.log.tail, 0)
        count = end - start
        self.logs.on_durable(ticket, lambda: self._gone(count))
        return True

    def _end(self, batch: Batch, until: uint64_t) -> bint:
        one: pointer[placed_t]
        lsn: uint64_t = 0
        log_begin(self.logs.ml.log)
        while batch.ended < until and lsn != LSN_NEVER:
            one = batch.placed + batch.ended
            if one.message_id:
                lsn = ml_dequeue_locked(
                    address(self.logs.ml),
                    self.stream.queue_id,
                    one.position,
                    one.message_id,
                    0,
                    REASON_MOVE,
                    0,
                    0,
                )
            batch.ended += 1
        log_end(self.logs.ml.log)
        return lsn != LSN_NEVER

    def _gone(self, count) -> None:
        with self.lock:
            self.stream.inbound -= count

"""Message content read back from the log (see content_reader.pxd).

in: message ids. out: contents, checked: a record's CRC names its LSN, so bytes of a recycled container are never taken for a message.

Bytes not written yet are read from the write buffers; else a window of the container is read, which a run of neighbours shares. A run that
wants most of what it passes (a backlog of one queue, or of one of few) goes on in pieces that are read ahead around the page cache; one
that wants little of it shares the page cache with those that want the rest. The shape of a Message is read beside the window, and kept.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, long, nogil, p_void, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import arena_free, arena_new, content_decref, content_t
from cython.cimports.flintmq.queue.types import MESSAGE_SPILLED_BIT
from cython.cimports.flintmq.store.ahead_ring import AHEAD_CARRY, AheadRing, ahead_piece_t
from cython.cimports.flintmq.store.log.log import (
    CONTAINER_READY, container_t, content_add_chunk, content_from_record, content_total, log_begin, log_container, log_end,
    log_read_buffered, log_t, log_where,
)  # fmt: skip
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.reader import log_reader_t, reader_following, reader_read, reader_record_at
from cython.cimports.flintmq.store.log.record import (
    BRIEF_FIXED, RECORD_CHUNK, RECORD_MESSAGE, align8, brief_head, content_head, head_t, le32, record_decode, record_t, shape_head, shape_t,
)  # fmt: skip
from cython.cimports.flintmq.store.log.shapes import content_from_brief
from cython.cimports.flintmq.store.shape_reads import shape_reads_free, shape_reads_get, shape_reads_put
from cython.cimports.libc.errno import ENOMEM
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc

from flintmq.store.log.managed import NO_MEANS

# bytes; a run of neighbours costs one read. A record is never longer than a write buffer, which is what the window must hold.
WINDOW = declare(uint64_t, 256 * 1024)
# bytes of a window about whose neighbours nothing is known, and the share of a window that must have been wanted for the next one to be
# twice as long. Of a queue among a thousand the next message is far.
SPAN_LEAST = declare(uint64_t, 4 * 1024)
SPAN_SHARE = declare(uint64_t, 8)
# What the disk is asked for ahead of a reader that goes from container to container: bytes, and containers at most; two containers at
# least. With two containers ahead some drains caught up with the disk's reads and went on at half its speed.
AHEAD_BYTES = declare(uint64_t, 16 * 1024 * 1024)
AHEAD_CONTAINERS = declare(uint64_t, 16)
# share of what a run passed that must have been wanted for the containers behind it to be asked for
AHEAD_SHARE = declare(uint64_t, 16)
# bytes of the log that reads must have passed one after the other before pieces of it are read ahead, and over which it is judged how many
# of them were wanted; half of them must be
RUN_LEAST = declare(uint64_t, 512 * 1024)
RUN_JUDGED = declare(uint64_t, 8 * 1024 * 1024)
RUN_SHARE = declare(uint64_t, 2)
# bytes that reads may leave out between two windows of a run
GAP_MAX = declare(uint64_t, 64 * 1024)
# reads elsewhere (messages that were copied forward) after which a run is over
STRAYS_MAX = declare(uint32_t, 16)


@cfunc
@nogil
@exceptval(check=False)
def _load(walk: pointer[log_reader_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
    return cast(ContentReader, walk.context)._load(lsn, least)


@cfunc
@nogil
@exceptval(check=False)
def _load_shape(walk: pointer[log_reader_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
    return cast(ContentReader, walk.context)._load_shape(lsn)


@cclass
class ContentReader:
    """Args: messages, pages: the logs (pages may be None). ahead: it will read backlogs, so runs are read ahead."""

    def __cinit__(self, messages: ManagedLog, pages, ahead: bool = False):
        self.messages = messages
        self.pages = pages
        self.files = messages.files
        self.message_log = messages.log
        self.page_log = cast(ManagedLog, pages).log if pages is not None else NULL
        self.arena = arena_new()
        self.own_size = max(WINDOW, 2 * 65536 + 4096)
        self.own = cast(pointer[uint8_t], malloc(self.own_size))
        self.walk.load = _load
        self.walk.context = cast(p_void, self)
        self.walk.record_max = self.own_size
        self.walk.growing = True
        self.shape_bytes = cast(pointer[uint8_t], malloc(SHAPE_READ))
        self.shape_walk.load = _load_shape
        self.shape_walk.context = cast(p_void, self)
        self.shape_walk.record_max = SHAPE_READ
        self.descriptor = -1
        self.ring = AheadRing(self.files) if ahead else None
        if self.arena == NULL or self.own == NULL or self.shape_bytes == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.own)
        free(self.shape_bytes)
        shape_reads_free(address(self.shapes))
        if self.arena != NULL:
            arena_free(self.arena)

    def close(self) -> None:
        """Gives descriptors and memory back. Raises: MemoryError."""
        self._end_run()
        self._close_container()
        shape_reads_free(address(self.shapes))
        # A log that has queues is never freed (QueueHandle.attach_log), nor is its reader: what it read lives by its own references.
        arena_free(self.arena)
        self.arena = arena_new()
        if self.arena == NULL:
            raise MemoryError

    def _end_run(self) -> void:
        if self.ring is not None and self.ring.on:
            self.ring.stop()
            self.walk.window_end = 0
        self.run_end = 0

    def _close_container(self) -> void:
        if self.descriptor >= 0:
            self.files.close(self.descriptor)
            self.descriptor = -1

    def read(self, message_id: uint64_t) -> pointer[content_t]:
        source: pointer[log_t] = self.message_log
        spilled: uint64_t = cast(uint64_t, 1) << MESSAGE_SPILLED_BIT
        lsn: uint64_t
        thing: uint64_t = message_id & ~spilled
        content: pointer[content_t]
        moved: bint
        self.no_means = False
        if message_id & spilled:
            source = self.page_log
            if source == NULL:
                return NULL
        while True:
            # Without the lock: what is copied forward just now is still where it was, and a look that failed looks again.
            lsn = thing
            if source.moved.count:
                log_begin(source)
                lsn = log_where(source, thing)
                log_end(source)
            content = self._content(source, thing, lsn, message_id & spilled != 0)
            if content != NULL:
                return content
            log_begin(source)
            moved = log_where(source, thing) != lsn
            log_end(source)
            if not moved:
                return NULL
            # It was copied forward meanwhile, and its old container may be gone.

    def _content(self, source: pointer[log_t], thing: uint64_t, lsn: uint64_t, spilled: bint) -> pointer[content_t]:
        """The content of the message `thing`, whose first record stands at `lsn`; NULL when it can't be read."""
        record: record_t
        head: head_t
        filled: uint32_t = 0
        content: pointer[content_t]
        if not self._record(source, lsn, address(record)):
            return NULL
        if record.type == RECORD_MESSAGE:
            return self._brief(source, address(record)) if lsn == thing and not spilled else NULL
        content = content_from_record(self.arena, address(record), address(filled))
        if content == NULL:
            self.no_means = self.no_means or content_head(address(record), address(head))  # it is good: there was no memory
            return NULL
        while filled < content_total(content):
            if not reader_following(address(self.walk), record.lsn + align8(record.length), source.buffer_size, address(record)):
                content_decref(content)
                return NULL
            self.wanted += align8(record.length)
            if record.type != RECORD_CHUNK or record.undo_prev != thing or le32(record.data) != filled:
                continue
            if not content_add_chunk(content, address(record)):
                content_decref(content)
                return NULL
            filled += record.size - 4
        content.message_id = 0 if spilled else thing
        return content

    def _brief(self, source: pointer[log_t], record: pointer[record_t]) -> pointer[content_t]:
        shape: pointer[shape_t] = self._shape(source, record)
        content: pointer[content_t]
        if shape == NULL:
            return NULL
        content = content_from_brief(self.arena, record, shape)
        if content == NULL:
            self.no_means = True
            return NULL
        content.message_id = record.lsn
        return content

    def _shape(self, source: pointer[log_t], record: pointer[record_t]) -> pointer[shape_t]:
        other: record_t
        distance: uint32_t = 0
        lsn: uint64_t = record.undo_prev
        shape: pointer[shape_t]
        walk: pointer[log_reader_t] = address(self.walk)
        if not brief_head(record, address(distance)) or lsn // source.container_size != record.lsn // source.container_size:
            return NULL
        shape = shape_reads_get(address(self.shapes), lsn)
        if shape != NULL:
            return shape
        if walk.window_lsn <= lsn and lsn < walk.window_end:
            if record_decode(walk.window + (lsn - walk.window_lsn), lsn, walk.window_end - lsn, 0, True, address(other)):
                return self._keep(address(other))
        self.shape_walk.container_size = source.container_size
        self.shape_walk.log_id = source.id
        self.shape_walk.window_end = 0
        return self._keep(address(other)) if reader_record_at(address(self.shape_walk), lsn, address(other)) else NULL

    def _keep(self, record: pointer[record_t]) -> pointer[shape_t]:
        kept: pointer[shape_t] = shape_reads_put(address(self.shapes), record)
        shape: shape_t
        if kept == NULL and shape_head(record, address(shape)):
            self.no_means = True
        return kept

    def _load_shape(self, lsn: uint64_t) -> uint64_t:
        """As _load, for a shape that is outside of the window. The record that names it was read from the same container."""
        source: pointer[log_t] = self.source
        sequence: uint64_t = lsn // source.container_size
        size: uint64_t = min((sequence + 1) * source.container_size - lsn, SHAPE_READ)
        switches: long = io_wait_switches()
        waited: int64_t = io_wait_ns()
        count: uint64_t = log_read_buffered(source, lsn, self.shape_bytes, size)
        if count == 0:
            if self.descriptor < 0 or self.descriptor_log != source or self.descriptor_sequence != sequence:
                self._open(source, lsn)
            if self.descriptor < 0:
                return 0
            count = reader_read(
                address(self.shape_walk), self.files.read_at, self.files.context, self.descriptor, self.shape_bytes, lsn, size
            )
            if io_wait_switches() != switches:
                self.io_ns += io_wait_ns() - waited
            if count == 0:
                self.no_means = self.no_means or self.shape_walk.error == ENOMEM
                return 0
        self.shape_walk.window = self.shape_bytes
        self.shape_walk.window_lsn = lsn
        self.shape_walk.window_end = lsn + count
        return count

    def facts(self, message_id: uint64_t, body_len: pointer[uint32_t], flags: pointer[uint8_t], priority: pointer[uint8_t]) -> bint:
        record: record_t
        head: head_t
        shape: pointer[shape_t]
        lsn: uint64_t
        log_begin(self.message_log)
        lsn = log_where(self.message_log, message_id)
        log_end(self.message_log)
        if not self._record(self.message_log, lsn, address(record)):
            return False
        if record.type == RECORD_MESSAGE:
            shape = self._shape(self.message_log, address(record))
            if shape == NULL:
                return False
            head = shape.head
            head.body_len = record.size - BRIEF_FIXED
        elif not content_head(address(record), address(head)):
            return False
        body_len[0] = head.body_len
        flags[0] = head.flags
        priority[0] = head.priority
        return True

    def _use(self, source: pointer[log_t]) -> void:
        """The next reads are of this log."""
        self.source = source
        self.walk.window_end = 0
        self.walk.container_size = source.container_size
        self.walk.log_id = source.id

    def _load(self, lsn: uint64_t, least: uint64_t) -> uint64_t:
        """Fills the window from `lsn` on (see reader_load_t)."""
        count: uint64_t
        switches: long
        waited: int64_t
        source: pointer[log_t] = self.source
        sequence: uint64_t = lsn // source.container_size
        size: uint64_t = (sequence + 1) * source.container_size - lsn
        container: pointer[container_t]
        span: uint64_t = self._span(least)
        self.walk.window_end = 0
        self.walk.shared = False
        if self.walk.anew:
            self._end_run()
        if self.ring is None or not self.ring.on:
            self._follow(source, lsn)
        if self.ring is not None and self.ring.on:
            count = self._from_ring(source, lsn, least)
            if count:
                return count
        self.walk.window = self.own
        count = log_read_buffered(source, lsn, self.own, span)
        if count == 0:
            log_begin(source)
            container = log_container(source, sequence) if sequence <= source.tail // source.container_size else NULL
            self.walk.shared = container != NULL and container.state == CONTAINER_READY
            log_end(source)
            if self.descriptor < 0 or self.descriptor_log != source or self.descriptor_sequence != sequence:
                self._open(source, lsn)
            if self.descriptor < 0:
                return 0
            switches = io_wait_switches()
            waited = io_wait_ns()
            count = reader_read(address(self.walk), self.files.read_at, self.files.context, self.descriptor, self.own, lsn, min(size, span))
            if io_wait_switches() != switches:
                self.io_ns += io_wait_ns() - waited
                if span == SPAN_LEAST and not self.walk.shared:
                    self._ask_ahead(source, sequence)
            if count == 0:
                self.no_means = self.no_means or self.walk.error == ENOMEM
                return 0
            if (self.ring is None or not self.ring.on) and not self.walk.shared:
                self.run_end = lsn + count
        self.walk.window_lsn = lsn
        self.walk.window_end = lsn + count
        return count

    def _span(self, least: uint64_t) -> uint64_t:
        """Bytes of the next window, going by the present one, which may be shorter than was asked for."""
        size: uint64_t = self.walk.window_end - self.walk.window_lsn if self.walk.window_end else 0
        wanted: uint64_t = self.wanted - self.window_wanted
        self.window_wanted = self.wanted
        self.span = min(2 * self.span, self.own_size) if size and wanted * SPAN_SHARE >= size else SPAN_LEAST
        self.span = max(self.span, least)
        return self.span

    def _follow(self, source: pointer[log_t], lsn: uint64_t) -> void:
        """A window begins at `lsn`: either it goes on where the one before ended, or a run begins here."""
        if self.run_end and source == self.descriptor_log and lsn + self.own_size > self.run_end and lsn <= self.run_end + GAP_MAX:
            if self.ring is not None and lsn >= self.run_start + RUN_LEAST and self._dense(lsn, RUN_SHARE):
                self._start(source, lsn)
            return
        self.run_start = lsn
        self.run_wanted = self.wanted

    def _dense(self, lsn: uint64_t, share: uint64_t) -> bint:
        """At least one part in `share` of what the run passed up to `lsn` was wanted."""
        passed: uint64_t = lsn - self.run_start
        if passed > RUN_JUDGED:
            self.run_start = lsn - passed // 2
            self.run_wanted = self.wanted - (self.wanted - self.run_wanted) // 2
            passed //= 2
        return share * (self.wanted - self.run_wanted) >= passed

    def _start(self, source: pointer[log_t], lsn: uint64_t) -> bint:
        owner: ManagedLog = self.messages if source == self.message_log else self.pages
        self.strays = 0
        if self.ring.start(owner, lsn):
            self._close_container()
            self.asked = 0
        else:
            self.run_end = 0
        return self.ring.on

    def _from_ring(self, source: pointer[log_t], lsn: uint64_t, least: uint64_t) -> uint64_t:
        """As _load; 0: not there."""
        piece: pointer[ahead_piece_t] = NULL
        switches: long = io_wait_switches()
        waited: int64_t = io_wait_ns()
        if source == self.ring.log and least <= AHEAD_CARRY:
            piece = self.ring.piece(lsn, least)
        if io_wait_switches() != switches:
            self.io_ns += io_wait_ns() - waited
        if piece == NULL:
            self.strays += 1
            if self.strays > STRAYS_MAX:
                self._end_run()
            return 0
        self.strays = 0
        if not self._dense(lsn, RUN_SHARE):
            self._end_run()
            return 0
        self.walk.window = cast(pointer[uint8_t], piece.read.data) - (piece.lsn - piece.begin)
        self.walk.window_lsn = piece.begin
        self.walk.window_end = piece.lsn + piece.read.size
        return self.walk.window_end - lsn

    def _open(self, source: pointer[log_t], lsn: uint64_t) -> c_int:
        """Opens the container of `lsn` for reading (the writer's own descriptor is for writing only); -1 when it is gone."""
        sequence: uint64_t = lsn // source.container_size
        following: bint = source == self.message_log and self.descriptor_log == source and sequence == self.descriptor_sequence + 1
        self._close_container()
        try:
            owner: ManagedLog = self.messages if source == self.message_log else self.pages
            self.descriptor = self.files.open(owner.path_of(sequence))
            # A backlog is read in its order: the disk reads some containers while another is taken apart.
            if following and self.run_start < lsn and self._dense(lsn, AHEAD_SHARE):
                number: uint64_t
                last: uint64_t = sequence + max(2, min(AHEAD_CONTAINERS, AHEAD_BYTES // source.container_size))
                log_begin(source)
                last = min(last, source.tail // source.container_size - 1)  # not the one that is being written
                log_end(source)
                for number in range(max(self.asked + 1, sequence + 2), last + 1):
                    self.files.read_ahead(owner.path_of(number))
                self.asked = max(self.asked, last)
            else:
                self.asked = 0
            self.descriptor_log = source
            self.descriptor_sequence = sequence
        except OSError as error:
            self.descriptor = -1
            self.no_means = self.no_means or error.errno in NO_MEANS
        return self.descriptor

    def _ask_ahead(self, source: pointer[log_t], sequence: uint64_t) -> void:
        """A few bytes of that container had to come from the disk: all of it may come, since the queues that share it want the rest."""
        try:
            owner: ManagedLog = self.messages if source == self.message_log else self.pages
            self.files.read_ahead(owner.path_of(sequence))
        except Exception:  # it only saves time
            return

    def _record(self, source: pointer[log_t], lsn: uint64_t, out: pointer[record_t]) -> bint:
        """The record at this LSN, its CRC checked; false when there is none."""
        if self.source != source:
            self._use(source)
        if not reader_record_at(address(self.walk), lsn, out):
            return False
        self.wanted += align8(out.length)
        return True

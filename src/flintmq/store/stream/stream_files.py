"""A stream with its files (see stream_files.pxd): opening, keeping, retention, deletion; and its face for Python callers.

in: the store's maintenance and calls of StreamStore, one thread at a time. out: container files; the offsets that are kept.

I1  Recovery finds the last whole message at or above the base: the base never passes the start of the last visible one.
I2  An offset is never given out twice once it was visible; where damage hides how many there were, the next offset skips all that can
    have been.
I3  A container goes only when recovery needs nothing of it, lowest first, each unlink synced before the next, and after `first` has
    passed it.

Opening reads the containers from the base on, which is one or two, and the first record of the lowest when that is below the base. A
Stream-Mark at the end proves what is before it: it is written, alone in its block, when everything is durable. A log that ends with such
a block is not written anew at the next start, and goes on in the mark's place, with a mark.
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.store.log.log import (
    CONTAINER_READY, CONTAINER_SEALED, buffer_t, container_t, log_container, log_forget_containers, log_release, log_t,
)  # fmt: skip
from cython.cimports.flintmq.store.log.managed import ManagedLog
from cython.cimports.flintmq.store.log.reader import STEP_BAD, STEP_END, STEP_IO, STEP_RECORD, reader_pass, reader_salvage, reader_step
from cython.cimports.flintmq.store.log.record import BLOCK_HEADER, CONTAINER_HEADER, le16, le32, le64, record_t
from cython.cimports.flintmq.store.log.scan import LogScan
from cython.cimports.flintmq.store.log.writer import (
    DIRTY_NOT, DIRTY_STARVED, LogWriter, writer_kick, writer_letter, writer_resume, writer_waive,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_batch import (
    stream_batch_items, stream_batch_t, stream_filter_free, stream_filter_new, stream_filter_t,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_containers import OFFSET_PENDING, OFFSET_UNKNOWN
from cython.cimports.flintmq.store.stream.stream_content import (
    RECORD_STREAM_CHUNK, RECORD_STREAM_MARK, RECORD_STREAM_MESSAGE, STREAM_FIXED, STREAM_RECORD_LEAST,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_log import (
    STREAM_FAILED, StreamSpace, stream_abandon, stream_append, stream_bytes, stream_close, stream_cool, stream_decref, stream_first,
    stream_forget_firsts, stream_free, stream_hot_read, stream_incref, stream_known, stream_learn, stream_listen, stream_mark, stream_new,
    stream_t, stream_visible,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_reader import (
    stream_find_time, stream_first_of, stream_read, stream_reader_free, stream_reader_new, stream_reader_rest, stream_reader_t,
    stream_search,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_source import source_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memset

from flintmq.slotted import replaced
from flintmq.errors import StoreError
from flintmq.store.log.containers import STREAMS, LogSettings, container_name, sequence_of
from flintmq.store.log.managed import UNBOUNDED, clear_temporaries, quarantine, repair_tail


@cfunc
@nogil
@exceptval(check=False)
def _whole(recovered: pointer[recovered_t], offset: uint64_t, lsn: uint64_t) -> void:
    recovered.next = max(recovered.next, offset + 1)
    recovered.start = lsn
    recovered.open_left = 0


@cfunc
@nogil
@exceptval(check=False)
def _on_record(context: p_void, record: pointer[record_t]) -> void:
    """Takes in one record of the scan; `context`: a recovered_t whose container_size is set."""
    recovered: pointer[recovered_t] = cast(pointer[recovered_t], context)
    offset: uint64_t
    content_bytes: uint64_t
    recovered.last_lsn = record.lsn
    if record.size < 8:
        return
    offset = le64(record.data)
    if record.type == RECORD_STREAM_MARK:
        recovered.any = True
        recovered.mark_lsn = record.lsn
        recovered.next = max(recovered.next, offset)
    elif record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED:
        recovered.any = True
        recovered.next = max(recovered.next, offset)
        if record.lsn // recovered.container_size != recovered.last.container:
            recovered.last.container = record.lsn // recovered.container_size
            recovered.last.offset = offset
            recovered.last.us = record.time_us
            if recovered.lowest.container == 0:
                recovered.lowest = recovered.last
        recovered.open_start = record.lsn
        recovered.open_filled = le32(record.data + 20)
        content_bytes = cast(uint64_t, le32(record.data + 8)) + le32(record.data + 12) + le16(record.data + 16)
        recovered.open_left = content_bytes - recovered.open_filled if content_bytes > recovered.open_filled else 0
        if recovered.open_left == 0:
            _whole(recovered, offset, record.lsn)
    elif record.type == RECORD_STREAM_CHUNK and record.size >= 12:
        recovered.any = True
        recovered.next = max(recovered.next, offset)
        if recovered.open_left and record.undo_prev == recovered.open_start and le32(record.data + 8) == recovered.open_filled:
            content_bytes = record.size - 12
            if content_bytes < recovered.open_left:
                recovered.open_filled += content_bytes
                recovered.open_left -= content_bytes
            else:
                _whole(recovered, offset, recovered.open_start)


@cfunc
def _proven(files: object, directory: str | None, scan: LogScan | None, recovered: pointer[recovered_t]) -> object:
    """LSN of the block before a Stream-Mark that proves everything before it, or None.

    The mark is the only record of the last block, its hint covers what is before, and nothing was ever written behind it.
    """
    size: uint64_t = scan.container_size
    lsn: uint64_t = scan.last_block
    if (
        scan.damage
        or scan.torn_at
        or lsn == 0
        or recovered.mark_lsn != lsn + BLOCK_HEADER
        or recovered.last_lsn != recovered.mark_lsn
        or scan.hint < lsn
        or recovered.open_left
    ):
        return None
    block = scan.sector(lsn)
    before = int.from_bytes(block[48:56], "little")
    if before == 0 or not scan.is_last(lsn):
        return None
    try:
        fd = files.open(f"{directory}/{container_name(before // size)}")
    except FileNotFoundError:
        return None
    try:
        base = files.read(fd, 8, before % size + 32)
    finally:
        files.close(fd)
    return before if base == block[32:40] else None  # else the base is told by the mark alone


def remove_files(files: object, directory: str) -> None:
    """Removes a stream's directory with everything in it. Raises: OSError."""
    names = files.list_dir(directory)
    for name in reversed(names):
        files.unlink(f"{directory}/{name}")
    if names:
        files.sync_dir(directory)
    try:
        files.remove_dir(directory)
    except FileNotFoundError:
        pass


@cfunc
@nogil
@exceptval(check=False)
def _last_origin(reader: pointer[stream_reader_t], offset: uint64_t, highest: pointer[uint64_t]) -> c_int:
    """See Stream.last_origin. STEP_END, or STEP_IO when the disk refused. A message that was never whole does not count: another one has
    its offset, or it is not visible."""
    record: record_t
    step: c_int = STEP_RECORD
    visible: uint64_t = at_load64(address(reader.stream.visible))
    known: uint64_t = 0
    origin: uint64_t = 0
    reader.walk.limit = at_load64(address(reader.stream.dirty.log.durable))
    reader.walk.error = 0
    if not stream_search(reader, offset, 0):
        return STEP_IO if reader.walk.error else STEP_END
    while step == STEP_RECORD:
        step = reader_step(address(reader.walk), address(record))
        if step == STEP_BAD:
            step = reader_salvage(address(reader.walk))
            continue
        if step != STEP_RECORD:
            break
        if record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED:
            if le64(record.data) > known:
                highest[0] = max(highest[0], origin)
            known = le64(record.data)
            origin = record.undo_prev
        reader_pass(address(reader.walk), address(record))
    if known < visible:
        highest[0] = max(highest[0], origin)
    return step


log = logging.getLogger("flintmq.store")

# bytes of containers kept ready at most, when the writer had to wait for one
AHEAD_BYTES_MAX = 32 << 20
# milliseconds without an append after which a stream's end is proven, and after which its memory is given back
SETTLE_MS = declare(int64_t, 1_000)
COOL_MS = declare(int64_t, 10_000)
# errno that the log of a deleted stream is latched with; of a read that the disk refused
ESHUTDOWN = 108
EIO = 5
NEVER = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


@cfunc
def _fill_source(source: pointer[source_t], stream: pointer[stream_t]) -> void:
    source.log = stream
    source.append = stream_append
    source.visible = stream_visible
    source.first = stream_first
    source.bytes = stream_bytes
    source.hot_read = stream_hot_read
    source.read = stream_read
    source.new_reader = stream_reader_new
    source.rest = stream_reader_rest
    source.free_reader = stream_reader_free
    source.find_time = stream_find_time
    source.listen = stream_listen
    source.incref = stream_incref
    source.decref = stream_decref


@cclass
class StreamSource:
    """A log of which a stream core can be made (see stream_source.pxd)."""


@cclass
class Stream(StreamSource):
    """One stream. Made by `open`; `finish` or `close` ends it."""

    def __cinit__(self):
        self.stream = NULL
        self.damage = []
        self.told = set()

    def __dealloc__(self):
        if self.stream != NULL:
            stream_free(self.stream)

    @staticmethod
    def open(
        files: object,
        store_dir: str,
        queue_id: int,
        settings: LogSettings,
        writer: LogWriter,
        shared: StreamSpace,
    ) -> Stream:
        """Opens the stream's log, or begins an empty one: that has no file before something is appended.

        An existing log keeps its container size (bytes). Damage is named and set aside, the rest is served; a log that can't be
        read at all makes a broken stream. Raises: OSError.
        """
        recovered: recovered_t
        made: Stream = Stream()
        memset(address(recovered), 0, sizeof(recovered_t))
        made.files = files
        made.clock = settings.clock
        made.writer = writer
        made.shared = shared
        made.queue_id = queue_id
        made.store_dir = store_dir
        made.directory = f"{store_dir}/streams/{queue_id}"
        scan: LogScan = LogScan(files, made.directory, STREAMS, settings.store_uuid)
        names = [number for number in map(sequence_of, files.list_dir(made.directory)) if number is not None]
        recovered.container_size = made._size_of(names) if names else settings.container_size
        try:
            if names:
                scan.run(_on_record, cast(p_void, address(recovered)))
        except StoreError as error:
            log.error("stream %d can't be opened, its files are left as they are: %s", queue_id, error)
            made.broken = True
            made.damage.append(str(error))
        made.opened_bytes = scan.bytes_read
        size = scan.container_size or settings.container_size
        if size != recovered.container_size and not made.broken:
            made.broken = scan.container_size != 0  # the first header lied: every LSN above is wrong
        made.managed = ManagedLog(files, made.directory, replaced(settings, container_size=size))
        made.managed.set_ahead(0)
        made.stream = stream_new(
            queue_id,
            made.managed.log,
            address(writer.writer),
            writer.writer.port,
            address(shared.space),
            cast(p_void, made),
        )
        if made.stream == NULL:
            raise MemoryError
        _fill_source(address(made.source), made.stream)
        made.stream.refs = 1
        Py_INCREF(made)
        made.held = True
        made.seen_ms = settings.clock.monotonic_ns() // 1_000_000
        if made.broken:
            at_store32(address(made.stream.closed), 1)
        elif names:
            try:
                made._recover(scan, address(recovered))
            except BaseException:
                made.close()
                raise
        return made

    def _size_of(self, names):
        """The container size that the first readable header tells (the scan checks it)."""
        for sequence in sorted(names):
            try:
                fd = self.files.open(f"{self.directory}/{container_name(sequence)}")
            except OSError:
                continue
            try:
                header = self.files.read(fd, CONTAINER_HEADER, 0)
            finally:
                self.files.close(fd)
            size = int.from_bytes(header[48:56], "little")
            if header[:8] == b"FLNTLOG1" and size >= 4096:
                return size
        return 4096

    def _recover(self, scan: LogScan | None, recovered: pointer[recovered_t]) -> c_int:
        """What the scan found becomes the state; the log is ready to go on."""
        size: uint64_t = scan.container_size
        tail: uint64_t = scan.tail
        last_block: uint64_t = scan.last_block
        following: uint64_t = recovered.next
        first: uint64_t = OFFSET_UNKNOWN
        first_us: uint64_t = 0
        hidden: uint64_t = 0
        sequence: uint64_t
        stream: pointer[stream_t] = self.stream
        for one in scan.damage:
            self.damage.append(str(one))
            copy = quarantine(self.files, self.store_dir, f"streams-{self.queue_id}", self.directory, one.lsn // size)
            log.error("damaged container of stream %d: %s%s", self.queue_id, one, f"; copied to {copy}" if copy else "")
            end = one.next_lsn or tail
            if end > recovered.start:
                hidden += (end - max(one.lsn, recovered.start)) // STREAM_RECORD_LEAST + 1
        following += hidden  # I2
        proven = _proven(self.files, self.directory, scan, recovered)
        if proven is not None:
            last_block = proven
            tail = scan.last_block
            stream.in_mark = True
        else:
            repair_tail(self.files, self.directory, tail, size, scan.hint, zero=False)
            self.settled = NEVER
        clear_temporaries(self.files, self.directory)
        self.made = True
        self.managed.open_at(tail, last_block, scan.epoch + 1, scan.base)
        here = sorted(number for number in map(sequence_of, self.files.list_dir(self.directory)) if number is not None)
        for number in reversed([number for number in here if number > tail // size]):
            self.files.unlink(self.managed.path_of(number))  # made ahead; from the last one down: a crash leaves no gap
            self.files.sync_dir(self.directory)
        for number in here:
            if number <= tail // size:
                self.managed.adopt(number)
        if not here:
            at_store64(address(self.managed.log.ready_end), tail - tail % size)
        if recovered.last.container:
            stream_learn(stream, recovered.lowest.container, recovered.lowest.offset, recovered.lowest.us)
            stream_learn(stream, recovered.last.container, recovered.last.offset, recovered.last.us)
            if recovered.last.container == tail // size:
                stream.container_end = (recovered.last.container + 1) * size
        if here and not recovered.any:
            hidden = self._guess(here, tail)
            if hidden == NEVER:
                self.broken = True
                at_store32(address(stream.closed), 1)
                return 0
            following = hidden
        for number in here:
            sequence = number
            first = self._first_of(sequence, address(first_us))
            if first != OFFSET_UNKNOWN:
                break
        if first == OFFSET_UNKNOWN or first > following:
            first = following
        stream.next = following
        stream.hot_first = stream.hot_kept = stream.hot_end = following
        stream.visible_start = recovered.start
        at_store64(address(stream.first), first)
        at_store64(address(stream.visible), following)
        return 0

    def _guess(self, here, tail):
        """Nothing can be read from the base on: the next offset is above all that there can have been. NEVER: nothing tells."""
        sequence: uint64_t
        first: uint64_t
        first_us: uint64_t = 0
        size: uint64_t = self.managed.container_size
        lsn: uint64_t = tail
        for number in reversed(here):
            sequence = number
            first = self._first_of(sequence, address(first_us))
            if first != OFFSET_UNKNOWN and first != OFFSET_PENDING:
                return first + (lsn - sequence * size) // STREAM_RECORD_LEAST + 1
        # A log whose first block never became durable is empty. If containers went before, or something is damaged, that is not so.
        return NEVER if here[0] != 1 or self.damage else 0

    def _first_of(self, sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
        """First offset of a container: what is known of it, else what a reader finds."""
        reader: pointer[stream_reader_t]
        first: uint64_t = stream_known(self.stream, sequence, first_us)
        if first != OFFSET_UNKNOWN:
            return first
        reader = stream_reader_new(self.stream)
        if reader == NULL:
            raise MemoryError
        with nogil:
            first = stream_first_of(reader, sequence, first_us)
            self.opened_bytes += reader.bytes_read
            stream_reader_free(reader)
        return first

    # --- appending and reading (Python callers) ---------------------------------------------------------------------------

    def append(self, exchange: bytes, routing_key: bytes, header: bytes, body: bytes, flags: int = 0) -> tuple:
        """Appends a message. Returns (offset, ticket). Raises: StoreError when it is not taken."""
        ticket: uint64_t = 0
        content: pointer[content_t] = content_from_bytes(exchange, routing_key, header, body, flags, 0)
        offset: uint64_t = stream_append(self.stream, content, 0, address(ticket))
        content_decref(content)
        if offset == STREAM_FAILED:
            raise StoreError(f"stream {self.queue_id} took no message")
        return offset, ticket

    def last_origin(self, offset: int) -> int:
        """The highest position that a transaction brought a message at or behind `offset` here under (`stream_append`); 0: none did.

        The durable part is read. Raises: OSError. O(records behind the offset).
        """
        step: c_int
        highest: uint64_t = 0
        start: uint64_t = offset
        reader: pointer[stream_reader_t] = stream_reader_new(self.stream)
        if reader == NULL:
            raise MemoryError
        with nogil:
            step = _last_origin(reader, start, address(highest))
            stream_reader_free(reader)
        if step == STEP_IO:
            raise OSError(EIO, f"stream {self.queue_id} can't be read")
        return highest

    def hot(self, offset: int, count: int = 1, max_bytes: int = 1 << 20, values: object = None, unfiltered: bool = False) -> tuple:
        """A hot read: (outcome, next offset, [(offset, exchange, routing key, header, body)])."""
        batch: stream_batch_t
        chosen: pointer[stream_filter_t] = NULL
        memset(address(batch), 0, sizeof(stream_batch_t))
        if values is not None:
            chosen = stream_filter_new(values, unfiltered)
        outcome: c_int = stream_hot_read(self.stream, offset, count, max_bytes, chosen, address(batch))
        stream_filter_free(chosen)
        return outcome, batch.next_offset, stream_batch_items(address(batch))

    # --- keeping ----------------------------------------------------------------------------------------------------------

    def maintain(self, max_bytes: int = 0, max_age_ms: int = 0) -> bool:
        """One pass: containers in front of the tail, the base, retention (0: no bound); of an idle stream its end is proven and its memory
        given back. True when it should be called again soon. Raises: OSError."""
        stream: pointer[stream_t] = self.stream
        appended: uint64_t = at_load64(address(stream.appended))
        now: int64_t = self.clock.monotonic_ns() // 1_000_000
        busy: bint
        if at_load32(address(stream.closed)):
            return False
        if appended != self.seen:
            self.seen = appended
            self.seen_ms = now
            self.cooled = False
        busy = self.waiting
        if busy or now - self.seen_ms < COOL_MS or not self.cooled:
            self.managed.seal()
            self._advance()
            self.prepare()
        if not busy and now - self.seen_ms >= SETTLE_MS:
            if self._mark(appended):
                writer_kick(address(self.writer.writer))
                busy = True
            if not self.cooled:
                log_release(self.managed.log)
                if now - self.seen_ms >= COOL_MS:
                    self._cool()
        if (max_bytes or max_age_ms) and not self.inbound:
            self.retain(max_bytes, max_age_ms)
        return busy

    def forget_hot(self) -> None:
        """Lets the messages of the hot window go: they are read from the disk. Any thread."""
        with nogil:
            stream_cool(self.stream)

    def _cool(self):
        self.cooled = True
        stream_cool(self.stream)
        self.managed.set_ahead(0)
        self.managed.set_needed(0)
        self.managed.set_most(0)
        self.managed.shed()
        self.managed.set_most(UNBOUNDED)

    def _advance(self):
        """The base goes to the container in which the last visible message starts; the next block tells it (I1)."""
        size: uint64_t = self.managed.log.container_size
        to: uint64_t
        spin_lock(address(self.stream.hot_lock))
        to = self.stream.visible_start // size * size
        spin_unlock(address(self.stream.hot_lock))
        if to > at_load64(address(self.managed.log.base)):
            check(
                to <= at_load64(address(self.managed.log.durable)),
                b"stream_files I1 the base is durable",
                to,
                self.managed.log.durable,
            )
            at_store64(address(self.managed.log.base), to)

    @property
    def waiting(self) -> bool:
        """Whether the writer has something to do for it."""
        state: uint32_t
        spin_lock(address(self.managed.log.lock))
        state = self.stream.dirty.state
        spin_unlock(address(self.managed.log.lock))
        return state != DIRTY_NOT

    @property
    def starved(self) -> bool:
        """Whether the writer waits for a container of it."""
        state: uint32_t
        spin_lock(address(self.managed.log.lock))
        state = self.stream.dirty.state
        spin_unlock(address(self.managed.log.lock))
        return state == DIRTY_STARVED

    def prepare(self) -> int:
        """Makes containers that are wanted now. Returns how many, 0: the writer can't go on. A full disk is no error: `managed.low` tells.
        Raises: OSError."""
        managed: ManagedLog = self.managed
        size: uint64_t = managed.log.container_size
        made = 0
        starved = self.starved
        if managed.log.container_count == 0 and not starved and not self.waiting:
            return 0
        if not self.made:
            if not self.shared.parent_made:
                self.files.make_dir(f"{self.store_dir}/streams")
                self.shared.parent_made = True
            self.files.make_dir(self.directory)
            self.made = True
        if starved and self.cooled is False and managed.tail // size > 1 and managed.ahead * size < AHEAD_BYTES_MAX:
            managed.set_ahead(max(1, managed.ahead * 2))
        elif managed.ahead == 0 and managed.tail % size > size // 2:
            managed.set_ahead(1)
        if managed.file_count == 0:
            made = managed.prepare(False, 1)  # its name is durable before there is a second one: no log begins with that
        made += managed.prepare(False)
        if starved and self._can_go_on():
            writer_resume(address(self.writer.writer), address(self.stream.dirty))
            writer_kick(address(self.writer.writer))
        elif starved and managed.low and writer_waive(address(self.writer.writer), address(self.stream.dirty)):
            writer_kick(address(self.writer.writer))
            made += 1  # no container, but the other logs need not wait for one
        return made

    def letter(self) -> None:
        """A dead letter was appended; the end of its original comes next, and is not on disk before it (writer.py, I5)."""
        writer_letter(address(self.writer.writer), address(self.stream.dirty))

    def _can_go_on(self):
        """Whether the container is ready that the writer comes to next: the tail may be far ahead of it."""
        log_: pointer[log_t] = self.managed.log
        buffer: pointer[buffer_t]
        container: pointer[container_t] = NULL
        ready: bint
        spin_lock(address(log_.lock))
        buffer = log_.first
        while buffer != NULL and buffer != log_.last and buffer.taken >= buffer.used:
            buffer = buffer.next
        if buffer != NULL:
            container = log_container(log_, buffer.start // log_.container_size)
        ready = container != NULL and container.state == CONTAINER_READY
        spin_unlock(address(log_.lock))
        return ready

    def retain(self, max_bytes: int, max_age_ms: int) -> int:
        """Removes the oldest containers while the stream is larger than `max_bytes`, and those whose last message is older than
        `max_age_ms` (0: no such bound); never one that recovery needs. Returns how many. Raises: OSError."""
        managed: ManagedLog = self.managed
        size: uint64_t = managed.log.container_size
        sequence: uint64_t
        following: uint64_t
        first: uint64_t
        first_us: uint64_t = 0
        sealed: bint
        oldest_us: uint64_t = max(0, self.clock.wall_ms() - max_age_ms) * 1000 if max_age_ms else 0
        removed = 0
        while True:
            spin_lock(address(managed.log.lock))
            sequence = managed.log.first_sequence
            sealed = managed.log.container_count > 1 and managed.log.containers[0].state == CONTAINER_SEALED
            spin_unlock(address(managed.log.lock))
            if not sealed or sequence >= at_load64(address(managed.log.base_durable)) // size:
                break
            pinned = None if managed.pins is None else managed.pins()
            if pinned is not None and sequence >= pinned:
                break  # the data plane reads it (dataplane/streams.py); its pins end by themselves
            # The next container's first message is as old as this one's last, or younger.
            following = sequence + 1
            first = self._first_of(following, address(first_us))
            if not (max_bytes and stream_bytes(self.stream) > max_bytes) and not (first_us and first_us < oldest_us):
                break
            while first == OFFSET_UNKNOWN and following < at_load64(address(managed.log.base_durable)) // size:
                following += 1  # it can't be read
                first = self._first_of(following, address(first_us))
            if first == OFFSET_UNKNOWN or first == OFFSET_PENDING:
                break
            if first > at_load64(address(self.stream.first)):
                at_store64(address(self.stream.first), first)
            spin_lock(address(managed.log.lock))
            log_forget_containers(managed.log, sequence + 1)
            spin_unlock(address(managed.log.lock))
            stream_forget_firsts(self.stream, sequence + 1)
            managed._sealed_ms.pop(sequence, None)
            try:
                self.files.unlink(managed.path_of(sequence))
            except FileNotFoundError:
                pass  # it was missing, and was told to be
            self.files.sync_dir(self.directory)  # I3
            removed += 1
        return removed

    def note_damage(self, sequence: int, lsn: int) -> None:
        """A reader met a place that does not check: the container is named once, and copied to the quarantine directory."""
        if sequence in self.told:
            return
        self.told.add(sequence)
        path = self.managed.path_of(sequence)
        text = f"{path}: does not check at offset {lsn % self.managed.container_size} (LSN {lsn}); what can be read behind it is served"
        self.damage.append(text)
        copy = None
        try:
            copy = quarantine(self.files, self.store_dir, f"streams-{self.queue_id}", self.directory, sequence)
        except OSError:
            pass  # a copy is a help, no promise
        log.error("damaged container of stream %d: %s%s", self.queue_id, text, f"; copied to {copy}" if copy else "")

    # --- ending -----------------------------------------------------------------------------------------------------------

    def mark(self) -> bool:
        """Proves its end before a clean stop. True: something is to be written, and then it is to be called again."""
        return not self.broken and self._mark(at_load64(address(self.stream.appended)))

    def _mark(self, appended):
        """Writes a Stream-Mark unless the end is proven. One that also tells a new base proves nothing: the next run writes in a proving
        mark's place, and must not lose a base that files were removed for. Another one follows it."""
        is_proof: bint = at_load64(address(self.managed.log.base_durable)) == at_load64(address(self.managed.log.base))
        if self.settled == appended or not stream_mark(self.stream):
            return False
        if is_proof:
            self.settled = appended
        return True

    def delete(self) -> None:
        """The queue was deleted: nothing is appended or read any more. `finish` removes the files."""
        stream_close(self.stream)
        self.managed.latch(ESHUTDOWN)
        writer_resume(address(self.writer.writer), address(self.stream.dirty))
        writer_kick(address(self.writer.writer))

    def finish(self) -> bool:
        """Removes the files of a deleted stream. False: the writer has it in hand still, try again. Raises: OSError."""
        if self.waiting:
            # A pass of the writer that had begun before `delete` may have found no container after it: nobody else makes one.
            writer_resume(address(self.writer.writer), address(self.stream.dirty))
            return False
        if not self.gone:
            self.managed.close()
            remove_files(self.files, self.directory)
            self.gone = True
            self._let_go()
        return True

    def close(self) -> None:
        """Closes the files; what was not written is gone. The writer has stopped."""
        if not self.gone:
            stream_close(self.stream)
            self.managed.close()
            self._let_go()

    def _let_go(self):
        stream_abandon(self.stream)
        stream_cool(self.stream)
        if self.held:
            self.held = False
            stream_decref(self.stream)

    # --- figures ----------------------------------------------------------------------------------------------------------

    @property
    def visible(self) -> int:
        """The first offset that readers do not see yet."""
        return at_load64(address(self.stream.visible))

    @property
    def first(self) -> int:
        """The lowest offset kept."""
        return at_load64(address(self.stream.first))

    @property
    def next(self) -> int:
        """The offset of the next message."""
        return self.stream.next

    @property
    def bytes(self) -> int:
        """Bytes from its first container to the tail."""
        return stream_bytes(self.stream)

    @property
    def hot_bytes(self) -> int:
        """Memory of its hot window."""
        return self.stream.hot_bytes

    @property
    def container_count(self) -> int:
        """Containers that it has, ready ones included."""
        return self.managed.log.container_count

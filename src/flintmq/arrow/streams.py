"""A stream's messages by offset, from its container files, in a process that is not the broker (see streams.pxd).

in: a stream's directory, and from the broker what of it is durable. out: record batches of the messages table; offsets by place and time.

I1  A row is given only when the CRC of its records matches their LSN, and only below `end`, which was durable.
I2  Offsets come in order, each once. One that can't be read is an error (StreamDamaged), or counted in `lost` when the caller asked for
    what is left.
I3  What was read below an older `end` is read anew in the last piece: a block that was half written then is not believed.

The headers are those that were published: the x-stream-offset that AMQP consumers get is put in by the broker, here it is the column
`position`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, char, declare, exceptval, nogil, p_const_char, pointer, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.flintmq.arrow.containers import Containers, content_t, view_t
from cython.cimports.flintmq.arrow.messages import put_content
from cython.cimports.flintmq.arrow.table import Table, col_bool, col_bytes, col_int32, col_int64, column_t
from cython.cimports.flintmq.arrow.text import (
    M_DELIVERIES,
    M_ENQUEUED,
    M_LSN,
    M_POSITION,
    M_PUBLISHED,
    M_QUEUE,
    M_REDELIVERED,
    put_time,
)
from cython.cimports.flintmq.store.log.record import (
    BLOCK_HEADER,
    CONTAINER_HEADER,
    CONTENT_MAX,
    RECORD_HEADER,
    SECTOR,
    STREAM_SALVAGE_EFFORT,
    align8,
    align_sector,
    block_decode,
    block_t,
    le16,
    le32,
    le64,
    record_decode,
    record_t,
)
from cython.cimports.flintmq.store.stream.stream_content import (
    RECORD_STREAM_CHUNK,
    RECORD_STREAM_MARK,
    RECORD_STREAM_MESSAGE,
    STREAM_FIXED,
    STREAM_NO_FILTER,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy

from flintmq.arrow import schema
from flintmq.store.log.containers import STREAMS, sequence_of

# no offset is that large
UNKNOWN = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)
MEMORY = 64 * 1024 * 1024

# what _content came to
GOOD = declare(c_int, 0)
UNFINISHED = declare(c_int, 1)  # its end was never written: the next message has its offset
BAD = declare(c_int, 2)
ENDED = declare(c_int, 3)
NO_MEMORY = declare(c_int, 4)
# why _fill stopped before its end
REFUSED_DAMAGE = declare(c_int, 1)
REFUSED_GAP = declare(c_int, 2)
REFUSED_END = declare(c_int, 3)
_WHY = ("", "what is written there does not check", "messages are missing", "nothing durable follows")


class StreamDamaged(Exception):
    """Offsets [offset, upto) of a stream can't be read: damaged, or retention took their container meanwhile."""

    def __init__(self, text: str, offset: int, upto: int) -> None:
        super().__init__(text)
        self.offset = offset
        self.upto = upto


@cclass
class StreamFiles:
    """One stream's containers. Not for use by two threads at once; `close` from another one waits until what is being read was read.

    Args: directory: of the stream; store_uuid: 16 bytes that its containers must name; container_size: bytes; memory: of containers
    held at most (three always). `bounds` must be called before anything is read.
    """

    def __init__(self, directory: str, store_uuid: bytes, container_size: int, memory: int = MEMORY):
        self.containers = Containers(directory, store_uuid, STREAMS, memory, container_size)
        self.size = container_size
        self.spot.at = 0

    def bounds(self, end: int) -> None:
        """Before every reading. end: the LSN below which the broker says that everything is durable. Raises: OSError."""
        low = 0
        if end != self.end:
            with self.containers.lock:
                self.containers.forget()  # I3
        try:
            names = os.listdir(self.containers.directory)
        except FileNotFoundError:
            names = []
        for name in names:
            number = sequence_of(name)
            if number is not None and (low == 0 or number < low):
                low = number
        self.low = max(1, low)
        self.end = end
        if self.spot.at and (self.spot.at - 1) // self.size < self.low:
            self.spot.at = 0

    def close(self) -> None:
        """Gives descriptors and memory back, and keeps its place: it can be used again."""
        i: uint32_t
        view: pointer[view_t]
        with self.containers.lock:
            self.containers.forget()
            for i in range(self.containers.count):
                view = address(self.containers.views[i])
                free(view.bytes)
                free(view.loaded)
                view.bytes = NULL
                view.loaded = NULL
            free(self.containers.scratch)
            self.containers.scratch = NULL
            self.containers.scratch_size = 0

    # --- blocks and records -------------------------------------------------------------------------------------------------

    def _enter(self, lsn: uint64_t, chained: bint) -> bint:
        """Into the block at `lsn`, if there is one; chained: it must follow the present one."""
        block: block_t
        offset: uint64_t = lsn % self.size
        view: pointer[view_t]
        if lsn + BLOCK_HEADER > self.end or offset + BLOCK_HEADER > self.size or lsn // self.size < self.low:
            return False
        view = self.containers.open(lsn // self.size)
        if view == NULL or not self.containers.load(view, offset, BLOCK_HEADER):
            return False
        if not block_decode(view.bytes + offset, lsn, self.size - offset, self.containers.log, address(block)):
            return False
        if (chained and block.previous != self.spot.block) or lsn + block.length > self.end:
            return False
        self.spot.block = lsn
        self.spot.block_end = lsn + block.length
        self.spot.block_us = block.time_us
        self.spot.at = lsn + BLOCK_HEADER
        return True

    def _next_block(self) -> c_int:
        """STEP_RECORD: at the first record of the next block; else why not, and nothing moved."""
        container: uint64_t = (self.spot.block_end - 1) // self.size * self.size
        candidate: uint64_t = align_sector(self.spot.block_end)
        following: uint64_t = container + self.size + CONTAINER_HEADER
        chained: bint = self.spot.block != 0
        if candidate >= self.end:
            return STEP_END
        if candidate + BLOCK_HEADER <= container + self.size:
            if self._enter(candidate, chained):
                return STEP_RECORD
            if not chained:
                return STEP_BAD
        if following >= self.end:
            return STEP_BAD if candidate < container + self.size else STEP_END
        return STEP_RECORD if self._enter(following, chained) else STEP_BAD

    def _record_at(self, lsn: uint64_t, out: pointer[record_t]) -> bint:
        """The record at a place inside the present block, checked."""
        offset: uint64_t = lsn % self.size
        length: uint64_t
        view: pointer[view_t]
        if lsn + RECORD_HEADER > self.spot.block_end:
            return False
        view = self.containers.open(lsn // self.size)
        if view == NULL or not self.containers.load(view, offset, RECORD_HEADER):
            return False
        length = le32(view.bytes + offset)
        if length < RECORD_HEADER or length > self.spot.block_end - lsn or not self.containers.load(view, offset, length):
            return False
        return record_decode(view.bytes + offset, lsn, length, self.spot.block_us, True, out)

    def _step(self, out: pointer[record_t]) -> c_int:
        """The record at the spot, which does not move; or why there is none."""
        what: c_int
        while self.spot.at >= self.spot.block_end:
            what = self._next_block()
            if what != STEP_RECORD:
                return what
        return STEP_RECORD if self._record_at(self.spot.at, out) else STEP_BAD

    def _recover(self) -> c_int:
        """Behind what does not check: to the next record that does, in this block, a later one, a later container; or STEP_END."""
        at: uint64_t = self.spot.at + 8
        container: uint64_t
        effort: uint64_t
        length: uint64_t
        record: record_t
        view: pointer[view_t]
        if self.spot.at < self.spot.block_end:
            effort = STREAM_SALVAGE_EFFORT * (self.spot.block_end - self.spot.block)
            view = self.containers.open(at // self.size)
            while at + RECORD_HEADER <= self.spot.block_end and view != NULL:
                if not self.containers.load(view, at % self.size, RECORD_HEADER):
                    break
                length = le32(view.bytes + at % self.size)
                if RECORD_HEADER <= length <= self.spot.block_end - at:
                    if effort < length:
                        break
                    effort -= length
                    if self._record_at(at, address(record)):
                        self.spot.at = at
                        return STEP_RECORD
                at += 8
            self.spot.at = self.spot.block_end
        at = align_sector(self.spot.block_end)
        container = (self.spot.block_end - 1) // self.size * self.size
        while at < self.end:
            view = self.containers.open(container // self.size)
            while view != NULL and at + BLOCK_HEADER <= container + self.size and at < self.end:
                if self._enter(at, False):
                    return STEP_RECORD
                at += SECTOR
            container += self.size
            at = container + CONTAINER_HEADER
        return STEP_END

    # --- places ---------------------------------------------------------------------------------------------------------------

    def _begin(self, sequence: uint64_t) -> void:
        """At the beginning of a container."""
        self.spot.block = 0
        self.spot.at = self.spot.block_end = sequence * self.size + CONTAINER_HEADER

    def _first_of(self, sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
        """Offset of the message that starts at the beginning of a container or behind it, and the time of its first record."""
        record: record_t
        first_us[0] = 0
        self._begin(sequence)
        if not self._enter(self.spot.at, False) or not self._record_at(self.spot.at, address(record)):
            return UNKNOWN
        first_us[0] = record.time_us
        return _told(address(record))

    def _container(self, offset: uint64_t, us: uint64_t) -> uint64_t:
        """The last container whose first offset (or first time, when `us` is given) is not above the wanted one."""
        low: uint64_t = self.low
        high: uint64_t = (self.end - 1) // self.size
        middle: uint64_t
        probe: uint64_t
        found: uint64_t
        first_us: uint64_t = 0
        while low < high:
            middle = low + (high - low + 1) // 2
            probe = middle
            found = self._first_of(probe, address(first_us))
            while found == UNKNOWN and probe < high:
                probe += 1
                found = self._first_of(probe, address(first_us))
            if found != UNKNOWN and (first_us < us if us else found <= offset):
                low = probe
            else:
                high = middle - 1
        return low

    def _hop(self, offset: uint64_t, us: uint64_t, lsn: uint64_t) -> void:
        """From the end of a block (or the beginning of a container) on to the block in which the message with this offset (time, LSN)
        starts: of each block one record is looked at. Damage on the way is passed over."""
        before: spot_t
        record: record_t
        what: c_int
        told: uint64_t
        beyond: bint
        while True:
            before = self.spot
            what = self._next_block()
            if what == STEP_BAD:
                what = self._recover()
            if what != STEP_RECORD:
                self.spot = before
                break
            told = UNKNOWN
            beyond = False
            if lsn:
                beyond = self.spot.block > lsn
            elif self._record_at(self.spot.at, address(record)):
                told = _told(address(record))
                beyond = record.time_us >= us if us else told != UNKNOWN and told > offset
            if beyond:
                if before.block:
                    self.spot = before
                break
            if us == 0 and told != UNKNOWN:
                self.hint_offset = told
                self.hint_block = self.spot.block
            self.spot.at = self.spot.block_end
        if self.spot.block:
            self.spot.at = self.spot.block + BLOCK_HEADER

    def _seek(self, offset: uint64_t) -> void:
        """To the block in which the message starts; what is before it there is passed by reading."""
        sequence: uint64_t = self._container(offset, 0)
        if (
            self.hint_block
            and self.hint_block // self.size == sequence
            and self.hint_offset <= offset
            and self._enter(self.hint_block, False)
        ):
            self.spot.at = self.spot.block_end
        else:
            self._begin(sequence)
        self._hop(offset, 0, 0)

    # --- contents -------------------------------------------------------------------------------------------------------------

    def _content(self, record: pointer[record_t], out: pointer[content_t]) -> c_int:
        """A message's content: where it lies in its record, or put together from its chunks. The spot is behind it then."""
        data: pointer[cython.const[uint8_t]] = record.data
        fixed: uint64_t = STREAM_FIXED
        start: uint64_t = record.lsn
        total: uint64_t
        filled: uint64_t
        size: uint64_t
        what: c_int
        grown: pointer[uint8_t]
        if le16(data + 24) != STREAM_NO_FILTER:
            fixed += le16(data + 24)
        out.body_len = le32(data + 8)
        out.header_len = le32(data + 12)
        out.route_len = le16(data + 16)
        out.flags = data[18]
        out.priority = data[19]
        out.published_us = record.time_us
        filled = le32(data + 20)
        total = cast(uint64_t, out.body_len) + out.header_len + out.route_len
        if record.size != fixed + filled or filled > total or total > CONTENT_MAX:
            return BAD
        data += fixed
        self.spot.at = start + align8(record.length)
        if filled < total:
            if total > self.containers.scratch_size:
                grown = cast(pointer[uint8_t], realloc(self.containers.scratch, total))
                if grown == NULL:
                    return NO_MEMORY
                self.containers.scratch = grown
                self.containers.scratch_size = total
            memcpy(self.containers.scratch, data, filled)
            while filled < total:
                what = self._step(record)
                if what == STEP_BAD:
                    return BAD
                if what == STEP_END:
                    return ENDED
                if (
                    record.type != RECORD_STREAM_CHUNK
                    or record.undo_prev != start
                    or record.size < 12
                    or le32(record.data + 8) != filled
                    or record.size - 12 > total - filled
                ):
                    return UNFINISHED
                size = record.size - 12
                memcpy(self.containers.scratch + filled, record.data + 12, size)
                filled += size
                self.spot.at = record.lsn + align8(record.length)
            data = self.containers.scratch
        out.route = data
        out.header = data + out.route_len
        out.body = out.header + out.header_len
        out.end = self.spot.at
        return GOOD

    def _fill(
        self,
        table: Table | None,
        upto: uint64_t,
        bytes_max: uint64_t,
        tolerant: bint,
        queue: pointer[cython.const[char]],
        queue_size: uint32_t,
        body_max: int64_t,
    ) -> uint32_t:
        """Rows from `following` on; returns how many. `_refused` says when something other than a limit ended it."""
        columns: pointer[column_t] = table.columns
        row: uint32_t = 0
        used: uint64_t = 0
        found: uint64_t
        size: uint64_t
        lsn: uint64_t
        what: c_int
        content: content_t
        record: record_t
        before: spot_t
        self._refused = 0
        while row < table.room and self.following < upto:
            what = self._step(address(record))
            if what == STEP_RECORD:
                if record.type != RECORD_STREAM_MESSAGE or record.size < STREAM_FIXED:
                    self.spot.at += align8(record.length)
                    continue
                found = le64(record.data)
                if found < self.following:
                    self.spot.at += align8(record.length)
                    continue
                if found > self.following:
                    if not tolerant:
                        self._refused = REFUSED_GAP
                        break
                    found = min(found, upto)
                    self.lost += found - self.following
                    self.following = found
                    continue
                size = le32(record.data + 8)
                if row and used + size > bytes_max:
                    break
                before = self.spot
                lsn = record.lsn
                what = self._content(address(record), address(content))
                if what == GOOD:
                    if put_content(table, row, address(content), body_max):
                        col_bytes(columns + M_QUEUE, row, queue, queue_size)
                        col_int64(columns + M_POSITION, row, cast(int64_t, found))
                        col_int64(columns + M_LSN, row, cast(int64_t, lsn))
                        put_time(columns + M_ENQUEUED, row, content.published_us)
                        put_time(columns + M_PUBLISHED, row, content.published_us)
                        col_bool(columns + M_REDELIVERED, row, False)
                        col_int32(columns + M_DELIVERIES, row, 0)
                        row += 1
                        used += size
                        self.following = found + 1
                        continue
                    what = BAD
                if what == UNFINISHED:
                    continue
                if what == NO_MEMORY:
                    self.containers.error = 12
                    self.spot = before
                    break
                if what == ENDED:
                    self.spot = before
                    what = STEP_END
                else:
                    if self.spot.at == before.at:  # its own fields make no sense
                        self.spot.at += align8(record.length)
                    if not tolerant:
                        self.spot = before
                        self._refused = REFUSED_DAMAGE
                        break
                    self.lost += 1
                    self.following = found + 1
                    continue
            if what == STEP_BAD and self._recover() == STEP_RECORD:
                continue  # whether something is missing shows with the next message
            # Below `end` every message that was visible stands: what is wanted and not there is lost.
            if not tolerant:
                self._refused = REFUSED_END
                break
            self.lost += upto - self.following
            self.following = upto
        return row

    # --- for Python callers -----------------------------------------------------------------------------------------------------

    def batches(
        self,
        first: int,
        upto: int,
        *,
        queue: str,
        columns: Iterable[str] | None = None,
        body: str | None = None,
        tolerant: bool = False,
        rows_max: int = schema.ROWS_PER_BATCH,
        bytes_max: int = schema.BYTES_PER_BATCH,
    ) -> Iterator[Any]:
        """Record batches of the messages with offsets [first, upto), in order; all of them were visible.

        Args: queue: name for the column; columns, body, rows_max, bytes_max: as for rows_to_batches; tolerant: leave out what can't be
        read and count it in `lost`. Raises: StreamDamaged, after all that stands before it; OSError; ValueError for an unknown column.
        """
        wanted = frozenset(name for name, _, _ in schema.select("messages", columns))
        arrow = schema.messages_schema(columns)
        body_max: int64_t = schema.body_limit(body)
        name: bytes = queue.encode("utf-8", "replace")
        text: p_const_char = PyBytes_AS_STRING(name)
        text_size: uint32_t = PyBytes_GET_SIZE(name)
        offset: uint64_t = first
        end: uint64_t = upto
        most: uint64_t = bytes_max
        room: uint32_t
        rows: uint32_t
        table: Table
        refused: c_int
        skip: bint = tolerant
        self.lost = 0
        while offset < end:
            room = max(1, min(cast(uint64_t, rows_max), end - offset))
            table = Table(schema.MESSAGES, wanted, arrow, room)
            with self.containers.lock:
                with nogil:
                    if self.spot.at == 0 or self.following != offset:
                        self._seek(offset)
                        self.following = offset
                    rows = self._fill(table, end, most, skip, text, text_size, body_max)
                    refused = self._refused
            offset = self.following
            self.containers.raise_error()
            if rows:
                yield table.finish(rows)
            if refused:
                self.spot.at = 0
                raise StreamDamaged(f"the message at offset {offset} can't be read: {_WHY[refused]}", offset, upto)

    def place(self, offset: int) -> tuple:
        """(LSN, time in microseconds) of a visible message. Raises: StreamDamaged, OSError."""
        record: record_t
        wanted: uint64_t = offset
        what: c_int = STEP_RECORD
        found: bint = False
        with self.containers.lock:
            with nogil:
                self._seek(wanted)
                while what == STEP_RECORD:
                    what = self._step(address(record))
                    if what == STEP_BAD:
                        what = self._recover()
                    elif what == STEP_RECORD:
                        if record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED and le64(record.data) >= wanted:
                            found = True
                            break
                        self.spot.at += align8(record.length)
                self.spot.at = 0
            found = found and le64(record.data) == wanted
        self.containers.raise_error()
        if not found:
            raise StreamDamaged(f"the message at offset {offset} can't be read", offset, offset + 1)
        return record.lsn, record.time_us

    def offset_behind(self, lsn: int) -> object:
        """Offset of the first message that starts at this LSN or behind it; None: none does that is durable. Raises: OSError."""
        wanted: uint64_t = max(lsn, self.low * self.size)
        if wanted >= self.end:
            return None
        with self.containers.lock:
            with nogil:
                self._begin(wanted // self.size)
                self._hop(0, 0, wanted)
            return self._first_message(wanted, 0)

    def offset_since(self, time_us: int) -> object:
        """Offset of the first message that came at this time (microseconds) or later; None: none did. When the clock was set back in
        between: some offset near it. Raises: OSError."""
        wanted: uint64_t = max(1, time_us)
        if self.end == 0:
            return None
        with self.containers.lock:
            with nogil:
                self._begin(self._container(0, wanted))
                self._hop(0, wanted, 0)
            return self._first_message(0, wanted)

    def _first_message(self, lsn: uint64_t, us: uint64_t) -> object:
        record: record_t
        what: c_int = STEP_RECORD
        found: bint = False
        with nogil:
            while what == STEP_RECORD:
                what = self._step(address(record))
                if what == STEP_BAD:
                    what = self._recover()
                elif what == STEP_RECORD:
                    if record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED and record.lsn >= lsn and record.time_us >= us:
                        found = True
                        break
                    self.spot.at += align8(record.length)
            self.spot.at = 0
        self.containers.raise_error()
        return le64(record.data) if found else None


@cfunc
@nogil
@exceptval(check=False)
def _told(record: pointer[record_t]) -> uint64_t:
    """The offset that a record tells: of the message that starts with it or behind it."""
    if record.size < 8:
        return UNKNOWN
    if record.type == RECORD_STREAM_MESSAGE or record.type == RECORD_STREAM_MARK:
        return le64(record.data)
    if record.type == RECORD_STREAM_CHUNK:
        return le64(record.data) + 1
    return UNKNOWN

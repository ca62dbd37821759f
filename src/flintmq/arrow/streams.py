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
from cython import NULL, address, bint, cast, cclass, cfunc, char, declare, exceptval, nogil, p_const_char, p_void, pointer, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.flintmq.arrow.containers import Containers, stored_content_t, view_t
from cython.cimports.flintmq.arrow.keys import KeyPart
from cython.cimports.flintmq.arrow.messages import put_content
from cython.cimports.flintmq.arrow.table import Table, col_bool, col_bytes, col_int32, col_int64, column_t
from cython.cimports.flintmq.arrow.text import M_DELIVERIES, M_ENQUEUED, M_LSN, M_POSITION, M_PUBLISHED, M_QUEUE, M_REDELIVERED, put_time
from cython.cimports.flintmq.store.log.reader import (
    STEP_BAD, STEP_END, STEP_IO, STEP_RECORD, log_place_t, log_reader_t, reader_begin, reader_enter, reader_inside, reader_keep,
    reader_next_block, reader_pass, reader_return, reader_salvage, reader_step,
)  # fmt: skip
from cython.cimports.flintmq.store.log.record import BLOCK_HEADER, le32, le64, record_t
from cython.cimports.flintmq.store.stream.stream_containers import OFFSET_UNKNOWN, stream_container, stream_look, stream_told
from cython.cimports.flintmq.store.stream.stream_content import (
    RECORD_STREAM_CHUNK, RECORD_STREAM_MESSAGE, STREAM_FIXED, stream_head, stream_head_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy

from flintmq.arrow import schema
from flintmq.store.log.containers import STREAMS, sequence_of

MEMORY = 64 * 1024 * 1024
# bytes of contents of other parts that are passed over in one piece, in record batches of the size that the caller wants; and bytes that a
# message counts as at least
PASSED_BATCHES = declare(c_int, 2)
PASSED_BYTES_MIN = declare(c_int, 100)

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


@cfunc
@nogil
@exceptval(check=False)
def _first_of(context: p_void, sequence: uint64_t, first_us: pointer[uint64_t]) -> uint64_t:
    return stream_look(cast(pointer[log_reader_t], context), sequence, first_us)


@cfunc
@nogil
@exceptval(check=False)
def _put_facts(columns: pointer[column_t], row: uint32_t, offset: uint64_t, lsn: uint64_t, published_us: uint64_t) -> void:
    """What a row of a stream's message has beside its content and queue: it is never redelivered here."""
    col_int64(columns + M_POSITION, row, cast(int64_t, offset))
    col_int64(columns + M_LSN, row, cast(int64_t, lsn))
    put_time(columns + M_ENQUEUED, row, published_us)
    put_time(columns + M_PUBLISHED, row, published_us)
    col_bool(columns + M_REDELIVERED, row, False)
    col_int32(columns + M_DELIVERIES, row, 0)


@cclass
class StreamFiles:
    """One stream's containers. Not for use by two threads at once; `close` from another one waits until what is being read was read.

    Args: directory: of the stream; store_uuid: 16 bytes that its containers must name; container_size: bytes; memory: of containers
    held at most (three always). `bounds` must be called before anything is read.
    """

    def __init__(self, directory: str, store_uuid: bytes, container_size: int, memory: int = MEMORY):
        self.containers = Containers(directory, store_uuid, STREAMS, memory, container_size)
        self.size = container_size
        self.reader = address(self.containers.reader)
        self.reader.at = 0

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
        self.end = self.reader.limit = end
        if self.reader.at and (self.reader.at - 1) // self.size < self.low:
            self.reader.at = 0

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

    # --- places ---------------------------------------------------------------------------------------------------------------

    def _hop(self, offset: uint64_t, us: uint64_t, lsn: uint64_t) -> void:
        """From the end of a block (or the beginning of a container) on to the block in which the message with this offset (time, LSN)
        starts: of each block one record is looked at. Damage on the way is passed over."""
        reader: pointer[log_reader_t] = self.reader
        before: log_place_t
        record: record_t
        step: c_int
        known_offset: uint64_t
        beyond: bint
        while True:
            reader_keep(reader, address(before))
            step = reader_next_block(reader)
            if step == STEP_BAD:
                step = reader_salvage(reader)
            if step != STEP_RECORD:
                reader_return(reader, address(before))
                break
            known_offset = OFFSET_UNKNOWN
            beyond = False
            if lsn:
                beyond = reader.block > lsn
            elif reader_inside(reader, reader.at, address(record)):
                known_offset = stream_told(address(record))
                beyond = record.time_us >= us if us else known_offset != OFFSET_UNKNOWN and known_offset > offset
            if beyond:
                if before.block:
                    reader_return(reader, address(before))
                break
            if us == 0 and known_offset != OFFSET_UNKNOWN:
                self.hint_offset = known_offset
                self.hint_block = reader.block
            reader.at = reader.block_end
        if reader.block:
            reader.at = reader.block + BLOCK_HEADER

    def _seek(self, offset: uint64_t, us: uint64_t) -> void:
        """To the block in which the message with this offset (or the first one of this time, when `us` is given) starts; what is before it
        there is passed by reading."""
        sequence: uint64_t = stream_container(self.reader, self.low, (self.end - 1) // self.size, offset, us, _first_of, self.reader)
        if sequence == 0:  # the disk refused
            self.reader.at = 0
            return
        if (
            us == 0
            and self.hint_block
            and self.hint_block // self.size == sequence
            and self.hint_offset <= offset
            and reader_enter(self.reader, self.hint_block, False)
        ):
            self.reader.at = self.reader.block_end
        else:
            reader_begin(self.reader, sequence)
        self._hop(offset, us, 0)

    # --- contents -------------------------------------------------------------------------------------------------------------

    def _content(self, record: pointer[record_t], out: pointer[stored_content_t]) -> c_int:
        """A message's content: where it lies in its record, or put together from its chunks. The reader's place is behind it then."""
        head: stream_head_t
        data: pointer[cython.const[uint8_t]]
        start: uint64_t = record.lsn
        total: uint64_t
        filled: uint64_t
        size: uint64_t
        step: c_int
        grown: pointer[uint8_t]
        if not stream_head(record, address(head)):
            return BAD
        out.body_len = head.body_len
        out.header_len = head.header_len
        out.route_len = head.route_len
        out.flags = head.flags
        out.priority = head.priority
        out.published_us = record.time_us
        filled = head.here
        total = head.total
        data = head.run
        reader_pass(self.reader, record)
        if filled < total:
            if total > self.containers.scratch_size:
                grown = cast(pointer[uint8_t], realloc(self.containers.scratch, total))
                if grown == NULL:
                    return NO_MEMORY
                self.containers.scratch = grown
                self.containers.scratch_size = total
            memcpy(self.containers.scratch, data, filled)
            while filled < total:
                step = reader_step(self.reader, record)
                if step == STEP_BAD:
                    return BAD
                if step != STEP_RECORD:
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
                reader_pass(self.reader, record)
            data = self.containers.scratch
        out.route = data
        out.header = data + out.route_len
        out.body = out.header + out.header_len
        out.end = self.reader.at
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
        part: KeyPart | None,
    ) -> uint32_t:
        """Rows from `following` on; returns how many. `_refused` says when something other than a limit ended it. part: None: all."""
        columns: pointer[column_t] = table.columns
        row: uint32_t = 0
        used: uint64_t = 0
        passed: uint64_t = 0
        offset: uint64_t
        size: uint64_t
        lsn: uint64_t
        step: c_int
        content: stored_content_t
        record: record_t
        before: log_place_t
        self._refused = 0
        while row < table.room and self.following < upto:
            step = self._next(address(record))
            if step == STEP_RECORD:
                offset = le64(record.data)
                if offset > self.following:
                    if not self._lose(min(offset, upto), tolerant, REFUSED_GAP):
                        break
                    continue
                size = le32(record.data + 8)
                if row and used + size > bytes_max:
                    break
                reader_keep(self.reader, address(before))
                lsn = record.lsn
                step = self._content(address(record), address(content))
                if step == GOOD and part is not None and not part.here(address(content), offset):
                    self.following = offset + 1
                    passed += size + PASSED_BYTES_MIN
                    if passed > PASSED_BATCHES * bytes_max:
                        break
                    continue
                if step == GOOD:
                    if put_content(table, row, address(content), body_max):
                        col_bytes(columns + M_QUEUE, row, queue, queue_size)
                        _put_facts(columns, row, offset, lsn, content.published_us)
                        row += 1
                        used += size
                        self.following = offset + 1
                        continue
                    step = BAD
                step = self._unread(step, address(record), address(before), tolerant)
                if step == STEP_RECORD:
                    continue
                if step == STEP_BAD:
                    break
            if step == STEP_BAD:
                step = reader_salvage(self.reader)
                if step == STEP_RECORD:
                    continue  # whether something is missing shows with the next message
            if step == STEP_IO:
                break
            # Below `end` every message that was visible stands: step is wanted and not there is lost.
            if not self._lose(upto, tolerant, REFUSED_END):
                break
        return row

    def _next(self, record: pointer[record_t]) -> c_int:
        """Steps to a message at or behind `following`."""
        step: c_int = reader_step(self.reader, record)
        while step == STEP_RECORD:
            if record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED and le64(record.data) >= self.following:
                break
            reader_pass(self.reader, record)
            step = reader_step(self.reader, record)
        return step

    def _unread(self, step: c_int, record: pointer[record_t], before: pointer[log_place_t], tolerant: bint) -> c_int:
        """The message at `following` can't be read. STEP_RECORD: it was passed; STEP_BAD: no more rows; else how the log ends there."""
        if step == UNFINISHED:
            return STEP_RECORD
        if step == ENDED:
            reader_return(self.reader, before)
            return STEP_IO if self.reader.error else STEP_END
        if step == NO_MEMORY:
            self.containers.error = 12
        else:
            if self.reader.at == before.at:  # its own fields make no sense
                reader_pass(self.reader, record)
            if self._lose(self.following + 1, tolerant, REFUSED_DAMAGE):
                return STEP_RECORD
        reader_return(self.reader, before)
        return STEP_BAD

    def _lose(self, upto: uint64_t, tolerant: bint, refusal: c_int) -> bint:
        """Messages before `upto` are missing. True: they are counted as lost, and passed."""
        if not tolerant:
            self._refused = refusal
            return False
        self.lost += upto - self.following
        self.following = upto
        return True

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
        part: KeyPart | None = None,
        rows_max: int = schema.ROWS_PER_BATCH,
        bytes_max: int = schema.BYTES_PER_BATCH,
    ) -> Iterator[Any]:
        """Record batches of the messages with offsets [first, upto), in order; all of them were visible.

        Args: queue: name for the column; columns, body, rows_max, bytes_max: as for rows_to_batches; tolerant: leave out what can't be
        read and count it in `lost`; part: only messages that belong to it, and an empty batch where many others stand.
        Raises: StreamDamaged, after all that stands before it; OSError; ValueError for an unknown column.
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
                    if self.reader.at == 0 or self.following != offset:
                        self._seek(offset, 0)
                        self.following = offset
                    rows = self._fill(table, end, most, skip, text, text_size, body_max, part)
                    refused = self._refused
            offset = self.following
            self.containers.raise_error()
            if rows or (part is not None and not refused):
                yield table.finish(rows)
            if refused:
                self.reader.at = 0
                raise StreamDamaged(f"the message at offset {offset} can't be read: {_WHY[refused]}", offset, upto)

    def place(self, offset: int) -> tuple:
        """(LSN, time in microseconds) of a visible message. Raises: StreamDamaged, OSError."""
        record: record_t
        wanted: uint64_t = offset
        step: c_int = STEP_RECORD
        is_found: bint = False
        with self.containers.lock:
            with nogil:
                self._seek(wanted, 0)
                while step == STEP_RECORD:
                    step = reader_step(self.reader, address(record))
                    if step == STEP_BAD:
                        step = reader_salvage(self.reader)
                    elif step == STEP_RECORD:
                        if record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED and le64(record.data) >= wanted:
                            is_found = True
                            break
                        reader_pass(self.reader, address(record))
                self.reader.at = 0
            is_found = is_found and le64(record.data) == wanted
        self.containers.raise_error()
        if not is_found:
            raise StreamDamaged(f"the message at offset {offset} can't be read", offset, offset + 1)
        return record.lsn, record.time_us

    def offset_behind(self, lsn: int) -> object:
        """Offset of the first message that starts at this LSN or behind it; None: none does that is durable. Raises: OSError."""
        wanted: uint64_t = max(lsn, self.low * self.size)
        if wanted >= self.end:
            return None
        with self.containers.lock:
            with nogil:
                reader_begin(self.reader, wanted // self.size)
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
                self._seek(0, wanted)
            return self._first_message(0, wanted)

    def _first_message(self, lsn: uint64_t, us: uint64_t) -> object:
        record: record_t
        step: c_int = STEP_RECORD
        is_found: bint = False
        with nogil:
            while step == STEP_RECORD:
                step = reader_step(self.reader, address(record))
                if step == STEP_BAD:
                    step = reader_salvage(self.reader)
                elif step == STEP_RECORD:
                    if record.type == RECORD_STREAM_MESSAGE and record.size >= STREAM_FIXED and record.lsn >= lsn and record.time_us >= us:
                        is_found = True
                        break
                    reader_pass(self.reader, address(record))
            self.reader.at = 0
        self.containers.raise_error()
        return le64(record.data) if is_found else None

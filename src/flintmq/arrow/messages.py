"""Messages of a set or browse as record batches (see messages.pxd; docs/DATAPLANE.md).

in: what the broker's call `rows` answers: rows of 32 bytes, inline contents; the containers. out: record batches of the messages table.

I1  A row becomes a message only when the record at its place checks, begins the message with the row's id and has its body length.
    Every other row is reported by its index: it moved (was copied forward) and is to be asked for again.
I2  Either all rows of a call are decoded, but those that the caller leaves out by name, or none is handed out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import cython
from cython import NULL, address, bint, cast, cclass, declare, gil, nogil, p_char, p_const_char, pointer, sizeof
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.flintmq.arrow.containers import CONTENT_GOOD, Containers, known_block_t, stored_content_t
from cython.cimports.flintmq.arrow.table import Table, col_bool, col_bytes, col_int32, col_int64, column_t
from cython.cimports.flintmq.arrow.text import (
    M_BODY, M_DELIVERIES, M_ENQUEUED, M_EXCHANGE, M_LSN, M_POSITION, M_PUBLISHED, M_QUEUE, M_REDELIVERED, M_ROUTING_KEY, put_header,
    put_route, put_time, route_good,
)  # fmt: skip
from cython.cimports.flintmq.store.log.reader import reader_record_at
from cython.cimports.flintmq.store.log.record import (
    RECORD_COPY, RECORD_ENQUEUE, RECORD_MESSAGE, RECORD_START, align8, le16, le32, le64, position_waits, record_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc

from flintmq.arrow import schema

# A message may go to many queues: its Message-Enqueue for this one is looked for among this many records behind it.
ENQUEUES_LOOKED_AT = declare(uint32_t, 64)


class Moved(Exception):
    """Rows whose records do not check where the broker said: ask for them again. `rows`: their indices in the payload, ascending."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"{len(rows)} messages moved, the first is row {rows[0]}")
        self.rows = rows


class Unreadable(ValueError):
    """Rows whose content contradicts itself though it is what was written: it never becomes a message. `rows`: as in Moved."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"{len(rows)} messages contradict themselves, the first is row {rows[0]}")
        self.rows = rows


def put_content(table: Table | None, row: uint32_t, content: pointer[stored_content_t], body_max: int64_t) -> bint:
    size: uint64_t = content.body_len
    if not route_good(content.route, content.route_len) or not put_header(table, row, content.header, content.header_len):
        return False
    put_route(table.columns + M_EXCHANGE, table.columns + M_ROUTING_KEY, row, content.route, content.route_len)
    if body_max >= 0 and size > cast(uint64_t, body_max):
        size = cast(uint64_t, body_max)
    col_bytes(table.columns + M_BODY, row, content.body, size)
    return True


def enqueued_us(containers: Containers | None, message: uint64_t, after: uint64_t, queue: uint64_t, position: uint64_t) -> uint64_t:
    record: record_t
    known: pointer[known_block_t] = containers.block_of(after - 8)
    size: uint64_t = containers.container_size
    end: uint64_t
    time_us: uint64_t = 0
    i: uint32_t
    if known == NULL:
        return 0
    end = (after - 8) // size * size + known.offset + known.length
    for i in range(ENQUEUES_LOOKED_AT):
        if after + 40 > end or not reader_record_at(address(containers.reader), after, address(record)):
            break
        if record.type != RECORD_ENQUEUE or record.undo_prev != message or record.size < 16:
            break
        if queue == 0 or le64(record.data) == queue:
            if position == 0 or le64(record.data + 8) == position:
                return known.time_us + record.time_us
            if time_us == 0 and (queue or position_waits(le64(record.data + 8))):
                time_us = known.time_us + record.time_us
        after += align8(record.length)
    return time_us


@cclass
class Decoder:
    """One call's rows. The caller keeps the payload alive and holds the containers' lock."""

    def __cinit__(
        self, containers: Containers, payload: bytes, queues: Sequence[Sequence[Any]], body_max: int64_t, left_out: Collection[int]
    ):
        total: uint64_t = 0
        i: uint32_t
        self.containers = containers
        self.segment_count = len(queues)
        self.names = cast(pointer[p_const_char], malloc((self.segment_count + 1) * sizeof(p_char)))
        self.name_sizes = cast(pointer[uint32_t], malloc((self.segment_count + 1) * 4))
        self.counts = cast(pointer[uint32_t], malloc((self.segment_count + 1) * 4))
        self.queues = cast(pointer[uint64_t], malloc((self.segment_count + 1) * 8))
        if self.names == NULL or self.name_sizes == NULL or self.counts == NULL or self.queues == NULL:
            raise MemoryError
        self.kept = []
        for i in range(self.segment_count):
            queue = queues[i]
            name: bytes = queue[0].encode("utf-8", "replace")
            count = int(queue[1])
            if not 0 <= count <= 0x7FFFFFFF:
                raise ValueError(f"{count} rows of a queue")
            self.kept.append(name)
            self.names[i] = PyBytes_AS_STRING(name)
            self.name_sizes[i] = PyBytes_GET_SIZE(name)
            self.counts[i] = count
            self.queues[i] = queue[2] if len(queue) > 2 else 0
            total += count
        if total * ROW_SIZE > cast(uint64_t, PyBytes_GET_SIZE(payload)):
            raise ValueError(f"{total} rows do not fit in a payload of {len(payload)} bytes")
        self.total = cast(uint32_t, total)
        self.rows = cast(pointer[uint8_t], PyBytes_AS_STRING(payload))
        self.inline_at = self.rows + total * ROW_SIZE
        self.end = self.rows + PyBytes_GET_SIZE(payload)
        self.body_max = body_max
        self.segment = 0
        self.segment_left = self.counts[0] if self.segment_count else 0
        self.moved = []
        self.wrong = []
        self.left = NULL
        if left_out:
            mask = bytearray(total + 1)
            for number in left_out:
                mask[number] = 1
            self.left_mask = bytes(mask)
            self.left = cast(pointer[uint8_t], PyBytes_AS_STRING(self.left_mask))

    def __dealloc__(self):
        free(self.names)
        free(self.name_sizes)
        free(self.counts)
        free(self.queues)

    def _inline(self, body_len: uint32_t, content: pointer[stored_content_t]) -> c_int:
        room: uint64_t = cast(uint64_t, self.end - self.inline_at)
        size: uint64_t
        cut: uint32_t
        p: pointer[cython.const[uint8_t]] = self.inline_at
        if room < 16:
            return ROW_BAD
        size = le32(p)
        if room - 16 < size:
            return ROW_BAD
        content.header_len = le32(p + 4)
        content.published_us = le64(p + 8)
        p += 16
        self.inline_at = p + size
        if size < 2:
            return ROW_BAD
        cut = 1 + p[0]
        if cut >= size:
            return ROW_BAD
        content.route_len = cut + 1 + p[cut]
        if cast(uint64_t, content.route_len) + content.header_len + body_len != size:
            return ROW_BAD
        content.route = p
        content.header = p + content.route_len
        content.body = content.header + content.header_len
        content.body_len = body_len
        return ROW_GOOD

    def _logged(self, thing: uint64_t, where: uint64_t, body_len: uint32_t, content: pointer[stored_content_t]) -> c_int:
        record: record_t
        if not reader_record_at(address(self.containers.reader), where, address(record)):
            return ROW_MOVED
        if record.type == RECORD_START or record.type == RECORD_MESSAGE:
            if where != thing:
                return ROW_MOVED
        elif record.type != RECORD_COPY or record.undo_prev != thing:
            return ROW_MOVED
        if self.containers.content(address(record), content) != CONTENT_GOOD or content.body_len != body_len:
            return ROW_MOVED
        return ROW_GOOD

    def _row(self, table: Table | None, row: uint32_t) -> c_int:
        p: pointer[cython.const[uint8_t]] = self.rows + cast(uint64_t, self.next) * ROW_SIZE
        columns: pointer[column_t] = table.columns
        position: uint64_t = le64(p)
        thing: uint64_t = le64(p + 8)
        where: uint64_t = le64(p + 16)
        body_len: uint32_t = le32(p + 24)
        time_us: uint64_t = 0
        content: stored_content_t
        how: c_int
        if where == 0:
            how = self._inline(body_len, address(content))
        else:
            how = ROW_GOOD
        if how == ROW_GOOD and self.left != NULL and self.left[self.next]:
            return ROW_LEFT
        if where != 0:
            how = self._logged(thing, where, body_len, address(content))
            if how == ROW_MOVED and not self.fresh:
                # The held bytes may be older than the record: read it again, once.
                self.containers.forget()
                self.fresh = True
                how = self._logged(thing, where, body_len, address(content))
        if how != ROW_GOOD:
            return how
        if self.needs_enqueued and where == thing and where != 0:
            time_us = enqueued_us(self.containers, thing, content.end, self.queues[self.segment], position)
        if not put_content(table, row, address(content), self.body_max):
            return ROW_WRONG
        col_bytes(columns + M_QUEUE, row, self.names[self.segment], self.name_sizes[self.segment])
        col_int64(columns + M_POSITION, row, cast(int64_t, position))
        if thing:
            col_int64(columns + M_LSN, row, cast(int64_t, thing))
        if time_us == 0:
            time_us = content.published_us
        if time_us:
            put_time(columns + M_ENQUEUED, row, time_us)
        if content.published_us:
            put_time(columns + M_PUBLISHED, row, content.published_us)
        col_bool(columns + M_REDELIVERED, row, p[30] & 1)
        col_int32(columns + M_DELIVERIES, row, le16(p + 28))
        return ROW_GOOD

    def fill(self, table: Table | None, rows_max: uint32_t, bytes_max: uint64_t) -> uint32_t:
        """Decodes rows into the table until it has `rows_max`, or bodies of `bytes_max`; returns how many it has."""
        row: uint32_t = 0
        size: uint64_t = 0
        how: c_int
        body_len: uint64_t
        with nogil:
            while self.next < self.total and row < rows_max:
                while self.segment_left == 0:
                    self.segment += 1
                    self.segment_left = self.counts[self.segment]
                body_len = le32(self.rows + cast(uint64_t, self.next) * ROW_SIZE + 24)
                if row and size + body_len > bytes_max:
                    break
                how = self._row(table, row)
                if how == ROW_GOOD:
                    row += 1
                    size += body_len
                elif how != ROW_LEFT:
                    with gil:
                        self.containers.raise_error()
                        if how == ROW_BAD:
                            raise ValueError(f"row {self.next}: the payload contradicts itself")
                        if how == ROW_WRONG:
                            self.wrong.append(self.next)
                        else:
                            self.moved.append(self.next)
                self.next += 1
                self.segment_left -= 1
        return row


def rows_to_batches(
    containers: Containers,
    payload: bytes,
    queues: Sequence[Sequence[Any]],
    *,
    columns: Iterable[str] | None = None,
    body: str | None = None,
    rows_max: int = schema.ROWS_PER_BATCH,
    bytes_max: int = schema.BYTES_PER_BATCH,
    left_out: Collection[int] = (),
) -> list[Any]:
    """Record batches of the rows in `payload`, in their order.

    Args: containers: of the message log; payload, queues: the answer of `rows`: [[queue name, rows], ...], a queue id may follow;
    columns: names wanted (in the table's order whatever theirs), None all; body: None all of it, "none", "prefix:N"; rows_max,
    bytes_max: of one batch (one message may have more bytes); left_out: indices of rows that are passed over unread.
    Raises: Moved, Unreadable: see there (Moved first, when there are both); ValueError: a malformed payload, an unknown column; OSError: a
    container can't be read.
    """
    wanted = frozenset(name for name, _, _ in schema.select("messages", columns))
    arrow = schema.messages_schema(columns)
    batches: list = []
    if isinstance(payload, (bytearray, memoryview)):
        payload = bytes(payload)
    with containers.lock:
        containers.learn()
        decoder: Decoder = Decoder(containers, payload, queues, schema.body_limit(body), left_out)
        decoder.needs_enqueued = "enqueued_time" in wanted
        if containers.container_size == 0:
            missing = [i for i in range(decoder.total) if i not in left_out and payload[32 * i + 16 : 32 * i + 24] != bytes(8)]
            if missing:
                raise Moved(missing)
        while decoder.next < decoder.total:
            table: Table = Table(schema.MESSAGES, wanted, arrow, min(rows_max, decoder.total - decoder.next))
            count: uint32_t = decoder.fill(table, rows_max, bytes_max)
            if decoder.moved or decoder.wrong:
                break
            if count:
                batches.append(table.finish(count))
        if decoder.moved or decoder.wrong:
            # The rest is only looked at, so that all such rows are told at once.
            while decoder.next < decoder.total:
                decoder.fill(Table(schema.MESSAGES, frozenset(), arrow, 1), rows_max, bytes_max)
            raise Moved(decoder.moved) if decoder.moved else Unreadable(decoder.wrong)
    return batches

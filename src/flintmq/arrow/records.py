"""Rows of the log source's tables from records (see records.pxd).

in: records that a scan checked. out: rows of the tables `records` and `log_messages` in a Table.

I1  A record whose fields make no sense puts nothing: all checks of a row come before its first cell.
I2  A record of several rows (places of a copy, runs of a set) that do not fit in the table any more goes on where it stopped.
I3  A Message has the two rows of the Message-Start and the Message-Enqueue that it stands for: what reads the tables knows those.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, inline, nogil, p_char, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING
from cython.cimports.flintmq.arrow.containers import CONTENT_BAD, CONTENT_GOOD, Containers, stored_content_t
from cython.cimports.flintmq.arrow.messages import enqueued_us, put_content
from cython.cimports.flintmq.arrow.table import COL_NONE, Table, col_bool, col_bytes, col_int32, col_int64, col_text, column_t
from cython.cimports.flintmq.arrow.text import M_COPY, M_ENQUEUED, M_LSN, M_PUBLISHED, find_message_id, put_route, put_time, route_good
from cython.cimports.flintmq.store.log.record import (
    PLACE_SIZE, RECORD_ACQUIRE_SET, RECORD_COPY, RECORD_DELIVERED, RECORD_DEQUEUE, RECORD_DTX_START, RECORD_ENQUEUE, RECORD_HEURISTIC,
    RECORD_MESSAGE, RECORD_NAME, RECORD_NOTE, RECORD_QUEUE_END, RECORD_QUEUE_MARK, RECORD_QUEUE_PURGE, RECORD_REDELIVERED, RECORD_START,
    RECORD_TX_COPY, content_head, head_t, le16, le32, le64, position_number, position_waits, record_t, shape_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int32_t, int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcpy

KINDS = {
    1: b"Message-Start",
    2: b"Message-Chunk",
    3: b"Message-Delete",
    4: b"Message-Enqueue",
    5: b"Message-Dequeue",
    6: b"Message-Copy",
    7: b"Queue-Mark",
    8: b"Queue-Redelivered",
    9: b"Name",
    10: b"Queue-End",
    11: b"Queue-Purge",
    12: b"Message-Shape",
    14: b"Queue-Delivered",
    33: b"Dtx-Start",
    34: b"Tx-Start",
    35: b"Prepare",
    36: b"Commit",
    37: b"Rollback",
    38: b"Delete",
    39: b"End",
    40: b"Tx-Copy",
    41: b"Heuristic",
    42: b"Note",
    43: b"Acquire-Set",
}
REASONS = {1: b"ack", 2: b"reject", 3: b"expire", 4: b"drop", 5: b"purge", 6: b"move"}
STATES = {1: b"open", 2: b"prepared", 3: b"committed", 4: b"rolled back"}
OUTCOMES = {0: b"forgotten", 1: b"committed", 2: b"rolled back"}

_kinds = declare(p_char[64])
_reasons = declare(p_char[8])
_states = declare(p_char[8])
_outcomes = declare(p_char[8])


def _fill_names() -> None:
    i: uint32_t
    for i in range(64):
        _kinds[i] = PyBytes_AS_STRING(KINDS[i]) if i in KINDS else NULL
    for i in range(8):
        _reasons[i] = PyBytes_AS_STRING(REASONS[i]) if i in REASONS else NULL
        _states[i] = PyBytes_AS_STRING(STATES[i]) if i in STATES else NULL
        _outcomes[i] = PyBytes_AS_STRING(OUTCOMES[i]) if i in OUTCOMES else NULL


_fill_names()


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_name(c: pointer[column_t], row: uint32_t, text: p_char) -> void:
    size: uint32_t = 0
    if text == NULL or c.kind == COL_NONE:
        return
    while text[size]:
        size += 1
    col_bytes(c, row, text, size)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_position(table: Table, row: uint32_t, position: uint64_t) -> void:
    if position_waits(position):
        col_int64(table.columns + R_WAITING, row, position_number(position))
    elif position:
        col_int64(table.columns + R_POSITION, row, cast(int64_t, position))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put_expiry(c: pointer[column_t], row: uint32_t, expires_ms: uint64_t) -> void:
    if expires_ms and expires_ms < cast(uint64_t, 1) << 53:
        put_time(c, row, expires_ms * 1000)


@cclass
class RowMaker:
    """Args: containers: of the log; sequence: of the container; messages: rows of the stream `messages`; wanted: columns; body_max: bytes
    of a body kept, -1 all. `block_us` and `item` are set by who reads."""

    def __cinit__(self, containers: Containers, sequence: uint64_t, messages: bool, wanted: frozenset, body_max: int64_t):
        self.containers = containers
        self.sequence = sequence
        self.messages = messages
        self.body_max = body_max
        self.needs_enqueued = "enqueued_time" in wanted
        self.needs_content = bool(wanted & {"exchange", "routing_key", "message_id", "body"})

    def put(self, table: Table | None, row: pointer[uint32_t], record: pointer[record_t]) -> c_int:
        if self.messages:
            return self._put_message(table, row, record)
        return self._put_record(table, row, record)

    # --- messages

    def _put_message(self, table: Table | None, row: pointer[uint32_t], record: pointer[record_t]) -> c_int:
        content: stored_content_t
        first: record_t
        columns: pointer[column_t] = table.columns
        thing: uint64_t = record.lsn
        copied: bint = record.type == RECORD_COPY
        time_us: uint64_t = 0
        how: c_int
        if record.type != RECORD_START and record.type != RECORD_MESSAGE and not copied:
            return PUT_DONE
        if copied:
            thing = record.undo_prev
        memcpy(address(first), record, sizeof(record_t))
        how = self.containers.content(address(first), address(content))
        if how != CONTENT_GOOD:
            return PUT_BAD if how == CONTENT_BAD else PUT_SHORT
        if self.needs_enqueued and not copied:
            time_us = enqueued_us(self.containers, thing, content.end, 0, 0)
        if not put_content(table, row[0], address(content), self.body_max):
            return PUT_BAD
        col_int64(columns + M_LSN, row[0], cast(int64_t, thing))
        if time_us == 0:
            time_us = content.published_us
        if time_us:
            put_time(columns + M_ENQUEUED, row[0], time_us)
        if content.published_us:
            put_time(columns + M_PUBLISHED, row[0], content.published_us)
        col_bool(columns + M_COPY, row[0], copied)
        row[0] += 1
        return PUT_DONE

    # --- records

    def _common(self, table: Table | None, row: uint32_t, record: pointer[record_t]) -> void:
        columns: pointer[column_t] = table.columns
        kind: uint8_t = record.type
        col_int64(columns + R_LSN, row, cast(int64_t, record.lsn))
        if self.containers.log == 1:
            col_bytes(columns + R_LOG, row, b"messages", 8)
        else:
            col_bytes(columns + R_LOG, row, b"transactions", 12)
        col_int64(columns + R_CONTAINER, row, cast(int64_t, self.sequence))
        if kind < 64 and _kinds[kind] != NULL:
            _put_name(columns + R_KIND, row, _kinds[kind])
        else:
            col_bytes(columns + R_KIND, row, b"unknown", 7)
        put_time(columns + R_TIME, row, self.block_us + record.time_us)
        col_int32(columns + R_LENGTH, row, cast(int32_t, record.length))
        if self.containers.log == 1:
            if kind == RECORD_START:
                col_int64(columns + R_MSG_LSN, row, cast(int64_t, record.lsn))
            elif kind < RECORD_QUEUE_MARK and record.undo_prev:
                col_int64(columns + R_MSG_LSN, row, cast(int64_t, record.undo_prev))
            if record.tx:
                col_int64(columns + R_TX_LSN, row, cast(int64_t, record.tx))
            _put_expiry(columns + R_EXPIRES, row, cast(uint64_t, record.expires_at_ms))
        elif kind != RECORD_NOTE:
            col_int64(columns + R_TX_LSN, row, cast(int64_t, record.undo_prev if record.undo_prev else record.lsn))

    def _content(self, table: Table | None, row: uint32_t, record: pointer[record_t]) -> c_int:
        """Content columns of a Message-Start or -Copy; PUT_BAD: nothing was put."""
        columns: pointer[column_t] = table.columns
        head: head_t
        wanted: uint64_t
        message_id: pointer[cython.const[uint8_t]]
        content: stored_content_t
        whole: record_t
        how: c_int = CONTENT_GOOD
        published_us: uint64_t
        if record.type == RECORD_MESSAGE:
            head.run = NULL
            head.here = 0
            memcpy(address(whole), record, sizeof(record_t))
            how = self.containers.content(address(whole), address(content))
            if how == CONTENT_BAD:
                return PUT_BAD
            published_us = self.block_us + record.time_us
        else:
            if not content_head(record, address(head)):
                return PUT_BAD
            published_us = head.published_us if record.type == RECORD_COPY else self.block_us + record.time_us
            content.body_len = head.body_len
            content.header_len = head.header_len
            content.route_len = head.route_len
        if self.needs_content:
            wanted = content.body_len
            if columns[R_BODY].kind == COL_NONE:
                wanted = 0
            elif self.body_max >= 0 and wanted > cast(uint64_t, self.body_max):
                wanted = cast(uint64_t, self.body_max)
            if record.type == RECORD_MESSAGE:
                pass
            elif head.here >= cast(uint64_t, content.header_len) + content.route_len + wanted:
                content.route = head.run
                content.header = content.route + content.route_len
                content.body = content.header + content.header_len
            else:
                memcpy(address(whole), record, sizeof(record_t))
                how = self.containers.content(address(whole), address(content))
                if how == CONTENT_BAD:
                    return PUT_BAD
            if how == CONTENT_GOOD:
                if not route_good(content.route, content.route_len):
                    return PUT_BAD
                put_route(columns + R_EXCHANGE, columns + R_ROUTING_KEY, row, content.route, content.route_len)
                if columns[R_MESSAGE_ID].kind != COL_NONE:
                    message_id = find_message_id(content.header, content.header_len)
                    if message_id != NULL:
                        col_text(columns + R_MESSAGE_ID, row, message_id + 1, message_id[0])
                if self.body_max != 0:
                    col_bytes(columns + R_BODY, row, content.body, wanted)
        col_int64(columns + R_BODY_LENGTH, row, content.body_len)
        if published_us:
            put_time(columns + R_PUBLISHED, row, published_us)
        return PUT_DONE if how == CONTENT_GOOD else PUT_SHORT

    def _put_purge(self, table: Table | None, row: pointer[uint32_t], record: pointer[record_t]) -> c_int:
        """A row for each run of positions: the first of them, and how many."""
        columns: pointer[column_t] = table.columns
        data: pointer[cython.const[uint8_t]] = record.data
        size: uint64_t = record.size
        if size < 16 or 16 + cast(uint64_t, le32(data + 8)) * 16 != size or le32(data + 8) == 0:
            return PUT_BAD
        while True:
            if row[0] >= table.room:
                return PUT_MORE
            data = record.data + 16 + cast(uint64_t, self.item) * 16
            if le64(data + 8) < le64(data):
                return PUT_BAD
            self._common(table, row[0], record)
            col_int64(columns + R_QUEUE, row[0], cast(int64_t, le64(record.data)))
            col_int64(columns + R_POSITION, row[0], cast(int64_t, le64(data)))
            col_int64(columns + R_COUNT, row[0], cast(int64_t, le64(data + 8) - le64(data) + 1))
            _put_name(columns + R_REASON, row[0], _reasons[5])
            row[0] += 1
            self.item += 1
            if self.item >= le32(record.data + 8):
                return PUT_DONE

    def _put_acquired(self, table: Table | None, row: pointer[uint32_t], record: pointer[record_t]) -> c_int:
        """A row for each run of positions that a set of Spark acquired; one for an empty set."""
        columns: pointer[column_t] = table.columns
        data: pointer[cython.const[uint8_t]] = record.data
        size: uint64_t = record.size
        count: uint64_t
        if size < 8 or 8 + cast(uint64_t, le32(data)) * 24 != size:
            return PUT_BAD
        count = le32(data)
        while True:
            if row[0] >= table.room:
                return PUT_MORE
            self._common(table, row[0], record)
            if le32(record.data + 4):
                col_int64(columns + R_CONSUMER, row[0], le32(record.data + 4))
            if count:
                data = record.data + 8 + cast(uint64_t, self.item) * 24
                col_int64(columns + R_QUEUE, row[0], cast(int64_t, le64(data)))
                col_int64(columns + R_POSITION, row[0], cast(int64_t, le64(data + 8)))
                col_int64(columns + R_COUNT, row[0], cast(int64_t, le64(data + 16)))
            row[0] += 1
            self.item += 1
            if self.item >= count:
                return PUT_DONE

    def _put_copy(self, table: Table | None, row: pointer[uint32_t], record: pointer[record_t]) -> c_int:
        """A row for each place of a message that was copied forward; one when it has none in the record."""
        columns: pointer[column_t] = table.columns
        data: pointer[cython.const[uint8_t]] = record.data
        size: uint64_t = record.size
        count: uint64_t
        how: c_int
        if size < 8 or 8 + cast(uint64_t, le32(data)) * PLACE_SIZE > size:
            return PUT_BAD
        count = le32(data)
        while True:
            if row[0] >= table.room:
                return PUT_MORE
            how = self._content(table, row[0], record)
            if how == PUT_BAD:
                return how
            self._common(table, row[0], record)
            if count:
                data = record.data + 8 + cast(uint64_t, self.item) * PLACE_SIZE
                col_int64(columns + R_QUEUE, row[0], cast(int64_t, le64(data)))
                _put_position(table, row[0], le64(data + 8))
                _put_expiry(columns + R_EXPIRES, row[0], le64(data + 16))
                if le64(data + 24) or le64(data + 32):
                    col_int64(columns + R_TX_LSN, row[0], cast(int64_t, le64(data + 24) if le64(data + 24) else le64(data + 32)))
            row[0] += 1
            self.item += 1
            if self.item >= count:
                return how

    def _put_brief(self, table: Table | None, row: pointer[uint32_t], record: pointer[record_t]) -> c_int:
        """The rows of a Message (I3). The second one has no length of its own, so that lengths add up to the log's."""
        columns: pointer[column_t] = table.columns
        part: record_t
        shape: shape_t
        how: c_int
        memcpy(address(part), record, sizeof(record_t))
        if self.item == 0:
            how = self._content(table, row[0], record)
            if how == PUT_BAD:
                return how
            part.type = RECORD_START
            part.expires_at_ms = 0
            self._common(table, row[0], address(part))
            row[0] += 1
            if how != PUT_DONE:
                return how
            self.item = 1
            if row[0] >= table.room:
                return PUT_MORE
        if self.containers.shape_of(record, address(shape)) != CONTENT_GOOD:
            return PUT_SHORT
        part.type = RECORD_ENQUEUE
        part.undo_prev = record.lsn
        part.expires_at_ms = record.expires_at_ms
        part.length = 0
        self._common(table, row[0], address(part))
        col_int64(columns + R_QUEUE, row[0], cast(int64_t, shape.queue_id))
        _put_position(table, row[0], shape.position)
        row[0] += 1
        return PUT_DONE

    def _put_record(self, table: Table | None, row: pointer[uint32_t], record: pointer[record_t]) -> c_int:
        columns: pointer[column_t] = table.columns
        data: pointer[cython.const[uint8_t]] = record.data
        size: uint64_t = record.size
        kind: uint8_t = record.type
        how: c_int = PUT_DONE
        if self.containers.log == 2:
            if kind < RECORD_DTX_START or kind == 64:
                return PUT_BAD
            if kind == RECORD_ACQUIRE_SET:
                return self._put_acquired(table, row, record)
            if (kind == RECORD_TX_COPY and (size < 6 or data[0] > 4)) or (kind == RECORD_HEURISTIC and (size < 1 or data[0] > 2)):
                return PUT_BAD
            self._common(table, row[0], record)
            if kind == RECORD_TX_COPY:
                _put_name(columns + R_REASON, row[0], _states[data[0]])
            elif kind == RECORD_HEURISTIC:
                _put_name(columns + R_REASON, row[0], _outcomes[data[0]])
            row[0] += 1
            return PUT_DONE
        if kind >= RECORD_DTX_START:
            return PUT_BAD
        if kind == RECORD_COPY:
            return self._put_copy(table, row, record)
        if kind == RECORD_QUEUE_PURGE:
            return self._put_purge(table, row, record)
        if kind == RECORD_MESSAGE:
            return self._put_brief(table, row, record)
        if kind == RECORD_START:
            how = self._content(table, row[0], record)
            if how == PUT_BAD:
                return how
            self._common(table, row[0], record)
        elif kind == RECORD_ENQUEUE:
            if size < 16:
                return PUT_BAD
            self._common(table, row[0], record)
            col_int64(columns + R_QUEUE, row[0], cast(int64_t, le64(data)))
            _put_position(table, row[0], le64(data + 8))
        elif kind == RECORD_DEQUEUE:
            if size < 32:
                return PUT_BAD
            self._common(table, row[0], record)
            col_int64(columns + R_QUEUE, row[0], cast(int64_t, le64(data)))
            _put_position(table, row[0], le64(data + 8))
            if le64(data + 16):
                put_time(columns + R_DELIVERED, row[0], le64(data + 16))
            if le32(data + 24):
                col_int64(columns + R_CONSUMER, row[0], le32(data + 24))
            col_int32(columns + R_DELIVERIES, row[0], le16(data + 28))
            if data[30] < 8:
                _put_name(columns + R_REASON, row[0], _reasons[data[30]])
        else:
            if kind == RECORD_QUEUE_MARK or kind == RECORD_DELIVERED or kind == RECORD_REDELIVERED or kind == RECORD_QUEUE_END:
                if size < 8:
                    return PUT_BAD
                self._common(table, row[0], record)
                col_int64(columns + R_QUEUE, row[0], cast(int64_t, le64(data)))
            elif kind == RECORD_NAME:
                if size < 16:
                    return PUT_BAD
                self._common(table, row[0], record)
                if le32(data) == 1:
                    col_int64(columns + R_CONSUMER, row[0], cast(int64_t, le64(data + 8)))
            else:
                self._common(table, row[0], record)
        row[0] += 1
        return how

"""Message content as records of the log (see content_codec.pxd).

in: contents of the message path, records read back. out: Message-Start and Message-Chunk records; contents.

I1  A piece that is copied into or out of a content lies in it: lengths that were read are compared before.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import arena_t, content_body, content_frame, content_header, content_new, content_route, content_t
from cython.cimports.flintmq.store.log.log import (
    LSN_NEVER,
    log_append,
    log_append_done,
    log_begin,
    log_end,
    log_live,
    log_room,
    log_t,
    log_time,
)
from cython.cimports.flintmq.store.log.record import (
    CONTENT_FIXED,
    RECORD_CHUNK,
    RECORD_HEADER,
    RECORD_START,
    align8,
    content_head,
    head_t,
    le32,
    record_encode,
    record_t,
    set16,
    set32,
)
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy


def content_total(content: pointer[content_t]) -> uint32_t:
    return content.route_len + content.header_len + content.body_len


def content_copy_out(content: pointer[content_t], offset: uint32_t, size: uint32_t, out: pointer[uint8_t]) -> void:
    """Bytes [offset, offset + size) of the content: route, header, body one after the other."""
    part: uint32_t
    header_end: uint32_t = content.route_len + content.header_len
    if offset < content.route_len and size:
        part = min(size, content.route_len - offset)
        memcpy(out, content_route(content) + offset, part)
        out += part
        offset += part
        size -= part
    if offset < header_end and size:
        part = min(size, header_end - offset)
        memcpy(out, content_header(content) + (offset - content.route_len), part)
        out += part
        offset += part
        size -= part
    if size:
        memcpy(out, content_body(content) + (offset - header_end), size)


@cfunc
@nogil
@exceptval(check=False)
def _copy_in(content: pointer[content_t], offset: uint32_t, size: uint32_t, data: pointer[cython.const[uint8_t]]) -> void:
    part: uint32_t
    header_end: uint32_t = content.route_len + content.header_len
    check(
        cast(uint64_t, offset) + size <= cast(uint64_t, content.route_len) + content.header_len + content.body_len,
        b"content_codec I1 a piece that is put in lies in its content",
        offset,
        size,
    )
    if offset < content.route_len and size:
        part = min(size, content.route_len - offset)
        memcpy(content_route(content) + offset, data, part)
        data += part
        offset += part
        size -= part
    if offset < header_end and size:
        part = min(size, header_end - offset)
        memcpy(content_header(content) + (offset - content.route_len), data, part)
        data += part
        offset += part
        size -= part
    if size:
        memcpy(content_body(content) + (offset - header_end), data, size)


def content_from_record(arena: pointer[arena_t], record: pointer[record_t], filled: pointer[uint32_t]) -> pointer[content_t]:
    head: head_t
    content: pointer[content_t]
    filled[0] = 0
    if not content_head(record, address(head)):
        return NULL
    content = content_new(arena, head.route_len, head.header_len, head.body_len)
    if content == NULL:
        return NULL
    content.flags = head.flags
    content.priority = head.priority
    _copy_in(content, 0, head.here, head.run)
    content_frame(content)
    filled[0] = head.here
    return content


def content_add_chunk(content: pointer[content_t], record: pointer[record_t]) -> bint:
    offset: uint64_t
    if record.size < 4:
        return False
    offset = le32(record.data)
    if offset + record.size - 4 > content_total(content):
        return False
    _copy_in(content, cast(uint32_t, offset), record.size - 4, record.data + 4)
    return True


def content_write(log: pointer[log_t], kind: uint8_t, split_above: uint32_t, follows: uint32_t, content: pointer[content_t]) -> uint64_t:
    """Writes Message-Start (or Page-Content) and its chunks, and marks it live. Log lock held; let go between chunks.

    follows: bytes of records that must fit behind an undivided one in the same window (I2). Returns its LSN, or LSN_NEVER.
    """
    total: uint32_t = content_total(content)
    piece: uint32_t = total
    offset: uint32_t
    room: uint32_t
    length: uint32_t
    size: uint64_t
    first: uint64_t = 0
    lsn: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    length = RECORD_HEADER + CONTENT_FIXED + total
    if total <= split_above:
        log_room(log, cast(uint32_t, align8(length)) + follows)
    else:
        room = log_room(log, split_above // 4)
        if room < RECORD_HEADER + CONTENT_FIXED + 64:
            return LSN_NEVER
        piece = min(min(total, PIECE_MAX), room - RECORD_HEADER - CONTENT_FIXED)
        length = RECORD_HEADER + CONTENT_FIXED + piece
    record = log_append(log, length, address(first))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, length, kind, 0, 0, log_time(log), 0, 0, 0)
    set32(own, content.body_len)
    set32(own + 4, content.header_len)
    set16(own + 8, content.route_len)
    own[10] = content.flags
    own[11] = content.priority
    set32(own + 12, piece)
    content_copy_out(content, 0, piece, own + CONTENT_FIXED)
    log_append_done(log, record, length, first)
    size = align8(length)
    log_live(log, first, size + (follows if piece == total else total - piece))
    check(piece <= total, b"content_codec I1 the first piece is not longer than its content", piece, total)
    offset = piece
    while offset < total:
        log_end(log)
        log_begin(log)
        room = log_room(log, split_above // 4)
        if room < RECORD_HEADER + 4 + 64:
            return LSN_NEVER
        piece = min(min(total - offset, PIECE_MAX), room - RECORD_HEADER - 4)
        length = RECORD_HEADER + 4 + piece
        record = log_append(log, length, address(lsn))
        if record == NULL:
            return LSN_NEVER
        own = record_encode(record, length, RECORD_CHUNK, 0, 0, log_time(log), first, 0, 0)
        set32(own, offset)
        content_copy_out(content, offset, piece, own + 4)
        log_append_done(log, record, length, lsn)
        offset += piece
        check(offset <= total, b"content_codec I1 pieces are not longer than their content", offset, total)
    return first


def content_write_small(
    log: pointer[log_t],
    follows: uint32_t,
    route: pointer[cython.const[uint8_t]],
    route_len: uint16_t,
    data: pointer[cython.const[uint8_t]],
    header_len: uint32_t,
    length: uint32_t,
    flags: uint8_t,
    priority: uint8_t,
) -> uint64_t:
    total: uint32_t = route_len + length
    size: uint32_t = RECORD_HEADER + CONTENT_FIXED + total
    lsn: uint64_t = 0
    record: pointer[uint8_t]
    own: pointer[uint8_t]
    log_room(log, cast(uint32_t, align8(size)) + follows)
    record = log_append(log, size, address(lsn))
    if record == NULL:
        return LSN_NEVER
    own = record_encode(record, size, RECORD_START, 0, 0, log_time(log), 0, 0, 0)
    set32(own, length - header_len)
    set32(own + 4, header_len)
    set16(own + 8, route_len)
    own[10] = flags
    own[11] = priority
    set32(own + 12, total)
    memcpy(own + CONTENT_FIXED, route, route_len)
    memcpy(own + CONTENT_FIXED + route_len, data, length)
    log_append_done(log, record, size, lsn)
    log_live(log, lsn, align8(size) + follows)
    return lsn

"""Index runs (see index_run.pxd): entries that follow each other cost a byte or none.

in: entries of a segment. out: bytes, and back.

A run is groups of entries. The first byte of a group says in what its first entry differs from the one before; entries behind it that
differ in nothing but position + 1, the same step of the message id and of the expiry are counted, not written. So messages of one size,
published in a row, take some bytes for all; others about five bytes each.
"""

from __future__ import annotations

import cython
from cython import address, cast, declare, pointer
from cython.cimports.flintmq.core.varint import varint_fold, varint_get, varint_put, varint_unfold
from cython.cimports.flintmq.queue.types import restored_t
from cython.cimports.flintmq.store.log.record import le32, le64, set32, set64
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t

# what the first byte of a group says
STEP = declare(uint8_t, 1)  # the position is not the next one: its step follows
SIZE = declare(uint8_t, 2)  # another length of the body: the difference follows
FLAGS = declare(uint8_t, 4)  # other flags: they follow
EXPIRY = declare(uint8_t, 8)  # another step of the expiry: it follows
MANY = declare(uint8_t, 16)  # more entries of the same kind: their number follows
VERSION = declare(uint32_t, 1)


def run_encode(
    queue_id: uint64_t, entries: pointer[cython.const[restored_t]], count: uint32_t, out: pointer[uint8_t], room: uint32_t
) -> uint32_t:
    i: uint32_t = 0
    same: uint32_t
    size: uint32_t = RUN_HEAD
    kind: uint8_t
    start: uint32_t
    entry: restored_t
    before: restored_t
    step: uint64_t = 0  # of the message ids in the present group
    expiry_step: int64_t = 0
    if count == 0 or room < RUN_HEAD:
        return 0
    set64(out, queue_id)
    set64(out + 8, entries[0].position)
    set64(out + 16, entries[0].message_id)
    set32(out + 24, count)
    set32(out + 28, VERSION)
    before.position = entries[0].position - 1
    before.message_id = entries[0].message_id
    before.expires_at_ms = 0
    before.body_len = 0
    before.flags = 0
    while i < count:
        if size + RUN_ENTRY_MAX > room:
            return 0
        entry = entries[i]
        kind = 0
        start = size
        size += 1
        step = entry.message_id - before.message_id
        size += varint_put(out + size, varint_fold(cast(int64_t, step)))
        if entry.position != before.position + 1:
            kind |= STEP
            size += varint_put(out + size, entry.position - before.position)
        if entry.body_len != before.body_len:
            kind |= SIZE
            size += varint_put(out + size, varint_fold(cast(int64_t, entry.body_len) - before.body_len))
        if entry.flags != before.flags:
            kind |= FLAGS
            size += varint_put(out + size, entry.flags)
        if entry.expires_at_ms != before.expires_at_ms + expiry_step:
            kind |= EXPIRY
            expiry_step = entry.expires_at_ms - before.expires_at_ms
            size += varint_put(out + size, varint_fold(expiry_step))
        before = entry
        i += 1
        same = 0
        while (
            i < count
            and entries[i].position == before.position + 1
            and entries[i].message_id - before.message_id == step
            and entries[i].body_len == before.body_len
            and entries[i].flags == before.flags
            and entries[i].expires_at_ms == before.expires_at_ms + expiry_step
        ):
            before = entries[i]
            i += 1
            same += 1
        if same:
            kind |= MANY
            size += varint_put(out + size, same)
        out[start] = kind
    return size


def run_decode(
    data: pointer[cython.const[uint8_t]],
    length: uint32_t,
    entries: pointer[restored_t],
    room: uint32_t,
    queue_id: pointer[uint64_t],
) -> uint32_t:
    count: uint32_t
    done: uint32_t = 0
    place: uint32_t = RUN_HEAD
    kind: uint8_t
    value: uint64_t = 0
    step: uint64_t
    position_step: uint64_t
    expiry_step: int64_t = 0
    same: uint64_t
    before: restored_t
    queue_id[0] = 0
    if length < RUN_HEAD or le32(data + 28) != VERSION:
        return 0
    count = le32(data + 24)
    if count == 0 or count > room:
        return 0
    queue_id[0] = le64(data)
    before.position = le64(data + 8) - 1
    before.message_id = le64(data + 16)
    before.expires_at_ms = 0
    before.body_len = 0
    before.flags = 0
    while done < count:
        if place >= length:
            return 0
        kind = data[place]
        place += 1
        if not varint_get(data, length, address(place), address(value)):
            return 0
        step = cast(uint64_t, varint_unfold(value))
        position_step = 1
        if kind & STEP and not varint_get(data, length, address(place), address(position_step)):
            return 0
        if kind & SIZE:
            if not varint_get(data, length, address(place), address(value)):
                return 0
            before.body_len = cast(uint32_t, cast(uint64_t, before.body_len) + cast(uint64_t, varint_unfold(value)))
        if kind & FLAGS:
            if not varint_get(data, length, address(place), address(value)):
                return 0
            before.flags = cast(uint32_t, value)
        if kind & EXPIRY:
            if not varint_get(data, length, address(place), address(value)):
                return 0
            expiry_step = varint_unfold(value)
        same = 0
        if kind & MANY and not varint_get(data, length, address(place), address(same)):
            return 0
        if same >= count - done:
            return 0
        before.position += position_step
        while True:
            before.message_id += step
            before.expires_at_ms = cast(int64_t, cast(uint64_t, before.expires_at_ms) + cast(uint64_t, expiry_step))
            entries[done] = before
            done += 1
            if same == 0:
                break
            same -= 1
            before.position += 1
    return count if place == length else 0

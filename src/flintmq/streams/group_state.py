"""A group's state as bytes for the store, and back (see group_state.pxd).

in: a group; bytes that a store kept. out: bytes; a group that goes on where they say.

I1  An offset that is read back is open (it comes again) or not yet reached, unless it was done when the state was written.
I2  Bytes that can't be right change nothing.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.streams.cursor import cursor_move, cursor_position
from cython.cimports.flintmq.streams.group import open_become, open_free, open_push
from cython.cimports.flintmq.streams.types import OPEN_DEAD, OPEN_DONE, OPEN_READY, group_t, open_t
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t

STATE_VERSION = declare(uint8_t, 1)
# a saved place that a crash may leave behind: whatever the stream holds at the restart is flagged
ALL_FLAGGED = declare(uint64_t, 0xFFFFFFFFFFFFFFFF)
# open offsets of a state that is read, at most: 32 MiB of them
OPEN_MOST = declare(uint64_t, 1 << 20)

# version (1 byte); then numbers as LEB128: next offset, flagged, offsets lost (all; not told yet), runs of open offsets; for each run
# (offsets without a gap, of the same fate): distance from the end of the one before (the first: from 0), length, deliveries * 2 + dead, and
# for dead ones the reason. So offsets that consumers hold in order take a few bytes, however many they are.


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put(at: pointer[uint8_t], value: uint64_t) -> pointer[uint8_t]:
    while value >= 0x80:
        at[0] = cast(uint8_t, value | 0x80)
        at += 1
        value >>= 7
    at[0] = cast(uint8_t, value)
    return at + 1


@cfunc
@inline
@nogil
@exceptval(check=False)
def _get(at: pointer[pointer[cython.const[uint8_t]]], end: pointer[cython.const[uint8_t]], value: pointer[uint64_t]) -> bint:
    shift: c_int = 0
    byte: uint8_t
    value[0] = 0
    while at[0] < end and shift < 64:
        byte = at[0][0]
        at[0] += 1
        value[0] |= cast(uint64_t, byte & 0x7F) << shift
        if byte < 0x80:
            return True
        shift += 7
    return False


@cfunc
@inline
@nogil
@exceptval(check=False)
def _same_fate(one: pointer[open_t], other: pointer[open_t]) -> bint:
    if one.count != other.count or (one.state == OPEN_DEAD) != (other.state == OPEN_DEAD):
        return False
    return one.state != OPEN_DEAD or one.reason == other.reason


@cfunc
@nogil
@exceptval(check=False)
def _put_run(at: pointer[uint8_t], run: pointer[open_t], before: uint64_t, length: uint64_t, really: bint) -> pointer[uint8_t]:
    if not really:
        return at
    at = _put(at, run.offset - before)
    at = _put(at, length)
    at = _put(at, (cast(uint64_t, run.count) << 1) | (1 if run.state == OPEN_DEAD else 0))
    return _put(at, run.reason) if run.state == OPEN_DEAD else at


def group_room(group: pointer[group_t]) -> uint32_t:
    room: uint32_t
    spin_lock(address(group.lock))
    room = 64 + group.open.count * 24
    spin_unlock(address(group.lock))
    return room


def group_write(group: pointer[group_t], out: pointer[uint8_t], room: uint32_t, clean: bint) -> uint32_t:
    at: pointer[uint8_t] = out
    i: uint32_t
    item: pointer[open_t]
    run: pointer[open_t]
    length: uint64_t
    before: uint64_t
    pass_no: c_int
    next: uint64_t
    flagged: uint64_t
    runs: uint64_t = 0
    spin_lock(address(group.lock))
    if room < 64 + group.open.count * 24:
        spin_unlock(address(group.lock))
        return 0
    at_store32(address(group.changed), 0)
    next = cursor_position(address(group.fresh))
    # How far it will be when the broker crashes nobody knows: then all that is there counts as perhaps delivered (restore caps it).
    flagged = max(next, group.flagged) if clean else ALL_FLAGGED
    at[0] = STATE_VERSION
    at = _put(at + 1, next)
    at = _put(at, flagged)
    at = _put(at, group.fresh.lost_all)
    at = _put(at, group.fresh.lost)
    for pass_no in range(2):
        if pass_no:
            at = _put(at, runs)
        run = NULL
        length = 0
        before = 0
        for i in range(group.open.start, group.open.end):
            item = address(group.open.items[i])
            if item.state == OPEN_DONE:
                continue
            if run != NULL and item.offset == run.offset + length and _same_fate(run, item):
                length += 1
                continue
            if run != NULL:
                at = _put_run(at, run, before, length, pass_no)
                before = run.offset + length
            if pass_no == 0:
                runs += 1
            run = item
            length = 1
        if run != NULL:
            at = _put_run(at, run, before, length, pass_no)
    spin_unlock(address(group.lock))
    return cast(uint32_t, at - out)


def group_read(group: pointer[group_t], data: pointer[cython.const[uint8_t]], size: uint32_t) -> bint:
    at: pointer[cython.const[uint8_t]] = data
    end: pointer[cython.const[uint8_t]] = data + size
    numbers: uint64_t[5]
    offset: uint64_t = 0
    distance: uint64_t = 0
    length: uint64_t = 0
    fate: uint64_t = 0
    reason: uint64_t = 0
    i: uint64_t
    item: pointer[open_t]
    good: bint = size > 0 and at[0] == STATE_VERSION
    at += 1
    for i in range(5):
        good = good and _get(address(at), end, address(numbers[i]))
    if not good or numbers[4] > size:
        return False
    spin_lock(address(group.lock))
    for i in range(numbers[4]):
        good = (
            _get(address(at), end, address(distance))
            and _get(address(at), end, address(length))
            and _get(address(at), end, address(fate))
            and (fate & 1 == 0 or _get(address(at), end, address(reason)))
        )
        # Everything open is below the next offset, and there is no more of it than a group may ever have had.
        good = good and distance < numbers[0] and offset + distance < numbers[0] and length <= numbers[0] - offset - distance
        if not good or length == 0 or group.open.count + length > OPEN_MOST:
            good = False
            break
        offset += distance
        while length and good:
            item = open_push(address(group.open), offset)
            if item == NULL:
                good = False
                break
            item.count = cast(uint16_t, fate >> 1)
            item.reason = cast(uint8_t, reason)
            open_become(address(group.open), item, OPEN_DEAD if fate & 1 else OPEN_READY, 0)
            offset += 1
            length -= 1
        if not good:
            break
    if good:
        cursor_move(address(group.fresh), numbers[0])
        group.flagged = numbers[1]
        group.fresh.lost_all = numbers[2]
        group.told = numbers[2]
        group.fresh.lost = numbers[3]
    else:
        open_free(address(group.open))
    spin_unlock(address(group.lock))
    return good

"""Queues that take no message while one with the same value of `x-deduplication-header` is there (x-message-deduplication).

in: arrivals, by queue_enqueue_once (queue_core). out: whether one is taken.

I1  A value is there as long as its message is: ready, or in somebody's hands. It is free once that is settled, dropped, expired or purged;
    nobody tells, a look at the entry says so.
I2  Of two messages that come at once one waits at `gate` until the other is in the queue, so it is dropped.
I3  A dropped message is confirmed when the one that is there is durable: its publisher may rely on that one.
I4  The maps have at most a small multiple of the values that are there, and `most`: each arrival passes over SWEPT of their places. Beyond
    `most` a value is not remembered: its message comes in, and so do later ones.

Values are known by two keyed hashes, as in last_value.py. Values are not remembered over a restart (as with the plugin).
Source: names and rules of noxdafox's rabbitmq-message-deduplication.
"""

from __future__ import annotations

import os

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_put, map64_remove, map64_t
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.core.siphash import siphash
from cython.cimports.flintmq.queue.entry_list import list_slot_locked
from cython.cimports.flintmq.queue.types import ENTRY_ACQUIRED, ENTRY_AVAILABLE, ENTRY_STATE_MASK, once_t, queue_t, segment_t, slot_t
from cython.cimports.flintmq.selectors.program import KIND_NULL, program_decref, program_of_header, program_value, value_octets, value_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

HEADER = declare(pointer[cython.const[uint8_t]], b"x-deduplication-header")
HEADER_SIZE = declare(uint32_t, 22)
# places of the map that an arrival passes over
SWEPT = declare(uint32_t, 4)
# steps for the search of the header, as for a selector
STEPS = declare(int64_t, 65_536)

_keys = declare(uint64_t[4])


@cfunc
@nogil
@exceptval(check=False)
def _hashes(once: pointer[once_t], content: pointer[content_t], first: pointer[uint64_t], second: pointer[uint64_t]) -> bint:
    """False: the message has no value."""
    value: value_t
    steps: int64_t = STEPS
    octets: pointer[cython.const[uint8_t]]
    size: uint32_t = 0
    program_value(once.name, content, address(steps), address(value))
    if value.kind == KIND_NULL:
        return False
    octets = value_octets(address(value), address(size))
    first[0] = siphash(_keys[0] ^ value.kind, _keys[1], octets, size, 2, 4) | 1
    second[0] = siphash(_keys[2] ^ value.kind, _keys[3], octets, size, 2, 4)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _is_there(queue: pointer[queue_t], position: uint64_t) -> bint:
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    state: uint64_t = 0
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot != NULL:
        state = at_load64(address(slot.state)) & ENTRY_STATE_MASK
    spin_unlock(address(queue.entries.lock))
    return state == ENTRY_AVAILABLE or state == ENTRY_ACQUIRED


@cfunc
@nogil
@exceptval(check=False)
def _put(map: pointer[map64_t], key: uint64_t, value: uint64_t) -> bint:
    places: uint64_t = map.mask + 1 if map.cells != NULL else 0
    if not map64_put(map, key, value):
        return False
    if map.mask + 1 != places:
        memory_add(MEMORY_ENTRIES, cast(int64_t, (map.mask + 1 - places) * 16))
    return True


@cfunc
@nogil
@exceptval(check=False)
def _sweep(queue: pointer[queue_t], once: pointer[once_t]) -> void:
    """I4. A removal moves others to lower places: those are looked at in the next round."""
    i: uint32_t
    key: uint64_t
    if once.positions.cells == NULL:
        return
    for i in range(SWEPT):
        once.cursor = (once.cursor + 1) & once.positions.mask
        key = once.positions.cells[once.cursor].key
        if key and not _is_there(queue, once.positions.cells[once.cursor].value):
            map64_remove(address(once.positions), key)
            map64_remove(address(once.checks), key)


def once_begin(queue: pointer[queue_t], content: pointer[content_t], arrival: pointer[arrival_t], lsn: pointer[uint64_t]) -> uint64_t:
    once: pointer[once_t] = queue.once
    position: uint64_t = 0
    second: uint64_t = 0
    arrival.first = 0
    arrival.taken = False
    arrival.known = False
    if not _hashes(once, content, address(arrival.first), address(arrival.second)):
        arrival.first = 0
    spin_lock(address(once.gate))
    if arrival.first and map64_get(address(once.positions), arrival.first, address(position)):
        arrival.known = True
        if _is_there(queue, position):
            if map64_get(address(once.checks), arrival.first, address(second)) and second == arrival.second:
                once.duplicates += 1
                if once.lsn > lsn[0]:
                    lsn[0] = once.lsn
                spin_unlock(address(once.gate))
                return position
            arrival.taken = True
    return 0


def once_end(queue: pointer[queue_t], arrival: pointer[arrival_t], position: uint64_t, lsn: uint64_t) -> void:
    once: pointer[once_t] = queue.once
    if lsn > once.lsn:
        once.lsn = lsn
    if (
        position
        and arrival.first
        and not arrival.taken
        and (arrival.known or once.positions.count < once.most)
        and _put(address(once.checks), arrival.first, arrival.second)
    ):
        _put(address(once.positions), arrival.first, position)
    _sweep(queue, once)
    spin_unlock(address(once.gate))


@cfunc
@nogil
@exceptval(check=False)
def _free_map(map: pointer[map64_t]) -> void:
    if map.cells != NULL:
        memory_add(MEMORY_ENTRIES, -cast(int64_t, (map.mask + 1) * 16))
    map64_free(map)


def once_free(once: pointer[once_t]) -> void:
    if once != NULL:
        _free_map(address(once.positions))
        _free_map(address(once.checks))
        program_decref(once.name)
        free(once)


def once_new(most: uint64_t) -> pointer[once_t]:
    once: pointer[once_t] = cast(pointer[once_t], calloc(1, sizeof(once_t)))
    if once == NULL:
        return NULL
    once.name = program_of_header(HEADER, HEADER_SIZE)
    if once.name == NULL:
        free(once)
        return NULL
    once.most = most
    return once


_keys[0], _keys[1], _keys[2], _keys[3] = [int.from_bytes(os.urandom(8), "little") for _ in range(4)]

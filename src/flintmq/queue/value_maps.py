"""Values of one header and the entries that have them (see value_maps.pxd).

in: contents, positions. out: which entry has a value; what maps take, in the account of memory.

I1  A value that has a position has a second hash.
I2  What a map takes is in the account as long as the map has it.

Values are known by two keyed hashes of 64 bits with keys of this process, so nobody can choose what collides. Should the first ones be
equal, and the second differ, the later value has no place until the earlier one is gone.
Source of the hash: SipHash-2-4, Aumasson and Bernstein, 2012.
"""

from __future__ import annotations

import os

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_put, map64_remove, map64_reserve, map64_t, map64_trim
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.core.siphash import siphash
from cython.cimports.flintmq.queue.entry_list import list_slot_locked
from cython.cimports.flintmq.queue.types import ENTRY_ACQUIRED, ENTRY_AVAILABLE, ENTRY_STATE_MASK, queue_t, segment_t, slot_t, values_t
from cython.cimports.flintmq.selectors.program import KIND_NULL, program_decref, program_t, program_value, value_octets, value_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t

# steps for the search of the header, as for a selector
STEPS = declare(int64_t, 65_536)
CELL_BYTES = declare(int64_t, 16)

_keys = declare(uint64_t[4])


# --- maps ---------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _places(map: pointer[map64_t]) -> int64_t:
    return cast(int64_t, map.mask + 1) if map.cells != NULL else 0


@cfunc
@nogil
@exceptval(check=False)
def _account(map: pointer[map64_t], before: int64_t) -> void:
    """I2."""
    if _places(map) != before:
        memory_add(MEMORY_ENTRIES, (_places(map) - before) * CELL_BYTES)


def map_put(map: pointer[map64_t], key: uint64_t, value: uint64_t) -> bint:
    before: int64_t = _places(map)
    done: bint = map64_put(map, key, value)
    _account(map, before)
    return done


def map_reserve(map: pointer[map64_t], count: uint64_t) -> bint:
    before: int64_t = _places(map)
    done: bint = map64_reserve(map, count)
    _account(map, before)
    return done


def map_free(map: pointer[map64_t]) -> void:
    before: int64_t = _places(map)
    map64_free(map)
    _account(map, before)


def map_trim(map: pointer[map64_t]) -> void:
    before: int64_t = _places(map)
    map64_trim(map)
    _account(map, before)


# --- entries ------------------------------------------------------------------------------------------------------------------


def entry_state(queue: pointer[queue_t], position: uint64_t, slot: pointer[pointer[slot_t]]) -> uint64_t:
    segment: pointer[segment_t] = NULL
    state: uint64_t = 0
    spin_lock(address(queue.entries.lock))
    slot[0] = list_slot_locked(address(queue.entries), position, address(segment))
    if slot[0] != NULL:
        state = at_load64(address(slot[0].state))
    spin_unlock(address(queue.entries.lock))
    return state


def entry_is_there(queue: pointer[queue_t], position: uint64_t) -> bint:
    slot: pointer[slot_t] = NULL
    state: uint64_t = entry_state(queue, position, address(slot)) & ENTRY_STATE_MASK
    return slot != NULL and (state == ENTRY_AVAILABLE or state == ENTRY_ACQUIRED)


# --- values -------------------------------------------------------------------------------------------------------------------


def header_value(name: pointer[program_t], content: pointer[content_t], value: pointer[value_t]) -> void:
    steps: int64_t = STEPS
    program_value(name, content, address(steps), value)


def value_hash(value: pointer[value_t]) -> uint64_t:
    size: uint32_t = 0
    octets: pointer[cython.const[uint8_t]] = value_octets(value, address(size))
    # Kinds differ: a text is never equal to a number.
    return siphash(_keys[0] ^ value.kind, _keys[1], octets, size, 2, 4) | 1


def values_hashes(values: pointer[values_t], content: pointer[content_t], first: pointer[uint64_t], second: pointer[uint64_t]) -> bint:
    value: value_t
    octets: pointer[cython.const[uint8_t]]
    size: uint32_t = 0
    header_value(values.name, content, address(value))
    if value.kind == KIND_NULL:
        return False
    first[0] = value_hash(address(value))
    octets = value_octets(address(value), address(size))
    second[0] = siphash(_keys[2] ^ value.kind, _keys[3], octets, size, 2, 4)
    return True


def values_find(values: pointer[values_t], first: uint64_t, second: uint64_t, position: pointer[uint64_t]) -> c_int:
    noted: uint64_t = 0
    if not map64_get(address(values.positions), first, position):
        return VALUE_NEW
    check(map64_get(address(values.checks), first, address(noted)), b"value_maps I1 a value has both hashes", first, position[0])
    return VALUE_KNOWN if noted == second else VALUE_OTHER


def values_note(values: pointer[values_t], first: uint64_t, second: uint64_t, position: uint64_t) -> bint:
    if map_put(address(values.checks), first, second) and map_put(address(values.positions), first, position):
        return True
    if not map64_get(address(values.positions), first, address(position)):
        map64_remove(address(values.checks), first)
    return False


def values_sweep(queue: pointer[queue_t], values: pointer[values_t], most: uint32_t) -> void:
    i: uint32_t
    key: uint64_t
    if values.positions.cells == NULL:
        return
    for i in range(most):
        # A removal moves others to lower places: those are looked at in the next round.
        values.cursor = (values.cursor + 1) & values.positions.mask
        key = values.positions.cells[values.cursor].key
        if key and not entry_is_there(queue, values.positions.cells[values.cursor].value):
            map64_remove(address(values.positions), key)
            map64_remove(address(values.checks), key)


def values_upkeep(queue: pointer[queue_t], values: pointer[values_t], entries: uint64_t, most: uint32_t) -> bint:
    if values.positions.count > entries:
        values_sweep(queue, values, most)
        if values.positions.count > entries:
            return True
    map_trim(address(values.positions))
    map_trim(address(values.checks))
    return False


def values_free(values: pointer[values_t]) -> void:
    map_free(address(values.positions))
    map_free(address(values.checks))
    program_decref(values.name)


_keys[0], _keys[1], _keys[2], _keys[3] = [int.from_bytes(os.urandom(8), "little") for _ in range(4)]

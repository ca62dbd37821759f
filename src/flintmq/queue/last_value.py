"""Last value queues (Qpid's conflation queues): an arrival ends the available entry with the same value of one header.

in: arrivals and returns of the entry list, through list_ops_t. out: entries that end, dropped by the broker.

I1  For each value the map has the highest position that was seen. An entry below it ends when it is available: as soon as the newer one
    arrives, or when whoever holds it gives it back.
I2  The map has at most a small multiple of the values that are alive: each arrival passes over SWEPT of its places, and forgets values
    whose entry is gone. An older entry that was held when it was replaced is in `replaced`: it ends when it comes back, also when the
    newer one is gone by then.
I3  The older entry ends after the newer one is in the list, and in the log. A crash between leaves both; restore_last_values ends the
    older one then.

Values are known by two keyed hashes of 64 bits with keys of this process, so nobody can make two values one. Should the first ones be
equal, and the second differ, the later value counts as none.

Source of the hash: SipHash-2-4, Aumasson and Bernstein, 2012.
"""

from __future__ import annotations

import logging
import os

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, nogil, p_void, pointer, sizeof, void
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.flintmq.core.atomics import at_add32, at_load64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.core.hash64 import map64_count, map64_free, map64_get, map64_put, map64_remove
from cython.cimports.flintmq.core.siphash import siphash
from cython.cimports.flintmq.queue.control import QueueHandle, queue_message
from cython.cimports.flintmq.queue.entry_list import list_scan, list_slot_locked
from cython.cimports.flintmq.queue.list_kinds import LIST_STANDARD
from cython.cimports.flintmq.queue.queue_core import queue_dequeue, queue_next_available, queue_take_at
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED,
    ENTRY_AVAILABLE,
    ENTRY_STATE_MASK,
    REASON_DROP,
    found_t,
    list_ops_t,
    list_t,
    place_t,
    queue_t,
    segment_t,
    slot_t,
)
from cython.cimports.flintmq.selectors.program import (
    KIND_NULL,
    program_decref,
    program_of_header,
    program_value,
    value_octets,
    value_t,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

log = logging.getLogger("flintmq.queue.kinds")

# places of the map that an arrival passes over
SWEPT = declare(uint32_t, 4)
# steps for the search of the header, as for a selector
STEPS = declare(int64_t, 65_536)

_ops = declare(list_ops_t)
_keys = declare(uint64_t[4])


# --- values -------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _hashes(kind: pointer[last_value_t], content: pointer[content_t], first: pointer[uint64_t], second: pointer[uint64_t]) -> bint:
    """False: the message has no value."""
    value: value_t
    steps: int64_t = STEPS
    octets: pointer[cython.const[uint8_t]]
    size: uint32_t = 0
    program_value(kind.name, content, address(steps), address(value))
    if value.kind == KIND_NULL:
        return False
    octets = value_octets(address(value), address(size))
    # Kinds differ: a text is never equal to a number.
    first[0] = siphash(_keys[0] ^ value.kind, _keys[1], octets, size, 2, 4) | 1
    second[0] = siphash(_keys[2] ^ value.kind, _keys[3], octets, size, 2, 4)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _hashes_at(queue: pointer[queue_t], position: uint64_t, first: pointer[uint64_t], second: pointer[uint64_t]) -> bint:
    """_hashes of an entry that is there; reads it from the disk if it has to."""
    kind: pointer[last_value_t] = cast(pointer[last_value_t], queue.entries.kind)
    content: pointer[content_t] = NULL
    found: found_t
    place: place_t
    known: bint
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    if list_scan(address(queue.entries), address(place), position, address(found)) and found.position == position:
        content = slot_borrow(found.slot, False, NULL)
    at_sub32(address(queue.pins), 1)
    if content == NULL:
        with gil:
            try:
                message = queue_message(queue, cast(object, kind.log) if kind.log != NULL else None, position)
                content = content_from_bytes(b"", b"", message[2], b"", 0, 0)
            except KeyError:
                pass  # it is gone
            except Exception:
                log.exception("a last value queue can't read a message: it stays as one without a value")
    if content == NULL:
        return False
    known = _hashes(kind, content, first, second)
    content_decref(content)
    return known


# --- entries ------------------------------------------------------------------------------------------------------------------


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
def _sweep(queue: pointer[queue_t], kind: pointer[last_value_t]) -> void:
    """I2. Under the lock. A removal moves others to lower places: those are looked at in the next round."""
    i: uint32_t
    key: uint64_t
    for i in range(SWEPT):
        if kind.positions.cells != NULL:
            kind.cursor = (kind.cursor + 1) & kind.positions.mask
            key = kind.positions.cells[kind.cursor].key
            if key and not _is_there(queue, kind.positions.cells[kind.cursor].value):
                map64_remove(address(kind.positions), key)
                map64_remove(address(kind.checks), key)
        if kind.replaced.cells != NULL:
            kind.replaced_cursor = (kind.replaced_cursor + 1) & kind.replaced.mask
            key = kind.replaced.cells[kind.replaced_cursor].key
            if key and not _is_there(queue, key):
                map64_remove(address(kind.replaced), key)


@cfunc
@nogil
@exceptval(check=False)
def _note(queue: pointer[queue_t], position: uint64_t, first: uint64_t, second: uint64_t) -> bint:
    """An available entry with this value. True: an entry ended."""
    kind: pointer[last_value_t] = cast(pointer[last_value_t], queue.entries.kind)
    known: uint64_t = 0
    check_value: uint64_t = 0
    ends: uint64_t = 0
    spin_lock(address(kind.lock))
    if map64_get(address(kind.positions), first, address(known)) and (
        not map64_get(address(kind.checks), first, address(check_value)) or check_value != second
    ):
        spin_unlock(address(kind.lock))
        return False  # another value with the same first hash, which has the place
    if known > position:
        ends = position
    elif map64_put(address(kind.checks), first, second) and map64_put(address(kind.positions), first, position):
        ends = known if known != position else 0
    _sweep(queue, kind)
    spin_unlock(address(kind.lock))
    if ends == 0:
        return False
    return _end(queue, kind, ends)


@cfunc
@nogil
@exceptval(check=False)
def _end(queue: pointer[queue_t], kind: pointer[last_value_t], position: uint64_t) -> bint:
    """False: somebody holds the entry, and it ends when it comes back; or it is gone."""
    slot: pointer[slot_t] = queue_take_at(queue, position, 0)
    if slot == NULL and _is_there(queue, position):
        spin_lock(address(kind.lock))
        map64_put(address(kind.replaced), position, 1)
        spin_unlock(address(kind.lock))
        slot = queue_take_at(queue, position, 0)  # it may have come back meanwhile
    return slot != NULL and queue_dequeue(queue, slot, position, 0, REASON_DROP)


@cfunc
@nogil
@exceptval(check=False)
def _arrived(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t]) -> void:
    kind: pointer[last_value_t] = cast(pointer[last_value_t], queue.entries.kind)
    first: uint64_t = 0
    second: uint64_t = 0
    known: bint
    if content != NULL:
        known = _hashes(kind, content, address(first), address(second))
    else:
        known = _hashes_at(queue, position, address(first), address(second))
    if known:
        _note(queue, position, first, second)


@cfunc
@nogil
@exceptval(check=False)
def _returned(queue: pointer[queue_t], position: uint64_t) -> void:
    kind: pointer[last_value_t] = cast(pointer[last_value_t], queue.entries.kind)
    first: uint64_t = 0
    second: uint64_t = 0
    replaced: bint
    spin_lock(address(kind.lock))
    replaced = map64_remove(address(kind.replaced), position)
    spin_unlock(address(kind.lock))
    if replaced:
        _end(queue, kind, position)
    elif _hashes_at(queue, position, address(first), address(second)):
        _note(queue, position, first, second)


@cfunc
@nogil
@exceptval(check=False)
def _level(entries: pointer[list_t], content: pointer[content_t]) -> uint32_t:
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _destroy(entries: pointer[list_t]) -> void:
    kind: pointer[last_value_t] = cast(pointer[last_value_t], entries.kind)
    map64_free(address(kind.positions))
    map64_free(address(kind.checks))
    map64_free(address(kind.replaced))
    program_decref(kind.name)
    free(kind)
    entries.kind = NULL


# --- face -------------------------------------------------------------------------------------------------------------------


def new_last_value(queue_id: int, header: bytes, log: object, durable: bool = False) -> QueueHandle:
    handle: QueueHandle = QueueHandle(queue_id, LIST_STANDARD, 1)
    text: pointer[uint8_t] = header
    kind: pointer[last_value_t] = cast(pointer[last_value_t], calloc(1, sizeof(last_value_t)))
    if kind != NULL:
        kind.name = program_of_header(text, len(header))
    if kind == NULL or kind.name == NULL:
        free(kind)
        raise MemoryError("no memory for a last value queue")
    handle.set_durable(durable)
    if log is not None:
        handle.attach_log(log)
        Py_INCREF(log)  # as attach_log does
        kind.log = cast(p_void, log)
    _ops.compare = handle.queue.entries.ops.compare
    _ops.priorities = handle.queue.entries.ops.priorities
    _ops.in_order = False
    _ops.level_of = _level
    _ops.arrived = _arrived
    _ops.returned = _returned
    _ops.destroy = _destroy
    handle.queue.entries.kind = kind
    handle.queue.entries.ops = address(_ops)
    return handle


def restore_last_values(handle: QueueHandle) -> int:
    position: uint64_t = queue_next_available(handle.queue, 0)
    first: uint64_t = 0
    second: uint64_t = 0
    ended: int = 0
    while position:
        if _hashes_at(handle.queue, position, address(first), address(second)) and _note(handle.queue, position, first, second):
            ended += 1
        position = queue_next_available(handle.queue, position + 1)
    return ended


def last_value_count(handle: QueueHandle) -> int:
    return map64_count(address(cast(pointer[last_value_t], handle.queue.entries.kind).positions))


_keys[0], _keys[1], _keys[2], _keys[3] = [int.from_bytes(os.urandom(8), "little") for _ in range(4)]

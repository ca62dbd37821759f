"""Last value queues (Qpid's conflation queues): an arrival ends the available entry with the same value of one header.

in: arrivals and returns of the entry list, through list_ops_t. out: entries that end, dropped by the broker.

I1  For each value `values` has the highest position that was seen. An entry below it ends when it is available: as soon as the newer one
    arrives, or when whoever holds it gives it back.
I2  `values` has at most a small multiple of the values that are alive: each arrival passes over SWEPT of its places, the housekeeping over
    more, and values whose entry is gone are forgotten. An older entry that was held when it was replaced is in `replaced`: it ends when it
    comes back, also when the newer one is gone by then.
I3  The older entry ends after the newer one is in the list, and in the log. A crash between leaves both; restore_last_values ends the
    older one then.

I4  It has `most` values at most: a message that brings one more stays as one without a value.

How values are known: value_maps.py.
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.core.hash64 import map64_count, map64_get, map64_remove
from cython.cimports.flintmq.queue.control import QueueHandle, queue_message
from cython.cimports.flintmq.queue.entry_list import list_scan
from cython.cimports.flintmq.queue.list_kinds import LIST_STANDARD
from cython.cimports.flintmq.queue.queue_core import queue_dequeue, queue_next_available, queue_take_at
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.queue.types import REASON_DROP, found_t, list_ops_t, list_t, place_t, queue_t, slot_t
from cython.cimports.flintmq.queue.value_maps import (
    VALUE_NEW, VALUE_OTHER, entry_is_there, map_free, map_put, map_trim, values_find, values_free, values_hashes, values_note, values_sweep,
    values_upkeep,
)  # fmt: skip
from cython.cimports.flintmq.selectors.program import program_of_header
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free

log = logging.getLogger("flintmq.queue.kinds")

# places of the map that an arrival passes over
SWEPT = declare(uint32_t, 4)

_ops = declare(list_ops_t)


# --- values -------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _hashes_at(queue: pointer[queue_t], position: uint64_t, first: pointer[uint64_t], second: pointer[uint64_t]) -> bint:
    """values_hashes of an entry that is there; reads it from the disk if it has to."""
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
    known = values_hashes(address(kind.values), content, first, second)
    content_decref(content)
    return known


# --- entries ------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _sweep_replaced(queue: pointer[queue_t], kind: pointer[last_value_t], most: uint32_t) -> void:
    """I2. Under the lock."""
    i: uint32_t
    key: uint64_t
    if kind.replaced.cells == NULL:
        return
    for i in range(most):
        kind.replaced_cursor = (kind.replaced_cursor + 1) & kind.replaced.mask
        key = kind.replaced.cells[kind.replaced_cursor].key
        if key and not entry_is_there(queue, key):
            map64_remove(address(kind.replaced), key)


@cfunc
@nogil
@exceptval(check=False)
def _note(queue: pointer[queue_t], position: uint64_t, first: uint64_t, second: uint64_t) -> bint:
    """An available entry with this value. True: an entry ended."""
    kind: pointer[last_value_t] = cast(pointer[last_value_t], queue.entries.kind)
    known: uint64_t = 0
    ends: uint64_t = 0
    outcome: c_int
    spin_lock(address(kind.lock))
    outcome = values_find(address(kind.values), first, second, address(known))
    if outcome == VALUE_OTHER or (outcome == VALUE_NEW and kind.values.positions.count >= kind.most):
        pass  # it stays
    elif known > position:
        ends = position
    elif values_note(address(kind.values), first, second, position):
        ends = known if known != position else 0
    values_sweep(queue, address(kind.values), SWEPT)
    _sweep_replaced(queue, kind, SWEPT)
    spin_unlock(address(kind.lock))
    if ends == 0:
        return False
    return _end(queue, kind, ends)


@cfunc
@nogil
@exceptval(check=False)
def _upkeep(queue: pointer[queue_t], entries: uint64_t, most: uint32_t) -> bint:
    kind: pointer[last_value_t] = cast(pointer[last_value_t], queue.entries.kind)
    waits: bint
    spin_lock(address(kind.lock))
    waits = values_upkeep(queue, address(kind.values), entries, most)
    if kind.replaced.count > entries:
        _sweep_replaced(queue, kind, most)
        waits = waits or kind.replaced.count > entries
    map_trim(address(kind.replaced))
    spin_unlock(address(kind.lock))
    return waits


@cfunc
@nogil
@exceptval(check=False)
def _end(queue: pointer[queue_t], kind: pointer[last_value_t], position: uint64_t) -> bint:
    """False: somebody holds the entry, and it ends when it comes back; or it is gone."""
    slot: pointer[slot_t] = queue_take_at(queue, position, 0)
    if slot == NULL and entry_is_there(queue, position):
        spin_lock(address(kind.lock))
        map_put(address(kind.replaced), position, 1)
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
        known = values_hashes(address(kind.values), content, address(first), address(second))
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
    values_free(address(kind.values))
    map_free(address(kind.replaced))
    free(kind)
    entries.kind = NULL


# --- face -------------------------------------------------------------------------------------------------------------------


def new_last_value(queue_id: int, header: bytes, log: object, durable: bool, most: int) -> QueueHandle:
    handle: QueueHandle = QueueHandle(queue_id, LIST_STANDARD, 1)
    text: pointer[uint8_t] = header
    kind: pointer[last_value_t] = cast(pointer[last_value_t], calloc(1, sizeof(last_value_t)))
    if kind != NULL:
        kind.values.name = program_of_header(text, len(header))
    if kind == NULL or kind.values.name == NULL:
        free(kind)
        raise MemoryError("no memory for a last value queue")
    kind.most = most
    handle.set_durable(durable)
    if log is not None:
        handle.attach_log(log)
        kind.log = cast(p_void, log)
    _ops.compare = handle.queue.entries.ops.compare
    _ops.priorities = handle.queue.entries.ops.priorities
    _ops.in_order = False
    _ops.level_of = _level
    _ops.arrived = _arrived
    _ops.returned = _returned
    _ops.destroy = _destroy
    _ops.upkeep = _upkeep
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


def last_value_replaced(handle: QueueHandle, position: int) -> bool:
    kind: pointer[last_value_t]
    place: uint64_t = position
    value: uint64_t = 0
    replaced: bint
    if handle.queue.entries.ops != address(_ops):
        return False
    kind = cast(pointer[last_value_t], handle.queue.entries.kind)
    spin_lock(address(kind.lock))
    replaced = map64_get(address(kind.replaced), place, address(value))
    spin_unlock(address(kind.lock))
    return replaced


def last_value_count(handle: QueueHandle) -> int:
    return map64_count(address(cast(pointer[last_value_t], handle.queue.entries.kind).values.positions))

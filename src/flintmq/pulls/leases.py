"""Leases by number and by time (see leases.pxd).

in: deliveries, settlements, extensions. out: the lease of a number, the one whose time comes first.

I1  A number is given once: it names a place in `items` and the serial of its use, so an old number never finds a newer lease.
I2  heap[items[place].heap_at] == place for every lease in use, and no lease stands before its parent in time.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.memory_account import MEMORY_UNACKED, memory_add
from cython.cimports.flintmq.queue.types import slot_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc

FIRST_CAPACITY = cython.declare(uint32_t, 16)
PLACE_MASK = cython.declare(uint64_t, (1 << PLACE_BITS) - 1)


def leases_init(table):
    table.items = cython.NULL
    table.heap = cython.NULL
    table.capacity = 0
    table.count = 0
    table.free = PLACE_NONE
    table.serial = 0


def leases_free(table):
    memory_add(MEMORY_UNACKED, -cython.cast(int64_t, table.capacity * (cython.sizeof(lease_t) + cython.sizeof(uint32_t))))
    free(table.items)
    free(table.heap)
    leases_init(table)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _grow(table: cython.pointer(lease_table_t)) -> cython.bint:
    capacity: uint32_t = table.capacity * 2 if table.capacity else FIRST_CAPACITY
    place: uint32_t
    items: cython.pointer(lease_t)
    heap: cython.pointer(uint32_t)
    if capacity > cython.cast(uint32_t, 1) << PLACE_BITS:
        return False
    items = cython.cast(cython.pointer(lease_t), realloc(table.items, capacity * cython.sizeof(lease_t)))
    if items == cython.NULL:
        return False
    table.items = items
    heap = cython.cast(cython.pointer(uint32_t), realloc(table.heap, capacity * cython.sizeof(uint32_t)))
    if heap == cython.NULL:
        return False
    table.heap = heap
    memory_add(MEMORY_UNACKED, (capacity - table.capacity) * (cython.sizeof(lease_t) + cython.sizeof(uint32_t)))
    place = capacity
    while place > table.capacity:
        place -= 1
        items[place].number = 0
        items[place].state = LEASE_FREE
        items[place].heap_at = table.free
        table.free = place
    table.capacity = capacity
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(table: cython.pointer(lease_table_t), at: uint32_t, place: uint32_t) -> cython.void:
    table.heap[at] = place
    table.items[place].heap_at = at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sift(table: cython.pointer(lease_table_t), at: uint32_t) -> cython.void:
    """Brings the lease at heap index `at` to its place, up or down."""
    place: uint32_t = table.heap[at]
    time: uint64_t = table.items[place].until_ns
    up: uint32_t
    child: uint32_t
    while at > 0:
        up = (at - 1) // 2
        if table.items[table.heap[up]].until_ns <= time:
            break
        _put(table, at, table.heap[up])
        at = up
    while True:
        child = 2 * at + 1
        if child >= table.count:
            break
        if child + 1 < table.count and table.items[table.heap[child + 1]].until_ns < table.items[table.heap[child]].until_ns:
            child += 1
        if table.items[table.heap[child]].until_ns >= time:
            break
        _put(table, at, table.heap[child])
        at = child
    _put(table, at, place)


def leases_add(table, slot, position, until_ns, delivered_us):
    lease: cython.pointer(lease_t)
    place: uint32_t
    if table.free == PLACE_NONE and not _grow(table):
        return 0
    place = table.free
    lease = cython.address(table.items[place])
    table.free = lease.heap_at
    table.serial += 1
    lease.number = (table.serial << PLACE_BITS) | place
    lease.slot = slot
    lease.position = position
    lease.until_ns = until_ns
    lease.delivered_us = delivered_us
    lease.state = LEASE_HELD
    _put(table, table.count, place)
    table.count += 1
    _sift(table, lease.heap_at)
    return lease.number


def leases_find(table, number):
    place: uint64_t = number & PLACE_MASK
    if number == 0 or place >= table.capacity or table.items[place].number != number:
        return cython.NULL
    return cython.address(table.items[place])


def leases_move(table, lease, until_ns):
    lease.until_ns = until_ns
    _sift(table, lease.heap_at)


def leases_remove(table, lease):
    at: uint32_t = lease.heap_at
    last: uint32_t = table.heap[table.count - 1]
    place: uint32_t = cython.cast(uint32_t, lease.number & PLACE_MASK)
    table.count -= 1
    if at < table.count:
        _put(table, at, last)
        _sift(table, at)
    lease.number = 0
    lease.state = LEASE_FREE
    lease.slot = cython.NULL
    lease.heap_at = table.free
    table.free = place


def leases_first(table):
    if table.count == 0:
        return cython.NULL
    return cython.address(table.items[table.heap[0]])

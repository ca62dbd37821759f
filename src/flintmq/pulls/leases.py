"""Leases by number and by time (see leases.pxd).

in: deliveries, settlements, extensions. out: the lease of a number, the one whose time comes first.

I1  A number is given once: it names a place in `items` and the serial of its use, so an old number never finds a newer lease.
I2  heap[items[place].heap_at] == place for every lease in use, and no lease stands before its parent in time.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.memory_account import MEMORY_UNACKED, memory_add
from cython.cimports.flintmq.queue.types import slot_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc

FIRST_CAPACITY = declare(uint32_t, 16)
PLACE_MASK = declare(uint64_t, (1 << PLACE_BITS) - 1)


def leases_init(table: pointer[lease_table_t]) -> void:
    table.items = NULL
    table.heap = NULL
    table.capacity = 0
    table.count = 0
    table.free = PLACE_NONE
    table.serial = 0


def leases_free(table: pointer[lease_table_t]) -> void:
    memory_add(MEMORY_UNACKED, -cast(int64_t, table.capacity * (sizeof(lease_t) + sizeof(uint32_t))))
    free(table.items)
    free(table.heap)
    leases_init(table)


@cfunc
@nogil
@exceptval(check=False)
def _grow(table: pointer[lease_table_t]) -> bint:
    capacity: uint32_t = table.capacity * 2 if table.capacity else FIRST_CAPACITY
    place: uint32_t
    items: pointer[lease_t]
    heap: pointer[uint32_t]
    if capacity > cast(uint32_t, 1) << PLACE_BITS:
        return False
    items = cast(pointer[lease_t], realloc(table.items, capacity * sizeof(lease_t)))
    if items == NULL:
        return False
    table.items = items
    heap = cast(pointer[uint32_t], realloc(table.heap, capacity * sizeof(uint32_t)))
    if heap == NULL:
        return False
    table.heap = heap
    memory_add(MEMORY_UNACKED, (capacity - table.capacity) * (sizeof(lease_t) + sizeof(uint32_t)))
    place = capacity
    while place > table.capacity:
        place -= 1
        items[place].number = 0
        items[place].state = LEASE_FREE
        items[place].heap_at = table.free
        table.free = place
    table.capacity = capacity
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put(table: pointer[lease_table_t], at: uint32_t, place: uint32_t) -> void:
    table.heap[at] = place
    table.items[place].heap_at = at


@cfunc
@nogil
@exceptval(check=False)
def _sift(table: pointer[lease_table_t], at: uint32_t) -> void:
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


def leases_add(
    table: pointer[lease_table_t], slot: pointer[slot_t], position: uint64_t, until_ns: uint64_t, delivered_us: uint64_t
) -> uint64_t:
    lease: pointer[lease_t]
    place: uint32_t
    if table.free == PLACE_NONE and not _grow(table):
        return 0
    place = table.free
    lease = address(table.items[place])
    check(place < table.capacity and lease.number == 0, b"leases I1 a place that is given is free", lease.number, place)
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


def leases_find(table: pointer[lease_table_t], number: uint64_t) -> pointer[lease_t]:
    place: uint64_t = number & PLACE_MASK
    if number == 0 or place >= table.capacity or table.items[place].number != number:
        return NULL
    return address(table.items[place])


def leases_move(table: pointer[lease_table_t], lease: pointer[lease_t], until_ns: uint64_t) -> void:
    check(
        lease.heap_at < table.count and table.heap[lease.heap_at] == lease.number & PLACE_MASK,
        b"leases I2 a lease that is moved stands in the heap",
        lease.number,
        lease.heap_at,
    )
    lease.until_ns = until_ns
    _sift(table, lease.heap_at)


def leases_remove(table: pointer[lease_table_t], lease: pointer[lease_t]) -> void:
    at: uint32_t = lease.heap_at
    last: uint32_t = table.heap[table.count - 1]
    place: uint32_t = cast(uint32_t, lease.number & PLACE_MASK)
    check(at < table.count and table.heap[at] == place, b"leases I2 a lease that ends stands in the heap", lease.number, at)
    table.count -= 1
    if at < table.count:
        _put(table, at, last)
        _sift(table, at)
    lease.number = 0
    lease.state = LEASE_FREE
    lease.slot = NULL
    lease.heap_at = table.free
    table.free = place


def leases_first(table: pointer[lease_table_t]) -> pointer[lease_t]:
    if table.count == 0:
        return NULL
    return address(table.items[table.heap[0]])

"""Queues that take no message while one with the same value of `x-deduplication-header` is there (x-message-deduplication).

in: arrivals, by queue_enqueue_once (queue_core). out: whether one is taken.

I1  A value is there as long as its message is: ready, or in somebody's hands. It is free once that is settled, dropped, expired or purged;
    nobody tells, a look at the entry says so.
I2  Of two messages that come at once one waits at `gate` until the other is in the queue, so it is dropped.
I3  A dropped message is confirmed when the one that is there is durable: its publisher may rely on that one.
I4  The maps have at most a small multiple of the values that are there, and `most`: each arrival passes over SWEPT of their places, the
    housekeeping over more. Beyond `most` a value is not remembered: its message comes in, and so do later ones.

How values are known: value_maps.py. Values are not remembered over a restart (as with the plugin).
Source: names and rules of noxdafox's rabbitmq-message-deduplication.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, declare, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.types import once_t, queue_t
from cython.cimports.flintmq.queue.value_maps import (
    VALUE_KNOWN, VALUE_NEW, entry_is_there, values_find, values_free, values_hashes, values_note, values_sweep, values_upkeep,
)  # fmt: skip
from cython.cimports.flintmq.selectors.program import program_of_header
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free

HEADER = declare(pointer[cython.const[uint8_t]], b"x-deduplication-header")
HEADER_SIZE = declare(uint32_t, 22)
# places of the map that an arrival passes over
SWEPT = declare(uint32_t, 4)


def once_begin(queue: pointer[queue_t], content: pointer[content_t], arrival: pointer[arrival_t], lsn: pointer[uint64_t]) -> uint64_t:
    once: pointer[once_t] = queue.once
    position: uint64_t = 0
    outcome: c_int
    arrival.first = 0
    arrival.taken = False
    arrival.known = False
    if not values_hashes(address(once.values), content, address(arrival.first), address(arrival.second)):
        arrival.first = 0
    spin_lock(address(once.gate))
    if arrival.first:
        outcome = values_find(address(once.values), arrival.first, arrival.second, address(position))
        arrival.known = outcome != VALUE_NEW
        if arrival.known and entry_is_there(queue, position):
            if outcome == VALUE_KNOWN:
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
    if position and arrival.first and not arrival.taken and (arrival.known or once.values.positions.count < once.most):
        values_note(address(once.values), arrival.first, arrival.second, position)
    values_sweep(queue, address(once.values), SWEPT)
    spin_unlock(address(once.gate))


def once_upkeep(queue: pointer[queue_t], entries: uint64_t, most: uint32_t) -> bint:
    waits: bint
    spin_lock(address(queue.once.gate))
    waits = values_upkeep(queue, address(queue.once.values), entries, most)
    spin_unlock(address(queue.once.gate))
    return waits


def once_free(once: pointer[once_t]) -> void:
    if once != NULL:
        values_free(address(once.values))
        free(once)


def once_new(most: uint64_t) -> pointer[once_t]:
    once: pointer[once_t] = cast(pointer[once_t], calloc(1, sizeof(once_t)))
    if once == NULL:
        return NULL
    once.values.name = program_of_header(HEADER, HEADER_SIZE)
    if once.values.name == NULL:
        free(once)
        return NULL
    once.most = most
    return once

"""Entries that wait before they are delivered again: the heaps of retries.py, and the beginning of a wait.

in: entries that came back, which the broker holds. out: the next ones, for whoever has the clock.

W1  Each of both heaps has the next one at its top, and a queue knows its place in the outer one. A queue in it has something that waits.

Threading: any thread, no GIL.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, p_void, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import monotonic_ns, wall_ms
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.types import due_index_t, queue_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc

ROOM_LEAST = declare(uint64_t, 4)
MS = declare(int64_t, 1_000_000)
# milliseconds: nanoseconds of twice as much fit into wait_t.due_ns
WAIT_MS_MAX = declare(uint64_t, 1 << 42)


# --- the heap of one queue --------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _before(one: pointer[wait_t], other: pointer[wait_t]) -> bint:
    if one.due_ns != other.due_ns:
        return one.due_ns < other.due_ns
    return one.number < other.number


@cfunc
@nogil
@exceptval(check=False)
def _make_room(waits: pointer[waits_t], room: uint64_t) -> bint:
    items: pointer[wait_t] = cast(pointer[wait_t], realloc(waits.items, room * sizeof(wait_t)))
    if items == NULL:
        return False
    memory_add(MEMORY_ENTRIES, cast(int64_t, room * sizeof(wait_t)) - cast(int64_t, waits.room * sizeof(wait_t)))
    waits.items = items
    waits.room = room
    return True


@cfunc
@nogil
@exceptval(check=False)
def _push(waits: pointer[waits_t], item: wait_t) -> bint:
    place: uint64_t = waits.count
    above: uint64_t
    if waits.count == waits.room and not _make_room(waits, max(ROOM_LEAST, 2 * waits.room)):
        return False
    while place:
        above = (place - 1) // 2
        if not _before(address(item), address(waits.items[above])):
            break
        waits.items[place] = waits.items[above]
        place = above
    waits.items[place] = item
    waits.count += 1
    return True


def waits_pop(waits: pointer[waits_t]) -> void:
    """Takes the first one out."""
    place: uint64_t = 0
    below: uint64_t
    item: wait_t
    waits.count -= 1
    item = waits.items[waits.count]
    while True:
        below = 2 * place + 1
        if below >= waits.count:
            break
        if below + 1 < waits.count and _before(address(waits.items[below + 1]), address(waits.items[below])):
            below += 1
        if not _before(address(waits.items[below]), address(item)):
            break
        waits.items[place] = waits.items[below]
        place = below
    waits.items[place] = item
    if waits.room > ROOM_LEAST and waits.count < waits.room // 4:
        _make_room(waits, max(ROOM_LEAST, waits.room // 2))


# --- the heap of queues -----------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _put(retries: pointer[retries_t], place: uint64_t, waits: pointer[waits_t]) -> void:
    retries.queues[place] = waits
    waits.place = place


def waits_sift(retries: pointer[retries_t], waits: pointer[waits_t]) -> void:
    """The first one of this queue is another one."""
    place: uint64_t = waits.place
    below: uint64_t
    check(retries.queues[place] == waits, b"waits W1 a queue knows its place", place, retries.count)
    while place and _before(waits.items, retries.queues[(place - 1) // 2].items):
        _put(retries, place, retries.queues[(place - 1) // 2])
        place = (place - 1) // 2
    while True:
        below = 2 * place + 1
        if below >= retries.count:
            break
        if below + 1 < retries.count and _before(retries.queues[below + 1].items, retries.queues[below].items):
            below += 1
        if not _before(retries.queues[below].items, waits.items):
            break
        _put(retries, place, retries.queues[below])
        place = below
    _put(retries, place, waits)


@cfunc
@nogil
@exceptval(check=False)
def _waits_of(retries: pointer[retries_t], queue: pointer[queue_t]) -> pointer[waits_t]:
    """Those of a queue, with nothing in them when they are new: the caller pushes one, or takes them out. NULL: no memory."""
    waits: pointer[waits_t] = cast(pointer[waits_t], queue.waits)
    queues: pointer[pointer[waits_t]]
    room: uint64_t
    if waits != NULL:
        return waits
    if retries.count == retries.room:
        room = max(ROOM_LEAST, 2 * retries.room)
        queues = cast(pointer[pointer[waits_t]], realloc(retries.queues, room * sizeof(p_void)))
        if queues == NULL:
            return NULL
        retries.queues = queues
        retries.room = room
    waits = cast(pointer[waits_t], calloc(1, sizeof(waits_t)))
    if waits == NULL or not _make_room(waits, ROOM_LEAST):
        free(waits)
        return NULL
    memory_add(MEMORY_ENTRIES, sizeof(waits_t))
    waits.queue = queue
    check(at_add32(address(queue.refs), 1) > 0, b"waits W1 a queue of which something waits is alive", queue.id, 0)
    queue.waits = waits
    _put(retries, retries.count, waits)
    retries.count += 1
    return waits


def waits_take_out(retries: pointer[retries_t], waits: pointer[waits_t]) -> void:
    """Nothing of this queue waits any more, or it is deleted. The caller frees it, outside of the lock."""
    last: pointer[waits_t]
    place: uint64_t = waits.place
    check(retries.count > 0 and retries.queues[place] == waits, b"waits W1 a queue that goes knows its place", place, retries.count)
    retries.count -= 1
    last = retries.queues[retries.count]
    waits.queue.waits = NULL
    if last != waits:
        _put(retries, place, last)
        waits_sift(retries, last)


# --- waiting ----------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _begin(retries: pointer[retries_t], queue: pointer[queue_t], position: uint64_t, due_ns: int64_t, first: pointer[bint]) -> bint:
    """*first: it is the next one of all."""
    waits: pointer[waits_t] = NULL
    item: wait_t
    begun: bint = False
    spin_lock(address(retries.lock))
    if not at_load32(address(queue.deleted)):
        waits = _waits_of(retries, queue)
    if waits != NULL:
        retries.number += 1
        item.due_ns = due_ns
        item.number = retries.number
        item.position = position
        begun = _push(waits, item)
        if begun:
            retries.total += 1
            waits_sift(retries, waits)
            first[0] = retries.queues[0] == waits and waits.items[0].number == item.number
    spin_unlock(address(retries.lock))
    return begun


def retries_wait(queue: pointer[queue_t], position: uint64_t, count: uint32_t, now_ns: int64_t) -> bint:
    index: pointer[due_index_t] = queue.due
    wait_ms: uint64_t = at_load64(address(queue.retry_min_ms)) * max(count, 1)
    first: bint = False
    if index == NULL or index.retries == NULL:
        return False
    wait_ms = min(wait_ms, at_load64(address(queue.retry_max_ms)), WAIT_MS_MAX)
    if now_ns < 0:
        now_ns = at_load64(cast(pointer[uint64_t], address(cast(pointer[retries_t], index.retries).manual_ns)))
    if now_ns < 0:
        now_ns = monotonic_ns()
    if not _begin(cast(pointer[retries_t], index.retries), queue, position, now_ns + cast(int64_t, wait_ms) * MS, address(first)):
        return False
    if first:
        spin_lock(address(index.lock))
        if index.soon != NULL:
            index.soon(index.context, wall_ms() + cast(int64_t, wait_ms))
        spin_unlock(address(index.lock))
    return True

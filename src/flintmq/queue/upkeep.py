"""Housekeeping of a queue and its figures (see queue_core.pxd for what each promises).

in: the housekeeping timer, management. out: memory given back, consumers woken, counts.

Figures are sums of counters that single writers keep (consumers, puller, list), so the message path pays no shared counter; they
are exact when nothing runs.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_load_ptr, at_store32, at_sub32
from cython.cimports.flintmq.core.content import content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    manager_delivered,
    manager_figures,
    manager_quiet,
    manager_wake_one,
    manager_wake_waiters,
)
from cython.cimports.flintmq.queue.due import due_worked
from cython.cimports.flintmq.queue.entry_list import list_advance_floor, list_next
from cython.cimports.flintmq.queue.list_upkeep import list_free_retired, list_memory, list_put_back_retired, list_shrink, list_take_retired
from cython.cimports.flintmq.queue.pull import delivery_fill, queue_has_available
from cython.cimports.flintmq.queue.slot import slot_content, slot_hold, slot_unhold
from cython.cimports.flintmq.queue.types import (
    FIGURE_ENQUEUED,
    FIGURE_READY,
    FIGURE_READY_BYTES,
    FIGURE_UNACKED,
    found_t,
    place_t,
    queue_t,
    segment_t,
)
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t


def queue_reclaim(queue, keep_spare):
    """Frees unlinked segments, unless someone is inside the list: then they wait for the next call."""
    retired: cython.pointer(segment_t) = list_take_retired(cython.address(queue.entries))
    if retired == cython.NULL:
        return
    if manager_quiet(queue):
        list_free_retired(cython.address(queue.entries), retired, keep_spare)
        at_store32(cython.address(queue.entries.reclaim_after), 0)
    else:
        list_put_back_retired(cython.address(queue.entries), retired)
        # Putting back walks all of them: not for every entry while a reader stays inside.
        at_store32(cython.address(queue.entries.reclaim_after), at_load32(cython.address(queue.entries.retired_count)) * 2 + 8)


def queue_next_expiry(queue):
    return cython.cast(int64_t, at_load64(cython.cast(cython.pointer(uint64_t), cython.address(queue.entries.expiry_min))))


# --- housekeeping and figures -----------------------------------------------------------------------------------------------


def queue_housekeeping(queue):
    place: place_t
    level: uint32_t
    done: uint64_t
    waits: cython.bint = False
    if queue.ops != cython.NULL:
        queue.ops.housekeeping(queue)
        return
    if at_load64(cython.address(queue.entries.enqueued)) == 0:
        return
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    for level in range(queue.entries.level_count):
        list_advance_floor(cython.address(queue.entries), cython.address(place), level)
    at_sub32(cython.address(queue.pins), 1)
    list_shrink(cython.address(queue.entries))
    queue_reclaim(queue, False)
    if at_load32(cython.address(queue.entries.wanted)) and queue_has_available(queue):
        manager_wake_one(queue, cython.NULL, True)
        waits = True
    manager_wake_waiters(queue)
    done = (
        at_load64(cython.address(queue.entries.enqueued))
        + at_load64(cython.address(queue.entries.released))
        + at_load64(cython.address(queue.entries.dequeued))
    )
    # Once more after the last work, which gives back what an empty queue keeps; and as long as somebody waits for what is there.
    if (
        waits
        or done != queue.worked_before
        or at_load32(cython.address(queue.entries.retired_count))
        or at_load_ptr(cython.address(queue.waiters)) != cython.NULL
    ):
        queue.worked_before = done
        due_worked(queue)


def queue_ready_count(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    given: uint64_t
    if queue.ops != cython.NULL:
        return queue.ops.figure(queue, FIGURE_READY)
    manager_figures(queue, cython.address(acquired), cython.address(bytes_))
    acquired += at_load64(cython.address(queue.puller.acquired)) + at_load64(cython.address(queue.entries.taken))
    given = at_load64(cython.address(queue.entries.enqueued)) + at_load64(cython.address(queue.entries.released))
    return given - acquired if given > acquired else 0


def queue_unacked_count(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    back: uint64_t = at_load64(cython.address(queue.entries.released)) + at_load64(cython.address(queue.entries.dequeued))
    if queue.ops != cython.NULL:
        return queue.ops.figure(queue, FIGURE_UNACKED)
    manager_figures(queue, cython.address(acquired), cython.address(bytes_))
    acquired += at_load64(cython.address(queue.puller.acquired)) + at_load64(cython.address(queue.entries.taken))
    return acquired - back if acquired > back else 0


def queue_ready_bytes(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    given: uint64_t
    if queue.ops != cython.NULL:
        return queue.ops.figure(queue, FIGURE_READY_BYTES)
    manager_figures(queue, cython.address(acquired), cython.address(bytes_))
    bytes_ += at_load64(cython.address(queue.puller.acquired_bytes)) + at_load64(cython.address(queue.entries.taken_bytes))
    given = at_load64(cython.address(queue.entries.enqueued_bytes)) + at_load64(cython.address(queue.entries.released_bytes))
    return given - bytes_ if given > bytes_ else 0


def queue_consumer_count(queue):
    return at_load32(cython.address(queue.manager.consumer_count))


def queue_priorities(queue):
    return queue.entries.ops.priorities(cython.address(queue.entries))


def queue_enqueued_total(queue):
    if queue.ops != cython.NULL:
        return queue.ops.figure(queue, FIGURE_ENQUEUED)
    return at_load64(cython.address(queue.entries.enqueued))


def queue_delivered_total(queue):
    return manager_delivered(queue) + at_load64(cython.address(queue.puller.delivered))


def queue_memory(queue):
    return cython.sizeof(queue_t) + list_memory(cython.address(queue.entries))


def queue_peek(queue, position, out):
    found: found_t
    place: place_t
    content: cython.pointer(content_t) = cython.NULL
    state: uint64_t = 0
    got: cython.bint = False
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    while not got and list_next(cython.address(queue.entries), cython.address(place), position, cython.address(found)):
        position = found.position
        state = slot_hold(found.slot, True)
        if state == 0:
            continue
        got = True
        content = slot_content(found.slot)
        if content != cython.NULL:
            content_incref(content)
        delivery_fill(out, found.slot, content, position, state)
        out.slot = cython.NULL  # it may go as soon as it is let go
        slot_unhold(found.slot, state)
    at_sub32(cython.address(queue.pins), 1)
    return got

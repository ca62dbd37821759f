"""Whether a queue has anything to take, who is woken for it, and content that is asked for (see waking.pxd).

in: pulls and changes of consumers. out: consumers woken, content requests.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.consumer_manager import (
    manager_changed, manager_count, manager_move, manager_wake_one, manager_wake_waiters,
)  # fmt: skip
from cython.cimports.flintmq.queue.counts import count_acquired
from cython.cimports.flintmq.queue.delivered import delivered_grant, delivered_wait
from cython.cimports.flintmq.queue.entry_list import list_scan
from cython.cimports.flintmq.queue.grouped import grouped_look_again
from cython.cimports.flintmq.queue.residency import queue_load_room, queue_load_window
from cython.cimports.flintmq.queue.slot import LOADING_FIRST, LOADING_NOT, delivery_fill, slot_begin_loading, slot_content
from cython.cimports.flintmq.queue.types import (
    CONSUMER_INTERESTED, CONSUMER_NOTIFIED, CONSUMER_NOT_INTERESTED, ENTRY_AVAILABLE, ENTRY_NOT_RESIDENT, ENTRY_STATE_MASK, consumer_t,
    delivery_t, found_t, place_t, queue_t, slot_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint64_t


def queue_has_available(queue: pointer[queue_t]) -> bint:
    entry: found_t
    place: place_t
    available: bint
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    available = list_scan(address(queue.entries), address(place), 0, address(entry))
    at_sub32(address(queue.pins), 1)
    return available


def queue_wake_if_available(queue: pointer[queue_t]) -> void:
    """For a change of consumers (I3: the change is made already, so pass through the list lock, then look)."""
    spin_lock(address(queue.entries.lock))
    spin_unlock(address(queue.entries.lock))
    if queue.message_groups != NULL:
        grouped_look_again(queue)
    if queue_has_available(queue):
        manager_wake_one(queue, NULL, False)


def queue_ask_content(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t) -> bint:
    """Asks for what a delivery of the entry waits for: its content, or its mark. True: whoever asks is told when it is there; False: look
    again."""
    asked: c_int = slot_begin_loading(slot)
    state: uint64_t
    if asked == LOADING_FIRST and queue.port != NULL and queue.port.load != NULL:
        queue.port.load(queue.port.context, queue, position, slot.message_id)
    if asked != LOADING_NOT:
        return True
    state = at_load64(address(slot.state))
    return (
        state & (ENTRY_STATE_MASK | ENTRY_NOT_RESIDENT) == ENTRY_AVAILABLE
        and position > at_load64(address(queue.entries.level0.granted))
        and not delivered_grant(queue, position, state)
        and delivered_wait(queue, position)
    )


def queue_read_ahead(queue: pointer[queue_t], position: uint64_t) -> void:
    """Asks for the entries behind while there is still something to deliver, so that reading and sending overlap."""
    hot: uint64_t
    if queue.port == NULL or queue.port.load == NULL:
        return
    hot = queue_load_window(queue)
    if hot != ~cast(uint64_t, 0) and queue_load_room(queue) > hot // 2:
        queue.port.load(queue.port.context, queue, position + 1, 0)


def queue_hand_over(queue: pointer[queue_t], consumer: pointer[consumer_t], entry: pointer[found_t], out: pointer[delivery_t]) -> void:
    count_acquired(consumer, entry.slot)
    delivery_fill(out, entry.slot, slot_content(entry.slot), entry.position, at_load64(address(entry.slot.state)))
    at_store64(address(consumer.delivered), consumer.delivered + 1)
    if consumer.delivered % READ_AHEAD_EVERY == 0 and at_load64(address(queue.entries.cold_count)):
        queue_read_ahead(queue, entry.position)
    if at_load32(address(consumer.list)) == CONSUMER_INTERESTED:
        manager_move(queue, consumer, CONSUMER_NOTIFIED)
    elif at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED:
        manager_count(queue, consumer)


def queue_unparked(queue: pointer[queue_t], slot: pointer[slot_t]) -> void:
    """The broker took an entry; were consumers parked on it, those behind it are theirs now."""
    if at_load64(address(slot.state)) & ENTRY_NOT_RESIDENT:
        manager_changed(queue)
        queue_wake_if_available(queue)
        manager_wake_waiters(queue)

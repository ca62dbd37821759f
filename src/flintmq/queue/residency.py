"""What of a queue is in memory (see residency.pxd).

in: the store's evictions and loads. out: consumers, browsers and waiting gets woken.

I1  `cold_count` and `resident_bytes` change under the list lock together with the entry they count.
I2  Whoever parks on an entry has set ENTRY_PARKED on it while it was not resident; the content clears both flags in one step, so
    it sees everyone who parked before, and who comes later finds it.
I3  The content of an entry is in memory exactly while ENTRY_NOT_RESIDENT is not set.
I4  A queue on log_port_t.wide has a counted reference there, and is there once; it gets on the list by a message that its caller places.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store64, at_sub32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_bytes_mapped, content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    manager_add_waiter, manager_available, manager_changed, manager_figures, manager_remove_waiter, manager_wake_waiters,
)  # fmt: skip
from cython.cimports.flintmq.queue.counts import count_cold, count_evicted, count_resident
from cython.cimports.flintmq.queue.entry_list import ALL_HOT, list_past_window, list_scan, list_slot_locked
from cython.cimports.flintmq.queue.grouped import grouped_look_again
from cython.cimports.flintmq.queue.paging import shell_refused
from cython.cimports.flintmq.queue.slot import slot_body_len, slot_content, slot_hold, slot_set_cold, slot_unhold
from cython.cimports.flintmq.queue.types import (
    ENTRY_LOADING, ENTRY_NOT_RESIDENT, ENTRY_PARKED, MESSAGE_STUB_BIT, found_t, log_port_t, place_t, queue_t, segment_t, slot_t, waiter_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t


@cfunc
@nogil
@exceptval(check=False)
def _put_content(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t], is_shell: pointer[bint]) -> bint:
    """The content comes into its entry (list locked); NULL: it is asked for no more. True: somebody is parked on the entry."""
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t] = list_slot_locked(address(queue.entries), position, address(segment))
    state: uint64_t = 0
    asked: bint = False
    body_len: uint32_t
    is_shell[0] = slot == NULL
    if slot != NULL:
        state = slot_hold(slot, False)
    if state == 0:
        return False
    state &= ~cast(uint64_t, ENTRY_LOADING)
    if content != NULL and state & ENTRY_NOT_RESIDENT:
        check(slot_content(slot) == NULL, b"residency I3 a cold entry has no content", position, state)
        body_len = slot_body_len(slot)
        content_incref(content)
        slot.content = content
        asked = (state & ENTRY_PARKED) != 0
        state &= ~cast(uint64_t, ENTRY_NOT_RESIDENT | ENTRY_PARKED)
        count_cold(address(queue.entries), -1)
        count_resident(address(queue.entries), content.body_len)
        # Ready bytes go by the length that was known; should it have been wrong, they go by the body from here on.
        at_store64(
            address(queue.entries.released_bytes),
            queue.entries.released_bytes + content.body_len - cast(uint64_t, body_len),
        )
    slot_unhold(slot, state)
    return asked


@cfunc
@nogil
@exceptval(check=False)
def _wake_parked(queue: pointer[queue_t], content: pointer[content_t]) -> void:
    manager_changed(queue)
    if queue.message_groups != NULL:
        grouped_look_again(queue)
    manager_available(queue, 0, content, True)
    manager_wake_waiters(queue)


def queue_content_loaded(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t]) -> void:
    is_shell: bint = False
    asked: bint
    spin_lock(address(queue.entries.lock))
    asked = _put_content(queue, position, content, address(is_shell))
    spin_unlock(address(queue.entries.lock))
    if content == NULL and is_shell:
        shell_refused(queue, position)
    if asked:
        _wake_parked(queue, content)


def queue_contents_loaded(
    queue: pointer[queue_t], positions: pointer[uint64_t], contents: pointer[pointer[content_t]], count: uint32_t
) -> void:
    is_shell: bint = False
    asked: uint64_t = 0
    i: uint32_t = count
    spin_lock(address(queue.entries.lock))
    while i:
        i -= 1
        if _put_content(queue, positions[i], contents[i], address(is_shell)):
            asked |= cast(uint64_t, 1) << i
    spin_unlock(address(queue.entries.lock))
    for i in range(count if asked else 0):
        if asked >> i & 1:
            _wake_parked(queue, contents[i])


def queue_cold_run(
    queue: pointer[queue_t], position: uint64_t, positions: pointer[uint64_t], message_ids: pointer[uint64_t], most: uint32_t
) -> uint32_t:
    entry: found_t
    place: place_t
    state: uint64_t
    message_id: uint64_t
    count: uint32_t = 0
    if at_load64(address(queue.entries.cold_count)) == 0:
        return 0
    place.segment = NULL
    place.generation = 0
    at_add32(address(queue.pins), 1)
    while count < most and list_scan(address(queue.entries), address(place), position, address(entry)):
        position = entry.position
        state = slot_hold(entry.slot, False)  # its id may only be read while it can't go
        if state == 0:
            continue
        message_id = entry.slot.message_id
        slot_unhold(entry.slot, state)
        if state & ENTRY_NOT_RESIDENT:
            if message_id >> MESSAGE_STUB_BIT == 1:  # a shell comes alone
                if count:
                    break
                most = 1
            positions[count] = position
            message_ids[count] = message_id
            count += 1
        position += 1
    at_sub32(address(queue.pins), 1)
    return count


def queue_next_cold(queue: pointer[queue_t], position: uint64_t, position_out: pointer[uint64_t], message_id: pointer[uint64_t]) -> bint:
    return queue_cold_run(queue, position, position_out, message_id, 1) == 1


def queue_cold_count(queue: pointer[queue_t]) -> uint64_t:
    return at_load64(address(queue.entries.cold_count))


def queue_resident_bytes(queue: pointer[queue_t]) -> uint64_t:
    return at_load64(address(queue.entries.resident_bytes))


def queue_load_window(queue: pointer[queue_t]) -> uint64_t:
    port: pointer[log_port_t] = queue.port
    if port == NULL:
        return ALL_HOT
    if at_load64(address(port.rest_least)) and content_bytes_mapped() >= at_load64(address(port.content_bytes)):
        return at_load64(address(port.rest_bytes))
    return at_load64(address(port.hot_bytes))


def queue_load_room(queue: pointer[queue_t]) -> uint64_t:
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    hot: uint64_t = queue_load_window(queue)
    resident: uint64_t = at_load64(address(queue.entries.resident_bytes))
    back: uint64_t
    if hot == ALL_HOT:
        return hot
    if resident < hot:
        return hot - resident  # even with what consumers hold
    if resident // HELD_WINDOWS >= hot:
        return 0
    manager_figures(queue, address(acquired), address(bytes_))
    bytes_ += at_load64(address(queue.puller.acquired_bytes)) + at_load64(address(queue.entries.taken_bytes))
    back = at_load64(address(queue.entries.released_bytes)) + at_load64(address(queue.entries.dequeued_bytes))
    if bytes_ > back:  # in hands: not the window's
        resident = resident - (bytes_ - back) if resident > bytes_ - back else 0
    return hot - resident if resident < hot else 0


@cfunc
@nogil
@exceptval(check=False)
def _note_wide(queue: pointer[queue_t]) -> void:
    port: pointer[log_port_t] = queue.port
    if at_load32(address(queue.wide)) or at_swap32(address(queue.wide), 1):
        return
    check(at_add32(address(queue.refs), 1) > 0, b"residency I4 a queue that gets a message is alive", queue.id, 0)
    spin_lock(address(port.wide_lock))
    queue.wide_next = port.wide
    port.wide = queue
    spin_unlock(address(port.wide_lock))


def queue_window(queue: pointer[queue_t], body_len: uint32_t, hot_bytes: uint64_t) -> uint64_t:
    port: pointer[log_port_t] = queue.port
    least: uint64_t = at_load64(address(port.rest_least))
    bytes_: uint64_t = at_load64(address(queue.entries.resident_bytes)) + body_len
    if least:
        if bytes_ <= least:
            return hot_bytes
        _note_wide(queue)
        if bytes_ > at_load64(address(port.rest_bytes)) and content_bytes_mapped() < at_load64(address(port.content_bytes)):
            return ALL_HOT
        hot_bytes = at_load64(address(port.rest_bytes))
    if bytes_ <= hot_bytes:
        return hot_bytes
    return ALL_HOT if body_len <= queue_load_room(queue) else hot_bytes


def queue_cool(queue: pointer[queue_t], position: uint64_t, count: uint32_t) -> void:
    contents: pointer[content_t][64]
    hot_bytes: uint64_t = at_load64(address(queue.port.hot_bytes))
    segment: pointer[segment_t] = NULL
    slot: pointer[slot_t]
    content: pointer[content_t]
    cooled: uint32_t
    state: uint64_t
    end: uint64_t
    last: uint64_t = position + count
    if hot_bytes == ALL_HOT or not list_past_window(address(queue.entries), 0, hot_bytes):
        return
    while position < last:
        end = min(last, position + 64)
        cooled = 0
        spin_lock(address(queue.entries.lock))
        while position < end:
            slot = list_slot_locked(address(queue.entries), position, address(segment))
            position += 1
            state = slot_hold(slot, False) if slot != NULL else 0
            if state == 0:
                continue
            content = slot_content(slot)
            if content != NULL and slot.message_id and list_past_window(address(queue.entries), 0, hot_bytes):
                contents[cooled] = content
                cooled += 1
                slot_set_cold(slot, content.body_len)
                count_evicted(address(queue.entries), content.body_len)
                count_cold(address(queue.entries), 1)
                state |= ENTRY_NOT_RESIDENT
            slot_unhold(slot, state)
        spin_unlock(address(queue.entries.lock))
        while cooled:
            cooled -= 1
            content_decref(contents[cooled])


def queue_add_waiter(queue: pointer[queue_t], waiter: pointer[waiter_t]) -> void:
    manager_add_waiter(queue, waiter)


def queue_remove_waiter(queue: pointer[queue_t], waiter: pointer[waiter_t]) -> void:
    manager_remove_waiter(queue, waiter)

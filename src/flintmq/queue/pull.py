"""What consumers, browsers, basic.get and the broker take from a queue; offers; and what goes back (see pull.pxd).

in: pulls from consumers' loops, offers from producers. out: acquired entries, list moves, content requests.

I1  Credit is taken before the acquire and given back exactly once when the acquire is lost or the entry comes back unsent.
I2  Who finds nothing first moves to Interested, then passes through the list lock, then looks again (docs/QUEUE_CORE.md).
I4  Whether a consumer is suspended, and on which list it is, is tested under its send_lock where an entry is offered to it; whoever suspends
    it takes that lock after saying so: an offer comes before that and is taken back, or after it and is not made.
I3  `last_seen`, `released`, `place`, `acquired` and `delivered` of a consumer are written under its send_lock only.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import (
    at_add32,
    at_load32,
    at_load64,
    at_store64,
    at_store_ptr,
    at_sub32,
    at_swap_ptr,
    spin_lock,
    spin_unlock,
)
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    credit_give_back,
    credit_left,
    credit_take,
    manager_available,
    manager_changed,
    manager_count,
    manager_credit_back,
    manager_move,
    manager_new_round,
    manager_next_offer,
    manager_offered,
    manager_outranked,
    manager_wake_one,
    manager_wake_waiters,
    queue_version,
)
from cython.cimports.flintmq.queue.due import due_expiry, due_worked
from cython.cimports.flintmq.queue.entry_list import list_advance_floor, list_lowest_behind, list_release, list_scan
from cython.cimports.flintmq.queue.list_kinds import kind_returned
from cython.cimports.flintmq.queue.residency import queue_load_room
from cython.cimports.flintmq.queue.returns import queue_count_return
from cython.cimports.flintmq.queue.slot import (
    LOADING_FIRST,
    LOADING_NOT,
    slot_acquire,
    slot_begin_loading,
    slot_body_len,
    slot_borrow,
    slot_content,
    slot_sent,
)
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES,
    CONSUMER_INTERESTED,
    CONSUMER_NON_ACQUIRING,
    CONSUMER_NOTIFIED,
    CONSUMER_NOT_INTERESTED,
    CONSUMER_REMOVED,
    ENTRY_COUNT_SHIFT,
    ENTRY_NOT_RESIDENT,
    ENTRY_REDELIVERED,
    consumer_t,
    delivery_t,
    found_t,
    group_t,
    list_t,
    place_t,
    puller_t,
    queue_t,
    slot_t,
    RETURNS_COUNTED,
)
from cython.cimports.libc.stdint import uint32_t, uint64_t

# Outcomes of _attempt.
NOTHING = cython.declare(cython.int, 0)
TAKEN = cython.declare(cython.int, 1)
OUTRANKED = cython.declare(cython.int, 2)
NO_CREDIT = cython.declare(cython.int, 3)
PARKED = cython.declare(cython.int, 4)
NOT_NEXT = cython.declare(cython.int, 5)
SUSPENDED = cython.declare(cython.int, 6)
NOT_READY = cython.declare(cython.int, 7)

# Entries passed in one scan before the level's floor is moved up for everybody: a few times what neighbours take in turn.
SKIPPED_MANY = cython.declare(uint32_t, 64)
# Entries taken between two times that the floor follows them: it is near, so that what comes back lies below it.
FLOOR_EVERY = cython.declare(uint64_t, 256)
# Deliveries of a consumer between two looks at whether to read ahead: the look costs a sum over the consumers.
READ_AHEAD_EVERY = cython.declare(uint64_t, 256)


# --- is there anything, and who should know ------------------------------------------------------------------------------


def queue_has_available(queue):
    found: found_t
    place: place_t
    available: cython.bint
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    available = list_scan(cython.address(queue.entries), cython.address(place), 0, cython.address(found))
    at_sub32(cython.address(queue.pins), 1)
    return available


def queue_wake_if_available(queue):
    """For a change of consumers (I3: the change is made already, so pass through the list lock, then look)."""
    spin_lock(cython.address(queue.entries.lock))
    spin_unlock(cython.address(queue.entries.lock))
    if queue_has_available(queue):
        manager_wake_one(queue, cython.NULL, False)


# --- pulls --------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _count_acquired(consumer: cython.pointer(consumer_t), slot: cython.pointer(slot_t)) -> cython.void:
    at_store64(cython.address(consumer.acquired), consumer.acquired + 1)
    at_store64(cython.address(consumer.acquired_bytes), consumer.acquired_bytes + slot_body_len(slot))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _load_content(queue: cython.pointer(queue_t), slot: cython.pointer(slot_t), position: uint64_t) -> cython.bint:
    """Asks for the content of an entry that was not resident. True: whoever asks is told when it is there; False: look again."""
    asked: cython.int = slot_begin_loading(slot)
    if asked == LOADING_FIRST and queue.port != cython.NULL and queue.port.load != cython.NULL:
        queue.port.load(queue.port.context, queue, position, slot.message_id)
    return asked != LOADING_NOT


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_ahead(queue: cython.pointer(queue_t), position: uint64_t) -> cython.void:
    """Asks for what comes behind while there is still something to deliver, so that reading and sending overlap."""
    hot: uint64_t
    if queue.port == cython.NULL or queue.port.load == cython.NULL:
        return
    hot = at_load64(cython.address(queue.port.hot_bytes))
    if hot != ~cython.cast(uint64_t, 0) and queue_load_room(queue) > hot // 2:
        queue.port.load(queue.port.context, queue, position + 1, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _attempt(
    queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t), wanted: uint64_t, found: cython.pointer(found_t)
) -> cython.int:
    """Tries to acquire the consumer's next entry (`wanted` not 0: only if it is that one). Called with its send_lock held.

    The list's events are read before the scan: an entry that comes back during it is found by the next one, so that one that was passed
    while it was acquired is not lost. `last_seen` and `released` are only written here. `found.returned`: credit was taken and given back.
    """
    entries: cython.pointer(list_t) = cython.address(queue.entries)
    last: uint64_t = at_load64(cython.address(consumer.last_seen))
    start: uint64_t = last + 1
    mark: uint64_t = consumer.released
    position: uint64_t
    outcome: cython.int
    content: cython.pointer(content_t)
    interested: cython.bint
    if at_load64(cython.address(entries.behind)) != consumer.behind:
        mark = list_lowest_behind(entries, cython.address(consumer.behind), mark)
    if mark:
        consumer.released = 0
        if mark < start:
            start = mark
    while True:
        if not list_scan(entries, cython.address(consumer.place), start, found):
            if found.end > last:
                at_store64(cython.address(consumer.last_seen), found.end)
            if found.skipped > SKIPPED_MANY:
                list_advance_floor(entries, cython.address(consumer.place), entries.level_count - 1)
            return NOTHING
        position = found.position
        if found.skipped > SKIPPED_MANY:
            list_advance_floor(entries, cython.address(consumer.place), cython.cast(uint32_t, position >> 56))
        if at_load64(cython.address(found.slot.state)) & ENTRY_NOT_RESIDENT:
            outcome = PARKED
            break
        if consumer.interest != cython.NULL:
            content = slot_borrow(found.slot, False, cython.NULL)
            if content == cython.NULL:
                start = position  # gone, or evicted: look again
                continue
            interested = consumer.interest(consumer.interest_context, content)
            content_decref(content)
            if not interested:
                start = position + 1
                continue
        if manager_outranked(queue, consumer, found.slot):
            outcome = OUTRANKED
            break
        if wanted and position != wanted:
            outcome = NOT_NEXT
            break
        if not credit_take(consumer):
            outcome = NO_CREDIT
            break
        if slot_acquire(found.slot, consumer.id, False):
            outcome = TAKEN
            break
        credit_give_back(consumer)
        if manager_credit_back(queue, consumer, True):
            found.returned = True
        start = position
    if outcome == TAKEN:
        if position > last:
            at_store64(cython.address(consumer.last_seen), position)
        else:
            consumer.released = position + 1
        if position % FLOOR_EVERY == 0:
            list_advance_floor(entries, cython.address(consumer.place), cython.cast(uint32_t, position >> 56))
    elif position > last:
        at_store64(cython.address(consumer.last_seen), position - 1)
    else:
        consumer.released = position
    return outcome


def delivery_fill(out, slot, content, position, state):
    out.slot = slot
    out.content = content
    out.position = position
    out.message_id = slot.message_id if slot != cython.NULL else 0
    out.delivery_count = cython.cast(uint32_t, (state >> ENTRY_COUNT_SHIFT) & 0xFFFF)
    out.redelivered = (state & ENTRY_REDELIVERED) != 0
    out.rotate = False


def queue_deliver_single(queue, consumer, out):
    found: found_t
    outcome: cython.int
    version: uint64_t
    offered: cython.pointer(slot_t)
    group: cython.pointer(group_t)
    looked_again: cython.bint = False
    wake: cython.bint = False
    if queue.ops != cython.NULL:
        return queue.ops.deliver(queue, consumer, out)
    spin_lock(cython.address(consumer.send_lock))
    if at_load32(cython.address(queue.deleted)) or at_load32(cython.address(consumer.list)) <= CONSUMER_REMOVED:
        spin_unlock(cython.address(consumer.send_lock))
        return False
    if not consumer.flags & CONSUMER_ACQUIRES:
        return _browse(queue, consumer, out)
    # An offer is sent from there, too: it took the credit, without which the consumer may have been moved there since.
    if at_load32(cython.address(consumer.list)) == CONSUMER_NOT_INTERESTED and consumer.offered == cython.NULL:
        if consumer.acquired != consumer.counted:
            manager_count(queue, consumer)  # it was moved while it took its last one
        spin_unlock(cython.address(consumer.send_lock))
        return False
    while True:
        # Before the look: an arrival during it makes the version differ.
        version = queue_version(queue) if looked_again else 0
        offered = consumer.offered
        if at_load32(cython.address(consumer.target.suspended)):
            outcome = SUSPENDED
        elif offered != cython.NULL:
            found.slot = offered  # its credit and acquire are done
            found.position = consumer.offered_position
            at_store_ptr(cython.address(consumer.offered), cython.NULL)
            break
        else:
            outcome = _attempt(queue, consumer, 0, cython.address(found))
        if outcome == TAKEN:
            _count_acquired(consumer, found.slot)
            break
        if outcome == SUSPENDED or outcome == NO_CREDIT:
            manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
            # Credit that came back before the move was not answered by set_notify_work_desired: see to it here.
            if not at_load32(cython.address(consumer.target.suspended)) and credit_left(consumer):
                manager_move(queue, consumer, CONSUMER_INTERESTED)
                continue
            spin_unlock(cython.address(consumer.send_lock))
            if offered != cython.NULL:
                queue_withdraw_offer(queue, consumer)
            queue_wake_if_available(queue)
            return False
        if looked_again:
            at_store64(cython.address(consumer.idle_version), version)
            if outcome == PARKED:
                if not _load_content(queue, found.slot, found.position):
                    continue
                out.position = found.position
            spin_unlock(cython.address(consumer.send_lock))
            if outcome == OUTRANKED or consumer.interest != cython.NULL:
                queue_wake_if_available(queue)  # for whoever can take what this one can't
            if outcome == OUTRANKED:
                # What the one above it leaves is its work, and that changes no version: it may be woken again for the same. Only
                # now, so that it did not wake itself just above.
                at_store64(cython.address(consumer.idle_version), ~cython.cast(uint64_t, 0))
            return False
        # I3: first Interested, then through the list lock, then look again.
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        spin_lock(cython.address(queue.entries.lock))
        spin_unlock(cython.address(queue.entries.lock))
        looked_again = True
    delivery_fill(out, found.slot, slot_content(found.slot), found.position, at_load64(cython.address(found.slot.state)))
    at_store64(cython.address(consumer.delivered), consumer.delivered + 1)
    if consumer.delivered % READ_AHEAD_EVERY == 0 and at_load64(cython.address(queue.entries.cold_count)):
        _read_ahead(queue, found.position)
    group = consumer.group
    if at_load32(cython.address(consumer.list)) == CONSUMER_INTERESTED:
        manager_move(queue, consumer, CONSUMER_NOTIFIED)  # it stays hot
    elif at_load32(cython.address(consumer.list)) == CONSUMER_NOT_INTERESTED:
        manager_count(queue, consumer)
    if at_load32(cython.address(group.interested.count)):
        out.rotate = True
        wake = list_scan(cython.address(queue.entries), cython.address(consumer.place), found.position + 1, cython.address(found))
    elif at_load32(cython.address(group.notified.count)) > 1:
        out.rotate = True
    spin_unlock(cython.address(consumer.send_lock))
    if wake:
        manager_wake_one(queue, cython.NULL, False)  # a backlog spreads to all
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _browse(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t), out: cython.pointer(delivery_t)) -> cython.bint:
    """The next entry a browser has not seen, in list order; its content gets a reference. Called with, and gives up, its send_lock."""
    entries: cython.pointer(list_t) = cython.address(queue.entries)
    found: found_t
    level: uint32_t = 0
    at: uint32_t
    state: uint64_t
    content: cython.pointer(content_t)
    if at_load32(cython.address(consumer.list)) != CONSUMER_NON_ACQUIRING or at_load32(cython.address(consumer.target.suspended)):
        spin_unlock(cython.address(consumer.send_lock))
        return False
    while level < entries.level_count:
        if not list_scan(
            entries,
            cython.address(consumer.place),
            (cython.cast(uint64_t, level) << 56) | (consumer.browse_levels[level] + 1),
            cython.address(found),
        ):
            break
        at = cython.cast(uint32_t, found.position >> 56)
        if at > level and (found.position << 8) >> 8 <= consumer.browse_levels[at]:
            level = at  # nothing new up to there; go on behind what it saw of that level
            continue
        level = at
        if at_load64(cython.address(found.slot.state)) & ENTRY_NOT_RESIDENT:
            if _load_content(queue, found.slot, found.position):
                break  # queue_content_loaded notifies it
            continue
        content = slot_borrow(found.slot, False, cython.address(state))
        if content == cython.NULL:
            continue
        if consumer.interest != cython.NULL and not consumer.interest(consumer.interest_context, content):
            content_decref(content)
            consumer.browse_levels[at] = (found.position << 8) >> 8
            continue
        consumer.browse_levels[at] = (found.position << 8) >> 8
        delivery_fill(out, cython.NULL, content, found.position, state)
        at_store64(cython.address(consumer.delivered), consumer.delivered + 1)
        spin_unlock(cython.address(consumer.send_lock))
        return True
    spin_unlock(cython.address(consumer.send_lock))
    return False


def entry_sent(slot):
    slot_sent(slot)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pull(queue: cython.pointer(queue_t), owner: uint32_t, cold: cython.bint, out: cython.pointer(delivery_t)) -> cython.bint:
    """_attempt without consumer: first available entry for a basic.get or the broker. `cold`: also a not resident one."""
    entries: cython.pointer(list_t) = cython.address(queue.entries)
    puller: cython.pointer(puller_t) = cython.address(queue.puller)
    found: found_t
    start: uint64_t
    mark: uint64_t = 0
    taken: cython.bint = False
    out.slot = cython.NULL
    out.position = 0
    spin_lock(cython.address(puller.lock))
    start = puller.last_seen + 1
    mark = puller.released
    if at_load64(cython.address(entries.behind)) != puller.behind:
        mark = list_lowest_behind(entries, cython.address(puller.behind), mark)
    if mark:
        puller.released = 0
        if mark < start:
            start = mark
    while not taken:
        if not list_scan(entries, cython.address(puller.place), start, cython.address(found)):
            if found.end > puller.last_seen:
                puller.last_seen = found.end
            spin_unlock(cython.address(puller.lock))
            return False
        if found.skipped > SKIPPED_MANY:
            list_advance_floor(entries, cython.address(puller.place), cython.cast(uint32_t, found.position >> 56))
        start = found.position
        if not cold and at_load64(cython.address(found.slot.state)) & ENTRY_NOT_RESIDENT:
            if _load_content(queue, found.slot, found.position):
                break
            continue
        taken = slot_acquire(found.slot, owner, cold)
    if taken:
        if found.position > puller.last_seen:
            puller.last_seen = found.position
        else:
            puller.released = found.position + 1
        if found.position % FLOOR_EVERY == 0:
            list_advance_floor(entries, cython.address(puller.place), cython.cast(uint32_t, found.position >> 56))
        at_store64(cython.address(puller.acquired), puller.acquired + 1)
        at_store64(cython.address(puller.acquired_bytes), puller.acquired_bytes + slot_body_len(found.slot))
        if owner:
            at_store64(cython.address(puller.delivered), puller.delivered + 1)
        delivery_fill(out, found.slot, slot_content(found.slot), found.position, at_load64(cython.address(found.slot.state)))
    else:
        puller.released = found.position
        out.position = found.position
    spin_unlock(cython.address(puller.lock))
    if taken:
        queue_unparked(queue, found.slot)
    return taken


def queue_unparked(queue, slot):
    """The broker took an entry; were consumers parked on it, those behind it are theirs now."""
    if at_load64(cython.address(slot.state)) & ENTRY_NOT_RESIDENT:
        manager_changed(queue)
        queue_wake_if_available(queue)
        manager_wake_waiters(queue)


def queue_pull(queue, owner, out):
    return _pull(queue, owner, False, out)


def queue_take_head(queue, out):
    return _pull(queue, 0, True, out)


def queue_release(queue, slot, position, owner, delivered):
    wanted: uint32_t = 0
    if queue.ops != cython.NULL:
        return queue.ops.release(queue, slot, position, owner, delivered)
    if delivered and queue.returns & RETURNS_COUNTED and queue_count_return(queue, position, owner):
        return True  # the broker has it, and ends it
    if not list_release(cython.address(queue.entries), position, owner, delivered, cython.address(wanted)):
        return False
    due_worked(queue)
    due_expiry(queue)
    kind_returned(queue, position)
    manager_available(queue, cython.NULL, True)
    manager_wake_waiters(queue)
    return True


# --- offers -------------------------------------------------------------------------------------------------------------


def queue_offer(queue, position):
    """Seed 000's deliverToSubscription, over the ready consumers in turn: acquires the entry for the first one whose next entry it
    is, who has credit, interest and no other offer, and schedules its target. True when one took it."""
    consumer: cython.pointer(consumer_t)
    found: found_t
    round_no: uint32_t = manager_new_round(queue)
    at: uint32_t
    outcome: cython.int
    again: cython.bint = False
    taken: cython.bint = False
    while not taken:
        consumer = manager_next_offer(queue, round_no)
        if consumer == cython.NULL:
            break
        # Its send_lock is ours: it can't be removed, pull, or get another offer. What was seen before that may be over: I4.
        outcome = NOT_READY
        found.returned = False
        at = at_load32(cython.address(consumer.list))
        if (
            consumer.offered == cython.NULL
            and (at == CONSUMER_INTERESTED or at == CONSUMER_NOTIFIED)
            and not at_load32(cython.address(consumer.target.suspended))
        ):
            outcome = _attempt(queue, consumer, position, cython.address(found))
        if outcome == TAKEN:
            _count_acquired(consumer, found.slot)
            consumer.offered_position = position
            at_store_ptr(cython.address(consumer.offered), found.slot)
            manager_offered(queue, consumer)
            if at_load32(cython.address(consumer.list)) != CONSUMER_NOTIFIED:
                manager_count(queue, consumer)
            taken = True
        again = again or found.returned
        spin_unlock(cython.address(consumer.send_lock))
        if (outcome == NOT_NEXT or outcome == NOTHING) and at_load32(cython.address(queue.manager.predicates)) == 0:
            break  # what is next is the same for everybody
    if again:
        queue_wake_if_available(queue)  # one that lost its credit for a moment may have been passed over for another entry
    return taken


def queue_withdraw_offer(queue, consumer):
    """The consumer won't send what it was offered: the entry goes back to its place. Called without its send_lock."""
    offered: cython.pointer(slot_t)
    position: uint64_t
    spin_lock(cython.address(consumer.send_lock))
    offered = cython.cast(cython.pointer(slot_t), at_swap_ptr(cython.address(consumer.offered), cython.NULL))
    position = consumer.offered_position
    spin_unlock(cython.address(consumer.send_lock))
    if offered != cython.NULL:
        credit_give_back(consumer)
        manager_credit_back(queue, consumer, False)
        queue_release(queue, offered, position, consumer.id, False)

"""The queue: enqueue, notify, pull, offer, settle, release (see queue_core.pxd; seeds 000 and 004).

in: producers, consumers' loops, the broker's own removers. out: deliveries, notify_work calls, log and content port calls.

I1  Only who acquired an entry removes it; an entry has at most one holder.
I2  For every acquiring consumer, each available entry it wants is at or after min(released, last_seen + 1), once whoever made
    it available has returned.
I3  Lost wake-up guard: who makes an entry available does so under list_t.lock and reads list_t.wanted there; who goes idle counts
    itself in `wanted`, passes through list_t.lock, and looks again.
I4  Credit is taken before the acquire and given back exactly once when the acquire is lost or the entry comes back unsent.

Lock order: log_lock; send_lock or puller.lock; manager lock; list lock. An offer only tries send_lock, so it may hold the manager
lock then. Ports run without list, manager and consumer locks, except notify_work (manager lock) and the content port (send_lock).
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import (
    at_add32,
    at_cas64,
    at_load32,
    at_load64,
    at_load_ptr,
    at_store32,
    at_store64,
    at_store_ptr,
    at_sub32,
    at_swap_ptr,
    spin_lock,
    spin_unlock,
)
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, content_decref, content_incref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    credit_give_back,
    credit_left,
    credit_take,
    manager_add,
    manager_available,
    manager_changed,
    manager_figures,
    manager_forget,
    manager_move,
    manager_new_round,
    manager_next_offer,
    manager_offered,
    manager_outranked,
    manager_quiet,
    manager_remove,
    manager_wake_one,
    pointer_lower,
    queue_version,
)
from cython.cimports.flintmq.queue.entry_list import (
    list_add,
    list_advance_floor,
    list_delete_locked,
    list_dequeue,
    list_destroy,
    list_finish,
    list_free_retired,
    list_init,
    list_memory,
    list_next,
    list_publish,
    list_put_back_retired,
    list_release,
    list_reserve,
    list_scan,
    list_shrink,
    list_slot_locked,
    list_take_expired,
    list_take_retired,
)
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_begin_loading, slot_borrow, slot_hold, slot_sent, slot_unhold
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES,
    CONSUMER_INTERESTED,
    CONSUMER_NON_ACQUIRING,
    CONSUMER_NOT_INTERESTED,
    CONSUMER_NOTIFIED,
    CONSUMER_REMOVED,
    CONSUMER_SEES_REQUEUES,
    ENTRY_COUNT_SHIFT,
    ENTRY_LOADING,
    ENTRY_LOGGED,
    ENTRY_NOT_RESIDENT,
    ENTRY_REDELIVERED,
    REASON_DROP,
    REASON_PURGE,
    consumer_t,
    credit_t,
    delivery_t,
    found_t,
    group_t,
    level_t,
    list_t,
    place_t,
    puller_t,
    queue_t,
    segment_t,
    slot_t,
)
from cython.cimports.libc.stdint import int32_t, int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

# Outcomes of _attempt.
NOTHING = cython.declare(cython.int, 0)
TAKEN = cython.declare(cython.int, 1)
OUTRANKED = cython.declare(cython.int, 2)
NO_CREDIT = cython.declare(cython.int, 3)
PARKED = cython.declare(cython.int, 4)
NOT_NEXT = cython.declare(cython.int, 5)
SUSPENDED = cython.declare(cython.int, 6)

# Entries passed in one scan before the level's floor is moved up for everybody: a few times what neighbours take in turn.
SKIPPED_MANY = cython.declare(uint32_t, 64)

_last_consumer_id = cython.declare(uint32_t, 0)


# --- life -------------------------------------------------------------------------------------------------------------------


def queue_new(queue_id, list_kind, levels, level_rule):
    queue: cython.pointer(queue_t) = cython.cast(cython.pointer(queue_t), calloc(1, cython.sizeof(queue_t)))
    if queue == cython.NULL:
        return cython.NULL
    if not list_init(cython.address(queue.entries), list_kind, levels, level_rule):
        free(queue)
        return cython.NULL
    queue.refs = 1
    queue.id = queue_id
    queue.list_kind = list_kind
    return queue


def queue_incref(queue):
    at_add32(cython.address(queue.refs), 1)


def queue_decref(queue):
    if at_sub32(cython.address(queue.refs), 1) == 1:
        list_destroy(cython.address(queue.entries))
        free(queue)


def queue_mark_deleted(queue):
    at_store32(cython.address(queue.deleted), 1)
    spin_lock(cython.address(queue.entries.lock))
    queue.entries.closed = 1
    spin_unlock(cython.address(queue.entries.lock))


def queue_is_deleted(queue):
    return at_load32(cython.address(queue.deleted)) != 0


def queue_get_id(queue):
    return queue.id


def queue_set_durable(queue, durable):
    queue.durable = 1 if durable else 0


def queue_is_durable(queue):
    return queue.durable != 0


def queue_set_ports(queue, context, load, log_enqueue, log_dequeue):
    queue.port_context = context
    queue.load = load
    queue.log_enqueue = log_enqueue
    queue.log_dequeue = log_dequeue


# --- producers --------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_logged(
    queue: cython.pointer(queue_t),
    level: uint32_t,
    content: cython.pointer(content_t),
    message_id: uint64_t,
    expires_at_ms: int64_t,
    lsn: cython.pointer(uint64_t),
    wanted: cython.pointer(uint32_t),
) -> uint64_t:
    """Adds with the log told first. Producers of the queue pass one by one, so that the log sees positions in order."""
    position: uint64_t = 0
    logged_at: uint64_t
    slot: cython.pointer(slot_t)
    spin_lock(cython.address(queue.log_lock))
    if content != cython.NULL and content.flags & CONTENT_PERSISTENT:
        slot = list_reserve(cython.address(queue.entries), level, content, message_id, cython.address(position))
        if slot != cython.NULL:
            logged_at = queue.log_enqueue(queue.port_context, queue, position, slot)
            if lsn != cython.NULL and logged_at > lsn[0]:
                lsn[0] = logged_at
            list_publish(cython.address(queue.entries), slot, position, ENTRY_LOGGED, expires_at_ms, wanted)
    else:
        position = list_add(cython.address(queue.entries), level, 0, content, message_id, 0, expires_at_ms, wanted)
    spin_unlock(cython.address(queue.log_lock))
    return position


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _add(
    queue: cython.pointer(queue_t),
    content: cython.pointer(content_t),
    message_id: uint64_t,
    expires_at_ms: int64_t,
    lsn: cython.pointer(uint64_t),
    wanted: cython.pointer(uint32_t),
) -> uint64_t:
    level: uint32_t = 0
    if not queue.entries.ops.in_order:
        level = queue.entries.ops.level_of(cython.address(queue.entries), content)
    if queue.durable and queue.log_enqueue != cython.NULL:
        return _add_logged(queue, level, content, message_id, expires_at_ms, lsn, wanted)
    return list_add(cython.address(queue.entries), level, 0, content, message_id, 0, expires_at_ms, wanted)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _lower_pointers(queue: cython.pointer(queue_t), position: uint64_t) -> cython.bint:
    """After an arrival: true when it may be before a consumer's pointer, which the manager then lowers; lowers the puller's."""
    if queue.entries.ops.in_order or (position >> 56) == queue.entries.level_count - 1:
        return False
    pointer_lower(cython.address(queue.puller.released), position)
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _arrived(queue: cython.pointer(queue_t), position: uint64_t, content: cython.pointer(content_t), wanted: uint32_t) -> cython.void:
    """Pointers back, consumers woken. The common case, nobody to wake and nothing to lower, takes no lock."""
    mark: cython.bint = _lower_pointers(queue, position)
    if wanted == 0 and not mark:
        return
    if not mark and at_load_ptr(cython.address(queue.manager.exclusive)) != cython.NULL and _offer(queue, position):
        return  # the exclusive short cut: one consumer, nobody to choose from
    manager_available(queue, position, cython.NULL, content, mark, True)


def queue_enqueue(queue, content, message_id, expires_at_ms, lsn):
    wanted: uint32_t = 0
    position: uint64_t = _add(queue, content, message_id, expires_at_ms, lsn, cython.address(wanted))
    if position:
        _arrived(queue, position, content, wanted)
    return position


def queue_restore(queue, content, message_id, position, redelivered, expires_at_ms):
    wanted: uint32_t = 0
    flags: uint64_t = 0
    restored: uint64_t = 0
    level: uint64_t = position >> 56
    index: uint64_t = (position << 8) >> 8
    if level >= queue.entries.level_count or index == 0:
        return 0
    if redelivered:
        flags |= ENTRY_REDELIVERED
    if message_id:
        flags |= ENTRY_LOGGED
    if content == cython.NULL:
        flags |= ENTRY_NOT_RESIDENT
    spin_lock(cython.address(queue.log_lock))
    restored = list_add(
        cython.address(queue.entries), cython.cast(uint32_t, level), index, content, message_id, flags, expires_at_ms, cython.address(wanted)
    )
    spin_unlock(cython.address(queue.log_lock))
    if restored:
        _arrived(queue, restored, content, wanted)
    return restored


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _offer(queue: cython.pointer(queue_t), position: uint64_t) -> cython.bint:
    """Seed 000's deliverToSubscription, over the ready consumers in turn: acquires the entry for the first one whose next entry it
    is, who has credit, interest and no other offer, and schedules its target. True when one took it."""
    consumer: cython.pointer(consumer_t)
    found: found_t
    round_no: uint32_t = manager_new_round(queue)
    while True:
        consumer = manager_next_offer(queue, round_no)
        if consumer == cython.NULL:
            return False
        # Its send_lock is ours: it can't be removed, pull, or get another offer.
        if consumer.offered == cython.NULL and _attempt(queue, consumer, position, cython.address(found)) == TAKEN:
            _count_acquired(consumer, found.slot)
            consumer.offered_position = position
            at_store_ptr(cython.address(consumer.offered), found.slot)
            manager_offered(queue, consumer)
            spin_unlock(cython.address(consumer.send_lock))
            return True
        spin_unlock(cython.address(consumer.send_lock))


def queue_enqueue_immediate(queue, content, message_id, expires_at_ms, lsn):
    wanted: uint32_t = 0
    mark: cython.bint
    slot: cython.pointer(slot_t)
    segment: cython.pointer(segment_t) = cython.NULL
    position: uint64_t = _add(queue, content, message_id, expires_at_ms, lsn, cython.address(wanted))
    if position == 0:
        return 0
    mark = _lower_pointers(queue, position)
    if mark:
        # The pointers must be back before the offer looks for the consumer's next entry.
        manager_available(queue, position, cython.NULL, content, True, False)
    if _offer(queue, position):
        return position
    # Nobody took it: the broker must win the acquire to take it back. When it does not, a consumer has it: delivered.
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot == cython.NULL or not slot_acquire(slot, 0, True):
        spin_unlock(cython.address(queue.entries.lock))
        return position
    _count_taken_locked(queue, slot)
    spin_unlock(cython.address(queue.entries.lock))
    queue_dequeue(queue, slot, position, 0, REASON_DROP)
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _count_taken_locked(queue: cython.pointer(queue_t), slot: cython.pointer(slot_t)) -> cython.void:
    at_store64(cython.address(queue.entries.taken), queue.entries.taken + 1)
    if slot.content != cython.NULL:
        at_store64(cython.address(queue.entries.taken_bytes), queue.entries.taken_bytes + slot.content.body_len)


# --- consumers --------------------------------------------------------------------------------------------------------------


def consumer_id_new():
    return at_add32(cython.address(_last_consumer_id), 1) + 1


def consumer_new(queue, target, priority, flags, prefetch):
    consumer: cython.pointer(consumer_t) = cython.cast(cython.pointer(consumer_t), calloc(1, cython.sizeof(consumer_t)))
    if consumer == cython.NULL:
        return cython.NULL
    consumer.id = consumer_id_new()
    consumer.refs = 1
    consumer.queue = queue
    consumer.target = target
    consumer.priority = priority
    consumer.flags = flags
    if flags & CONSUMER_ACQUIRES:
        consumer.flags |= CONSUMER_SEES_REQUEUES  # else a returned entry behind its pointer could have no taker
    consumer.credit.limit = prefetch
    consumer.browse_levels = consumer.browsed
    consumer.idle_version = ~cython.cast(uint64_t, 0)
    if not flags & CONSUMER_ACQUIRES and queue.entries.level_count > 1:
        consumer.browse_levels = cython.cast(cython.pointer(uint64_t), calloc(queue.entries.level_count, cython.sizeof(uint64_t)))
        if consumer.browse_levels == cython.NULL:
            free(consumer)
            return cython.NULL
    queue_incref(queue)
    return consumer


def consumer_incref(consumer):
    at_add32(cython.address(consumer.refs), 1)


def consumer_decref(consumer):
    if at_sub32(cython.address(consumer.refs), 1) == 1:
        if consumer.browse_levels != consumer.browsed:
            free(consumer.browse_levels)
        queue_decref(consumer.queue)
        free(consumer)


def consumer_take_credit(consumer):
    return credit_take(consumer)


def consumer_give_back_credit(consumer):
    credit_give_back(consumer)


def consumer_has_credit(consumer):
    return credit_left(consumer)


def queue_add_consumer(queue, consumer):
    if not manager_add(queue, consumer):
        return False
    consumer_incref(consumer)
    if consumer.flags & CONSUMER_ACQUIRES:
        _wake_if_available(queue)
    elif at_load32(cython.address(consumer.list)) == CONSUMER_NON_ACQUIRING:
        consumer.target.notify_work(consumer.target)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has_available(queue: cython.pointer(queue_t)) -> cython.bint:
    found: found_t
    place: place_t
    available: cython.bint
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    available = list_scan(cython.address(queue.entries), cython.address(place), 0, cython.address(found))
    at_sub32(cython.address(queue.pins), 1)
    return available


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _wake_if_available(queue: cython.pointer(queue_t)) -> cython.void:
    """For a change of consumers (I3: the change is made already, so pass through the list lock, then look)."""
    spin_lock(cython.address(queue.entries.lock))
    spin_unlock(cython.address(queue.entries.lock))
    if _has_available(queue):
        manager_wake_one(queue, cython.NULL, False)


def queue_remove_consumer(queue, consumer):
    offered: cython.pointer(slot_t)
    if manager_remove(queue, consumer) == CONSUMER_REMOVED:
        return
    # From here nobody new comes in; wait for the pull or offer that is inside.
    spin_lock(cython.address(consumer.send_lock))
    offered = cython.cast(cython.pointer(slot_t), at_swap_ptr(cython.address(consumer.offered), cython.NULL))
    manager_forget(queue, consumer)
    spin_unlock(cython.address(consumer.send_lock))
    if offered != cython.NULL:
        credit_give_back(consumer)
        queue_release(queue, offered, consumer.offered_position, consumer.id, False)
    _wake_if_available(queue)
    consumer_decref(consumer)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _withdraw_offer(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t)) -> cython.void:
    """The consumer won't send what it was offered: the entry goes back to its place. Called without its send_lock."""
    offered: cython.pointer(slot_t)
    position: uint64_t
    spin_lock(cython.address(consumer.send_lock))
    offered = cython.cast(cython.pointer(slot_t), at_swap_ptr(cython.address(consumer.offered), cython.NULL))
    position = consumer.offered_position
    spin_unlock(cython.address(consumer.send_lock))
    if offered != cython.NULL:
        credit_give_back(consumer)
        queue_release(queue, offered, position, consumer.id, False)


def queue_set_notify_work_desired(queue, consumer, desired):
    at: uint32_t
    if not desired:
        at = manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
        if at_load_ptr(cython.address(consumer.offered)) != cython.NULL:
            _withdraw_offer(queue, consumer)
        if at == CONSUMER_NOTIFIED or at == CONSUMER_INTERESTED:
            _wake_if_available(queue)  # another does the work that was expected of this one
        return
    if not consumer.flags & CONSUMER_ACQUIRES:
        if manager_move(queue, consumer, CONSUMER_NON_ACQUIRING) or at_load32(cython.address(consumer.list)) == CONSUMER_NON_ACQUIRING:
            consumer.target.notify_work(consumer.target)
        return
    at = at_load32(cython.address(consumer.list))
    if at == CONSUMER_NOT_INTERESTED and credit_left(consumer):
        manager_move(queue, consumer, CONSUMER_INTERESTED)
    if at != CONSUMER_NOTIFIED:
        _wake_if_available(queue)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _count_acquired(consumer: cython.pointer(consumer_t), slot: cython.pointer(slot_t)) -> cython.void:
    at_store64(cython.address(consumer.acquired), consumer.acquired + 1)
    at_store64(cython.address(consumer.acquired_bytes), consumer.acquired_bytes + slot.content.body_len)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _load_content(queue: cython.pointer(queue_t), slot: cython.pointer(slot_t), position: uint64_t) -> cython.void:
    if queue.load != cython.NULL and slot_begin_loading(slot):
        queue.load(queue.port_context, queue, position, slot.message_id)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _attempt(
    queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t), wanted: uint64_t, found: cython.pointer(found_t)
) -> cython.int:
    """Tries to acquire the consumer's next entry (`wanted` not 0: only if it is that one). Called with its send_lock held.

    `released` is claimed before the scan and put back, if need be, after it: whatever comes back meanwhile lowers it anew, so an
    entry that was passed while it was acquired is not lost. `last_seen` is only written here.
    """
    entries: cython.pointer(list_t) = cython.address(queue.entries)
    last: uint64_t = at_load64(cython.address(consumer.last_seen))
    start: uint64_t = last + 1
    mark: uint64_t = at_load64(cython.address(consumer.released))
    position: uint64_t
    outcome: cython.int
    content: cython.pointer(content_t)
    interested: cython.bint
    if mark:
        while not at_cas64(cython.address(consumer.released), mark, 0):
            mark = at_load64(cython.address(consumer.released))
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
        start = position
    if outcome == TAKEN:
        if position > last:
            at_store64(cython.address(consumer.last_seen), position)
        else:
            pointer_lower(cython.address(consumer.released), position + 1)
    elif position > last:
        at_store64(cython.address(consumer.last_seen), position - 1)
    else:
        pointer_lower(cython.address(consumer.released), position)
    return outcome


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _fill(out: cython.pointer(delivery_t), slot: cython.pointer(slot_t), position: uint64_t, state: uint64_t) -> cython.void:
    out.slot = slot
    out.content = slot.content
    out.position = position
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
    spin_lock(cython.address(consumer.send_lock))
    if at_load32(cython.address(queue.deleted)) or at_load32(cython.address(consumer.list)) <= CONSUMER_REMOVED:
        spin_unlock(cython.address(consumer.send_lock))
        return False
    if not consumer.flags & CONSUMER_ACQUIRES:
        return _browse(queue, consumer, out)
    if at_load32(cython.address(consumer.list)) == CONSUMER_NOT_INTERESTED:
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
                _withdraw_offer(queue, consumer)
            _wake_if_available(queue)
            return False
        if looked_again:
            at_store64(cython.address(consumer.idle_version), version)
            if outcome == PARKED:
                _load_content(queue, found.slot, found.position)
            spin_unlock(cython.address(consumer.send_lock))
            if outcome == OUTRANKED or consumer.interest != cython.NULL:
                _wake_if_available(queue)  # for whoever can take what this one can't
            return False
        # I3: first Interested, then through the list lock, then look again.
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        spin_lock(cython.address(queue.entries.lock))
        spin_unlock(cython.address(queue.entries.lock))
        looked_again = True
    _fill(out, found.slot, found.position, at_load64(cython.address(found.slot.state)))
    at_store64(cython.address(consumer.delivered), consumer.delivered + 1)
    group = consumer.group
    if at_load32(cython.address(consumer.list)) == CONSUMER_INTERESTED:
        manager_move(queue, consumer, CONSUMER_NOTIFIED)  # it stays hot
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
            _load_content(queue, found.slot, found.position)
            if at_load64(cython.address(found.slot.state)) & ENTRY_NOT_RESIDENT:
                break  # queue_content_loaded notifies it
        content = slot_borrow(found.slot, False, cython.address(state))
        if content == cython.NULL:
            continue
        if consumer.interest != cython.NULL and not consumer.interest(consumer.interest_context, content):
            content_decref(content)
            consumer.browse_levels[at] = (found.position << 8) >> 8
            continue
        consumer.browse_levels[at] = (found.position << 8) >> 8
        _fill(out, found.slot, found.position, state)
        out.slot = cython.NULL
        out.content = content
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
    mark: uint64_t
    taken: cython.bint = False
    out.slot = cython.NULL
    out.position = 0
    spin_lock(cython.address(puller.lock))
    start = puller.last_seen + 1
    mark = at_load64(cython.address(puller.released))
    if mark:
        while not at_cas64(cython.address(puller.released), mark, 0):
            mark = at_load64(cython.address(puller.released))
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
            break
        taken = slot_acquire(found.slot, owner, cold)
    if taken:
        if found.position > puller.last_seen:
            puller.last_seen = found.position
        else:
            pointer_lower(cython.address(puller.released), found.position + 1)
        at_store64(cython.address(puller.acquired), puller.acquired + 1)
        if found.slot.content != cython.NULL:
            at_store64(cython.address(puller.acquired_bytes), puller.acquired_bytes + found.slot.content.body_len)
        if owner:
            at_store64(cython.address(puller.delivered), puller.delivered + 1)
        _fill(out, found.slot, found.position, at_load64(cython.address(found.slot.state)))
    else:
        pointer_lower(cython.address(puller.released), found.position)
        out.position = found.position
        _load_content(queue, found.slot, found.position)
    spin_unlock(cython.address(puller.lock))
    if taken:
        _unparked(queue, found.slot)
    return taken


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unparked(queue: cython.pointer(queue_t), slot: cython.pointer(slot_t)) -> cython.void:
    """The broker took an entry; were consumers parked on it, those behind it are theirs now."""
    if at_load64(cython.address(slot.state)) & ENTRY_NOT_RESIDENT:
        manager_changed(queue)
        _wake_if_available(queue)


def queue_pull(queue, owner, out):
    return _pull(queue, owner, False, out)


# --- settlement -------------------------------------------------------------------------------------------------------------


def queue_dequeue(queue, slot, position, owner, reason):
    content: cython.pointer(content_t) = cython.NULL
    at: cython.pointer(slot_t) = cython.NULL
    done: cython.int = list_dequeue(cython.address(queue.entries), position, owner, cython.address(at), cython.address(content))
    if done == 0:
        return False
    if done == 2:
        if queue.log_dequeue != cython.NULL:
            queue.log_dequeue(queue.port_context, queue, position, at, reason)
        list_finish(cython.address(queue.entries), position)
    if content != cython.NULL:
        content_decref(content)
    # Checking costs a look at every consumer: with many of them wait until it pays.
    if at_load32(cython.address(queue.entries.retired_count)) > at_load32(cython.address(queue.manager.consumer_count)) >> 6:
        _reclaim(queue, True)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _reclaim(queue: cython.pointer(queue_t), keep_spare: cython.bint) -> cython.void:
    """Frees unlinked segments, unless someone is inside the list: then they wait for the next call."""
    retired: cython.pointer(segment_t) = list_take_retired(cython.address(queue.entries))
    if retired == cython.NULL:
        return
    if manager_quiet(queue):
        list_free_retired(cython.address(queue.entries), retired, keep_spare)
    else:
        list_put_back_retired(cython.address(queue.entries), retired)


def queue_release(queue, slot, position, owner, delivered):
    wanted: uint32_t = 0
    if not list_release(cython.address(queue.entries), position, owner, delivered, cython.address(wanted)):
        return False
    pointer_lower(cython.address(queue.puller.released), position)
    manager_available(queue, position, cython.NULL, cython.NULL, True, True)
    return True


def queue_take_head(queue, out):
    return _pull(queue, 0, True, out)


def queue_take_expired(queue, now_ms, out):
    position: uint64_t = 0
    slot: cython.pointer(slot_t) = cython.NULL
    if not list_take_expired(cython.address(queue.entries), now_ms, cython.address(position), cython.address(slot)):
        return False
    _fill(out, slot, position, at_load64(cython.address(slot.state)))
    _unparked(queue, slot)
    return True


def queue_next_expiry(queue):
    return cython.cast(int64_t, at_load64(cython.cast(cython.pointer(uint64_t), cython.address(queue.entries.expiry_min))))


def queue_purge(queue):
    delivery: delivery_t
    removed: uint64_t = 0
    limit: uint64_t = queue_ready_count(queue)
    # What was there when it began; entries that arrive meanwhile need not keep it busy for ever.
    while removed < limit and queue_take_head(queue, cython.address(delivery)):
        if queue_dequeue(queue, delivery.slot, delivery.position, 0, REASON_PURGE):
            removed += 1
    return removed


# --- content port -----------------------------------------------------------------------------------------------------------


def queue_evict_content(queue, position):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    content: cython.pointer(content_t) = cython.NULL
    state: uint64_t = 0
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = slot_hold(slot, False)
    if state:
        content = slot.content
        if content != cython.NULL:
            slot.content = cython.NULL
            state |= ENTRY_NOT_RESIDENT
            # Bytes count what is resident.
            at_store64(cython.address(queue.entries.taken_bytes), queue.entries.taken_bytes + content.body_len)
        slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    if content == cython.NULL:
        return False
    content_decref(content)
    return True


def queue_content_loaded(queue, position, content):
    segment: cython.pointer(segment_t) = cython.NULL
    slot: cython.pointer(slot_t)
    state: uint64_t = 0
    spin_lock(cython.address(queue.entries.lock))
    slot = list_slot_locked(cython.address(queue.entries), position, cython.address(segment))
    if slot != cython.NULL:
        state = slot_hold(slot, False)
    if state:
        state &= ~cython.cast(uint64_t, ENTRY_LOADING)
        if content != cython.NULL and state & ENTRY_NOT_RESIDENT:
            content_incref(content)
            slot.content = content
            state &= ~cython.cast(uint64_t, ENTRY_NOT_RESIDENT)
            at_store64(cython.address(queue.entries.released_bytes), queue.entries.released_bytes + content.body_len)
        slot_unhold(slot, state)
    spin_unlock(cython.address(queue.entries.lock))
    if state and content != cython.NULL:
        manager_changed(queue)
        manager_available(queue, position, cython.NULL, content, False, True)


# --- housekeeping and figures -----------------------------------------------------------------------------------------------


def queue_housekeeping(queue):
    place: place_t
    level: uint32_t
    if at_load64(cython.address(queue.entries.enqueued)) == 0:
        return
    place.segment = cython.NULL
    place.generation = 0
    at_add32(cython.address(queue.pins), 1)
    for level in range(queue.entries.level_count):
        list_advance_floor(cython.address(queue.entries), cython.address(place), level)
    at_sub32(cython.address(queue.pins), 1)
    list_shrink(cython.address(queue.entries))
    _reclaim(queue, False)
    if at_load32(cython.address(queue.entries.wanted)) and _has_available(queue):
        manager_wake_one(queue, cython.NULL, True)


def queue_ready_count(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    given: uint64_t
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    acquired += at_load64(cython.address(queue.puller.acquired)) + at_load64(cython.address(queue.entries.taken))
    given = at_load64(cython.address(queue.entries.enqueued)) + at_load64(cython.address(queue.entries.released))
    return given - acquired if given > acquired else 0


def queue_unacked_count(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    back: uint64_t = at_load64(cython.address(queue.entries.released)) + at_load64(cython.address(queue.entries.dequeued))
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    acquired += at_load64(cython.address(queue.puller.acquired)) + at_load64(cython.address(queue.entries.taken))
    return acquired - back if acquired > back else 0


def queue_ready_bytes(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    given: uint64_t
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    bytes_ += at_load64(cython.address(queue.puller.acquired_bytes)) + at_load64(cython.address(queue.entries.taken_bytes))
    given = at_load64(cython.address(queue.entries.enqueued_bytes)) + at_load64(cython.address(queue.entries.released_bytes))
    return given - bytes_ if given > bytes_ else 0


def queue_consumer_count(queue):
    return at_load32(cython.address(queue.manager.consumer_count))


def queue_priorities(queue):
    return queue.entries.ops.priorities(cython.address(queue.entries))


def queue_enqueued_total(queue):
    return at_load64(cython.address(queue.entries.enqueued))


def queue_delivered_total(queue):
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    delivered: uint64_t = 0
    manager_figures(queue, cython.address(acquired), cython.address(bytes_), cython.address(delivered))
    return delivered + at_load64(cython.address(queue.puller.delivered))


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
        content = slot_borrow(found.slot, True, cython.address(state))
        got = state != 0
    if got:
        _fill(out, found.slot, found.position, state)
        out.slot = cython.NULL
        out.content = content
    at_sub32(cython.address(queue.pins), 1)
    return got

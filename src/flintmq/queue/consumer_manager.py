"""The consumer manager: who is interested, who was notified, whom to wake (see consumer_manager.pxd).

in: what the queue core and consumers report. out: list moves and notify_work calls.

I1  Every attached consumer is on exactly one list; `list_t.wanted` = consumers on INTERESTED and NON_ACQUIRING.
I2  A consumer on NOTIFIED will pull or say that it is not interested: its target was told, or it is pulling.
I4  What a consumer acquired is in the manager's figures when it is not on NOTIFIED; those on NOTIFIED are on `hot`, too.
I3  A group exists exactly while a consumer of its priority is attached; groups stand in falling priority.

Moves happen under one spin lock for a few instructions each. A lone consumer that keeps getting messages stays on NOTIFIED, so
the message path does not come here; arrivals look at `list_t.wanted` first.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import (
    at_add32,
    at_cas32,
    at_load32,
    at_load64,
    at_load_ptr,
    at_store32,
    at_store64,
    at_store_ptr,
    at_sub32,
    at_swap32,
    spin_lock,
    spin_unlock,
)
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES,
    CONSUMER_EXCLUSIVE,
    CONSUMER_INTERESTED,
    CONSUMER_NO_ACK,
    CONSUMER_NON_ACQUIRING,
    CONSUMER_NOT_INTERESTED,
    CONSUMER_NOTIFIED,
    CONSUMER_REMOVED,
    consumer_list_t,
    consumer_t,
    credit_t,
    group_t,
    manager_t,
    queue_t,
    waiter_t,
)
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

# --- credit -----------------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _take(credit: cython.pointer(credit_t)) -> cython.bint:
    used: uint32_t
    limit: uint32_t = at_load32(cython.address(credit.limit))
    if limit == 0:
        at_add32(cython.address(credit.used), 1)
        return True
    while True:
        used = at_load32(cython.address(credit.used))
        if used >= limit:
            return False
        if at_cas32(cython.address(credit.used), used, used + 1):
            return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _uses_credit(consumer: cython.pointer(consumer_t)) -> cython.bint:
    return (consumer.flags & (CONSUMER_ACQUIRES | CONSUMER_NO_ACK)) == CONSUMER_ACQUIRES


def credit_take(consumer):
    if not _uses_credit(consumer):
        return True
    if not _take(cython.address(consumer.credit)):
        return False
    if consumer.shared_credit != cython.NULL and not _take(consumer.shared_credit):
        at_sub32(cython.address(consumer.credit.used), 1)
        return False
    return True


def credit_give_back(consumer):
    if not _uses_credit(consumer):
        return
    at_sub32(cython.address(consumer.credit.used), 1)
    if consumer.shared_credit != cython.NULL:
        at_sub32(cython.address(consumer.shared_credit.used), 1)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _left(credit: cython.pointer(credit_t), firmly: cython.bint) -> cython.bint:
    """`firmly` reads by read-modify-write, so that a give_back orders itself before or after it."""
    limit: uint32_t = at_load32(cython.address(credit.limit))
    if limit == 0:
        return True
    return (at_add32(cython.address(credit.used), 0) if firmly else at_load32(cython.address(credit.used))) < limit


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _has_credit(consumer: cython.pointer(consumer_t), firmly: cython.bint) -> cython.bint:
    if not _uses_credit(consumer):
        return True
    if not _left(cython.address(consumer.credit), firmly):
        return False
    return consumer.shared_credit == cython.NULL or _left(consumer.shared_credit, firmly)


def credit_left(consumer):
    return _has_credit(consumer, True)


# --- lists (all under the manager lock) ---------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _list_of(manager: cython.pointer(manager_t), consumer: cython.pointer(consumer_t), which: uint32_t) -> cython.pointer(consumer_list_t):
    if which == CONSUMER_INTERESTED:
        return cython.address(consumer.group.interested)
    if which == CONSUMER_NOTIFIED:
        return cython.address(consumer.group.notified)
    if which == CONSUMER_NOT_INTERESTED:
        return cython.address(manager.not_interested)
    return cython.address(manager.non_acquiring)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count(manager: cython.pointer(manager_t), consumer: cython.pointer(consumer_t)) -> cython.void:
    """Brings what it acquired into the manager's figures."""
    acquired: uint64_t = at_load64(cython.address(consumer.acquired))
    bytes_: uint64_t = at_load64(cython.address(consumer.acquired_bytes))
    at_store64(cython.address(manager.acquired), manager.acquired + (acquired - consumer.counted))
    at_store64(cython.address(manager.acquired_bytes), manager.acquired_bytes + (bytes_ - consumer.counted_bytes))
    consumer.counted = acquired
    consumer.counted_bytes = bytes_


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unlink(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t)) -> cython.void:
    members: cython.pointer(consumer_list_t) = _list_of(cython.address(queue.manager), consumer, consumer.list)
    if consumer.prev != cython.NULL:
        consumer.prev.next = consumer.next
    else:
        members.head = consumer.next
    if consumer.next != cython.NULL:
        consumer.next.prev = consumer.prev
    else:
        members.tail = consumer.prev
    consumer.prev = cython.NULL
    consumer.next = cython.NULL
    at_store32(cython.address(members.count), members.count - 1)
    if consumer.list == CONSUMER_NOTIFIED:
        if consumer.hot_prev != cython.NULL:
            consumer.hot_prev.hot_next = consumer.hot_next
        else:
            queue.manager.hot = consumer.hot_next
        if consumer.hot_next != cython.NULL:
            consumer.hot_next.hot_prev = consumer.hot_prev
        _count(cython.address(queue.manager), consumer)
    if consumer.list == CONSUMER_INTERESTED or consumer.list == CONSUMER_NON_ACQUIRING:
        at_store32(cython.address(queue.entries.wanted), queue.entries.wanted - 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t), which: uint32_t) -> cython.void:
    members: cython.pointer(consumer_list_t) = _list_of(cython.address(queue.manager), consumer, which)
    consumer.prev = members.tail
    consumer.next = cython.NULL
    if members.tail != cython.NULL:
        members.tail.next = consumer
    else:
        members.head = consumer
    members.tail = consumer
    at_store32(cython.address(members.count), members.count + 1)
    at_store32(cython.address(consumer.list), which)
    if which == CONSUMER_NOTIFIED:
        consumer.hot_prev = cython.NULL
        consumer.hot_next = queue.manager.hot
        if consumer.hot_next != cython.NULL:
            consumer.hot_next.hot_prev = consumer
        queue.manager.hot = consumer
    if which == CONSUMER_INTERESTED or which == CONSUMER_NON_ACQUIRING:
        at_store32(cython.address(queue.entries.wanted), queue.entries.wanted + 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _change(queue: cython.pointer(queue_t)) -> cython.void:
    at_store64(cython.address(queue.manager.changes), queue.manager.changes + 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _may_move(consumer: cython.pointer(consumer_t), to: uint32_t) -> cython.bint:
    """The table of lists (Qpid consumer-queue interaction), as data: from, to, acquiring or browser."""
    at: uint32_t = consumer.list
    acquires: cython.bint = consumer.flags & CONSUMER_ACQUIRES
    if at == CONSUMER_REMOVED:
        return False
    if to == CONSUMER_NOT_INTERESTED:
        return at != CONSUMER_NOT_INTERESTED
    if to == CONSUMER_NON_ACQUIRING:
        return at == CONSUMER_NOT_INTERESTED and not acquires
    if to == CONSUMER_NOTIFIED:
        return at == CONSUMER_INTERESTED
    return acquires  # INTERESTED: from NOT_INTERESTED, NOTIFIED, or INTERESTED itself to its back


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _move(queue: cython.pointer(queue_t), consumer: cython.pointer(consumer_t), to: uint32_t) -> uint32_t:
    at: uint32_t = consumer.list
    if not _may_move(consumer, to):
        return 0
    _unlink(queue, consumer)
    _append(queue, consumer, to)
    if to == CONSUMER_NOT_INTERESTED:
        _change(queue)  # one that it outranked may have its turn now
    return at


def manager_move(queue, consumer, to):
    at: uint32_t
    spin_lock(cython.address(queue.manager.lock))
    at = _move(queue, consumer, to)
    spin_unlock(cython.address(queue.manager.lock))
    return at


def manager_add(queue, consumer):
    manager: cython.pointer(manager_t) = cython.address(queue.manager)
    fresh: cython.pointer(group_t) = cython.cast(cython.pointer(group_t), calloc(1, cython.sizeof(group_t)))
    link: cython.pointer(cython.pointer(group_t))
    which: uint32_t = CONSUMER_NOT_INTERESTED
    if fresh == cython.NULL:
        return False
    spin_lock(cython.address(manager.lock))
    if (
        at_load32(cython.address(queue.deleted))
        or consumer.list != CONSUMER_REMOVED
        or manager.exclusive != cython.NULL
        or (consumer.flags & CONSUMER_EXCLUSIVE and manager.consumer_count > 0)
    ):
        spin_unlock(cython.address(manager.lock))
        free(fresh)
        return False
    link = cython.address(manager.groups)
    while link[0] != cython.NULL and link[0].priority > consumer.priority:
        link = cython.address(link[0].next)
    if link[0] == cython.NULL or link[0].priority != consumer.priority:
        fresh.priority = consumer.priority
        fresh.next = link[0]
        at_store_ptr(link, fresh)
        fresh = cython.NULL
    consumer.group = link[0]
    consumer.group.members += 1
    consumer.all_prev = cython.NULL
    consumer.all_next = manager.all
    if manager.all != cython.NULL:
        manager.all.all_prev = consumer
    manager.all = consumer
    at_store32(cython.address(manager.consumer_count), manager.consumer_count + 1)
    if consumer.interest != cython.NULL:
        at_store32(cython.address(manager.predicates), manager.predicates + 1)
    if consumer.flags & CONSUMER_EXCLUSIVE:
        at_store_ptr(cython.address(manager.exclusive), consumer)
    if not at_load32(cython.address(consumer.target.suspended)):
        if not consumer.flags & CONSUMER_ACQUIRES:
            which = CONSUMER_NON_ACQUIRING
        elif _has_credit(consumer, True):
            which = CONSUMER_INTERESTED
    _append(queue, consumer, which)
    spin_unlock(cython.address(manager.lock))
    free(fresh)
    return True


def manager_remove(queue, consumer):
    at: uint32_t
    spin_lock(cython.address(queue.manager.lock))
    at = consumer.list
    if at != CONSUMER_REMOVED:
        _unlink(queue, consumer)
        at_store32(cython.address(consumer.list), CONSUMER_REMOVED)
        if queue.manager.exclusive == consumer:
            at_store_ptr(cython.address(queue.manager.exclusive), cython.NULL)
        at_store32(cython.address(queue.manager.consumer_count), queue.manager.consumer_count - 1)
        _change(queue)
    spin_unlock(cython.address(queue.manager.lock))
    return at


def manager_forget(queue, consumer):
    manager: cython.pointer(manager_t) = cython.address(queue.manager)
    group: cython.pointer(group_t) = consumer.group
    link: cython.pointer(cython.pointer(group_t))
    spin_lock(cython.address(manager.lock))
    _count(manager, consumer)
    at_store64(cython.address(manager.delivered), manager.delivered + consumer.delivered)
    if consumer.all_prev != cython.NULL:
        consumer.all_prev.all_next = consumer.all_next
    else:
        manager.all = consumer.all_next
    if consumer.all_next != cython.NULL:
        consumer.all_next.all_prev = consumer.all_prev
    if consumer.interest != cython.NULL:
        at_store32(cython.address(manager.predicates), manager.predicates - 1)
    consumer.group = cython.NULL
    group.members -= 1
    if group.members == 0:
        link = cython.address(manager.groups)
        while link[0] != group:
            link = cython.address(link[0].next)
        at_store_ptr(link, group.next)
    else:
        group = cython.NULL
    spin_unlock(cython.address(manager.lock))
    free(group)


# --- decisions ------------------------------------------------------------------------------------------------------------------


def queue_version(queue):
    return (
        at_load64(cython.address(queue.entries.enqueued))
        + at_load64(cython.address(queue.entries.released))
        + at_load64(cython.address(queue.manager.changes))
    )


def manager_changed(queue):
    spin_lock(cython.address(queue.manager.lock))
    _change(queue)
    spin_unlock(cython.address(queue.manager.lock))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _wants(consumer: cython.pointer(consumer_t), content: cython.pointer(content_t)) -> cython.bint:
    return content == cython.NULL or consumer.interest == cython.NULL or consumer.interest(consumer.interest_context, content)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _ready(consumer: cython.pointer(consumer_t)) -> cython.bint:
    return not at_load32(cython.address(consumer.target.suspended)) and _has_credit(consumer, False)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pick(queue: cython.pointer(queue_t), content: cython.pointer(content_t), force: cython.bint) -> cython.pointer(consumer_t):
    """The front of INTERESTED of the highest priority that can take work; NULL when a notified one there will do it, or nobody can."""
    version: uint64_t = queue_version(queue)
    group: cython.pointer(group_t) = queue.manager.groups
    consumer: cython.pointer(consumer_t)
    after: cython.pointer(consumer_t)
    while group != cython.NULL:
        consumer = group.interested.head
        while consumer != cython.NULL:
            after = consumer.next
            queue.manager.visited += 1
            if not _has_credit(consumer, False):
                # Credit went to another consumer of its channel. Whoever gives credit back looks at the list afterwards: its
                # read-modify-write of `used` comes either before ours (then we see the credit) or after (then it sees the list).
                _move(queue, consumer, CONSUMER_NOT_INTERESTED)
                if _has_credit(consumer, True):
                    _move(queue, consumer, CONSUMER_INTERESTED)
                    if after == cython.NULL:
                        after = consumer
            elif (
                not at_load32(cython.address(consumer.target.suspended))
                and (force or at_load64(cython.address(consumer.idle_version)) != version)
                and _wants(consumer, content)
            ):
                return consumer
            consumer = after
        consumer = group.notified.head
        while consumer != cython.NULL:
            if content == cython.NULL or _wants(consumer, content):
                return cython.NULL
            consumer = consumer.next
        group = group.next
    return cython.NULL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _wake(queue: cython.pointer(queue_t), content: cython.pointer(content_t), force: cython.bint) -> cython.bint:
    consumer: cython.pointer(consumer_t)
    if at_load32(cython.address(queue.deleted)):
        return False
    consumer = _pick(queue, content, force)
    if consumer == cython.NULL:
        return False
    _move(queue, consumer, CONSUMER_NOTIFIED)
    consumer.target.notify_work(consumer.target)
    return True


def manager_notify_locked(queue, consumer):
    if at_load32(cython.address(queue.deleted)):
        return NOTIFY_NOT
    if consumer.list == CONSUMER_NOTIFIED:
        return NOTIFY_BEFORE
    if consumer.list != CONSUMER_INTERESTED:
        return NOTIFY_NOT
    if not _has_credit(consumer, False):
        _move(queue, consumer, CONSUMER_NOT_INTERESTED)  # as in _pick
        if not _has_credit(consumer, True):
            return NOTIFY_NOT
        _move(queue, consumer, CONSUMER_INTERESTED)
    if at_load32(cython.address(consumer.target.suspended)):
        return NOTIFY_NOT
    _move(queue, consumer, CONSUMER_NOTIFIED)
    consumer.target.notify_work(consumer.target)
    return NOTIFY_DONE


def manager_wake_one(queue, content, force):
    woken: cython.bint
    spin_lock(cython.address(queue.manager.lock))
    woken = _wake(queue, content, force)
    spin_unlock(cython.address(queue.manager.lock))
    return woken


def manager_available(queue, content, browsers):
    manager: cython.pointer(manager_t) = cython.address(queue.manager)
    consumer: cython.pointer(consumer_t)
    spin_lock(cython.address(manager.lock))
    if browsers and not at_load32(cython.address(queue.deleted)):
        consumer = manager.non_acquiring.head
        while consumer != cython.NULL:
            if _wants(consumer, content):
                consumer.target.notify_work(consumer.target)
            consumer = consumer.next
    _wake(queue, content, False)
    spin_unlock(cython.address(manager.lock))


def manager_add_waiter(queue, waiter):
    spin_lock(cython.address(queue.manager.lock))
    waiter.next = queue.waiters
    at_store_ptr(cython.address(queue.waiters), waiter)
    spin_unlock(cython.address(queue.manager.lock))


def manager_remove_waiter(queue, waiter):
    link: cython.pointer(cython.pointer(waiter_t))
    spin_lock(cython.address(queue.manager.lock))
    link = cython.address(queue.waiters)
    while link[0] != cython.NULL and link[0] != waiter:
        link = cython.address(link[0].next)
    if link[0] == waiter:
        at_store_ptr(link, waiter.next)
    spin_unlock(cython.address(queue.manager.lock))


def manager_wake_waiters(queue):
    waiter: cython.pointer(waiter_t)
    # A waiter adds itself, then marks the entry; we changed the entry, then look here: one of the two sees the other.
    if at_load_ptr(cython.address(queue.waiters)) == cython.NULL:
        return
    spin_lock(cython.address(queue.manager.lock))
    waiter = queue.waiters
    while waiter != cython.NULL:
        waiter.wake(waiter)
        waiter = waiter.next
    spin_unlock(cython.address(queue.manager.lock))


def manager_credit_back(queue, consumer, own):
    shared: cython.bint = consumer.shared_credit != cython.NULL and at_load32(cython.address(consumer.shared_credit.limit)) != 0
    again: cython.bint = False
    # The credit is back already, by a read-modify-write: whoever found none before that has moved the consumer under this lock, or will
    # find the credit when it looks firmly.
    if not shared and (not own or at_load32(cython.address(consumer.list)) != CONSUMER_NOT_INTERESTED):
        return False
    # Without a limit it was never found without credit: it is there by its own wish.
    own = own and _uses_credit(consumer) and (shared or at_load32(cython.address(consumer.credit.limit)) != 0)
    spin_lock(cython.address(queue.manager.lock))
    if consumer.list != CONSUMER_REMOVED:
        # Under the lock, so that a suspension, which sets its flag before it takes the consumer off the lists here, has the last word.
        if (
            own
            and consumer.list == CONSUMER_NOT_INTERESTED
            and not at_load32(cython.address(consumer.target.suspended))
            and _has_credit(consumer, True)
        ):
            _move(queue, consumer, CONSUMER_INTERESTED)
            again = True
        if shared and not at_swap32(cython.address(consumer.target.credit_back), 1):
            consumer.target.notify_work(consumer.target)
    spin_unlock(cython.address(queue.manager.lock))
    return again


def manager_outranked(queue, consumer, slot):
    manager: cython.pointer(manager_t) = cython.address(queue.manager)
    group: cython.pointer(group_t)
    other: cython.pointer(consumer_t)
    content: cython.pointer(content_t) = cython.NULL
    pass_no: cython.int
    outranked: cython.bint = False
    if cython.cast(cython.pointer(group_t), at_load_ptr(cython.address(manager.groups))) == consumer.group:
        return False
    if at_load32(cython.address(manager.predicates)):
        content = slot_borrow(slot, False, cython.NULL)
    spin_lock(cython.address(manager.lock))
    group = manager.groups
    while group != cython.NULL and group.priority > consumer.priority and not outranked:
        for pass_no in range(2):
            other = group.interested.head if pass_no == 0 else group.notified.head
            while other != cython.NULL and not outranked:
                manager.visited += 1
                outranked = _ready(other) and _wants(other, content)
                other = other.next
        group = group.next
    spin_unlock(cython.address(manager.lock))
    if content != cython.NULL:
        content_decref(content)
    return outranked


def manager_new_round(queue):
    return at_add32(cython.address(queue.manager.offers), 1) + 1


def manager_next_offer(queue, round_no):
    manager: cython.pointer(manager_t) = cython.address(queue.manager)
    group: cython.pointer(group_t)
    consumer: cython.pointer(consumer_t)
    pass_no: cython.int
    spin_lock(cython.address(manager.lock))
    group = manager.groups
    while group != cython.NULL and not at_load32(cython.address(queue.deleted)):
        for pass_no in range(2):
            consumer = group.interested.head if pass_no == 0 else group.notified.head
            while consumer != cython.NULL:
                manager.visited += 1
                # One that is pulling right now looks at the entry by itself; the lock is only tried, so no cycle of locks.
                if consumer.offer_round != round_no and _ready(consumer) and at_cas32(cython.address(consumer.send_lock), 0, 1):
                    consumer.offer_round = round_no
                    spin_unlock(cython.address(manager.lock))
                    return consumer
                consumer = consumer.next
        group = group.next
    spin_unlock(cython.address(manager.lock))
    return cython.NULL


def manager_offered(queue, consumer):
    spin_lock(cython.address(queue.manager.lock))
    if consumer.list != CONSUMER_REMOVED:
        _move(queue, consumer, CONSUMER_NOTIFIED)
        consumer.target.notify_work(consumer.target)
    spin_unlock(cython.address(queue.manager.lock))


def manager_quiet(queue):
    consumer: cython.pointer(consumer_t)
    quiet: cython.bint = True
    # Each look is a read-modify-write: a reader that comes in after it sees every unlink from before it (its own lock operation
    # reads ours), and one that left before it is done with the segments.
    spin_lock(cython.address(queue.manager.lock))
    consumer = queue.manager.all
    while consumer != cython.NULL and quiet:
        queue.manager.visited += 1
        quiet = at_add32(cython.address(consumer.send_lock), 0) == 0
        consumer = consumer.all_next
    spin_unlock(cython.address(queue.manager.lock))
    return quiet and at_add32(cython.address(queue.puller.lock), 0) == 0 and at_add32(cython.address(queue.pins), 0) == 0


def manager_figures(queue, acquired, acquired_bytes):
    manager: cython.pointer(manager_t) = cython.address(queue.manager)
    consumer: cython.pointer(consumer_t)
    spin_lock(cython.address(manager.lock))
    acquired[0] = manager.acquired
    acquired_bytes[0] = manager.acquired_bytes
    consumer = manager.hot
    while consumer != cython.NULL:
        manager.visited += 1
        acquired[0] += at_load64(cython.address(consumer.acquired)) - consumer.counted
        acquired_bytes[0] += at_load64(cython.address(consumer.acquired_bytes)) - consumer.counted_bytes
        consumer = consumer.hot_next
    spin_unlock(cython.address(manager.lock))


def manager_count(queue, consumer):
    spin_lock(cython.address(queue.manager.lock))
    if consumer.list != CONSUMER_NOTIFIED and consumer.list != CONSUMER_REMOVED:
        _count(cython.address(queue.manager), consumer)
    spin_unlock(cython.address(queue.manager.lock))


def manager_delivered(queue):
    manager: cython.pointer(manager_t) = cython.address(queue.manager)
    consumer: cython.pointer(consumer_t)
    delivered: uint64_t
    spin_lock(cython.address(manager.lock))
    delivered = manager.delivered
    consumer = manager.all
    while consumer != cython.NULL:
        delivered += at_load64(cython.address(consumer.delivered))
        consumer = consumer.all_next
    spin_unlock(cython.address(manager.lock))
    return delivered

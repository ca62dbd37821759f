"""The consumer manager: which consumers are interested, which were notified, which to wake (see consumer_manager.pxd).

in: reports of the queue core and of consumers. out: list moves and notify_work calls.

I1  Every attached consumer is on exactly one list; `list_t.wanted` = consumers on INTERESTED and NON_ACQUIRING.
I2  A consumer on NOTIFIED will pull or say that it is not interested: its target was told, or it is pulling.
I4  The entries that a consumer acquired are in the manager's figures when it is not on NOTIFIED; those on NOTIFIED are on `hot`, too.
I3  A group exists exactly while a consumer of its priority is attached; groups stand in falling priority.
I5  Credit that is given back was taken: `used` never falls below zero.

Moves happen under one spin lock for a few instructions each. A lone consumer that keeps getting messages stays on NOTIFIED, so
the message path does not come here; arrivals look at `list_t.wanted` first.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, inline, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_cas32, at_load32, at_load64, at_load_ptr, at_store32, at_store64, at_store_ptr, at_sub32, at_swap32, spin_lock,
    spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.list_moves import list_may_move
from cython.cimports.flintmq.queue.selections import (
    selection_join, selection_leave, selection_pending, selection_wait, selections_behind, selections_came, selections_outrank,
)  # fmt: skip
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES, CONSUMER_EXCLUSIVE, CONSUMER_INTERESTED, CONSUMER_NON_ACQUIRING, CONSUMER_NOTIFIED, CONSUMER_NOT_INTERESTED,
    CONSUMER_NO_ACK, CONSUMER_REMOVED, CONSUMER_SELECTS, consumer_list_t, consumer_t, credit_t, flows_t, group_t, manager_t, queue_t,
    selection_t, selections_t, slot_t, waiter_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

# --- credit -----------------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _take(credit: pointer[credit_t]) -> bint:
    used: uint32_t
    limit: uint32_t = at_load32(address(credit.limit))
    if limit == 0:
        at_add32(address(credit.used), 1)
        return True
    while True:
        used = at_load32(address(credit.used))
        if used >= limit:
            return False
        if at_cas32(address(credit.used), used, used + 1):
            return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _uses_credit(consumer: pointer[consumer_t]) -> bint:
    return (consumer.flags & (CONSUMER_ACQUIRES | CONSUMER_NO_ACK)) == CONSUMER_ACQUIRES


def credit_take(consumer: pointer[consumer_t]) -> bint:
    if not _uses_credit(consumer):
        return True
    if not _take(address(consumer.credit)):
        return False
    if consumer.shared_credit != NULL and not _take(consumer.shared_credit):
        at_sub32(address(consumer.credit.used), 1)
        return False
    return True


def credit_give_back(consumer: pointer[consumer_t]) -> void:
    if not _uses_credit(consumer):
        return
    # Looked at before, not by the result of the subtraction: that is a dearer instruction, and the caller's own unit is in it.
    check(at_load32(address(consumer.credit.used)) > 0, b"consumer_manager I5 credit that comes back was taken", consumer.id, 0)
    at_sub32(address(consumer.credit.used), 1)
    if consumer.shared_credit != NULL:
        at_sub32(address(consumer.shared_credit.used), 1)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _left(credit: pointer[credit_t], firmly: bint) -> bint:
    """`firmly` reads by read-modify-write, so that a give_back orders itself before or after it."""
    limit: uint32_t = at_load32(address(credit.limit))
    if limit == 0:
        return True
    return (at_add32(address(credit.used), 0) if firmly else at_load32(address(credit.used))) < limit


@cfunc
@inline
@nogil
@exceptval(check=False)
def _has_credit(consumer: pointer[consumer_t], firmly: bint) -> bint:
    if not _uses_credit(consumer):
        return True
    if not _left(address(consumer.credit), firmly):
        return False
    return consumer.shared_credit == NULL or _left(consumer.shared_credit, firmly)


def credit_left(consumer: pointer[consumer_t]) -> bint:
    return _has_credit(consumer, True)


# --- lists (all under the manager lock) ---------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _list_of(manager: pointer[manager_t], consumer: pointer[consumer_t], which: uint32_t) -> pointer[consumer_list_t]:
    if which == CONSUMER_INTERESTED:
        return address(consumer.group.interested) if consumer.selection == NULL else address(consumer.selection.interested)
    if which == CONSUMER_NOTIFIED:
        return address(consumer.group.notified) if consumer.selection == NULL else address(consumer.selection.notified)
    if which == CONSUMER_NOT_INTERESTED:
        return address(manager.not_interested)
    return address(manager.non_acquiring)


@cfunc
@nogil
@exceptval(check=False)
def _count(manager: pointer[manager_t], consumer: pointer[consumer_t]) -> void:
    """Brings the entries that it acquired into the manager's figures."""
    acquired: uint64_t = at_load64(address(consumer.acquired))
    bytes_: uint64_t = at_load64(address(consumer.acquired_bytes))
    check(acquired >= consumer.counted, b"consumer_manager I4 what was counted was acquired", acquired, consumer.counted)
    at_store64(address(manager.acquired), manager.acquired + (acquired - consumer.counted))
    at_store64(address(manager.acquired_bytes), manager.acquired_bytes + (bytes_ - consumer.counted_bytes))
    at_store64(address(consumer.counted), acquired)  # a consumer looks at it without the lock
    consumer.counted_bytes = bytes_


@cfunc
@nogil
@exceptval(check=False)
def _unlink(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    members: pointer[consumer_list_t] = _list_of(address(queue.manager), consumer, consumer.list)
    check(members.count > 0, b"consumer_manager I1 who leaves a list was counted there", consumer.id, consumer.list)
    check(
        (consumer.prev == NULL) == (members.head == consumer),
        b"consumer_manager I1 a list begins with its head",
        consumer.id,
        consumer.list,
    )
    if consumer.prev != NULL:
        consumer.prev.next = consumer.next
    else:
        members.head = consumer.next
    if consumer.next != NULL:
        consumer.next.prev = consumer.prev
    else:
        members.tail = consumer.prev
    consumer.prev = NULL
    consumer.next = NULL
    at_store32(address(members.count), members.count - 1)
    if consumer.list == CONSUMER_NOTIFIED:
        if consumer.hot_prev != NULL:
            consumer.hot_prev.hot_next = consumer.hot_next
        else:
            queue.manager.hot = consumer.hot_next
        if consumer.hot_next != NULL:
            consumer.hot_next.hot_prev = consumer.hot_prev
    # Not only from NOTIFIED: entries that it took while it was moved there and on may still be missing (I4).
    _count(address(queue.manager), consumer)
    if consumer.list == CONSUMER_INTERESTED or consumer.list == CONSUMER_NON_ACQUIRING:
        check(queue.entries.wanted > 0, b"consumer_manager I1 who was interested was counted as wanted", consumer.id, consumer.list)
        at_store32(address(queue.entries.wanted), queue.entries.wanted - 1)


@cfunc
@nogil
@exceptval(check=False)
def _append(queue: pointer[queue_t], consumer: pointer[consumer_t], which: uint32_t) -> void:
    members: pointer[consumer_list_t] = _list_of(address(queue.manager), consumer, which)
    check(
        consumer.prev == NULL and consumer.next == NULL,
        b"consumer_manager I1 who joins a list is on none",
        consumer.id,
        which,
    )
    check((members.tail == NULL) == (members.count == 0), b"consumer_manager I1 an empty list has no tail", consumer.id, members.count)
    consumer.prev = members.tail
    consumer.next = NULL
    if members.tail != NULL:
        members.tail.next = consumer
    else:
        members.head = consumer
    members.tail = consumer
    at_store32(address(members.count), members.count + 1)
    at_store32(address(consumer.list), which)
    if which == CONSUMER_NOTIFIED:
        consumer.hot_prev = NULL
        consumer.hot_next = queue.manager.hot
        if consumer.hot_next != NULL:
            consumer.hot_next.hot_prev = consumer
        queue.manager.hot = consumer
    if which == CONSUMER_INTERESTED or which == CONSUMER_NON_ACQUIRING:
        at_store32(address(queue.entries.wanted), queue.entries.wanted + 1)


@cfunc
@nogil
@exceptval(check=False)
def _change(queue: pointer[queue_t]) -> void:
    at_store64(address(queue.manager.changes), queue.manager.changes + 1)


@cfunc
@nogil
@exceptval(check=False)
def _move(queue: pointer[queue_t], consumer: pointer[consumer_t], to: uint32_t) -> uint32_t:
    list_number: uint32_t = consumer.list
    if not list_may_move(list_number, to, consumer.flags & CONSUMER_ACQUIRES == 0):
        return 0
    _unlink(queue, consumer)
    _append(queue, consumer, to)
    if to == CONSUMER_NOT_INTERESTED:
        _change(queue)  # one that it outranked may have its turn now
    return list_number


def manager_move(queue: pointer[queue_t], consumer: pointer[consumer_t], to: uint32_t) -> uint32_t:
    list_number: uint32_t
    spin_lock(address(queue.manager.lock))
    list_number = _move(queue, consumer, to)
    if list_number and consumer.selection != NULL and (list_number != CONSUMER_NOTIFIED or to == CONSUMER_NOT_INTERESTED):
        # It came back, or left its work to another one of its selection.
        if selection_pending(consumer.selection):
            _wake_selection(queue, consumer.selection, False)
    spin_unlock(address(queue.manager.lock))
    return list_number


def manager_add(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> bint:
    fresh: pointer[group_t] = cast(pointer[group_t], calloc(1, sizeof(group_t)))
    selection: pointer[selection_t] = NULL
    all: pointer[selections_t] = NULL
    added: bint = fresh != NULL
    if consumer.flags & CONSUMER_SELECTS:
        selection = cast(pointer[selection_t], calloc(1, sizeof(selection_t)))
        all = cast(pointer[selections_t], calloc(1, sizeof(selections_t)))
        added = added and selection != NULL and all != NULL
    if added:
        spin_lock(address(queue.manager.lock))
        added = _add(queue, consumer, address(fresh), address(all), address(selection))
        spin_unlock(address(queue.manager.lock))
    free(fresh)
    free(selection)
    free(all)
    return added


@cfunc
@nogil
@exceptval(check=False)
def _add(
    queue: pointer[queue_t],
    consumer: pointer[consumer_t],
    room: pointer[pointer[group_t]],
    all: pointer[pointer[selections_t]],
    selection: pointer[pointer[selection_t]],
) -> bint:
    """manager_add, with memory that it takes where it needs it."""
    manager: pointer[manager_t] = address(queue.manager)
    fresh: pointer[group_t] = room[0]
    link: pointer[pointer[group_t]]
    which: uint32_t = CONSUMER_NOT_INTERESTED
    if (
        at_load32(address(queue.deleted))
        or consumer.list != CONSUMER_REMOVED
        or manager.exclusive != NULL
        or (consumer.flags & CONSUMER_EXCLUSIVE and manager.consumer_count > 0)
    ):
        return False
    if consumer.flags & CONSUMER_SELECTS and not selection_join(queue, consumer, all, selection):
        return False
    link = address(manager.groups)
    while link[0] != NULL and link[0].priority > consumer.priority:
        link = address(link[0].next)
    if link[0] == NULL or link[0].priority != consumer.priority:
        fresh.priority = consumer.priority
        fresh.next = link[0]
        at_store_ptr(link, fresh)
        room[0] = NULL
    check(
        link[0].next == NULL or link[0].next.priority < link[0].priority,
        b"consumer_manager I3 groups stand in falling priority",
        consumer.id,
        queue.id,
    )
    consumer.group = link[0]
    consumer.group.members += 1
    consumer.all_prev = NULL
    consumer.all_next = manager.all
    if manager.all != NULL:
        manager.all.all_prev = consumer
    manager.all = consumer
    at_store32(address(manager.consumer_count), manager.consumer_count + 1)
    if consumer.interest != NULL:
        at_store32(address(manager.predicates), manager.predicates + 1)
    if consumer.flags & CONSUMER_EXCLUSIVE:
        at_store_ptr(address(manager.exclusive), consumer)
    if not at_load32(address(consumer.target.suspended)):
        if not consumer.flags & CONSUMER_ACQUIRES:
            which = CONSUMER_NON_ACQUIRING
        elif _has_credit(consumer, True):
            which = CONSUMER_INTERESTED
    _append(queue, consumer, which)
    if consumer.selection != NULL:
        # An entry that arrived before selections were counted as wanted is there after this, and the selection has not looked yet.
        spin_lock(address(queue.entries.lock))
        spin_unlock(address(queue.entries.lock))
        _wake_selection(queue, consumer.selection, False)
    return True


def manager_remove(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> uint32_t:
    list_number: uint32_t
    spin_lock(address(queue.manager.lock))
    list_number = consumer.list
    if list_number != CONSUMER_REMOVED:
        _unlink(queue, consumer)
        at_store32(address(consumer.list), CONSUMER_REMOVED)
        if queue.manager.exclusive == consumer:
            at_store_ptr(address(queue.manager.exclusive), NULL)
        check(queue.manager.consumer_count > 0, b"consumer_manager I1 who is removed was counted", consumer.id, queue.id)
        at_store32(address(queue.manager.consumer_count), queue.manager.consumer_count - 1)
        _change(queue)
    spin_unlock(address(queue.manager.lock))
    return list_number


def manager_forget(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    manager: pointer[manager_t] = address(queue.manager)
    group: pointer[group_t] = consumer.group
    link: pointer[pointer[group_t]]
    selection: pointer[selection_t]
    spin_lock(address(manager.lock))
    check(consumer.list == CONSUMER_REMOVED, b"consumer_manager I1 who is forgotten is on no list", consumer.id, consumer.list)
    _count(manager, consumer)
    at_store64(address(manager.delivered), manager.delivered + consumer.delivered)
    at_store64(address(manager.redelivered), manager.redelivered + consumer.redelivered)
    if consumer.flags & CONSUMER_NO_ACK:
        at_store64(address(manager.auto_acked), manager.auto_acked + consumer.delivered)
    if consumer.all_prev != NULL:
        consumer.all_prev.all_next = consumer.all_next
    else:
        manager.all = consumer.all_next
    if consumer.all_next != NULL:
        consumer.all_next.all_prev = consumer.all_prev
    if consumer.interest != NULL:
        check(manager.predicates > 0, b"consumer_manager I1 a predicate that goes was counted", consumer.id, queue.id)
        at_store32(address(manager.predicates), manager.predicates - 1)
    if consumer.selection != NULL:
        selection = consumer.selection if consumer.selection.member_count > 1 else NULL
        selection_leave(queue, consumer)
        if selection != NULL and selection_pending(selection):
            _wake_selection(queue, selection, False)
    consumer.group = NULL
    check(group.members > 0, b"consumer_manager I3 a group counts its members", consumer.id, group.members)
    group.members -= 1
    if group.members == 0:
        link = address(manager.groups)
        while link[0] != group:
            link = address(link[0].next)
        at_store_ptr(link, group.next)
    else:
        group = NULL
    spin_unlock(address(manager.lock))
    free(group)


# --- decisions ------------------------------------------------------------------------------------------------------------------


def queue_version(queue: pointer[queue_t]) -> uint64_t:
    return (
        at_load64(address(queue.entries.enqueued)) + at_load64(address(queue.entries.released)) + at_load64(address(queue.manager.changes))
    )


def manager_changed(queue: pointer[queue_t]) -> void:
    spin_lock(address(queue.manager.lock))
    _change(queue)
    spin_unlock(address(queue.manager.lock))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _wants(consumer: pointer[consumer_t], content: pointer[content_t]) -> bint:
    return content == NULL or consumer.interest == NULL or consumer.interest(consumer.interest_context, content)


def manager_rotate_locked(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    _move(queue, consumer, CONSUMER_INTERESTED)


def manager_ready(consumer: pointer[consumer_t]) -> bint:
    return not at_load32(address(consumer.target.suspended)) and _has_credit(consumer, False)


@cfunc
@nogil
@exceptval(check=False)
def _pick(queue: pointer[queue_t], content: pointer[content_t], force: bint) -> pointer[consumer_t]:
    """The front of INTERESTED of the highest priority that can take work; NULL when a notified one there will do it, or nobody can."""
    version: uint64_t = queue_version(queue)
    group: pointer[group_t] = queue.manager.groups
    consumer: pointer[consumer_t]
    after: pointer[consumer_t]
    while group != NULL:
        consumer = group.interested.head
        while consumer != NULL:
            after = consumer.next
            queue.manager.visited += 1
            if not _has_credit(consumer, False):
                # Credit went to another consumer of its channel. The thread that gives credit back looks at the list afterwards: its
                # read-modify-write of `used` comes either before ours (then we see the credit) or after (then it sees the list).
                _move(queue, consumer, CONSUMER_NOT_INTERESTED)
                if _has_credit(consumer, True):
                    _move(queue, consumer, CONSUMER_INTERESTED)
                    if after == NULL:
                        after = consumer
            elif (
                not at_load32(address(consumer.target.suspended))
                and (force or at_load64(address(consumer.idle_version)) != version)
                and _wants(consumer, content)
            ):
                return consumer
            consumer = after
        consumer = group.notified.head
        while consumer != NULL:
            if content == NULL or _wants(consumer, content):
                return NULL
            consumer = consumer.next
        group = group.next
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _wake_selection(queue: pointer[queue_t], selection: pointer[selection_t], goes_on: bint) -> bint:
    """Tells one of the selection's consumers that can take something, the front of those with the highest priority; `goes_on`: also when
    one is at it already."""
    consumer: pointer[consumer_t] = selection.interested.head
    after: pointer[consumer_t]
    best: pointer[consumer_t] = NULL
    if at_load32(address(queue.deleted)):
        return False
    selection_wait(queue, selection, False)
    if selection.notified.count and not goes_on and not selection.mixed:
        return False
    while consumer != NULL and (best == NULL or best.priority < selection.priority):
        after = consumer.next
        queue.manager.visited += 1
        if not _has_credit(consumer, False):
            _move(queue, consumer, CONSUMER_NOT_INTERESTED)  # as in _pick
            if _has_credit(consumer, True):
                _move(queue, consumer, CONSUMER_INTERESTED)
                if after == NULL:
                    after = consumer
        elif not at_load32(address(consumer.target.suspended)) and (best == NULL or consumer.priority > best.priority):
            best = consumer
        consumer = after
    if selection.mixed and not goes_on:
        after = selection.notified.head
        while after != NULL and best != NULL:
            if after.priority >= best.priority:
                best = NULL
            after = after.next
    if best == NULL:
        return False
    _move(queue, best, CONSUMER_NOTIFIED)
    best.target.notify_work(best.target)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _wake_waiting(queue: pointer[queue_t], force: bint) -> void:
    """A change that consumers may wait for which could not take their next entry. `force`: all that have something to look at."""
    selection: pointer[selection_t] = queue.manager.selections.all
    if not force and at_load32(address(queue.manager.selections.waiting)) == 0:
        return
    while selection != NULL:
        if at_load32(address(selection.waits)) or (force and selection_pending(selection)):
            _wake_selection(queue, selection, False)
        selection = selection.next


@cfunc
@nogil
@exceptval(check=False)
def _wake_due(queue: pointer[queue_t], selection: pointer[selection_t]) -> void:
    while selection != NULL:
        _wake_selection(queue, selection, False)
        selection = selection.due


def manager_behind(queue: pointer[queue_t], position: uint64_t) -> void:
    if at_load_ptr(address(queue.manager.selections)) == NULL:
        return
    spin_lock(address(queue.manager.lock))
    _wake_due(queue, selections_behind(queue, position))
    spin_unlock(address(queue.manager.lock))


def manager_spread(queue: pointer[queue_t], selection: pointer[selection_t]) -> void:
    spin_lock(address(queue.manager.lock))
    if selection_pending(selection):
        _wake_selection(queue, selection, True)
    spin_unlock(address(queue.manager.lock))


def manager_again(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    spin_lock(address(queue.manager.lock))
    if consumer.list == CONSUMER_INTERESTED:
        _move(queue, consumer, CONSUMER_NOTIFIED)
    if consumer.list == CONSUMER_NOTIFIED:
        consumer.target.notify_work(consumer.target)
    spin_unlock(address(queue.manager.lock))


@cfunc
@nogil
@exceptval(check=False)
def _wake(queue: pointer[queue_t], content: pointer[content_t], force: bint) -> bint:
    consumer: pointer[consumer_t]
    if at_load32(address(queue.deleted)):
        return False
    if queue.manager.selections != NULL:
        _wake_waiting(queue, force)
    if queue.message_groups != NULL:
        if at_load32(address(queue.message_groups.free.count)) == 0 and at_load32(address(queue.message_groups.unread)) == 0:
            return False  # what is there belongs to consumers, who are told themselves
    consumer = _pick(queue, content, force)
    if consumer == NULL:
        return False
    _move(queue, consumer, CONSUMER_NOTIFIED)
    consumer.target.notify_work(consumer.target)
    return True


def manager_notify_locked(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> c_int:
    if at_load32(address(queue.deleted)):
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
    if at_load32(address(consumer.target.suspended)):
        return NOTIFY_NOT
    _move(queue, consumer, CONSUMER_NOTIFIED)
    consumer.target.notify_work(consumer.target)
    return NOTIFY_DONE


def manager_wake_one(queue: pointer[queue_t], content: pointer[content_t], force: bint) -> bint:
    woken: bint
    spin_lock(address(queue.manager.lock))
    woken = _wake(queue, content, force)
    spin_unlock(address(queue.manager.lock))
    return woken


def manager_available(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t], browsers: bint) -> void:
    manager: pointer[manager_t] = address(queue.manager)
    consumer: pointer[consumer_t]
    spin_lock(address(manager.lock))
    if browsers and not at_load32(address(queue.deleted)):
        consumer = manager.non_acquiring.head
        while consumer != NULL:
            if _wants(consumer, content):
                consumer.target.notify_work(consumer.target)
            consumer = consumer.next
    if manager.selections != NULL and position:
        _wake_due(queue, selections_came(queue, position, content))
    _wake(queue, content, False)
    spin_unlock(address(manager.lock))


def manager_add_waiter(queue: pointer[queue_t], waiter: pointer[waiter_t]) -> void:
    spin_lock(address(queue.manager.lock))
    waiter.next = queue.waiters
    at_store_ptr(address(queue.waiters), waiter)
    spin_unlock(address(queue.manager.lock))


def manager_remove_waiter(queue: pointer[queue_t], waiter: pointer[waiter_t]) -> void:
    link: pointer[pointer[waiter_t]]
    spin_lock(address(queue.manager.lock))
    link = address(queue.waiters)
    while link[0] != NULL and link[0] != waiter:
        link = address(link[0].next)
    if link[0] == waiter:
        at_store_ptr(link, waiter.next)
    spin_unlock(address(queue.manager.lock))


def manager_wake_waiters(queue: pointer[queue_t]) -> void:
    waiter: pointer[waiter_t]
    # A waiter adds itself, then marks the entry; we changed the entry, then look here: one of the two sees the other.
    if at_load_ptr(address(queue.waiters)) == NULL:
        return
    spin_lock(address(queue.manager.lock))
    waiter = queue.waiters
    while waiter != NULL:
        waiter.wake(waiter)
        waiter = waiter.next
    spin_unlock(address(queue.manager.lock))


def manager_credit_back(queue: pointer[queue_t], consumer: pointer[consumer_t], own: bint) -> bint:
    shared: bint = consumer.shared_credit != NULL and at_load32(address(consumer.shared_credit.limit)) != 0
    interested: bint = False
    # The credit is back already, by a read-modify-write: a thread that found none before that has moved the consumer under this lock, or
    # will find the credit when it looks firmly.
    if not shared and (not own or at_load32(address(consumer.list)) != CONSUMER_NOT_INTERESTED):
        return False
    # Without a limit it was never found without credit: it is there by its own wish.
    own = own and _uses_credit(consumer) and (shared or at_load32(address(consumer.credit.limit)) != 0)
    spin_lock(address(queue.manager.lock))
    if consumer.list != CONSUMER_REMOVED:
        # Under the lock, so that a suspension, which sets its flag before it takes the consumer off the lists here, has the last word.
        if (
            own
            and consumer.list == CONSUMER_NOT_INTERESTED
            and not at_load32(address(consumer.target.suspended))
            and _has_credit(consumer, True)
        ):
            _move(queue, consumer, CONSUMER_INTERESTED)
            interested = True
        if shared and not at_swap32(address(consumer.target.credit_back), 1):
            consumer.target.notify_work(consumer.target)
    spin_unlock(address(queue.manager.lock))
    return interested


def manager_outranked(queue: pointer[queue_t], consumer: pointer[consumer_t], slot: pointer[slot_t]) -> bint:
    manager: pointer[manager_t] = address(queue.manager)
    group: pointer[group_t]
    other: pointer[consumer_t]
    content: pointer[content_t] = NULL
    pass_no: c_int
    outranked: bint = False
    if cast(pointer[group_t], at_load_ptr(address(manager.groups))) == consumer.group:
        return False
    if at_load32(address(manager.predicates)) or at_load_ptr(address(manager.selections)) != NULL:
        content = slot_borrow(slot, False, NULL)
    spin_lock(address(manager.lock))
    group = manager.groups
    while group != NULL and group.priority > consumer.priority and not outranked:
        for pass_no in range(2):
            other = group.interested.head if pass_no == 0 else group.notified.head
            while other != NULL and not outranked:
                manager.visited += 1
                outranked = manager_ready(other) and _wants(other, content)
                other = other.next
        group = group.next
    if not outranked and manager.selections != NULL:
        outranked = selections_outrank(queue, consumer.priority, content, manager_ready)
    spin_unlock(address(manager.lock))
    if content != NULL:
        content_decref(content)
    return outranked


def manager_new_round(queue: pointer[queue_t]) -> uint32_t:
    return at_add32(address(queue.manager.offers), 1) + 1


def manager_next_offer(queue: pointer[queue_t], round_no: uint32_t) -> pointer[consumer_t]:
    manager: pointer[manager_t] = address(queue.manager)
    group: pointer[group_t]
    consumer: pointer[consumer_t]
    pass_no: c_int
    spin_lock(address(manager.lock))
    group = manager.groups
    while group != NULL and not at_load32(address(queue.deleted)):
        for pass_no in range(2):
            consumer = group.interested.head if pass_no == 0 else group.notified.head
            while consumer != NULL:
                manager.visited += 1
                # One that is pulling right now looks at the entry by itself; the lock is only tried, so no cycle of locks.
                if consumer.offer_round != round_no and manager_ready(consumer) and at_cas32(address(consumer.send_lock), 0, 1):
                    consumer.offer_round = round_no
                    spin_unlock(address(manager.lock))
                    return consumer
                consumer = consumer.next
        group = group.next
    spin_unlock(address(manager.lock))
    return NULL


def manager_offered(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    spin_lock(address(queue.manager.lock))
    if consumer.list != CONSUMER_REMOVED:
        _move(queue, consumer, CONSUMER_NOTIFIED)
        consumer.target.notify_work(consumer.target)
    spin_unlock(address(queue.manager.lock))


def manager_quiet(queue: pointer[queue_t]) -> bint:
    consumer: pointer[consumer_t]
    quiet: bint = True
    # Each look is a read-modify-write: a reader that comes in after it sees every unlink from before it (its own lock operation
    # reads ours), and one that left before it is done with the segments.
    spin_lock(address(queue.manager.lock))
    consumer = queue.manager.all
    while consumer != NULL and quiet:
        queue.manager.visited += 1
        quiet = at_add32(address(consumer.send_lock), 0) == 0
        consumer = consumer.all_next
    spin_unlock(address(queue.manager.lock))
    return quiet and at_add32(address(queue.puller.lock), 0) == 0 and at_add32(address(queue.pins), 0) == 0


def manager_figures(queue: pointer[queue_t], acquired: pointer[uint64_t], acquired_bytes: pointer[uint64_t]) -> void:
    manager: pointer[manager_t] = address(queue.manager)
    consumer: pointer[consumer_t]
    spin_lock(address(manager.lock))
    acquired[0] = manager.acquired
    acquired_bytes[0] = manager.acquired_bytes
    consumer = manager.hot
    while consumer != NULL:
        manager.visited += 1
        acquired[0] += at_load64(address(consumer.acquired)) - consumer.counted
        acquired_bytes[0] += at_load64(address(consumer.acquired_bytes)) - consumer.counted_bytes
        consumer = consumer.hot_next
    spin_unlock(address(manager.lock))


def manager_count(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    spin_lock(address(queue.manager.lock))
    if consumer.list != CONSUMER_NOTIFIED and consumer.list != CONSUMER_REMOVED:
        _count(address(queue.manager), consumer)
    spin_unlock(address(queue.manager.lock))


def manager_delivered(queue: pointer[queue_t]) -> uint64_t:
    manager: pointer[manager_t] = address(queue.manager)
    consumer: pointer[consumer_t]
    delivered: uint64_t
    spin_lock(address(manager.lock))
    delivered = manager.delivered
    consumer = manager.all
    while consumer != NULL:
        delivered += at_load64(address(consumer.delivered))
        consumer = consumer.all_next
    spin_unlock(address(manager.lock))
    return delivered


def manager_flows(queue: pointer[queue_t], flows: pointer[flows_t]) -> void:
    manager: pointer[manager_t] = address(queue.manager)
    consumer: pointer[consumer_t]
    delivered: uint64_t
    spin_lock(address(manager.lock))
    flows.delivered = manager.delivered
    flows.redelivered = manager.redelivered
    flows.delivered_auto = manager.auto_acked
    consumer = manager.all
    while consumer != NULL:
        delivered = at_load64(address(consumer.delivered))
        flows.delivered += delivered
        flows.redelivered += at_load64(address(consumer.redelivered))
        if consumer.flags & CONSUMER_NO_ACK:
            flows.delivered_auto += delivered
        consumer = consumer.all_next
    spin_unlock(address(manager.lock))

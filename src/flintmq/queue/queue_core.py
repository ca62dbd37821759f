"""The queue: enqueue, notify, pull, offer, settle, release (see queue_core.pxd; seeds 000 and 004).

in: producers, consumers' loops, the broker's own removers. out: deliveries, notify_work calls, log and content port calls.

I1  Only the holder of an entry, which acquired it, removes it; an entry has at most one holder.
I2  For every acquiring consumer, each available entry it wants is at or after min(released, last_seen + 1), once the call that
    made it available has returned.
I3  Lost wake-up guard: a thread makes an entry available under list_t.lock and reads list_t.wanted there; a consumer that goes idle counts
    itself in `wanted`, passes through list_t.lock, and looks again.
I4  Credit is taken before the acquire and given back exactly once when the acquire is lost or the entry comes back unsent.
I5  A queue or a consumer that gives up a reference had one. The last one takes the GIL when the queue has a log or an index: nobody
    gives up a queue under a lock.

Lock order: log_lock; send_lock or puller.lock; manager lock; list lock. An offer only tries send_lock, so it may hold the manager
lock then. Ports run without list, manager and consumer locks, except notify_work (manager lock) and the content port (send_lock).
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, gil, inline, nogil, p_void, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF
from cython.cimports.flintmq.core.atomics import (
    at_add32, at_cas64, at_cas_ptr, at_load32, at_load64, at_load_ptr, at_store32, at_sub32, at_swap_ptr, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, content_decref, content_t
from cython.cimports.flintmq.core.memory_account import MEMORY_DEFINITIONS, memory_add
from cython.cimports.flintmq.queue.consumer_manager import (
    credit_give_back, credit_left, manager_add, manager_available, manager_forget, manager_move, manager_remove, manager_wake_waiters,
)  # fmt: skip
from cython.cimports.flintmq.queue.counts import count_taken
from cython.cimports.flintmq.queue.deduplication import arrival_t, once_begin, once_end, once_free
from cython.cimports.flintmq.queue.delivered import delivered_ahead, delivered_begin, delivered_pass
from cython.cimports.flintmq.queue.due import due_expiry, due_worked
from cython.cimports.flintmq.queue.entry_list import (
    large_mask, list_add, list_dequeue, list_finish, list_past_window, list_publish, list_reserve, list_slot_locked,
)  # fmt: skip
from cython.cimports.flintmq.queue.expiries import list_take_expired
from cython.cimports.flintmq.queue.grouped import grouped_ended, grouped_left, grouped_resumed
from cython.cimports.flintmq.queue.housekeeping import list_destroy, queue_reclaim
from cython.cimports.flintmq.queue.list_kinds import kind_arrived, list_init
from cython.cimports.flintmq.queue.message_groups import groups_free, member_free, member_new
from cython.cimports.flintmq.queue.owner_ids import owner_id_free, owner_id_new
from cython.cimports.flintmq.queue.paging import queue_paging_wanted, shell_ask
from cython.cimports.flintmq.queue.pull import queue_offer, queue_release, queue_withdraw_offer
from cython.cimports.flintmq.queue.residency import queue_window
from cython.cimports.flintmq.queue.restoring import list_insert, queue_forget_logged
from cython.cimports.flintmq.queue.returns import queue_free_returns
from cython.cimports.flintmq.queue.selections import selections_free
from cython.cimports.flintmq.queue.slot import delivery_fill, slot_acquire, slot_body_len, slot_content
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES, CONSUMER_GROUPED, CONSUMER_INTERESTED, CONSUMER_NON_ACQUIRING, CONSUMER_NOTIFIED, CONSUMER_NOT_INTERESTED,
    CONSUMER_REMOVED, CONSUMER_SEES_REQUEUES, CONSUMER_SELECTS, ENTRY_LOGGED, QUEUE_LOGGED, QUEUE_MIRRORED, REASON_DROP, REASON_EXPIRE,
    consumer_t, delivery_t, letters_t, log_port_t, puller_t, queue_ops_t, queue_t, segment_t, slot_t, target_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waking import queue_unparked, queue_wake_if_available
from cython.cimports.flintmq.selectors.program import program_decref, program_incref, program_t, program_wants
from cython.cimports.libc.stdint import int32_t, int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy

# Message groups that a consumer gives back at once when it is removed, and in each slice after that (16 and 256: 2 and 30 us under locks).
LEAVE_FIRST = declare(uint32_t, 16)
LEAVE_MOST = declare(uint32_t, 256)

# of all queues to which nobody came for a basic.get (puller.pxd)
_nobody = declare(puller_t)
_nobody.nobody = 1


# --- life -------------------------------------------------------------------------------------------------------------------


def queue_new(queue_id: uint64_t, list_kind: c_int, levels: c_int, level_rule: c_int) -> pointer[queue_t]:
    queue: pointer[queue_t] = cast(pointer[queue_t], calloc(1, sizeof(queue_t)))
    if queue == NULL:
        return NULL
    if not list_init(address(queue.entries), list_kind, levels, level_rule):
        free(queue)
        return NULL
    queue.refs = 1
    queue.puller = address(_nobody)
    queue.id = queue_id
    queue.list_kind = list_kind
    queue.max_length = ~cast(uint64_t, 0)
    queue.max_bytes = ~cast(uint64_t, 0)
    delivered_begin(queue)
    return queue


def queue_incref(queue: pointer[queue_t]) -> void:
    at_add32(address(queue.refs), 1)


def queue_decref(queue: pointer[queue_t]) -> void:
    before: uint32_t = at_sub32(address(queue.refs), 1)
    check(before > 0, b"queue_core I5 a queue that is let go was referenced", queue.id, before)
    if before == 1:
        if queue.ops != NULL:
            queue.ops.destroy(queue)
        list_destroy(address(queue.entries), queue.port)
        selections_free(queue.manager.selections)
        groups_free(queue.message_groups)
        once_free(queue.once)
        if not queue.puller.nobody:
            free(queue.puller)
        queue_free_returns(queue)
        letters_decref(queue.letters)
        if queue.name != NULL:
            memory_add(MEMORY_DEFINITIONS, -cast(int64_t, 1 + queue.name[0]))
            free(queue.name)
        if queue.port_owner != NULL or queue.due_owner != NULL:
            _release_owners(queue)
        free(queue)


@cfunc
@nogil
@exceptval(check=False)
def _release_owners(queue: pointer[queue_t]) -> void:
    with gil:
        queue_keep(address(queue.port_owner), None)
        queue_keep(address(queue.due_owner), None)


def queue_keep(place: pointer[p_void], owner: object) -> void:
    before: p_void = place[0]
    place[0] = NULL
    if owner is not None:
        Py_INCREF(owner)
        place[0] = cast(p_void, owner)
    if before != NULL:
        Py_DECREF(cast(object, before))


def queue_mark_deleted(queue: pointer[queue_t]) -> void:
    at_store32(address(queue.deleted), 1)
    spin_lock(address(queue.entries.lock))
    queue.entries.closed = 1
    spin_unlock(address(queue.entries.lock))
    queue_set_letters(queue, NULL)  # a route of their exchange may lead back to it: neither would be freed
    manager_wake_waiters(queue)


def queue_set_letters(queue: pointer[queue_t], letters: pointer[letters_t]) -> void:
    before: pointer[letters_t]
    refused: pointer[letters_t] = NULL
    spin_lock(address(queue.letters_lock))
    if at_load32(address(queue.deleted)):
        refused = letters
        letters = NULL
    before = queue.letters
    queue.letters = letters
    spin_unlock(address(queue.letters_lock))
    letters_decref(before)
    letters_decref(refused)


def queue_letters(queue: pointer[queue_t]) -> pointer[letters_t]:
    letters: pointer[letters_t]
    spin_lock(address(queue.letters_lock))
    letters = queue.letters
    if letters != NULL:
        at_add32(address(letters.refs), 1)
    spin_unlock(address(queue.letters_lock))
    return letters


def letters_decref(letters: pointer[letters_t]) -> void:
    if letters != NULL and at_sub32(address(letters.refs), 1) == 1:
        letters.destroy(letters)


def queue_set_name(queue: pointer[queue_t], name: pointer[cython.const[uint8_t]], size: uint8_t) -> bint:
    octets: pointer[uint8_t] = cast(pointer[uint8_t], malloc(1 + cast(size_t, size)))
    if octets == NULL:
        return False
    octets[0] = size
    memcpy(octets + 1, name, size)
    if at_cas_ptr(address(queue.name), NULL, octets):
        memory_add(MEMORY_DEFINITIONS, 1 + size)
    else:
        free(octets)  # another thread was first
    return True


def queue_hold_arrivals(queue: pointer[queue_t], held: bint) -> void:
    spin_lock(address(queue.entries.lock))
    if queue.ops == NULL and not at_load32(address(queue.deleted)):
        queue.entries.closed = 1 if held else 0
    spin_unlock(address(queue.entries.lock))


def queue_is_deleted(queue: pointer[queue_t]) -> bint:
    return at_load32(address(queue.deleted)) != 0


def queue_get_id(queue: pointer[queue_t]) -> uint64_t:
    return queue.id


def queue_set_durable(queue: pointer[queue_t], durable: bint) -> void:
    queue.durable = QUEUE_LOGGED if durable else 0
    delivered_begin(queue)


def queue_is_durable(queue: pointer[queue_t]) -> bint:
    return queue.durable == QUEUE_LOGGED


def queue_set_ports(queue: pointer[queue_t], port: pointer[log_port_t]) -> void:
    queue.port = port
    delivered_begin(queue)


def queue_set_ops(queue: pointer[queue_t], ops: pointer[queue_ops_t], context: p_void) -> void:
    spin_lock(address(queue.entries.lock))
    queue.entries.closed = 1
    spin_unlock(address(queue.entries.lock))
    queue.ops_context = context
    queue.ops = ops


# --- producers --------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _add_logged(
    queue: pointer[queue_t],
    level: uint32_t,
    content: pointer[content_t],
    expires_at_ms: int64_t,
    lsn: pointer[uint64_t],
    hot_bytes: uint64_t,
    wanted: pointer[uint32_t],
    original: pointer[original_t],
) -> uint64_t:
    """Adds with the log told first. Producers of the queue pass one by one, so that the log sees positions in order."""
    position: uint64_t = 0
    logged_at: uint64_t
    slot: pointer[slot_t]
    dropped: pointer[content_t] = NULL
    spin_lock(address(queue.log_lock))
    slot = list_reserve(address(queue.entries), level, content, 0, address(position))
    if slot != NULL:
        if position > at_load64(address(queue.entries.level0.ahead)):
            delivered_ahead(queue, position)
        if original == NULL or queue.port.letter == NULL:
            logged_at = queue.port.enqueue(queue.port.context, queue, position, slot, expires_at_ms)
        else:
            logged_at = queue.port.letter(queue.port.context, queue, position, slot, expires_at_ms, original)
        if lsn != NULL and logged_at > lsn[0]:
            lsn[0] = logged_at
        list_publish(address(queue.entries), slot, position, ENTRY_LOGGED, expires_at_ms, hot_bytes, wanted, address(dropped))
    spin_unlock(address(queue.log_lock))
    if dropped != NULL:
        content_decref(dropped)
        if position & large_mask == 0:
            queue_paging_wanted(queue)
    return position


@cfunc
@nogil
@exceptval(check=False)
def _add_unlogged(
    queue: pointer[queue_t],
    level: uint32_t,
    content: pointer[content_t],
    message_id: uint64_t,
    expires_at_ms: int64_t,
    hot_bytes: uint64_t,
    wanted: pointer[uint32_t],
) -> uint64_t:
    """Adds a message that the log does not know; past the queue's window its content goes to the page log first."""
    position: uint64_t
    spilled: uint64_t = 0
    # A producer that logs may have reserved the next position of a durable queue: wait for it.
    alone: bint = queue.durable and queue.port.enqueue != NULL
    if queue.port.spill != NULL and list_past_window(address(queue.entries), content.body_len, hot_bytes):
        spilled = queue.port.spill(queue.port.context, content)
    if alone:
        spin_lock(address(queue.log_lock))
    if spilled:
        position = list_insert(address(queue.entries), level, 0, NULL, spilled, content.body_len, 0, expires_at_ms, wanted, NULL)
    else:
        position = list_add(address(queue.entries), level, content, message_id, expires_at_ms, wanted)
    if alone:
        if position:
            delivered_pass(queue, position)
        spin_unlock(address(queue.log_lock))
    if spilled and position == 0 and queue.port.unspill != NULL:
        queue.port.unspill(queue.port.context, spilled)
    if spilled and position & large_mask == 0:
        queue_paging_wanted(queue)
    return position


@cfunc
@inline
@nogil
@exceptval(check=False)
def _add(
    queue: pointer[queue_t],
    content: pointer[content_t],
    message_id: uint64_t,
    expires_at_ms: int64_t,
    lsn: pointer[uint64_t],
    stays: bint,
    wanted: pointer[uint32_t],
    original: pointer[original_t],
) -> uint64_t:
    """`stays`: whatever the queue's window says, the content stays in memory."""
    level: uint32_t = 0
    hot_bytes: uint64_t = ~cast(uint64_t, 0)
    if not queue.entries.ops.in_order:
        level = queue.entries.ops.level_of(address(queue.entries), content)
    if queue.port == NULL:
        return list_add(address(queue.entries), level, content, message_id, expires_at_ms, wanted)
    if not stays and queue.port.load != NULL:
        hot_bytes = at_load64(address(queue.port.hot_bytes))
        if (
            at_load64(address(queue.entries.resident_bytes)) + content.body_len > at_load64(address(queue.port.rest_least))
            and at_load64(address(queue.entries.cold_count)) == 0
        ):
            hot_bytes = queue_window(queue, content.body_len, hot_bytes)
    if queue.durable and (content.flags & CONTENT_PERSISTENT or queue.durable == QUEUE_MIRRORED) and queue.port.enqueue != NULL:
        return _add_logged(queue, level, content, expires_at_ms, lsn, hot_bytes, wanted, original)
    return _add_unlogged(queue, level, content, message_id, expires_at_ms, hot_bytes, wanted)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _arrived(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t], wanted: uint32_t) -> void:
    """Consumers woken. The common case, nobody to wake, takes no lock."""
    if not queue.entries.ops.in_order:
        arrived_between(queue, position, content, wanted)
        return
    if wanted == 0:
        return
    if at_load_ptr(address(queue.manager.exclusive)) != NULL and queue_offer(queue, position):
        return  # the exclusive short cut: one consumer, nobody to choose from
    manager_available(queue, position, content, True)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _enqueue(
    queue: pointer[queue_t],
    content: pointer[content_t],
    message_id: uint64_t,
    expires_at_ms: int64_t,
    lsn: pointer[uint64_t],
    original: pointer[original_t],
) -> uint64_t:
    wanted: uint32_t = 0
    position: uint64_t
    if queue.ops != NULL:
        return queue.ops.enqueue(queue, content, expires_at_ms, lsn)
    position = _add(queue, content, message_id, expires_at_ms, lsn, False, address(wanted), original)
    if position:
        due_worked(queue)
        if expires_at_ms:
            due_expiry(queue)
        _arrived(queue, position, content, wanted)
    return position


def queue_enqueue(
    queue: pointer[queue_t], content: pointer[content_t], message_id: uint64_t, expires_at_ms: int64_t, lsn: pointer[uint64_t]
) -> uint64_t:
    return _enqueue(queue, content, message_id, expires_at_ms, lsn, NULL)


def queue_enqueue_letter(
    queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t, lsn: pointer[uint64_t], original: pointer[original_t]
) -> uint64_t:
    return _enqueue(queue, content, 0, expires_at_ms, lsn, original)


def queue_enqueue_immediate(
    queue: pointer[queue_t], content: pointer[content_t], message_id: uint64_t, expires_at_ms: int64_t, lsn: pointer[uint64_t]
) -> uint64_t:
    wanted: uint32_t = 0
    slot: pointer[slot_t]
    segment: pointer[segment_t] = NULL
    position: uint64_t
    if queue.ops != NULL:
        return queue.ops.enqueue(queue, content, expires_at_ms, lsn)  # it is kept whichever consumer there is
    position = _add(queue, content, message_id, expires_at_ms, lsn, True, address(wanted), NULL)
    if position == 0:
        return 0
    due_worked(queue)
    if expires_at_ms:
        due_expiry(queue)
    if queue_offer(queue, position):
        kind_arrived(queue, position, content)
        return position
    # Nobody took it: the broker must win the acquire to take it back. When it does not, a consumer has it: delivered.
    spin_lock(address(queue.entries.lock))
    slot = list_slot_locked(address(queue.entries), position, address(segment))
    if slot == NULL or not slot_acquire(slot, 0, True):
        spin_unlock(address(queue.entries.lock))
        kind_arrived(queue, position, content)
        return position
    count_taken(address(queue.entries), slot_body_len(slot))
    spin_unlock(address(queue.entries.lock))
    queue_dequeue(queue, slot, position, 0, REASON_DROP)
    return 0


def queue_enqueue_once(
    queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t, immediate: bint, lsn: pointer[uint64_t]
) -> uint64_t:
    arrival: arrival_t
    own: uint64_t = 0
    position: uint64_t = once_begin(queue, content, address(arrival), lsn)
    if position:
        return position
    if immediate:
        position = queue_enqueue_immediate(queue, content, 0, expires_at_ms, address(own))
    else:
        position = queue_enqueue(queue, content, 0, expires_at_ms, address(own))
    once_end(queue, address(arrival), position, own)
    if own > lsn[0]:
        lsn[0] = own
    return position


# --- consumers --------------------------------------------------------------------------------------------------------------


def consumer_new(
    queue: pointer[queue_t], target: pointer[target_t], priority: int32_t, flags: uint32_t, prefetch: uint32_t
) -> pointer[consumer_t]:
    consumer: pointer[consumer_t] = cast(pointer[consumer_t], calloc(1, sizeof(consumer_t)))
    if consumer == NULL:
        return NULL
    consumer.refs = 1
    consumer.queue = queue
    consumer.target = target
    consumer.priority = priority
    consumer.flags = flags
    if flags & CONSUMER_ACQUIRES:
        consumer.flags |= CONSUMER_SEES_REQUEUES  # else a returned entry behind its pointer could have no taker
    consumer.credit.limit = prefetch
    consumer.browse_levels = consumer.browsed
    consumer.idle_version = ~cast(uint64_t, 0)
    if not flags & CONSUMER_ACQUIRES and queue.entries.level_count > 1:
        consumer.browse_levels = cast(pointer[uint64_t], calloc(queue.entries.level_count, sizeof(uint64_t)))
        if consumer.browse_levels == NULL:
            free(consumer)
            return NULL
    if flags & CONSUMER_ACQUIRES and queue.message_groups != NULL:
        consumer.flags |= CONSUMER_GROUPED
        consumer.member = member_new(consumer)
        if consumer.member == NULL:
            free(consumer)
            return NULL
    consumer.id = owner_id_new()
    if consumer.id == 0:
        member_free(consumer.member)
        if consumer.browse_levels != consumer.browsed:
            free(consumer.browse_levels)
        free(consumer)
        return NULL
    queue_incref(queue)
    return consumer


def consumer_select(consumer: pointer[consumer_t], program: pointer[program_t]) -> void:
    program_incref(program)
    consumer.selector = program
    if consumer.flags & CONSUMER_ACQUIRES:
        consumer.flags |= CONSUMER_SELECTS
    else:
        consumer.interest = program_wants
        consumer.interest_context = program


def consumer_incref(consumer: pointer[consumer_t]) -> void:
    at_add32(address(consumer.refs), 1)


def consumer_decref(consumer: pointer[consumer_t]) -> void:
    if at_sub32(address(consumer.refs), 1) == 1:
        check(consumer.list == CONSUMER_REMOVED, b"queue_core I5 a consumer that is freed is on no list", consumer.id, consumer.list)
        if consumer.browse_levels != consumer.browsed:
            free(consumer.browse_levels)
        if consumer.selector != NULL:
            program_decref(consumer.selector)
        member_free(consumer.member)
        if consumer.reader != NULL:
            consumer.queue.ops.free_reader(consumer.reader)
        queue_decref(consumer.queue)
        owner_id_free(consumer.id)
        free(consumer)


def consumer_give_back_credit(consumer: pointer[consumer_t]) -> void:
    credit_give_back(consumer)


def consumer_has_credit(consumer: pointer[consumer_t]) -> bint:
    return credit_left(consumer)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _wake(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    """After a change of this consumer: another one that can take the next entry is told."""
    if queue.ops != NULL:
        queue.ops.changed(queue, consumer)
    else:
        if consumer.flags & CONSUMER_GROUPED:
            grouped_resumed(queue, consumer)
        queue_wake_if_available(queue)


def queue_add_consumer(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> bint:
    if not manager_add(queue, consumer):
        return False
    consumer_incref(consumer)
    if queue.ops != NULL:
        queue.ops.attached(queue, consumer)
        return True
    if consumer.flags & CONSUMER_ACQUIRES:
        queue_wake_if_available(queue)
    elif at_load32(address(consumer.list)) == CONSUMER_NON_ACQUIRING:
        consumer.target.notify_work(consumer.target)
    return True


def queue_remove_consumer(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> bint:
    offered: pointer[slot_t]
    if manager_remove(queue, consumer) == CONSUMER_REMOVED:
        return False
    # From here nobody new comes in; wait for the pull or offer that is inside.
    spin_lock(address(consumer.send_lock))
    offered = cast(pointer[slot_t], at_swap_ptr(address(consumer.offered), NULL))
    manager_forget(queue, consumer)
    spin_unlock(address(consumer.send_lock))
    if offered != NULL:
        credit_give_back(consumer)
        queue_release(queue, offered, consumer.offered_position, consumer.id, False)
    if queue.ops != NULL:
        queue.ops.detached(queue, consumer)
    else:
        if consumer.flags & CONSUMER_GROUPED:
            grouped_left(queue, consumer, LEAVE_FIRST)
        queue_wake_if_available(queue)
        due_worked(queue)  # the mark of deliveries may rest
    consumer_decref(consumer)
    return offered != NULL


def queue_consumer_leaves(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> bint:
    return (consumer.flags & CONSUMER_GROUPED) != 0 and consumer.member.leaving and grouped_left(queue, consumer, LEAVE_MOST)


def queue_set_notify_work_desired(queue: pointer[queue_t], consumer: pointer[consumer_t], desired: bint) -> void:
    list_number: uint32_t
    if not desired:
        list_number = manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
        # Whatever `offered` says now: an offer that is being made has its send_lock, and is seen when that is free (pull.py, I4).
        queue_withdraw_offer(queue, consumer)
        if list_number == CONSUMER_NOTIFIED or list_number == CONSUMER_INTERESTED:
            _wake(queue, consumer)  # another does the work that was expected of this one
        return
    if not consumer.flags & CONSUMER_ACQUIRES:
        if manager_move(queue, consumer, CONSUMER_NON_ACQUIRING) or at_load32(address(consumer.list)) == CONSUMER_NON_ACQUIRING:
            consumer.target.notify_work(consumer.target)
        return
    list_number = at_load32(address(consumer.list))
    if list_number == CONSUMER_NOT_INTERESTED and credit_left(consumer):
        manager_move(queue, consumer, CONSUMER_INTERESTED)
    if list_number != CONSUMER_NOTIFIED:
        _wake(queue, consumer)


# --- settlement -------------------------------------------------------------------------------------------------------------


def queue_dequeue(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t, reason: c_int) -> bint:
    return queue_settle(queue, slot, position, owner, reason, 0)


def queue_drop_held(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t) -> bint:
    queue_forget_logged(queue, slot, position, 0)
    return queue_settle(queue, slot, position, 0, REASON_DROP, 0)


def queue_settle(
    queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t, reason: c_int, delivered_us: uint64_t
) -> bint:
    content: pointer[content_t] = NULL
    ended: pointer[slot_t] = NULL
    spilled: uint64_t = 0
    done: c_int
    if queue.ops != NULL:
        return queue.ops.settle(queue, slot, position, owner, reason)
    done = list_dequeue(address(queue.entries), position, owner, reason, address(ended), address(content), address(spilled))
    if done == 0:
        return False
    due_worked(queue)
    if done == 2:
        if queue.port != NULL and queue.port.dequeue != NULL:
            queue.port.dequeue(queue.port.context, queue, position, ended, owner, reason, delivered_us)
        list_finish(address(queue.entries), position, reason)
    if content != NULL:
        content_decref(content)
    if spilled and queue.port != NULL and queue.port.unspill != NULL:
        queue.port.unspill(queue.port.context, spilled)
    if queue.message_groups != NULL:
        grouped_ended(queue, position)
    # Checking costs a look at every consumer: with many of them wait until it pays.
    retired: uint32_t = at_load32(address(queue.entries.retired_count))
    if retired > at_load32(address(queue.manager.consumer_count)) >> 6 and retired > at_load32(address(queue.entries.reclaim_after)):
        queue_reclaim(queue, True)
    return True


def queue_take_expired(queue: pointer[queue_t], now_ms: int64_t, out: pointer[delivery_t]) -> bint:
    position: uint64_t = 0
    slot: pointer[slot_t] = NULL
    if not list_take_expired(address(queue.entries), now_ms, address(position), address(slot)):
        if position:
            shell_ask(queue, position)
        return False
    delivery_fill(out, slot, slot_content(slot), position, at_load64(address(slot.state)))
    queue_unparked(queue, slot)
    return True


def queue_expire_many(queue: pointer[queue_t], now_ms: int64_t, most: uint64_t) -> uint64_t:
    delivery: delivery_t
    expired: uint64_t = 0
    while expired < most and queue_take_expired(queue, now_ms, address(delivery)):
        if queue_dequeue(queue, delivery.slot, delivery.position, 0, REASON_EXPIRE):
            expired += 1
    return expired


def queue_rearm(queue: pointer[queue_t]) -> int64_t:
    expiry_ms: int64_t
    due_at: pointer[uint64_t] = cast(pointer[uint64_t], address(queue.due_at))
    while not at_cas64(due_at, at_load64(due_at), 0):
        pass
    # A thread that adds an entry after this section sees that nothing is known; one that added before it is seen here (due.py, I1).
    spin_lock(address(queue.entries.lock))
    expiry_ms = queue.entries.expiry_min
    spin_unlock(address(queue.entries.lock))
    return expiry_ms if expiry_ms and at_cas64(due_at, 0, cast(uint64_t, expiry_ms)) else 0


# --- arrivals in lists that are not in order: beside the path of a message, which has no room for them ------------------


def arrived_between(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t], wanted: uint32_t) -> void:
    before: bint = (position >> 56) != queue.entries.level_count - 1
    kind_arrived(queue, position, content)
    if wanted:
        if not before and at_load_ptr(address(queue.manager.exclusive)) != NULL and queue_offer(queue, position):
            return
        manager_available(queue, position, content, True)
    if before:
        manager_wake_waiters(queue)  # it is served before the head they wait for

"""Length limits and ready consumers (see limits.pxd).

in: queues at or above their limit. out: whether to refuse, to drop, or to let consumers have their turn first.

RabbitMQ hands a message to a consumer with credit before it counts it. Here a message is on the queue first, and its consumer takes it in
its own turn, perhaps on another thread. So a queue may be above its limit for a moment, by what Limits.over_limit_messages and
over_limit_bytes allow.

I1  A queue that is left above its limit for its consumers is on the index's list; who takes it off there looks at it, and drops its head
    unless something was taken since and consumers still want more. So it stays above its limit for Limits.over_limit_ms without progress.
I2  Who lets a queue wait sets `over` after it has counted; whoever ends a consumer's turn may miss that: the index does not (I1).
I3  A queue on the index's list is counted there: it is alive.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.clock import wall_ms
from cython.cimports.flintmq.queue.consumer_manager import manager_figures, manager_ready, manager_rotate_locked
from cython.cimports.flintmq.queue.housekeeping import queue_ready_bytes, queue_ready_count
from cython.cimports.flintmq.queue.paging import shell_ask
from cython.cimports.flintmq.queue.pull import queue_take_head
from cython.cimports.flintmq.queue.restoring import queue_hold_at, queue_next_available
from cython.cimports.flintmq.queue.slot import delivery_fill, slot_content
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES, CONSUMER_NO_ACK, LEVEL_SHIFT, consumer_t, credit_t, delivery_t, due_index_t, group_t, queue_t, slot_t,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t

_excess_lock = declare(uint32_t, 0)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _left(credit: pointer[credit_t]) -> uint64_t:
    limit: uint32_t = at_load32(address(credit.limit))
    used: uint32_t = at_load32(address(credit.used))
    if limit == 0:
        return ~cast(uint64_t, 0)
    return limit - used if used < limit else 0


@cfunc
@nogil
@exceptval(check=False)
def _pass_over(queue: pointer[queue_t], visits: uint32_t) -> void:
    """Consumers in front of INTERESTED that can take nothing go to its back. Under the manager lock."""
    group: pointer[group_t] = queue.manager.groups
    consumer: pointer[consumer_t]
    last: pointer[consumer_t]
    following: pointer[consumer_t]
    while group != NULL and visits:
        consumer = group.interested.head
        last = group.interested.tail
        while consumer != NULL and visits:
            following = consumer.next if consumer != last else NULL
            visits -= 1
            if not manager_ready(consumer):
                manager_rotate_locked(queue, consumer)
            consumer = following
        visits -= min(visits, group.notified.count)
        group = group.next


def queue_wanted(queue: pointer[queue_t], most: uint64_t, visits: uint32_t) -> uint64_t:
    group: pointer[group_t]
    consumer: pointer[consumer_t]
    shared: pointer[credit_t][SHARED_MAX]
    shared_left: uint64_t[SHARED_MAX]
    shared_count: uint32_t = 0
    visited: uint32_t = 0
    wanted: uint64_t = 0
    credit: uint64_t
    takeable: uint32_t
    pass_no: c_int
    i: uint32_t
    if at_load32(address(queue.deleted)):
        return 0
    spin_lock(address(queue.manager.lock))
    group = queue.manager.groups
    while group != NULL and wanted < most and visited < visits:
        for pass_no in range(2):
            consumer = group.interested.head if pass_no == 0 else group.notified.head
            while consumer != NULL and wanted < most and visited < visits:
                visited += 1
                credit = 0
                if consumer.interest == NULL and not at_load32(address(consumer.target.suspended)):
                    credit = most
                    if consumer.flags & (CONSUMER_ACQUIRES | CONSUMER_NO_ACK) == CONSUMER_ACQUIRES:
                        credit = _left(address(consumer.credit))
                        if consumer.shared_credit != NULL and _left(consumer.shared_credit) == 0:
                            credit = 0
                        elif consumer.shared_credit != NULL:
                            i = 0
                            while i < shared_count and shared[i] != consumer.shared_credit:
                                i += 1
                            if i == shared_count and i < SHARED_MAX:
                                shared[i] = consumer.shared_credit
                                shared_left[i] = _left(consumer.shared_credit)
                                shared_count += 1
                            if i == shared_count:
                                credit = 0
                            elif credit > shared_left[i]:
                                credit = shared_left[i]
                            if i < shared_count:
                                shared_left[i] -= credit
                if consumer.member != NULL:  # a group gives it one message, at least; what is in other consumers' groups gives it none
                    takeable = at_load32(address(queue.message_groups.free.count)) + at_load32(address(consumer.member.ready.count))
                    credit = min(credit, cast(uint64_t, takeable))
                wanted += credit if credit < most - wanted else most - wanted
                consumer = consumer.next
        group = group.next
    if visited == visits and wanted < most:
        _pass_over(queue, visits)
        visited += visits
    queue.manager.visited += visited
    spin_unlock(address(queue.manager.lock))
    return wanted


def queue_lags(queue: pointer[queue_t], most_bytes: uint64_t, most: uint64_t) -> bint:
    if (
        at_load64(address(queue.entries.resident_bytes)) <= most_bytes
        and at_load64(address(queue.entries.enqueued)) - at_load64(address(queue.entries.dequeued)) <= most
    ):
        return False
    # Bodies on disk come at the pace of cold reads: to wait for those is not to wait for a turn.
    if at_load64(address(queue.entries.cold_count)):
        return False
    return queue_ready_bytes(queue) > most_bytes or queue_ready_count(queue) > most


def queue_take_over(queue: pointer[queue_t], out: pointer[delivery_t]) -> bint:
    level: uint32_t = queue.entries.level_count
    position: uint64_t
    slot: pointer[slot_t]
    if not queue.drops_lowest or level == 1:
        return queue_take_head(queue, out)
    while level:
        level -= 1
        while at_load64(address(queue.entries.levels[level].live)):
            position = queue_next_available(queue, (cast(uint64_t, level) << LEVEL_SHIFT) | 1)
            if position == 0 or position >> LEVEL_SHIFT != level:
                break
            slot = queue_hold_at(queue, position)
            if slot != NULL:
                delivery_fill(out, slot, slot_content(slot), position, at_load64(address(slot.state)))
                return True
            if at_load64(address(queue.entries.shells)):
                shell_ask(queue, position)  # the next arrival, or the housekeeping, looks again
                return False
    return False


def queue_take_excess(queue: pointer[queue_t], out: pointer[delivery_t]) -> bint:
    taken: bint
    if not queue_over_limit(queue):
        return False
    spin_lock(address(_excess_lock))
    taken = queue_over_limit(queue) and queue_take_over(queue, out)
    spin_unlock(address(_excess_lock))
    return taken


def queue_over_limit(queue: pointer[queue_t]) -> bint:
    return queue_ready_count(queue) > queue.max_length or queue_ready_bytes(queue) > queue.max_bytes


@cfunc
@inline
@nogil
@exceptval(check=False)
def _above(value: uint64_t, limit: uint64_t) -> uint64_t:
    return value - limit if value > limit else 0


def queue_taken(queue: pointer[queue_t]) -> uint64_t:
    acquired: uint64_t = 0
    bytes_: uint64_t = 0
    manager_figures(queue, address(acquired), address(bytes_))
    return acquired + at_load64(address(queue.puller.acquired))


def queue_limit_waits(queue: pointer[queue_t]) -> bint:
    index: pointer[due_index_t] = queue.due
    ready: uint64_t = queue_ready_count(queue)
    if index == NULL or _above(ready, queue.max_length) > index.over_messages:
        return False
    # One message may have any size: it is what a consumer waits for.
    if ready > 1 and _above(queue_ready_bytes(queue), queue.max_bytes) > index.over_bytes:
        return False
    if queue_wanted(queue, 1, WANTED_VISITS) == 0:
        return False
    if not at_load32(address(queue.over)) and not at_swap32(address(queue.over), 1):
        check(at_add32(address(queue.refs), 1) > 0, b"limits I3 a queue above its limit is alive", queue.id, 0)
        ready = queue_taken(queue)
        spin_lock(address(index.lock))
        queue.over_at = wall_ms() + index.over_ms
        queue.over_taken = ready
        queue.over_next = index.over
        index.over = queue
        if index.soon != NULL:
            index.soon(index.context, queue.over_at)
        spin_unlock(address(index.lock))
    return True


def queue_limit_due(queue: pointer[queue_t]) -> bint:
    if not queue_over_limit(queue):
        return False
    return queue.over_taken == queue_taken(queue) or not queue_limit_waits(queue)


def queue_refuses(queue: pointer[queue_t], size: uint64_t, messages: uint64_t, bytes_: uint64_t) -> bint:
    ready: uint64_t = queue_ready_count(queue)
    ready_bytes: uint64_t = queue_ready_bytes(queue)
    index: pointer[due_index_t] = queue.due
    count: uint64_t = ready + messages + at_load64(address(queue.kept))
    wanted: uint64_t
    excess: uint64_t
    bytes_ += at_load64(address(queue.kept_bytes))
    if count < queue.max_length and ready_bytes + bytes_ + size <= queue.max_bytes:
        return False
    if index == NULL or count == 0 or _above(ready_bytes + bytes_ + size, queue.max_bytes) > index.over_bytes:
        return True
    wanted = queue_wanted(queue, min(count, index.over_messages), WANTED_VISITS)
    if wanted == 0:
        return True
    # The entries at the head are theirs; of the bytes behind it only the share of the messages is known.
    excess = _above(count, wanted)
    return excess >= queue.max_length or excess * ((ready_bytes + bytes_) // count) + size > queue.max_bytes

"""What consumers and basic.get take from a queue with message groups, or a sorted one (see grouped_pull.pxd).

in: pulls from consumers' loops. out: acquired entries, list moves, content requests. The invariants are those of pull.py.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_load_ptr, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.consumer_manager import (
    credit_give_back, credit_left, credit_take, manager_again, manager_count, manager_credit_back, manager_move, manager_outranked,
    manager_wake_one, queue_version,
)  # fmt: skip
from cython.cimports.flintmq.queue.entry_list import list_advance_floor
from cython.cimports.flintmq.queue.grouped import grouped_look_again
from cython.cimports.flintmq.queue.message_groups import (
    FREE_ASK, FREE_NOT, FREE_YES, GROUPS_AGAIN, GROUPS_ASK, GROUPS_COLD, GROUPS_NOTHING, GROUPS_READ, GROUPS_TAKEN, GROUPS_UNREAD,
    groups_pending, groups_read, groups_take,
)  # fmt: skip
from cython.cimports.flintmq.queue.puller import queue_puller
from cython.cimports.flintmq.queue.slot import delivery_fill, slot_body_len, slot_content
from cython.cimports.flintmq.queue.types import (
    CONSUMER_INTERESTED, CONSUMER_NOT_INTERESTED, consumer_t, delivery_t, found_t, group_t, message_groups_t, puller_t, queue_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waking import FLOOR_EVERY, queue_ask_content, queue_hand_over, queue_wake_if_available
from cython.cimports.libc.stdint import uint32_t, uint64_t

# Entries that one pull looks at before others of its loop have their turn.
LOOKS = declare(uint32_t, 512)
# Outcomes of an attempt.
NOTHING = declare(c_int, 0)
TAKEN = declare(c_int, 1)
OUTRANKED = declare(c_int, 2)
NO_CREDIT = declare(c_int, 3)
PARKED = declare(c_int, 4)
SUSPENDED = declare(c_int, 5)
STOPPED = declare(c_int, 6)


@cfunc
@nogil
@exceptval(check=False)
def _attempt_grouped(queue: pointer[queue_t], consumer: pointer[consumer_t], entry: pointer[found_t], looks: pointer[uint32_t]) -> c_int:
    """_attempt of a consumer of a queue with message groups: these know what is next for it. Called with its send_lock held."""
    groups: pointer[message_groups_t] = queue.message_groups
    free: c_int = FREE_ASK
    outcome: c_int
    unread: bint
    if cast(pointer[group_t], at_load_ptr(address(queue.manager.groups))) == consumer.group:
        free = FREE_YES  # nobody has a higher priority
    if not groups_pending(groups, consumer.member):
        return NOTHING
    while looks[0]:
        looks[0] -= 1
        if not credit_take(consumer):
            return NO_CREDIT
        outcome = groups_take(queue, consumer.member, consumer.id, free, entry)
        if outcome == GROUPS_TAKEN:
            if entry.position % FLOOR_EVERY == 0:
                list_advance_floor(address(queue.entries), address(consumer.place), cast(uint32_t, entry.position >> 56))
            return TAKEN
        credit_give_back(consumer)
        if manager_credit_back(queue, consumer, True):
            continue  # it may have been passed over meanwhile
        unread = outcome == GROUPS_UNREAD
        if unread:
            outcome = groups_read(queue, consumer.member, address(consumer.place), entry)
            if outcome == GROUPS_READ:
                grouped_look_again(queue)  # those whose groups have something now
        elif outcome == GROUPS_ASK:
            free = FREE_NOT if manager_outranked(queue, consumer, entry.slot) else FREE_YES
        if outcome == GROUPS_COLD:
            return PARKED
        if outcome == GROUPS_NOTHING and not unread:
            return OUTRANKED if free == FREE_NOT else NOTHING
    return STOPPED


def deliver_grouped(queue: pointer[queue_t], consumer: pointer[consumer_t], out: pointer[delivery_t]) -> bint:
    """queue_deliver_single of a consumer of a queue with message groups. Called with, and gives up, its send_lock."""
    entry: found_t
    outcome: c_int
    version: uint64_t
    looks: uint32_t = LOOKS
    group: pointer[group_t] = consumer.group
    looked_again: bint = False
    wake: bint = False
    if at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED:
        if at_load64(address(consumer.acquired)) != at_load64(address(consumer.counted)):
            manager_count(queue, consumer)
        spin_unlock(address(consumer.send_lock))
        return False
    while True:
        version = queue_version(queue) if looked_again else 0
        outcome = SUSPENDED
        if not at_load32(address(consumer.target.suspended)):
            outcome = _attempt_grouped(queue, consumer, address(entry), address(looks))
        if outcome == TAKEN:
            break
        if outcome == SUSPENDED or outcome == NO_CREDIT:
            manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
            if not at_load32(address(consumer.target.suspended)) and credit_left(consumer):
                manager_move(queue, consumer, CONSUMER_INTERESTED)
                continue
            spin_unlock(address(consumer.send_lock))
            queue_wake_if_available(queue)
            return False
        if outcome == STOPPED:
            spin_unlock(address(consumer.send_lock))
            manager_again(queue, consumer)
            return False
        if looked_again:
            at_store64(address(consumer.idle_version), version)
            if outcome == PARKED:
                if not queue_ask_content(queue, entry.slot, entry.position):
                    continue
                out.position = entry.position
            spin_unlock(address(consumer.send_lock))
            if outcome == OUTRANKED:
                queue_wake_if_available(queue)
                at_store64(address(consumer.idle_version), ~cast(uint64_t, 0))  # as in queue_deliver_single
            return False
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        looked_again = True
    queue_hand_over(queue, consumer, address(entry), out)
    if at_load32(address(group.interested.count)):
        out.rotate = True
        wake = at_load32(address(queue.message_groups.free.count)) != 0
    elif at_load32(address(group.notified.count)) > 1:
        out.rotate = True
    spin_unlock(address(consumer.send_lock))
    if wake:
        manager_wake_one(queue, NULL, False)
    return True


def pull_grouped(queue: pointer[queue_t], owner: uint32_t, out: pointer[delivery_t]) -> bint:
    """_pull of a queue with message groups, for basic.get: what is free. Its group is nobody's until the entry is settled."""
    puller: pointer[puller_t] = queue_puller(queue)
    entry: found_t
    outcome: c_int = GROUPS_AGAIN
    looks: uint32_t = LOOKS
    out.slot = NULL
    out.position = 0
    if puller == NULL:
        return False
    spin_lock(address(puller.lock))
    while outcome != GROUPS_TAKEN and outcome != GROUPS_NOTHING:
        if looks == 0:
            out.rotate = True
            break
        looks -= 1
        outcome = groups_take(queue, NULL, owner, FREE_YES, address(entry))
        if outcome == GROUPS_UNREAD:
            outcome = groups_read(queue, NULL, address(puller.place), address(entry))
            if outcome == GROUPS_READ:
                grouped_look_again(queue)
            elif outcome != GROUPS_COLD:
                outcome = GROUPS_NOTHING if outcome == GROUPS_AGAIN else GROUPS_AGAIN
        if outcome == GROUPS_COLD and queue_ask_content(queue, entry.slot, entry.position):
            out.position = entry.position
            break
    if outcome == GROUPS_TAKEN:
        if entry.position % FLOOR_EVERY == 0:
            list_advance_floor(address(queue.entries), address(puller.place), cast(uint32_t, entry.position >> 56))
        at_store64(address(puller.acquired), puller.acquired + 1)
        at_store64(address(puller.acquired_bytes), puller.acquired_bytes + slot_body_len(entry.slot))
        at_store64(address(puller.delivered), puller.delivered + 1)
        delivery_fill(out, entry.slot, slot_content(entry.slot), entry.position, at_load64(address(entry.slot.state)))
    spin_unlock(address(puller.lock))
    return outcome == GROUPS_TAKEN

"""Entries and consumers of queues with message groups: the groups are told, then consumers are woken (see grouped.pxd).

in: hooks of the entry list, settlements, consumers that come and go. out: notifications.

I1  Who makes something available puts it into the groups first and reads `wanted` then; who goes idle first moves to Interested and looks
    into the groups then. Both pass through the lock of the groups, so one of them sees the other.
I2  The owner of a group is told itself; what is free is told to whoever is next.
"""

from __future__ import annotations

from cython import NULL, address, bint, cfunc, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.atomics import at_load32, at_load_ptr, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.consumer_manager import manager_changed, manager_notify_locked, manager_wake_one
from cython.cimports.flintmq.queue.group_keys import group_key_t, groups_key
from cython.cimports.flintmq.queue.message_groups import (
    groups_add, groups_ended, groups_leave, groups_passed_on, groups_pending, groups_returned, groups_told,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import consumer_t, member_t, queue_t
from cython.cimports.libc.stdint import uint32_t, uint64_t


@cfunc
@nogil
@exceptval(check=False)
def _tell(queue: pointer[queue_t]) -> void:
    member: pointer[member_t]
    if at_load_ptr(address(queue.message_groups.told)) == NULL:
        return
    spin_lock(address(queue.manager.lock))
    member = groups_told(queue.message_groups)
    while member != NULL:
        manager_notify_locked(queue, member.consumer)
        member = groups_told(queue.message_groups)
    spin_unlock(address(queue.manager.lock))


@cfunc
@nogil
@exceptval(check=False)
def _wake(queue: pointer[queue_t], came_back: bint) -> void:
    """There is work. `came_back`: not by an arrival, so those who found nothing before are to be woken for it."""
    _tell(queue)
    if at_load32(address(queue.entries.wanted)) and (
        at_load32(address(queue.message_groups.free.count)) or at_load32(address(queue.message_groups.unread))
    ):
        if came_back:
            manager_changed(queue)
        manager_wake_one(queue, NULL, False)


def grouped_arrived(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t]) -> void:
    key: group_key_t
    has_work: bint
    if content == NULL:
        has_work = groups_add(queue, position, NULL)
    else:
        groups_key(queue.message_groups, content, address(key))
        has_work = groups_add(queue, position, address(key))
    if has_work:
        _wake(queue, content == NULL)


def grouped_returned(queue: pointer[queue_t], position: uint64_t) -> void:
    if groups_returned(queue, position):
        _wake(queue, True)


def grouped_ended(queue: pointer[queue_t], position: uint64_t) -> void:
    if groups_ended(queue, position):
        _wake(queue, True)


def grouped_passed_on(queue: pointer[queue_t], position: uint64_t, waits: bint) -> void:
    if groups_passed_on(queue, position, waits):
        _wake(queue, True)


def grouped_learned(queue: pointer[queue_t]) -> void:
    _wake(queue, True)


def grouped_look_again(queue: pointer[queue_t]) -> void:
    _tell(queue)


def grouped_resumed(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    if groups_pending(queue.message_groups, consumer.member):
        spin_lock(address(queue.manager.lock))
        manager_notify_locked(queue, consumer)
        spin_unlock(address(queue.manager.lock))


def grouped_left(queue: pointer[queue_t], consumer: pointer[consumer_t], most: uint32_t) -> bint:
    goes_on: bint
    spin_lock(address(queue.manager.lock))
    goes_on = groups_leave(queue.message_groups, consumer.member, most)
    spin_unlock(address(queue.manager.lock))
    _wake(queue, True)
    return goes_on

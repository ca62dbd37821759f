"""Groups of messages: who may have which entry next (see message_groups.pxd).

in: entries that are available, taken, given back and gone. out: the next entry of a consumer; who is to be woken.

I1  An entry that is available is in the heap of one group, or is to be read (`unread`), once whoever made it available has returned. One
    that was taken by its group is in `held` until it ends or comes back.
I2  A group is in the heap of its owner, or in that of free groups when it is nobody's and none of it is held; in none while it has no
    entry, or waits for one that the broker has (`blocked`).
I3  A group is known as long as it has an entry, in its heap or held, or an owner. A sticky group without entries is on the idle list,
    which has a limit: beyond it the one that is idle for longest is forgotten.
I4  A value has one group at a time: its own, or when there was no room for that, one that it shares with others until that is empty.
I5  Nothing is taken that stands behind an entry whose group is not known; of a sorted queue nothing before all are known.
I6  The heaps have at most a small multiple of the places of entries that are there: an arrival that meets more than GONE_MAX that cannot
    be there passes over SWEPT of them.

A heap may have positions of entries that are gone, and one position twice: who takes one looks at its entry, and at `held`.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_store32, at_store_ptr, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.hash64 import map64_get, map64_remove
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.core.prefetch import prefetch_write
from cython.cimports.flintmq.queue.delivered import delivered_grant
from cython.cimports.flintmq.queue.entry_list import list_scan
from cython.cimports.flintmq.queue.group_heaps import (
    FEW, group_before, group_delist, group_drop, group_list, group_push, heap_empty, heap_room, heap_top, places_rise, places_sink,
)  # fmt: skip
from cython.cimports.flintmq.queue.group_keys import SORT_REST, group_key_t, groups_key
from cython.cimports.flintmq.queue.slot import slot_acquire, slot_borrow
from cython.cimports.flintmq.queue.types import (
    ENTRY_ACQUIRED, ENTRY_AVAILABLE, ENTRY_FAILED, ENTRY_NOT_RESIDENT, ENTRY_STATE_MASK, GROUPS_SHARED, GROUPS_SORTED, INDEX_MASK,
    LEVEL_SHIFT, consumer_t, found_t, group_heap_t, member_t, message_group_t, message_groups_t, place_t, queue_t, slot_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.value_maps import entry_state, map_free, map_put, map_reserve, map_trim
from cython.cimports.flintmq.selectors.program import program_decref, program_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy

# places of heaps that an arrival passes over
SWEPT = declare(uint32_t, 2)
# places of entries that are gone, before an arrival looks for them: looks at random places cost more than the rest of it
GONE_MAX = declare(uint64_t, 64)
# places of entries that are gone, which one look at a cold entry passes over
NOTE_LOOKS = declare(c_int, 16)
# groups that values share when there is no room for one each
SHARED_GROUPS = declare(uint64_t, 1024)
# of `held`, in the lowest bits of the group's address
HELD_OWN = declare(uint64_t, 0)
HELD_BLOCKS = declare(uint64_t, 1)
HELD_ASIDE = declare(uint64_t, 2)
HELD_MASK = declare(uint64_t, 3)


# --- groups -------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _idle(groups: pointer[message_groups_t], group: pointer[message_group_t], idle: bint) -> void:
    """Puts it on the idle list, or takes it off."""
    if group.idle == idle:
        return
    group.idle = idle
    if idle:
        group.idle_next = NULL
        group.idle_previous = groups.idle_tail
        if groups.idle_tail != NULL:
            groups.idle_tail.idle_next = group
        else:
            groups.idle_head = group
        groups.idle_tail = group
        groups.idle_count += 1
        return
    if group.idle_previous != NULL:
        group.idle_previous.idle_next = group.idle_next
    else:
        groups.idle_head = group.idle_next
    if group.idle_next != NULL:
        group.idle_next.idle_previous = group.idle_previous
    else:
        groups.idle_tail = group.idle_previous
    groups.idle_count -= 1


@cfunc
@nogil
@exceptval(check=False)
def _give(group: pointer[message_group_t], member: pointer[member_t]) -> void:
    """Makes it the member's; NULL: nobody's. It is in no heap then."""
    before: pointer[member_t] = group.owner
    if before == member:
        return
    group_delist(group)
    if before != NULL:
        if group.owned_previous != NULL:
            group.owned_previous.owned_next = group.owned_next
        else:
            before.owned = group.owned_next
        if group.owned_next != NULL:
            group.owned_next.owned_previous = group.owned_previous
        before.owned_count -= 1
    group.owner = member
    if member != NULL:
        group.owned_previous = NULL
        group.owned_next = member.owned
        if member.owned != NULL:
            member.owned.owned_previous = group
        member.owned = group
        member.owned_count += 1


@cfunc
@nogil
@exceptval(check=False)
def _end(groups: pointer[message_groups_t], group: pointer[message_group_t]) -> void:
    """Forgets a group that has nothing."""
    _idle(groups, group, False)
    _give(group, NULL)
    group_delist(group)
    map64_remove(address(groups.by_hash), group.hash)
    if not group.hash & 1:
        check(groups.shared_count > 0, b"message_groups I4 a shared group that goes was counted", group.hash, 0)
        groups.shared_count -= 1
    if group.room > FEW:
        free(group.heap)
        memory_add(MEMORY_ENTRIES, -cast(int64_t, group.room * sizeof(uint64_t)))
    memory_add(MEMORY_ENTRIES, -cast(int64_t, sizeof(message_group_t) + group.key_size))
    free(group.key)
    free(group)


@cfunc
@nogil
@exceptval(check=False)
def _arrange(groups: pointer[message_groups_t], group: pointer[message_group_t]) -> bint:
    """After a change: the group goes to the heap where it belongs (I2), or is forgotten (I3). True: it can be taken from."""
    heap: pointer[group_heap_t] = NULL
    if group.count == 0 and group.held == 0 and group.blocked == 0 and group.aside == 0:
        if group.owner == NULL:
            _end(groups, group)
            return False
        group_delist(group)
        _idle(groups, group, True)
        if groups.idle_count > groups.idle_most:
            _end(groups, groups.idle_head)
        return False
    _idle(groups, group, False)
    if group.count and group.blocked == 0:
        if group.loose or (group.owner == NULL and group.held == 0):
            heap = address(groups.free)
        elif group.owner != NULL:
            heap = address(group.owner.ready)
    group_list(heap, group)
    return heap != NULL


@cfunc
@nogil
@exceptval(check=False)
def _find(groups: pointer[message_groups_t], key: pointer[group_key_t]) -> pointer[message_group_t]:
    """The group of a value, made if need be. NULL: no memory."""
    value: uint64_t = 0
    shared: uint64_t = 2 if key.size else (((key.hash >> 8) % SHARED_GROUPS) + 1) << 1
    hash: uint64_t = key.hash
    group: pointer[message_group_t]
    if map64_get(address(groups.by_hash), hash, address(value)):
        return cast(pointer[message_group_t], value)
    if not key.loose or key.size:
        if groups.shared_count and map64_get(address(groups.by_hash), shared, address(value)):
            return cast(pointer[message_group_t], value)  # I4
        if groups.by_hash.count >= groups.most and groups.idle_head != NULL:
            _end(groups, groups.idle_head)
        if groups.by_hash.count >= groups.most:
            hash = shared
    if not heap_room(address(groups.free), cast(uint32_t, groups.by_hash.count + 1)):
        return NULL
    group = cast(pointer[message_group_t], calloc(1, sizeof(message_group_t)))
    if group == NULL:
        return NULL
    group.hash = hash
    group.heap = group.few
    group.room = FEW
    group.loose = key.loose
    if key.size:
        group.key = cast(pointer[uint8_t], malloc(key.size))
        group.key_size = key.size
        if group.key == NULL:
            free(group)
            return NULL
        memcpy(group.key, key.text, key.size)
        if hash == shared:
            group.key[0] = SORT_REST
            group.key_size = 1
    if not map_put(address(groups.by_hash), hash, cast(uint64_t, group)):
        free(group.key)
        free(group)
        return NULL
    if hash == shared:
        groups.shared_count += 1
    memory_add(MEMORY_ENTRIES, sizeof(message_group_t) + group.key_size)
    return group


@cfunc
@nogil
@exceptval(check=False)
def _tell(groups: pointer[message_groups_t], member: pointer[member_t]) -> void:
    if member.told == 0:
        member.told = 1
        member.told_next = groups.told
        at_store_ptr(address(groups.told), member)


# --- entries whose group is not known -----------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _unread(groups: pointer[message_groups_t]) -> void:
    at_store32(address(groups.unread), 1 if groups.walk or groups.todo_count else 0)


@cfunc
@nogil
@exceptval(check=False)
def _walk_from(queue: pointer[queue_t], position: uint64_t) -> bint:
    """All entries that are there from `position` on are to be read."""
    groups: pointer[message_groups_t] = queue.message_groups
    level: uint32_t
    for level in range(queue.entries.level_count):
        groups.walk_tails[level] = at_load64(address(queue.entries.levels[level].tail))
    groups.walk = position if groups.walk == 0 else min(groups.walk, position)
    _unread(groups)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _read_later(queue: pointer[queue_t], position: uint64_t) -> void:
    groups: pointer[message_groups_t] = queue.message_groups
    room: uint32_t
    todo: pointer[uint64_t]
    if groups.todo_count == groups.todo_room:
        room = max(2 * groups.todo_room, cast(uint32_t, 16))
        todo = NULL
        if room > groups.todo_room:
            todo = cast(pointer[uint64_t], realloc(groups.todo, room * sizeof(uint64_t)))
        if todo == NULL:
            _walk_from(queue, position)
            return
        memory_add(MEMORY_ENTRIES, cast(int64_t, (room - groups.todo_room) * sizeof(uint64_t)))
        groups.todo = todo
        groups.todo_room = room
    groups.todo[groups.todo_count] = position
    groups.todo_count += 1
    places_rise(groups.todo, groups.todo_count - 1)
    _unread(groups)


@cfunc
@nogil
@exceptval(check=False)
def _drop_lowest_unread(groups: pointer[message_groups_t]) -> void:
    """Takes the lowest position off the heap of unread ones: its group is known now, or its entry is gone."""
    groups.todo_count -= 1
    if groups.todo_count:
        groups.todo[0] = groups.todo[groups.todo_count]
        places_sink(groups.todo, groups.todo_count, 0)
        return
    free(groups.todo)
    memory_add(MEMORY_ENTRIES, -cast(int64_t, groups.todo_room * sizeof(uint64_t)))
    groups.todo = NULL
    groups.todo_room = 0


@cfunc
@nogil
@exceptval(check=False)
def _next_unread(queue: pointer[queue_t], place: pointer[place_t], entry: pointer[found_t]) -> c_int:
    """The first entry to be read: GROUPS_READ with its position and slot, slot NULL: that place needs it no more; GROUPS_NOTHING."""
    groups: pointer[message_groups_t] = queue.message_groups
    level: uint32_t
    if groups.todo_count and (groups.walk == 0 or groups.todo[0] < groups.walk):
        entry.position = groups.todo[0]
        if entry_state(queue, entry.position, address(entry.slot)) & ENTRY_STATE_MASK != ENTRY_AVAILABLE:
            entry.slot = NULL  # gone, or somebody has it: should it come back, that is told
            _drop_lowest_unread(groups)
        return GROUPS_READ
    if groups.walk == 0:
        return GROUPS_NOTHING
    if not list_scan(address(queue.entries), place, groups.walk, entry):
        groups.walk = 0
        entry.slot = NULL
        return GROUPS_READ
    level = cast(uint32_t, entry.position >> LEVEL_SHIFT)
    groups.walk = entry.position
    if entry.position & INDEX_MASK > groups.walk_tails[level]:
        entry.slot = NULL  # it came since, and was told of
        groups.walk = (cast(uint64_t, level + 1) << LEVEL_SHIFT) | 1 if level + 1 < queue.entries.level_count else 0
    return GROUPS_READ


@cfunc
@nogil
@exceptval(check=False)
def _learn(groups: pointer[message_groups_t], position: uint64_t, content: pointer[content_t]) -> bint:
    """The first entry that was to be read is in the heap of its group. False: no memory."""
    key: group_key_t
    group: pointer[message_group_t]
    known: bint = False
    groups_key(groups, content, address(key))
    group = _find(groups, address(key))
    if group != NULL and group_push(groups, group, position):
        known = True
        if groups.walk == position:
            groups.walk += 1
        else:
            _drop_lowest_unread(groups)
    if group != NULL and _arrange(groups, group) and group.owner != NULL:
        _tell(groups, group.owner)
    return known


def groups_read(queue: pointer[queue_t], member: pointer[member_t], place: pointer[place_t], entry: pointer[found_t]) -> c_int:
    groups: pointer[message_groups_t] = queue.message_groups
    content: pointer[content_t] = NULL
    outcome: c_int
    spin_lock(address(groups.lock))
    outcome = _next_unread(queue, place, entry)
    if outcome == GROUPS_READ and entry.slot != NULL:
        if at_load64(address(entry.slot.state)) & ENTRY_NOT_RESIDENT:
            if member != NULL:
                _tell(groups, member)
            outcome = GROUPS_COLD
        else:
            content = slot_borrow(entry.slot, False, NULL)
    if content != NULL and not _learn(groups, entry.position, content):
        outcome = GROUPS_AGAIN  # without memory for it, it stays to be read
    _unread(groups)
    spin_unlock(address(groups.lock))
    if content != NULL:
        content_decref(content)
    return outcome


def groups_note(queue: pointer[queue_t], place: pointer[place_t], position: uint64_t, content: pointer[content_t]) -> bint:
    groups: pointer[message_groups_t] = queue.message_groups
    entry: found_t
    looks: c_int = NOTE_LOOKS
    known: bint = False
    entry.slot = NULL
    entry.position = 0
    spin_lock(address(groups.lock))
    while looks and entry.slot == NULL and _next_unread(queue, place, address(entry)) == GROUPS_READ:
        looks -= 1
    if entry.slot != NULL and entry.position == position:
        known = _learn(groups, position, content)
    _unread(groups)
    spin_unlock(address(groups.lock))
    return known


def groups_read_all(queue: pointer[queue_t]) -> bint:
    spin_lock(address(queue.message_groups.lock))
    _walk_from(queue, 1)
    spin_unlock(address(queue.message_groups.lock))
    return True


# --- what is there, and who takes it ------------------------------------------------------------------------------------------


def groups_add(queue: pointer[queue_t], position: uint64_t, key: pointer[group_key_t]) -> bint:
    groups: pointer[message_groups_t] = queue.message_groups
    group: pointer[message_group_t] = NULL
    has_work: bint = True
    dequeued: uint64_t  # read first, as every entry is counted as enqueued before it is as dequeued
    spin_lock(address(groups.lock))
    if key != NULL:
        group = _find(groups, key)
    if group == NULL or not group_push(groups, group, position):
        if group != NULL:
            _arrange(groups, group)
        _read_later(queue, position)
    else:
        has_work = _arrange(groups, group)
        if has_work and group.owner != NULL and not group.loose:
            _tell(groups, group.owner)
    dequeued = at_load64(address(queue.entries.dequeued))
    if groups.positions + groups.held.count > at_load64(address(queue.entries.enqueued)) - dequeued + GONE_MAX:
        _pass_over(queue, SWEPT)
    spin_unlock(address(groups.lock))
    return has_work


@cfunc
@nogil
@exceptval(check=False)
def _best(groups: pointer[message_groups_t], member: pointer[member_t], free: c_int) -> pointer[message_group_t]:
    own: pointer[message_group_t] = NULL if member == NULL else heap_top(address(member.ready))
    other: pointer[message_group_t] = heap_top(address(groups.free)) if free != FREE_NOT else NULL
    if own == NULL or other == NULL:
        return own if other == NULL else other
    return other if group_before(other, own) else own


@cfunc
@nogil
@exceptval(check=False)
def _hold(groups: pointer[message_groups_t], group: pointer[message_group_t], position: uint64_t, how: uint64_t) -> void:
    """The group's first entry is somebody's. There is room for it in `held`."""
    group_drop(groups, group, 0)
    map_put(address(groups.held), position, cast(uint64_t, group) | how)
    if how == HELD_OWN:
        group.held += 1
    elif how == HELD_BLOCKS:
        group.blocked += 1
    else:
        group.aside += 1


@cfunc
@nogil
@exceptval(check=False)
def _take_first(
    queue: pointer[queue_t],
    group: pointer[message_group_t],
    member: pointer[member_t],
    owner: uint32_t,
    free: c_int,
    entry: pointer[found_t],
) -> c_int:
    groups: pointer[message_groups_t] = queue.message_groups
    known: uint64_t = 0
    outcome: c_int = GROUPS_AGAIN
    state: uint64_t
    entry.position = group.heap[0]
    state = entry_state(queue, entry.position, address(entry.slot))
    # Room first: what is acquired must be noted.
    if not map_reserve(address(groups.held), groups.held.count + 1) or (
        member != NULL and not heap_room(address(member.ready), member.owned_count + 1)
    ):
        return GROUPS_NOTHING
    if state & ENTRY_STATE_MASK == ENTRY_AVAILABLE:
        if state & ENTRY_NOT_RESIDENT or (
            entry.position > at_load64(address(queue.entries.level0.granted)) and not delivered_grant(queue, entry.position, state)
        ):
            if member != NULL:
                _tell(groups, member)
            return GROUPS_COLD
        if free == FREE_ASK and group.listed == address(groups.free):
            return GROUPS_ASK
        if not slot_acquire(entry.slot, owner, False):
            return GROUPS_AGAIN
        if group.line_next != NULL:
            # The next consumer in the line is next to be taken from, and not in the caches when there are many groups.
            prefetch_write(group.line_next)
            prefetch_write(cast(pointer[uint8_t], group.line_next) + 64)
        _hold(groups, group, entry.position, HELD_OWN)
        if not group.loose and member != NULL:
            _give(group, member)
        outcome = GROUPS_TAKEN
    elif (
        state & ENTRY_STATE_MASK == ENTRY_ACQUIRED
        and not state & ENTRY_FAILED
        and not map64_get(address(groups.held), entry.position, address(known))
    ):
        # The broker has it: it ends, or comes back before the entries behind it.
        _hold(groups, group, entry.position, HELD_ASIDE if group.loose else HELD_BLOCKS)
    else:
        group_drop(groups, group, 0)
    _arrange(groups, group)
    return outcome


def groups_take(queue: pointer[queue_t], member: pointer[member_t], owner: uint32_t, free: c_int, entry: pointer[found_t]) -> c_int:
    groups: pointer[message_groups_t] = queue.message_groups
    group: pointer[message_group_t]
    outcome: c_int = GROUPS_NOTHING
    first: uint64_t
    spin_lock(address(groups.lock))
    group = _best(groups, member, free)
    if groups.unread:
        first = groups.walk
        if groups.todo_count and (first == 0 or groups.todo[0] < first):
            first = groups.todo[0]
        if group == NULL or groups.mode == GROUPS_SORTED or group.heap[0] >= first:
            outcome = GROUPS_UNREAD
    if outcome == GROUPS_NOTHING and group != NULL:
        outcome = _take_first(queue, group, member, owner, free, entry)
    spin_unlock(address(groups.lock))
    return outcome


def groups_pending(groups: pointer[message_groups_t], member: pointer[member_t]) -> bint:
    pending: bint
    if at_load32(address(groups.free.count)) or (member != NULL and at_load32(address(member.ready.count))):
        return True  # perhaps not any more: who takes will see
    spin_lock(address(groups.lock))
    pending = groups.free.count != 0 or groups.unread != 0 or (member != NULL and member.ready.count != 0)
    spin_unlock(address(groups.lock))
    return pending


# --- what comes back, and what ends -------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _held_group(groups: pointer[message_groups_t], position: uint64_t) -> pointer[message_group_t]:
    """Takes an entry out of `held`. NULL: it is not there."""
    value: uint64_t = 0
    group: pointer[message_group_t]
    if not map64_get(address(groups.held), position, address(value)):
        return NULL
    map64_remove(address(groups.held), position)
    group = cast(pointer[message_group_t], value & ~HELD_MASK)
    if value & HELD_MASK == HELD_OWN:
        check(group.held > 0, b"message_groups I1 what was held was counted", position, group.hash)
        group.held -= 1
    elif value & HELD_MASK == HELD_BLOCKS:
        check(group.blocked > 0, b"message_groups I1 what blocked was counted", position, group.hash)
        group.blocked -= 1
    else:
        check(group.aside > 0, b"message_groups I1 what was aside was counted", position, group.hash)
        group.aside -= 1
    return group


@cfunc
@nogil
@exceptval(check=False)
def _let_go(groups: pointer[message_groups_t], group: pointer[message_group_t]) -> bint:
    """After an entry of it ended or came back. True: it can be taken from."""
    if groups.mode == GROUPS_SHARED and group.held == 0 and group.owner != NULL:
        _give(group, NULL)
    return _arrange(groups, group)


def groups_ended(queue: pointer[queue_t], position: uint64_t) -> bint:
    groups: pointer[message_groups_t] = queue.message_groups
    group: pointer[message_group_t]
    work: bint = False
    blocked: bint
    listed: pointer[group_heap_t]
    spin_lock(address(groups.lock))
    group = _held_group(groups, position)
    if group != NULL:
        listed = group.listed
        blocked = listed == NULL
        work = _let_go(groups, group)
        if work and not blocked and group.listed == listed:
            work = False  # as before: who could take it knows
        if work and group.owner != NULL:
            _tell(groups, group.owner)
    spin_unlock(address(groups.lock))
    return work


def groups_returned(queue: pointer[queue_t], position: uint64_t) -> bint:
    groups: pointer[message_groups_t] = queue.message_groups
    group: pointer[message_group_t]
    work: bint = True
    spin_lock(address(groups.lock))
    group = _held_group(groups, position)
    if group == NULL:
        _read_later(queue, position)
    else:
        if not group_push(groups, group, position):
            _read_later(queue, position)
        work = _let_go(groups, group)
        if work and group.owner != NULL:
            _tell(groups, group.owner)
    spin_unlock(address(groups.lock))
    return work


def groups_passed_on(queue: pointer[queue_t], position: uint64_t, waits: bint) -> bint:
    groups: pointer[message_groups_t] = queue.message_groups
    group: pointer[message_group_t]
    listed: pointer[group_heap_t]
    work: bint = False
    spin_lock(address(groups.lock))
    group = _held_group(groups, position)
    if group != NULL:
        listed = group.listed
        # The place in the map that it had is free.
        if waits and not group.loose:
            group.blocked += 1
            map_put(address(groups.held), position, cast(uint64_t, group) | HELD_BLOCKS)
        else:
            group.aside += 1
            map_put(address(groups.held), position, cast(uint64_t, group) | HELD_ASIDE)
        work = _let_go(groups, group) and group.listed != listed
        if work and group.owner != NULL:
            _tell(groups, group.owner)
    spin_unlock(address(groups.lock))
    return work


# --- members ------------------------------------------------------------------------------------------------------------------


def groups_told(groups: pointer[message_groups_t]) -> pointer[member_t]:
    member: pointer[member_t]
    spin_lock(address(groups.lock))
    member = groups.told
    if member != NULL:
        at_store_ptr(address(groups.told), member.told_next)
        member.told = 0
    spin_unlock(address(groups.lock))
    return member


def groups_leave(groups: pointer[message_groups_t], member: pointer[member_t], most: uint32_t) -> bint:
    group: pointer[message_group_t]
    link: pointer[pointer[member_t]]
    spin_lock(address(groups.lock))
    while member.owned != NULL and most:
        most -= 1
        group = member.owned
        _idle(groups, group, False)
        _give(group, NULL)
        _arrange(groups, group)
    if member.owned == NULL:
        check(member.ready.count == 0, b"message_groups I2 who leaves has no group", member.consumer.id, member.ready.count)
        heap_empty(address(member.ready))
        link = address(groups.told)
        while member.told and link[0] != member:
            link = address(link[0].told_next)
        if member.told:
            at_store_ptr(link, member.told_next)
            member.told = 0
    member.leaving = member.owned != NULL
    spin_unlock(address(groups.lock))
    return member.leaving


def member_new(consumer: pointer[consumer_t]) -> pointer[member_t]:
    member: pointer[member_t] = cast(pointer[member_t], calloc(1, sizeof(member_t)))
    if member != NULL:
        member.consumer = consumer
    return member


def member_free(member: pointer[member_t]) -> void:
    if member != NULL:
        check(member.owned == NULL and not member.leaving, b"message_groups I3 who is freed has no group", member.owned_count, 0)
        heap_empty(address(member.ready))
        free(member)


# --- what is gone -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _pass_over(queue: pointer[queue_t], most: uint32_t) -> bint:
    """I6. Under the lock. A cell whose group goes is looked at in the next round."""
    groups: pointer[message_groups_t] = queue.message_groups
    group: pointer[message_group_t]
    slot: pointer[slot_t] = NULL
    state: uint64_t
    gone: bint = False
    while most and groups.by_hash.cells != NULL:
        most -= 1
        groups.cursor &= groups.by_hash.mask
        group = NULL
        if groups.by_hash.cells[groups.cursor].key:
            group = cast(pointer[message_group_t], groups.by_hash.cells[groups.cursor].value)
        if group == NULL or groups.cursor_place >= group.count:
            groups.cursor += 1
            groups.cursor_place = 0
            continue
        state = entry_state(queue, group.heap[groups.cursor_place], address(slot)) & ENTRY_STATE_MASK
        if state == ENTRY_AVAILABLE or state == ENTRY_ACQUIRED:
            groups.cursor_place += 1
            continue
        gone = True
        group_drop(groups, group, groups.cursor_place)
        _arrange(groups, group)
    return gone


def groups_sweep(queue: pointer[queue_t], most: uint32_t) -> bint:
    gone: bint
    spin_lock(address(queue.message_groups.lock))
    gone = _pass_over(queue, most)
    map_trim(address(queue.message_groups.by_hash))
    map_trim(address(queue.message_groups.held))
    if queue.message_groups.by_hash.count == 0:
        heap_empty(address(queue.message_groups.free))
    spin_unlock(address(queue.message_groups.lock))
    return gone


# --- with the queue -----------------------------------------------------------------------------------------------------------


def groups_new(mode: c_int, name: pointer[program_t], most: uint32_t, idle_most: uint32_t) -> pointer[message_groups_t]:
    groups: pointer[message_groups_t] = cast(pointer[message_groups_t], calloc(1, sizeof(message_groups_t)))
    if groups == NULL:
        return NULL
    # As many as a list can have levels.
    groups.walk_tails = cast(pointer[uint64_t], calloc(256, sizeof(uint64_t)))
    if groups.walk_tails == NULL:
        free(groups)
        return NULL
    groups.mode = mode
    groups.name = name
    groups.most = most
    groups.idle_most = idle_most
    return groups


def groups_free(groups: pointer[message_groups_t]) -> void:
    i: uint64_t
    if groups == NULL:
        return
    while groups.by_hash.count:
        # A removal moves what is behind it: the cell is looked at until it is free.
        for i in range(groups.by_hash.mask + 1):
            while groups.by_hash.cells[i].key:
                _end(groups, cast(pointer[message_group_t], groups.by_hash.cells[i].value))
    map_free(address(groups.by_hash))
    map_free(address(groups.held))
    heap_empty(address(groups.free))
    memory_add(MEMORY_ENTRIES, -cast(int64_t, groups.todo_room * sizeof(uint64_t)))
    free(groups.todo)
    free(groups.walk_tails)
    program_decref(groups.name)
    free(groups)

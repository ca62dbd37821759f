"""Who selects an entry, and what a selection has still to look at (see selections.pxd).

in: consumers with selectors, entries that are available. out: selections to be woken; positions to be looked at.

I1  Each available entry that a selection wants is in its heap, or at or behind min(scan_from, overflow_from), or behind the place where a
    member is looking, once whoever made it available has returned. While a member looks, arrivals go into the heap wherever they stand.
I2  A selection is in the table of its key's name with each of its keys, or on `unkeyed`; never in both.
I3  `list_t.wanted` counts one for all selections of a queue: what arrives while they are idle is compared, too.

A heap may hold positions of entries that are gone, and one position twice: who takes one out looks whether it is available and wanted.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_store32, at_store_ptr, at_sub32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.core.hash64 import map64_get, map64_remove
from cython.cimports.flintmq.queue.entry_list import list_scan
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.queue.types import (
    KEY_TABLES_MAX, consumer_t, found_t, key_table_t, place_t, queue_t, selection_key_t, selection_t, selections_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.value_maps import map_free, map_put
from cython.cimports.flintmq.selectors.program import (
    program_decref, program_hash, program_incref, program_of_name, program_same, program_same_name, program_selects,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc

# Steps that the comparison of one arrival takes at most, for all selections together: about a millisecond. Those that were not reached
# look for themselves.
ARRIVAL_STEPS_MAX = declare(int64_t, 262_144)
# ... and a selection's own comparison.
STEPS_MAX = declare(int64_t, 65_536)


# --- heaps ------------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _put(selection: pointer[selection_t], position: uint64_t) -> void:
    at: uint32_t = selection.heap_count
    above: uint32_t
    heap: pointer[uint64_t]
    room: uint32_t
    if at == selection.heap_room:
        room = 16 if at == 0 else 2 * at
        heap = NULL
        if room <= SELECTION_HEAP_MAX:
            heap = cast(pointer[uint64_t], realloc(selection.heap, room * sizeof(uint64_t)))
        if heap == NULL:
            selection.overflow_from = min(selection.overflow_from, position)
            return
        selection.heap = heap
        selection.heap_room = room
    heap = selection.heap
    while at:
        above = (at - 1) // 2
        if heap[above] <= position:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = position
    selection.heap_count += 1


@cfunc
@nogil
@exceptval(check=False)
def _pop(selection: pointer[selection_t]) -> uint64_t:
    heap: pointer[uint64_t] = selection.heap
    result: uint64_t = heap[0]
    last: uint64_t
    at: uint32_t = 0
    below: uint32_t = 1
    selection.heap_count -= 1
    last = heap[selection.heap_count]
    while below < selection.heap_count:
        if below + 1 < selection.heap_count and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= last:
            break
        heap[at] = heap[below]
        at = below
        below = 2 * at + 1
    heap[at] = last
    return result


@cfunc
@nogil
@exceptval(check=False)
def _offer(selection: pointer[selection_t], position: uint64_t, wanted: bint) -> void:
    """An entry is available; `wanted` False: nobody knows whether it is."""
    spin_lock(address(selection.lock))
    if not wanted:
        selection.overflow_from = min(selection.overflow_from, position)
    elif selection.scanning or position < selection.scan_from:
        _put(selection, position)
    spin_unlock(address(selection.lock))


def selection_pending(selection: pointer[selection_t]) -> bint:
    pending: bint
    spin_lock(address(selection.lock))
    pending = selection.heap_count != 0 or min(selection.scan_from, selection.overflow_from) != SELECTION_END
    spin_unlock(address(selection.lock))
    return pending


def selection_next(selection: pointer[selection_t], position: pointer[uint64_t]) -> c_int:
    outcome: c_int = NEXT_NONE
    spin_lock(address(selection.lock))
    if selection.scanning == 0:
        selection.scan_from = min(selection.scan_from, selection.overflow_from)
        selection.overflow_from = SELECTION_END
        if selection.heap_count and selection.heap[0] < selection.scan_from:
            position[0] = _pop(selection)
            outcome = NEXT_POSITION
        elif selection.scan_from != SELECTION_END:
            position[0] = selection.scan_from
            selection.scanning = 1
            outcome = NEXT_SCAN
    elif selection.heap_count and selection.heap[0] < min(selection.scan_from, selection.overflow_from):
        position[0] = _pop(selection)
        outcome = NEXT_POSITION
    spin_unlock(address(selection.lock))
    return outcome


def selection_put(selection: pointer[selection_t], position: uint64_t) -> void:
    spin_lock(address(selection.lock))
    _put(selection, position)
    spin_unlock(address(selection.lock))


def selection_scanned(selection: pointer[selection_t], upto: uint64_t, found: uint64_t) -> void:
    spin_lock(address(selection.lock))
    check(selection.scanning != 0, b"selections I1 a look that ends was one", upto, found)
    selection.scanning = 0
    selection.scan_from = upto
    if found and not (selection.heap_count and selection.heap[0] == found):
        _put(selection, found)
    spin_unlock(address(selection.lock))


# --- who is there -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _enter_table(all: pointer[selections_t], selection: pointer[selection_t]) -> bint:
    """Finds a table for its key's name, and puts its keys there. False: there is none for it, or no memory."""
    program = selection.program
    number: uint32_t
    table: pointer[key_table_t] = NULL
    head: uint64_t
    if program.key_name >= program.name_count or program.key_count == 0:
        return False
    for number in range(KEY_TABLES_MAX):
        if all.tables[number].name == NULL:
            if table == NULL:
                table = address(all.tables[number])
        elif program_same_name(all.tables[number].name, 0, program, program.key_name):
            table = address(all.tables[number])
            break
    if table == NULL:
        return False
    selection.keys = cast(pointer[selection_key_t], calloc(program.key_count, sizeof(selection_key_t)))
    if selection.keys != NULL and table.name == NULL:
        table.name = program_of_name(program, program.key_name)
    if selection.keys == NULL or table.name == NULL:
        free(selection.keys)
        selection.keys = NULL
        return False
    selection.key_table = cast(uint32_t, table - all.tables)
    for number in range(program.key_count):
        head = 0
        map64_get(address(table.values), program.keys[number], address(head))
        selection.keys[number].hash = program.keys[number]
        selection.keys[number].selection = selection
        selection.keys[number].next = cast(pointer[selection_key_t], head)
        if not map_put(address(table.values), program.keys[number], cast(uint64_t, address(selection.keys[number]))):
            _leave_table(all, selection, number)
            return False
        table.count += 1
    return True


@cfunc
@nogil
@exceptval(check=False)
def _leave_table(all: pointer[selections_t], selection: pointer[selection_t], count: uint32_t) -> void:
    """Takes its first `count` keys out."""
    table: pointer[key_table_t] = address(all.tables[selection.key_table])
    number: uint32_t
    head: uint64_t
    link: pointer[selection_key_t]
    mine: pointer[selection_key_t]
    for number in range(count):
        mine = address(selection.keys[number])
        head = 0
        map64_get(address(table.values), mine.hash, address(head))
        link = cast(pointer[selection_key_t], head)
        check(link != NULL, b"selections I2 a key that goes was in its table", mine.hash, selection.key_table)
        if link != mine:
            while link.next != mine:
                link = link.next
            link.next = mine.next
        elif mine.next != NULL:
            map_put(address(table.values), mine.hash, cast(uint64_t, mine.next))  # a key that is there needs no memory
        else:
            map64_remove(address(table.values), mine.hash)
        table.count -= 1
    if table.count == 0:
        map_free(address(table.values))
        program_decref(table.name)
        table.name = NULL
    free(selection.keys)
    selection.keys = NULL


def selection_join(
    queue: pointer[queue_t],
    consumer: pointer[consumer_t],
    all: pointer[pointer[selections_t]],
    fresh: pointer[pointer[selection_t]],
) -> bint:
    mine: pointer[selections_t] = queue.manager.selections
    selection: pointer[selection_t]
    if mine == NULL:
        if all[0] == NULL:
            return False
        mine = all[0]
        all[0] = NULL
        at_store_ptr(address(queue.manager.selections), mine)
    selection = mine.all
    while selection != NULL and not program_same(selection.program, consumer.selector):
        selection = selection.next
    if selection == NULL:
        selection = fresh[0]
        if selection == NULL:
            return False
        fresh[0] = NULL
        selection.program = consumer.selector
        program_incref(selection.program)
        selection.priority = consumer.priority
        selection.scan_from = 0
        selection.overflow_from = SELECTION_END
        selection.next = mine.all
        if mine.all != NULL:
            mine.all.previous = selection
        mine.all = selection
        mine.count += 1
        if not _enter_table(mine, selection):
            selection.unkeyed_next = mine.unkeyed
            if mine.unkeyed != NULL:
                mine.unkeyed.unkeyed_previous = selection
            mine.unkeyed = selection
        if mine.count == 1:
            at_store32(address(queue.entries.wanted), queue.entries.wanted + 1)  # I3
    if selection.priority != consumer.priority:
        selection.mixed = True
        selection.priority = max(selection.priority, consumer.priority)
    selection.member_count += 1
    consumer.selection = selection
    return True


def selection_leave(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    mine: pointer[selections_t] = queue.manager.selections
    selection: pointer[selection_t] = consumer.selection
    consumer.selection = NULL
    check(selection.member_count > 0, b"selections I1 who leaves a selection was counted", consumer.id, selection.member_count)
    selection.member_count -= 1
    if selection.member_count:
        return
    if selection.previous != NULL:
        selection.previous.next = selection.next
    else:
        mine.all = selection.next
    if selection.next != NULL:
        selection.next.previous = selection.previous
    if selection.keys != NULL:
        _leave_table(mine, selection, selection.program.key_count)
    else:
        if selection.unkeyed_previous != NULL:
            selection.unkeyed_previous.unkeyed_next = selection.unkeyed_next
        else:
            mine.unkeyed = selection.unkeyed_next
        if selection.unkeyed_next != NULL:
            selection.unkeyed_next.unkeyed_previous = selection.unkeyed_previous
    selection_wait(queue, selection, False)
    check(mine.count > 0, b"selections I3 a selection that goes was counted", queue.id, mine.count)
    mine.count -= 1
    if mine.count == 0:
        check(queue.entries.wanted > 0, b"selections I3 selections are counted as wanted", queue.id, 0)
        at_store32(address(queue.entries.wanted), queue.entries.wanted - 1)
    program_decref(selection.program)
    free(selection.heap)
    free(selection)


def selections_free(all: pointer[selections_t]) -> void:
    if all != NULL:
        check(all.count == 0, b"selections I3 a queue that goes has no consumers", all.count, 0)
        free(all)


def selection_wait(queue: pointer[queue_t], selection: pointer[selection_t], waits: bint) -> void:
    if waits:
        if not at_swap32(address(selection.waits), 1):
            at_add32(address(queue.manager.selections.waiting), 1)
    elif at_load32(address(selection.waits)) and at_swap32(address(selection.waits), 0):
        at_sub32(address(queue.manager.selections.waiting), 1)


# --- what an entry is for -----------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _content_of(queue: pointer[queue_t], position: uint64_t, gone: pointer[bint]) -> pointer[content_t]:
    """The content of the entry, with a reference; NULL: not in memory, or `gone`."""
    found: found_t
    place: place_t
    content: pointer[content_t] = NULL
    place.segment = NULL
    place.generation = 0
    gone[0] = True
    at_add32(address(queue.pins), 1)
    if list_scan(address(queue.entries), address(place), position, address(found)) and found.position == position:
        gone[0] = False
        content = slot_borrow(found.slot, False, NULL)
    at_sub32(address(queue.pins), 1)
    return content


@cfunc
@nogil
@exceptval(check=False)
def _compare(
    all: pointer[selections_t],
    selection: pointer[selection_t],
    content: pointer[content_t],
    position: uint64_t,
    steps: pointer[int64_t],
    due: pointer[selection_t],
) -> pointer[selection_t]:
    own: int64_t = min(steps[0], STEPS_MAX)
    before: int64_t = own
    wanted: bint = False
    if steps[0] > 0:
        all.compared += 1
        wanted = program_selects(selection.program, content, address(own))
        steps[0] -= before - own
        if not wanted and (own > 0 or before == STEPS_MAX):
            return due
    _offer(selection, position, wanted)
    selection.due = due
    return selection


def selections_came(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t]) -> pointer[selection_t]:
    all: pointer[selections_t] = queue.manager.selections
    borrowed: pointer[content_t] = NULL
    due: pointer[selection_t] = NULL
    selection: pointer[selection_t]
    key: pointer[selection_key_t]
    number: uint32_t
    head: uint64_t
    hash: uint64_t
    gone: bint = False
    steps: int64_t = ARRIVAL_STEPS_MAX
    if all.count == 0:
        return NULL
    if content == NULL:
        borrowed = _content_of(queue, position, address(gone))
        if gone:
            return NULL  # whoever has it tells when it comes back
        if borrowed == NULL:
            return selections_behind(queue, position)
        content = borrowed
    for number in range(KEY_TABLES_MAX):
        if all.tables[number].name == NULL:
            continue
        hash = program_hash(all.tables[number].name, content, address(steps))
        head = 0
        if hash == 0 or not map64_get(address(all.tables[number].values), hash, address(head)):
            continue
        key = cast(pointer[selection_key_t], head)
        while key != NULL:
            due = _compare(all, key.selection, content, position, address(steps), due)
            key = key.next
    selection = all.unkeyed
    while selection != NULL:
        due = _compare(all, selection, content, position, address(steps), due)
        selection = selection.unkeyed_next
    if borrowed != NULL:
        content_decref(borrowed)
    return due


def selections_note(queue: pointer[queue_t], before: uint64_t, position: uint64_t, content: pointer[content_t]) -> bint:
    selection: pointer[selection_t]
    known: bint = False
    wanted: bint
    steps: int64_t = ARRIVAL_STEPS_MAX
    own: int64_t
    spin_lock(address(queue.manager.lock))  # no selection comes or goes
    selection = queue.manager.selections.all
    while selection != NULL and steps > 0:
        spin_lock(address(selection.lock))
        if (
            selection.scanning == 0
            and (selection.scan_from == position or (before != 0 and before < selection.scan_from <= position))
            and selection.overflow_from > position
        ):
            own = min(steps, STEPS_MAX)
            steps -= own
            wanted = program_selects(selection.program, content, address(own))
            steps += own
            if wanted:
                _put(selection, position)
            selection.scan_from = position + 1
            known = True
        spin_unlock(address(selection.lock))
        selection = selection.next
    spin_unlock(address(queue.manager.lock))
    return known


def selections_behind(queue: pointer[queue_t], position: uint64_t) -> pointer[selection_t]:
    selection: pointer[selection_t] = queue.manager.selections.all
    due: pointer[selection_t] = NULL
    while selection != NULL:
        _offer(selection, position, False)
        selection.due = due
        due = selection
        selection = selection.next
    return due


def selections_outrank(queue: pointer[queue_t], priority: c_int, content: pointer[content_t], ready: ready_t) -> bint:
    selection: pointer[selection_t] = queue.manager.selections.all
    consumer: pointer[consumer_t]
    pass_no: c_int
    steps: int64_t
    while selection != NULL:
        if selection.priority > priority:
            for pass_no in range(2):
                consumer = selection.interested.head if pass_no == 0 else selection.notified.head
                while consumer != NULL:
                    if consumer.priority > priority and ready(consumer):
                        steps = STEPS_MAX
                        if content == NULL or program_selects(selection.program, content, address(steps)):
                            return True
                        break
                    consumer = consumer.next
        selection = selection.next
    return False

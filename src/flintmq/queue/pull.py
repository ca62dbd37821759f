"""Takes of consumers, browsers, basic.get and the broker from a queue; offers; returns (see pull.pxd).

in: pulls from consumers' loops, offers from producers. out: acquired entries, list moves, content requests.

I1  Credit is taken before the acquire and given back exactly once when the acquire is lost or the entry comes back unsent.
I2  A consumer that finds nothing first moves to Interested, then passes through the list lock, then looks again (docs/QUEUE_CORE.md).
I4  Whether a consumer is suspended, and on which list it is, is tested under its send_lock where an entry is offered to it; the thread
    that suspends it takes that lock after saying so: an offer comes before that and is taken back, or after it and is not made.
I3  `last_seen`, `released`, `place`, `acquired` and `delivered` of a consumer are written under its send_lock only.
I5  An entry that a pull hands out is acquired by the puller.
I6  A consumer has at most one offer that was not sent; it has a position.
I7  What a client gets is granted (delivered.py D2): looked at before the acquire, and after the entry was found.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import (
    at_load32, at_load64, at_load_ptr, at_store64, at_store_ptr, at_swap_ptr, spin_lock, spin_unlock,
)  # fmt: skip
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.consumer_manager import (
    credit_give_back, credit_left, credit_take, manager_again, manager_available, manager_count, manager_credit_back, manager_move,
    manager_new_round, manager_next_offer, manager_offered, manager_outranked, manager_spread, manager_wake_one, manager_wake_waiters,
    queue_version,
)  # fmt: skip
from cython.cimports.flintmq.queue.counts import count_acquired
from cython.cimports.flintmq.queue.delivered import delivered_grant
from cython.cimports.flintmq.queue.due import due_expiry, due_worked
from cython.cimports.flintmq.queue.entry_list import list_advance_floor, list_lowest_behind, list_release, list_scan, list_slot_locked
from cython.cimports.flintmq.queue.grouped_pull import deliver_grouped, pull_grouped
from cython.cimports.flintmq.queue.list_kinds import kind_returned
from cython.cimports.flintmq.queue.paging import shell_ask_ahead, shell_locked
from cython.cimports.flintmq.queue.puller import queue_puller
from cython.cimports.flintmq.queue.returns import queue_count_return
from cython.cimports.flintmq.queue.selections import (
    NEXT_NONE, NEXT_SCAN, SELECTION_END, selection_next, selection_pending, selection_put, selection_scanned, selection_wait,
)  # fmt: skip
from cython.cimports.flintmq.queue.slot import delivery_fill, slot_acquire, slot_body_len, slot_borrow, slot_content, slot_sent
from cython.cimports.flintmq.queue.types import (
    CONSUMER_ACQUIRES, CONSUMER_GROUPED, CONSUMER_INTERESTED, CONSUMER_NON_ACQUIRING, CONSUMER_NOTIFIED, CONSUMER_NOT_INTERESTED,
    CONSUMER_REMOVED, CONSUMER_SELECTS, ENTRY_AVAILABLE, ENTRY_NOT_RESIDENT, ENTRY_OWNER_SHIFT, ENTRY_STATE_MASK, ENTRY_STUB,
    RETURNS_COUNTED, RETURN_CALM, RETURN_FAILED, RETURN_UNSENT, consumer_t, delivery_t, found_t, group_t, list_t, puller_t, queue_t,
    segment_t, selection_t, slot_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.waking import (
    FLOOR_EVERY, READ_AHEAD_EVERY, queue_ask_content, queue_hand_over, queue_read_ahead, queue_unparked, queue_wake_if_available,
)  # fmt: skip
from cython.cimports.flintmq.selectors.program import program_selects
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t

# Outcomes of _attempt.
NOTHING = declare(c_int, 0)
TAKEN = declare(c_int, 1)
OUTRANKED = declare(c_int, 2)
NO_CREDIT = declare(c_int, 3)
PARKED = declare(c_int, 4)
NOT_NEXT = declare(c_int, 5)
SUSPENDED = declare(c_int, 6)
NOT_READY = declare(c_int, 7)
STOPPED = declare(c_int, 8)
LOOKED = declare(c_int, 9)

# Entries passed in one scan before the level's floor is moved up for everybody: a few times the entries that neighbours take in turn.
SKIPPED_MANY = declare(uint32_t, 64)


# Entries that a consumer with a selector looks at in one pull before others of its loop have their turn.
SELECT_SLICE = declare(uint32_t, 512)
# Steps of one comparison (selectors/program.py).
SELECT_STEPS = declare(int64_t, 65_536)


# --- pulls --------------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _note_place(entries: pointer[list_t], consumer: pointer[consumer_t], position: uint64_t, last: uint64_t, taken: bint) -> void:
    """Where its next look begins: behind an entry that it took, else at it (I3)."""
    if taken:
        if position > last:
            at_store64(address(consumer.last_seen), position)
        else:
            consumer.released = position + 1
        if position % FLOOR_EVERY == 0:
            list_advance_floor(entries, address(consumer.place), cast(uint32_t, position >> 56))
    elif position > last:
        at_store64(address(consumer.last_seen), position - 1)
    else:
        consumer.released = position


@cfunc
@nogil
@exceptval(check=False)
def _attempt(queue: pointer[queue_t], consumer: pointer[consumer_t], wanted: uint64_t, entry: pointer[found_t]) -> c_int:
    """Tries to acquire the consumer's next entry (`wanted` not 0: only if it is that one). Called with its send_lock held.

    The list's events are read before the scan: an entry that comes back during it is found by the next one, so that one that was passed
    while it was acquired is not lost. `last_seen` and `released` are only written here. `entry.returned`: credit was taken and given back.
    """
    entries: pointer[list_t] = address(queue.entries)
    last: uint64_t = at_load64(address(consumer.last_seen))
    start: uint64_t = last + 1
    mark: uint64_t = consumer.released
    position: uint64_t
    state: uint64_t
    outcome: c_int
    content: pointer[content_t]
    interested: bint
    if at_load64(address(entries.behind)) != consumer.behind:
        mark = list_lowest_behind(entries, address(consumer.behind), mark)
    if mark:
        consumer.released = 0
        start = min(start, mark)
    while True:
        if not list_scan(entries, address(consumer.place), start, entry):
            if entry.end > last:
                at_store64(address(consumer.last_seen), entry.end)
            if entry.skipped > SKIPPED_MANY:
                list_advance_floor(entries, address(consumer.place), entries.level_count - 1)
            return NOTHING
        position = entry.position
        if entry.skipped > SKIPPED_MANY:
            list_advance_floor(entries, address(consumer.place), cast(uint32_t, position >> 56))
        state = at_load64(address(entry.slot.state))
        # I7. Of a cold entry, too: mark and content come at the same time.
        if (
            position > at_load64(address(entries.level0.granted)) and not delivered_grant(queue, position, state)
        ) or state & ENTRY_NOT_RESIDENT:
            outcome = PARKED
            break
        if consumer.interest != NULL:
            content = slot_borrow(entry.slot, False, NULL)
            if content == NULL:
                start = position  # gone, or evicted: look again
                continue
            interested = consumer.interest(consumer.interest_context, content)
            content_decref(content)
            if not interested:
                start = position + 1
                continue
        if manager_outranked(queue, consumer, entry.slot):
            outcome = OUTRANKED
            break
        if wanted and position != wanted:
            outcome = NOT_NEXT
            break
        if not credit_take(consumer):
            outcome = NO_CREDIT
            break
        if slot_acquire(entry.slot, consumer.id, False):
            outcome = TAKEN
            break
        credit_give_back(consumer)
        if manager_credit_back(queue, consumer, True):
            entry.returned = True
        start = position
    _note_place(entries, consumer, position, last, outcome == TAKEN)
    return outcome


@cfunc
@inline
@nogil
@exceptval(check=False)
def _goes_to_rest(queue: pointer[queue_t], consumer: pointer[consumer_t], has_offer: bint) -> bint:
    """A consumer that is suspended, or has no credit, waits for either. True: its send_lock is released; False: its credit is back."""
    manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
    # Credit that came back before the move was not answered by set_notify_work_desired: see to it here.
    if not at_load32(address(consumer.target.suspended)) and credit_left(consumer):
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        return False
    spin_unlock(address(consumer.send_lock))
    if has_offer:
        queue_withdraw_offer(queue, consumer)
    queue_wake_if_available(queue)
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _found_nothing(queue: pointer[queue_t], consumer: pointer[consumer_t], outcome: c_int) -> void:
    """A consumer looked twice in vain. Releases its send_lock."""
    spin_unlock(address(consumer.send_lock))
    if outcome == OUTRANKED or consumer.interest != NULL:
        queue_wake_if_available(queue)  # for a consumer that can take what this one can't
    if outcome == OUTRANKED:
        # The entries that the one above it leaves are its work, and that changes no version: it may be woken again for the same.
        # Only now, so that it did not wake itself just above.
        at_store64(address(consumer.idle_version), ~cast(uint64_t, 0))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _fill(queue: pointer[queue_t], consumer: pointer[consumer_t], entry: pointer[found_t], out: pointer[delivery_t]) -> void:
    """The delivery of an entry that the consumer has acquired."""
    state: uint64_t = at_load64(address(entry.slot.state))
    check(state >> ENTRY_OWNER_SHIFT == consumer.id, b"pull I5 a delivered entry is acquired by its consumer", entry.position, state)
    delivery_fill(out, entry.slot, slot_content(entry.slot), entry.position, state)
    at_store64(address(consumer.delivered), consumer.delivered + 1)
    if out.redelivered:
        at_store64(address(consumer.redelivered), consumer.redelivered + 1)
    if consumer.delivered % READ_AHEAD_EVERY == 0 and at_load64(address(queue.entries.cold_count)):
        queue_read_ahead(queue, entry.position)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _rotates(queue: pointer[queue_t], consumer: pointer[consumer_t], entry: pointer[found_t], out: pointer[delivery_t]) -> bint:
    """Whether others have their turn after this delivery (`out.rotate`). True: one of them is to be woken for the rest."""
    group: pointer[group_t] = consumer.group
    if at_load32(address(consumer.list)) == CONSUMER_INTERESTED:
        manager_move(queue, consumer, CONSUMER_NOTIFIED)  # it stays hot
    elif at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED:
        manager_count(queue, consumer)
    if at_load32(address(group.interested.count)):
        out.rotate = True
        return list_scan(address(queue.entries), address(consumer.place), entry.position + 1, entry)
    if at_load32(address(group.notified.count)) > 1:
        out.rotate = True
    return False


def queue_deliver_single(queue: pointer[queue_t], consumer: pointer[consumer_t], out: pointer[delivery_t]) -> bint:
    entry: found_t
    outcome: c_int
    version: uint64_t
    offered: pointer[slot_t]
    looked_again: bint = False
    wake: bint
    if queue.ops != NULL:
        return queue.ops.deliver(queue, consumer, out)
    spin_lock(address(consumer.send_lock))
    if at_load32(address(queue.deleted)) or at_load32(address(consumer.list)) <= CONSUMER_REMOVED:
        spin_unlock(address(consumer.send_lock))
        return False
    if consumer.flags & (CONSUMER_ACQUIRES | CONSUMER_SELECTS | CONSUMER_GROUPED) != CONSUMER_ACQUIRES:
        if consumer.flags & CONSUMER_GROUPED:
            return deliver_grouped(queue, consumer, out)
        return _deliver_selected(queue, consumer, out) if consumer.flags & CONSUMER_ACQUIRES else _browse(queue, consumer, out)
    # An offer is sent from there, too: it took the credit, without which the consumer may have been moved there since.
    if at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED and consumer.offered == NULL:
        if at_load64(address(consumer.acquired)) != at_load64(address(consumer.counted)):
            manager_count(queue, consumer)  # it was moved while it took its last one
        spin_unlock(address(consumer.send_lock))
        return False
    while True:
        # Before the look: an arrival during it makes the version differ.
        version = queue_version(queue) if looked_again else 0
        offered = consumer.offered
        if at_load32(address(consumer.target.suspended)):
            outcome = SUSPENDED
        elif offered != NULL:
            check(consumer.offered_position != 0, b"pull I6 an offer that is sent has a position", consumer.id, queue.id)
            entry.slot = offered  # its credit and acquire are done
            entry.position = consumer.offered_position
            at_store_ptr(address(consumer.offered), NULL)
            break
        else:
            outcome = _attempt(queue, consumer, 0, address(entry))
        if outcome == TAKEN:
            count_acquired(consumer, entry.slot)
            break
        if outcome == SUSPENDED or outcome == NO_CREDIT:
            if _goes_to_rest(queue, consumer, offered != NULL):
                return False
            continue
        if looked_again:
            at_store64(address(consumer.idle_version), version)
            if outcome == PARKED:
                if not queue_ask_content(queue, entry.slot, entry.position):
                    continue
                out.position = entry.position
            _found_nothing(queue, consumer, outcome)
            return False
        # I3: first Interested, then through the list lock, then look again.
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        spin_lock(address(queue.entries.lock))
        spin_unlock(address(queue.entries.lock))
        looked_again = True
    _fill(queue, consumer, address(entry), out)
    wake = _rotates(queue, consumer, address(entry), out)
    spin_unlock(address(consumer.send_lock))
    if wake:
        manager_wake_one(queue, NULL, False)  # a backlog spreads to all
    return True


# --- consumers with a selector --------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _selects(queue: pointer[queue_t], consumer: pointer[consumer_t], slot: pointer[slot_t]) -> c_int:
    """TAKEN: it wants the entry, which is available and in memory; NOTHING: not; LOOKED: it can't be told, look again."""
    content: pointer[content_t] = slot_borrow(slot, False, NULL)
    steps: int64_t = SELECT_STEPS
    selected: bint
    if content == NULL:
        return LOOKED  # gone, or evicted
    selected = program_selects(consumer.selector, content, address(steps))
    at_store64(address(queue.manager.selections.looked), queue.manager.selections.looked + 1)
    content_decref(content)
    return TAKEN if selected else NOTHING


@cfunc
@nogil
@exceptval(check=False)
def _scan_selected(
    queue: pointer[queue_t], consumer: pointer[consumer_t], start: uint64_t, entry: pointer[found_t], steps: pointer[uint32_t]
) -> c_int:
    """The look that selection_next asked for, from `start` on. LOOKED: there is something in the heap, or all was looked at."""
    entries: pointer[list_t] = address(queue.entries)
    selected: c_int
    while True:
        if steps[0] == 0:
            selection_scanned(consumer.selection, start, 0)
            return STOPPED
        steps[0] -= 1
        if not list_scan(entries, address(consumer.place), start, entry):
            if entry.skipped > SKIPPED_MANY:
                list_advance_floor(entries, address(consumer.place), entries.level_count - 1)
            selection_scanned(consumer.selection, SELECTION_END, 0)
            return LOOKED
        start = entry.position
        if entry.skipped > SKIPPED_MANY:
            list_advance_floor(entries, address(consumer.place), cast(uint32_t, start >> 56))
        if at_load64(address(entry.slot.state)) & ENTRY_NOT_RESIDENT:
            selection_scanned(consumer.selection, start, 0)
            return PARKED
        selected = _selects(queue, consumer, entry.slot)
        if selected == TAKEN:
            selection_scanned(consumer.selection, start + 1, start)
            return LOOKED
        if selected == NOTHING:
            start += 1


@cfunc
@nogil
@exceptval(check=False)
def _attempt_selected(queue: pointer[queue_t], consumer: pointer[consumer_t], entry: pointer[found_t]) -> c_int:
    """_attempt of a consumer with a selector: its selection knows where to look. Called with its send_lock held."""
    entries: pointer[list_t] = address(queue.entries)
    selection: pointer[selection_t] = consumer.selection
    segment: pointer[segment_t] = NULL
    position: uint64_t = 0
    state: uint64_t
    looks: uint32_t = SELECT_SLICE
    outcome: c_int
    while True:
        outcome = selection_next(selection, address(position))
        if outcome == NEXT_NONE:
            return NOTHING
        if outcome == NEXT_SCAN:
            outcome = _scan_selected(queue, consumer, position, entry, address(looks))
            if outcome != LOOKED:
                return outcome
            continue
        spin_lock(address(entries.lock))
        entry.slot = list_slot_locked(entries, position, address(segment))
        if entry.slot == NULL:
            segment = shell_locked(queue, position)
            if segment != NULL:
                entry.slot = address(segment.stub)
        state = at_load64(address(entry.slot.state)) if entry.slot != NULL else 0
        spin_unlock(address(entries.lock))
        entry.position = position
        if state & ENTRY_STATE_MASK != ENTRY_AVAILABLE:
            outcome = NOTHING  # gone; should it come back, it is told anew
        elif looks == 0:
            outcome = STOPPED
        elif state & ENTRY_NOT_RESIDENT:
            outcome = PARKED
        else:
            outcome = _selects(queue, consumer, entry.slot)
            looks -= 1
            if outcome == TAKEN and position > at_load64(address(entries.level0.granted)) and not delivered_grant(queue, position, state):
                outcome = PARKED
            if outcome == TAKEN:
                outcome = _take_selected(queue, consumer, entry)
        if outcome == TAKEN:
            if position % FLOOR_EVERY == 0:
                list_advance_floor(entries, address(consumer.place), cast(uint32_t, position >> 56))
            return TAKEN
        if outcome == NOTHING:
            continue
        selection_put(selection, position)
        if outcome != LOOKED:
            return outcome


@cfunc
@nogil
@exceptval(check=False)
def _take_selected(queue: pointer[queue_t], consumer: pointer[consumer_t], entry: pointer[found_t]) -> c_int:
    if manager_outranked(queue, consumer, entry.slot):
        return OUTRANKED
    if not credit_take(consumer):
        return NO_CREDIT
    if slot_acquire(entry.slot, consumer.id, False):
        return TAKEN
    credit_give_back(consumer)
    manager_credit_back(queue, consumer, True)
    return LOOKED


@cfunc
@nogil
@exceptval(check=False)
def _deliver_selected(queue: pointer[queue_t], consumer: pointer[consumer_t], out: pointer[delivery_t]) -> bint:
    """queue_deliver_single of a consumer with a selector. Called with, and gives up, its send_lock."""
    entry: found_t
    outcome: c_int
    selection: pointer[selection_t] = consumer.selection
    outranks: bint = at_load_ptr(address(consumer.group.next)) != NULL  # who comes later is told by himself
    looked_again: bint = False
    wake: bint = False
    if at_load32(address(consumer.list)) == CONSUMER_NOT_INTERESTED:
        if at_load64(address(consumer.acquired)) != at_load64(address(consumer.counted)):
            manager_count(queue, consumer)
        spin_unlock(address(consumer.send_lock))
        return False
    while True:
        outcome = SUSPENDED
        if not at_load32(address(consumer.target.suspended)):
            outcome = _attempt_selected(queue, consumer, address(entry))
        if outcome == TAKEN:
            break
        if outcome == SUSPENDED or outcome == NO_CREDIT:
            manager_move(queue, consumer, CONSUMER_NOT_INTERESTED)
            if not at_load32(address(consumer.target.suspended)) and credit_left(consumer):
                manager_move(queue, consumer, CONSUMER_INTERESTED)
                continue
            spin_unlock(address(consumer.send_lock))
            queue_wake_if_available(queue)  # those that it outranked
            return False
        if outcome == STOPPED:
            spin_unlock(address(consumer.send_lock))
            manager_again(queue, consumer)
            return False
        if looked_again:
            if outcome != NOTHING:
                selection_wait(queue, selection, True)
                if outcome == PARKED:
                    if not queue_ask_content(queue, entry.slot, entry.position):
                        continue
                    out.position = entry.position
                elif not manager_outranked(queue, consumer, entry.slot):
                    continue  # the one above it left before it was known that somebody waits
            spin_unlock(address(consumer.send_lock))
            if outcome == NOTHING and (outranks or at_load32(address(queue.manager.selections.waiting))):
                queue_wake_if_available(queue)  # those that it outranked: it took the entry that they waited behind
            return False
        manager_move(queue, consumer, CONSUMER_INTERESTED)
        looked_again = True
    queue_hand_over(queue, consumer, address(entry), out)
    if at_load32(address(selection.interested.count)):
        out.rotate = True
        wake = selection_pending(selection)
    elif at_load32(address(selection.notified.count)) > 1:
        out.rotate = True
    if wake:
        manager_spread(queue, selection)
    spin_unlock(address(consumer.send_lock))
    return True


# --- browsers, and what the broker takes ----------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _browse(queue: pointer[queue_t], consumer: pointer[consumer_t], out: pointer[delivery_t]) -> bint:
    """The next entry a browser has not seen, in list order; its content gets a reference. Called with, and gives up, its send_lock."""
    entries: pointer[list_t] = address(queue.entries)
    entry: found_t
    level: uint32_t = 0
    level_number: uint32_t
    state: uint64_t
    content: pointer[content_t]
    if at_load32(address(consumer.list)) != CONSUMER_NON_ACQUIRING or at_load32(address(consumer.target.suspended)):
        spin_unlock(address(consumer.send_lock))
        return False
    while level < entries.level_count:
        if not list_scan(
            entries,
            address(consumer.place),
            (cast(uint64_t, level) << 56) | (consumer.browse_levels[level] + 1),
            address(entry),
        ):
            break
        level_number = cast(uint32_t, entry.position >> 56)
        if level_number > level and (entry.position << 8) >> 8 <= consumer.browse_levels[level_number]:
            level = level_number  # nothing new up to there; go on behind what it saw of that level
            continue
        level = level_number
        if at_load64(address(entry.slot.state)) & ENTRY_NOT_RESIDENT:
            if queue_ask_content(queue, entry.slot, entry.position):
                break  # queue_content_loaded notifies it
            continue
        content = slot_borrow(entry.slot, False, address(state))
        if content == NULL:
            continue
        if consumer.interest != NULL and not consumer.interest(consumer.interest_context, content):
            content_decref(content)
            consumer.browse_levels[level_number] = (entry.position << 8) >> 8
            continue
        consumer.browse_levels[level_number] = (entry.position << 8) >> 8
        delivery_fill(out, NULL, content, entry.position, state)
        at_store64(address(consumer.delivered), consumer.delivered + 1)
        spin_unlock(address(consumer.send_lock))
        return True
    spin_unlock(address(consumer.send_lock))
    return False


def entry_sent(slot: pointer[slot_t]) -> void:
    slot_sent(slot)


@cfunc
@nogil
@exceptval(check=False)
def _pull(queue: pointer[queue_t], owner: uint32_t, cold: bint, out: pointer[delivery_t]) -> bint:
    """_attempt without consumer: first available entry for a basic.get or the broker. `cold`: also a not resident one."""
    entries: pointer[list_t] = address(queue.entries)
    puller: pointer[puller_t] = queue_puller(queue)
    entry: found_t
    start: uint64_t
    state: uint64_t
    mark: uint64_t = 0
    taken: bint = False
    ahead: bint = False
    out.slot = NULL
    out.position = 0
    if puller == NULL:
        return False
    spin_lock(address(puller.lock))
    start = puller.last_seen + 1
    mark = puller.released
    if at_load64(address(entries.behind)) != puller.behind:
        mark = list_lowest_behind(entries, address(puller.behind), mark)
    if mark:
        puller.released = 0
        if mark < start:
            start = mark
    while not taken:
        if not list_scan(entries, address(puller.place), start, address(entry)):
            if entry.end > puller.last_seen:
                puller.last_seen = entry.end
            spin_unlock(address(puller.lock))
            return False
        if entry.skipped > SKIPPED_MANY:
            list_advance_floor(entries, address(puller.place), cast(uint32_t, entry.position >> 56))
        start = entry.position
        state = at_load64(address(entry.slot.state))
        if (state & ENTRY_NOT_RESIDENT and (not cold or state & ENTRY_STUB)) or (
            not cold and entry.position > at_load64(address(entries.level0.granted)) and not delivered_grant(queue, entry.position, state)
        ):
            if queue_ask_content(queue, entry.slot, entry.position):
                break
            continue
        taken = slot_acquire(entry.slot, owner, cold)
    if taken:
        if entry.position > puller.last_seen:
            puller.last_seen = entry.position
        else:
            puller.released = entry.position + 1
        if entry.position % FLOOR_EVERY == 0:
            list_advance_floor(entries, address(puller.place), cast(uint32_t, entry.position >> 56))
            ahead = cold and at_load64(address(entries.shells)) != 0
        check(slot_content(entry.slot) != NULL or cold, b"pull I5 what basic.get takes is in memory", entry.position, owner)
        at_store64(address(puller.acquired), puller.acquired + 1)
        at_store64(address(puller.acquired_bytes), puller.acquired_bytes + slot_body_len(entry.slot))
        if owner:
            at_store64(address(puller.delivered), puller.delivered + 1)
        delivery_fill(out, entry.slot, slot_content(entry.slot), entry.position, at_load64(address(entry.slot.state)))
        if owner and out.redelivered:
            at_store64(address(puller.redelivered), puller.redelivered + 1)
    else:
        puller.released = entry.position
        out.position = entry.position
    spin_unlock(address(puller.lock))
    if taken:
        queue_unparked(queue, entry.slot)
        if ahead:
            shell_ask_ahead(queue, entry.position)
    return taken


def queue_pull(queue: pointer[queue_t], owner: uint32_t, out: pointer[delivery_t]) -> bint:
    out.rotate = False
    if queue.message_groups != NULL:
        return pull_grouped(queue, owner, out)
    return _pull(queue, owner, False, out)


def queue_take_head(queue: pointer[queue_t], out: pointer[delivery_t]) -> bint:
    return _pull(queue, 0, True, out)


def queue_release(queue: pointer[queue_t], slot: pointer[slot_t], position: uint64_t, owner: uint32_t, delivered: c_int) -> bint:
    wanted: uint32_t = 0
    if queue.ops != NULL:
        return queue.ops.release(queue, slot, position, owner, delivered != RETURN_UNSENT)
    if (
        (delivered == RETURN_FAILED or delivered == RETURN_CALM)
        and queue.returns & RETURNS_COUNTED
        and queue_count_return(queue, position, owner, delivered)
    ):
        return True  # the broker has it, and ends it or keeps it for a while
    if not list_release(address(queue.entries), position, owner, delivered != RETURN_UNSENT, address(wanted)):
        return False
    due_worked(queue)
    due_expiry(queue)
    kind_returned(queue, position)
    manager_available(queue, position, NULL, True)
    manager_wake_waiters(queue)
    return True


# --- offers -------------------------------------------------------------------------------------------------------------


def queue_offer(queue: pointer[queue_t], position: uint64_t) -> bint:
    """Seed 000's deliverToSubscription, over the ready consumers in turn: acquires the entry for the first one whose next entry it
    is, if it has credit, interest and no other offer, and schedules its target. True when one took it."""
    consumer: pointer[consumer_t]
    entry: found_t
    round_no: uint32_t = manager_new_round(queue)
    list_number: uint32_t
    outcome: c_int
    has_returned: bint = False
    taken: bint = False
    if queue.message_groups != NULL:
        return False  # what is next is not the same for all
    while not taken:
        consumer = manager_next_offer(queue, round_no)
        if consumer == NULL:
            break
        # Its send_lock is ours: it can't be removed, pull, or get another offer. What the look before that saw may be over: I4.
        outcome = NOT_READY
        entry.returned = False
        list_number = at_load32(address(consumer.list))
        if (
            consumer.offered == NULL
            and (list_number == CONSUMER_INTERESTED or list_number == CONSUMER_NOTIFIED)
            and not at_load32(address(consumer.target.suspended))
        ):
            outcome = _attempt(queue, consumer, position, address(entry))
        if outcome == TAKEN:
            count_acquired(consumer, entry.slot)
            check(consumer.offered == NULL, b"pull I6 an offer finds no other one", consumer.id, position)
            consumer.offered_position = position
            at_store_ptr(address(consumer.offered), entry.slot)
            manager_offered(queue, consumer)
            if at_load32(address(consumer.list)) != CONSUMER_NOTIFIED:
                manager_count(queue, consumer)
            taken = True
        has_returned = has_returned or entry.returned
        spin_unlock(address(consumer.send_lock))
        if (outcome == NOT_NEXT or outcome == NOTHING) and at_load32(address(queue.manager.predicates)) == 0:
            break  # the next entry is the same for everybody
    if has_returned:
        queue_wake_if_available(queue)  # one that lost its credit for a moment may have been passed over for another entry
    return taken


def queue_withdraw_offer(queue: pointer[queue_t], consumer: pointer[consumer_t]) -> void:
    """The consumer won't send the entry that it was offered: it goes back to its place. Called without its send_lock."""
    offered: pointer[slot_t]
    position: uint64_t
    spin_lock(address(consumer.send_lock))
    offered = cast(pointer[slot_t], at_swap_ptr(address(consumer.offered), NULL))
    position = consumer.offered_position
    spin_unlock(address(consumer.send_lock))
    if offered != NULL:
        check(position != 0, b"pull I6 an offer that is taken back has a position", consumer.id, queue.id)
        credit_give_back(consumer)
        manager_credit_back(queue, consumer, False)
        queue_release(queue, offered, position, consumer.id, False)

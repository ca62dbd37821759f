"""The end of recovery: every place gets its outcome, and what lives is written into arrays.

in: the work_t that recovery_read.py filled in, the decision table. out: live messages, their listed places, entries by queue.

I1  Every place goes through the table, those of plain messages, too; a place without a position is never put anywhere.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cfunc, exceptval, inline, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.hash64 import map64_get
from cython.cimports.flintmq.queue.types import RESTORED_HELD, RESTORED_REDELIVERED, restored_t
from cython.cimports.flintmq.store.log.record import position_waits
from cython.cimports.flintmq.store.recovery_read import (
    CONTENT_BELOW_BASE,
    CONTENT_DAMAGED,
    CONTENT_PRESENT,
    CONTENT_TORN,
    DEQUEUE_PLAIN,
    ENQUEUE_PLAIN,
    LOST_NO_PLACE,
    LOST_NO_POSITION,
    OUTCOME_HELD,
    OUTCOME_LIVE,
    OUTCOME_LOST,
    OUTCOME_PENDING,
    SEEN_ENDED,
    SEEN_EXPIRES,
    SEEN_EXTRA,
    SEEN_GONE,
    SEEN_LIVE,
    SEEN_MISSING,
    SEEN_MOVED,
    SEEN_OLD,
    SEEN_PLACE,
    extra_of,
    extra_t,
    live_t,
    location_t,
    lost_t,
    moved_t,
    name_node_t,
    named_t,
    place_at,
    place_position,
    queue_at,
    queue_info_t,
    range_t,
    seen_at,
    seen_place_t,
    seen_t,
    tx_info_t,
    vector_add,
    work_t,
    work_tx,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import qsort


@cfunc
@nogil
@exceptval(check=False)
def _undo_torn_copies(work: pointer[work_t]) -> void:
    """A Message-Copy whose chunks were not all read: the older content counts on, with the places that the copy knows (I2)."""
    i: uint64_t
    moved: pointer[moved_t]
    entry: pointer[seen_t]
    older: pointer[seen_t]
    extra: pointer[extra_t]
    number: uint32_t
    complete: bint
    for i in range(work.moved.count):
        moved = cast(pointer[moved_t], work.moved.data) + i
        entry = seen_at(work, moved.index)
        if entry.flags & SEEN_OLD or not entry.flags & SEEN_EXTRA:
            continue
        extra = extra_of(work, entry)
        number = extra.older
        while extra.missing and number:
            older = seen_at(work, number - 1)
            complete = not older.flags & SEEN_MISSING
            if older.flags & SEEN_EXTRA:
                number = extra_of(work, older).older
                complete = complete and extra_of(work, older).missing == 0
            else:
                number = 0
            if complete:
                extra.missing = 0
                older.word = entry.word
                older.flags = (
                    older.flags & ~cast(uint32_t, SEEN_OLD | SEEN_PLACE | SEEN_GONE | SEEN_EXPIRES) | SEEN_EXTRA | entry.flags & SEEN_ENDED
                )
                entry.flags |= SEEN_OLD


@cfunc
@nogil
@exceptval(check=False)
def _lose(work: pointer[work_t], message_id: uint64_t, queue_id: uint64_t, position: uint64_t, row: uint32_t, most: uint64_t) -> void:
    lost: pointer[lost_t]
    work.lost_count += 1
    if work.lost.count >= most:
        return
    lost = cast(pointer[lost_t], vector_add(address(work.lost), sizeof(lost_t)))
    if lost == NULL:
        work.failed = True
        return
    lost.message_id = message_id
    lost.queue_id = queue_id
    lost.position = position
    lost.row = row


@cfunc
@inline
@nogil
@exceptval(check=False)
def _decide(
    table: pointer[cython.const[uint8_t]], content: uint32_t, enqueue: uint32_t, dequeue: uint32_t, ended: uint32_t, queue: uint32_t
) -> uint8_t:
    return table[(((content * 6 + enqueue) * 7 + dequeue) * 2 + ended) * 3 + queue]


@cfunc
@nogil
@exceptval(check=False)
def _stands(work: pointer[work_t], message_id: uint64_t, queue: uint32_t, position: uint64_t, verdict: uint8_t, most: uint64_t) -> uint8_t:
    """Counts one decided place; the outcome, which is LOST for an entry without a position."""
    outcome: uint8_t = verdict & 7
    row: uint32_t = verdict >> 3
    if outcome <= OUTCOME_HELD and (position == 0 or position_waits(position)):
        outcome = OUTCOME_LOST
        row = LOST_NO_POSITION
    if outcome <= OUTCOME_HELD:
        queue_at(work, queue).count += 1
        work.entry_count += 1
    elif outcome == OUTCOME_LOST:
        _lose(work, message_id, queue_at(work, queue).id, 0 if position_waits(position) else position, row, most)
    return outcome


@cfunc
@nogil
@exceptval(check=False)
def _by_queue(left: pointer[cython.const[void]], right: pointer[cython.const[void]]) -> c_int:
    a: pointer[range_t] = cast(pointer[range_t], cast(p_void, left))
    b: pointer[range_t] = cast(pointer[range_t], cast(p_void, right))
    if a.queue != b.queue:
        return -1 if a.queue < b.queue else 1
    return -1 if a.first < b.first else cast(c_int, a.first > b.first)


@cfunc
@nogil
@exceptval(check=False)
def _sort_purges(work: pointer[work_t]) -> void:
    """Gives each queue its purged runs, in order of positions. They never overlap: a position is ended once."""
    i: uint64_t
    runs: pointer[range_t] = cast(pointer[range_t], work.purges.data)
    queue: pointer[queue_info_t]
    if work.purges.count == 0:
        return
    qsort(runs, work.purges.count, sizeof(range_t), _by_queue)
    for i in range(work.purges.count):
        queue = queue_at(work, runs[i].queue)
        if queue.purge_count == 0:
            queue.purges = i
        queue.purge_count += 1


@cfunc
@inline
@nogil
@exceptval(check=False)
def _purged(work: pointer[work_t], queue: uint32_t, position: uint64_t) -> bint:
    """Whether a purge ended what stood there. O(log runs of the queue)."""
    info: pointer[queue_info_t] = queue_at(work, queue)
    runs: pointer[range_t]
    low: uint64_t = 0
    high: uint64_t = info.purge_count
    middle: uint64_t
    if high == 0:
        return False
    runs = cast(pointer[range_t], work.purges.data) + info.purges
    while low < high:
        middle = (low + high) // 2
        if runs[middle].last < position:
            low = middle + 1
        else:
            high = middle
    return low < info.purge_count and runs[low].first <= position


def work_decide(work: pointer[work_t], table: pointer[cython.const[uint8_t]], last_damage: uint64_t, lost_max: uint64_t) -> void:
    i: uint64_t
    message_id: uint64_t
    next_moved: uint64_t = 0
    moved: pointer[moved_t] = cast(pointer[moved_t], work.moved.data)
    entry: pointer[seen_t]
    extra: pointer[extra_t]
    place: pointer[seen_place_t]
    nodes: pointer[name_node_t] = cast(pointer[name_node_t], work.names.data)
    info: pointer[tx_info_t]
    content: uint32_t
    ended: uint32_t
    number: uint32_t
    outcome: uint8_t
    places: uint64_t
    alive: uint64_t
    _undo_torn_copies(work)
    _sort_purges(work)
    for i in range(work.seen.count):
        entry = seen_at(work, i)
        message_id = entry.lsn
        if entry.flags & SEEN_MOVED:
            while moved[next_moved].index < i:
                next_moved += 1
            message_id = moved[next_moved].id
        if entry.flags & SEEN_OLD:
            continue
        content = CONTENT_PRESENT
        if entry.flags & SEEN_MISSING:
            content = CONTENT_BELOW_BASE if message_id < work.base[0] else CONTENT_DAMAGED
        ended = 1 if entry.flags & SEEN_ENDED else 0
        places = 0
        alive = 0
        if entry.flags & SEEN_EXTRA:
            extra = extra_of(work, entry)
            if extra.missing and content == CONTENT_PRESENT:
                content = CONTENT_DAMAGED if entry.lsn < last_damage else CONTENT_TORN
            number = extra.first
            while number:
                place = place_at(work, number)
                places += 1
                place.position = place_position(work, place)
                place.row = 0
                if _purged(work, place.queue, place.position):
                    place.dequeue = DEQUEUE_PLAIN
                place.outcome = _stands(
                    work,
                    message_id,
                    place.queue,
                    place.position,
                    _decide(table, content, place.enqueue, place.dequeue, ended, queue_at(work, place.queue).status),
                    lost_max,
                )
                if place.outcome <= OUTCOME_PENDING:
                    alive += 1
                number = place.next
            number = extra.names
            if alive:
                work.location_count += alive
                while number:
                    info = work_tx(work, nodes[number - 1].tx)
                    info.references += 1
                    work.name_count += 1
                    number = nodes[number - 1].next
            elif number and not ended:
                work.homeless_count += 1
        elif entry.flags & SEEN_PLACE:
            places = 1
            if _purged(work, entry.queue, entry.word):
                entry.flags |= SEEN_GONE
            outcome = _stands(
                work,
                message_id,
                entry.queue,
                entry.word,
                _decide(table, content, ENQUEUE_PLAIN, 1 if entry.flags & SEEN_GONE else 0, ended, queue_at(work, entry.queue).status),
                lost_max,
            )
            if outcome == OUTCOME_LIVE:
                alive = 1
        if alive:
            entry.flags |= SEEN_LIVE
            work.live_count += 1
        else:
            work.dead_count += 1
            if places == 0 and not ended and content != CONTENT_TORN and entry.lsn < last_damage:
                _lose(work, message_id, 0, 0, LOST_NO_PLACE, lost_max)


@cfunc
@nogil
@exceptval(check=False)
def _by_position(left: pointer[cython.const[void]], right: pointer[cython.const[void]]) -> c_int:
    a: pointer[restored_t] = cast(pointer[restored_t], cast(p_void, left))
    b: pointer[restored_t] = cast(pointer[restored_t], cast(p_void, right))
    if a.position != b.position:
        return -1 if a.position < b.position else 1
    return -1 if a.message_id < b.message_id else cast(c_int, a.message_id > b.message_id)


@cfunc
@nogil
@exceptval(check=False)
def _restore(
    work: pointer[work_t],
    entries: pointer[restored_t],
    queue: uint32_t,
    position: uint64_t,
    message_id: uint64_t,
    expires_at_ms: int64_t,
    body_len: uint32_t,
    flags: uint32_t,
) -> void:
    info: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data) + queue
    entry: pointer[restored_t] = entries + info.start + info.count
    info.count += 1
    entry.position = position
    entry.message_id = message_id
    entry.expires_at_ms = expires_at_ms
    entry.body_len = body_len
    entry.flags = flags


def result_fill(
    work: pointer[work_t],
    entries: pointer[restored_t],
    live: pointer[live_t],
    locations: pointer[location_t],
    names: pointer[named_t],
    flags: uint32_t,
) -> void:
    """Writes the result of work_decide into its arrays. `live` is the memory of work.seen itself: it is shorter per message, so writing
    stays behind reading."""
    i: uint64_t
    count: uint64_t = 0
    places: uint64_t = 0
    named: uint64_t = 0
    start: uint64_t = 0
    next_moved: uint64_t = 0
    number: uint32_t
    message_id: uint64_t
    expires: uint64_t
    entry: seen_t
    extra: pointer[extra_t]
    place: pointer[seen_place_t]
    moved: pointer[moved_t] = cast(pointer[moved_t], work.moved.data)
    node: pointer[name_node_t]
    queue: pointer[queue_info_t] = cast(pointer[queue_info_t], work.queues.data)
    seen: pointer[seen_t] = cast(pointer[seen_t], work.seen.data)
    for i in range(work.queues.count):
        queue[i].start = start
        start += queue[i].count
        queue[i].count = 0
    for i in range(work.seen.count):
        entry = seen[i]
        if not entry.flags & SEEN_LIVE:
            continue
        message_id = entry.lsn
        if entry.flags & SEEN_MOVED:
            while moved[next_moved].index < i:
                next_moved += 1
            message_id = moved[next_moved].id
        live[count].lsn = entry.lsn
        live[count].id = message_id
        live[count].bytes = entry.bytes
        live[count].places = 0
        if entry.flags & SEEN_EXTRA:
            extra = cast(pointer[extra_t], work.extras.data) + entry.word
            number = extra.first
            while number:
                place = cast(pointer[seen_place_t], work.places.data) + (number - 1)
                number = place.next
                if place.outcome > OUTCOME_PENDING:
                    continue
                locations[places].queue_id = queue[place.queue].id
                locations[places].position = place.position
                locations[places].expires_at_ms = place.expires_at_ms
                locations[places].enqueued_by = place.enqueued_by if place.outcome == OUTCOME_PENDING else 0
                locations[places].dequeued_by = place.dequeued_by
                live[count].places += 1
                places += 1
                if place.outcome != OUTCOME_PENDING:
                    _restore(
                        work,
                        entries,
                        place.queue,
                        place.position,
                        message_id,
                        place.expires_at_ms,
                        entry.body_len,
                        flags | RESTORED_HELD if place.outcome == OUTCOME_HELD else flags,
                    )
            number = extra.names
            while number:
                node = cast(pointer[name_node_t], work.names.data) + (number - 1)
                number = node.next
                names[named].message_id = message_id
                names[named].tx = node.tx
                named += 1
        else:
            expires = 0
            if entry.flags & SEEN_EXPIRES:
                map64_get(address(work.expiries), i + 1, address(expires))
            _restore(work, entries, entry.queue, entry.word, message_id, cast(int64_t, expires), entry.body_len, flags)
        count += 1


def result_sort(entries: pointer[restored_t], count: uint64_t) -> uint64_t:
    """Brings a queue's entries into position order; returns how many there are of positions that are taken twice (they come last)."""
    i: uint64_t
    kept: uint64_t = 1
    sorted_: bint = True
    spare: restored_t
    for i in range(1, count):
        if entries[i - 1].position >= entries[i].position:
            sorted_ = False
            break
    if sorted_:
        return 0
    qsort(entries, count, sizeof(restored_t), _by_position)
    for i in range(1, count):
        if entries[i].position != entries[kept - 1].position:
            if i != kept:
                spare = entries[kept]
                entries[kept] = entries[i]
                entries[i] = spare
            kept += 1
    return count - kept


def result_range(entries: pointer[restored_t], count: uint64_t, first: uint64_t, length: uint64_t, start: pointer[uint64_t]) -> uint64_t:
    low: uint64_t = 0
    high: uint64_t = count
    middle: uint64_t
    while low < high:
        middle = (low + high) // 2
        if entries[middle].position < first:
            low = middle + 1
        else:
            high = middle
    start[0] = low
    while low < count and entries[low].position - first < length:
        low += 1
    return low - start[0]


def result_hold_range(entries: pointer[restored_t], count: uint64_t, first: uint64_t, length: uint64_t) -> void:
    at: uint64_t = 0
    last: uint64_t = result_range(entries, count, first, length, address(at))
    last += at
    while at < last:
        # It is still in the delivery that it was in when the broker stopped.
        entries[at].flags = entries[at].flags & ~cast(uint32_t, RESTORED_REDELIVERED) | RESTORED_HELD
        at += 1


def result_mark_range(entries: pointer[restored_t], count: uint64_t, first: uint64_t, last: uint64_t) -> void:
    """Flags the entries with positions first..last as delivered before."""
    at: uint64_t = 0
    number: uint64_t = result_range(entries, count, first, last - first + 1, address(at))
    number += at
    while at < number:
        entries[at].flags |= RESTORED_REDELIVERED
        at += 1

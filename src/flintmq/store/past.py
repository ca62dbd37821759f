"""A checkpoint as a start uses it (see past.pxd).

in: the parts of a whole checkpoint, bytes of anybody; what the reading of the log behind it finds. out: which entries of which runs still
stand; the containers of the message log as they are now.

P1  What the log behind the checkpoint, or its list of messages, tells about a place overrides what the run has at that position.
P2  Lengths and numbers of parts are compared with the bytes that are there before they are used.
P3  Of a queue's level, segments do not overlap, and each run that one names is there.
"""

from __future__ import annotations

import cython
from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.hash64 import map64_free, map64_get, map64_init, map64_next, map64_put
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.paging import shell_t
from cython.cimports.flintmq.queue.types import INDEX_MASK, LEVEL_SHIFT, restored_t
from cython.cimports.flintmq.store.checkpoint_parts import (
    CONTAINER_ROW, DEATH_HEAD, LISTED_HEAD, MOVED_ROW, PART_CONTAINERS, PART_DEATHS, PART_LISTED, PART_MARKS, PART_MOVED, PART_SEGMENTS,
    PART_TAILS,
)  # fmt: skip
from cython.cimports.flintmq.store.index_log import IndexLog, index_read_run
from cython.cimports.flintmq.store.index_run import RUN_BYTES_MAX, run_decode
from cython.cimports.flintmq.store.log.log import DEAD_GRAIN, log_dead, log_is_live, log_restore_container, log_restore_death, log_t
from cython.cimports.flintmq.store.log.record import PLACE_SIZE, le32, le64
from cython.cimports.flintmq.store.segment_rows import SEGMENTS_HEAD, segment_get, segment_rows_t, segments_get_head
from cython.cimports.flintmq.store.vectors import vector_add, vector_add_number, vector_free, vector_number
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, qsort
from cython.cimports.libc.string import memset

from flintmq.store.checkpoint import MalformedError, tails_of


class UnreadableError(Exception):
    """A run that a checkpoint names can't be read: the message log is read instead."""


# --- questions ------------------------------------------------------------------------------------------------------------------


def past_owner(past: pointer[past_t], queue_id: uint64_t) -> int64_t:
    number: uint64_t = 0
    return cast(int64_t, number) if map64_get(address(past.owner_index), queue_id + 1, address(number)) else -1


def past_find(past: pointer[past_t], owner: uint32_t, position: uint64_t) -> pointer[past_segment_t]:
    queue: pointer[past_owner_t] = past_owner_at(past, owner)
    number: uint64_t
    # Most positions that a start asks for are behind all of them.
    if queue.count == 0 or past_first(past_segment(past, queue.first + queue.count - 1)) + LARGE_SLOTS <= position:
        return NULL
    number = past_place(past, owner, position)
    if number == queue.first + queue.count or past_first(past_segment(past, number)) > position:
        return NULL
    return past_segment(past, number)


def past_place(past: pointer[past_t], owner: uint32_t, position: uint64_t) -> uint64_t:
    queue: pointer[past_owner_t] = past_owner_at(past, owner)
    low: uint64_t = queue.first
    high: uint64_t = queue.first + queue.count
    middle: uint64_t
    while low < high:
        middle = (low + high) // 2
        if past_first(past_segment(past, middle)) + past_segment(past, middle).count > position:
            high = middle
        else:
            low = middle + 1
    return low


def past_first(segment: pointer[past_segment_t]) -> uint64_t:
    return cast(uint64_t, segment.level) << LEVEL_SHIFT | segment.base


def past_end(past: pointer[past_t], segment: pointer[past_segment_t], position: uint64_t) -> void:
    slot: uint64_t = position - past_first(segment)
    if segment.ended == NULL:
        segment.ended = cast(pointer[uint64_t], calloc((segment.count + 63) // 64, 8))
        if segment.ended == NULL:
            past.failed = True
            return
        segment.touched = True
    if not segment.ended[slot >> 6] >> (slot & 63) & 1:
        segment.ended[slot >> 6] |= cast(uint64_t, 1) << (slot & 63)
        segment.ended_count += 1


def past_ended(segment: pointer[past_segment_t], position: uint64_t) -> bint:
    slot: uint64_t = position - past_first(segment)
    return segment.ended != NULL and segment.ended[slot >> 6] >> (slot & 63) & 1 != 0


def past_where(past: pointer[past_t], message_id: uint64_t) -> uint64_t:
    lsn: uint64_t = message_id
    map64_get(address(past.moved), message_id, address(lsn))
    return lsn


def past_gone(past: pointer[past_t], lsn: uint64_t) -> void:
    if not vector_add_number(address(past.gone), lsn):
        past.failed = True


def past_run(past: pointer[past_t], segment: pointer[past_segment_t], count: pointer[uint32_t]) -> pointer[restored_t]:
    number: uint64_t = segment - cast(pointer[past_segment_t], past.segments.data)
    kept: pointer[past_decoded_t] = address(past.decoded[(number + 7 * segment.owner) % PAST_RUNS])
    size: uint32_t
    queue_id: uint64_t = 0
    first: uint64_t = past_first(segment)
    count[0] = 0
    if kept.segment != number + 1:
        kept.segment = 0
        if kept.entries == NULL:
            kept.entries = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
            if kept.entries == NULL:
                past.failed = True
                return NULL
        size = index_read_run(past.runs, segment.run, past.bytes, RUN_BYTES_MAX)
        kept.count = run_decode(past.bytes, size, kept.entries, LARGE_SLOTS, address(queue_id)) if size else 0
        if (
            kept.count == 0
            or queue_id != past_owner_at(past, segment.owner).id
            or kept.entries[0].position < first
            or kept.entries[kept.count - 1].position - first >= segment.count
        ):
            past.unread = True
            return NULL
        kept.segment = number + 1
    count[0] = kept.count
    return kept.entries


def past_entry(past: pointer[past_t], segment: pointer[past_segment_t], position: uint64_t) -> pointer[cython.const[restored_t]]:
    count: uint32_t = 0
    low: uint32_t = 0
    high: uint32_t
    middle: uint32_t
    entries: pointer[restored_t] = past_run(past, segment, address(count))
    if entries == NULL:
        return NULL
    high = count
    while low < high:
        middle = (low + high) // 2
        if entries[middle].position < position:
            low = middle + 1
        else:
            high = middle
    return entries + low if low < count and entries[low].position == position else NULL


# --- parts into arrays ------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _owner_made(past: pointer[past_t], queue_id: uint64_t) -> int64_t:
    """Number of the queue, a new one if need be; -1: no memory."""
    number: int64_t = past_owner(past, queue_id)
    owner: pointer[past_owner_t]
    if number >= 0:
        return number
    owner = cast(pointer[past_owner_t], vector_add(address(past.owners), sizeof(past_owner_t)))
    if owner == NULL or not map64_put(address(past.owner_index), queue_id + 1, past.owners.count - 1):
        return -1
    owner.id = queue_id
    return cast(int64_t, past.owners.count) - 1


@cfunc
@nogil
@exceptval(check=False)
def _segment(past: pointer[past_t], owner: uint32_t, level: uint32_t, facts: pointer[cython.const[shell_t]]) -> bint:
    """One segment. False: its facts contradict each other, or no memory (`failed`)."""
    segment: pointer[past_segment_t]
    if not 0 < facts.live <= facts.count <= LARGE_SLOTS or facts.redelivered > facts.live or facts.spilled > facts.live:
        return False
    if facts.base == 0 or facts.base > INDEX_MASK or facts.count - 1 > INDEX_MASK - facts.base:
        return False
    segment = cast(pointer[past_segment_t], vector_add(address(past.segments), sizeof(past_segment_t)))
    if segment == NULL:
        past.failed = True
        return False
    segment.owner = owner
    segment.level = level
    segment.base = facts.base
    segment.count = facts.count
    segment.live = facts.live
    segment.bytes = facts.bytes
    segment.redelivered = facts.redelivered
    segment.spilled = facts.spilled
    segment.expiry_min = facts.expiry_min
    segment.flagged_upto = facts.flagged_upto
    segment.run = facts.run
    segment.touched = segment.spilled != 0
    return True


@cfunc
@nogil
@exceptval(check=False)
def _segments(past: pointer[past_t], data: pointer[cython.const[uint8_t]], size: uint32_t, rows: uint32_t) -> bint:
    """Segments of levels. False: malformed, or no memory (`failed`)."""
    place: uint32_t = 0
    length: uint32_t
    i: uint32_t
    row: uint32_t
    owner: int64_t
    level: segment_rows_t
    facts: shell_t
    for row in range(rows):
        if not segments_get_head(address(level), data + place, size - place):
            return False
        owner = _owner_made(past, level.queue_id)
        place += SEGMENTS_HEAD
        if owner < 0:
            past.failed = True
            return False
        for i in range(level.count):
            length = segment_get(address(level), data + place, size - place, address(facts))
            if length == 0 or not _segment(past, cast(uint32_t, owner), level.level, address(facts)):
                return False
            place += length
    return place == size


@cfunc
@nogil
@exceptval(check=False)
def _containers(past: pointer[past_t], data: pointer[cython.const[uint8_t]], size: uint64_t, rows: uint32_t) -> bint:
    i: uint32_t
    container: pointer[past_container_t]
    before: uint64_t = 0
    if size != cast(uint64_t, rows) * CONTAINER_ROW:
        return False
    if past.containers.count:
        before = (cast(pointer[past_container_t], past.containers.data) + (past.containers.count - 1)).sequence
    for i in range(rows):
        container = cast(pointer[past_container_t], vector_add(address(past.containers), sizeof(past_container_t)))
        if container == NULL:
            past.failed = True
            return False
        container.sequence = le64(data)
        container.count = le64(data + 8)
        container.live = le64(data + 16)
        container.bytes = le64(data + 24)
        if container.live > container.count or (container.sequence <= before and before):
            return False
        before = container.sequence
        data += CONTAINER_ROW
    return True


@cfunc
@nogil
@exceptval(check=False)
def _moved(past: pointer[past_t], data: pointer[cython.const[uint8_t]], size: uint64_t, rows: uint32_t) -> bint:
    i: uint32_t
    if size != cast(uint64_t, rows) * MOVED_ROW:
        return False
    for i in range(rows):
        if le64(data) == 0:
            return False
        # Later copies are told by their Message-Copy.
        if le64(data + 8) < past.begin and not map64_put(address(past.moved), le64(data), le64(data + 8)):
            past.failed = True
            return False
        data += MOVED_ROW
    return True


@cfunc
@nogil
@exceptval(check=False)
def _listed(past: pointer[past_t], data: pointer[cython.const[uint8_t]], size: uint64_t, rows: uint32_t) -> bint:
    place: uint64_t = 0
    row: uint32_t
    need: uint64_t
    listed: pointer[past_listed_t]
    for row in range(rows):
        if size - place < LISTED_HEAD:
            return False
        listed = cast(pointer[past_listed_t], vector_add(address(past.listed), sizeof(past_listed_t)))
        if listed == NULL:
            past.failed = True
            return False
        listed.id = le64(data + place)
        listed.places = le32(data + place + 8)
        listed.names = le32(data + place + 12)
        listed.data = data + place + LISTED_HEAD
        place += LISTED_HEAD
        need = cast(uint64_t, listed.places) * PLACE_SIZE + cast(uint64_t, listed.names) * 8
        if listed.id == 0 or need > size - place:
            return False
        place += need
    return place == size


@cfunc
@nogil
@exceptval(check=False)
def _deaths(log: pointer[log_t], data: pointer[cython.const[uint8_t]], size: uint64_t, rows: uint32_t) -> bint:
    """Rows of deaths, into the log; NULL: nowhere, they are checked. False: malformed, or no memory for them in the log."""
    row: uint32_t
    i: uint64_t
    bit: uint32_t
    form: uint32_t
    length: uint64_t
    place: uint64_t = 0
    sequence: uint64_t
    for row in range(rows):
        if size - place < DEATH_HEAD:
            return False
        sequence = le64(data + place)
        form = le32(data + place + 8)
        length = le32(data + place + 12)
        place += DEATH_HEAD
        if form > 1 or (length * 4 + 7 if form == 0 else length + 7) // 8 * 8 > size - place:
            return False
        if log != NULL:
            for i in range(length):
                if form == 0:
                    if not log_restore_death(log, sequence, le32(data + place + 4 * i)):
                        return False
                    continue
                for bit in range(8 if data[place + i] else 0):
                    if data[place + i] >> bit & 1 and not log_restore_death(log, sequence, cast(uint32_t, 8 * i + bit)):
                        return False
        place += (length * 4 + 7 if form == 0 else length + 7) // 8 * 8
    return place == size


@cfunc
@nogil
@exceptval(check=False)
def _by_position(left: pointer[cython.const[void]], right: pointer[cython.const[void]]) -> c_int:
    a: pointer[past_segment_t] = cast(pointer[past_segment_t], cast(p_void, left))
    b: pointer[past_segment_t] = cast(pointer[past_segment_t], cast(p_void, right))
    if a.owner != b.owner:
        return -1 if a.owner < b.owner else 1
    if a.level != b.level:
        return -1 if a.level < b.level else 1
    return -1 if a.base < b.base else cast(c_int, a.base > b.base)


@cfunc
@nogil
@exceptval(check=False)
def _by_lsn(left: pointer[cython.const[void]], right: pointer[cython.const[void]]) -> c_int:
    a: pointer[past_listed_t] = cast(pointer[past_listed_t], cast(p_void, left))
    b: pointer[past_listed_t] = cast(pointer[past_listed_t], cast(p_void, right))
    return -1 if a.lsn < b.lsn else cast(c_int, a.lsn > b.lsn)


@cfunc
@nogil
@exceptval(check=False)
def _in_order(past: pointer[past_t]) -> bint:
    """Sorts segments and the list. False: segments overlap, or a message is listed twice (P3)."""
    i: uint64_t
    segment: pointer[past_segment_t]
    before: pointer[past_segment_t]
    listed: pointer[past_listed_t] = cast(pointer[past_listed_t], past.listed.data)
    kept: uint64_t = 0
    if past.segments.count:
        qsort(past.segments.data, past.segments.count, sizeof(past_segment_t), _by_position)
    for i in range(past.segments.count):
        segment = past_segment(past, i)
        before = past_segment(past, i - 1) if i else NULL
        if before == NULL or before.owner != segment.owner:
            past_owner_at(past, segment.owner).first = i
        elif before.level == segment.level and before.base + before.count > segment.base:
            return False
        past_owner_at(past, segment.owner).count += 1
    for i in range(past.listed.count):
        listed[i].lsn = past_where(past, listed[i].id)
        if listed[i].lsn < past.begin:  # else the log behind tells it all
            listed[kept] = listed[i]
            kept += 1
    past.listed.count = kept
    if kept:
        qsort(listed, kept, sizeof(past_listed_t), _by_lsn)
    for i in range(1, kept):
        if listed[i].lsn == listed[i - 1].lsn:
            return False
    return True


@cfunc
@nogil
@exceptval(check=False)
def _past_free(past: pointer[past_t]) -> void:
    i: uint64_t
    for i in range(past.segments.count):
        free(past_segment(past, i).ended)
    for i in range(PAST_RUNS):
        free(past.decoded[i].entries)
    vector_free(address(past.segments))
    vector_free(address(past.owners))
    vector_free(address(past.containers))
    vector_free(address(past.listed))
    vector_free(address(past.gone))
    map64_free(address(past.owner_index))
    map64_free(address(past.moved))
    free(past.bytes)
    memset(past, 0, sizeof(past_t))


@cfunc
@nogil
@exceptval(check=False)
def _counted(past: pointer[past_t], lsn: uint64_t) -> bint:
    """Whether something lived in the container of this LSN. O(log containers)."""
    containers: pointer[past_container_t] = cast(pointer[past_container_t], past.containers.data)
    low: uint64_t = 0
    high: uint64_t = past.containers.count
    middle: uint64_t
    while low < high:
        middle = (low + high) // 2
        if containers[middle].sequence < lsn // past.container_size:
            low = middle + 1
        else:
            high = middle
    return low < past.containers.count and containers[low].sequence == lsn // past.container_size


@cclass
class Past:
    """One checkpoint. Args: reader: of its runs. Raises: MemoryError; MalformedError: bytes of a part contradict each other."""

    def __cinit__(self, checkpoint, reader: IndexLog):
        memset(address(self.past), 0, sizeof(past_t))
        map64_init(address(self.past.owner_index))
        map64_init(address(self.past.moved))
        self.reader = reader
        self.checkpoint = checkpoint
        self.tails = {}
        self.marks = {}
        self._deaths = []
        self.past.runs = address(reader.index)
        self.past.begin = checkpoint.history.begin
        self.past.container_size = checkpoint.history.container_size
        self.past.bytes = cast(pointer[uint8_t], malloc(RUN_BYTES_MAX))
        if self.past.bytes == NULL:
            raise MemoryError
        # First: where a message was decides on which rows of the list count.
        for kind, rows, data in sorted(checkpoint.parts, key=_moved_first):
            self._take(kind, rows, data)
        if not _in_order(address(self.past)):
            raise MalformedError("segments overlap, or a message is listed twice")

    def __dealloc__(self):
        _past_free(address(self.past))

    def _take(self, kind: int, rows: uint32_t, data: bytes):
        bytes_: p_char = data
        start: pointer[uint8_t] = cast(pointer[uint8_t], bytes_)
        size: uint32_t = len(data)
        good: bint = True
        if kind == PART_SEGMENTS:
            good = _segments(address(self.past), start, size, rows)
        elif kind == PART_CONTAINERS:
            good = _containers(address(self.past), start, size, rows)
        elif kind == PART_MOVED:
            good = _moved(address(self.past), start, size, rows)
        elif kind == PART_LISTED:
            good = _listed(address(self.past), start, size, rows)
        elif kind == PART_TAILS:
            self.tails.update(tails_of(rows, data))
        elif kind == PART_MARKS:
            self.marks.update(tails_of(rows, data))
        elif kind == PART_DEATHS:
            self._deaths.append((rows, data))
            good = _deaths(NULL, start, size, rows)
        if self.past.failed:
            raise MemoryError("no memory for a checkpoint")
        if not good:
            raise MalformedError(f"a part of kind {kind} contradicts itself")

    @property
    def begin(self) -> int:
        """LSN of the message log from which it must be read."""
        return self.past.begin

    def runs(self) -> list:
        """Names of the runs, in no order. O(segments)."""
        return [past_segment(address(self.past), i).run for i in range(self.past.segments.count)]

    # --- the message log

    def adopt_containers(self, log: pointer[log_t]) -> bint:
        i: uint64_t
        data: bytes
        bytes_: p_char
        container: pointer[past_container_t] = cast(pointer[past_container_t], self.past.containers.data)
        for i in range(self.past.containers.count):
            if not log_restore_container(log, container[i].sequence, container[i].count, container[i].live, container[i].bytes):
                return False
        if not _counted(address(self.past), self.past.begin):
            # Nothing below the begin lives in its container: what the log behind has there must not make it look alive. As which things
            # died there is not known, each place counts as one.
            grains: uint64_t = self.past.begin % log.container_size // DEAD_GRAIN
            if not log_restore_container(log, self.past.begin // log.container_size, grains, 0, 0):
                return False
            for i in range(grains):
                if not log_restore_death(log, self.past.begin // log.container_size, cast(uint32_t, i)):
                    return False
        for rows, data in self._deaths:
            bytes_ = data
            if not _deaths(log, cast(pointer[uint8_t], bytes_), len(data), rows):
                return False
        self._deaths = []
        return True

    def adopt_ends(self, log: pointer[log_t]) -> bint:
        i: uint64_t
        cursor: uint64_t = 0
        message_id: uint64_t = 0
        lsn: uint64_t = 0
        newer: uint64_t = 0
        for i in range(self.past.gone.count):
            lsn = vector_number(address(self.past.gone), i)
            if _counted(address(self.past), lsn):  # else it had died before its container was counted
                log_dead(log, lsn, log.tail)
        vector_free(address(self.past.gone))
        while map64_next(address(self.past.moved), address(cursor), address(message_id), address(lsn)):
            if (
                not map64_get(address(log.moved), message_id, address(newer))
                and log_is_live(log, lsn)
                and not map64_put(address(log.moved), message_id, lsn)
            ):
                return False
        return True


def _moved_first(part: tuple) -> int:
    return int(part[0] != PART_MOVED)

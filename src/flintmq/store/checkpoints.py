"""Checkpoints of the durable store: what stands in the log, written into the index log while the broker works (see checkpoints.pxd).

in: the message log and its list, the queues. out: parts, runs and the Checkpoint that ends them; what the one before needed is dead then.

C1  The begin, the counts of containers and the floor of shapes are of one moment, at which no purge waits to be counted out.
C2  Queues are written down behind the begin, the message list and the table of copies behind them, and what died in containers last:
    whoever reads finds each end of something in the log behind the begin, or done.
    A purge of shells that ended before their queue was written down is counted out before that, too, and the sweep of a queue that was
    deleted before all queues were written down is at its end: no run names their messages any more.
C3  What the newest checkpoint on disk names stays until the next one is on disk: runs that ended since it began, and its own records.
C4  The writer puts the index log on disk behind the message log: a checkpoint that is there finds all that it rests on.
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_char, p_void, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64
from cython.cimports.flintmq.core.hash64 import map64_cell_t
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.paging import shell_t
from cython.cimports.flintmq.queue.snapshots import queue_snapshot
from cython.cimports.flintmq.queue.types import QUEUE_LOGGED, RESTORED_REDELIVERED, queue_t, restored_t
from cython.cimports.flintmq.store.checkpoint_parts import (
    CONTAINER_ROW, DEATH_HEAD, MOVED_ROW, PART_CONTAINERS, PART_DEATHS, PART_KINDS, PART_LISTED, PART_MARKS, PART_MOVED, PART_TAILS,
    TAIL_HEAD, parts_end, parts_flush, parts_free, parts_row, parts_run, parts_segment, parts_t,
)  # fmt: skip
from cython.cimports.flintmq.store.entry_pager import EntryPager, pager_bury_one
from cython.cimports.flintmq.store.index_log import index_run_dead, index_run_most
from cython.cimports.flintmq.store.index_run import RUN_BYTES_MAX, run_encode
from cython.cimports.flintmq.store.log.deaths import DEATHS_SOME, DEATHS_UNSURE, log_copy_deaths, log_tally, tally_t
from cython.cimports.flintmq.store.log.log import DEAD_GRAIN, LSN_NEVER, log_begin, log_end
from cython.cimports.flintmq.store.log.record import set32, set64
from cython.cimports.flintmq.store.standing import STANDING_CELLS, listed_size, log_copy_moved, ml_copy_listed, ml_standing, piece_walk_t
from cython.cimports.flintmq.store.vectors import vector_add_number, vector_free, vector_number, vector_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.unistd import usleep

from flintmq.store.checkpoint import History, last_record

log = logging.getLogger("flintmq.store")

# bytes of the log for each byte of a checkpoint: checkpoints are a hundredth of all bytes written
WRITTEN_PER_BYTE = 100
# The time between two, as often as the last one took: with millions of entries in memory each looks at all of them. In nanoseconds at most:
# one that waited for the disk for long is no reason for a start to read all that came meanwhile.
REST_PER_WORK = declare(int64_t, 10)
REST_MAX_NS = declare(int64_t, 5_000_000_000)
# bytes of a part
PART_BYTES = declare(uint32_t, 32 << 10)
# microseconds of one wait for room in the index log, or for a segment that is on its way out of memory; waits, one after the other, behind
# which the checkpoint is given up
WAIT_US = declare(uint32_t, 2000)
WAITS_MAX = declare(uint32_t, 2500)
# share of the interval that the log grows by before a try behind one that was given up; before the checkpoint of a clean stop, or of a log
# that nobody writes to for so many nanoseconds
SHARE = 4
STILL_NS = declare(int64_t, 2_000_000_000)


@cfunc
@nogil
@exceptval(check=False)
def _wait(owner: p_void) -> bint:
    """The index log takes nothing now (see parts_wait_t)."""
    work: pointer[checkpoint_t] = cast(pointer[checkpoint_t], owner)
    work.waited += 1
    if (
        not work.waits
        or work.waited > WAITS_MAX
        or at_load32(address(work.index.log.failed))
        or at_load32(address(work.ml.disk_low))
        or (at_load32(address(work.pager.stopping)) and not work.last)
    ):
        return False
    usleep(WAIT_US)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _begin_at(work: pointer[checkpoint_t]) -> bint:
    """The moment of the checkpoint (C1). False: not now."""
    unsure: bint = False
    tallies: pointer[tally_t]
    while True:
        log_begin(work.ml.log)
        if at_load64(address(work.pager.burials)):
            log_end(work.ml.log)
            return False
        if work.ml.log.dividing:  # a message before the begin, which the list may not have in time
            log_end(work.ml.log)
            if not _wait(work):
                return False
            continue
        work.begin = work.ml.log.tail
        # Messages behind it name no Message-Shape before it.
        work.ml.log.shape_floor = work.begin
        work.tally_count = log_tally(work.ml.log, work.tallies, work.tally_room, address(unsure))
        log_end(work.ml.log)
        if unsure:
            return False
        if work.tally_count <= work.tally_room:
            return True
        tallies = cast(pointer[tally_t], realloc(work.tallies, (work.tally_count + 16) * sizeof(tally_t)))
        if tallies == NULL:
            return False
        work.tallies = tallies
        work.tally_room = work.tally_count + 16


@cfunc
@nogil
@exceptval(check=False)
def _write_run(work: pointer[checkpoint_t], queue: pointer[queue_t], facts: pointer[shell_t]) -> bint:
    """A segment in memory: those of its entries that the log has not ended, as a run. False: given up."""
    i: uint32_t
    count: uint32_t = ml_standing(work.ml, queue.id, work.entries, facts.live, address(facts.spilled))
    size: uint32_t
    facts.live = count
    facts.bytes = 0
    facts.redelivered = 0
    facts.expiry_min = 0
    if count == 0:
        return True
    for i in range(count):
        facts.bytes += work.entries[i].body_len
        facts.redelivered += work.entries[i].flags & RESTORED_REDELIVERED
        if work.entries[i].expires_at_ms and (facts.expiry_min == 0 or work.entries[i].expires_at_ms < facts.expiry_min):
            facts.expiry_min = work.entries[i].expires_at_ms
    size = run_encode(queue.id, work.entries, count, work.bytes, RUN_BYTES_MAX)
    facts.run = parts_run(address(work.parts), work.bytes, size) if size else 0
    work.waited = 0
    return facts.run != 0


@cfunc
@nogil
@exceptval(check=False)
def _write_level(work: pointer[checkpoint_t], queue: pointer[queue_t], level: uint32_t, tail: pointer[uint64_t]) -> bint:
    """The segments of a level; `*tail`: its last index then. False: given up."""
    index: uint64_t = 0
    facts: shell_t
    tail[0] = 0
    while queue_snapshot(queue, level, index, work.entries, address(facts), tail):
        if facts.leaves:
            if not _wait(work):
                return False
            continue
        index = facts.base + facts.count
        if tail[0] and tail[0] < index - 1:
            facts.count = cast(uint32_t, tail[0] - facts.base + 1)  # the rest of it was not used
        if facts.run == 0 and not _write_run(work, queue, address(facts)):
            return False
        if facts.live and not parts_segment(address(work.parts), queue.id, level, address(facts)):
            return False
        if tail[0]:
            return True
    return True


@cfunc
@nogil
@exceptval(check=False)
def _is_swept(work: pointer[checkpoint_t], queue: pointer[queue_t]) -> bint:
    """Whether the log knows of each entry of a deleted queue that it ended, or that it is buried: no logged one is there, and no sweep is
    at one."""
    facts: shell_t
    level: uint32_t
    tail: uint64_t = 0
    index: uint64_t
    for level in range(queue.entries.level_count):
        index = 0
        while queue_snapshot(queue, level, index, work.entries, address(facts), address(tail)):
            if facts.live or facts.run or facts.leaves:
                return False
            index = facts.base + facts.count
            if tail:
                break
    return at_load32(address(queue.sweeps)) == 0


@cfunc
@nogil
@exceptval(check=False)
def _write_queue(work: pointer[checkpoint_t], queue: pointer[queue_t]) -> bint:
    """Its segments, its tails and its mark of deliveries. False: given up."""
    tails: uint64_t[256]
    level: uint32_t
    used: bint = False
    if queue.durable != QUEUE_LOGGED or queue.port == NULL or queue.port.context != cast(p_void, work.ml):
        return True  # its entries are in no record of this log
    for level in range(queue.entries.level_count):
        if not _write_level(work, queue, level, tails + level):
            return False
        used = used or tails[level] != 0
    if used and not _write_levels(work, PART_TAILS, queue, tails):
        return False
    if at_load64(address(queue.marked_at)) == 0:
        return True
    # Of a mark that is raised just now the record comes behind: it may cover more, never less.
    for level in range(queue.entries.level_count):
        tails[level] = at_load64(address(queue.entries.levels[level].reserved))
    return _write_levels(work, PART_MARKS, queue, tails)


@cfunc
@nogil
@exceptval(check=False)
def _write_levels(work: pointer[checkpoint_t], kind: uint32_t, queue: pointer[queue_t], indexes: pointer[uint64_t]) -> bint:
    """A row with an index for each level. False: given up."""
    level: uint32_t
    row: pointer[uint8_t] = parts_row(address(work.parts), kind, TAIL_HEAD + 8 * queue.entries.level_count)
    if row == NULL:
        return False
    set64(row, queue.id)
    set32(row + 8, queue.entries.level_count)
    set32(row + 12, 0)
    for level in range(queue.entries.level_count):
        set64(row + TAIL_HEAD + 8 * level, indexes[level])
    return True


@cfunc
@nogil
@exceptval(check=False)
def _write_list(work: pointer[checkpoint_t]) -> bint:
    """The message list. False: given up."""
    walk: piece_walk_t
    size: uint64_t = 0
    place: uint64_t
    length: uint64_t
    row: pointer[uint8_t]
    grown: pointer[uint8_t]
    memset(address(walk), 0, sizeof(piece_walk_t))
    while ml_copy_listed(work.ml, address(walk), work.bytes, work.room, address(size)):
        if size > work.room:
            grown = cast(pointer[uint8_t], realloc(work.bytes, size)) if size < cast(uint64_t, 1) << 40 else NULL
            if grown == NULL:
                return False
            work.bytes = grown
            work.room = size
            continue
        place = 0
        while place < size:
            length = listed_size(work.bytes + place)
            row = parts_row(address(work.parts), PART_LISTED, length)
            if row == NULL:
                return False
            memcpy(row, work.bytes + place, length)
            place += length
        work.waited = 0
    return True


@cfunc
@nogil
@exceptval(check=False)
def _write_moved(work: pointer[checkpoint_t]) -> bint:
    """Where messages are that were copied forward. False: given up."""
    walk: piece_walk_t
    cells: map64_cell_t[STANDING_CELLS]
    count: uint64_t = 0
    i: uint64_t
    row: pointer[uint8_t]
    memset(address(walk), 0, sizeof(piece_walk_t))
    while log_copy_moved(work.ml.log, address(walk), cells, address(count)):
        if count > STANDING_CELLS:
            return False
        for i in range(count):
            row = parts_row(address(work.parts), PART_MOVED, MOVED_ROW)
            if row == NULL:
                return False
            set64(row, cells[i].key)
            set64(row + 8, cells[i].value)
    return True


@cfunc
@nogil
@exceptval(check=False)
def _write_deaths(work: pointer[checkpoint_t], sequence: uint64_t, grains: uint32_t) -> bint:
    """What died in a container. False: given up."""
    row: pointer[uint8_t]
    i: uint32_t
    number: uint32_t = 0
    bits: pointer[uint8_t] = cast(pointer[uint8_t], work.deaths.bits)
    size: uint32_t = work.deaths.count * 4
    mapped: bint = work.deaths.mapped and size > (grains + 7) // 8
    if mapped:
        size = (grains + 7) // 8
    row = parts_row(address(work.parts), PART_DEATHS, DEATH_HEAD + (size + 7) // 8 * 8)
    if row == NULL:
        return False
    set64(row, sequence)
    set32(row + 8, 1 if mapped else 0)
    set32(row + 12, size if mapped else work.deaths.count)
    row += DEATH_HEAD
    memset(row, 0, (size + 7) // 8 * 8)
    if mapped:
        memcpy(row, bits, size)
    elif work.deaths.mapped:
        for i in range(grains):
            if bits[i >> 3] >> (i & 7) & 1:
                set32(row + 4 * number, i)
                number += 1
    else:
        for i in range(work.deaths.count):
            set32(row + 4 * i, work.deaths.grains[i])
    return True


@cfunc
@nogil
@exceptval(check=False)
def _write_containers(work: pointer[checkpoint_t]) -> bint:
    """How many of the things below the begin live, and which died (C2). False: given up."""
    i: uint32_t
    size: uint64_t = work.ml.log.container_size
    below: uint32_t
    outcome: c_int
    row: pointer[uint8_t]
    burials: uint64_t = at_load64(address(work.pager.burials))
    while burials and pager_bury_one(work.pager, work.entries):
        burials -= 1
    for i in range(work.tally_count):
        below = cast(uint32_t, (size if work.tallies[i].sequence < work.begin // size else work.begin % size) // DEAD_GRAIN)
        outcome = log_copy_deaths(work.ml.log, work.tallies[i].sequence, below, address(work.deaths))
        if outcome == DEATHS_UNSURE:
            return False
        if outcome != DEATHS_SOME or work.deaths.count >= work.tallies[i].count:
            continue
        row = parts_row(address(work.parts), PART_CONTAINERS, CONTAINER_ROW)
        if row == NULL:
            return False
        set64(row, work.tallies[i].sequence)
        set64(row + 8, work.tallies[i].count)
        set64(row + 16, work.tallies[i].count - work.deaths.count)
        set64(row + 24, work.tallies[i].bytes)
        if work.deaths.count and not _write_deaths(work, work.tallies[i].sequence, below):
            return False
    return True


@cclass
class Checkpoints:
    """The checkpoints of a LogStore. Args: store: open; limits: config.Limits; threads: a thread writes the logs."""

    def __cinit__(self, store, limits, threads: bool):
        pager: EntryPager = store.pager
        memset(address(self.work), 0, sizeof(checkpoint_t))
        memset(address(self.force_parts), 0, sizeof(vector_t))
        memset(address(self.written_parts), 0, sizeof(vector_t))
        self.store = store
        self._ended = []
        self.logs = store.logs
        self.messages = store.messages
        self.index = store.index
        self.interval = limits.checkpoint_bytes
        self.work.ml = address(self.logs.ml)
        self.work.index = address(self.index.index)
        self.work.pager = address(pager.pager)
        self.work.waits = threads
        self.work.room = RUN_BYTES_MAX

    def __dealloc__(self):
        self._free()
        vector_free(address(self.force_parts))
        vector_free(address(self.written_parts))

    # --- when

    def once(self) -> None:
        """A look whether one is on disk now, and whether the next one is due; writes it. The pager's thread."""
        self.settle()
        if self._ended:
            self._forget_ended()
        now: int64_t = self.store.clock.monotonic_ns()
        tails: object = self._tails()
        if self.still is None or self.still[0] != tails:
            self.still = (tails, now)
        share: uint64_t = SHARE if now - self.still[1] >= STILL_NS else 1
        if now >= self.rest_until and self._is_due(self.interval // share, WRITTEN_PER_BYTE // share):
            self.write()

    def finish(self) -> None:
        """A clean stop: the next start reads little."""
        self.work.last = True
        self.settle()
        if self._is_due(self.interval // SHARE, WRITTEN_PER_BYTE // SHARE):
            self.write()

    def _is_due(self, interval: uint64_t, per_byte: uint64_t) -> bool:
        grown: uint64_t = self.messages.log.tail - max(self.begin, cast(uint64_t, self.messages.base))
        # Entries that come and go without a record of the message log fill the index log, which keeps what ended since the last one began.
        if self.in_force:
            grown = max(grown, self.index.index.log.tail - self.kept)
        return (
            self.written_end == 0
            and self._tails() >= self.again
            and grown >= max(interval, per_byte * self.size)
            and not self.store.recovering
            and not at_load32(address(self.logs.ml.disk_low))
            and self.logs.failure is None
        )

    def _tails(self):
        return self.messages.tail + self.index.log.tail

    def ended(self, handle: QueueHandle) -> None:
        """A queue is deleted: its Queue-End comes next, and then the sweep of its entries. With the store's lock."""
        self._ended.append(handle)

    def forget(self) -> None:
        """The store is closed: nothing leads to a queue."""
        self._ended.clear()

    def _forget_ended(self):
        entries: pointer[restored_t] = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
        if entries == NULL:
            return
        self.work.entries = entries
        try:
            with self.store.lock:
                ended, self._ended = self._ended, []
            stay = [handle for handle in ended if not self._has_ended(handle)]  # many may be deleted at once: not under the lock
            with self.store.lock:
                self._ended.extend(stay)
        finally:
            self.work.entries = NULL
            free(entries)

    def _has_ended(self, handle: QueueHandle) -> bint:
        swept: bint
        queue: pointer[queue_t] = handle.queue
        with nogil:
            swept = _is_swept(address(self.work), queue)
        return swept

    def _await_ended(self) -> bool:
        """The sweeps of deleted queues come to their end. False: that takes too long."""
        waited: bint
        with self.store.lock:  # drop_queue has it until Queue-End is in the log
            ended = list(self._ended)
        for handle in ended:
            while not self._has_ended(handle):
                with nogil:
                    waited = _wait(address(self.work))
                if not waited:
                    return False
            self.work.waited = 0
        return True

    def settle(self) -> None:
        """Once the newest one is on disk, what the one before needed is dead (C3)."""
        if self.written_end == 0 or at_load64(address(self.index.index.log.durable)) < self.written_end:
            return
        self._drop(address(self.force_parts))
        self.force_parts = self.written_parts
        memset(address(self.written_parts), 0, sizeof(vector_t))
        self.written_end = 0
        self.in_force = True
        self.kept = self.written_keep
        self.index.log.set_keep(self.written_keep)

    def adopt(self, past: object) -> None:
        """This start used a checkpoint (store.past.Past): it is in force."""
        for lsn in (*past.checkpoint.places, past.checkpoint.last):
            if not vector_add_number(address(self.force_parts), lsn):
                raise MemoryError("no memory for a checkpoint")
        self.in_force = True
        self.kept = self.index.log.tail
        self.begin = past.begin
        self.size = sum(len(data) for _, _, data in past.checkpoint.parts)

    # --- one

    def write(self, between: object = None) -> bool:
        """Writes one. between: is called between its steps (tests). False: it can't begin now, or was given up."""
        began: int64_t = self.store.clock.monotonic_ns()
        took: int64_t
        done = False
        if self.store.recovering or self.written_end or not self._begin():
            self.again = self._tails() + self.interval // SHARE
            return False
        if not self.in_force:
            self.index.log.set_keep(self.written_keep)
        try:
            done = self._write(between or bool)
        finally:
            if not done:
                self._give_up()
            self._free()
        took = self.store.clock.monotonic_ns() - began
        self.rest_until = began + took + min(REST_PER_WORK * took, REST_MAX_NS)
        if done:
            self.written += 1
            self.bytes += self.size
            log.debug("checkpoint at LSN %d: %d bytes, %.3f s", self.begin, self.size, took / 1e9)
        return done

    def _begin(self) -> bint:
        begun: bint
        self.work.parts.index = self.work.index
        self.work.parts.owner = address(self.work)
        self.work.parts.wait = _wait
        self.work.parts.most = min(PART_BYTES, index_run_most(self.work.index))
        self.work.waited = 0
        self.work.entries = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
        self.work.bytes = cast(pointer[uint8_t], malloc(self.work.room))
        self.work.deaths.bits = cast(pointer[uint64_t], calloc((self.messages.log.container_size // DEAD_GRAIN + 63) // 64, 8))
        self.written_keep = self.index.index.log.tail
        with nogil:
            begun = (
                self.work.entries != NULL and self.work.bytes != NULL and self.work.deaths.bits != NULL and _begin_at(address(self.work))
            )
        if not begun:
            self._free()
        return begun

    def _write(self, between: object) -> bool:
        i: uint32_t
        done: bint
        end: uint64_t
        # The message log names no other ones than have begun: below the tail. It is on disk before this checkpoint is.
        named_tx = self.logs.transaction_records.tail - 1
        with self.store.lock:
            handles = list(self.store.queues.values())
        between()
        for handle in handles:
            if not self._queue(handle):
                return False
        if not self._await_ended():
            return False
        between()
        with nogil:
            done = _write_list(address(self.work)) and _write_moved(address(self.work))
        if not done:
            return False
        between()
        with nogil:
            done = _write_containers(address(self.work))
            for i in range(1, PART_KINDS):
                done = done and parts_flush(address(self.work.parts), i)
        if not done:
            return False
        between()
        history = History(self.work.begin, self.messages.log.epoch, self.messages.container_size, self.messages.tail, named_tx)
        payload: bytes = last_record(history, [vector_number(address(self.work.parts.lsns), i) for i in range(self.work.parts.lsns.count)])
        data: p_char = payload
        size: uint32_t = len(payload)
        end = parts_end(address(self.work.parts), cast(pointer[uint8_t], data), size)
        if end == 0:
            return False
        # What lives for it alone: its own records, and runs that no segment has.
        self.written_parts = self.work.parts.lsns
        memset(address(self.work.parts.lsns), 0, sizeof(vector_t))
        for i in range(self.work.parts.runs.count):
            if not vector_add_number(address(self.written_parts), vector_number(address(self.work.parts.runs), i)):
                log.warning("no memory: %d runs of a checkpoint stay until the next start", self.work.parts.runs.count - i)
                break
        self.begin = self.work.begin
        self.size = self.work.parts.bytes
        self.written_end = end
        return True

    def _queue(self, handle: QueueHandle) -> bint:
        done: bint
        queue: pointer[queue_t] = handle.queue
        with nogil:
            done = _write_queue(address(self.work), queue)
        return done

    def _give_up(self):
        """Nothing of it lives."""
        self.given_up += 1
        self.again = self._tails() + self.interval // SHARE
        self._drop(address(self.work.parts.lsns))
        self._drop(address(self.work.parts.runs))
        if not self.in_force:
            self.index.log.set_keep(LSN_NEVER)

    def _drop(self, lsns: pointer[vector_t]) -> c_int:
        i: uint32_t
        for i in range(lsns.count):
            index_run_dead(self.work.index, vector_number(lsns, i))
        vector_free(lsns)
        return 0

    def _free(self):
        parts_free(address(self.work.parts))
        memset(address(self.work.parts), 0, sizeof(parts_t))
        free(self.work.entries)
        free(self.work.bytes)
        free(self.work.deaths.bits)
        free(self.work.tallies)
        self.work.entries = NULL
        self.work.bytes = NULL
        self.work.deaths.bits = NULL
        self.work.tallies = NULL
        self.work.tally_room = 0
        self.work.room = RUN_BYTES_MAX

    @property
    def figures(self) -> dict:
        """written, given_up: checkpoints; bytes: of all that were written; begin: LSN of the newest, 0: there is none; log_bytes: of the
        message log behind that, or behind its base."""
        log_bytes = self.messages.tail - max(self.begin, self.messages.base)
        return {"written": self.written, "given_up": self.given_up, "bytes": self.bytes, "begin": self.begin, "log_bytes": log_bytes}

"""Queues as a checkpoint has them, back in memory (see past_restore.pxd).

in: what recovery found: segments of the checkpoint, entries of the log behind it. out: shells where nothing changed, segments where
something did; runs that nothing needs any more.

T1  Entries come in the order of their positions, whether the log or a run has them.
T2  The run of a segment that did not come back as a shell is dead; what a purge ended in it is counted out.
"""

from __future__ import annotations

from cython import NULL, address, cast, cclass, cfunc, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.paging import queue_pages, shell_t
from cython.cimports.flintmq.queue.queue_core import queue_restore_many
from cython.cimports.flintmq.queue.restoring import queue_restored
from cython.cimports.flintmq.queue.snapshots import queue_adopt_shell, queue_open_segment
from cython.cimports.flintmq.queue.types import INDEX_MASK, LEVEL_SHIFT, RESTORED_UNSIZED, queue_t, restored_t
from cython.cimports.flintmq.store.entry_pager import pager_bury
from cython.cimports.flintmq.store.index_log import index_run_dead
from cython.cimports.flintmq.store.logs import Logs
from cython.cimports.flintmq.store.message_log import ml_count_out
from cython.cimports.flintmq.store.past import past_first, past_owner, past_owner_at, past_owner_t, past_segment, past_segment_t, past_t
from cython.cimports.flintmq.store.recovery import Recovery
from cython.cimports.flintmq.store.recovery_past import past_alone, past_standing
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memset

from flintmq.errors import StoreError


@cfunc
def _put(queue: pointer[queue_t], entries: pointer[restored_t], count: uint64_t) -> uint64_t:
    """Raises: StoreError: they do not fit."""
    done: uint64_t = queue_restore_many(queue, entries, count) if count else 0
    if done != count:
        raise StoreError(f"queue id {queue.id}: {count - done} recovered entries do not fit its priority levels")
    return count


@cfunc
def _open(queue: pointer[queue_t], position: uint64_t, count: uint64_t):
    if not queue_open_segment(queue, cast(uint32_t, position >> LEVEL_SHIFT), position & INDEX_MASK, count):
        raise StoreError(f"queue id {queue.id}: position {position} of a recovered entry does not fit its priority levels")


@cclass
class PastRestore:
    """Args: recovery: from a checkpoint; logs: open; its maker sets `pager`."""

    def __cinit__(self, recovery: Recovery, logs: Logs):
        self.recovery = recovery
        self.logs = logs
        self.pager = NULL

    def restore(self, queue: pointer[queue_t]) -> uint64_t:
        past: pointer[past_t] = address(self.recovery.past.past)
        number: int64_t = past_owner(past, queue.id)
        owner: pointer[past_owner_t]
        entries: pointer[restored_t]
        count: uint64_t = 0
        taken: uint64_t = 0
        total: uint64_t = 0
        i: uint64_t
        entries = self.recovery.entries(queue.id, address(count))
        self._size(entries, count)
        if number >= 0:
            owner = past_owner_at(past, number)
            owner.restored = True
            for i in range(owner.first, owner.first + owner.count):
                taken += self._before(queue, entries + taken, count - taken, past_first(past_segment(past, i)))
                total += self._segment(queue, past_segment(past, i), entries, count, address(taken))
        _put(queue, entries + taken, count - taken)
        return total + count

    def _size(self, entries: pointer[restored_t], count: uint64_t) -> c_int:
        """Sizes of entries that neither the log behind the checkpoint nor its runs know: the content says them."""
        i: uint64_t
        for i in range(count):
            if entries[i].flags & RESTORED_UNSIZED:
                entries[i].body_len = self.logs.facts(entries[i].message_id)[1]
                entries[i].flags &= ~cast(uint32_t, RESTORED_UNSIZED)
        return 0

    def _before(self, queue: pointer[queue_t], entries: pointer[restored_t], count: uint64_t, limit: uint64_t) -> uint64_t:
        """Entries of the log with positions below `limit`, where the next segment begins. Returns how many."""
        done: uint64_t = 0
        many: uint64_t
        first: uint64_t
        room: uint64_t
        while done < count and entries[done].position < limit:
            first = entries[done].position
            room = LARGE_SLOTS
            if first >> LEVEL_SHIFT == limit >> LEVEL_SHIFT:
                room = min(room, limit - first)
            _open(queue, first, room)
            many = 1
            while done + many < count and entries[done + many].position < min(limit, first + room):
                many += 1
            done += _put(queue, entries + done, many)
        return done

    def _segment(
        self,
        queue: pointer[queue_t],
        segment: pointer[past_segment_t],
        entries: pointer[restored_t],
        count: uint64_t,
        taken: pointer[uint64_t],
    ) -> uint64_t:
        """One segment of the checkpoint, and the entries of the log that stand in it, from `*taken` on. Returns how many came from its
        run."""
        facts: shell_t
        if segment.purged:
            self._end(segment, queue.id)
            return 0
        if segment.taken:
            index_run_dead(self.pager.index, segment.run)
            return 0
        if segment.touched or not queue_pages(queue):
            return self._changed(queue, segment, entries, count, taken)
        memset(address(facts), 0, sizeof(shell_t))
        facts.base = segment.base
        facts.count = segment.count
        facts.live = segment.live
        facts.bytes = segment.bytes
        facts.redelivered = segment.redelivered
        facts.expiry_min = segment.expiry_min
        facts.flagged_upto = segment.flagged_upto
        facts.run = segment.run
        if not queue_adopt_shell(queue, segment.level, address(facts)):
            raise StoreError(f"queue id {queue.id}: recovered entries from index {segment.base} on do not fit its priority levels")
        queue_restored(queue)
        return segment.live

    def _changed(
        self,
        queue: pointer[queue_t],
        segment: pointer[past_segment_t],
        entries: pointer[restored_t],
        count: uint64_t,
        taken: pointer[uint64_t],
    ) -> uint64_t:
        """As _segment: it does not come back as a shell."""
        first: uint64_t = past_first(segment)
        ended: uint32_t = 0
        standing: c_int
        place: uint64_t = 0
        merged: uint64_t = 0
        run: pointer[restored_t] = cast(pointer[restored_t], malloc(4 * LARGE_SLOTS * sizeof(restored_t)))
        purged: pointer[restored_t] = run + LARGE_SLOTS
        both: pointer[restored_t] = run + 2 * LARGE_SLOTS
        if run == NULL:
            raise MemoryError("no memory for recovery")
        try:
            standing = past_standing(address(self.recovery._work), segment, run, purged, address(ended))
            if standing < 0:
                raise StoreError(f"queue id {queue.id}: a run of the index log can't be read; the next start reads the message log instead")
            while taken[0] < count and entries[taken[0]].position < first + segment.count:
                while place < standing and run[place].position < entries[taken[0]].position:
                    both[merged] = run[place]
                    merged += 1
                    place += 1
                both[merged] = entries[taken[0]]
                merged += 1
                taken[0] += 1
            while place < standing:
                both[merged] = run[place]
                merged += 1
                place += 1
            if merged:
                _open(queue, first, segment.count)
                _put(queue, both, merged)
            ml_count_out(address(self.logs.ml), queue.id, purged, ended, self.logs.ml.log.tail)
            index_run_dead(self.pager.index, segment.run)
        finally:
            free(run)
        return cast(uint64_t, standing)

    def _end(self, segment: pointer[past_segment_t], queue_id: uint64_t) -> c_int:
        """All that stood in the segment has ended: its messages are counted out, later unless something else tells of some of them."""
        count: c_int
        if not segment.touched:
            pager_bury(self.pager, segment.run, queue_id)
            return 0
        run: pointer[restored_t] = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
        if run == NULL:
            raise MemoryError("no memory for recovery")
        count = past_alone(address(self.recovery._work), segment, run)
        if count > 0:
            ml_count_out(address(self.logs.ml), queue_id, run, cast(uint32_t, count), self.logs.ml.log.tail)
        free(run)
        if count < 0:
            raise StoreError(f"queue id {queue_id}: a run of the index log can't be read; the next start reads the message log instead")
        index_run_dead(self.pager.index, segment.run)
        return 0

    def finish(self) -> None:
        """All queues that are there have their entries: what of the checkpoint belongs to others ended with them."""
        past: pointer[past_t] = address(self.recovery.past.past)
        owner: pointer[past_owner_t]
        i: uint64_t
        j: uint64_t
        for i in range(past.owners.count):
            owner = past_owner_at(past, i)
            for j in range(owner.first, owner.first + (0 if owner.restored else owner.count)):
                if past_segment(past, j).taken:
                    index_run_dead(self.pager.index, past_segment(past, j).run)
                else:
                    self._end(past_segment(past, j), owner.id)
        self.recovery.past.reader.close()

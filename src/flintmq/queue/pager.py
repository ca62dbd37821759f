"""The pager: which segments become shells (see pager.pxd).

in: queues with cold entries, shown to it by the message path and by readers. out: shells.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, declare, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_load32, at_load64, at_load_ptr, at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.housekeeping import queue_reclaim
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.paging import KEPT_FIRST, OUT_GONE, OUT_LATER, OUT_REFUSED, queue_page_out, queue_pages
from cython.cimports.flintmq.queue.queue_core import queue_decref
from cython.cimports.flintmq.queue.types import level_t, log_port_t, queue_t, restored_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc

# Shells that a look at the end of a level passes before it ends: what leaves memory leaves it in the order of arrival.
SHELLS_MET = declare(uint32_t, 16)
# Places of a level's directory that one round passes over for segments that came back far from its end.
WALK = declare(uint32_t, 4096)
# Segments of one level that leave in one round, so that others have their turn.
ROUND_MOST = declare(uint32_t, 1024)


@cclass
class Pager:
    """The maker of shells: one thread's rounds over the queues that were shown to it. Figures: segments that left memory."""

    def __cinit__(self):
        self.entries = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
        if self.entries == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.entries)

    def round(self, log: LogPort) -> int:
        """Looks at each queue that was shown since, and at those of the last round of which more may leave. Returns how many segments left
        memory. O(segments of these queues that are in memory), and a walk of bounded length; it ends when the log takes no run."""
        port: pointer[log_port_t] = address(log.port)
        queue: pointer[queue_t]
        first: pointer[queue_t]
        before: uint64_t = self._out
        stays: bint
        self.refused = False
        spin_lock(address(port.paging_lock))
        first = port.paging
        port.paging = NULL
        spin_unlock(address(port.paging_lock))
        while first != NULL:
            queue = first
            first = queue.paging_next
            stays = self.refused
            if not stays:
                with nogil:
                    stays = self._page_queue(queue)
            if stays:
                spin_lock(address(port.paging_lock))
                queue.paging_next = port.paging
                port.paging = queue
                spin_unlock(address(port.paging_lock))
            else:
                at_store32(address(queue.paging), 0)
                queue_decref(queue)
        return self._out - before

    def _page_queue(self, queue: pointer[queue_t]) -> bint:
        """True: more may leave soon."""
        level: uint32_t
        before: uint64_t = self._out
        self.resting = False
        if not queue_pages(queue):
            return False
        for level in range(queue.entries.level_count):
            self._page_level(queue, level)
        queue_reclaim(queue, True)
        return self.refused or self.resting or self._out != before or at_load_ptr(address(queue.entries.retired_slots)) != NULL

    def _look(self, queue: pointer[queue_t], level: uint32_t, place: uint32_t) -> bint:
        """One place of a level's directory. True: a shell is there."""
        sub: pointer[level_t] = queue.entries.levels + level
        is_shell: bint
        outcome: c_int
        spin_lock(address(queue.entries.lock))
        is_shell = place < sub.count and sub.directory[sub.start + place].slots == NULL
        spin_unlock(address(queue.entries.lock))
        if not is_shell:
            outcome = queue_page_out(queue, level, place, self.entries)
            if outcome == OUT_GONE:
                self._out += 1
            elif outcome == OUT_LATER:
                self.resting = True
            elif outcome == OUT_REFUSED:
                self.refused = True
        return is_shell

    def _page_level(self, queue: pointer[queue_t], level: uint32_t) -> void:
        sub: pointer[level_t] = queue.entries.levels + level
        place: uint32_t = at_load32(address(sub.count))
        met: uint32_t = 0
        in_memory: uint32_t = 0
        walk: uint32_t = WALK
        most: uint64_t = self._out + ROUND_MOST
        while place and met < SHELLS_MET and self._out < most and not self.refused:
            place -= 1
            if self._look(queue, level, place):
                met += 1
            else:
                in_memory += 1
        # Is there more in memory than was met, and than stays at the start? Then readers were in the middle.
        if at_load32(address(sub.count)) <= at_load64(address(queue.entries.shells)) + in_memory + KEPT_FIRST:
            return
        if sub.paging_cursor > place:
            sub.paging_cursor = place
        if sub.paging_cursor == 0:
            sub.paging_cursor = place
        while sub.paging_cursor > KEPT_FIRST and walk and self._out < most and not self.refused:
            walk -= 1
            sub.paging_cursor -= 1
            self._look(queue, level, sub.paging_cursor)
        if sub.paging_cursor > KEPT_FIRST:
            self.resting = True
        else:
            sub.paging_cursor = 0

    def forget(self, log: LogPort) -> None:
        """Nothing leaves memory any more; lets go of the queues that were shown."""
        port: pointer[log_port_t] = address(log.port)
        queue: pointer[queue_t]
        following: pointer[queue_t]
        port.page_out = NULL
        spin_lock(address(port.paging_lock))
        queue = port.paging
        port.paging = NULL
        spin_unlock(address(port.paging_lock))
        while queue != NULL:
            following = queue.paging_next
            at_store32(address(queue.paging), 0)
            queue_decref(queue)
            queue = following

    @property
    def out(self) -> int:
        return self._out

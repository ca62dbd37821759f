"""Which queues of a broker have something to do: the housekeeping and the clock ask here, and look at no other (see due.pxd).

in: what queues say of themselves. out: ids of queues.
"""

from __future__ import annotations

from cython import NULL, address, cast, cclass, cfunc, exceptval, nogil, p_void, pointer, void
from cython.cimports.flintmq.core.atomics import at_load64, at_store32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.clock import monotonic_ns, wall_ms, wall_us
from cython.cimports.flintmq.queue.queue_core import queue_decref
from cython.cimports.flintmq.queue.types import queue_t
from cython.cimports.flintmq.scheduler.due_clock import DueClock, due_clock_arm, due_clock_t
from cython.cimports.libc.stdint import int64_t, uint64_t


@cfunc
@nogil
@exceptval(check=False)
def _arm(context: p_void, at_ms: int64_t) -> void:
    """Wall clock to the clock's own, which no step of the wall clock moves: the housekeeping looks, too, for that."""
    left_us: int64_t = at_ms * 1000 - cast(int64_t, wall_us())
    at_ns: int64_t = monotonic_ns()
    if left_us > 0:
        at_ns += left_us * 1000
    due_clock_arm(cast(pointer[due_clock_t], context), cast(uint64_t, at_ns))


@cclass
class DueIndex:
    """See due_index.pyi."""

    def use_clock(self, clock: DueClock) -> None:
        self.clock = clock
        spin_lock(address(self.index.lock))
        self.index.context = clock.clock
        self.index.soon = _arm
        spin_unlock(address(self.index.lock))

    def set_over(self, messages: int, size: int, ms: int) -> None:
        self.index.over_messages = messages
        self.index.over_bytes = size
        self.index.over_ms = ms

    def release(self) -> None:
        spin_lock(address(self.index.lock))
        self.index.soon = NULL
        self.index.context = NULL
        spin_unlock(address(self.index.lock))
        # Queues keep the index, unseen by the cycle collector (QueueHandle.watch): it must not keep them, nor through its clock the broker.
        self.clock = None
        retries = self.retries
        self.index.retries = NULL
        self.retries = None
        if retries is not None:
            retries.clear()
        self.take_due()
        self.ends = False
        self.take_worked()  # of a pass under way
        self.take_worked()
        self.take_over()

    def arm(self, at_ms: int) -> None:
        due_ms: int64_t = at_ms
        if self.index.soon != NULL:
            self.index.soon(self.index.context, due_ms)

    def take_due(self, most: int = 0) -> list:
        queue: pointer[queue_t]
        taken: list = []
        while most == 0 or len(taken) < most:
            spin_lock(address(self.index.lock))
            queue = self.index.due
            if queue != NULL:
                self.index.due = queue.due_next
                queue.due_listed = 0
            spin_unlock(address(self.index.lock))
            if queue == NULL:
                return taken
            taken.append((at_load64(cast(pointer[uint64_t], address(queue.due_at))), queue.id))
            queue_decref(queue)
        return taken

    def take_worked(self, most: int = 0) -> list:
        queue: pointer[queue_t]
        taken: list = []
        if self.worked == NULL and not self.ends:
            spin_lock(address(self.index.lock))
            self.worked = self.index.worked
            self.index.worked = NULL
            spin_unlock(address(self.index.lock))
        while self.worked != NULL and (most == 0 or len(taken) < most):
            queue = self.worked
            self.worked = queue.worked_next
            # Before its housekeeping looks: what it does from here on lists it again.
            at_store32(address(queue.worked), 0)
            taken.append(queue.id)
            queue_decref(queue)
        # The pass ends here, though others may have worked meanwhile: the next call says so.
        self.ends = self.worked == NULL and len(taken) != 0 and most != 0
        return taken

    def take_over(self) -> list:
        queue: pointer[queue_t]
        link: pointer[pointer[queue_t]]
        due: pointer[queue_t] = NULL
        now: int64_t = wall_ms()
        soonest: int64_t = 0
        taken: list = []
        spin_lock(address(self.index.lock))
        link = address(self.index.over)
        while link[0] != NULL:
            queue = link[0]
            # Without a clock the housekeeping asks, and takes all.
            if self.index.soon != NULL and queue.over_at > now:
                if soonest == 0 or queue.over_at < soonest:
                    soonest = queue.over_at
                link = address(queue.over_next)
            else:
                link[0] = queue.over_next
                queue.over_next = due
                due = queue
        spin_unlock(address(self.index.lock))
        while due != NULL:
            queue = due
            due = queue.over_next
            taken.append(queue.id)
            # From here on it may be listed again: it is looked at once more then.
            at_store32(address(queue.over), 0)
            queue_decref(queue)
        if soonest:
            self.arm(soonest)
        return taken

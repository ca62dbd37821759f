"""Messages that wait before they are delivered again (x-delayed-retry-type, -min, -max), on queues of every kind but streams.

in: entries that came back, which the broker holds; a step of the clock. out: the same, available in their places when their time has come.

R1  A message waits min(x-delayed-retry-min * n, x-delayed-retry-max) after its nth return (RabbitMQ 4.3). Messages that wait as long in one
    queue come back in the order in which they began to wait.
R2  What waits is held by the broker: nobody is given it, purge and length limits pass it, it counts as unacknowledged. It is in the
    memory account.
R3  Waits are kept in memory: after a restart what waited is available at once, with its delivery count. So they go by the monotonic
    clock: the wall clock may be set meanwhile.

Threading: any thread, with the GIL or without it.
"""

from __future__ import annotations

from cython import NULL, address, cast, cclass, cfunc, declare, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.due_index import DueIndex
from cython.cimports.flintmq.queue.pull import queue_release
from cython.cimports.flintmq.queue.queue_core import queue_decref, queue_incref, queue_is_deleted, queue_settle
from cython.cimports.flintmq.queue.types import REASON_PURGE, RETURN_WAITED, queue_t
from cython.cimports.flintmq.queue.waits import retries_t, retries_wait, wait_t, waits_pop, waits_sift, waits_t, waits_take_out
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset

# messages of a deleted queue that end in one slice
ENDS_AT_ONCE = declare(uint32_t, 256)
MS = declare(int64_t, 1_000_000)


@cfunc
@nogil
@exceptval(check=False)
def _free(waits: pointer[waits_t]) -> void:
    memory_add(MEMORY_ENTRIES, -cast(int64_t, sizeof(waits_t) + waits.room * sizeof(wait_t)))
    queue_decref(waits.queue)
    free(waits.items)
    free(waits)


@cfunc
@nogil
@exceptval(check=False)
def _come_back(retries: pointer[retries_t], now_ns: int64_t) -> uint32_t:
    """Up to WAITS_AT_ONCE of those whose time has come. Returns how many."""
    queues: pointer[queue_t][WAITS_AT_ONCE]
    positions: uint64_t[WAITS_AT_ONCE]
    emptied: pointer[waits_t][WAITS_AT_ONCE]
    waits: pointer[waits_t]
    count: uint32_t = 0
    empty: uint32_t = 0
    i: uint32_t
    spin_lock(address(retries.lock))
    while count < WAITS_AT_ONCE and retries.count and retries.queues[0].items[0].due_ns <= now_ns:
        waits = retries.queues[0]
        queues[count] = waits.queue
        queue_incref(waits.queue)
        positions[count] = waits.items[0].position
        count += 1
        retries.total -= 1
        if waits.count == 1:
            waits_take_out(retries, waits)
            emptied[empty] = waits
            empty += 1
        else:
            waits_pop(waits)
            waits_sift(retries, waits)
    spin_unlock(address(retries.lock))
    for i in range(empty):
        _free(emptied[i])
    for i in range(count):
        if queue_is_deleted(queues[i]):
            queue_settle(queues[i], NULL, positions[i], 0, REASON_PURGE, 0)
        else:
            queue_release(queues[i], NULL, positions[i], 0, RETURN_WAITED)
        queue_decref(queues[i])
    return count


@cclass
class Retries:
    """See retries.pyi."""

    def __cinit__(self, clock: object):
        memset(address(self.retries), 0, sizeof(retries_t))
        self.retries.manual_ns = -1
        self.clock = clock

    def __dealloc__(self):
        self.clear()
        free(self.retries.queues)

    def use(self, index: DueIndex) -> None:
        index.index.retries = address(self.retries)
        index.retries = self

    def clear(self) -> None:
        waits: pointer[waits_t]
        while True:
            spin_lock(address(self.retries.lock))
            waits = self.retries.queues[self.retries.count - 1] if self.retries.count else NULL
            if waits != NULL:
                self.retries.total -= waits.count
                waits_take_out(address(self.retries), waits)
            spin_unlock(address(self.retries.lock))
            if waits == NULL:
                break
            _free(waits)

    def __len__(self) -> int:
        return self.retries.total

    @property
    def _soonest_ns(self) -> int:
        soonest_ns: int64_t
        spin_lock(address(self.retries.lock))
        soonest_ns = self.retries.queues[0].items[0].due_ns if self.retries.count else 0
        spin_unlock(address(self.retries.lock))
        return soonest_ns

    @property
    def manual_ns(self) -> int:
        return self.retries.manual_ns

    @manual_ns.setter
    def manual_ns(self, value: int) -> None:
        at_store64(cast(pointer[uint64_t], address(self.retries.manual_ns)), cast(uint64_t, cast(int64_t, value)))

    def _now_ns(self):
        return self.clock.monotonic_ns() if self.retries.manual_ns < 0 else self.retries.manual_ns

    def waiting(self, handle: QueueHandle) -> int:
        waits: pointer[waits_t]
        count: uint64_t = 0
        spin_lock(address(self.retries.lock))
        waits = cast(pointer[waits_t], handle.queue.waits)
        if waits != NULL:
            count = waits.count
        spin_unlock(address(self.retries.lock))
        return count

    @property
    def is_due(self) -> bool:
        return 0 < self._soonest_ns <= self._now_ns()

    @property
    def due_ms(self) -> int:
        soonest_ns = self._soonest_ns
        return self.clock.wall_ms() + max(0, soonest_ns - self._now_ns() + MS - 1) // MS if soonest_ns else 0

    def add(self, handle: QueueHandle, position: int, count: int) -> bool:
        place: uint64_t = position
        number: uint32_t = count
        return retries_wait(handle.queue, place, number, self._now_ns())

    def step(self, until_ns: int) -> bool:
        now: int64_t
        while True:
            now = self._now_ns()
            with nogil:
                _come_back(address(self.retries), now)
            now = self._now_ns()
            if not 0 < self._soonest_ns <= now:
                return True
            if now >= until_ns:
                return False

    def forget(self, handle: QueueHandle) -> object:
        ending: Ending
        waits: pointer[waits_t]
        spin_lock(address(self.retries.lock))
        waits = cast(pointer[waits_t], handle.queue.waits)
        if waits != NULL:
            self.retries.total -= waits.count
            waits_take_out(address(self.retries), waits)
        spin_unlock(address(self.retries.lock))
        if waits == NULL:
            return None
        ending = Ending()
        ending.waits = waits
        return ending.step


@cclass
class Ending:
    """The messages of a deleted queue that waited, until all of them have ended."""

    def __dealloc__(self):
        if self.waits != NULL:
            _free(self.waits)

    def step(self) -> bool:
        """A slice of it ends. True: that was the rest."""
        i: uint32_t
        with nogil:
            for i in range(ENDS_AT_ONCE):
                if self.waits.count == 0:
                    break
                self.waits.count -= 1
                queue_settle(self.waits.queue, NULL, self.waits.items[self.waits.count].position, 0, REASON_PURGE, 0)
        return self.waits.count == 0

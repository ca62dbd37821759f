"""When leases, delays and visibility times end: a thread that sleeps until the first of them, so that a message is back at its time, not at
the next housekeeping.

in: times at which something ends, from any thread. out: calls of `give_back`, which ends the leases and delays that are due and says
when the next one is.

C1  Nothing armed is slept over: the time is there before the signal changes, and the thread reads the signal before the time. A
    time that is forgotten when a look begins is seen by that look: its lease or delay was there before the time was armed.
C2  Two looks are Limits.due_gap_ms apart at least, however many leases end: those that end in between wait for the next look.
"""

from __future__ import annotations

import logging
import threading

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, inline, nogil, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_cas64, at_load32, at_load64, at_store64, at_sub32
from cython.cimports.flintmq.core.clock import NS_PER_MS, monotonic_ns
from cython.cimports.flintmq.core.futex import futex_wait, futex_wake
from cython.cimports.flintmq.scheduler.timers import SLEEP_MS_MAX
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free

log = logging.getLogger("flintmq.scheduler")


@cfunc
@inline
@nogil
@exceptval(check=False)
def _kick(clock: pointer[due_clock_t]) -> void:
    at_add32(address(clock.signal), 1)
    futex_wake(address(clock.signal), 1)


def due_clock_arm(clock: pointer[due_clock_t], at_ns: uint64_t) -> void:
    seen: uint64_t
    if at_ns == 0:
        return
    while True:
        seen = at_load64(address(clock.at_ns))
        if seen != 0 and seen <= at_ns:
            return
        if at_cas64(address(clock.at_ns), seen, at_ns):
            _kick(clock)
            return


def due_clock_incref(clock: pointer[due_clock_t]) -> void:
    at_add32(address(clock.references), 1)


def due_clock_decref(clock: pointer[due_clock_t]) -> void:
    if at_sub32(address(clock.references), 1) == 1:
        free(clock)


@cclass
class DueClock:
    """See due_clock.pyi."""

    def __cinit__(self, give_back: object, gap_ms: int) -> None:
        self.clock = cast(pointer[due_clock_t], calloc(1, sizeof(due_clock_t)))
        if self.clock == NULL:
            raise MemoryError("no memory for a clock")
        self.clock.references = 1
        self.give_back = give_back
        self.gap_s = gap_ms / 1000
        self.ended = threading.Event()

    def __dealloc__(self):
        if self.clock != NULL:
            due_clock_decref(self.clock)

    @property
    def armed_ns(self) -> int:
        return at_load64(address(self.clock.at_ns))

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, name="flintmq-due", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.ended.set()
        _kick(self.clock)
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def arm(self, at_ns: int) -> None:
        if at_ns > 0:
            due_clock_arm(self.clock, at_ns)

    def take_due(self, now_ns: int) -> bool:
        at_ns: uint64_t = at_load64(address(self.clock.at_ns))
        if at_ns == 0 or at_ns > now_ns:
            return False
        at_store64(address(self.clock.at_ns), 0)
        return True

    def _run(self) -> None:
        while self.wait():
            self.passes += 1
            try:
                self.arm(self.give_back())
            except Exception:
                log.exception("internal error: what is over does not end before the next housekeeping")
            self.ended.wait(self.gap_s)

    def wait(self) -> bint:
        """Until something is due: True. False: the end."""
        signal: uint32_t
        at_ns: uint64_t
        now_ns: int64_t
        ms: int64_t
        while True:
            signal = at_load32(address(self.clock.signal))
            now_ns = monotonic_ns()
            if self.ended.is_set():
                return False
            if self.take_due(now_ns):
                return True
            at_ns = at_load64(address(self.clock.at_ns))
            ms = -1
            if at_ns:
                ms = max(0, min((cast(int64_t, at_ns) - now_ns + NS_PER_MS - 1) // NS_PER_MS, SLEEP_MS_MAX))
            with nogil:
                futex_wait(address(self.clock.signal), signal, cast(c_int, ms))

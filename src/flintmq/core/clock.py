"""The wall clock of the compiled half: the machine's, or one that stands until a test moves it (see clock.pxd).

in: the machine's clock; a time that a test sets. out: when messages expire, are due and were delivered.

The Python half asks its `clock.Clock`; a test that stops one clock stops the other (tests/support/standing.py). Measures and timers go by
the monotonic clock, which nobody sets: what is due by a clock that stands is found by the housekeeping.
"""

from __future__ import annotations

from cython import address, declare
from cython.cimports.flintmq.core.atomics import at_load64, at_store64
from cython.cimports.libc.stdint import int64_t, uint64_t

# microseconds of the Unix epoch; 0: the machine's clock
_standing_us = declare(uint64_t, 0)


def wall_ms() -> int64_t:
    standing: uint64_t = at_load64(address(_standing_us))
    return machine_ms() if standing == 0 else standing // 1000


def wall_us() -> uint64_t:
    standing: uint64_t = at_load64(address(_standing_us))
    return machine_us() if standing == 0 else standing


def stand_at(ms: int) -> None:
    """Stops the wall clock of the process, for tests.

    Args: ms: since the Unix epoch; 0: the clock goes on with the machine's.
    """
    at_store64(address(_standing_us), ms * 1000)

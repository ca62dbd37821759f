"""The pace of cold reads (see cold_pace.pxd).

in: what was loaded, how many messages came to which queues, the time. out: when the next piece may be loaded.

Reading, sending and settling old messages takes cores and disk from the new ones, and nobody waits for the thousandth old message as one
waits for a new one. So while messages come to queues that have nothing on disk, all cold reads together go at `rate`, in small pieces. A
queue never goes slower than twice its own arrivals, or it would never catch up. Without hot messages there is no pace.
"""

from __future__ import annotations

from cython import NULL, address, cast, cfunc, declare, exceptval, nogil, pointer, void
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.libc.stdint import int64_t, uint64_t

SECOND = declare(uint64_t, 1_000_000_000)
# ns between two samples of arrivals: short beside what a person notices, long beside a pass of an I/O loop
SAMPLE = declare(int64_t, 20_000_000)
# ns; a pause shorter than this is not worth a timer; so much is loaded ahead of the pace at most, since timers tick in milliseconds
PAUSE_MIN = declare(int64_t, 500_000)
CREDIT = declare(int64_t, 1_000_000)


def pace_begin(pace: pointer[pace_t], now: int64_t) -> void:
    pace.hot_at_ns = now
    pace.hot_seen = at_load64(pace.hot) if pace.hot != NULL else 0


@cfunc
@nogil
@exceptval(check=False)
def _look_for_hot(pace: pointer[pace_t], now: int64_t) -> void:
    elapsed: int64_t = now - pace.hot_at_ns
    count: uint64_t
    if elapsed < SAMPLE:
        return
    count = at_load64(pace.hot)
    pace.is_hot = (count - pace.hot_seen) * SECOND >= pace.hot_rate * cast(uint64_t, elapsed)
    pace.hot_seen = count
    pace.hot_at_ns = now


@cfunc
@nogil
@exceptval(check=False)
def _own_arrivals(pace: pointer[pace_t], now: int64_t, queue_id: uint64_t, enqueued: uint64_t) -> uint64_t:
    """Messages a second that come to this queue; 0 while that is not known."""
    seen: pointer[arrivals_t] = address(pace.queues[queue_id % PACE_QUEUES])
    if seen.queue_id != queue_id:
        seen.queue_id = queue_id
        seen.rate = 0
    elif now - seen.at_ns < SAMPLE:
        return seen.rate
    else:
        seen.rate = (enqueued - seen.seen) * SECOND // cast(uint64_t, now - seen.at_ns)
    seen.seen = enqueued
    seen.at_ns = now
    return seen.rate


def pace_charge(
    pace: pointer[pace_t], now: int64_t, queue_id: uint64_t, enqueued: uint64_t, entries: uint64_t, bytes_: uint64_t
) -> int64_t:
    cost: uint64_t
    own: uint64_t
    rate: uint64_t = pace.rate
    if pace.hot == NULL or rate == 0 or entries == 0:
        return 0
    _look_for_hot(pace, now)
    own = 2 * _own_arrivals(pace, now, queue_id, enqueued)
    if own > rate:
        rate = own
    if not pace.is_hot:
        pace.free_at_ns = now
        return 0
    cost = entries * SECOND // rate
    if pace.bytes_rate and bytes_ * SECOND // pace.bytes_rate > cost:
        cost = bytes_ * SECOND // pace.bytes_rate
    if pace.free_at_ns < now - CREDIT:
        pace.free_at_ns = now - CREDIT
    pace.free_at_ns += cast(int64_t, cost)
    return pace.free_at_ns if pace.free_at_ns - now >= PAUSE_MIN else 0

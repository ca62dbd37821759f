"""What the limits of a queue make of an arrival (see arrival.pxd).

in: a queue that got a message, or is about to. out: the time when the message expires; heads that leave.
"""

from __future__ import annotations

from cython import address, declare, pointer
from cython.cimports.flintmq.core.clock import wall_ms
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.limits import queue_take_excess
from cython.cimports.flintmq.queue.queue_core import queue_dequeue
from cython.cimports.flintmq.queue.types import REASON_DROP, delivery_t, queue_t
from cython.cimports.flintmq.routing.route_cache import DEST_SCHEDULE, destination_t
from cython.cimports.libc.stdint import int64_t, uint32_t

from flintmq.config import Limits

# messages that are dropped in one piece, some 50 us
DROPS_AT_ONCE = declare(uint32_t, 256)
ZERO_TTL_MS = declare(int64_t, Limits().zero_ttl_ms)


def expiry_on(destination: pointer[destination_t], expiration_ms: int64_t) -> int64_t:
    if destination.flags & DEST_SCHEDULE:
        return expiration_ms
    if expiration_ms >= 0 and expiration_ms < destination.ttl_least_ms:
        expiration_ms = destination.ttl_least_ms
    if destination.ttl_ms >= 0 and (expiration_ms < 0 or destination.ttl_ms < expiration_ms):
        expiration_ms = destination.ttl_ms
    if expiration_ms < 0:
        return 0
    return wall_ms() + (expiration_ms if expiration_ms else ZERO_TTL_MS)


def drop_head(queue: pointer[queue_t]) -> uint32_t:
    dropped: uint32_t = 0
    # More than a few are over only when a limit fell or many came back: what is left is for the slices of publishing.enforce_limits.
    delivery: delivery_t
    while dropped < DROPS_AT_ONCE and queue_take_excess(queue, address(delivery)):
        dropped += 1
        queue_dequeue(queue, delivery.slot, delivery.position, 0, REASON_DROP)
    return dropped


def drop_over(handle: QueueHandle) -> int:
    """Drops the head of a queue without a dead-letter exchange until it is within its limit, DROPS_AT_ONCE messages at most. Returns how
    many. Any thread."""
    return drop_head(handle.queue)

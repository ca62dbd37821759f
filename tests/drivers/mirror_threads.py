"""Publishes to a mirrored queue and takes from it without the GIL, as loops do (tests only).

in: a queue, how many messages. out: positions; messages that ended or came back.
"""

from __future__ import annotations

from cython import NULL, address, nogil, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.content import (
    CONTENT_PERSISTENT, arena_free, arena_new, arena_t, content_body, content_decref, content_frame, content_header, content_new,
    content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.queue_core import queue_dequeue, queue_enqueue, queue_release, queue_take_head
from cython.cimports.flintmq.queue.types import REASON_ACK, delivery_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memset
from cython.cimports.posix.unistd import usleep


def publish(handle: QueueHandle, count: int, size: int, pause_every: int) -> None:
    """Messages whose bodies are `size` bytes; a pause of some microseconds after each `pause_every` of them."""
    arena: pointer[arena_t] = arena_new()
    content: pointer[content_t]
    number: uint64_t
    most: uint64_t = count
    body: uint32_t = size
    every: uint64_t = pause_every
    with nogil:
        for number in range(most):
            content = content_new(arena, 3, 14, body)
            memset(content_route(content), 0, 3)
            content_route(content)[1] = 1
            memset(content_header(content), 0, 14)
            memset(content_body(content), number & 255, body)
            content_frame(content)
            content.flags = CONTENT_PERSISTENT
            queue_enqueue(handle.queue, content, 0, 0, NULL)
            content_decref(content)
            if number % every == 0:
                usleep(20)
    arena_free(arena)


def take(handle: QueueHandle, count: int, back_every: int) -> int:
    """Takes until `count` messages ended; each `back_every`th comes back, flagged, before it ends. Returns how many came back."""
    delivery: delivery_t
    ended: uint64_t = 0
    looked: uint64_t = 0
    returned: uint64_t = 0
    idle: c_int = 0
    most: uint64_t = count
    every: uint64_t = back_every
    with nogil:
        while ended < most and idle < 200_000:
            if not queue_take_head(handle.queue, address(delivery)):
                idle += 1
                usleep(10)
                continue
            idle = 0
            looked += 1
            if looked % every == 0 and not delivery.redelivered:
                queue_release(handle.queue, delivery.slot, delivery.position, 0, True)
                returned += 1
            elif queue_dequeue(handle.queue, delivery.slot, delivery.position, 0, REASON_ACK):
                ended += 1
    return returned

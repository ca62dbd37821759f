"""The log port of the message path.

in: enqueues and dequeues of logged messages (persistent, on a durable queue), spilled content, loads; on loop threads without the
GIL. out: LSNs, and the LSN up to which everything is durable.

A confirm is sent when the durable LSN has reached the LSN of its message (channel/placing.py). Whoever moves the durable LSN
calls log_port_wake afterwards, so that waiting confirms leave without the publisher having to say anything more.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.consumer_manager import manager_available, manager_changed, manager_wake_waiters
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.grouped import grouped_look_again
from cython.cimports.flintmq.queue.queue_core import queue_decref
from cython.cimports.flintmq.queue.types import LOG_WAKERS_MAX, log_port_t, log_waker_t, queue_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memset


@cfunc
@nogil
@exceptval(check=False)
def _first_marked(port: pointer[log_port_t], durable: uint64_t) -> pointer[queue_t]:
    """The oldest queue that waits for an LSN up to `durable`, no longer on the list, with its reference; NULL: there is none."""
    queue: pointer[queue_t]
    spin_lock(address(port.marked_lock))
    queue = port.marked
    if queue != NULL and queue.marked_wanted > durable:
        queue = NULL
    if queue != NULL:
        port.marked = queue.marked_next
        queue.marked_waits = 0
    spin_unlock(address(port.marked_lock))
    return queue


def log_port_marked(port: pointer[log_port_t]) -> void:
    queue: pointer[queue_t]
    durable: uint64_t
    if port.delivered == NULL:
        return
    durable = port.durable_lsn(port.context)
    queue = _first_marked(port, durable)
    while queue != NULL:
        manager_changed(queue)
        if queue.message_groups != NULL:
            grouped_look_again(queue)
        manager_available(queue, 0, NULL, False)
        manager_wake_waiters(queue)
        queue_decref(queue)
        queue = _first_marked(port, durable)


def log_port_forget(port: pointer[log_port_t]) -> void:
    queue: pointer[queue_t] = _first_marked(port, ~cast(uint64_t, 0))
    while queue != NULL:
        queue_decref(queue)
        queue = _first_marked(port, ~cast(uint64_t, 0))


@cclass
class LogPort:
    """Base of every log: keeps the wakers; the rest is the subclass's."""

    def __cinit__(self):
        memset(address(self.port), 0, sizeof(log_port_t))

    def add_waker(self, wake: log_waker_t, context: p_void) -> c_int:
        full: bint
        spin_lock(address(self.port.waker_lock))
        full = self.port.waker_count == LOG_WAKERS_MAX
        if not full:
            self.port.wakers[self.port.waker_count].wake = wake
            self.port.wakers[self.port.waker_count].context = context
            self.port.waker_count += 1
        spin_unlock(address(self.port.waker_lock))
        if full:
            raise MemoryError("too many threads wait for the log")
        return 0

    def remove_waker(self, context: p_void) -> void:
        i: uint32_t
        spin_lock(address(self.port.waker_lock))
        for i in range(self.port.waker_count):
            if self.port.wakers[i].context == context:
                self.port.waker_count -= 1
                self.port.wakers[i] = self.port.wakers[self.port.waker_count]
                break
        spin_unlock(address(self.port.waker_lock))

    def load_now(self, message_id: uint64_t) -> pointer[content_t]:
        raise KeyError(message_id)

    def enrol(self) -> Enrolment:
        raise NotImplementedError

    def enrol_small(self) -> Enrolment:
        return self.enrol()

    def note_consumer(self, consumer_id: uint32_t, tag: bytes | None, group: bytes | None) -> c_int:
        return 0

    def attach(self, handle: object, queue_id: object = None) -> None:
        """A durable queue that logs here."""

    def when_durable(self, lsn: int, callback: object) -> None:
        """Calls `callback()` when everything below this LSN is durable: at once, or on the thread that finds it."""
        raise NotImplementedError

    def tail_lsn(self) -> int:
        """LSN of the message log's next record: what the calling thread has logged is below it."""
        raise NotImplementedError

    def drop_queue(self, queue_id: int) -> int:
        """A durable queue was deleted. Returns an LSN, 0: nothing to wait for."""
        return 0

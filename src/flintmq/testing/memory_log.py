"""A log that keeps nothing: the twin of the store's log for tests of what waits for durability.

While held, LSNs are given out but none becomes durable; `release` makes all of them durable at once.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add64, at_load32, at_load64, at_store32, at_store64
from cython.cimports.flintmq.queue.types import queue_t, slot_t
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append(log: cython.pointer(memory_log_t)) -> uint64_t:
    lsn: uint64_t = at_add64(cython.address(log.last_lsn), 1) + 1
    if not at_load32(cython.address(log.held)):
        at_store64(cython.address(log.durable), lsn)
    return lsn


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enqueue(context: cython.p_void, queue: cython.pointer(queue_t), position: uint64_t, slot: cython.pointer(slot_t)) -> uint64_t:
    log: cython.pointer(memory_log_t) = cython.cast(cython.pointer(memory_log_t), context)
    log.enqueues += 1
    return _append(log)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _dequeue(
    context: cython.p_void,
    queue: cython.pointer(queue_t),
    position: uint64_t,
    slot: cython.pointer(slot_t),
    reason: cython.int,
) -> uint64_t:
    log: cython.pointer(memory_log_t) = cython.cast(cython.pointer(memory_log_t), context)
    log.dequeues += 1
    return _append(log)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _durable(context: cython.p_void) -> uint64_t:
    return at_load64(cython.address(cython.cast(cython.pointer(memory_log_t), context).durable))


@cython.cclass
class MemoryLog:
    """See module."""

    def __cinit__(self):
        memset(cython.address(self.log), 0, cython.sizeof(memory_log_t))
        self.context = cython.address(self.log)
        self.log_enqueue = _enqueue
        self.log_dequeue = _dequeue
        self.durable_lsn = _durable

    def hold(self) -> None:
        """From now on nothing becomes durable."""
        at_store32(cython.address(self.log.held), 1)

    def release(self) -> None:
        """Everything logged so far is durable; tells on_durable."""
        at_store32(cython.address(self.log.held), 0)
        at_store64(cython.address(self.log.durable), at_load64(cython.address(self.log.last_lsn)))
        if self.on_durable is not None:
            self.on_durable()

    @property
    def last_lsn(self) -> int:
        return self.log.last_lsn

    @property
    def enqueues(self) -> int:
        return self.log.enqueues

    @property
    def dequeues(self) -> int:
        return self.log.dequeues

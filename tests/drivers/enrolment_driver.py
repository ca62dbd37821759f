"""A transaction of the queue core, its log's half played by the test.

in: plain values of a test. out: calls of Enrolment; what its port was asked.
"""

from __future__ import annotations

from cython import NULL, bint, cast, cclass, cfunc, exceptval, longlong, p_void, pointer
from cython import int as c_int
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.queue_core import queue_hold_at
from cython.cimports.flintmq.queue.types import REASON_ACK, queue_t, slot_t
from cython.cimports.libc.stdint import uint32_t, uint64_t


@cfunc
@exceptval(True, check=True)
def _enqueue(context: p_void, queue: pointer[queue_t], position: uint64_t, slot: pointer[slot_t], expires_at_ms: longlong) -> bint:
    driver: EnrolmentDriver = cast(EnrolmentDriver, context)
    driver.asked.append(("enqueue", queue.id, position))
    if driver.refusal is not None:
        raise driver.refusal
    return driver.takes


@cfunc
@exceptval(True, check=True)
def _dequeue(
    context: p_void,
    queue: pointer[queue_t],
    position: uint64_t,
    slot: pointer[slot_t],
    owner: uint32_t,
    reason: c_int,
    delivered_us: uint64_t,
) -> bint:
    driver: EnrolmentDriver = cast(EnrolmentDriver, context)
    driver.asked.append(("dequeue", queue.id, position, reason))
    if driver.refusal is not None:
        raise driver.refusal
    return driver.takes


@cclass
class EnrolmentDriver:
    """Args: logged: it has a port; else nothing of it is logged."""

    def __init__(self, logged: bool = True) -> None:
        self.enrolment = Enrolment()
        self.asked = []
        self.refusal = None
        self.takes = True
        if logged:
            self.enrolment.port.context = cast(p_void, self)
            self.enrolment.port.enqueue = _enqueue
            self.enrolment.port.dequeue = _dequeue

    def enqueue(self, handle: QueueHandle, body: bytes, persistent: bool = True) -> bool:
        content: pointer[content_t] = content_from_bytes(b"", b"key", b"", body, CONTENT_PERSISTENT if persistent else 0, 0)
        try:
            return self.enrolment.enqueue(handle.queue, content, 0)
        finally:
            content_decref(content)

    def dequeue(self, handle: QueueHandle, position: int) -> bool:
        """Of an available entry, which is acquired for it. Raises: KeyError."""
        slot: pointer[slot_t] = queue_hold_at(handle.queue, position)
        if slot == NULL:
            raise KeyError(position)
        return self.enrolment.dequeue(handle.queue, position, slot, 0, REASON_ACK, 0)

    def held(self) -> list:
        """(position, whether its record is in the log) of each held entry, in the order in which they were added."""
        i: uint32_t
        found: list = []
        for i in range(self.enrolment.held_count):
            found.append((self.enrolment.held[i].position, bool(self.enrolment.held[i].logged)))
        return found

    def apply(self) -> None:
        self.enrolment.apply()

    def undo(self) -> None:
        self.enrolment.undo()

    def abandon(self) -> None:
        self.enrolment.abandon()

"""Enrolment: one transaction, whatever its front (AMQP tx, a distributed branch, a set, a stage): begin, add, prepare, commit, apply, undo.

in: messages for queues, delivered entries; the outcome. out: held entries, which nobody sees; in `apply` all of them at once.

The log's half stands behind a port (`enrolment_port_t`); without one nothing is logged. The store's LogEnrolment fills the port in, and
adds what a branch adds to a transaction: runs of entries, staged blocks.

E1  A held entry has its final position when it is added; nobody sees it before `apply`.
E2  Every held entry is published by `apply` or dropped by `undo`, once.

Threading: one thread at a time for each, GIL held; nothing here waits for the disk.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, longlong, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import CONTENT_PERSISTENT, content_t
from cython.cimports.flintmq.queue.queue_core import (
    queue_add_held, queue_decref, queue_drop_held, queue_incref, queue_is_durable, queue_publish_held,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import ENTRY_LOGGED, queue_t, slot_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc


@cclass
class Enrolment:
    """See module."""

    def __dealloc__(self):
        # A loop that ended did not apply it: recovery will.
        self._free()

    # --- add ------------------------------------------------------------------------------------------------------------

    def enqueue(self, queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: longlong) -> bint:
        held: pointer[held_t]
        size: uint32_t
        if self.held_count == self.held_size:
            size = self.held_size * 2 if self.held_size else 16
            held = cast(pointer[held_t], realloc(self.held, size * sizeof(held_t)))
            if held == NULL:
                raise MemoryError
            self.held = held
            self.held_size = size
        held = address(self.held[self.held_count])
        held.logged = False
        held.expires_at_ms = expires_at_ms
        held.slot = queue_add_held(queue, content, expires_at_ms, address(held.position))
        if held.slot == NULL:
            return False  # deleted meanwhile, as for any publish
        held.queue = queue
        queue_incref(queue)
        self.held_count += 1
        if self.port.enqueue != NULL and content.flags & CONTENT_PERSISTENT and queue_is_durable(queue):
            held.logged = self.port.enqueue(self.port.context, queue, held.position, held.slot, expires_at_ms)
        return True

    def dequeue(
        self,
        queue: pointer[queue_t],
        position: uint64_t,
        slot: pointer[slot_t],
        owner: uint32_t,
        reason: c_int,
        delivered_us: uint64_t,
    ) -> bint:
        if self.port.dequeue == NULL or slot.state & ENTRY_LOGGED == 0:
            return False
        return self.port.dequeue(self.port.context, queue, position, slot, owner, reason, delivered_us)

    # --- outcome --------------------------------------------------------------------------------------------------------

    def decide(self) -> c_int:
        return 0

    def durable(self) -> bint:
        return True

    def abandon(self) -> None:
        """It was not committed and is forgotten: a queue or the log refused a part of it."""
        self.undo()

    # --- effects --------------------------------------------------------------------------------------------------------

    def apply(self) -> object:
        i: uint32_t
        for i in range(self.held_count):
            queue_publish_held(self.held[i].queue, self.held[i].slot, self.held[i].position, self.held[i].logged)
        self._free()

    def applied(self) -> c_int:
        return 0

    def undo(self) -> object:
        i: uint32_t
        for i in range(self.held_count):
            queue_drop_held(self.held[i].queue, self.held[i].slot, self.held[i].position)
        self._free()

    def _free(self) -> void:
        i: uint32_t
        for i in range(self.held_count):
            queue_decref(self.held[i].queue)
        free(self.held)
        self.held = NULL
        self.held_count = self.held_size = 0

"""A batch of scheduled messages whose time has come (see firing.pxd).

in: due entries of a schedule, the queues that each goes to. out: entries on those queues; the schedule's entries end.

F1  For the log the batch is one transaction: the dequeues from the schedule and the enqueues elsewhere become true together, so a crash
    leaves each message in one of the two. A message keeps its id, and its content is not written again.
F2  Nothing of it is seen before the log has the commit. Entries get their places, and are shown, in the order of their times.
F3  What goes to a stream is appended before the commit: a crash in between appends it once more, and loses nothing.

Made, used and dropped by one thread, which may wait for the disk (broker/schedules.py).
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cclass, nogil, pointer, sizeof
from cython.cimports.flintmq.channel.placing import Landing
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_header, content_incref, content_route, content_t
from cython.cimports.flintmq.protocol.v0_9_1.codec import EXPIRATION_ABSENT, props_scan_t, scan_properties
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.queue_core import (
    queue_acquired_failed, queue_enqueue, queue_forget_logged, queue_get_id, queue_release, queue_settle, queue_take_expired,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import ENTRY_LOGGED, REASON_MOVE, delivery_t, queue_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memset

from flintmq.errors import StoreBusyError, StoreError

log = logging.getLogger("flintmq.schedules")


@cclass
class Firing(Landing):
    """See firing.pyi."""

    def __cinit__(self, core: QueueHandle, log: LogPort | None):
        self.core = core
        self.log = log
        self.work = None
        self.limited = []
        self.streamed = []

    def __dealloc__(self):
        self._free()

    # --- taking ---------------------------------------------------------------------------------------------------------

    def take(self, now_ms: int, most: int, bytes_most: int) -> list:
        """See firing.pyi."""
        delivery: delivery_t
        content: pointer[content_t]
        item: pointer[fired_t]
        now: int64_t = now_ms
        limit: uint32_t = most
        taken_bytes: uint64_t = 0
        bytes_limit: uint64_t = bytes_most
        due: bint
        taken: list = []
        if self.fired_size < limit:
            item = cast(pointer[fired_t], realloc(self.fired, limit * sizeof(fired_t)))
            if item == NULL:
                raise MemoryError
            self.fired = item
            self.fired_size = limit
        while self.fired_count < limit and taken_bytes < bytes_limit:
            with nogil:
                due = queue_take_expired(self.core.queue, now, address(delivery))
            if not due:
                break
            content = delivery.content
            if content != NULL:
                content_incref(content)
            else:
                try:
                    if self.log is None:
                        raise KeyError(delivery.message_id)
                    content = self.log.load_now(delivery.message_id)
                except StoreBusyError:
                    queue_release(self.core.queue, delivery.slot, delivery.position, 0, False)
                    if not taken:
                        raise
                    break
                except (StoreError, KeyError):
                    queue_acquired_failed(self.core.queue, delivery.position)
                    self.unreadable += 1
                    continue
            item = address(self.fired[self.fired_count])
            memset(item, 0, sizeof(fired_t))
            item.slot = delivery.slot
            item.position = delivery.position
            item.content = content
            item.logged = at_load64(address(delivery.slot.state)) & ENTRY_LOGGED != 0
            if item.logged and content.message_id == 0:
                content.message_id = delivery.slot.message_id  # nobody else has it
            self.fired_count += 1
            taken_bytes += content.body_len
            taken.append(self._facts(self.fired_count - 1))
        return taken

    def _facts(self, index: int) -> tuple:
        """What `take` says of it."""
        content: pointer[content_t] = self.fired[index].content
        scan: props_scan_t
        route: bytes = content_route(content)[: content.route_len]
        if scan_properties(content_header(content), content.header_len, address(scan)) != 0:
            return route, EXPIRATION_ABSENT, False, content.body_len
        return route, scan.expiration_ms, bool(scan.has_cc), content.body_len

    def header(self, index: int) -> bytes:
        """See firing.pyi."""
        content: pointer[content_t] = self.fired[index].content
        return content_header(content)[: content.header_len]

    def message(self, index: int) -> tuple:
        """See firing.pyi."""
        return content_tuple(self.fired[index].content)

    def set_aside(self, index: int) -> None:
        """See firing.pyi."""
        self.fired[index].aside = True

    # --- placing --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """See firing.pyi."""
        i: uint32_t
        item: pointer[fired_t]
        for i in range(self.fired_count):
            self.logged = self.logged or (self.fired[i].logged and not self.fired[i].aside)
        self.work = self.log.enrol() if self.logged else Enrolment()
        for i in range(self.fired_count):
            item = address(self.fired[i])
            if not item.aside and item.logged and not self.work.dequeue(self.core.queue, item.position, item.slot, 0, REASON_MOVE, 0):
                raise KeyError(f"no entry {item.position} in the schedule")

    def _land(self, queue: pointer[queue_t], content: pointer[content_t], expires_at_ms: int64_t) -> bint:
        if queue.ops == NULL:
            return self.work.enqueue(queue, content, expires_at_ms)
        if not queue_enqueue(queue, content, 0, 0, NULL):
            return False
        self.streamed.append(queue_get_id(queue))
        return True

    def place(self, index: int, core: QueueHandle, expires_at_ms: int) -> bool:
        """See firing.pyi."""
        item: pointer[fired_t] = address(self.fired[index])
        check(not item.aside, b"firing F1 what is left out is not placed", item.position, index)
        return self._land(core.queue, item.content, expires_at_ms)

    # --- outcome --------------------------------------------------------------------------------------------------------

    def decide(self, durable: object) -> bool:
        """See firing.pyi."""
        if not self.logged:
            return False
        self.work.decide()
        try:
            cast(object, self.work).on_durable(durable)
        except Exception:  # it is decided: from here on nothing is taken back, and `is_durable` tells
            log.exception("internal error: nobody says when scheduled messages may be routed")
        return True

    def is_durable(self) -> bool:
        """See firing.pyi."""
        return self.work.durable()

    def apply(self) -> None:
        """See firing.pyi."""
        i: uint32_t
        item: pointer[fired_t]
        self.work.apply()
        for i in range(self.fired_count):
            item = address(self.fired[i])
            if item.aside:
                continue
            if item.logged:
                queue_forget_logged(self.core.queue, item.slot, item.position, 0)
            queue_settle(self.core.queue, item.slot, item.position, 0, REASON_MOVE, 0)
        self.work.applied()
        self._free()

    def abandon(self) -> None:
        """See firing.pyi."""
        i: uint32_t
        if self.work is not None:
            try:
                cast(object, self.work).abandon()
            except StoreError:
                pass  # the disk failed for good: recovery forgets what has no commit record
        for i in range(self.fired_count):
            if not self.fired[i].aside:
                queue_release(self.core.queue, self.fired[i].slot, self.fired[i].position, 0, False)
        self._free()

    def _free(self) -> object:
        i: uint32_t
        for i in range(self.fired_count):
            content_decref(self.fired[i].content)
        free(self.fired)
        self.fired = NULL
        self.fired_count = 0
        self.fired_size = 0

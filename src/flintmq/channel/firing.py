"""A batch of scheduled messages whose time has come (see firing.pxd).

in: due entries of a schedule, cached routes, the queues of those that Python plans. out: entries on those queues; the schedule's entries
end.

F1  For the log the batch is one transaction: the dequeues from the schedule and the enqueues elsewhere become true together, so a crash
    leaves each message in one of the two. A message keeps its id, and its content is not written again.
F2  Nothing of it is seen before the log has the commit. Entries get their places, and are shown, in the order of their times.
F3  What goes to a stream is appended before the commit: a crash in between appends it once more, and loses nothing.

Made, used and dropped by one thread, which may wait for the disk (broker/schedules.py).
"""

from __future__ import annotations

import logging

from cython import NULL, address, bint, cast, cclass, cfunc, inline, nogil, pointer, sizeof, void
from cython.cimports.flintmq.channel.arrival import expiry_on
from cython.cimports.flintmq.channel.deciding import route_by_key
from cython.cimports.flintmq.channel.placing import Landing
from cython.cimports.flintmq.core.atomics import at_load64
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import content_decref, content_header, content_incref, content_route, content_t
from cython.cimports.flintmq.protocol.v0_9_1.codec import EXPIRATION_ABSENT, props_scan_t, scan_properties
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.enrolment import Enrolment
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.queue_core import (
    queue_acquired_failed, queue_enqueue, queue_forget_logged, queue_get_id, queue_is_deleted, queue_release, queue_settle,
    queue_take_expired,
)  # fmt: skip
from cython.cimports.flintmq.queue.types import ENTRY_LOGGED, REASON_MOVE, delivery_t, queue_t
from cython.cimports.flintmq.routing.route_cache import (
    DEST_BLOCK, DEST_LIMITED, DEST_MIRRORED, DEST_REJECT_OVER, DEST_SHARED, RouteCache, destination_t, route_decref, route_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcmp, memset

from flintmq.errors import StoreBusyError, StoreError

log = logging.getLogger("flintmq.schedules")


@cfunc
@inline
def _is_for(cache: RouteCache, route: pointer[uint8_t]) -> bint:
    """Whether a message's route names the cache's exchange."""
    return cache.exchange.name_len == route[0] and memcmp(cache.exchange.name, route + 1, route[0]) == 0


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

    def take(self, now_ms: int, most: int, bytes_most: int) -> int:
        """See firing.pyi."""
        delivery: delivery_t
        content: pointer[content_t]
        items: pointer[fired_t]
        now: int64_t = now_ms
        limit: uint32_t = most
        bytes_limit: uint64_t = bytes_most
        is_cold: bint
        if self.fired_size < limit:
            items = cast(pointer[fired_t], realloc(self.fired, limit * sizeof(fired_t)))
            if items == NULL:
                raise MemoryError
            self.fired = items
            self.fired_size = limit
        while True:
            with nogil:
                is_cold = self._take_some(now, limit, bytes_limit, address(delivery))
            if not is_cold:
                return self.fired_count
            try:
                if self.log is None:
                    raise KeyError(delivery.message_id)
                content = self.log.load_now(delivery.message_id)
            except StoreBusyError:
                queue_release(self.core.queue, delivery.slot, delivery.position, 0, False)
                if not self.fired_count:
                    raise
                return self.fired_count
            except (StoreError, KeyError):
                queue_acquired_failed(self.core.queue, delivery.position)
                self.unreadable += 1
                continue
            self._add(address(delivery), content)

    def _take_some(self, now: int64_t, limit: uint32_t, bytes_limit: uint64_t, cold: pointer[delivery_t]) -> bint:
        """True: the content of the next one is on disk only. False: no more is due, or the batch is full."""
        while self.fired_count < limit and self.fired_bytes < bytes_limit and queue_take_expired(self.core.queue, now, cold):
            if cold.content == NULL:
                return True
            content_incref(cold.content)
            self._add(cold, cold.content)
        return False

    def _add(self, delivery: pointer[delivery_t], content: pointer[content_t]) -> void:
        item: pointer[fired_t] = address(self.fired[self.fired_count])
        memset(item, 0, sizeof(fired_t))
        item.slot = delivery.slot
        item.position = delivery.position
        item.content = content
        item.logged = at_load64(address(delivery.slot.state)) & ENTRY_LOGGED != 0
        if item.logged and content.message_id == 0:
            content.message_id = delivery.slot.message_id  # nobody else has it
        self.fired_count += 1
        self.fired_bytes += content.body_len

    # --- routing --------------------------------------------------------------------------------------------------------

    def route(self, find: object, learn: object) -> list:
        """See firing.pyi."""
        scan: props_scan_t
        item: pointer[fired_t]
        i: uint32_t
        others: list = []
        self.caches = {}
        self.unknown = set()
        for i in range(self.fired_count):
            item = address(self.fired[i])
            if scan_properties(content_header(item.content), item.content.header_len, address(scan)) != 0:
                scan.expiration_ms = EXPIRATION_ABSENT
                scan.has_cc = False
            item.expiration_ms = scan.expiration_ms
            if not scan.has_cc:
                item.route = self._find(item.content, find, learn)
            if item.route == NULL:
                others.append(
                    (i, content_route(item.content)[: item.content.route_len], scan.expiration_ms, bool(scan.has_cc), item.content.body_len)
                )
            elif item.route.count == 0:
                self.unroutable += 1
        return others

    def _find(self, content: pointer[content_t], find: object, learn: object) -> pointer[route_t]:
        """The route of a message, with a reference; NULL: Python says where it goes to."""
        octets: pointer[uint8_t] = content_route(content)
        route: pointer[route_t] = NULL
        if self.cache is None or not _is_for(self.cache, octets):
            exchange: bytes = octets[1 : 1 + octets[0]]
            if exchange not in self.caches:
                self.caches[exchange] = find(exchange)
            self.cache = self.caches[exchange]
        if self.cache is not None:
            route = self._known(content)
        if route != NULL or octets[: content.route_len] in self.unknown:
            return route
        self.learned += 1
        self.cache = learn(octets[1 : 1 + octets[0]], octets[2 + octets[0] : content.route_len])
        self.caches[octets[1 : 1 + octets[0]]] = self.cache
        if self.cache is not None:
            route = self._known(content)
        if route == NULL:
            self.unknown.add(octets[: content.route_len])
        return route

    def _known(self, content: pointer[content_t]) -> pointer[route_t]:
        """The cached route, with a reference. NULL: it is not cached, headers decide, or a queue may refuse, is shared or gone."""
        how: uint8_t = 0
        i: uint32_t
        flags: uint32_t
        route: pointer[route_t] = route_by_key(self.cache.exchange, content_route(content), content.route_len, address(how))
        if route == NULL:
            return NULL
        for i in range(route.count):
            flags = route.destinations[i].flags
            if flags & (DEST_REJECT_OVER | DEST_BLOCK | DEST_SHARED | DEST_MIRRORED) or queue_is_deleted(route.destinations[i].queue):
                route_decref(route)
                return NULL
        return route

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

    def place_routed(self, first: int, end: int) -> int:
        """See firing.pyi."""
        i: uint32_t
        k: uint32_t
        item: pointer[fired_t]
        destination: pointer[destination_t]
        refused: int = 0
        for i in range(first, end):
            item = address(self.fired[i])
            if item.route == NULL:
                continue
            for k in range(item.route.count):
                destination = address(item.route.destinations[k])
                if not self._land(destination.queue, item.content, expiry_on(destination, item.expiration_ms)):
                    refused += 1
                elif destination.flags & DEST_LIMITED:
                    self._limited(destination.queue)
        return refused

    def _limited(self, queue: pointer[queue_t]) -> void:
        if not self.limited or self.limited[len(self.limited) - 1] != queue.id:
            self.limited.append(queue.id)

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
        with nogil:
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
            if self.fired[i].route != NULL:
                route_decref(self.fired[i].route)
        free(self.fired)
        self.fired = NULL
        self.fired_count = 0
        self.fired_size = 0

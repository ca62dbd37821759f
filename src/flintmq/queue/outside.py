"""Entry lists of kinds that come from outside this package (see outside.pyi, kinds.py).

in: the hooks of list_ops_t, on any thread without the GIL. out: calls of the kind's Python, with the GIL; only queues of such kinds pay
for it.

I1  A hook holds no lock of the queue: the kind may call the queue from it.
I2  What a kind raises is logged and ends nothing: the entry goes to level 0, or stays where it is.
"""

from __future__ import annotations

import logging

from cython import NULL, address, cast, cclass, cfunc, declare, exceptval, gil, nogil, p_void, pointer, void
from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.queue.control import QueueHandle, content_tuple, queue_message
from cython.cimports.flintmq.queue.list_kinds import LIST_PRIORITY
from cython.cimports.flintmq.queue.queue_core import queue_dequeue, queue_next_available, queue_take_at
from cython.cimports.flintmq.queue.types import REASON_DROP, list_ops_t, list_t, queue_t, slot_t
from cython.cimports.libc.stdint import uint32_t, uint64_t

log = logging.getLogger("flintmq.queue.kinds")


_outside_ops = declare(list_ops_t)


@cfunc
def _message(content: pointer[content_t]):
    """None: not at hand, or only a place is asked for (a transaction's message comes later)."""
    if content == NULL or content.route_len == 0:
        return None
    return content_tuple(content)


@cfunc
@nogil
@exceptval(check=False)
def _level(entries: pointer[list_t], content: pointer[content_t]) -> uint32_t:
    level: uint32_t = 0
    with gil:
        try:
            level = min(max(0, cast(Entries, entries.kind).kind.level(_message(content))), entries.level_count - 1)
        except Exception:
            log.exception("a kind of queue fails to say where a message goes: it goes to the front level")
    return level


@cfunc
@nogil
@exceptval(check=False)
def _arrived(queue: pointer[queue_t], position: uint64_t, content: pointer[content_t]) -> void:
    with gil:
        try:
            cast(Entries, queue.entries.kind).kind.arrived(position, _message(content))
        except Exception:
            log.exception("a kind of queue fails to take note of a message")


@cfunc
@nogil
@exceptval(check=False)
def _returned(queue: pointer[queue_t], position: uint64_t) -> void:
    with gil:
        try:
            cast(Entries, queue.entries.kind).kind.returned(position)
        except Exception:
            log.exception("a kind of queue fails to take note of a message that came back")


@cfunc
@nogil
@exceptval(check=False)
def _destroy(entries: pointer[list_t]) -> void:
    with gil:
        face: Entries = cast(Entries, entries.kind)
        face.queue = NULL
        face.kind = None
        entries.kind = NULL
        Py_DECREF(face)


@cclass
class Entries:
    """See outside.pyi."""

    @property
    def levels(self) -> int:
        return self.queue.entries.level_count if self.queue != NULL else 0

    def next_available(self, position: int = 0) -> int:
        return queue_next_available(self.queue, position) if self.queue != NULL else 0

    def message_at(self, position: int) -> tuple:
        if self.queue == NULL:
            raise KeyError(position)
        return queue_message(self.queue, self.log, position)

    def end(self, position: int) -> bool:
        slot: pointer[slot_t] = NULL
        if self.queue != NULL:
            slot = queue_take_at(self.queue, position, 0)
        return slot != NULL and bool(queue_dequeue(self.queue, slot, position, 0, REASON_DROP))


def new_outside(queue_id: int, levels: int, log: object, open: object, durable: bool = False) -> QueueHandle:
    handle: QueueHandle = QueueHandle(queue_id, LIST_PRIORITY, levels)
    face: Entries = Entries.__new__(Entries)
    handle.set_durable(durable)
    if log is not None:
        handle.attach_log(log)
    face.queue = handle.queue
    face.log = log
    face.kind = open(face)
    _outside_ops.compare = handle.queue.entries.ops.compare
    _outside_ops.priorities = handle.queue.entries.ops.priorities
    _outside_ops.in_order = False
    _outside_ops.level_of = _level
    _outside_ops.arrived = _arrived
    _outside_ops.returned = _returned
    _outside_ops.destroy = _destroy
    Py_INCREF(face)
    handle.queue.entries.kind = cast(p_void, face)
    handle.queue.entries.ops = address(_outside_ops)
    return handle

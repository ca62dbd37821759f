"""Entry lists of kinds that come from outside this package (see outside.pyi, kinds.py).

in: the hooks of list_ops_t, on any thread without the GIL. out: calls of the kind's Python, with the GIL; only queues of such kinds pay for it.

I1  A hook holds no lock of the queue: the kind may call the queue from it.
I2  What a kind raises is logged and ends nothing: the entry goes to level 0, or stays where it is.
"""

from __future__ import annotations

import logging

import cython
from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF
from cython.cimports.flintmq.core.content import content_decref, content_t
from cython.cimports.flintmq.queue.handle import QueueHandle, content_tuple
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.queue_core import queue_borrow, queue_dequeue, queue_next_available, queue_take_at
from cython.cimports.flintmq.queue.types import REASON_DROP, list_ops_t, list_t, queue_t, slot_t
from cython.cimports.libc.stdint import uint32_t, uint64_t

log = logging.getLogger("flintmq.queue.kinds")

LIST_PRIORITY = 1

_outside_ops = cython.declare(list_ops_t)


@cython.cfunc
def _message(content: cython.pointer(content_t)):
    """None: not at hand, or only a place is asked for (a transaction's message comes later)."""
    if content == cython.NULL or content.route_len == 0:
        return None
    return content_tuple(content)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _level(entries: cython.pointer(list_t), content: cython.pointer(content_t)) -> uint32_t:
    level: uint32_t = 0
    with cython.gil:
        try:
            level = min(max(0, cython.cast(Entries, entries.kind).kind.level(_message(content))), entries.level_count - 1)
        except Exception:
            log.exception("a kind of queue fails to say where a message goes: it goes to the front level")
    return level


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _arrived(queue: cython.pointer(queue_t), position: uint64_t, content: cython.pointer(content_t)) -> cython.void:
    with cython.gil:
        try:
            cython.cast(Entries, queue.entries.kind).kind.arrived(position, _message(content))
        except Exception:
            log.exception("a kind of queue fails to take note of a message")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _returned(queue: cython.pointer(queue_t), position: uint64_t) -> cython.void:
    with cython.gil:
        try:
            cython.cast(Entries, queue.entries.kind).kind.returned(position)
        except Exception:
            log.exception("a kind of queue fails to take note of a message that came back")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _destroy(entries: cython.pointer(list_t)) -> cython.void:
    with cython.gil:
        face: Entries = cython.cast(Entries, entries.kind)
        face.queue = cython.NULL
        face.kind = None
        entries.kind = cython.NULL
        Py_DECREF(face)


@cython.cclass
class Entries:
    """See outside.pyi."""

    @property
    def levels(self) -> int:
        return self.queue.entries.level_count if self.queue != cython.NULL else 0

    def next_available(self, position: int = 0) -> int:
        return queue_next_available(self.queue, position) if self.queue != cython.NULL else 0

    def message_at(self, position: int) -> tuple:
        message_id: uint64_t = 0
        content: cython.pointer(content_t) = cython.NULL
        if self.queue != cython.NULL:
            content = queue_borrow(self.queue, position, cython.address(message_id))
        if content == cython.NULL:
            if self.log is None or message_id == 0:
                raise KeyError(position)
            content = self.log.load_now(message_id)
        message: tuple = content_tuple(content)
        content_decref(content)
        return message

    def end(self, position: int) -> bool:
        slot: cython.pointer(slot_t) = cython.NULL
        if self.queue != cython.NULL:
            slot = queue_take_at(self.queue, position, 0)
        return slot != cython.NULL and bool(queue_dequeue(self.queue, slot, position, 0, REASON_DROP))


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
    handle.queue.entries.kind = cython.cast(cython.p_void, face)
    handle.queue.entries.ops = cython.address(_outside_ops)
    return handle

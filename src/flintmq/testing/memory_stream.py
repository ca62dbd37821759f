"""The twin in memory of a stream's log (tests only): same face as the log on disk, all of its states set by hand.

in: appends; publish, set_hot, truncate, damage, fail. out: what streams/source.pxd promises.

A message's filter value is what its body has before the first "|"; a body without "|" has none.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF
from cython.cimports.flintmq.core.atomics import at_add64, at_load64, at_store64, at_sub64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_body, content_decref, content_from_bytes, content_incref, content_t
from cython.cimports.flintmq.store.stream.stream_batch import (
    stream_batch_put,
    stream_batch_t,
    stream_filter_matches,
    stream_filter_t,
)
from cython.cimports.flintmq.store.stream.stream_log import (
    STREAM_COLD,
    STREAM_DAMAGED,
    STREAM_EMPTY,
    STREAM_FILTERED,
    STREAM_IO,
    STREAM_MESSAGES,
    STREAM_TRUNCATED,
)
from cython.cimports.flintmq.streams.source import StreamSource, on_visible_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memchr

NO_OFFSET = cython.declare(uint64_t, ~cython.cast(uint64_t, 0))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _log(log: cython.p_void) -> cython.pointer(memory_stream_t):
    return cython.cast(cython.pointer(memory_stream_t), log)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append(context: cython.p_void, content: cython.pointer(content_t)) -> uint64_t:
    log: cython.pointer(memory_stream_t) = _log(context)
    offset: uint64_t
    spin_lock(cython.address(log.lock))
    if log.refusing:
        spin_unlock(cython.address(log.lock))
        return NO_OFFSET
    if log.appended == log.room:
        log.room = log.room * 2 if log.room else 1024
        log.items = cython.cast(
            cython.pointer(cython.pointer(content_t)), realloc(log.items, log.room * cython.sizeof(cython.pointer(content_t)))
        )
        log.times = cython.cast(cython.pointer(int64_t), realloc(log.times, log.room * cython.sizeof(int64_t)))
    content_incref(content)
    offset = log.appended
    log.items[offset] = content
    log.times[offset] = cython.cast(int64_t, offset)
    log.appended += 1
    spin_unlock(cython.address(log.lock))
    return offset


def memory_stream_publish(log, upto):
    spin_lock(cython.address(log.lock))
    if upto > log.appended:
        upto = log.appended
    if upto > log.visible:
        at_store64(cython.address(log.visible), upto)
    spin_unlock(cython.address(log.lock))
    spin_lock(cython.address(log.told_lock))
    if log.tell != cython.NULL:
        log.tell(log.context)
    spin_unlock(cython.address(log.told_lock))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _visible(context: cython.p_void) -> uint64_t:
    return at_load64(cython.address(_log(context).visible))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _first(context: cython.p_void) -> uint64_t:
    return at_load64(cython.address(_log(context).first))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _bytes(context: cython.p_void) -> uint64_t:
    log: cython.pointer(memory_stream_t) = _log(context)
    total: uint64_t = 0
    i: uint64_t
    spin_lock(cython.address(log.lock))
    for i in range(log.first, log.visible):
        total += log.items[i].body_len
    spin_unlock(cython.address(log.lock))
    return total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _matches(filter: cython.pointer(stream_filter_t), content: cython.pointer(content_t)) -> cython.bint:
    body: cython.pointer(uint8_t) = content_body(content)
    bar: cython.pointer(uint8_t)
    if filter == cython.NULL:
        return True
    bar = cython.cast(cython.pointer(uint8_t), memchr(body, 124, content.body_len)) if content.body_len else cython.NULL
    if bar == cython.NULL:
        return stream_filter_matches(filter, cython.NULL, 0)
    return stream_filter_matches(filter, body, cython.cast(uint32_t, bar - body))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    log: cython.pointer(memory_stream_t),
    offset: uint64_t,
    end: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: cython.pointer(stream_filter_t),
    batch: cython.pointer(stream_batch_t),
) -> cython.int:
    """Lock held; everything in [offset, end) is there."""
    while offset < end and batch.count < count and (batch.bytes < bytes_ or batch.count == 0):
        if _matches(filter, log.items[offset]):
            content_incref(log.items[offset])
            stream_batch_put(batch, log.items[offset], offset)
        offset += 1
    batch.next_offset = offset
    return STREAM_MESSAGES if batch.count else STREAM_FILTERED


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hot_read(
    context: cython.p_void,
    offset: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: cython.pointer(stream_filter_t),
    batch: cython.pointer(stream_batch_t),
) -> cython.int:
    log: cython.pointer(memory_stream_t) = _log(context)
    outcome: cython.int
    spin_lock(cython.address(log.lock))
    if offset < log.first:
        batch.next_offset = log.first
        outcome = STREAM_TRUNCATED
    elif offset >= log.visible:
        batch.next_offset = offset
        outcome = STREAM_EMPTY
    elif offset + log.hot_window < log.visible:
        batch.next_offset = offset
        outcome = STREAM_COLD
    else:
        outcome = _fill(log, offset, log.visible, count, bytes_, filter, batch)
    spin_unlock(cython.address(log.lock))
    return outcome


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read(
    context: cython.p_void,
    place: cython.p_void,
    offset: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: cython.pointer(stream_filter_t),
    batch: cython.pointer(stream_batch_t),
) -> cython.int:
    log: cython.pointer(memory_stream_t) = _log(context)
    outcome: cython.int
    end: uint64_t
    at_add64(cython.address(log.reads), 1)
    spin_lock(cython.address(log.lock))
    batch.io_ns += 1000
    if log.failing:
        batch.next_offset = offset
        outcome = STREAM_IO
    elif offset < log.first:
        batch.next_offset = log.first
        outcome = STREAM_TRUNCATED
    elif offset >= log.visible:
        batch.next_offset = offset
        outcome = STREAM_EMPTY
    elif log.damaged_from <= offset < log.damaged_to:
        batch.next_offset = log.damaged_to
        outcome = STREAM_DAMAGED
    else:
        end = log.visible
        if offset < log.damaged_from < end:
            end = log.damaged_from
        if end - offset > log.read_most:
            end = offset + log.read_most
        outcome = _fill(log, offset, end, count, bytes_, filter, batch)
    spin_unlock(cython.address(log.lock))
    return outcome


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _new_place(context: cython.p_void) -> cython.p_void:
    at_add64(cython.address(_log(context).places), 1)
    return calloc(1, 8)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rest(context: cython.p_void, place: cython.p_void) -> cython.void:
    cython.cast(cython.pointer(uint64_t), place)[0] += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _free_place(context: cython.p_void, place: cython.p_void) -> cython.void:
    at_sub64(cython.address(_log(context).places), 1)
    free(place)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_time(context: cython.p_void, place: cython.p_void, wall_ms: int64_t) -> uint64_t:
    log: cython.pointer(memory_stream_t) = _log(context)
    offset: uint64_t
    spin_lock(cython.address(log.lock))
    offset = log.first
    while offset < log.visible and log.times[offset] < wall_ms:
        offset += 1
    spin_unlock(cython.address(log.lock))
    return offset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _listen(context: cython.p_void, tell: on_visible_t, who: cython.p_void) -> cython.void:
    log: cython.pointer(memory_stream_t) = _log(context)
    spin_lock(cython.address(log.told_lock))
    log.tell = tell
    log.context = who
    spin_unlock(cython.address(log.told_lock))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _release(context: cython.p_void) -> cython.void:
    with cython.gil:
        Py_DECREF(cython.cast(object, _log(context).owner))


@cython.cclass
class MemoryStream(StreamSource):
    """`hot`: how many of the last visible messages are in memory. Appended messages are visible only after publish."""

    def __cinit__(self, hot: int = 1_000_000_000, read_most: int = 1_000_000):
        self.log.hot_window = hot
        self.log.read_most = read_most
        self.log.owner = cython.cast(cython.p_void, self)
        self.source.log = cython.address(self.log)
        self.source.append = _append
        self.source.visible = _visible
        self.source.first = _first
        self.source.bytes = _bytes
        self.source.hot_read = _hot_read
        self.source.read = _read
        self.source.new_place = _new_place
        self.source.rest = _rest
        self.source.free_place = _free_place
        self.source.find_time = _find_time
        self.source.listen = _listen
        self.source.release = _release

    def __dealloc__(self):
        i: uint64_t
        for i in range(self.log.first, self.log.appended):
            content_decref(self.log.items[i])
        free(self.log.items)
        free(self.log.times)

    @cython.ccall
    def taken(self):
        Py_INCREF(self)

    def append(self, body: bytes, publish: bool = True) -> int:
        content: cython.pointer(content_t) = content_from_bytes(b"", b"q", bytes(14), body, 0, 0)
        offset: uint64_t = _append(cython.address(self.log), content)
        content_decref(content)
        if publish:
            self.publish()
        return offset

    def copy(self) -> MemoryStream:
        """The same log after a restart: what was visible, with the same settings."""
        fresh: MemoryStream = MemoryStream(self.log.hot_window, self.log.read_most)
        i: uint64_t
        for i in range(self.log.visible):
            if i < self.log.first:
                fresh.append(b"", False)
            else:
                _append(cython.address(fresh.log), self.log.items[i])
        fresh.publish()
        fresh.truncate(self.log.first)
        fresh.log.failing = self.log.failing
        fresh.log.damaged_from = self.log.damaged_from
        fresh.log.damaged_to = self.log.damaged_to
        return fresh

    def publish(self, upto: int = 1 << 62) -> None:
        end: uint64_t = upto
        with cython.nogil:
            memory_stream_publish(cython.address(self.log), end)

    def truncate(self, first: int) -> None:
        """Retention: offsets below `first` (<= visible) are gone."""
        i: uint64_t
        end: uint64_t = first
        spin_lock(cython.address(self.log.lock))
        end = min(end, self.log.visible)
        for i in range(self.log.first, end):
            content_decref(self.log.items[i])
        if end > self.log.first:
            at_store64(cython.address(self.log.first), end)
        spin_unlock(cython.address(self.log.lock))

    def set_hot(self, window: int) -> None:
        self.log.hot_window = window

    def damage(self, start: int, end: int) -> None:
        self.log.damaged_from = start
        self.log.damaged_to = end

    def fail(self, failing: bool) -> None:
        self.log.failing = failing

    def refuse(self, refusing: bool) -> None:
        self.log.refusing = refusing

    @property
    def reads(self) -> int:
        return at_load64(cython.address(self.log.reads))

    @property
    def places(self) -> int:
        return at_load64(cython.address(self.log.places))

    @property
    def visible(self) -> int:
        return self.log.visible

"""The twin in memory of a stream's log (tests only): same face as the log on disk, all of its states set by hand.

in: appends; publish, set_hot, truncate, damage, fail. out: what store/stream/stream_source.pxd promises.

A message's filter value is what its body has before the first "|"; a body without "|" has none.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, gil, inline, nogil, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF
from cython.cimports.flintmq.core.atomics import at_add64, at_load64, at_store64, at_sub64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_body, content_decref, content_from_bytes, content_incref, content_t
from cython.cimports.flintmq.store.stream.stream_batch import stream_batch_put, stream_batch_t, stream_filter_matches, stream_filter_t
from cython.cimports.flintmq.store.stream.stream_files import StreamSource
from cython.cimports.flintmq.store.stream.stream_log import (
    STREAM_COLD, STREAM_DAMAGED, STREAM_EMPTY, STREAM_FILTERED, STREAM_IO, STREAM_MESSAGES, STREAM_TRUNCATED, stream_t, stream_visible_t,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_reader import stream_reader_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memchr

NO_OFFSET = declare(uint64_t, ~cast(uint64_t, 0))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _log(log: pointer[stream_t]) -> pointer[memory_stream_t]:
    return cast(pointer[memory_stream_t], log)


@cfunc
@nogil
@exceptval(check=False)
def _append(context: pointer[stream_t], content: pointer[content_t], origin: uint64_t, ticket: pointer[uint64_t]) -> uint64_t:
    log: pointer[memory_stream_t] = _log(context)
    offset: uint64_t
    spin_lock(address(log.lock))
    if log.refusing:
        spin_unlock(address(log.lock))
        return NO_OFFSET
    if log.appended == log.room:
        log.room = log.room * 2 if log.room else 1024
        log.items = cast(pointer[pointer[content_t]], realloc(log.items, log.room * sizeof(pointer[content_t])))
        log.times = cast(pointer[int64_t], realloc(log.times, log.room * sizeof(int64_t)))
    content_incref(content)
    offset = log.appended
    log.items[offset] = content
    log.times[offset] = cast(int64_t, offset)
    log.appended += 1
    spin_unlock(address(log.lock))
    return offset


def memory_stream_publish(log: pointer[memory_stream_t], upto: uint64_t) -> void:
    spin_lock(address(log.lock))
    if upto > log.appended:
        upto = log.appended
    if upto > log.visible:
        at_store64(address(log.visible), upto)
    spin_unlock(address(log.lock))
    spin_lock(address(log.told_lock))
    if log.tell != NULL:
        log.tell(log.context)
    spin_unlock(address(log.told_lock))


@cfunc
@nogil
@exceptval(check=False)
def _visible(context: pointer[stream_t]) -> uint64_t:
    return at_load64(address(_log(context).visible))


@cfunc
@nogil
@exceptval(check=False)
def _first(context: pointer[stream_t]) -> uint64_t:
    return at_load64(address(_log(context).first))


@cfunc
@nogil
@exceptval(check=False)
def _bytes(context: pointer[stream_t]) -> uint64_t:
    log: pointer[memory_stream_t] = _log(context)
    total: uint64_t = 0
    i: uint64_t
    spin_lock(address(log.lock))
    for i in range(log.first, log.visible):
        total += log.items[i].body_len
    spin_unlock(address(log.lock))
    return total


@cfunc
@nogil
@exceptval(check=False)
def _matches(filter: pointer[stream_filter_t], content: pointer[content_t]) -> bint:
    body: pointer[uint8_t] = content_body(content)
    bar: pointer[uint8_t]
    if filter == NULL:
        return True
    bar = cast(pointer[uint8_t], memchr(body, 124, content.body_len)) if content.body_len else NULL
    if bar == NULL:
        return stream_filter_matches(filter, NULL, 0)
    return stream_filter_matches(filter, body, cast(uint32_t, bar - body))


@cfunc
@nogil
@exceptval(check=False)
def _fill(
    log: pointer[memory_stream_t],
    offset: uint64_t,
    end: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: pointer[stream_filter_t],
    batch: pointer[stream_batch_t],
) -> c_int:
    """Lock held; everything in [offset, end) is there."""
    while offset < end and batch.count < count and (batch.bytes < bytes_ or batch.count == 0):
        if _matches(filter, log.items[offset]):
            content_incref(log.items[offset])
            stream_batch_put(batch, log.items[offset], offset)
        offset += 1
    batch.next_offset = offset
    return STREAM_MESSAGES if batch.count else STREAM_FILTERED


@cfunc
@nogil
@exceptval(check=False)
def _hot_read(
    context: pointer[stream_t],
    offset: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: pointer[stream_filter_t],
    batch: pointer[stream_batch_t],
) -> c_int:
    log: pointer[memory_stream_t] = _log(context)
    outcome: c_int
    spin_lock(address(log.lock))
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
    spin_unlock(address(log.lock))
    return outcome


@cfunc
@nogil
@exceptval(check=False)
def _read(
    context: pointer[stream_t],
    place: pointer[stream_reader_t],
    offset: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: pointer[stream_filter_t],
    batch: pointer[stream_batch_t],
) -> c_int:
    log: pointer[memory_stream_t] = _log(context)
    outcome: c_int
    end: uint64_t
    at_add64(address(log.reads), 1)
    spin_lock(address(log.lock))
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
    spin_unlock(address(log.lock))
    return outcome


@cfunc
@nogil
@exceptval(check=False)
def _new_reader(context: pointer[stream_t]) -> pointer[stream_reader_t]:
    place: pointer[stream_reader_t] = cast(pointer[stream_reader_t], calloc(1, sizeof(stream_reader_t)))
    place.stream = context
    at_add64(address(_log(context).places), 1)
    return place


@cfunc
@nogil
@exceptval(check=False)
def _rest(place: pointer[stream_reader_t]) -> void:
    place.bytes_read = 0


@cfunc
@nogil
@exceptval(check=False)
def _free_reader(place: pointer[stream_reader_t]) -> void:
    at_sub64(address(_log(place.stream).places), 1)
    free(place)


@cfunc
@nogil
@exceptval(check=False)
def _find_time(context: pointer[stream_t], place: pointer[stream_reader_t], wall_ms: uint64_t) -> uint64_t:
    log: pointer[memory_stream_t] = _log(context)
    offset: uint64_t
    spin_lock(address(log.lock))
    offset = log.first
    while offset < log.visible and cast(uint64_t, log.times[offset]) < wall_ms:
        offset += 1
    spin_unlock(address(log.lock))
    return offset


@cfunc
@nogil
@exceptval(check=False)
def _listen(context: pointer[stream_t], tell: stream_visible_t, who: p_void) -> void:
    log: pointer[memory_stream_t] = _log(context)
    spin_lock(address(log.told_lock))
    log.tell = tell
    log.context = who
    spin_unlock(address(log.told_lock))


@cfunc
@nogil
@exceptval(check=False)
def _incref(context: pointer[stream_t]) -> void:
    with gil:
        Py_INCREF(cast(object, _log(context).owner))


@cfunc
@nogil
@exceptval(check=False)
def _decref(context: pointer[stream_t]) -> void:
    with gil:
        Py_DECREF(cast(object, _log(context).owner))


@cclass
class MemoryStream(StreamSource):
    """`hot`: how many of the last visible messages are in memory. Appended messages are visible only after publish."""

    def __cinit__(self, hot: int = 1_000_000_000, read_most: int = 1_000_000):
        self.log.hot_window = hot
        self.log.read_most = read_most
        self.log.owner = cast(p_void, self)
        self.source.log = cast(pointer[stream_t], address(self.log))
        self.source.append = _append
        self.source.visible = _visible
        self.source.first = _first
        self.source.bytes = _bytes
        self.source.hot_read = _hot_read
        self.source.read = _read
        self.source.new_reader = _new_reader
        self.source.rest = _rest
        self.source.free_reader = _free_reader
        self.source.find_time = _find_time
        self.source.listen = _listen
        self.source.incref = _incref
        self.source.decref = _decref

    def __dealloc__(self):
        i: uint64_t
        for i in range(self.log.first, self.log.appended):
            content_decref(self.log.items[i])
        free(self.log.items)
        free(self.log.times)

    def append(self, body: bytes, publish: bool = True) -> int:
        content: pointer[content_t] = content_from_bytes(b"", b"q", bytes(14), body, 0, 0)
        offset: uint64_t = _append(self.source.log, content, 0, NULL)
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
                _append(fresh.source.log, self.log.items[i], 0, NULL)
        fresh.publish()
        fresh.truncate(self.log.first)
        fresh.log.failing = self.log.failing
        fresh.log.damaged_from = self.log.damaged_from
        fresh.log.damaged_to = self.log.damaged_to
        return fresh

    def publish(self, upto: int = 1 << 62) -> None:
        end: uint64_t = upto
        with nogil:
            memory_stream_publish(address(self.log), end)

    def truncate(self, first: int) -> None:
        """Retention: offsets below `first` (<= visible) are gone."""
        i: uint64_t
        end: uint64_t = first
        spin_lock(address(self.log.lock))
        end = min(end, self.log.visible)
        for i in range(self.log.first, end):
            content_decref(self.log.items[i])
        if end > self.log.first:
            at_store64(address(self.log.first), end)
        spin_unlock(address(self.log.lock))

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
        return at_load64(address(self.log.reads))

    @property
    def places(self) -> int:
        return at_load64(address(self.log.places))

    @property
    def visible(self) -> int:
        return self.log.visible

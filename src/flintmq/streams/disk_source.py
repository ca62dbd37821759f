"""A stream's log on disk (store/stream) behind streams/source.pxd.

in: an open Stream. out: the functions of source_t over its stream_t. The stream core holds one reference from `taken` to `release`.
"""

from __future__ import annotations

from cython import address, cast, ccall, cclass, cfunc, exceptval, inline, nogil, p_void, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import content_t
from cython.cimports.flintmq.store.stream.stream_batch import stream_batch_t, stream_filter_t
from cython.cimports.flintmq.store.stream.stream_files import Stream
from cython.cimports.flintmq.store.stream.stream_log import (
    stream_append,
    stream_bytes,
    stream_decref,
    stream_first,
    stream_hot_read,
    stream_incref,
    stream_listen,
    stream_t,
    stream_visible,
)
from cython.cimports.flintmq.store.stream.stream_reader import (
    stream_find_time,
    stream_read,
    stream_reader_free,
    stream_reader_new,
    stream_reader_rest,
    stream_reader_t,
)
from cython.cimports.flintmq.streams.source import StreamSource, on_visible_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t


@cfunc
@inline
@nogil
@exceptval(check=False)
def _of(log: p_void) -> pointer[stream_t]:
    return cast(pointer[stream_t], log)


@cfunc
@nogil
@exceptval(check=False)
def _append(log: p_void, content: pointer[content_t]) -> uint64_t:
    ticket: uint64_t = 0  # confirms read the port's counter, which is at least that
    return stream_append(_of(log), content, 0, address(ticket))


@cfunc
@nogil
@exceptval(check=False)
def _visible(log: p_void) -> uint64_t:
    return stream_visible(_of(log))


@cfunc
@nogil
@exceptval(check=False)
def _first(log: p_void) -> uint64_t:
    return stream_first(_of(log))


@cfunc
@nogil
@exceptval(check=False)
def _bytes(log: p_void) -> uint64_t:
    return stream_bytes(_of(log))


@cfunc
@nogil
@exceptval(check=False)
def _hot_read(
    log: p_void,
    offset: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: pointer[stream_filter_t],
    batch: pointer[stream_batch_t],
) -> c_int:
    return stream_hot_read(_of(log), offset, count, bytes_, filter, batch)


@cfunc
@nogil
@exceptval(check=False)
def _read(
    log: p_void,
    place: p_void,
    offset: uint64_t,
    count: uint32_t,
    bytes_: uint64_t,
    filter: pointer[stream_filter_t],
    batch: pointer[stream_batch_t],
) -> c_int:
    return stream_read(_of(log), cast(pointer[stream_reader_t], place), offset, count, bytes_, filter, batch)


@cfunc
@nogil
@exceptval(check=False)
def _new_place(log: p_void) -> p_void:
    return stream_reader_new(_of(log))


@cfunc
@nogil
@exceptval(check=False)
def _rest(log: p_void, place: p_void) -> void:
    stream_reader_rest(cast(pointer[stream_reader_t], place))


@cfunc
@nogil
@exceptval(check=False)
def _free_place(log: p_void, place: p_void) -> void:
    stream_reader_free(cast(pointer[stream_reader_t], place))


@cfunc
@nogil
@exceptval(check=False)
def _find_time(log: p_void, place: p_void, wall_ms: int64_t) -> uint64_t:
    return stream_find_time(_of(log), cast(pointer[stream_reader_t], place), cast(uint64_t, wall_ms) if wall_ms > 0 else 0)


@cfunc
@nogil
@exceptval(check=False)
def _listen(log: p_void, tell: on_visible_t, context: p_void) -> void:
    stream_listen(_of(log), tell, context)


@cfunc
@nogil
@exceptval(check=False)
def _release(log: p_void) -> void:
    stream_decref(_of(log))


@cclass
class DiskSource(StreamSource):
    """An open stream of the store, for StreamQueue."""

    def __cinit__(self, stream: Stream):
        self.stream = stream
        self.source.log = stream.stream
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

    @ccall
    def taken(self):
        stream_incref(self.stream.stream)

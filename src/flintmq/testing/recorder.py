"""The receiving engine, recorded: bytes in, a list of events out (see protocol/v0_9_1/engine.pxd).

It opens connection and channels as a session would, so that byte streams can reach every state without one.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.protocol.v0_9_1.engine import (
    FEED_ERROR,
    FEED_MORE,
    FEED_VERSION,
    PHASE_OPEN,
    RX_CLOSED,
    RX_OPEN,
    engine_feed,
    engine_free,
    engine_init,
    engine_set_channel_state,
    sink_t,
)
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t

_sink = cython.declare(sink_t)

CONNECTION_OPEN = cython.declare(uint32_t, 10 << 16 | 40)
CHANNEL_OPEN = cython.declare(uint32_t, 20 << 16 | 10)
CHANNEL_CLOSE = cython.declare(uint32_t, 20 << 16 | 40)


@cython.cfunc
def _bytes(payload: cython.pointer(cython.const[uint8_t]), size: uint32_t) -> bytes:
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.cast(cython.p_void, payload)), size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _protocol_header(context: cython.p_void) -> cython.int:
    with cython.gil:
        cython.cast(Recorder, context).events.append(("protocol-header",))
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _publish(
    context: cython.p_void, channel: uint16_t, route: cython.pointer(cython.const[uint8_t]), size: uint32_t, bits: uint8_t
) -> cython.int:
    with cython.gil:
        cython.cast(Recorder, context).events.append(("publish", channel, _bytes(route, size), bits))
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _header(
    context: cython.p_void, channel: uint16_t, body_size: uint64_t, payload: cython.pointer(cython.const[uint8_t]), size: uint32_t
) -> cython.int:
    with cython.gil:
        cython.cast(Recorder, context).events.append(("header", channel, body_size, _bytes(payload, size)))
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _body(
    context: cython.p_void, channel: uint16_t, payload: cython.pointer(cython.const[uint8_t]), size: uint32_t, left: uint64_t
) -> cython.int:
    with cython.gil:
        cython.cast(Recorder, context).events.append(("body", channel, _bytes(payload, size), left))
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _settle(
    context: cython.p_void, channel: uint16_t, method: cython.int, tag: uint64_t, multiple: cython.bint, requeue: cython.bint
) -> cython.int:
    with cython.gil:
        cython.cast(Recorder, context).events.append(("settle", channel, method, tag, bool(multiple), bool(requeue)))
    return FEED_MORE


@cython.cfunc
def _note_method(recorder: Recorder, channel: uint16_t, method: uint32_t, payload: bytes) -> object:
    recorder.events.append(("method", channel, method, payload))
    if method == CONNECTION_OPEN and channel == 0:
        recorder.engine.phase = PHASE_OPEN
        recorder.engine.frame_size_max = recorder.frame_size_max
    elif method == CHANNEL_OPEN:
        engine_set_channel_state(cython.address(recorder.engine), channel, RX_OPEN)
    elif method == CHANNEL_CLOSE:
        engine_set_channel_state(cython.address(recorder.engine), channel, RX_CLOSED)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _method(
    context: cython.p_void, channel: uint16_t, method: uint32_t, payload: cython.pointer(cython.const[uint8_t]), size: uint32_t
) -> cython.int:
    with cython.gil:
        _note_method(cython.cast(Recorder, context), channel, method, _bytes(payload, size))
    return FEED_MORE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _heartbeat(context: cython.p_void) -> cython.int:
    with cython.gil:
        cython.cast(Recorder, context).events.append(("heartbeat",))
    return FEED_MORE


_sink.protocol_header = _protocol_header
_sink.publish = _publish
_sink.header = _header
_sink.body = _body
_sink.settle = _settle
_sink.method = _method
_sink.heartbeat = _heartbeat


@cython.cclass
class Recorder:
    """An engine and what it reported.

    Args: frame_size_max: bytes after connection.open; message_size_max: bytes of a body.
    """

    def __init__(self, frame_size_max: int = 131072, message_size_max: int = 1 << 27):
        self.events = []
        self.buffer = b""
        self.frame_size_max = frame_size_max
        engine_init(cython.address(self.engine), cython.address(_sink), cython.cast(cython.p_void, self), 8192, 65536, message_size_max)

    def __dealloc__(self):
        engine_free(cython.address(self.engine))

    def receive(self, data: bytes) -> bool:
        """Feeds bytes. False when the engine refused them (the last event says why); it must not be fed again then."""
        consumed: cython.size_t = 0
        self.buffer += data
        result: cython.int = engine_feed(
            cython.address(self.engine),
            cython.cast(cython.pointer(uint8_t), cython.cast(cython.p_char, self.buffer)),
            len(self.buffer),
            cython.address(consumed),
        )
        self.buffer = self.buffer[consumed:]
        if result == FEED_ERROR:
            text: bytes = self.engine.error_text
            self.events.append(("error", self.engine.error_code, self.engine.error_channel, text.decode()))
            return False
        if result == FEED_VERSION:
            self.events.append(("version",))
            return False
        return True

    @property
    def kept(self) -> int:
        """Bytes of an unfinished frame that wait for the rest."""
        return len(self.buffer)

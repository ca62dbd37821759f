"""The receiving engine, recorded: bytes in, a list of events out (see protocol/v0_9_1/engine.pxd).

It opens connection and channels as a session would, so that byte streams can reach every state without one.
"""

from __future__ import annotations

import cython
from cython import address, bint, cast, cclass, cfunc, declare, exceptval, gil, nogil, p_char, p_void, pointer, size_t
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.protocol.v0_9_1.engine import (
    FEED_ERROR, FEED_MORE, FEED_VERSION, PHASE_OPEN, RX_CLOSED, RX_CLOSING, RX_OPEN, engine_feed, engine_free, engine_init,
    engine_set_channel_state, sink_t,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.ids import CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_OPEN, CONNECTION_OPEN
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t, uint8_t

_sink = declare(sink_t)


@cfunc
def _bytes(payload: pointer[cython.const[uint8_t]], size: uint32_t) -> bytes:
    return PyBytes_FromStringAndSize(cast(p_char, cast(p_void, payload)), size)


@cfunc
@nogil
@exceptval(check=False)
def _protocol_header(context: p_void) -> c_int:
    with gil:
        cast(Recorder, context).events.append(("protocol-header",))
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _publish(context: p_void, channel: uint16_t, route: pointer[cython.const[uint8_t]], size: uint32_t, bits: uint8_t) -> c_int:
    with gil:
        cast(Recorder, context).events.append(("publish", channel, _bytes(route, size), bits))
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _header(context: p_void, channel: uint16_t, body_size: uint64_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    with gil:
        cast(Recorder, context).events.append(("header", channel, body_size, _bytes(payload, size)))
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _body(context: p_void, channel: uint16_t, payload: pointer[cython.const[uint8_t]], size: uint32_t, left: uint64_t) -> c_int:
    with gil:
        cast(Recorder, context).events.append(("body", channel, _bytes(payload, size), left))
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _settle(context: p_void, channel: uint16_t, method: uint32_t, tag: uint64_t, multiple: bint, requeue: bint) -> c_int:
    with gil:
        cast(Recorder, context).events.append(("settle", channel, method, tag, bool(multiple), bool(requeue)))
    return FEED_MORE


@cfunc
def _note_method(recorder: Recorder, channel: uint16_t, method: uint32_t, payload: bytes) -> object:
    recorder.events.append(("method", channel, method, payload))
    if method == CONNECTION_OPEN and channel == 0:
        recorder.engine.phase = PHASE_OPEN
        recorder.engine.frame_size_max = recorder.frame_size_max
    elif method == CHANNEL_OPEN:
        engine_set_channel_state(address(recorder.engine), channel, RX_OPEN)
    elif method == CHANNEL_CLOSE or (method == CHANNEL_CLOSE_OK and recorder.state(channel) == RX_CLOSING):
        engine_set_channel_state(address(recorder.engine), channel, RX_CLOSED)


@cfunc
@nogil
@exceptval(check=False)
def _method(context: p_void, channel: uint16_t, method: uint32_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    with gil:
        _note_method(cast(Recorder, context), channel, method, _bytes(payload, size))
    return FEED_MORE


@cfunc
@nogil
@exceptval(check=False)
def _heartbeat(context: p_void) -> c_int:
    with gil:
        cast(Recorder, context).events.append(("heartbeat",))
    return FEED_MORE


_sink.protocol_header = _protocol_header
_sink.publish = _publish
_sink.header = _header
_sink.body = _body
_sink.settle = _settle
_sink.method = _method
_sink.heartbeat = _heartbeat


@cclass
class Recorder:
    """An engine and what it reported.

    Args: frame_size_max: bytes after connection.open; message_size_max: bytes of a body.
    """

    def __init__(self, frame_size_max: int = 131072, message_size_max: int = 1 << 27):
        self.events = []
        self.buffer = b""
        self.frame_size_max = frame_size_max
        engine_init(address(self.engine), address(_sink), cast(p_void, self), 8192, 65536, message_size_max)

    def __dealloc__(self):
        engine_free(address(self.engine))

    def receive(self, data: bytes) -> bool:
        """Feeds bytes. False when the engine refused them (the last event says why); it must not be fed again then."""
        consumed: size_t = 0
        self.buffer += data
        result: c_int = engine_feed(
            address(self.engine),
            cast(pointer[uint8_t], cast(p_char, self.buffer)),
            len(self.buffer),
            address(consumed),
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

    def set_phase(self, phase: int) -> None:
        """Puts the connection into a phase (PHASE_*), whatever was received."""
        self.engine.phase = phase

    def set_state(self, channel: int, state: int) -> None:
        """Puts a channel into a state (RX_*), as a session does."""
        engine_set_channel_state(address(self.engine), channel, state)

    def state(self, channel: int) -> int:
        """State of a channel below RX_PAGE; that of one that was never open is RX_CLOSED."""
        return self.engine.rx[0][channel].state if self.engine.rx_pages else RX_CLOSED

    @property
    def error_method(self) -> int:
        """The method that the last refusal is about, 0: none."""
        return self.engine.error_method

    @property
    def kept(self) -> int:
        """Bytes of an unfinished frame that wait for the rest."""
        return len(self.buffer)

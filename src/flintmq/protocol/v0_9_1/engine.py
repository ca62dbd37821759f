"""AMQP 0-9-1 receiving engine (see engine.pxd).

in: bytes of one connection. out: calls on a sink_t: publish, header, body, settle, method, heartbeat.

I1  The calls depend on the bytes alone, never on how they were cut into buffers.
I2  No frame longer than frame_size_max, no body longer than its header said, no message above message_size_max is accepted.
I3  Whatever the bytes are, the result is calls, FEED_ERROR or FEED_VERSION; memory is bounded by the channel table.
I4  What is done with a frame follows from the phase, the state of its channel and its kind alone: docs/ENGINE.md has the table.

Source: AMQP 0-9-1 specification 2.3.5 (frames), 4.2.6 (content), 4.2.7 (heartbeat), 1.4.2.6 (tune).
"""

from __future__ import annotations

import cython
from cython import NULL, cast, cfunc, char, exceptval, inline, nogil, p_void, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.byte_order import get16, get32, get64
from cython.cimports.flintmq.core.content import FRAME_END
from cython.cimports.flintmq.core.memory_account import MEMORY_CHANNELS, memory_add
from cython.cimports.flintmq.protocol.v0_9_1.ids import (
    BASIC_ACK, BASIC_NACK, BASIC_PUBLISH, BASIC_REJECT, CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_OPEN, CLASS_BASIC, CLASS_CONNECTION,
    CONNECTION_CLOSE, CONNECTION_CLOSE_OK, FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, FRAME_TYPES,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.receive_states import (
    ABOUT_FRAME, ABOUT_PUBLISH, EVENT_BASIC, EVENT_BODY, EVENT_CHANNEL_CLOSE, EVENT_CHANNEL_CLOSE_OK, EVENT_CHANNEL_OPEN, EVENT_CONNECTION,
    EVENT_CONNECTION_END, EVENT_HEADER, EVENT_HEARTBEAT, EVENT_METHOD, EVENT_PUBLISH, RECEIVE_IGNORE, RECEIVE_REFUSE, RECEIVE_TAKE,
    REFUSALS, RX_ZERO, receive_outcome,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memcmp, memset


def engine_init(
    engine: pointer[engine_t],
    sink: pointer[cython.const[sink_t]],
    context: p_void,
    frame_size_before_open: uint32_t,
    handshake_bytes: uint64_t,
    message_size_max: uint64_t,
) -> c_int:
    memset(engine, 0, sizeof(engine_t))
    engine.sink = sink
    engine.context = context
    engine.frame_size_max = frame_size_before_open
    engine.handshake_bytes_left = handshake_bytes
    engine.message_size_max = message_size_max
    return 0


def engine_free(engine: pointer[engine_t]) -> void:
    page: uint32_t
    for page in range(engine.rx_pages):
        if engine.rx[page] != NULL:
            memory_add(MEMORY_CHANNELS, -cast(int64_t, RX_PAGE * sizeof(channel_rx_t)))
        free(engine.rx[page])
    memory_add(MEMORY_CHANNELS, -cast(int64_t, engine.rx_pages * sizeof(p_void)))
    free(engine.rx)
    engine.rx = NULL
    engine.rx_pages = 0
    engine.last_rx = NULL


@cfunc
@inline
@nogil
@exceptval(check=False)
def _rx(engine: pointer[engine_t], channel: uint16_t) -> pointer[channel_rx_t]:
    """The channel's receiving state, NULL when no channel of its page was ever open."""
    if engine.last_rx != NULL and engine.last_channel == channel:
        return engine.last_rx
    return _rx_other(engine, channel)


@cfunc
@nogil
@exceptval(check=False)
def _rx_other(engine: pointer[engine_t], channel: uint16_t) -> pointer[channel_rx_t]:
    page: uint32_t = channel // RX_PAGE
    if page >= engine.rx_pages or engine.rx[page] == NULL:
        return NULL
    engine.last_rx = engine.rx[page] + channel % RX_PAGE
    engine.last_channel = channel
    return engine.last_rx


def engine_set_channel_state(engine: pointer[engine_t], channel: uint16_t, state: c_int) -> c_int:
    page: uint32_t = channel // RX_PAGE
    pages: pointer[pointer[channel_rx_t]]
    rx: pointer[channel_rx_t] = _rx(engine, channel)
    if page >= engine.rx_pages:
        pages = cast(pointer[pointer[channel_rx_t]], realloc(engine.rx, (page + 1) * sizeof(p_void)))
        if pages == NULL:
            return -1
        memset(pages + engine.rx_pages, 0, (page + 1 - engine.rx_pages) * sizeof(p_void))
        memory_add(MEMORY_CHANNELS, (page + 1 - engine.rx_pages) * sizeof(p_void))
        engine.rx = pages
        engine.rx_pages = page + 1
    if rx == NULL:
        engine.rx[page] = cast(pointer[channel_rx_t], calloc(RX_PAGE, sizeof(channel_rx_t)))
        if engine.rx[page] == NULL:
            return -1
        memory_add(MEMORY_CHANNELS, RX_PAGE * sizeof(channel_rx_t))
        rx = engine.rx[page] + channel % RX_PAGE
    rx.state = cast(uint8_t, state)
    rx.body_left = 0
    return 0


@cfunc
@nogil
@exceptval(check=False)
def _refuse(engine: pointer[engine_t], code: c_int, text: pointer[cython.const[char]], method: uint32_t) -> c_int:
    engine.error_code = code
    engine.error_text = text
    engine.error_channel = 0
    engine.error_method = method
    engine.error_value = 0
    return FEED_ERROR


@cfunc
@nogil
@exceptval(check=False)
def _lost(engine: pointer[engine_t], text: pointer[cython.const[char]]) -> c_int:
    """Where the next frame begins can't be known any more: nothing that follows is looked at, a close-ok neither."""
    engine.phase = PHASE_CLOSED
    return _refuse(engine, 501, text, 0)


def engine_feed(engine: pointer[engine_t], buffer: pointer[cython.const[uint8_t]], size: size_t, consumed: pointer[size_t]) -> c_int:
    at: size_t = 0
    payload_size: uint32_t
    frame_type: c_int
    channel: uint16_t
    result: c_int = FEED_MORE
    payload: pointer[cython.const[uint8_t]]
    if engine.phase == PHASE_PROTOCOL_HEADER:
        consumed[0] = 0
        # The first wrong byte decides: a peer that talks HTTP or TLS must not be kept waiting for eight bytes.
        if memcmp(buffer, b"AMQP\x00\x00\x09\x01", size if size < 8 else 8) != 0:
            return FEED_VERSION
        if size < 8:
            return FEED_MORE
        at = 8
        engine.phase = PHASE_HANDSHAKE
        result = engine.sink.protocol_header(engine.context)
        if result != FEED_MORE:
            consumed[0] = at
            return result
    while size - at >= 7:
        frame_type = buffer[at]
        payload_size = get32(buffer + at + 3)
        # Checked before the rest has arrived, so an oversized frame is never buffered (I2). frame_max counts the 8 bytes around
        # the payload; amqpstorm and Qpid fill the payload alone up to it, and RabbitMQ lets them.
        if payload_size > engine.frame_size_max or payload_size > 0x7FFFFFF0:
            consumed[0] = at
            return _lost(engine, b"frame is larger than the negotiated frame_max")
        if frame_type > FRAME_HEARTBEAT or not (FRAME_TYPES >> frame_type) & 1:
            consumed[0] = at
            return _lost(engine, b"unknown frame type")
        if size - at < payload_size + 8:
            break
        payload = buffer + at + 7
        if payload[payload_size] != FRAME_END:
            consumed[0] = at
            return _lost(engine, b"frame does not end with the frame-end octet 206")
        if engine.phase == PHASE_HANDSHAKE:
            if engine.handshake_bytes_left < payload_size + 8:
                consumed[0] = at
                return _lost(engine, b"too many bytes before connection.open")
            engine.handshake_bytes_left -= payload_size + 8
        channel = get16(buffer + at + 1)
        at += payload_size + 8
        if frame_type == FRAME_BODY:
            result = _body_frame(engine, channel, payload, payload_size)
        elif frame_type == FRAME_METHOD:
            result = _method_frame(engine, channel, payload, payload_size)
        elif frame_type == FRAME_HEADER:
            result = _header_frame(engine, channel, payload, payload_size)
        elif channel != 0 or payload_size != 0:
            result = _refuse_by(engine, receive_outcome(PHASE_OPEN, RX_CLOSED, EVENT_HEARTBEAT) - RECEIVE_REFUSE, 0)
        else:
            result = engine.sink.heartbeat(engine.context)
        if result != FEED_MORE:
            break
    consumed[0] = at
    return result


def engine_next_method(
    engine: pointer[engine_t], buffer: pointer[cython.const[uint8_t]], size: size_t, frame_size: pointer[size_t]
) -> uint32_t:
    if size < 12 or buffer[0] != FRAME_METHOD or engine.phase != PHASE_OPEN:
        return 0
    payload_size: size_t = get32(buffer + 3)
    if payload_size < 4 or payload_size > size - 8 or buffer[7 + payload_size] != FRAME_END:
        return 0
    rx: pointer[channel_rx_t] = _rx(engine, get16(buffer + 1))
    if rx == NULL or rx.state != RX_OPEN:
        return 0
    frame_size[0] = payload_size + 8
    return get32(buffer + 7)


@cfunc
@nogil
@exceptval(check=False)
def _refuse_by(engine: pointer[engine_t], refusal: uint32_t, method: uint32_t) -> c_int:
    """Refuses with a row of the table of refusals; `method`: of the frame, 0 when it has none."""
    about: uint8_t = REFUSALS[refusal].about
    if about != ABOUT_FRAME:
        method = BASIC_PUBLISH if about == ABOUT_PUBLISH else 0
    return _refuse(engine, REFUSALS[refusal].code, REFUSALS[refusal].text, method)


@cfunc
@nogil
@exceptval(check=False)
def _event_of(method: uint32_t) -> c_int:
    if method >> 16 == CLASS_BASIC:
        return EVENT_PUBLISH if method == BASIC_PUBLISH else EVENT_BASIC
    if method >> 16 == CLASS_CONNECTION:
        return EVENT_CONNECTION_END if method == CONNECTION_CLOSE or method == CONNECTION_CLOSE_OK else EVENT_CONNECTION
    if method == CHANNEL_OPEN:
        return EVENT_CHANNEL_OPEN
    if method == CHANNEL_CLOSE:
        return EVENT_CHANNEL_CLOSE
    return EVENT_CHANNEL_CLOSE_OK if method == CHANNEL_CLOSE_OK else EVENT_METHOD


@cfunc
@nogil
@exceptval(check=False)
def _outcome(engine: pointer[engine_t], rx: pointer[channel_rx_t], channel: uint16_t, event: c_int) -> uint32_t:
    """RECEIVE_*: what the table says of a frame. Beside the path of messages, which it keeps short."""
    state: c_int = RX_ZERO
    if channel != 0:
        state = RX_CLOSED if rx == NULL else rx.state
    return receive_outcome(engine.phase, state, event)


@cfunc
@nogil
@exceptval(check=False)
def _method_frame(engine: pointer[engine_t], channel: uint16_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    outcome: uint32_t
    if size < 4:
        return _refuse(engine, 501, b"method frame without class and method id", 0)
    method: uint32_t = get32(payload)
    rx: pointer[channel_rx_t] = _rx(engine, channel)
    # The common case first: a method of class basic on an open channel.
    if method >> 16 == CLASS_BASIC and engine.phase == PHASE_OPEN and rx != NULL and rx.state == RX_OPEN:
        return _basic_method(engine, rx, channel, method, payload, size)
    outcome = _outcome(engine, rx, channel, _event_of(method))
    if outcome == RECEIVE_TAKE:
        return engine.sink.method(engine.context, channel, method, payload, size)
    if outcome == RECEIVE_IGNORE:
        return FEED_MORE
    return _refuse_by(engine, outcome - RECEIVE_REFUSE, method)


@cfunc
@nogil
@exceptval(check=False)
def _basic_method(
    engine: pointer[engine_t],
    rx: pointer[channel_rx_t],
    channel: uint16_t,
    method: uint32_t,
    payload: pointer[cython.const[uint8_t]],
    size: uint32_t,
) -> c_int:
    """A method of class basic on an open channel."""
    exchange_len: uint32_t
    key_len: uint32_t
    if method == BASIC_PUBLISH:
        # ticket (2), exchange (shortstr), routing key (shortstr), bits (1)
        if size < 9:
            return _refuse(engine, 502, b"basic.publish is cut short", method)
        exchange_len = payload[6]
        if size < 9 + exchange_len:
            return _refuse(engine, 502, b"basic.publish is cut short", method)
        key_len = payload[7 + exchange_len]
        if size != 9 + exchange_len + key_len:
            return _refuse(engine, 502, b"basic.publish is malformed", method)
        rx.state = RX_HEADER
        return engine.sink.publish(engine.context, channel, payload + 6, exchange_len + key_len + 2, payload[size - 1])
    if method == BASIC_ACK or method == BASIC_NACK or method == BASIC_REJECT:
        if size != 13:
            return _refuse(engine, 502, b"basic.ack, nack or reject is malformed", method)
        if method == BASIC_REJECT:
            return engine.sink.settle(engine.context, channel, method, get64(payload + 4), False, payload[12] & 1)
        return engine.sink.settle(engine.context, channel, method, get64(payload + 4), payload[12] & 1, (payload[12] >> 1) & 1)
    return engine.sink.method(engine.context, channel, method, payload, size)


@cfunc
@nogil
@exceptval(check=False)
def _not_due(engine: pointer[engine_t], rx: pointer[channel_rx_t], channel: uint16_t, event: c_int) -> c_int:
    """A header or body frame that is not due: the table never takes it."""
    outcome: uint32_t = _outcome(engine, rx, channel, event)
    return FEED_MORE if outcome < RECEIVE_REFUSE else _refuse_by(engine, outcome - RECEIVE_REFUSE, 0)


@cfunc
@nogil
@exceptval(check=False)
def _header_frame(engine: pointer[engine_t], channel: uint16_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    rx: pointer[channel_rx_t] = _rx(engine, channel)
    if engine.phase != PHASE_OPEN or rx == NULL or rx.state != RX_HEADER:
        return _not_due(engine, rx, channel, EVENT_HEADER)
    if size < 14 or get16(payload) != CLASS_BASIC:
        return _refuse(engine, 501, b"content header is malformed or not of class 60", BASIC_PUBLISH)
    body_size: uint64_t = get64(payload + 4)
    if body_size > engine.message_size_max:
        _refuse(engine, 406, b"message size is larger than configured max size", BASIC_PUBLISH)
        engine.error_channel = channel
        engine.error_value = body_size
        return FEED_ERROR
    if body_size == 0:
        rx.state = RX_OPEN
    else:
        rx.state = RX_BODY
        rx.body_left = body_size
    return engine.sink.header(engine.context, channel, body_size, payload, size)


@cfunc
@nogil
@exceptval(check=False)
def _body_frame(engine: pointer[engine_t], channel: uint16_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
    rx: pointer[channel_rx_t] = _rx(engine, channel)
    if engine.phase != PHASE_OPEN or rx == NULL or rx.state != RX_BODY:
        return _not_due(engine, rx, channel, EVENT_BODY)
    if size > rx.body_left:
        return _refuse(engine, 501, b"content body is longer than its header said", BASIC_PUBLISH)
    rx.body_left -= size
    if rx.body_left == 0:
        rx.state = RX_OPEN
    return engine.sink.body(engine.context, channel, payload, size, rx.body_left)

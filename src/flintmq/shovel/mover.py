"""Deliveries of one AMQP connection become publishes of another, and its confirms become acks (see mover.pxd).

in: buffers with frames, as received. out: frames for the other side. Frames that are no message and no confirm are the caller's.

M1  Messages are published in the order in which they came. A message is acked when it is published (on-publish) or confirmed (on-confirm).
M2  Both peers are strangers: each length, tag and number of theirs is checked; what is wrong raises MoverError, and nothing more is moved.
M3  What is held is bounded: the output of one call (the input, and one method frame for each message in it), and a ring of tags.
"""
# Compiled: Cython checks the types and names that come from the .pxd.
# mypy: ignore-errors

from __future__ import annotations

import cython
from cython import NULL, bint, cast, cclass, p_char, p_uchar, pointer, size_t, void
from cython import int as c_int
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.flintmq.core.byte_order import get16, get32, get64, put16, put32, put64
from cython.cimports.flintmq.core.content import FRAME_END
from cython.cimports.flintmq.protocol.v0_9_1.ids import (
    BASIC_ACK, BASIC_DELIVER, BASIC_NACK, BASIC_PUBLISH, FRAME_BODY, FRAME_HEADER, FRAME_METHOD,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memcpy


class MoverError(ValueError):
    """A peer sent what it may not send. `str` is for people."""


def _short(text: bytes | None) -> bytes | None:
    return None if text is None else bytes((len(text),)) + text


@cclass
class Mover:
    """Args: mode: SETTLE_*; exchange, key: where to publish, None: as the message came; mandatory: of the publishes;
    messages_left: that are moved, -1: any number; window: messages that may be unsettled; change: (exchange, key, redelivered, header
    payload) -> header payload, or None for a message that is settled and not published; source_frame_max, frame_max: bytes of a frame that
    the source may send, and that the destination takes."""

    def __cinit__(
        self,
        mode: int,
        exchange: bytes | None = None,
        key: bytes | None = None,
        *,
        mandatory: bool = False,
        messages_left: int = -1,
        window: int = 1,
        change: object = None,
        source_frame_max: int = 131_072,
        frame_max: int = 131_072,
    ):
        size: uint64_t = 2
        self.mode = mode
        self.exchange = _short(exchange)
        self.key = _short(key)
        self.bits = 1 if mandatory else 0
        self.left = messages_left
        self.change = change
        if frame_max <= 8:  # a body would be cut into pieces of nothing, for ever
            raise ValueError(f"frames of {frame_max} bytes hold nothing")
        self.input_max = source_frame_max
        self.payload_max = frame_max - 8
        while size <= cast(uint64_t, window):
            size *= 2
        self.mask = size - 1
        self.confirm_low = 1
        self.done = cast(p_uchar, calloc(size, 1))
        self.tags = cast(pointer[uint64_t], calloc(size, 8))
        if self.done == NULL or self.tags == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.out)
        free(self.done)
        free(self.tags)

    # --- messages -----------------------------------------------------------------------------------------------------------

    def deliveries(self, data: bytearray, start: int, end: int) -> int:
        """Takes frames of messages from data[start:end]. Returns where it stopped: at a frame that is no message, at one that is not whole,
        or at a message for which there is no room (`full`). Raises: MoverError."""
        base: pointer[uint8_t] = cast(pointer[uint8_t], PyByteArray_AS_STRING(data))
        offset: size_t = start
        stop: size_t = end
        size: uint32_t
        while stop - offset >= 8:
            size = get32(base + offset + 3)
            if size > self.input_max:
                raise MoverError("a frame is larger than was agreed")
            if stop - offset < cast(size_t, size) + 8 or get16(base + offset + 1) != 1:
                break
            if base[offset + size + 7] != FRAME_END:
                raise MoverError("a frame has no end octet")
            if self.one(base + offset, size) == 0:
                break
            offset += cast(size_t, size) + 8
        return offset

    def one(self, frame: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
        """1: it was taken; 0: it is not ours, or there is no room."""
        payload: pointer[cython.const[uint8_t]] = frame + 7
        if self.due == DUE_METHOD:
            if frame[0] != FRAME_METHOD or size < 4 or get32(payload) != BASIC_DELIVER:
                return 0
            if self.mode == SETTLE_CONFIRMED and self.came - self.settled_to >= self.mask:
                return 0
            self.deliver(payload + 4, size - 4)
        elif frame[0] == FRAME_METHOD:
            # Only the end of the channel may come in between.
            return 0
        elif self.due == DUE_HEADER and frame[0] == FRAME_HEADER:
            self.header(payload, size)
        elif self.due == DUE_BODY and frame[0] == FRAME_BODY:
            self.body(payload, size)
        else:
            raise MoverError("a frame comes out of order")
        return 1

    def deliver(self, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
        """consumer tag, delivery tag, redelivered, exchange, routing key"""
        offset: uint32_t = 0
        route: uint32_t
        if size >= 1:
            offset = 1 + payload[0]
        if offset == 0 or size < offset + 10:
            raise MoverError("a delivery is malformed")
        tag: uint64_t = get64(payload + offset)
        self.redelivered = payload[offset + 8] & 1
        offset += 9
        route = offset
        self.route_exchange = 1 + payload[offset]
        offset += self.route_exchange
        if size < offset + 1 or size != offset + 1 + payload[offset]:
            raise MoverError("a delivery is malformed")
        if tag != self.came + 1:
            raise MoverError(f"delivery {tag} comes after delivery {self.came}")
        self.came = tag
        self.route_size = size - route
        memcpy(self.route, payload + route, self.route_size)
        self.keeps = self.left == 0
        self.drops = self.keeps
        self.due = DUE_HEADER
        return 0

    def header(self, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
        """The publish goes out with the header: only now it is known that there is one."""
        changed: bytes
        if size < 14:
            raise MoverError("a content header is malformed")
        self.body_left = get64(payload + 4)
        if not self.drops and self.change is not None:
            exchange: bytes = PyBytes_FromStringAndSize(cast(p_char, self.route) + 1, self.route_exchange - 1)
            key: bytes = PyBytes_FromStringAndSize(
                cast(p_char, self.route) + self.route_exchange + 1, self.route_size - self.route_exchange - 1
            )
            made = self.change(
                exchange, key, bool(self.redelivered), PyBytes_FromStringAndSize(cast(p_char, cast(pointer[void], payload)), size)
            )
            if made is None:
                self.drops = True
            else:
                changed = made
                payload = cast(pointer[uint8_t], PyBytes_AS_STRING(changed))
                size = PyBytes_GET_SIZE(changed)
                if size > self.payload_max:
                    raise MoverError(
                        f"the headers of a message have {size} bytes, and the destination takes frames of {self.payload_max + 8}"
                    )
        if not self.drops:
            self.publish()
            self.frame(FRAME_HEADER, payload, size)
            if self.left > 0:
                self.left -= 1
        self.due = DUE_BODY
        if self.body_left == 0:
            self.complete()
        return 0

    def publish(self) -> c_int:
        """basic.publish: reserved, exchange, routing key, bits"""
        exchange: pointer[cython.const[uint8_t]] = self.route
        exchange_size: uint32_t = self.route_exchange
        key: pointer[cython.const[uint8_t]] = self.route + self.route_exchange
        key_size: uint32_t = self.route_size - self.route_exchange
        byte: pointer[uint8_t]
        if self.exchange is not None:
            exchange = cast(pointer[uint8_t], PyBytes_AS_STRING(self.exchange))
            exchange_size = PyBytes_GET_SIZE(self.exchange)
        if self.key is not None:
            key = cast(pointer[uint8_t], PyBytes_AS_STRING(self.key))
            key_size = PyBytes_GET_SIZE(self.key)
        if not self.room(15 + exchange_size + key_size):
            raise MemoryError
        byte = self.out + self.out_end
        byte[0] = FRAME_METHOD
        put16(byte + 1, 1)
        put32(byte + 3, 7 + exchange_size + key_size)
        put32(byte + 7, BASIC_PUBLISH)
        put16(byte + 11, 0)
        memcpy(byte + 13, exchange, exchange_size)
        memcpy(byte + 13 + exchange_size, key, key_size)
        byte[13 + exchange_size + key_size] = self.bits
        byte[14 + exchange_size + key_size] = FRAME_END
        self.out_end += 15 + exchange_size + key_size
        return 0

    def body(self, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
        piece: uint32_t
        if size > self.body_left:
            raise MoverError("a body is longer than its header says")
        self.body_left -= size
        while size > 0 and not self.drops:
            piece = size if size <= self.payload_max else self.payload_max
            self.frame(FRAME_BODY, payload, piece)
            payload += piece
            size -= piece
        if self.body_left == 0:
            self.complete()
        return 0

    def complete(self) -> c_int:
        self.due = DUE_METHOD
        if self.keeps:
            return 0
        if self.drops:
            self.mark(self.came)
        elif self.mode == SETTLE_CONFIRMED:
            self.published_count += 1
            self.open_count += 1
            self.tags[self.published_count & self.mask] = self.came
        else:
            self.moved += 1
            self.mark(self.came)
        self.drops = False
        return 0

    def frame(self, kind: uint8_t, payload: pointer[cython.const[uint8_t]], size: uint32_t) -> c_int:
        byte: pointer[uint8_t]
        if not self.room(cast(size_t, size) + 8):
            raise MemoryError
        byte = self.out + self.out_end
        byte[0] = kind
        put16(byte + 1, 1)
        put32(byte + 3, size)
        memcpy(byte + 7, payload, size)
        byte[7 + size] = FRAME_END
        self.out_end += cast(size_t, size) + 8
        return 0

    def room(self, size: size_t) -> bint:
        wanted: size_t = self.out_end + size
        grown: pointer[uint8_t]
        if wanted <= self.out_size:
            return True
        wanted = wanted * 2 if wanted > 4096 else 8192
        grown = cast(pointer[uint8_t], realloc(self.out, wanted))
        if grown == NULL:
            return False
        self.out = grown
        self.out_size = wanted
        return True

    def take(self) -> bytes:
        """The frames for the destination that were made since the last call."""
        taken: bytes = PyBytes_FromStringAndSize(cast(p_char, self.out), self.out_end)
        self.out_end = 0
        return taken

    # --- settlements --------------------------------------------------------------------------------------------------------

    def mark(self, tag: uint64_t) -> void:
        """A delivery is done. Those that follow the last settled one without a gap are settled."""
        self.done[tag & self.mask] = 1
        while self.settled_to < self.came and self.done[(self.settled_to + 1) & self.mask]:
            self.settled_to += 1
            self.done[self.settled_to & self.mask] = 0

    def confirms(self, data: bytearray, start: int, end: int) -> int:
        """Takes acks and nacks of the destination from data[start:end]; returns where it stopped, as `deliveries`. Raises: MoverError."""
        base: pointer[uint8_t] = cast(pointer[uint8_t], PyByteArray_AS_STRING(data))
        offset: size_t = start
        stop: size_t = end
        method: uint32_t
        while (
            stop - offset >= CONFIRM_SIZE
            and base[offset] == FRAME_METHOD
            and get16(base + offset + 1) == 1
            and get32(base + offset + 3) == 13
        ):
            method = get32(base + offset + 7)
            if method != BASIC_ACK and method != BASIC_NACK:
                break
            if base[offset + 20] != FRAME_END:
                raise MoverError("a frame has no end octet")
            if method == BASIC_NACK:
                self.refused = True
            else:
                self.confirm(get64(base + offset + 11), base[offset + 19] & 1)
            offset += CONFIRM_SIZE
        return offset

    def confirm(self, number: uint64_t, multiple: bint) -> c_int:
        tag: uint64_t
        index: uint64_t
        first: uint64_t = number
        if number == 0 and multiple:
            number = self.published_count
        if number > self.published_count or number == 0:
            raise MoverError(f"publish {number} is confirmed, and there were {self.published_count}")
        if multiple:
            first = self.confirm_low
        index = first
        while index <= number:
            if index >= self.confirm_low:
                tag = self.tags[index & self.mask]
                if tag != 0:
                    self.tags[index & self.mask] = 0
                    self.open_count -= 1
                    self.moved += 1
                    self.mark(tag)
            index += 1
        while self.confirm_low <= self.published_count and self.tags[self.confirm_low & self.mask] == 0:
            self.confirm_low += 1
        return 0

    def acks(self, every: bool = False) -> bytes:
        """Frames that settle at the source what is done and was not settled yet. Args: every: that what lies behind a gap, too: for the end
        of the link, when nothing closes the gap any more."""
        tag: uint64_t
        frames: bytes = b""
        if self.mode == SETTLE_NEVER:
            return frames
        if self.settled_to > self.acked_to:
            frames = _ack(self.settled_to, True)
            self.acked_to = self.settled_to
        if every:
            pieces: list = [frames]
            tag = self.settled_to + 1
            while tag <= self.came:
                if self.done[tag & self.mask]:
                    pieces.append(_ack(tag, False))
                tag += 1
            frames = b"".join(pieces)
        return frames

    @property
    def full(self) -> bool:
        """No further message is taken before one is settled."""
        return self.mode == SETTLE_CONFIRMED and self.came - self.settled_to >= self.mask

    @property
    def finished(self) -> bool:
        """All messages that were to be moved are, and are settled."""
        return self.left == 0 and self.open_count == 0 and (self.due == DUE_METHOD or self.drops)

    @property
    def unsettled(self) -> int:
        """Messages that were published and are not confirmed."""
        return self.open_count


def _ack(tag: int, multiple: bool) -> bytes:
    """The frame of basic.ack on channel 1."""
    frame: pointer[uint8_t]
    made: bytes = PyBytes_FromStringAndSize(NULL, CONFIRM_SIZE)
    frame = cast(pointer[uint8_t], PyBytes_AS_STRING(made))
    frame[0] = FRAME_METHOD
    put16(frame + 1, 1)
    put32(frame + 3, 13)
    put32(frame + 7, BASIC_ACK)
    put64(frame + 11, tag)
    frame[19] = 1 if multiple else 0
    frame[20] = FRAME_END
    return made

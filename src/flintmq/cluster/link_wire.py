"""The frames of links between nodes: publishes to bytes, bytes to deliveries, answers and methods.

in: messages as (exchange, routing key, content header payload, body, flags, priority); bytes of a socket. out: frames; what came, in order.

W1  A frame above the agreed size, or one without its end octet, is an error: the peer is a node of this release or of a later one, and what
    it sends is well-formed, or the connection ends.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

from flintmq.core.content import CONTENT_HEADERS, FRAME_END
from flintmq.errors import FlintError
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import decode_method

Message = tuple[bytes, bytes, bytes, bytes, int, int]

_HEAD = struct.Struct(">BHI")
_PUBLISH = struct.Struct(">BHIIH")
_ANSWER = struct.Struct(">BHIIQBB")
_TAG = struct.Struct(">Q")
_END = bytes([FRAME_END])
_DELIVER = spec.METHOD_IDS["basic.deliver"].to_bytes(4, "big")
_GET_OK = spec.METHOD_IDS["basic.get-ok"].to_bytes(4, "big")
_ACK = spec.METHOD_IDS["basic.ack"].to_bytes(4, "big")
_NACK = spec.METHOD_IDS["basic.nack"].to_bytes(4, "big")
_PUBLISH_ID = spec.METHOD_IDS["basic.publish"]
_ACK_ID, _NACK_ID = spec.METHOD_IDS["basic.ack"], spec.METHOD_IDS["basic.nack"]
_REJECT_ID = spec.METHOD_IDS["basic.reject"]
# octets of basic.nack: multiple, requeue
_REQUEUE = 2
# bit of a content header's flags: headers
_FLAG_HEADERS = 1 << 13
HEARTBEAT = _HEAD.pack(spec.FRAME_HEARTBEAT, 0, 0) + _END


class WireError(FlintError):
    """The peer sent what is no AMQP, or not at this point."""


class Receiver(Protocol):
    """The receiving end of a link: calls by channel number (link.Link)."""

    def on_answer(self, number: int, tag: int, multiple: bool, taken: bool) -> None: ...
    def on_message(self, number: int, tag: int, redelivered: bool, message: Message) -> None: ...
    def on_method(self, number: int, method: Any) -> None: ...


def publish_frames(number: int, message: Message, frame_max: int) -> bytes:
    """A publish, neither mandatory nor immediate. O(bytes)."""
    exchange, key, header, body, _, _ = message
    size = len(exchange) + len(key) + 9
    frames = [
        _PUBLISH.pack(spec.FRAME_METHOD, number, size, _PUBLISH_ID, 0),
        bytes((len(exchange),)),
        exchange,
        bytes((len(key),)),
        key,
        b"\0" + _END,
        _HEAD.pack(spec.FRAME_HEADER, number, len(header)),
        header,
        _END,
    ]
    most = frame_max - 8
    if len(body) <= most:
        if body:
            frames += _HEAD.pack(spec.FRAME_BODY, number, len(body)), body, _END
        return b"".join(frames)
    for offset in range(0, len(body), most):
        piece = body[offset : offset + most]
        frames += _HEAD.pack(spec.FRAME_BODY, number, len(piece)), piece, _END
    return b"".join(frames)


def ack_frame(number: int, tag: int, multiple: bool) -> bytes:
    return _ANSWER.pack(spec.FRAME_METHOD, number, 13, _ACK_ID, tag, multiple, FRAME_END)


def requeue_frame(number: int, tag: int) -> bytes:
    return _ANSWER.pack(spec.FRAME_METHOD, number, 13, _NACK_ID, tag, _REQUEUE, FRAME_END)


def reject_frame(number: int, tag: int) -> bytes:
    """Refuses a delivery, which is not to come again."""
    return _ANSWER.pack(spec.FRAME_METHOD, number, 13, _REJECT_ID, tag, 0, FRAME_END)


class Reader:
    """Bytes of a socket to calls of `receiver`. Args: frame_max: bytes of a frame, its 8 octets around the payload included."""

    def __init__(self, receiver: Receiver, frame_max: int) -> None:
        self.frame_max = frame_max
        self._receiver = receiver
        self._rest = b""
        # the message that is coming on each channel: tag, redelivered, exchange, routing key, header, pieces of its body, bytes to come
        self._coming: dict[int, list[Any]] = {}

    def feed(self, data: bytes) -> None:
        """Raises: WireError (W1); PeerError of the codec."""
        if self._rest:
            data = self._rest + data
        offset, end = 0, len(data)
        while end - offset >= 8:
            kind, number, size = _HEAD.unpack_from(data, offset)
            if size > self.frame_max - 8:
                raise WireError("a frame is larger than was agreed, or what came is no AMQP")
            following = offset + size + 8
            if following > end:
                break
            if data[following - 1] != FRAME_END:
                raise WireError("a frame has no end octet")
            self._frame(kind, number, data[offset + 7 : following - 1])
            offset = following
        self._rest = data[offset:]

    def forget(self, number: int) -> None:
        """The channel is closed: a message that was coming comes no more."""
        self._coming.pop(number, None)

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == spec.FRAME_METHOD:
            name = payload[:4]
            if name in (_ACK, _NACK):
                (tag,) = _TAG.unpack_from(payload, 4)
                self._receiver.on_answer(number, tag, payload[12] & 1 != 0, name == _ACK)
            elif name == _DELIVER:
                self._begin(number, payload, 5 + payload[4])
            elif name == _GET_OK:
                self._begin(number, payload, 4)
            else:
                self._receiver.on_method(number, decode_method(payload))
        elif kind == spec.FRAME_HEARTBEAT:
            return
        elif kind in (spec.FRAME_HEADER, spec.FRAME_BODY):
            self._content(kind, number, payload)
        else:
            raise WireError(f"a frame of type {kind}")

    def _begin(self, number: int, payload: bytes, offset: int) -> None:
        (tag,) = _TAG.unpack_from(payload, offset)
        redelivered = payload[offset + 8] != 0
        offset += 9
        exchange = payload[offset + 1 : offset + 1 + payload[offset]]
        offset += 1 + payload[offset]
        key = payload[offset + 1 : offset + 1 + payload[offset]]
        self._coming[number] = [tag, redelivered, exchange, key, b"", [], 0]

    def _content(self, kind: int, number: int, payload: bytes) -> None:
        coming = self._coming.get(number)
        if coming is None:
            return  # of a channel that is closed
        if kind == spec.FRAME_HEADER:
            coming[4] = payload
            coming[6] = int.from_bytes(payload[4:12], "big")
        else:
            coming[5].append(payload)
            coming[6] -= len(payload)
        if coming[6] == 0:
            del self._coming[number]
            tag, redelivered, exchange, key, header, pieces, _ = coming
            flags = CONTENT_HEADERS if int.from_bytes(header[12:14], "big") & _FLAG_HEADERS else 0
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._receiver.on_message(number, tag, redelivered, (exchange, key, header, body, flags, 0))

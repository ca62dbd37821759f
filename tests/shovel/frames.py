"""Frames of a broker and of a client, for tests of the mover."""

from __future__ import annotations

import struct
from typing import Any

from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import decode_method, encode_frame, encode_properties, method_frame


def message(
    tag: int, body: bytes, *, exchange: str = "", key: str = "q", piece: int = 100, redelivered: bool = False, **properties: Any
) -> bytes:
    """basic.deliver with its content, the body in pieces."""
    frames = [
        method_frame(1, spec.BasicDeliver("ctag", tag, redelivered, exchange, key)),
        encode_frame(spec.FRAME_HEADER, 1, encode_properties(len(body), properties)),
    ]
    frames += [encode_frame(spec.FRAME_BODY, 1, body[at : at + piece]) for at in range(0, len(body), piece)]
    return b"".join(frames)


def ack(tag: int, multiple: bool = False) -> bytes:
    return method_frame(1, spec.BasicAck(tag, multiple))


def nack(tag: int, multiple: bool = False) -> bytes:
    return method_frame(1, spec.BasicNack(tag, multiple, False))


def split(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, channel, payload) of each frame; every one is whole."""
    frames = []
    while data:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert data[size + 7] == spec.FRAME_END
        frames.append((kind, channel, data[7 : size + 7]))
        data = data[size + 8 :]
    return frames


def published(data: bytes) -> list[tuple[str, str, bytes, bytes]]:
    """(exchange, key, header payload, body) of each publish."""
    found: list[list[Any]] = []
    for kind, channel, payload in split(data):
        assert channel == 1
        if kind == spec.FRAME_METHOD:
            method: Any = decode_method(payload)
            assert isinstance(method, spec.BasicPublish)
            found.append([method.exchange, method.routing_key, b"", b""])
        elif kind == spec.FRAME_HEADER:
            found[-1][2] = payload
        else:
            found[-1][3] += payload
    return [(one[0], one[1], one[2], one[3]) for one in found]


def acked(data: bytes) -> list[tuple[int, bool]]:
    """(tag, multiple) of each ack."""
    methods: list[Any] = [decode_method(payload) for _, _, payload in split(data)]
    return [(one.delivery_tag, one.multiple) for one in methods if isinstance(one, spec.BasicAck)]

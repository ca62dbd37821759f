"""Frames of links: what one side writes the other one reads, however the bytes arrive, and what is no frame is refused."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.cluster.link_wire import HEARTBEAT, Message, Reader, WireError, ack_frame, publish_frames, reject_frame, requeue_frame
from flintmq.core.content import CONTENT_HEADERS
from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import encode_properties, method_frame
from tests.support.rawcodec import Frame, parse_method

FRAME_MAX = 4_096


class Ends:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_answer(self, number: int, tag: int, multiple: bool, taken: bool) -> None:
        self.events.append((number, tag, multiple, taken))

    def on_message(self, number: int, tag: int, redelivered: bool, message: Message) -> None:
        self.events.append((number, tag, redelivered, message))

    def on_method(self, number: int, method: Any) -> None:
        self.events.append((number, method.NAME))


def frames(data: bytes) -> list[Frame]:
    found = []
    while data:
        size = int.from_bytes(data[3:7], "big")
        assert data[7 + size] == 0xCE and size + 8 <= FRAME_MAX
        found.append(Frame(data[0], int.from_bytes(data[1:3], "big"), data[7 : 7 + size]))
        data = data[8 + size :]
    return found


def delivery(number: int, tag: int, body: bytes, redelivered: bool = False, **properties: Any) -> bytes:
    """What an owner sends: the frames of a publish behind a deliver."""
    header = encode_properties(len(body), properties)
    content = publish_frames(number, (b"x", b"k", header, body, 0, 0), FRAME_MAX)
    publish = frames(content)[0]
    return method_frame(number, spec.BasicDeliver("c", tag, redelivered, "x", "k")) + content[len(publish.payload) + 8 :]


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 10_000])
def test_a_publish_has_its_names_header_and_body_in_frames_of_the_agreed_size(size: int) -> None:
    body = bytes(index % 251 for index in range(size))
    header = encode_properties(size, {"content_type": "t"})
    method, head, *pieces = frames(publish_frames(7, ("é".encode(), b"key", header, body, 0, 0), FRAME_MAX))
    parsed = parse_method(7, method.payload)
    assert (parsed.name, parsed.exchange, parsed.routing_key, parsed.mandatory, parsed.immediate) == (
        "basic.publish",
        "é",
        "key",
        False,
        False,
    )
    assert head.payload == header and b"".join(piece.payload for piece in pieces) == body
    assert {frame.channel for frame in (method, head, *pieces)} == {7}


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_what_comes_is_told_in_order_however_it_is_cut(step: int) -> None:
    data = (
        delivery(3, 1, b"", redelivered=True)
        + HEARTBEAT
        + ack_frame(4, 9, True)
        + delivery(3, 2, b"z" * 9_000, headers={"a": 1})
        + requeue_frame(4, 10)
        + method_frame(5, spec.BasicConsumeOk("c"))
    )
    ends = Ends()
    reader = Reader(ends, FRAME_MAX)
    for offset in range(0, len(data), step):
        reader.feed(data[offset : offset + step])
    first, answer, second, refusal, method = ends.events
    assert first[:3] == (3, 1, True) and first[3][:2] == (b"x", b"k") and first[3][3:5] == (b"", 0)
    assert second[:3] == (3, 2, False) and second[3][3:5] == (b"z" * 9_000, CONTENT_HEADERS)
    assert (answer, refusal, method) == ((4, 9, True, True), (4, 10, False, False), (5, "basic.consume-ok"))


def test_settlements_say_what_becomes_of_a_delivery() -> None:
    nack, reject = (parse_method(1, frames(data)[0].payload) for data in (requeue_frame(1, 5), reject_frame(1, 5)))
    assert (nack.name, nack.delivery_tag, nack.multiple, nack.requeue) == ("basic.nack", 5, False, True)
    assert (reject.name, reject.delivery_tag, reject.requeue) == ("basic.reject", 5, False)


def test_a_message_of_a_channel_that_was_closed_meanwhile_is_passed_over() -> None:
    ends = Ends()
    reader = Reader(ends, FRAME_MAX)
    data = delivery(3, 1, b"body")
    reader.feed(data[:-12])
    reader.forget(3)
    reader.feed(data[-12:] + ack_frame(4, 1, False))
    assert ends.events == [(4, 1, False, True)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x01\x00\x01\x00\x00\x10\x00" + b"\x00", "larger"),
        (ack_frame(1, 1, False)[:-1] + b"\x00", "end octet"),
        (b"\x05\x00\x01\x00\x00\x00\x00\xce", "type 5"),
        (b"HTTP/1.1 400 Bad Request", "no AMQP"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        Reader(Ends(), FRAME_MAX).feed(data)

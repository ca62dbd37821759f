"""The receiving engine: same events however bytes are cut, limits before buffers, only refusals on garbage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import encode_frame, encode_properties, method_frame
from tests.drivers.recorder import Recorder

HEADER = b"AMQP\x00\x00\x09\x01"
OPENED = HEADER + method_frame(0, spec.ConnectionOpen("/")) + method_frame(1, spec.ChannelOpen())


def publish(channel: int, body: bytes, frame: int = 100, key: str = "k") -> bytes:
    data = method_frame(channel, spec.BasicPublish(exchange="x", routing_key=key))
    data += encode_frame(spec.FRAME_HEADER, channel, encode_properties(len(body), {"delivery_mode": 2}))
    for start in range(0, len(body), frame):
        data += encode_frame(spec.FRAME_BODY, channel, body[start : start + frame])
    return data


def feed(data: bytes, step: int | None = None, **options: int) -> list:
    """Events of `data`, fed whole or in steps; stops at the first refusal."""
    recorder = Recorder(**options)
    for start in range(0, len(data), step or max(len(data), 1)):
        if not recorder.receive(data[start : start + (step or len(data))]):
            break
    return recorder.events


STREAMS = [
    OPENED + publish(1, b"hello"),
    OPENED + publish(1, b""),
    OPENED + publish(1, b"x" * 1000, frame=33) + publish(1, b"y"),
    OPENED
    + method_frame(1, spec.BasicAck(7, True))
    + method_frame(1, spec.BasicNack(9, False, True))
    + method_frame(1, spec.BasicReject(3, True)),
    OPENED + b"\x08\x00\x00\x00\x00\x00\x00\xce" + publish(1, b"z"),
    OPENED + method_frame(1, spec.BasicPublish()) + publish(1, b"out of order"),
    b"GET / HTTP/1.1\r\n",
    HEADER + b"\x01\x00\x00\x00\x00\x00\x04abcd\x00",
]


@pytest.mark.parametrize("data", STREAMS)
@pytest.mark.parametrize("step", [1, 2, 7, 64])
def test_events_do_not_depend_on_how_bytes_are_cut(data: bytes, step: int) -> None:
    assert feed(data, step) == feed(data)


def test_publish_is_reported_as_method_header_and_body_frames() -> None:
    events = feed(OPENED + publish(1, b"abcdef", frame=4))
    assert [event[0] for event in events] == ["protocol-header", "method", "method", "publish", "header", "body", "body"]
    assert events[3] == ("publish", 1, b"\x01x\x01k", 0)
    assert events[4][2] == 6
    assert [(event[2], event[3]) for event in events[5:]] == [(b"abcd", 2), (b"ef", 0)]


def test_two_channels_may_interleave_their_content() -> None:
    one = publish(1, b"aaaa", frame=2)
    two = publish(2, b"bbbb", frame=2)
    frames_one = [one[: -2 * 10], one[-2 * 10 : -10], one[-10:]]
    frames_two = [two[: -2 * 10], two[-2 * 10 : -10], two[-10:]]
    mixed = b"".join(a + b for a, b in zip(frames_one, frames_two, strict=True))
    events = feed(OPENED + method_frame(2, spec.ChannelOpen()) + mixed)
    assert b"".join(event[2] for event in events if event[0] == "body" and event[1] == 1) == b"aaaa"
    assert b"".join(event[2] for event in events if event[0] == "body" and event[1] == 2) == b"bbbb"
    assert events[-1][0] == "body"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (OPENED + b"\x01\x00\x01" + struct.pack(">I", 131073) + b"", 501),  # larger than frame_max, before its bytes arrive
        (HEADER + b"\x01\x00\x00" + struct.pack(">I", 8193), 501),  # the smaller limit before open
        (OPENED + b"\x05\x00\x01\x00\x00\x00\x00\xce", 501),  # unknown frame type
        (OPENED + b"\x01\x00\x01\x00\x00\x00\x04\x00\x14\x00\x0a\xcd", 501),  # wrong frame end
        (OPENED + encode_frame(3, 1, b"x"), 505),  # body without header
        (OPENED + encode_frame(2, 1, encode_properties(0, {})), 505),  # header without publish
        (OPENED + publish(1, b"abc")[:-11] + method_frame(1, spec.BasicGet()), 505),
        (OPENED + publish(3, b"abc"), 504),  # channel was never opened
        (OPENED + method_frame(1, spec.ConnectionClose()), 503),  # class connection off channel 0
        (OPENED + method_frame(0, spec.QueueDeclare()), 503),
        (HEADER + method_frame(1, spec.ChannelOpen()), 503),  # before open
        (OPENED + encode_frame(8, 1, b""), 501),  # heartbeat on a channel
        (OPENED + encode_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\xff"), 502),  # publish cut short
    ],
)
def test_broken_rules_are_refused_with_the_code_of_the_specification(data: bytes, code: int) -> None:
    assert feed(data)[-1][:2] == ("error", code)


def test_body_longer_than_its_header_said_is_refused() -> None:
    data = method_frame(1, spec.BasicPublish(routing_key="k")) + encode_frame(2, 1, encode_properties(3, {})) + encode_frame(3, 1, b"four")
    assert feed(OPENED + data)[-1][:2] == ("error", 501)


def test_message_above_the_limit_is_refused_at_its_header_and_names_the_channel() -> None:
    data = method_frame(1, spec.BasicPublish(routing_key="k")) + encode_frame(2, 1, encode_properties(101, {}))
    assert feed(OPENED + data, message_size_max=100)[-1][:3] == ("error", 406, 1)


def test_handshake_has_a_byte_budget() -> None:
    one = method_frame(0, spec.ConnectionStartOk({}, "PLAIN", b"x" * 4000, "en_US"))
    assert feed(HEADER + one * 20)[-1][:2] == ("error", 501)


def test_wrong_protocol_header_is_noticed_at_its_first_byte() -> None:
    assert feed(b"\x16\x03\x01") == [("version",)]
    assert feed(b"AMQP\x01\x01\x00\x0a") == [("version",)]


def test_unfinished_frame_is_kept_and_nothing_else() -> None:
    recorder = Recorder()
    assert recorder.receive(OPENED + publish(1, b"abc")[:-4])
    assert recorder.kept == len(encode_frame(3, 1, b"abc")) - 4


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(1, 50), st.booleans())
def test_garbage_gives_events_or_one_refusal_and_the_same_ones_in_pieces(data: bytes, step: int, opened: bool) -> None:
    data = (OPENED if opened else HEADER) + data
    whole = feed(data)
    assert feed(data, step) == whole
    assert [event[0] for event in whole[:-1]].count("error") == 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_byte_in_a_valid_stream_never_crashes(data: st.DataObject) -> None:
    stream = bytearray(data.draw(st.sampled_from(STREAMS)))
    position = data.draw(st.integers(0, len(stream) - 1))
    stream[position] = data.draw(st.integers(0, 255))
    assert feed(bytes(stream), 1) == feed(bytes(stream))

"""The mover: what comes in goes out, in order, whole, once; what was confirmed is acked, and nothing else; hostile peers end it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import encode_frame, encode_properties, method_frame
from flintmq.shovel.mover import SETTLE_CONFIRMED as CONFIRMED
from flintmq.shovel.mover import SETTLE_NEVER as NEVER
from flintmq.shovel.mover import SETTLE_PUBLISHED as PUBLISHED
from flintmq.shovel.mover import Mover, MoverError
from tests.shovel.frames import ack, acked, message, nack, published


def feed(mover: Mover, data: bytes, sizes: list[int]) -> tuple[bytes, bytes]:
    """Feeds the bytes in pieces; what goes to the destination, and what was not taken."""
    buffer, out = bytearray(), b""
    sizes = [*sizes, len(data)]
    while data:
        size = max(1, sizes.pop(0)) if sizes else len(data)
        buffer += data[:size]
        data = data[size:]
        at = mover.deliveries(buffer, 0, len(buffer))
        del buffer[:at]
        out += mover.take()
    return out, bytes(buffer)


bodies = st.lists(st.binary(max_size=300), max_size=12)
pieces = st.lists(st.integers(1, 60), max_size=60)


@given(bodies, pieces, st.sampled_from([None, b"", b"x"]), st.sampled_from([None, b"k"]), st.integers(20, 400))
def test_what_comes_in_goes_out(contents: list[bytes], sizes: list[int], exchange: bytes | None, key: bytes | None, frame_max: int) -> None:
    """However the bytes are cut, and whatever frames the destination takes."""
    mover = Mover(NEVER, exchange, key, frame_max=frame_max)
    data = b"".join(message(tag, body, exchange="from", key=f"k{tag}", delivery_mode=2) for tag, body in enumerate(contents, 1))
    out, rest = feed(mover, data, sizes)
    assert rest == b"" and mover.moved == len(contents) and mover.acks() == b""
    wanted = [
        (
            "from" if exchange is None else exchange.decode(),
            f"k{tag}" if key is None else key.decode(),
            encode_properties(len(body), {"delivery_mode": 2}),
            body,
        )
        for tag, body in enumerate(contents, 1)
    ]
    assert published(out) == wanted


@given(st.data())
def test_what_is_confirmed_is_acked(data: st.DataObject) -> None:
    """Against a model: confirms in any order, single and multiple, never ack what was not confirmed, and in the end everything."""
    count = data.draw(st.integers(1, 20))
    mover = Mover(CONFIRMED, window=count)
    feed(mover, b"".join(message(tag, b"x") for tag in range(1, count + 1)), [])
    confirmed: set[int] = set()
    settled: set[int] = set()
    while len(confirmed) < count:
        number = data.draw(st.integers(1, count))
        multiple = data.draw(st.booleans())
        confirmed |= set(range(1, number + 1)) if multiple else {number}
        frame = ack(number, multiple)
        assert mover.confirms(bytearray(frame), 0, len(frame)) == len(frame)
        for tag, to in acked(mover.acks()):
            settled |= set(range(1, tag + 1)) if to else {tag}
        assert settled <= confirmed
        assert mover.moved == len(confirmed) and mover.unsettled == count - len(confirmed)
    assert settled == confirmed


def test_at_the_end_what_lies_behind_a_gap_is_acked_too() -> None:
    mover = Mover(CONFIRMED, window=8)
    feed(mover, b"".join(message(tag, b"x") for tag in range(1, 6)), [])
    for number in (1, 3, 5):
        frame = ack(number)
        mover.confirms(bytearray(frame), 0, len(frame))
    assert acked(mover.acks(True)) == [(1, True), (3, False), (5, False)]


def test_on_publish_acks_what_was_published_whole() -> None:
    mover = Mover(PUBLISHED)
    two = message(1, b"one") + message(2, b"two")
    feed(mover, two[:-3], [])
    assert acked(mover.acks()) == [(1, True)] and mover.moved == 1


def test_a_nack_is_said_and_acks_nothing() -> None:
    mover = Mover(CONFIRMED, window=8)
    feed(mover, message(1, b"x") + message(2, b"x"), [])
    frames = nack(1) + ack(2)
    assert mover.confirms(bytearray(frames), 0, len(frames)) == len(frames)
    assert mover.refused and acked(mover.acks()) == [] and acked(mover.acks(True)) == [(2, False)]


def test_so_many_and_no_more() -> None:
    """What comes beyond `left` is neither published nor acked."""
    mover = Mover(CONFIRMED, messages_left=2, window=8)
    out, _ = feed(mover, b"".join(message(tag, b"x%d" % tag) for tag in range(1, 6)), [])
    assert [body for *_, body in published(out)] == [b"x1", b"x2"]
    assert not mover.finished
    frame = ack(2, True)
    mover.confirms(bytearray(frame), 0, len(frame))
    assert mover.finished and acked(mover.acks(True)) == [(2, True)] and mover.moved == 2


def test_it_takes_no_more_than_its_window() -> None:
    mover = Mover(CONFIRMED, window=3)
    data = b"".join(message(tag, b"x") for tag in range(1, 9))
    _, rest = feed(mover, data, [])
    assert mover.full and rest
    frame = ack(0, True)
    mover.confirms(bytearray(frame), 0, len(frame))
    assert not mover.full
    assert mover.deliveries(bytearray(rest), 0, len(rest)) > 0


def test_what_a_change_drops_is_settled_in_its_turn() -> None:
    """A message that is not published is acked, but not before those in front of it."""
    mover = Mover(CONFIRMED, window=8, change=lambda exchange, key, again, header: None if key == b"no" else header)
    data = message(1, b"a") + message(2, b"b", key="no") + message(3, b"c", key="no") + message(4, b"d")
    out, _ = feed(mover, data, [])
    assert [body for *_, body in published(out)] == [b"a", b"d"] and mover.acks() == b""
    frame = ack(1)
    mover.confirms(bytearray(frame), 0, len(frame))
    assert acked(mover.acks()) == [(3, True)]


def test_frames_of_others_are_left() -> None:
    """Methods and heartbeats between messages are the caller's."""
    mover = Mover(NEVER)
    heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
    data = message(1, b"a") + heartbeat
    assert mover.deliveries(bytearray(data), 0, len(data)) == len(data) - len(heartbeat)
    other = method_frame(1, spec.BasicCancel("c", False))
    assert mover.confirms(bytearray(other), 0, len(other)) == 0


deliver = method_frame(1, spec.BasicDeliver("c", 1, False, "e", "k"))
HOSTILE = {
    "a frame is larger than was agreed": b"\x01\x00\x01\xff\xff\xff\xff\x00",
    "a frame has no end octet": deliver[:-1] + b"\x00",
    "a frame comes out of order": deliver + encode_frame(spec.FRAME_BODY, 1, b"x"),
    "a content header is malformed": deliver + encode_frame(spec.FRAME_HEADER, 1, b"x"),
    "a body is longer": deliver + encode_frame(spec.FRAME_HEADER, 1, encode_properties(1, {})) + encode_frame(spec.FRAME_BODY, 1, b"xy"),
    "delivery 7 comes after": method_frame(1, spec.BasicDeliver("c", 7, False, "e", "k")),
    "a delivery is malformed": encode_frame(spec.FRAME_METHOD, 1, b"\x00\x3c\x00\x3c\xff"),
    "frame comes out": encode_frame(spec.FRAME_METHOD, 1, b"\x00\x3c\x00\x3c\x00" + b"\0" * 7 + b"\x01\x00\x00\x00")
    + encode_frame(3, 1, b""),
}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_source_ends_it(text: str) -> None:
    data = HOSTILE[text]
    with pytest.raises(MoverError, match=text):
        Mover(NEVER).deliveries(bytearray(data), 0, len(data))


@pytest.mark.parametrize("number", [0, 2, 2**63])
def test_a_confirm_of_what_was_not_published_ends_it(number: int) -> None:
    mover = Mover(CONFIRMED, window=4)
    feed(mover, message(1, b"x"), [])
    frame = ack(number)
    with pytest.raises(MoverError, match="is confirmed"):
        mover.confirms(bytearray(frame), 0, len(frame))


@given(st.binary(max_size=400))
def test_any_bytes(noise: bytes) -> None:
    """Noise behind a good delivery is an error or not whole: never more than was there."""
    data = deliver + noise
    for mover in (Mover(NEVER), Mover(CONFIRMED, window=2)):
        try:
            assert 0 <= mover.deliveries(bytearray(data), 0, len(data)) <= len(data)
            mover.confirms(bytearray(noise), 0, len(noise))
        except MoverError:
            pass


@pytest.mark.parametrize("frame_max", [0, 8])
def test_frames_that_hold_nothing(frame_max: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Mover(0, b"", None, frame_max=frame_max)

"""Frames between broker and Flight service: what goes in comes out; what is no frame ends the channel and nothing else."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.config import Config
from flintmq.dataplane.wire import Channel, ChannelClosed, Refused, WireError

LIMITS = Config().with_limits(dataplane_head_max=1000, dataplane_payload_max=5000).limits
heads = st.dictionaries(st.text(max_size=10), st.none() | st.booleans() | st.integers() | st.text(max_size=20), max_size=5)


@contextmanager
def pair() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair()
    ends = Channel(left, LIMITS), Channel(right, LIMITS)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


@given(heads, st.lists(st.binary(max_size=300), max_size=6))
def test_what_is_sent_is_received(head: dict[str, object], parts: list[bytes]) -> None:
    with pair() as (left, right):
        left.send(head, parts)
        assert right.receive() == (head, b"".join(parts))
        assert not left.closed and not right.closed


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_frame_or_ends_the_channel(raw: bytes) -> None:
    with pair() as (left, right):
        left.socket.sendall(raw)
        left.close()
        try:
            while True:
                head, payload = right.receive()
                assert isinstance(head, dict) and len(payload) <= 5000
        except (WireError, ChannelClosed):
            assert right.closed


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<IQ", 1001, 0),
        struct.pack("<IQ", 2, 5001) + b"{}",
        struct.pack("<IQ", 2, 2**63) + b"{}",
        struct.pack("<IQ", 2, 0) + b"[]",
        struct.pack("<IQ", 3, 0) + b"{\xff}",
        struct.pack("<IQ", 0, 0),
        struct.pack("<IQ", 600, 0) + b"[" * 600,
    ],
)
def test_a_malformed_frame_ends_the_channel(raw: bytes) -> None:
    with pair() as (left, right):
        left.socket.sendall(raw)
        with pytest.raises(WireError):
            right.receive()
        assert right.closed


def test_a_peer_that_goes_between_frames_is_no_error_and_one_that_goes_inside_is() -> None:
    with pair() as (left, right):
        left.close()
        with pytest.raises(ChannelClosed):
            right.receive()
    with pair() as (left, right):
        left.socket.sendall(struct.pack("<IQ", 20, 0) + b"{")
        left.close()
        with pytest.raises(WireError, match="middle"):
            right.receive()


def test_a_frame_that_is_too_large_is_not_sent_at_all() -> None:
    with pair() as (left, right):
        with pytest.raises(ValueError):
            left.send({}, bytes(5001))
        with pytest.raises(ValueError):
            left.send({"long": "x" * 1000})
        left.send({"next": 1})
        assert right.receive() == ({"next": 1}, b"")


def serve(channel: Channel, answers: list[dict[str, object]]) -> threading.Thread:
    def run() -> None:
        for answer in answers:
            _, payload = channel.receive()
            channel.send(answer, payload)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_call_gives_the_answer_or_raises_the_refusal() -> None:
    with pair() as (left, right):
        thread = serve(right, [{"ok": 7}, {"error": "FENCED", "text": "another reader"}, {"neither": 1}])
        assert left.call({"call": "x"}, b"payload") == (7, b"payload")
        with pytest.raises(Refused, match="FENCED: another reader"):
            left.call({"call": "x"})
        with pytest.raises(WireError):
            left.call({"call": "x"})
        assert left.closed
        thread.join(60)


def test_many_threads_share_a_channel_one_request_at_a_time() -> None:
    with pair() as (left, right):

        def echo() -> None:
            for _ in range(200):
                head, payload = right.receive()
                right.send({"ok": head["n"]}, payload)

        server = threading.Thread(target=echo)
        server.start()
        wrong: list[int] = []

        def ask(first: int) -> None:
            for number in range(first, first + 50):
                answer, payload = left.call({"n": number}, str(number).encode())
                if answer != number or int(payload) != number:
                    wrong.append(number)

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(0, 200, 50)]
        for thread in threads:
            thread.start()
        for thread in [*threads, server]:
            thread.join(60)
        assert not wrong


def test_large_payloads_of_many_parts_pass_through_small_socket_buffers() -> None:
    left, right = socket.socketpair()
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sender, receiver = Channel(left), Channel(right)
    parts = [bytes([number % 256]) * (number % 700) for number in range(3000)]
    thread = threading.Thread(target=sender.send, args=({"n": 1}, parts))
    thread.start()
    assert receiver.receive() == ({"n": 1}, b"".join(parts))
    thread.join(60)
    sender.close()
    receiver.close()


def test_an_inherited_descriptor_is_not_passed_on() -> None:
    left, right = socket.socketpair()
    right.set_inheritable(True)
    channel = Channel.inherited(right.detach())
    assert not channel.socket.get_inheritable()
    left.sendall(struct.pack("<IQ", 2, 0) + json.dumps({}).encode())
    assert channel.receive() == ({}, b"")
    channel.close()
    left.close()

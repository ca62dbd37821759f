"""Brokers that a link connects to and that mean it harm: what they do ends their link, and no other one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flintmq.protocol.v0_9_1 import spec
from flintmq.protocol.v0_9_1.codec import decode_method, method_frame
from tests.links.rig import Side, sides, until


class Stranger:
    """Opens connections and channels as a broker does, with the frame size that it is told to say."""

    def __init__(self, frame_max: int) -> None:
        self._frame_max = frame_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"amqp://u:p@127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        answers: dict[type, tuple[int, Any]] = {
            spec.ConnectionStartOk: (0, spec.ConnectionTune(0, self._frame_max, 0)),
            spec.ConnectionOpen: (0, spec.ConnectionOpenOk()),
            spec.ChannelOpen: (1, spec.ChannelOpenOk()),
        }
        with sock, sock.makefile("rb") as stream:
            stream.read(8)
            sock.sendall(method_frame(0, spec.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US")))
            while len(head := stream.read(7)) == 7:
                kind, _, size = struct.unpack(">BHI", head)
                payload = stream.read(size + 1)[:-1]
                found = answers.get(type(decode_method(payload))) if kind == spec.FRAME_METHOD else None
                if found is not None:
                    sock.sendall(method_frame(found[0], found[1]))


@pytest.fixture
def here() -> Iterator[Side]:
    with sides(1) as (side,):
        yield side


@pytest.mark.parametrize("frame_max", [1, 8, 9, 4_095])
def test_a_peer_that_takes_frames_of_nothing_ends_its_link_alone(here: Side, frame_max: int) -> None:
    """Frames of 8 bytes had room for nothing of a body: it was cut into pieces of nothing for ever, half a gigabyte a second, in the
    process of all links."""
    stranger = Stranger(frame_max)
    try:
        here.fill("q", 3)
        here.shovel(
            "bad", src_uri="amqp://", src_queue="q", dest_uri=stranger.uri, dest_exchange="x", ack_mode="on-publish", reconnect_delay=0
        )
        reason = here.state("terminated", "bad")["reason"]
        assert reason == f"destination: the broker takes frames of {frame_max} bytes, and AMQP's least is 4096"
        here.fill("good", 3)
        here.shovel("good", src_uri="amqp://", src_queue="good", dest_uri="amqp://", dest_queue="moved")
        until(lambda: here.depth("moved") == 3)
        assert here.depth("q") == 3
    finally:
        stranger.close()

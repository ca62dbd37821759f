"""Connections are accepted without a Python socket: who the peer is, and whose the descriptor is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from flintmq.net.sockets import accept
from tests.support.broker import wait_until


def listening(family: int, host: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(5)
    listener.setblocking(False)
    return listener


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family, host = request.param
    try:
        made = listening(family, host)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with made:
        yield made


def test_the_peer_is_named_as_python_names_it(listener: socket.socket) -> None:
    assert accept(listener.fileno()) is None
    with socket.create_connection(listener.getsockname()[:2]) as client:
        peer = wait_until(lambda: accept(listener.fileno()))
        fd, host, port = peer
        with socket.socket(fileno=fd) as server:
            assert (host, port) == client.getsockname()[:2] == server.getpeername()[:2]
            assert not os.get_inheritable(fd)
            server.sendall(b"x")
            assert client.recv(1) == b"x"
    assert accept(listener.fileno()) is None


def test_a_socket_that_does_not_listen_is_an_error() -> None:
    with socket.socket() as one, pytest.raises(OSError, match="Invalid argument"):
        accept(one.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        accept(one.fileno())


def descriptors() -> set[str]:
    """What the descriptors of this process that are sockets stand for."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one of listdir itself
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def test_a_connection_gives_its_descriptor_back(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Closed in agreement, dropped by the peer, or cut by the end of the broker."""
    broker = start()
    before = descriptors()
    connect(broker).close()
    connect(broker).drop()
    wait_until(lambda: descriptors() <= before, what="both ends of both connections are closed")
    kept = connect(broker)
    broker.node.stop()
    kept.drop()
    wait_until(lambda: descriptors() <= before, what="the broker's sockets are closed")


def test_a_connection_that_can_not_be_served_gives_its_descriptor_back(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    before = descriptors()
    with mock.patch("flintmq.node.ConnectionHandler", side_effect=MemoryError):
        refused = connect(broker, handshake=False)
        assert refused.recv_until_closed() == b""
    refused.drop()
    wait_until(lambda: descriptors() <= before, what="both ends are closed")
    connect(broker).channel().queue("q")  # others are served

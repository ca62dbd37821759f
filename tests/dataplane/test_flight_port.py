"""The port that the broker holds for its Flight service: who comes is heard of and not accepted, or turned away; the port stays."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flintmq.config import Config
from flintmq.dataplane.flight_port import FlightPort


@pytest.fixture
def hold() -> Iterator[Callable[..., FlightPort]]:
    made: list[FlightPort] = []

    def make(**options: Any) -> FlightPort:
        made.append(FlightPort(Config(**{"flight_port": 0, **options})))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.close()


def connected(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), 60)


def ended(client: socket.socket) -> bool:
    """Whether the other end closes the connection, or has reset it."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_somebody_is_heard_of_and_stays_in_the_queue(hold: Callable[..., FlightPort]) -> None:
    held = hold()
    port = held.open()
    assert port == held.open() == held.address[1]
    with connected(port) as client:
        client.sendall(b"hello")
        assert held.wait() and held.wait()
        with socket.socket(fileno=os.dup(held.fileno())) as child:
            child.setblocking(True)
            server, _ = child.accept()
            with server:
                assert server.recv(5) == b"hello" and server.getpeername() == client.getsockname()


def test_a_stop_ends_the_wait(hold: Callable[..., FlightPort]) -> None:
    held = hold()
    held.open()
    waits: list[bool] = []
    thread = threading.Thread(target=lambda: waits.append(held.wait()))
    thread.start()
    held.stop()
    thread.join(60)
    assert waits == [False] and not held.wait()


def test_those_who_wait_are_turned_away_and_later_ones_wait(hold: Callable[..., FlightPort]) -> None:
    held = hold()
    port = held.open()
    clients = [connected(port) for _ in range(5)]
    held.turn_away()
    assert all(map(ended, clients))
    with connected(port) as later:
        held.turn_away() if held.wait() else None
        assert ended(later)
    for client in clients:
        client.close()
    held.turn_away()  # nobody


def test_a_listener_that_a_child_has_shut_down_listens_again_at_its_port(hold: Callable[..., FlightPort]) -> None:
    held = hold()
    port = held.open()
    with socket.socket(fileno=os.dup(held.fileno())) as child:
        child.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionRefusedError):
        connected(port)
    held.turn_away()
    assert held.open() == port
    with connected(port):
        assert held.wait()


def test_a_released_port_is_free(hold: Callable[..., FlightPort]) -> None:
    held = hold()
    port = held.open()
    held.release()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="in use"):
        held.open()
    assert held.open() == port


def test_a_socket_of_the_service_manager_is_used(hold: Callable[..., FlightPort]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        held = hold(flight_port=1, inherited=(("amqp", 0), ("flight", os.dup(given.fileno()))))
        assert held.open() == given.getsockname()[1] == held.open()
        with connected(held.address[1]):
            assert held.wait()


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 here")
def test_an_address_of_ipv6(hold: Callable[..., FlightPort]) -> None:
    held = hold(host="::1")
    with connected(held.open(), "::1"):
        assert held.wait() and held.address[0] == "::1"

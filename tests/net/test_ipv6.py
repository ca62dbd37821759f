"""`--host ::` serves both families on every port, `--host ::1` one; addresses are written as RFC 3986 has them."""

from __future__ import annotations

import socket

import pika
import pytest

from flintmq.endpoint import endpoint
from tests.support.broker import Broker, wait_until


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 10).close()
    except ConnectionRefusedError:
        return False
    return True


def echoed(host: str, port: int) -> bytes | None:
    """What a queue gives back, asked from that address."""
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        channel = connection.channel()
        channel.queue_declare("echo")
        channel.basic_publish("", "echo", host.encode())
        body: bytes | None = channel.basic_get("echo", auto_ack=True)[2]
        return body


@pytest.mark.parametrize(
    ("host", "text"),
    [("::1", "[::1]:5672"), ("127.0.0.1", "127.0.0.1:5672"), ("broker.example", "broker.example:5672"), ("::", "[::]:5672")],
)
def test_an_ipv6_address_stands_in_brackets(host: str, text: str) -> None:
    """What is printed can be taken apart again, and put into a URL."""
    assert endpoint(host, 5672) == text


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize(("host", "served"), [("::", {"::1", "127.0.0.1"}), ("::1", {"::1"})])
def test_a_broker_on_ipv6(host: str, served: set[str]) -> None:
    """AMQP and HTTP answer on the families that were asked for, `guest` of this machine is let in by both, the log names the peer."""
    for attempt in range(3):
        with Broker("--host", host, "--http-port", "0") as running:
            ports = (running.port, running.ready["http_port"])
            others = {"::1", "127.0.0.1"} - served
            if any(listens(address, port) for address in others for port in ports) and attempt < 2:
                continue  # another process may have such a port there by chance
            assert not any(listens(address, port) for address in others for port in ports)
            for address in served:
                assert echoed(address, running.port) == address.encode() and listens(address, ports[1])
            line = f"-> [{host}]:{running.port}: user 'guest' authenticated"
            wait_until(lambda line=line, running=running: line in running.stderr_text(), what=line)
            return

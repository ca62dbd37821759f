"""The Flight service starts with its first connection: a real broker, a real client."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError
from flintmq.perf.process import tree
from tests.support.broker import Broker, self_signed_certificate, wait_until


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker("--flight-port", "0") as started:
        yield started


def port_of(broker: Broker) -> int:
    return int(broker.ready["flight_port"])


def served_by(broker: Broker, **options: Any) -> int:
    """The process that a new client talks to."""
    with DataPlane("127.0.0.1", port_of(broker), timeout_s=90, **options) as plane:
        return int(plane.status()["flight"]["pid"])


def children(broker: Broker) -> list[int]:
    assert broker.pid is not None
    return tree(broker.pid)[1:]


def test_the_first_client_starts_the_service_and_the_next_ones_have_the_same(broker: Broker) -> None:
    assert children(broker) == []
    first = served_by(broker)
    assert children(broker) == [first] == [served_by(broker)]


def test_a_client_without_any_patience_is_served_first(broker: Broker) -> None:
    """One of another make, which does not try again: nobody is refused and no byte is lost while the service starts."""
    client = flight.connect(f"grpc://127.0.0.1:{port_of(broker)}")
    try:
        token = client.authenticate_basic_token("guest", "guest")
        options = flight.FlightCallOptions(timeout=90, headers=[token])
        assert b'"version"' in next(iter(client.do_action(flight.Action("status", b"{}"), options))).body.to_pybytes()
    finally:
        client.close()


def test_many_first_clients_are_served_by_one_process(broker: Broker) -> None:
    with ThreadPoolExecutor(8) as clients:
        found = set(clients.map(lambda _: served_by(broker), range(8)))
    assert found == set(children(broker)) and len(found) == 1


def test_who_connects_and_says_nothing_costs_one_start_and_keeps_nobody_out(broker: Broker) -> None:
    """The peers' addresses are the true ones: a password that is refused has one in the audit."""
    silent = [socket.create_connection(("127.0.0.1", port_of(broker)), 60) for _ in range(20)]
    with pytest.raises(PlaneError, match="UNAUTHENTICATED"):
        DataPlane("127.0.0.1", port_of(broker), password="wrong", timeout_s=90).status()
    wait_until(lambda: re.search(r"at 127\.0\.0\.1: login over Flight", broker.stderr_text()), what="a line of the audit")
    assert [served_by(broker)] == children(broker)
    for one in silent:
        one.close()


def test_a_stop_while_the_service_starts(broker: Broker) -> None:
    """Exit code 0, which the fixture demands, and no process is left."""
    with socket.create_connection(("127.0.0.1", port_of(broker)), 60):
        (child,) = wait_until(lambda: children(broker), what="a child")
        broker.stop()
    assert not Path(f"/proc/{child}").exists()


def test_a_certificate() -> None:
    with self_signed_certificate() as (certificate, key):
        with Broker("--flight-port", "0", "--tls-cert", certificate, "--tls-key", key, "--tls-port", "0") as secure:
            assert [served_by(secure, tls_ca=certificate)] == children(secure)


def test_at_once(tmp_path: Path) -> None:
    file = tmp_path / "flintmq.toml"
    file.write_text('flight-start = "at-once"\n')
    with Broker("--flight-port", "0", "--config", str(file)) as broker:
        assert children(broker) == [served_by(broker)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_addresses(host: str) -> None:
    if ":" in host and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    with Broker("--host", host, "--flight-port", "0") as broker:
        assert [served_by(broker)] == children(broker)

"""Fixtures of the wire conformance tests: one broker per module, a raw connection and a channel per test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.broker import Broker, unique
from tests.support.rawamqp import RawChannel, RawConnection

_product: dict[tuple[str, int], str] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker for expectations that differ on RabbitMQ."""
    config.addinivalue_line("markers", "flintmq_only(reason): the expectation is FlintMQ's; skipped when the broker under test is another")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of this module's own; its exit code 0 after SIGTERM is part of every module."""
    with Broker() as running:
        yield running


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., RawConnection]]:
    """Opens raw connections (`connect()` with the handshake, `connect(handshake=False)` without); drops them after the test."""
    opened: list[RawConnection] = []

    def make(*, handshake: bool = True, **arguments: object) -> RawConnection:
        connection = RawConnection(broker.host, broker.port)
        opened.append(connection)
        return connection.open(broker.user, broker.password, **arguments) if handshake else connection  # type: ignore[arg-type]

    yield make
    for connection in opened:
        connection.drop()


@pytest.fixture
def conn(connect: Callable[..., RawConnection]) -> RawConnection:
    """An open connection."""
    return connect()


@pytest.fixture
def ch(conn: RawConnection) -> RawChannel:
    """Channel 1 of an open connection."""
    return conn.channel(1)


@pytest.fixture
def name() -> str:
    """A name nobody else uses."""
    return unique("q")


@pytest.fixture(autouse=True)
def _only_here(request: pytest.FixtureRequest, broker: Broker) -> None:
    """Skips `flintmq_only` tests on another product."""
    mark = request.node.get_closest_marker("flintmq_only")
    if mark is None or not broker.external:
        return
    where = (broker.host, broker.port)
    if where not in _product:
        with RawConnection(*where) as probe:
            probe.start()
            _product[where] = str(probe.server_properties.get("product"))
    if _product[where] != "FlintMQ":
        pytest.skip(f"{_product[where]} differs: {mark.args[0]}")

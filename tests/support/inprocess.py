"""Fixtures for tests with brokers inside their own process, with the limits a test asks for, and raw connections to them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.support.rawamqp import RawConnection


@pytest.fixture(scope="session")
def heap_of_others() -> None:
    """What thousands of tests before left behind is not looked through again after each test here: half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def start(heap_of_others: None) -> Iterator[Callable[..., Broker]]:
    """`start(limits={...}, ...)`: a running broker that stops after the test. Housekeeping comes round every 20 ms."""
    with ExitStack() as stack:

        def make(limits: dict[str, Any] | None = None, **options: Any) -> Broker:
            if "queue_hot_bytes" in (limits or {}):
                options.setdefault("content_memory", 0)  # the window is what the test is about
            return stack.enter_context(Broker(limits={"housekeeping_ms": 20, **(limits or {})}, **options))

        yield make
    # What the test's broker held counts as message memory of the process until it is collected.
    gc.collect()


@pytest.fixture
def connect() -> Iterator[Callable[..., RawConnection]]:
    """`connect(broker, ...)`: an open raw connection that is dropped after the test; `handshake=False` leaves it raw."""
    opened: list[RawConnection] = []

    def make(broker: Any, *, handshake: bool = True, **arguments: Any) -> RawConnection:
        connection = RawConnection("127.0.0.1", broker.port)
        opened.append(connection)
        return connection.open(**arguments) if handshake else connection

    yield make
    for connection in opened:
        connection.drop()

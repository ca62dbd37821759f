"""A broker whose database answers when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker


class Gate:
    """Stands before the database: `shut`, and every transaction waits until `open`."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.may_pass = threading.Event()
        self.may_pass.set()
        self.entered = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def run(self, operations: Any) -> None:
        if not self.may_pass.is_set():
            self.entered.release()
            assert self.may_pass.wait(30)
        self.driver.run(operations)


@pytest.fixture
def gate_and_broker(tmp_path: Path) -> Iterator[tuple[Gate, Broker]]:
    with Broker(data_dir=tmp_path, limits={"housekeeping_ms": 20}) as broker:
        assert broker.node.store is not None
        group = broker.node.store.definitions._group
        gate = Gate(group._driver)
        group._driver = gate  # type: ignore[assignment]
        try:
            yield gate, broker
        finally:
            gate.may_pass.set()

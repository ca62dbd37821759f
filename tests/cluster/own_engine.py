"""A broker whose shared queues are on an engine in memory that does what the test wants: it stands still, fails, outlives the broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.cluster import engine_thread
from flintmq.config import Limits
from flintmq.engines.engine import Commit
from flintmq.engines.memory import MemoryEngine, MemoryStore
from flintmq.testing.broker import Broker
from tests.twins.faulty_engine import Fate, FaultyEngine, Plan

SHARED = {"x-queue-type": "shared"}
FAST = {
    "housekeeping_ms": 20,
    "shared_poll_ms": 20,
    "shared_pause_ms": 5,
    "shared_pause_ms_max": 20,
    "shared_ends_ms": 1,
    "shared_transactions_look_ms": 20,
    "shared_transactions_sweep_ms": 100,
}


class AwayPlan(Plan):
    """`away`: each call is told that the engine does not answer."""

    away = False

    async def fate(self, call: str, commit: Commit | None = None) -> Fate:
        fate = await super().fate(call, commit)
        return Fate.LOST if self.away else fate


class OwnEngine:
    """`hold` and `go_on`: calls of this kind ("" all) wait meanwhile; `plan.away`. Args: monkeypatch: of the test."""

    def __init__(self, monkeypatch: Any) -> None:
        self.store = MemoryStore(Limits().engine_commit_rows_max)
        self.plan = AwayPlan()
        self.plan.gate = self._gate
        self._lock = threading.Lock()
        self._held: str | None = None
        self.waiting = threading.Event()  # a call waits
        self.is_last: Callable[[], bool] = lambda: False  # from then on all calls wait
        monkeypatch.setattr(engine_thread, "open_engine", self._open)

    def _open(self, url: str, limits: Limits) -> FaultyEngine:
        return FaultyEngine(MemoryEngine(self.store, limits, alone=True), self.plan)

    async def _gate(self, call: str) -> None:
        if self.is_last():
            self._held = ""
        while self._held is not None and call.startswith(self._held):
            self.waiting.set()
            await asyncio.sleep(0.001)

    def hold(self, call: str = "") -> None:
        self.waiting.clear()
        self._held = call

    def go_on(self) -> None:
        self._held = None

    def broker(self, start: Callable[..., Broker], path: Path, **limits: int) -> Broker:
        return start(limits={**FAST, **limits}, store_dir=str(path / "store"), http_port=0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    made = OwnEngine(monkeypatch)
    yield made
    made.plan.away = False
    made.go_on()


@pytest.fixture
def begin(start: Callable[..., Broker], tmp_path: Path, engine: OwnEngine) -> Callable[..., Broker]:
    return lambda **limits: engine.broker(start, tmp_path, **limits)


def queue_of(broker: Broker, name: str = "s") -> Any:
    return broker.node.broker.vhosts["/"].queues[name]


def log_of(broker: Broker, name: str = "s") -> Any:
    """The queue's log, while it is served."""
    served = broker.node.broker.shared._entries[queue_of(broker, name).queue_id].served
    return None if served is None else served.log


def get(channel: Any, name: str = "s", no_ack: bool = True) -> Any:
    channel.send("basic.get", queue=name, no_ack=no_ack)
    return channel.connection.recv(channel.number)

"""A disk that fails while the broker starts: whoever runs the node is told, else no confirm would ever come and nobody would know why."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flintmq.config import Config
from flintmq.errors import StoreError
from flintmq.node import DurableStore, Node
from flintmq.pulls.pull_service import PullService

ERROR = StoreError("write of transactions/00000000000000000001.flog at offset 4096 failed: Input/output error")


def config(folder: Path) -> Config:
    return Config(port=0, http_port=None, flight_port=None, data_dir=str(folder))


def test_a_failure_when_all_is_restored_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's first writes, which nothing of the start waits for, fail while the rest of the node is made."""

    def made(broker: Any, actors: Any) -> Any:
        broker.log.failed(ERROR)
        return PullService(broker, actors)

    monkeypatch.setattr("flintmq.node.PullService", made)
    node = Node(config(tmp_path))
    try:
        assert node.failed.is_set()
        assert node.failure is ERROR
    finally:
        node.stop()


@pytest.mark.parametrize("moment", ["open", "restore"])
def test_a_failure_before_is_told_or_refuses_the_start(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`open`: before anybody listens to the store. `restore`: before its entries are put back."""
    original = getattr(DurableStore, moment)
    told: list[StoreError] = []

    def opened(*arguments: Any) -> DurableStore:
        store: DurableStore = original(*arguments)
        store.logs.failed(ERROR)
        return store

    def restored(self: DurableStore, *arguments: Any) -> Any:
        self.logs.failed(ERROR)
        return original(self, *arguments)

    monkeypatch.setattr(DurableStore, moment, opened if moment == "open" else restored)
    monkeypatch.setattr(Node, "_store_failed", lambda self, error: told.append(error))
    with pytest.raises(StoreError, match="failed: Input"):
        Node(config(tmp_path))
    assert told == [ERROR]


def test_a_start_that_is_refused_gives_the_store_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads end, and another node of the same process opens it."""

    def refused(broker: Any, actors: Any) -> Any:
        raise StoreError("not made")

    before = set(threading.enumerate())
    with monkeypatch.context() as patches:
        patches.setattr("flintmq.node.PullService", refused)
        with pytest.raises(StoreError, match="not made"):
            Node(config(tmp_path))
    assert set(threading.enumerate()) <= before
    node = Node(config(tmp_path))
    assert not node.failed.is_set()
    node.stop()

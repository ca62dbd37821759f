"""Which links a node finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.links.wanted import Finder
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.cluster.own_engine import SHARED, OwnEngine, log_of, queue_of
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["connect", "heap_of_others", "start"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> OwnEngine:
    return OwnEngine(monkeypatch)


def test_a_shared_queue_is_federated_by_its_owner_alone(
    start: Callable[..., Broker], connect: Any, tmp_path: Path, engine: OwnEngine
) -> None:
    broker = engine.broker(start, tmp_path)
    broker.node.definitions.on_links = lambda: None  # no process
    connect(broker).channel().queue("s", durable=True, arguments=SHARED)
    policy = {"pattern": "^s$", "definition": {"federation-upstream": "up"}, "apply-to": "queues"}
    for path, value in (("parameters/federation-upstream/%2F/up", {"value": {"uri": "amqp://127.0.0.1:1"}}), ("policies/%2F/p", policy)):
        assert Client(broker).request("PUT", f"/api/{path}", json.dumps(value).encode()).status == 201
    wait_until(lambda: log_of(broker) is not None)
    finder = Finder(broker.node.broker, broker.node.definitions, 10)
    assert list(finder.all()) == [("queue", "/", "s", "up")]
    queue_of(broker).owned_elsewhere = True
    assert list(finder.all()) == []

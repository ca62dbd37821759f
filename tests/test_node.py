"""A node that was closed is freed: brokers that a test opens in its own process leave no descriptor, no loop and no log behind."""

from __future__ import annotations

import gc
import json
import os
import time
import urllib.request
from collections import Counter
from pathlib import Path

from flintmq.testing.broker import Broker
from tests.support.rawamqp import RawConnection

ROUNDS = 20
KINDS = ("Node", "Loop", "LogStore", "ManagedLog", "Stream", "SharedPort", "DueIndex", "ActorSystem", "QueueHandle", "Connection")
QUEUES = {
    "plain": {},
    "limited": {"x-max-length": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "plain", "x-message-deduplication": True},
    "short": {"x-message-ttl": 60_000, "x-max-priority": 3},
    "last": {"x-last-value-key": "key"},
    "grouped": {"qpid.group_header_key": "key", "qpid.shared_msg_group": 1},
    "stream": {"x-queue-type": "stream"},
    "shared": {"x-queue-type": "shared"},
}


def living() -> Counter[str]:
    """Objects of these kinds that are left when all that can go has gone."""
    for _ in range(3):  # what one collection frees may be what kept the rest from the one before
        gc.collect()
    return Counter(name for name in map(_kind, gc.get_objects()) if name in KINDS)


def _kind(thing: object) -> str:
    return type(thing).__name__ if str(type(thing).__module__).startswith("flintmq.") else ""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def use(broker: Broker, life: int, ours: list[RawConnection]) -> None:
    """One connection that ends by itself, and one that the stop ends: it has deliveries in hand, and a transaction open."""
    for stays in (False, True):
        connection = RawConnection("127.0.0.1", broker.port).open()
        channel = connection.channel()
        channel.call("confirm.select")
        for name, arguments in QUEUES.items():
            channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
            channel.publish(b"m", routing_key=name, delivery_mode=2, headers={"key": "k", "x-deduplication-header": f"{life}{stays}"})
            channel.expect("basic.ack")
        channel.publish(b"later", routing_key="plain", delivery_mode=2, headers={"x-deliver-at": time.time_ns() // 1_000_000 + 3_600_000})
        channel.expect("basic.ack")
        reader = connection.channel(2)
        reader.call("basic.qos", prefetch_count=5)
        reader.consume("stream", arguments={"x-group": "g", "x-stream-offset": "last"})
        assert reader.deliveries(1)
        for name in ("plain", "last", "grouped"):
            assert reader.call("basic.get", queue=name).name == "basic.get-ok"
        opened = connection.channel(3)
        opened.call("tx.select")
        opened.publish(b"t", routing_key="plain", delivery_mode=2)
        (ours.append if stays else RawConnection.close)(connection)


def pull(broker: Broker) -> None:
    url = f"http://127.0.0.1:{broker.node.http_port}/api/v1/queues/%2F/plain/messages/pull?group=g"
    request = urllib.request.Request(
        url, data=b"{}", method="POST", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer) is not None


def test_closed_nodes_are_freed(tmp_path: Path) -> None:
    """Twenty lives of a broker, with each kind of queue, connections, messages, deliveries in hand, a pull: then descriptors and objects
    are as many as before."""
    for life in range(ROUNDS + 1):
        ours: list[RawConnection] = []
        with Broker(store_dir=str(tmp_path), http_port=None if life % 5 else 0, limits={"close_ms_max": 20}) as broker:
            use(broker, life, ours)
            if life % 5 == 0:
                pull(broker)
        for connection in ours:
            connection.drop()
        del broker
        if life == 0:  # modules are loaded, and what the process has once is there
            left, open_before = living(), descriptors()
    assert living() - left == Counter()
    assert descriptors() <= open_before

"""Counts of channels, connections, logins and queues: what each shows, and that no total falls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.admin.api_node import Totals
from flintmq.admin.counts import FLOWS, LOOP_STATS
from flintmq.broker.counters import Counters
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel, RawConnection


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Broker(http_port=0, limits={"housekeeping_ms": 20}) as broker:
        yield Client(broker)


@pytest.fixture
def connection(client: Client) -> Iterator[RawConnection]:
    opened = RawConnection("127.0.0.1", client.broker.port).open()
    yield opened
    opened.drop()


def metrics(client: Client, path: str = "/metrics") -> dict[str, float]:
    """Sample without `rabbitmq_` -> value."""
    lines = client.get(path).raw.decode().splitlines()
    return {line.rpartition(" ")[0].removeprefix("rabbitmq_"): float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def traffic(channel: RawChannel, name: str) -> None:
    """Three published in confirm mode and one to nowhere; one returned; two acked, of which one came twice; one taken without acks."""
    channel.call("confirm.select")
    channel.queue(name)
    for _ in range(3):
        channel.publish(b"body", routing_key=name)
        channel.expect("basic.ack")
    channel.publish(b"lost", routing_key="nowhere")
    channel.expect("basic.ack")
    channel.publish(b"back", routing_key="nowhere", mandatory=True)
    channel.expect("basic.return")
    channel.expect("basic.ack")
    for requeue in (True, False):
        tag = channel.call("basic.get", queue=name).delivery_tag
        channel.send("basic.nack", delivery_tag=tag, requeue=True) if requeue else channel.send("basic.ack", delivery_tag=tag)
    channel.call("basic.get", queue=name, no_ack=True)
    channel.call("basic.consume", queue=name, consumer_tag="c")
    channel.send("basic.ack", delivery_tag=channel.expect("basic.deliver").delivery_tag)
    channel.call("basic.cancel", consumer_tag="c")


WANTED = {"published": 5, "confirmed": 5, "acked": 2, "redelivered": 1, "unroutable_returned": 1, "unroutable_dropped": 1}


def test_totals_of_channels_stay_when_channels_and_queues_are_gone(client: Client, connection: RawConnection, name: str) -> None:
    before = metrics(client)
    channel = connection.channel()
    traffic(channel, name)
    keys = {f"channel_messages_{one}_total": count for one, count in WANTED.items()}
    keys |= {"channel_get_total": 1, "channel_get_ack_total": 2, "channel_messages_delivered_ack_total": 1}
    keys |= {"queue_messages_published_total": 3, "queue_messages_delivered_total": 4}

    def grown() -> dict[str, float]:
        after = metrics(client)
        assert all(after[one] > before[one] for one in after if re.match(r"connection_(in|out)\w+_(bytes|packets)_total", one))
        return {key: after[key] - before[key] for key in keys}

    wait_until(lambda: grown() == keys, what="all is counted")
    lines = metrics(client, "/metrics/per-object")
    label = next(one.partition("{")[2] for one in lines if one.startswith("channel_messages_published_total") and lines[one] == 5)
    assert {one: lines[f"channel_messages_{one}_total{{{label}"] for one in WANTED} == WANTED
    channel.call("queue.delete", queue=name)
    channel.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    connection.drop()
    wait_until(lambda: not client.node.broker.connections)
    assert grown() == keys
    families = "channel_exchange_metrics", "channel_queue_metrics", "connection_coarse_metrics"
    lines = metrics(client, "/metrics/detailed?" + "&".join(f"family={one}" for one in families))
    assert not [one for one in lines if one.startswith("detailed_c")], "lines of one channel or connection end with it"


def test_sums_of_the_overview_stay_when_a_queue_or_its_virtual_host_is_deleted(client: Client, name: str) -> None:
    api = Api(client)
    before = api.get("overview")["message_stats"]["publish"]
    api.put(f"vhosts/{name}")
    api.user(f"{name}-user", "management", name)
    for queue in ("one", "two"):
        api.put(f"queues/{name}/{queue}")
        message = {"routing_key": queue, "payload": "x", "payload_encoding": "string", "properties": {}}
        api.post(f"exchanges/{name}/amq.default/publish", message)
    tenant = Api(client, f"{name}-user")

    def published(who: Api) -> int:
        return int(who.get("overview").get("message_stats", {}).get("publish", 0))

    wait_until(lambda: published(api) == before + 2 and published(tenant) == 2)
    api.delete(f"queues/{name}/one")
    wait_until(lambda: client.node.broker.counters.queues_deleted >= 1)
    wait_until(lambda: (published(api), published(tenant)) == (before + 2, 2), timeout=3)
    api.delete(f"vhosts/{name}")
    wait_until(lambda: published(api) == before + 2, timeout=5)


def test_queues_show_bytes_rates_and_since_when_they_rest(client: Client, connection: RawConnection, name: str) -> None:
    api, channel = Api(client), connection.channel()
    traffic(channel, name)
    for _ in range(2):
        channel.publish(b"kept", routing_key=name)
        channel.expect("basic.ack")
    channel.call("basic.get", queue=name)
    queue = api.get(f"queues/%2F/{name}")
    stats = {key: queue["message_stats"][key] for key in ("publish", "deliver_get", *FLOWS)}
    assert stats == {
        "publish": 5,
        "deliver_get": 5,
        "deliver": 1,
        "deliver_no_ack": 0,
        "get": 3,
        "get_no_ack": 1,
        "redeliver": 1,
        "ack": 2,
    }
    assert (queue["message_bytes"], queue["message_bytes_ready"], queue["message_bytes_unacknowledged"]) == (8, 4, 4)
    assert queue["message_stats"]["ack_details"] == {"rate": None}, "one look is no rate"
    wait_until(lambda: api.get(f"queues/%2F/{name}")["message_stats"]["ack_details"]["rate"] == 0.0, what="a second look")
    wait_until(lambda: "idle_since" in api.get(f"queues/%2F/{name}"), timeout=12, what="a look of the sampler after the last message")
    channel.call("basic.get", queue=name)
    assert "idle_since" not in api.get(f"queues/%2F/{name}")
    names = [one["name"] for one in api.get("queues?sort=message_stats.ack&sort_reverse=true")]
    assert names[0] == name
    channel.call("queue.delete", queue=name)


def test_connections_and_channels_show_their_traffic(client: Client, connection: RawConnection, name: str) -> None:
    api, channel = Api(client), connection.channel()
    before = api.get("overview")["message_stats"]
    traffic(channel, name)
    after = api.get("overview")["message_stats"]
    grown = {key: after[key] - before[key] for key in LOOP_STATS}
    counts = {"ack": 2, "confirm": 5, "deliver": 1, "get": 2, "get_no_ack": 1, "redeliver": 1}
    assert grown == dict.fromkeys(LOOP_STATS, 0) | counts | {"drop_unroutable": 1, "return_unroutable": 1}
    [shown] = api.get("connections")
    assert shown["recv_oct"] > 500 and shown["send_oct"] > 500 and shown["recv_cnt"] > 10 and shown["send_cnt"] > 10
    [state] = api.get("channels")
    assert state["message_stats"] == {
        "publish": 5,
        "confirm": 5,
        "deliver_get": 4,
        "redeliver": 1,
        "ack": 2,
        "return_unroutable": 1,
        "drop_unroutable": 1,
    }
    channel.call("queue.delete", queue=name)


def test_logins_are_counted_by_protocol(client: Client, connection: RawConnection) -> None:
    before = metrics(client)
    client.get("/api/overview", {"Authorization": "Basic eDp5"})
    RawConnection("127.0.0.1", client.broker.port).open().drop()
    after = metrics(client)

    def grown(which: str, protocol: str) -> float:
        key = f'auth_attempts_{which}_total{{protocol="{protocol}"}}'
        return after[key] - before[key]

    assert (grown("succeeded", "amqp091"), grown("failed", "amqp091"), grown("failed", "http")) == (1, 0, 1)


def test_totals_count_the_queues_that_lists_show(client: Client, connection: RawConnection, name: str) -> None:
    """What waits for its time is in a queue of the broker's own: no list shows it, no sum counts it but the one of scheduled messages."""
    api, channel = Api(client), connection.channel()
    channel.queue(name)
    channel.call("confirm.select")
    for _ in range(5):
        channel.publish(b"later", routing_key=name, headers={"x-delay": 3_600_000})
        channel.expect("basic.ack")
    assert client.node.broker.vhosts["/"].schedule is not None
    listed = api.get("queues")
    wait_until(lambda: api.get("overview")["object_totals"]["queues"] == len(listed), timeout=5)
    wait_until(lambda: api.get("overview")["queue_totals"]["messages"] == 0, timeout=5)
    assert sum(one["messages"] for one in listed) == 0
    values = metrics(client)
    assert values["queues"] == values["flintmq_queues"] == len(listed)
    assert values["queue_messages"] == values["flintmq_messages_ready"] == 0 and values["flintmq_messages_scheduled"] == 5
    now = api.get("v1/overview")["now"]
    assert (now["queues"], now["scheduled"]) == (len(listed), 5)
    assert 'queue="' + name in client.get("/metrics/per-object").raw.decode()
    assert len(re.findall(r"^rabbitmq_queue_messages\{", client.get("/metrics/per-object").raw.decode(), re.MULTILINE)) == len(listed)


PROPERTIES = {
    "content_type": "a/b",
    "headers": {"k": "v" * 300},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "message_id": "m",
}


@pytest.mark.parametrize("others", [{}, PROPERTIES, {"content_encoding": "e", "reply_to": "r", "expiration": "60000"}])
def test_the_time_of_the_first_message_is_shown(client: Client, connection: RawConnection, name: str, others: dict[str, Any]) -> None:
    """Wherever the property stands; nothing of a message that has none."""
    api, channel = Api(client), connection.channel()
    channel.queue(name)
    channel.publish(b"plain", routing_key=name)
    channel.wait_ready(name, 1)
    assert api.get(f"queues/%2F/{name}")["head_message_timestamp"] is None
    channel.publish(b"timed", routing_key=name, timestamp=1_700_000_000, **others)
    channel.wait_ready(name, 2)
    channel.call("basic.get", queue=name, no_ack=True)
    assert api.get(f"queues/%2F/{name}")["head_message_timestamp"] == 1_700_000_000
    if others:
        return
    line = f'queue_head_message_timestamp{{vhost="/",queue="{name}"}}'
    wait_until(lambda: metrics(client, "/metrics/per-object").get(line) == 1_700_000_000, timeout=12, what="the sampler knows the queue")


def test_a_virtual_host_that_is_being_deleted_is_in_the_totals_still() -> None:
    """Between the end of its name and of its last queue."""
    counters = Counters()
    core = SimpleNamespace(
        ready_count=lambda: 1, unacked_count=lambda: 1, consumer_count=lambda: 0, enqueued_total=lambda: 7, delivered_total=lambda: 2
    )
    queues = {number: SimpleNamespace(queue_id=number, vhost="v", name=f"q{number}", core=core) for number in range(3)}
    broker: Any = SimpleNamespace(counters=counters, queues=queues, vhosts={"v": SimpleNamespace(name="v", exchanges={})})

    def sums() -> tuple[int, int]:
        of = asyncio.run(Totals().of(broker, list(broker.vhosts.values()), every=True))
        return of["enqueued"], of["ready"]

    assert sums() == (21, 3)
    counters.queue_leaves(queues, queues[0])
    assert sums() == (21, 2)
    broker.vhosts.clear()
    assert sums() == (21, 0)
    for queue in list(queues.values()):
        counters.queue_leaves(queues, queue)
        assert sums() == (21, 0)
    counters.vhost_leaves("v")
    assert sums() == (21, 0)

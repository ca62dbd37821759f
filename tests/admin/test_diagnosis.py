"""Cards of the diagnosis: each with its cause, gone with it, and none about what the user may not see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.admin import node_rules
from flintmq.admin.diagnosis import Diagnosis
from flintmq.admin.node_rules import Facts, facts_of, node_cards
from flintmq.admin.samples import Sampler
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection

NEVER = (0, 300)
STREAM = {"x-queue-type": "stream"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(http_port=0, data_dir=str(tmp_path_factory.mktemp("d")), limits={"housekeeping_ms": 20}) as started:
        yield started


class Look:
    """A sampler of its own, whose time the test makes: five seconds a look. `titles()`: of cards, as an administrator."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker.node.broker
        self.parts = broker.node.http._parts  # type: ignore[union-attr]
        self.sampler = Sampler(self.parts)
        self.diagnosis = Diagnosis(self.parts, self.sampler)
        self.now_s = 1_000

    def later(self) -> None:
        self.now_s += 5
        asyncio.run(self.sampler.look(self.now_s))
        self.sampler.node.add(self.now_s, self.sampler.node_row())

    def cards(self) -> list[dict[str, Any]]:
        call = SimpleNamespace(tags=("administrator",), sees=lambda name: True, vhosts=lambda: list(self.broker.vhosts.values()))
        return list(asyncio.run(self.diagnosis.cards(call))["cards"])

    def titles(self) -> set[str]:
        return {one["title"] for one in self.cards()}


@pytest.fixture
def look(broker: Broker) -> Look:
    return Look(broker)


@pytest.fixture
def connection(broker: Broker) -> Iterator[RawConnection]:
    opened = RawConnection("127.0.0.1", broker.port).open()
    yield opened
    opened.drop()


def publish(channel: Any, name: str, count: int) -> None:
    for number in range(count):
        channel.publish(b"%d" % number, routing_key=name)


@pytest.mark.parametrize(("reads", "cards"), [(True, set()), (False, {"Consumers are too slow"})])
def test_a_stream_is_judged_by_how_its_consumers_keep_up(
    look: Look, connection: RawConnection, name: str, reads: bool, cards: set[str]
) -> None:
    """It keeps what was read, so that it always grows: a consumer that reads all is not too slow."""
    channel = connection.channel()
    channel.call("queue.declare", queue=name, durable=True, arguments=STREAM)
    channel.call("basic.qos", prefetch_count=1_000 if reads else 2)
    channel.call("basic.consume", queue=name, consumer_tag="c", arguments={"x-stream-offset": "first"})
    core = look.broker.vhosts["/"].queues[name].core
    for number in range(4):
        publish(channel, name, 30)
        wait_until(lambda count=30 * (number + 1): core.enqueued_total() == count and core.delivered_total() == (count if reads else 2))
        look.later()
    assert {one["title"] for one in look.cards() if one.get("queue") == name} == cards


def test_a_group_of_a_stream_that_falls_back_has_a_card_until_it_catches_up(
    look: Look, connection: RawConnection, broker: Broker, name: str
) -> None:
    channel = connection.channel()
    channel.call("queue.declare", queue=name, durable=True, arguments=STREAM)
    client = Client(broker)
    stream: Any = look.broker.streams.get(look.broker.vhosts["/"].queues[name].queue_id)  # type: ignore[union-attr]
    assert client.get(f"/api/v1/queues/%2F/{name}/messages?group=g&offset=first&hold=0").status == 200
    for number in range(4):
        publish(channel, name, 30)
        wait_until(lambda lag=30 * (number + 1): stream.lag() == lag, what="all is on disk, and nothing was taken")
        look.later()
    assert {one["title"] for one in look.cards() if one.get("queue") == name} == {"A group falls behind"}
    for _ in range(13):  # the lag is as large as before, and grows no more
        look.later()
    assert not [one for one in look.cards() if one.get("queue") == name]


def test_messages_that_go_nowhere_have_a_card_for_some_minutes(look: Look, connection: RawConnection) -> None:
    """One of them is no reason to cry until the next restart."""
    channel = connection.channel()
    look.later()
    channel.publish(b"lost", routing_key="no such queue")
    wait_until(lambda: look.broker.counters.drops["unroutable"] >= 1)
    assert "Messages go nowhere" in look.titles()
    for _ in range(node_rules.UNROUTABLE_S // 5 + 1):
        look.later()
    assert "Messages go nowhere" not in look.titles()


def test_resources_that_run_out(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is blocked is said when somebody is."""
    parts = look.parts
    well = facts_of(parts)._replace(fds_max=65_536, free=1 << 50)

    def cards(facts: Facts) -> dict[str, str]:
        return {one["title"]: one["text"] for one in node_cards(parts, facts, NEVER) if one["level"] != "hint"}

    monkeypatch.setattr(node_rules, "bytes_held", lambda: 1 << 20)
    assert cards(well) == {}
    assert cards(well._replace(fds=60_000)) == {"Descriptors run out": "60000 of 65536 files are open"}
    assert set(cards(well._replace(fds_max=1_024))) == {"Few descriptors"}
    assert set(cards(well._replace(free=parts.disk_reserve * 3))) == {"The disk is nearly full"}
    monkeypatch.setattr(node_rules, "bytes_held", lambda: int(parts.memory_limit * 0.9))
    assert "will be blocked at" in cards(well)["Memory is nearly short"]
    monkeypatch.setattr(node_rules, "alarms_of", lambda parts: (True, False))
    assert "none is so far" in cards(well)["Memory is short"] and "Memory is nearly short" not in cards(well)
    monkeypatch.setattr(node_rules, "blocked_count", lambda parts: 3)
    assert "3 connections of publishers are blocked" in cards(well)["Memory is short"]


def test_a_tenant_sees_cards_of_its_virtual_hosts_alone(broker: Broker) -> None:
    """Neither names nor numbers of others, nor of users; which subjects it may not see is told."""
    admin = Api(Client(broker))
    away = "amqp://127.0.0.1:1"
    shovel = {"src-uri": away, "src-queue": "s", "dest-uri": away, "dest-queue": "d", "reconnect-delay": 0}
    for vhost in ("mine", "others"):
        admin.put(f"vhosts/{vhost}")
        admin.put(f"queues/{vhost}/{vhost}-q", {"arguments": {"x-dead-letter-exchange": "none"}})
        admin.put(f"parameters/shovel/{vhost}/{vhost}-s", {"value": shovel})
    admin.put("users/others-empty", {"password_hash": "", "tags": "management"})
    tenant = admin.user("tenant", "management", "mine")
    wait_until(lambda: {one["state"] for one in admin.get("shovels")} == {"terminated"}, what="both shovels ended")
    seen = tenant.get("v1/diagnosis")
    titles = {one["title"] for one in seen["cards"]}
    assert titles == {"A dead-letter exchange is missing", "A shovel does not run"}
    assert "others" not in str(seen) and "mine" in str(seen)
    assert seen["left_out"] == {"the node": "monitoring", "users": "administrator"}
    every = admin.get("v1/diagnosis")
    assert "others-q" in str(every) and "others-empty" in str(every) and every["left_out"] == {}
    for vhost in ("mine", "others"):
        admin.delete(f"vhosts/{vhost}")

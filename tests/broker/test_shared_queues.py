"""Shared queues of a broker whose engine does what the test wants: hangs, is away, comes back.

Properties: an engine that hangs or is away costs shared queues alone, and neither a loop nor the start of the broker waits for it; what
waits is bounded, counted, and refused in time; dead letters and requests over HTTP reach shared queues; limits are told.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.broker import shared_service
from flintmq.core.memory_account import bytes_by_kind
from flintmq.kv.engine import Unavailable
from flintmq.shared.keys import ROOT
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection
from tests.twins.memory_engine import MemoryEngine, MemoryTransaction

SHARED = {"x-queue-type": "shared"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)
WAIT_S = 60
FAST = {"housekeeping_ms": 20, "shared_poll_ms": 20, "shared_pause_ms": 5, "shared_pause_ms_max": 20, "shared_patience_ms": 500}


class Engine(MemoryEngine):
    """`answers` unset: who asks waits; `away`: who asks is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.away = False
        self.asked = threading.Event()

    def begin(self) -> MemoryTransaction:
        self.asked.set()
        self.answers.wait(WAIT_S)
        if self.away:
            raise Unavailable("away")
        return super().begin()

    def hang(self) -> None:
        """Returns when somebody waits."""
        self.answers.clear()
        self.asked.clear()
        assert self.asked.wait(WAIT_S)

    def close(self) -> None:
        """It outlives brokers."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()

    def opened(url: str, limits: Any, watched: bytes) -> Engine:
        if made.away:
            raise Unavailable("away")
        return made

    monkeypatch.setattr(shared_service, "open_engine", opened)
    yield made
    made.answers.set()


@pytest.fixture
def begin(start: Callable[..., Broker], tmp_path: Path, engine: Engine) -> Callable[..., Broker]:
    def made(**limits: int) -> Broker:
        return start(limits={**FAST, **limits}, store_dir=str(tmp_path / "store"), http_port=0)

    return made


def rows_of_queues(engine: Engine) -> list[bytes]:
    """Keys of queues and of their names. Ids in other keys are random bytes, and may look like anything."""
    return [key for key in engine.state if key.startswith((ROOT + b"q", ROOT + b"n"))]


def service(broker: Broker) -> Any:
    return broker.node.broker.shared


def core(broker: Broker, name: str = "s") -> Any:
    return broker.node.broker.vhosts["/"].queues[name].core


def declare(raw: RawConnection, *names: str) -> Any:
    channel = raw.channel()
    for name in names:
        channel.queue(name, durable=True, arguments=SHARED)
    channel.call("confirm.select")
    return channel


def publish(channel: Any, body: bytes, name: str = "s") -> None:
    channel.publish(body, routing_key=name, delivery_mode=2)


def get(channel: Any, name: str = "s") -> Any:
    channel.send("basic.get", queue=name, no_ack=True)
    return channel.connection.recv(channel.number)


def test_an_engine_that_hangs_holds_up_nobody_else(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin()
    channel, other = declare(connect(broker), "s"), connect(broker).channel()
    other.queue("plain", durable=True)
    other.call("confirm.select")
    engine.hang()
    publish(channel, b"waits")
    waiting = connect(broker).channel()
    waiting.send("queue.declare", queue="new", durable=True, arguments=SHARED)
    for number in range(1, 4):
        publish(other, b"plain", "plain")
        assert other.expect("basic.ack").delivery_tag == number
        assert get(other, "plain").body == b"plain"
    channel.nothing()
    engine.answers.set()
    assert channel.expect("basic.ack").delivery_tag == 1
    waiting.expect("queue.declare-ok")
    wait_until(lambda: service(broker).facts()["waiting_bytes"] == 0)


def test_an_engine_that_is_away_refuses_in_time_and_goes_on_by_itself(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin(shared_waiting_ms_max=100)
    channel = declare(connect(broker), "s")
    publish(channel, b"before")
    channel.expect("basic.ack")
    engine.away = True
    publish(channel, b"refused")
    channel.expect("basic.nack")
    other = connect(broker)
    other.channel().send("queue.declare", queue="n", durable=True, arguments=SHARED)
    other.expect_close(541, "the engine of shared queues does not answer")
    engine.away = False
    wait_until(lambda: service(broker).facts()["answers"])
    publish(channel, b"after")
    channel.expect("basic.ack")
    assert [get(channel).body for _ in range(2)] == [b"before", b"after"]


def test_an_engine_that_is_away_does_not_seem_to_be_back_between_two_tries(begin: Any, connect: Any, engine: Engine, caplog: Any) -> None:
    """A step with nothing to do says nothing of the engine, nor does one that began before it went."""
    caplog.set_level("INFO", "flintmq")
    broker = begin(shared_poll_ms=100)  # more than the pauses between tries
    declare(connect(broker), "s", "t", "u")
    engine.away = True
    wait_until(lambda: service(broker).failures >= 6, what="it was tried again")
    assert not service(broker).facts()["answers"]
    engine.away = False
    wait_until(lambda: service(broker).facts()["answers"])
    start = "the engine of shared queues "
    wait_until(lambda: start + "answers again" in caplog.messages)  # it is said after it is known
    said = [text.removeprefix(start).partition(":")[0] for text in caplog.messages if text.startswith(start)]
    assert said == ["does not answer", "answers again"]


def test_a_broker_starts_without_its_engine(begin: Any, connect: Any, engine: Engine) -> None:
    first = begin()
    channel = declare(connect(first), "s")
    publish(channel, b"kept")
    channel.expect("basic.ack")
    first.node.stop()
    engine.away = True
    second = begin(shared_waiting_ms_max=100)
    other = connect(second).channel()
    other.queue("plain", durable=True)
    publish(other, b"p", "plain")
    assert get(other, "plain").body == b"p"
    refused = connect(second)
    refused.channel().send("basic.get", queue="s", no_ack=True)
    refused.expect_close(541, "the engine of shared queues does not answer")
    engine.away = False
    assert get(other).body == b"kept"


def test_what_waits_is_bounded_by_queue_and_virtual_host_and_counted(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin(shared_waiting_bytes_max=10_000, shared_vhost_waiting_bytes_max=15_000)
    channel = declare(connect(broker), "s", "t", "u", "first")
    publish(channel, b"the line has its room", "first")
    channel.expect("basic.ack")
    before = bytes_by_kind()["entries"]
    engine.hang()
    for _ in range(4):  # some 4,500 bytes each: two fit
        publish(channel, bytes(4_000))
    for _ in range(3):  # one more of the virtual host
        publish(channel, bytes(4_000), "t")
    publish(channel, bytes(4_000), "u")
    channel.call("basic.qos", prefetch_count=1)  # its answer comes behind the publishes
    assert 12_000 <= service(broker).facts()["waiting_bytes"] <= 15_000
    wait_until(lambda: bytes_by_kind()["entries"] - before >= 12_000, what="what Python keeps is in the account")
    engine.answers.set()
    wait_until(lambda: service(broker).facts()["waiting_bytes"] == 0)
    publish(channel, bytes(20_000))  # larger than the bound: alone it is taken
    answers = [channel.connection.recv(1)]
    while answers[-1].delivery_tag < 10:
        answers.append(channel.connection.recv(1))
    assert sorted(one.delivery_tag for one in answers if one.name == "basic.nack") == [4, 5, 7, 8, 9]
    wait_until(lambda: core(broker).ready_count() == 3)
    wait_until(lambda: bytes_by_kind()["entries"] - before < 12_000)


def test_a_publisher_that_goes_leaves_nothing_behind(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin()
    gone, channel = connect(broker), declare(connect(broker), "s")
    leaving = gone.channel()
    leaving.call("confirm.select")
    engine.hang()
    publish(leaving, b"a")
    publish(leaving, b"b")
    wait_until(lambda: service(broker).facts()["waiting_bytes"] > 1_000)
    gone.drop()
    wait_until(lambda: len(broker.node.broker.connections) == 1)
    engine.answers.set()
    wait_until(lambda: service(broker).facts()["waiting_bytes"] == 0)
    assert [get(channel).body for _ in range(2)] == [b"a", b"b"]


def test_a_deleted_queue_refuses_what_waits(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    publish(channel, b"a")
    channel.expect("basic.ack")
    engine.away = True
    publish(channel, b"b")
    wait_until(lambda: service(broker).facts()["waiting_bytes"] > 0)
    broker.node.broker.vhosts["/"].run(
        broker.node.broker.vhosts["/"].delete_queue("s")
    )  # as its virtual host's end does: without the engine
    channel.expect("basic.nack")
    engine.away = False
    wait_until(lambda: not rows_of_queues(engine), what="its rows go when the engine is back")
    wait_until(lambda: service(broker).facts()["waiting_bytes"] == 0)


def test_a_paused_queue_gives_back_and_takes_nothing(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    queue = broker.node.broker.vhosts["/"].queues["s"]
    broker.node.broker.pauses.set(queue, True)
    channel.consume("s", no_ack=True)
    for number in range(3):
        publish(channel, b"%d" % number)
    while channel.expect("basic.ack").delivery_tag < 3:
        pass
    wait_until(lambda: queue.core.elsewhere == 3)
    channel.nothing()
    broker.node.broker.pauses.set(queue, False)
    assert [one.body for one in channel.deliveries(3)] == [b"0", b"1", b"2"]


def test_time_to_live_of_queue_and_message(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin()
    channel = connect(broker).channel()
    channel.queue("s", durable=True, arguments={**SHARED, "x-message-ttl": 1})
    channel.queue("t", durable=True, arguments=SHARED)
    channel.call("confirm.select")
    publish(channel, b"by the queue")
    channel.publish(b"by itself", routing_key="t", expiration="1")
    publish(channel, b"stays", "t")
    while channel.expect("basic.ack").delivery_tag < 3:
        pass
    wait_until(lambda: core(broker).ready_count() == 0, what="nobody consumes, and it ends all the same")
    wait_until(lambda: core(broker, "t").ready_count() == 1)
    assert get(channel, "t").body == b"stays"
    assert get(channel).name == "basic.get-empty"
    wait_until(lambda: broker.node.broker.counters.drops["expired"] == 2)


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_dead_letters_go_into_a_shared_queue(begin: Any, connect: Any, engine: Engine, strategy: str) -> None:
    broker = begin(dead_letter_retry_ms=5)
    channel = declare(connect(broker), "s")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s", "x-dead-letter-strategy": strategy}
    if strategy == "at-least-once":
        letters |= {"x-queue-type": "quorum", "x-overflow": "reject-publish"}
    channel.queue("q", durable=True, arguments=letters)
    if strategy == "at-least-once":
        engine.away = True
    for number in range(3):
        publish(channel, b"%d" % number, "q")
        channel.expect("basic.ack")
        channel.send("basic.get", queue="q")
        channel.send("basic.reject", delivery_tag=channel.connection.recv(1).delivery_tag, requeue=False)
    engine.away = False
    wait_until(lambda: core(broker).ready_count() == 3)
    got = [get(channel) for _ in range(3)]
    assert sorted(one.body for one in got) == [b"0", b"1", b"2"]
    wait_until(lambda: core(broker, "q").ready_count() + core(broker, "q").unacked_count() == 0)
    assert get(channel).name == "basic.get-empty"


def test_http_publishes_purges_and_deletes(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    client = Client(broker)
    answer = client.post("/api/v1/queues/%2F/s/messages", {"body": "one"})
    assert answer.status == 201, answer.raw
    assert answer.json["durable"] is True
    sent = {"routing_key": "s", "payload": "two", "payload_encoding": "string", "properties": {}}
    assert client.post("/api/exchanges/%2F/amq.default/publish", sent).json == {"routed": True}
    assert get(channel).body == b"one"
    wait_until(lambda: client.get("/api/queues/%2F/s").json["messages_ready"] == 1)
    assert client.request("DELETE", "/api/queues/%2F/s/contents").status == 204
    wait_until(lambda: core(broker).ready_count() == 0)
    publish(channel, b"three")
    channel.expect("basic.ack")
    refused = client.request("DELETE", "/api/queues/%2F/s?if-empty=true")
    assert refused.status == 400 and b"not empty" in refused.raw
    assert client.request("DELETE", "/api/queues/%2F/s").status == 204
    assert client.get("/api/queues/%2F/s").status == 404
    wait_until(lambda: not rows_of_queues(engine))


def test_delete_only_if(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin()
    channel = declare(connect(broker), "s")
    publish(channel, b"x")
    channel.expect("basic.ack")
    connect(broker).channel().refuse(406, "queue 's' in vhost '/' not empty", "queue.delete", queue="s", if_empty=True)
    assert get(channel).body == b"x"
    wait_until(lambda: not service(broker)._entries[core(broker).queue_id].station.step())
    consumer = connect(broker)
    consumer.channel().consume("s")
    connect(broker).channel().refuse(406, "queue 's' in vhost '/' in use", "queue.delete", queue="s", if_unused=True)
    consumer.drop()
    wait_until(lambda: core(broker).consumer_count() == 0)
    assert channel.call("queue.delete", queue="s", if_empty=True, if_unused=True).message_count == 0


def test_another_order_and_one_queue_too_many(begin: Any, connect: Any, engine: Engine) -> None:
    broker = begin(shared_queues_max=1)
    shared_service.declare_queue(engine, "/", "s", "relaxed")
    text = "inequivalent arg 'x-shared-order'"
    connect(broker).channel().refuse(406, text, "queue.declare", queue="s", durable=True, arguments=SHARED)
    declare(connect(broker), "t")
    connect(broker).channel().refuse(406, "limit (1)", "queue.declare", queue="u", durable=True, arguments=SHARED)


def test_policies_reach_what_a_shared_queue_does(begin: Any, connect: Any, engine: Engine) -> None:
    """x-expires would delete it for all nodes because nobody uses it here."""
    broker = begin()
    channel = declare(connect(broker), "s")
    definition = {"expires": 1, "message-ttl": 1, "max-length": 1}
    body = {"pattern": ".*", "definition": definition, "apply-to": "queues", "priority": 1}
    client = Client(broker)
    assert client.request("PUT", "/api/policies/%2F/p", json.dumps(body).encode()).status in (201, 204)
    queue = broker.node.broker.vhosts["/"].queues["s"]
    wait_until(lambda: queue.core.ttl_ms == 1)
    assert (queue.policy.expires_ms, queue.policy.max_length) == (None, 1)
    for _ in range(3):
        publish(channel, b"x")
    while channel.expect("basic.ack").delivery_tag < 3:
        pass
    wait_until(lambda: core(broker).ready_count() == 0)

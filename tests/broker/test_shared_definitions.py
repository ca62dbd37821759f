"""Definitions of shared queues on two nodes with one engine in memory.

Properties: a queue that one node declares, binds, unbinds and deletes is the same on the other, which was told nothing; a node that was
away has the engine's state when it is back; what a node can't follow is said, holds up nothing else, and comes when it can; a bind is
answered when the engine has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker import shared_definitions, shared_service
from flintmq.broker.shared_definitions import SharedDefinitions
from flintmq.config import Limits
from flintmq.kv.engine import EngineError, Unavailable
from flintmq.routing.binding import QUEUE
from flintmq.shared.keys import definition
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection
from tests.twins.memory_engine import MemoryEngine, MemoryTransaction

SHARED = {"x-queue-type": "shared"}
FAST = {
    "housekeeping_ms": 20,
    "shared_poll_ms": 20,
    "shared_pause_ms": 5,
    "shared_pause_ms_max": 20,
    "shared_patience_ms": 500,
    "shared_definitions_retry_ms": 20,
}
WAIT_S = 30


class Engine(MemoryEngine):
    """`away`: who asks is told so."""

    away = False

    def begin(self) -> MemoryTransaction:
        if self.away:
            raise Unavailable("away")
        return super().begin()

    def close(self) -> None:
        """It outlives brokers."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    monkeypatch.setattr(shared_service, "open_engine", lambda url, limits, watched: made)
    yield made
    made.away = False


@pytest.fixture
def begin(start: Callable[..., Broker], tmp_path: Path, engine: Engine) -> Callable[..., Broker]:
    """A node by its name: the same name is the same store."""

    def made(name: str, **limits: int) -> Broker:
        options = {"store_dir": str(tmp_path / name), "http_port": 0, "shared_engine": "etcd://127.0.0.1:1"}
        return start(limits={**FAST, **limits}, **options)

    return made


@pytest.fixture
def pair(begin: Callable[..., Broker]) -> tuple[Broker, Broker]:
    return begin("one"), begin("other")


def vhost(broker: Broker) -> Any:
    return broker.node.broker.vhosts["/"]


def definitions(broker: Broker) -> Any:
    return broker.node.broker.shared.definitions


def has(broker: Broker, name: str) -> bool:
    return name in vhost(broker).queues


def bound(broker: Broker, name: str) -> set[tuple[str, bytes]]:
    queue = vhost(broker).queues.get(name)
    return {(one.source.name, one.routing_key) for one in list((queue.bindings or {}).values())} if queue is not None else set()


def declare(channel: Any, name: str, **arguments: Any) -> None:
    channel.queue(name, durable=True, arguments={**SHARED, **arguments})


def channels(connect: Any, *brokers: Broker) -> list[Any]:
    made = [connect(broker).channel() for broker in brokers]
    for channel in made:
        channel.call("confirm.select")
    return made


def publish(channel: Any, exchange: str, key: str, body: bytes) -> None:
    channel.publish(body, exchange=exchange, routing_key=key, delivery_mode=2)
    channel.expect("basic.ack")


def get(channel: Any, name: str) -> bytes | None:
    """The next message; None: there is none now."""
    channel.send("basic.get", queue=name, no_ack=True)
    got = channel.connection.recv(channel.number)
    return None if got.name == "basic.get-empty" else bytes(got.body)


def test_a_queue_of_one_node_is_on_the_other_with_its_arguments(pair: tuple[Broker, Broker], connect: Any) -> None:
    one, other = pair
    here, there = channels(connect, one, other)
    declare(here, "q", **{"x-max-length": 3, "x-overflow": "reject-publish", "x-delivery-limit": 7})
    wait_until(lambda: has(other, "q"), WAIT_S)
    policy = vhost(other).queues["q"].policy
    assert (policy.max_length, policy.delivery_limit, policy.overflow) == (3, 7, vhost(one).queues["q"].policy.overflow)
    publish(here, "", "q", b"x")
    wait_until(lambda: get(there, "q") == b"x", WAIT_S)
    there.refuse(406, "x-max-length", "queue.declare", queue="q", durable=True, arguments={**SHARED, "x-max-length": 4})
    again = connect(other).channel()
    again.call("queue.delete", queue="q")
    wait_until(lambda: not has(one, "q"), WAIT_S)


def test_arguments_are_compared_with_the_engines(pair: tuple[Broker, Broker], connect: Any, engine: Engine) -> None:
    """Also before this node has learnt of the queue."""
    one, other = pair
    declare(connect(one).channel(), "q", **{"x-delivery-limit": 7})
    done: list[Exception | None] = []
    other.node.broker.shared.declare_in_engine("/", "q", "strict", SHARED, lambda _, error: done.append(error))
    wait_until(lambda: done, WAIT_S)
    assert "inequivalent arg 'x-delivery-limit' for queue 'q' in vhost '/'" in str(done[0])


def test_bindings_and_their_exchanges_follow(pair: tuple[Broker, Broker], connect: Any) -> None:
    one, other = pair
    here, there = channels(connect, one, other)
    declare(here, "q")
    here.call("exchange.declare", exchange="t", type="topic", durable=True)
    here.call("exchange.declare", exchange="h", type="headers", durable=True)
    here.call("queue.bind", queue="q", exchange="t", routing_key="a.*")
    here.call("queue.bind", queue="q", exchange="h", routing_key="", arguments={"x-match": "all", "n": 5, "s": "é", "f": 1.5, "t": True})
    wait_until(lambda: len(bound(other, "q")) == 2, WAIT_S)
    publish(there, "t", "a.b", b"by key")
    assert get(there, "q") == b"by key"
    there.publish(b"by headers", exchange="h", routing_key="", headers={"n": 5, "s": "é", "f": 1.5, "t": True}, delivery_mode=2)
    there.expect("basic.ack")
    assert get(there, "q") == b"by headers"
    there.call("queue.unbind", queue="q", exchange="t", routing_key="a.*")
    wait_until(lambda: bound(one, "q") == {("h", b"")}, WAIT_S)
    here.call("exchange.delete", exchange="h")
    wait_until(lambda: not bound(other, "q"), WAIT_S)


def test_a_binding_over_http_follows_and_so_does_its_end(pair: tuple[Broker, Broker], connect: Any) -> None:
    one, other = pair
    client = Client(one)
    assert client.request("PUT", "/api/queues/%2F/q", b'{"durable": true, "arguments": {"x-queue-type": "shared"}}').status == 201
    made = client.request("POST", "/api/bindings/%2F/e/amq.topic/q/q", b'{"routing_key": "k"}')
    assert made.status == 201
    wait_until(lambda: bound(other, "q") == {("amq.topic", b"k")}, WAIT_S)
    assert Client(other).request("DELETE", "/api/bindings/%2F/e/amq.topic/q/q/k").status == 204
    wait_until(lambda: not bound(one, "q"), WAIT_S)


def test_a_node_that_dead_letters_needs_no_declaration_of_its_own(pair: tuple[Broker, Broker], connect: Any) -> None:
    one, other = pair
    here, there = channels(connect, one, other)
    here.call("exchange.declare", exchange="dlx", type="direct", durable=True)
    declare(here, "dead")
    here.call("queue.bind", queue="dead", exchange="dlx", routing_key="d")
    declare(here, "q", **{"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "d"})
    publish(here, "", "q", b"dies")
    wait_until(lambda: has(other, "q") and bound(other, "dead"), WAIT_S)
    there.consume("q")
    got = there.expect("basic.deliver")
    there.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    wait_until(lambda: get(here, "dead") == b"dies", WAIT_S)


def test_a_node_that_was_away_has_the_engines_state(begin: Callable[..., Broker], connect: Any) -> None:
    one, other = begin("one"), begin("other")
    (here,) = channels(connect, one)
    for name in ("kept", "gone", "again"):
        declare(here, name)
        here.call("queue.bind", queue=name, exchange="amq.topic", routing_key="old")
    wait_until(lambda: all(bound(other, name) for name in ("kept", "gone", "again")), WAIT_S)
    other.node.stop()
    here.call("queue.unbind", queue="kept", exchange="amq.topic", routing_key="old")
    here.call("queue.bind", queue="kept", exchange="amq.topic", routing_key="new")
    here.call("queue.delete", queue="gone")
    here.call("queue.delete", queue="again")
    declare(here, "again", **{"x-max-length": 9})
    declare(here, "fresh")
    other = begin("other")
    wait_until(lambda: bound(other, "kept") == {("amq.topic", b"new")} and not has(other, "gone") and has(other, "fresh"), WAIT_S)
    wait_until(lambda: has(other, "again") and vhost(other).queues["again"].policy.max_length == 9, WAIT_S)
    wait_until(lambda: not bound(other, "again"), WAIT_S)
    assert bound(one, "kept") == {("amq.topic", b"new")} and has(one, "again") and not bound(one, "again")


def test_what_a_node_cannot_follow_holds_up_nothing_else(pair: tuple[Broker, Broker], connect: Any, engine: Engine) -> None:
    one, other = pair
    here, there = channels(connect, one, other)
    there.queue("taken", durable=True)
    there.call("exchange.declare", exchange="x", type="fanout", durable=True)
    transaction = engine.begin()
    transaction.set(definition("/", "b\0roken")[:-1], b"no life...")
    transaction.set(definition("nowhere", "q"), b"8 bytes.")
    transaction.commit()
    here.call("exchange.declare", exchange="x", type="topic", durable=True)
    for name in ("taken", "q"):
        declare(here, name)
    here.call("queue.bind", queue="q", exchange="x", routing_key="a")
    here.call("queue.bind", queue="q", exchange="amq.topic", routing_key="a")
    wait_until(lambda: bound(other, "q") == {("amq.topic", b"a")}, WAIT_S)
    wait_until(lambda: definitions(other).refused == 3, WAIT_S)
    assert not vhost(other).queues["taken"].policy.is_shared
    there.call("queue.delete", queue="taken")
    there.call("exchange.delete", exchange="x")
    wait_until(lambda: has(other, "taken") and len(bound(other, "q")) == 2, WAIT_S)
    assert has(one, "taken") and len(bound(one, "q")) == 2


def test_a_bind_is_answered_when_the_engine_has_it(begin: Callable[..., Broker], connect: Any, engine: Engine) -> None:
    one, other = begin("one"), begin("other")
    here, beside = channels(connect, one, one)
    declare(here, "q")
    wait_until(lambda: has(other, "q"), WAIT_S)
    engine.away = True
    here.send("queue.bind", queue="q", exchange="amq.topic", routing_key="a")
    wait_until(lambda: definitions(one).waits(vhost(one).queues["q"].queue_id), WAIT_S)
    beside.queue("plain", durable=True)  # others go on
    here.nothing()
    engine.away = False
    here.expect("queue.bind-ok")
    wait_until(lambda: bound(other, "q") == {("amq.topic", b"a")}, WAIT_S)


def test_a_binding_that_the_engine_refuses_is_its_own_binders_affair(
    begin: Callable[..., Broker], connect: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's binding that the engine does not take ended the waits of all others with an error."""
    one = begin("one")
    write = shared_definitions.write_binding

    def refusing(there: Any, keys: Any, name: bytes, row: bytes | None, patience_ms: int) -> None:
        if row is not None and b"bad" in row and not engine.away:
            raise EngineError("it is too large")
        write(there, keys, name, row, patience_ms)

    monkeypatch.setattr(shared_definitions, "write_binding", refusing)
    bad, good = connect(one), connect(one)
    eve, ann = bad.channel(), good.channel()
    declare(eve, "hers")
    declare(ann, "mine")
    engine.away = True
    eve.send("queue.bind", queue="hers", exchange="amq.topic", routing_key="bad")
    ann.send("queue.bind", queue="mine", exchange="amq.topic", routing_key="good")
    for name in ("hers", "mine"):
        wait_until(lambda name=name: definitions(one).waits(vhost(one).queues[name].queue_id), WAIT_S)
    engine.away = False
    eve.expect("channel.close")
    ann.expect("queue.bind-ok")
    assert not definitions(one)._changes and not definitions(one)._waiters and not definitions(one)._of_queues


class Unseen(dict[Any, Any]):
    """A table that nobody may walk over."""

    def _refuse(self, *_: object) -> Any:
        raise AssertionError("all changes were looked at")

    __iter__ = keys = values = items = _refuse


def test_what_a_bind_costs_does_not_grow_with_what_others_wait_for() -> None:
    """Neither who asks whether a queue's bindings are told, nor who is told, looks at the changes of other queues."""
    service: Any = SimpleNamespace(limits=Limits(), state=SimpleNamespace(loops=[1]), entry=lambda queue_id: entries[queue_id])
    entries: dict[int, Any] = {number: SimpleNamespace(ended=False, life=b"%d" % number) for number in range(50)}
    asked = SharedDefinitions(service, False)
    asked._changes, asked._waiters = Unseen(), Unseen()
    policy, source = (
        SimpleNamespace(is_shared=True),
        SimpleNamespace(name="amq.topic", kind="topic", auto_delete=False, internal=False, arguments={}),
    )
    for number in entries:
        queue = SimpleNamespace(destination_kind=QUEUE, policy=policy, queue_id=number)
        asked.noted(SimpleNamespace(destination=queue, durable=True, source=source, routing_key=b"k", arguments={}), True)  # type: ignore[arg-type]
    told: list[Any] = []
    asked.when_told(7, lambda _, error: told.append(error))
    asked.when_told(8, lambda _, error: told.append(error))
    assert asked.waits(7) and not asked.waits(70) and not told
    ((name, change),) = asked._of_queues[7].items()
    asked._over((7, name), change, b"7")
    assert told == [None] and not asked.waits(7) and asked.waits(8)


def test_a_bind_that_waited_for_too_long_is_told_so_and_comes_later(begin: Callable[..., Broker], connect: Any, engine: Engine) -> None:
    one, other = begin("one", shared_waiting_ms_max=100), begin("other")
    connection = connect(one)
    channel = connection.channel()
    declare(channel, "q")
    wait_until(lambda: has(other, "q"), WAIT_S)
    engine.away = True
    channel.send("queue.bind", queue="q", exchange="amq.topic", routing_key="a")
    connection.expect_close(541, "the engine of shared queues does not answer")
    engine.away = False
    wait_until(lambda: bound(other, "q") == {("amq.topic", b"a")}, WAIT_S)


def test_bindings_that_come_and_go_while_the_engine_is_away_wait_for_nothing(
    pair: tuple[Broker, Broker], connect: Any, engine: Engine
) -> None:
    """No more waits for the engine than there are bindings."""
    one, other = pair
    declare(connect(one).channel(), "q")
    wait_until(lambda: has(other, "q"), WAIT_S)
    engine.away = True
    for number in range(50):
        vhost(one).run(vhost(one).bind_queue("q", "amq.topic", b"%d" % number))
        vhost(one).run(vhost(one).unbind_queue("q", "amq.topic", b"%d" % number))
    vhost(one).run(vhost(one).bind_queue("q", "amq.topic", b"stays"))
    wait_until(lambda: len(definitions(one)._changes) <= 2, WAIT_S)  # one of them may have been tried
    engine.away = False
    wait_until(lambda: bound(other, "q") == {("amq.topic", b"stays")}, WAIT_S)


def test_a_connection_that_was_lost_finds_its_queue_on_the_other_node(pair: tuple[Broker, Broker], connect: Any) -> None:
    """Nothing is declared on the node that it comes to."""
    one, other = pair
    (here,) = channels(connect, one)
    declare(here, "q")
    here.call("queue.bind", queue="q", exchange="amq.direct", routing_key="k")
    publish(here, "amq.direct", "k", b"first")
    wait_until(lambda: bound(other, "q"), WAIT_S)
    one.node.stop()
    raw: RawConnection = connect(other)
    there = raw.channel()
    there.call("confirm.select")
    publish(there, "amq.direct", "k", b"second")
    there.consume("q", no_ack=True)
    assert [message.body for message in there.deliveries(2)] == [b"first", b"second"]

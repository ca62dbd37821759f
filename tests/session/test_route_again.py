"""A message that a confirm answers is in the queues that are bound now: no route outlives its queues, in no cache and no channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from flintmq.session import publishing
from tests.support.rawamqp import RawChannel

QUEUES = ("q0", "q1", "q2")
KEYS = ("q0", "a", "a.b")


def channels(connection: Any, count: int) -> list[RawChannel]:
    """Channels in confirm mode."""
    opened = [connection.channel(number) for number in range(1, count + 1)]
    for channel in opened:
        channel.call("confirm.select")
    return opened


def publish(channel: RawChannel, **arguments: Any) -> str:
    """What becomes of one mandatory message: "kept" (confirmed), "returned" (and confirmed) or "refused"."""
    channel.publish(b"m", mandatory=True, **arguments)
    answer = channel.connection.recv(channel.number)
    if answer.name == "basic.return":
        assert answer.reply_code == 312
        channel.expect("basic.ack")
        return "returned"
    assert answer.name in ("basic.ack", "basic.nack"), answer.name
    return "kept" if answer.name == "basic.ack" else "refused"


def deaf(vhost: Any) -> None:
    """From now on no route is dropped: as when a message is between routing and placing while another thread changes the routing table."""
    vhost.on_default_route_changed = lambda queue_name: None
    vhost.on_routes_changed = lambda exchange: None


def test_a_queue_that_is_declared_again_gets_what_every_channel_publishes(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Each channel puts the route into the cache of the default exchange: one that was left behind took everything, for ever."""
    connection = connect(start())
    opened = channels(connection, 3)
    opened[0].queue("q0")
    assert [publish(channel, routing_key="q0") for channel in opened] == ["kept"] * 3
    opened[0].call("queue.delete", queue="q0")
    assert [publish(channel, routing_key="q0") for channel in opened] == ["returned"] * 3
    opened[0].queue("q0")
    assert [publish(channel, routing_key="q0") for channel in opened] == ["kept"] * 3
    assert opened[0].ready("q0") == 3


def test_an_auto_delete_queue_gets_messages_after_its_consumer_came_back(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    publishers = channels(connect(broker), 3)
    for _ in range(3):
        reader = connect(broker).channel()
        reader.queue("q0", auto_delete=True)
        reader.consume("q0", no_ack=True)
        assert [publish(channel, routing_key="q0") for channel in publishers] == ["kept"] * 3
        reader.deliveries(3)
        reader.connection.close()


def test_the_cache_holds_one_route_of_a_key(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start()
    opened = channels(connect(broker), 4)
    opened[0].queue("q0")
    for channel in opened:
        publish(channel, routing_key="q0")
    cache = broker.node.broker.routes.caches[("/", "")]
    assert cache.route_count == 1
    cache.forget(b"\x00\x02q0")
    assert cache.route_count == 0


def test_a_living_channel_publishes_to_an_exchange_that_is_declared_anew(
    start: Callable[..., Any], connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long way (permissions and all) is gone once for each life of the exchange, not once for each message."""
    (channel,) = channels(connect(start()), 1)
    channel.queue("q0")
    asked: list[bytes] = []
    find_route = publishing.find_route
    monkeypatch.setattr(publishing, "find_route", lambda handler, number, route: (asked.append(route), find_route(handler, number, route)))
    for _ in range(3):
        channel.call("exchange.declare", exchange="x", type="topic")
        channel.call("queue.bind", queue="q0", exchange="x", routing_key="#")
        asked.clear()
        assert {publish(channel, exchange="x", routing_key=f"k{number % 7}") for number in range(70)} == {"kept"}
        assert len(asked) == 1
        channel.call("exchange.delete", exchange="x")
    assert channel.ready("q0") == 210


@pytest.mark.parametrize("kind", ["default", "direct", "fanout", "topic", "alternate"])
def test_a_publish_that_finds_its_queue_gone_is_routed_anew(start: Callable[..., Any], connect: Callable[..., Any], kind: str) -> None:
    broker = start()
    opened = channels(connect(broker), 2)
    admin = opened[0]
    exchange, key = ("", "q0") if kind == "default" else ("x", "a.b")
    if kind == "alternate":
        admin.call("exchange.declare", exchange="other", type="fanout")
        admin.call("exchange.declare", exchange="x", type="direct", arguments={"alternate-exchange": "other"})
    elif kind != "default":
        admin.call("exchange.declare", exchange="x", type=kind)
    bound = {"alternate": "other", "default": ""}.get(kind, "x")

    def bind(name: str) -> None:
        if bound:
            admin.call("queue.bind", queue=name, exchange=bound, routing_key="a.#" if kind == "topic" else "a.b")

    for name in ("q0", "q1"):
        admin.queue(name)
        bind(name)
    assert [publish(channel, exchange=exchange, routing_key=key) for channel in opened] == ["kept"] * 2
    before = admin.ready("q1")
    deaf(broker.node.broker.vhosts["/"])
    admin.call("queue.delete", queue="q0")
    admin.queue("q0")
    bind("q0")
    assert [publish(channel, exchange=exchange, routing_key=key) for channel in opened] == ["kept"] * 2
    assert admin.ready("q0") == 2
    assert admin.ready("q1") == before + (0 if kind == "default" else 2)  # once each: what has the message does not get it again
    admin.call("queue.delete", queue="q0")
    admin.call("queue.delete", queue="q1")
    assert [publish(channel, exchange=exchange, routing_key=key) for channel in opened] == ["returned"] * 2


def test_a_message_for_several_keys_is_routed_anew_by_all_of_them(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """CC and BCC: the keys stay with the message until it is placed, here in a transaction."""
    broker = start()
    channel = connect(broker).channel()
    for name in QUEUES:
        channel.queue(name)
    channel.call("tx.select")
    channel.publish(b"m", routing_key="q0", headers={"CC": ["q1"], "BCC": ["q2"]})
    channel.publish(b"m", routing_key="q1", mandatory=True)
    deaf(broker.node.broker.vhosts["/"])
    for name in QUEUES:
        channel.call("queue.delete", queue=name)
    for name in ("q0", "q2"):
        channel.queue(name)
    channel.call("tx.commit")
    assert channel.expect("basic.return").routing_key == "q1"
    assert [channel.ready(name) for name in ("q0", "q2")] == [1, 1]


def test_a_message_that_no_bound_queue_takes_is_never_confirmed(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Whatever is wrong with the routing table: after some attempts the publisher hears of it."""
    broker = start()
    (channel,) = channels(connect(broker), 1)
    channel.queue("q0")
    broker.node.broker.vhosts["/"].queues["q0"].core.mark_deleted()  # and it stays bound
    assert publish(channel, routing_key="q0") == "refused"
    channel.queue("q1")
    assert publish(channel, routing_key="q1") == "kept"


class Routes(RuleBasedStateMachine):
    """Several channels publish while queues, exchanges and bindings come and go: each message is where the routing table leads it."""

    broker: Any
    connect: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.connection = self.connect(self.broker)
        self.admin = self.connection.channel(9)
        self.vhost = self.broker.node.broker.vhosts["/"]
        self.channels = channels(self.connection, 3)
        self.counts: dict[str, int] = {}

    def teardown(self) -> None:
        for name in QUEUES:
            self.admin.call("queue.delete", queue=name)
        for name in ("x0", "x1"):
            self.admin.call("exchange.delete", exchange=name)
        self.connection.close()

    @rule(name=st.sampled_from(QUEUES))
    def declare_queue(self, name: str) -> None:
        self.admin.queue(name)
        self.counts.setdefault(name, 0)

    @rule(name=st.sampled_from(QUEUES))
    def delete_queue(self, name: str) -> None:
        self.admin.call("queue.delete", queue=name)
        self.counts.pop(name, None)

    @rule(
        name=st.sampled_from(("x0", "x1")),
        kind=st.sampled_from(("direct", "fanout", "topic", "headers")),
        alternate=st.sampled_from((None, "", "x0", "x1")),
    )
    def declare_exchange_anew(self, name: str, kind: str, alternate: str | None) -> None:
        self.admin.call("exchange.delete", exchange=name)
        self.admin.call(
            "exchange.declare", exchange=name, type=kind, arguments={} if alternate is None else {"alternate-exchange": alternate}
        )

    @rule(source=st.sampled_from(("x0", "x1")), to=st.sampled_from((*QUEUES, "x0", "x1")), key=st.sampled_from((*KEYS, "a.#")))
    def bind(self, source: str, to: str, key: str) -> None:
        if source not in self.vhost.exchanges:
            return
        if to in self.counts:
            self.admin.call("queue.bind", queue=to, exchange=source, routing_key=key)
        elif to in self.vhost.exchanges:
            self.admin.call("exchange.bind", destination=to, source=source, routing_key=key)

    @rule(
        channel=st.integers(0, 2),
        exchange=st.sampled_from(("", "", "x0", "x1")),
        key=st.sampled_from(KEYS),
        forget=st.booleans(),
        times=st.integers(1, 3),
    )
    def publish(self, channel: int, exchange: str, key: str, forget: bool, times: int) -> None:
        if exchange not in self.vhost.exchanges:
            return
        if forget:
            self.broker.node.broker.routes.version = object()  # as when another loop changes something
        expected = [queue.name for queue in self.vhost.route(exchange, key.encode(), {})]
        for _ in range(times):
            assert publish(self.channels[channel], exchange=exchange, routing_key=key) == ("kept" if expected else "returned")
        for name in expected:
            self.counts[name] += times
        for name, count in self.counts.items():
            assert self.vhost.queues[name].core.ready_count() == count


def test_every_message_is_where_the_routing_table_leads_it(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    Routes.broker = start()
    Routes.connect = staticmethod(connect)  # type: ignore[assignment]
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Routes, settings=settings(max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    )


def test_keys_that_collide_make_the_cache_hash_otherwise(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A peer that found out what collides has found it out for nothing: the chain does not grow, and every route is as it was."""
    broker = start()
    channel = connect(broker).channel()
    channel.queue("q0")
    channel.call("queue.bind", queue="q0", exchange="amq.direct", routing_key="mine")
    channel.publish(b"m", exchange="amq.direct", routing_key="mine")
    assert channel.ready("q0") == 1
    cache = broker.node.broker.routes.caches["/", "amq.direct"]
    name = b"\x0aamq.direct"
    colliding: list[str] = []
    number = 0
    while len(colliding) < 40:
        text = f"{number:06}"
        if cache.hash_of(name + b"\x06" + text.encode()) & 127 == 0:
            colliding.append(text)
        number += 1
    before = cache.hash_of(name + b"\x04mine")
    for text in colliding:
        channel.publish(b"m", exchange="amq.direct", routing_key=text)
    channel.publish(b"m", exchange="amq.direct", routing_key="mine")
    assert channel.ready("q0") == 2
    assert cache.hash_of(name + b"\x04mine") != before
    assert cache.route_count < 40

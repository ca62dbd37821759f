"""Over the wire: exchanges of RabbitMQ's plugins give each message to one queue or remember it; routes that a change concerns change."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.core.memory_account import bytes_by_kind
from flintmq.ports import UserRecord
from flintmq.routing.seen import SEEN_VALUE_BYTES
from flintmq.testing.broker import Broker
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]
QUEUES = ("a", "b", "c")


@pytest.fixture
def broker(start: Callable[..., Any]) -> Any:
    return start()


@pytest.fixture
def ch(broker: Any, connect: Connect) -> RawChannel:
    return connect(broker).channel()


def exchange(ch: RawChannel, name: str, kind: str, key: str = "1", queues: tuple[str, ...] = QUEUES, **arguments: Any) -> None:
    ch.call("exchange.declare", exchange=name, type=kind, arguments=arguments.get("arguments", {}), durable=arguments.get("durable", False))
    for queue in queues:
        ch.queue(queue, durable=arguments.get("durable", False))
        ch.call("queue.bind", queue=queue, exchange=name, routing_key=key)


def drained(ch: RawChannel, queue: str) -> list[bytes]:
    found = []
    while (got := ch.call("basic.get", queue=queue, no_ack=True)).name == "basic.get-ok":
        found.append(got.body)
    return found


def sent(ch: RawChannel, name: str, keys: list[str], **properties: Any) -> dict[str, list[bytes]]:
    """Queue -> bodies, which are the keys; each message is on one queue."""
    for key in keys:
        ch.publish(key.encode(), exchange=name, routing_key=key, **properties)
    found = {queue: drained(ch, queue) for queue in QUEUES}
    assert sorted(body for bodies in found.values() for body in bodies) == sorted(key.encode() for key in keys)
    return found


KEYS = [f"order.{number}" for number in range(300)]


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-modulus-hash"])
def test_a_key_stays_on_its_queue_with_the_route_cached_or_not(ch: RawChannel, kind: str) -> None:
    exchange(ch, "x", kind)
    first = sent(ch, "x", KEYS)
    assert all(first.values()) and sent(ch, "x", KEYS) == first
    ch.call("queue.delete", queue="c")
    ch.queue("c")
    moved = sent(ch, "x", KEYS)
    assert not moved["c"]
    if kind == "x-consistent-hash":
        assert set(first["a"]) <= set(moved["a"]) and set(first["b"]) <= set(moved["b"])
    ch.call("queue.bind", queue="c", exchange="x", routing_key="1")
    assert sent(ch, "x", KEYS) == first


def test_weights_are_shares(ch: RawChannel) -> None:
    exchange(ch, "x", "x-consistent-hash", queues=("a",))
    exchange(ch, "x", "x-consistent-hash", key="9", queues=("b", "c"))
    counts = {queue: len(bodies) for queue, bodies in sent(ch, "x", [str(number) for number in range(1900)]).items()}
    assert counts["a"] < 160 and min(counts["b"], counts["c"]) > 750


def test_the_header_and_the_property_decide_and_not_the_key(ch: RawChannel) -> None:
    exchange(ch, "by-header", "x-consistent-hash", arguments={"hash-header": "tenant"})
    exchange(ch, "by-property", "x-consistent-hash", arguments={"hash-property": "correlation_id"})
    used = set()
    for number in range(20):
        for name, properties in (("by-header", {"headers": {"tenant": f"t{number}"}}), ("by-property", {"correlation_id": f"t{number}"})):
            found = [queue for queue, bodies in sent(ch, name, ["k1", "k2", "k3"], **properties).items() if bodies]
            assert len(found) == 1
            used.add((name, *found))
    assert len(used) == 6


def test_random_exchanges_use_all_queues_and_copies_follow_the_first(ch: RawChannel) -> None:
    exchange(ch, "random", "x-random", key="k")
    exchange(ch, "local", "x-local-random", key="")
    for name in ("random", "local"):
        for _ in range(200):
            ch.publish(b"x", exchange=name, routing_key="k", headers={"CC": ["k", "k"]})
        counts = [len(drained(ch, queue)) for queue in QUEUES]
        assert sum(counts) == 200 and min(counts) > 20, counts
    for queue in QUEUES:
        ch.call("queue.delete", queue=queue)
    ch.publish(b"x", exchange="random", routing_key="k", mandatory=True)
    assert ch.expect("basic.return").reply_code == 312


def test_an_exchange_behind_one_with_cached_routes_takes_its_cache_away(ch: RawChannel) -> None:
    """A route that was cached is not, once it can lead to an exchange that chooses by the message; and is again when that goes."""
    ch.call("exchange.declare", exchange="front", type="fanout")
    ch.queue("direct")
    ch.call("queue.bind", queue="direct", exchange="front", routing_key="")
    for _ in range(3):
        ch.publish(b"x", exchange="front", routing_key="k")
    assert len(drained(ch, "direct")) == 3
    exchange(ch, "random", "x-random", key="k")
    ch.call("exchange.bind", destination="random", source="front", routing_key="")
    for _ in range(100):
        ch.publish(b"x", exchange="front", routing_key="k")
    counts = [len(drained(ch, queue)) for queue in QUEUES]
    assert sum(counts) == 100 == len(drained(ch, "direct")) and min(counts) > 5, counts
    ch.call("exchange.delete", exchange="random")
    ch.publish(b"x", exchange="front", routing_key="k")
    assert [len(drained(ch, queue)) for queue in (*QUEUES, "direct")] == [0, 0, 0, 1]


def test_history_comes_before_the_bind_is_answered(ch: RawChannel, broker: Any) -> None:
    ch.call("exchange.declare", exchange="h", type="x-recent-history", arguments={"x-recent-history-length": 100})
    for number in range(150):
        ch.publish(b"%d" % number, exchange="h", routing_key="k", headers={"n": number}, message_id=str(number), delivery_mode=2)
    for queue in ("late", "later"):
        ch.queue(queue)
        ch.call("queue.bind", queue=queue, exchange="h", routing_key="")
        got = ch.call("basic.get", queue=queue, no_ack=True)
        assert (got.body, got.properties["message_id"], got.properties["headers"]["n"]) == (b"50", "50", 50)
        assert drained(ch, queue) == [b"%d" % number for number in range(51, 150)]
    ch.call("queue.bind", queue="late", exchange="h", routing_key="")  # it is bound already
    assert drained(ch, "late") == []
    vhost = broker.node.broker.vhosts["/"]
    held = vhost.kept.held
    assert held > 100 * 10
    ch.call("exchange.delete", exchange="h")
    assert vhost.kept.held == 0


def test_history_keeps_to_the_limits_of_the_queue(ch: RawChannel) -> None:
    ch.call("exchange.declare", exchange="h", type="x-recent-history")
    for number in range(10):
        ch.publish(b"%d" % number, exchange="h", routing_key="k")
    ch.queue("head", arguments={"x-max-length": 2})
    ch.queue("reject", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    ch.queue("ttl", arguments={"x-message-ttl": 1})
    for queue in ("head", "reject", "ttl"):
        ch.call("queue.bind", queue=queue, exchange="h", routing_key="")
    assert drained(ch, "head") == [b"8", b"9"] and drained(ch, "reject") == [b"0", b"1"]
    ch.wait_ready("ttl", 0)


def test_dead_letters_are_remembered_and_spread(ch: RawChannel) -> None:
    ch.call("exchange.declare", exchange="dead", type="x-recent-history")
    exchange(ch, "spread", "x-consistent-hash")
    ch.call("exchange.bind", destination="spread", source="dead", routing_key="")
    ch.queue("q", arguments={"x-dead-letter-exchange": "dead"})
    ch.publish(b"poison", routing_key="q")
    got = ch.call("basic.get", queue="q", no_ack=False)
    ch.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    ch.queue("new")
    ch.call("queue.bind", queue="new", exchange="dead", routing_key="")
    assert drained(ch, "new") == [b"poison"]
    assert collections.Counter(body for queue in QUEUES for body in drained(ch, queue)) == {b"poison": 1}


def test_after_a_restart_keys_are_where_they_were_and_the_history_is_empty(tmp_path: Path, connect: Connect) -> None:
    with Broker(data_dir=tmp_path) as first:
        ch = connect(first).channel()
        exchange(ch, "x", "x-consistent-hash", durable=True)
        before = sent(ch, "x", KEYS)
        ch.call("exchange.declare", exchange="h", type="x-recent-history", durable=True)
        ch.publish(b"old", exchange="h")
    with Broker(data_dir=tmp_path) as second:
        ch = connect(second).channel()
        assert sent(ch, "x", KEYS) == before
        ch.queue("new")
        ch.call("queue.bind", queue="new", exchange="h", routing_key="")
        assert drained(ch, "new") == []


# --- deduplication --------------------------------------------------------------------------------------------------------


def test_a_value_is_routed_once_and_again_when_it_was_refused(ch: RawChannel) -> None:
    ch.call("exchange.declare", exchange="d", type="x-message-deduplication", arguments={"x-cache-size": 100})
    ch.call("confirm.select")

    def send(value: str, answer: str) -> None:
        ch.publish(value.encode(), exchange="d", routing_key="k", headers={"x-deduplication-header": value})
        assert ch.expect(answer)

    send("early", "basic.ack")  # no queue has it
    ch.queue("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    ch.call("queue.bind", queue="q", exchange="d", routing_key="")
    for value, answer in (("early", "ack"), ("a", "ack"), ("a", "ack"), ("early", "ack"), ("b", "nack")):
        send(value, f"basic.{answer}")
    assert drained(ch, "q") == [b"early", b"a"]
    for value in ("b", "b", "a"):
        send(value, "basic.ack")
    assert drained(ch, "q") == [b"b"]


@pytest.mark.parametrize("cc", [False, True], ids=["compiled", "python"])
def test_a_value_that_was_seen_takes_another_way(ch: RawChannel, broker: Any, cc: bool) -> None:
    """Behind another exchange, with an alternate, and with a history that has only what passed. With CC the same is Python's."""
    for name, kind, arguments in (
        ("other", "fanout", {}),
        ("h", "x-recent-history", {"x-recent-history-length": 100}),
        ("d", "x-message-deduplication", {"x-cache-size": 100, "alternate-exchange": "other"}),
        ("front", "direct", {}),
    ):
        ch.call("exchange.declare", exchange=name, type=kind, arguments=arguments)
    for queue, source in (("a", "front"), ("b", "d"), ("c", "other"), ("e", "h")):
        ch.queue(queue)
        ch.call("queue.bind", queue=queue, exchange=source, routing_key="k")
    ch.call("exchange.bind", destination="d", source="front", routing_key="k")
    ch.call("exchange.bind", destination="h", source="d", routing_key="")
    for number in range(20):
        headers = {"x-deduplication-header": number // 2, **({"CC": ["nowhere"]} if cc else {})}
        ch.publish(b"%d" % number, exchange="front", routing_key="k", headers=headers)
    every = [b"%d" % number for number in range(20)]
    assert (drained(ch, "a"), drained(ch, "b"), drained(ch, "e"), drained(ch, "c")) == (every, every[::2], every[::2], every[1::2])
    exchanges = broker.node.broker.vhosts["/"].exchanges
    assert [body for _, _, _, body in exchanges["h"].kept()] == every[::2]
    assert (exchanges["d"].values, exchanges["d"].dropped) == (10, 10)


def test_two_exchanges_that_deduplicate_on_one_way(ch: RawChannel) -> None:
    for name in ("d1", "d2"):
        ch.call("exchange.declare", exchange=name, type="x-message-deduplication", arguments={"x-cache-size": 100})
        ch.queue(name)
        ch.call("queue.bind", queue=name, exchange=name, routing_key="")
    ch.call("exchange.bind", destination="d2", source="d1", routing_key="")
    for exchange_name, value in (("d2", "a"), ("d1", "a"), ("d1", "b"), ("d1", "b"), ("d2", "b")):
        ch.publish(value.encode(), exchange=exchange_name, headers={"x-deduplication-header": value})
    assert (drained(ch, "d1"), drained(ch, "d2")) == ([b"a", b"b"], [b"a", b"b"])


def test_what_is_remembered_is_in_the_account_of_memory(ch: RawChannel, broker: Any) -> None:
    vhost = broker.node.broker.vhosts["/"]
    for name, kind in (("h", "x-recent-history"), ("d", "x-message-deduplication")):
        ch.call("exchange.declare", exchange=name, type=kind, arguments={"x-cache-size": 1000})
    before = bytes_by_kind()["definitions"]
    for number in range(300):
        ch.publish(b"%d" % number, exchange="d", headers={"x-deduplication-header": number})
        ch.publish(b"x" * 1000, exchange="h")
    ch.queue("q")
    ch.call("queue.bind", queue="q", exchange="d", routing_key="")
    for number in range(300):
        ch.publish(b"%d" % number, exchange="d", headers={"x-deduplication-header": number})
    ch.wait_ready("q", 300)
    assert bytes_by_kind()["definitions"] - before >= 300 * SEEN_VALUE_BYTES + 20 * 1000
    assert vhost.kept.held >= 300 * SEEN_VALUE_BYTES + 20 * 1000 and vhost.kept.of_user("guest") == vhost.kept.held
    ch.call("exchange.delete", exchange="h")
    ch.call("exchange.delete", exchange="d")
    assert vhost.kept.held == 0 and bytes_by_kind()["definitions"] <= before + 2_000


def test_the_share_of_a_user_holds_from_the_second_user_on(start: Callable[..., Any], connect: Connect) -> None:
    broker = start(limits={"kept_bytes_max": 20 * SEEN_VALUE_BYTES})
    ch = connect(broker).channel()
    ch.queue("q")
    values = broker.node.broker.vhosts["/"].kept

    def remembered(first: int) -> int:
        ch.call("exchange.declare", exchange="d", type="x-message-deduplication", arguments={"x-cache-size": 100})
        ch.call("queue.bind", queue="q", exchange="d", routing_key="")
        for number in range(first, first + 40):
            ch.publish(b"x", exchange="d", headers={"x-deduplication-header": number})
        ch.wait_ready("q", 40)
        ch.call("queue.purge", queue="q")
        size = int(values.held)
        ch.call("exchange.delete", exchange="d")
        return size // SEEN_VALUE_BYTES

    assert remembered(0) == 20
    broker.node.users.put(UserRecord("bob"))
    assert remembered(100) == 10 and values.of_user("guest") == values.held == 0
    broker.node.users.delete("bob")
    assert remembered(200) == 20


def test_large_messages_are_remembered(ch: RawChannel) -> None:
    ch.call("exchange.declare", exchange="h", type="x-recent-history", arguments={"x-recent-history-length": 3})
    bodies = [bytes([number]) * (60_000 + 3_000 * number) for number in range(6)]
    for body in bodies:
        ch.publish(body, exchange="h")
    ch.queue("late")
    ch.call("queue.bind", queue="late", exchange="h", routing_key="")
    assert drained(ch, "late") == bodies[3:]


@pytest.mark.parametrize("size", [32_768, 100_000], ids=["copied", "referenced"])
def test_exchanges_on_one_way_remember_one_copy(ch: RawChannel, broker: Any, size: int) -> None:
    """A client who binds very many of them makes a message no longer for others; which of them goes first changes nothing."""
    names = [f"h{number}" for number in range(40)]
    ch.call("exchange.declare", exchange="front", type="fanout")
    for name in names:
        ch.call("exchange.declare", exchange=name, type="x-recent-history", arguments={"x-recent-history-length": 3})
        ch.call("exchange.bind", destination=name, source="front", routing_key="")
    bodies = [bytes([number]) * size for number in range(4)]
    ch.publish(bodies[0], exchange="front")
    ch.queue("before")
    exchanges = broker.node.broker.vhosts["/"].exchanges
    before = bytes_by_kind()["definitions"]
    for body in bodies[1:]:
        ch.publish(body, exchange="front")
    ch.queue("after")
    assert bytes_by_kind()["definitions"] - before < 3 * 40 * 200 + 4 * 40_000
    for name in names:
        assert [body for _, _, _, body in exchanges[name].kept()] == bodies[1:]
    for name in (*names[:20], *names[:20:-1]):
        ch.call("exchange.delete", exchange=name)
    ch.call("queue.bind", queue="after", exchange=names[20], routing_key="")
    assert drained(ch, "after") == bodies[1:]
    ch.call("exchange.delete", exchange=names[20])
    assert broker.node.broker.vhosts["/"].kept.held == 0 and bytes_by_kind()["definitions"] < before


def test_what_is_rolled_back_leaves_no_trace(ch: RawChannel) -> None:
    ch.call("exchange.declare", exchange="d", type="x-message-deduplication", arguments={"x-cache-size": 100})
    ch.queue("q")
    ch.call("queue.bind", queue="q", exchange="d", routing_key="")
    ch.call("tx.select")
    for verb in ("tx.rollback", "tx.commit"):
        ch.publish(b"x", exchange="d", headers={"x-deduplication-header": "a"})
        ch.call(verb)
    assert drained(ch, "q") == [b"x"]


def test_after_a_restart_a_value_is_new(tmp_path: Path, connect: Connect) -> None:
    for expected in (1, 2):
        with Broker(data_dir=tmp_path) as broker:
            ch = connect(broker).channel()
            ch.call("exchange.declare", exchange="d", type="x-message-deduplication", arguments={"x-cache-size": 9}, durable=True)
            ch.queue("q", durable=True)
            ch.call("queue.bind", queue="q", exchange="d", routing_key="")
            for _ in range(3):
                ch.publish(b"x", exchange="d", headers={"x-deduplication-header": "a"}, delivery_mode=2)
            ch.wait_ready("q", expected)

"""Message groups and sorted queues over the wire: raw channels, and pika where a client's threads matter."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.session.handlers import ConnectionHandler
from flintmq.testing.broker import Broker
from tests.support.broker import Broker as Process
from tests.support.inprocess import connect, heap_of_others, start
from tests.support.rawamqp import RawChannel

__all__ = ["connect", "heap_of_others", "start"]

SHARED = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}
STICKY = {"qpid.group_header_key": "g"}
SORTED = {"qpid.queue_sort_key": "g"}


def put(channel: RawChannel, *values: Any, **properties: Any) -> None:
    """Bodies "a1", "b2": the letter is the group; an int or None stands for itself."""
    for value in values:
        group = value[0] if isinstance(value, str) else value
        headers = {} if group is None else {"g": group}
        channel.publish(str(value).encode(), routing_key="q", headers=headers, **properties)


def bodies(channel: RawChannel, count: int) -> list[str]:
    return [message.body.decode() for message in channel.deliveries(count)]


def drain(channel: RawChannel) -> list[str]:
    got = []
    while (message := channel.call("basic.get", queue="q", no_ack=True)).name != "basic.get-empty":
        got.append(message.body.decode())
    return got


def consumer(connection: Any, number: int, prefetch: int = 10, **arguments: Any) -> RawChannel:
    channel: RawChannel = connection.channel(number)
    channel.call("basic.qos", prefetch_count=prefetch)
    channel.consume("q", f"c{number}", **arguments)
    return channel


def test_a_group_is_one_consumers_while_it_has_unacked_messages(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start())
    ch = connection.channel()
    ch.queue("q", arguments=SHARED)
    put(ch, "a1", "a2", "b1", "a3", "b2")
    one = consumer(connection, 2, prefetch=2)
    got = one.deliveries(2)
    assert [message.body for message in got] == [b"a1", b"a2"]
    two = consumer(connection, 3)
    assert bodies(two, 2) == ["b1", "b2"]
    one.send("basic.ack", delivery_tag=got[0].delivery_tag)
    got.append(one.deliveries(1)[0])
    assert got[-1].body == b"a3"
    put(ch, "a4")
    two.nothing()
    # All of the group are settled: it is free, and goes to whoever can take it.
    one.send("basic.cancel", consumer_tag="c2", no_wait=True)
    one.send("basic.ack", delivery_tag=got[1].delivery_tag)
    two.nothing()
    one.send("basic.ack", delivery_tag=got[2].delivery_tag)
    assert bodies(two, 1) == ["a4"]


@pytest.mark.parametrize("arguments", [SHARED, STICKY])
def test_a_lost_consumers_messages_come_first_and_in_order(
    start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    broker = start()
    ch = connect(broker).channel()
    ch.queue("q", arguments=arguments)
    lost = connect(broker)
    one = consumer(lost, 1, prefetch=3)
    put(ch, "a1", "a2", "a3")
    assert bodies(one, 3) == ["a1", "a2", "a3"]
    two = consumer(ch.connection, 2)
    put(ch, "a4", "b1", "a5")
    assert bodies(two, 1) == ["b1"]
    lost.drop()
    got = two.deliveries(5)
    assert [message.body for message in got] == [b"a1", b"a2", b"a3", b"a4", b"a5"]
    assert [message.redelivered for message in got] == [True, True, True, False, False]


def test_a_sticky_group_stays_until_its_consumer_leaves(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start())
    ch = connection.channel()
    ch.queue("q", arguments=STICKY)
    one = consumer(connection, 2)
    put(ch, "a1")
    got = one.deliveries(1)[0]
    one.send("basic.ack", delivery_tag=got.delivery_tag)
    two = consumer(connection, 3)
    put(ch, *(f"a{i}" for i in range(2, 6)))
    assert bodies(one, 4) == ["a2", "a3", "a4", "a5"]
    one.call("basic.cancel", consumer_tag="c2")
    put(ch, "a6")
    two.nothing()  # what the other one holds of the group is not settled
    one.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    assert bodies(two, 5) == ["a2", "a3", "a4", "a5", "a6"]


@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_a_consumer_of_thousands_of_groups_leaves(start: Callable[..., Any], connect: Callable[..., Any], how: str) -> None:
    """They go back in slices of its loop: whoever comes gets all of them, those whose messages it held with these first."""
    broker = start()
    connection = connect(broker)
    ch = connect(broker).channel()
    ch.queue("q", arguments=STICKY)
    one = consumer(connection, 2, prefetch=0)
    put(ch, *range(2_000))
    got = one.deliveries(2_000)
    one.send("basic.ack", delivery_tag=got[999].delivery_tag, multiple=True)
    put(ch, *range(2_000))
    one.deliveries(2_000)
    two = consumer(connect(broker), 3, prefetch=0)
    two.nothing()
    if how == "cancel":
        one.call("basic.cancel", consumer_tag="c2")
        one.send("basic.recover", requeue=True)
    elif how == "channel":
        one.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    else:
        connection.drop()
    came = collections.Counter(bodies(two, 3_000))
    assert came == collections.Counter([*map(str, range(1_000, 2_000)), *map(str, range(2_000))])
    put(ch, *range(2_000))
    assert sorted(map(int, bodies(two, 2_000))) == list(range(2_000))


def test_basic_get_of_a_sorted_queue_after_a_long_transaction(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of a transaction are read when somebody wants one: in several looks, with others of the loop between them."""
    looks = []
    head_came = ConnectionHandler.head_came
    monkeypatch.setattr(ConnectionHandler, "head_came", lambda self: (looks.append(1), head_came(self)))
    broker = start(data_dir=str(tmp_path))
    ch: RawChannel = connect(broker).channel()
    ch.queue("q", durable=True, arguments=SORTED)
    ch.call("tx.select")
    put(ch, *range(3_000, 0, -1), delivery_mode=2)
    ch.call("tx.commit")
    getter = connect(broker).channel()
    assert getter.call("basic.get", queue="q", no_ack=True).body == b"1"
    assert len(looks) >= 3_000 // 512
    assert [getter.call("basic.get", queue="q", no_ack=True).body for _ in range(3)] == [b"2", b"3", b"4"]


def test_what_has_no_group_is_for_anybody_when_groups_are_sticky(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start())
    ch = connection.channel()
    ch.queue("q", arguments=STICKY)
    put(ch, None, "a1", None, "a2")
    one = consumer(connection, 2, prefetch=2)
    assert bodies(one, 2) == ["None", "a1"]
    two = consumer(connection, 3)
    assert bodies(two, 1) == ["None"]
    two.nothing()


def test_what_has_no_group_is_one_group_when_groups_are_shared(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Qpid's default group."""
    connection = connect(start())
    ch = connection.channel()
    ch.queue("q", arguments=SHARED)
    one = consumer(connection, 2, prefetch=1)
    two = consumer(connection, 3, prefetch=5)
    put(ch, None)
    first = one if (got := one.connection.recv_any()).name == "basic.deliver" and got.consumer_tag == "c2" else two
    put(ch, None, "a1")
    if first is one:
        assert bodies(two, 1) == ["a1"]
        two.nothing()
    else:
        assert bodies(two, 1) == ["None"]


def test_basic_get_takes_a_free_group_and_holds_it(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    ch: RawChannel = connect(start()).channel()
    ch.queue("q", arguments=SHARED)
    put(ch, "a1", "a2", "b1")
    first = ch.call("basic.get", queue="q")
    second = ch.call("basic.get", queue="q")
    assert (first.body, second.body) == (b"a1", b"b1")
    assert ch.call("basic.get", queue="q").name == "basic.get-empty"
    ch.send("basic.nack", delivery_tag=first.delivery_tag, requeue=True)
    assert drain(ch) == ["a1", "a2"]
    ch.send("basic.ack", delivery_tag=second.delivery_tag)


@pytest.mark.parametrize("arguments", [SHARED, STICKY])
def test_with_ttl_dead_letters_limits_and_purge(start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, Any]) -> None:
    connection = connect(start())
    ch = connection.channel()
    ch.queue("dead")
    ch.queue(
        "q",
        arguments={
            **arguments,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            "x-max-length": 6,
            "x-delivery-limit": 1,
            "x-max-priority": 3,
        },
    )
    put(ch, "a1", expiration="1")
    ch.wait_ready("dead", 1)
    put(ch, "a2", "a3", "b1")
    put(ch, "a4", priority=3)
    one = consumer(connection, 2, prefetch=1)
    got = one.deliveries(1)[0]
    assert got.body == b"a4"  # the higher priority is in front of its group, too
    one.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    ch.wait_ready("dead", 2)
    got = one.deliveries(1)[0]
    assert got.body == b"a2"
    one.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)
    got = one.deliveries(1)[0]
    assert (got.body, got.redelivered) == (b"a2", True)
    one.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)  # above x-delivery-limit
    ch.wait_ready("dead", 3)
    got = one.deliveries(1)[0]
    assert got.body == b"a3"
    put(ch, *(f"c{i}" for i in range(10)))
    ch.wait_ready("dead", 8)  # b1 and c0 to c3, for x-max-length
    assert ch.call("queue.purge", queue="q").message_count == 6
    put(ch, "a5", "d1")
    one.send("basic.ack", delivery_tag=got.delivery_tag)
    got = one.deliveries(1)[0]
    assert got.body == b"a5"


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head"])
def test_a_length_limit_does_not_wait_for_consumers_that_have_other_groups(
    start: Callable[..., Any], connect: Callable[..., Any], overflow: str
) -> None:
    connection = connect(start(limits={"over_limit_ms": 60_000}))
    ch = connection.channel()
    ch.queue("q", arguments={**SHARED, "x-max-length": 2, "x-overflow": overflow})
    one = consumer(connection, 2, prefetch=1)
    put(ch, "a0")
    assert bodies(one, 1) == ["a0"]
    two = consumer(connection, 3, prefetch=0)
    put(ch, *(f"a{i}" for i in range(1, 11)))
    assert ch.ready("q") == 2
    one.call("basic.cancel", consumer_tag="c2")
    one.send("basic.ack", delivery_tag=1)
    assert bodies(two, 2) == (["a1", "a2"] if overflow == "reject-publish" else ["a9", "a10"])


def test_a_message_that_waits_for_its_next_delivery_holds_its_group(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start())
    ch = connection.channel()
    ch.queue("q", arguments={**SHARED, "x-delayed-retry-min": 1_000, "x-delayed-retry-type": "all"})
    one = consumer(connection, 2, prefetch=1)
    put(ch, "a1", "a2", "b1")
    got = one.deliveries(1)[0]
    one.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)
    order = []
    for _ in range(3):
        got = one.deliveries(1)[0]
        order.append(got.body.decode())
        one.send("basic.ack", delivery_tag=got.delivery_tag)
    assert order == ["b1", "a1", "a2"]


def test_transactions_confirms_and_cold_content(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    broker = start(data_dir=str(tmp_path), limits={"queue_hot_bytes": 1})
    ch = connect(broker).channel()
    ch.queue("q", durable=True, arguments=SHARED)
    connection = connect(broker)
    one, two = consumer(connection, 2, prefetch=1), consumer(connection, 3, prefetch=1)
    ch.call("tx.select")
    put(ch, "a1", "b1", "a2", delivery_mode=2)
    ch.call("tx.commit")
    put(ch, "a3", "c1", delivery_mode=2)
    ch.call("tx.rollback")
    put(ch, "b2", "a4", delivery_mode=2)
    ch.call("tx.commit")
    seen: dict[int, list[str]] = {2: [], 3: []}
    for _ in range(5):
        got = connection.recv_any()
        number = int(got.consumer_tag[1:])
        seen[number].append(got.body.decode())
        (one if number == 2 else two).send("basic.ack", delivery_tag=got.delivery_tag)
    assert sorted(seen[2] + seen[3]) == ["a1", "a2", "a4", "b1", "b2"]


@pytest.mark.parametrize("single", [True, False])
def test_a_restart_keeps_groups_together_and_in_order(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path, single: bool
) -> None:
    arguments = {**SHARED, "x-single-active-consumer": single}
    with Broker(data_dir=str(tmp_path)) as broker:
        ch = connect(broker).channel()
        ch.queue("q", durable=True, arguments=arguments)
        ch.call("confirm.select")
        put(ch, *(f"{'abcd'[i % 4]}{i}" for i in range(40)), delivery_mode=2)
        held = ch.call("basic.get", queue="q")
        assert held.body == b"a0"
        ch.wait_ready("q", 39)
    connection = connect(start(data_dir=str(tmp_path)))
    ch = connection.channel()
    ch.queue("q", durable=True, arguments=arguments)
    put(ch, "a99", delivery_mode=2)
    one = consumer(connection, 2, prefetch=1)
    first = one.deliveries(1)[0]
    assert (first.body, first.redelivered) == (b"a0", True)
    two = consumer(connection, 3, prefetch=50)
    if not single:
        assert bodies(two, 30) == [f"{'abcd'[i % 4]}{i}" for i in range(40) if i % 4]
    two.nothing()
    one.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    got = bodies(two, 41 if single else 11)
    assert [int(body[1:]) for body in got] == ([*range(40), 99] if single else [*range(0, 40, 4), 99])


class Workers:
    """Consumers of pika that keep up to three messages before they settle the oldest one."""

    def __init__(self, port: int, total: int) -> None:
        self.port, self.total = port, total
        self.lock = threading.Lock()
        self.holds: dict[str, list[int]] = collections.defaultdict(list)  # group -> the worker, once for each message that it has
        self.seen: dict[str, list[int]] = collections.defaultdict(list)
        self.faults: list[str] = []

    def run(self, number: int) -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=5)
            kept: list[tuple[int, str]] = []
            for method, properties, body in channel.consume("q", inactivity_timeout=0.05):
                if method is not None:
                    group = properties.headers["g"]
                    with self.lock:
                        if any(other != number for other in self.holds[group]):
                            self.faults.append(f"{group} is with two consumers")
                        self.holds[group].append(number)
                        self.seen[group].append(int(body))
                    kept.append((method.delivery_tag, group))
                while len(kept) > (3 if method is not None else 0):
                    tag, group = kept.pop(0)
                    with self.lock:  # before the ack: from then on it may be another one's
                        self.holds[group].remove(number)
                    channel.basic_ack(tag)
                with self.lock:
                    if not kept and sum(map(len, self.seen.values())) >= self.total:
                        break
            channel.cancel()


@pytest.mark.parametrize("arguments", [SHARED, STICKY])
def test_workers_of_pika_see_each_group_in_order(start: Callable[..., Any], arguments: dict[str, Any]) -> None:
    broker = start(io_threads=3)
    workers = Workers(broker.port, 600)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", arguments=arguments)
        threads = [threading.Thread(target=workers.run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for i in range(600):
            channel.basic_publish("", "q", b"%d" % i, pika.BasicProperties(headers={"g": f"g{i % 13}"}))
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not workers.faults
    assert all(values == sorted(values) for values in workers.seen.values())
    assert sum(map(len, workers.seen.values())) == 600


def test_after_a_kill_groups_are_in_order(connect: Callable[..., Any], tmp_path: Path) -> None:
    with Process("--data-dir", str(tmp_path)) as process:
        ch = connect(process).channel()
        ch.queue("q", durable=True, arguments=SHARED)
        ch.call("confirm.select")
        for i in range(400):
            ch.publish(b"%d" % i, routing_key="q", headers={"g": i % 7}, delivery_mode=2)
        confirmed = 0
        while confirmed < 300:
            confirmed = max(confirmed, ch.connection.recv(ch.number).delivery_tag)
        process.kill()
    with Process("--data-dir", str(tmp_path)) as process:
        found = [int(body) for body in drain(connect(process).channel())]
    assert found == sorted(found) and len(found) >= confirmed


def test_browsers_see_all_and_selectors_are_theirs_alone(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start())
    ch = connection.channel()
    ch.queue("q", arguments=SHARED)
    put(ch, "a1", "b1", "a2")
    assert ch.call("basic.get", queue="q").body == b"a1"
    ch.consume("q", "b", no_ack=True, arguments={"x-browse": True, "x-filter-jms-selector": "g = 'a'"})
    assert bodies(ch, 1) == ["a2"]
    ch.refuse(406, "selectors for browsers only", "basic.consume", queue="q", arguments={"x-filter-jms-selector": "g = 'a'"})


def test_a_sorted_queue_is_in_the_order_of_its_header(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    values = ["m", 10, None, "a", -2.5, "m", 9, True]
    order = ["None", "-2.5", "True", "9", "10", "a", "m", "m"]
    with Broker(data_dir=str(tmp_path)) as broker:
        ch = connect(broker).channel()
        ch.queue("q", durable=True, arguments=SORTED)
        ch.call("confirm.select")
        put(ch, *values, delivery_mode=2)
        ch.wait_ready("q", len(values))
        got = [ch.call("basic.get", queue="q") for _ in range(3)]
        assert [message.body.decode() for message in got] == order[:3]
        ch.send("basic.nack", delivery_tag=got[1].delivery_tag, requeue=True)
        assert ch.call("basic.get", queue="q").body.decode() == order[1]
    connection = connect(start(data_dir=str(tmp_path)))
    one = consumer(connection, 1, prefetch=0)
    assert bodies(one, len(order)) == order
    put(one, "z", "b", 3)
    assert sorted(bodies(one, 3)) == ["3", "b", "z"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"qpid.group_header_key": ""}, "value_empty"),
        ({"qpid.group_header_key": 1}, "unacceptable_type"),
        ({"qpid.shared_msg_group": 1}, "only with qpid.group_header_key"),
        ({**SHARED, "qpid.shared_msg_group": 2}, "invalid_value"),
        ({**SHARED, "x-last-value-key": "k"}, "not together with x-last-value-key"),
        ({**SHARED, **SORTED}, "not together with qpid.queue_sort_key"),
        ({**SORTED, "x-max-priority": 3}, "not together with x-max-priority"),
        ({**SORTED, "x-queue-type": "stream"}, "qpid.queue_sort_key"),
    ],
)
def test_refused(start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, Any], text: str) -> None:
    durable = arguments.get("x-queue-type") == "stream"
    connect(start()).channel().refuse(406, text, "queue.declare", queue="q", durable=durable, arguments=arguments)


def test_groups_of_a_deleted_queue_go(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    ch: RawChannel = connect(start()).channel()
    for _ in range(3):
        ch.queue("q", arguments=SHARED)
        put(ch, "a1", "b1", "a2")
        held = ch.call("basic.get", queue="q")
        ch.call("queue.delete", queue="q")
        ch.send("basic.ack", delivery_tag=held.delivery_tag)
    assert ch.call("queue.declare", queue="q", arguments=SHARED).message_count == 0

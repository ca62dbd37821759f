"""Last value queues: the newest available entry of each value stays, whoever holds the older ones, and after a restart."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from flintmq.core.memory_account import bytes_by_kind
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.queue.control import QueueHandle
from flintmq.queue.last_value import last_value_count, new_last_value
from flintmq.testing.broker import Broker
from tests.support.broker import Broker as Process
from tests.support.broker import wait_until
from tests.support.effort import tries
from tests.support.inprocess import connect, heap_of_others, start
from tests.support.rawamqp import RawChannel

__all__ = ["connect", "heap_of_others", "start"]

OWNER = 1 << 20
VALUES = ["a", "b", 1, 1.0, True, None]


class LastValueMachine(RuleBasedStateMachine):
    """A dict of positions is the model: value -> the newest; entries below it end when they are available."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = new_last_value(1, b"k", None, False, 1_000_000)
        self.entries: dict[int, Any] = {}
        self.held: list[int] = []
        self.last: dict[Any, int] = {}

    def key(self, value: Any) -> Any:
        return (type(value) is bool, value)

    @rule(value=st.sampled_from(VALUES))
    def publish(self, value: Any) -> None:
        header = encode_properties(1, {"headers": {} if value is None else {"k": value}})
        position = self.queue.publish(b"", b"q", header, b"x", 0, 0)
        self.entries[position] = value
        if value is not None:
            older = self.last.get(self.key(value))
            self.last[self.key(value)] = position
            if older in self.entries and older not in self.held:
                del self.entries[older]

    @precondition(lambda self: set(self.entries) - set(self.held))
    @rule(number=st.integers(0, 5))
    def hold(self, number: int) -> None:
        free = sorted(set(self.entries) - set(self.held))
        position = free[number % len(free)]
        assert self.queue.take_at(position, OWNER)
        self.held.append(position)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 5), back=st.booleans())
    def settle(self, number: int, back: bool) -> None:
        position = self.held.pop(number % len(self.held))
        value = self.entries[position]
        if not back:
            del self.entries[position]
            assert self.queue.release_held(position, True, OWNER)
            if value is not None and self.last[self.key(value)] != position:
                assert self.queue.next_available(position) != position
            else:
                assert self.queue.hold(position) and self.queue.settle_held(position)
            return
        assert self.queue.release_held(position, True, OWNER)
        if value is not None and self.last[self.key(value)] != position:
            del self.entries[position]

    def check(self) -> None:
        free = sorted(set(self.entries) - set(self.held))
        found, position = [], self.queue.next_available()
        while position:
            found.append(position)
            position = self.queue.next_available(position + 1)
        assert found == free
        assert self.queue.unacked_count() == len(self.held)

    def teardown(self) -> None:
        self.check()


TestLastValues = LastValueMachine.TestCase
TestLastValues.settings = settings(
    max_examples=tries(100, 1_000), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_values_whose_entries_are_gone_are_forgotten() -> None:
    queue = new_last_value(1, b"k", None, False, 1_000_000)
    for i in range(20_000):
        queue.publish(b"", b"q", encode_properties(1, {"headers": {"k": i}}), b"x", 0, 0)
        assert queue.take_head(1) is not None
    assert last_value_count(queue) < 1_000
    for i in range(3_000):
        queue.publish(b"", b"q", encode_properties(1, {"headers": {"k": i}}), b"x", 0, 0)
    assert queue.ready_count() == 3_000 and last_value_count(queue) >= 3_000


def messages(queue: QueueHandle, numbers: Iterable[int]) -> None:
    for number in numbers:
        queue.publish(b"", b"q", encode_properties(1, {"headers": {"k": number}}), b"x", 0, 0)


def test_a_value_beyond_the_limit_stays_as_one_without(heap_of_others: None) -> None:
    queue = new_last_value(1, b"k", None, False, 3)
    messages(queue, [1, 2, 3, 4, 4, 1, 5, 5])
    assert queue.ready_count() == 7 and last_value_count(queue) == 3
    assert all(queue.take_head(1) is not None for _ in range(7))
    queue.housekeeping()
    messages(queue, [4, 4])
    assert queue.ready_count() == 1


def test_what_it_knows_is_in_the_memory_account_and_goes_with_its_messages(heap_of_others: None) -> None:
    """Beside a plain queue with the same messages: what is counted more is the maps."""
    before = bytes_by_kind()["entries"]
    plain = QueueHandle(2)
    messages(plain, range(20_000))
    alone = bytes_by_kind()["entries"] - before
    queue = new_last_value(1, b"k", None, False, 1_000_000)
    messages(queue, range(20_000))
    maps = bytes_by_kind()["entries"] - before - 2 * alone
    assert 20_000 * 2 * 16 <= maps <= 20_000 * 2 * 16 * 8 // 3
    assert queue.purge() == 20_000 and last_value_count(queue) == 20_000
    for _ in range(20):
        queue.housekeeping()
    assert last_value_count(queue) == 0 and bytes_by_kind()["entries"] - before < alone + maps // 4
    messages(queue, [1, 1, 2, 1])
    assert queue.ready_count() == 2
    del queue, plain
    gc.collect()
    assert bytes_by_kind()["entries"] == before


def test_what_was_replaced_in_somebodys_hands_is_in_the_account_too(heap_of_others: None) -> None:
    grown = []
    for queue in (QueueHandle(1), new_last_value(2, b"k", None, False, 1_000_000)):
        messages(queue, range(5_000))
        held = [queue.next_available(0)]
        while len(held) < 5_000:
            held.append(queue.next_available(held[-1] + 1))
        assert all(queue.take_at(position, OWNER) for position in held)
        before = bytes_by_kind()["entries"]
        messages(queue, range(5_000))
        grown.append(bytes_by_kind()["entries"] - before)
        assert all(queue.release_held(position, True, OWNER) for position in held)
    assert grown[1] - grown[0] >= 5_000 * 16
    assert queue.ready_count() == 5_000 and last_value_count(queue) == 5_000


# --- over the wire ------------------------------------------------------------------------------------------------------------


def put(channel: RawChannel, *pairs: tuple[Any, bytes], **rest: Any) -> None:
    for key, body in pairs:
        channel.publish(body, routing_key="q", headers={"k": key}, **rest)


def drain(channel: RawChannel) -> list[bytes]:
    got = []
    while (message := channel.call("basic.get", queue="q", no_ack=True)).name != "basic.get-empty":
        got.append(message.body)
    return got


@pytest.mark.parametrize("name", ["x-last-value-key", "x-qpid-last-value-queue-key", "qpid.last_value_queue_key"])
def test_the_newest_of_each_value_stays(start: Callable[..., Any], connect: Callable[..., Any], name: str) -> None:
    ch: RawChannel = connect(start()).channel()
    ch.queue("q", arguments={name: "k"})
    put(ch, ("a", b"1"), ("b", b"2"), ("a", b"3"), (7, b"4"), (7.0, b"5"), ("b", b"6"))
    ch.publish(b"none", routing_key="q")
    ch.publish(b"none", routing_key="q")
    assert ch.ready("q") == 5
    held = ch.call("basic.get", queue="q")
    assert held.body == b"3"
    put(ch, ("a", b"7"))
    assert ch.ready("q") == 5  # the one that is held stays, and ends when it comes back
    ch.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    assert drain(ch) == [b"5", b"6", b"none", b"none", b"7"]


def test_with_transactions_confirms_and_selectors(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> None:
    ch: RawChannel = connect(start(data_dir=str(tmp_path), limits={"queue_hot_bytes": 1})).channel()
    ch.queue("q", durable=True, arguments={"x-last-value-key": "k"})
    ch.call("tx.select")
    put(ch, ("a", b"1"), ("b", b"2"), ("a", b"3"), delivery_mode=2)
    ch.call("tx.commit")
    ch.wait_ready("q", 2)
    put(ch, ("b", b"4"), delivery_mode=2)
    ch.call("tx.commit")
    ch.wait_ready("q", 2)
    ch.consume("q", "c", arguments={"x-filter-jms-selector": "k = 'b'"})
    assert ch.deliveries(1)[0].body == b"4"


@pytest.mark.parametrize("arguments", [{"x-delayed-retry-min": 3_600_000}, {"x-delivery-limit": 0}])
def test_what_was_replaced_ends_when_it_comes_back_whatever_waits_for_others(
    start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, int]
) -> None:
    """Neither a back-off nor the dead-letter exchange of a delivery limit gets a message that has a newer one. Found by `make model`."""
    broker = start()
    ch = connect(broker).channel()
    ch.queue("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ch.queue("q", arguments={"x-last-value-key": "k"} | letters | arguments)
    put(ch, ("a", b"1"), ("a2", b"2"))
    held = ch.call("basic.get", queue="q")
    put(ch, ("a", b"3"))
    ch.send("basic.nack", delivery_tag=held.delivery_tag, requeue=True)
    core = broker.node.broker.vhosts["/"].queues["q"].core
    wait_until(lambda: core.unacked_count() == 0)
    assert drain(ch) == [b"2", b"3"]
    assert ch.call("basic.get", queue="dead").name == "basic.get-empty"


def test_a_restart_knows_the_values_and_ends_what_a_crash_left(
    start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path
) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        ch = connect(broker).channel()
        ch.queue("q", durable=True, arguments={"x-last-value-key": "k"})
        ch.call("confirm.select")
        put(ch, ("a", b"1"), ("b", b"2"), ("a", b"3"), delivery_mode=2)
        held = ch.call("basic.get", queue="q")  # b, which is replaced while it is held: both are there after the restart
        assert held.body == b"2"
        put(ch, ("b", b"4"), delivery_mode=2)
        ch.wait_ready("q", 2)
    ch = connect(start(data_dir=str(tmp_path))).channel()
    ch.wait_ready("q", 2)
    put(ch, ("a", b"5"), delivery_mode=2)
    assert drain(ch) == [b"4", b"5"]


def test_after_a_kill_each_value_is_there_once(connect: Callable[..., Any], tmp_path: Path) -> None:
    """Whatever the kill cut off: of each value one entry, and none older than the newest that was confirmed."""
    with Process("--data-dir", str(tmp_path)) as process:
        ch = connect(process).channel()
        ch.queue("q", durable=True, arguments={"x-last-value-key": "k"})
        ch.call("confirm.select")
        for i in range(400):
            ch.publish(b"%d" % i, routing_key="q", headers={"k": i % 7}, delivery_mode=2)
        confirmed = 0
        while confirmed < 300:
            confirmed = max(confirmed, ch.connection.recv(ch.number).delivery_tag)
        process.kill()
    with Process("--data-dir", str(tmp_path)) as process:
        ch = connect(process).channel()
        found = [int(body) for body in drain(ch)]
        assert len({value % 7 for value in found}) == len(found) == 7
        assert found == sorted(found) and found[0] >= confirmed - 7


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-last-value-key": ""}, "value_empty"),
        ({"x-last-value-key": 3}, "unacceptable_type"),
        ({"x-last-value-key": "k" * 256}, "value_too_large"),
        ({"x-last-value-key": "k", "x-max-priority": 3}, "not together with x-max-priority"),
        ({"x-last-value-key": "k", "x-qpid-last-value-queue-key": "k"}, "not together with x-last-value-key"),
    ],
)
def test_refused(start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, Any], text: str) -> None:
    connect(start()).channel().refuse(406, text, "queue.declare", queue="q", arguments=arguments)


def test_a_queue_for_browsers_gives_nothing_away(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    connection = connect(start())
    ch = connection.channel()
    arguments = {"x-qpid-ensure-nondestructive-consumers": True, "x-last-value-key": "k"}
    ch.queue("q", arguments=arguments)
    put(ch, ("a", b"1"), ("b", b"2"))
    ch.consume("q", "c", no_ack=True)
    assert [message.body for message in ch.deliveries(2)] == [b"1", b"2"]
    put(ch, ("a", b"3"))
    assert ch.deliveries(1)[0].body == b"3"
    assert ch.ready("q") == 2
    ch.refuse(406, "nothing to acknowledge", "basic.consume", queue="q", consumer_tag="d")
    connection.channel(2).refuse(406, "is for browsers", "basic.get", queue="q")

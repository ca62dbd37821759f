"""A queue of another node, by two brokers: what a client of the one does, the other one's queue core does."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.cluster.link import LinkLost, NodeAddress
from flintmq.cluster.remote_windows import Wish
from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.shared.node_secret import NodeId
from tests.support.node_login import open_aimed
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.two_nodes import NAME, QUEUE, WAIT_S, Other, Owner


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


class Two:
    """A queue that `owner` owns, and a client of each node with an open channel."""

    def __init__(self, owner: Owner, other: Other, connect: Callable[..., RawConnection], **arguments: Any) -> None:
        self.owner, self.other = owner, other
        self.there = connect(owner.broker)
        self.there_channel = self.there.channel()
        self.there_channel.queue(NAME, arguments=arguments)
        owner.queues[QUEUE] = NAME
        self.here = connect(other.broker)
        self.channel: Any = self.here.channel()
        self.channel.queue(NAME)
        other.open(NAME, owner.address())
        self.core = owner.core()

    def publish(self, *bodies: bytes, **properties: Any) -> None:
        for body in bodies:
            self.channel.publish(body, routing_key=NAME, **properties)

    def next(self) -> Any:
        return self.channel.connection.recv(self.channel.number)


@pytest.fixture
def two(owner: Owner, other: Other, connect: Callable[..., RawConnection]) -> Two:
    return Two(owner, other, connect)


def bodies(core: Any) -> list[bytes]:
    taken: list[bytes] = []
    position = core.next_available()
    while position:
        taken.append(core.message_at(position)[3])
        position = core.next_available(position + 1)
    return taken


def test_publishes_come_in_order_with_exchange_key_and_properties_and_are_confirmed(two: Two) -> None:
    two.channel.call("queue.bind", queue=NAME, exchange="amq.topic", routing_key="a.#")
    two.channel.call("confirm.select")
    large = b"x" * 300_000
    two.channel.publish(large, exchange="amq.topic", routing_key="a.b", headers={"n": 1}, delivery_mode=2)
    for number in range(300):
        two.publish(b"%d" % number)
    confirmed = 0
    while confirmed < 301:
        frame = two.next()
        assert frame.name == "basic.ack"
        confirmed = frame.delivery_tag
    assert bodies(two.core) == [large, *(b"%d" % number for number in range(300))]
    exchange, key, header, _ = two.core.message_at(two.core.next_available())
    assert (exchange, key) == (b"amq.topic", b"a.b") and b"n" in header


def test_properties_that_python_looks_at_on_ordinary_channels_do_not_matter_on_the_way(two: Two) -> None:
    """user-id, CC, a delay that is over, an expiration: the client's node has looked at them."""
    two.channel.call("confirm.select")
    two.publish(b"1", user_id="guest", headers={"CC": ["elsewhere"]}, expiration="60000", reply_to="r")
    assert two.next().name == "basic.ack"
    assert bodies(two.core) == [b"1"]


def test_a_message_of_no_channel_goes_the_same_way_and_its_sender_hears_the_outcome(two: Two) -> None:
    core, remote = two.other.inner.vhosts["/"].queues[NAME].core, two.other.remote
    outcomes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    message = b"x", b"k", encode_properties(1, {}), b"1", 0, 0

    def publish() -> None:
        remote.publish(core.queue_id, message, (outcomes.put, remote.port.admit(core, 100), 100))

    two.other.on_loop(publish)
    assert outcomes.get(timeout=WAIT_S) is True
    assert bodies(two.core) == [b"1"] and remote.port.waiting_bytes() == 0
    two.other.on_loop(lambda: remote.aim(QUEUE, None))
    two.other.on_loop(publish)
    two.other.on_loop(lambda: remote.close(QUEUE))
    assert outcomes.get(timeout=WAIT_S) is False and remote.port.waiting_bytes() == 0


def test_a_full_queue_refuses_and_the_publisher_hears_it(owner: Owner, other: Other, connect: Callable[..., RawConnection]) -> None:
    two = Two(owner, other, connect, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    two.channel.call("confirm.select")
    two.publish(b"1", b"2", b"3")
    answers: list[tuple[str, int]] = []
    while not answers or answers[-1][1] < 3:
        frame = two.next()
        answers.append((frame.name, frame.delivery_tag))
    assert answers[-1] == ("basic.nack", 3) and {name for name, _ in answers[:-1]} == {"basic.ack"}


def test_a_consumer_gets_messages_in_order_and_its_settlements_are_the_owners(two: Two) -> None:
    two.other.consume(two.here, two.channel.number, "t")
    two.publish(*(b"%d" % number for number in range(5)))
    tags = []
    for number in range(5):
        frame = two.next()
        assert (frame.name, frame.body, frame.redelivered, frame.consumer_tag) == ("basic.deliver", b"%d" % number, False, "t")
        tags.append(frame.delivery_tag)
    assert (two.core.ready_count(), two.core.unacked_count()) == (0, 5)
    two.channel.send("basic.ack", delivery_tag=tags[1], multiple=True)
    two.channel.send("basic.ack", delivery_tag=tags[3])
    two.channel.send("basic.reject", delivery_tag=tags[4], requeue=False)
    until(lambda: two.core.unacked_count() == 1)
    two.channel.send("basic.ack", delivery_tag=tags[2])
    until(lambda: two.core.unacked_count() == 0)
    assert two.core.ready_count() == 0


def test_a_client_without_a_limit_may_hold_any_number_and_the_owner_keeps_what_it_does_not_read(two: Two) -> None:
    count = 2_000
    two.other.consume(two.here, two.channel.number, "t")
    two.publish(*(b"%d" % number for number in range(count)))
    frames = [two.next() for _ in range(count)]
    assert [frame.body for frame in frames] == [b"%d" % number for number in range(count)]
    assert two.core.unacked_count() == count


def test_what_a_client_without_a_limit_does_not_read_waits_at_the_owner(two: Two) -> None:
    client = two.other.client(two.here)
    two.other.on_client(client, lambda: client.connection.set_flow(two.channel.number, False))
    two.other.consume(two.here, two.channel.number, "t")
    two.publish(*(b"x" * 100_000 for _ in range(200)))
    until(lambda: two.core.ready_count() + two.core.unacked_count() == 200)
    for _ in range(20):  # as long as it takes to look at the window again some times
        _, error = two.other.answer(lambda done: two.other.remote.counts(QUEUE, done))
        assert error is None
    assert two.core.unacked_count() == 50
    two.other.on_client(client, lambda: client.connection.set_flow(two.channel.number, True))
    assert [len(two.next().body) for _ in range(200)] == [100_000] * 200
    until(lambda: (two.core.ready_count(), two.core.unacked_count()) == (0, 200))


def test_what_is_rejected_becomes_a_dead_letter_at_the_owner(owner: Owner, other: Other, connect: Callable[..., RawConnection]) -> None:
    two = Two(owner, other, connect, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    two.there_channel.queue("dead")
    two.other.consume(two.here, two.channel.number, "t")
    two.publish(b"1")
    two.channel.send("basic.reject", delivery_tag=two.next().delivery_tag, requeue=False)
    until(lambda: owner.core("dead").ready_count() == 1)


def test_what_a_client_gives_back_goes_to_the_owner_which_counts_it(
    owner: Owner, other: Other, connect: Callable[..., RawConnection]
) -> None:
    two = Two(owner, other, connect, **{"x-delivery-limit": 2})
    consumer, _ = two.other.consume(two.here, two.channel.number, "t", Wish("/", 1))
    two.publish(b"1")
    seen = []
    for _ in range(3):
        frame = two.next()
        seen.append((frame.redelivered, frame.properties.get("headers", {}).get("x-delivery-count")))
        two.channel.send("basic.nack", delivery_tag=frame.delivery_tag, requeue=True)
    assert seen == [(False, None), (True, 1), (True, 2)]
    until(lambda: two.core.ready_count() + two.core.unacked_count() == 0)
    assert consumer.core.returned_count == 0 and consumer.core.tail() and consumer.core.entry_facts(consumer.core.tail()) is None


def test_a_cancelled_consumer_keeps_what_it_holds_and_the_rest_goes_back(two: Two) -> None:
    consumer, _ = two.other.consume(two.here, two.channel.number, "t", Wish("/", 10))
    client = two.other.client(two.here)
    two.other.on_client(client, lambda: client.connection.set_flow(two.channel.number, False))
    two.publish(b"1", b"2", b"3")
    until(lambda: two.core.unacked_count() == 3)
    two.other.on_client(client, lambda: client.connection.set_flow(two.channel.number, True))
    tags = [two.next().delivery_tag for _ in range(3)]
    two.channel.send("basic.ack", delivery_tag=tags[0])
    two.other.cancel(two.here, two.channel.number, "t", consumer)
    until(lambda: two.core.unacked_count() == 2)
    two.publish(b"4")
    until(lambda: two.core.ready_count() == 1)
    two.here.drop()  # its channel gives back what the client held
    until(lambda: (two.core.ready_count(), two.core.unacked_count()) == (3, 0))
    assert bodies(two.core) == [b"2", b"3", b"4"]


def test_a_refusal_of_the_owner_is_the_clients_and_no_other_consumer_hears_of_it(two: Two) -> None:
    two.other.consume(two.here, two.channel.number, "t")
    with pytest.raises(PeerError, match="exclusive use") as refused:
        two.other.consume(two.here, two.channel.number, "u", Wish("/", exclusive=True))
    assert refused.value.code == 403
    with pytest.raises(PeerError, match="x-priority") as refused:
        two.other.consume(two.here, two.channel.number, "u", Wish("/", arguments={"x-priority": "high"}))
    assert refused.value.code == 406
    two.publish(b"1")
    assert two.next().body == b"1"
    assert two.other.lost.empty()


def test_gets_take_one_message_and_an_empty_queue_says_so(two: Two) -> None:
    got, error = two.other.answer(lambda done: two.other.remote.get(QUEUE, "/", done))
    assert (got, error) == (None, None)
    two.publish(b"1", b"2")
    until(lambda: two.core.ready_count() == 2)
    got, error = two.other.answer(lambda done: two.other.remote.get(QUEUE, "/", done))
    assert error is None
    client = two.other.client(two.here)
    assert two.other.on_client(client, lambda: client.connection.get(two.channel.number, got.core, False))
    two.other.on_loop(got.over)
    two.other.on_client(client, lambda: client.loop.touch(client.socket))
    frame = two.next()
    assert (frame.name, frame.body, two.core.unacked_count()) == ("basic.get-ok", b"1", 1)
    two.channel.send("basic.ack", delivery_tag=frame.delivery_tag)
    until(lambda: two.core.unacked_count() == 0)
    got, _ = two.other.answer(lambda done: two.other.remote.get(QUEUE, "/", done))
    two.other.on_loop(got.over)  # its client is gone
    until(lambda: (two.core.ready_count(), two.core.unacked_count()) == (1, 0))


def test_purges_counts_and_deletions_are_the_owners(two: Two) -> None:
    remote = two.other.remote
    two.publish(b"1", b"2")
    until(lambda: two.core.ready_count() == 2)
    two.other.consume(two.here, two.channel.number, "t", Wish("/", 1))
    until(lambda: two.core.ready_count() == 1)
    assert two.other.answer(lambda done: remote.counts(QUEUE, done)) == ((1, 1), None)
    assert two.other.answer(lambda done: remote.purge(QUEUE, done)) == (1, None)
    _, error = two.other.answer(lambda done: remote.delete(QUEUE, True, False, done))
    assert isinstance(error, PeerError) and error.code == 406
    assert two.other.answer(lambda done: remote.delete(QUEUE, False, False, done)) == (0, None)
    assert NAME not in two.owner.inner.vhosts["/"].queues


def test_a_queue_that_its_owner_loses_refuses_what_waits_and_is_told_once(two: Two) -> None:
    two.channel.call("confirm.select")
    two.publish(b"1")
    assert two.next().name == "basic.ack"
    _, ended = two.other.consume(two.here, two.channel.number, "t")
    assert two.next().body == b"1"
    two.owner.lose()
    queue_id, reason = two.other.lost.get(timeout=WAIT_S)
    assert queue_id == QUEUE and "not owned here" in reason
    assert two.other.on_loop(lambda: two.other.remote.owner(QUEUE)) is None
    two.publish(b"2")
    two.owner.queues[QUEUE] = NAME
    two.other.on_loop(lambda: two.other.remote.aim(QUEUE, two.owner.address()))
    answers = {(frame.name, frame.delivery_tag) for frame in (two.next(), two.next())}  # the consumer is there still, and gets it
    assert answers == {("basic.ack", 2), ("basic.deliver", 2)}
    assert two.other.lost.empty() and ended.empty()


def test_another_owner_gets_what_comes_after_it_was_named(two: Two) -> None:
    two.channel.call("confirm.select")
    consumer, ended = two.other.consume(two.here, two.channel.number, "t")
    two.publish(b"1")
    assert {two.next().name, two.next().name} == {"basic.ack", "basic.deliver"}
    elsewhere = NodeAddress(NodeId("c", "life-c"), "127.0.0.1", 1)
    two.other.on_loop(lambda: two.other.remote.aim(QUEUE, elsewhere))
    assert isinstance(ended.get(timeout=WAIT_S), LinkLost) and consumer.link is None
    until(lambda: bodies(two.core) == [b"1"])  # which the consumer gave back
    two.publish(b"2")
    assert "not reached" in two.other.lost.get(timeout=WAIT_S)[1]
    two.other.on_loop(lambda: two.other.remote.aim(QUEUE, two.owner.address()))
    frame = two.next()
    assert (frame.name, frame.delivery_tag) == ("basic.ack", 2)
    assert bodies(two.core) == [b"1", b"2"]


def test_without_an_owner_all_but_publishes_is_refused_at_once(two: Two) -> None:
    two.other.on_loop(lambda: two.other.remote.aim(QUEUE, None))
    with pytest.raises(LinkLost, match="no node is known"):
        two.other.consume(two.here, two.channel.number, "t")
    _, error = two.other.answer(lambda done: two.other.remote.purge(QUEUE, done))
    assert isinstance(error, LinkLost)


def test_what_comes_for_a_node_that_is_gone_waits_for_another_and_windows_are_emptied(two: Two) -> None:
    two.channel.call("confirm.select")
    consumer, ended = two.other.consume(two.here, two.channel.number, "t", Wish("/", 10))
    two.publish(b"1")
    frames = [two.next(), two.next()]
    tag = next(frame.delivery_tag for frame in frames if frame.name == "basic.deliver")
    two.owner.broker.node.stop()
    assert isinstance(ended.get(timeout=WAIT_S), LinkLost)
    assert two.other.lost.get(timeout=WAIT_S)[0] == QUEUE
    two.other.on_loop(lambda: two.other.remote.aim(QUEUE, two.owner.address()))
    two.publish(b"2")
    assert two.other.lost.get(timeout=WAIT_S)[0] == QUEUE  # the address is nobody's
    two.other.on_loop(lambda: two.other.remote.close(QUEUE))
    while (frame := two.next()).delivery_tag != 2:
        pass
    assert frame.name == "basic.nack"
    two.channel.send("basic.ack", delivery_tag=tag)  # of what it had: nobody hears of it
    two.other.cancel(two.here, two.channel.number, "t", consumer)
    until(lambda: two.other.on_loop(lambda: consumer.core.is_deleted()))


def test_a_client_that_aims_a_channel_has_an_ordinary_one(owner: Owner, connect: Callable[..., RawConnection]) -> None:
    """A client's channel.open says what it likes in its reserved argument."""
    raw = connect(owner.broker)
    owner.queues[QUEUE] = NAME
    open_aimed(raw, 1, QUEUE)
    raw.expect(1, "channel.open-ok")
    channel = RawChannel(raw, 1)
    channel.queue(NAME)
    channel.queue("other")
    channel.publish(b"1", routing_key="other")
    assert channel.call("queue.declare", queue="other", passive=True).message_count == 1

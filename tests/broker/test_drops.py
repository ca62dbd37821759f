"""Nothing is dropped in silence: every message that leaves without a consumer is counted with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker import wait_until


@pytest.mark.parametrize(
    ("reason", "arguments", "published", "dropped"),
    [
        ("maxlen", {"x-max-length": 2}, 5, 3),
        ("refused", {"x-max-length": 2, "x-overflow": "reject-publish"}, 5, 3),
        ("expired", {"x-message-ttl": 1}, 4, 4),
    ],
)
def test_every_drop_is_counted_with_its_reason(
    start: Callable[..., Any], connect: Callable[..., Any], reason: str, arguments: dict[str, object], published: int, dropped: int
) -> None:
    """What a queue's own rules drop is counted, without a confirm or a dead-letter exchange that would tell."""
    broker = start()
    channel = connect(broker).channel(1)
    channel.queue("q", arguments=arguments)
    for number in range(published):
        channel.publish(b"%d" % number, routing_key="q")
    wait_until(lambda: broker.node.broker.counters.drops[reason] == dropped, what=f"{dropped} counted as {reason}")


def test_unroutable_and_rejected_messages_are_counted(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """A publish to nowhere without mandatory, and a reject without requeue or dead-letter exchange; also as it ends."""
    broker = start()
    connection = connect(broker)
    channel = connection.channel(1)
    channel.publish(b"lost", routing_key="nowhere")
    channel.queue("q")
    channel.publish(b"refused by its reader", routing_key="q")
    channel.wait_ready("q", 1)
    channel.call("basic.get", queue="q")
    channel.send("basic.reject", delivery_tag=1, requeue=False)
    channel.ready("q")  # answered after the reject was seen
    connection.drop()
    wait_until(lambda: broker.node.broker.counters.drops["unroutable"] == 1, what="one unroutable message counted")
    wait_until(lambda: broker.node.broker.counters.drops["rejected"] == 1, what="one rejected message counted")


def test_a_returned_message_is_not_counted_as_dropped(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """mandatory gives the message back: nothing was dropped."""
    broker = start()
    connection = connect(broker)
    channel = connection.channel(1)
    channel.publish(b"back", routing_key="nowhere", mandatory=True)
    channel.expect("basic.return")
    connection.drop()
    wait_until(lambda: not broker.node.broker.connections, what="the connection is gone")
    assert broker.node.broker.counters.drops["unroutable"] == 0


def _fates(broker: Any) -> dict[str, int]:
    counters = broker.node.broker.counters
    seen = {f"dropped: {reason}": count for reason, count in counters.drops.items() if count}
    return seen | {f"letter: {reason}": count for reason, count in counters.dead_lettered.items() if count}


CAUSES = ("expired", "maxlen", "rejected", "delivery_limit", "reject-publish-dlx")
DEATHS = [(cause, "at-most-once", exchange) for cause in CAUSES for exchange in ("there", "missing", "none")]
# at-least-once has no length limit that drops, and keeps what it can't dead-letter
DEATHS += [(cause, "at-least-once", "there") for cause in ("expired", "rejected", "delivery_limit")]


@pytest.mark.parametrize(("reason", "strategy", "exchange"), DEATHS)
def test_a_message_that_died_is_a_letter_or_a_drop_and_never_both(
    start: Callable[..., Any], connect: Callable[..., Any], reason: str, strategy: str, exchange: str
) -> None:
    """Three messages die of each cause, in a queue whose dead-letter exchange is there, is missing, or was not asked for."""
    broker = start()
    channel = connect(broker).channel(1)
    arguments: dict[str, object] = {} if exchange == "none" else {"x-dead-letter-exchange": "dead"}
    if exchange == "there":
        channel.call("exchange.declare", exchange="dead", type="fanout")
        channel.queue("letters")
        channel.call("queue.bind", queue="letters", exchange="dead")
    arguments |= {
        "expired": {"x-message-ttl": 1},
        "maxlen": {"x-max-length": 1},
        "reject-publish-dlx": {"x-max-length": 1, "x-overflow": "reject-publish-dlx"},
        "delivery_limit": {"x-delivery-limit": 0},
    }.get(reason, {})
    if strategy == "at-least-once":
        arguments |= {"x-dead-letter-strategy": strategy, "x-overflow": "reject-publish"}
    channel.queue("q", arguments=arguments)
    for number in range(4 if reason in ("maxlen", "reject-publish-dlx") else 3):
        channel.publish(b"%d" % number, routing_key="q")
    if reason in ("rejected", "delivery_limit"):
        channel.wait_ready("q", 3)
        for _ in range(3):
            channel.call("basic.get", queue="q")
        channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=reason == "delivery_limit")
    death = "maxlen" if reason == "reject-publish-dlx" else reason
    wanted = {"there": f"letter: {death}", "missing": "dropped: no_dead_letter_exchange", "none": f"dropped: {death}"}[exchange]
    if reason == "reject-publish-dlx" and exchange == "none":
        wanted = "dropped: refused"
    wait_until(lambda: _fates(broker) == {wanted: 3}, timeout=10, what=f"3 counted as {wanted}, and nothing else")
    homeless = dict(broker.node.broker.counters.homeless)
    assert homeless == ({death: 3} if exchange == "missing" else {})


def test_what_left_a_queue_is_counted_by_the_way_it_left(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Acks by hand, of a transaction and without asking, a purge, what the deletion of a queue takes."""
    broker = start()
    connection = connect(broker)
    channel = connection.channel(1)
    channel.queue("q")
    core = broker.node.broker.vhosts["/"].queues["q"].core
    for number in range(9):
        channel.publish(b"%d" % number, routing_key="q")
    channel.wait_ready("q", 9)
    for _ in range(3):
        channel.call("basic.get", queue="q")
    channel.send("basic.ack", delivery_tag=1)
    channel.send("basic.nack", delivery_tag=2, requeue=True)
    channel.call("basic.get", queue="q", no_ack=True)
    other = connection.channel(2)
    other.call("tx.select")
    tag = other.call("basic.get", queue="q").delivery_tag
    other.send("basic.ack", delivery_tag=tag)
    other.call("tx.commit")
    wait_until(lambda: core.flows()["ack"] == 2, what="two acks")
    assert core.flows()["get_no_ack"] == 1 and core.flows()["get"] == 4 and core.flows()["redeliver"] == 1
    assert core.unacked_bytes() == core.unacked_count() == 1
    channel.call("basic.consume", queue="q", no_ack=True, consumer_tag="c")
    wait_until(lambda: core.flows()["deliver_no_ack"] == 5, what="five deliveries without acks")
    channel.call("basic.cancel", consumer_tag="c")
    assert core.flows()["deliver_no_ack"] == 5, "a consumer that left still counts"
    for number in range(4):
        channel.publish(b"%d" % number, routing_key="q")
    channel.wait_ready("q", 4)
    channel.call("queue.purge", queue="q")
    for number in range(2):
        channel.publish(b"%d" % number, routing_key="q")
    channel.wait_ready("q", 2)
    channel.call("queue.delete", queue="q")
    wait_until(lambda: core.flows()["delete"] == 2, what="two messages ended with their queue")
    flows = core.flows()
    ended = sum(flows[way] for way in ("ack", "get_no_ack", "deliver_no_ack", "purge", "delete", "reject", "expire", "drop", "move"))
    assert (flows["purge"], flows["ack"]) == (4, 2)
    assert core.enqueued_total() == 15 == ended + core.ready_count() + core.unacked_count()

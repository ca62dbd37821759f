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

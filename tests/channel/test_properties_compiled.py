"""What the properties of a message ask for is done on the compiled path: user-id, direct reply-to, counted returns call no Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.channel import slow
from flintmq.session import handlers
from tests.support.rawamqp import RawChannel

Connect = Callable[..., Any]


@pytest.fixture
def ch(start: Callable[..., Any], connect: Connect) -> RawChannel:
    return connect(start()).channel()


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Why the loop called a handler for something else than a method or a route (channel/slow.pxd)."""
    reasons: list[int] = []
    before = handlers.ConnectionHandler.slow

    def counted(self: Any, reason: int, *values: Any) -> None:
        if reason in (slow.SLOW_PUBLISH, slow.SLOW_POLICY, slow.SLOW_DEAD_LETTER):
            reasons.append(reason)
        before(self, reason, *values)

    monkeypatch.setattr(handlers.ConnectionHandler, "slow", counted)
    return reasons


def test_a_user_id_that_is_the_users(ch: RawChannel, in_python: list[int]) -> None:
    ch.queue("q")
    for _ in range(3):
        ch.publish(b"x", routing_key="q", user_id="guest", reply_to="somewhere", app_id="a", expiration="60000")
    ch.wait_ready("q", 3)
    assert ch.call("basic.get", queue="q", no_ack=True).properties["user_id"] == "guest"
    assert in_python == []


@pytest.mark.parametrize("other", ["gues", "guest2", "Guest", ""])
def test_a_user_id_that_is_another_ones_is_refused(ch: RawChannel, other: str) -> None:
    ch.queue("q")
    ch.publish(b"x", routing_key="q", user_id=other)
    ch.expect_close(406, f"user_id property set to '{other}' but authenticated user was 'guest'")


def test_an_answer_finds_the_channel_that_asked(ch: RawChannel, in_python: list[int]) -> None:
    """The name is this channel's, the properties beside it and the body stay, however long the body is and whether it is framed at once."""
    ch.queue("q")
    ch.consume("amq.rabbitmq.reply-to", "answers", no_ack=True)
    for size in (0, 3, 10_000):
        ch.publish(bytes(size), routing_key="q", reply_to="amq.rabbitmq.reply-to", correlation_id="c", message_id="m", headers={"h": 1})
    ch.wait_ready("q", 3)
    for size in (0, 3, 10_000):
        got = ch.call("basic.get", queue="q", no_ack=True)
        assert (len(got.body), got.properties["correlation_id"], got.properties["message_id"]) == (size, "c", "m")
        assert got.properties["headers"] == {"h": 1}
        ch.publish(b"answer", routing_key=got.properties["reply_to"])
        assert ch.expect("basic.deliver").body == b"answer"
    assert in_python == []


def test_without_a_reply_consumer_it_is_refused(ch: RawChannel) -> None:
    """Also when there was one."""
    ch.consume("amq.rabbitmq.reply-to", "answers", no_ack=True)
    ch.call("basic.cancel", consumer_tag="answers")
    ch.publish(b"x", routing_key="q", reply_to="amq.rabbitmq.reply-to")
    ch.expect_close(406, "fast reply consumer does not exist")


def test_returns_within_the_limit_call_nobody(ch: RawChannel, in_python: list[int]) -> None:
    """A transient message counts for itself; the one return too many is the control plane's."""
    ch.queue("dead")
    ch.queue("q", arguments={"x-delivery-limit": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    ch.publish(b"x", routing_key="q")
    ch.consume("q", "c")
    for count in range(6):
        got = ch.expect("basic.deliver")
        assert (got.properties.get("headers") or {}).get("x-delivery-count", 0) == count
        assert in_python == []
        ch.send("basic.nack", delivery_tag=got.delivery_tag, multiple=False, requeue=True)
    ch.wait_ready("dead", 1)
    assert in_python == [slow.SLOW_POLICY]

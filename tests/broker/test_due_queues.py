"""Messages expire at their time, in steps, and only queues with something to do are looked at."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.broker import expiry
from flintmq.core.memory_account import bytes_by_kind
from flintmq.testing.broker import Broker
from tests.drivers.queue_driver import Queue
from tests.support.broker import wait_until

SLOW = {"housekeeping_ms": 60_000}  # the housekeeping does not come round during the test
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def test_the_clock_rings_for_the_first_expiry_without_a_housekeeping(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(SLOW)
    channel = connect(broker).channel()
    channel.queue("dead")
    channel.queue("q", arguments=TO_DEAD)
    channel.publish(b"second", routing_key="q", expiration="60000")
    channel.publish(b"first", routing_key="q", expiration="30")  # earlier than what the clock is armed for
    channel.wait_ready("dead", 1)
    wait_until(lambda: channel.ready("q") == 1, what="the expired one left the count")


@pytest.mark.parametrize("letters", [False, True], ids=["gone", "dead-lettered"])
def test_many_expire_in_steps(
    start: Callable[..., Any], connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, letters: bool
) -> None:
    count, at_once = 600, expiry.LETTERS_AT_ONCE if letters else expiry.EXPIRE_AT_ONCE
    monkeypatch.setattr(expiry, "STEP_NS", 0)
    broker = start(SLOW)
    channel = connect(broker).channel()
    channel.queue("dead")
    channel.queue("q", arguments={"x-message-ttl": 40, **(TO_DEAD if letters else {})})
    steps: list[int] = []
    inner = broker.node.broker.expiry
    step = inner.step

    def counted() -> bool:
        before = channel_ready()
        done = step()
        steps.append(before - channel_ready())
        return done

    def channel_ready() -> int:
        return queue.core.ready_count()

    queue = broker.node.broker.vhosts["/"].queues["q"]
    monkeypatch.setattr(inner, "step", counted)
    for number in range(count):
        channel.publish(b"%d" % number, routing_key="q")
    if letters:
        channel.wait_ready("dead", count)
    wait_until(lambda: channel.ready("q") == 0)
    assert max(steps) <= at_once


def keep(expiry: Any) -> None:
    """An upkeep, which the loop does in slices."""
    expiry.upkeep()
    wait_until(lambda: not expiry._keeping, what="the upkeep has ended")


def test_idle_queues_are_not_visited(start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = start(SLOW)
    channel = connect(broker).channel()
    for number in range(50):
        channel.queue(f"q{number}", arguments={"x-message-ttl": 3_600_000})
        channel.publish(b"x", routing_key=f"q{number}")
        channel.wait_ready(f"q{number}", 1)
    inner = broker.node.broker.expiry
    keep(inner)
    keep(inner)  # once more after the last work
    before = inner.visits
    keep(inner)
    assert inner.step()
    assert inner.visits == before
    channel.publish(b"x", routing_key="q7")
    channel.wait_ready("q7", 2)
    keep(inner)
    assert inner.visits == before + 1


def test_an_emptied_queue_is_kept_up_twice_and_then_left_alone() -> None:
    queue = Queue()
    queue.fill(10)
    assert queue.purge() == 10
    queue.housekeeping()
    queue.housekeeping()
    assert queue.memory < 1100


def test_a_stopped_broker_gives_back_what_its_queues_held(connect: Callable[..., Any]) -> None:
    """Queues stand on the index's lists when the broker stops; neither they nor the broker outlive it for that."""
    gc.collect()
    before = bytes_by_kind()
    with Broker() as running:
        peer = connect(running)
        channel = peer.channel()
        channel.queue("held")
        channel.publish(b"x" * 1000, routing_key="held", expiration="60000")
        channel.call("queue.declare", queue="held", passive=True)
        node = weakref.ref(running.node.broker)
    peer.drop()
    del running, peer, channel
    gc.collect()
    assert node() is None
    assert bytes_by_kind()["entries"] <= before["entries"]
    assert bytes_by_kind()["contents"] <= before["contents"]

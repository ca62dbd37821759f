"""The wall clock of the compiled half stands when a test says so, and goes with the machine's otherwise."""

from __future__ import annotations

from typing import Any

from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection
from tests.support.standing import StandingClock

LIMITS = {"housekeeping_ms": 5}


def test_messages_expire_by_a_clock_that_stands_until_it_is_moved() -> None:
    with (
        StandingClock() as clock,
        Broker(clock=clock, limits=LIMITS) as broker,
        RawConnection("127.0.0.1", broker.port).open() as connection,
    ):
        ch = connection.channel()
        ch.call("queue.declare", queue="q")
        core: Any = broker.node.broker.vhosts["/"].queues["q"].core
        for ttl in ("1", "60000", "120000"):
            ch.publish(b"m", routing_key="q", expiration=ttl)
        ch.call("queue.declare", queue="q", passive=True)
        # A millisecond is long over by the machine's clock.
        assert ch.call("queue.declare", queue="q", passive=True).message_count == 3
        for ms, left in ((2, 2), (59_997, 2), (1, 1), (59_999, 1), (1, 0)):
            clock.advance(ms=ms)
            wait_until(lambda left=left: core.ready_count() == left)
            assert ch.call("queue.declare", queue="q", passive=True).message_count == left


def test_without_one_messages_expire_by_the_machines_clock() -> None:
    with Broker() as broker, RawConnection("127.0.0.1", broker.port).open() as connection:
        ch = connection.channel()
        ch.call("queue.declare", queue="q")
        core: Any = broker.node.broker.vhosts["/"].queues["q"].core
        ch.publish(b"short", routing_key="q", expiration="1")
        ch.publish(b"long", routing_key="q", expiration="3600000")
        ch.call("basic.qos")  # both have been read
        wait_until(lambda: core.ready_count() == 1)
        assert ch.call("basic.get", queue="q", no_ack=True).body == b"long"

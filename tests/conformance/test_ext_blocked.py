"""Property: above the memory limit publishers are told (connection.blocked) and not read; consumers go on; draining frees publishers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pika
import pytest

from tests.support.broker import Broker, unique, wait_until
from tests.support.rawamqp import RawConnection

MIB = 1 << 20
COUNT = 400
BODY = bytes(64 * 1024)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that may hold 8 MiB of message content."""
    with Broker("--memory", "--memory-limit", str(8 * MIB)) as running:
        yield running


def test_blocked_and_unblocked(broker: Broker) -> None:
    """25 MiB are published against a limit of 8 MiB: blocked, memory bounded, consumed in full, unblocked, in order."""
    name = unique("blocked")
    before = broker.rss_bytes()
    with RawConnection(broker.host, broker.port).open() as sending, RawConnection(broker.host, broker.port).open() as receiving:
        consumer = receiving.channel(1)
        consumer.queue(name)
        publisher = sending.channel(1)
        publisher.publish(b"first", routing_key=name)
        errors: list[BaseException] = []

        def publish() -> None:
            try:
                sending.timeout = 120
                for i in range(COUNT):
                    publisher.publish(b"%06d" % i + BODY, routing_key=name)
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            blocked = sending.recv_any()
            assert blocked.name == "connection.blocked"
            assert blocked.reason
            assert consumer.call("basic.get", queue=name, no_ack=True).body == b"first"  # consumers are served while publishers wait
            assert broker.rss_bytes() - before < 40 * MIB
            consumer.consume(name, no_ack=True)
            for i in range(COUNT):
                assert int(consumer.expect("basic.deliver").body[:6]) == i
        finally:
            thread.join(150)
        assert not errors
        seen = [sending.recv_any().name]
        while seen[-1] != "connection.unblocked":
            seen.append(sending.recv_any().name)
        assert set(seen) <= {"connection.blocked", "connection.unblocked"}
        publisher.publish(b"after", routing_key=name)
        assert consumer.expect("basic.deliver").body == b"after"
        consumer.call("queue.delete", queue=name)


def test_pika_is_told(broker: Broker) -> None:
    """pika's blocked and unblocked callbacks run; a client without the capability gets no such method."""
    name = unique("blocked")
    events: list[str] = []
    with RawConnection(broker.host, broker.port).open(capabilities={}) as silent, RawConnection(broker.host, broker.port).open() as owner:
        ch = owner.channel(1)
        ch.queue(name)
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.add_on_connection_blocked_callback(lambda *_: events.append("blocked"))
            connection.add_on_connection_unblocked_callback(lambda *_: events.append("unblocked"))
            channel = connection.channel()
            quiet = silent.channel(1)
            for _ in range(20):  # a single one of 10 MiB could be taken for the cause while it arrives, and its connection be closed
                quiet.publish(b"x" * (MIB // 2), routing_key=name)
            wait_until(lambda: channel.basic_publish("", name, b"y") or connection.process_data_events(0.02) or events)
            assert events == ["blocked"]
            with pytest.raises(TimeoutError):
                silent.recv_any(timeout=0.2)
            ch.call("queue.purge", queue=name)
            wait_until(lambda: connection.process_data_events(0.02) or "unblocked" in events)
        ch.call("queue.delete", queue=name)

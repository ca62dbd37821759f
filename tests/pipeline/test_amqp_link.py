"""The link acknowledges only what it is told to, gives back the rest in order, keeps memory bounded, and says in one line what is wrong."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from pyspark_flintmq.amqp.link import AmqpLink
from pyspark_flintmq.amqp.messages import Delivery
from pyspark_flintmq.amqp.options import Options
from pyspark_flintmq.amqp.spool import read_batches
from pyspark_flintmq.amqp.subscription import Subscription
from pyspark_flintmq.errors import SourceError
from tests.support.broker import wait_until

Connect = Callable[..., AmqpLink]


@pytest.fixture
def connect(amqp_url: str, queue: str) -> Iterator[Connect]:
    links: list[AmqpLink] = []

    def new(**changes: Any) -> AmqpLink:
        parts = urlsplit(amqp_url)
        options = {"host": parts.hostname, "port": parts.port, "queue": queue, "timeout": 30, **changes}
        link = AmqpLink(Options(**options))
        links.append(link)
        return link

    yield new
    for link in links:
        link.close()


def publish(channel: Any, queue: str, count: int, body: str = "m{}") -> list[bytes]:
    bodies = [body.format(i).encode() for i in range(count)]
    for i, item in enumerate(bodies):
        channel.basic_publish("", queue, item, pika.BasicProperties(delivery_mode=2, message_id=str(i)))
    return bodies


def take_all(link: AmqpLink, count: int) -> list[Delivery]:
    taken: list[Delivery] = []

    def enough() -> bool:
        taken.extend(link.take(count - len(taken), 2**40, 0.1))
        return len(taken) >= count

    wait_until(enough, what=f"{count} deliveries")
    return taken


def test_unsettled_messages_return_in_order_and_flagged(channel: Any, queue: str, connect: Connect) -> None:
    bodies = publish(channel, queue, 10)
    link = connect()
    assert link.attach(100) == 10
    taken = take_all(link, 10)
    assert [d.body for d in taken] == bodies
    assert not any(d.redelivered for d in taken)
    link.settle(taken[3].tag, [taken[6].tag])
    link.close()
    again = connect()
    assert again.attach(100) == 5
    rest = take_all(again, 5)
    assert [d.body for d in rest] == [bodies[i] for i in (4, 5, 7, 8, 9)]
    assert all(d.redelivered for d in rest)
    again.settle(rest[-1].tag, ())
    again.close()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_properties_arrive_as_sent_and_headers_byte_for_byte(channel: Any, queue: str, connect: Connect) -> None:
    headers = {"text": "é", "number": 7, "big": 2**40, "flag": True, "none": None, "list": [1, "a"], "table": {"x": 1}, "raw": b"\xff"}
    sent = pika.BasicProperties(
        "text/plain", "gzip", headers, 2, 5, "corr", "reply", "60000", "id-1", 1_700_000_000, "type", "guest", "app"
    )
    channel.basic_publish("", queue, b"body", sent)
    link = connect()
    link.attach(10)
    (got,) = take_all(link, 1)
    p = got.properties
    for name in ("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id"):
        assert getattr(p, name) == getattr(sent, name), name
    assert (p.timestamp, p.type, p.user_id, p.app_id) == (1_700_000_000, "type", "guest", "app")
    assert (got.exchange, got.routing_key, got.body) == ("", queue, b"body")
    assert p.headers is not None
    assert set(headers) <= set(p.headers)
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, p.headers)
    assert p.headers_raw is not None
    assert int.from_bytes(p.headers_raw[:4], "big") == len(p.headers_raw) - 4
    assert b"\x04text" in p.headers_raw and b"\xff" in p.headers_raw


def test_a_second_consumer_is_told_that_the_queue_is_busy(queue: str, connect: Connect) -> None:
    first = connect()
    first.attach(10)
    with pytest.raises(SourceError, match="FLINTMQ_QUEUE_BUSY") as error:
        connect(timeout=4).attach(10)
    assert "exclusive=false" in error.value.text
    first.close()
    connect().attach(10)


def test_an_attempt_that_the_deadline_cuts_off_does_not_hide_what_the_broker_said(monkeypatch: pytest.MonkeyPatch) -> None:
    link = AmqpLink(Options(queue="q", timeout=1))
    answers: list[SourceError | None] = [None, SourceError("QUEUE_BUSY", "it has another consumer")]
    monkeypatch.setattr(link, "_start", lambda deadline: setattr(link, "_error", answers.pop()))
    with pytest.raises(SourceError, match="it has another consumer"):
        link.attach(10)
    assert answers == []


def test_a_stream_is_refused(channel: Any, queue: str, connect: Connect) -> None:
    """With one line that says what to do, before anything is read; the stream is as it was."""
    name = f"{queue}-stream"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    try:
        publish(channel, name, 3)
        wait_until(lambda: channel.queue_declare(name, passive=True).method.message_count == 3, what="the messages")
        with pytest.raises(SourceError, match="is a stream: read it without transport=amqp") as caught:
            connect(queue=name).attach(10)
        assert caught.value.code == "BROKER_REFUSED" and "\n" not in str(caught.value)
        assert channel.queue_declare(name, passive=True).method.consumer_count == 0
    finally:
        channel.queue_delete(name)


def test_without_exclusive_two_may_share(channel: Any, queue: str, connect: Connect) -> None:
    publish(channel, queue, 4)
    one, two = connect(exclusive=False), connect(exclusive=False)
    one.attach(2)
    two.attach(2)
    assert {d.body for d in take_all(one, 2) + take_all(two, 2)} == {b"m0", b"m1", b"m2", b"m3"}


def test_bodies_in_memory_are_bounded_and_order_survives_the_pause(channel: Any, queue: str, connect: Connect) -> None:
    body = "{:04}" + "x" * 996
    bodies = publish(channel, queue, 300, body)
    link = connect(maxBytesPerTrigger=10_000)
    link.attach(1_000)
    # 20 kB may wait here; the other bodies are back in the queue although the prefetch would let all of them through. (Before the first
    # delivery all of them are there: only the pause tells that they came back.)
    wait_until(lambda: link._flow == "paused", what="pause")
    assert 250 < channel.queue_declare(queue, passive=True).method.message_count < 300
    taken = take_all(link, 300)
    assert [d.body for d in taken] == bodies
    link.settle(taken[-1].tag, ())
    assert link.depth() == 0


def test_a_deleted_queue_ends_the_link(channel: Any, queue: str, connect: Connect) -> None:
    link = connect()
    link.attach(10)
    assert link.is_open()
    channel.queue_delete(queue)
    wait_until(lambda: not link.is_open(), what="end of the link")
    with pytest.raises(SourceError, match="FLINTMQ_QUEUE_MISSING"):
        link.take(1, 1, 0)


class Proxy:
    """Passes bytes to the broker until `cut`: a network that fails."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection(self._target)
                self._sockets += [client, broker]
                for source, sink in ((client, broker), (broker, client)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)

    def cut(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets = []

    def close(self) -> None:
        self.cut()
        self._server.close()


def test_a_cut_connection_is_made_anew_and_nothing_comes_twice(amqp_url: str, channel: Any, queue: str, tmp_path: Path) -> None:
    bodies = publish(channel, queue, 40)
    parts = urlsplit(amqp_url)
    proxy = Proxy(parts.hostname or "", parts.port or 0)
    options = Options(port=proxy.port, queue=queue, timeout=30, spoolDir=str(tmp_path), maxMessagesPerTrigger=10)
    subscription = Subscription(options, lambda: AmqpLink(options))
    subscription.drain()
    offset, got = subscription.initial(), []
    while True:
        end = subscription.latest(offset, 10, 2**30)
        if end == offset:
            break
        for seq, first, last in subscription.partitions(offset, end):
            got += [body for batch in read_batches(tmp_path, seq, first, last) for body in batch.column("body").to_pylist()]
        proxy.cut()
        offset = end
    assert got == bodies
    subscription.close()
    proxy.close()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_each_way_not_to_connect_has_its_own_error(queue: str, connect: Connect) -> None:
    with pytest.raises(SourceError, match=r"FLINTMQ_QUEUE_MISSING.*no queue 'absent'"):
        connect(queue="absent").attach(10)
    with pytest.raises(SourceError, match="FLINTMQ_LOGIN_REFUSED") as error:
        connect(password="wrong-secret").attach(10)
    assert "wrong-secret" not in str(error.value)
    with pytest.raises(SourceError, match="FLINTMQ_LOGIN_REFUSED"):
        connect(vhost="absent").attach(10)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(SourceError, match="FLINTMQ_UNREACHABLE"):
            connect(port=closed.getsockname()[1], timeout=1).attach(10)

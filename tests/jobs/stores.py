"""Stores for the tests of log source and jobs: made by a real broker in this process, with everything that writes records.

In: a directory. Out: a stopped store and what was done to it.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika

from flintmq.dataplane.wire import Channel
from flintmq.testing.broker import Broker

SIZE = 65_536
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@contextlib.contextmanager
def broker(directory: Path, **options: Any) -> Iterator[Broker]:
    """A durable broker with small containers."""
    with Broker(data_dir=str(directory), container_size=SIZE, **options) as running:
        yield running


@contextlib.contextmanager
def channel_of(running: Broker) -> Iterator[Any]:
    """A pika channel with confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(running.url))
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        yield channel
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


@contextlib.contextmanager
def plane_of(running: Broker) -> Iterator[Any]:
    """The data plane's calls, as `call(name, **arguments)`."""
    ours, theirs = socket.socketpair()
    service: Any = running.node.dataplane.service  # type: ignore[union-attr]
    limits = running.node.config.limits
    channel = Channel(ours, limits)
    thread = threading.Thread(target=service.serve, args=(Channel(theirs, limits),), daemon=True)
    thread.start()
    try:
        yield lambda verb, /, **arguments: channel.call({"user": "guest", "vhost": "/", **arguments, "call": verb}, b"")[0]
    finally:
        channel.close()
        thread.join(60)


def put(channel: Any, queue: str, count: int, *, size: int = 40, exchange: str = "", **properties: Any) -> None:
    given = pika.BasicProperties(**{"delivery_mode": 2, **properties})
    for i in range(count):
        channel.basic_publish(exchange, queue, b"%06d" % i + b"x" * size, given)


def consume(channel: Any, queue: str, count: int, *, tag: str = "c", arguments: dict[str, Any] | None = None) -> None:
    """Gets and acknowledges the first `count` messages as the consumer `tag`: those and no others, whatever the machine does meanwhile.

    The window is `count` and the first ack comes after the cancel: nothing more can be on the way then.
    """
    inbox: list[Any] = []
    channel.basic_qos(prefetch_count=count)
    channel.basic_consume(queue, lambda _c, method, _p, _b: inbox.append(method), consumer_tag=tag, arguments=arguments)
    while len(inbox) < count:
        channel.connection.process_data_events(5)
    channel.basic_cancel(tag)
    assert len(inbox) == count
    for method in inbox:
        channel.basic_ack(method.delivery_tag)


@functools.cache
def shared_busy_store() -> Path:
    """`busy_store`, made once per test run; not to be changed. It goes with the process."""
    directory = tempfile.TemporaryDirectory(prefix="flintmq-test-")
    _kept.append(directory)
    return busy_store(Path(directory.name) / "store")


_kept: list[Any] = []


def busy_store(directory: Path, archive: Path | None = None) -> Path:
    """Publishes, transactions of all kinds, sets of a pipeline, redeliveries, rejects, dead letters, drops, purges, expiry, moved messages,
    a deleted queue, a restart in between; stopped at the end."""
    options: dict[str, Any] = {"log_archive_dir": str(archive)} if archive else {}
    with broker(directory, **options) as running, channel_of(running) as channel:
        channel.exchange_declare("fan", "fanout", durable=True)
        for name in ("fan1", "fan2"):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "fan")
        channel.queue_declare("work", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("strict", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        channel.queue_declare("short", durable=True, arguments={"x-max-length": 5})
        channel.queue_declare("brief", durable=True, arguments={"x-message-ttl": 1})
        channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 4})
        channel.queue_declare("gone", durable=True)
        channel.queue_declare("jobs", durable=True)
        channel.queue_declare("old", durable=True)
        put(channel, "old", 3)  # stays until the end: the log must move it
        put(channel, "work", 40, message_id="m")
        put(channel, "work", 5, delivery_mode=1)  # transient: gaps in the positions
        consume(channel, "work", 25, tag="one")
        put(channel, "", 12, exchange="fan")
        consume(channel, "fan1", 12, tag="fan-reader")
        put(channel, "strict", 6)
        for _ in range(4):
            channel.basic_reject(channel.basic_get("strict")[0].delivery_tag, requeue=False)
        channel.basic_reject(channel.basic_get("strict")[0].delivery_tag, requeue=True)  # redelivered
        channel.basic_ack(channel.basic_get("strict")[0].delivery_tag)
        put(channel, "short", 9)
        put(channel, "brief", 3)
        for i in range(10):
            channel.basic_publish("", "levels", b"p%d" % i, pika.BasicProperties(delivery_mode=2, priority=i % 5))
        consume(channel, "levels", 4, tag="leveller")
        put(channel, "gone", 7)
        channel.queue_delete("gone")
        put(channel, "dead", 2)
        channel.queue_purge("dead")
        put(channel, "work", 2, size=40_000)  # longer than a container's rest: chunks
        with pika.BlockingConnection(pika.URLParameters(running.url)) as other:
            tx = other.channel()
            tx.tx_select()
            for i in range(6):
                tx.basic_publish("", "work", b"tx%d" % i, PERSISTENT)
                tx.basic_publish("", "jobs", b"tx%d" % i, PERSISTENT)
            tx.basic_ack(tx.basic_get("work")[0].delivery_tag)
            tx.tx_commit()
            for i in range(4):
                tx.basic_publish("", "work", b"never%d" % i, PERSISTENT)
            tx.basic_ack(tx.basic_get("work")[0].delivery_tag)
            tx.tx_rollback()
        distributed(running, b"one", "commit")
        distributed(running, b"two", "rollback")
        sets(running)
        for _ in range(30):  # fills containers, so that what stands in `old` is moved
            put(channel, "jobs", 20, size=3_000)
            consume(channel, "jobs", 20, tag="mover")
    with broker(directory, **options) as running, channel_of(running) as channel:
        put(channel, "work", 10)
        consume(channel, "work", 8, tag="two", arguments={"x-group": "readers"})
        distributed(running, b"three", "prepare")
    return directory


def distributed(running: Broker, name: bytes, end: str) -> None:
    """Two messages into `jobs`, one out of `work`; prepared, then `end`."""
    from flintmq.transactions import Xid
    from tests.support.blocks import enrol, take

    queues = running.node.broker.vhosts["/"].queues
    transactions: Any = running.node.broker.transactions
    session, xid = f"session {name!r}", Xid(1, name, b"branch")
    transactions.select(session)
    transactions.start(session, xid)
    for i in range(2):
        enrol(transactions, session, xid, (queues["jobs"].queue_id,), name + b"%d" % i)
    take(transactions, session, xid, queues["work"].queue_id)
    transactions.end(session, xid)
    transactions.prepare(xid).result(60)
    if end == "commit":
        transactions.commit(xid).result(60)
    elif end == "rollback":
        transactions.rollback(xid).result(60)


def sets(running: Broker) -> None:
    """A subscription of the pipeline that takes two sets and commits the first; a third one is rolled back."""
    with plane_of(running) as call:
        opened = call("sub.open", name="reader", queues=["fan2"])
        for seq in (1, 2):
            call("sub.acquire", sub_id=opened["sub_id"], epoch=opened["epoch"], seq=seq, max_messages=4, max_bytes=1 << 20)
            call("sub.plan", sub_id=opened["sub_id"], epoch=opened["epoch"], seq=seq, slices=1)
            if seq == 1:
                call("sub.commit", sub_id=opened["sub_id"], epoch=opened["epoch"], upto=1)

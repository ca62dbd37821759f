"""Property: queues (spec 1.7) are declared, refused, bound, purged and deleted as RabbitMQ does: same codes, same texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel, RawConnection

Connect = Callable[..., RawConnection]


def gone(ch: RawChannel, name: str) -> bool:
    """Whether the queue does not exist any more. One that is locked still exists."""
    ch.send("queue.declare", queue=name, passive=True)
    answer = ch.connection.recv(ch.number)
    if answer.name == "queue.declare-ok":
        return False
    assert answer.reply_code in (404, 405)  # 405: the owner's end was not seen yet
    ch.send("channel.close-ok")
    ch.call("channel.open")
    return answer.reply_code == 404


def test_declare_answers_counts(ch: RawChannel, name: str) -> None:
    """declare-ok carries the name, the ready messages and the consumers."""
    answer = ch.call("queue.declare", queue=name, exclusive=True)
    assert (answer.queue, answer.message_count, answer.consumer_count) == (name, 0, 0)
    ch.publish(b"1", routing_key=name)
    ch.publish(b"2", routing_key=name)
    ch.wait_ready(name, 2)
    ch.call("basic.get", queue=name)
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(name)
    ch.expect("basic.deliver")
    answer = ch.call("queue.declare", queue=name, exclusive=True)
    assert (answer.message_count, answer.consumer_count) == (0, 1)


def test_server_named(ch: RawChannel) -> None:
    """An empty name makes one of the form amq.gen-..., and the empty name then means the last declared queue."""
    one, two = ch.queue("", exclusive=True), ch.queue("", exclusive=True)
    assert one.startswith("amq.gen-")
    assert two.startswith("amq.gen-")
    assert one != two
    ch.call("queue.bind", queue="", exchange="amq.fanout")
    ch.publish(b"x", exchange="amq.fanout")
    assert ch.call("basic.get", queue=two, no_ack=True).body == b"x"
    ch.call("queue.delete", queue="")
    assert gone(ch, two)


def test_empty_name_without_a_queue(ch: RawChannel) -> None:
    """With no queue declared on the channel the empty name is 404."""
    ch.refuse(404, "NOT_FOUND - no previously declared queue", "basic.consume", queue="")


def test_reserved_name(ch: RawChannel) -> None:
    """A new queue whose name starts with amq. is refused with 403."""
    ch.refuse(
        403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'", "queue.declare", queue="amq.mine", exclusive=True
    )


@pytest.mark.parametrize(
    ("argument", "first", "second"),
    [("durable", False, True), ("durable", True, False), ("auto_delete", False, True)],
)
def test_inequivalent_flag(ch: RawChannel, name: str, argument: str, first: bool, second: bool) -> None:
    """Redeclaring with another flag is 406 and names both values."""
    ch.queue(name, **{argument: first})
    text = (
        f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{name}' in vhost '/': "
        f"received '{str(second).lower()}' but current is '{str(first).lower()}'"
    )
    ch.refuse(406, text, "queue.declare", queue=name, **{argument: second})
    ch.call("queue.delete", queue=name)


def test_inequivalent_argument(ch: RawChannel, name: str) -> None:
    """Redeclaring with other arguments is 406 and says which."""
    ch.queue(name, arguments={"x-max-priority": 5})
    ch.refuse(406, f"inequivalent arg 'x-max-priority' for queue '{name}' in vhost '/'", "queue.declare", queue=name)
    ch.queue(name, arguments={"x-max-priority": 5})
    ch.call("queue.delete", queue=name)


def test_exclusive(connect: Connect, name: str) -> None:
    """An exclusive queue is locked for other connections (405) and goes with its own."""
    one, two = connect(), connect()
    mine, other = one.channel(1), two.channel(1)
    mine.queue(name, exclusive=True)
    one.channel(2).ready(name)  # other channels of the connection may use it
    text = f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'"
    other.refuse(405, text, "queue.declare", queue=name, exclusive=True)
    other.refuse(405, text, "queue.declare", queue=name, passive=True)
    other.refuse(405, text, "basic.consume", queue=name)
    other.refuse(405, text, "basic.get", queue=name)
    other.refuse(405, text, "queue.delete", queue=name)
    other.refuse(405, text, "queue.purge", queue=name)
    other.refuse(405, text, "queue.bind", queue=name, exchange="amq.direct")
    one.drop()
    wait_until(lambda: gone(other, name), what="exclusive queue deleted with its connection")


def test_auto_delete(ch: RawChannel, name: str) -> None:
    """An auto-delete queue goes with its last consumer, not before the first."""
    ch.queue(name, auto_delete=True)
    assert not gone(ch, name)
    tags = [ch.consume(name), ch.consume(name)]
    ch.call("basic.cancel", consumer_tag=tags[0])
    assert not gone(ch, name)
    ch.call("basic.cancel", consumer_tag=tags[1])
    assert gone(ch, name)


def test_auto_delete_with_the_connection(connect: Connect, name: str) -> None:
    """A dropped connection counts as cancelling its consumers."""
    one, watcher = connect(), connect().channel(1)
    ch = one.channel(1)
    ch.queue(name, auto_delete=True)
    ch.consume(name)
    one.drop()
    wait_until(lambda: gone(watcher, name), what="auto-delete queue deleted")


def test_purge(ch: RawChannel, name: str) -> None:
    """Purge removes what is ready and says how much; unacknowledged messages stay."""
    ch.queue(name, exclusive=True)
    for i in range(5):
        ch.publish(b"%d" % i, routing_key=name)
    tag = ch.call("basic.get", queue=name).delivery_tag
    assert ch.call("queue.purge", queue=name).message_count == 4
    assert ch.call("basic.get", queue=name).name == "basic.get-empty"
    ch.send("basic.nack", delivery_tag=tag, requeue=True)
    assert ch.call("basic.get", queue=name, no_ack=True).body == b"0"
    ch.refuse(404, "NOT_FOUND - no queue", "queue.purge", queue=name + "x")


def test_delete(ch: RawChannel, name: str) -> None:
    """Delete says how many messages were lost and is idempotent."""
    ch.queue(name)
    ch.publish(b"x", routing_key=name)
    ch.wait_ready(name, 1)
    assert ch.call("queue.delete", queue=name).message_count == 1
    assert ch.call("queue.delete", queue=name).message_count == 0
    assert gone(ch, name)


def test_delete_if_unused(ch: RawChannel, name: str) -> None:
    """if-unused refuses a queue with consumers."""
    ch.queue(name)
    tag = ch.consume(name)
    other = ch.connection.channel(2)
    other.refuse(406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use", "queue.delete", queue=name, if_unused=True)
    ch.call("basic.cancel", consumer_tag=tag)
    ch.call("queue.delete", queue=name, if_unused=True)


def test_delete_if_empty(ch: RawChannel, name: str) -> None:
    """if-empty refuses a queue with messages."""
    ch.queue(name)
    ch.publish(b"x", routing_key=name)
    ch.wait_ready(name, 1)
    ch.refuse(406, f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty", "queue.delete", queue=name, if_empty=True)
    ch.call("queue.purge", queue=name)
    ch.call("queue.delete", queue=name, if_empty=True)


def test_delete_notifies_consumers(connect: Connect, name: str) -> None:
    """consumer_cancel_notify: basic.cancel goes to a client that asked for it, and only to it."""
    told, silent, owner = connect(), connect(capabilities={}), connect().channel(1)
    owner.queue(name)
    a, b = told.channel(1), silent.channel(1)
    a.consume(name, "tag-a")
    b.consume(name, "tag-b")
    owner.call("queue.delete", queue=name)
    assert a.expect("basic.cancel").consumer_tag == "tag-a"
    b.nothing()
    a.queue(name, exclusive=True)  # the channel works on


def test_delete_ok_comes_before_cancel(connect: Connect, name: str) -> None:
    """Whoever deletes a queue that he consumes from gets delete-ok first, then the basic.cancel of his consumers on all his channels."""
    peer = connect()
    deleter, other = peer.channel(1), peer.channel(2)
    deleter.queue(name)
    deleter.consume(name, "tag-1")
    other.consume(name, "tag-2")
    deleter.send("queue.delete", queue=name)
    arrived = [peer.recv_any() for _ in range(3)]
    assert arrived[0].name == "queue.delete-ok"
    assert sorted((method.channel, method.name) for method in arrived[1:]) == [(1, "basic.cancel"), (2, "basic.cancel")]
    deleter.queue(name)  # without waiting for an answer, the cancel comes all the same
    deleter.consume(name, "tag-1")
    deleter.send("queue.delete", queue=name, no_wait=True)
    assert deleter.expect("basic.cancel").consumer_tag == "tag-1"


def test_publish_to_a_deleted_queue_is_unroutable(ch: RawChannel, name: str) -> None:
    """Deleting a queue removes its bindings from every exchange."""
    ch.queue(name)
    ch.call("queue.bind", queue=name, exchange="amq.topic", routing_key="q.#")
    ch.call("queue.delete", queue=name)
    ch.publish(b"1", exchange="amq.topic", routing_key="q.1" + name, mandatory=True)
    assert ch.expect("basic.return").reply_text == "NO_ROUTE"
    ch.publish(b"1", routing_key=name, mandatory=True)
    assert ch.expect("basic.return").reply_text == "NO_ROUTE"


def test_unbind_of_nothing(ch: RawChannel, name: str) -> None:
    """Unbinding what was never bound succeeds, as on RabbitMQ since 3.2."""
    ch.queue(name, exclusive=True)
    ch.call("queue.unbind", queue=name, exchange="amq.direct", routing_key="never")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-priority": -1},
        {"x-max-priority": "many"},
        {"x-message-ttl": -5},
        {"x-expires": 0},
    ],
)
def test_invalid_argument(ch: RawChannel, name: str, arguments: dict[str, object]) -> None:
    """A queue argument outside its range is 406 and named."""
    key = next(iter(arguments))
    text = f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{name}' in vhost '/'"
    ch.refuse(406, text, "queue.declare", queue=name, arguments=arguments)


@pytest.mark.parametrize("key", ["x-max-priority", "x-queue-mode", "x-queue-version"])
def test_a_quorum_queue_has_no_priorities_modes_and_versions(ch: RawChannel, name: str, key: str) -> None:
    value = "lazy" if key == "x-queue-mode" else 2
    text = f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_quorum_queue"
    ch.refuse(406, text, "queue.declare", queue=name, durable=True, arguments={"x-queue-type": "quorum", key: value})


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_queue_of_quorum_or_stream_has_a_name(ch: RawChannel, kind: str) -> None:
    text = f"PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_{kind}_queue"
    ch.refuse(406, text, "queue.declare", queue="", durable=True, arguments={"x-queue-type": kind})


def test_long_and_unicode_names(ch: RawChannel) -> None:
    """255 bytes are a legal name, and names are UTF-8."""
    for name in ("q" * 255, "żółw-" + "ü" * 50):
        assert ch.queue(name, exclusive=True) == name
        ch.publish(b"x", routing_key=name)
        got = ch.call("basic.get", queue=name, no_ack=True)
        assert (got.body, got.routing_key) == (b"x", name)

"""After the first use of a key no publish, delivery, settlement, expiry or dead letter is handled by Python, whatever features it uses.

Each feature of docs/FEATURES.md that a message passes through has a scene here, or a reason why it has none; a new one can't be missed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.rawamqp import RawChannel

FEATURES = Path(__file__).resolve().parents[2] / "docs/FEATURES.md"
SECTIONS = ("Kinds of queues", "Exchanges", "Publishing and delivery", "Time, dead letters, limits")
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
# uses before and during the measurement
WARM, USES = 3, 5

Use = Callable[[], None]
Scene = Callable[[RawChannel], Use]
SCENES: dict[str, Scene] = {}

CONTROL = "control plane: no message passes through it"
ELSEWHERE: dict[str, str] = {
    "replicated": "not built",
    "one queue served by several brokers, on FoundationDB (not yet run on a cluster)": "an engine of its own, in batches",
    "one queue served by several brokers, on etcd": "an engine of its own, in batches",
    "one queue served by several brokers, on PostgreSQL": "an engine of its own, in batches",
    "single active consumer, priorities, limits of a queue over all its nodes": "an engine of its own, in batches",
    "Spark reads a queue of several brokers exactly once, and goes on when one dies": "the data plane, in batches",
    "drain a node, rolling restart": CONTROL,
    "kinds from outside the package": "an arrival asks the kind, which is the user's code",
    "Spark source and sink, exactly once": "the data plane, in batches",
    "a binding moves only the keys that it wins or loses": CONTROL,
    "a change of prefetch reaches running consumers of Celery": CONTROL,
    "distributed transactions": "a prepare and a commit are control plane",
    "consumer cancel notification": CONTROL,
    "`connection.blocked`": CONTROL,
    "unused queues expire": CONTROL,
    "limits of users and virtual hosts": CONTROL,
}


def scene(feature: str) -> Callable[[Scene], Scene]:
    def keep(function: Scene) -> Scene:
        SCENES[feature] = function
        return function

    return keep


def one(ch: RawChannel, queue: str = "q", exchange: str = "", key: str = "q", **properties: Any) -> Use:
    """A message is published, arrives and is acknowledged."""

    def use() -> None:
        ch.publish(b"x", exchange=exchange, routing_key=key, **properties)
        take(ch, queue)

    return use


def take(ch: RawChannel, queue: str) -> None:
    ch.wait_ready(queue, 1)
    got = ch.call("basic.get", queue=queue)
    ch.send("basic.ack", delivery_tag=got.delivery_tag)
    ch.wait_ready(queue, 0)


def bound(ch: RawChannel, kind: str, key: str = "", arguments: dict[str, Any] | None = None, **binding: Any) -> None:
    ch.queue("q")
    ch.call("exchange.declare", exchange="x", type=kind, arguments=arguments or {})
    ch.call("queue.bind", queue="q", exchange="x", routing_key=key, arguments=binding)


def with_queue(arguments: dict[str, Any], **properties: Any) -> Scene:
    def made(ch: RawChannel) -> Use:
        ch.queue("q", arguments=arguments, durable=True)
        return one(ch, **properties)

    return made


def consumed(arguments: dict[str, Any], consume: dict[str, Any], **properties: Any) -> Scene:
    """A message that a consumer gets and acknowledges."""

    def made(ch: RawChannel) -> Use:
        ch.queue("q", arguments=arguments, durable=True)
        ch.call("basic.qos", prefetch_count=10)
        ch.consume("q", **consume)

        def use() -> None:
            ch.publish(b"x", routing_key="q", **properties)
            (got,) = ch.deliveries(1)
            ch.send("basic.ack", delivery_tag=got.delivery_tag)

        return use

    return made


SCENES["classic"] = with_queue({}, delivery_mode=2)
SCENES["priority"] = with_queue({"x-max-priority": 5}, priority=3)
SCENES["last value queues"] = with_queue({"x-last-value-key": "k"}, headers={"k": "v"})
SCENES["sorted by a header"] = with_queue({"x-sort-key": "k"}, headers={"k": 1})
SCENES["message groups, both of Qpid's kinds"] = consumed({"x-group-key": "k", "x-shared-groups": True}, {}, headers={"k": "v"})
SCENES["browse, selectors on queues"] = consumed({}, {"arguments": {"x-selector": "k = 'v'"}}, headers={"k": "v"})
SCENES["deduplication by a queue"] = with_queue({"x-message-deduplication": True}, headers={"x-deduplication-header": "v"})
SCENES["consumer priorities"] = consumed({}, {"arguments": {"x-priority": 5}})
SCENES["exclusive consumers"] = consumed({}, {"exclusive": True})
SCENES["single active consumer"] = consumed({"x-single-active-consumer": True}, {})
SCENES["prefetch of a consumer and of a channel"] = consumed({}, {})
SCENES["acknowledgement time-out"] = consumed({"x-consumer-timeout": 3_600_000}, {})
SCENES["ring that drops the lowest priority first"] = with_queue({"x-max-priority": 5, "x-max-length": 10, "x-overflow": "ring"})
SCENES["publishers of a full queue wait"] = with_queue({"x-max-length": 10, "x-overflow": "block"})


@scene("stream")
def _stream(ch: RawChannel) -> Use:
    ch.queue("q", arguments={"x-queue-type": "stream"}, durable=True)
    ch.call("basic.qos", prefetch_count=10)
    ch.consume("q", arguments={"x-stream-offset": "next"})
    return lambda: read(ch)


def read(ch: RawChannel) -> None:
    ch.publish(b"x", routing_key="q")
    (got,) = ch.deliveries(1)
    ch.send("basic.ack", delivery_tag=got.delivery_tag)


@scene("consumer groups of a stream, with their place kept")
def _group(ch: RawChannel) -> Use:
    ch.queue("q", arguments={"x-queue-type": "stream"}, durable=True)
    ch.call("basic.qos", prefetch_count=10)
    ch.consume("q", arguments={"x-group": "g"})
    return lambda: read(ch)


@scene("direct, fanout, topic")
def _topic(ch: RawChannel) -> Use:
    bound(ch, "topic", "a.#")
    return one(ch, exchange="x", key="a.b")


@scene("headers with all, any, all-with-x, any-with-x")
def _headers(ch: RawChannel) -> Use:
    bound(ch, "headers", **{"x-match": "all", "k": "v"})
    return one(ch, exchange="x", headers={"k": "v", "n": 1})


@scene("`x-consistent-hash` with weights, header, property")
def _hash(ch: RawChannel) -> Use:
    bound(ch, "x-consistent-hash", "1")
    return one(ch, exchange="x", key="k")


@scene("`x-modulus-hash`")
def _modulus(ch: RawChannel) -> Use:
    bound(ch, "x-modulus-hash")
    return one(ch, exchange="x", key="k")


@scene("`x-random`, `x-local-random`")
def _random(ch: RawChannel) -> Use:
    bound(ch, "x-random")
    return one(ch, exchange="x", key="k")


@scene("`x-recent-history`")
def _history(ch: RawChannel) -> Use:
    bound(ch, "x-recent-history")
    return one(ch, exchange="x", key="k")


@scene("deduplication by an exchange")
def _dedup(ch: RawChannel) -> Use:
    bound(ch, "x-message-deduplication", "k", {"x-cache-size": 100})
    numbers = itertools.count()

    def use() -> None:
        value = f"v{next(numbers)}"
        for _ in range(2):
            ch.publish(b"x", exchange="x", routing_key="k", headers={"x-deduplication-header": value})
        take(ch, "q")

    return use


@scene("exchange-to-exchange bindings")
def _chain(ch: RawChannel) -> Use:
    bound(ch, "fanout")
    ch.call("exchange.declare", exchange="front", type="fanout")
    ch.call("exchange.bind", destination="x", source="front")
    return one(ch, exchange="front")


@scene("alternate exchange")
def _alternate(ch: RawChannel) -> Use:
    bound(ch, "fanout")
    ch.call("exchange.declare", exchange="front", type="direct", arguments={"alternate-exchange": "x"})
    return one(ch, exchange="front", key="nowhere")


@scene("CC and BCC")
def _copies(ch: RawChannel) -> Use:
    ch.queue("q")
    ch.queue("r")
    ch.queue("s")

    def use() -> None:
        ch.publish(b"x", routing_key="q", headers={"CC": ["r"], "BCC": ["s"]})
        for name in ("q", "r", "s"):
            take(ch, name)

    return use


@scene("direct reply-to")
def _reply(ch: RawChannel) -> Use:
    ch.queue("q")
    ch.consume("amq.rabbitmq.reply-to", no_ack=True)

    def use() -> None:
        ch.publish(b"ask", routing_key="q", reply_to="amq.rabbitmq.reply-to")
        ch.wait_ready("q", 1)
        got = ch.call("basic.get", queue="q", no_ack=True)
        ch.publish(b"answer", routing_key=got.properties["reply_to"])
        assert ch.deliveries(1)[0].body == b"answer"

    return use


@scene("publisher confirms, after the disk")
def _confirmed(ch: RawChannel) -> Use:
    ch.queue("q", durable=True)
    ch.call("confirm.select")

    def use() -> None:
        ch.publish(b"x", routing_key="q", delivery_mode=2)
        ch.expect("basic.ack")
        take(ch, "q")

    return use


@scene("mandatory")
def _mandatory(ch: RawChannel) -> Use:
    def use() -> None:
        ch.publish(b"x", routing_key="nowhere", mandatory=True)
        ch.expect("basic.return")

    return use


@scene("immediate")
def _immediate(ch: RawChannel) -> Use:
    ch.queue("q")

    def use() -> None:
        ch.publish(b"x", routing_key="q", immediate=True)
        ch.expect("basic.return")

    return use


@scene("nack, requeue to the old place")
def _nacked(ch: RawChannel) -> Use:
    ch.queue("q")

    def use() -> None:
        ch.publish(b"x", routing_key="q")
        ch.wait_ready("q", 1)
        ch.send("basic.nack", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=True)
        take(ch, "q")

    return use


@scene("transactions, atomic over queues")
def _tx(ch: RawChannel) -> Use:
    ch.queue("q", durable=True)
    ch.call("tx.select")

    def use() -> None:
        ch.publish(b"x", routing_key="q", delivery_mode=2)
        ch.call("tx.commit")
        ch.wait_ready("q", 1)
        ch.send("basic.ack", delivery_tag=ch.call("basic.get", queue="q").delivery_tag)
        ch.call("tx.commit")

    return use


def expired(ch: RawChannel, **properties: Any) -> None:
    ch.publish(b"x", routing_key="q", **properties)
    ch.wait_ready("q", 0)


@scene("time to live of messages and queues")
def _ttl(ch: RawChannel) -> Use:
    ch.queue("q", arguments={"x-message-ttl": 1})
    return lambda: expired(ch)


@scene("expiry behind a head that lives")
def _behind(ch: RawChannel) -> Use:
    ch.queue("q")
    ch.publish(b"head", routing_key="q")

    def use() -> None:
        ch.publish(b"x", routing_key="q", expiration="1")
        ch.wait_ready("q", 1)

    return use


@scene("scheduled delivery: `x-delay`, absolute times, `x-delayed-message`")
def _delayed(ch: RawChannel) -> Use:
    bound(ch, "x-delayed-message", "k", {"x-delayed-type": "direct"})
    return one(ch, exchange="x", key="k", headers={"x-delay": 5})


def dying(arguments: dict[str, Any]) -> Scene:
    def made(ch: RawChannel) -> Use:
        ch.queue("dead", durable=True)
        ch.queue("q", arguments={"x-message-ttl": 1, **TO_DEAD, **arguments}, durable=True)

        def use() -> None:
            ch.publish(b"x", routing_key="q", delivery_mode=2)
            take(ch, "dead")

        return use

    return made


SCENES["dead letters with `x-death`"] = dying({})
SCENES["dead letters at-least-once"] = dying(
    {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
)


@scene("chains of 28 queues (kombu's native delay)")
def _levels(ch: RawChannel) -> Use:
    ch.queue("q")
    for level in range(3):
        ch.call("exchange.declare", exchange=f"level-{level}", type="topic")
        following = f"level-{level - 1}" if level else ""
        key = {} if level else {"x-dead-letter-routing-key": "q"}
        ch.queue(f"level-{level}", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": following, **key})
        ch.call("queue.bind", queue=f"level-{level}", exchange=f"level-{level}", routing_key="#")
    return one(ch, exchange="level-2", key="1.0.1.q")


@scene("length limits: drop-head, reject-publish, reject-publish-dlx")
def _limits(ch: RawChannel) -> Use:
    ch.queue("dead")
    ch.queue("q", arguments={"x-max-length": 1, **TO_DEAD})
    ch.queue("r", arguments={"x-max-length": 1, "x-overflow": "reject-publish-dlx", **TO_DEAD})
    ch.queue("s", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for name in ("q", "r", "s"):
        ch.publish(b"first", routing_key=name)

    def use() -> None:
        for name in ("q", "r", "s"):
            ch.publish(b"next", routing_key=name)
        ch.wait_ready("dead", 2)
        ch.call("queue.purge", queue="dead")

    return use


@scene("delivery limit")
def _delivery_limit(ch: RawChannel) -> Use:
    ch.queue("q", arguments={"x-queue-type": "quorum", "x-delivery-limit": 5}, durable=True)

    def use() -> None:
        ch.publish(b"x", routing_key="q", delivery_mode=2)
        ch.wait_ready("q", 1)
        ch.send("basic.nack", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=True)
        take(ch, "q")

    return use


@scene("delay between redeliveries")
def _retried(ch: RawChannel) -> Use:
    ch.queue("q", arguments={"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 1}, durable=True)

    def use() -> None:
        ch.publish(b"x", routing_key="q")
        ch.wait_ready("q", 1)
        ch.send("basic.nack", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=True)
        take(ch, "q")

    return use


def features() -> list[str]:
    """The first column of the rows of SECTIONS."""
    rows, inside = [], False
    for line in FEATURES.read_text().splitlines():
        if line.startswith("## "):
            inside = line[3:] in SECTIONS
        elif inside and line.startswith("| ") and not line.startswith("| feature"):
            rows.append(line.split("|")[1].strip())
    return rows


def test_every_feature_has_a_scene_or_a_reason() -> None:
    assert set(features()) == set(SCENES) | set(ELSEWHERE)
    assert not set(SCENES) & set(ELSEWHERE)


@pytest.mark.parametrize("traced", [False, True], ids=["untraced", "traced"])
@pytest.mark.parametrize("feature", SCENES, ids=lambda feature: re.sub("[^a-z0-9]+", "-", feature.lower()))
def test_no_message_passes_through_python(
    start: Callable[..., Any], connect: Callable[..., Any], feature: str, traced: bool, tmp_path: Path
) -> None:
    """Nor does one that the firehose copies."""
    broker = start(data_dir=tmp_path)
    ch = connect(broker).channel()
    if traced:
        ch.queue("copies")
        ch.call("queue.bind", queue="copies", exchange="amq.rabbitmq.trace", routing_key="#")
        broker.node.broker.tracer.turn("/", True)
    use = SCENES[feature](ch)
    counts = broker.node.broker.counters.in_python
    for _ in range(WARM):
        use()
    before = dict(counts)
    for _ in range(USES):
        use()
    grown = {kind for kind, count in counts.items() if count != before.get(kind, 0)}
    assert not grown
    assert not traced or ch.call("queue.declare", queue="copies", passive=True).message_count >= WARM + USES

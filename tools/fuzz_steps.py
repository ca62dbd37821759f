"""What a fuzzed session says: methods, contents and settlements, drawn from its seed (`tools/fuzz_sessions.py`).

in: a random generator, the life's shapes of queues. out: bytes to send.

Names are few, so that sessions meet. Most declarations of a name agree within a life; some do not, and some are nonsense.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from flintmq.protocol.v0_9_1 import codec, spec
from flintmq.protocol.v0_9_1.tables import Timestamp

STREAMS = ["s0", "s1"]
QUEUES = [f"q{n}" for n in range(7)] + STREAMS
EXCHANGES = ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "x0", "x1", "recent", "once", "some"]
# exchanges whose type is another than direct
TYPES = {"x1": "topic", "recent": "x-recent-history", "once": "x-message-deduplication", "some": "x-random"}
FIREHOSE = "amq.rabbitmq.trace"
REPLY_TO = "amq.rabbitmq.reply-to"
CHANNELS = 3
# values that no argument of a queue, consumer or exchange expects
NONSENSE: tuple[Any, ...] = (-1, 2**63 - 1, -(2**63), "", "x" * 300, None, True, 1.5, [], {}, {"a": [1]}, b"\xff\0", ["x", 1])
OFFSETS: tuple[Any, ...] = ("first", "last", "next", 0, 5, 1000, 2**63 - 1, "1s", "1h", Timestamp(1_700_000_000), -1, "x", None)


def queue_shape(rng: random.Random) -> dict[str, Any]:
    """Arguments and flags of queue.declare for an ordinary queue."""
    choices: dict[str, Any] = {
        "x-max-length": rng.choice((0, 1, 20)),
        "x-max-length-bytes": rng.choice((0, 100, 5000)),
        "x-overflow": rng.choice(("drop-head", "reject-publish", "reject-publish-dlx")),
        "x-dead-letter-exchange": rng.choice(("", "x0", "amq.fanout")),
        "x-dead-letter-routing-key": rng.choice(QUEUES),
        "x-message-ttl": rng.choice((0, 5, 50)),
        "x-expires": rng.choice((20, 500, 3000)),
        "x-max-priority": rng.choice((1, 9)),
        "x-single-active-consumer": True,
        "x-delivery-limit": rng.choice((0, 2)),
        "x-queue-type": rng.choice(("classic", "quorum")),
        "x-consumer-timeout": rng.choice((1, 200)),
        "x-retry-delay": rng.choice((0, 10)),
        "x-queue-mode": "lazy",
        "x-qpid-priorities": rng.choice((2, 10)),
        "x-dead-letter-strategy": rng.choice(("at-most-once", "at-least-once")),
        "x-delayed-retry-type": rng.choice(("all", "failed", "returned")),
        "x-delayed-retry-min": 5,
    }
    arguments = {name: value for name, value in choices.items() if rng.random() < 0.15}
    # what does not go together is refused
    if "x-dead-letter-exchange" not in arguments:
        arguments.pop("x-dead-letter-routing-key", None)
    if "x-max-priority" in arguments:
        arguments.pop("x-qpid-priorities", None)
    if arguments.get("x-queue-type") == "quorum":
        return {"durable": True, "arguments": arguments}
    return {"durable": rng.random() < 0.6, "exclusive": rng.random() < 0.05, "auto_delete": rng.random() < 0.15, "arguments": arguments}


def stream_shape(rng: random.Random) -> dict[str, Any]:
    """The same for a stream."""
    choices: dict[str, Any] = {
        "x-dead-letter-exchange": rng.choice(("", "amq.fanout")),
        "x-max-length-bytes": rng.choice((1, 2_000_000)),
        "x-max-age": rng.choice(("1s", "1h")),
        "x-delivery-limit": rng.choice((0, 2)),
        "x-consumer-timeout": rng.choice((1, 200)),
        "x-retry-delay": rng.choice((0, 10)),
        "x-stream-max-segment-size-bytes": rng.choice((1, 600_000)),
    }
    return {
        "durable": True,
        "arguments": {"x-queue-type": "stream"} | {name: value for name, value in choices.items() if rng.random() < 0.2},
    }


def shapes_of(rng: random.Random, streams: bool) -> dict[str, list[dict[str, Any]]]:
    """How a life's queues are declared: two shapes for each name. streams: whether there are any (a broker without a disk has none)."""
    names = [name for name in QUEUES if streams or name not in STREAMS]
    return {name: [stream_shape(rng) if name in STREAMS else queue_shape(rng) for _ in range(2)] for name in names}


def content(number: int, body: bytes, properties: dict[str, Any], rng: random.Random) -> bytes:
    """A header and its body frames, cut at any place, with empty frames among them now and then."""
    frames = [codec.encode_frame(spec.FRAME_HEADER, number, codec.encode_properties(len(body), properties))]
    at = 0
    while at < len(body):
        size = 4000 if len(body) > 5000 else rng.choice((1, 50, 4000))
        frames.append(codec.encode_frame(spec.FRAME_BODY, number, body[at : at + size]))
        at += size
        if rng.random() < 0.02:
            frames.append(codec.encode_frame(spec.FRAME_BODY, number, b""))
    return b"".join(frames)


class Steps:
    """Draws what one connection says. Attributes: tags: delivery tags by channel, kept by the session; replies: reply-to names it saw."""

    def __init__(self, rng: random.Random, shapes: dict[str, list[dict[str, Any]]]) -> None:
        self._rng = rng
        self._shapes = shapes
        self._queues = list(shapes)
        self.tags: dict[int, list[int]] = {}
        self._asked: set[int] = set()  # channels that consume replies
        self._transactional: dict[int, bool] = {}
        self.replies: list[str] = []
        self.made = 0

    def step(self) -> bytes:
        """One method on one channel, with what belongs to it."""
        rng = self._rng
        self.made += 1
        number = rng.randrange(1, CHANNELS + 1) if rng.random() < 0.999 else rng.choice((0, 4, 2047, 65535))
        kinds: tuple[tuple[Callable[[int], Any], int], ...] = (
            (self._publish, 400),
            (self._settle, 250),
            (self._consume, 140),
            (self._queue, 90),
            (self._exchange, 40),
            (self._channel, 60),
            (self._odd, 4),
        )
        made = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0](number)
        return made if isinstance(made, bytes) else codec.method_frame(number, made)

    def opening(self, number: int) -> bytes:
        """A channel's first methods: some are transactional, some confirm, some are both for as long as that lasts."""
        rng = self._rng
        self.tags[number] = []
        methods: list[Any] = [spec.ChannelOpen()]
        kind = rng.randrange(8)
        self._transactional[number] = kind < 2
        if kind < 2:
            methods.append(spec.TxSelect())
        elif kind < 5:
            methods.append(spec.ConfirmSelect(rng.random() < 0.5))
        for queue in rng.sample(self._queues, 2):  # one that is there in another shape closes the channel, so only these are tried at once
            if self._shapes[queue][0].get("exclusive") and rng.random() < 0.9:
                continue  # another connection's, most of the time
            methods.append(spec.QueueDeclare(**(self._shapes[queue][0] | {"queue": queue, "no_wait": True})))
            if rng.random() < 0.7:
                methods.append(spec.BasicConsume(queue=queue, no_ack=rng.random() < 0.1 and queue not in STREAMS, no_wait=True))
        methods.append(spec.BasicQos(0, rng.choice((1, 5, 100)), False))
        if rng.random() < 0.1:
            methods.append(spec.BasicQos(0, rng.choice((1, 20)), True))
        self._asked.discard(number)
        if rng.random() < 0.3:
            self._asked.add(number)
            methods.append(spec.BasicConsume(queue=REPLY_TO, no_ack=True, consumer_tag="reply"))
        return b"".join(codec.method_frame(number, method) for method in methods)

    def _replies_here(self, number: int) -> bool:
        return number in self._asked or self._rng.random() < 0.05

    def _name(self) -> str:
        return self._rng.choice(self._queues) if self._rng.random() < 0.99 else self._rng.choice(("", "nowhere", "é" * 100, "amq.x"))

    def _table(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The table, sometimes with a value in it that makes no sense."""
        if arguments and self._rng.random() < 0.02:
            return arguments | {self._rng.choice(list(arguments)): self._rng.choice(NONSENSE)}
        return arguments

    def _publish(self, number: int) -> bytes:
        rng = self._rng
        body = bytes(rng.choice((0, 1, 100, 100, 3000, 70_000, 300_000) if rng.random() < 0.05 else (0, 10, 200)))
        properties: dict[str, Any] = {"delivery_mode": rng.choice((1, 2))}
        if rng.random() < 0.2:
            properties["expiration"] = rng.choice(
                ("0", "1", "20", "100000", "315360000000") if rng.random() < 0.98 else ("", "-1", "x" * 200)
            )
        if rng.random() < 0.2:
            properties["priority"] = rng.randrange(12) if rng.random() < 0.9 else 255
        if rng.random() < 0.2:
            names = [rng.choice(self._queues) for _ in range(rng.randrange(3))]
            tables: list[dict[str, Any]] = [
                {"CC": names},
                {"BCC": names},
                {"a": 1, "t": {"n": [1, None, "x"]}},
                {"x-delay": 5},
                {"k": "v" * 3000},
                {"x-deduplication-header": rng.choice(("a", "b", rng.randrange(50)))},
                {"x-deduplication-header": "c", "x-cache-ttl": 5},
            ]
            tables += [
                {"x-death": [{"count": 2**63 - 1, "queue": "q0", "reason": "expired"}]},
                {"x-stream-filter-value": "f"},
                {"x-delivery-count": 3},
            ]
            if rng.random() < 0.02:
                tables = [{"CC": rng.choice(NONSENSE)}, {"BCC": rng.choice(NONSENSE)}, {"x-death": rng.choice(NONSENSE)}]
            properties["headers"] = rng.choice(tables)
        if rng.random() < 0.05:
            properties["reply_to"] = rng.choice((REPLY_TO, *self.replies[-2:])) if self._replies_here(number) else "q0"
        if rng.random() < 0.02:
            properties |= rng.choice(({"user_id": "guest"}, {"user_id": "other"}, {"timestamp": 2**60}, {"message_id": "m" * 255}))
        exchange = rng.choice(EXCHANGES) if rng.random() < 0.4 else ""
        if rng.random() < 0.002:
            exchange = "nowhere"
        key = rng.choice(self.replies) if self.replies and rng.random() < 0.05 else self._name()
        mandatory, immediate = rng.random() < 0.1, rng.random() < 0.002
        method = spec.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate)
        return codec.method_frame(number, method) + content(number, body, properties, rng)

    def _settle(self, number: int) -> Any:
        rng = self._rng
        tags = self.tags.get(number)
        if not tags:
            return spec.BasicAck(0, True) if rng.random() < 0.3 else self._consume(number)
        tag = rng.choice(tags) if rng.random() < 0.99 else rng.choice((0, 2**63, 2**64 - 1, rng.randrange(1000), rng.choice(tags) + 1))
        if tag in tags and rng.random() < 0.995:  # else it is settled twice
            tags.remove(tag)
        multiple = rng.random() < 0.2
        kind = rng.randrange(6)
        if kind < 3:
            return spec.BasicAck(tag, multiple)
        if kind == 3:
            return spec.BasicNack(tag, multiple, rng.random() < 0.5)
        if kind == 4:
            return spec.BasicReject(tag, rng.random() < 0.5)
        if multiple:
            tags.clear()
            return spec.BasicAck(0, True)
        kind = rng.randrange(20)
        if kind < 2:
            return spec.BasicRecover(kind == 0 or rng.random() < 0.8)
        return spec.BasicRecoverAsync(True) if kind == 2 else spec.BasicAck(tag, multiple)

    def _consume(self, number: int) -> Any:
        rng = self._rng
        queue, tag = self._name(), f"c{rng.randrange(200)}" if rng.random() < 0.95 else ""
        kind = rng.randrange(10)
        if kind < 2:
            return spec.BasicCancel(f"c{rng.randrange(200)}", rng.random() < 0.5)
        if kind < 4 and (queue not in STREAMS or rng.random() < 0.02):  # streams have none: the connection ends
            return spec.BasicGet(queue=queue, no_ack=rng.random() < 0.3)
        if kind == 4:
            return spec.BasicQos(rng.random() < 0.01, rng.choice((1, 10) if rng.random() < 0.98 else (0,)), rng.random() < 0.3)
        arguments: dict[str, Any] = {}
        if queue in STREAMS:
            arguments["x-stream-offset"] = rng.choice(OFFSETS[:5] if rng.random() < 0.8 else OFFSETS)
            if rng.random() < 0.5:
                arguments["x-group"] = rng.choice(("g", "h"))
            if rng.random() < 0.1:
                arguments |= {"x-stream-filter": rng.choice(("f", ["f", "g"], [])), "x-stream-match-unfiltered": rng.random() < 0.5}
        if rng.random() < 0.3:
            arguments["x-priority"] = rng.choice((-3, 0, 3, 2**31 - 1, -(2**31)))
        no_ack = rng.random() < (0.03 if queue in STREAMS else 0.2)
        return spec.BasicConsume(
            queue=queue,
            consumer_tag=tag,
            no_ack=no_ack,
            exclusive=rng.random() < 0.05,
            no_wait=rng.random() < 0.2,
            arguments=self._table(arguments),
        )

    def _queue(self, number: int) -> Any:
        rng = self._rng
        queue, nowait = self._name(), rng.random() < 0.2
        kind = rng.randrange(12)
        if kind == 0:
            return spec.QueuePurge(queue=queue, no_wait=nowait)
        if kind == 1:
            return spec.QueueDelete(queue=queue, if_unused=rng.random() < 0.2, if_empty=rng.random() < 0.2, no_wait=nowait)
        exchange, arguments = (
            rng.choice([*EXCHANGES[1:], FIREHOSE]),
            rng.choice(({}, {"k": 1}, {"x-match": "any", "k": "v"}, {"x-match": "any-with-x", "a": None})),
        )
        key = rng.choice((queue, "#", "*.a", "a.#.b", ""))
        if kind in (2, 3):
            return spec.QueueBind(queue=queue, exchange=exchange, routing_key=key, no_wait=nowait, arguments=arguments)
        if kind == 4:
            return spec.QueueUnbind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments)
        if kind == 5:  # a name of the server's, which "" means from then on
            return spec.QueueDeclare(queue="", exclusive=rng.random() < 0.7, auto_delete=rng.random() < 0.5)
        if kind == 6:
            return spec.QueueDeclare(queue=queue, passive=True)
        shapes = self._shapes.get(queue) or [{}]
        if kind == 7 and rng.random() < 0.5:
            shape = stream_shape(rng) if queue in STREAMS else queue_shape(rng)
        else:
            shape = shapes[rng.random() < 0.1 and len(shapes) > 1]
        return spec.QueueDeclare(**(shape | {"queue": queue, "no_wait": nowait, "arguments": self._table(shape.get("arguments", {}))}))

    def _exchange(self, number: int) -> Any:
        rng = self._rng
        name, nowait = rng.choice(("x0", *TYPES)), rng.random() < 0.2
        kind, source, key = rng.randrange(6), rng.choice(EXCHANGES[1:]), rng.choice(self._queues)
        if kind == 0:
            return spec.ExchangeDelete(exchange=name, if_unused=rng.random() < 0.5, no_wait=nowait)
        if kind == 1:
            return spec.ExchangeBind(destination=name, source=source, routing_key=key, no_wait=nowait)
        if kind == 2:
            return spec.ExchangeUnbind(destination=name, source=source, routing_key=key, no_wait=nowait)
        arguments: dict[str, Any] = {"alternate-exchange": rng.choice(EXCHANGES[1:])} if rng.random() < 0.05 else {}
        if name == "once":
            arguments |= {"x-cache-size": 20}
        # one type for each name, most of the time: a second one is refused
        kinds = (TYPES.get(name, "direct"),) if rng.random() < 0.95 else ("direct", "fanout", "topic", "headers", "x-nothing")
        return spec.ExchangeDeclare(
            exchange=name,
            type=rng.choice(kinds),
            durable=rng.random() < 0.97,
            auto_delete=rng.random() < 0.03,
            internal=rng.random() < 0.01,
            no_wait=nowait,
            arguments=self._table(arguments),
        )

    def _channel(self, number: int) -> Any:
        rng = self._rng
        kind = rng.randrange(8)
        if kind < 4 and (self._transactional.get(number) or rng.random() < 0.02):
            return spec.TxCommit() if kind < 3 else spec.TxRollback()
        if kind == 4:
            return spec.ChannelFlow(rng.random() < 0.7)
        if kind == 5 and rng.random() < 0.3:
            return codec.method_frame(number, spec.ChannelClose(200, "", 0, 0)) + self.opening(number)
        return spec.BasicQos(0, rng.choice((1, 50) if rng.random() < 0.98 else (0, 2**16 - 1)), False)

    def _odd(self, number: int) -> bytes:
        """What a client may send and seldom does, and what it must not: heartbeats, new secrets, contents without a method or end, answers
        that nobody asked for, methods of the other side."""
        rng = self._rng
        body = spec.BasicPublish(exchange="", routing_key="q0")
        started = codec.method_frame(number, body) + codec.encode_frame(spec.FRAME_HEADER, number, codec.encode_properties(5000, {}))
        methods: list[Any] = [
            spec.ChannelFlowOk(True),
            spec.ChannelCloseOk(),
            spec.ChannelOpen(),
            spec.BasicCancelOk("c0"),
            spec.BasicDeliver("c0", 1, False, "", "q0"),
            spec.TxSelect(),
            spec.ConfirmSelect(),
        ]
        choices = [codec.method_frame(number, method) for method in methods]
        choices += [codec.encode_frame(spec.FRAME_HEARTBEAT, 0, b"")] * 6
        choices += [codec.method_frame(0, spec.ConnectionUpdateSecret(b"guest", "new"))] * 2
        choices.append(
            codec.method_frame(0, spec.ConnectionClose(200, "bye", 0, 0)) + codec.method_frame(number, spec.BasicGet(queue="q0"))
        )
        choices += [started + codec.encode_frame(spec.FRAME_BODY, number, bytes(2000))] * 3
        choices += [started + codec.encode_frame(spec.FRAME_BODY, number, bytes(5001)), codec.encode_frame(spec.FRAME_BODY, number, b"x")]
        return rng.choice(choices)

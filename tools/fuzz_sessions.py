"""Structured fuzzing of sessions: many connections do everything that AMQP allows, in any order, to the same few queues (`make asan`).

in: --seconds, --seed. out: exit code 0 when no broker died, none logged an error of its own, and each served a new client at its end;
else the seed of the life that failed.

A life is one broker, durable or not, with a few connections that share queues of all kinds, streams among them. What a session does is
decided by its seed; what meets what is up to the threads. Frames are well formed but for one in a few thousand: `make fuzz` is for bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flintmq.protocol.v0_9_1 import codec, spec
from flintmq.testing.broker import Broker

QUEUES = [f"q{n}" for n in range(7)] + ["s0", "s1"]
EXCHANGES = ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "x0", "x1", "nowhere"]
CHANNELS = 3
# seconds of one life; sessions that run in it at once; what a session does before its socket is looked at
LIFE_S, SESSIONS, BURST = 8.0, 4, 12
LOGIN = b"\0guest\0guest"
# methods that bring a content: (class, method) -> the delivery tag stands behind a short string, or not
TAGGED = {(60, 60): True, (60, 71): False}
CHANNEL_CLOSE, CONNECTION_CLOSE = (20, 40), (10, 50)

log = logging.getLogger("fuzz")


class Errors(logging.Handler):
    """Keeps what the broker logged as a mistake of its own: lines with a trace, or that say so."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (record.exc_info and record.exc_info[0] is not None) or "internal error" in record.getMessage():
            self.found.append(logging.Formatter().format(record))


class Session:
    """One client. Args: port; rng: decides all it does."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._port = port
        self._rng = rng
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._tags: dict[int, list[int]] = {}

    def run(self, until: float) -> None:
        """Until the time is over. Connections that the broker ends are made anew."""
        while time.monotonic() < until:
            try:
                self._connect()
                while time.monotonic() < until:
                    burst = b"".join(self._step() for _ in range(self._rng.randrange(1, BURST)))
                    if self._rng.random() < 0.0005:
                        burst = self._damaged(burst)
                    self._send(burst)
                    if self._rng.random() < 0.01:
                        break  # hangs up in the middle of whatever it does
                    if self._rng.random() < 0.9:
                        self._look()
            except OSError:
                pass
            finally:
                self._hang_up()

    # --- the connection ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=10)
        self._buffer.clear()
        start = spec.ConnectionStartOk({"capabilities": {"basic.nack": True, "consumer_cancel_notify": True}}, "PLAIN", LOGIN, "en_US")
        frames = [start, spec.ConnectionTuneOk(2047, self._rng.choice((4096, 131072)), 0), spec.ConnectionOpen("/")]
        self._send(b"AMQP\0\0\x09\x01" + b"".join(codec.method_frame(0, frame) for frame in frames))
        for number in range(1, CHANNELS + 1):
            self._open(number)

    def _open(self, number: int) -> None:
        self._tags[number] = []
        self._send(codec.method_frame(number, spec.ChannelOpen()))
        kind = self._rng.randrange(4)
        if kind == 0:
            self._send(codec.method_frame(number, spec.TxSelect()))
        elif kind == 1:
            self._send(codec.method_frame(number, spec.ConfirmSelect()))
        self._send(codec.method_frame(number, spec.BasicQos(0, self._rng.choice((1, 5, 100)), False)))

    def _send(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def _hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                if self._rng.random() < 0.3:  # a reset, not an end
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._socket.close()

    def _damaged(self, burst: bytes) -> bytes:
        changed = bytearray(burst)
        changed[self._rng.randrange(len(changed))] = self._rng.randrange(256)
        return bytes(changed)

    def _look(self) -> None:
        """Reads what is there: tags of deliveries, channels that were closed."""
        assert self._socket is not None
        self._socket.settimeout(self._rng.choice((0.0001, 0.002, 0.01)))
        try:
            with contextlib.suppress(TimeoutError):
                while True:
                    data = self._socket.recv(1 << 18)
                    if not data:
                        raise ConnectionError("the broker hung up")
                    self._buffer += data
        finally:
            self._socket.settimeout(10)
            self._take()

    def _take(self) -> None:
        while len(self._buffer) >= 7:
            kind, number, size = struct.unpack_from(">BHI", self._buffer)
            if len(self._buffer) < size + 8:
                return
            payload = bytes(self._buffer[7 : 7 + size])
            del self._buffer[: size + 8]
            if kind == 1:
                self._method(number, struct.unpack_from(">HH", payload), payload)

    def _method(self, number: int, which: tuple[int, ...], payload: bytes) -> None:
        if which == CONNECTION_CLOSE:
            raise ConnectionError("closed by the broker")
        if which == CHANNEL_CLOSE:
            self._send(codec.method_frame(number, spec.ChannelCloseOk()))
            self._open(number)
        elif which in TAGGED:
            at = 5 + payload[4] if TAGGED[which[0], which[1]] else 4
            tags = self._tags.setdefault(number, [])
            tags.append(struct.unpack_from(">Q", payload, at)[0])
            del tags[:-500]

    # --- what it does -------------------------------------------------------------------------------------------------------

    def _step(self) -> bytes:
        rng = self._rng
        number = rng.randrange(1, CHANNELS + 1)
        kind = rng.choices(("publish", "settle", "consume", "queue", "exchange", "channel"), (40, 25, 14, 9, 4, 6))[0]
        steps: dict[str, Any] = {
            "publish": self._publish,
            "settle": self._settle,
            "consume": self._consume,
            "queue": self._queue,
            "exchange": self._exchange,
            "channel": self._channel,
        }
        made = steps[kind](number)
        return made if isinstance(made, bytes) else codec.method_frame(number, made)

    def _publish(self, number: int) -> bytes:
        rng = self._rng
        body = bytes(rng.choice((0, 1, 100, 100, 3000, 70_000, 300_000) if rng.random() < 0.05 else (0, 10, 200)))
        properties: dict[str, Any] = {"delivery_mode": rng.choice((1, 2))}
        if rng.random() < 0.2:
            properties["expiration"] = rng.choice(("0", "1", "20", "100000"))
        if rng.random() < 0.2:
            properties["priority"] = rng.randrange(12)
        if rng.random() < 0.2:
            names = [rng.choice(QUEUES) for _ in range(rng.randrange(3))]
            properties["headers"] = rng.choice(
                ({"CC": names}, {"BCC": names}, {"a": 1, "t": {"n": [1, None, "x"]}}, {"x-delay": 5}, {"k": "v" * 3000})
            )
        if rng.random() < 0.05:
            properties["reply_to"] = "amq.rabbitmq.reply-to"
        exchange = rng.choice(EXCHANGES) if rng.random() < 0.4 else ""
        frames = [
            codec.method_frame(number, spec.BasicPublish(exchange=exchange, routing_key=rng.choice(QUEUES), mandatory=rng.random() < 0.1))
        ]
        frames.append(codec.encode_frame(spec.FRAME_HEADER, number, codec.encode_properties(len(body), properties)))
        frames += [codec.encode_frame(spec.FRAME_BODY, number, body[at : at + 4000]) for at in range(0, len(body), 4000)]
        return b"".join(frames)

    def _settle(self, number: int) -> Any:
        rng = self._rng
        tags = self._tags.get(number) or [0]
        tag = rng.choice(tags) if rng.random() < 0.97 else rng.choice((0, 2**63, rng.randrange(1000)))
        if tag in tags:
            tags.remove(tag)
        multiple = rng.random() < 0.2
        kind = rng.randrange(6)
        if kind < 3:
            return spec.BasicAck(tag, multiple)
        if kind == 3:
            return spec.BasicNack(tag, multiple, rng.random() < 0.5)
        if kind == 4:
            return spec.BasicReject(tag, rng.random() < 0.5)
        return spec.BasicRecover(True) if rng.random() < 0.1 else spec.BasicAck(0, True)

    def _consume(self, number: int) -> Any:
        rng = self._rng
        queue, tag = rng.choice(QUEUES), f"c{rng.randrange(6)}"
        kind = rng.randrange(10)
        if kind < 2:
            return spec.BasicCancel(tag, rng.random() < 0.5)
        if kind < 4:
            return spec.BasicGet(queue=queue, no_ack=rng.random() < 0.3)
        if kind == 4:
            return spec.BasicQos(0, rng.choice((0, 1, 10)), rng.random() < 0.3)
        arguments: dict[str, Any] = {}
        if queue.startswith("s"):
            arguments["x-stream-offset"] = rng.choice(("first", "last", "next", 0, 5))
            if rng.random() < 0.5:
                arguments["x-group"] = rng.choice(("g", "h"))
        elif rng.random() < 0.3:
            arguments["x-priority"] = rng.randrange(-3, 4)
        no_ack = rng.random() < 0.2 and not queue.startswith("s")
        return spec.BasicConsume(queue=queue, consumer_tag=tag, no_ack=no_ack, exclusive=rng.random() < 0.05, arguments=arguments)

    def _queue(self, number: int) -> Any:
        rng = self._rng
        queue = rng.choice(QUEUES)
        kind = rng.randrange(10)
        if kind == 0:
            return spec.QueuePurge(queue=queue)
        if kind == 1:
            return spec.QueueDelete(queue=queue, if_unused=rng.random() < 0.2, if_empty=rng.random() < 0.2)
        if kind == 2:
            return spec.QueueBind(
                queue=queue, exchange=rng.choice(EXCHANGES[1:]), routing_key=rng.choice((queue, "#", "*.a")), arguments={"k": 1}
            )
        if kind == 3:
            return spec.QueueUnbind(queue=queue, exchange=rng.choice(EXCHANGES[1:]), routing_key=queue)
        if queue.startswith("s"):
            more: dict[str, Any] = rng.choice(({}, {"x-dead-letter-exchange": ""}, {"x-max-length-bytes": 2_000_000}))
            return spec.QueueDeclare(queue=queue, durable=True, arguments={"x-queue-type": "stream", **more})
        arguments: dict[str, Any] = {}
        choices: dict[str, Any] = {
            "x-max-length": rng.choice((0, 1, 20)),
            "x-overflow": rng.choice(("drop-head", "reject-publish", "reject-publish-dlx")),
            "x-dead-letter-exchange": rng.choice(("", "x0", "amq.fanout")),
            "x-dead-letter-routing-key": rng.choice(QUEUES),
            "x-message-ttl": rng.choice((0, 5, 50)),
            "x-expires": rng.choice((20, 500)),
            "x-max-priority": rng.choice((1, 9)),
            "x-single-active-consumer": True,
            "x-delivery-limit": rng.choice((0, 2)),
        }
        for name, value in choices.items():
            if rng.random() < 0.2:
                arguments[name] = value
        exclusive, gone = rng.random() < 0.05, rng.random() < 0.1
        return spec.QueueDeclare(queue=queue, durable=rng.random() < 0.6, exclusive=exclusive, auto_delete=gone, arguments=arguments)

    def _exchange(self, number: int) -> Any:
        rng = self._rng
        name = rng.choice(("x0", "x1"))
        kind = rng.randrange(4)
        if kind == 0:
            return spec.ExchangeDelete(exchange=name, if_unused=rng.random() < 0.5)
        if kind == 1:
            return spec.ExchangeBind(destination=name, source=rng.choice(EXCHANGES[1:]), routing_key=rng.choice(QUEUES))
        arguments = {"alternate-exchange": rng.choice(EXCHANGES[1:])} if rng.random() < 0.3 else {}
        return spec.ExchangeDeclare(
            exchange=name, type=rng.choice(("direct", "fanout", "topic", "headers")), durable=True, arguments=arguments
        )

    def _channel(self, number: int) -> Any:
        rng = self._rng
        kind = rng.randrange(8)
        if kind < 4:
            return spec.TxCommit() if kind < 3 else spec.TxRollback()
        if kind == 4:
            return spec.ChannelFlow(rng.random() < 0.7)
        if kind == 5 and rng.random() < 0.3:
            self._tags[number] = []
            return codec.method_frame(number, spec.ChannelClose(200, "", 0, 0)) + codec.method_frame(number, spec.ChannelOpen())
        return spec.BasicQos(0, rng.choice((0, 1, 50)), False)


def serves(port: int) -> bool:
    """Whether a new client gets its message: the broker is well."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        start = spec.ConnectionStartOk({}, "PLAIN", LOGIN, "en_US")
        frames = [(0, start), (0, spec.ConnectionTuneOk(10, 131072, 0)), (0, spec.ConnectionOpen("/")), (1, spec.ChannelOpen())]
        frames.append((1, spec.QueueDeclare(queue="canary", exclusive=True)))
        client.sendall(b"AMQP\0\0\x09\x01" + b"".join(codec.method_frame(number, frame) for number, frame in frames))
        client.sendall(codec.method_frame(1, spec.BasicPublish(routing_key="canary")))
        client.sendall(
            codec.encode_frame(spec.FRAME_HEADER, 1, codec.encode_properties(6, {})) + codec.encode_frame(spec.FRAME_BODY, 1, b"canary")
        )
        client.sendall(codec.method_frame(1, spec.BasicGet(queue="canary", no_ack=True)))
        seen = b""
        while b"canary\xce" not in seen:
            data = client.recv(1 << 16)
            if not data:
                return False
            seen += data
    return True


def life(seed: int, seconds: float, directory: str | None) -> list[str]:
    """One broker. Returns what went wrong."""
    errors = Errors()
    logging.getLogger("flintmq").addHandler(errors)
    rng = random.Random(seed)
    options: dict[str, Any] = {"io_threads": rng.choice((1, 2))}
    if directory is not None:
        options |= {"data_dir": directory, "container_size": 524_288, "flight_port": None}
    try:
        with Broker(limits={"housekeeping_ms": 20}, **options) as broker:
            until = time.monotonic() + seconds
            sessions = [Session(broker.port, random.Random(seed * 1000 + number)) for number in range(SESSIONS)]
            threads = [threading.Thread(target=session.run, args=(until,)) for session in sessions]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not serves(broker.port):
                errors.found.append("a new client was not served")
    finally:
        logging.getLogger("flintmq").removeHandler(errors)
    return errors.found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first life; each life has the next one")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    until, seed = time.monotonic() + options.seconds, options.seed
    failed = 0
    with tempfile.TemporaryDirectory(prefix="flintmq-fuzz-") as scratch:
        while time.monotonic() < until:
            # Every third life keeps nothing; of two that do, the second finds what the first left.
            directory = None if seed % 3 == 2 else str(Path(scratch) / f"d{seed // 3}")
            found = life(seed, min(LIFE_S, max(1.0, until - time.monotonic())), directory)
            if found:
                failed += 1
                print(f"seed {seed}: {len(found)} errors, the first:\n{found[0]}", file=sys.stderr, flush=True)
            seed += 1
    print(f"fuzz_sessions: {seed - options.seed} lives, {failed} with errors", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

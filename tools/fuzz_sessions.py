"""Structured fuzzing of sessions: many connections do everything that AMQP allows, in any order, to the same few queues (`make asan`).

in: --seconds, --seed. out: exit code 0 when no broker died, none logged an error of its own, and each served a new client at its end;
else the seed of the life that failed.

A life is one broker, durable or not, with a few connections that share queues of all kinds, streams among them, and one client that pulls
over HTTP. Its limits are small or not: bodies in memory, output, slices, turns, transactions. What a session does is decided by its seed
(`tools/fuzz_steps.py`); what meets what is up to the threads. Frames are well formed but for one in a few thousand: `make fuzz` is for
bytes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import logging
import random
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from flintmq.protocol.v0_9_1 import codec, spec
from flintmq.testing.broker import Broker
from tools.fuzz_steps import CHANNELS, QUEUES, REPLY_TO, Steps, shapes_of

# seconds of one life; sessions that run in it at once; what a session does before its socket is looked at
LIFE_S, SESSIONS, BURST = 8.0, 4, 12
# seconds that a client waits for its socket before it hangs up: the broker does not read from everybody at all times
PATIENCE_S = 3
LOGIN = b"\0guest\0guest"
# methods that bring a content: (class, method) -> the delivery tag stands behind a short string, or not
TAGGED = {(60, 60): True, (60, 71): False}
TUNE = spec.ConnectionTune.ID.to_bytes(4, "big")
CHANNEL_CLOSE, CONNECTION_CLOSE = (20, 40), (10, 50)
# limits of a life: each is as it is, or one of these, so that what is behind it is met within seconds
SMALL: dict[str, tuple[int, ...]] = {
    "queue_hot_bytes": (0, 2000),
    "content_memory_max": (0, 20_000),
    "stream_hot_bytes": (65_536,),
    "stream_open_max": (3, 50),
    "output_bytes_high": (5_000, 40_000),
    "output_asks_max": (2_000, 50_000),
    "sweep_places": (1, 20),
    "turn_us": (20,),
    "turn_messages_max": (1, 10),
    "jobs_us": (20,),
    "tx_bytes_max": (3_000, 100_000),
    "channel_consumers_max": (10,),
    "channel_commits_max": (1, 3),
    "route_cache_max": (1, 3),
    "memory_sweep_ms": (5,),
    "memory_sweep_least": (1,),
    "pull_idle_ms": (10,),
    "pull_leases_max": (20,),
}

log = logging.getLogger("fuzz")


class Errors(logging.Handler):
    """Keeps what the broker logged as a mistake of its own: lines with a trace, or that say so."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if (record.exc_info and record.exc_info[0] is not None) or "internal error" in record.getMessage():
            self.found.append(logging.Formatter().format(record))


def log_in(client: socket.socket, capabilities: dict[str, Any], frame_max: int, heartbeat: int) -> None:
    """Opens the connection, as far as its answers are waited for at all: until the password was checked."""
    start = spec.ConnectionStartOk({"capabilities": capabilities}, "PLAIN", LOGIN, "en_US")
    client.sendall(b"AMQP\0\0\x09\x01" + codec.method_frame(0, start))
    seen = b""
    while TUNE not in seen and (data := client.recv(4096)):
        seen += data
    client.sendall(
        codec.method_frame(0, spec.ConnectionTuneOk(2047, frame_max, heartbeat)) + codec.method_frame(0, spec.ConnectionOpen("/"))
    )


class Session:
    """One client. Args: port; rng: decides all it does; shapes: of the queues of this life."""

    def __init__(self, port: int, rng: random.Random, shapes: dict[str, list[dict[str, Any]]]) -> None:
        self._port = port
        self._rng = rng
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self.steps = Steps(rng, shapes)

    def run(self, over: threading.Event) -> None:
        """Until the life is over. Connections that the broker ends are made anew."""
        while not over.is_set():
            try:
                self._connect()
                while not over.is_set() and self._burst():
                    pass
            except OSError:
                time.sleep(0.002)  # the broker may be stopping
            finally:
                self._hang_up()

    def _burst(self) -> bool:
        """Some steps, and a look at what came back. Returns whether the connection goes on."""
        rng = self._rng
        burst = b"".join(self.steps.step() for _ in range(rng.randrange(1, BURST)))
        if rng.random() < 0.0005:
            burst = self._damaged(burst)
        if rng.random() < 0.01:  # hangs up in the middle of whatever it does, in the middle of a frame as well
            self._send(burst[: rng.randrange(len(burst) + 1)])
            return False
        if rng.random() < 0.05:  # as a network cuts it
            at = rng.randrange(len(burst))
            self._send(burst[:at])
            self._send(burst[at:])
        else:
            self._send(burst)
        if rng.random() < 0.002:  # reads nothing for a while, and says more
            until = time.monotonic() + rng.choice((0.05, 0.5))
            while time.monotonic() < until:
                self._send(self.steps.step())
        elif rng.random() < 0.9:
            self._look()
        return True

    # --- the connection ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
        self._buffer.clear()
        names = {
            name: self._rng.random() < 0.9 for name in ("basic.nack", "consumer_cancel_notify", "connection.blocked", "publisher_confirms")
        }
        log_in(self._socket, names, self._rng.choice((4096, 131072)), self._rng.choice((0, 0, 0, 1)))
        self._send(b"".join(self.steps.opening(number) for number in range(1, CHANNELS + 1)))

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
                for _ in range(50):
                    data = self._socket.recv(1 << 18)
                    if not data:
                        raise ConnectionError("the broker hung up")
                    self._buffer += data
        finally:
            self._socket.settimeout(PATIENCE_S)
            self._take()

    def _take(self) -> None:
        at = 0
        while len(self._buffer) >= at + 7:
            kind, number, size = struct.unpack_from(">BHI", self._buffer, at)
            if len(self._buffer) < at + size + 8:
                break
            payload = bytes(self._buffer[at + 7 : at + 7 + size])
            at += size + 8
            if kind == spec.FRAME_METHOD:
                self._method(number, struct.unpack_from(">HH", payload), payload)
            elif kind == spec.FRAME_HEADER:
                self._header(payload)
        del self._buffer[:at]

    def _header(self, payload: bytes) -> None:
        found = payload.find(REPLY_TO.encode() + b".")
        if found > 0:  # the octet before it is its length
            self.steps.replies.append(payload[found : found + payload[found - 1]].decode("utf-8", "surrogateescape"))
            del self.steps.replies[:-8]

    def _method(self, number: int, which: tuple[int, ...], payload: bytes) -> None:
        if which == CONNECTION_CLOSE:
            if self._rng.random() < 0.5:
                self._send(codec.method_frame(0, spec.ConnectionCloseOk()))
            raise ConnectionError("closed by the broker")
        if which == CHANNEL_CLOSE:
            self._send(codec.method_frame(number, spec.ChannelCloseOk()) + self.steps.opening(number))
        elif which in TAGGED:
            at = 5 + payload[4] if TAGGED[which[0], which[1]] else 4
            tags = self.steps.tags.setdefault(number, [])
            tags.append(struct.unpack_from(">Q", payload, at)[0])
            del tags[:-500]


class Puller:
    """A client that pulls over HTTP: messages of the same queues, for groups; settles its leases, or not. Args: as of Session."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._port = port
        self._rng = rng
        self._leases: dict[str, list[str]] = {}
        self._headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "content-type": "application/json"}
        self.made = 0

    def run(self, over: threading.Event) -> None:
        """Until the life is over."""
        while not over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
            try:
                for _ in range(self._rng.randrange(1, 50)):
                    if not over.is_set():
                        self._step(connection)
                        time.sleep(self._rng.choice((0, 0.005, 0.02)))
            except (OSError, http.client.HTTPException):
                time.sleep(0.002)
            finally:
                connection.close()

    def _step(self, connection: http.client.HTTPConnection) -> None:
        rng = self._rng
        queue = rng.choice(QUEUES)
        path = f"/api/v1/queues/%2F/{queue}/messages"
        self.made += 1
        kind = rng.randrange(10)
        body = ""
        if kind < 5:
            group, offset = rng.choice(("", "g", "h")), rng.choice(("first", "next", "last", "3"))
            count, hold, visibility = rng.choice((1, 20)), rng.choice((0, 0, 0.05)), rng.choice((1, 30))
            path += f"/pull?group={group}&count={count}&hold={hold}&visibility={visibility}&offset={offset}"
        elif kind < 8:
            leases = self._leases.pop(queue, []) or ["1.1"]
            path += rng.choice(("/ack", "/nack", "/extend"))
            body = json.dumps({"leases": leases, **({"delay": 0.05} if path.endswith("nack") and rng.random() < 0.5 else {})})
        elif kind == 8:
            body = json.dumps({"body": "x" * rng.choice((1, 5000)), "properties": {"priority": 3}})
        else:
            path = rng.choice((path.removesuffix("/messages"), "/metrics", "/api/v1/actors"))
        connection.request("POST" if kind < 9 else "GET", path, body, self._headers)
        if rng.random() < 0.02:
            raise ConnectionError("hangs up before the answer")
        answer = connection.getresponse().read()
        if kind < 5 and rng.random() < 0.9:
            with contextlib.suppress(ValueError, AttributeError, KeyError):
                self._leases.setdefault(queue, []).extend(message["lease"] for message in json.loads(answer).get("messages", []))


def serves(port: int, publishes: bool) -> bool:
    """Whether a new client gets its message (where publishers may be blocked: its answer): the broker is well."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        log_in(client, {}, 131072, 0)
        client.sendall(codec.method_frame(1, spec.ChannelOpen()) + codec.method_frame(1, spec.QueueDeclare(queue="canary", exclusive=True)))
        wanted = b"\x06canary"  # of queue.declare-ok
        if publishes:
            client.sendall(codec.method_frame(1, spec.BasicPublish(routing_key="canary")))
            client.sendall(codec.encode_frame(spec.FRAME_HEADER, 1, codec.encode_properties(6, {})))
            client.sendall(codec.encode_frame(spec.FRAME_BODY, 1, b"canary"))
            client.sendall(codec.method_frame(1, spec.BasicGet(queue="canary", no_ack=True)))
            wanted = b"canary\xce"
        seen = b""
        while wanted not in seen:
            data = client.recv(1 << 16)
            if not data:
                return False
            seen += data
    return True


def options_of(rng: random.Random, directory: str | None) -> tuple[dict[str, int], dict[str, Any]]:
    """Limits and other options of a life's broker."""
    limits = {"housekeeping_ms": 20} | {name: rng.choice(values) for name, values in SMALL.items() if rng.random() < 0.2}
    if "output_bytes_high" in limits:
        limits["output_bytes_low"] = limits["output_bytes_high"] // 4
    options: dict[str, Any] = {"io_threads": rng.choice((1, 2)), "http_port": 0}
    if rng.random() < 0.2:
        options["memory_limit"] = rng.choice((100_000, 2_000_000))
    if directory is not None:
        options |= {"data_dir": directory, "container_size": 524_288, "flight_port": None}
    return limits, options


def watched(client: Session | Puller, over: threading.Event, errors: Errors) -> None:
    """Runs a client. A mistake of its own is told as well: a client that is dead finds nothing."""
    try:
        client.run(over)
    except Exception:
        errors.found.append(f"a client failed:\n{traceback.format_exc()}")


def life(seed: int, seconds: float, directory: str | None) -> tuple[list[str], int]:
    """One broker. Returns what went wrong, and how many steps its clients made."""
    errors = Errors()
    logging.getLogger("flintmq").addHandler(errors)
    rng = random.Random(seed)
    limits, options = options_of(rng, directory)
    shapes = shapes_of(rng, directory is not None)
    clients: list[Session | Puller] = []
    over = threading.Event()
    early = rng.random() < 0.2  # the broker is stopped while its clients are at work
    try:
        with Broker(limits=limits, **options) as broker:
            if rng.random() < 0.3 and broker.node.broker is not None:
                broker.node.broker.tracer.turn("/", True)
            clients += [Session(broker.port, random.Random(seed * 1000 + number), shapes) for number in range(SESSIONS)]
            clients.append(Puller(broker.node.http_port or 0, random.Random(seed * 1000 + SESSIONS)))
            threads = [threading.Thread(target=watched, args=(client, over, errors)) for client in clients]
            for thread in threads:
                thread.start()
            over.wait(seconds * (rng.random() if early else 1))
            if not early:
                over.set()
                for thread in threads:
                    thread.join()
            try:
                if not serves(broker.port, publishes="memory_limit" not in options):
                    errors.found.append("a new client was hung up on")
            except OSError as error:
                errors.found.append(f"a new client was not served: {error}")
        over.set()
        for thread in threads:
            thread.join()
    finally:
        logging.getLogger("flintmq").removeHandler(errors)
    return errors.found, sum(client.made if isinstance(client, Puller) else client.steps.made for client in clients)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first life; each life has the next one")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    until, seed = time.monotonic() + options.seconds, options.seed
    failed = made = 0
    with tempfile.TemporaryDirectory(prefix="flintmq-fuzz-") as scratch:
        while time.monotonic() < until:
            # Every third life keeps nothing; of two that do, the second finds what the first left.
            directory = None if seed % 3 == 2 else str(Path(scratch) / f"d{seed // 3}")
            print(f"life {seed}", file=sys.stderr, flush=True)  # the last one that is named is the one that died
            found, steps = life(seed, min(LIFE_S, max(1.0, until - time.monotonic())), directory)
            made += steps
            if found:
                failed += 1
                print(f"seed {seed}: {len(found)} errors, the first:\n{found[0]}", file=sys.stderr, flush=True)
            seed += 1
    print(f"fuzz_sessions: {seed - options.seed} lives, {made} steps, {failed} with errors", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

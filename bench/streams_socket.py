"""Streams over sockets: one producer, ten consumer groups, what the broker delivers a second and what that costs it.

`python bench/streams_socket.py [--messages 1000000] [--groups 10] [--size 100] [--prefetch 10000] [--io-threads 1] [--json]`

in: a broker of its own on a temporary store. out: two rows, `live` (the groups read while the producer publishes with confirms) and
`replay` (everything is in the stream, new groups read it from the first offset): messages and deliveries a second, broker cpu seconds
per million deliveries, cpu seconds of the clients.

Goal: that of bench/streams.py, for `live`; exit code 1 when it is missed.

B1  Every group gets every message: counted, and each group's place is asked of the broker's own count at the end.
B2  The clients do nothing but count bytes: all messages have one size, so have their frames. Acknowledged a thousand at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.streams import goal_missed  # noqa: E402
from tests.support.broker import Broker  # noqa: E402
from tests.support.rawamqp import RawChannel, RawConnection  # noqa: E402
from tests.support.rawcodec import method_frame, publish_bytes  # noqa: E402

ACK_EVERY = 1_000
TAG = "c"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Reader:
    """One group's consumer: counts deliveries by bytes, acknowledges."""

    def __init__(self, port: int, stream: str, group: str, offset: object, prefetch: int, frame: int) -> None:
        self.connection = RawConnection("127.0.0.1", port).open()
        channel = self.connection.channel()
        channel.call("basic.qos", prefetch_count=prefetch)
        channel.consume(stream, TAG, arguments={"x-group": group, "x-stream-offset": offset})
        self.frame = frame
        self.bytes = len(self.connection.buffer)
        self.acked = 0
        self.every = min(ACK_EVERY, prefetch // 2)

    @property
    def count(self) -> int:
        return self.bytes // self.frame

    def read(self, buffer: bytearray) -> None:
        size = self.connection.sock.recv_into(buffer)
        if not size:
            raise SystemExit("the broker closed a connection")
        self.bytes += size
        count = self.count
        if count - self.acked >= self.every:
            self.acked = count
            self.connection.sock.sendall(method_frame(1, "basic.ack", delivery_tag=count, multiple=True))

    def finish(self) -> None:
        self.connection.sock.sendall(method_frame(1, "basic.ack", delivery_tag=0, multiple=True))
        self.connection.sock.setblocking(True)


def frame_size(port: int, stream: str, body: bytes) -> int:
    """Bytes of one delivery on the wire, measured."""
    connection = RawConnection("127.0.0.1", port).open()
    channel = connection.channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.call("confirm.select")
    channel.publish(body, routing_key=stream, delivery_mode=2)
    channel.expect("basic.ack")
    channel.consume(stream, TAG, arguments={"x-stream-offset": "first"})
    size = len(connection.buffer)
    while size == 0 or select_more(connection.sock):
        size += len(connection.sock.recv(65536))
    connection.drop()
    return size


def select_more(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0.3))


def produce(channel: RawChannel, stream: str, body: bytes, messages: int, window: int = 4_000) -> None:
    """Publishes with confirms, at most `window` messages unconfirmed."""
    one = publish_bytes(1, body, routing_key=stream, delivery_mode=2)
    step = 500
    block = one * step
    sock = channel.connection.sock
    sent = confirmed = 0
    rest = b""
    while confirmed < messages:
        if sent < messages and sent - confirmed <= window - step:
            sock.sendall(block)
            sent += step
            continue
        rest += sock.recv(1 << 16)
        whole = len(rest) // 21  # basic.ack: 7 + 13 + 1 bytes
        if whole:
            confirmed = struct.unpack_from(">Q", rest, (whole - 1) * 21 + 11)[0]
            rest = rest[whole * 21 :]


def run(broker: Broker, stream: str, options: argparse.Namespace, frame: int, live: bool) -> dict[str, Any]:
    """One row: the groups read `messages` messages each, published meanwhile (`live`) or before."""
    messages = options.messages
    name = "live" if live else "replay"
    readers = [
        Reader(broker.port, stream, f"{name}-{number}", "next" if live else 1, options.prefetch, frame) for number in range(options.groups)
    ]
    selector = selectors.DefaultSelector()
    for reader in readers:
        reader.connection.sock.setblocking(False)
        selector.register(reader.connection.sock, selectors.EVENT_READ, reader)
    pid = broker.pid
    assert pid is not None
    before, ours, start = cpu_s(pid), time.process_time(), time.perf_counter()
    producing = None
    if live:
        channel = RawConnection("127.0.0.1", broker.port).open().channel()
        channel.call("confirm.select")
        producing = threading.Thread(target=produce, args=(channel, stream, b"x" * options.size, messages))
        producing.start()
    buffer = bytearray(1 << 20)
    left = len(readers)
    while left:
        for key, _ in selector.select(30) or sys.exit("nothing is delivered any more"):
            reader = key.data
            reader.read(buffer)
            if reader.count >= messages:
                selector.unregister(reader.connection.sock)
                reader.finish()
                left -= 1
    seconds = time.perf_counter() - start
    if producing is not None:
        producing.join()
    cpu = cpu_s(pid) - before
    assert all(reader.bytes == messages * frame for reader in readers), [reader.bytes / frame for reader in readers]
    deliveries = messages * len(readers)
    row = {
        "row": name,
        "groups": len(readers),
        "size": options.size,
        "messages": messages,
        "messages_s": round(messages / seconds),
        "deliveries_s": round(deliveries / seconds),
        "cpu_s_per_million": round(cpu / deliveries * 1e6, 3),
        "broker_cpu_s": round(cpu, 2),
        "client_cpu_s": round(time.process_time() - ours, 2),
        "seconds": round(seconds, 2),
    }
    for reader in readers:
        reader.connection.drop()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="per row, a multiple of 500")
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--prefetch", type=int, default=10_000)
    parser.add_argument("--io-threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.messages -= options.messages % 500
    rows = []
    with Broker("--io-threads", str(options.io_threads)) as broker:
        setup = RawConnection("127.0.0.1", broker.port).open()
        stream = setup.channel().queue("bench", durable=True, arguments={"x-queue-type": "stream"})
        frame = frame_size(broker.port, stream, b"x" * options.size)
        for live in (True, False):
            row = run(broker, stream, options, frame, live)
            rows.append(row)
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    "  ".join(f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in row.items()), flush=True
                )
        setup.drop()
    return 1 if goal_missed(rows, options.groups, options.size, ("live",)) else 0


if __name__ == "__main__":
    raise SystemExit(main())

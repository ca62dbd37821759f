"""What selectors and message groups cost: messages a second, and per second of the broker's processor, beside a plain queue.

    python -m bench.queue_features [--messages 2000000] [--consumers 1000] [--groups 100000] [--only selectors|groups]

in: a broker in memory that is started here. out: one JSON line for each of the two.

Selectors: `--consumers` consumers of one queue, each with `name = 'v<number>'`; each message is wanted by one of them. Groups: a queue with
shared message groups gets messages of `--groups` groups in turn, four consumers with a prefetch of 1,000 acknowledge them; the plain queue
gets the same messages. Publisher and consumers are this process: bytes that were made before, deliveries that are only counted.
Goals: 50,000 messages a second through the selectors; with groups at least half of what the plain queue does (by the broker's
processor time, as this process has a share of the wall clock's). Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import struct
import sys
import threading
import time

from bench.delay_chain import cpu_seconds
from tests.support import servers
from tests.support.rawamqp import RawConnection, method_frame, publish_bytes

SELECTED_PER_S_MIN = 50_000
GROUPED_RATIO_MIN = 0.5
WAIT_S_MAX = 300.0
PREFETCH = 1_000
PIECE = 1_000
GROUP_CONSUMERS = 4
# a delivery: class 60, method 60, a tag of 2 characters, and its delivery tag
_DELIVERY = re.compile(rb"\x01\x00(.)\x00\x00\x00.\x00\x3c\x00\x3c\x02..(.{8})", re.DOTALL)


class Flow:
    """A publisher's connection and a consumer's, and what came."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.publisher = self._open()
        self.consumer = self._open()
        self.came = 0

    def _open(self) -> RawConnection:
        connection = RawConnection("127.0.0.1", self.port, timeout=60)
        connection.open()
        connection.channel(1)
        return connection

    def publish(self, blobs: list[bytes]) -> threading.Thread:
        def send() -> None:
            for blob in blobs:
                self.publisher.send(blob)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        return thread

    def count(self, messages: int, *, acked: bool) -> float:
        """Seconds until so many came. Raises: TimeoutError."""
        sock: socket.socket = self.consumer.sock
        start = time.perf_counter()
        rest = b""
        since: dict[int, int] = {}
        while self.came < messages:
            if time.perf_counter() - start > WAIT_S_MAX:
                raise TimeoutError(f"{self.came} of {messages} came in {WAIT_S_MAX} s")
            data = rest + sock.recv(1 << 18)
            end = 0
            answers = b""
            for found in _DELIVERY.finditer(data):
                end = found.end()
                self.came += 1
                if acked:
                    channel = found[1][0]
                    since[channel] = since.get(channel, 0) + 1
                    if since[channel] == PREFETCH // 4:
                        since[channel] = 0
                        answers += method_frame(channel, "basic.ack", delivery_tag=struct.unpack(">Q", found[2])[0], multiple=True)
            if answers:
                sock.sendall(answers)
            rest = data[end:][-64:]
        return time.perf_counter() - start

    def close(self) -> None:
        self.publisher.drop()
        self.consumer.drop()


def blobs(messages: int, name: str, values: int, letter: str) -> list[bytes]:
    """Publishes of so many messages, PIECE in each; the values come in turn."""
    made = [publish_bytes(1, b"x" * 16, routing_key="q", headers={name: f"{letter}{number}"}) for number in range(values)]
    pieces = [b"".join(made[at : at + PIECE]) for at in range(0, values, PIECE)]
    return [pieces[number % len(pieces)] for number in range(messages // PIECE)]


def measured(port: int, pid: int, prepared: list[bytes], messages: int, consumers: int, **more: object) -> dict[str, float]:
    """One run: more: arguments of the queue; of each consumer, as a list."""
    flow = Flow(port)
    try:
        own = more.pop("selectors", None)
        flow.publisher.send(method_frame(1, "queue.declare", queue="q", arguments=more))
        flow.publisher.expect(1, "queue.declare-ok")
        for number in range(consumers):
            channel = 1 + number % GROUP_CONSUMERS
            if number and number < GROUP_CONSUMERS:
                flow.consumer.channel(channel)
            if own is None:
                flow.consumer.send(method_frame(channel, "basic.qos", prefetch_count=PREFETCH))
                flow.consumer.expect(channel, "basic.qos-ok")
            arguments = {} if own is None else {"x-filter-jms-selector": f"name = 'v{number}'"}
            tag = f"{number:02x}" if own is None else chr(33 + number // 90) + chr(33 + number % 90)
            flow.consumer.send(
                method_frame(channel, "basic.consume", queue="q", consumer_tag=tag, no_ack=own is not None, arguments=arguments)
            )
            flow.consumer.expect(channel, "basic.consume-ok")
        before = cpu_seconds(pid)
        thread = flow.publish(prepared)
        took = flow.count(messages, acked=own is None)
        used = cpu_seconds(pid) - before
        thread.join()
        flow.publisher.send(method_frame(1, "queue.delete", queue="q"))
        flow.publisher.expect(1, "queue.delete-ok")
    finally:
        flow.close()
    return {
        "messages": messages,
        "per_second": round(messages / took),
        "per_cpu_second": round(messages / used),
        "cpu_seconds": round(used, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="a multiple of 1,000, as --groups")
    parser.add_argument("--consumers", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--only", choices=("selectors", "groups"))
    options = parser.parse_args()
    missed = False
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(servers.flintmq("--http-port", "off", "--flight-port", "off", "--memory"))
        if options.only != "groups":
            prepared = blobs(options.messages, "name", options.consumers, "v")
            found = measured(server.port, server.pid, prepared, options.messages, options.consumers, selectors=True)
            print(json.dumps({"what": f"{options.consumers} selectors", **found}))
            missed = found["per_second"] < SELECTED_PER_S_MIN
        if options.only != "selectors":
            prepared = blobs(options.messages, "g", options.groups, "g")
            plain = measured(server.port, server.pid, prepared, options.messages, GROUP_CONSUMERS)
            more = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}
            found = measured(server.port, server.pid, prepared, options.messages, GROUP_CONSUMERS, **more)
            ratio = round(found["per_cpu_second"] / plain["per_cpu_second"], 2)
            print(json.dumps({"what": f"{options.groups} groups", **found, "plain": plain, "ratio": ratio}))
            missed = missed or ratio < GROUPED_RATIO_MIN
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

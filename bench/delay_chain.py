"""Hops of dead letters through a chain of queues with a time to live, as kombu's native delayed delivery has them.

    python -m bench.delay_chain [--messages 4000] [--ttl-ms 1] [--durable] [--port PORT]

in: a broker that is started here (in memory, or with --durable on a store), or the one at --port. out: one JSON line: messages, hops,
seconds from the first publish to the last arrival, hops per second, and per second of the CPU (of a broker that was started here).
Exit code 0; 1 when a message did not arrive within two minutes.

The 28 exchanges are topics and the bindings those of kombu; only the times to live are short, so that what is measured is the hops and not
the waiting. Each message visits every queue: its routing key begins with 28 ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pika

from tests.support import servers

LEVELS = 28
WAIT_S_MAX = 120.0


def declare(ch: pika.adapters.blocking_connection.BlockingChannel, ttl_ms: int, durable: bool) -> None:
    """The exchanges and queues, the last of which is `arrived`."""
    for level in range(LEVELS - 1, -1, -1):
        ch.exchange_declare(f"delay_{level}", "topic", durable=durable)
    ch.exchange_declare("delivery", "topic", durable=durable)
    key = "1.#"
    for level in range(LEVELS - 1, -1, -1):
        name = f"delay_{level}"
        following = f"delay_{level - 1}" if level else "delivery"
        arguments = {"x-message-ttl": ttl_ms, "x-dead-letter-exchange": following, "x-overflow": "reject-publish"}
        ch.queue_declare(name, durable=durable, arguments=arguments)
        ch.queue_bind(name, name, key)
        ch.exchange_bind(following, name, "0.#" if level == LEVELS - 1 else "*." * (LEVELS - 1 - level) + "0.#")
        key = "*." + key
    ch.queue_declare("arrived", durable=durable)
    ch.queue_bind("arrived", "delivery", "#")


def run(port: int, messages: int, ttl_ms: int, durable: bool) -> dict[str, float]:
    """Raises: TimeoutError."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    ch = connection.channel()
    declare(ch, ttl_ms, durable)
    key = "1." * LEVELS + "task"
    properties = pika.BasicProperties(delivery_mode=2 if durable else 1)
    start = time.perf_counter()
    for _ in range(messages):
        ch.basic_publish(f"delay_{LEVELS - 1}", key, b"x" * 200, properties)
    while ch.queue_declare("arrived", passive=True).method.message_count < messages:
        if time.perf_counter() - start > WAIT_S_MAX:
            raise TimeoutError("not all messages arrived")
        time.sleep(0.01)
    took = time.perf_counter() - start
    connection.close()
    return {"messages": messages, "hops": messages * LEVELS, "seconds": round(took, 3), "hops_per_second": round(messages * LEVELS / took)}


def cpu_seconds(pid: int) -> float:
    """Of one process, user and system; 0 for pid 0."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=4000)
    parser.add_argument("--ttl-ms", type=int, default=1)
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("--port", type=int, help="of a broker that runs already")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        port, pid = options.port, 0
        if port is None:
            words = ["--http-port", "off", "--flight-port", "off"]
            if options.durable:
                words += ["--data-dir", str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store")]
            else:
                words.append("--memory")
            server = stack.enter_context(servers.flintmq(*words))
            port, pid = server.port, server.pid
        before = cpu_seconds(pid)
        try:
            found = run(port, options.messages, options.ttl_ms, options.durable)
        except TimeoutError as error:
            print(error, file=sys.stderr)
            return 1
        if pid:
            used = cpu_seconds(pid) - before
            found |= {"cpu_seconds": round(used, 2), "hops_per_cpu_second": round(found["hops"] / used)}
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

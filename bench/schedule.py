"""How fast messages are scheduled, how late they are routed at a steady rate, and what a message that waits takes of memory.

python -m bench.schedule [--messages 1000000] [--rate 10000] [--seconds 5]: a durable node in this process. Inserts go to the schedule's
core, as the message path puts them there; the memory is that of entries (bodies leave memory). Then `--rate` messages a second become due,
and looks at the count of the target queue say how late the latest of them was.
Goals: 200 k/s, 10 ms at 10 k/s, 10 million in 400 MiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from typing import Any

from flintmq.config import Config
from flintmq.core.content import CONTENT_HEADERS, CONTENT_PERSISTENT
from flintmq.core.memory_account import bytes_by_kind
from flintmq.node import Node
from flintmq.protocol.v0_9_1.codec import encode_properties

FLAGS = CONTENT_PERSISTENT | CONTENT_HEADERS
BODY = b"x" * 100
LOOK_S = 0.001


def insert(core: Any, header: bytes, messages: int) -> dict[str, Any]:
    """Messages that are due in an hour."""
    before, began = bytes_by_kind()["entries"], time.perf_counter()
    at = int(time.time() * 1000) + 3_600_000
    for number in range(messages):
        core.publish(b"", b"q", header, BODY, FLAGS, 0, at + number * 7919 % 3_600_000)
    seconds = time.perf_counter() - began
    return {"insert_per_s": round(messages / seconds), "bytes_each": round((bytes_by_kind()["entries"] - before) / messages, 1)}


def fire(core: Any, target: Any, header: bytes, rate: int, seconds: int) -> dict[str, Any]:
    """A steady rate of due messages."""
    count = rate * seconds
    start_ms = int(time.time() * 1000) + 1_500
    times = [start_ms + number * 1000 // rate for number in range(count)]
    for at in times:
        core.publish(b"", b"q", header, BODY, FLAGS, 0, at)
    late: list[float] = []
    done = 0
    while done < count:
        done = target.ready_count()
        if done < count:
            late.append(max(0.0, time.time() * 1000 - times[done]))
        time.sleep(LOOK_S)
    late.sort()
    return {
        "late_ms_p50": round(late[len(late) // 2], 1),
        "late_ms_p99": round(late[int(len(late) * 0.99)], 1),
        "late_ms_worst": round(late[-1], 1),
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Config(port=0, store_dir=directory))
        node.start()
        try:
            vhost = node.broker.vhosts["/"]
            target = vhost.run(vhost.declare_queue("q", durable=True)).core
            core = vhost.run(vhost.open_schedule()).core
            header = encode_properties(len(BODY), {"headers": {"x-delay": -1000}, "delivery_mode": 2})
            figures = {"messages": options.messages, **insert(core, header, options.messages)}
            figures |= {"rate": options.rate, **fire(core, target, header, options.rate, options.seconds)}
        finally:
            node.stop()
    print(json.dumps(figures))
    return int(figures["insert_per_s"] < 200_000 or figures["late_ms_worst"] > 10 or figures["bytes_each"] > 41.9)


if __name__ == "__main__":
    sys.exit(main())

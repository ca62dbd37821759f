"""How exactly messages with random times to live leave one queue, and what that costs.

python -m bench.expiry [--messages 1000000] [--seconds 60] [--durable]: puts the messages on a queue of a node in this process, each with a
time to live of 1 to `--seconds` seconds, then looks at the queue's depth every few milliseconds until it is empty. Entries end in the
order of their times, so the depth says which time was served: the lateness of a look is its time less the earliest time that should still
be there. Processor time is the whole process's, from the last publish to the last expiry, less what as many looks take on an idle queue.
Goal: 1,000,000 messages, each within 50 ms, at most 2 cpu-s; exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import bisect
import json
import random
import sys
import tempfile
import time
from typing import Any

from flintmq.config import Config
from flintmq.core.content import CONTENT_PERSISTENT
from flintmq.node import Node

LATE_MS_MAX = 50
CPU_S_MAX = 2.0
LOOK_S = 0.004
# basic, weight 0, body of 16 bytes, no properties; with delivery-mode 2
HEADER = bytes.fromhex("003c0000000000000000001000") + b"\x00"
DURABLE = bytes.fromhex("003c00000000000000000010100002")


def looks_cost(core: Any, count: int) -> float:
    """Processor seconds of so many looks at a queue, each with the sleep before it, of a node that has nothing to do."""
    start = time.process_time()
    for _ in range(1_000):
        core.ready_count()
        time.time()
        time.sleep(LOOK_S)
    return (time.process_time() - start) / 1_000 * count


def measure(messages: int, seconds: int, durable: bool, directory: str) -> dict[str, Any]:
    """Fills the queue, waits for it to empty, returns the figures."""
    config = Config(port=0, http_port=None, memory=not durable, store_dir=directory if durable else None)
    node = Node(config)
    node.start()
    try:
        queue = node.broker.vhosts["/"].run(node.broker.vhosts["/"].declare_queue("q", durable=durable))
        core = queue.core
        header, flags = (DURABLE, CONTENT_PERSISTENT) if durable else (HEADER, 0)
        rng = random.Random(18)
        # The first is due when all are there.
        start_ms = int(time.time() * 1000) + 1_000 + messages * 6 // 1000
        times = [start_ms + rng.randrange(1_000, seconds * 1000) for _ in range(messages)]
        began = time.perf_counter()
        for at in times:
            core.publish(b"", b"q", header, b"x" * 16, flags, 0, at)
        filled_s = time.perf_counter() - began
        assert time.time() * 1000 < start_ms, "the machine is too slow for this many messages"
        times.sort()
        cpu = time.process_time()
        looks, late_ms, worst = 0, [0.0], 0.0
        while True:
            depth = core.ready_count()
            now_ms = time.time() * 1000
            looks += 1
            if depth:
                late = max(0.0, now_ms - times[messages - depth])
                late_ms.append(late)
                worst = max(worst, late)
            else:
                break
            time.sleep(LOOK_S)
        cpu = time.process_time() - cpu - looks_cost(core, looks)
        late_ms.sort()
        return {
            "messages": messages,
            "durable": durable,
            "filled_s": round(filled_s, 2),
            "looks": looks,
            "late_ms_worst": round(worst, 1),
            "late_ms_p99": round(late_ms[bisect.bisect(range(len(late_ms)), int(len(late_ms) * 0.99)) - 1], 1),
            "cpu_s_per_million": round(cpu / messages * 1e6, 2),
        }
    finally:
        node.stop()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--durable", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(options.messages, options.seconds, options.durable, directory)
    print(json.dumps(figures))
    return int(figures["late_ms_worst"] > LATE_MS_MAX or figures["cpu_s_per_million"] > CPU_S_MAX)


if __name__ == "__main__":
    sys.exit(main())

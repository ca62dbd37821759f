"""Streams in one process: one append, ten consumer groups, what the stream core delivers a second.

`python bench/streams.py [--messages 300000] [--groups 10] [--size 100] [--dir DIR] [--json]`

in: one producer thread, two consumer threads that stand for the broker's loops. out: three rows, each a number of deliveries a second:
`memory` (the core alone, over the twin in memory), `live` (a stream's log on the disk, groups at the head, every message durable before
anybody sees it), `replay` (ten new groups read all of it from the first offset, cold reads on the actor system).

Goal (issue 5): GOAL deliveries a second to ten groups from one append of 100-byte messages; exit code 1 when a row with the producer beside
it misses it. Other groups and sizes have no goal.

B1  A delivery is: taken by the group, header and body copied (as into an output buffer), acked on its own. Every group gets every message.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from flintmq.config import Config, Limits  # noqa: E402
from flintmq.queue.control import QueueHandle  # noqa: E402
from flintmq.scheduler.system import ActorSystem  # noqa: E402
from flintmq.store.log_store import LogStore  # noqa: E402
from flintmq.streams import cold_reads  # noqa: E402
from flintmq.streams.control import StreamQueue  # noqa: E402
from tests.drivers.stream_driver import StreamConsumer  # noqa: E402
from tests.drivers.stream_threads import StreamThreads  # noqa: E402
from tests.twins.memory_stream import MemoryStream  # noqa: E402

QUEUE = 1
PREFETCH = 256
# messages that the producer is ahead of the slowest group: about what back-pressure allows
AHEAD = 20_000
LOOPS = 2
# deliveries a second, and the groups and bytes of a body that it is for
GOAL, GOAL_GROUPS, GOAL_SIZE = 1_000_000, 10, 100


def run_all(calls: list[Callable[[], object]]) -> float:
    """Seconds until all calls, each in a thread, are done."""
    threads = [threading.Thread(target=call) for call in calls]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def row(name: str, stream: StreamQueue, messages: int, size: int, groups: int, log: MemoryStream | None, produce: bool) -> dict[str, Any]:
    """One measurement. Raises AssertionError when a group did not get every message once."""
    threads = StreamThreads(stream, messages, groups, False, log)
    names = [f"{name}-{number}".encode() for number in range(groups)]
    consumers = [StreamConsumer(stream, stream.open_seat("next" if produce else "first", group=group), PREFETCH) for group in names]
    calls: list[Callable[[], object]] = []
    for loop in range(LOOPS):
        mine = list(range(loop, groups, LOOPS))
        chosen = [consumers[number] for number in mine]
        calls.append(lambda chosen=chosen, mine=mine: threads.consume(chosen, mine, copy=True))
    if produce:
        calls.append(lambda: threads.produce(messages, size, publish_every=256, ahead=AHEAD))
    cpu = time.process_time()
    seconds = run_all(calls)
    cpu = time.process_time() - cpu
    results = [threads.results(lane) for lane in range(groups)]
    assert all(result["done"] == result["delivered"] == messages for result in results), results
    figures = stream.groups()
    return {
        "row": name,
        "messages": messages,
        "groups": groups,
        "seconds": round(seconds, 3),
        "deliveries_s": round(messages * groups / seconds),
        "cpu_us_per_delivery": round(cpu * 1e6 / (messages * groups), 3),
        "cold_reads": sum(figures[group]["cold_reads"] for group in names),
        "cold_messages": sum(figures[group]["cold_messages"] for group in names),
    }


def goal_missed(rows: list[dict[str, Any]], groups: int, size: int, names: tuple[str, ...]) -> bool:
    """Whether one of the rows of these names is below the goal; says so on stderr."""
    low = [row for row in rows if row["row"] in names and row["deliveries_s"] < GOAL] if (groups, size) == (GOAL_GROUPS, GOAL_SIZE) else []
    for row in low:
        print(f"goal missed: {row['row']} {row['deliveries_s']:,} deliveries/s, at least {GOAL:,}", file=sys.stderr)
    return bool(low)


def main() -> int:
    parser = argparse.ArgumentParser(description="deliveries a second of one stream with many groups")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--dir", help="where the store goes (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = []
    twin = MemoryStream()
    rows.append(row("memory", StreamQueue(QueueHandle(QUEUE), twin), chosen.messages, chosen.size, chosen.groups, twin, True))
    del twin
    with tempfile.TemporaryDirectory(dir=chosen.dir) as directory:
        store = LogStore.open(None, directory, container_size=Config().container_size)
        actors = ActorSystem(Limits())
        try:
            handle = QueueHandle(QUEUE)
            handle.set_durable(True)
            handle.attach_log(store)
            stream = StreamQueue(handle, store.streams.open(QUEUE))
            actors.start()
            cold_reads.use(stream, actors)
            rows.append(row("live", stream, chosen.messages, chosen.size, chosen.groups, None, True))
            rows.append(row("replay", stream, chosen.messages, chosen.size, chosen.groups, None, False))
            del stream, handle
        finally:
            actors.stop()
            store.close()
    if chosen.json:
        print(json.dumps(rows))
    for figures in [] if chosen.json else rows:
        print(
            f"{figures['row']:7} {figures['deliveries_s']:>11,} deliveries/s  {figures['cpu_us_per_delivery']:.3f} us of cpu each  "
            f"{figures['seconds']:.2f} s  cold reads {figures['cold_reads']:,}"
        )
    return 1 if goal_missed(rows, chosen.groups, chosen.size, ("memory", "live")) else 0


if __name__ == "__main__":
    raise SystemExit(main())

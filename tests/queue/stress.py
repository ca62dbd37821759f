"""Real threads on one queue without the GIL: nothing lost, nothing twice, each producer's order kept, nobody left asleep.

Run as a program (`python -m tests.queue.stress [messages per producer]`) it also serves the ThreadSanitizer build; exit code 1 and
one line per broken property when something is wrong. The test beside it runs the same scenarios.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.drivers.queue_driver import Consumer, Queue
from tests.drivers.queue_threads import Stress
from tests.twins.memory_log import MemoryLog

PRODUCERS = 3
# Wall seconds after which an undrained queue counts as a lost wake-up. Normal runs drain within milliseconds of the last enqueue.
PATIENCE_S = 200.0


@dataclass
class Scenario:
    name: str
    levels: int = 1
    consumers: list[dict] = field(default_factory=lambda: [{}, {}])  # arguments of Consumer
    consume: list[dict] = field(default_factory=lambda: [{}, {}])  # arguments of Stress.consume, one per consumer
    immediate_every: int = 0
    window: int = 0
    remover: bool = False
    browser: bool = False
    hot: int | None = None  # bytes of bodies in memory before arrivals go cold; None: no log at all
    evict: bool = False
    sweep: bool = False  # the memory keeper, with memory always short
    holds: bool = False
    getters: int = 0
    held_every: int = 0


SCENARIOS = [
    Scenario("one consumer", consumers=[{}], consume=[{}]),
    Scenario("several consumers", consumers=[{}] * 4, consume=[{}] * 4),
    Scenario("releases", consumers=[{}] * 3, consume=[{"release_every": 7}, {"release_every": 3}, {}]),
    Scenario("falls idle again and again", window=1, consume=[{}, {}]),
    Scenario("falls idle with credit of one", window=2, consumers=[{"prefetch": 1}, {"prefetch": 1}], consume=[{"release_every": 5}, {}]),
    Scenario(
        "long runs in hand",
        consumers=[{}] * 3,
        consume=[{"hold": 500, "release_every": 3}, {"hold": 300}, {"hold": 90, "release_every": 2}],
    ),
    Scenario("prefetch", consumers=[{"prefetch": 1}, {"prefetch": 5}, {"prefetch": 1}], consume=[{}, {"release_every": 11}, {}]),
    Scenario(
        "come and go",
        consumers=[{}] * 3,
        consume=[{"reattach_every": 1, "release_every": 5}, {"reattach_every": 3}, {"suspend_every": 4}],
    ),
    Scenario(
        "consumer priorities",
        consumers=[{"priority": 5, "prefetch": 2}, {}, {}],
        consume=[{"suspend_every": 3}, {}, {"release_every": 9}],
    ),
    Scenario("removers and browser", remover=True, browser=True, sweep=True, consume=[{"release_every": 5}, {}]),
    Scenario(
        "immediate",
        immediate_every=2,
        consume=[{"reattach_every": 2, "check_order": False}, {"suspend_every": 5, "check_order": False}],
    ),
    Scenario("exclusive", consumers=[{"exclusive": True}], consume=[{"check_order": False, "suspend_every": 7}]),
    Scenario(
        "exclusive, prefetch 1, suspended while it waits",
        consumers=[{"exclusive": True, "prefetch": 1}],
        consume=[{"idle_suspend": True, "check_order": False}],
        window=1,
    ),
    Scenario(
        "immediate, suspended while they wait",
        immediate_every=2,
        consumers=[{"prefetch": 1}, {"prefetch": 1}],
        consume=[{"idle_suspend": True, "check_order": False}, {"idle_suspend": True, "check_order": False}],
        window=2,
    ),
    Scenario(
        "priority list",
        levels=4,
        remover=True,
        browser=True,
        consume=[{"release_every": 6, "check_order": False}, {"check_order": False}],
    ),
    Scenario("cold arrivals", hot=1000, consumers=[{}] * 3, consume=[{}, {"release_every": 7}, {}]),
    Scenario("cold, falls idle again and again", hot=20, evict=True, window=2, consume=[{}, {"release_every": 5}]),
    Scenario("cold, come and go", hot=100, evict=True, sweep=True, consume=[{"reattach_every": 2}, {"suspend_every": 4}]),
    Scenario(
        "long runs in hand leave memory",
        hot=2000,
        sweep=True,
        consumers=[{}] * 3,
        consume=[{"hold": 500, "release_every": 3}, {"hold": 300}, {"hold": 90, "release_every": 2}],
    ),
    Scenario("cold, removers, browser, gets", hot=300, evict=True, sweep=True, remover=True, browser=True, getters=1),
    Scenario("waiting gets alone", hot=50, evict=True, window=2, getters=2, consumers=[], consume=[]),
    Scenario("held entries", hot=200, held_every=3, getters=1, consume=[{"release_every": 9}, {}]),
    Scenario(
        "cold priority list",
        levels=4,
        hot=200,
        evict=True,
        sweep=True,
        holds=True,
        held_every=5,
        getters=1,
        browser=True,
        remover=True,
        consume=[{"release_every": 6, "check_order": False}, {"check_order": False}],
    ),
]


def run(scenario: Scenario, per_producer: int) -> list[str]:
    """Runs one scenario; returns the properties that were broken."""
    log = None if scenario.hot is None else MemoryLog(hot_bytes=scenario.hot)
    queue = Queue(levels=scenario.levels, log=log)
    total = PRODUCERS * per_producer
    stress = Stress(queue, PRODUCERS, per_producer)
    consumers = [Consumer(queue, **arguments) for arguments in scenario.consumers]
    threads: list[threading.Thread] = []

    def start(body: Callable[[], object]) -> None:
        thread = threading.Thread(target=body)
        threads.append(thread)
        thread.start()

    for consumer, arguments in zip(consumers, scenario.consume, strict=True):
        start(lambda c=consumer, a=arguments: stress.consume(c, **a))  # type: ignore[misc]
    if scenario.remover:
        start(lambda: stress.remove(50))
    if scenario.browser:
        browser = Consumer(queue, browser=True)
        start(lambda: stress.browse(browser))
    if log is not None:
        start(stress.load)
    if scenario.evict:
        start(lambda: stress.evict(1, scenario.holds))
    if scenario.sweep:
        start(stress.sweep)
    for _ in range(scenario.getters):
        start(stress.get)
    persistent_every = 2 if log is not None else 0
    for number in range(PRODUCERS):
        start(
            lambda n=number: stress.produce(  # type: ignore[misc]
                n, scenario.immediate_every, scenario.levels, scenario.window, persistent_every, scenario.held_every
            )
        )
    deadline = time.monotonic() + PATIENCE_S
    while stress.results["finished"] < total and time.monotonic() < deadline:
        time.sleep(0.005)
    stress.stop()
    for thread in threads:
        thread.join()
    results = stress.results
    broken = []
    if results["finished"] < total:
        broken.append(f"lost or asleep: {total - results['finished']} of {total} never finished; lists {queue.list_counts()}")
    if results["duplicates"]:
        broken.append(f"duplicates: {results['duplicates']}")
    if results["disorder"]:
        broken.append(f"first deliveries out of order: {results['disorder']}")
    in_use = results["leaked"] + sum(consumer.used for consumer in consumers)
    if not broken and in_use:
        broken.append(f"credit: {in_use} in use with nothing in hand")
    if not broken and (queue.ready, queue.unacked, queue.ready_bytes) != (0, 0, 0):
        broken.append(f"counts: ready {queue.ready}, unacked {queue.unacked}, bytes {queue.ready_bytes} in an empty queue")
    if not broken and queue.enqueued_total != total:
        broken.append(f"enqueued_total {queue.enqueued_total}, expected {total}")
    if not broken and (queue.cold_count, queue.resident_bytes, queue.failed_count) != (0, 0, 0):
        broken.append(f"residency: {queue.cold_count} cold, {queue.resident_bytes} bytes resident in an empty queue")
    if not broken and log is not None and (log.spills != log.unspills or log.misses):
        broken.append(f"page log: {log.spills} spills, {log.unspills} unspills, {log.misses} misses")
    queue.housekeeping()
    queue.housekeeping()
    if not broken and queue.memory > 50_000 * scenario.levels:
        broken.append(f"memory {queue.memory} bytes after everything is gone")
    return [f"{scenario.name}: {text}" for text in broken]


def main() -> int:
    per_producer = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    failed = 0
    for scenario in SCENARIOS:
        begun = time.monotonic()
        broken = run(scenario, per_producer)
        failed += len(broken)
        print(f"{scenario.name}: {'ok' if not broken else 'BROKEN'} ({time.monotonic() - begun:.2f} s)", flush=True)
        for text in broken:
            print("  " + text, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Real threads on the actor system, without the GIL: the scenarios of test_stress.py, also run under ThreadSanitizer.

Usage: python -m tests.scheduler.stress [requests per producer]
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

from flintmq.config import Limits
from flintmq.scheduler.system import ActorSystem
from tests.drivers.actor_driver import Stress

# kinds of requests (actor_driver.py)
PLAIN, PULL, LONG, BROKEN, HELD = range(5)


@dataclass(frozen=True)
class Scenario:
    """Few actors, many hands. `disturb`: keyword arguments of Stress.disturb, None for no disturber."""

    name: str
    keys: int
    mix: tuple[int, ...]
    window: int = 64
    workers: int = 4
    policy: str = "vruntime"
    disturb: dict[str, bool] | None = None


SCENARIOS = (
    Scenario("plain requests", 8, (PLAIN,)),
    Scenario("one actor, all producers", 1, (PLAIN,), window=4),
    Scenario("pulls that park", 4, (PULL,)),
    Scenario("pulls one at a time", 2, (PULL,), window=2, workers=3),
    Scenario("all kinds but broken ones", 4, (PLAIN, PULL, LONG, PULL, HELD), policy="last_run"),
    Scenario("suspended, resumed, retired", 3, (PLAIN, PULL, LONG, PULL, HELD), disturb={}),
    Scenario("pauses after failures", 3, (PULL, PLAIN) * 100 + (BROKEN,), policy="total"),
    Scenario("closed and cancelled", 3, (PLAIN, PULL, LONG, HELD) + (PLAIN,) * 50 + (BROKEN,), disturb={"closes": True, "cancels": True}),
    Scenario("parked and cancelled", 50, (PULL,), workers=2, policy="fifo", disturb={"cancels": True}),
)


def run(scenario: Scenario, per_producer: int, producers: int = 2, timeout_ms: int = 150_000) -> list[str]:
    """What went wrong; empty: nothing."""
    limits = Limits().replace(actor_pause_ms=1, actor_pause_ms_max=2, actor_quantum_us=50, actor_slice_min_us=10)
    actors = ActorSystem(limits, workers=scenario.workers, policy=scenario.policy)
    actors.start()
    stress = Stress(actors, scenario.keys, producers, per_producer)
    mix = bytes(scenario.mix)
    threads = [threading.Thread(target=stress.produce, args=(n, mix, 1, scenario.window)) for n in range(producers)]
    if scenario.disturb is not None:
        threads.append(threading.Thread(target=stress.disturb, kwargs=scenario.disturb))
    for thread in threads:
        thread.start()
    finished = stress.wait(timeout_ms)
    stress.stop()
    for thread in threads:
        thread.join()
    gauges = actors.gauges()
    actors.stop()
    if left := actors.gauges()["actors_alive"]:
        raise AssertionError(f"{left} actors were not freed")
    faults = [f"{name}: {count}" for name, count in stress.faults.items() if count]
    if not finished:
        faults.append("requests were left unanswered: a lost wake or lost work")
    if gauges["parked"]:
        faults.append(f"{gauges['parked']} requests are still counted as parked")
    if gauges["wakes_lost_total"]:
        faults.append(f"{gauges['wakes_lost_total']} wakes were found by a timer")
    if scenario.disturb is None and not set(scenario.mix) & {BROKEN, HELD} and stress.counts[1] != producers * per_producer:
        faults.append(f"not everything was answered MESSAGES: {stress.counts}")
    return faults


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    found = {scenario.name: run(scenario, count) for scenario in SCENARIOS}
    for name, faults in found.items():
        print(f"{name}: {'; '.join(faults) or 'ok'}")
    sys.exit(any(found.values()))

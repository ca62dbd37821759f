"""Power loss at any point of a decision over a set and stages leaves all of it or nothing of it, and a restart completes what was noted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.transactions import Xid
from flintmq.transactions.bulk import ROW
from tests.twins.sim_disk import SimDisk

from ..transactions.on_disk import OnDisk
from ..transactions.test_bulk_model import entry

STORE = Path("/store")
ME = "me"
ROUTES = [(b"", b"one"), (b"", b"both"), (b"", b"nowhere")]
DESTINATIONS = [[3], [2, 3], []]
CONTAINERS = (8192, 16384)
# more than a sector: power may fail between a note and what follows it
PADDING = b" " * 600


class Later:
    """An object whose effects of outcomes wait, as on a busy machine: what is `bulk` of it runs when it is told to."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._waiting: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def bulk(self) -> Any:
        return Later.Bulk(self._real.bulk, self._waiting)

    def go_on(self) -> None:
        """Runs the next of them."""
        if self._waiting:
            self._waiting.pop(0)()

    class Bulk:
        def __init__(self, real: Any, waiting: list[Any]) -> None:
            self._real = real
            self._waiting = waiting

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def in_background(self, work: Any) -> None:
            self._waiting.append(work)


def opened(disk: SimDisk, size: int) -> OnDisk:
    disk.make_dir(str(STORE))
    broker = OnDisk(STORE, files=disk, container_size=size)
    broker.coordinator.select(ME)
    return broker


def state_of(broker: OnDisk) -> list[list[bytes]]:
    return broker.bodies()


class Scenario:
    """Some rounds: each takes a set from queues 1 and 2 and stages messages for 2 and 3, with one stage that loses."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.size = CONTAINERS[seed % len(CONTAINERS)]
        self.disk = SimDisk()
        self.broker = broker = opened(self.disk, self.size)
        self.later = broker.coordinator._store = Later(broker.store)
        for number in range(rng.randint(10, 30)):
            broker.put(1 + number % 2, b"m%d " % number + b"x" * rng.randrange(600))
        broker.settle()
        self.states = {0: state_of(broker)}  # after each round
        self.told: list[tuple[int, int]] = []  # (journal position, round) of answers
        self.prepared: dict[Xid, list[int]] = {}  # positions of sets
        self.begin = self.disk.position
        for number in range(1, rng.randint(1, 3) + 1):
            self.round(rng, number)

    def round(self, rng: random.Random, number: int) -> None:
        broker, coordinator = self.broker, self.broker.coordinator
        taken, won, lost = (Xid(kind, b"%d" % number) for kind in (1, 2, 3))
        coordinator.start(ME, taken)
        for queue in (1, 2):
            coordinator.hold_run(ME, taken, queue, messages_max=rng.randint(1, 8), bytes_max=1 << 20, consumer="sub")
        coordinator.end(ME, taken)
        for xid in (won, lost):
            coordinator.start(ME, xid)
            for _ in range(rng.randint(1, 2)):
                block = b"".join(
                    entry(b"s%d " % rng.randrange(10**6) + b"y" * rng.choice((10, 300, 6000)), rng.randrange(3), rng.randrange(5))
                    for _ in range(rng.randint(1, 5))
                )
                coordinator.enqueue_block(ME, xid, block, ROUTES, DESTINATIONS)
            coordinator.end(ME, xid)
        for xid in (taken, won, lost):
            coordinator.prepare(xid)
            if rng.random() < 0.5:
                broker.step()
        broker.settle()
        outcome = coordinator.decide((2, b"scope", b"%d" % number + PADDING), [taken, won], [lost])
        while not outcome.done:
            if not broker.step():
                self.later.go_on()
            broker.store.maintain()
        self.told.append((self.disk.position, number))
        self.states[number] = state_of(broker)
        if rng.random() < 0.7:
            broker.settle()

    def check(self, disk: SimDisk, position: int) -> int:
        """Restarts, completes as the data plane does, and compares. Returns the round that was found."""
        broker = opened(disk, self.size)
        noted = int(broker.store.notes(2).get(b"scope", b"0").strip())
        coordinator = broker.coordinator
        assert noted >= max((number for at, number in self.told if at <= position), default=0)
        for xid in coordinator.recover():
            for run in coordinator.runs(xid):
                rows, contents = run.rows(0, run.count)
                assert len(rows) == ROW.size * run.count
                assert len(contents) == 0
            number = int(xid.global_id)
            (coordinator.commit if number <= noted and xid.format != 3 else coordinator.rollback)(xid)
        broker.settle()
        assert not coordinator.list()
        found = state_of(broker)
        # A stage's messages may have got other positions by the restart, behind the same ones: the order is the same.
        assert found == self.states[noted], f"round {noted} at {position}"
        report = broker.store.report
        assert not report.damage
        assert not report.lost_count
        broker.store.close(clean=False)  # its reader's memory would stay
        return noted


@pytest.mark.parametrize("seed", range(6))
def test_a_decision_is_whole_at_every_crash_point(seed: int) -> None:
    scenario = Scenario(seed)
    positions = list(range(scenario.begin, scenario.disk.position + 1))
    rng = random.Random(seed)
    seen = set()
    for position in rng.sample(positions, min(len(positions), 80)):
        for image in scenario.disk.images(position, 8, seed):
            seen.add(scenario.check(SimDisk.from_image(image), position))
    assert len(seen) > 1


@pytest.mark.parametrize("seed", range(3))
def test_a_second_crash_while_the_decision_is_completed_changes_nothing(seed: int) -> None:
    scenario = Scenario(seed)
    rng = random.Random(seed)
    positions = range(scenario.begin, scenario.disk.position + 1)
    for position in rng.sample(positions, min(len(positions), 8)):
        image: Any = list(scenario.disk.images(position, 3, seed))[-1]
        disk = SimDisk.from_image(image)
        noted = scenario.check(disk, position)
        for again in rng.sample(range(disk.position + 1), min(disk.position, 8)):
            for second in disk.images(again, 2, seed):
                assert scenario.check(SimDisk.from_image(second), position) == noted

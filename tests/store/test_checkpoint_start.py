"""A start from a checkpoint finds what a start from the whole log finds, whatever happened before, meanwhile and after; and a checkpoint that may
not be believed is not used."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tests.drivers.run_driver")

from flintmq.queue.purge_slices import Sweep
from tests.store.rig import STORE, Rig
from tests.store.test_entry_pager import HEADER, PERSISTENT, fill, page_out, queue_of, rig_of, take_all

LEVELS = {1: 1, 2: 3}


class Broker:
    """Two queues, one of them with priorities, and what must be in them: position -> body."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = rig_of()
        self.cores = {number: queue_of(self.rig, number, levels) for number, levels in LEVELS.items()}
        self.model: dict[int, dict[int, bytes]] = {number: {} for number in LEVELS}
        self.count = 0
        self.used = 0  # starts from a checkpoint
        self.shells = 0

    def step(self) -> None:
        rng = self.rng
        number = rng.choice((1, 1, 2))
        core, model = self.cores[number], self.model[number]
        kind = rng.choice(("publish", "publish", "publish", "take", "settle", "page", "flush", "maintain", "purge"))
        if kind == "publish":
            for _ in range(rng.randrange(60)):
                self.publish(number, rng.randrange(LEVELS[number]))
        elif kind == "take":
            for _ in range(rng.randrange(30)):
                if core.take_head(1) is None:
                    break
            self.look(number)
        elif kind == "settle":
            for position in rng.sample(sorted(model), min(len(model), rng.randrange(6))):
                assert core.hold(position)
                core.settle_held(position, 1, False)
                del model[position]
        elif kind == "page":
            page_out(self.rig)
        elif kind == "flush":
            self.rig.flush()
        elif kind == "maintain":
            self.rig.flush()
            self.rig.store.maintain()
        elif rng.random() < 0.15:
            sweep: Any = Sweep(core, False)
            while not sweep.step(10_000):
                pass
            model.clear()

    def publish(self, number: int, priority: int) -> None:
        self.count += 1
        body = b"%d" % self.count
        position = self.cores[number].publish(b"", b"key", HEADER, body, PERSISTENT, priority)
        assert position
        self.model[number][position] = body

    def shown(self, number: int) -> dict[int, bytes]:
        core, found, position = self.cores[number], {}, 1
        while (entry := core.peek(position)) is not None:
            found[entry[0]] = entry[5]
            position = entry[0] + 1
        return found

    def look(self, number: int) -> None:
        """The model is what the queue shows: heads were taken."""
        shown = self.shown(number)
        assert shown.items() <= self.model[number].items()
        self.model[number] = shown

    def checkpoint(self) -> None:
        meanwhile = self.rng.random() < 0.7

        def between() -> None:
            if meanwhile:
                for _ in range(self.rng.randrange(3)):
                    self.step()

        self.rig.store.checkpoints.write(between)

    def restart(self, clean: bool) -> None:
        self.rig.flush()
        self.rig.reopen(clean=clean)
        recovery = self.rig.store.from_checkpoint
        self.used += recovery
        self.cores = {number: queue_of(self.rig, number, levels) for number, levels in LEVELS.items()}
        for core in self.cores.values():
            self.rig.store.restore(core)
        self.rig.store.restored()
        self.check()

    def check(self) -> None:
        while self.rig.store.pager.figures["burials"]:
            self.rig.store.pager.once()
        # Before anything is read, which brings it back.
        assert {number: core.ready_count() for number, core in self.cores.items()} == {
            number: len(model) for number, model in self.model.items()
        }
        assert self.rig.messages.live_count == sum(map(len, self.model.values()))
        for number, model in self.model.items():
            assert self.shown(number) == model


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_and_nothing_comes_back(seed: int) -> None:
    """Random work, checkpoints in the middle of it, and starts, one behind the other."""
    broker = Broker(seed)
    for _ in range(5):
        for _ in range(broker.rng.randrange(1, 12)):
            broker.step()
            if broker.rng.random() < 0.25:
                broker.checkpoint()
        broker.restart(clean=broker.rng.random() < 0.3)

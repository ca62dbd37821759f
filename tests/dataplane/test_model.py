"""One subscription and one scope against a model, with kills: nothing is lost, nothing comes twice, a planned set is always the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .rig import Rig, block

QUEUES = ("q", "r")


class SubscriptionMachine(RuleBasedStateMachine):
    """What a driver may do in any order, with two drivers, an operator, a competing consumer and kill -9."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="flintmq-dataplane-"))
        self.rig = Rig(self.base / "store")
        self.rig.declare(*QUEUES)
        self.number = 0
        self.home: dict[str, str] = {}  # message -> the queue it began in
        self.waiting: dict[str, list[str]] = {name: [] for name in QUEUES}  # what stands in each queue, in order
        self.output: list[str] = []  # what committed sets gave
        self.gone: list[str] = []  # what a consumer took
        self.set: list[str] | None = None  # the prepared set, as it was read first
        self.committed = 0
        self.planned_epoch = 0
        self.readers: list[dict[str, Any]] = []

    @initialize()
    def opened(self) -> None:
        self.open()

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 5), size=st.integers(1, 40))
    def publish(self, queue: str, count: int, size: int) -> None:
        bodies = [f"{self.number + index}:".ljust(size, ".") for index in range(count)]
        self.number += count
        self.rig.put(queue, *bodies)
        self.waiting[queue] += bodies
        self.home.update(dict.fromkeys(bodies, queue))

    @rule()
    def open(self) -> None:
        self.readers.append(self.rig.open("s", *QUEUES))
        answer = self.rig.call("sub.status", name="s")
        assert answer["committed"] == self.committed
        assert answer["prepared"] == (None if self.set is None else self.committed + 1)

    def reader(self, zombie: bool) -> tuple[dict[str, Any], bool]:
        """The newest reader, or an older one, which is fenced."""
        if zombie and len(self.readers) > 1:
            return self.readers[-2], True
        return self.readers[-1], False

    @rule(zombie=st.booleans(), messages=st.integers(1, 8), size=st.integers(1, 200), redeliver=st.booleans())
    def acquire(self, zombie: bool, messages: int, size: int, redeliver: bool) -> None:
        reader, fenced = self.reader(zombie)
        arguments = {"seq": self.committed + 1, "max_messages": messages, "max_bytes": size, "onlost": "redeliver" if redeliver else "fail"}
        lost = self.set is not None and 0 < self.planned_epoch < reader["epoch"]
        if fenced:
            assert self.rig.code("sub.acquire", **reader, **arguments) == "FENCED"
            return
        if lost and not redeliver:
            assert self.rig.code("sub.acquire", **reader, **arguments) == "CHECKPOINT_LOST"
            return
        if lost:
            self.put_back()
        answer = self.rig.call("sub.acquire", **reader, **arguments)
        if self.set is not None:
            assert answer["count"] == len(self.set)
            return
        assert (answer["count"] > 0) == any(self.waiting.values())
        if not answer["count"]:
            return
        assert answer["count"] <= messages and (answer["bytes"] <= size or answer["count"] == 1)
        taken: list[str] = []
        for one in answer["queues"]:  # each queue gives its first ones
            taken += self.waiting[one["queue"]][: one["count"]]
            del self.waiting[one["queue"]][: one["count"]]
        assert sum(map(len, taken)) == answer["bytes"]
        self.set = taken

    def put_back(self) -> None:
        assert self.set is not None
        back, self.set, self.planned_epoch = self.set, None, 0
        everything = {body for bodies in self.waiting.values() for body in bodies}
        for name in QUEUES:  # in place: the queue itself says where; the model checks that nothing else moved
            found = self.rig_bodies_with(name, back)
            assert [body for body in found if body in everything] == self.waiting[name]
            self.waiting[name] = found

    def rig_bodies_with(self, name: str, back: list[str]) -> list[str]:
        """The queue's order once these have come back: by number, since each queue was filled in that order."""
        mine = [body for body in back if self.home[body] == name]
        return sorted([*self.waiting[name], *mine], key=lambda body: int(body.split(":")[0]))

    @rule(zombie=st.booleans(), slices=st.integers(1, 4))
    @precondition(lambda self: self.set is not None)
    def read(self, zombie: bool, slices: int) -> None:
        reader, fenced = self.reader(zombie)
        if fenced:
            assert self.rig.code("sub.plan", **reader, seq=self.committed + 1) == "FENCED"
            return
        assert self.rig.read(reader, self.committed + 1, slices) == self.set
        self.planned_epoch = reader["epoch"]

    @rule(zombie=st.booleans(), again=st.booleans())
    def commit(self, zombie: bool, again: bool) -> None:
        reader, fenced = self.reader(zombie)
        upto = self.committed + 1
        if fenced:
            assert self.rig.code("sub.commit", **reader, upto=upto) == "FENCED"
            return
        if self.set is None:
            assert self.rig.code("sub.commit", **reader, upto=upto) == "CHECKPOINT_AHEAD"
            return
        assert self.rig.call("sub.commit", **reader, upto=upto) == {"committed": upto}
        if again:
            assert self.rig.call("sub.commit", **reader, upto=upto) == {"committed": upto}
        self.output += self.set
        self.set, self.committed, self.planned_epoch = None, upto, 0

    @rule(action=st.sampled_from(["redeliver", "commit"]))
    @precondition(lambda self: self.set is not None)
    def reset(self, action: str) -> None:
        self.rig.call("sub.reset", name="s", action=action)
        if action == "commit":
            assert self.set is not None
            self.output += self.set
            self.set, self.committed, self.planned_epoch = None, self.committed + 1, 0
        else:
            self.put_back()
        self.open()

    @rule(queue=st.sampled_from(QUEUES))
    @precondition(lambda self: any(self.waiting.values()))
    def consume(self, queue: str) -> None:
        message = self.rig.core(queue).take_head(1)
        assert (message is None) == (not self.waiting[queue])
        if message is not None:
            assert message[3].decode() == self.waiting[queue][0]
            self.gone.append(self.waiting[queue].pop(0))
            self.rig.quiet()

    @rule(clean=st.booleans())
    def kill(self, clean: bool) -> None:
        self.rig = self.rig.restart() if clean else self.rig.kill()

    def check(self) -> None:
        for name in QUEUES:
            assert self.rig.bodies(name) == self.waiting[name]
        everything = [*self.output, *self.gone, *(self.set or []), *(body for bodies in self.waiting.values() for body in bodies)]
        assert len(everything) == len(set(everything)) == self.number

    def teardown(self) -> None:
        try:
            self.check()
            self.rig = self.rig.kill()
            self.check()
            self.commit(False, True)
            self.check()
        finally:
            self.rig.stop().join()
            shutil.rmtree(self.base)


class ScopeMachine(RuleBasedStateMachine):
    """Attempts, retries, two drivers, aborts and kills: each batch is published at most once, as one of its attempts, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="flintmq-dataplane-"))
        self.rig = Rig(self.base / "store")
        self.rig.declare("q")
        self.committed = -1
        self.batch = 0
        self.attempt = 0
        self.epochs: list[int] = [self.rig.call("scope.open", scope="x")["epoch"]]
        self.begun: list[str] = []  # stages, in the order of their beginnings
        self.open: dict[str, tuple[int, list[str]]] = {}
        self.prepared: dict[str, tuple[int, list[str]]] = {}
        self.published: list[str] = []

    @rule(blocks=st.lists(st.integers(1, 4), max_size=3), prepare=st.booleans(), ahead=st.integers(0, 1))
    def stage(self, blocks: list[int], prepare: bool, ahead: int) -> None:
        batch = self.batch + ahead
        begun = self.rig.call("stage.begin", scope="x", epoch=self.epochs[-1], batch=batch, attempt=self.attempt)
        if batch <= self.committed:
            assert begun["already"] is True
            return
        self.attempt += 1
        bodies: list[str] = []
        stage_id = begun["stage_id"]
        for count in blocks:
            new = [f"{batch}/{self.attempt}/{len(bodies) + index}" for index in range(count)]
            self.rig.call("block", block(*new), stage_id=stage_id, routes=[["", "q"]])
            bodies += new
        self.begun.append(stage_id)
        self.open[stage_id] = (batch, bodies)
        if prepare:
            self.prepare(stage_id)

    def prepare(self, stage_id: str) -> None:
        assert self.rig.call("stage.prepare", stage_id=stage_id)["count"] == len(self.open[stage_id][1])
        self.prepared[stage_id] = self.open.pop(stage_id)

    @rule(data=st.data())
    @precondition(lambda self: self.open)
    def prepare_one(self, data: st.DataObject) -> None:
        self.prepare(data.draw(st.sampled_from(sorted(self.open))))

    @rule(data=st.data(), zombie=st.booleans(), again=st.booleans())
    def commit(self, data: st.DataObject, zombie: bool, again: bool) -> None:
        mine = [one for one, (batch, _) in self.prepared.items() if batch == self.batch]
        chosen = data.draw(st.lists(st.sampled_from(mine), unique=True)) if mine else []
        arguments = {"scope": "x", "batch": self.batch, "stage_ids": chosen}
        if zombie and len(self.epochs) > 1:
            assert self.rig.code("stage.commit", **arguments, epoch=self.epochs[-2]) == "FENCED"
            return
        answer = self.rig.call("stage.commit", **arguments, epoch=self.epochs[-1])
        if self.batch <= self.committed:
            assert answer["already"] is True
            return
        assert answer["already"] is False
        for one in sorted(chosen, key=self.begun.index):  # not in the order of the call: stages.py G6
            self.published += self.prepared[one][1]
        self.committed = self.batch
        for table in (self.open, self.prepared):
            for one in [one for one, (batch, _) in table.items() if batch <= self.batch]:
                del table[one]
        if again:
            assert self.rig.call("stage.commit", **arguments, epoch=self.epochs[-1])["already"] is True

    @rule()
    def next_batch(self) -> None:
        if self.committed >= self.batch:
            self.batch += 1

    @rule()
    def abort(self) -> None:
        gone = [(table, one) for table in (self.open, self.prepared) for one, (batch, _) in table.items() if batch == self.batch]
        assert self.rig.call("stage.abort", scope="x", batch=self.batch) == {"rolled_back": len(gone)}
        for table, one in gone:
            del table[one]

    @rule()
    def open_again(self) -> None:
        self.epochs.append(self.rig.call("scope.open", scope="x")["epoch"])
        assert self.epochs[-1] > self.epochs[-2]

    @rule(clean=st.booleans())
    def kill(self, clean: bool) -> None:
        self.rig = self.rig.restart() if clean else self.rig.kill()
        self.open.clear()
        self.open_again()

    def check(self) -> None:
        assert self.rig.bodies("q") == self.published
        status = self.rig.call("scope.status", scope="x")
        assert (status["open"], status["prepared"]) == (len(self.open), len(self.prepared))
        assert status["committed"] == (None if self.committed < 0 else self.committed)

    def teardown(self) -> None:
        try:
            self.check()
            self.rig = self.rig.kill()
            self.open.clear()
            self.check()
            self.rig.call("stage.commit", scope="x", epoch=self.rig.call("scope.open")["epoch"], batch=self.batch + 5, stage_ids=[])
            self.rig.quiet()
            assert not self.rig.broker.transactions.list()  # type: ignore[union-attr]  # no garbage is left
            assert self.rig.bodies("q") == self.published
        finally:
            self.rig.stop().join()
            shutil.rmtree(self.base)


SETTINGS = settings(max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
TestSubscription = SubscriptionMachine.TestCase
TestSubscription.settings = SETTINGS
TestScope = ScopeMachine.TestCase
TestScope.settings = SETTINGS

"""Runs and blocks against a model: whatever happens in between, each message is where it belongs, once, in order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

pytest.importorskip("flintmq.store.log_store")

from flintmq.queue.control import new_owner
from flintmq.transactions import TransactionRefused, XaStatus, Xid
from flintmq.transactions.bulk import INLINE, ROW
from tests.support import blocks
from tests.support.effort import tries

from .on_disk import LEVELS, OnDisk

QUEUES = (1, 2, 3)
ROUTES = [(b"", b"one"), (b"ex", b"two"), (b"ex", b"all"), (b"", b"nowhere")]
DESTINATIONS = [[1], [2], [1, 2, 3], []]
ME = "me"


def entry(body: bytes, route: int, priority: int) -> bytes:
    return blocks.entry(body, route, {"delivery_mode": 2, "priority": priority})


class Branch:
    """What the model knows of one."""

    def __init__(self) -> None:
        self.state = "active"
        self.held: list[tuple[int, int, bytes]] = []  # queue, position, body, in the order of the run
        self.order: list[int] = []  # queues in the order in which they were first asked, also for nothing
        self.staged: list[tuple[int, int, bytes]] = []  # queue, level, body


class Bulk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.number = 0
        self.broker: Any = None
        self.queues: dict[int, dict[int, bytes]] = {queue: {} for queue in QUEUES}  # position -> body, of what stands available
        self.transient: set[tuple[int, int]] = set()
        self.other = new_owner()
        self.acquired: list[tuple[int, int, bytes]] = []
        self.branches: dict[Xid, Branch] = {}
        self.open()

    def open(self) -> None:
        (self.directory / str(self.number)).mkdir(exist_ok=True)
        self.broker = OnDisk(self.directory / str(self.number))
        self.broker.coordinator.select(ME)

    def teardown(self) -> None:
        self.broker.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def level(self, queue: int, priority: int) -> int:
        return LEVELS - 1 - min(priority, LEVELS - 1) if queue == 2 else 0

    # --- others ---------------------------------------------------------------------------------------------------------

    @rule(
        queue=st.sampled_from(QUEUES), count=st.integers(1, 6), durable=st.booleans(), priority=st.integers(0, 5), size=st.integers(1, 40)
    )
    def put(self, queue: int, count: int, durable: bool, priority: int, size: int) -> None:
        for _ in range(count):
            self.number += 1
            body = b"%d." % self.number + b"x" * size
            position = self.broker.put(queue, body, flags=int(durable) | 16, priority=priority)
            self.queues[queue][position] = body
            if not durable:
                self.transient.add((queue, position))

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 3))
    def consume(self, queue: int, count: int) -> None:
        for _ in range(count):
            message = self.broker.queues[queue].core.take_head(1)
            if not self.queues[queue]:
                assert message is None
                return
            assert message[3] == self.queues[queue].pop(min(self.queues[queue]))

    @rule(queue=st.sampled_from(QUEUES), at=st.integers(0, 5))
    def acquire(self, queue: int, at: int) -> None:
        position = sorted(self.queues[queue])[at : at + 1]
        if position:
            assert self.broker.queues[queue].core.take_at(position[0], self.other)
            self.acquired.append((queue, position[0], self.queues[queue].pop(position[0])))

    @rule()
    def close_other(self) -> None:
        for queue, position, body in self.acquired:
            assert self.broker.queues[queue].core.release_held(position, True, self.other)
            self.queues[queue][position] = body
        self.acquired = []

    # --- branches -------------------------------------------------------------------------------------------------------

    def pick(self, number: int, *states: str) -> Xid | None:
        found = [xid for xid, branch in self.branches.items() if branch.state in states]
        return found[number % len(found)] if found else None

    @precondition(lambda self: len(self.branches) < 4)
    @rule()
    def start(self) -> None:
        self.number += 1
        xid = Xid(1, b"%d" % self.number)
        self.broker.coordinator.start(ME, xid)
        self.broker.coordinator.end(ME, xid)
        self.branches[xid] = Branch()

    @rule(number=st.integers(0, 3), queue=st.sampled_from(QUEUES), count=st.integers(1, 12), size=st.integers(1, 200), bound=st.booleans())
    def hold(self, number: int, queue: int, count: int, size: int, bound: bool) -> None:
        xid = self.pick(number, "active")
        if xid is None:
            return
        positions = sorted(self.queues[queue])
        upto = positions[len(positions) // 2] if bound and positions else 0
        wanted: list[int] = []
        for position in positions:
            total = sum(len(self.queues[queue][one]) for one in wanted) + len(self.queues[queue][position])
            if len(wanted) == count or (wanted and total > size) or (upto and position > upto):
                break
            wanted.append(position)
        coordinator = self.broker.coordinator
        coordinator.start(ME, xid, join=True)
        facts = coordinator.hold_run(ME, xid, queue, messages_max=count, bytes_max=size, consumer="sub", upto=upto)
        coordinator.end(ME, xid)
        if queue not in self.branches[xid].order:
            self.branches[xid].order.append(queue)
        bodies = [self.queues[queue].pop(position) for position in wanted]
        assert (facts.count, facts.bytes) == (len(wanted), sum(map(len, bodies)))
        assert not wanted or (facts.first, facts.last) == (wanted[0], wanted[-1])
        self.branches[xid].held += [(queue, position, body) for position, body in zip(wanted, bodies, strict=True)]

    @rule(number=st.integers(0, 3), items=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 900)), max_size=8))
    def stage(self, number: int, items: list[tuple[int, int, int]]) -> None:
        xid = self.pick(number, "active")
        if xid is None:
            return
        block, placed = b"", []
        for route, priority, size in items:
            self.number += 1
            body = b"%d." % self.number + b"s" * size
            block += entry(body, route, priority)
            placed += [(queue, self.level(queue, priority), body) for queue in DESTINATIONS[route]]
        coordinator = self.broker.coordinator
        coordinator.start(ME, xid, join=True)
        facts = coordinator.enqueue_block(ME, xid, block, ROUTES, DESTINATIONS)
        with pytest.raises(ValueError):
            coordinator.enqueue_block(ME, xid, block + entry(b"last", 0, 0)[:-8], ROUTES, DESTINATIONS)
        coordinator.end(ME, xid)
        assert (facts.messages, facts.enqueues) == (len(items), len(placed))
        self.branches[xid].staged += placed

    @rule(number=st.integers(0, 3))
    def prepare(self, number: int) -> None:
        xid = self.pick(number, "active")
        if xid is not None:
            self.answer(self.broker.coordinator.prepare(xid))
            self.branches[xid].state = "prepared"

    @rule(number=st.integers(0, 3), heuristic=st.booleans())
    def rollback(self, number: int, heuristic: bool) -> None:
        xid = self.pick(number, "active", "prepared")
        if xid is None:
            return
        if heuristic and self.branches[xid].state == "prepared":
            self.answer(self.broker.coordinator.heuristic_rollback(xid), XaStatus.XA_HEURRB)
            self.answer(self.broker.coordinator.forget(xid))
        else:
            self.answer(self.broker.coordinator.rollback(xid))
        self.undo(self.branches.pop(xid))

    @rule(number=st.integers(0, 3))
    def commit(self, number: int) -> None:
        xid = self.pick(number, "active", "prepared")
        if xid is not None:
            self.answer(self.broker.coordinator.commit(xid, one_phase=self.branches[xid].state == "active"))
            self.apply(self.branches.pop(xid))

    @rule(several=st.integers(1, 3))
    def decide(self, several: int) -> None:
        prepared = [xid for xid, branch in self.branches.items() if branch.state == "prepared"]
        losing = [xid for xid, branch in self.branches.items() if branch.state == "active"][:1]
        self.number += 1
        note = (2, b"scope", b"%d" % self.number)
        if losing and prepared:
            with pytest.raises(TransactionRefused):
                self.broker.coordinator.decide(note, [*prepared, *losing])
            assert note[2] not in self.broker.store.notes(2).values()
        self.answer(self.broker.coordinator.decide(note, prepared[:several], losing))
        assert self.broker.store.notes(2) == {b"scope": note[2]}
        for xid in losing:
            self.undo(self.branches.pop(xid))
        for xid in prepared[:several]:
            self.apply(self.branches.pop(xid))

    def answer(self, outcome: Any, status: XaStatus = XaStatus.XA_OK) -> None:
        self.broker.settle()
        assert outcome.result(0) is status

    def undo(self, branch: Branch) -> None:
        for queue, position, body in branch.held:
            self.queues[queue][position] = body

    def apply(self, branch: Branch) -> None:
        """Staged messages stand behind what is there, in their order."""
        for queue in QUEUES:
            known = set(self.queues[queue]) | {position for q, position, _ in self.acquired if q == queue}
            known |= {position for one in self.branches.values() for q, position, _ in one.held if q == queue}
            fresh = [position for position in self.broker.available(queue) if position not in known]
            staged = sorted((level, at, body) for at, (q, level, body) in enumerate(branch.staged) if q == queue)
            assert len(fresh) == len(staged)
            for position, (level, _, body) in zip(fresh, staged, strict=True):
                assert position >> 56 == level
                self.queues[queue][position] = body

    # --- the broker -----------------------------------------------------------------------------------------------------

    @rule(clean=st.booleans(), again=st.booleans())
    def restart(self, clean: bool, again: bool) -> None:
        self.broker.settle()
        runs = {xid: self.rows(xid) for xid, branch in self.branches.items() if branch.state == "prepared" and branch.held}
        for _ in range(1 + again):
            old = self.broker.directory
            self.number += 1
            if clean:
                self.broker.store.close()
                old.rename(self.directory / str(self.number))
            else:
                self.broker.image(self.directory / str(self.number))
                self.broker.kill()
            self.open()
        for queue, position, body in self.acquired:
            self.queues[queue][position] = body
        self.acquired = []
        for xid, branch in list(self.branches.items()):
            if branch.state == "active":
                self.undo(self.branches.pop(xid))
            branch.held = [item for item in branch.held if item[:2] not in self.transient]
        for queue, position in self.transient:
            self.queues[queue].pop(position, None)
        for xid, before in runs.items():
            lost = [position for queue, position in self.transient]
            assert [(queue, position, body) for queue, position, body in before if (queue, position) not in self.transient] == (
                self.rows(xid)
            ), lost
        self.transient = set()

    @rule()
    def maintain(self) -> None:
        self.broker.settle()

    def rows(self, xid: Xid) -> list[tuple[int, int, bytes]]:
        """Queue, position and body of what the branch holds, as a reader sees it."""
        found = []
        for run in self.broker.coordinator.runs(xid):
            rows, contents = run.rows(0, run.count + 5)
            assert len(rows) == run.count * ROW.size
            assert sum(count for _, count in run.ranges()) == run.count
            left = list(contents)
            for at in range(0, len(rows), ROW.size):
                position, number, where, body_len, _, _, zero = ROW.unpack_from(rows, at)
                assert zero == 0
                if where:
                    body = self.broker.store.content(number).body
                else:
                    content = left.pop(0)
                    length, _, _ = INLINE.unpack_from(content)
                    assert length == len(content) - INLINE.size
                    body = content[len(content) - body_len :]
                assert len(body) == body_len
                found.append((run.queue_id, position, body))
            assert not left
        return found

    @invariant()
    def everything_is_where_it_belongs(self) -> None:
        for queue in QUEUES:
            core = self.broker.queues[queue].core
            assert {position: core.message_at(position)[3] for position in self.broker.available(queue)} == self.queues[queue]
            held = [item for branch in self.branches.values() for item in branch.held if item[0] == queue]
            others = [item for item in self.acquired if item[0] == queue]
            assert core.unacked_count() == len(held) + len(others)
            assert core.ready_count() == len(self.queues[queue])
            assert core.ready_bytes() == sum(map(len, self.queues[queue].values()))
        for xid, branch in self.branches.items():
            assert self.rows(xid) == sorted(branch.held, key=lambda item: branch.order.index(item[0]))


class TestBulk(Bulk.TestCase):
    settings = settings(max_examples=tries(15, 40), stateful_step_count=30, deadline=None)

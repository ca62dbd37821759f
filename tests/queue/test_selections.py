"""Consumers with selectors on the queue core: each gets the first entry it wants, nobody who could take one is left asleep, and what an
arrival costs does not grow with their number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flintmq.config import Limits
from flintmq.selectors.grammar import parse
from tests.support.effort import tries

queue_driver = pytest.importorskip("tests.drivers.queue_driver")
Consumer, Queue = queue_driver.Consumer, queue_driver.Queue

LIMITS = Limits()
KEYS = [b"a", b"b", b"c"]
# selector -> the keys it wants; None: no selector
WANTS = {
    "amqp.routing_key = 'a'": b"a",
    "amqp.routing_key = 'b' AND TRUE": b"b",
    "amqp.routing_key IN ('a', 'c')": b"ac",
    "amqp.routing_key <> 'a'": b"bc",
    "amqp.routing_key LIKE '%'": b"abc",
    "FALSE": b"",
    None: b"abc",
}


@dataclass
class Entry:
    key: bytes
    holder: object = None
    resident: bool = True


@dataclass(eq=False)
class Member:
    consumer: Any
    wants: bytes
    priority: int
    prefetch: int
    suspended: bool = False
    held: list[int] = field(default_factory=list)

    def ready(self) -> bool:
        return not self.suspended and (not self.prefetch or len(self.held) < self.prefetch)


class SelectionMachine(RuleBasedStateMachine):
    COLD = False

    @initialize(levels=st.sampled_from([1, 3]))
    def start(self, levels: int) -> None:
        self.queue = Queue(levels=levels)
        self.levels = levels
        self.entries: dict[int, Entry] = {}
        self.reserved: list[int] = []
        self.members: list[Member] = []

    def outranked(self, member: Member, entry: Entry) -> bool:
        return any(
            other.priority > member.priority
            and other.ready()
            and entry.key in other.wants
            and other.consumer.list in ("INTERESTED", "NOTIFIED")
            for other in self.members
        )

    def next_for(self, member: Member) -> int:
        for position, entry in sorted(self.entries.items()):
            if entry.holder is None and entry.key in member.wants:
                return 0 if self.outranked(member, entry) else position
        return 0

    # --- what happens ---

    @rule(key=st.sampled_from(KEYS), priority=st.integers(0, 2), count=st.integers(1, 3))
    def publish(self, key: bytes, priority: int, count: int) -> None:
        for _ in range(count):
            self.entries[self.queue.enqueue(b"x", priority=priority, key=key)] = Entry(key)

    @rule(priority=st.integers(0, 2))
    def hold_and_publish(self, priority: int) -> None:
        position = self.queue.add_held(b"x", priority=priority)
        assert self.queue.publish_held(position)
        self.entries[position] = Entry(b"q")  # only the widest want its key

    @rule(text=st.sampled_from(list(WANTS)), priority=st.sampled_from([0, 0, 1]), prefetch=st.integers(0, 2), suspended=st.booleans())
    def attach(self, text: str | None, priority: int, prefetch: int, suspended: bool) -> None:
        if len(self.members) >= 6:
            return
        wants = {bytes([key]) for key in WANTS[text]} | (
            {b"q"} if text in (None, "amqp.routing_key LIKE '%'", "amqp.routing_key <> 'a'") else set()
        )
        selector = parse(text, LIMITS) if text is not None else None
        consumer = Consumer(self.queue, priority=priority, prefetch=prefetch, suspended=suspended, selector=selector)
        self.members.append(Member(consumer, wants, priority, prefetch, suspended))

    def pick(self, number: int) -> Member:
        return self.members[number % len(self.members)]

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, 5), turns=st.integers(1, 4))
    def pull(self, number: int, turns: int) -> None:
        member = self.pick(number)
        for _ in range(turns):
            expected = self.next_for(member) if member.ready() and member.consumer.list != "NOT_INTERESTED" else 0
            member.consumer.target.take()
            got = member.consumer.pull()
            if not self.COLD:
                assert (got[0] if got else 0) == expected
            if got is None:
                break
            entry = self.entries[got[0]]
            assert entry.holder is None and entry.key in member.wants and not self.outranked(member, entry)
            entry.holder = member
            member.held.append(got[0])

    @precondition(lambda self: any(member.held for member in self.members))
    @rule(number=st.integers(0, 5), which=st.integers(0, 9), back=st.booleans())
    def settle(self, number: int, which: int, back: bool) -> None:
        holders = [member for member in self.members if member.held]
        member = holders[number % len(holders)]
        position = member.held.pop(which % len(member.held))
        if back:
            self.entries[position].holder = None
            assert member.consumer.release(position)
        else:
            del self.entries[position]
            assert member.consumer.ack(position)

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, 5))
    def suspend(self, number: int) -> None:
        member = self.pick(number)
        member.suspended = not member.suspended
        member.consumer.suspend(member.suspended)

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, 5))
    def close(self, number: int) -> None:
        member = self.members.pop(number % len(self.members))
        member.consumer.close()
        for position in member.held:
            self.entries[position].holder = None
            assert member.consumer.release(position)

    @rule()
    def take_head(self) -> None:
        got = self.queue.pull(1 << 20)
        if got is not None:
            position = got[0]
            del self.entries[position]
            assert self.queue.dequeue(position, 1 << 20)

    @rule()
    def housekeeping(self) -> None:
        self.queue.housekeeping()

    # --- what holds ---

    @invariant()
    def nobody_sleeps(self) -> None:
        """While somebody could take his next entry, somebody is told: he takes it, or tells others. `teardown` sees that they get it."""
        if not hasattr(self, "queue") or self.COLD:
            return
        able = [m for m in self.members if m.ready() and self.next_for(m)]
        assert not able or any(m.consumer.list == "NOTIFIED" for m in self.members), [m.consumer.list for m in able]

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.ready == sum(entry.holder is None for entry in self.entries.values())
            assert self.queue.unacked == sum(entry.holder is not None for entry in self.entries.values())

    def teardown(self) -> None:
        """Everybody does what he is told, and acks: what is left then nobody wants who can take something."""
        if not hasattr(self, "queue"):
            return
        for member in self.members:
            for position in member.held:
                del self.entries[position]
                assert member.consumer.ack(position)
            member.held.clear()
        busy = True
        while busy:
            busy = False
            for member in self.members:
                if member.consumer.list == "NOTIFIED" or member.consumer.target.take():
                    while (got := member.consumer.pull()) is not None:
                        busy = True
                        del self.entries[got[0]]
                        assert member.consumer.ack(got[0])
            for position in self.loads():
                busy = True
                self.queue.loaded(position, b"x")
        for entry in self.entries.values():
            able = [m for m in self.members if not m.suspended and entry.key in m.wants]
            assert entry.holder is not None or not able
        for member in self.members:
            member.consumer.close()

    def loads(self) -> list[int]:
        return []


TestSelections = SelectionMachine.TestCase
TestSelections.settings = settings(
    max_examples=tries(200, 2_000), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


def select(queue: Any, text: str, **options: Any) -> Any:
    return Consumer(queue, selector=parse(text, LIMITS), **options)


def test_who_was_outranked_is_told_when_the_one_above_wants_nothing_more() -> None:
    """It has no selector, so it does not wait as one of those do: what lies behind the entry that it was outranked for is its work."""
    queue = Queue()
    below = Consumer(queue, priority=0)
    queue.enqueue(b"x", key=b"b")
    above = select(queue, "amqp.routing_key <> 'a'", priority=1)
    queue.enqueue(b"x", key=b"a")
    assert below.pull() is None and below.list == "INTERESTED", "the first one is not for it"
    assert above.pull()[0] == 1 and above.pull() is None
    assert below.list == "NOTIFIED" and below.pull()[0] == 2


def test_what_an_arrival_costs_does_not_grow_with_the_number_of_consumers() -> None:
    """1,000 consumers with selectors of their own: one selector is run for a message, and one more by who takes it."""
    for count in (10, 1_000):
        queue = Queue()
        consumers = [select(queue, f"amqp.routing_key = 'k{i}'", prefetch=1) for i in range(count)]
        assert all(consumer.pull() is None for consumer in consumers)
        before, visited = queue.compared, queue.visited
        for i in range(500):
            position = queue.enqueue(b"x", key=b"k%d" % (i % count))
            consumer = consumers[i % count]
            got = consumer.pull()
            assert got is not None and got[0] == position
            assert consumer.ack(position) and consumer.pull() is None
        assert (queue.compared[0] - before[0], queue.compared[1] - before[1]) == (500, 500)
        assert queue.visited - visited <= 2_000
        for consumer in consumers:
            consumer.close()


def test_a_backlog_that_nobody_wants_is_walked_once() -> None:
    queue = Queue()
    for _ in range(5_000):
        queue.enqueue(b"x", key=b"other")
    consumers = [select(queue, f"amqp.routing_key = 'k{i}'") for i in range(10)]
    for consumer in consumers:
        while consumer.list == "NOTIFIED":  # in slices: it is told again until it has seen all
            assert consumer.target.take()
            assert consumer.pull() is None
    looked = queue.compared[1]
    assert looked == 50_000
    for i in range(100):
        position = queue.enqueue(b"x", key=b"k%d" % (i % 10))
        assert consumers[i % 10].pull()[0] == position
    assert queue.compared[1] == looked + 100


def test_a_look_is_cut_in_slices() -> None:
    queue = Queue()
    for _ in range(2_000):
        queue.enqueue(b"x", key=b"other")
    consumer = select(queue, "amqp.routing_key = 'mine'")
    pulls = 0
    while consumer.list == "NOTIFIED":
        assert consumer.pull() is None
        pulls += 1
    assert queue.compared[1] == 2_000 and pulls == 4


def test_what_finds_no_room_in_the_heap_is_looked_for_again_and_keeps_its_order() -> None:
    queue = Queue()
    consumer = select(queue, "amqp.routing_key = 'a'", prefetch=1)
    assert consumer.pull() is None
    positions = [queue.enqueue(b"x", key=key) for _ in range(3_000) for key in (b"a", b"b")][::2]
    got = []
    while (message := consumer.pull()) is not None or consumer.list == "NOTIFIED":
        if message is not None:
            got.append(message[0])
            assert consumer.ack(message[0])
    assert got == positions


def test_those_of_one_selector_share_the_work() -> None:
    queue = Queue()
    consumers = [select(queue, "amqp.routing_key = 'a'", prefetch=1) for _ in range(4)]
    for consumer in consumers:
        consumer.pull()
    positions = [queue.enqueue(b"x", key=b"a") for _ in range(4)]
    got = []
    for _ in range(4):
        for consumer in consumers:
            if consumer.list == "NOTIFIED" and (message := consumer.pull()) is not None:
                got.append(message[0])
    assert sorted(got) == positions and {consumer.used for consumer in consumers} == {1}
    assert queue.compared[0] == 4


def test_an_entry_that_came_back_is_found_without_a_walk() -> None:
    queue = Queue()
    consumer = select(queue, "amqp.routing_key = 'a'", prefetch=1)
    for _ in range(1_000):
        queue.enqueue(b"x", key=b"b")
    position = queue.enqueue(b"x", key=b"a")
    while (got := consumer.pull()) is None:
        pass
    assert got[0] == position
    looked = queue.compared[1]
    assert consumer.release(position)
    assert consumer.pull()[0] == position
    assert queue.compared[1] == looked + 1

"""Message groups on the queue core: a group's messages go to one consumer at a time and in order, nobody who could take one is left asleep,
and what a group costs does not grow with the number of groups."""

from __future__ import annotations

import random
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

# its first name is what groups go by
BY_KEY = parse("amqp.routing_key = 'x'", Limits())
KEYS = [b"a", b"b", b"c", b"d"]
GETTER = 1 << 20


def grouped(mode: str, most: int = 1_000, idle: int = 1_000, **options: Any) -> Any:
    return Queue(groups=(mode, BY_KEY, most, idle), **options)


@dataclass
class Entry:
    key: bytes
    holder: object = None


@dataclass(eq=False)
class Member:
    consumer: Any
    priority: int
    prefetch: int
    suspended: bool = False
    held: list[int] = field(default_factory=list)

    def ready(self) -> bool:
        return not self.suspended and (not self.prefetch or len(self.held) < self.prefetch)


class GroupMachine(RuleBasedStateMachine):
    MODE = "shared"

    @initialize(levels=st.sampled_from([1, 3]))
    def start(self, levels: int) -> None:
        self.queue = grouped(self.MODE, levels=levels)
        self.entries: dict[int, Entry] = {}
        self.members: list[Member] = []
        self.bound: dict[bytes, Member] = {}
        self.got: list[int] = []  # by basic.get

    # --- the model ---

    def owner(self, key: bytes) -> object:
        """Whose the group is; None: nobody's; GETTER: nobody may take of it."""
        holders = {entry.holder for entry in self.entries.values() if entry.key == key and entry.holder is not None}
        assert len(holders) <= 1, "messages of a group are held by several"
        return next(iter(holders), self.bound.get(key))

    def first(self, owner: object) -> int:
        free = [p for p, entry in self.entries.items() if entry.holder is None and self.owner(entry.key) is owner]
        return min(free, default=0)

    def outranked(self, member: Member) -> bool:
        return any(
            other.priority > member.priority and other.ready() and other.consumer.list in ("INTERESTED", "NOTIFIED")
            for other in self.members
        )

    def next_for(self, member: Member) -> int:
        own, free = self.first(member), self.first(None)
        if free and (own == 0 or free < own) and not self.outranked(member):
            return free
        return own

    # --- what happens ---

    @rule(key=st.sampled_from(KEYS), priority=st.integers(0, 2), count=st.integers(1, 3))
    def publish(self, key: bytes, priority: int, count: int) -> None:
        for _ in range(count):
            self.entries[self.queue.enqueue(b"x", priority=priority, key=key)] = Entry(key)

    @rule(priority=st.integers(0, 2))
    def hold_and_publish(self, priority: int) -> None:
        """A transaction's message: its group is read later."""
        position = self.queue.add_held(b"x", priority=priority)
        assert self.queue.publish_held(position)
        self.entries[position] = Entry(b"q")

    @rule(priority=st.sampled_from([0, 0, 1]), prefetch=st.integers(0, 2), suspended=st.booleans())
    def attach(self, priority: int, prefetch: int, suspended: bool) -> None:
        if len(self.members) < 5:
            consumer = Consumer(self.queue, priority=priority, prefetch=prefetch, suspended=suspended)
            self.members.append(Member(consumer, priority, prefetch, suspended))

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, 4), turns=st.integers(1, 4))
    def pull(self, number: int, turns: int) -> None:
        member = self.members[number % len(self.members)]
        for _ in range(turns):
            expected = self.next_for(member) if member.ready() and member.consumer.list != "NOT_INTERESTED" else 0
            member.consumer.target.take()
            got = member.consumer.pull()
            assert (got[0] if got else 0) == expected
            if got is None:
                break
            self.entries[got[0]].holder = member
            member.held.append(got[0])
            if self.MODE == "sticky":
                self.bound[self.entries[got[0]].key] = member

    @precondition(lambda self: any(member.held for member in self.members))
    @rule(number=st.integers(0, 4), which=st.integers(0, 9), back=st.booleans())
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
    @rule(number=st.integers(0, 4))
    def suspend(self, number: int) -> None:
        member = self.members[number % len(self.members)]
        member.suspended = not member.suspended
        member.consumer.suspend(member.suspended)

    @precondition(lambda self: self.members)
    @rule(number=st.integers(0, 4))
    def close(self, number: int) -> None:
        """Its messages come back one by one, the last one first: nobody gets one of a group before all of it are back."""
        member = self.members.pop(number % len(self.members))
        member.consumer.close()
        self.bound = {key: other for key, other in self.bound.items() if other is not member}
        for position in sorted(member.held, reverse=True):
            self.entries[position].holder = None
            assert member.consumer.release(position)

    @rule()
    def get(self) -> None:
        expected = self.first(None)
        got = self.queue.pull(GETTER)
        assert (got[0] if got else 0) == expected
        if got is not None:
            self.entries[got[0]].holder = GETTER
            self.got.append(got[0])

    @precondition(lambda self: self.got)
    @rule(back=st.booleans())
    def settle_got(self, back: bool) -> None:
        position = self.got.pop()
        if back:
            self.entries[position].holder = None
            assert self.queue.release(position, GETTER)
        else:
            del self.entries[position]
            assert self.queue.dequeue(position, GETTER)

    @rule()
    def drop_head(self) -> None:
        """As a length limit and expiry do: without a look at groups."""
        got = self.queue.take_head()
        if got is not None:
            del self.entries[got[0]]
            assert self.queue.dequeue(got[0])

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        self.entries = {position: entry for position, entry in self.entries.items() if entry.holder is not None}

    @rule()
    def housekeeping(self) -> None:
        self.queue.housekeeping()

    # --- what holds ---

    @invariant()
    def nobody_sleeps(self) -> None:
        """Who has work in his groups is told himself, unless one who was told of an entry has not read its group yet; of what is free
        somebody is told."""
        if not hasattr(self, "queue"):
            return
        read = self.queue.group_figures[1] == sum(entry.holder is None for entry in self.entries.values())
        for member in self.members:
            if member.ready() and self.first(member):
                assert member.consumer.list == "NOTIFIED" or (not read and any(m.consumer.list == "NOTIFIED" for m in self.members))
        able = [m for m in self.members if m.ready() and self.next_for(m)]
        assert not able or any(m.consumer.list == "NOTIFIED" for m in self.members)

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.ready == sum(entry.holder is None for entry in self.entries.values())
            assert self.queue.unacked == sum(entry.holder is not None for entry in self.entries.values())
            assert self.queue.group_figures[3] == sum(entry.holder is not None for entry in self.entries.values())

    def teardown(self) -> None:
        """Everybody does what he is told, and acks: what is left then nobody can take."""
        if not hasattr(self, "queue"):
            return
        for position in self.got:
            del self.entries[position]
            assert self.queue.dequeue(position, GETTER)
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
                        if self.MODE == "sticky":
                            self.bound[self.entries[got[0]].key] = member
                        del self.entries[got[0]]
                        assert member.consumer.ack(got[0])
        assert not any(self.next_for(member) for member in self.members if member.ready())
        for member in self.members:
            member.consumer.close()
        self.queue.purge()
        self.queue.housekeeping()
        assert self.queue.group_figures[1:] == (0, 0, 0)


class StickyMachine(GroupMachine):
    MODE = "sticky"


EFFORT = settings(
    max_examples=tries(100, 2_000), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
TestSharedGroups = GroupMachine.TestCase
TestSharedGroups.settings = EFFORT
TestStickyGroups = StickyMachine.TestCase
TestStickyGroups.settings = EFFORT


def drain(consumer: Any) -> list[int]:
    got = []
    while (message := consumer.pull()) is not None or consumer.list == "NOTIFIED":
        if message is not None:
            got.append(message[0])
    return got


def test_what_is_held_by_the_broker_is_not_overtaken() -> None:
    """A Spark set, a transaction in doubt, a delayed retry: the group waits, others don't."""
    queue = grouped("shared")
    consumer = Consumer(queue)
    first, other, later = (queue.enqueue(b"x", key=key) for key in (b"a", b"b", b"a"))
    assert queue.hold_at(first)
    assert drain(consumer) == [other]
    assert queue.release(first)
    assert drain(consumer) == [first, later]
    consumer.close()


def test_an_entry_that_cannot_be_read_does_not_hold_its_group() -> None:
    queue = grouped("shared")
    consumer = Consumer(queue)
    queue.restore(1, None, body_len=1)
    queue.read_groups()
    later = queue.enqueue(b"x", key=b"q")
    assert consumer.pull() is None and queue.take_loads() == [1]
    assert queue.failed(1)
    assert drain(consumer) == [later]
    consumer.close()


def test_after_a_restart_groups_are_read_in_order_and_only_as_far_as_they_are_needed() -> None:
    queue = grouped("shared")
    keys = [KEYS[i % 4] for i in range(40)]
    queue.restore_many([(i + 1, i + 1, 0, 1, 0) for i in range(40)])
    queue.read_groups()
    # Arrivals are known at once, and don't overtake what is not.
    newer = queue.enqueue(b"new", key=b"a")
    one, two = Consumer(queue, prefetch=10), Consumer(queue, prefetch=50)
    got: dict[int, list[int]] = {1: [], 2: []}
    asked = set()
    busy = True
    while busy:
        busy = False
        for name, consumer in ((1, one), (2, two)):
            while (message := consumer.pull()) is not None:
                got[name].append(message[0])
                busy = True
        for position in queue.take_loads():
            asked.add(position)
            queue.loaded(position, b"x", keys[position - 1])
            busy = True
    groups = {1: set(), 2: set()}
    for name, positions in got.items():
        assert positions == sorted(positions)
        groups[name] = {b"a" if p == newer else keys[p - 1] for p in positions}
    assert not groups[1] & groups[2] and len(got[1]) == 10
    assert set(got[1]) | set(got[2]) <= asked | {newer}
    one.close()
    two.close()


def test_a_hundred_thousand_groups_cost_what_ten_cost() -> None:
    """Consumers looked at, and places kept: the same for each message, however many groups are live."""
    for mode in ("shared", "sticky"):
        queue = grouped(mode, most=1_000_000, idle=1_000_000)
        consumers = [Consumer(queue, prefetch=1) for _ in range(2)]
        positions = [queue.enqueue(b"x", key=b"%d" % i) for i in range(100_000)]
        assert queue.group_figures[:2] == (100_000, 100_000)
        visited, got = queue.visited, []
        for i in range(1_000):
            consumer = consumers[i % 2]
            got.append(consumer.pull()[0])
            assert consumer.ack(got[-1])
        assert got == positions[:1_000]
        assert queue.visited - visited < 10_000
        for consumer in consumers:
            consumer.close()
        assert queue.purge() == 99_000
        for _ in range(20):  # in slices: each asks for the next one
            queue.housekeeping()
        assert queue.group_figures[1] == 0


@pytest.mark.parametrize("mode", ["shared", "sticky"])
@pytest.mark.parametrize("order", ["up", "down", "shuffled"])
def test_groups_that_come_back_in_any_order_are_served_in_that_of_the_queue(mode: str, order: str) -> None:
    """Far more runs than a heap of groups has lines: of free groups when they are shared, else of those of one consumer."""
    queue, count = grouped(mode), 300
    positions = [queue.enqueue(b"x", key=b"%d" % (i % count)) for i in range(2 * count)]
    firsts, seconds = positions[:count], positions[count:]
    taker, other = Consumer(queue), Consumer(queue)
    turns = {"up": range(count), "down": range(count - 1, -1, -1), "shuffled": random.Random(18).sample(range(count), count)}[order]
    assert [taker.pull()[0] for _ in firsts] == firsts
    assert all(taker.ack(firsts[turn]) for turn in turns)
    if mode == "shared":
        taker, other = other, taker
    for _ in range(2):
        assert [taker.pull()[0] for _ in seconds] == seconds
        assert all(taker.release(seconds[turn]) for turn in turns)
    assert (other.pull() is None) == (mode == "sticky")


def test_a_consumer_that_leaves_gives_its_groups_back_in_slices() -> None:
    """Nobody waits behind the 100,000 groups that one consumer may own: others get what is free already, and all of it in the end."""
    queue = grouped("sticky", most=10_000, idle=10_000)
    one, two = Consumer(queue), Consumer(queue)
    for i in range(3_000):
        queue.enqueue(b"x", key=b"%d" % i)
    for position in drain(one):
        assert one.ack(position)
    assert queue.group_figures[2] == 3_000 and two.pull() is None
    two.target.take()
    positions = [queue.enqueue(b"x", key=b"%d" % i) for i in range(3_000)]
    assert two.pull() is None, "all of it is the first one's"
    two.target.take()
    one.remove()
    got, slices = [], [len(drain(two))]
    assert 0 < slices[0] <= 16
    while one.leaves():
        assert two.list == "NOTIFIED"
        got = drain(two)
        slices.append(len(got))
        assert 0 < slices[-1] <= 256
    slices.append(len(drain(two)))
    assert sum(slices) == 3_000 == len(positions) and not one.leaves()
    two.close()


def test_what_ends_or_comes_back_while_its_consumer_leaves_is_not_lost() -> None:
    queue = grouped("shared", most=10_000)
    one, two = Consumer(queue), Consumer(queue)
    positions = [queue.enqueue(b"x", key=b"%d" % (i % 1_000)) for i in range(2_000)]
    assert drain(one) == positions
    one.remove()
    for i in range(2_000):
        if i % 100 == 0:
            one.leaves()
        assert one.release(positions[i]) if i % 2 else one.ack(positions[i])
    while one.leaves():
        pass
    assert drain(two) == positions[1::2]
    two.close()


def test_a_get_looks_at_a_bounded_number_of_entries_at_once() -> None:
    """A sorted queue knows its first message when it has read all of them: in slices, with others of the loop between them."""
    queue = grouped("sorted", most=10_000)
    for _ in range(3_000):
        assert queue.publish_held(queue.add_held(b"x"))
    looks = 1
    while (got := queue.pull_some(GETTER)) == "again":
        looks += 1
    assert got is not None and 3_000 // 512 <= looks <= 3_000 // 256
    assert queue.pull_some(GETTER)[0] != got[0]
    queue.purge()


def test_groups_of_messages_that_nobody_consumes_are_forgotten() -> None:
    queue = grouped("shared")
    for i in range(20_000):
        queue.enqueue(b"x", key=b"%d" % i)
        assert queue.dequeue(queue.take_head()[0])
    assert queue.group_figures[0] < 100 and queue.group_figures[1] < 100


def test_at_the_limit_values_share_groups_and_keep_their_order() -> None:
    queue = grouped("shared", most=8)
    consumers = [Consumer(queue, prefetch=1) for _ in range(4)]
    keys: dict[int, bytes] = {}
    for i in range(4_000):
        key = b"%d" % (i % 2_000)
        keys[queue.enqueue(b"x", key=key)] = key
    assert queue.group_figures[0] <= 8 + 1_024
    last: dict[bytes, int] = {}
    held: dict[Any, int] = {}
    left = set(keys)
    while left:
        before = len(left)
        for consumer in consumers:
            if consumer in held:
                assert consumer.ack(held.pop(consumer))
            if (message := consumer.pull()) is not None:
                position = message[0]
                assert last.get(keys[position], 0) < position
                assert keys[position] not in {keys[other] for other in held.values()}
                last[keys[position]] = position
                held[consumer] = position
                left.discard(position)
        assert len(left) < before
    for consumer in consumers:
        consumer.close()


def test_idle_groups_of_a_consumer_have_a_limit() -> None:
    queue = grouped("sticky", idle=3)
    one = Consumer(queue)
    for i in range(5):
        queue.enqueue(b"x", key=b"%d" % i)
    for position in drain(one):
        assert one.ack(position)
    assert queue.group_figures[:3] == (3, 0, 3)
    two = Consumer(queue, prefetch=1)
    one.suspend(True)
    kept, forgotten = queue.enqueue(b"x", key=b"4"), queue.enqueue(b"x", key=b"0")
    assert drain(two) == [forgotten]
    one.suspend(False)
    assert drain(one) == [kept]
    one.close()
    two.close()


def test_a_sorted_queue_serves_the_lowest_value_and_equal_ones_as_they_came() -> None:
    queue = grouped("sorted")
    values = [b"m", b"", b"z", b"a", b"m", b"ab"]
    positions = [queue.enqueue(b"x", key=value) for value in values]
    consumer = Consumer(queue, prefetch=2)
    first, second = consumer.pull()[0], consumer.pull()[0]
    assert (first, second) == (positions[1], positions[3])
    assert consumer.release(second) and consumer.ack(first)
    assert queue.pull(GETTER)[0] == positions[3]
    got = []
    while (message := consumer.pull()) is not None:
        got.append(message[0])
        assert consumer.ack(message[0])
    assert got == [positions[i] for i in (5, 0, 4, 2)]
    consumer.close()


def test_a_sorted_queue_above_its_limit_serves_the_rest_last() -> None:
    queue = grouped("sorted", most=3)
    positions = [queue.enqueue(b"x", key=value) for value in (b"d", b"c", b"b", b"a", b"0", b"c")]
    consumer = Consumer(queue)
    assert drain(consumer) == [positions[i] for i in (2, 1, 5, 0, 3, 4)]
    consumer.close()

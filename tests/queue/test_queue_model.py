"""Against a small model: whatever producers, consumers, the broker and the content port do in turn, the queue keeps order, credit,
lists and counts, and nobody who could take an available entry is left asleep."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

queue_driver = pytest.importorskip("flintmq.testing.queue_driver")
Consumer, Credit, Queue = queue_driver.Consumer, queue_driver.Credit, queue_driver.Queue

LEVEL_SHIFT = 56


@dataclass
class Entry:
    body: bytes
    expires: int = 0
    redelivered: bool = False
    count: int = 0
    holder: object = None  # None: available; a Member, "get", "offer"
    offered_to: object = None
    resident: bool = True


@dataclass(eq=False)
class Member:
    consumer: object
    wants: bytes | None
    browser: bool
    no_ack: bool
    priority: int
    prefetch: int
    shared: object
    suspended: bool = False
    told: int = 0
    hot: bool = False
    browsed: dict = field(default_factory=dict)

    def likes(self, entry: Entry) -> bool:
        return self.wants is None or entry.body[:1] == self.wants


class QueueMachine(RuleBasedStateMachine):
    LEVELS = 1

    @initialize(cold=st.booleans())
    def start(self, cold: bool) -> None:
        # Either predicates or content that is not resident: what a consumer judged before it was evicted stays judged, which the
        # model does not follow.
        self.cold = cold
        self.queue = Queue(levels=self.LEVELS)
        self.entries: dict[int, Entry] = {}
        self.members: list[Member] = []
        self.now = 1000
        self.getter = queue_driver.new_owner()
        self.shared = Credit(3)
        self.serial = 0

    # --- the model's own questions ---

    def in_order(self) -> list[tuple[int, Entry]]:
        return sorted(self.entries.items())

    def used(self, member: Member) -> int:
        return sum(1 for e in self.entries.values() if e.holder is member or e.offered_to is member)

    def has_credit(self, member: Member) -> bool:
        if member.browser or member.no_ack:
            return True
        if member.prefetch and self.used(member) >= member.prefetch:
            return False
        return member.shared is None or sum(self.used(m) for m in self.members if m.shared is not None and not m.no_ack) < 3

    def ready(self, member: Member) -> bool:
        return not member.suspended and self.has_credit(member)

    def active(self, member: Member) -> bool:
        return member.consumer.list in ("INTERESTED", "NOTIFIED")

    def outranked(self, member: Member, entry: Entry) -> bool:
        higher = [m for m in self.members if m.priority > member.priority and not m.browser and self.active(m)]
        return any(self.ready(m) and m.likes(entry) for m in higher)

    def next_for(self, member: Member) -> int:
        """Position of the entry that an acquiring consumer must get now, 0 for none."""
        for position, entry in self.in_order():
            if entry.holder is None:
                if not entry.resident:
                    return 0
                if member.likes(entry):
                    return 0 if self.outranked(member, entry) else position
        return 0

    def next_browsed(self, member: Member) -> int:
        for position, entry in self.in_order():
            level = position >> LEVEL_SHIFT
            if entry.holder is None and position > member.browsed.get(level, 0):
                if not entry.resident:
                    return 0
                if member.likes(entry):
                    return position
        return 0

    # --- producers ---

    def fresh_body(self, letter: str) -> bytes:
        self.serial += 1
        return f"{letter}{self.serial}".encode()

    def tail(self, level: int) -> int:
        return self.queue_tails.get(level, 0) if hasattr(self, "queue_tails") else 0

    def note_position(self, position: int, priority: int | None) -> None:
        if not hasattr(self, "queue_tails"):
            self.queue_tails: dict[int, int] = {}
        level = position >> LEVEL_SHIFT
        assert level == self.LEVELS - 1 - min(priority or 0, self.LEVELS - 1)
        assert position > self.queue_tails.get(level, level << LEVEL_SHIFT), "positions of a level rise and are never reused"
        self.queue_tails[level] = position

    @rule(letter=st.sampled_from("ab"), priority=st.none() | st.integers(0, 4), expires=st.sampled_from([0, 0, 0, 1010, 1050]))
    def enqueue(self, letter: str, priority: int | None, expires: int) -> None:
        body = self.fresh_body(letter)
        before = {id(m): m.consumer.has_offer for m in self.members}
        position = self.queue.enqueue(body, priority, expires)
        self.note_position(position, priority)
        self.entries[position] = Entry(body, expires)
        self.adopt_offer(position, before)

    @rule(count=st.integers(1, 40))
    def enqueue_many(self, count: int) -> None:
        for _ in range(count):
            self.enqueue("a", None, 0)

    @rule(
        letter=st.sampled_from("ab"),
        gap=st.sampled_from([0, 1, 7, 20, 5000]),
        redelivered=st.booleans(),
        level=st.integers(0, 2),
        cold=st.booleans(),
    )
    def restore(self, letter: str, gap: int, redelivered: bool, level: int, cold: bool) -> None:
        level = min(level, self.LEVELS - 1)
        body = self.fresh_body(letter)
        position = max(self.tail(level), level << LEVEL_SHIFT) + 1 + gap
        cold = cold and self.cold
        assert self.queue.restore(position - 1 - gap, body) == 0, "a used position is refused"
        before = {id(m): m.consumer.has_offer for m in self.members}
        assert self.queue.restore(position, None if cold else body, redelivered) == position
        self.note_position(position, self.LEVELS - 1 - level)
        self.entries[position] = Entry(body, 0, redelivered, resident=not cold)
        self.adopt_offer(position, before)

    def adopt_offer(self, position: int, before: dict) -> bool:
        """Sees whether the entry was offered to someone, who then must have been entitled to it."""
        takers = [m for m in self.members if m.consumer.has_offer and not before[id(m)]]
        assert len(takers) <= 1
        if takers:
            member = takers[0]
            assert self.next_for(member) == position and self.ready(member)
            assert member.consumer.list == "NOTIFIED"
            self.entries[position].holder = "offer"
            self.entries[position].offered_to = member
        return bool(takers)

    @rule(letter=st.sampled_from("ab"), priority=st.none() | st.integers(0, 4))
    def immediate(self, letter: str, priority: int | None) -> None:
        body = self.fresh_body(letter)
        before = {id(m): m.consumer.has_offer for m in self.members}
        probe = Entry(body)
        level = self.LEVELS - 1 - min(priority or 0, self.LEVELS - 1)
        at = max(self.tail(level), level << LEVEL_SHIFT) + 1
        self.entries[at] = probe
        entitled = [
            m for m in self.members if not m.browser and self.active(m) and self.ready(m) and not before[id(m)] and self.next_for(m) == at
        ]
        position = self.queue.enqueue(body, priority, immediate=True)
        self.queue_tails = getattr(self, "queue_tails", {})
        self.queue_tails[level] = at
        if position == 0:
            assert not entitled, "a ready consumer whose next entry it is gets an immediate message"
            del self.entries[at]
            assert not any(m.consumer.has_offer and not before[id(m)] for m in self.members)
        else:
            assert position == at
            assert self.adopt_offer(position, before), "never both accepted and left without a taker"

    # --- consumers ---

    @precondition(lambda self: len(self.members) < 6)
    @rule(
        priority=st.sampled_from([0, 0, 0, 5]),
        browser=st.sampled_from([False, False, False, True]),
        no_ack=st.booleans(),
        exclusive=st.sampled_from([False, False, False, False, True]),
        prefetch=st.sampled_from([0, 0, 1, 2]),
        shared=st.booleans(),
        wants=st.sampled_from([None, None, b"a", b"b"]),
        suspended=st.sampled_from([False, False, False, True]),
    )
    def attach(
        self, priority: int, browser: bool, no_ack: bool, exclusive: bool, prefetch: int, shared: bool, wants: bytes | None, suspended: bool
    ) -> None:
        wants = None if self.cold else wants
        refused = (exclusive and self.members) or any(getattr(m, "exclusive", False) for m in self.members)
        credit = self.shared if shared and not no_ack and not browser else None
        arguments = {
            "priority": priority,
            "browser": browser,
            "no_ack": no_ack,
            "exclusive": exclusive,
            "prefetch": prefetch,
            "wants": wants,
            "suspended": suspended,
        }
        if refused:
            with pytest.raises(ValueError):
                Consumer(self.queue, shared=credit, **arguments)
            return
        consumer = Consumer(self.queue, shared=credit, **arguments)
        member = Member(consumer, wants, browser, no_ack, priority, prefetch, credit, suspended)
        member.exclusive = exclusive  # type: ignore[attr-defined]
        self.members.append(member)
        if suspended or not self.has_credit(member):
            assert consumer.list == "NOT_INTERESTED"
        elif browser:
            assert consumer.list == "NON_ACQUIRING"

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.consumer.close()
        assert member.consumer.list == "REMOVED"
        self.members.remove(member)
        for entry in self.entries.values():
            if entry.offered_to is member:
                entry.holder = entry.offered_to = None  # an unsent offer goes back by itself, not flagged
        # The session settles what it held: back to its place, flagged.
        for position, entry in self.in_order():
            if entry.holder is member:
                assert member.consumer.release(position)
                self.returned(entry, True)
        assert member.consumer.pull() is None

    def returned(self, entry: Entry, delivered: bool) -> None:
        entry.holder = None
        if delivered:
            entry.redelivered = True
            entry.count += 1

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        self.pull_one(data.draw(st.sampled_from(self.members)))

    def pull_one(self, member: Member) -> bool:
        listed = member.consumer.list
        offer = [p for p, e in self.entries.items() if e.offered_to is member]
        if member.browser:
            expected = self.next_browsed(member) if listed == "NON_ACQUIRING" else 0
        elif listed == "NOT_INTERESTED" or member.suspended:
            expected = 0
        elif offer:
            expected = offer[0]
        else:
            expected = self.next_for(member) if self.has_credit(member) else 0
        got = member.consumer.pull()
        assert (got[0] if got else 0) == expected
        if got is None:
            member.hot = False
            if not member.browser:
                assert member.consumer.list in ("INTERESTED", "NOT_INTERESTED", "NOTIFIED")
                if member.consumer.list == "NOT_INTERESTED":
                    assert not self.ready(member) or listed == "NOT_INTERESTED"
            return False
        entry = self.entries[expected]
        assert got[1:4] == (entry.body, entry.redelivered, entry.count)
        if member.browser:
            member.browsed[expected >> LEVEL_SHIFT] = expected
            return True
        member.hot = True
        assert member.consumer.list == "NOTIFIED", "a consumer that gets messages stays notified"
        others = [m for m in self.members if m is not member and not m.browser and m.priority == member.priority and self.active(m)]
        if others:
            assert got[4], "others of the same priority are ready: the turn ends"
        entry.offered_to = None
        if member.no_ack:
            del self.entries[expected]
        else:
            entry.holder = member
        return True

    def held(self, kind: type) -> list[tuple[int, Entry]]:
        return [(p, e) for p, e in self.in_order() if isinstance(e.holder, kind) and e.offered_to is None]

    @precondition(lambda self: self.held(Member))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        position, entry = data.draw(st.sampled_from(self.held(Member)))
        member = entry.holder
        assert member.consumer.ack(position)
        del self.entries[position]
        assert not self.queue.dequeue(position, member.consumer.id), "settled twice"
        assert not self.queue.release(position, member.consumer.id), "settled twice"

    @precondition(lambda self: self.held(Member))
    @rule(data=st.data(), delivered=st.booleans())
    def release(self, data: st.DataObject, delivered: bool) -> None:
        position, entry = data.draw(st.sampled_from(self.held(Member)))
        member = entry.holder
        before = {id(m): m.consumer.has_offer for m in self.members}
        self.returned(entry, delivered)
        assert member.consumer.release(position, delivered)
        assert {id(m): m.consumer.has_offer for m in self.members} == before

    @rule()
    def get(self) -> None:
        available = [p for p, e in self.in_order() if e.holder is None]
        got = self.queue.pull(self.getter)
        if not available or not self.entries[available[0]].resident:
            assert got is None
            return
        entry = self.entries[available[0]]
        assert got[:4] == (available[0], entry.body, entry.redelivered, entry.count)
        entry.holder = "get"

    @precondition(lambda self: any(e.holder == "get" for e in self.entries.values()))
    @rule(data=st.data(), back=st.booleans())
    def settle_get(self, data: st.DataObject, back: bool) -> None:
        position = data.draw(st.sampled_from([p for p, e in self.in_order() if e.holder == "get"]))
        assert not self.queue.dequeue(position, self.getter + 1000), "only the holder settles"
        if back:
            self.returned(self.entries[position], True)
            assert self.queue.release(position, self.getter)
        else:
            del self.entries[position]
            assert self.queue.dequeue(position, self.getter)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), suspended=st.booleans())
    def suspend(self, data: st.DataObject, suspended: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.suspended = suspended
        member.consumer.suspend(suspended)
        if suspended:
            assert member.consumer.list == "NOT_INTERESTED"
            member.hot = False
            for entry in self.entries.values():
                if entry.offered_to is member:
                    entry.holder = entry.offered_to = None

    @precondition(lambda self: self.members)
    @rule(data=st.data(), limit=st.sampled_from([0, 1, 3]))
    def set_prefetch(self, data: st.DataObject, limit: int) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.prefetch = limit
        member.consumer.set_prefetch(limit)

    # --- the broker ---

    @rule()
    def take_head(self) -> None:
        available = [p for p, e in self.in_order() if e.holder is None]
        got = self.queue.take_head()
        assert (got[0] if got else None) == (available[0] if available else None)
        if got:
            assert self.queue.dequeue(got[0])
            del self.entries[got[0]]

    @rule(step=st.sampled_from([0, 5, 20]))
    def expire(self, step: int) -> None:
        self.now += step
        due = {p for p, e in self.entries.items() if e.holder is None and 0 < e.expires <= self.now}
        nearest = [e.expires for e in self.entries.values() if e.expires]
        if nearest:
            assert 0 < self.queue.next_expiry <= min(nearest)
        taken = []
        while got := self.queue.take_expired(self.now):
            taken.append(got[0])
            assert self.queue.dequeue(got[0])
        assert set(taken) == due
        assert taken == sorted(taken)
        for position in taken:
            del self.entries[position]

    @rule()
    def purge(self) -> None:
        available = [p for p, e in self.entries.items() if e.holder is None]
        assert self.queue.purge() == len(available)
        for position in available:
            del self.entries[position]

    @precondition(lambda self: self.entries and self.cold)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        position, entry = data.draw(st.sampled_from(self.in_order()))
        assert self.queue.evict(position) == (entry.holder is None and entry.resident)
        if entry.holder is None:
            entry.resident = False

    @rule(fail=st.booleans())
    def load(self, fail: bool) -> None:
        for position in self.queue.take_loads():
            entry = self.entries.get(position)
            if fail:
                self.queue.loaded(position, None)
            elif entry is None:
                self.queue.loaded(position, b"late")
            else:
                self.queue.loaded(position, entry.body)
                entry.resident = True

    @rule(data=st.data())
    def load_any(self, data: st.DataObject) -> None:
        cold = [p for p, e in self.in_order() if not e.resident]
        if cold:
            position = data.draw(st.sampled_from(cold))
            self.queue.loaded(position, self.entries[position].body)
            self.entries[position].resident = True

    @rule()
    def housekeeping(self) -> None:
        self.queue.housekeeping()

    @rule()
    def run_until_quiet(self) -> None:
        """Everyone who was notified does what it must: pulls until nothing comes. Then nobody may be asleep over work (invariant 1)."""
        for _ in range(10_000):
            notified = [m for m in self.members if m.consumer.list == "NOTIFIED"]
            if not notified:
                break
            for member in notified:
                while self.pull_one(member):
                    pass
        else:
            raise AssertionError("consumers wake each other without end")
        # Shared credit that another consumer used up: the session resumes those who wait when it comes back, not the queue.
        for member in self.members:
            if not member.browser and member.consumer.list == "INTERESTED" and self.ready(member):
                assert not self.next_for(member), "an interested consumer with credit sleeps while its next entry is available"

    # --- always ---

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        available = [e for e in self.entries.values() if e.holder is None]
        assert self.queue.ready == len(available)
        assert self.queue.unacked == len(self.entries) - len(available)
        assert self.queue.ready_bytes == sum(len(e.body) for e in available if e.resident)
        assert self.queue.consumer_count == len(self.members)

    @invariant()
    def lists_agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        counts = {"INTERESTED": 0, "NOTIFIED": 0, "NOT_INTERESTED": 0, "NON_ACQUIRING": 0}
        for member in self.members:
            counts[member.consumer.list] += 1
            assert member.browser or member.consumer.list != "NON_ACQUIRING"
            assert not member.browser or member.consumer.list in ("NON_ACQUIRING", "NOT_INTERESTED")
        assert self.queue.list_counts() == counts
        assert self.queue.wanted == counts["INTERESTED"] + counts["NON_ACQUIRING"]

    @invariant()
    def notified_were_told(self) -> None:
        if not hasattr(self, "queue"):
            return
        for member in self.members:
            told = member.consumer.target.take()
            if told and not member.browser:
                member.hot = True
            if member.consumer.list == "NOTIFIED":
                assert member.hot, "NOTIFIED without notify_work and not in its turn"

    @invariant()
    def credit_agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        for member in self.members:
            expected = 0 if member.browser or member.no_ack else self.used(member)
            assert member.consumer.used == expected
        assert self.shared.used == sum(self.used(m) for m in self.members if m.shared is not None)

    @invariant()
    def peek_agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        got = self.queue.peek(0)
        first = min(self.entries, default=0)
        assert (got[0] if got else 0) == first

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.run_until_quiet()
            self.members.clear()


class PriorityQueueMachine(QueueMachine):
    LEVELS = 3


profile = settings(
    max_examples=int(os.environ.get("FLINTMQ_EXAMPLES", "100")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)

TestStandardQueue = QueueMachine.TestCase
TestStandardQueue.settings = profile
TestPriorityQueue = PriorityQueueMachine.TestCase
TestPriorityQueue.settings = profile

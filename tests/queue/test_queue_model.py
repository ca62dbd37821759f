"""Against a small model: whatever producers, consumers, the broker, transactions and the content port do in turn, the queue keeps
order, credit, lists, residency and counts, and nobody who could take an available entry is left asleep."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.effort import tries

queue_driver = pytest.importorskip("tests.drivers.queue_driver")
Consumer, Credit, Queue, Waiter = queue_driver.Consumer, queue_driver.Credit, queue_driver.Queue, queue_driver.Waiter

LEVEL_SHIFT = 56


@dataclass
class Entry:
    body: bytes
    expires: int = 0
    redelivered: bool = False
    count: int = 0
    holder: object = None  # None: available; a Member, "get", "offer", "tx" (held at its place by the broker), "failed"
    offered_to: object = None
    resident: bool = True
    logged: bool = True
    spilled: bool = False

    @property
    def aside(self) -> bool:
        return not self.resident and self.holder in ("tx", "failed")


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
    PAGED = False

    @initialize(cold=st.booleans(), hot=st.sampled_from([None, 3, 12, 60]), segments=st.sampled_from([(16, 1365), (2, 4), (1, 3)]))
    def start(self, cold: bool, hot: int | None, segments: tuple[int, int]) -> None:
        # Either predicates or content that is not resident: what a consumer judged before it was evicted stays judged, which the
        # model does not follow.
        self.cold = cold or self.PAGED
        if self.PAGED:
            hot, segments = hot or 12, min(segments, (2, 4))
        queue_driver.set_segments(*segments)
        self.hot = hot if self.cold else None
        self.queue = Queue(levels=self.LEVELS, hot=self.hot)
        self.entries: dict[int, Entry] = {}
        self.held: dict[int, Entry] = {}  # of transactions that are not committed: nobody sees them
        self.queue_tails: dict[int, int] = {}
        self.waiter = Waiter()
        self.waiting = False
        self.members: list[Member] = []
        self.now = 1000
        self.getter = queue_driver.new_owner()
        self.shared = Credit(3)
        self.serial = 0
        self.forgotten = 0  # logged entries whose dequeue a transaction logged
        self.published: set[bytes] = set()
        self.floors: list[tuple] = []  # looked for and not moved yet

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
        return self.queue_tails.get(level, 0)

    def live(self) -> list[Entry]:
        return [*self.entries.values(), *self.held.values()]

    def resident_bytes(self) -> int:
        return sum(len(e.body) for e in self.live() if e.resident)

    def cold_count(self) -> int:
        return sum(1 for e in self.live() if not e.resident and not e.aside)

    def arrives_hot(self, size: int) -> bool:
        if self.hot is None:
            return True
        if self.cold_count():
            return False
        if self.resident_bytes() == 0 and self.queue.wanted > 0:
            return True
        return size <= self.load_room()

    def load_room(self) -> int:
        """Bytes the window has room for: what is in hands does not fill it, up to eight windows."""
        resident = self.resident_bytes()
        if resident >= 8 * self.hot:
            return 0
        if resident >= self.hot:
            resident = max(0, resident - sum(len(e.body) for e in self.entries.values() if e.holder is not None))
        return max(0, self.hot - resident)

    def note_position(self, position: int, priority: int | None) -> None:
        level = position >> LEVEL_SHIFT
        assert level == self.LEVELS - 1 - min(priority or 0, self.LEVELS - 1)
        assert position > self.queue_tails.get(level, level << LEVEL_SHIFT), "positions of a level rise and are never reused"
        self.queue_tails[level] = position

    @rule(
        letter=st.sampled_from("ab"),
        priority=st.none() | st.integers(0, 4),
        expires=st.sampled_from([0, 0, 0, 1010, 1050]),
        persistent=st.booleans(),
    )
    def enqueue(self, letter: str, priority: int | None, expires: int, persistent: bool) -> None:
        body = self.fresh_body(letter)
        before = {id(m): m.consumer.has_offer for m in self.members}
        hot = self.arrives_hot(len(body))
        position = self.queue.enqueue(body, priority, expires, persistent=persistent)
        self.note_position(position, priority)
        self.entries[position] = Entry(body, expires, resident=hot, logged=persistent, spilled=not persistent and not hot)
        self.adopt_offer(position, before)

    @rule(count=st.integers(1, 40))
    def enqueue_many(self, count: int) -> None:
        for _ in range(count):
            self.enqueue("a", None, 0, bool(self.serial % 3))

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
        assert self.queue.restore(position, None if cold else body, redelivered, body_len=len(body)) == position
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
        self.queue_tails[level] = at
        if position == 0:
            assert not entitled, "a ready consumer whose next entry it is gets an immediate message"
            del self.entries[at]
            assert not any(m.consumer.has_offer and not before[id(m)] for m in self.members)
        else:
            assert position == at
            assert self.adopt_offer(position, before), "never both accepted and left without a taker"

    # --- transactions ---

    @rule(letter=st.sampled_from("ab"), priority=st.none() | st.integers(0, 4), expires=st.sampled_from([0, 0, 1010]))
    def add_held(self, letter: str, priority: int | None, expires: int) -> None:
        body = self.fresh_body(letter)
        position = self.queue.add_held(body, priority, expires)
        self.note_position(position, priority)
        self.held[position] = Entry(body, expires, logged=False)
        assert not self.queue.release(position) and not self.queue.dequeue(position, 7), "only its transaction moves a held entry"

    @precondition(lambda self: self.held)
    @rule(data=st.data(), commit=st.booleans(), logged=st.booleans())
    def end_held(self, data: st.DataObject, commit: bool, logged: bool) -> None:
        position = data.draw(st.sampled_from(sorted(self.held)))
        entry = self.held[position]
        if commit:
            full = self.hot is not None and self.load_room() == 0 and self.resident_bytes() > self.hot
            cold = self.hot is not None and (self.cold_count() > 0 or full)
            assert self.queue.publish_held(position, logged)
            entry.resident = not cold
            entry.logged = logged
            self.published.add(entry.body)
            self.entries[position] = entry
            if self.queue.next_expiry == 0:
                assert entry.expires == 0
        else:
            assert self.queue.drop_held(position)
        del self.held[position]
        if not commit:
            assert not self.queue.publish_held(position) and not self.queue.drop_held(position), "decided once"

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def hold_at(self, data: st.DataObject) -> None:
        position, entry = data.draw(st.sampled_from(self.in_order()))
        assert self.queue.hold_at(position) == (entry.holder is None)
        if entry.holder is None:
            entry.holder = "tx"

    @precondition(lambda self: any(e.holder in ("tx", "failed") for e in self.entries.values()))
    @rule(data=st.data(), back=st.booleans(), publish=st.booleans())
    def end_hold(self, data: st.DataObject, back: bool, publish: bool) -> None:
        position = data.draw(st.sampled_from([p for p, e in self.in_order() if e.holder in ("tx", "failed")]))
        if back:
            assert self.queue.publish_held(position, False) if publish else self.queue.release(position, delivered=False)
            self.entries[position].holder = None
        else:
            assert self.queue.drop_held(position)
            self.forgotten += self.entries[position].logged
            del self.entries[position]

    @rule(level=st.integers(0, 2), gap=st.sampled_from([0, 3, 3000]))
    def set_tail(self, level: int, gap: int) -> None:
        level = min(level, self.LEVELS - 1)
        at = self.tail(level) & ((1 << LEVEL_SHIFT) - 1)
        assert self.queue.tail(level) == at
        assert self.queue.set_tail(level, at + gap) and self.queue.set_tail(level, 0)
        assert self.queue.tail(level) == at + gap
        if at + gap:
            self.queue_tails[level] = level << LEVEL_SHIFT | at + gap

    @rule()
    def redelivered_runs(self) -> None:
        expected: list[list[int]] = []
        last_plain = -1
        for position, entry in self.in_order():
            if not entry.logged:
                continue
            if not entry.redelivered:
                last_plain = position
            elif expected and last_plain < expected[-1][1] and expected[-1][1] >> LEVEL_SHIFT == position >> LEVEL_SHIFT:
                expected[-1][1] = position
            else:
                expected.append([position, position])
        got = []
        at = 0
        while run := self.queue.next_redelivered(at):
            assert run[0] >= at and run[0] >> LEVEL_SHIFT == run[1] >> LEVEL_SHIFT
            got.append(list(run))
            at = run[1] + 1
        if self.queue.shells == 0:
            assert got == expected
        flagged = {p for p, e in self.entries.items() if e.logged and any(first <= p <= last for first, last in got)}
        assert flagged == {p for p, e in self.entries.items() if e.logged and e.redelivered}

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

    def in_hand(self, kind: type) -> list[tuple[int, Entry]]:
        return [(p, e) for p, e in self.in_order() if isinstance(e.holder, kind) and e.offered_to is None]

    @precondition(lambda self: self.in_hand(Member))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        position, entry = data.draw(st.sampled_from(self.in_hand(Member)))
        member = entry.holder
        assert member.consumer.ack(position)
        del self.entries[position]
        assert not self.queue.dequeue(position, member.consumer.id), "settled twice"
        assert not self.queue.release(position, member.consumer.id), "settled twice"

    @precondition(lambda self: self.in_hand(Member))
    @rule(data=st.data(), delivered=st.booleans())
    def release(self, data: st.DataObject, delivered: bool) -> None:
        position, entry = data.draw(st.sampled_from(self.in_hand(Member)))
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
        # What is in somebody's hands need not be looked at: it comes into the account again when it comes back.
        nearest = [e.expires for e in self.entries.values() if e.expires and e.holder is None]
        if nearest:
            assert 0 < self.queue.next_expiry <= min(nearest)
        taken = []
        while got := self.queue.take_expired(self.now):
            taken.append(got[0])
            assert self.queue.dequeue(got[0])
        assert set(taken) == due, "available ones all, others none"
        assert taken == sorted(taken, key=lambda position: (self.entries[position].expires, position))
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
        known = entry.logged or entry.spilled or entry.body in self.published
        assert self.queue.evict(position) == (entry.holder is None and entry.resident and known)
        if entry.holder is None and known:
            entry.resident = False

    @precondition(lambda self: self.cold_count())
    @rule(full=st.sampled_from([False, False, False, True]))
    def page_out(self, full: bool) -> None:
        """What can leave memory does; nothing that a client sees changes."""
        self.queue.set_runs(full=full)
        gone = self.queue.page_out()
        assert not (full and gone)
        self.queue.set_runs()
        assert self.queue.shell_entries <= self.cold_count()

    @rule(fail=st.booleans())
    def load(self, fail: bool) -> None:
        for position in self.queue.take_loads():
            entry = self.entries.get(position) if position not in self.held else None
            if fail:
                self.queue.loaded(position, None)
            elif entry is None:
                self.queue.loaded(position, b"late")
            else:
                self.loaded(position)

    def loaded(self, position: int) -> None:
        entry = self.entries[position]
        self.queue.loaded(position, entry.body)
        if entry.holder is None:
            entry.resident = True

    @rule(data=st.data())
    def load_any(self, data: st.DataObject) -> None:
        cold = [p for p, e in self.in_order() if not e.resident]
        if cold:
            self.loaded(data.draw(st.sampled_from(cold)))

    @rule(count=st.integers(1, 20))
    def load_run(self, count: int) -> None:
        """As the loader does: the next cold entries, from the first on."""
        at = 0
        for _ in range(count):
            expected = [p for p, e in self.in_order() if e.holder is None and not e.resident and p >= at]
            found = self.queue.next_cold(at)
            assert (found[0] if found else None) == (expected[0] if expected else None)
            if not found:
                return
            assert found[1], "a cold entry has an id"
            assert bool(found[1] >> 63) == self.entries[found[0]].spilled
            self.loaded(found[0])
            at = found[0] + 1

    @precondition(lambda self: any(not e.resident for e in self.entries.values()))
    @rule(data=st.data())
    def content_failed(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from([p for p, e in self.in_order() if not e.resident]))
        entry = self.entries[position]
        assert self.queue.failed(position) == (entry.holder is None)
        if entry.holder is None:
            entry.holder = "failed"

    @precondition(lambda self: not self.waiting)
    @rule()
    def wait_for_head(self) -> None:
        """A basic.get whose head is cold: registers, looks again, waits."""
        available = [p for p, e in self.in_order() if e.holder is None]
        if not available or self.entries[available[0]].resident:
            return
        self.waiter.add(self.queue)
        assert self.queue.pull(self.getter) is None
        self.waiter.take()
        self.waiting = True

    @rule()
    def housekeeping(self) -> None:
        self.queue.housekeeping()

    @precondition(lambda self: not self.floors and (self.held or any(e.holder is not None for e in self.entries.values())))
    @rule()
    def find_floors(self) -> None:
        """Somebody looks where the floors may be; whatever comes before the move, nobody loses sight of an entry."""
        self.floors = [(self.queue.find_floor(level), level) for level in range(self.LEVELS)]

    @precondition(lambda self: self.floors)
    @rule()
    def raise_floors(self) -> None:
        for found, level in self.floors:
            self.queue.raise_floor(found, level)
        self.floors = []
        assert self.queue.available() == [position for position, entry in self.in_order() if entry.holder is None]

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
        assert self.queue.ready_bytes == sum(len(e.body) for e in available)
        assert self.queue.cold_count == self.cold_count()
        assert self.queue.resident_bytes == self.resident_bytes()
        assert self.queue.failed_count == sum(1 for e in self.entries.values() if e.holder == "failed")
        assert self.queue.logged == sum(1 for e in self.entries.values() if e.logged) + self.forgotten
        assert self.queue.spilled == sum(1 for e in self.entries.values() if e.spilled)
        assert self.queue.consumer_count == len(self.members)

    @invariant()
    def waiting_get_is_woken(self) -> None:
        """No lost wake-up for a basic.get: when the head is not cold any more, it was told."""
        if not getattr(self, "waiting", False):
            return
        available = [e for _, e in self.in_order() if e.holder is None]
        if not available or available[0].resident:
            assert self.waiter.take(), "the head is there and the waiting get was not told"
            self.waiter.remove()
            self.waiting = False

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

    @invariant()
    def shells_have_runs(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.kept_runs == self.queue.shells

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.run_until_quiet()
            self.members.clear()
        queue_driver.set_segments()


class PriorityQueueMachine(QueueMachine):
    LEVELS = 3


class PagedQueueMachine(QueueMachine):
    """Entries leave memory after each step, as far as they can: segments of three or four, a small window."""

    PAGED = True

    @invariant()
    def leaves_memory(self) -> None:
        if hasattr(self, "queue") and self.cold_count() > 6:
            self.queue.page_out()


class PagedPriorityQueueMachine(PagedQueueMachine):
    LEVELS = 3


profile = settings(
    max_examples=int(os.environ.get("FLINTMQ_EXAMPLES", tries(40, 100))),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)

TestStandardQueue = QueueMachine.TestCase
TestStandardQueue.settings = profile
TestPriorityQueue = PriorityQueueMachine.TestCase
TestPriorityQueue.settings = profile
TestPagedQueue = PagedQueueMachine.TestCase
TestPagedQueue.settings = profile
TestPagedPriorityQueue = PagedPriorityQueueMachine.TestCase
TestPagedPriorityQueue.settings = profile

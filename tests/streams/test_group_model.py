"""A group against a plain model: each offset to one member at a time, in order, until it is done; nobody waits for a wake that never comes.

The machine plays the session as well: a consumer may only pull while it is scheduled, that is after notify_work or after a pull that gave
it something. So a wake that is lost shows as work that nobody is scheduled for.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flintmq.queue.control import QueueHandle
from flintmq.streams.control import StreamQueue
from tests.drivers.stream_driver import StreamConsumer
from tests.twins.memory_stream import MemoryStream

GROUP = b"workers"
VISIBILITY_MS = 5_000
DELAY_MS = 700
LIMIT = 3
OPEN_MAX = 6


class Member:
    def __init__(self, stream: StreamQueue, prefetch: int, filters: list[bytes] | None) -> None:
        self.consumer = StreamConsumer(stream, stream.open_seat("first", group=GROUP, filters=filters), prefetch)
        self.prefetch = prefetch
        self.credit = 0
        self.scheduled = False
        self.suspended = False
        self.hands: list[int] = []  # delivered to it and not settled by it, held or not

    def look(self) -> None:
        if self.consumer.told():
            self.scheduled = True

    @property
    def able(self) -> bool:
        return not self.suspended and (self.prefetch == 0 or len(self.hands) < self.prefetch)


class GroupMachine(RuleBasedStateMachine):
    @initialize(
        filtered=st.booleans(),
        hot=st.sampled_from([0, 1, 3, 1_000]),
        batch=st.sampled_from([1, 3, 100]),
        dead_letters=st.booleans(),
        timed=st.booleans(),
    )
    def begin(self, filtered: bool, hot: int, batch: int, dead_letters: bool, timed: bool) -> None:
        self.log = MemoryStream(hot=hot, read_most=4)
        self.batch = batch
        self.dead_letters = dead_letters
        self.timed = timed
        self.filters = [b"a", b"b"] if filtered else None
        self.now = 1_000
        self.bodies: list[bytes] = []
        self.members: list[Member] = []
        self.next = 0
        self.open: dict[int, dict[str, Any]] = {}
        self.done: set[int] = set()
        self.dropped = 0
        self.lost = 0  # that were wanted
        self.lost_at_most = 0  # passed over, and perhaps counted as lost though the filter would not have let them through
        self.failing = False
        self.paused = False  # a read may have failed: nothing is promised before time passes
        self.unseen = False  # and nobody has pulled since: the time before the next try begins with that pull
        self.flagged = 0
        self.exact_flags = True
        self.start()

    def start(self) -> None:
        self.stream = StreamQueue(
            QueueHandle(1),
            self.log,
            open_max=OPEN_MAX,
            batch_messages=self.batch,
            dead_letters=self.dead_letters,
            delivery_limit=LIMIT,
            delay_ms=DELAY_MS if self.timed else 0,
            visibility_ms=VISIBILITY_MS if self.timed else 0,
            manual_clock=True,
            manual_reads=True,
        )
        self.stream.set_clock(self.now)

    # --- the model ------------------------------------------------------------------------------------------------------

    def wanted(self, offset: int) -> bool:
        return self.filters is None or self.bodies[offset].split(b"|")[0] in self.filters

    def work(self) -> bool:
        """There is surely something for an able member."""
        first = self.stream.first_offset
        if any(item["state"] == "ready" and offset >= first for offset, item in self.open.items()):
            return True
        return len(self.open) < OPEN_MAX and any(self.wanted(offset) for offset in range(max(first, self.next), self.log.visible))

    def back(self, offset: int, delay: int) -> None:
        item = self.open[offset]
        item["owner"] = None
        if item["count"] > LIMIT:
            self.kill(offset)
        elif delay:
            item.update(state="delayed", due=self.now + delay)
        else:
            item.update(state="ready", due=0)

    def kill(self, offset: int) -> None:
        if self.dead_letters:
            self.open[offset].update(state="dead", due=0, owner=None)
        else:
            del self.open[offset]
            self.done.add(offset)
            self.dropped += 1

    def pass_time(self) -> None:
        for offset, item in sorted(self.open.items()):
            if item["due"] and item["due"] <= self.now and item["state"] in ("held", "delayed"):
                if item["state"] == "held":
                    self.back(offset, 0)
                else:
                    item.update(state="ready", due=0)

    def look(self) -> None:
        for member in self.members:
            member.look()

    # --- rules ----------------------------------------------------------------------------------------------------------

    @rule(kinds=st.lists(st.sampled_from([b"a|", b"b|", b"c|", b""]), min_size=1, max_size=5), publish=st.booleans())
    def append(self, kinds: list[bytes], publish: bool) -> None:
        for kind in kinds:
            body = kind + str(len(self.bodies)).encode()
            assert self.log.append(body, publish=False) == len(self.bodies)
            self.bodies.append(body)
        if publish:
            self.log.publish()
        self.look()

    @rule()
    def publish(self) -> None:
        self.log.publish()
        self.look()

    @precondition(lambda self: len(self.members) < 3)
    @rule(prefetch=st.sampled_from([0, 1, 2]))
    def join(self, prefetch: int) -> None:
        if not self.stream.groups():
            self.next = self.stream.first_offset
        self.members.append(Member(self.stream, prefetch, self.filters))
        self.look()

    @precondition(lambda self: any(member.scheduled for member in self.members))
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        self.pull_from(data.draw(st.sampled_from([member for member in self.members if member.scheduled])))

    def pull_from(self, member: Member) -> None:
        member.scheduled = False
        self.pass_time()
        self.paused = self.paused or self.unseen
        self.unseen = False
        got = member.consumer.deliver()
        self.look()
        if got is None:
            self.sync()
            return
        member.scheduled = True
        offset, body, redelivered, count = got
        assert member.able, "a member without credit, or suspended, got a message"
        assert body == self.bodies[offset]
        # What came back but is not in memory waits for its read: then something never delivered may come first.
        if offset not in self.open:
            self.passes(offset)
            assert offset == self.next, "never delivered ones come in order"
            gone = [o for o, item in self.open.items() if item["state"] == "ready" and o < self.stream.first_offset]
            assert len(self.open) - len(gone) < OPEN_MAX
            assert count == 0
            self.next = offset + 1
            self.open[offset] = {"count": 0}
        else:
            item = self.open[offset]
            assert item["state"] == "ready", "held by another, delayed or dead"
            for before in [o for o, i in self.open.items() if i["state"] == "ready" and o < offset]:
                assert before < self.stream.first_offset, "what came back comes again in order"
                del self.open[before]
                self.lost += 1
            assert count == item["count"]
        if self.open[offset]["count"] > 0 or offset < self.flagged:
            assert redelivered
        elif self.exact_flags:
            assert not redelivered
        item = self.open[offset]
        item.update(state="held", owner=member.consumer.id, count=item["count"] + 1, due=self.now + VISIBILITY_MS if self.timed else 0)
        member.hands.append(offset)
        self.sync()

    def passes(self, end: int) -> None:
        """The group went on from self.next to `end` without delivering: nothing wanted there was still kept."""
        for offset in range(self.next, end):
            if self.wanted(offset):
                assert offset < self.stream.first_offset, "skipped in silence"
                self.lost += 1
            else:
                self.lost_at_most += 1
        self.next = max(self.next, end)

    def sync(self) -> None:
        """What retention took and the group noticed by now."""
        real = self.stream.groups().get(GROUP)
        if real is None:
            return
        self.passes(real["next"])
        assert real["next"] == self.next
        ready = sorted(offset for offset, item in self.open.items() if item["state"] == "ready")
        for offset in ready[: len(ready) - real["returned"]]:
            assert offset < self.stream.first_offset, "came back and was forgotten"
            del self.open[offset]
            self.lost += 1
        assert self.lost <= real["lost"] <= self.lost + self.lost_at_most, "every lost offset is counted"

    @precondition(lambda self: any(member.hands for member in self.members))
    @rule(data=st.data(), verb=st.sampled_from(["ack", "ack", "ack", "nack", "now", "reject", "unsent"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        member = data.draw(st.sampled_from([member for member in self.members if member.hands]))
        offset = data.draw(st.sampled_from(member.hands))
        self.pass_time()
        self.stream.tick()
        member.hands.remove(offset)
        item = self.open.get(offset)
        held = item is not None and item["state"] == "held" and item["owner"] == member.consumer.id
        if verb == "ack":
            assert member.consumer.ack(offset) == held
            if held:
                del self.open[offset]
                self.done.add(offset)
        elif verb == "reject":
            assert member.consumer.reject(offset) == held
            if held:
                self.kill(offset)
        elif verb == "unsent":
            assert member.consumer.nack(offset, delivered=False) == held
            if held:
                item.update(state="ready", owner=None, count=item["count"] - 1, due=0)
        else:
            assert member.consumer.nack(offset, 0 if verb == "now" else -1) == held
            if held:
                self.back(offset, DELAY_MS if self.timed and verb == "nack" else 0)
        self.look()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """The channel closes: detached first, then everything unsettled is released."""
        member = data.draw(st.sampled_from(self.members))
        self.pass_time()
        self.stream.tick()
        member.consumer.detach()
        self.members.remove(member)
        for offset in member.hands:
            item = self.open.get(offset)
            held = item is not None and item["state"] == "held" and item["owner"] == member.consumer.id
            assert member.consumer.nack(offset) == held
            if held:
                self.back(offset, 0)
        self.look()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def suspend(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.suspended = not member.suspended
        member.consumer.suspend(member.suspended)
        self.look()

    @rule()
    def read(self) -> None:
        self.stream.step_reads(1)
        if self.failing:
            self.paused = self.unseen = True
        self.look()

    @rule(ms=st.sampled_from([1, 300, 1_100, 6_000]))
    def time(self, ms: int) -> None:
        self.now += ms
        self.stream.set_clock(self.now)
        self.pass_time()
        self.stream.tick()
        if ms > 1_000 and not self.failing:
            self.paused = False
        self.look()

    @rule()
    def fail(self) -> None:
        self.failing = not self.failing
        self.log.fail(self.failing)

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        self.log.truncate(data.draw(st.integers(0, self.log.visible)))

    @precondition(lambda self: self.dead_letters)
    @rule()
    def dead_letter(self) -> None:
        dead = self.stream.take_dead()
        assert [offset for _, offset, _, _ in dead] == sorted(o for o, item in self.open.items() if item["state"] == "dead")
        for name, offset, _reason, _count in dead:
            assert name == GROUP
            assert self.stream.dead_done(name, offset)
            assert not self.stream.dead_done(name, offset)
            del self.open[offset]
            self.done.add(offset)
        self.stream.tick()
        self.look()

    @precondition(lambda self: GROUP in self.stream.groups())
    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """The state is saved, the broker goes away (clean or by a crash right then) and comes back."""
        state = self.stream.state_of(GROUP, clean)
        self.members.clear()
        self.log = self.log.copy()
        del self.bodies[self.log.visible :]
        self.start()
        self.stream.restore(GROUP, state)
        for item in self.open.values():
            if item["state"] != "dead":
                item.update(state="ready", owner=None, due=0)
        self.sync()
        self.flagged = max(self.flagged, self.next)
        self.exact_flags = clean and self.exact_flags
        self.paused = self.unseen = False

    @precondition(lambda self: self.members)
    @rule()
    def settle_down(self) -> None:
        """The disk works, reads end, everybody pulls: then everything that members can take was taken, and nothing is read for ever."""
        self.failing = False
        self.log.fail(False)
        for _ in range(2):  # whoever is told when the first time has passed may be the one that sees it
            for member in [member for member in self.members if member.scheduled]:
                self.pull_from(member)  # sees that the last read failed, and waits from now on
            self.time(1_100)
        for _ in range(3 * len(self.bodies) + 20):
            self.stream.step_reads()
            self.look()
            scheduled = [member for member in self.members if member.scheduled]
            for member in scheduled:
                self.pull_from(member)
            if not scheduled and not self.stream.reads_waiting:
                break
        assert not self.stream.reads_waiting, "the same is read again and again"
        if any(member.able for member in self.members):
            assert not self.work(), "work is left"

    # --- what always holds ----------------------------------------------------------------------------------------------

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        if not hasattr(self, "stream") or self.paused or self.failing:
            return
        able = [member for member in self.members if member.able]
        if not able or not self.work():
            return
        # Who was told and can take nothing now passes it on with its next pull.
        told = any(member.scheduled and (member.able or member.consumer.list == "NOTIFIED") for member in self.members)
        assert told or self.stream.reads_waiting, "work, able members, and nobody was told"

    @invariant()
    def figures(self) -> None:
        if not hasattr(self, "stream") or GROUP not in self.stream.groups():
            return
        real = self.stream.groups()[GROUP]
        states = [item["state"] for item in self.open.values()]
        assert real["in_flight"] == states.count("held")
        assert real["returned"] + real["delayed"] == states.count("ready") + states.count("delayed")
        assert real["dead_waiting"] == states.count("dead")
        if self.open:
            assert real["base"] == min(self.open)


GroupMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("FLINTMQ_EXAMPLES", "150")),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGroup = GroupMachine.TestCase

"""A model of what queue features do together: time to live, length limits, priorities, last values, message groups, sorted queues,
deduplication, dead letters (at-most-once and at-least-once), scheduled delivery, back-off, delivery limits, pauses, purges and restarts,
over the wire, on a clock that stands.

The model says after each step what is in the queue, in hands, waiting and dead, and why. Nothing may be lost, nothing may come twice, each
priority and group has its order, limits hold, and a dead letter has its reason. Conservation: what the broker counted as acked, purged,
dead-lettered and dropped, by reason, is what became of the messages. A long run: `make model` (FLINTMQ_MODEL_EXAMPLES, ARGS).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from flintmq.definitions.change_line import BROKER
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection
from tests.support.standing import StandingClock

EXAMPLES = int(os.environ.get("FLINTMQ_MODEL_EXAMPLES", "30"))
# the short run has the same histories each time
SAME = "FLINTMQ_MODEL_EXAMPLES" not in os.environ
# seconds; what is not there by then is lost
SETTLE_S = 20
STEP_MS = 1_000
DELAY_MS = 2_500
RETRY_MS = 1_700
TTLS = (None, None, 2_000, 7_000)
LIMITS = {
    "housekeeping_ms": 5,
    "dead_letter_retry_ms": 1,
    "dead_letter_retry_max_ms": 1,
    "schedule_retry_ms": 1,
    "schedule_gap_ms": 1,
    "due_gap_ms": 1,
}
KEYS = ("red", "blue")
# kinds of queues that are drawn with x-message-deduplication, too
ONCE = ("plain", "priorities", "shared", "sticky")


class Tie(Exception):
    """Two kinds of events at one time, whose order nobody promises."""


@dataclass
class Rules:
    """What the queue was declared with. at_least: letters at-least-once; dead_most: room in the queue of dead letters."""

    overflow: str = ""
    most: int = 2
    levels: int = 0
    last_value: bool = False
    groups: str = ""
    sorted: bool = False
    once: bool = False
    dead: bool = True
    at_least: bool = False
    dead_most: int = 1_000
    limit: int | None = None
    retry: bool = False

    def arguments(self, dead: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.overflow:
            found |= {"x-max-length": self.most, "x-overflow": self.overflow}
        if self.levels:
            found["x-max-priority"] = self.levels
        if self.last_value:
            found["x-last-value-key"] = "key"
        if self.groups:
            found["qpid.group_header_key"] = "key"
            found["qpid.shared_msg_group"] = int(self.groups == "shared")
        if self.once:
            found["x-message-deduplication"] = True
        if self.sorted:
            found["qpid.queue_sort_key"] = "key"
        if self.dead:
            found |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
            if self.at_least:
                found["x-dead-letter-strategy"] = "at-least-once"
        if self.limit is not None:
            found["x-delivery-limit"] = self.limit
        if self.retry:
            found["x-delayed-retry-min"] = RETRY_MS
        return found

    @property
    def keeps(self) -> bool:
        return self.dead and self.at_least and self.overflow == "reject-publish"


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    overflow = draw(st.sampled_from(["", "drop-head", "ring", "reject-publish", "reject-publish-dlx"]))
    kind = draw(st.sampled_from(["plain", "priorities", "last value", "shared", "sticky", "priorities of groups", "sorted"]))
    if kind == "last value" and overflow.startswith("reject"):
        overflow = "drop-head"
    at_least = overflow == "reject-publish" and draw(st.booleans())
    return Rules(
        overflow,
        draw(st.integers(1, 3)),
        2 if kind.startswith("priorities") else 0,
        kind == "last value",
        kind if kind in ("shared", "sticky") else "shared" if kind == "priorities of groups" else "",
        kind == "sorted",
        kind in ONCE and draw(st.booleans()),
        draw(st.booleans()) or at_least,
        at_least,
        draw(st.sampled_from([1, 1_000])) if at_least else 1_000,
        draw(st.sampled_from([None, 0, 1])),
        draw(st.booleans()),
    )


@dataclass(order=True)
class Message:
    """order: place in the queue. count: returns; out: it was delivered; known: others with its key are dropped while it is there."""

    order: tuple[int, int]
    body: bytes = field(compare=False)
    expires: int = field(compare=False)
    key: str = field(compare=False)
    ttl: int | None = field(compare=False)
    priority: int = field(compare=False)
    count: int = field(default=0, compare=False)
    out: bool = field(default=False, compare=False)
    replaced: bool = field(default=False, compare=False)
    known: bool = field(default=False, compare=False)


class Model:
    """What there is, by the rules."""

    def __init__(self, rules: Rules, now: int) -> None:
        self.rules = rules
        self.now = now
        self.index = 0
        self.ready: list[Message] = []
        self.hands: dict[int, Message] = {}
        self.waits: list[tuple[int, int, Message]] = []
        self.schedule: list[tuple[int, int, Message]] = []
        self.letters: list[tuple[Message, str]] = []
        self.paused = False
        self.dead: list[tuple[bytes, str]] = []
        # what became of messages, as the broker's counters name it
        self.fates: Counter[str] = Counter()

    # --- arrivals
    def refuses(self) -> bool:
        held = len(self.letters) if self.rules.keeps else 0
        return self.rules.overflow.startswith("reject") and len(self.ready) + held >= self.rules.most

    def publish(self, message: Message, delay: int) -> bool:
        """False: it is refused."""
        if delay:
            self.schedule.append((self.now + delay, len(self.schedule), message))
            return True
        return self.arrive(message, True)

    def has(self, key: str) -> bool:
        """Whether a message that was compared when it came has this key."""
        there = [*self.ready, *self.hands.values(), *(one for _, _, one in self.waits), *(one for one, _ in self.letters)]
        return any(one.known and one.key == key for one in there)

    def arrive(self, message: Message, compared: bool = False) -> bool:
        """False: it is refused. compared: it does not come from the schedule."""
        if self.refuses():
            if self.rules.overflow == "reject-publish-dlx":
                self.fates["never came"] += 1
                self.letter(message, "maxlen")
            else:
                self.fates["dropped: refused"] += 1
            return False
        if self.rules.once and compared:
            if self.has(message.key):
                return True  # confirmed, and dropped
            message.known = True
        self.index += 1
        self.fates["arrived"] += 1
        message.order = (-min(message.priority, self.rules.levels), self.index)
        message.expires = self.now + message.ttl if message.ttl else 0
        if self.rules.last_value:
            for other in [*self.ready, *self.hands.values(), *(one for _, _, one in self.waits)]:
                other.replaced |= other.key == message.key
            self.fates["replaced"] += sum(one.replaced for one in self.ready)
            self.ready = [one for one in self.ready if not one.replaced]
        self.put(message)
        return True

    def put(self, message: Message) -> None:
        """Into its place, and what is too many goes."""
        if message.replaced:
            self.fates["replaced"] += 1
            return None
        if 0 < message.expires <= self.now:
            return self.letter(message, "expired")
        self.ready.append(message)
        self.ready.sort()
        while self.rules.overflow in ("drop-head", "ring") and len(self.ready) > self.rules.most:
            gone = self.ready[0]
            if self.rules.overflow == "ring":
                level = max(one.order[0] for one in self.ready)
                gone = next(one for one in self.ready if one.order[0] == level)
            self.ready.remove(gone)
            self.letter(gone, "maxlen")
        return None

    def letter(self, message: Message, reason: str) -> None:
        if not self.rules.dead:
            self.fates[f"dropped: {reason}"] += 1
            return
        full = len(self.dead) >= self.rules.dead_most
        if self.rules.keeps and (self.letters or full):
            self.letters.append((message, reason))
        elif not full:
            self.fates[f"letter: {reason}"] += 1
            self.dead.append((message.body, reason))

    # --- consumers
    def first(self) -> Message | None:
        """What basic.get takes: of groups one that nobody holds a message of, and none of which waits for its next delivery. Of a paused
        queue nothing."""
        if self.paused:
            return None
        if self.rules.sorted:
            return min(self.ready, key=lambda one: (one.key, one.order), default=None)
        busy = {one.key for one in [*self.hands.values(), *(one for _, _, one in self.waits)]} if self.rules.groups else set()
        return next((one for one in self.ready if one.key not in busy), None)

    def get(self, tag: int) -> Message | None:
        message = self.first()
        if message is not None:
            self.ready.remove(message)
            self.hands[tag] = message
        return message

    def back(self, tag: int) -> None:
        message = self.hands.pop(tag)
        message.count += 1
        message.out = True
        if message.replaced:
            self.fates["replaced"] += 1
            return
        if self.rules.limit is not None and message.count > self.rules.limit:
            self.letter(message, "delivery_limit")
        elif self.rules.retry:
            self.waits.append((self.now + RETRY_MS * message.count, len(self.waits), message))
        else:
            self.put(message)

    # --- time
    def next_event(self, until: int) -> int:
        """When something happens next, `until` at the latest. Raises: Tie."""
        expiries = [one.expires for one in self.ready if one.expires]
        times = sorted({*expiries, *(at for at, _, _ in self.waits), *(at for at, _, _ in self.schedule)})
        if not times or times[0] > until:
            return until
        soonest = times[0]
        kinds = [expiries, [at for at, _, _ in self.waits], [at for at, _, _ in self.schedule]]
        if sum(soonest in kind for kind in kinds) > 1 or (self.rules.levels > 0 and expiries.count(soonest) > 1):
            raise Tie
        return soonest

    def reach(self, now: int) -> None:
        """At that time."""
        self.now = now
        for one in sorted((one for one in self.ready if 0 < one.expires <= now), key=lambda one: (one.expires, one.order)):
            self.ready.remove(one)
            self.letter(one, "expired")
        for due in [due for due in sorted(self.waits, key=lambda due: due[:2]) if due[0] <= now]:
            self.waits.remove(due)
            self.put(due[2])
        for due in [due for due in sorted(self.schedule, key=lambda due: due[:2]) if due[0] <= now]:
            self.schedule.remove(due)
            self.arrive(due[2])
        self.try_letters()

    def try_letters(self) -> None:
        while self.letters and len(self.dead) < self.rules.dead_most:
            message, reason = self.letters.pop(0)
            self.fates[f"letter: {reason}"] += 1
            self.dead.append((message.body, reason))

    def restart(self) -> None:
        """The process ends and starts: nobody holds anything, nothing waits for its back-off, letters go out anew."""
        for _, _, message in sorted(self.waits, key=lambda due: due[2].order):
            self.put(message)
        self.waits.clear()
        for message in [*self.ready, *(one for one, _ in self.letters), *(one for _, _, one in self.schedule)]:
            message.known = False  # values are not remembered
        self.try_letters()

    def counts(self) -> tuple[int, ...]:
        held = len(self.hands) + len(self.waits) + (len(self.letters) if self.rules.keeps else 0)
        return len(self.ready), held, len(self.dead), len(self.schedule)


class Site:
    """A broker on a standing clock, with a store."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="flintmq-model-")
        self.clock = StandingClock()
        self.clock.__enter__()
        self.numbers = iter(range(1, 1 << 30))
        self.broker: Any = None
        self.start()

    def start(self) -> None:
        self.broker = Broker(clock=self.clock, limits=LIMITS, store_dir=self.directory)
        self.broker.__enter__()
        self.advance(0)

    def advance(self, ms: int) -> None:
        """The time goes on: the housekeeping finds what no clock rang for."""
        self.clock.advance(ms=ms)
        self.broker.node.broker.retries.manual_ns = self.clock.monotonic_ns()

    def stop(self) -> None:
        self.broker.__exit__(None, None, None)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        self.clock.__exit__(None, None, None)
        shutil.rmtree(self.directory, ignore_errors=True)


def _told(done: Future[Any], result: Any, error: BaseException | None) -> None:
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class Run:
    """One example: each step is done on the broker and by the model, and what is there then is compared."""

    def __init__(self, site: Site, rules: Rules) -> None:
        self.site = site
        self.name = f"q{next(site.numbers)}"
        self.dead = self.name + ".dead"
        self.model = Model(rules, site.clock.wall_ms())
        self.bodies = 0
        self.connect()
        limit = {} if rules.dead_most >= 1_000 else {"x-max-length": rules.dead_most, "x-overflow": "reject-publish"}
        self.ch.call("queue.declare", queue=self.dead, durable=True, arguments=limit)
        self.ch.call("queue.declare", queue=self.name, durable=True, arguments=rules.arguments(self.dead))
        self.before = self.counted()

    def connect(self) -> None:
        wait_until(lambda: not self.site.broker.node.broker.connections, timeout=SETTLE_S, step=0.001)  # the one before has counted all
        self.connection = RawConnection("127.0.0.1", self.site.broker.port).open()
        self.ch = self.connection.channel()
        self.ch.call("confirm.select")

    def counts(self) -> tuple[int, ...]:
        vhost = self.site.broker.node.broker.vhosts["/"]
        core, dead = vhost.queues[self.name].core, vhost.queues[self.dead].core
        waiting = self.site.broker.node.broker.retries.waiting(core)
        if core.returned_count or waiting != len(self.model.waits):
            return ()  # the clock must not move before the broker has taken note of what came back
        return core.ready_count(), core.unacked_count(), dead.ready_count(), vhost.schedule.core.ready_count() if vhost.schedule else 0

    def counted(self) -> Counter[str]:
        """What became of messages, as the broker counted it."""
        broker = self.site.broker.node.broker
        core = broker.vhosts["/"].queues[self.name].core
        flows = core.flows()
        seen = Counter({f"dropped: {reason}": count for reason, count in broker.counters.drops.items()})
        seen.update({f"letter: {reason}": count for reason, count in broker.counters.dead_lettered.items()})
        seen.update({"arrived": core.enqueued_total(), "acked": flows["ack"], "purged": flows["purge"]})
        seen.update({"ended: expire": flows["expire"], "ended: reject": flows["reject"], "ended: drop": flows["drop"]})
        return seen

    def conserved(self) -> None:
        """Each message that arrived is somewhere, and was counted once when it left."""
        fates = self.model.fates
        died = {why: fates[f"letter: {why}"] + fates[f"dropped: {why}"] for why in ("maxlen", "expired", "rejected", "delivery_limit")}
        wanted = Counter({name: count for name, count in fates.items() if name not in ("replaced", "never came")})
        wanted["ended: expire"] = died["expired"]
        wanted["ended: reject"] = died["rejected"] + died["delivery_limit"]
        wanted["ended: drop"] = died["maxlen"] - fates["never came"] + fates["replaced"]
        seen: list[Counter[str]] = []

        def same() -> bool:
            counted = self.counted()
            counted.subtract(self.before)
            seen.append(+counted)
            return seen[-1] == +wanted

        try:
            wait_until(same, timeout=2, step=0.001)
        except AssertionError:
            raise AssertionError(f"counted is {seen[-1]}, and should be {+wanted}") from None

    def settle(self) -> None:
        wanted = self.model.counts()
        seen: list[tuple[int, ...]] = []

        def same() -> bool:
            seen.append(self.counts())
            return seen[-1] == wanted

        try:
            wait_until(same, timeout=SETTLE_S, step=0.001)
        except AssertionError:
            raise AssertionError(f"(ready, unacknowledged, dead, scheduled) is {seen[-1]}, and should be {wanted}") from None

    def step(self, step: tuple[Any, ...]) -> None:
        event(step[0])
        note(f"{step} at {self.model.now % 100_000}, {self.model.counts()}")
        getattr(self, step[0])(*step[1:])
        self.settle()

    def publish(self, priority: int, ttl: int | None, delay: int, key: str) -> None:
        self.bodies += 1
        body = b"%d" % self.bodies
        ttl = None if delay else ttl
        headers: dict[str, Any] = {"key": key, "x-deduplication-header": key} | (
            {"x-deliver-at": self.model.now + DELAY_MS} if delay else {}
        )
        more: dict[str, Any] = {} if ttl is None else {"expiration": str(ttl)}
        self.ch.publish(body, routing_key=self.name, delivery_mode=2, priority=priority, headers=headers, **more)
        taken = self.model.publish(Message((0, 0), body, 0, key, ttl, priority), DELAY_MS if delay else 0)
        answer = self.ch.expect("basic.ack" if taken else "basic.nack")
        assert answer.delivery_tag

    def get(self) -> None:
        answer = self.ch.call("basic.get", queue=self.name)
        if answer.name == "basic.get-empty":
            assert self.model.get(0) is None
            return
        message = self.model.get(answer.delivery_tag)
        assert message is not None and bytes(answer.body) == message.body, (bytes(answer.body), message)
        assert bool(answer.redelivered) == message.out
        counts = self.model.rules.limit is not None or self.model.rules.retry
        assert answer.properties.get("headers", {}).get("x-delivery-count", 0) == (message.count if counts else 0)

    def settled(self, how: str, which: int) -> None:
        if not self.model.hands:
            return
        tag = sorted(self.model.hands)[which % len(self.model.hands)]
        if how == "ack":
            self.ch.send("basic.ack", delivery_tag=tag)
            del self.model.hands[tag]
            self.model.fates["acked"] += 1
        elif how == "back":
            self.ch.send("basic.nack", delivery_tag=tag, requeue=True)
            self.model.back(tag)
        else:
            self.ch.send("basic.reject", delivery_tag=tag, requeue=False)
            self.model.letter(self.model.hands.pop(tag), "rejected")

    def advance(self, steps: int) -> None:
        until = self.model.now + steps * STEP_MS
        self.settle()
        while self.model.now < until:
            at = self.model.next_event(until)
            self.site.advance(at - self.model.now)
            self.model.reach(at)
            self.settle()

    def pause(self, paused: bool) -> None:
        """Deliveries rest, or go on; all else happens as ever."""
        done: Future[None] = Future()
        self.site.broker.node.definitions.pause_queue(BROKER, "/", self.name, paused, partial(_told, done))
        done.result(SETTLE_S)
        self.model.paused = paused

    def purge(self) -> None:
        """What consumers hold, what waits for its next delivery and what is scheduled is not in the queue, and stays."""
        answer = self.ch.call("queue.purge", queue=self.name)
        assert answer.message_count == len(self.model.ready)
        self.model.fates["purged"] += answer.message_count
        self.model.ready.clear()

    def purge_schedule(self) -> None:
        schedule = self.site.broker.node.broker.vhosts["/"].schedule
        if schedule is not None:
            assert schedule.core.purge() == len(self.model.schedule)
        self.model.schedule.clear()

    def read_dead(self) -> None:
        """Takes the letters; what waited for room comes with the next time."""
        got = []
        for _ in self.model.dead:
            letter = self.ch.call("basic.get", queue=self.dead, no_ack=True)
            death = letter.properties["headers"]["x-death"][0]
            assert (death["queue"], death["count"], death["routing-keys"]) == (self.name, 1, [self.name])
            got.append((bytes(letter.body), death["reason"]))
        assert got == self.model.dead
        self.model.dead.clear()
        if self.model.letters:
            self.advance(1)

    def restart(self) -> None:
        while self.model.hands:
            self.settled("ack", 0)
        self.settle()
        self.connection.drop()
        self.site.restart()
        self.model.restart()
        self.model.fates.clear()
        self.connect()
        self.settle()
        self.before = self.counted()

    def end(self) -> None:
        """All that is there comes, in its order, once."""
        while self.model.hands:
            self.settled("ack", 0)
        self.settle()
        if self.model.paused:
            self.get()
            self.pause(False)
        self.read_dead()
        while self.model.ready:
            self.get()
            self.settled("ack", 0)
        self.get()
        self.conserved()
        self.ch.call("queue.delete", queue=self.name)
        self.ch.call("queue.delete", queue=self.dead)
        vhost = self.site.broker.node.broker.vhosts["/"]
        if vhost.schedule is not None:
            vhost.schedule.core.purge()
        self.connection.drop()


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3), st.sampled_from(TTLS), st.just(0), st.sampled_from(KEYS)),
    st.tuples(st.just("publish"), st.integers(0, 3), st.sampled_from(TTLS), st.integers(0, 1), st.sampled_from(KEYS)),
    st.tuples(st.just("get")),
    st.tuples(st.just("get")),
    st.tuples(st.just("settled"), st.sampled_from(["ack", "back", "back", "back", "reject", "reject"]), st.integers(0, 3)),
    st.tuples(st.just("settled"), st.sampled_from(["back", "reject"]), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.integers(1, 6)),
    st.tuples(st.just("read_dead")),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.sampled_from(["purge", "purge_schedule", "read_dead"])),
)


def play(site: Site, rules: Rules, steps: list[tuple[Any, ...]]) -> None:
    run = Run(site, rules)
    try:
        for step in steps:
            run.step(step)
    except Tie:
        event("ends at a tie")
        run.conserved()
    else:
        run.end()
        return
    run.connection.drop()
    for name in (run.name, run.dead):
        with RawConnection("127.0.0.1", site.broker.port).open() as other:
            other.channel().call("queue.delete", queue=name)
    vhost = site.broker.node.broker.vhosts["/"]
    if vhost.schedule is not None:
        vhost.schedule.core.purge()


@pytest.fixture(scope="module")
def site() -> Any:
    found = Site()
    yield found
    found.close()


@settings(max_examples=EXAMPLES, deadline=None, derandomize=SAME, suppress_health_check=list(HealthCheck))
@given(rules(), st.lists(STEPS, max_size=30))
def test_features_hold_together(site: Site, rules: Rules, steps: list[tuple[Any, ...]]) -> None:
    play(site, rules, steps)


@settings(max_examples=max(EXAMPLES // 3, 2), deadline=None, derandomize=SAME, suppress_health_check=list(HealthCheck))
@given(rules(), st.lists(STEPS, min_size=25, max_size=40))
def test_each_message_is_counted_once_where_it_went(site: Site, rules: Rules, steps: list[tuple[Any, ...]]) -> None:
    """Long histories: a count that is made twice, or never, shows when several rules met the same messages."""
    play(site, rules, steps)


@settings(max_examples=max(EXAMPLES // 10, 2), deadline=None, derandomize=SAME, suppress_health_check=list(HealthCheck))
@given(rules(), st.lists(STEPS, max_size=12), st.lists(STEPS, max_size=8))
def test_a_restart_changes_nothing(site: Site, rules: Rules, before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> None:
    play(site, rules, [*before, ("restart",), *after])

"""T1 for queue features: `python -m tools.crash.features --images 20000`. Power fails at every operation of histories in which messages are
scheduled, cancelled and routed, replaced by newer values, dead-lettered at-least-once, dropped from a ring, taken out of order,
delivered in message groups, and delivered to consumers and getters that come and go.

in: a seed. out: a recording (campaign.Recording) of real queue cores on a store over the simulated disk; `check` of what a crash leaves.
A history has one to three lives; between them the process ends. FAULTS plant one mistake each: the check must find every one of them.

F1  A scheduled message is in the schedule or on both of its targets; a cancelled one is nowhere.
F2  Of each value of a last value queue there is one message, the newest that was confirmed or a later one.
F3  A dead letter and its original: one of them at least, until the letter's consumer has it; a note that a letter waits is kept.
F4  A ring has what was confirmed and not dropped; what was dropped stays away. No message is twice in a queue, each level has its order.
F5  A queue with message groups has what was confirmed and not acknowledged, each message with the header that says its group. Of the counts
    of deliveries that were noted, the one that was told durable last is there, or a later one.
F6  What was delivered is flagged. What is flagged is covered by a mark that was reserved by then, and no mark is far from all deliveries.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import struct
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from flintmq.broker.delivery_counts import DeliveryCounts
from flintmq.channel.firing import Firing
from flintmq.config import Limits
from flintmq.core.content import CONTENT_PERSISTENT, CONTENT_PRIORITY
from flintmq.ports import NOTE_DELIVERIES, NOTE_LETTERS, DequeueReason
from flintmq.protocol.v0_9_1.codec import decode_properties, encode_properties
from flintmq.queue.control import QueueHandle
from flintmq.queue.group_kinds import new_grouped, restore_groups
from flintmq.queue.last_value import new_last_value, restore_last_values
from flintmq.queue.list_kinds import LEVEL_RABBITMQ, LIST_PRIORITY, LIST_STANDARD
from tests.drivers.delivered_driver import Taker, age, facts, keep_house, set_steps
from tests.twins.disk_images import Image
from tests.twins.sim_disk import SimDisk
from tools.crash.campaign import Violation, crash_parallel, replay
from tools.crash.model import NEVER
from tools.crash.workload import CONTAINER_SIZES, check_unharmed, open_store

SCHEDULE, LEFT, RIGHT, VALUES, SOURCE, DEAD, RING, GROUPED, TAKEN = QUEUES = range(1, 10)
KEY = b"k"
KEYS = ("a", "b", "c")
RING_MOST, RING_LEVELS = 4, 3
# entries of a step of a mark, and those between two looks at it (queue/delivered.py): histories are short
STEP, GRANT = 8, 2
# of flushes and maintenance until a batch is durable: messages may be larger than the smallest container
ROUNDS_MAX = 200
NESTED_STEPS, NESTED_IMAGES = 6, 2
# entries leave memory as soon as they can
PAGED: dict[str, Any] = {"hot_bytes": 0, "limits": Limits(entry_segment=3)}
# one in so many steps is a checkpoint
CHECKPOINT_STEPS = 12
FAULTS = ("schedule", "cancel", "value", "letter", "note", "ring", "group", "count", "mark")
STEPS = (
    *["schedule"] * 6,
    *["fire"] * 5,
    *["cancel"] * 2,
    *["value"] * 7,
    *["die"] * 5,
    *["letter"] * 4,
    *["wait"] * 2,
    *["ring"] * 8,
    *["group"] * 7,
    *["pull"] * 6,
    *["settle"] * 6,
    *["send"] * 8,
    *["taker"] * 2,
    *["deliver"] * 10,
    *["answer"] * 4,
    *["take"] * 5,
    *["flush"] * 6,
    *["maintain"] * 3,
    *["page"] * 4,
)


@dataclass(slots=True)
class Event:
    """Positions of the journal: before the call, and when it was told durable."""

    issued: int = NEVER
    told: int = NEVER

    def may(self, position: int) -> bool:
        return self.issued <= position

    def must(self, position: int) -> bool:
        return self.told <= position


class Fact:
    """What happened to one message. moved: routed, or dead-lettered; ended: cancelled or dropped; taken: (queue, event) of consumers;
    shown: it was delivered, which no log says."""

    __slots__ = ("counts", "ended", "key", "moved", "noted", "number", "place", "published", "queue", "shown", "taken")

    def __init__(self, number: int, queue: int, key: str) -> None:
        self.number, self.queue, self.key = number, queue, key
        self.place = 0
        self.published, self.moved, self.ended, self.noted, self.shown = Event(), Event(), Event(), Event(), Event()
        self.taken: dict[int, Event] = {}
        # how often it came back, each time as it was noted
        self.counts: list[Event] = []

    def events(self) -> list[Event]:
        return [self.published, self.moved, self.ended, self.noted, self.shown, *self.taken.values(), *self.counts]


class Life:
    """A store and its queues. Raises: Violation: a message is twice in a queue, or out of its order."""

    def __init__(self, disk: SimDisk, container_size: int) -> None:
        self.store = open_store(disk, container_size, set(QUEUES), max(QUEUES), **PAGED)
        check_unharmed(self.store)
        self.cores: dict[int, QueueHandle] = {}
        for queue in QUEUES:
            if queue == VALUES:
                core = new_last_value(queue, KEY, self.store, True, 1_000_000)
            elif queue == GROUPED:
                core = new_grouped(
                    queue,
                    "shared",
                    KEY,
                    self.store,
                    True,
                    list_kind=LIST_STANDARD,
                    levels=1,
                    level_rule=LEVEL_RABBITMQ,
                    groups_max=1_000,
                    idle_max=100,
                )
            else:
                core = QueueHandle(queue, LIST_PRIORITY, RING_LEVELS) if queue == RING else QueueHandle(queue)
                core.set_durable(True)
                core.attach_log(self.store)
            self.store.attach(core)
            self.store.restore(core)
            self.cores[queue] = core
        self.store.restored()
        restore_last_values(self.cores[VALUES])
        restore_groups(self.cores[GROUPED])
        DeliveryCounts(self.store).restore({GROUPED: SimpleNamespace(core=self.cores[GROUPED])})
        # queue -> number of the message -> its position
        self.found = {queue: self._numbers(queue) for queue in QUEUES}

    def _numbers(self, queue: int) -> dict[int, int]:
        core, found = self.cores[queue], {}
        position, last = core.next_available(0), (0, 0)
        while position:
            number = int(core.message_at(position)[3].split(b".")[0])
            if number in found:
                raise Violation(f"queue {queue}: message {number} is there twice")
            if queue in (VALUES, SOURCE, RING, GROUPED, TAKEN):  # what one publisher sent there, in its order
                if last[0] == position >> 56 and number < last[1]:
                    raise Violation(f"queue {queue}: message {number} behind {last[1]}")
                last = (position >> 56, number)
            found[number] = position
            position = core.next_available(position + 1)
        return found

    def close(self) -> None:
        self.store.flush()
        self.store.close(clean=False)

    def forget(self) -> None:
        """Nobody looks at it any more: its messages leave memory, where those of an open store stay."""
        for core in self.cores.values():
            core.purge()
        self.store.close(clean=False)


class Recording:
    """See module. fault: one of FAULTS, or none."""

    def __init__(self, seed: int, steps: int, fault: str) -> None:
        self.rng = random.Random(seed)
        self.seed, self.fault = seed, fault
        self.container_size = CONTAINER_SIZES[seed % len(CONTAINER_SIZES)]
        self.disk = SimDisk()
        self.facts: dict[int, Fact] = {}
        self.nested = 0
        self.now = 1 << 40
        # messages in groups that consumers have
        self.held: list[Fact] = []
        # who takes, and what each has; (position of the journal, highest index that a mark covers then)
        self.takers: list[Taker] = []
        self.out: list[tuple[Taker, Fact]] = []
        self.marks = [(0, 0)]
        self.steps = STEP
        set_steps(STEP, GRANT)
        lives = self.rng.choice((1, 1, 2, 3))
        for number in range(lives):
            self.life = Life(self.disk, self.container_size)
            for _ in range(steps or self.rng.choice((30, 60, 120))):
                getattr(self, self.rng.choice(STEPS))()
                if self.rng.randrange(CHECKPOINT_STEPS) == 0:
                    self.checkpoint()
            if number + 1 < lives:
                self._next_life()
        self.life.store.flush()

    def _next_life(self) -> None:
        """All that was asked for is durable, and true from the start of the next one."""
        for taker in self.takers:
            taker.close()
        self.life.close()
        self.held, self.takers, self.out = [], [], []
        self.marks = [(0, self.marks[-1][1])]
        for fact in self.facts.values():
            for event in fact.events():
                if event.issued != NEVER:
                    event.issued = event.told = 0
        self.disk = SimDisk(self.disk.state(self.disk.position))

    # --- events
    def begins(self, event: Event) -> None:
        event.issued = min(event.issued, self.disk.position)

    def told(self, event: Event) -> None:
        """The log says when all so far is durable."""

        def now() -> None:
            event.told = min(event.told, self.disk.position)

        self.life.store.when_durable(self.life.store.tail_lsn(), now)

    def put(self, queue: int, fact: Fact, expires: int = 0, priority: int = 0) -> int:
        """A copy of the message at the end of a queue."""
        size = self.rng.choice((0, 0, 50, 900, 5_000)) if queue == fact.queue else 20
        header = encode_properties(size + 12, {"headers": {"k": fact.key}, "priority": priority})
        body = (b"%d." % fact.number).ljust(size + 12, b"x")
        flags = CONTENT_PERSISTENT | (CONTENT_PRIORITY if priority else 0)
        return self.life.cores[queue].publish(b"x", b"key", header, body, flags, priority, expires)

    def new(self, queue: int, expires: int = 0, priority: int = 0, key: str = "") -> Fact:
        fact = Fact(len(self.facts), queue, key)
        self.facts[fact.number] = fact
        self.begins(fact.published)
        fact.place = self.put(queue, fact, expires, priority)
        self.told(fact.published)
        return fact

    def there(self, queue: int) -> list[Fact]:
        core, found = self.life.cores[queue], []
        position = core.next_available(0)
        while position:
            fact = self.facts[int(core.message_at(position)[3].split(b".")[0])]
            fact.place = position
            found.append(fact)
            position = core.next_available(position + 1)
        return found

    def end(self, queue: int, fact: Fact, reason: DequeueReason, event: Event) -> None:
        core = self.life.cores[queue]
        if core.hold(fact.place):
            self.begins(event)
            core.settle_held(fact.place, reason, False)
            self.told(event)

    # --- steps
    def flush(self) -> None:
        self.life.store.flush()

    def maintain(self) -> None:
        self.life.store.maintain()

    def page(self) -> None:
        """What may leave memory does."""
        for _ in range(self.rng.randrange(1, 6)):
            self.life.store.pager.once()

    def checkpoint(self) -> None:
        """A checkpoint, while things go on."""

        def between() -> None:
            for _ in range(self.rng.randrange(3)):
                getattr(self, self.rng.choice(STEPS))()

        self.life.store.checkpoints.settle()
        self.life.store.checkpoints.write(between)

    def schedule(self) -> None:
        self.new(SCHEDULE, self.now + self.rng.randrange(100))

    def fire(self) -> None:
        """What is due moves to both targets, in one transaction of the log."""
        self.now += self.rng.randrange(60)
        if self.fault == "schedule":
            return self._fire_wrongly()
        firing = Firing(self.life.cores[SCHEDULE], self.life.store)
        count = firing.take(self.now, 4, 1 << 20)
        if not count:
            return None
        facts = [self.facts[int(firing.message(index)[3].split(b".")[0])] for index in range(count)]
        firing.begin()
        for index in range(len(facts)):
            for target in (LEFT, RIGHT):
                firing.place(index, self.life.cores[target], 0)
        for fact in facts:
            self.begins(fact.moved)
        done: list[bool] = []
        firing.decide(lambda: done.append(True))
        for _ in range(ROUNDS_MAX):
            if firing.is_durable():
                break
            self.life.store.flush()
            self.life.store.maintain()
        else:
            raise Violation("a batch does not become durable")
        for fact in facts:
            fact.moved.told = min(fact.moved.told, self.disk.position)
        firing.apply()
        return None

    def _fire_wrongly(self) -> None:
        for fact in self.there(SCHEDULE)[:2]:
            self.begins(fact.moved)
            self.end(SCHEDULE, fact, DequeueReason.MOVE, Event())
            self.life.store.flush()
            for target in (LEFT, RIGHT):
                self.put(target, fact)
            self.told(fact.moved)

    def cancel(self) -> None:
        waiting = self.there(SCHEDULE)
        if waiting:
            fact = self.rng.choice(waiting)
            if self.fault == "cancel":  # told before it is durable
                fact.ended.told = self.disk.position
            self.end(SCHEDULE, fact, DequeueReason.PURGE, fact.ended)

    def value(self) -> None:
        key = self.rng.choice(KEYS)
        if self.fault == "value":
            for older in [fact for fact in self.there(VALUES) if fact.key == key]:
                self.end(VALUES, older, DequeueReason.DROP, Event())
                self.life.store.flush()
        self.new(VALUES, key=key)

    def die(self) -> None:
        self.new(SOURCE)

    def letter(self) -> None:
        """The letter goes out, then the original ends (broker/letters.py, L1)."""
        waiting = self.there(SOURCE)
        if not waiting:
            return
        fact = self.rng.choice(waiting)
        self.begins(fact.moved)
        if self.fault == "letter":
            self.end(SOURCE, fact, DequeueReason.REJECT, Event())
            self.life.store.flush()
            self.put(DEAD, fact)
        else:
            self.put(DEAD, fact)
            self.end(SOURCE, fact, DequeueReason.REJECT, Event())
        self.told(fact.moved)

    def wait(self) -> None:
        """A letter waits for a target: a note says so."""
        waiting = [fact for fact in self.there(SOURCE) if fact.noted.issued == NEVER]
        if not waiting:
            return
        fact = self.rng.choice(waiting)
        self.begins(fact.noted)
        if self.fault == "note":
            fact.noted.told = self.disk.position
            return
        ticket = self.life.store.note(NOTE_LETTERS, b"%d" % fact.number, b"\1")

        def now() -> None:
            fact.noted.told = min(fact.noted.told, self.disk.position)

        self.life.store.on_durable(ticket, now)

    def ring(self) -> None:
        core = self.life.cores[RING]
        self.new(RING, priority=self.rng.randrange(RING_LEVELS))
        core.max_length = RING_MOST
        core.drops_lowest = True
        while core.over_limit():
            before = self.there(RING)
            position = self.disk.position
            gone = core.take_excess(DequeueReason.DROP)
            assert gone is not None
            fact = self.facts[int(gone[3].split(b".")[0])]
            assert fact in before
            fact.ended.issued = position
            if self.fault == "ring":
                fact.ended.told = position
            self.told(fact.ended)

    def take(self) -> None:
        """A consumer with a selector takes any message."""
        queue = self.rng.choice((LEFT, RIGHT, DEAD))
        waiting = self.there(queue)
        if waiting:
            fact = self.rng.choice(waiting)
            event = fact.taken.setdefault(queue, Event())
            self.end(queue, fact, DequeueReason.ACK, event)

    def group(self) -> None:
        self.new(GROUPED, key=self.rng.choice(KEYS))

    def pull(self) -> None:
        """A consumer gets the first message of a group of which nobody has one."""
        busy = {fact.key for fact in self.held}
        for fact in self.there(GROUPED):
            if fact.key not in busy and self.life.cores[GROUPED].hold(fact.place):
                self.held.append(fact)
                return

    def settle(self) -> None:
        """It is acknowledged, or it comes back and is counted (session/publishing.py, count_returns)."""
        if not self.held:
            return
        fact = self.held.pop(self.rng.randrange(len(self.held)))
        core, event = self.life.cores[GROUPED], Event()
        if self.rng.random() < 0.4:
            if self.fault == "group":
                fact.ended.told = self.disk.position
            self.begins(fact.ended)
            core.settle_held(fact.place, DequeueReason.ACK, False)
            self.told(fact.ended)
            return
        core.release_held(fact.place, True)
        fact.counts.append(event)
        self.begins(event)
        if self.fault == "count":
            event.told = self.disk.position
            return
        key, value = struct.pack(">QQ", GROUPED, fact.place), struct.pack(">H", len(fact.counts))
        ticket = self.life.store.note(NOTE_DELIVERIES, key, value)

        def now() -> None:
            event.told = min(event.told, self.disk.position)

        self.life.store.on_durable(ticket, now)

    def send(self) -> None:
        for _ in range(self.rng.choice((1, 1, 4, 12))):
            self.new(TAKEN)
            self._mark()

    def taker(self) -> None:
        """A consumer or getter comes, or one or all go, and what they have comes back."""
        if len(self.takers) < 2:
            self.takers.append(Taker(self.life.cores[TAKEN], self.rng.random() < 0.7))
            return
        for taker in self.takers[: self.rng.choice((1, 2))]:
            for one in [one for one in self.out if one[0] is taker]:
                taker.give_back(one[1].place)
                self.out.remove(one)
            taker.close()
            self.takers.remove(taker)
        age(self.life.cores[TAKEN], self.rng.choice((0, 20_000)))
        keep_house(self.life.cores[TAKEN])
        self._mark()

    def deliver(self) -> None:
        if not self.takers:
            return
        taker = self.rng.choice(self.takers)
        for _ in range(self.rng.choice((1, 3, 8))):
            there = self.there(TAKEN)
            position, again = taker.take()
            if position < 0 and self.fault == "mark":  # it does not wait
                there[0].shown.issued = min(there[0].shown.issued, self.disk.position)
            if position <= 0:
                break
            fact = next(fact for fact in there if fact.place == position)
            if fact.shown.issued != NEVER and not again:
                raise Violation(f"message {fact.number} was delivered before, and is not flagged")
            self.begins(fact.shown)
            self.out.append((taker, fact))
        self._mark()

    def answer(self) -> None:
        """It is acknowledged, or comes back."""
        if not self.out:
            return
        taker, fact = self.out.pop(self.rng.randrange(len(self.out)))
        if self.rng.random() < 0.4:
            taker.give_back(fact.place)
            return
        self.begins(fact.ended)
        taker.ack(fact.place)
        self.told(fact.ended)

    def _mark(self) -> None:
        """Notes how far the mark goes; F6: no mark is far from all deliveries."""
        known = facts(self.life.cores[TAKEN])
        nearest = max((fact.place for fact in self.facts.values() if fact.queue == TAKEN and fact.shown.issued != NEVER), default=0)
        most = max(self.marks[-1][1], known["reserved"])
        self.steps = max(self.steps, known["step"])
        if known["reserved"] > nearest + GRANT + 2 * self.steps:
            raise Violation(f"the mark covers {known['reserved']}, and {nearest} was delivered last")
        self.marks.append((self.disk.position, most))

    # --- the check
    def check(self, image: Image, nested: bool) -> int:
        disk = SimDisk.from_image(image)
        images = 1
        recovered = self._judge(disk, image.position)
        if nested:
            steps = list(range(recovered + 1))
            steps = steps if not self.nested else sorted(random.Random(image.choice).sample(steps, min(NESTED_STEPS, len(steps))))
            self.nested += 1
            for position in steps:
                for second in disk.images(position, NESTED_IMAGES, self.seed):
                    images += 1
                    self._judge(SimDisk.from_image(second), image.position)
        return images

    def _judge(self, disk: SimDisk, at: int) -> int:
        """Returns the position of the disk when the store was open. Raises: Violation."""
        life = Life(disk, self.container_size)
        try:
            self._judge_life(life, at)
            return int(disk.position)
        finally:
            life.forget()

    def _judge_life(self, life: Life, at: int) -> None:
        notes = life.store.notes(NOTE_LETTERS)
        values: dict[str, list[int]] = {}
        for number in life.found[VALUES]:
            values.setdefault(self.facts[number].key, []).append(number)
        for key, numbers in values.items():
            if len(numbers) > 1:
                raise Violation(f"value {key}: messages {numbers} are all there")
        known = {number for queue in QUEUES for number in life.found[queue]}
        if strangers := {number for number in known if not self.facts[number].published.may(at)}:
            raise Violation(f"messages that were not published yet: {sorted(strangers)}")
        for fact in self.facts.values():
            if fact.queue == SCHEDULE:
                self._scheduled(life, fact, at)
            elif fact.queue == VALUES:
                if fact.published.must(at) and max(values.get(fact.key, [-1])) < fact.number:
                    raise Violation(f"value {fact.key}: {values.get(fact.key)}, but {fact.number} was confirmed")
            elif fact.queue == SOURCE:
                self._letter(life, fact, at)
                if fact.noted.must(at) and b"%d" % fact.number not in notes:
                    raise Violation(f"the note of letter {fact.number} is gone")
            elif fact.queue == GROUPED:
                self._grouped(life, fact, at)
            elif fact.queue == TAKEN:
                self._taken(life, fact, at)
            elif fact.queue == RING:
                there = fact.number in life.found[RING]
                if fact.published.must(at) and not fact.ended.may(at) and not there:
                    raise Violation(f"message {fact.number} of the ring is lost")
                if fact.ended.must(at) and there:
                    raise Violation(f"message {fact.number} of the ring is back")

    @staticmethod
    def _scheduled(life: Life, fact: Fact, at: int) -> None:
        waits = fact.number in life.found[SCHEDULE]
        for queue in (LEFT, RIGHT):
            there = fact.number in life.found[queue]
            taken = fact.taken.get(queue, Event())
            if waits and there:
                raise Violation(f"message {fact.number} is in the schedule and in queue {queue}")
            if there and taken.must(at):
                raise Violation(f"message {fact.number} is back in queue {queue}")
            if not waits and not there and not taken.may(at) and fact.published.must(at) and not fact.ended.may(at):
                raise Violation(f"message {fact.number} is neither in the schedule nor in queue {queue}")
            if fact.moved.must(at) and not there and not taken.may(at):
                raise Violation(f"message {fact.number} was routed and is not in queue {queue}")
        if waits and (fact.ended.must(at) or fact.moved.must(at)):
            raise Violation(f"message {fact.number} is back in the schedule")

    @staticmethod
    def _grouped(life: Life, fact: Fact, at: int) -> None:
        place = life.found[GROUPED].get(fact.number)
        if place is None:
            if fact.published.must(at) and not fact.ended.may(at):
                raise Violation(f"message {fact.number} of group {fact.key} is lost")
            return
        if fact.ended.must(at):
            raise Violation(f"message {fact.number} of group {fact.key} is back")
        properties = decode_properties(life.cores[GROUPED].message_at(place)[2], 8, 8)[1]
        if properties["headers"] != {"k": fact.key}:
            raise Violation(f"message {fact.number} of group {fact.key} is of {properties['headers']}")
        facts = life.cores[GROUPED].entry_facts(place)
        assert facts is not None
        least = max((number for number, event in enumerate(fact.counts, 1) if event.must(at)), default=0)
        most = max((number for number, event in enumerate(fact.counts, 1) if event.may(at)), default=0)
        # A restart counts a delivery that was open as none; what is not counted reads as 0.
        if not least <= facts[1] <= most:
            raise Violation(f"message {fact.number}: {facts[1]} deliveries are counted, {least} to {most} were noted")

    def _taken(self, life: Life, fact: Fact, at: int) -> None:
        place = life.found[TAKEN].get(fact.number)
        if place is None:
            if fact.published.must(at) and not fact.ended.may(at):
                raise Violation(f"message {fact.number} of consumers is lost")
            return
        if fact.ended.must(at):
            raise Violation(f"message {fact.number} of consumers is back")
        flagged = life.cores[TAKEN].is_redelivered(place)
        if fact.shown.may(at) and not flagged:
            raise Violation(f"message {fact.number} was delivered, and is not flagged")
        if flagged and place > max(index for position, index in self.marks if position <= at):
            raise Violation(f"message {fact.number} is flagged, and no mark covers it")

    @staticmethod
    def _letter(life: Life, fact: Fact, at: int) -> None:
        taken = fact.taken.get(DEAD, Event())
        dies, dead = fact.number in life.found[SOURCE], fact.number in life.found[DEAD]
        if fact.published.must(at) and not dies and not dead and not taken.may(at):
            raise Violation(f"dead message {fact.number} is lost")
        if fact.moved.must(at) and (dies or (not dead and not taken.may(at))):
            raise Violation(f"dead message {fact.number}: original {dies}, letter {dead}, and the letter was out")
        if dead and taken.must(at):
            raise Violation(f"letter {fact.number} is back")


class FeatureSubject:
    """steps: operations of each life (0: some number, by seed); fault: one of FAULTS, or none."""

    def __init__(self, steps: int = 0, fault: str = "") -> None:
        self.steps, self.fault = steps, fault

    def record(self, seed: int) -> Recording:
        return Recording(seed, self.steps, self.fault)


def make_subject() -> FeatureSubject:
    return FeatureSubject()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="the first history's")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--per-recording", type=int, default=300, help="images of one history")
    parser.add_argument("--replay", metavar="SEED:POSITION:CHOICE", help="check one image again")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.replay:
        failure = replay(make_subject(), arguments.replay)
        print("it holds now" if failure is None else failure.text)
        return 0 if failure is None else 1
    outcome = crash_parallel(make_subject, arguments.seed, arguments.images, arguments.per_recording, arguments.jobs)
    for failed in outcome.failures:
        print(f"python -m tools.crash.features --replay '{failed.replay}'\n  {failed.text}", file=sys.stderr)
    figures: dict[str, Any] = {
        "campaign": "T1 features",
        "images": outcome.images,
        "histories": outcome.recordings,
        "crash_points": outcome.positions,
        "violations": len(outcome.failures),
        "seconds": round(outcome.seconds, 1),
    }
    print(json.dumps(figures))
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""T4 and T5 of queue features: kill -9 (or loss of power) while messages are scheduled, replaced by newer values, dead-lettered,
waiting between deliveries, dropped from a ring, taken by a selector and delivered in message groups.

in: `--cycles`, `--seed`. out: one JSON line, exit 0, or 65 with violations. Each owner has queues of its own, reads them to their end after
each restart, and judges what it finds by what was confirmed (K: known; M: may be, its outcome is unknown).

`--plant` makes the judges expect what nobody sent: a campaign that finds nothing then is no campaign.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from tests.support.rawamqp import RawChannel
from tools.faults.churn import LOST, Opened, campaign
from tools.faults.kill_loop import NO_RETENTION, folder_of
from tools.faults.power_loss import PowerLoss
from tools.faults.targets import Flint

# what is scheduled waits this long at most, milliseconds; seconds after which all of it must have come
DELAY_MS_MAX, LATE_S = 900, 60
KEYS = ("a", "b", "c", "d")
RING_MOST, RING_PRIORITIES = 12, 3
BATCH = 12
# channels of the consumers of groups
CONSUMERS = (2, 3)


class Owner:
    """One client. Subclasses: `declare`, `turn` (some messages, and what is done with them), `judge`. SIDES: ends of its queues' names."""

    SIDES: tuple[str, ...] = ("",)

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = random.Random(f"{seed}:{name}")
        self.next = 1
        self.known: dict[int, str] = {}
        self.may: dict[int, str] = {}
        self.bad: list[str] = []
        self.counts: Counter[str] = Counter()

    def after_restart(self, port: int) -> None:
        with contextlib.closing(Opened(port)) as connection:
            channel = connection.raw.channel(1)
            self.declare(channel)
            self.judge(channel)
            for side in self.SIDES:
                channel.call("queue.delete", queue=self.name + side)  # what was read could come again: its end need not be durable
        self.known.clear()
        self.may.clear()

    def work(self, port: int) -> None:
        """Until the broker is gone."""
        try:
            with contextlib.closing(Opened(port)) as connection:
                channel = connection.raw.channel(1)
                channel.call("confirm.select")
                self.sent = 0
                self.declare(channel)
                self.begin(channel)
                while not self.bad:
                    self.turn(channel)
        except LOST:
            return
        except (AssertionError, TimeoutError) as error:
            self.bad.append(f"{self.name}: {type(error).__name__}: {error}")

    def publish(self, channel: RawChannel, facts: Sequence[str], **options: Any) -> None:
        """One message for each of the facts, and their confirms. facts: what the judge will know of it."""
        tags = {}
        for fact in facts:
            number, self.next, self.sent = self.next, self.next + 1, self.sent + 1
            tags[self.sent] = number
            self.may[number] = fact
            body = b"%016d" % number + bytes(self.random.randint(0, 3_000))
            channel.publish(body, delivery_mode=2, **{"routing_key": self.name, **self.options(fact), **options})
        while tags:
            answer = channel.expect("basic.ack", 60)
            for tag in [tag for tag in tags if tag == answer.delivery_tag or (answer.multiple and tag <= answer.delivery_tag)]:
                number = tags.pop(tag)
                self.known[number] = self.may.pop(number)
                self.counts[f"{self.name} confirmed"] += 1

    def options(self, fact: str) -> dict[str, Any]:
        return {}

    def read(self, channel: RawChannel, queue: str) -> list[tuple[int, Any]]:
        """All of a queue: (number, method)."""
        found = []
        while True:
            got = channel.call("basic.get", queue=queue, no_ack=True)
            if got.name == "basic.get-empty":
                return found
            found.append((int(bytes(got.body[:16])), got))

    def once(self, queue: str, numbers: Sequence[int]) -> set[int]:
        """Judges that nothing is there twice, and that all was sent."""
        here = set(numbers)
        self.counts[f"{self.name} found"] += len(numbers)
        if len(here) != len(numbers):
            self.bad.append(f"{queue}: duplicate: {[number for number, count in Counter(numbers).items() if count > 1][:3]}")
        strangers = here - self.known.keys() - self.may.keys()
        if strangers:
            self.bad.append(f"{queue}: phantom: {sorted(strangers)[:3]} were never sent in this life")
        return here

    def lost(self, queue: str, numbers: set[int]) -> None:
        if numbers:
            self.bad.append(f"{queue}: lost: {sorted(numbers)[:3]} of {len(numbers)} were confirmed and are not there")

    def declare(self, channel: RawChannel) -> None:
        raise NotImplementedError

    def begin(self, channel: RawChannel) -> None:
        """Before the first turn."""

    def turn(self, channel: RawChannel) -> None:
        raise NotImplementedError

    def judge(self, channel: RawChannel) -> None:
        raise NotImplementedError


class Schedules(Owner):
    """Each message comes to both queues once; one whose confirm is not known, to both or to none."""

    SIDES = ("l", "r")

    def declare(self, channel: RawChannel) -> None:
        channel.call("exchange.declare", exchange=self.name, type="fanout", durable=True)
        for side in self.SIDES:
            channel.call("queue.declare", queue=self.name + side, durable=True)
            channel.call("queue.bind", queue=self.name + side, exchange=self.name)

    def options(self, fact: str) -> dict[str, Any]:
        return {"exchange": self.name, "headers": {"x-delay": int(fact)}}

    def turn(self, channel: RawChannel) -> None:
        self.publish(channel, [str(self.random.randint(10, DELAY_MS_MAX)) for _ in range(BATCH)])

    def judge(self, channel: RawChannel) -> None:
        sides: dict[str, list[int]] = {"l": [], "r": []}
        end, quiet = time.monotonic() + LATE_S, 0
        while time.monotonic() < end and quiet < 3:
            came = 0
            for side, numbers in sides.items():
                some = [number for number, _ in self.read(channel, self.name + side)]
                numbers += some
                came += len(some)
            whole = all(self.known.keys() <= set(numbers) for numbers in sides.values())
            quiet = quiet + 1 if whole and not came else 0
            time.sleep(DELAY_MS_MAX / 3_000 + 0.1)  # what was not confirmed may be scheduled, too
        both = [self.once(self.name + side, numbers) for side, numbers in sides.items()]
        for side, here in zip(sides, both, strict=True):
            self.lost(self.name + side, self.known.keys() - here)
        if both[0] != both[1]:
            self.bad.append(f"{self.name}: torn: {sorted(both[0] ^ both[1])[:3]} came to one queue of two")


class LastValues(Owner):
    """Of each value the newest confirmed message is there, or a later one, and nothing else."""

    def declare(self, channel: RawChannel) -> None:
        channel.call("queue.declare", queue=self.name, durable=True, arguments={"x-last-value-key": "k"})

    def options(self, fact: str) -> dict[str, Any]:
        return {"headers": {"k": fact}}

    def turn(self, channel: RawChannel) -> None:
        self.publish(channel, [self.random.choice(KEYS) for _ in range(BATCH)])

    def judge(self, channel: RawChannel) -> None:
        here = self.once(self.name, [number for number, _ in self.read(channel, self.name)])
        facts = {**self.may, **self.known}
        for key in KEYS:
            newest = max((number for number, fact in self.known.items() if fact == key), default=0)
            found = [number for number in here if facts.get(number) == key]
            if len(found) > 1 or (newest and max(found, default=0) < newest):
                self.bad.append(f"{self.name}: value {key}: {found} are there, {newest} was the last confirmed")


class Letters(Owner):
    """A message that was rejected is in its queue, or its letter is in the other one, which is full for some of the time."""

    SIDES = ("", "d")

    def declare(self, channel: RawChannel) -> None:
        limit = {"x-max-length": 40, "x-overflow": "reject-publish"}
        channel.call("queue.declare", queue=self.name + "d", durable=True, arguments=limit)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.name + "d", "x-dead-letter-strategy": "at-least-once"}
        channel.call("queue.declare", queue=self.name, durable=True, arguments={**arguments, "x-overflow": "reject-publish"})

    def turn(self, channel: RawChannel) -> None:
        self.publish(channel, [""] * 4)
        for _ in range(3):
            got = channel.call("basic.get", queue=self.name)
            if got.name == "basic.get-ok":
                channel.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
                self.counts[f"{self.name} rejected"] += 1

    def judge(self, channel: RawChannel) -> None:
        here = {number for number, _ in self.read(channel, self.name)}
        end = time.monotonic() + LATE_S
        while time.monotonic() < end:
            letters = [number for number, _ in self.read(channel, self.name + "d")]
            here |= set(letters)
            if not letters and self.known.keys() <= here:
                break
            time.sleep(0.05)
        self.counts[f"{self.name} found"] += len(here)
        self.lost(self.name, self.known.keys() - here)


class Retries(Owner):
    """What waits between two deliveries is there after a kill: available, flagged, once."""

    def declare(self, channel: RawChannel) -> None:
        channel.call("queue.declare", queue=self.name, durable=True, arguments={"x-delayed-retry-min": 60_000, "x-delivery-limit": 1_000})

    def turn(self, channel: RawChannel) -> None:
        self.publish(channel, [""] * 5)
        for _ in range(3):
            got = channel.call("basic.get", queue=self.name)
            if got.name == "basic.get-ok":
                channel.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
                number = int(bytes(got.body[:16]))
                self.known[number] = "out"
                self.counts[f"{self.name} returned"] += 1

    def judge(self, channel: RawChannel) -> None:
        found = self.read(channel, self.name)
        here = self.once(self.name, [number for number, _ in found])
        self.lost(self.name, self.known.keys() - here)
        order = [number for number, _ in found]
        if order != sorted(order):
            self.bad.append(f"{self.name}: reorder: what waited did not come back to its place")
        unflagged = [number for number, got in found if self.known.get(number) == "out" and not got.redelivered]
        if unflagged:
            self.bad.append(f"{self.name}: unflagged: {unflagged[:3]} were delivered before the kill")


class Ring(Owner):
    """The lowest priority goes first, its oldest message first: one message at a time, so it is known what is there."""

    def declare(self, channel: RawChannel) -> None:
        arguments = {"x-max-length": RING_MOST, "x-overflow": "ring", "x-max-priority": RING_PRIORITIES - 1}
        channel.call("queue.declare", queue=self.name, durable=True, arguments=arguments)

    def options(self, fact: str) -> dict[str, Any]:
        return {"priority": int(fact)}

    def turn(self, channel: RawChannel) -> None:
        self.publish(channel, [str(self.random.randrange(RING_PRIORITIES))])

    @staticmethod
    def _kept(sent: dict[int, str]) -> set[int]:
        kept: list[int] = []
        for number in sorted(sent):
            kept.append(number)
            if len(kept) > RING_MOST:
                kept.remove(min(kept, key=lambda one: (sent[one], one)))
        return set(kept)

    def judge(self, channel: RawChannel) -> None:
        here = self.once(self.name, [number for number, _ in self.read(channel, self.name)])
        without, within = self._kept(self.known), self._kept({**self.known, **self.may})
        self.lost(self.name, (without & within) - here)
        if len(here) > RING_MOST:
            self.bad.append(f"{self.name}: limit: {len(here)} messages, {RING_MOST} have room")


class Selected(Owner):
    """A consumer with a selector takes the red ones; the blue ones stay, in their order."""

    def declare(self, channel: RawChannel) -> None:
        channel.call("queue.declare", queue=self.name, durable=True)

    def begin(self, channel: RawChannel) -> None:
        self.red = channel.connection.channel(2)
        self.red.call("basic.qos", prefetch_count=20)
        self.red.consume(self.name, "red", arguments={"x-filter-jms-selector": "color = 'red'"})

    def options(self, fact: str) -> dict[str, Any]:
        return {"headers": {"color": fact}}

    def turn(self, channel: RawChannel) -> None:
        colors = [self.random.choice(("red", "blue")) for _ in range(BATCH)]
        self.publish(channel, colors)
        for got in self.red.deliveries(colors.count("red"), 60):
            if got.properties["headers"]["color"] != "red":
                self.bad.append(f"{self.name}: selector: a blue one came")
            self.red.send("basic.ack", delivery_tag=got.delivery_tag)
            self.counts[f"{self.name} selected"] += 1

    def judge(self, channel: RawChannel) -> None:
        found = [number for number, _ in self.read(channel, self.name)]
        here = self.once(self.name, found)
        self.lost(self.name, {number for number, color in self.known.items() if color == "blue"} - here)
        if found != sorted(found):
            self.bad.append(f"{self.name}: reorder: {found[:5]}")


class Groups(Owner):
    """Two consumers: a group has one of them at a time, and its messages come in its order, after a kill too; what was out is flagged."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        # that a consumer had; of them those that were acknowledged: they may come again
        self.out: set[int] = set()
        self.acked: set[int] = set()
        # of a connection: group -> the channel that has it, how many of its messages; group -> its last message
        self.holders: dict[str, list[int]] = {}
        self.last: dict[str, int] = {}
        self.consumers: dict[int, RawChannel] = {}

    def declare(self, channel: RawChannel) -> None:
        arguments = {"qpid.group_header_key": "g", "qpid.shared_msg_group": 1}
        channel.call("queue.declare", queue=self.name, durable=True, arguments=arguments)

    def options(self, fact: str) -> dict[str, Any]:
        return {"headers": {"g": fact}}

    def begin(self, channel: RawChannel) -> None:
        self._consume(channel)
        self.holders, self.last = {}, {}
        self.unsettled: list[Any] = []

    def _consume(self, channel: RawChannel) -> None:
        for number in CONSUMERS:
            other = self.consumers[number] = channel.connection.channel(number)
            other.call("basic.qos", prefetch_count=5)
            other.consume(self.name, f"c{number}")

    def _next(self, connection: Any, seconds: float) -> Any:
        """The next delivery; None: there is none for so long."""
        end = time.monotonic() + seconds
        while True:
            for number in CONSUMERS:
                if connection.waiting.get(number):
                    return connection.waiting[number].popleft()
            try:
                method = connection.recv_any(max(0.0, end - time.monotonic()))
            except TimeoutError:
                return None
            if method.name == "connection.close":
                raise AssertionError(f"connection.close {method.reply_code} {method.reply_text}")
            connection.waiting.setdefault(method.channel, deque()).append(method)

    def came(self, group: str, number: int, channel: int) -> None:
        """Judges one delivery."""
        holder = self.holders.setdefault(group, [channel, 0])
        if holder[1] and holder[0] != channel:
            self.bad.append(f"{self.name}: shared: {number} of group {group} came to a consumer while another one had the group")
        if number <= self.last.get(group, 0):
            self.bad.append(f"{self.name}: reorder: {number} of group {group} came behind {self.last[group]}")
        holder[0] = channel
        holder[1] += 1
        self.last[group] = number
        self.counts[f"{self.name} delivered"] += 1

    def settle(self, got: Any) -> None:
        self.consumers[got.channel].send("basic.ack", delivery_tag=got.delivery_tag)
        self.holders[got.properties["headers"]["g"]][1] -= 1

    def turn(self, channel: RawChannel) -> None:
        connection = channel.connection
        self.publish(channel, [self.random.choice(KEYS) for _ in range(BATCH)])
        for _ in range(BATCH):
            got = self._next(connection, 0.01)
            if got is None:
                break
            number = int(bytes(got.body[:16]))
            self.came(got.properties["headers"]["g"], number, got.channel)
            self.out.add(number)
            self.unsettled.append(got)
        while len(self.unsettled) > 3:
            got = self.unsettled.pop(self.random.randrange(len(self.unsettled)))
            self.acked.add(int(bytes(got.body[:16])))
            self.settle(got)

    def judge(self, channel: RawChannel) -> None:
        self.holders, self.last = {}, {}
        self._consume(channel)
        found: list[int] = []
        unflagged: list[int] = []
        end = time.monotonic() + LATE_S
        wanted = self.known.keys() - self.acked
        while time.monotonic() < end:
            got = self._next(channel.connection, 0.5)
            if got is None:
                if wanted <= set(found):
                    break
                continue
            number = int(bytes(got.body[:16]))
            self.came(got.properties["headers"]["g"], number, got.channel)
            found.append(number)
            if number in self.out and not got.redelivered:
                unflagged.append(number)
            self.settle(got)
        self.verdict(found, unflagged)
        for number in CONSUMERS:
            self.consumers[number].call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
        self.out.clear()
        self.acked.clear()

    def verdict(self, found: list[int], unflagged: list[int]) -> None:
        here = self.once(self.name, found)
        self.lost(self.name, self.known.keys() - self.acked - here)
        if unflagged:
            self.bad.append(f"{self.name}: unflagged: {unflagged[:3]} were delivered before the kill")


KINDS: dict[str, type[Owner]] = {
    "schedule": Schedules, "value": LastValues, "letter": Letters, "retry": Retries, "ring": Ring, "selector": Selected, "group": Groups,
}  # fmt: skip


class _Planted(Schedules):
    """Takes a message for confirmed that nobody sent."""

    def judge(self, channel: RawChannel) -> None:
        self.known[self.next + 1] = "10"
        super().judge(channel)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kills a broker again and again while queue features work."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.features", description=main.__doc__)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load-s", type=float, nargs=2, default=(0.2, 1.2), metavar=("LEAST", "MOST"))
    parser.add_argument("--power-loss", action="store_true", help="T5: roll back what was not synced after every kill")
    parser.add_argument("--plant", action="store_true", help="a judge that is wrong: the campaign must say so")
    parser.add_argument("serve", nargs="*", help="more arguments of `flintmq serve` (after --)")
    given = parser.parse_args(arguments)
    with folder_of(None) as folder:
        data = folder / "data"
        data.mkdir()
        target = Flint(data, [*NO_RETENTION, *given.serve])
        power = PowerLoss(data, folder / "shim") if given.power_loss else None
        owners: list[Any] = [kind(name, given.seed) for name, kind in KINDS.items()]
        if given.plant:
            owners.append(_Planted("planted", given.seed))
        summary = campaign(target, owners, given.cycles, given.seed, tuple(given.load_s), power)
    name = "T5 features" if given.power_loss else "T4 features"
    print(json.dumps({"campaign": name, "seed": given.seed, **summary}))
    if not summary["ok"]:
        print("\n".join(summary["shown"]), file=sys.stderr)
    return 0 if summary["ok"] else 65


if __name__ == "__main__":
    raise SystemExit(main())

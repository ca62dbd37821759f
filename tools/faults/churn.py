"""T4 and T5 with queues that come and go: kill -9 (or loss of power) while queues are published to, purged, deleted and declared again.

in: cycles, seed, arguments of the broker (several I/O threads). out: a line of JSON; exit 65 for a violation.

Each queue has one owner, a client with three channels that publish to it over the default exchange, mandatory and with confirms. What a
queue must hold, may hold and must never hold again is therefore known at every moment (`Ledger`); after each restart the queue is read to
its end and compared. While the broker lives, the count is asked after each batch: what was confirmed, not returned and is not there is
found at once.

V1  must: confirmed since the queue was last emptied. may: sent without an answer, being emptied, or taken without an ack's answer.
V2  never: what a purge-ok or delete-ok spoke of, and what belongs to a queue of the same name before it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.rawamqp import ConnectionLost, RawChannel, RawConnection
from tools.faults.kill_loop import NO_RETENTION, folder_of
from tools.faults.power_loss import PowerLoss
from tools.faults.targets import Flint

QUEUES = 6
CHANNELS = 3
BATCH = (1, 60)
BODY = (8, 600)
LOST = (ConnectionLost, OSError)


@dataclass(slots=True)
class Ledger:
    """What is known of one queue."""

    must: set[int] = field(default_factory=set)
    may: set[int] = field(default_factory=set)
    never: set[int] = field(default_factory=set)
    going: bool = False  # it may be gone: it was not declared yet, or a delete was sent, and not answered

    def emptying(self) -> None:
        """A purge or delete is about to be sent."""
        self.may |= self.must
        self.must = set()

    def emptied(self) -> None:
        """It was answered."""
        self.never |= self.may
        self.may = set()

    def judge(self, found: Sequence[int] | None) -> list[str]:
        """Violations of what was found after a restart (None: there is no such queue); from then on the queue is empty."""
        bad: list[str] = []
        if found is None:
            if not self.going:
                bad.append("lost: the queue itself is gone")
            self.must = set()
        self.going = found is None
        found = found or []
        here = set(found)
        bad += [f"lost: {number} was confirmed and is not there" for number in sorted(self.must - here)[:3]]
        bad += [f"resurrected: {number} was purged or deleted" for number in sorted(here & self.never)[:3]]
        bad += [f"phantom: {number} was never sent there" for number in sorted(here - self.must - self.may - self.never)[:3]]
        if len(found) != len(here):
            bad.append("duplicate: a message stands twice in the queue")
        self.may = here  # taken without an ack's answer: may come once more
        self.must = set()
        return bad


class Owner:
    """One client and its queue. It works until the broker is gone."""

    def __init__(self, name: str, seed: int, auto_delete: bool) -> None:
        self.name, self.auto_delete = name, auto_delete
        self.random = random.Random(f"{seed}:{name}")
        self.ledger = Ledger(going=True)
        self.next = 1
        self.bad: list[str] = []
        self.counts: Counter[str] = Counter()

    def declare(self, channel: RawChannel) -> None:
        channel.call("queue.declare", queue=self.name, durable=True, auto_delete=self.auto_delete)

    def after_restart(self, port: int) -> None:
        """Reads the queue to its end and judges it."""
        with contextlib.closing(Opened(port)) as opened:
            channel = opened.raw.channel(1)
            found: list[int] | None = None
            channel.send("queue.declare", queue=self.name, passive=True)
            if opened.raw.recv(1).name == "queue.declare-ok":
                found = []
                while True:
                    channel.send("basic.get", queue=self.name, no_ack=True)
                    got = opened.raw.recv(1)
                    if got.name == "basic.get-empty":
                        break
                    found.append(int(got.body[:16]))
                self.counts["found"] += len(found)
        self.bad += [f"{self.name}: {text}" for text in self.ledger.judge(found)]

    def work(self, port: int) -> None:
        """Until the broker is gone."""
        try:
            with contextlib.closing(Opened(port)) as opened:
                control = opened.raw.channel(1)
                self.declare(control)
                self.ledger.going = False
                channels = [opened.raw.channel(2 + number) for number in range(CHANNELS)]
                for channel in channels:
                    channel.call("confirm.select")
                sent = [0] * CHANNELS
                while not self.bad:
                    self.batch(channels, sent)
                    self.look(control)
                    self.change(control)
        except LOST:
            return
        except (AssertionError, TimeoutError) as error:
            self.bad.append(f"{self.name}: {type(error).__name__}: {error}")

    def batch(self, channels: list[RawChannel], sent: list[int]) -> None:
        """Some messages on each channel, and their confirms."""
        numbers: list[dict[int, int]] = [{} for _ in channels]
        for at, channel in enumerate(channels):
            for _ in range(self.random.randint(*BATCH)):
                sent[at] += 1
                numbers[at][sent[at]] = self.next
                self.ledger.may.add(self.next)
                body = b"%016d" % self.next + bytes(self.random.randint(*BODY))
                self.next += 1
                channel.publish(body, routing_key=self.name, mandatory=True, delivery_mode=2)
        for at, channel in enumerate(channels):
            while numbers[at]:
                answer = channel.connection.recv(channel.number, 60)
                if answer.name == "basic.return":
                    self.bad.append(f"{self.name}: returned: {answer.body[:16]!r} although its queue is declared")
                    continue
                assert answer.name == "basic.ack", answer.name
                done = [tag for tag in numbers[at] if tag == answer.delivery_tag or (answer.multiple and tag <= answer.delivery_tag)]
                for tag in done:
                    number = numbers[at].pop(tag)
                    self.ledger.may.discard(number)
                    self.ledger.must.add(number)
                self.counts["confirmed"] += len(done)

    def look(self, control: RawChannel) -> None:
        """Everything sent has its answer: what is there is known to the message."""
        count = control.call("queue.declare", queue=self.name, passive=True).message_count
        if count != len(self.ledger.must):
            self.bad.append(f"{self.name}: lost: {len(self.ledger.must)} confirmed and not returned, {count} in the queue")

    def change(self, control: RawChannel) -> None:
        """The queue is purged, deleted, left by its last consumer, or goes on."""
        what = self.random.choice(["purge", "delete", "delete", "leave" if self.auto_delete else "purge", "on", "on"])
        if what == "on":
            return
        expected = len(self.ledger.must)
        self.ledger.going = what != "purge"
        self.ledger.emptying()
        if what == "leave":
            control.call("basic.qos", prefetch_count=1)
            tag = control.call("basic.consume", queue=self.name).consumer_tag
            control.send("basic.cancel", consumer_tag=tag)
            while control.connection.recv(1, 60).name != "basic.cancel-ok":  # what was delivered meanwhile comes before
                pass
            count = expected
        else:
            count = control.call(f"queue.{what}", queue=self.name).message_count
        if count != expected:
            self.bad.append(f"{self.name}: lost: queue.{what}-ok speaks of {count} messages, {expected} were confirmed")
        if what != "leave":
            self.ledger.emptied()
        self.counts[what] += 1
        if what != "purge":
            self.declare(control)
            if what == "leave":
                self.ledger.emptied()  # nobody was told of that end; that the name is free again says it
            self.ledger.going = False


class Opened:
    """A connection that is gone afterwards."""

    def __init__(self, port: int) -> None:
        self.raw = RawConnection("127.0.0.1", port, timeout=60)
        self.raw.open()

    def close(self) -> None:
        self.raw.drop()


def campaign(
    target: Flint, owners: list[Owner], cycles: int, seed: int, load_s: tuple[float, float], power: PowerLoss | None
) -> dict[str, Any]:
    """All cycles, until the first violation. Returns the summary."""
    chance = random.Random(seed)
    begun, done, restart_s, taken = time.monotonic(), 0, 0.0, Counter[str]()
    for cycle in range(cycles + 1):
        port = target.start(power.arm() if power is not None else {})
        restart_s = max(restart_s, target.start_s)
        if cycle:
            for owner in owners:
                owner.after_restart(port)
        if cycle == cycles or any(owner.bad for owner in owners):
            target.stop()
            break
        threads = [threading.Thread(target=owner.work, args=(port,)) for owner in owners]
        for thread in threads:
            thread.start()
        time.sleep(chance.uniform(*load_s))
        target.kill()
        for thread in threads:
            thread.join()
        if power is not None:
            taken.update(power.strike(random.Random(f"{seed}:{cycle}:power")))
        done += 1
    bad = [text for owner in owners for text in owner.bad]
    counts = sum((owner.counts for owner in owners), Counter[str]())
    return {
        "ok": not bad, "cycles": done, "violations": len(bad), "shown": bad[:10], "counts": dict(counts), "power": dict(taken),
        "restart_s_max": round(restart_s, 2), "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Kills a broker again and again while its queues come and go."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.churn", description=main.__doc__)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--io-threads", type=int, default=2)
    parser.add_argument("--load-s", type=float, nargs=2, default=(0.2, 1.0), metavar=("LEAST", "MOST"))
    parser.add_argument("--power-loss", action="store_true", help="T5: roll back what was not synced after every kill")
    parser.add_argument("serve", nargs="*", help="more arguments of `flintmq serve` (after --)")
    given = parser.parse_args(arguments)
    with folder_of(None) as folder:
        data = folder / "data"
        data.mkdir()
        target = Flint(data, [*NO_RETENTION, "--io-threads", str(given.io_threads), *given.serve])
        power = PowerLoss(data, folder / "shim") if given.power_loss else None
        owners = [Owner(f"churn{number}", given.seed, number % 3 == 2) for number in range(QUEUES)]
        summary = campaign(target, owners, given.cycles, given.seed, tuple(given.load_s), power)
    name = "T5 churn" if given.power_loss else "T4 churn"
    print(json.dumps({"campaign": name, "seed": given.seed, "io_threads": given.io_threads, **summary}))
    if not summary["ok"]:
        print("\n".join(summary["shown"]), file=sys.stderr)
    return 0 if summary["ok"] else 65


if __name__ == "__main__":
    raise SystemExit(main())

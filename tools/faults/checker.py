"""The verdict over the journals of all clients: what a broker must never do, told apart from what nobody can know.

in: events of `journal.load`. out: `Report` with violations and counts.

  lost        confirmed (or committed) on a queue, never possibly settled there, and absent after the drain
  phantom     delivered without having been published to that queue, or published in a transaction that was not committed
  corrupt     body, size, checksum or properties differ from what was published
  unflagged   delivered twice without the redelivered flag, or without it after a delivery in an earlier life
  duplicate   delivered to a second session while the first still held it
  reorder     first deliveries of one producer on one queue to one consumer out of sequence
  resurrected delivered after its ack was known to be done: tx.commit-ok, or in the same session, or in the same life after close-ok
  torn        some effects of one transaction are there and others are not
  undrained, stalled, protocol, definition    the broker kept messages back, gave no answer, broke the protocol, forgot a declaration

K1  An unknown outcome (no confirm, no commit-ok) is never a failure by itself; its effects must still be all or nothing.
K2  A plain basic.ack has no answer: redelivery after a crash is right when it is flagged.
K3  Stamps order events only where the order is sure (journal J1, J2); every rule here holds for any delay in sockets and processes.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.faults import journal as j

VERDICTS = (
    "lost", "phantom", "corrupt", "unflagged", "duplicate", "reorder", "resurrected", "torn",
    "undrained", "stalled", "protocol", "definition",
)  # fmt: skip
SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise; `message` is producer.sequence."""

    kind: str
    queue: str
    message: str
    detail: str


@dataclass(slots=True)
class Report:
    """All violations, and how much was looked at (a verdict over nothing is no verdict)."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def kinds(self) -> Counter[str]:
        return Counter(v.kind for v in self.violations)

    def to_json(self) -> dict[str, Any]:
        """For the summary line: all numbers, the first violations."""
        shown = [f"{v.kind} {v.queue} {v.message}: {v.detail}" for v in self.violations[:SHOWN_MAX]]
        return {"ok": self.ok, "violations": dict(self.kinds), "shown": shown, "counts": dict(self.counts)}


@dataclass(slots=True)
class _Session:
    life: int
    opened: int
    role: str
    queues: tuple[str, ...]
    closed: int | None = None
    graceful: bool = False


@dataclass(slots=True)
class Publish:
    """A message that a client sent: when, where to, what; `confirmed`: when the broker said that it has it."""

    stamp: int
    life: int
    queues: tuple[str, ...]
    size: int
    crc: int
    tx: str
    confirmed: int | None = None


@dataclass(slots=True)
class _Tx:
    life: int
    session: str
    committed: int | None = None  # stamp of the commit request
    outcome: str = ""
    done: int = 0
    publishes: list[j.Ref] = field(default_factory=list)
    acks: list[tuple[str, j.Ref]] = field(default_factory=list)


@dataclass(slots=True)
class _Delivery:
    stamp: int
    session: str
    life: int
    redelivered: bool


@dataclass(slots=True)
class _Copy:
    """One message on one queue."""

    deliveries: list[_Delivery] = field(default_factory=list)
    acks: list[tuple[int, str, str]] = field(default_factory=list)  # stamp, session, transaction
    releases: list[tuple[int, str]] = field(default_factory=list)


class _Check:
    def __init__(self) -> None:
        self.report = Report()
        self.sessions: dict[str, _Session] = {}
        self.publishes: dict[j.Ref, Publish] = {}
        self.txs: dict[str, _Tx] = {}
        self.copies: defaultdict[tuple[str, j.Ref], _Copy] = defaultdict(_Copy)
        self.by_session: defaultdict[tuple[str, str, str], list[tuple[_Delivery, int]]] = defaultdict(list)
        self.ended: dict[int, str] = {}  # life -> "killed" | "stopped" | "unborn"
        self.drained: dict[str, bool] = {}

    def bad(self, kind: str, queue: str, ref: j.Ref | None, detail: str) -> None:
        self.report.violations.append(Violation(kind, queue, f"{ref[0]}.{ref[1]}" if ref else "-", detail))

    # --- reading ----------------------------------------------------------------------------------------------------
    def read(self, event: j.Event) -> None:
        stamp, kind, *rest = event
        counts = self.report.counts
        if kind == j.DELIVER:
            session, queue, producer, sequence, size, crc, redelivered, intact = rest
            counts["delivered"] += 1
            counts["redelivered"] += bool(redelivered)
            self._delivered(stamp, session, queue, (producer, sequence), size, crc, bool(redelivered), bool(intact))
        elif kind == j.PUBLISH:
            producer, sequence, queues, size, crc, tx = rest
            counts["published"] += 1
            life = self.sessions[producer].life
            self.publishes[producer, sequence] = Publish(stamp, life, tuple(queues), size, crc, tx)
            if tx:
                self._tx(tx, producer).publishes.append((producer, sequence))
        elif kind == j.CONFIRM:
            producer, sequences, accepted = rest
            counts["confirmed" if accepted else "nacked"] += len(sequences)
            for sequence in sequences:
                publish = self.publishes.get((producer, sequence))
                if publish is None or (accepted and publish.confirmed is not None):
                    self.bad("protocol", "-", (producer, sequence), "confirm for a tag that is not open")
                elif accepted:
                    publish.confirmed = stamp
        elif kind == j.ACK:
            session, queue, refs, tx = rest
            counts["acked"] += len(refs)
            for producer, sequence in refs:
                self.copies[queue, (producer, sequence)].acks.append((stamp, session, tx))
                if tx:
                    self._tx(tx, session).acks.append((queue, (producer, sequence)))
        elif kind == j.RELEASE:
            session, queue, refs = rest
            counts["released"] += len(refs)
            for producer, sequence in refs:
                self.copies[queue, (producer, sequence)].releases.append((stamp, session))
        elif kind == j.COMMIT:
            self._tx(rest[0], rest[1]).committed = stamp
        elif kind == j.OUTCOME:
            self.txs[rest[0]].outcome, self.txs[rest[0]].done = rest[1], stamp
        elif kind == j.OPEN:
            session, life, role, queues = rest
            self.sessions[session] = _Session(life, stamp, role, tuple(queues))
        elif kind == j.CLOSE:
            self.sessions[rest[0]].closed, self.sessions[rest[0]].graceful = stamp, bool(rest[1])
        elif kind == j.LIFE:
            counts["lives"] += rest[1] == "ready"
            if rest[1] != "ready":
                self.ended[rest[0]] = rest[1]
        elif kind == j.DRAINED:
            self.drained[rest[0]] = bool(rest[1])
        elif kind == j.FAULT:
            self.bad(rest[1], "-", None, f"{rest[0]}: {rest[2]}")

    def _tx(self, tx: str, session: str) -> _Tx:
        if tx not in self.txs:
            self.txs[tx] = _Tx(self.sessions[session].life, session)
        return self.txs[tx]

    def _delivered(self, stamp: int, session: str, queue: str, ref: j.Ref, size: int, crc: int, redelivered: bool, intact: bool) -> None:
        publish = self.publishes.get(ref)
        if not intact:
            return self.bad("corrupt", queue, ref, f"{size} bytes whose checksum or properties do not agree, in {session}")
        if publish is None or queue not in publish.queues:
            return self.bad("phantom", queue, ref, f"never published there, delivered to {session}")
        if (size, crc) != (publish.size, publish.crc):
            return self.bad("corrupt", queue, ref, f"{size} bytes crc {crc:08x}, published {publish.size} crc {publish.crc:08x}")
        delivery = _Delivery(stamp, session, self.sessions[session].life, redelivered)
        self.copies[queue, ref].deliveries.append(delivery)
        self.by_session[session, queue, ref[0]].append((delivery, ref[1]))
        return None

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def judge(self) -> Report:
        for key, copy in self.copies.items():
            if copy.deliveries:
                self._flags(key, copy)
                self._settled(key, copy)
                self._held_twice(key, copy)
        self._order()
        published_to = {queue for publish in self.publishes.values() for queue in publish.queues}
        for queue in sorted(published_to):
            if not self.drained.get(queue):
                self.bad("undrained", queue, None, "the drain did not reach the end of this queue")
        for tx in self.txs.values():
            self._transaction(tx)
        for ref, publish in self.publishes.items():
            self._kept(ref, publish)
        counts = self.report.counts
        outcomes = Counter(tx.outcome or ("unknown" if tx.committed else "open") for tx in self.txs.values())
        counts.update({f"tx_{name}": number for name, number in outcomes.items()})
        return self.report

    def _flags(self, key: tuple[str, j.Ref], copy: _Copy) -> None:
        queue, ref = key
        plain = [d for d in copy.deliveries if not d.redelivered]
        if len(plain) > 1:
            self.bad("unflagged", queue, ref, f"{len(plain)} deliveries without the flag, the last in {plain[-1].session}")
        seen: set[str] = set()
        for delivery in copy.deliveries:
            if not delivery.redelivered and delivery.session in seen:
                self.bad("unflagged", queue, ref, f"flagged at first, then not, in {delivery.session}")
            seen.add(delivery.session)
        first = min(delivery.life for delivery in copy.deliveries)
        for delivery in plain:
            if delivery.life > first:
                self.bad("unflagged", queue, ref, f"delivered in life {first}, then in life {delivery.life} without the flag")

    def _settled(self, key: tuple[str, j.Ref], copy: _Copy) -> None:
        queue, ref = key
        for stamp, session, name in copy.acks:
            life = self.sessions[session].life
            if name:
                tx = self.txs[name]
                late = [d for d in copy.deliveries if tx.outcome == "ok" and d.stamp > tx.done and d.life >= life]
                why = f"its ack was committed by {name}"
            else:
                mine = self.sessions[session]
                end = mine.closed if mine.graceful else None
                last = life if self.ended.get(life) != "stopped" else None
                late = [
                    d
                    for d in copy.deliveries
                    if (d.session == session and d.stamp > stamp)
                    or (end is not None and d.stamp > end and d.life >= life and (last is None or d.life <= last))
                ]
                why = f"it was acked in {session}"
            if late:
                self.bad("resurrected", queue, ref, f"{why}, then delivered to {late[0].session}")

    def _held_twice(self, key: tuple[str, j.Ref], copy: _Copy) -> None:
        queue, ref = key
        for first in copy.deliveries:
            session = self.sessions[first.session]
            if not session.graceful:
                continue  # the broker may have seen its end before we did
            let_go = [s for s, name, _ in copy.acks if name == first.session and s > first.stamp]
            let_go += [s for s, name in copy.releases if name == first.session and s > first.stamp]
            if not let_go:
                continue
            for other in copy.deliveries:
                if other is not first and other.life == first.life and first.stamp < other.stamp < min(let_go):
                    self.bad("duplicate", queue, ref, f"{other.session} got it while {first.session} held it")

    def _order(self) -> None:
        by_life: defaultdict[int, list[str]] = defaultdict(list)
        for name, session in self.sessions.items():
            by_life[session.life].append(name)
        alone = {
            (name, queue)
            for name, session in self.sessions.items()
            for queue in session.queues
            if self._alone(name, queue, by_life[session.life])
        }
        for (consumer, queue, producer), deliveries in self.by_session.items():
            newest = newest_alone = -1
            for delivery, sequence in deliveries:
                ref = (producer, sequence)
                if not delivery.redelivered:
                    if sequence < newest:
                        self.bad("reorder", queue, ref, f"first delivery after {newest} in {consumer}")
                    newest = max(newest, sequence)
                if (consumer, queue) in alone and self.copies[queue, ref].deliveries[0] is delivery:
                    if sequence < newest_alone and delivery.redelivered:
                        self.bad("reorder", queue, ref, f"recovered after {newest_alone} in {consumer}, the only consumer")
                    newest_alone = max(newest_alone, sequence)

    def _alone(self, name: str, queue: str, same_life: list[str]) -> bool:
        """Nobody else can have given an entry back while this session consumed."""
        mine = self.sessions[name]
        for other_name in same_life:
            other = self.sessions[other_name]
            if other_name == name or queue not in other.queues:
                continue
            before = other.graceful and other.closed is not None and other.closed < mine.opened
            after = mine.closed is not None and other.opened > mine.closed
            if not before and not after:
                return False
        return True

    def _transaction(self, tx: _Tx) -> None:
        if tx.outcome == "rolled" or tx.committed is None:
            for ref in tx.publishes:
                for queue in self.publishes[ref].queues:
                    if self.copies[queue, ref].deliveries:
                        self.bad("phantom", queue, ref, "published in a transaction that was " + (tx.outcome or "never committed"))
            return
        done: list[str] = []
        missing: list[tuple[str, j.Ref, str]] = []
        for ref in tx.publishes:
            for queue in self.publishes[ref].queues:
                if self.copies[queue, ref].deliveries:
                    done.append(f"publish to {queue}")
                elif self.drained.get(queue):
                    missing.append((queue, ref, f"publish to {queue}"))
        for queue, ref in tx.acks:
            confirmed = self._confirmed(ref)
            if not self.drained.get(queue) or confirmed is None or confirmed > tx.committed:
                continue  # its disappearance would prove nothing
            again = [d for d in self.copies[queue, ref].deliveries if d.stamp > tx.committed and d.life > tx.life]
            if again:
                missing.append((queue, ref, f"ack on {queue}"))
            else:
                done.append(f"ack on {queue}")
        if done and missing:
            queue, ref, what = missing[0]
            self.bad(
                "torn",
                queue,
                ref,
                f"{tx.outcome or 'unknown'}: {what} is missing, {done[0]} is there ({len(missing)} of {len(missing) + len(done)})",
            )

    def _confirmed(self, ref: j.Ref) -> int | None:
        """Stamp of the positive answer to its publisher, or None."""
        publish = self.publishes.get(ref)
        if publish is None:
            return None
        if publish.tx:
            return self.txs[publish.tx].done if self.txs[publish.tx].outcome == "ok" else None
        return publish.confirmed

    def _kept(self, ref: j.Ref, publish: Publish) -> None:
        if self._confirmed(ref) is None:
            self.report.counts["unknown"] += 1
            return
        for queue in publish.queues:
            if not self.drained.get(queue):
                continue
            copy = self.copies[queue, ref]
            if any(not tx or (self.txs[tx].outcome != "rolled" and self.txs[tx].committed is not None) for _, _, tx in copy.acks):
                continue
            seen = f"delivered {len(copy.deliveries)} times, never settled" if copy.deliveries else "never delivered"
            self.bad("lost", queue, ref, f"confirmed in life {publish.life}, {seen}, absent after the drain")


def check(events: Iterable[j.Event]) -> Report:
    """The verdict over events in stamp order."""
    state = _Check()
    for event in events:
        state.read(event)
    return state.judge()


def main() -> int:
    """Verdict over journal files: prints one JSON line; exit 0, or 65 with violations."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.checker", description=main.__doc__)
    parser.add_argument("journals", nargs="+", type=Path)
    given = parser.parse_args()
    report = check(j.load(given.journals))
    print(json.dumps(report.to_json()))
    return 0 if report.ok else 65


if __name__ == "__main__":
    raise SystemExit(main())

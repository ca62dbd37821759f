"""The data plane in memory, as docs/DATAPLANE.md has it, and a Spark that may die at every step of a micro-batch.

In: bodies by queue, and a `Plan` of crashes. Out: what Spark's sink holds, what the queues still have.
Invariants: the plane's state survives each crash of the driver; a call that was on its way when the driver died may arrive later; offsets,
commits and the sink survive a crash, everything else of the driver is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flintmq.flight.calls import Calls
from flintmq.flight.plane_error import PlaneError
from flintmq.patterns import matches_glob as matches
from pyspark_flintmq.claim import Claim
from pyspark_flintmq.queue_options import QueueOptions
from tests.pipeline.fake_broker import Crash, Plan


@dataclass
class Entry:
    position: int
    body: bytes
    redelivered: bool = False


@dataclass
class Sub:
    name: str
    sub_id: str
    queues: list[str]
    epoch: int = 1
    committed: int = 0
    planned: tuple[int, int] | None = None
    # the last set of which rows were read
    read: int = 0
    # queue -> entries of the prepared set, None: there is none
    prepared: list[tuple[str, Entry]] | None = None
    drain: dict[str, int] | None = None
    # ms since its reader was heard of; None: it said good-bye, or was killed long ago
    heard_ms: int | None = None
    pattern: str | None = None


class FakePlane:
    """The broker's side. `calls` and `read` are those of the client; `plan` may end the driver before or after any call."""

    def __init__(self, queues: Mapping[str, Sequence[bytes]], plan: Plan | None = None) -> None:
        self.queues: dict[str, list[Entry]] = {name: [] for name in queues}
        self.subs: dict[str, Sub] = {}
        self.plan = plan or Plan()
        self.asked: list[str] = []
        self.closed = 0
        # Calls that were on their way when a driver died, and whether every call is answered only the second time.
        self.on_the_way: list[tuple[str, dict[str, Any]]] = []
        self.late_opens = 0
        self.twice = False
        self.prepared_age_ms = 0
        self.failing: Callable[[str], None] = lambda name: None
        self._made = self._last = 0
        for name, bodies in queues.items():
            self.publish(name, bodies)

    def publish(self, queue: str, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._last += 1
            self.queues[queue].append(Entry(self._last, body))

    def restart(self) -> None:
        """The broker is killed and comes back: marks of AvailableNow are in memory only."""
        for sub in self.subs.values():
            sub.drain = None

    def time_passes(self, name: str) -> None:
        """Until Spark is there again, the reader of a driver that was killed is not heard of any more."""
        if name in self.subs:
            self.subs[name].heard_ms = None

    # --- the client -----------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> Calls:
        return Calls(self._action)

    def _action(self, name: str, arguments: dict[str, Any], wait_s: float) -> Any:
        try:
            self.plan.point(f"before {name}")
        except Crash:
            self.on_the_way.append((name, arguments))
            raise
        self.failing(name)
        if self.twice:
            self._do(name, arguments)
        answer = self._do(name, arguments)
        self.plan.point(f"after {name}")
        return json.loads(json.dumps(answer))

    def arrive(self) -> None:
        """What was on its way arrives now; nobody hears the answer."""
        for name, arguments in self.on_the_way:
            self.late_opens += name == "sub.open"
            try:
                self._do(name, arguments)
            except PlaneError as e:
                refusals = ("CHECKPOINT_BEHIND", "CHECKPOINT_AHEAD", "CHECKPOINT_NEW", "CHECKPOINT_LOST")
                assert e.code in ("FENCED", *refusals, "NOT_FOUND", "NOT_PREPARED"), e
        self.on_the_way = []

    def read(self, ticket: bytes) -> Iterator[bytes]:
        asked = json.loads(ticket)
        sub = self._sub(asked["sub_id"], asked["epoch"])
        if sub.prepared is None or asked["seq"] != sub.committed + 1:
            raise PlaneError("NOT_PREPARED", "no such set")
        rows, n, k = sub.prepared, asked["slices"], asked["slice"]
        if len(rows) != asked["rows"]:
            raise PlaneError("SET_CHANGED", "the set has lost messages")
        sub.read = asked["seq"]
        yield from (entry.body for _, entry in rows[len(rows) * k // n : len(rows) * (k + 1) // n])

    def tasks(self, claim: Claim, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        """Plans a batch and runs its tasks."""
        return [body for ticket in claim.tickets(start, end) for body in self.read(ticket.encode())]

    def close(self) -> None:
        self.closed += 1

    # --- the broker -----------------------------------------------------------------------------------------------------

    def _do(self, name: str, arguments: dict[str, Any]) -> Any:
        self.asked.append(name)
        return getattr(self, "_" + name.replace(".", "_"))(**arguments)

    def _sub(self, sub_id: str, epoch: int) -> Sub:
        found = self._by_id(sub_id)
        if epoch < found.epoch:
            raise PlaneError("FENCED", f"epoch {epoch}, now {found.epoch}")
        return found

    def _sub_open(
        self,
        mode: str,
        name: str = "",
        sub_id: str = "",
        queues: list[str] | None = None,
        pattern: str | None = None,
        start: Any = "earliest",
        fresh: str | None = None,
        onlost: str = "fail",
    ) -> Any:
        sub = self._by_id(sub_id) if sub_id else self.subs.get(name)
        discarded = 0
        if sub is not None and fresh is not None:
            self._check_fresh(sub, fresh, onlost)
        if sub is None:
            if mode == "attach":
                raise PlaneError("NOT_FOUND", f"there is no subscription '{name}'")
            queues = self._matching(pattern) if pattern is not None else list(queues or ())
            if not queues:
                raise PlaneError("NOT_FOUND", f"no queue in vhost '/' matches '{pattern}'")
            for queue in queues:
                if queue not in self.queues:
                    raise PlaneError("NOT_FOUND", f"no queue '{queue}' in vhost '/'")
            self._made += 1
            sub = self.subs[name] = Sub(name, f"{name}-{self._made}", queues, pattern=pattern)
            if start == "latest":
                discarded = sum(len(self.queues[queue]) for queue in queues)
                for queue in queues:
                    self.queues[queue].clear()
        else:
            differ = pattern != sub.pattern or (queues is not None and sorted(queues) != sorted(sub.queues))
            if mode == "create" and differ and fresh != "continue":
                raise PlaneError("QUEUES_DIFFER", f"subscription '{sub.name}' reads {', '.join(sub.queues)}; take another name")
            if queues is not None:
                sub.queues, sub.pattern = queues, None
            sub.epoch += 1
        sub.drain = None
        prepared = None if sub.prepared is None else sub.committed + 1
        facts = {"sub_id": sub.sub_id, "epoch": sub.epoch, "committed": sub.committed}
        return {**facts, "prepared": prepared, "queues": sub.queues, "discarded": discarded}

    @staticmethod
    def _check_fresh(sub: Sub, fresh: str, onlost: str) -> None:
        if sub.committed and fresh == "refuse":
            raise PlaneError("CHECKPOINT_NEW", f"subscription '{sub.name}' has committed {sub.committed} batches for another checkpoint")
        if sub.heard_ms is not None and sub.heard_ms < 5_000:
            raise PlaneError("READER_ACTIVE", f"subscription '{sub.name}' has a reader, which was heard of {sub.heard_ms} ms ago: stop it")
        if sub.prepared is not None and sub.planned is not None and sub.read == sub.planned[0] and onlost == "fail":
            raise PlaneError("CHECKPOINT_LOST", "planned by another")

    def _by_id(self, sub_id: str) -> Sub:
        found = next((sub for sub in self.subs.values() if sub.sub_id == sub_id), None)
        if found is None:
            raise PlaneError("NOT_FOUND", f"there is no subscription with id {sub_id}")
        return found

    def _matching(self, pattern: str) -> list[str]:
        return sorted(name for name in self.queues if matches(pattern, name))

    def _sub_status(self, name: str = "", sub_id: str = "") -> Any:
        if not sub_id and name not in self.subs:
            raise PlaneError("NOT_FOUND", f"there is no subscription '{name}'")
        sub = self._by_id(sub_id) if sub_id else self.subs[name]
        facts = {"name": sub.name, "sub_id": sub.sub_id, "committed": sub.committed, "heard_ms": sub.heard_ms, "queues": sub.queues}
        return {**facts, "prepared_age_ms": None if sub.prepared is None else self.prepared_age_ms}

    def _sub_alive(self, sub_id: str, epoch: int, leave: bool) -> Any:
        sub = self._sub(sub_id, epoch)
        sub.heard_ms = None if leave else 0
        return {"epoch": sub.epoch, "committed": sub.committed}

    def _sub_acquire(self, sub_id: str, epoch: int, seq: int, max_messages: int, max_bytes: int, onlost: str) -> Any:
        sub = self._sub(sub_id, epoch)
        if seq <= sub.committed:
            raise PlaneError("CHECKPOINT_BEHIND", "committed")
        if seq > sub.committed + 1:
            raise PlaneError("CHECKPOINT_AHEAD", "not yet")
        if sub.prepared is not None and sub.planned is not None and sub.planned[0] == seq == sub.read and sub.planned[1] < epoch:
            if onlost == "fail":
                raise PlaneError("CHECKPOINT_LOST", "planned by another")
            self._give_back(sub)
        if sub.pattern is not None:
            sub.queues = self._matching(sub.pattern)
        if sub.prepared is None:
            taken: list[tuple[str, Entry]] = []
            size = 0
            for queue in sub.queues:
                while self.queues[queue] and len(taken) < max_messages and size < max_bytes:
                    if sub.drain is not None and self.queues[queue][0].position > sub.drain.get(queue, 0):
                        break
                    entry = self.queues[queue].pop(0)
                    size += len(entry.body)
                    taken.append((queue, entry))
            sub.prepared = taken or None
        rows = sub.prepared or []
        positions: dict[str, list[int]] = {}
        for queue, entry in rows:
            positions.setdefault(queue, []).append(entry.position)
        queues = [{"queue": queue, "first": min(ps), "last": max(ps)} for queue, ps in positions.items()]
        return {"seq": seq, "count": len(rows), "bytes": sum(len(entry.body) for _, entry in rows), "queues": queues}

    def _give_back(self, sub: Sub) -> None:
        for queue, entry in reversed(sub.prepared or []):
            entry.redelivered = True
            self.queues[queue].insert(0, entry)
        sub.prepared = sub.planned = None

    def _sub_plan(self, sub_id: str, epoch: int, seq: int, slices: int) -> Any:
        sub = self._sub(sub_id, epoch)
        if seq <= sub.committed:
            raise PlaneError("CHECKPOINT_BEHIND", "committed")
        if sub.prepared is None or seq != sub.committed + 1:
            raise PlaneError("NOT_PREPARED", f"set {seq} is not prepared")
        sub.planned = (seq, epoch)
        n = min(slices, len(sub.prepared))
        ticket = {"kind": "set", "sub_id": sub_id, "epoch": epoch, "seq": seq, "rows": len(sub.prepared)}
        return {"count": len(sub.prepared), "tickets": [{**ticket, "slice": k, "slices": n} for k in range(n)]}

    def _sub_commit(self, sub_id: str, epoch: int, upto: int, read: bool) -> Any:
        sub = self._sub(sub_id, epoch)
        if upto > sub.committed:
            if sub.prepared is None or upto != sub.committed + 1:
                raise PlaneError("CHECKPOINT_AHEAD", "not prepared")
            if read and sub.read != upto:
                raise PlaneError("NOT_READ", f"set {upto} of subscription '{sub.name}' has {len(sub.prepared)} messages, and none was read")
            sub.committed, sub.prepared, sub.planned = upto, None, None
        return {"committed": sub.committed}

    def _sub_tail(self, sub_id: str, epoch: int, drain: bool) -> Any:
        sub = self._sub(sub_id, epoch)
        last = {queue: max([entry.position for entry in self.queues[queue]], default=0) for queue in sub.queues}
        if drain:
            sub.drain = last
        waiting = [entry for queue in sub.queues for entry in self.queues[queue]]
        return {
            "behind_messages": len(waiting),
            "behind_bytes": sum(len(entry.body) for entry in waiting),
            "oldest_age_ms": 5 if waiting else None,
            "queues": [
                {"queue": queue, "last": last[queue], "next": min((entry.position for entry in self.queues[queue]), default=0)}
                for queue in sub.queues
            ],
        }

    def _queue_match(self, pattern: str) -> Any:
        return {"queues": self._matching(pattern)}


@dataclass
class FakeSpark:
    """MicroBatchExecution with trigger AvailableNow, as facts of PySpark 4.3: what survives a crash is in here, a life is `run`."""

    plane: FakePlane
    options: QueueOptions
    offsets: dict[int, dict[str, Any]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    sink: dict[int, list[bytes]] = field(default_factory=dict)
    claim: Claim | None = None
    # Called between steps: publishers, other readers, calls that arrive late.
    meanwhile: Callable[[], None] = lambda: None

    def _live(self) -> None:
        self.claim = claim = Claim(self.options, lambda: self.plane)
        claim.drain()
        batch = max(self.offsets, default=-1)
        start = claim.initial() if batch <= 0 and 0 not in self.commits else self.offsets[batch if batch in self.commits else batch - 1]
        if batch >= 0 and batch not in self.commits:
            self._work(claim, batch, start)
            start = self.offsets[batch]
        while True:
            self.meanwhile()
            end = claim.latest(start, self.options.max_messages, self.options.max_bytes)
            assert json.dumps(end) == json.dumps(dict(end))
            claim.lag()
            self.plane.plan.point("before offsets")
            if end == start:
                return  # the process is killed, stop() is not called
            batch += 1
            self.offsets[batch] = end
            self.plane.plan.point("after offsets")
            if batch:
                claim.commit(self.offsets[batch - 1])
            self._work(claim, batch, start)
            start = end

    def run(self) -> None:
        """One life of the driver. Raises: Crash; SourceError."""
        try:
            self._live()
        except Crash:
            self.plane.time_passes(self.options.subscription)
            raise

    def _work(self, claim: Claim, batch: int, start: dict[str, Any]) -> None:
        self.meanwhile()
        end = self.offsets[batch]
        tickets = claim.tickets(start, end)
        assert claim.tickets(start, end) == tickets, "planning is not pure"
        rows = [body for ticket in tickets for body in self.plane.read(ticket.encode())]
        assert [body for ticket in tickets for body in self.plane.read(ticket.encode())] == rows
        self.plane.plan.point("before the sink")
        assert self.sink.get(batch, rows) == rows, "a batch that is run again has other messages"
        self.sink[batch] = rows
        self.plane.plan.point("after the sink")
        self.commits.add(batch)
        self.plane.plan.point("after commits")

    def bodies(self) -> list[bytes]:
        return [body for batch in sorted(self.sink) for body in self.sink[batch]]

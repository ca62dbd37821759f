"""Publishing and consuming clients of a campaign, one connection each, which journal all they do (tools.faults.journal).

in: port, role, seed, plan. out: the journal. A role runs until it is told to stop, its work is done, or the broker is gone.
Roles: confirm, txpublish (publishers); each, multiple, requeue (consumers); move (consumes, publishes and acks in one transaction);
drain (takes one queue after the other to its end, acks in transactions).

R1  The session name is new for every connection and is the producer id of what it publishes; sequences count from 1.
R2  A message carries producer, sequence, size and CRC in `message_id`, the sequence again in a header; the CRC covers id and body.
R3  Invokes are synced before their bytes are sent (journal J1).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.rawamqp import ConnectionLost, Method, RawConnection, method_frame, publish_bytes
from tools.faults import journal as j

# seconds without an answer from a broker that lives: journalled as a fault. Slow-disk campaigns raise it.
ANSWER_S_MAX = 30.0
POLL_S = 0.02
HELD_MAX = 32
# seconds of one try to send, after which the session listens; seconds that a blocked publisher waits for room
SEND_S = 0.1
BLOCKED_S_MAX = 300.0
# seconds a drain goes on listening to a queue that is said to be empty
LATE_S = 0.3
_NOISE = random.Random(4711).randbytes(3 << 20)
SIZES: dict[str, list[tuple[float, int, int]]] = {
    # weight, least, most bytes
    "small": [(0.1, 0, 0), (0.9, 1, 300)],
    "mixed": [(0.08, 0, 0), (0.6, 1, 300), (0.25, 301, 4096), (0.05, 4097, 70_000), (0.015, 131_000, 262_145), (0.005, 500_000, 1 << 20)],
    "kilobyte": [(1.0, 1024, 1024)],
    "large": [(1.0, 100_000, 400_000)],
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What exists and how hard it is used. `rate`: messages a second of one publisher (0: as fast as it goes); `window`: open confirms."""

    queues: tuple[str, ...] = ("f0", "f1", "f2", "f3")
    fanout: str = "ffan"
    fan_queues: tuple[str, ...] = ("f1", "f2", "f3")
    sizes: str = "mixed"
    rate: float = 1500.0
    window: int = 128
    prefetch: int = 40
    limit: int = 0  # messages of one publisher session; 0: none
    heartbeat: int = 0
    answer_s: float = ANSWER_S_MAX
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Plan:
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Gone(Exception):
    """The connection ended (the broker was killed, or closed it): the session is over."""


class Session:
    """One connection with channel 1 and its journal records."""

    def __init__(self, port: int, out: j.Journal, name: str, life: int, role: str, plan: Plan, reads: tuple[str, ...] = ()) -> None:
        self.out, self.name, self.plan = out, name, plan
        self.blocked = False
        self.sent_at = time.monotonic()
        out.add(j.OPEN, name, life, role, reads)
        out.sync()
        try:
            self.raw = RawConnection("127.0.0.1", port, timeout=plan.answer_s)
            self.raw.open(product=name, heartbeat=plan.heartbeat)
            self.raw.channel(1)
        except (OSError, ConnectionLost, AssertionError) as error:
            raise Gone(str(error)) from None

    def send(self, data: bytes) -> None:
        """Journal first, then the socket (R3). While the broker reads nothing, what it says is read: that may be why."""
        self.out.sync()
        left = memoryview(data)
        self.sent_at = time.monotonic()
        try:
            while left:
                self.raw.sock.settimeout(SEND_S)
                try:
                    left = left[self.raw.sock.send(left) :]
                    self.sent_at = time.monotonic()
                except TimeoutError:
                    if time.monotonic() - self.sent_at > (BLOCKED_S_MAX if self.blocked else self.plan.answer_s):
                        self.fault("stalled", f"the broker read nothing for {time.monotonic() - self.sent_at:.0f} s")
                        raise Gone("stalled") from None
                    self.listen()
        except OSError as error:
            raise Gone(str(error)) from None

    def listen(self) -> None:
        """Takes what has arrived; methods of the channel wait for `poll`. Raises: Gone."""
        early: list[Method] = []
        while method := self.receive(0.001):
            early.append(method)
        self.raw.waiting.setdefault(1, deque()).extend(early)

    def poll(self, wait: float) -> Method | None:
        """The next method within `wait` seconds, or None. Connection-level methods are dealt with here. Raises: Gone."""
        queued = self.raw.waiting.get(1)
        if queued:
            return queued.popleft()
        if self.plan.heartbeat and time.monotonic() - self.sent_at > self.plan.heartbeat / 2:
            self.send(b"\x08\x00\x00\x00\x00\x00\x00\xce")
        return self.receive(wait)

    def receive(self, wait: float) -> Method | None:
        """`poll` without what waits already."""
        raw = self.raw
        beats = raw.heartbeats
        try:
            method = raw.recv_any(wait)
        except TimeoutError:
            return None
        except ConnectionLost as error:
            raise Gone(str(error)) from None
        except AssertionError as error:
            self.fault("protocol", str(error))
            raise Gone("protocol") from None
        finally:
            if raw.heartbeats != beats:
                self.out.add(j.NOTE, self.name, "heartbeat", raw.heartbeats)
        if method.name in ("connection.blocked", "connection.unblocked"):
            self.blocked = method.name == "connection.blocked"
            self.out.add(j.NOTE, self.name, "blocked" if self.blocked else "unblocked", method.fields.get("reason", ""))
            self.out.sync()
            return None
        if method.name == "basic.return":
            self.fault("definition", f"message returned: {method.reply_text} {method.exchange} {method.routing_key}")
            return None
        if method.name in ("connection.close", "channel.close"):
            self.out.add(j.NOTE, self.name, "closed", f"{method.reply_code} {method.reply_text}")
            raise Gone(method.reply_text)
        return method

    def call(self, name: str, aside: Callable[[Method], None] | None = None, **arguments: Any) -> Method:
        """Sends a method and returns its answer; what comes before it goes to `aside`. Raises: Gone, also after `answer_s` of silence."""
        self.send(method_frame(1, name, **arguments))
        end = time.monotonic() + self.plan.answer_s
        while True:
            method = self.poll(max(0.0, end - time.monotonic()))
            if method is not None and method.name == name + "-ok":
                return method
            if method is not None and aside is not None:
                aside(method)
            if time.monotonic() > end:
                if self.blocked:
                    raise Gone("blocked")  # told so: what it sends is not read
                self.fault("stalled", f"no answer to {name} for {self.plan.answer_s} s")
                raise Gone("stalled")

    def fault(self, kind: str, text: str) -> None:
        """Journals a fault of the broker."""
        self.out.add(j.FAULT, self.name, kind, text)
        self.out.sync()

    def end(self, graceful: bool) -> None:
        """Closes; graceful: connection.close is answered (deliveries on their way are not looked at)."""
        if graceful:
            try:
                self.raw.close()
            except (OSError, ConnectionLost, AssertionError):
                graceful = False
        if hasattr(self, "raw"):
            self.raw.drop()
        self.out.add(j.CLOSE, self.name, graceful)
        self.out.sync()


# --- messages ---------------------------------------------------------------------------------------------------------
def checksum(producer: str, sequence: int, body: bytes) -> int:
    """CRC-32 over id and body."""
    return zlib.crc32(body, zlib.crc32(f"{producer}.{sequence}".encode()))


def make_body(rng: random.Random, sizes: str) -> bytes:
    """A body of random content with a size of this distribution."""
    _, least, most = rng.choices(SIZES[sizes], [row[0] for row in SIZES[sizes]])[0]
    size = rng.randint(least, most)
    start = rng.randrange(len(_NOISE) - size)
    return _NOISE[start : start + size]


@dataclass(slots=True)
class Taken:
    """One delivery that this session holds."""

    tag: int
    queue: str
    ref: j.Ref


class Producer:
    """Numbers, journals and encodes publishes of one session."""

    def __init__(self, session: Session, rng: random.Random) -> None:
        self.session, self.rng, self.sequence = session, rng, 0

    def message(self, exchange: str, key: str, queues: tuple[str, ...], tx: str = "", body: bytes | None = None) -> bytes:
        """Bytes of one publish that must reach `queues`; its invoke is in the journal."""
        session = self.session
        self.sequence += 1
        content = make_body(self.rng, session.plan.sizes) if body is None else body
        crc = checksum(session.name, self.sequence, content)
        session.out.add(j.PUBLISH, session.name, self.sequence, queues, len(content), crc, tx)
        return publish_bytes(
            1, content, exchange=exchange, routing_key=key, chunk=min(session.raw.frame_max, 131072) - 8, delivery_mode=2, mandatory=True,
            message_id=f"{session.name}.{self.sequence}.{len(content)}.{crc:08x}", headers={"n": self.sequence},
        )  # fmt: skip

    def anywhere(self, tx: str = "") -> bytes:
        """To one queue, or through the fanout exchange."""
        plan = self.session.plan
        if plan.fanout and self.rng.random() < 0.3:
            return self.message(plan.fanout, "", plan.fan_queues, tx)
        queue = self.rng.choice(plan.queues)
        return self.message("", queue, (queue,), tx)


def note_delivery(session: Session, queue: str, method: Method) -> Taken:
    """Journals a delivery: identity, size and checksum as measured here."""
    parts = str(method.properties.get("message_id", "")).split(".")
    producer, sequence, crc, intact = "?", 0, 0, False
    if len(parts) == 4 and parts[1].isdecimal():
        producer, sequence = parts[0], int(parts[1])
        crc = checksum(producer, sequence, method.body)
        headers = method.properties.get("headers")
        intact = parts[2:] == [str(len(method.body)), f"{crc:08x}"] and headers == {"n": sequence}
        intact = intact and method.properties.get("delivery_mode") == 2
    session.out.add(j.DELIVER, session.name, queue, producer, sequence, len(method.body), crc, int(method.redelivered), int(intact))
    return Taken(method.delivery_tag, queue, (producer, sequence))


# --- publishers -------------------------------------------------------------------------------------------------------
class Pace:
    """Lets `rate` messages a second through; 0: no limit."""

    def __init__(self, rate: float) -> None:
        self.rate, self.start, self.sent = rate, time.monotonic(), 0

    def take(self, count: int) -> float:
        """Seconds to wait before `count` more may go; 0 takes them."""
        wait = self.start + self.sent / self.rate - time.monotonic() if self.rate else 0.0
        if wait <= 0:
            self.sent += count
            return 0.0
        return wait


def run_confirm(session: Session, rng: random.Random, stop: threading.Event) -> None:
    """Publishes with confirms: never more than `window` open."""
    plan, producer, pace = session.plan, Producer(session, rng), Pace(session.plan.rate)
    session.call("confirm.select")
    open_tags: dict[int, None] = {}
    waited_from = time.monotonic()

    def settle(method: Method | None) -> None:
        nonlocal waited_from
        if method is not None and method.name in ("basic.ack", "basic.nack"):
            waited_from = time.monotonic()
            tag = method.delivery_tag
            if method.multiple:
                tags = [each for each in open_tags if tag == 0 or each <= tag]
            else:
                tags = [tag]
            for each in tags:
                open_tags.pop(each, None)
            session.out.add(j.CONFIRM, session.name, tags, int(method.name == "basic.ack"))

    while not stop.is_set() and not (plan.limit and producer.sequence >= plan.limit):
        count = rng.randint(1, 16)
        wait = 1.0 if session.blocked else pace.take(count)
        if wait:
            settle(session.poll(min(wait, POLL_S)))
        else:
            if not open_tags:
                waited_from = time.monotonic()
            data = b"".join(producer.anywhere() for _ in range(count))
            open_tags.update(dict.fromkeys(range(producer.sequence - count + 1, producer.sequence + 1)))
            session.send(data)
        while len(open_tags) > plan.window and not stop.is_set():
            settle(session.poll(POLL_S))
            if time.monotonic() - waited_from > plan.answer_s and not session.blocked:
                session.fault("stalled", f"{len(open_tags)} confirms open, none came for {plan.answer_s} s")
                raise Gone("stalled")
    end = time.monotonic() + plan.answer_s
    while open_tags and time.monotonic() < end and not session.blocked:
        settle(session.poll(POLL_S))
    if open_tags and not session.blocked:
        session.fault("stalled", f"{len(open_tags)} confirms never came")


def run_txpublish(session: Session, rng: random.Random, stop: threading.Event) -> None:
    """Publishes to several queues in one transaction, then commits (90 %) or rolls back."""
    plan, producer, pace = session.plan, Producer(session, rng), Pace(session.plan.rate / 4)
    session.call("tx.select")
    number = 0
    while not stop.is_set() and not (plan.limit and producer.sequence >= plan.limit):
        queues = rng.sample(plan.queues, rng.randint(2, len(plan.queues)))
        if session.blocked or (wait := pace.take(len(queues))):
            session.poll(POLL_S if session.blocked else min(wait, POLL_S))
            continue
        number += 1
        tx = f"{session.name}t{number}"
        parts = [producer.message("", queue, (queue,), tx) for queue in queues]
        if plan.fanout and rng.random() < 0.2:
            parts.append(producer.message(plan.fanout, "", plan.fan_queues, tx))
        session.send(b"".join(parts))
        finish(session, rng, tx, None)


def finish(session: Session, rng: random.Random, tx: str, aside: Callable[[Method], None] | None) -> bool:
    """Commits or rolls back the open transaction and journals the outcome. Returns whether it was committed."""
    commit = rng.random() < 0.9
    if commit:
        session.out.add(j.COMMIT, tx, session.name)
    session.call("tx.commit" if commit else "tx.rollback", aside)
    session.out.add(j.OUTCOME, tx, "ok" if commit else "rolled")
    return commit


# --- consumers --------------------------------------------------------------------------------------------------------
def consume(session: Session, queues: tuple[str, ...], prefetch: int) -> None:
    """Starts a consumer per queue, its tag is the queue's name. Deliveries that overtake the last answers wait in `waiting`."""
    session.call("basic.qos", prefetch_count=prefetch)
    early: list[Method] = []
    for queue in queues:
        session.call("basic.consume", early.append, queue=queue, consumer_tag=queue)
    session.raw.waiting.setdefault(1, deque()).extend(early)


def batch(session: Session, most: int, wait: float = POLL_S) -> Iterator[Method]:
    """What has arrived: waits for the first, then takes what is there."""
    for _ in range(most):
        method = session.poll(wait)
        if method is None:
            return
        wait = 0.0005
        if method.name == "basic.deliver":
            yield method


def grouped(taken: list[Taken]) -> dict[str, list[j.Ref]]:
    """References by queue, as the journal wants them."""
    groups: dict[str, list[j.Ref]] = {}
    for each in taken:
        groups.setdefault(each.queue, []).append(each.ref)
    return groups


def run_consumer(session: Session, rng: random.Random, stop: threading.Event, mode: str) -> None:
    """Takes messages and acks each, or several at once, or gives some back."""
    consume(session, session.plan.queues, session.plan.prefetch)
    held: list[Taken] = []
    while not stop.is_set():
        fresh = [note_delivery(session, str(m.consumer_tag), m) for m in batch(session, session.plan.prefetch)]
        held += fresh
        if mode == "multiple":
            if held and (not fresh or len(held) >= rng.randint(1, HELD_MAX)):
                cut = rng.randint(1, len(held))
                for queue, refs in grouped(held[:cut]).items():
                    session.out.add(j.ACK, session.name, queue, refs, "")
                session.send(method_frame(1, "basic.ack", delivery_tag=held[cut - 1].tag, multiple=True))
                held = held[cut:]
            continue
        data = b""
        rng.shuffle(held)
        for each in held:
            if mode == "requeue" and rng.random() < 0.15:
                session.out.add(j.RELEASE, session.name, each.queue, [each.ref])
                data += method_frame(1, "basic.nack", delivery_tag=each.tag, requeue=True)
            else:
                session.out.add(j.ACK, session.name, each.queue, [each.ref], "")
                data += method_frame(1, "basic.ack", delivery_tag=each.tag)
        held = []
        if data:
            session.send(data)


def run_move(session: Session, rng: random.Random, stop: threading.Event) -> None:
    """Moves messages: publishes to several queues and acks what it took, in one transaction; some are rolled back and taken up again."""
    plan, producer = session.plan, Producer(session, rng)
    session.call("tx.select")
    consume(session, plan.queues[:2], 20)
    held: list[Taken] = []
    number = 0

    def aside(method: Method) -> None:
        if method.name == "basic.deliver":
            held.append(note_delivery(session, str(method.consumer_tag), method))

    while not stop.is_set():
        for method in batch(session, 8):
            aside(method)
        if not held:
            continue
        number += 1
        tx = f"{session.name}t{number}"
        parts = []
        for queue in rng.sample(plan.queues[2:], rng.randint(1, len(plan.queues[2:]))) if not session.blocked else ():
            parts.append(producer.message("", queue, (queue,), tx))
        chosen = held[: rng.randint(1, 6)]
        for each in chosen:
            session.out.add(j.ACK, session.name, each.queue, [each.ref], tx)
            parts.append(method_frame(1, "basic.ack", delivery_tag=each.tag))
        session.send(b"".join(parts))
        if finish(session, rng, tx, aside):
            held = held[len(chosen) :]


def run_drain(session: Session, rng: random.Random, stop: threading.Event, most: int = 0) -> None:
    """Takes every queue to its end, alone, and acks in transactions: none of it may be seen again. `most`: stop early (0: never)."""
    session.call("tx.select")
    session.call("basic.qos", prefetch_count=100)
    number = total = 0
    for queue in session.plan.queues:
        held: list[Taken] = []

        def aside(method: Method, queue: str = queue, held: list[Taken] = held) -> None:
            if method.name == "basic.deliver":
                held.append(note_delivery(session, queue, method))

        session.call("basic.consume", aside, queue=queue, consumer_tag=queue)
        quiet_from = time.monotonic()
        while not stop.is_set():
            for method in batch(session, 100, 0.002):
                aside(method)
            if held:
                quiet_from = time.monotonic()
                number += 1
                tx = f"{session.name}t{number}"
                chosen = held[:]
                held.clear()
                for name, refs in grouped(chosen).items():
                    session.out.add(j.ACK, session.name, name, refs, tx)
                session.send(method_frame(1, "basic.ack", delivery_tag=chosen[-1].tag, multiple=True))
                session.out.add(j.COMMIT, tx, session.name)
                session.call("tx.commit", aside)
                session.out.add(j.OUTCOME, tx, "ok")
                total += len(chosen)
                if most and total >= most:
                    return
            else:
                left = session.call("queue.declare", aside, queue=queue, passive=True).message_count
                if left == 0 and not held:
                    # the count must be right: nothing may come after it
                    for method in batch(session, 1, LATE_S):
                        aside(method)
                    if not held:
                        session.out.add(j.DRAINED, queue, 1)
                        break
                    session.fault("protocol", f"{queue} was said to hold 0 messages, then delivered more")
                if time.monotonic() - quiet_from > session.plan.answer_s:
                    session.out.add(j.DRAINED, queue, 0)
                    session.fault("stalled", f"{left} messages in {queue} are not delivered to its only consumer")
                    break
        session.call("basic.cancel", aside, consumer_tag=queue)
        if held:  # came between the count and the cancel: there is no publisher, so the count was wrong
            session.fault("protocol", f"{len(held)} messages came from {queue} after its count was 0")


# --- running ----------------------------------------------------------------------------------------------------------
ROLES = ("confirm", "txpublish", "each", "multiple", "requeue", "move", "drain", "partdrain")


def run_session(port: int, out: j.Journal, name: str, life: int, role: str, plan: Plan, seed: int, stop: threading.Event) -> str:
    """One connection in one role, from open to close. Returns "stopped" (closed gracefully) or why it ended."""
    rng = random.Random(seed)
    reads = {"confirm": (), "txpublish": (), "move": plan.queues[:2]}.get(role, plan.queues)
    session = None
    try:
        session = Session(port, out, name, life, role, plan, reads)
        if role == "confirm":
            run_confirm(session, rng, stop)
        elif role == "txpublish":
            run_txpublish(session, rng, stop)
        elif role == "move":
            run_move(session, rng, stop)
        elif role in ("drain", "partdrain"):
            run_drain(session, rng, stop, rng.randint(20, 400) if role == "partdrain" else 0)
        else:
            run_consumer(session, rng, stop, role)
    except Gone as gone:
        if session is not None:
            session.end(False)
        else:
            out.add(j.CLOSE, name, False)
            out.sync()
        return str(gone) or "gone"
    session.end(True)
    return "stopped"


def declare_fanout(session: Session, plan: Plan, *, known: bool) -> None:
    """The plan's exchange, if it has one, and its bindings. Raises: Gone."""
    if plan.fanout:
        session.call("exchange.declare", exchange=plan.fanout, type="fanout", durable=True, passive=known)
        for queue in () if known else plan.fan_queues:
            session.call("queue.bind", queue=queue, exchange=plan.fanout)


def declare(port: int, plan: Plan, out: j.Journal, life: int, *, known: bool) -> None:
    """Declares the plan's queues and exchange; `known`: they must be there from an earlier life (a missing one is journalled)."""
    session = Session(port, out, f"declare{life}x{time.monotonic_ns()}", life, "declare", plan)
    try:
        for queue in plan.queues:
            session.call("queue.declare", queue=queue, durable=True, passive=known, arguments=plan.arguments)
        declare_fanout(session, plan, known=known)
    except Gone as gone:
        if "NOT_FOUND" in str(gone):
            session.fault("definition", str(gone))
        session.end(False)
        raise
    session.end(True)


Run: TypeAlias = Callable[[int, j.Journal, str, int, str, Plan, int, threading.Event], str]


def main(run: Run = run_session) -> int:
    """A client process: one command a line ({"port", "name", "life", "role", "plan", "seed"} or {"stop": true}), one line back for each."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.client", description=main.__doc__)
    parser.add_argument("journal", type=Path)
    out = j.Journal(parser.parse_args().journal)
    stop = threading.Event()
    worker: threading.Thread | None = None

    def work(command: dict[str, Any]) -> None:
        plan = Plan.from_json(command["plan"])
        why = run(command["port"], out, command["name"], command["life"], command["role"], plan, command["seed"], stop)
        print(json.dumps({"name": command["name"], "ended": why}), flush=True)

    for line in sys.stdin:
        command = json.loads(line)
        if command.get("stop"):
            stop.set()
            continue
        if worker is not None:
            worker.join()
        stop.clear()
        worker = threading.Thread(target=work, args=(command,))
        worker.start()
    stop.set()
    if worker is not None:
        worker.join()
    with contextlib.suppress(OSError):
        out.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Clients of the campaign over streams: lone readers, members of groups, and the last reader; publishers are tools.faults.client's.

in: port, role, seed, plan. out: the journal (STREAM to END of tools.faults.journal).
Roles: confirm, txpublish; member-G (of group G on every stream: acks, also in transactions, requeues, refuses, drops its connection);
lone (reads one stream from somewhere); partdrain (a member that is alone); drain (reads every stream and group to its end).

C1  A place of a session is a journal record before its bytes are sent (journal J1): what it published, settled and gave back.
C2  KNOWN follows an answer of the broker: everything that the session sent on its one channel before has been done.
C3  Where there is a delivery limit, some messages (POISON) are given back whenever they come, so that it strikes.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from tests.support.rawamqp import Method, method_frame
from tools.faults import client
from tools.faults import journal as j
from tools.faults.client import POLL_S, Gone, Plan, Producer, Session, batch, checksum

SEGMENT = 512 << 10  # the least that a stream takes
# One keeps all, its dead letters go to a queue; one is kept short, its dead letters go to a stream; one forgets what is old.
STREAMS: dict[str, dict[str, Any]] = {
    "s0": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "sdead", "x-delivery-limit": 3},
    "s1": {"x-max-length-bytes": 3 << 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "sletters", "x-delivery-limit": 2},
    "s2": {"x-max-age": "3s", "x-retry-delay": 150},
}
LETTER_STREAM, LETTER_QUEUE = "sletters", "sdead"
# the first two are made with their streams, the third one by whoever comes first
GROUPS = ("ga", "gb", "gc")
POISON = 61  # one message of so many is never taken
HELD_MAX = 64
WAIT_S = 30.0
_seen: dict[str, int] = {}  # stream -> highest offset that this process ever got


@dataclass(slots=True)
class Got:
    """One delivery."""

    tag: int
    stream: str
    offset: int
    poison: bool
    ref: j.Ref


def note_read(session: Session, stream: str, group: str, method: Method) -> Got:
    """Journals a delivery: where it stands, identity, size and checksum as measured here."""
    parts = str(method.properties.get("message_id", "")).split(".")
    headers = dict(method.properties.get("headers") or {})
    # a dead letter in a queue has no place: its header names that of its original
    offset = -1 if stream == LETTER_QUEUE else int(headers.get("x-stream-offset", -1))
    lost = int(headers.get("x-stream-lost", 0))
    death: list[str] = []
    if stream in (LETTER_STREAM, LETTER_QUEUE) and headers.get("x-death"):
        death = [headers["x-death"][0]["reason"], headers["x-death"][0]["queue"]]
    producer, sequence, crc, intact = "?", 0, 0, False
    if len(parts) == 4 and parts[1].isdecimal():
        producer, sequence = parts[0], int(parts[1])
        crc = checksum(producer, sequence, method.body)
        own = {name: value for name, value in headers.items() if not name.startswith("x-")}
        intact = (
            parts[2:] == [str(len(method.body)), f"{crc:08x}"] and own == {"n": sequence} and method.properties.get("delivery_mode") == 2
        )
    flags = (int(method.redelivered), int(intact))
    session.out.add(j.READ, session.name, stream, group, offset, producer, sequence, len(method.body), crc, *flags, lost, death)
    _seen[stream] = max(_seen.get(stream, -1), offset)
    return Got(method.delivery_tag, stream, offset, crc % POISON == 0, (producer, sequence))


def settle(session: Session, group: str, got: list[Got], how: str, tx: str = "") -> None:
    """Journals what is about to be sent for these deliveries."""
    by_stream: dict[str, list[int]] = {}
    for each in got:
        by_stream.setdefault(each.stream, []).append(each.offset)
    for stream, offsets in by_stream.items():
        session.out.add(j.SETTLE, session.name, stream, group, offsets, how, tx)


class Reader:
    """Consumers of one session: a tag is the stream's name. What comes while an answer is awaited is in `fresh`."""

    def __init__(self, session: Session, group: str, prefetch: int) -> None:
        self.session, self.group, self.prefetch = session, group, prefetch
        self.fresh: list[Got] = []
        session.call("basic.qos", prefetch_count=prefetch)

    def aside(self, method: Method) -> None:
        """Takes a delivery that comes before an answer."""
        if method.name == "basic.deliver":
            self.fresh.append(note_read(self.session, str(method.consumer_tag), self.group, method))

    def consume(self, stream: str, start: str | int = "first") -> None:
        """Adds a consumer; journals its seat."""
        arguments: dict[str, Any] = {"x-stream-offset": start}
        if self.group:
            arguments["x-group"] = self.group
        early: list[Method] = []
        self.session.call("basic.consume", early.append, queue=stream, consumer_tag=stream, arguments=arguments)
        self.session.out.add(j.SEAT, self.session.name, stream, self.group, start)
        for method in early:
            self.aside(method)

    def take(self, most: int, wait: float = POLL_S) -> list[Got]:
        """What has arrived by now, in order."""
        for method in batch(self.session, most, wait):
            self.aside(method)
        got, self.fresh = self.fresh, []
        return got

    def known(self) -> None:
        """Asks for something, so that what was sent before is known to be done (C2)."""
        self.session.call("basic.qos", self.aside, prefetch_count=self.prefetch)
        self.session.out.add(j.KNOWN, self.session.name)

    def cancel(self, stream: str) -> None:
        """Ends a consumer; what comes until then is in `fresh`."""
        self.session.call("basic.cancel", self.aside, consumer_tag=stream)


# --- roles ------------------------------------------------------------------------------------------------------------
def run_member(session: Session, rng: random.Random, stop: threading.Event, group: str, most: int = 0) -> bool:
    """Settles by its mode until told to stop, or drops its connection (False). `most`: acks all and ends after so many (0: never)."""
    reader = Reader(session, group, rng.choice((5, 40, 200)))
    for stream in STREAMS:
        reader.consume(stream)
    mode = "each" if most else rng.choice(("each", "each", "multiple", "hold", "tx"))
    drop_after = rng.randint(30, 600) if not most and rng.random() < 0.4 else 0
    held: list[Got] = []
    total = txs = 0
    quiet_from = time.monotonic()
    if mode == "tx":
        session.call("tx.select", reader.aside)
    while not stop.is_set():
        fresh = reader.take(min(reader.prefetch, HELD_MAX))
        held += fresh
        total += len(fresh)
        if fresh:
            quiet_from = time.monotonic()
        if drop_after and total > drop_after:
            return False
        if most and (total >= most or time.monotonic() - quiet_from > 0.5):
            most = -1
        data = b""
        if mode == "multiple" and held:
            cut = held[: rng.randint(1, len(held))]
            held = held[len(cut) :]
            settle(session, group, cut, "ack")
            data = method_frame(1, "basic.ack", delivery_tag=cut[-1].tag, multiple=True)
        elif mode == "tx" and held:
            txs += 1
            held = _committed(session, rng, reader, held, f"{session.name}t{txs}")
        elif held:
            kept = held[-reader.prefetch // 2 :] if mode == "hold" else []
            now = held[: len(held) - len(kept)]
            held = kept
            rng.shuffle(now)
            for each in now:
                data += _one(session, rng, group, each, bool(most))
        if data:
            session.send(data)
            if most or rng.random() < 0.3:
                reader.known()
        if most < 0:
            break
    return True


def _committed(session: Session, rng: random.Random, reader: Reader, held: list[Got], tx: str) -> list[Got]:
    """Acks some in a transaction, which is committed or rolled back. Returns what is still held."""
    now = held[: rng.randint(1, len(held))]
    settle(session, reader.group, now, "ack", tx)
    session.send(b"".join(method_frame(1, "basic.ack", delivery_tag=each.tag) for each in now))
    if not client.finish(session, rng, tx, reader.aside):
        return held
    session.out.add(j.KNOWN, session.name)
    return held[len(now) :]


def _one(session: Session, rng: random.Random, group: str, each: Got, only_ack: bool) -> bytes:
    """Settles one delivery: most are acked."""
    draw = rng.random()
    poison = each.poison and "x-delivery-limit" in STREAMS[each.stream]
    if not only_ack and (poison or draw < 0.12):
        settle(session, group, [each], "requeue")
        return method_frame(1, rng.choice(("basic.nack", "basic.reject")), delivery_tag=each.tag, requeue=True)
    if not only_ack and draw < 0.15:
        settle(session, group, [each], "reject")
        return method_frame(1, rng.choice(("basic.nack", "basic.reject")), delivery_tag=each.tag, requeue=False)
    settle(session, group, [each], "ack")
    return method_frame(1, "basic.ack", delivery_tag=each.tag)


def run_lone(session: Session, rng: random.Random, stop: threading.Event) -> bool:
    """Reads one stream from somewhere; ends sometimes, to begin elsewhere (the connection closes, True)."""
    reader = Reader(session, "", rng.choice((10, 100)))
    stream = rng.choice(tuple(STREAMS))
    start: str | int = rng.choice(("first", "next", "last", "offset", "offset"))
    if start == "offset":
        start = rng.randint(0, _seen.get(stream, -1) + 1)  # never above what is visible: its end has been read, so it is durable
    reader.consume(stream, start)
    most = rng.choice((0, 50, 500))
    total = 0
    while not stop.is_set():
        got = reader.take(100)
        total += len(got)
        if got:
            session.send(method_frame(1, "basic.ack", delivery_tag=got[-1].tag, multiple=True))
        if most and total > most:
            break
    return True


def run_drain(session: Session, quiet_s: float) -> None:
    """Reads every stream alone and in each group up to a message that is published last, then the dead letters."""
    session.call("confirm.select")
    producer = Producer(session, random.Random(session.name))
    last = {stream: _last_one(session, producer, stream) for stream in STREAMS}
    for stream in STREAMS:
        _to_the_end(session, stream, "", last[stream], 0.0)
    for group in GROUPS:
        for stream in STREAMS:
            _to_the_end(session, stream, group, last[stream], quiet_s)
    # The dead letters come after what killed their originals: they are published within a moment.
    for name in (LETTER_STREAM, LETTER_QUEUE):
        _to_the_end(session, name, "", _last_one(session, producer, name), 0.0)


def _last_one(session: Session, producer: Producer, queue: str) -> j.Ref:
    """Publishes and awaits the confirm."""
    session.send(producer.message("", queue, (queue,), body=b"the last one"))
    ref = (session.name, producer.sequence)
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        method = session.poll(POLL_S)
        if method is not None and method.name == "basic.ack":
            session.out.add(j.CONFIRM, session.name, [producer.sequence], 1)
            return ref
    session.fault("stalled", f"no confirm from {queue} for {WAIT_S} s")
    raise Gone("stalled")


def _to_the_end(session: Session, stream: str, group: str, last: j.Ref, quiet_s: float) -> None:
    """Consumes until `last` has come and nothing more within `quiet_s`; acks all. Journals END."""
    reader = Reader(session, group, 200)
    reader.consume(stream)
    end = -2
    heard = time.monotonic()
    while end == -2 or time.monotonic() - heard < quiet_s:
        got = reader.take(200, 0.002 if end == -2 else min(0.1, quiet_s))
        if got:
            heard = time.monotonic()
            settle(session, group, got, "ack")
            session.send(method_frame(1, "basic.ack", delivery_tag=got[-1].tag, multiple=True))
            end = next((each.offset for each in got if each.ref == last), end)
        elif time.monotonic() - heard > WAIT_S:
            session.fault("stalled", f"{stream} {group or 'alone'}: the last message does not come, nothing else for {WAIT_S} s")
            raise Gone("stalled")
    reader.known()
    reader.cancel(stream)
    if reader.fresh:
        settle(session, group, reader.fresh, "ack")
        session.send(method_frame(1, "basic.ack", delivery_tag=reader.fresh[-1].tag, multiple=True))
        reader.known()
    session.out.add(j.END, session.name, stream, group, end)
    session.raw.waiting.setdefault(1, deque()).clear()


# --- running ----------------------------------------------------------------------------------------------------------
def run_session(port: int, out: j.Journal, name: str, life: int, role: str, plan: Plan, seed: int, stop: threading.Event) -> str:
    """A role from open to close, over as many connections as it likes. Returns "stopped" (closed gracefully) or why it ended."""
    if role in ("confirm", "txpublish"):
        return client.run_session(port, out, name, life, role, plan, seed, stop)
    rng = random.Random(seed)
    group = role.partition("-")[2] or ("ga" if role == "partdrain" else "")
    number = 0
    while True:
        number += 1
        session = None
        graceful = True
        try:
            session = Session(port, out, f"{name}r{number}", life, role, plan)
            if role == "lone":
                run_lone(session, rng, stop)
            elif role.startswith("drain"):
                run_drain(session, int(group) / 1000)
            else:
                graceful = run_member(session, rng, stop, group, rng.randint(20, 400) if role == "partdrain" else 0)
        except Gone as gone:
            if session is not None:
                session.end(False)
            else:
                out.add(j.CLOSE, f"{name}r{number}", False)
                out.sync()
            return str(gone) or "gone"
        session.end(graceful)
        if stop.is_set() or role.startswith(("drain", "partdrain")):
            return "stopped"


def declare(port: int, out: j.Journal, life: int, plan: Plan, *, known: bool) -> None:
    """Declares the streams with their groups, the exchange and where dead letters go; `known`: they must be there. Raises: client.Gone."""
    session = Session(port, out, f"declare{life}x{time.monotonic_ns()}", life, "declare", plan)
    try:
        for stream in (*plan.queues, LETTER_STREAM):
            arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": SEGMENT, **STREAMS.get(stream, {})}
            session.call("queue.declare", queue=stream, durable=True, passive=known, arguments={} if known else arguments)
            if not known:
                out.add(j.STREAM, life, stream, arguments)
        session.call("queue.declare", queue=LETTER_QUEUE, durable=True, passive=known)
        client.declare_fanout(session, plan, known=known)
        for group in GROUPS[:2] if plan.fanout and not known else ():
            reader = Reader(session, group, 1)
            for stream in STREAMS:
                reader.consume(stream, 0)
                reader.cancel(stream)
    except Gone as gone:
        if "NOT_FOUND" in str(gone):
            session.fault("definition", str(gone))
        session.end(False)
        raise
    session.end(True)


def delete(port: int, out: j.Journal, life: int, plan: Plan) -> None:
    """Deletes all that `declare` made. Raises: client.Gone."""
    session = Session(port, out, f"delete{life}", life, "delete", plan)
    for queue in (*plan.queues, LETTER_STREAM, LETTER_QUEUE):
        session.call("queue.delete", queue=queue)
    session.call("exchange.delete", exchange=plan.fanout)
    session.end(True)


if __name__ == "__main__":
    raise SystemExit(client.main(run_session))

"""For any history of a small broker and any crash, recovery gives back what a plain model of that broker says is there; with a flipped
bit on top, every entry that is missing is accounted for."""

from __future__ import annotations

import copy
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.store.recovery import Recovery
from flintmq.store.transaction_log import COMMITTED, OPEN, PREPARED, ROLLED_BACK
from tests.drivers.recovered import entries_of, live_messages, named_transactions
from tests.store.test_recovery import Logs, recover_from
from tests.support import logbytes as lb

QUEUES = (1, 2, 3, 4)
# about 10 s each; a longer campaign sets the variable to a factor
FACTOR = int(os.environ.get("FLINTMQ_EXAMPLES", "1"))
MODEL_EXAMPLES = 150 * FACTOR
FLIP_EXAMPLES = 100 * FACTOR


@dataclass
class Place:
    queue: int
    position: int
    expires: int = 0
    enqueued_by: int = 0
    dequeued_by: int = 0
    gone: bool = False
    number: int = 0  # of its transaction's enqueues on the queue, when its Commit gives the position


@dataclass
class Message:
    id: int
    body: bytes
    lsn: int
    left: bytes = b""  # content not written yet
    places: list[Place] = field(default_factory=list)
    names: set[int] = field(default_factory=set)
    ended: bool = False
    copy_lsn: int = 0  # of a copy that is not complete yet
    records: list[int] = field(default_factory=list)
    ever: list[Place] = field(default_factory=list)


@dataclass
class Tx:
    id: int
    xid: bytes
    state: int = OPEN
    enqueues: list[Place] = field(default_factory=list)


class Model:
    """What the broker does, one record at a time, and what it knows."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.messages: dict[int, Message] = {}
        self.txs: dict[int, Tx] = {}
        self.next = dict.fromkeys(QUEUES, 1)
        self.deleted: set[int] = set()
        self.ends: set[int] = set()
        self.synced: dict[int, int] = {}  # states of transactions that are durable
        self.durable_transactions = copy.deepcopy(self.logs.transactions)

    # --- what holds

    def status(self, place: Place, states: dict[int, int], crashed: bool) -> str:
        """dead, pending, held or live."""
        if place.gone or place.queue in self.deleted:
            return "dead"
        enqueue = states.get(place.enqueued_by, OPEN) if place.enqueued_by else COMMITTED
        dequeue = states.get(place.dequeued_by, OPEN) if place.dequeued_by else ROLLED_BACK
        if enqueue == ROLLED_BACK or (crashed and enqueue == OPEN) or dequeue == COMMITTED:
            return "dead"
        if enqueue != COMMITTED:
            return "pending"
        return "held" if dequeue == PREPARED or (not crashed and dequeue == OPEN) else "live"

    def states(self) -> dict[int, int]:
        return {tx.id: tx.state for tx in self.txs.values()}

    def stands(self, message: Message) -> bool:
        """It has a place that is or may come to be, by what is durable or by what is known now."""
        return any(self.status(place, states, False) != "dead" for place in message.places for states in (self.states(), self.synced))

    def settled(self) -> bool:
        return self.synced == self.states()

    def pick(self, items: list, number: int):  # type: ignore[no-untyped-def]
        return items[number % len(items)] if items else None

    def open_messages(self) -> list[Message]:
        return [message for message in self.messages.values() if not message.ended and not message.left and not message.copy_lsn]

    # --- what it does; every method writes at most one record to each log

    def start(self, a: int, b: int) -> None:
        body = bytes([a % 256]) * (a % 300)
        first = 4 + 6 + len(body) // 2 if b % 4 == 0 and body else None
        lsn = self.logs.start(body, first)
        left = (b"\1e\1k" + b"header" + body)[first:] if first else b""
        self.messages[lsn] = Message(lsn, body, lsn, left, records=[lsn])

    def chunk(self, a: int, b: int) -> None:
        message = self.pick([message for message in self.messages.values() if message.left], a)
        if message:
            piece = message.left[: max(1, b % 200)]
            total = 10 + len(message.body)
            lsn = self.logs.messages.add(lb.CHUNK, lb.chunk(total - len(message.left), piece), undo_prev=message.id)
            message.records.append(lsn)
            message.left = message.left[len(piece) :]
            if not message.left and message.copy_lsn:
                message.lsn, message.copy_lsn = message.copy_lsn, 0

    def enqueue(self, a: int, b: int, tx: Tx | None = None) -> None:
        message = self.pick(self.open_messages(), -1 - a % 3)
        queue = QUEUES[b % len(QUEUES)]
        if not message or queue in self.deleted or (message.places and not self.stands(message)):
            return
        position = 0
        if tx is None or b % 3 == 0:
            position = self.next[queue]
            self.next[queue] += 1
        expires = 1_000 + a if a % 7 == 0 else 0
        lsn = self.logs.enqueue(message.id, queue, position, tx.id if tx else 0, expires)
        message.records.append(lsn)
        place = Place(queue, position, expires, tx.id if tx else 0)
        if tx and not position:
            place.number = self.logs.numbers[tx.id, queue] - 1
        message.places.append(place)
        message.ever.append(place)
        if tx:
            message.names.add(tx.id)
            tx.enqueues.append(place)

    def with_tx(self, a: int) -> Tx | None:
        return self.pick([tx for tx in self.txs.values() if tx.state == OPEN], a)

    def enqueue_tx(self, a: int, b: int) -> None:
        tx = self.with_tx(a)
        if tx:
            self.enqueue(a, b, tx)

    def dequeue(self, a: int, b: int, tx: Tx | None = None) -> None:
        choice = self.pick(
            [
                (message, place)
                for message in self.messages.values()
                for place in message.places
                if self.status(place, self.synced, False) == self.status(place, self.states(), False) == "live" and not message.ended
            ],
            a,
        )
        if not choice:
            return
        message, place = choice
        if tx:
            place.dequeued_by = tx.id
            message.names.add(tx.id)
        else:
            place.gone = True
        last = not tx and not self.stands(message)
        message.records.append(self.logs.dequeue(message.id, place.queue, place.position, tx.id if tx else 0, last))
        message.ended = message.ended or last

    def dequeue_tx(self, a: int, b: int) -> None:
        tx = self.with_tx(b)
        if tx:
            self.dequeue(a, b, tx)

    def begin(self, a: int, b: int) -> None:
        xid = b"xid %d" % len(self.txs) if a % 2 else b""
        tx = self.logs.begin(xid)
        self.txs[tx] = Tx(tx, xid)

    def prepare(self, a: int, b: int) -> None:
        tx = self.pick([tx for tx in self.txs.values() if tx.state == OPEN and tx.xid], a)
        if tx:
            self.logs.outcome(lb.PREPARE, tx.id)
            tx.state = PREPARED

    def commit(self, a: int, b: int) -> None:
        tx = self.pick([tx for tx in self.txs.values() if tx.state in (OPEN, PREPARED)], a)
        if not tx:
            return
        rows = []
        for queue in QUEUES:
            waiting = [place for place in tx.enqueues if place.queue == queue and not place.position]
            if waiting:
                rows.append((queue, self.next[queue], len(waiting)))
            for place in waiting:
                place.position = self.next[queue]
                self.next[queue] += 1
        self.logs.commit(tx.id, rows)
        tx.state = COMMITTED

    def rollback(self, a: int, b: int) -> None:
        tx = self.pick([tx for tx in self.txs.values() if tx.state in (OPEN, PREPARED)], a)
        if tx:
            self.logs.outcome(lb.ROLLBACK, tx.id)
            tx.state = ROLLED_BACK

    def sweep(self, a: int, b: int) -> None:
        """Ends a message that stands nowhere any more."""
        message = self.pick([message for message in self.open_messages() if message.places and not self.stands(message)], a)
        if message and self.settled():
            message.records.append(self.logs.delete(message.id))
            message.ended = True

    def delete_tx(self, a: int, b: int) -> None:
        named = {tx for message in self.messages.values() if not message.ended for tx in message.names}
        tx = self.pick([tx for tx in self.txs.values() if tx.state in (COMMITTED, ROLLED_BACK) and tx.id not in named], a)
        if tx and self.settled():
            self.sync(0, 0)
            self.logs.outcome(lb.TX_DELETE, tx.id)
            for message in self.messages.values():
                for place in message.places:
                    if place.enqueued_by == tx.id:
                        place.enqueued_by = 0
                        place.gone = place.gone or tx.state == ROLLED_BACK
                    if place.dequeued_by == tx.id:
                        place.dequeued_by = 0
                        place.gone = place.gone or tx.state == COMMITTED
            del self.txs[tx.id]
            self.sync(0, 0)

    def copy(self, a: int, b: int) -> None:
        message = self.pick([message for message in self.open_messages() if self.stands(message)], a)
        if not message or not self.settled():
            return
        states = self.states()
        kept = [place for place in message.places if self.status(place, states, False) != "dead"]
        for place in kept:
            if states.get(place.enqueued_by) == COMMITTED:
                place.enqueued_by = 0
            if states.get(place.dequeued_by) == ROLLED_BACK:
                place.dequeued_by = 0
        first = 10 + len(message.body) // 3 if b % 3 == 0 and message.body else None
        lsn = self.logs.copy(
            message.id,
            [(p.queue, p.position or lb.waiting(p.number), p.expires, p.enqueued_by, p.dequeued_by) for p in kept],
            message.body,
            first,
        )
        message.records.append(lsn)
        message.places = kept
        if first:
            message.left, message.copy_lsn = (b"\1e\1kheader" + message.body)[first:], lsn
        else:
            message.lsn = lsn

    def delete_queue(self, a: int, b: int) -> None:
        queue = QUEUES[1 + a % 3]
        if b % 3 == 0:
            self.deleted.add(queue)
            if b % 2:
                self.logs.messages.add(lb.QUEUE_END, lb.mark(queue, [])[:8])
                self.ends.add(queue)

    def sync(self, a: int, b: int) -> None:
        self.logs.sync()
        self.synced = self.states()
        self.durable_transactions = copy.deepcopy(self.logs.transactions)

    def base(self, a: int, b: int) -> None:
        """Moves both bases as far as they may go, and drops the containers below."""
        self.sync(0, 0)
        log = self.logs.messages
        needed = [
            message.lsn
            for message in self.messages.values()
            if not message.ended and (not message.places or self.stands(message) or message.names)
        ]
        base = min([*needed, log.end])
        log.sync(base=max(base, log.base))
        transactions = self.logs.transactions
        transactions.sync(base=max(min([*self.txs, transactions.end]), transactions.base))
        if a % 2:
            for each in (log, transactions):
                for sequence in [sequence for sequence in each.files if sequence < min(each.base, each.previous) // each.size]:
                    del each.files[sequence]
        self.durable_transactions = copy.deepcopy(transactions)


OPS = [
    Model.start, Model.start, Model.chunk, Model.chunk, Model.enqueue, Model.enqueue, Model.enqueue, Model.enqueue_tx, Model.enqueue_tx,
    Model.dequeue, Model.dequeue, Model.dequeue_tx, Model.begin, Model.prepare, Model.commit, Model.rollback, Model.sweep, Model.sweep,
    Model.delete_tx, Model.copy, Model.delete_queue, Model.sync, Model.base,
]  # fmt: skip

STEPS = st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 1000), st.integers(0, 1000))
HISTORIES = st.lists(STEPS, max_size=120)
# said by the size: a filter that throws most of them away is a failed health check now and then
LONG_HISTORIES = st.lists(STEPS, min_size=11, max_size=120)


def play(history: list[tuple[int, int, int]]) -> Model:
    model = Model()
    for op, a, b in history:
        OPS[op](model, a, b)
    return model


def expected(model: Model, states: dict[int, int]) -> tuple[dict[int, list], set[int]]:
    """Entries of every queue that SQL still has, and ids of the live messages."""
    entries: dict[int, list] = {queue: [] for queue in QUEUES if queue not in model.deleted}
    live = set()
    for message in model.messages.values():
        if message.ended or (message.left and not message.copy_lsn):
            continue
        for place in message.places:
            status = model.status(place, states, True)
            if status != "dead":
                live.add(message.id)
            if status in ("live", "held"):
                entries[place.queue].append((place.position, message.id, place.expires, len(message.body), True, status == "held"))
    return {queue: sorted(found) for queue, found in entries.items()}, live


def restart(model: Model, directory: Path) -> Recovery:
    return recover_from(directory, known=set(QUEUES) - model.deleted, high=max(QUEUES))


@given(HISTORIES, st.booleans())
@settings(max_examples=MODEL_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_recovery_equals_the_model(tmp_path_factory: pytest.TempPathFactory, history: list, lose: bool) -> None:
    """Crash after any record, with the transaction log's unsynced tail lost or not: entries, live messages and their places in the log,
    states, doubts and references of transactions are the model's; nothing is reported lost or damaged."""
    model = play(history)
    states = dict(model.states())
    if lose:
        states = dict(model.synced)
        model.logs.transactions = model.durable_transactions
    directory = tmp_path_factory.mktemp("store")
    model.logs.write(directory)
    recovery = restart(model, directory)
    entries, live = expected(model, states)
    assert {queue: entries_of(recovery, queue) for queue in entries} == entries
    assert {message for _, message, _, _ in live_messages(recovery)} == live
    assert {message: lsn for lsn, message, _, _ in live_messages(recovery)} == {message: model.messages[message].lsn for message in live}
    assert recovery.report.lost == [] and recovery.report.damage == [] and recovery.report.malformed == 0
    known = {tx.id: tx.state for tx in recovery.transactions.values() if not tx.start_lost}
    assert known == {tx: ROLLED_BACK if state == OPEN else state for tx, state in states.items()}
    assert {tx.id for tx in recovery.transactions.values() if tx.was_open and not tx.start_lost} == {
        tx for tx, state in states.items() if state == OPEN
    }
    for tx in recovery.transactions.values():
        if tx.state != PREPARED:
            assert tx.enqueues == tx.dequeues == []
            continue
        pending = [
            (message.id, place.queue)
            for message in model.messages.values()
            for place in message.places
            if message.id in live and place.enqueued_by == tx.id and model.status(place, states, True) == "pending"
        ]
        assert sorted((message, queue) for queue, message, *_ in tx.enqueues) == sorted(pending)
        for queue in QUEUES:
            numbers = [number for found, *_, position, _, number in tx.enqueues if found == queue and not position]
            assert numbers == sorted(numbers)
        taken = [
            (place.queue, place.position, message.id)
            for message in model.messages.values()
            for place in message.places
            if message.id in live and place.dequeued_by == tx.id and model.status(place, states, True) == "held"
        ]
        assert sorted(tx.dequeues) == sorted(taken)
        named = {message for message, tx_id in named_transactions(recovery) if tx_id == tx.id}
        assert tx.references == len(named)
    assert set(recovery.unknown_queues) <= model.deleted - model.ends
    for queue, found in entries.items():
        assert not found or recovery.marks[queue][0] >= found[-1][0]


@given(LONG_HISTORIES, st.integers(0, 2**32))
@settings(max_examples=FLIP_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_flipped_bit_is_accounted_for(tmp_path_factory: pytest.TempPathFactory, history: list, seed: int) -> None:
    """One bit of the message log flipped: whatever comes back was there once, with its own content; an entry that does not come back is
    named as lost, or a record of its message lies in a stretch that is named as damaged or was cut off."""
    model = play(history)
    model.sync(0, 0)
    model.logs.messages.sync(flags=1)
    rng = random.Random(seed)
    data = model.logs.messages.files[rng.choice(sorted(model.logs.messages.files))]
    if rng.random() < 0.8 and any(data[512:]):  # mostly where something stands
        used = len(data.rstrip(b"\0"))
        at = rng.randrange(512, max(used, 513))
    else:  # (with a single container and no good header at all the store is refused)
        at = rng.randrange(0 if len(model.logs.messages.files) > 1 else 512, len(data))
    data[at] ^= 1 << rng.randrange(8)
    directory = tmp_path_factory.mktemp("store")
    model.logs.write(directory)
    recovery = restart(model, directory)
    damage = [(item.lsn, item.next_lsn or 1 << 63) for item in recovery.report.damage]
    damage += [(lsn, 1 << 63) for _, lsn in recovery.report.torn]
    lost = {item.message_id for item in recovery.report.lost}
    entries, _ = expected(model, model.states())
    ever = {
        (place.queue, message.id, len(message.body))
        for message in model.messages.values()
        for place in message.ever
        if not place.enqueued_by or model.states().get(place.enqueued_by) == COMMITTED
    }
    for queue, found in entries.items():
        got = {(queue, entry[1], entry[3]) for entry in entries_of(recovery, queue)}
        want = {(queue, entry[1], entry[3]) for entry in found}
        if not damage:
            assert got == want
        assert got <= want | ever
        for _, message, _ in want - got:
            records = model.messages[message].records
            assert message in lost or any(first <= lsn < last for first, last in damage for lsn in records), (message, damage)

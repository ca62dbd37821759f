"""The audit finds every seeded violation and names it, and finds none in what a broker wrote, killed or cut off as it may be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flintmq.errors import OperatorError
from flintmq.flight.client import DataPlane, PlaneError
from flintmq.pipeline.jobs import audit as audit_module
from flintmq.pipeline.jobs.audit import Audit, AuditParameters
from flintmq.pipeline.jobs.job import Summary, built
from tests.jobs import plain
from tests.jobs.stores import broker, channel_of, distributed, put, shared_busy_store
from tests.pipeline.plane import flight_port, publish
from tests.support import logbytes as lb
from tests.support.broker import Broker, unique
from tests.support.image import image_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CONTENT = lb.content(b"\0\1q", bytes.fromhex("003c0000") + bytes(7) + b"\1" + b"\0\0", b"b")


def audit(spark: SparkSession, store: Path, **parameters: Any) -> Summary:
    job = Audit()
    with built(job, spark, AuditParameters(store_dir=str(store), **parameters)) as result:
        return job.summarise(result)


class Seeded:
    """A log that is written by hand: healthy messages, and wrong ones."""

    def __init__(self) -> None:
        self.messages = lb.LogBytes(size=1 << 16)
        self.transactions = lb.LogBytes(size=1 << 16, log_id=lb.TRANSACTIONS)
        self.positions: dict[int, int] = {}

    def next(self, queue: int) -> int:
        self.positions[queue] = self.positions.get(queue, 0) + 1
        return self.positions[queue]

    def start(self) -> int:
        return self.messages.add(lb.START, CONTENT)

    def enqueue(self, message: int, queue: int, position: int, **more: Any) -> int:
        return self.messages.add(lb.ENQUEUE, lb.enqueue(queue, position), undo_prev=message, **more)

    def dequeue(self, message: int, queue: int, position: int, **more: Any) -> int:
        return self.messages.add(lb.DEQUEUE, lb.dequeue(queue, position), undo_prev=message, **more)

    def healthy(self, queue: int, count: int, ack: bool = True) -> list[tuple[int, int]]:
        """Messages that are enqueued and, unless `ack` is false, dequeued."""
        found = []
        for _ in range(count):
            message, position = self.start(), self.next(queue)
            self.enqueue(message, queue, position)
            if ack:
                self.dequeue(message, queue, position)
            found.append((message, position))
        return found

    def transaction(self, *ends: int, rows: Any = (), sets: Any = ()) -> int:
        number = self.transactions.add(lb.DTX_START, lb.xid(b"x"))
        if sets:
            self.transactions.add(lb.ACQUIRE_SET, lb.acquire_set(list(sets), 7), undo_prev=number)
        for end in ends:
            self.transactions.add(end, lb.rows(list(rows)) if end == lb.COMMIT else b"", undo_prev=number)
        return number

    def write(self, directory: Path) -> Path:
        # The last blocks are far behind what was seeded: nothing counts as unfinished.
        for _ in range(2):
            message = self.messages.add(lb.START, lb.content(b"\0\1q", bytes.fromhex("003c0000") + bytes(10), b"z" * 6_000))
            self.enqueue(message, 99, self.next(99))
        # The broker died after this start, before its enqueue: nobody was told anything.
        self.start()
        self.messages.sync()
        self.transactions.sync()
        self.messages.write(str(directory / "messages"))
        self.transactions.write(str(directory / "transactions"))
        return directory


def seed() -> tuple[Seeded, dict[str, int], dict[str, int]]:
    """All kinds of violations. Returns the log, how many of each kind, and an LSN that an example of each must name."""
    log = Seeded()
    want: dict[str, int] = {}
    lsns: dict[str, int] = {}
    log.healthy(1, 20)
    log.healthy(2, 5, ack=False)

    (message, position) = log.healthy(1, 1, ack=False)[0]
    lsns["enqueued twice"] = log.enqueue(message, 1, position)  # a record written twice
    (_, taken) = log.healthy(2, 1, ack=False)[0]
    log.enqueue(log.start(), 2, taken)  # two messages on one place
    want["enqueued twice"] = 2

    (message, position) = log.healthy(1, 1)[0]
    lsns["dequeued twice"] = log.dequeue(message, 1, position)
    want["dequeued twice"] = 1

    message = log.start()
    log.messages.add(lb.MESSAGE_DELETE, undo_prev=message)
    lsns["dequeued, never enqueued"] = log.dequeue(message, 1, log.next(1))
    want["dequeued, never enqueued"] = 1

    (first, second) = log.healthy(3, 2, ack=False)
    lsns["dequeued as another"] = log.dequeue(second[0], 3, first[1])
    log.dequeue(second[0], 3, second[1])
    want["dequeued as another"] = 1

    lsns["never placed"] = log.start()
    want["never placed"] = 1

    ghost = log.start() + 8  # no record begins there
    log.messages.add(lb.MESSAGE_DELETE, undo_prev=ghost - 8)
    lsns["no start"] = log.enqueue(ghost, 4, log.next(4))
    want["no start"] = 1

    missing = log.transactions.add(lb.NOTE, lb.note(1, b"k", b"v"))  # no transaction begins there
    message = log.start()
    lsns["no transaction"] = log.enqueue(message, 4, log.next(4), tx=missing)
    want["no transaction"] = 1

    # rows for two places, one enqueue only
    number = log.transaction(lb.PREPARE, lb.COMMIT, lb.END, rows=[(5, 1, 2)])
    log.enqueue(log.start(), 5, lb.waiting(0), tx=number)
    want["enqueue missing"] = 1
    # two enqueues, a row for one
    number = log.transaction(lb.PREPARE, lb.COMMIT, lb.END, rows=[(5, 3, 1)])
    log.enqueue(log.start(), 5, lb.waiting(0), tx=number)
    message = log.start()
    lsns["no position"] = message
    log.enqueue(message, 5, lb.waiting(1), tx=number)
    want["no position"] = 1

    # a committed and ended set of three, two dequeued
    standing = log.healthy(6, 3, ack=False)
    log.transaction(lb.PREPARE, lb.COMMIT, lb.END, sets=[(6, 1, 3)])
    for message, position in standing[:2]:
        log.dequeue(message, 6, position)
    lsns["set not dequeued"] = standing[2][0]
    want["set not dequeued"] = 1

    number = log.transaction(lb.ROLLBACK, lb.END)
    message, position = log.start(), log.next(7)
    log.enqueue(message, 7, position, tx=number)
    lsns["void, yet dequeued"] = log.dequeue(message, 7, position)
    want["void, yet dequeued"] = 1

    log.transaction(lb.PREPARE, lb.END)
    want["ended undecided"] = 1
    log.transactions.add(lb.COMMIT, lb.rows([]), undo_prev=log.transactions.add(lb.NOTE, lb.note(1, b"k", b"v")))
    want["transaction without start"] = 1

    # What is right though it looks strange: undone, prepared, positions from a commit, copies, a set in doubt, a deleted queue.
    number = log.transaction(lb.ROLLBACK, lb.END)
    log.enqueue(log.start(), 8, lb.waiting(0), tx=number)
    (message, position) = log.healthy(8, 1, ack=False)[0]
    log.dequeue(message, 8, position, tx=number)
    log.dequeue(message, 8, position)
    number = log.transaction(lb.PREPARE)
    log.enqueue(log.start(), 8, lb.waiting(0), tx=number)
    number = log.transaction(lb.PREPARE, lb.COMMIT, lb.END, rows=[(9, 10, 2), (9, 40, 1)])
    for i, position in enumerate((10, 11, 40)):
        message = log.start()
        log.enqueue(message, 9, lb.waiting(i), tx=number)
        log.dequeue(message, 9, position)
    (message, position) = log.healthy(10, 1, ack=False)[0]
    log.messages.add(lb.COPY, lb.copy([(10, position, 0, 0, 0)], CONTENT), undo_prev=message)
    log.messages.add(lb.COPY, lb.copy([(10, position, 0, 0, 0)], CONTENT), undo_prev=message)
    log.dequeue(message, 10, position)
    log.healthy(11, 3, ack=False)
    log.transaction(lb.PREPARE, sets=[(11, 1, 2)])
    log.healthy(12, 4, ack=False)
    log.messages.add(lb.QUEUE_END, (12).to_bytes(8, "little"))
    return log, want, lsns


def test_each_seeded_violation_is_found_counted_and_named(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "UNFINISHED_BYTES", 4096)
    log, want, lsns = seed()
    summary = audit(spark, log.write(tmp_path), examples=20)
    figures = summary.figures
    assert figures["by_kind"] == want
    assert summary.exit_code == 65 and figures["violations"] == sum(want.values())
    for verdict, lsn in lsns.items():
        named = [number for one in figures["examples"][verdict] for key in ("lsns", "messages") for number in one.get(key, ())]
        assert lsn in named, verdict
    assert figures["classes"] == {"lost": 3, "duplicate": 3, "orphan": 3, "torn": 5}
    assert (figures["in_doubt"], figures["gone_with_queue"], figures["unfinished"]) == (2, 4, 1)
    text = "\n".join(summary.lines)
    assert "DUPLICATE" in text and "queue 12" not in text


def test_a_healthy_store_has_no_violation_and_the_figures_of_the_plain_reader(spark: SparkSession, busy: Path) -> None:
    told = plain.read(busy)
    figures = audit(spark, busy).figures
    assert figures["by_kind"] == {}
    settled = sum(life.reason is not None for life in told.lives.values())
    doubtful = sum(told.lives[place].reason is None for place in told.doubtful)
    assert figures["messages"] == told.messages
    assert (figures["enqueued"], figures["settled"], figures["dequeued"]) == (len(told.lives), settled, settled)
    ended = sum(life.reason is None for (queue, _), life in told.lives.items() if queue in told.ended_queues)
    assert (figures["in_doubt"], figures["open"]) == (doubtful, len(told.lives) - settled - doubtful - ended)
    assert figures["positions_without_record"] == 5, "the transient messages"
    assert figures["transactions"] == {state: list(told.states.values()).count(state) for state in set(told.states.values())}
    assert figures["truncated"] == 0


def test_what_lies_below_the_horizon_is_truncated_and_a_killed_broker_is_healthy(spark: SparkSession, busy: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(busy, cut)
    containers = sorted((cut / "messages").glob("*.flog"))
    containers[0].unlink()
    containers[1].unlink()
    figures = audit(spark, cut).figures
    assert figures["by_kind"] == {}
    assert figures["horizon"] > 0 and figures["truncated"] > 0

    image = tmp_path / "image"
    with broker(tmp_path / "store") as running, channel_of(running) as channel:
        channel.queue_declare("work", durable=True)
        channel.queue_declare("jobs", durable=True)
        put(channel, "work", 30)
        for _ in range(10):
            channel.basic_ack(channel.basic_get("work")[0].delivery_tag)
        distributed(running, b"one", "prepare")
        put(channel, "work", 30)
        image_of(tmp_path / "store", image)
    with broker(image) as running, channel_of(running) as channel:
        put(channel, "work", 5)
    figures = audit(spark, image).figures
    assert figures["by_kind"] == {}
    assert figures["messages"] >= 67


def test_a_running_broker_is_audited_and_its_containers_are_let_go(spark: SparkSession, plane_broker: Broker) -> None:
    queue = unique("audit")
    publish(plane_broker, queue, [b"x"] * 30)
    job = Audit()
    port = flight_port(plane_broker)
    with built(job, spark, AuditParameters(host=plane_broker.host, flight_port=port, queue=queue, mode="failfast")) as result:
        publish(plane_broker, queue, [b"later"] * 5)
        figures = job.summarise(result).figures
    assert (figures["violations"], figures["open"]) == (0, 30), "as of the moment of `build`"
    with DataPlane(plane_broker.host, port) as plane, pytest.raises(PlaneError, match="NOT_FOUND"):
        plane.log_extend(result.reading.view.snapshot)


def test_a_part_of_the_time_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="whole log"):
        Audit().build(spark, AuditParameters(store_dir=str(tmp_path), since="2026-01-01"))


@pytest.fixture
def busy() -> Path:
    return shared_busy_store()

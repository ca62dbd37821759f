"""What the jobs should find, worked out record by record in plain Python with the independent reader (tests/oracle)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.oracle.log import Damage, open_store
from tests.oracle.records import MESSAGES, TRANSACTIONS, Kind, fields_of, in_full


@dataclass
class Life:
    """A message in one queue; times in microseconds."""

    message: int
    exchange: str
    published: int
    enqueued: int | None = None
    delivered: int | None = None
    settled: int | None = None
    reason: str | None = None
    consumer: int = 0
    deliveries: int = 0


@dataclass
class Told:
    """All that the plain reader found. lives: (queue, position) -> life."""

    lives: dict[tuple[int, int], Life] = field(default_factory=dict)
    messages: int = 0
    names: dict[int, tuple[str, str]] = field(default_factory=dict)
    ended_queues: set[int] = field(default_factory=set)
    states: dict[int, str] = field(default_factory=dict)
    doubtful: set[tuple[int, int]] = field(default_factory=set)


def read(store: Path) -> Told:
    """Reads the whole store."""
    told = Told()
    logs = open_store(store)
    decided: dict[int, int] = {}
    rows: dict[int, dict[int, list[int]]] = {}
    for record in logs["transactions"].records():
        assert not isinstance(record, Damage)
        values = fields_of(record, TRANSACTIONS)
        number = record.undo_prev or record.lsn
        if record.type in (Kind.DTX_START, Kind.TX_START):
            told.states[number] = "open"
        elif record.type == Kind.PREPARE:
            told.states[number] = "prepared"
        elif record.type == Kind.ROLLBACK:
            told.states[number] = "rolled back"
        elif record.type == Kind.COMMIT:
            told.states[number], decided[number] = "committed", record.time_us
            for queue, first, count in values["rows"]:
                rows.setdefault(number, {}).setdefault(queue, []).extend(range(first, first + count))
        elif record.type == Kind.ACQUIRE_SET:
            for queue, first, count in values["sets"]:
                told.doubtful |= {(queue, position, number) for position in range(first, first + count)}  # type: ignore[misc]
    told.doubtful = {one[:2] for one in told.doubtful if told.states[one[2]] == "prepared"}  # type: ignore[misc]
    starts: dict[int, tuple[str, int]] = {}
    for record in in_full(logs["messages"].records(), logs["messages"].container_size):
        assert not isinstance(record, Damage)
        _message(told, record, fields_of(record, MESSAGES), decided, rows, starts)
    return told


def _message(told: Told, record: Any, values: dict[str, Any], decided: dict[int, int], rows: Any, starts: Any) -> None:
    message = record.undo_prev or record.lsn
    counts = not record.tx or told.states[record.tx] == "committed"
    time = decided.get(record.tx, record.time_us) if record.tx else record.time_us
    if record.type == Kind.MESSAGE_START:
        told.messages += 1
        starts[record.lsn] = (values["exchange"].decode(), record.time_us)
    elif record.type == Kind.NAME:
        told.names[values["id"]] = (values["tag"].decode(), values["group"].decode())
    elif record.type == Kind.QUEUE_END:
        told.ended_queues.add(values["queue"])
    elif record.type == Kind.QUEUE_PURGE:
        for first, last in values["ranges"]:
            for position in range(first, last + 1):
                life = told.lives[values["queue"], position]
                life.settled, life.reason, life.consumer, life.deliveries = record.time_us, "purge", 0, 0
    elif record.type == Kind.MESSAGE_ENQUEUE and counts:
        number = values.get("number")
        position = values["position"] if number is None else rows[record.tx][values["queue"]][number]
        life = Life(message, *starts[message])
        life.enqueued = time
        assert (values["queue"], position) not in told.lives
        told.lives[values["queue"], position] = life
    elif record.type == Kind.MESSAGE_DEQUEUE and not counts and told.states[record.tx] == "prepared":
        told.doubtful.add((values["queue"], values["position"]))
    elif record.type == Kind.MESSAGE_DEQUEUE and counts:
        life = told.lives[values["queue"], values["position"]]
        life.settled, life.reason, life.consumer, life.deliveries = time, values["reason"], values["consumer"], values["deliveries"]
        life.delivered = values["delivered_us"] or None

"""The end of a dead letter's original and the letter's last place stand in one commit block, which recovery takes whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.oracle.log import open_store
from tests.oracle.records import MESSAGES, Record, fields_of, in_full
from tests.support.rawamqp import RawChannel

DEAD = {"x-dead-letter-exchange": "dlx"}
REASONS = {"rejected": "reject", "expired": "expire", "maxlen": "drop"}
START, ENQUEUE, DEQUEUE = 1, 4, 5
SURELY = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def die(ch: RawChannel, how: str, body: bytes) -> None:
    ch.publish(body, routing_key="q", delivery_mode=2, **({"expiration": "1"} if how == "expired" else {}))
    if how == "maxlen":
        ch.publish(b"next", routing_key="q", delivery_mode=2)
    if how == "rejected":
        ch.wait_ready("q", 1)
        ch.send("basic.reject", delivery_tag=ch.call("basic.get", queue="q").delivery_tag, requeue=False)


def pairs(store: Path, queue_id: int, reason: str) -> list[tuple[Record | None, Record]]:
    """(the record in front of it in its block, dequeue) for each end of that kind on a queue."""
    found = []
    log = open_store(store)["messages"]
    # of a Message that is behind others of its shape: the Message-Enqueue that it stands for
    whole = {item.lsn: item for item in in_full(log.records(), log.container_size) if item.type == ENQUEUE}
    for _, items in log.chain:
        before = None
        for item in items:
            assert isinstance(item, Record)
            fields = fields_of(item, MESSAGES) if item.type == DEQUEUE else {}
            if fields.get("queue") == queue_id and fields["reason"] == reason:
                found.append((before, item))
            before = whole.get(item.lsn, item)
    return found


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("size", [10, 300_000], ids=["short", "long"])
@pytest.mark.parametrize(
    ("how", "keeps"),
    [("maxlen", False), ("rejected", False), ("rejected", True), ("expired", False), ("expired", True)],
    ids=lambda value: {True: "at-least-once", False: "at-most-once"}.get(value, value),
)
def test_one_block_has_the_place_and_the_end(
    connect: Callable[..., Any], tmp_path: Path, how: str, keeps: bool, size: int, targets: int
) -> None:
    """For letters that Python makes (the first one) and those of compiled code."""
    with Broker(limits={"housekeeping_ms": 20}, data_dir=tmp_path) as broker:
        ch = connect(broker).channel()
        ch.call("exchange.declare", exchange="dlx", type="fanout")
        for number in range(targets):
            ch.queue(f"dead-{number}", durable=True)
            ch.call("queue.bind", queue=f"dead-{number}", exchange="dlx")
        limit = {"x-max-length": 1} if how == "maxlen" else {}
        ch.queue("q", durable=True, arguments={**DEAD, **limit, **(SURELY if keeps else {})})
        queues = broker.node.broker.vhosts["/"].queues
        ids = {queues[f"dead-{number}"].queue_id for number in range(targets)}
        queue_id = queues["q"].queue_id
        for number in range(3):
            die(ch, how, os.urandom(size))
            for target in range(targets):
                ch.wait_ready(f"dead-{target}", number + 1)
            if how == "maxlen":
                ch.call("queue.purge", queue="q")
        ch.connection.drop()
    ended = pairs(next(tmp_path.rglob("messages")).parent, queue_id, REASONS[how])
    assert len(ended) == 3
    for before, end in ended:
        assert before is not None and before.type == ENQUEUE
        assert fields_of(before, MESSAGES)["queue"] in ids
        assert before.undo_prev != end.undo_prev, "the letter is a message of its own"
        assert keeps or bool(fields_of(end, MESSAGES)["delivered_us"]) is (how == "rejected")

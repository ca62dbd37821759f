"""A delivery without a message behind its slot (of a stream, or not in memory) is refused like any other, and nothing dies of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.rawamqp import RawChannel

ROOT = Path(__file__).resolve().parents[2]
TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def ch(start: Callable[..., Any], connect: Callable[..., Any], tmp_path: Path) -> RawChannel:
    return connect(start(data_dir=str(tmp_path))).channel()


def both_delivered(ch: RawChannel) -> list[Any]:
    """Deliveries of a stream and of a queue with a dead-letter exchange, unacked on one channel."""
    ch.queue("dead")
    ch.queue("s", durable=True, arguments={"x-queue-type": "stream"})
    ch.queue("q", durable=True, arguments=TO_DEAD)
    ch.call("basic.qos", prefetch_count=10)
    for name in ("s", "q", "s", "q"):
        ch.publish(name.encode(), routing_key=name, delivery_mode=2)
    ch.consume("s", "from-s", arguments={"x-stream-offset": "first"})
    ch.consume("q", "from-q")
    return ch.deliveries(4)


def refuse_all(ch: RawChannel, tag: int) -> None:
    ch.send("basic.nack", delivery_tag=tag, multiple=True, requeue=False)


@pytest.mark.parametrize("tx", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_nack_multiple_of_a_stream_and_a_dead_lettering_queue(ch: RawChannel, tx: bool, everything: bool) -> None:
    got = both_delivered(ch)
    assert sorted(one.body for one in got) == [b"q", b"q", b"s", b"s"]
    if tx:
        ch.call("tx.select")
    refuse_all(ch, 0 if everything else max(one.delivery_tag for one in got))
    if tx:
        ch.call("tx.commit")
    ch.wait_ready("dead", 2)
    assert [ch.call("basic.get", queue="dead", no_ack=True).body for _ in range(2)] == [b"q", b"q"]
    assert ch.call("basic.get", queue="q").name == "basic.get-empty"


@pytest.mark.parametrize("method", ["basic.reject", "basic.nack"])
def test_one_by_one(ch: RawChannel, method: str) -> None:
    for one in both_delivered(ch):
        ch.send(method, delivery_tag=one.delivery_tag, requeue=False)
    ch.wait_ready("dead", 2)


def test_nobody_reads_a_slot_without_the_accessor() -> None:
    """`slot.content` is a pointer, a tagged length or NULL: queue/slot.pxd tells which. Only the list itself touches it."""
    raw = re.compile(r"slot\.content\b")
    found = []
    for path in sorted([*(ROOT / "src/flintmq").rglob("*.py"), *(ROOT / "src/flintmq").rglob("*.pxd")]):
        folder = path.relative_to(ROOT / "src/flintmq").parts[0]
        if folder not in ("queue", "testing") and raw.search(path.read_text()):
            found.append(str(path))
    assert found == []

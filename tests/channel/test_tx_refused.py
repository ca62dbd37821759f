"""A commit that a full queue refuses a part of is refused whole: 406, and nothing of it stays anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker

Connect = Callable[..., Any]
LIMITS = [{"x-max-length": 2}, {"x-max-length-bytes": 2}]


@pytest.fixture(params=["memory", "log"])
def broker(request: pytest.FixtureRequest, start: Callable[..., Any], tmp_path: Path) -> Any:
    return start(data_dir=str(tmp_path)) if request.param == "log" else start()


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
@pytest.mark.parametrize("limit", LIMITS)
def test_nothing_of_a_refused_commit_stays(broker: Any, connect: Connect, overflow: str, limit: dict[str, int]) -> None:
    connection = connect(broker)
    tx, ch = connection.channel(1), connection.channel(2)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ch.queue("dead", durable=True)
    ch.queue("free", durable=True)
    ch.queue("full", durable=True, arguments={**limit, "x-overflow": overflow, **dead})
    ch.queue("acked", durable=True)
    ch.publish(b"a", routing_key="acked", delivery_mode=2)
    ch.publish(b"0", routing_key="full", delivery_mode=2)
    tx.call("tx.select")
    got = tx.call("basic.get", queue="acked")
    tx.send("basic.ack", delivery_tag=got.delivery_tag)
    for mode in (1, 2):
        tx.publish(b"f", routing_key="free", delivery_mode=mode)
        tx.publish(b"n", routing_key="full", delivery_mode=mode)  # the second is one too many, with what the transaction itself puts there
    tx.refuse(406, "partial tx completion", "tx.commit")
    assert [ch.ready(name) for name in ("free", "full", "dead", "acked")] == [0, 1, 0, 1]
    assert ch.call("basic.get", queue="acked").redelivered


def test_what_fits_exactly_is_committed(broker: Any, connect: Connect) -> None:
    connection = connect(broker)
    tx, ch = connection.channel(1), connection.channel(2)
    ch.queue("full", durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    tx.call("tx.select")
    for number in range(2):
        tx.publish(b"%d" % number, routing_key="full", delivery_mode=2)
    tx.call("tx.commit")
    assert ch.ready("full") == 2
    tx.publish(b"2", routing_key="full", immediate=False)
    tx.refuse(406, "partial tx completion", "tx.commit")


def test_a_mandatory_message_whose_queue_is_gone_is_returned(broker: Any, connect: Connect) -> None:
    connection = connect(broker)
    tx, ch = connection.channel(1), connection.channel(2)
    for name in ("gone", "stays"):
        ch.queue(name, durable=True)
    tx.call("tx.select")
    tx.publish(b"g", routing_key="gone", mandatory=True, delivery_mode=2)
    tx.publish(b"s", routing_key="stays", mandatory=True, delivery_mode=2)
    ch.call("queue.delete", queue="gone")
    tx.send("tx.commit")
    back = tx.expect("basic.return")
    assert (back.body, back.reply_code) == (b"g", 312)
    tx.expect("tx.commit-ok")
    assert ch.ready("stays") == 1


def test_after_a_restart_nothing_of_it_is_there(start: Callable[..., Any], connect: Connect, tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path)) as first:
        connection = connect(first)
        tx, ch = connection.channel(1), connection.channel(2)
        ch.queue("free", durable=True)
        ch.queue("full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        tx.call("tx.select")
        tx.publish(b"f", routing_key="free", delivery_mode=2)
        tx.publish(b"n", routing_key="full", delivery_mode=2)
        tx.refuse(406, "partial tx completion", "tx.commit")
    ch = connect(start(data_dir=str(tmp_path))).channel()
    assert [ch.ready(name) for name in ("free", "full")] == [0, 0]


def test_a_transaction_has_its_limit_where_python_routes(start: Callable[..., Any], connect: Connect) -> None:
    """Its publishes need Python (a time in text): the one that makes it too large closes the channel, as any other."""
    ch = connect(start(limits={"tx_bytes_max": 1_000})).channel()
    ch.queue("q")
    ch.call("tx.select")
    for _ in range(2):
        ch.publish(bytes(500), routing_key="q", headers={"x-deliver-at": "soon"})
    ch.expect_close(406, "transaction is larger than the limit")

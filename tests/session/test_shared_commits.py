"""tx.commit on shared queues: all of it or nothing, once, whatever the engine answers and whoever dies in between.

Properties: nothing is seen before the decision, and all of it after commit-ok; what ended in a transaction stays ended over a restart; a
transaction without an answer is decided by the engine; refusals say why, and leave nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.engines.engine import Commit
from flintmq.shared.transaction_rows import transactions
from flintmq.testing.broker import Broker
from tests.admin.conftest import Client
from tests.cluster.own_engine import SHARED, OwnEngine, begin, engine, get, log_of
from tests.support.broker import wait_until
from tests.support.inprocess import connect, heap_of_others, start
from tests.twins.faulty_engine import Fate

__all__ = ["begin", "connect", "engine", "heap_of_others", "start"]


def transactional(broker: Broker, connect: Any, *names: str, **arguments: Any) -> Any:
    channel = connect(broker).channel()
    for name in names:
        channel.queue(name, durable=True, arguments={**SHARED, **arguments})
    channel.call("tx.select")
    return channel


def bodies(channel: Any, name: str) -> list[tuple[bytes, bool]]:
    """(body, whether it is flagged) of all that is ready, which ends."""
    taken = []
    while (one := get(channel, name)).name == "basic.get-ok":
        taken.append((one.body, one.redelivered))
    return taken


def is_clean(engine: OwnEngine) -> bool:
    """No row of a transaction."""
    begin, end = transactions()
    rows = engine.store.rows
    return not any(begin <= key < end or (key[:2] == b"q/" and key[18:20] in (b"/x", b"/a")) for key in rows)


def of_a_transaction(call: str, commit: Commit | None) -> bool:
    """Whether a call writes a transaction's own row: deliveries and leases are told to the engine at their own times."""
    begin, end = transactions()
    return commit is not None and any(begin <= key < end for key in commit.puts)


def put(channel: Any, *names: str, body: bytes = b"x") -> None:
    for name in names:
        channel.publish(body, routing_key=name)


def test_messages_to_several_queues_are_seen_after_commit_ok_and_not_before(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "a", "b")
    other = connect(broker).channel()
    for number in range(3):
        put(channel, "a", "b", body=b"%d" % number)
    assert bodies(other, "a") == bodies(other, "b") == []
    channel.call("tx.commit")
    assert bodies(other, "a") == bodies(other, "b") == [(b"%d" % number, False) for number in range(3)]
    wait_until(lambda: is_clean(engine))


def test_a_rollback_leaves_nothing(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "a")
    put(channel, "a")
    channel.call("tx.rollback")
    channel.call("tx.commit")
    assert bodies(channel, "a") == [] and is_clean(engine)


def test_transactions_of_a_channel_stand_in_their_order_also_those_that_were_not_waited_for(begin: Any, connect: Any) -> None:
    broker = begin()
    channel = transactional(broker, connect, "a")
    for number in range(20):
        put(channel, "a", body=b"%d" % number)
        channel.send("tx.commit")
    for _ in range(20):
        channel.expect("tx.commit-ok")
    assert bodies(connect(broker).channel(), "a") == [(b"%d" % number, False) for number in range(20)]


def test_what_a_transaction_acknowledges_and_publishes_happens_together_over_a_restart(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "in", "out")
    put(channel, "in", "in", "in")
    channel.call("tx.commit")
    for _ in range(2):
        got = get(channel, "in", no_ack=False)
        channel.send("basic.ack", delivery_tag=got.delivery_tag)
        put(channel, "out", body=b"made")
    channel.call("tx.commit")
    wait_until(lambda: is_clean(engine))
    get(channel, "in", no_ack=False)  # without an end
    broker.node.stop()
    again = connect(begin()).channel()
    assert bodies(again, "in") == [(b"x", True)]
    assert [body for body, _ in bodies(again, "out")] == [b"made", b"made"]


def test_a_large_transaction_needs_several_commits_and_is_decided_by_one(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(engine_commit_bytes_max=200_000, engine_value_bytes_max=40_000, shared_part_messages=30)
    channel = transactional(broker, connect, "a", "b")
    large = b"x" * 100_000
    for number in range(100):
        put(channel, "a", "b", body=b"%d" % number)
    put(channel, "a", body=large)
    channel.call("tx.commit")
    assert [body for body, _ in bodies(channel, "b")] == [b"%d" % number for number in range(100)]
    assert [body for body, _ in bodies(channel, "a")] == [b"%d" % number for number in range(100)] + [large]
    wait_until(lambda: is_clean(engine))


@pytest.mark.parametrize("fate", [Fate.HAPPENED, Fate.NEVER, Fate.LATER, Fate.LOST])
def test_a_decision_without_an_answer_is_asked_for_until_it_is_known(begin: Any, connect: Any, engine: OwnEngine, fate: Fate) -> None:
    broker = begin()
    channel = transactional(broker, connect, "a", "b")
    put(channel, "a", "b")
    engine.plan.is_meant = of_a_transaction
    engine.plan.script.append(fate)
    channel.call("tx.commit")
    assert bodies(channel, "a") == bodies(channel, "b") == [(b"x", False)]
    while engine.plan.late:
        engine.plan.late.pop()
    wait_until(lambda: is_clean(engine))


def test_an_engine_without_room_refuses_and_nothing_of_it_is_seen(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "in", "out")
    put(channel, "in")
    channel.call("tx.commit")
    wait_until(lambda: is_clean(engine))
    got = get(channel, "in", no_ack=False)
    channel.send("basic.ack", delivery_tag=got.delivery_tag)
    put(channel, "out")
    engine.plan.is_meant = of_a_transaction
    engine.plan.script.append(Fate.FULL)
    channel.send("tx.commit")
    closed = channel.connection.expect(0, "connection.close")
    assert closed.reply_code == 541 and "has no room" in closed.reply_text
    again = connect(broker).channel()
    assert bodies(again, "out") == [] and bodies(again, "in") == [(b"x", True)]
    wait_until(lambda: is_clean(engine))


def test_an_engine_that_is_nearly_full_takes_acknowledgements_and_no_messages(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "in")
    put(channel, "in", "in")
    channel.call("tx.commit")
    broker.node.broker.shared._rest(2)
    got = get(channel, "in", no_ack=False)
    channel.send("basic.ack", delivery_tag=got.delivery_tag)
    channel.call("tx.commit")
    put(channel, "in")
    channel.send("tx.commit")
    assert "has no room" in channel.connection.expect(0, "connection.close").reply_text
    broker.node.broker.shared._rest(0)
    assert bodies(connect(broker).channel(), "in") == [(b"x", False)]


def test_a_client_is_told_in_time_that_nobody_knows_and_the_transaction_is_whole_all_the_same(
    begin: Any, connect: Any, engine: OwnEngine
) -> None:
    broker = begin(shared_waiting_ms_max=300)
    channel = transactional(broker, connect, "in", "out")
    put(channel, "in")
    channel.call("tx.commit")
    got = get(channel, "in", no_ack=False)
    channel.send("basic.ack", delivery_tag=got.delivery_tag)
    put(channel, "out")
    engine.hold("commit")
    channel.send("tx.commit")
    closed = channel.connection.expect(0, "connection.close")
    assert closed.reply_code == 541 and "is not known" in closed.reply_text
    engine.go_on()
    again = connect(broker).channel()
    wait_until(lambda: get(again, "out").name == "basic.get-ok")
    wait_until(lambda: is_clean(engine))
    assert bodies(again, "in") == []


def test_a_client_that_is_gone_before_the_decision_has_its_transaction_whole(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "in", "out")
    put(channel, "in")
    channel.call("tx.commit")
    wait_until(lambda: is_clean(engine))
    got = get(channel, "in", no_ack=False)
    channel.send("basic.ack", delivery_tag=got.delivery_tag)
    put(channel, "out")
    engine.hold("commit")
    channel.send("tx.commit")
    assert engine.waiting.wait(10)
    channel.connection.drop()
    engine.go_on()
    again = connect(broker).channel()
    wait_until(lambda: get(again, "out").name == "basic.get-ok")
    wait_until(lambda: is_clean(engine))
    assert bodies(again, "in") == []


def test_a_queue_that_refuses_above_its_limit_refuses_the_whole_transaction(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    full = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel = transactional(broker, connect, "full", **full)
    channel.queue("a", durable=True, arguments=SHARED)
    put(channel, "full", "full")
    channel.call("tx.commit")
    put(channel, "a", "full")
    channel.send("tx.commit")
    closed = channel.expect("channel.close")
    assert (closed.reply_code, closed.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")
    again = connect(broker).channel()
    assert bodies(again, "a") == [] and len(bodies(again, "full")) == 2


def test_a_limit_that_drops_the_head_holds_for_transactions(begin: Any, connect: Any) -> None:
    broker = begin()
    channel = transactional(broker, connect, "a", **{"x-max-length": 2})
    for number in range(5):
        put(channel, "a", body=b"%d" % number)
    channel.call("tx.commit")
    other = connect(broker).channel()
    wait_until(lambda: other.call("queue.declare", queue="a", passive=True).message_count == 2)
    assert [body for body, _ in bodies(other, "a")] == [b"3", b"4"]


def test_a_transaction_has_shared_queues_or_others(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "a")
    channel.queue("plain", durable=True)
    put(channel, "a", "plain")
    channel.send("tx.commit")
    closed = channel.connection.expect(0, "connection.close")
    assert closed.reply_code == 540 and "either shared queues or others" in closed.reply_text
    again = connect(broker).channel()
    assert bodies(again, "a") == bodies(again, "plain") == []


def test_a_reject_in_a_transaction_has_its_letter_after_the_commit(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "in", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.queue("dead", durable=True, arguments=SHARED)
    put(channel, "in")
    channel.call("tx.commit")
    got = get(channel, "in", no_ack=False)
    channel.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    other = connect(broker).channel()
    assert bodies(other, "dead") == []
    channel.call("tx.commit")
    wait_until(lambda: get(other, "dead").name == "basic.get-ok")
    assert bodies(other, "in") == []


def test_messages_for_a_deleted_queue_go_nowhere_and_the_others_to_theirs(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "a", "b")
    channel.call("exchange.declare", exchange="both", type="fanout")
    for name in ("a", "b"):
        channel.call("queue.bind", queue=name, exchange="both", routing_key="")
    channel.publish(b"x", exchange="both", routing_key="")
    connect(broker).channel().call("queue.delete", queue="a")
    channel.call("tx.commit")
    assert bodies(channel, "b") == [(b"x", False)]
    wait_until(lambda: is_clean(engine))


def test_the_owner_s_crash_between_decision_and_effect_leaves_both_to_the_next_one(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin()
    channel = transactional(broker, connect, "in", "out")
    put(channel, "in", "in")
    channel.call("tx.commit")
    wait_until(lambda: is_clean(engine))
    got = get(channel, "in", no_ack=False)
    channel.send("basic.ack", delivery_tag=got.delivery_tag)
    put(channel, "out", body=b"made")
    wait_until(lambda: log_of(broker, "in")._line is None and log_of(broker, "out")._line is None)
    begin_of, end_of = transactions()
    engine.is_last = lambda: any(begin_of <= key < end_of for key in engine.store.rows)
    channel.send("tx.commit")
    assert engine.waiting.wait(10)
    broker.node.broker.shared._leave = _nothing  # as when the process is killed
    broker.node.stop()
    assert not is_clean(engine)
    engine.is_last = lambda: False
    engine.go_on()
    again = connect(begin()).channel()
    assert [body for body, _ in bodies(again, "out")] == [b"made"]
    assert bodies(again, "in") == [(b"x", True)]
    wait_until(lambda: is_clean(engine))


async def _nothing() -> None:
    pass


def test_one_user_takes_not_all_places_of_transactions(begin: Any, connect: Any, engine: OwnEngine) -> None:
    broker = begin(shared_transactions_max=2)
    first, second = transactional(broker, connect, "in"), transactional(broker, connect)
    admin = Client(broker)
    admin.request("PUT", "/api/users/other", b'{"password": "p", "tags": ""}')
    admin.request("PUT", "/api/permissions/%2F/other", b'{"configure": ".*", "write": ".*", "read": ".*"}')
    other = connect(broker, user="other", password="p").channel()
    other.call("tx.select")
    engine.hold("commit")
    for channel in (first, second, other):
        put(channel, "in")
        channel.send("tx.commit")
        if channel is first:
            assert engine.waiting.wait(20)
    assert "of this user" in second.connection.expect(0, "connection.close").reply_text
    engine.go_on()
    first.expect("tx.commit-ok")
    other.expect("tx.commit-ok")
    assert len(bodies(first, "in")) == 2

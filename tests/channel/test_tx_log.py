"""A transaction on a durable log: nothing of it is seen before the log has its commit, then all of it, once, and in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintmq.errors import StoreError
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel
from tests.twins.memory_log import MemoryLog

PERSISTENT = {"delivery_mode": 2}
Connect = Callable[..., Any]


class Bench:
    """A broker on a log that is held back, a transactional channel and another connection that looks."""

    def __init__(self, start: Callable[..., Any], connect: Connect, **options: Any) -> None:
        self.log = MemoryLog()
        self.broker = start(log=self.log, **options)
        self.connect = connect
        self.tx: RawChannel = connect(self.broker).channel()
        self.other: RawChannel = connect(self.broker).channel()
        for name in ("a", "b", "c"):
            self.other.queue(name, durable=True)
        self.other.queue("passing")
        self.tx.call("tx.select")

    def commit_waits(self, what: int = 1) -> None:
        """Sends tx.commit and waits until the log has been asked; the answer must not be there."""
        self.tx.send("tx.commit")
        wait_until(lambda: sum(state != "open" for state in self.log.states.values()) >= what)

    def bodies(self, queue: str, count: int) -> list[bytes]:
        """Takes exactly `count` messages, and demands that there are no more."""
        got = [self.other.call("basic.get", queue=queue, no_ack=True) for _ in range(count)]
        assert self.other.call("basic.get", queue=queue, no_ack=True).name == "basic.get-empty"
        return [message.body for message in got]


@pytest.fixture
def bench(start: Callable[..., Any], connect: Connect) -> Bench:
    return Bench(start, connect)


def test_invisible_until_the_log_has_it(bench: Bench) -> None:
    """Three queues, one commit: no message and no answer before, all of them after."""
    bench.log.hold()
    for number, name in enumerate("abcab"):
        bench.tx.publish(b"%d" % number, routing_key=name, **PERSISTENT)
    bench.tx.publish(b"t", routing_key="passing")
    bench.commit_waits()
    bench.tx.nothing(0.05)
    assert [bench.other.ready(name) for name in ("a", "b", "c", "passing")] == [0, 0, 0, 0]
    assert bench.other.call("basic.get", queue="a").name == "basic.get-empty"
    assert bench.log.states == {1: "committed"}
    bench.log.release()
    bench.tx.expect("tx.commit-ok")
    assert (bench.bodies("a", 2), bench.bodies("b", 2), bench.bodies("c", 1), bench.bodies("passing", 1)) == (
        [b"0", b"3"],
        [b"1", b"4"],
        [b"2"],
        [b"t"],
    )
    wait_until(lambda: bench.log.states == {1: "applied"})
    assert [one[0] for one in bench.log.transactions[1]] == ["enqueue"] * 5
    assert bench.log.enqueues == 0, "nothing is logged twice"


def test_messages_keep_the_place_of_their_commit(bench: Bench) -> None:
    """What others publish while the commit waits stands behind it, and a consumer gets it at once all the same."""
    bench.log.hold()
    bench.tx.publish(b"first", routing_key="a", **PERSISTENT)
    bench.commit_waits()
    bench.other.publish(b"second", routing_key="a")
    bench.other.wait_ready("a", 1)
    bench.log.release()
    bench.tx.expect("tx.commit-ok")
    assert bench.bodies("a", 2) == [b"first", b"second"]


def test_a_waiting_consumer_is_woken_by_the_commit(bench: Bench) -> None:
    """A consumer that found nothing gets the messages when they appear."""
    bench.other.consume("a", no_ack=True)
    bench.log.hold()
    for number in range(5):
        bench.tx.publish(b"%d" % number, routing_key="a", **PERSISTENT)
    bench.commit_waits()
    bench.other.nothing(0.05)
    bench.log.release()
    assert [message.body for message in bench.other.deliveries(5)] == [b"0", b"1", b"2", b"3", b"4"]
    bench.tx.expect("tx.commit-ok")
    assert bench.log.dequeues == 5, "a message of a transaction is logged like any other from then on"


def test_acks_take_effect_with_the_log(bench: Bench) -> None:
    """Acknowledged inside the transaction: dequeued once, by the log's transaction, with owner and time."""
    for number in range(3):
        bench.other.publish(b"%d" % number, routing_key="a", **PERSISTENT)
    bench.other.wait_ready("a", 3)
    bench.tx.consume("a", "c")
    tags = [message.delivery_tag for message in bench.tx.deliveries(3)]
    bench.log.hold()
    bench.tx.send("basic.ack", delivery_tag=tags[1], multiple=True)
    bench.tx.publish(b"moved", routing_key="b", **PERSISTENT)
    bench.commit_waits()
    assert bench.other.ready("b") == 0
    bench.log.release()
    bench.tx.expect("tx.commit-ok")
    assert bench.log.dequeues == 0
    asked = bench.log.transactions[1]
    assert [one[0] for one in asked] == ["enqueue", "dequeue", "dequeue"]
    (owner,) = bench.log.consumers
    assert all(one[3] == owner and one[4] == 1 and one[5] > 0 for one in asked[1:])
    bench.tx.connection.drop()
    bench.other.wait_ready("a", 1)
    assert bench.bodies("a", 1) == [b"2"]
    assert bench.bodies("b", 1) == [b"moved"]


def test_credit_comes_back_with_the_commit(bench: Bench) -> None:
    """Prefetch 2: the next deliveries come when the settled ones are gone, not before."""
    for number in range(4):
        bench.other.publish(b"%d" % number, routing_key="a", **PERSISTENT)
    bench.tx.call("basic.qos", prefetch_count=2)
    bench.tx.consume("a", "c")
    tags = [message.delivery_tag for message in bench.tx.deliveries(2)]
    bench.log.hold()
    bench.tx.send("basic.ack", delivery_tag=tags[-1], multiple=True)
    bench.commit_waits()
    bench.tx.nothing(0.05)
    bench.log.release()
    bench.tx.expect("tx.commit-ok")
    assert [message.body for message in bench.tx.deliveries(2)] == [b"2", b"3"]


def test_disconnect_before_the_commit_redelivers(bench: Bench) -> None:
    """An ack without commit is nothing."""
    bench.other.publish(b"m", routing_key="a", **PERSISTENT)
    bench.tx.consume("a", "c")
    bench.tx.send("basic.ack", delivery_tag=bench.tx.expect("basic.deliver").delivery_tag)
    bench.tx.publish(b"lost", routing_key="b", **PERSISTENT)
    bench.tx.connection.drop()
    bench.other.wait_ready("a", 1)
    message = bench.other.call("basic.get", queue="a", no_ack=True)
    assert (message.body, message.redelivered) == (b"m", True)
    assert bench.other.ready("b") == 0
    assert bench.log.states == {}


@pytest.mark.parametrize("how", ["drop", "channel.close", "connection.close", "refused"])
def test_commit_under_way_completes_without_its_client(bench: Bench, how: str) -> None:
    """The commit record is written, so it is decided: applied once, whatever happens to the connection in between."""
    for number in range(3):
        bench.other.publish(b"%d" % number, routing_key="a", **PERSISTENT)
    bench.tx.call("basic.qos", prefetch_count=3, global_=True)
    bench.tx.consume("a", "c")
    tags = [message.delivery_tag for message in bench.tx.deliveries(3)]
    bench.log.hold()
    bench.tx.send("basic.ack", delivery_tag=tags[0])
    bench.tx.send("basic.nack", delivery_tag=tags[1], requeue=True)
    bench.tx.publish(b"moved", routing_key="b", **PERSISTENT)
    bench.commit_waits()
    if how == "drop":
        bench.tx.connection.drop()
    elif how == "connection.close":
        RawChannel(bench.tx.connection, 0).call("connection.close", reply_code=200)
    elif how == "refused":
        bench.tx.send("basic.ack", delivery_tag=4711)
        bench.tx.expect_close(406, "unknown delivery tag 4711")
    else:
        bench.tx.send("channel.close", reply_code=200)
        bench.tx.nothing(0.05)  # an answer like any other: after commit-ok
    if how != "channel.close":
        bench.other.wait_ready("a", 1)  # the unsettled one is back; the settled ones are the transaction's
    assert bench.other.ready("b") == 0
    bench.log.release()
    if how == "channel.close":
        bench.tx.expect("tx.commit-ok")
        bench.tx.expect("channel.close-ok")
    bench.other.wait_ready("a", 2)
    bench.other.wait_ready("b", 1)
    assert bench.bodies("a", 2) == [b"1", b"2"]
    assert bench.bodies("b", 1) == [b"moved"]
    wait_until(lambda: bench.log.states == {1: "applied"})


def test_pipelined_commits_answer_in_order(bench: Bench) -> None:
    """Publishes, acks and commits go on while a commit waits; each belongs to its own transaction."""
    bench.log.hold()
    for number in range(5):
        bench.tx.publish(b"%d" % number, routing_key="abc"[number % 3], **PERSISTENT)
        bench.commit_waits(number + 1)
    bench.tx.publish(b"open", routing_key="a", **PERSISTENT)
    bench.tx.send("tx.commit")  # a sixth
    wait_until(lambda: len(bench.log.states) == 6)
    bench.tx.nothing(0.05)
    assert [bench.other.ready(name) for name in "abc"] == [0, 0, 0]
    bench.log.release()
    for _ in range(6):
        bench.tx.expect("tx.commit-ok")
    assert (bench.bodies("a", 3), bench.bodies("b", 2), bench.bodies("c", 1)) == ([b"0", b"3", b"open"], [b"1", b"4"], [b"2"])
    assert [len(asked) for asked in bench.log.transactions.values()] == [1] * 6


def test_commit_without_the_log_waits_its_turn(bench: Bench) -> None:
    """A transaction of transient messages is behind the one that waits, on its channel; on another channel it is not."""
    second = bench.tx.connection.channel(2)
    second.call("tx.select")
    bench.log.hold()
    bench.tx.publish(b"1", routing_key="a", **PERSISTENT)
    bench.commit_waits()
    bench.tx.publish(b"2", routing_key="a")
    bench.tx.send("tx.commit")
    bench.tx.send("tx.commit")
    second.publish(b"3", routing_key="b")
    second.call("tx.commit")
    assert bench.bodies("b", 1) == [b"3"]
    bench.tx.nothing(0.05)
    assert bench.other.ready("a") == 0
    bench.log.release()
    for _ in range(3):
        bench.tx.expect("tx.commit-ok")
    assert bench.bodies("a", 2) == [b"1", b"2"]
    assert len(bench.log.states) == 1, "what is not logged makes no transaction"


def test_other_answers_do_not_overtake(bench: Bench) -> None:
    """declare, get, rollback and consume wait behind the commit; publishes and acks behind them are read later, in order."""
    bench.log.hold()
    bench.tx.publish(b"1", routing_key="a", **PERSISTENT)
    bench.commit_waits()
    bench.tx.send("queue.declare", queue="a", passive=True)
    bench.tx.send("basic.get", queue="a", no_ack=True)
    bench.tx.publish(b"dropped", routing_key="b", **PERSISTENT)
    bench.tx.send("tx.rollback")
    bench.tx.publish(b"kept", routing_key="b", **PERSISTENT)
    bench.tx.send("tx.commit")
    bench.tx.send("basic.consume", queue="b", consumer_tag="c", no_ack=True)
    bench.tx.nothing(0.05)
    bench.log.release()
    names = []
    while "basic.deliver" not in names:
        method = bench.tx.connection.recv(1)
        names.append(method.name)
        if method.name == "queue.declare-ok":
            assert method.message_count == 1, "it sees what the commit did"
        if method.name == "basic.get-ok":
            assert method.body == b"1"
    assert names == [
        "tx.commit-ok",
        "queue.declare-ok",
        "basic.get-ok",
        "tx.rollback-ok",
        "tx.commit-ok",
        "basic.consume-ok",
        "basic.deliver",
    ]
    assert method.body == b"kept"


def test_other_channels_go_on_until_an_answer_must_wait(bench: Bench) -> None:
    """A commit that waits holds only its own channel."""
    second = bench.tx.connection.channel(2)
    bench.log.hold()
    bench.tx.publish(b"1", routing_key="a", **PERSISTENT)
    bench.commit_waits()
    second.publish(b"2", routing_key="b")
    assert second.ready("b") == 1
    bench.log.release()
    bench.tx.expect("tx.commit-ok")


def test_connection_that_waits_can_still_be_dropped_and_beats(start: Callable[..., Any], connect: Connect) -> None:
    """Heartbeats of the broker go on while the connection isn't read, and it isn't taken for dead."""
    bench = Bench(start, connect)
    peer = connect(bench.broker, heartbeat=1)
    channel = peer.channel()
    channel.call("tx.select")
    bench.log.hold()
    channel.publish(b"1", routing_key="a", **PERSISTENT)
    channel.send("tx.commit")
    channel.send("basic.qos")
    until, give_up = time.monotonic() + 3.2, time.monotonic() + 30
    while time.monotonic() < until or peer.heartbeats < 4:
        assert time.monotonic() < give_up, f"{peer.heartbeats} heartbeats in 30 s"
        with pytest.raises(TimeoutError):
            peer.recv_any(0.4)
    bench.log.release()
    channel.expect("tx.commit-ok")
    channel.expect("basic.qos-ok")
    bench.log.hold()
    channel.publish(b"2", routing_key="a", **PERSISTENT)
    channel.send("tx.commit")
    channel.send("basic.qos")
    wait_until(lambda: len(bench.log.states) == 2)
    peer.drop()
    bench.log.release()
    bench.other.wait_ready("a", 2)


def test_too_many_waiting_commits_are_not_read(start: Callable[..., Any], connect: Connect) -> None:
    """Commits above the limit wait in the socket; all are answered in the end."""
    bench = Bench(start, connect, limits={"channel_commits_max": 3})
    bench.log.hold()
    for number in range(10):
        bench.tx.publish(b"%d" % number, routing_key="a", **PERSISTENT)
        bench.tx.send("tx.commit")
    wait_until(lambda: len(bench.log.states) == 3)
    bench.tx.nothing(0.05)
    assert len(bench.log.states) == 3
    bench.log.release()
    for _ in range(10):
        bench.tx.expect("tx.commit-ok")
    assert bench.bodies("a", 10) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("step", ["tx_enqueue", "tx_dequeue"])
def test_log_refuses(bench: Bench, step: str) -> None:
    """541, nothing is visible, nothing stays held, deliveries return."""
    bench.other.publish(b"m", routing_key="a", **PERSISTENT)
    bench.tx.consume("a", "c")
    tag = bench.tx.expect("basic.deliver").delivery_tag
    if step == "tx_enqueue":
        bench.tx.publish(b"1", routing_key="b", **PERSISTENT)
    bench.tx.send("basic.ack", delivery_tag=tag)
    bench.tx.publish(b"t", routing_key="passing")
    bench.log.refuse = StoreError("no space")
    bench.tx.send("tx.commit")
    close = bench.tx.connection.expect(0, "connection.close")
    assert close.reply_code == 541 and "no space" in close.reply_text
    bench.other.wait_ready("a", 1)
    assert bench.log.states == {1: "abandoned"}
    assert [bench.other.ready(name) for name in ("b", "passing")] == [0, 0]
    bench.other.publish(b"next", routing_key="b", **PERSISTENT)
    bench.other.wait_ready("b", 1)
    assert bench.bodies("b", 1) == [b"next"]
    assert bench.other.call("basic.get", queue="a", no_ack=True).redelivered


def test_settling_what_the_log_forgot(bench: Bench) -> None:
    """A delivery of a queue that was deleted meanwhile is settled; the rest of the transaction happens."""
    bench.other.publish(b"m", routing_key="a", **PERSISTENT)
    bench.tx.consume("a", "c")
    bench.tx.send("basic.ack", delivery_tag=bench.tx.expect("basic.deliver").delivery_tag)
    bench.tx.publish(b"1", routing_key="b", **PERSISTENT)
    bench.other.call("queue.delete", queue="a")
    bench.tx.expect("basic.cancel")
    bench.tx.call("tx.commit")
    bench.other.publish(b"n", routing_key="c", **PERSISTENT)
    bench.tx.consume("c", "d")
    bench.tx.send("basic.ack", delivery_tag=bench.tx.expect("basic.deliver").delivery_tag)
    bench.log.refuse = KeyError("no entry")
    bench.tx.call("tx.commit")
    bench.tx.connection.drop()
    wait_until(lambda: len(bench.broker.node.broker.connections) == 1, what="what was not settled is back")
    assert [bench.other.ready(name) for name in "bc"] == [1, 0]


def test_log_refuses_the_commit_record(bench: Bench) -> None:
    """The last step fails: the dead letter that was held is gone, the rejected message is back."""
    bench.other.queue("dying", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "passing"})
    bench.other.publish(b"m", routing_key="dying", **PERSISTENT)
    bench.tx.consume("dying", "c")
    bench.tx.send("basic.reject", delivery_tag=bench.tx.expect("basic.deliver").delivery_tag, requeue=False)
    bench.log.refuse = StoreError("no space")
    bench.tx.send("tx.commit")
    assert bench.tx.connection.expect(0, "connection.close").reply_code == 541
    bench.other.wait_ready("dying", 1)
    assert bench.other.ready("passing") == 0
    assert bench.log.states == {1: "abandoned"} and bench.log.transactions == {1: []}


def test_a_commit_that_fails_inside_is_not_answered_by_the_next_one(bench: Bench) -> None:
    """A fault of ours when the first of two commits takes effect: the client hears 541, no commit-ok, and the second one happens."""
    bench.log.hold()
    for body in (b"first", b"second"):
        bench.tx.publish(body, routing_key="a", **PERSISTENT)
        bench.commit_waits(1 if body == b"first" else 2)
    bench.log.fail = RuntimeError("a fault of ours")
    bench.log.release()
    assert bench.tx.connection.expect(0, "connection.close").reply_code == 541
    bench.other.wait_ready("a", 1)
    assert bench.bodies("a", 1) == [b"second"]
    assert bench.log.states == {1: "committed", 2: "applied"}


def test_returns_come_with_the_commit(bench: Bench) -> None:
    """Unroutable mandatory messages come back before commit-ok, when the log has the rest."""
    bench.log.hold()
    bench.tx.publish(b"1", routing_key="a", **PERSISTENT)
    bench.tx.publish(b"back", routing_key="nowhere", mandatory=True, **PERSISTENT)
    bench.commit_waits()
    bench.tx.nothing(0.05)
    bench.log.release()
    returned = bench.tx.expect("basic.return")
    assert (returned.reply_code, returned.body) == (312, b"back")
    bench.tx.expect("tx.commit-ok")


def test_immediate_messages_are_offered_at_the_commit(bench: Bench) -> None:
    """Delivered or returned when the transaction takes effect, never before; the answer waits for their own records."""
    bench.other.consume("b", no_ack=True)
    bench.log.hold()
    bench.tx.publish(b"1", routing_key="c", **PERSISTENT)
    bench.tx.publish(b"back", routing_key="a", immediate=True, **PERSISTENT)
    bench.tx.publish(b"now", routing_key="b", immediate=True, **PERSISTENT)
    bench.commit_waits()
    bench.other.nothing(0.05)
    bench.log.release()
    assert bench.other.expect("basic.deliver").body == b"now"
    returned = bench.tx.expect("basic.return")
    assert (returned.reply_code, returned.body) == (313, b"back")
    bench.tx.expect("tx.commit-ok")
    assert bench.other.ready("a") == 0


def test_drop_head_drops_at_the_commit(bench: Bench) -> None:
    bench.other.queue("last", durable=True, arguments={"x-max-length": 2})
    bench.log.hold()
    for number in range(5):
        bench.tx.publish(b"%d" % number, routing_key="last", **PERSISTENT)
    bench.commit_waits()
    bench.log.release()
    bench.tx.expect("tx.commit-ok")
    assert bench.bodies("last", 2) == [b"3", b"4"]


def test_dead_letters_are_part_of_the_transaction(bench: Bench) -> None:
    """A rejected message and its dead letter change places in one commit."""
    bench.other.queue("dying", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    bench.other.publish(b"dead", routing_key="dying", **PERSISTENT)
    bench.tx.consume("dying", "c")
    tag = bench.tx.expect("basic.deliver").delivery_tag
    before = (bench.log.enqueues, bench.log.dequeues)
    bench.log.hold()
    bench.tx.send("basic.reject", delivery_tag=tag, requeue=False)
    bench.commit_waits()
    assert [bench.other.ready(name) for name in "bc"] == [0, 0]
    bench.log.release()
    bench.tx.expect("tx.commit-ok")
    assert sorted(one[0] for one in bench.log.transactions[1]) == ["dequeue", "enqueue"]
    assert (bench.log.enqueues, bench.log.dequeues) == before
    letter = bench.other.call("basic.get", queue="b", no_ack=True)
    assert letter.body == b"dead" and letter.properties["headers"]["x-death"][0]["reason"] == "rejected"
    assert bench.other.ready("dying") == 0


def test_shared_content_of_a_transaction_is_placed(bench: Bench) -> None:
    """A message for several queues is announced when the log knows all its places, once."""
    for name in "abc":
        bench.other.call("queue.bind", queue=name, exchange="amq.fanout")
    bench.tx.publish(b"m", exchange="amq.fanout", **PERSISTENT)
    bench.tx.publish(b"m", routing_key="a", **PERSISTENT)
    bench.tx.call("tx.commit")
    assert bench.log.placed == 1
    assert [bench.other.ready(name) for name in "abc"] == [2, 1, 1]


def test_settlements_name_what_was_there(bench: Bench) -> None:
    """ack(0, multiple) in a transaction settles what was delivered by then, not what came until the commit."""
    bench.tx.consume("a", "c")
    bench.other.publish(b"1", routing_key="a", **PERSISTENT)
    bench.tx.expect("basic.deliver")
    bench.tx.send("basic.ack", delivery_tag=0, multiple=True)
    bench.tx.call("basic.qos")
    bench.other.publish(b"2", routing_key="a", **PERSISTENT)
    bench.tx.expect("basic.deliver")
    bench.tx.call("tx.commit")
    bench.tx.connection.drop()
    bench.other.wait_ready("a", 1)
    assert bench.bodies("a", 1) == [b"2"]


def test_stop_while_a_commit_waits(start: Callable[..., Any], connect: Connect) -> None:
    """A broker that stops does not wait for the log; the commit is recovery's."""
    bench = Bench(start, connect)
    bench.log.hold()
    bench.tx.publish(b"1", routing_key="a", **PERSISTENT)
    bench.commit_waits()
    bench.broker.node.stop()
    assert bench.log.states == {1: "committed"}


def test_the_end_of_a_transaction_takes_no_sync_of_its_own(start: Callable[..., Any], connect: Connect, tmp_path: Path) -> None:
    """Nobody waits for its record: it goes to the disk with the next commit, or when the housekeeping says so."""
    broker = start(store_dir=str(tmp_path / "store"))
    tx = connect(broker).channel()
    tx.queue("q", durable=True)
    tx.call("tx.select")
    writer = broker.node.broker.log.writer

    def passes(commits: int) -> int:
        before = writer.figures["passes"]
        for _ in range(commits):
            tx.publish(b"x", routing_key="q", **PERSISTENT)
            tx.call("tx.commit")
        return int(writer.figures["passes"] - before)

    assert any(passes(10) < 15 for _ in range(10))  # the housekeeping has passes of its own


def test_a_commit_costs_one_log(start: Callable[..., Any], connect: Connect, tmp_path: Path) -> None:
    """Over the wire: publishes on two queues and an ack in one commit leave the transaction log as it was; a restart has them."""
    path = str(tmp_path / "store")
    broker = start(store_dir=path)
    channel = connect(broker).channel()
    for name in ("a", "b"):
        channel.queue(name, durable=True)
    channel.publish(b"old", routing_key="a", **PERSISTENT)
    channel.call("tx.select")
    channel.consume("a")
    tag = channel.expect("basic.deliver").delivery_tag
    before = broker.node.broker.log.transaction_records.tail
    channel.send("basic.ack", delivery_tag=tag)
    channel.publish(b"new a", routing_key="b", **PERSISTENT)
    channel.publish(b"new b", routing_key="b", **PERSISTENT)
    channel.call("tx.commit")
    assert broker.node.broker.log.transaction_records.tail == before
    broker.node.stop()
    channel = connect(start(store_dir=path)).channel()
    bodies = [channel.call("basic.get", queue="b", no_ack=True).body for _ in range(2)]
    assert bodies == [b"new a", b"new b"]
    assert channel.call("basic.get", queue="a").name == "basic.get-empty"


def test_a_queue_that_is_deleted_while_its_message_waits(start: Callable[..., Any], connect: Connect, tmp_path: Path) -> None:
    """Nothing of a deleted queue lives on in the log, whichever of commit and delete comes first."""
    broker = start(store_dir=str(tmp_path / "store"))
    channel, other = connect(broker).channel(), connect(broker).channel()
    channel.call("tx.select")
    log = broker.node.broker.log
    for number in range(30):
        other.queue(f"q{number}", durable=True)
        channel.publish(b"x", routing_key=f"q{number}", **PERSISTENT)
        channel.send("tx.commit")
        other.call("queue.delete", queue=f"q{number}")
        channel.expect("tx.commit-ok")
    wait_until(lambda: log.messages.live_count == 0)

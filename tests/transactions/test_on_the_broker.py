"""Distributed transactions on a durable node: commands of this process, consumers over AMQP, restarts and a real kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.clock import ManualClock
from flintmq.config import Config
from flintmq.node import Node
from flintmq.transactions import BranchState, Condition, TransactionRefused, XaStatus, Xid
from tests.support.blocks import enrol, take
from tests.support.broker import wait_until
from tests.support.rawamqp import RawConnection
from tests.support.stored import StoredContent

X = Xid(1, b"global", b"branch")
Y = Xid(1, b"global", b"other")
ME = "me"
OK = XaStatus.XA_OK
HEADER = bytes(12) + b"\x00\x00"
LEVEL = 1 << 56
SECONDS = 20


def message(body: bytes) -> StoredContent:
    return StoredContent(b"", b"q", b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00", body)


class Running:
    """A node on a directory with durable queues in, out and urgent (six priorities), and passing, which is not durable."""

    def __init__(self, directory: Path, *, listen: bool = False, clock: Any = None, **limits: Any) -> None:
        config = Config(port=0, store_dir=str(directory), container_size=1 << 20).with_limits(**limits)
        self.node = Node(config, clock)
        self.vhost = self.node.broker.vhosts["/"]
        for name, arguments in {"in": {}, "out": {}, "urgent": {"x-max-priority": 5}}.items():
            self.vhost.run(self.vhost.declare_queue(name, durable=True, arguments=arguments))
        self.vhost.run(self.vhost.declare_queue("passing"))
        transactions = self.node.broker.transactions
        assert transactions is not None
        self.transactions = transactions
        transactions.select(ME)
        self.alive = True
        if listen:
            self.node.start()

    def id(self, name: str) -> int:
        number: int = self.vhost.queues[name].queue_id
        return number

    def core(self, name: str) -> Any:
        return self.vhost.queues[name].core

    def put(self, name: str, body: bytes, flags: int = 1) -> int:
        content = message(body)
        position: int = self.core(name).publish(b"", b"q", content.header, body, flags, 0)
        return position

    def bodies(self, name: str) -> list[bytes]:
        """What a new consumer would get, in order."""
        core, found, position = self.core(name), [], 0
        while position := core.next_available(position + 1 if position else 0):
            found.append(core.message_at(position)[3])
        return found

    def all_bodies(self) -> dict[str, list[bytes]]:
        return {name: self.bodies(name) for name in ("in", "out", "urgent")}

    def work(self, xid: Xid = X, **options: Any) -> None:
        """Takes the first message of "in", puts one onto "out" and "urgent", there before what waits at priority 0."""
        transactions = self.transactions
        assert transactions.start(ME, xid, **options) is OK
        take(transactions, ME, xid, self.id("in"))
        enrol(transactions, ME, xid, (self.id("out"), self.id("urgent")), b"new", priority=4)
        assert transactions.end(ME, xid) is OK

    def fill(self) -> None:
        for name, body in (("in", b"1"), ("in", b"2"), ("urgent", b"low")):
            self.put(name, body)

    def kill(self) -> None:
        """No clean stop: the next start recovers."""
        if self.alive:
            self.alive = False
            assert self.node.store is not None
            self.node.store.close(clean=False)


BEFORE = {"in": [b"1", b"2"], "out": [], "urgent": [b"low"]}
HELD = {"in": [b"2"], "out": [], "urgent": [b"low"]}
AFTER = {"in": [b"2"], "out": [b"new"], "urgent": [b"new", b"low"]}

Run = Callable[..., Running]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """`run(listen=True, ...)`: a node on the test's directory, when the last one was killed."""
    started: list[Running] = []

    def make(**options: Any) -> Running:
        for one in started:
            one.kill()
        started.append(Running(tmp_path / "store", **options))
        return started[-1]

    yield make
    for one in started:
        if one.alive:
            one.node.stop()


@pytest.mark.parametrize("commits", [True, False])
def test_a_prepared_branch_is_decided_after_a_kill(run: Run, commits: bool) -> None:
    """In doubt nothing of it is seen and nothing it took is delivered; the decision makes all of it true, over further restarts."""
    broker = run()
    broker.fill()
    broker.work()
    assert broker.transactions.prepare(X).result(SECONDS) is OK
    for _ in range(2):
        broker = run()
        assert broker.all_bodies() == HELD
        assert list(broker.transactions.recover("/")) == [X]
        view = broker.transactions.list()[0]
        assert (view.state, view.enqueues, view.dequeues, view.durable) == (BranchState.PREPARED, 2, 1, True)
    outcome = broker.transactions.commit(X) if commits else broker.transactions.rollback(X)
    assert outcome.result(SECONDS) is OK
    for _ in range(3):
        assert broker.all_bodies() == (AFTER if commits else BEFORE)
        assert list(broker.transactions.list()) == []
        broker = run()
    if commits:
        assert broker.core("urgent").next_available() == 1 * LEVEL | 1, "priority 4 of six levels came back with the message"


def test_an_unprepared_branch_is_gone_after_a_kill(run: Run) -> None:
    """Work that was not prepared is undone by the restart."""
    broker = run()
    broker.fill()
    broker.work()
    assert broker.all_bodies() == HELD
    broker = run()
    assert broker.all_bodies() == BEFORE and list(broker.transactions.list()) == []


CHILD = """
import sys, time
from pathlib import Path
from tests.support.blocks import take
from tests.transactions.test_on_the_broker import X, Y, Running
broker = Running(Path(sys.argv[1]))
broker.fill()
broker.work()
assert broker.transactions.prepare(X).result(20) == 0
broker.put("in", b"3")
broker.work(Y)
assert broker.transactions.commit(Y, one_phase=True).result(20) == 0
broker.transactions.start("me", Y)
take(broker.transactions, "me", Y, broker.id("in"))
print("ready", flush=True)
time.sleep(600)
"""


def test_kill_9_of_a_real_process(run: Run, tmp_path: Path) -> None:
    """A process with a prepared, a committed and an open branch is killed: in doubt, there, and undone."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "store")], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    broker = run()
    assert broker.all_bodies() == {"in": [b"3"], "out": [b"new"], "urgent": [b"new", b"low"]}
    assert list(broker.transactions.recover()) == [X]
    assert broker.transactions.commit(X).result(SECONDS) is OK
    assert broker.all_bodies() == {"in": [b"3"], "out": [b"new", b"new"], "urgent": [b"new", b"new", b"low"]}


def test_consumers_see_the_outcome_only(run: Run) -> None:
    """Over AMQP: what a prepared branch holds is not delivered; its commit wakes the consumer that waits."""
    broker = run(listen=True)
    broker.fill()
    broker.work()
    assert broker.transactions.prepare(X).result(SECONDS) is OK
    assert broker.node.amqp_port is not None
    connection = RawConnection("127.0.0.1", broker.node.amqp_port).open()
    try:
        channel = connection.channel()
        assert channel.call("basic.get", queue="in", no_ack=True).body == b"2"
        assert channel.call("basic.get", queue="in", no_ack=True).name == "basic.get-empty"
        assert channel.call("basic.get", queue="out", no_ack=True).name == "basic.get-empty"
        waiting = connection.channel(2)
        waiting.call("basic.consume", queue="out", consumer_tag="c", no_ack=False)
        assert broker.transactions.commit(X).result(SECONDS) is OK
        delivered = waiting.expect("basic.deliver")
        assert (delivered.body, delivered.redelivered) == (b"new", False)
        waiting.send("basic.ack", delivery_tag=delivered.delivery_tag)
        wait_until(lambda: broker.core("out").unacked_count() == 0)
    finally:
        connection.drop()


def test_settled_messages_of_a_branch_are_gone_after_a_restart(run: Run) -> None:
    """What a branch published is an ordinary message: settled by consumers, it does not come back, and its other queue keeps it."""
    broker = run()
    broker.fill()
    broker.work()
    assert broker.transactions.commit(X, one_phase=True).result(SECONDS) is OK
    assert broker.core("out").take_head(1)[3] == b"new"
    broker.transactions.start(ME, Y)
    assert take(broker.transactions, ME, Y, broker.id("urgent")).count == 1
    broker.transactions.end(ME, Y)
    assert broker.transactions.commit(Y, one_phase=True).result(SECONDS) is OK
    broker = run()
    assert broker.all_bodies() == {"in": [b"2"], "out": [], "urgent": [b"low"]}
    assert broker.node.store is not None


def test_a_message_that_is_not_in_memory_is_read_when_needed(run: Run) -> None:
    """A branch keeps no content: its messages come from the log, whole and in order, with their sizes counted."""
    broker = run()
    bodies = [bytes([65 + number]) * 1000 for number in range(5)]
    broker.transactions.start(ME, X)
    for body in bodies:
        enrol(broker.transactions, ME, X, (broker.id("out"),), body)
    broker.transactions.end(ME, X)
    assert broker.transactions.commit(X, one_phase=True).result(SECONDS) is OK
    core = broker.core("out")
    assert (core.cold_count, core.ready_bytes(), core.resident_bytes) == (5, 5000, 0)
    assert broker.bodies("out") == bodies
    assert [core.take_head(1, lambda _: None)[3] for _ in range(2)] == [b"", b""]
    assert broker.bodies("out") == bodies[2:]


def test_an_entry_of_a_branch_expires(run: Run) -> None:
    """Its expiry counts once it is there, not before."""
    clock = ManualClock()
    broker = run(clock=clock)
    broker.transactions.start(ME, X)
    enrol(broker.transactions, ME, X, (broker.id("out"),), b"short", expiration="1000")
    enrol(broker.transactions, ME, X, (broker.id("out"),), b"long")
    broker.transactions.end(ME, X)
    assert broker.transactions.commit(X, one_phase=True).result(SECONDS) is OK
    broker.node.broker.housekeeping(0)
    assert broker.bodies("out") == [b"short", b"long"]
    clock.advance(ms=2_000)
    broker.node.broker.housekeeping(0)
    assert broker.bodies("out") == [b"long"]


def test_a_deleted_queue(run: Run) -> None:
    """An active branch that used it is rolled back; a prepared one commits the rest; new work on it is refused."""
    broker = run()
    broker.fill()
    broker.put("in", b"3")
    broker.work()
    assert broker.transactions.prepare(X).result(SECONDS) is OK
    broker.work(Y)
    number = broker.id("out")
    broker.vhost.run(broker.vhost.delete_queue("out"))
    assert {view.xid: view.state for view in broker.transactions.list()} == {X: BranchState.PREPARED, Y: BranchState.ROLLBACK_ONLY}
    wait_until(lambda: broker.bodies("in") == [b"2", b"3"])
    assert broker.transactions.commit(X).result(SECONDS) is OK
    assert (broker.bodies("in"), broker.bodies("urgent")) == ([b"2", b"3"], [b"new", b"low"])
    broker.transactions.rollback(Y).result(SECONDS)
    broker.transactions.start(ME, Y)
    with pytest.raises(TransactionRefused) as refused:
        enrol(broker.transactions, ME, Y, (number,), b"late")
    assert refused.value.condition is Condition.NOT_FOUND
    broker = run()
    assert broker.all_bodies() == {"in": [b"2", b"3"], "out": [], "urgent": [b"new", b"low"]}


def test_a_queue_deleted_while_its_branch_is_in_doubt(run: Run) -> None:
    """After a restart, too: the rest is committed, and the next start finds nothing of the queue."""
    broker = run()
    broker.fill()
    broker.work()
    assert broker.transactions.prepare(X).result(SECONDS) is OK
    broker = run()
    broker.vhost.run(broker.vhost.delete_queue("in"))
    broker.vhost.run(broker.vhost.delete_queue("out"))
    broker = run()
    assert broker.transactions.list()[0].queues == {broker.id("urgent"): (1, 0)}
    assert broker.transactions.commit(X).result(SECONDS) is OK
    assert broker.all_bodies() == {"in": [], "out": [], "urgent": [b"new", b"low"]}


def test_queues_that_are_not_durable_ride_along(run: Run) -> None:
    """Their messages change with the outcome; after a restart they are gone, and the log does not complain about them."""
    broker = run()
    broker.put("passing", b"p1")
    broker.put("passing", b"p2")
    broker.put("in", b"transient", flags=0)
    transactions = broker.transactions
    transactions.start(ME, X)
    take(transactions, ME, X, broker.id("passing"))
    take(transactions, ME, X, broker.id("in"))
    enrol(transactions, ME, X, (broker.id("passing"),), b"p3")
    transactions.end(ME, X)
    assert transactions.rollback(X).result(SECONDS) is OK
    assert (broker.bodies("passing"), broker.bodies("in")) == ([b"p1", b"p2"], [b"transient"])
    transactions.start(ME, Y)
    take(transactions, ME, Y, broker.id("passing"))
    enrol(transactions, ME, Y, (broker.id("passing"),), b"p3")
    transactions.end(ME, Y)
    assert transactions.commit(Y, one_phase=True).result(SECONDS) is OK
    assert broker.bodies("passing") == [b"p2", b"p3"]
    broker.vhost.run(broker.vhost.delete_queue("passing"))
    broker = run()
    assert broker.bodies("passing") == [] and broker.bodies("in") == []


def test_housekeeping_ends_branches_whose_time_is_over(run: Run) -> None:
    """A branch that is not prepared in time is rolled back by the node's own housekeeping."""
    clock = ManualClock()
    broker = run(clock=clock)
    broker.fill()
    broker.work()
    broker.node.broker.housekeeping(0)
    assert broker.all_bodies() == HELD
    clock.advance(ms=61_000)
    broker.node.broker.housekeeping(0)
    wait_until(lambda: broker.all_bodies() == BEFORE)
    assert broker.transactions.rollback(X).result(SECONDS) is XaStatus.XA_RBTIMEOUT


def test_a_session_that_ends_gives_back_what_it_has(run: Run) -> None:
    """Its unprepared branch is rolled back."""
    broker = run()
    broker.fill()
    broker.transactions.start(ME, X)
    assert take(broker.transactions, ME, X, broker.id("in"), 9).count == 2
    assert broker.bodies("in") == []
    broker.node.broker.transactions.session_closed(ME)
    wait_until(lambda: broker.all_bodies() == BEFORE)
    assert broker.core("in").peek(2)[1] is True
    assert [view.state for view in broker.transactions.list()] == [BranchState.ROLLBACK_ONLY]


def test_a_commit_keeps_the_limit_of_its_queue(run: Run) -> None:
    """x-max-length: the oldest go when the branch's messages come."""
    broker = run()
    broker.vhost.run(broker.vhost.declare_queue("short", durable=True, arguments={"x-max-length": 2}))
    broker.transactions.start(ME, X)
    for body in (b"a", b"b", b"c"):
        enrol(broker.transactions, ME, X, (broker.id("short"),), body)
    broker.transactions.end(ME, X)
    assert broker.transactions.commit(X, one_phase=True).result(SECONDS) is OK
    assert broker.bodies("short") == [b"b", b"c"]


def test_transfers_of_many_threads_keep_every_message_once(run: Run) -> None:
    """Four threads move messages between two queues, in one and two phases, while one side is consumed; after a kill each is there once."""
    broker = run()
    for number in range(120):
        broker.put("in", b"%d" % number)
    consumed: list[bytes] = []

    def transfer(name: str) -> None:
        transactions = broker.transactions
        transactions.select(name)
        for number in range(15):
            xid = Xid(2, name.encode(), b"%d" % number)
            transactions.start(name, xid)
            assert take(transactions, name, xid, broker.id("in")).count == 1
            (run_,) = transactions.runs(xid)
            body = broker.core("in").message_at(run_.positions()[0])[3]
            enrol(transactions, name, xid, (broker.id("out"),), body)
            transactions.end(name, xid)
            if number % 3 == 0:
                transactions.prepare(xid).result(SECONDS)
                transactions.commit(xid).result(SECONDS)
            elif number % 3 == 1:
                transactions.commit(xid, one_phase=True).result(SECONDS)
            else:
                transactions.rollback(xid).result(SECONDS)

    threads = [threading.Thread(target=transfer, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if len(consumed) < 10 and (taken := broker.core("out").take_head(1)) is not None:
            consumed.append(taken[3])
    for thread in threads:
        thread.join()
    assert len(broker.bodies("out")) == 40 - len(consumed)
    there = broker.all_bodies()
    # A note that is durable, and so is everything before it.
    assert broker.transactions.decide((9, b"done", b"1")).result(SECONDS) is OK
    broker = run()
    assert broker.all_bodies() == there
    assert sorted(there["in"] + there["out"] + consumed, key=int) == [b"%d" % number for number in range(120)]


def test_a_memory_node_has_no_transactions() -> None:
    """Without a durable store nothing could be promised: callers find None."""
    node = Node(Config(port=0, memory=True))
    assert node.broker.transactions is None
    node.stop()

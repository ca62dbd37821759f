"""A database that does not answer holds up whoever changes a definition, and nobody else."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.access.users import hash_password
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import method_frame, publish_bytes


class Gate:
    """Stands before the database: `shut`, and every transaction waits until `open`."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.may_pass = threading.Event()
        self.may_pass.set()
        self.entered = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def run(self, operations: Any) -> None:
        if not self.may_pass.is_set():
            self.entered.release()
            assert self.may_pass.wait(30)
        self.driver.run(operations)


@pytest.fixture
def gate_and_broker(tmp_path: Path) -> Iterator[tuple[Gate, Broker]]:
    with Broker(data_dir=tmp_path, limits={"housekeeping_ms": 20}) as broker:
        assert broker.node.store is not None
        group = broker.node.store.definitions._group
        gate = Gate(group._driver)
        group._driver = gate  # type: ignore[assignment]
        try:
            yield gate, broker
        finally:
            gate.may_pass.set()


def test_others_go_on_while_the_database_is_silent(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    gate, broker = gate_and_broker
    slow, other = connect(broker).channel(), connect(broker).channel()
    slow.call("confirm.select")
    other.queue("q", durable=True)
    other.call("confirm.select")
    gate.may_pass.clear()
    # Sent in one piece: what follows the declare is served after it.
    declare = method_frame(1, "queue.declare", queue="late", durable=True)
    slow.connection.send(declare + publish_bytes(1, b"m", routing_key="late", mandatory=True))
    assert gate.entered.acquire(timeout=30)
    other.publish(b"m", routing_key="q")
    other.expect("basic.ack")
    other.queue("passing")  # nothing of it is for the database
    other.call("queue.delete", queue="passing")
    connect(broker).channel()
    assert "late" not in broker.node.broker.vhosts["/"].queues
    slow.nothing(0)
    gate.may_pass.set()
    assert slow.expect("queue.declare-ok").queue == "late"
    slow.expect("basic.ack")
    assert other.ready("late") == 1


def test_a_client_that_hangs_up_gets_what_it_asked_for(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    gate, broker = gate_and_broker
    vhost = broker.node.broker.vhosts["/"]
    slow, other = connect(broker).channel(), connect(broker).channel()
    waiting = connect(broker).channel()
    gate.may_pass.clear()
    slow.send("queue.declare", queue="q", durable=True)
    assert gate.entered.acquire(timeout=30)
    waiting.send("queue.declare", queue="q", durable=True)
    # A reset: the end of the stream would be seen when the connection is read again.
    slow.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    slow.connection.drop()
    wait_until(lambda: len(broker.node.broker.connections) == 2, what="the broker saw the end of the connection")
    gate.may_pass.set()
    assert waiting.expect("queue.declare-ok").queue == "q"
    assert other.ready("q") == 0 and "q" in vhost.queues


def test_exclusive_queues_of_a_dead_connection_are_free_while_the_database_is_silent(
    gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]
) -> None:
    """Its auto-delete queue has to wait for the database; its exclusive one does not."""
    gate, broker = gate_and_broker
    first, second = connect(broker).channel(), connect(broker).channel()
    first.queue("mine", exclusive=True)
    first.queue("auto", durable=True, auto_delete=True)
    first.consume("auto")
    gate.may_pass.clear()
    first.connection.drop()
    assert gate.entered.acquire(timeout=30)
    wait_until(lambda: len(broker.node.broker.connections) == 1, what="the broker saw the end of the connection")
    second.queue("mine", exclusive=True)
    second.send("basic.consume", queue="auto", consumer_tag="")
    second.nothing(0)  # it is being deleted: the answer comes when it is known
    gate.may_pass.set()
    second.expect_close(404, "no queue 'auto'")


@pytest.mark.parametrize(
    ("kind", "argument"), [("queue", "x-dead-letter-exchange"), ("exchange", "alternate-exchange")], ids=["queue", "exchange"]
)
def test_what_is_declared_while_it_is_being_deleted_is_asked_for_as_something_new(
    gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any], kind: str, argument: str
) -> None:
    """Whoever may not write to an exchange does not reach it as dead-letter exchange, or alternate, of what was there a moment ago."""
    gate, broker = gate_and_broker
    broker.node.users.put(UserRecord("tenant", hash_password("tenant")))
    broker.node.permissions.set_permissions(PermissionRecord("tenant", "/", ".*", "^(?!amq.fanout)", ".*"))
    owner, tenant = connect(broker).channel(), connect(broker, user="tenant", password="tenant").channel()
    what = {kind: "x", "durable": True, **({"type": "direct"} if kind == "exchange" else {})}
    owner.call(f"{kind}.declare", **what)
    gate.may_pass.clear()
    owner.send(f"{kind}.delete", **{kind: "x"})
    assert gate.entered.acquire(timeout=30)
    tenant.send(f"{kind}.declare", **what, arguments={argument: "amq.fanout"})
    tenant.nothing(0)  # it waits for the deletion
    gate.may_pass.set()
    owner.expect(f"{kind}.delete-ok")
    tenant.expect_close(403, "ACCESS_REFUSED - write access to exchange 'amq.fanout'")
    # What is there with other properties, or with these, is asked for as before.
    again = tenant.connection.channel(2)
    again.call(f"{kind}.declare", **what)
    again.send(f"{kind}.declare", **what, arguments={argument: "amq.fanout"})
    again.expect_close(406, "inequivalent arg")


@pytest.mark.parametrize("refused", [0, 1, 5, 8])
def test_the_answers_of_a_connection_come_in_the_order_of_its_methods(
    gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any], refused: int
) -> None:
    """Methods that wait for the database, or for a name, and methods that need neither, sent in one piece on two channels; one of them is
    refused: what came before it on its channel has happened, what comes behind it has not, and the other channel goes on."""
    gate, broker = gate_and_broker
    channel, other = connect(broker).channel(), connect(broker).channel()
    second = channel.connection.channel(2)
    other.queue("held", durable=True)
    gate.may_pass.clear()
    other.send("queue.delete", queue="held")
    assert gate.entered.acquire(timeout=30)
    frames = [
        (1, "queue.declare", {"queue": "a", "durable": True}),
        (1, "queue.bind", {"queue": "a", "exchange": "amq.direct", "routing_key": "1"}),
        (2, "queue.declare", {"queue": "a", "passive": True}),
        (2, "queue.declare", {"queue": "b", "durable": True}),
        (1, "queue.declare", {"queue": "t"}),
        (1, "queue.declare", {"queue": "held", "durable": True}),
        (1, "queue.bind", {"queue": "held", "exchange": "amq.direct", "routing_key": "2"}),
        (2, "queue.delete", {"queue": "b"}),
        (1, "exchange.declare", {"exchange": "x", "type": "direct", "durable": True}),
        (1, "queue.delete", {"queue": "a"}),
        (2, "basic.get", {"queue": "a"}),
    ]
    if refused:
        frames[refused] = (1, "queue.bind", {"queue": "nobody", "exchange": "amq.direct"})
    channel.connection.send(b"".join(method_frame(number, name, **values) for number, name, values in frames))
    channel.nothing(0)
    gate.may_pass.set()
    for index, (number, name, _values) in enumerate(frames):
        asked = channel if number == 1 else second
        if index == refused and refused:
            asked.expect_close(404, "no queue 'nobody'")
        elif not refused or number == 2 or index < refused:
            if name == "basic.get":
                if refused:
                    asked.expect("basic.get-empty")
                else:
                    asked.expect_close(404, "no queue 'a'")
            else:
                asked.expect(f"{name}-ok")
    vhost = broker.node.broker.vhosts["/"]
    assert ("a" in vhost.queues) == bool(refused) and ("x" in vhost.exchanges) == (not refused) and ("t" in vhost.queues) == (refused != 1)
    assert "b" not in vhost.queues

"""A database that does not answer holds up whoever changes a definition, and nobody else."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.access.users import hash_password
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import method_frame, publish_bytes
from tests.support.slow_database import Gate, gate_and_broker

__all__ = ["gate_and_broker"]


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

"""Methods of one connection that wait for the database together: answers in order, one transaction for many, nothing that overtakes."""

from __future__ import annotations

import gc
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.core.memory_account import bytes_by_kind
from flintmq.session import underway
from flintmq.store.sql.failures import NotSaved
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until
from tests.support.rawamqp import method_frame, publish_bytes
from tests.support.slow_database import Gate, gate_and_broker

__all__ = ["gate_and_broker"]


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


def declares(names: list[str]) -> bytes:
    return b"".join(method_frame(1, "queue.declare", queue=name, durable=True) for name in names)


def transactions(broker: Broker) -> int:
    assert broker.node.store is not None
    return int(broker.node.store.definitions.transactions)


def test_what_a_client_declares_in_one_piece_is_saved_together(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    """The first declare is on its way when the others come; they are one transaction. So it is with binds."""
    gate, broker = gate_and_broker
    channel = connect(broker).channel()
    (handler,) = broker.node.broker.connections.values()
    names = [f"q{number}" for number in range(40)]
    binds = b"".join(method_frame(1, "queue.bind", queue=name, exchange="amq.direct", routing_key=name) for name in names)
    for frames, answer in ((declares(names), "queue.declare-ok"), (binds, "queue.bind-ok")):
        before = transactions(broker)
        gate.may_pass.clear()
        channel.connection.send(frames)
        assert gate.entered.acquire(timeout=30)
        # the loop reads on while the first one is at the gate
        wait_until(lambda: len(handler.verbs) == len(names), what="all of them are under way")
        channel.nothing(0)
        gate.may_pass.set()
        got = [channel.expect(answer) for _ in names]
        if answer == "queue.declare-ok":
            assert [one.queue for one in got] == names
        assert transactions(broker) - before <= 2
    assert broker.node.broker.vhosts["/"].binding_count == len(names)


def test_what_joins_has_a_bound(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "VERBS_MAX", 4)
    gate, broker = gate_and_broker
    gc.collect()
    channel = connect(broker).channel()
    wait_until(lambda: len(broker.node.broker.connections) == 1, what="the connection is there")
    (handler,) = broker.node.broker.connections.values()
    before = bytes_by_kind()["connections"]
    gate.may_pass.clear()
    names = [f"q{number}" for number in range(10)]
    channel.connection.send(declares(names))
    assert gate.entered.acquire(timeout=30)
    wait_until(lambda: len(handler.verbs) == 4, what="as many as may be are under way")
    assert bytes_by_kind()["connections"] - before == 4 * underway.JOINED_BYTES
    gate.may_pass.set()
    assert [channel.expect("queue.declare-ok").queue for _ in names] == names
    assert bytes_by_kind()["connections"] == before
    assert not underway.NONE, "connections share it: a verb in it would be everybody's"


def test_a_long_frame_does_not_join(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    gate, broker = gate_and_broker
    channel = connect(broker).channel()
    gate.may_pass.clear()
    long = method_frame(1, "queue.declare", queue="b", durable=True, arguments={"x-own": "x" * 5_000})
    channel.connection.send(declares(["a"]) + long)
    assert gate.entered.acquire(timeout=30)
    (handler,) = broker.node.broker.connections.values()
    wait_until(lambda: len(handler.verbs) == 1, what="the first is under way")  # it is at the gate before the loop has noted it
    channel.nothing()
    assert len(handler.verbs) == 1
    gate.may_pass.set()
    assert [channel.expect("queue.declare-ok").queue for _ in "ab"] == ["a", "b"]


def test_what_needs_an_answer_before_it_waits_for_it(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    """A bind without a name means the queue declared last; a publish finds the queue."""
    gate, broker = gate_and_broker
    channel = connect(broker).channel()
    channel.call("confirm.select")
    gate.may_pass.clear()
    channel.connection.send(
        declares(["a", "b"])
        + method_frame(1, "queue.bind", queue="", exchange="amq.direct", routing_key="k")
        + publish_bytes(1, b"m", exchange="amq.direct", routing_key="k", mandatory=True)
        + method_frame(1, "queue.declare", queue="b", passive=True)
    )
    assert gate.entered.acquire(timeout=30)
    channel.nothing(0)
    gate.may_pass.set()
    assert [channel.expect("queue.declare-ok").queue for _ in "ab"] == ["a", "b"]
    channel.expect("queue.bind-ok")
    assert channel.expect("queue.declare-ok").message_count == 1
    channel.expect("basic.ack")


def test_a_commit_that_waits_keeps_its_channel_in_order(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    """Declares of one channel are under way when a method of another channel has to wait for its own commit-ok."""
    gate, broker = gate_and_broker
    channel = connect(broker).channel()
    channel.queue("q", durable=True)
    second = channel.connection.channel(2)
    second.call("tx.select")
    gate.may_pass.clear()
    channel.connection.send(
        publish_bytes(2, b"m", routing_key="q", delivery_mode=2)
        + method_frame(2, "tx.commit")
        + declares(["a", "b"])
        + method_frame(2, "queue.declare", queue="c", durable=True)
        + declares(["d"])
        + method_frame(2, "queue.declare", queue="q", passive=True)
    )
    assert gate.entered.acquire(timeout=30)
    gate.may_pass.set()
    second.expect("tx.commit-ok")
    assert second.expect("queue.declare-ok").queue == "c"
    assert [channel.expect("queue.declare-ok").queue for _ in "abd"] == ["a", "b", "d"]
    assert second.expect("queue.declare-ok").message_count == 1


def test_what_the_database_refuses_is_told_in_its_turn(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    """The disk is full for one of several: those before it are answered, then the connection is closed for it."""
    gate, broker = gate_and_broker
    channel = connect(broker).channel()
    channel.connection.channel(2)
    driver = gate.driver

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(driver, name)

        def run(self, operations: Any) -> None:
            if any(parameters.get("name") == "full" for _name, parameters in operations):
                raise NotSaved("full")
            driver.run(operations)

    gate.driver = Full()
    gate.may_pass.clear()
    channel.connection.send(declares(["a", "full", "b"]) + method_frame(2, "queue.declare", queue="c", durable=True))
    assert gate.entered.acquire(timeout=30)
    gate.may_pass.set()
    assert channel.expect("queue.declare-ok").queue == "a"
    channel.connection.expect_close(541, "queue.declare: the definitions can't be saved")
    other = connect(broker).channel()
    for name in ("a", "b", "c"):  # the database has them
        other.queue(name, passive=True)
    assert "full" not in broker.node.broker.vhosts["/"].queues


def test_a_client_that_hangs_up_leaves_nothing_under_way(gate_and_broker: tuple[Gate, Broker], connect: Callable[..., Any]) -> None:
    """What was given to the database is there, and what the connection had in the account is not."""
    gate, broker = gate_and_broker
    gc.collect()  # what other tests left does not go in the midst of it
    other = connect(broker).channel()
    before = bytes_by_kind()["connections"]
    slow = connect(broker).channel()
    gate.may_pass.clear()
    slow.connection.send(declares(["a", "b", "c"]))
    assert gate.entered.acquire(timeout=30)
    wait_until(lambda: max(len(one.verbs) for one in broker.node.broker.connections.values()) == 3, what="three are under way")
    slow.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    slow.connection.drop()
    wait_until(lambda: len(broker.node.broker.connections) == 1, what="the broker saw the end of the connection")
    gate.may_pass.set()
    for name in "abc":
        assert other.queue(name, durable=True) == name
    wait_until(lambda: bytes_by_kind()["connections"] == before, what="the account is what it was")

"""examples/queue_kind.py: a kind of queue from outside the package, over the wire, beside a model, and over a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from examples.queue_kind import KEY, LENGTH, Latest, LatestList, main
from flintmq.protocol.v0_9_1.codec import encode_properties
from flintmq.queue import kinds
from flintmq.queue.outside import new_outside
from flintmq.testing.broker import Broker
from tests.support.effort import tries
from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["connect", "heap_of_others", "start"]

ARGUMENTS = {"x-queue-type": "latest", KEY: "k", LENGTH: 2}


@pytest.fixture
def registered() -> Iterator[None]:
    kinds.register(Latest())
    yield
    kinds.forget("latest")


class LatestMachine(RuleBasedStateMachine):
    """A dict is the model: the two newest available messages of each value stay."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = new_outside(1, 2, None, lambda entries: LatestList(entries, "k", 2))
        self.available: dict[int, Any] = {}
        self.held: dict[int, Any] = {}

    def cut(self, value: Any) -> None:
        mine = sorted(position for position, other in self.available.items() if other == value and value is not None)
        for position in mine[:-2]:
            del self.available[position]

    @rule(value=st.sampled_from(["a", "b", None]))
    def publish(self, value: str | None) -> None:
        header = encode_properties(1, {"headers": {} if value is None else {"k": value}})
        self.available[self.queue.publish(b"", b"q", header, b"x", 0, 0)] = value
        self.cut(value)

    @precondition(lambda self: self.available)
    @rule(number=st.integers(0, 9))
    def hold(self, number: int) -> None:
        position = sorted(self.available)[number % len(self.available)]
        assert self.queue.hold(position)
        self.held[position] = self.available.pop(position)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9), back=st.booleans())
    def settle(self, number: int, back: bool) -> None:
        position = sorted(self.held)[number % len(self.held)]
        value = self.held.pop(position)
        if not back:
            assert self.queue.settle_held(position)
            return
        assert self.queue.release_held(position, True)
        self.available[position] = value
        self.cut(value)

    def teardown(self) -> None:
        found, position = [], self.queue.next_available()
        while position:
            found.append(position)
            position = self.queue.next_available(position + 1)
        assert found == sorted(self.available)


TestLatest = LatestMachine.TestCase
TestLatest.settings = settings(
    max_examples=tries(100, 1_000), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_the_example_runs(capsys: pytest.CaptureFixture[str], heap_of_others: None) -> None:
    main()
    assert capsys.readouterr().out.split() == ["zinc", "5", "tin", "1", "oil", "3", "tin", "4", "oil", "6"]


def put(channel: Any, *pairs: tuple[Any, bytes]) -> None:
    for value, body in pairs:
        channel.basic_publish("", "q", body, pika.BasicProperties(headers={"k": value}, delivery_mode=2))


def drain(channel: Any) -> list[bytes]:
    got = []
    while (message := channel.basic_get("q", auto_ack=True))[0] is not None:
        got.append(message[2])
    return got


def test_pika_over_a_restart(registered: None, heap_of_others: None, tmp_path: Path) -> None:
    for turn in range(2):
        with Broker(data_dir=str(tmp_path)) as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True, arguments=ARGUMENTS)
            if turn == 0:
                put(channel, ("a", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"4"), ([1], b"5"))
            else:
                put(channel, ("a", b"6"), ("b", b"7"))
                assert drain(channel) == [b"3", b"4", b"5", b"6", b"7"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({KEY: "k"}, "has to be an integer, 1 to 1000"),
        ({LENGTH: 1}, "has to name a header"),
        ({KEY: "k", LENGTH: 1_001}, "has to be an integer"),
        ({KEY: "k", LENGTH: 1, "x-max-priority": 2}, "x-max-priority goes not together with it"),
        ({KEY: "k", LENGTH: 1, "qpid.group_header_key": "g"}, "qpid.group_header_key goes not together with it"),
    ],
)
def test_refused(registered: None, start: Callable[..., Any], connect: Callable[..., Any], arguments: dict[str, Any], text: str) -> None:
    ch = connect(start()).channel()
    ch.refuse(406, text, "queue.declare", queue="q", arguments={"x-queue-type": "latest", **arguments})

"""The check finds what a broker does wrong: a lost, doubled, swapped, damaged or misrouted message, a nack, a close; and only that."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from flintmq.cli.perf import perf
from tests.perf.fake_broker import Close, Delivery, FakeBroker, faithful

COUNT = 200
AT = 50  # the message that something happens to
LAST = COUNT - 1


def run(broker: FakeBroker, *arguments: str) -> tuple[int, dict[str, Any]]:
    # A short patience, because a lost message is known only when nothing comes any more.
    options = ["--json", "--port", str(broker.port), "--count", str(COUNT), "--size", "32", "--drain-timeout", "2.5", *arguments]
    done = CliRunner().invoke(perf, options, catch_exceptions=False)
    return done.exit_code, json.loads(done.output)


def lose(number: int, delivery: Delivery) -> list[Delivery]:
    return [] if number == AT else [delivery]


def double(number: int, delivery: Delivery) -> list[Delivery]:
    return [delivery, delivery] if number == AT else [delivery]


def announced_double(number: int, delivery: Delivery) -> list[Delivery]:
    return [delivery, replace(delivery, redelivered=True)] if number == AT else [delivery]


def announced_double_and_a_slow_last_one(number: int, delivery: Delivery) -> list[Delivery]:
    """As many deliveries as messages before the last message comes: a check that counts deliveries leaves without it."""
    if number == LAST:
        time.sleep(0.3)
    return announced_double(number, delivery)


def damage(number: int, delivery: Delivery) -> list[Delivery]:
    if number != AT:
        return [delivery]
    body = bytearray(delivery.body)
    body[5] ^= 1
    return [replace(delivery, body=bytes(body))]


def cut(number: int, delivery: Delivery) -> list[Delivery]:
    if number != AT:
        return [delivery]
    header = delivery.header[:4] + (8).to_bytes(8, "big") + delivery.header[12:]
    return [replace(delivery, header=header, body=delivery.body[:8])]


def misroute(number: int, delivery: Delivery) -> list[Delivery]:
    if number != AT:
        return [delivery]
    queue = delivery.queue[:-1] + ("1" if delivery.queue.endswith("0") else "0")
    return [replace(delivery, queue=queue)]


def swapped() -> Callable[[int, Delivery], list[Delivery]]:
    held: list[Delivery] = []

    def fault(number: int, delivery: Delivery) -> list[Delivery]:
        if number == AT:
            held.append(delivery)
            return []
        return [delivery, *([held.pop()] if held else [])]

    return fault


@pytest.mark.parametrize(
    ("fault", "arguments", "wrong"),
    [
        pytest.param(lose, (), {"lost": 1}, id="lost"),
        pytest.param(double, (), {"duplicates": 1}, id="twice"),
        pytest.param(swapped(), (), {"disordered": 1}, id="out of order"),
        pytest.param(damage, (), {"corrupt": 1, "lost": 1}, id="damaged"),
        pytest.param(cut, (), {"corrupt": 1, "lost": 1}, id="cut short"),
        pytest.param(misroute, ("--queues", "2"), {"misrouted": 1, "lost": 1}, id="wrong queue"),
    ],
)
def test_fault_is_found(fault: Callable[[int, Delivery], list[Delivery]], arguments: tuple[str, ...], wrong: dict[str, int]) -> None:
    with FakeBroker(fault) as broker:
        code, result = run(broker, *arguments)
    assert code == 65
    assert not result["ok"]
    faults = ("lost", "duplicates", "disordered", "corrupt", "misrouted", "nacked", "returned", "unconfirmed")
    assert {name: result[name] for name in faults if result[name]} == wrong


@pytest.mark.parametrize("fault", [faithful, announced_double])
def test_what_amqp_allows_is_no_fault(fault: Callable[[int, Delivery], list[Delivery]]) -> None:
    with FakeBroker(fault) as broker:
        code, result = run(broker, "--confirm", "16", "--ack", "1")
    assert code == 0
    assert result["ok"]
    assert result["confirmed"] == COUNT
    assert result["redelivered"] == (fault is announced_double)


def test_a_redelivery_does_not_stand_for_a_message_on_its_way() -> None:
    with FakeBroker(announced_double_and_a_slow_last_one) as broker:
        code, result = run(broker, "--ack", "1")
    assert (code, result["lost"], result["received"]) == (0, 0, COUNT + 1)


def test_nack_is_a_fault() -> None:
    with FakeBroker(nack=frozenset({AT})) as broker:
        code, result = run(broker, "--confirm", "16")
    assert code == 65
    assert (result["nacked"], result["confirmed"], result["unconfirmed"]) == (1, COUNT - 1, 0)


def test_close_by_the_broker_is_unavailable_and_tells_its_text() -> None:
    def fault(number: int, delivery: Delivery) -> list[Delivery]:
        if number == AT:
            raise Close
        return [delivery]

    with FakeBroker(fault) as broker:
        # A window: the publisher must still be there when the close comes.
        code, result = run(broker, "--confirm", "1")
    assert code == 69
    assert "on purpose" in result["error"]


def test_nobody_listens() -> None:
    with socket.socket() as taken:  # bound, and nobody listens: no other process can begin to
        taken.bind(("127.0.0.1", 0))
        done = CliRunner().invoke(perf, ["--json", "--port", str(taken.getsockname()[1])])
    assert done.exit_code == 69
    assert "can't connect" in json.loads(done.output)["error"]

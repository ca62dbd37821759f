"""Publishes to many queues that Python routes: they end a turn like others, and leave nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.session import publishing


def test_no_policy_pass_without_a_policy(start: Callable[..., Any], connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[object] = []
    monkeypatch.setattr(publishing, "after_publish", passes.append)
    queues = Limits().wide_route + 8
    publishes = Limits().wide_turn // queues + 5
    ch = connect(start()).channel()
    ch.call("exchange.declare", exchange="h", type="headers")
    for number in range(queues):
        ch.queue(f"q{number}")
        ch.call("queue.bind", queue=f"q{number}", exchange="h", routing_key="", arguments={})
    for _ in range(publishes):
        ch.publish(b"x", exchange="h", routing_key="")
    assert {ch.ready(f"q{number}") for number in range(queues)} == {publishes}
    assert passes == []

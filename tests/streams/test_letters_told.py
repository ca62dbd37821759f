"""Who publishes a dead letter tells the streams before the original ends: so it gets to the disk first (store/log/writer.py, I5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.broker.counters import Counters
from flintmq.broker.dead_letters import DeadLetters
from flintmq.clock import ManualClock
from flintmq.config import Limits
from tests.store_stream.rig import header


class Target:
    """A queue that takes letters, or refuses them."""

    def __init__(self, queue_id: int, calls: list[Any], takes: bool = True) -> None:
        self.queue_id = queue_id
        self.name = f"q{queue_id}"
        self.vhost = "/"
        self.policy = SimpleNamespace(overflow="drop-head", is_shared=False)
        self.core: Any = SimpleNamespace(
            ready_count=lambda: 0, ready_bytes=lambda: 0, max_length=1 << 30, max_bytes=1 << 30, ttl_ms=-1, publish=self.publish
        )
        self.calls = calls
        self.takes = takes

    def publish(self, *_: Any) -> bool:
        self.calls.append(("publish", self.queue_id))
        return self.takes


def letters_of(calls: list[Any], *targets: Target) -> DeadLetters:
    vhost = SimpleNamespace(exchanges={"dlx"}, route_keys=lambda *_: list(targets))
    state: Any = SimpleNamespace(
        limited_queues={},
        counters=Counters(),
        routes=SimpleNamespace(cache=lambda *_: SimpleNamespace(cacheable=True)),
        vhosts={"/": vhost},
        clock=ManualClock(wall_ms=1_000),
        limits=Limits(),
        streams=SimpleNamespace(letter=lambda queue_id: calls.append(("letter", queue_id))),
    )
    return DeadLetters(state)


def dying() -> Any:
    policy = SimpleNamespace(dead_letter_exchange="dlx", dead_letter_routing_key=None, is_elsewhere=True)
    return SimpleNamespace(name="dying", vhost="/", policy=policy)


@pytest.mark.parametrize("takes", [True, False])
def test_each_stream_is_told_once_its_letter_is_appended(takes: bool) -> None:
    """Told behind the append and before the caller goes on; not for a letter that was refused."""
    calls: list[Any] = []
    letters_of(calls, Target(3, calls, takes), Target(4, calls)).publish(dying(), (b"ex", b"key", header(b"body"), b"body"), "rejected")
    expected = [("publish", 3), ("letter", 3), ("publish", 4), ("letter", 4)]
    assert calls == [one for one in expected if takes or one != ("letter", 3)]


def test_letters_of_a_transaction_are_not_appended_yet() -> None:
    """A transaction holds them until it takes effect: there is nothing to tell now."""
    calls: list[Any] = []
    transaction: Any = SimpleNamespace(hold=lambda core, *rest: core.publish(*rest), limited=[])
    letters_of(calls, Target(3, calls)).publish(dying(), (b"ex", b"key", header(b"body"), b"body"), "rejected", transaction)
    assert calls == [("publish", 3)]

"""A ticket is durable only with its message, also when its stream stops waiting for a container while the writer is in a pass."""

from __future__ import annotations

from collections.abc import Callable

from tests.store_stream.rig import header
from tests.store_stream.test_stream_store import BODY, Node


class During:
    """A clock for SimDisk that calls a function within the first call that takes time."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function: Callable[[], object] | None = function

    def advance(self, *, ms: int) -> None:
        function, self.function = self.function, None
        if function is not None:
            function()


def test_a_stream_that_goes_on_during_a_pass_is_not_counted_as_written() -> None:
    node = Node({3, 4})
    one, two = node.streams.open(3), node.streams.open(4)
    node.append(two)
    node.pump()
    _, first = one.append(b"ex", b"key", header(BODY), BODY)
    node.store.flush()
    assert one.starved
    node.append(two)
    node.disk.latency_ms["sync"] = 1
    node.disk.clock = During(one.prepare)
    node.store.flush()
    assert node.disk.clock.function is None and not one.starved
    node.disk.clock = None
    assert one.visible == 1 or node.streams.durable_ticket < first
    node.pump()
    assert one.visible == 1 and two.visible == 2 and node.streams.durable_ticket > first
    node.store.close()

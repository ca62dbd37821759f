"""Dead-lettering, the pure part: why messages die, and which queues their letters must not go back to.

in: the deaths of a letter (protocol/v0_9_1/death). out: the queues that it goes to, and those that would close a cycle.

A letter that lost some of its deaths, and has no reject among those that are left, counts as one that goes in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flintmq.protocol.v0_9_1.death import is_cycle, queue_hash
from flintmq.slotted import slotted

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"


@slotted(frozen=True)
class Deaths:
    """An x-death, most recent first. items: an array without its length; cut: it has lost its oldest tables."""

    items: bytes
    cut: bool = False

    def is_cycle(self, queue: bytes) -> bool:
        """Whether going (back) to `queue` would close a loop without a client in it: it died there before, and was not rejected since."""
        return is_cycle(self.items, self.cut, queue_hash(queue))


def without_cycles(queues: Iterable[Any], deaths: Deaths, reason: str) -> tuple[list[Any], list[Any]]:
    """(queues to enqueue to, queues that would close a cycle). Args: queues: objects with a name; deaths: of the letter."""
    if reason == REJECTED:
        return list(queues), []
    good: list[Any] = []
    cyclic: list[Any] = []
    for queue in queues:
        (cyclic if deaths.is_cycle(queue.name.encode("utf-8", "surrogateescape")) else good).append(queue)
    return good, cyclic

"""Floods of dead letters for bench.others: queues that fill each other, in a ring and in an open chain, at-most-once and at-least-once.

in: a channel. out: rows of bench.others.ROWS. What drops heads is dead-lettered at-most-once; at-least-once messages expire, on quorum
queues, which is where RabbitMQ has that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.rawamqp import RawChannel
from tests.support.rawcodec import publish_bytes

# queues of a ring and of a chain, and messages
RING = 300
CHAIN = 100
MESSAGES = 2_000
# milliseconds until what is published at-least-once dies, and holds (in each queue) of it
TTL_MS = 500


def _arguments(following: str, surely: bool, queues: int) -> dict[str, Any]:
    leads = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following}
    if not surely:
        return {**leads, "x-max-length": 1}
    room = -(-MESSAGES // queues)
    rule = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return {**leads, **rule, "x-max-length": room, "x-message-ttl": TTL_MS}


def _full(channel: RawChannel, count: int, ring: bool, surely: bool) -> bytes:
    channel.queue("others-end", durable=True)
    for number in range(count):
        following = f"others-{(number + 1) % count}" if ring or number + 1 < count else "others-end"
        channel.queue(f"others-{number}", durable=True, arguments=_arguments(following, surely, count))
    properties = {"delivery_mode": 2} if surely else {}
    return b"".join(publish_bytes(1, b"", routing_key=f"others-{number % count}", **properties) for number in range(MESSAGES))


# name -> title and setup of a row that sends once, with a store
LETTERS: dict[str, tuple[str, Callable[[RawChannel], bytes]]] = {
    "ring": (f"ring of {RING} full queues", partial(_full, count=RING, ring=True, surely=False)),
    "chain": (f"chain of {CHAIN} full queues", partial(_full, count=CHAIN, ring=False, surely=False)),
    "ring-surely": (f"ring of {RING}, at-least-once", partial(_full, count=RING, ring=True, surely=True)),
    "chain-surely": (f"chain of {CHAIN}, at-least-once", partial(_full, count=CHAIN, ring=False, surely=True)),
}

"""Queues whose messages are for one consumer alone.

in: a queue as it is now. out: the reason, for people.
"""

from __future__ import annotations

from typing import Any


def exclusive_use(queue: Any) -> str:
    """Why nobody else may take from a queue now: an exclusive consumer, or the active one of x-single-active-consumer. "": one may."""
    if queue.core.exclusive_use():
        return "an exclusive consumer"
    if queue.policy.single_active_consumer and queue.core.consumer_count():
        return "x-single-active-consumer, and a consumer"
    return ""

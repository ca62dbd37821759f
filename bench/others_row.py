"""A row of bench.others, and what its setups share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.rawamqp import RawChannel

HOST = "127.0.0.1"
# bytes given to the flooding socket at once, about
PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """setup: before the clock; returns what is sent, again and again (`once` False) or one time. durable: the broker keeps a store.
    begin: is called when that is sent."""

    title: str
    setup: Callable[[RawChannel], bytes]
    once: bool = False
    durable: bool = False
    begin: Callable[[], object] | None = None


def repeat(frames: bytes) -> bytes:
    """Whole copies of some frames, about PIECE bytes of them."""
    return frames * max(1, PIECE // len(frames))

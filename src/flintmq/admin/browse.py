"""Looks at messages of a queue or stream without taking them: a page of them, or those that meet conditions.

in: an authorized queue, a position, bounds. out: messages as JSON has them, and where the next look goes on.

B1  Nothing is acquired, flagged or counted: the order, the `redelivered` flag and the consumers of the queue know nothing of a look.
B2  A look shows what can be had now. Messages in consumers' hands, and those taken meanwhile, are left out.
B3  Messages are read by a thread, which may read the disk, some at a time: between two slices others have their turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flintmq.admin.filters import Filter
from flintmq.admin.json_out import Body, Members
from flintmq.admin.messages import Part, properties_of
from flintmq.config import Limits
from flintmq.core.content_view import ContentView
from flintmq.errors import StoreError


def shown(name: bytes) -> str:
    return name.decode("utf-8", "replace")


class Source:
    """Messages of a queue by position; of a stream the position is its offset and 1. Any thread that may wait for the disk."""

    def __init__(self, broker: Any, queue: Any) -> None:
        streams = broker.streams
        self._core = queue.core
        self._shared: Any = broker.shared if queue.policy.is_shared else None
        self._queue_id = queue.queue_id
        self._cold: Mapping[int, ContentView] = {}  # of a shared queue: those beside the one that was read last
        self._stream = streams.get(queue.queue_id) if queue.policy.is_stream and streams is not None else None

    def after(self, position: int) -> int:
        """The first position at or after this one, 0: there is none."""
        if self._stream is None:
            return int(self._core.next_available(position))
        offset = max(position - 1, self._stream.first_offset)
        return offset + 1 if offset < self._stream.next_offset else 0

    def message(self, position: int) -> ContentView | None:
        """None: it is gone, or can't be read."""
        try:
            if self._stream is not None:
                return self._stream.view(position - 1)  # type: ignore[no-any-return]
            return self._core.view_at(position)  # type: ignore[no-any-return]
        except (KeyError, StoreError):
            return None if self._shared is None else self._from_engine(position)

    def _from_engine(self, position: int) -> ContentView | None:
        """A message of a shared queue that is not in memory."""
        if position not in self._cold:
            self._cold = self._shared.read_row(self._queue_id, position)
        return self._cold.get(position)

    def facts(self, position: int) -> dict[str, Any]:
        if self._stream is not None:
            return {"offset": position - 1}
        facts = self._core.entry_facts(position)
        return {} if facts is None else {"deliveries": facts[1], "expires_at_ms": facts[2] or None}


@dataclass(slots=True)
class Look:
    """One look. Args: source; limits; show: a message as JSON has it; position; most: messages that are shown; bytes_max: of messages that
    are read; looks_max: messages that are looked at; until: monotonic seconds; body_bytes: of a body that are shown; wanted: None: all."""

    source: Source
    limits: Limits
    show: Callable[[int, Part], Members]
    position: int
    most: int
    bytes_max: int
    looks_max: int
    until: float
    body_bytes: int
    wanted: Filter | None = None
    looked: int = 0
    unread: int = 0
    size: int = 0
    answer_bytes: int = 0  # bytes that the answer has of them, about
    found: list[Members] = field(default_factory=list)
    ended: bool = False

    async def run(self) -> dict[str, Any]:
        """The answer's `messages`, `looked`, `unreadable` and `next` (null: that was all)."""
        while not self.ended and not self._over():
            await asyncio.to_thread(self._slice)
        return {
            "messages": self.found,
            "looked": self.looked,
            "unreadable": self.unread,
            "next": None if self.ended else str(self.position),
        }

    def _over(self) -> bool:
        return (
            len(self.found) >= self.most
            or self.size >= self.bytes_max
            or self.answer_bytes >= self.limits.peek_bytes_max
            or self.looked >= self.looks_max
            or (self.looked > 0 and time.monotonic() > self.until)
        )

    def _slice(self) -> None:
        for _ in range(self.limits.search_slice):
            if self._over():
                return
            position = self.source.after(self.position)
            if not position:
                self.ended = True
                return
            self.position = position + 1
            self.looked += 1
            message = self.source.message(position)
            if message is None:
                self.unread += 1
                continue
            self.size += message.size
            if self.wanted is None or self.wanted.matches(message):
                self.answer_bytes += len(message.header) + min(message.body_bytes, self.body_bytes)
                self.found.append(self.show(position, Part(message, self.body_bytes)))


def shower(source: Source, limits: Limits, encoding: str, body_bytes: int) -> Callable[[int, Part], Members]:
    """How a message looks in an answer."""
    return partial(_show, source, limits, encoding, body_bytes)


def _show(source: Source, limits: Limits, encoding: str, body_bytes: int, position: int, message: Part) -> Members:
    return Members(_members(source.facts(position), limits, Body(message, encoding, body_bytes), body_bytes, position, message))


def _members(facts: dict[str, Any], limits: Limits, body: Body, most: int, position: int, message: Part) -> Iterator[tuple[str, Any]]:
    yield "position", str(position)  # JavaScript's numbers end at 2**53
    yield from facts.items()
    yield "exchange", shown(message.exchange)
    yield "routing_key", shown(message.routing_key)
    yield "properties", properties_of(message.header, limits.table_depth_max, limits.table_fields_max)
    yield from body.look()
    yield "body", body
    yield "encoding", body.kind
    yield "body_bytes", message.body_bytes
    yield "truncated", message.body_bytes > most

"""Messages that an operator moves, sends anew, or removes.

in: an authorized queue, positions or conditions, where they go. out: messages in their new places, on disk when they are to be; then the
originals end.

V1  The original ends after its copy is where it belongs, and on disk. The log gets the end of a logged original with the last place of
    its copy, in one commit block: a crash leaves one of the two. Where that queue does not log, a crash in between leaves both, never none.
V2  What is refused, or goes nowhere, stays where it is, not flagged: the move ends there and says why.
V3  The broker holds a message while it is moved, so that nobody else is given it; between two slices others have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from flintmq.admin.browse import Source
from flintmq.admin.filters import Filter
from flintmq.admin.http_refusals import HttpError, bad, busy
from flintmq.admin.publish import durable, expiry_on, is_full
from flintmq.arguments import is_whole
from flintmq.broker.dead_letters import Original
from flintmq.broker.schedules import without_bcc
from flintmq.core.content import CONTENT_EXPIRES, CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY, bytes_mapped
from flintmq.core.content_view import ContentView
from flintmq.errors import PeerError
from flintmq.guard import guarded
from flintmq.ports import DequeueReason
from flintmq.protocol.v0_9_1.codec import decode_properties
from flintmq.pulls.requests import place, publishers_wait
from flintmq.routing.message import keys_of
from flintmq.vhost.arguments import EXPIRY_MS_MAX

# exchange, routing key, header, body
Message = tuple[bytes, bytes, bytes, bytes]
# until a copy is there for good: (LSN, ticket), or whether the engine has it
Wait = tuple[int, int] | Future[bool]


class Stay(Exception):
    """A message stays where it is, and the move ends. `str`: why."""


@dataclass(slots=True)
class Goal:
    """Where messages go. Args: vhost; exchange; key: None: each keeps its own; allow: asks for permission for routing keys."""

    parts: Any
    vhost: Any
    exchange: str
    key: bytes | None
    allow: Callable[[list[bytes]], None]

    def put(self, message: Message, origin: Any, original: Original | None = None) -> list[Wait]:
        """Puts a message on the queues of its route: a wait for each. Args: origin: a queue that it must not come back to; original:
        the entry that ends (V1). Raises: Stay, PeerError."""
        broker, limits = self.parts.broker, self.parts.broker.limits
        if publishers_wait(broker.log) or bytes_mapped() > self.parts.memory_limit:
            raise Stay("the broker is low on memory or disk: publishers are blocked")
        _, own, header, body = message
        key = own if self.key is None else self.key
        try:
            properties = decode_properties(header, limits.table_depth_max, limits.table_fields_max)[1]
        except PeerError:
            properties = {}
        headers: Any = properties.get("headers") or {}
        self.vhost.check_publish(self.exchange)
        queues = self.vhost.route_keys(self.exchange, keys_of(key, headers, self.allow), headers)
        if "BCC" in headers:
            header = without_bcc(header) or header
        if not queues:
            raise Stay(f"exchange '{self.exchange}' leads to no queue with the routing key '{key.decode('utf-8', 'replace')[:100]}'")
        if origin is not None and origin in queues:
            raise Stay(f"it would come back to queue '{origin.name}'")
        full = next((queue for queue in queues if is_full(queue, len(body))), None)
        if full is not None:
            raise Stay(f"queue '{full.name}' is full and refuses messages")
        flags, priority, expiration_ms = facts_of(properties)
        name, waits = self.exchange.encode("utf-8", "surrogateescape"), list[Wait]()
        fields = name, key, header, body, flags, priority
        shared = [queue for queue in queues if queue.policy.is_shared]
        for queue in queues:
            expires_at = expiry_on(queue.core, expiration_ms, broker.clock.wall_ms())
            if queue.policy.is_shared:
                waits.append(to_engine(broker, queue, fields, expires_at))
                continue
            # The original's end stands beside the last copy in the log, unless the engine has a say in it.
            ends = original if queue is queues[-1] and not shared else None
            position, lsn, ticket = place(queue.core, broker.log, fields, expires_at, ends)
            if position:
                waits.append((lsn, ticket))
                broker.queue_limits.settle(queue)
        if not waits:
            raise Stay("its queues were deleted")
        return waits


def to_engine(broker: Any, queue: Any, fields: tuple[bytes, bytes, bytes, bytes, int, int], expires_at_ms: int) -> Future[bool]:
    """Publishes to a shared queue; whether the engine has the message. Any thread."""
    taken: Future[bool] = Future()
    if not broker.shared.publish(queue.core, fields, expires_at_ms, taken.set_result):
        taken.set_result(False)
    return taken


async def kept(parts: Any, waits: Sequence[Wait]) -> None:
    """Returns when all copies of messages are there for good. Raises: Stay: the engine does not take one; HttpError 503."""
    for wait in waits:
        if isinstance(wait, Future):
            if not await asyncio.wrap_future(wait):
                raise Stay("the engine of shared queues does not take it; a copy may be there all the same")
        else:
            await durable(parts, *wait)


def facts_of(properties: Any) -> tuple[int, int, int | None]:
    """(flags of core.content, priority, expiration in milliseconds or None) of a message's properties."""
    flags = CONTENT_HEADERS if properties.get("headers") else 0
    if properties.get("delivery_mode") == 2:
        flags |= CONTENT_PERSISTENT
    priority = properties.get("priority")
    if isinstance(priority, int):
        flags |= CONTENT_PRIORITY
    text = properties.get("expiration")
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= EXPIRY_MS_MAX:
        return flags | CONTENT_EXPIRES, priority or 0, int(text)
    return flags, priority or 0, None


@dataclass(slots=True)
class Move:
    """One move. Args: goal; queue: where they are; positions: of those that go, in order; None: from `start` on those that `wanted` wants;
    most: messages that go; looks_max: that are looked at."""

    parts: Any
    goal: Goal
    queue: Any
    positions: Sequence[int] | None
    start: int
    most: int
    looks_max: int
    wanted: Filter | None = None
    moved: int = 0
    looked: int = 0
    size: int = 0
    stays: str = ""
    ended: bool = False
    next: int = 0
    missing: int = 0
    # positions, and whether the log has no more of that one: it ends, whatever follows
    _held: list[tuple[int, bool]] = field(default_factory=list)
    _waits: list[Wait] = field(default_factory=list)

    async def run(self) -> dict[str, Any]:
        """The answer. Raises: HttpError 503."""
        self.next = self.start
        while not self._over():
            await asyncio.shield(asyncio.ensure_future(self._step()))
        return {
            "moved": self.moved,
            "looked": self.looked,
            "missing": self.missing,
            "stopped": self.stays or None,
            "next": None if self.ended or self.positions is not None else str(self.next),
        }

    def _over(self) -> bool:
        limits = self.parts.broker.limits
        many = self.moved >= self.most or self.looked >= self.looks_max or self.size >= limits.search_bytes_max
        return bool(self.stays) or self.ended or many

    async def _step(self) -> None:
        """A slice, its end on disk, the ends of the originals. Not cancelled in between: the client may leave, the messages must not."""
        try:
            await asyncio.to_thread(self._slice)
            await kept(self.parts, self._waits)
        except Stay as stay:
            self.stays = str(stay)
            await asyncio.to_thread(self._end, False)
            return
        except BaseException:
            await asyncio.to_thread(self._end, False)
            raise
        await asyncio.to_thread(self._end, True)

    def _end(self, moved: bool) -> None:
        for position, ended in self._held:
            guarded("messages that are moved", f"queue {self.queue.name!r}", settle, self.queue.core, position, moved or ended)
        if moved:
            self.moved += len(self._held)
        self._held.clear()
        self._waits.clear()

    def _slice(self) -> None:
        source = Source(self.parts.broker, self.queue)
        for _ in range(self.parts.broker.limits.search_slice):
            if self._over() or self.moved + len(self._held) >= self.most:
                return
            position = self._following(source)
            if not position:
                self.ended = True
                return
            self.looked += 1
            message = source.message(position)
            if message is None:
                self.missing += 1
            elif self.wanted is None or self.wanted.matches(message):
                self._one(position, whole(message))
                if self.stays and self.positions is None:
                    self.next = position

    def _following(self, source: Source) -> int:
        if self.positions is not None:
            return self.positions[self.looked] if self.looked < len(self.positions) else 0
        position = source.after(self.next)
        self.next = position + 1 if position else self.next
        return position

    def _one(self, position: int, message: Message) -> None:
        """Holds a message and sends it; what does not go is given back."""
        core, goes = self.queue.core, False
        if not core.hold(position):
            self.missing += 1
            return
        try:
            self._waits += self.goal.put(message, self.queue, original(self.queue, position))
            self.size += len(message[3])
            goes = True
        except Stay as stay:
            self.stays = str(stay)
        except PeerError as error:
            self.stays = error.text
        finally:
            if goes:
                self._held.append((position, is_ended(self.queue, position)))
            else:
                core.release_held(position)


def original(queue: Any, position: int) -> Original | None:
    """A held entry that leaves by a move; None: it is none of the log."""
    return None if queue.policy.is_shared else (queue.core, position, 0, DequeueReason.MOVE, 0)


def is_ended(queue: Any, position: int) -> bool:
    """Whether the log has no more of a held entry."""
    return not queue.policy.is_shared and not queue.core.message_id_at(position)


def settle(core: Any, position: int, moved: bool) -> None:
    """Ends a held message, or gives it back to its place."""
    if moved:
        core.settle_held(position, DequeueReason.MOVE, False)
    else:
        core.release_held(position)


def whole(view: ContentView) -> Message:
    """A copy, to be sent anew."""
    return view.exchange, view.routing_key, view.header, view.body()


def held_message(source: Source, queue: Any, position: int) -> Message:
    """Holds a message for the broker, and reads it. Raises: HttpError 409, 503."""
    if not queue.core.hold(position):
        raise HttpError(409, "gone", "the message is not there any more, or in a consumer's hands", "look at the queue again")
    message = source.message(position)
    if message is None:
        queue.core.release_held(position)
        raise busy("the message can't be read now", "try again")
    return whole(message)


async def send_anew(parts: Any, goal: Goal, queue: Any, position: int, change: Callable[[Message], Message], remove: bool) -> None:
    """Sends a message anew, changed; `remove`: the original ends then. Raises: HttpError 409, 503."""

    async def work() -> None:
        source = Source(parts.broker, queue)
        if remove:
            message = await asyncio.to_thread(held_message, source, queue, position)
        else:
            read_message = await asyncio.to_thread(source.message, position)
            if read_message is None:
                raise HttpError(409, "gone", "the message is not there any more", "look at the queue again")
            message = whole(read_message)
        done = False
        try:
            waits = goal.put(change(message), None, original(queue, position) if remove else None)
            done = remove and is_ended(queue, position)  # it ends, whatever follows
            await kept(parts, waits)
            done = True
        except Stay as stay:
            raise HttpError(409, "not_sent", f"the message stays where it is: {stay}", "change where it goes, or make room") from None
        finally:
            if remove:
                settle(queue.core, position, done)

    await asyncio.shield(asyncio.ensure_future(work()))


def remove_some(queue: Any, positions: Sequence[int]) -> int:
    """Ends messages, as a purge does. Returns how many were there. Any thread."""
    count = 0
    for position in positions:
        if queue.core.hold(position):
            count += bool(queue.core.settle_held(position, DequeueReason.PURGE, False))
    return count


def position_of(given: Any) -> int:
    """A position in a JSON body: a number, or its digits as a text. Raises: HttpError 400."""
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 20:
        given = int(given)
    if not is_whole(given, 1, 2**64 - 1):
        raise bad("a position is a whole number above 0, or its digits as a text")
    return given

"""The ways of a block's messages: routes as for a publish; a message that is unroutable or over a limit is counted or sent elsewhere.

in: a block of staged messages, its routes, the routing table as it is now. out: the block with routes and destinations as
TransactionCoordinator.enqueue_block takes them, and counts.

B1  A route is resolved once per distinct (exchange, key) of a block, unless an exchange on its way looks at headers.
B2  A message is counted unroutable, or over a limit, at most once each. A count under `fail` makes the whole stage fail.
B3  The bytes of a message change only where AMQP says so: a BCC header is not shown to consumers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flintmq.broker.routes import REPLY_TO
from flintmq.core.content import FRAME_OVERHEAD
from flintmq.dataplane.shared import Caller, Plane, refusal_of
from flintmq.dataplane.wire import Buffer, Refused
from flintmq.errors import PeerError
from flintmq.ports import Verb
from flintmq.protocol.v0_9_1.codec import decode_properties, encode_properties
from flintmq.routing.message import MessageHeaders, keys_of
from flintmq.routing.route_cache import DEST_BLOCK, DEST_REJECT_OVER
from flintmq.transactions.bulk import BLOCK_ENTRY

# property flags of a content header (AMQP 0-9-1, 4.2.6.1 and class basic)
_HEADERS, _REPLY_TO, _USER_ID = 0x2000, 0x0200, 0x0010
_LOOKED_AT = _HEADERS | _REPLY_TO | _USER_ID
# where they stand in the header payload; its least size
_FLAGS_AT, _HEADER_MIN = 12, 14
_ROUTE = struct.Struct("<I")
_ROUTE_AT = 4
FAIL, DROP = "fail", "drop"
# queues that refuse what is above their limit: those of x-overflow block have no publisher here that could wait
REFUSING = DEST_REJECT_OVER | DEST_BLOCK
# of a queue that a stage is not for
_SHARED, _WITH = "a shared one, and the stage is for others", "write to shared queues with `shared`, in Spark option 'cluster'"
_ORDINARY, _WITHOUT = "none of the shared ones, and the stage is for these", "write to others without `shared`, in Spark option 'cluster'"

Route = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What becomes of a message that can't go where it should: FAIL, DROP, or an exchange it is published to instead."""

    action: str = FAIL
    exchange: str = ""


@dataclass(slots=True)
class Counts:
    """What a stage has. `first`: the first message that failed, for people."""

    count: int = 0
    bytes: int = 0
    unroutable: int = 0
    over_limit: int = 0
    failed: int = 0
    first: str = ""
    # queue id -> [messages, bytes] that this stage puts into a queue that refuses when it is full: they count against its limits
    staged: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Way:
    """A route of a block. `resolved`: no headers decide; `plain`: no limits either."""

    exchange: str
    key: bytes
    resolved: bool
    plain: bool
    queues: list[Any]
    redirected: bool = False  # it is unroutable, and `queues` are those of the exchange that takes such messages
    messages: int = 0


class Router:
    """Routes of one stage. Args: unroutable, over_limit: what becomes of such messages; shared: the stage writes to shared queues, and to
    no others.

    Each block is its caller's: a stage that goes on with another token has the rights of that one.
    """

    def __init__(self, plane: Plane, caller: Caller, unroutable: Elsewhere, over_limit: Elsewhere, shared: bool = False) -> None:
        self._plane = plane
        self._shared = shared
        self._caller = caller
        self._unroutable = unroutable
        self._over_limit = over_limit
        self._vhost = plane.broker.vhosts[caller.vhost]
        # A content header is never cut into frames: what is longer could reach no AMQP client.
        self._header_max = plane.limits.frame_size_max - FRAME_OVERHEAD

    def place(self, caller: Caller, block: Buffer, routes: Sequence[Route], counts: Counts) -> tuple[Buffer, list[Route], list[list[int]]]:
        """(block, its routes, queue ids by route). Changes `counts`. Raises: Refused; then the stage can't go on."""
        self._caller = caller
        ways = [self._way(exchange, key) for exchange, key in routes]
        changed: list[tuple[int, int]] = []  # (offset of an entry, its route from now on)
        replaced: list[tuple[int, int, bytes]] = []  # (from, to, what stands there instead)
        extra: dict[tuple[int, tuple[int, ...]], int] = {}
        for offset, end, route, header_len in _entries(block, len(ways)):
            if header_len > self._header_max:
                text = f"a message's properties take {header_len} bytes: a frame of AMQP holds {self._header_max}, put it into the body"
                raise Refused("BAD_ARGUMENT", text)
            way = ways[route]
            start = offset + BLOCK_ENTRY.size
            body_len = end - start - header_len
            counts.count += 1
            counts.bytes += body_len
            flags = (block[start + _FLAGS_AT] << 8 | block[start + _FLAGS_AT + 1]) & _LOOKED_AT
            header = bytes(block[start : start + header_len]) if flags else b""
            if flags == _HEADERS and b"CC" not in header and way.resolved:
                flags = 0  # headers that nobody asks about
            if way.plain and not flags:
                way.messages += 1
                continue
            queues, keys, new_header = self._look(way, bytes(block[start : start + header_len]), flags, counts)
            queues = self._within_limits(way, keys, queues, body_len, counts)
            index = extra.setdefault((route, tuple(queue.queue_id for queue in queues)), len(ways) + len(extra))
            if new_header is None:
                changed.append((offset, index))
            else:
                replaced.append((offset, end + (-(end - start) % 8), _entry(block, offset, end, header_len, index, new_header)))
        for way in ways:
            if way.plain and not way.queues:
                self._unrouted(way, way.messages, counts)
            elif way.plain and way.redirected:
                counts.unroutable += way.messages
        destinations = [[queue.queue_id for queue in way.queues] for way in ways]
        destinations += [list(destination) for _, destination in extra]
        all_routes = [*routes, *(routes[route] for route, _ in extra)]
        return _rewritten(block, changed, replaced), all_routes, destinations

    # --- routes ---------------------------------------------------------------------------------------------------------

    def _way(self, exchange: bytes, key: bytes) -> _Way:
        name = exchange.decode("utf-8", "surrogateescape")
        self._may_publish(name, [key])
        if not self._vhost.route_is_cacheable(name):
            return _Way(name, key, False, False, [])
        queues = self._queues(name, [key], {})
        redirected = not queues
        if redirected:
            queues = self._other(self._unroutable, [key], {})
        limited = any(queue.core.destination_flags & REFUSING for queue in queues)
        return _Way(name, key, True, not limited, queues, redirected and bool(queues))

    def _may_publish(self, exchange: str, keys: Sequence[bytes]) -> None:
        self._plane.authorize(self._caller, Verb.WRITE, "exchange", [exchange])
        self._plane.authorize_topic(self._caller, exchange, keys)
        try:
            self._vhost.check_publish(exchange)
        except PeerError as error:
            raise refusal_of(error) from None

    def _queues(self, exchange: str, keys: Sequence[bytes], headers: dict[str, object]) -> list[Any]:
        """Queues of the broker; a reply address is none of them."""
        broker = self._plane.broker
        queues: dict[int, Any] = {}
        try:
            for handle in broker.routes.cores_of_keys(self._vhost, exchange, keys, headers):
                queue = broker.queues.get(handle.queue_id)
                if queue is not None and queue.policy.is_shared is not self._shared:
                    text, hint = (_ORDINARY, _WITHOUT) if self._shared else (_SHARED, _WITH)
                    raise Refused("BAD_ARGUMENT", f"queue '{queue.name}' in vhost '{queue.vhost}' is {text}: {hint}")
                if queue is not None:
                    queues[queue.queue_id] = queue
        except PeerError as error:
            raise refusal_of(error) from None
        return list(queues.values())

    def _other(self, elsewhere: Elsewhere, keys: Sequence[bytes], headers: dict[str, object]) -> list[Any]:
        if not elsewhere.exchange:
            return []
        self._may_publish(elsewhere.exchange, keys)
        return self._queues(elsewhere.exchange, keys, headers)

    def _look(self, way: _Way, header: bytes, flags: int, counts: Counts) -> tuple[list[Any], list[bytes], bytes | None]:
        """(queues, routing keys, the header when it must change) of a message whose properties or whose queues' limits decide."""
        if not flags and way.resolved:
            return self._routed(way, [way.key], {}, counts), [way.key], None
        limits = self._plane.limits
        try:
            size, properties = decode_properties(header, limits.table_depth_max, limits.table_fields_max)
            table = properties.get("headers")
            headers = MessageHeaders(table if isinstance(table, dict) else {}, lambda: properties)
            keys = keys_of(way.key, headers, partial(self._plane.authorize_topic, self._caller, way.exchange))
        except PeerError as error:
            raise refusal_of(error) from None
        user_id = properties.get("user_id")
        if user_id is not None and user_id != self._caller.user:
            raise Refused("BAD_ARGUMENT", f"user_id property set to '{user_id}' but authenticated user was '{self._caller.user}'")
        if properties.get("reply_to") == REPLY_TO:
            raise Refused("BAD_ARGUMENT", "reply_to: a stage has no channel that replies could come to")
        new_header = None
        if "BCC" in headers:
            properties["headers"] = {name: value for name, value in headers.items() if name != "BCC"}
            new_header = encode_properties(size, properties)
        return self._routed(way, keys, headers, counts), keys, new_header

    def _routed(self, way: _Way, keys: list[bytes], headers: dict[str, object], counts: Counts) -> list[Any]:
        if way.resolved and len(keys) == 1:
            counts.unroutable += way.redirected
            return way.queues
        queues = self._queues(way.exchange, keys, headers)
        if not queues:
            queues = self._other(self._unroutable, keys, headers)
            counts.unroutable += bool(queues)
        return queues

    # --- counting -------------------------------------------------------------------------------------------------------

    def _unrouted(self, way: _Way, messages: int, counts: Counts) -> None:
        counts.unroutable += messages
        if self._unroutable.action != DROP:
            counts.failed += messages
            counts.first = (
                counts.first or f"exchange '{way.exchange}' with routing key '{way.key.decode('utf-8', 'replace')}' leads to no queue"
            )

    def _within_limits(self, way: _Way, keys: list[bytes], queues: list[Any], body_len: int, counts: Counts) -> list[Any]:
        """Without queues that refuse more (x-overflow reject-publish): the message goes to the others, and where over_limit says."""
        if not queues:
            self._unrouted(way, 1, counts)
            return []
        full = [queue for queue in queues if self._is_full(queue, body_len, counts)]
        if not full:
            return queues
        counts.over_limit += 1
        others = self._other(self._over_limit, keys, {})
        refuse = [queue for queue in others if queue in full or self._is_full(queue, body_len, counts)]
        if not others or refuse:
            counts.failed += 1
            counts.first = counts.first or f"queue '{full[0].name}' is full (x-overflow reject-publish)"
        queues = [queue for queue in queues if queue not in full]
        return queues + [queue for queue in others if queue not in queues and queue not in refuse]

    @staticmethod
    def _is_full(queue: Any, body_len: int, counts: Counts) -> bool:
        if not queue.core.destination_flags & REFUSING:
            return False
        staged = counts.staged.setdefault(queue.queue_id, [0, 0])
        if not _has_room(queue.core, staged[0] + 1, staged[1] + body_len):
            return True
        staged[0] += 1
        staged[1] += body_len
        return False


def _has_room(core: Any, messages: int, size: int) -> bool:
    """Whether so many messages, with bodies of so many bytes in all, stay within the queue's limits."""
    return bool(core.ready_count() + messages <= core.max_length and core.ready_bytes() + size <= core.max_bytes)


def over_limit(plane: Plane, staged: Iterable[Counts]) -> str:
    """Which queue would refuse all of these together, for people; "" when none would: stages do not know of each other."""
    sums: dict[int, list[int]] = {}
    for counts in staged:
        for queue_id, (messages, size) in counts.staged.items():
            total = sums.setdefault(queue_id, [0, 0])
            total[0] += messages
            total[1] += size
    for queue_id, (messages, size) in sums.items():
        queue = plane.broker.queues.get(queue_id)
        if queue is not None and queue.core.destination_flags & REFUSING and not _has_room(queue.core, messages, size):
            there = queue.core.ready_count()
            return f"{messages} messages are too many for queue '{queue.name}', which has {there} (x-overflow reject-publish)"
    return ""


def _entries(block: Buffer, routes: int) -> Any:
    """(offset, end without padding, route, length of the header) of each entry. Raises: Refused for a malformed block."""
    offset, size = 0, len(block)
    unpack, head = BLOCK_ENTRY.unpack_from, BLOCK_ENTRY.size
    while offset < size:
        if size - offset < head:
            raise Refused("BAD_ARGUMENT", f"block: {size - offset} bytes at {offset} are no entry")
        length, route, header_len, _, _, _, _ = unpack(block, offset)
        end = offset + head + length
        if end > size or not _HEADER_MIN <= header_len <= length or route >= routes:
            text = f"block: the entry at {offset} makes no sense (length {length}, route {route}, header {header_len})"
            raise Refused("BAD_ARGUMENT", text)
        yield offset, end, route, header_len
        offset = end + (-length % 8)


def _entry(block: Buffer, offset: int, end: int, header_len: int, index: int, header: bytes) -> bytes:
    """The entry with another route and header."""
    _, _, _, flags, priority, zero, expiration_ms = BLOCK_ENTRY.unpack_from(block, offset)
    content = header + bytes(block[offset + BLOCK_ENTRY.size + header_len : end])
    head = BLOCK_ENTRY.pack(len(content), index, len(header), flags, priority, zero, expiration_ms)
    return head + content + bytes(-len(content) % 8)


def _rewritten(block: Buffer, changed: list[tuple[int, int]], replaced: list[tuple[int, int, bytes]]) -> Buffer:
    if not changed and not replaced:
        return block
    copy = bytearray(block)
    for offset, index in changed:
        _ROUTE.pack_into(copy, offset + _ROUTE_AT, index)
    if not replaced:
        return copy
    parts: list[Buffer] = []
    last = 0
    for begin, end, entry in replaced:
        parts += [memoryview(copy)[last:begin], entry]
        last = end
    parts.append(memoryview(copy)[last:])
    return b"".join(parts)

"""Spans of messages for OpenTelemetry: what the broker did with a message whose trace is sampled.

in: messages that carry a traceparent (channel/traceparent.py chooses). out: spans in a bounded buffer, which otel.exporter empties; the
message goes on with the broker's span as its parent (W3C Trace Context).

P1  Nobody waits for a span: where the buffer has no room it is dropped and counted.
P2  A virtual host gets no more of the buffer than what is free beside it: one that floods leaves the others half, two leave a third.
P3  `publish` begins when the message is complete and ends when it is on its queues. `deliver` begins when the message was published, which
    its tracestate says, so that it is right after a restart and for a message from disk, and ends with the delivery.
P4  A span has names and sizes; nothing of a body, no header, no user.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flintmq.channel.traceparent import TRACED_FIREHOSE, TRACED_MOST, TRACED_SHIFT, is_wanted
from flintmq.config import Limits
from flintmq.protocol.v0_9_1.splice import field_text, join_properties, join_table, longstr_field, split_properties, split_table

if TYPE_CHECKING:
    from flintmq.broker.client import Client

# kinds of OTLP
INTERNAL, SERVER = 1, 2
_PARENT, _STATE, _OWN = b"traceparent", b"tracestate", b"flintmq="
# bytes of a tracestate (W3C), of a content header that is not made longer: the smallest frame of a consumer has 4,096
_STATE_MAX = 512
_HEADER_MAX = 3_900
# names of queues that a span lists
_QUEUES_MAX = 8
# a message that waited longer: its tracestate says something else
_WAIT_US_MAX = 10 * 366 * 86_400 * 1_000_000
_HEX = frozenset(b"0123456789abcdef")


class Span(NamedTuple):
    """Times: microseconds since 1970. Attributes: text, whole numbers, lists of text."""

    trace: str
    span: str
    parent: str
    state: str
    name: str
    kind: int
    start_us: int
    end_us: int
    attributes: dict[str, Any]


class Context(NamedTuple):
    """What a message carries. Args: since_us: when a broker got it, 0: not said; state: its tracestate without our part."""

    trace: str
    parent: str
    flags: str
    since_us: int
    state: bytes


def wall_us() -> int:
    return time.time_ns() // 1000


def _is_hex(octets: bytes) -> bool:
    return _HEX.issuperset(octets)


def read_context(fields: list[tuple[bytes, bytes]]) -> Context | None:
    """The trace context of a table of headers, fields as they lie there. None: it has none that can be read."""
    found = {name: field_text(value) for name, value in fields if name in (_PARENT, _STATE)}
    parent = found.get(_PARENT) or b""
    if len(parent) != 55 or parent[:3] != b"00-" or parent[35:36] != b"-" or parent[52:53] != b"-":
        return None
    trace, span, flags = parent[3:35], parent[36:52], parent[53:]
    if not _is_hex(trace + span + flags) or not trace.strip(b"0") or not span.strip(b"0"):
        return None
    members = [one.strip() for one in (found.get(_STATE) or b"")[:_STATE_MAX].split(b",")]
    own = next((one[len(_OWN) :] for one in members if one.startswith(_OWN)), b"")
    since_us = int(own, 16) if 0 < len(own) <= 16 and _is_hex(own) else 0
    others = b",".join(one for one in members if one and not one.startswith(_OWN))
    return Context(trace.decode(), span.decode(), flags.decode(), since_us, others if others.isascii() else b"")


def _state(others: bytes, now_us: int) -> bytes:
    """A tracestate with our part in front; the oldest members go when it becomes too long."""
    state = _OWN + b"%x" % now_us
    for member in others.split(b",")[:31]:
        if member and len(state) + 1 + len(member) <= _STATE_MAX:
            state += b"," + member
    return state


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "replace")


class Spans:
    """Args: limits; share: of the traces that clients sample, above 0 to 1; now_us: microseconds since 1970."""

    def __init__(self, limits: Limits, share: float = 1.0, now_us: Callable[[], int] = wall_us) -> None:
        self._now_us = now_us
        self._most = limits.spans_max
        self._lock = threading.Lock()
        self._waiting: collections.deque[tuple[str, Span]] = collections.deque()
        self._held: collections.Counter[str] = collections.Counter()
        self.bits = min(TRACED_MOST, max(1, round(share * (TRACED_MOST + 1)) - 1)) << TRACED_SHIFT
        self.made = 0
        self.dropped = 0

    # --- the message path (loop threads) ----------------------------------------------------------------------------------

    def received(self, exchange: str, key: bytes, header: bytes) -> tuple[Span | None, bytes]:
        """A span that begins with a message, and the message's header with it as the parent. None: the message has no trace after all."""
        size, parts = split_properties(header)
        table = parts.get("headers", b"")
        fields = split_table(table)
        context = read_context(fields)
        if context is None or not is_wanted(table, self.bits):
            return None, header
        now_us = self._now_us()
        own = f"{random.getrandbits(64) or 1:016x}"
        facts = {
            "messaging.system": "flintmq",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": _shown(exchange) or "amq.default",
            "messaging.rabbitmq.destination.routing_key": _text(key),
            "messaging.message.body.size": size,
        }
        name = f"publish {_shown(exchange) or 'amq.default'}"
        state = context.state.decode()
        span = Span(
            trace=context.trace,
            span=own,
            parent=context.parent,
            state=state,
            name=name,
            kind=SERVER,
            start_us=now_us,
            end_us=now_us,
            attributes=facts,
        )
        if len(header) > _HEADER_MAX:
            return span, header
        parent = f"00-{context.trace}-{own}-{context.flags}".encode()
        changed = [(name, longstr_field(parent) if name == _PARENT else value) for name, value in fields if name != _STATE] + [
            (_STATE, longstr_field(_state(context.state, now_us)))
        ]
        parts["headers"] = join_table(changed)
        return span, join_properties(size, parts)

    def published(self, client: Client, span: Span, handles: Any, due_ms: int = 0) -> None:
        """The message is on its queues; due_ms: it is on the schedule."""
        facts = span.attributes
        names = [_shown(handle.owner.name) for handle in handles[:_QUEUES_MAX] if handle.owner is not None]
        facts |= {"flintmq.vhost": _shown(client.vhost.name), "flintmq.queue.count": len(handles), "flintmq.queues": names}
        if due_ms:
            facts["flintmq.due_ms"] = due_ms
        self._add(client.vhost.name, span._replace(end_us=max(span.start_us, self._now_us())))

    def delivered(self, client: Client, queue: Any, redelivered: bool, header: bytes) -> None:
        """A message is in a consumer's output."""
        size, parts = split_properties(header)
        context = read_context(split_table(parts.get("headers", b"")))
        if queue is None or context is None:
            return
        now_us = self._now_us()
        start_us = context.since_us if 0 <= now_us - context.since_us <= _WAIT_US_MAX else now_us
        facts = {
            "messaging.system": "flintmq",
            "messaging.operation.name": "deliver",
            "messaging.destination.name": _shown(queue.name),
            "messaging.message.body.size": size,
            "flintmq.vhost": _shown(queue.vhost),
            "flintmq.redelivered": redelivered,
        }
        own = f"{random.getrandbits(64) or 1:016x}"
        name = f"deliver {_shown(queue.name)}"
        span = Span(
            trace=context.trace,
            span=own,
            parent=context.parent,
            state=context.state.decode(),
            name=name,
            kind=INTERNAL,
            start_us=start_us,
            end_us=now_us,
            attributes=facts,
        )
        self._add(client.vhost.name, span)

    # --- the buffer -------------------------------------------------------------------------------------------------------

    def _add(self, vhost: str, span: Span) -> None:
        """P1, P2."""
        with self._lock:
            self.made += 1
            if self._held[vhost] >= self._most - len(self._waiting):
                self.dropped += 1
                return
            self._held[vhost] += 1
            self._waiting.append((vhost, span))

    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, count: int) -> list[Span]:
        """The oldest spans, which leave the buffer. Any thread."""
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
            for vhost, _ in taken:
                self._held[vhost] -= 1
                if not self._held[vhost]:
                    del self._held[vhost]
        return [span for _, span in taken]

    def lost(self, count: int) -> None:
        """Spans that were taken could not be sent."""
        with self._lock:
            self.dropped += count


def traced_bits(tracing: bool, spans: Spans | None) -> int:
    """What a connection looks for (connection_t.traced). Args: tracing: the firehose is on."""
    return (TRACED_FIREHOSE if tracing else 0) | (0 if spans is None else spans.bits)


def _shown(name: str) -> str:
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

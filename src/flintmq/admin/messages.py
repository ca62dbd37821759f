"""A message as JSON, and JSON as a message.

in: what pulls hand out; the body of a publish. out: values for admin.json_out; header payload, body and flags for a queue.

A body is given as text when it is UTF-8 (`encoding` says which), unless the client asked for base64.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flintmq.admin.arguments import json_object
from flintmq.admin.http_refusals import bad
from flintmq.arguments import is_whole
from flintmq.config import Limits
from flintmq.core.content import CONTENT_EXPIRES, CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY, FRAME_OVERHEAD
from flintmq.core.content_view import ContentView
from flintmq.errors import PeerError
from flintmq.protocol.v0_9_1.codec import decode_properties, encode_properties
from flintmq.vhost.arguments import EXPIRY_MS_MAX

_TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id")
_OTHERS = ("headers", "priority", "expiration", "timestamp")
ENCODINGS = ("auto", "base64")
# bytes of a body from which on a content has a mapping of its own (core.content)
LARGE = 64 * 1024


def plain(value: Any) -> Any:
    """A field value as JSON has it: bytes that are no UTF-8 as {"base64": ...}; decimals, nan, inf and the like as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers: one of them would make the whole answer unreadable
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(raw).decode()}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value)


class Part:
    """What an answer keeps of a message: a copy of the shown part. A small content that is held keeps a chunk of memory with it, 256 KiB.

    Args: view: of the message; most: bytes of its body that are kept, None: all.
    """

    __slots__ = ("body_bytes", "exchange", "header", "raw", "routing_key")

    def __init__(self, view: ContentView, most: int | None = None) -> None:
        self.exchange, self.routing_key, self.header = view.exchange, view.routing_key, view.header
        self.body_bytes = view.body_bytes
        self.raw = view.body() if most is None else view.body(0, most)

    def body(self, start: int = 0, size: int = 0xFFFFFFFF) -> bytes:
        return self.raw[start : start + size]


def kept_of(view: ContentView, most: int | None = None) -> Part | ContentView:
    """A message for an answer: a large one stays where it lies, in memory of its own. Args: as of Part."""
    shown = view.body_bytes if most is None else min(view.body_bytes, most)
    return view if shown > LARGE else Part(view, most)


def properties_of(header: bytes, depth_max: int, fields_max: int) -> dict[str, Any]:
    """The properties of a content header; {} when they can't be read, which is the publisher's mistake."""
    try:
        return dict(decode_properties(header, depth_max, fields_max)[1])
    except PeerError:
        return {}


class Publish(NamedTuple):
    """A message to be published. priority: 0..255, or None; expiration_ms: or None."""

    header: bytes
    body: bytes
    flags: int
    priority: int | None
    expiration_ms: int | None


def parse_publish(given: Mapping[str, Any], limits: Limits) -> Publish:
    """The JSON body of a publish, of which the types are checked. Raises: HttpError 400, also for headers that an AMQP publisher could not
    send."""
    text, encoding = given["body"], given.get("encoding", "text")
    try:
        body = base64.b64decode(text, validate=True) if encoding == "base64" else text.encode("utf-8")
    except (binascii.Error, ValueError):
        raise bad("'body' is no base64, or no text that UTF-8 can say") from None
    return _message(body, given.get("properties", {}), given.get("persistent", True), limits)


def parse_raw_publish(persistent: bool, properties: Sequence[str], body: bytes, limits: Limits) -> Publish:
    """A publish whose body is the message's.

    Args: properties: values of X-FlintMQ-Properties (JSON in ASCII; none or one). Raises: HttpError 400.
    """
    if len(properties) > 1:
        raise bad("X-FlintMQ-Properties is given twice")
    given = json_object(properties[0].encode("utf-8"), (*_TEXTS, *_OTHERS)) if properties else {}
    return _message(body, given, persistent, limits)


def message_of(body: bytes, given: Any, limits: Limits) -> Publish:
    """A message of RabbitMQ's API: persistent when its delivery_mode is 2. Raises: HttpError 400."""
    if isinstance(given, dict) and "delivery_mode" in given:
        given = dict(given)
        mode = given.pop("delivery_mode")
        if mode not in (1, 2, "1", "2"):
            raise bad("property 'delivery_mode' must be 1 or 2")
        return _message(body, given, int(mode) == 2, limits)
    return _message(body, given, False, limits)


def _message(body: bytes, given: Any, persistent: bool, limits: Limits) -> Publish:
    properties, flags, priority, expiration_ms = _properties(given)
    if persistent:
        flags |= CONTENT_PERSISTENT
        properties["delivery_mode"] = 2
    try:
        header = encode_properties(len(body), properties)
        # The engine checks an AMQP publisher's properties by the same limits, and all readers rely on them.
        decode_properties(header, limits.table_depth_max, limits.table_fields_max)
    except UnicodeEncodeError:
        raise bad("'properties' can't be said in AMQP: a text in it is no text that UTF-8 can say") from None
    except (PeerError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad(f"'properties' can't be said in AMQP: {error}"[:200]) from None
    if len(header) + FRAME_OVERHEAD > limits.frame_size_max:
        raise bad(f"'properties' take {len(header)} bytes: a frame of AMQP has {limits.frame_size_max}", "put it into the body")
    return Publish(header, body, flags, priority, expiration_ms)


def _properties(given: Any) -> tuple[dict[str, Any], int, int | None, int | None]:
    if not isinstance(given, dict):
        raise bad("'properties' must be an object")
    known = (*_TEXTS, *_OTHERS)
    properties: dict[str, Any] = {}
    flags = 0
    priority = expiration_ms = None
    for name, value in given.items():
        if name not in known:
            raise bad(f"unknown property '{name[:80]}'", f"known are: {', '.join(known)}")
        if name in _TEXTS:
            if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > 255:
                raise bad(f"property '{name}' must be a text of at most 255 bytes")
        elif name == "headers":
            if not isinstance(value, dict):
                raise bad("property 'headers' must be an object")
            flags |= CONTENT_HEADERS
        elif name == "expiration":
            if not isinstance(value, str) or not (value.isascii() and value.isdigit() and len(value) <= 12 and int(value) <= EXPIRY_MS_MAX):
                raise bad(f"property 'expiration' must be a text of digits (milliseconds, at most {EXPIRY_MS_MAX})")
            expiration_ms = int(value)
            flags |= CONTENT_EXPIRES
        elif not is_whole(value, 0, 255 if name == "priority" else 2**63 - 1):
            raise bad(f"property '{name}' must be a whole number in range")
        elif name == "priority":
            priority = value
            flags |= CONTENT_PRIORITY
        properties[name] = value
    return properties, flags, priority, expiration_ms

"""AMQP 0-9-1 bytes for the raw test client: frames, methods, content headers and field tables, both ways.

Typed by hand from the specification and independent of the broker's protocol code, which it checks. In: method names
(`queue.declare`) with keyword arguments (dashes as underscores). Out: bytes, Frame and Method.
Invariant: a payload is decoded to its last byte, or an assert fails.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_END = 0xCE
METHOD, CONTENT_HEADER, BODY, HEARTBEAT = 1, 2, 3, 8

# name -> class id, method id, fields. Types: B octet, H short, I long, Q longlong, s shortstr, S longstr, F table, b bit.
# A field with a leading "_" is reserved: sent as zero.
_SPEC = """
connection.start 10 10 B:version_major B:version_minor F:server_properties S:mechanisms S:locales
connection.start-ok 10 11 F:client_properties s:mechanism S:response s:locale
connection.secure 10 20 S:challenge
connection.secure-ok 10 21 S:response
connection.tune 10 30 H:channel_max I:frame_max H:heartbeat
connection.tune-ok 10 31 H:channel_max I:frame_max H:heartbeat
connection.open 10 40 s:virtual_host s:_1 b:_2
connection.open-ok 10 41 s:_1
connection.close 10 50 H:reply_code s:reply_text H:class_id H:method_id
connection.close-ok 10 51
connection.blocked 10 60 s:reason
connection.unblocked 10 61
connection.update-secret 10 70 S:new_secret s:reason
connection.update-secret-ok 10 71
channel.open 20 10 s:_1
channel.open-ok 20 11 S:_1
channel.flow 20 20 b:active
channel.flow-ok 20 21 b:active
channel.close 20 40 H:reply_code s:reply_text H:class_id H:method_id
channel.close-ok 20 41
exchange.declare 40 10 H:_1 s:exchange s:type b:passive b:durable b:auto_delete b:internal b:no_wait F:arguments
exchange.declare-ok 40 11
exchange.delete 40 20 H:_1 s:exchange b:if_unused b:no_wait
exchange.delete-ok 40 21
exchange.bind 40 30 H:_1 s:destination s:source s:routing_key b:no_wait F:arguments
exchange.bind-ok 40 31
exchange.unbind 40 40 H:_1 s:destination s:source s:routing_key b:no_wait F:arguments
exchange.unbind-ok 40 51
queue.declare 50 10 H:_1 s:queue b:passive b:durable b:exclusive b:auto_delete b:no_wait F:arguments
queue.declare-ok 50 11 s:queue I:message_count I:consumer_count
queue.bind 50 20 H:_1 s:queue s:exchange s:routing_key b:no_wait F:arguments
queue.bind-ok 50 21
queue.unbind 50 50 H:_1 s:queue s:exchange s:routing_key F:arguments
queue.unbind-ok 50 51
queue.purge 50 30 H:_1 s:queue b:no_wait
queue.purge-ok 50 31 I:message_count
queue.delete 50 40 H:_1 s:queue b:if_unused b:if_empty b:no_wait
queue.delete-ok 50 41 I:message_count
basic.qos 60 10 I:prefetch_size H:prefetch_count b:global_
basic.qos-ok 60 11
basic.consume 60 20 H:_1 s:queue s:consumer_tag b:no_local b:no_ack b:exclusive b:no_wait F:arguments
basic.consume-ok 60 21 s:consumer_tag
basic.cancel 60 30 s:consumer_tag b:no_wait
basic.cancel-ok 60 31 s:consumer_tag
basic.publish 60 40 H:_1 s:exchange s:routing_key b:mandatory b:immediate
basic.return 60 50 H:reply_code s:reply_text s:exchange s:routing_key
basic.deliver 60 60 s:consumer_tag Q:delivery_tag b:redelivered s:exchange s:routing_key
basic.get 60 70 H:_1 s:queue b:no_ack
basic.get-ok 60 71 Q:delivery_tag b:redelivered s:exchange s:routing_key I:message_count
basic.get-empty 60 72 s:_1
basic.ack 60 80 Q:delivery_tag b:multiple
basic.reject 60 90 Q:delivery_tag b:requeue
basic.recover-async 60 100 b:requeue
basic.recover 60 110 b:requeue
basic.recover-ok 60 111
basic.nack 60 120 Q:delivery_tag b:multiple b:requeue
tx.select 90 10
tx.select-ok 90 11
tx.commit 90 20
tx.commit-ok 90 21
tx.rollback 90 30
tx.rollback-ok 90 31
confirm.select 85 10 b:nowait
confirm.select-ok 85 11
"""
_BY_NAME: dict[str, tuple[int, int, list[tuple[str, str]]]] = {}
_BY_ID: dict[tuple[int, int], str] = {}
for _line in _SPEC.strip().splitlines():
    _name, _c, _m, *_fields = _line.split()
    _BY_NAME[_name] = (int(_c), int(_m), [(f[0], f[2:]) for f in _fields])
    _BY_ID[int(_c), int(_m)] = _name
# methods that content follows
CONTENT_METHODS = {"basic.return", "basic.deliver", "basic.get-ok"}
# bit 15 downwards
_PROPERTIES = [
    ("s", "content_type"),
    ("s", "content_encoding"),
    ("F", "headers"),
    ("B", "delivery_mode"),
    ("B", "priority"),
    ("s", "correlation_id"),
    ("s", "reply_to"),
    ("s", "expiration"),
    ("s", "message_id"),
    ("Q", "timestamp"),
    ("s", "type"),
    ("s", "user_id"),
    ("s", "app_id"),
    ("s", "cluster_id"),
]
_FIXED = {"B": ">B", "H": ">H", "I": ">I", "Q": ">Q"}
# table value types of RabbitMQ's 0-9-1 grammar with a fixed size
_FIXED_VALUES = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "f": ">f", "d": ">d", "T": ">Q"}


@dataclass(frozen=True)
class Typed:
    """A table value whose wire type is given: Typed("u", 5)."""

    type: str
    value: Any


@dataclass(frozen=True)
class Frame:
    """One frame as it came."""

    type: int
    channel: int
    payload: bytes


@dataclass
class Method:
    """A method, with its content when it carries one. Fields are attributes: `m.queue`; `m.body` and `m.properties` for content."""

    name: str
    channel: int
    fields: dict[str, Any]
    properties: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    body_frames: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


# --- encoding ---------------------------------------------------------------------------------------------------------
def shortstr(value: str | bytes) -> bytes:
    """A shortstr; more than 255 bytes is an error of the test."""
    raw = value.encode() if isinstance(value, str) else value
    return bytes([len(raw)]) + raw


def longstr(value: str | bytes) -> bytes:
    """A longstr."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def encode_value(value: Any) -> bytes:
    """One table value with its type octet."""
    if isinstance(value, Typed):
        kind, inner = value.type, value.value
    elif isinstance(value, bool):
        kind, inner = "t", value
    elif isinstance(value, int):
        kind, inner = ("I" if -(2**31) <= value < 2**31 else "l"), value
    elif isinstance(value, float):
        kind, inner = "d", value
    elif isinstance(value, str | bytes):
        kind, inner = "S", value
    elif isinstance(value, dict):
        kind, inner = "F", value
    elif isinstance(value, list | tuple):
        kind, inner = "A", value
    elif value is None:
        kind, inner = "V", None
    else:
        raise TypeError(type(value))
    tag = kind.encode()
    if kind in _FIXED_VALUES:
        return tag + struct.pack(_FIXED_VALUES[kind], inner)
    if kind == "t":
        return tag + bytes([bool(inner)])
    if kind in "Sx":
        return tag + longstr(inner)
    if kind == "F":
        return tag + table(inner)
    if kind == "A":
        return tag + longstr(b"".join(encode_value(v) for v in inner))
    if kind == "D":
        return tag + struct.pack(">Bi", *inner)
    assert kind == "V", kind
    return tag


def table(values: dict[str, Any]) -> bytes:
    """A field table with its length."""
    return longstr(b"".join(shortstr(k) + encode_value(v) for k, v in values.items()))


def method_payload(name: str, **arguments: Any) -> bytes:
    """Payload of a method frame. Fields left out are zero or empty; an unknown argument is an error of the test."""
    class_id, method_id, fields = _BY_NAME[name]
    out = bytearray(struct.pack(">HH", class_id, method_id))
    bits = 0
    count = 0
    unknown = set(arguments) - {f for _, f in fields}
    assert not unknown, f"{name} has no {unknown}"
    for kind, key in fields:
        if kind == "b":
            bits |= bool(arguments.get(key, False)) << count
            count += 1
            continue
        if count:
            out.append(bits)
            bits = count = 0
        value = arguments.get(key, {} if kind == "F" else "" if kind in "sS" else 0)
        if kind == "s":
            out += shortstr(value)
        elif kind == "S":
            out += longstr(value)
        elif kind == "F":
            out += value if isinstance(value, bytes) else table(value)
        else:
            out += struct.pack(_FIXED[kind], value)
    if count:
        out.append(bits)
    return bytes(out)


def frame(kind: int, channel: int, payload: bytes, *, end: int = FRAME_END, size: int | None = None) -> bytes:
    """A frame; `end` and `size` can be given wrongly on purpose."""
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + bytes([end])


def method_frame(channel: int, name: str, **arguments: Any) -> bytes:
    """A method frame."""
    return frame(METHOD, channel, method_payload(name, **arguments))


def header_frame(channel: int, size: int, *, class_id: int = 60, weight: int = 0, **properties: Any) -> bytes:
    """A content header frame for a body of `size` bytes."""
    flags = 0
    out = b""
    for bit, (kind, key) in enumerate(_PROPERTIES):
        if key in properties:
            flags |= 1 << (15 - bit)
            value = properties[key]
            if kind == "s":
                out += shortstr(value)
            elif kind == "F":
                out += value if isinstance(value, bytes) else table(value)
            else:
                out += struct.pack(_FIXED[kind], value)
    unknown = set(properties) - {k for _, k in _PROPERTIES}
    assert not unknown, unknown
    return frame(CONTENT_HEADER, channel, struct.pack(">HHQH", class_id, weight, size, flags) + out)


def publish_bytes(channel: int, body: bytes, *, exchange: str = "", routing_key: str = "", chunk: int = 100_000, **rest: Any) -> bytes:
    """Method, header and body frames of one publish. `rest`: mandatory, immediate, and properties."""
    flags = {k: rest.pop(k) for k in ("mandatory", "immediate") if k in rest}
    out = method_frame(channel, "basic.publish", exchange=exchange, routing_key=routing_key, **flags)
    out += header_frame(channel, len(body), **rest)
    for start in range(0, len(body), chunk):
        out += frame(BODY, channel, body[start : start + chunk])
    return out


# --- decoding ---------------------------------------------------------------------------------------------------------
class Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        assert len(part) == count, "the peer sent a payload that is too short"
        self.at += count
        return part

    def fixed(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def shortstr(self) -> str:
        return self.take(self.fixed(">B")).decode("utf-8", "surrogateescape")

    def longstr(self) -> bytes:
        return self.take(self.fixed(">I"))

    def value(self) -> Any:
        kind = self.take(1).decode()
        if kind in _FIXED_VALUES:
            return self.fixed(_FIXED_VALUES[kind])
        if kind == "t":
            return bool(self.take(1)[0])
        if kind == "S":
            raw = self.longstr()
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return raw
        if kind == "x":
            return self.longstr()
        if kind == "F":
            return self.table()
        if kind == "A":
            inner = Reader(self.longstr())
            values = []
            while inner.at < len(inner.data):
                values.append(inner.value())
            return values
        if kind == "D":
            return struct.unpack(">Bi", self.take(5))
        assert kind == "V", f"table value type {kind!r}"
        return None

    def table(self) -> dict[str, Any]:
        inner = Reader(self.longstr())
        values = {}
        while inner.at < len(inner.data):
            key = inner.shortstr()
            values[key] = inner.value()
        return values


def parse_method(channel: int, payload: bytes) -> Method:
    """A method from the payload of its frame; the whole payload must be used."""
    reader = Reader(payload)
    name = _BY_ID[reader.fixed(">H"), reader.fixed(">H")]
    fields: dict[str, Any] = {}
    bits = used = 0
    for kind, key in _BY_NAME[name][2]:
        if kind == "b":
            if used % 8 == 0:
                bits = reader.fixed(">B")
            fields[key] = bool(bits >> (used % 8) & 1)
            used += 1
            continue
        used = 0
        if kind == "s":
            fields[key] = reader.shortstr()
        elif kind == "S":
            fields[key] = reader.longstr()
        elif kind == "F":
            fields[key] = reader.table()
        else:
            fields[key] = reader.fixed(_FIXED[kind])
    assert reader.at == len(payload), f"{name}: {len(payload) - reader.at} bytes too many"
    return Method(name, channel, fields)


def parse_header(payload: bytes, kind_of_reader: type[Reader] = Reader) -> tuple[int, dict[str, Any]]:
    """(body size, properties) of a content header."""
    reader = kind_of_reader(payload)
    assert reader.fixed(">H") == 60
    assert reader.fixed(">H") == 0
    size = reader.fixed(">Q")
    flags = reader.fixed(">H")
    properties: dict[str, Any] = {}
    for bit, (kind, key) in enumerate(_PROPERTIES):
        if flags & 1 << (15 - bit):
            if kind == "s":
                properties[key] = reader.shortstr()
            elif kind == "F":
                properties[key] = reader.table()
            else:
                properties[key] = reader.fixed(_FIXED[kind])
    assert reader.at == len(payload)
    return size, properties

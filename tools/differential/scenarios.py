"""What both brokers are asked: several hundred short scripts, most of them made from tables.

in: nothing. out: `all_scenarios`: name -> function of a Client and a prefix for the names it uses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from tools.differential.client import BODY, HEADER, Client, Typed, frame, header_frame, method_frame, publish_bytes
from tools.differential.features import FEATURES
from tools.differential.managed import MANAGED

Scenario = Callable[[Client, str], None]
_FOUND: dict[str, Scenario] = {}

# values of every type that a table can hold
VALUES: dict[str, Any] = {
    "bool": True,
    "false": False,
    "int8": Typed("b", -5),
    "int16": Typed("s", -300),
    "int32": Typed("I", 70_000),
    "int64": Typed("l", 2**40),
    "minus": Typed("I", -1),
    "zero": Typed("I", 0),
    "float": Typed("f", 1.5),
    "double": Typed("d", 2.25),
    "decimal": Typed("D", (2, 314)),
    "string": "text",
    "empty": "",
    "long string": "s" * 300,
    "bytes": Typed("x", b"\x00\xff"),
    "time": Typed("T", 1_600_000_000),
    "table": {"a": Typed("I", 1), "b": "c"},
    "empty table": {},
    "array": [Typed("I", 1), "b", True],
    "empty array": [],
    "void": None,
}
ARGUMENTS = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-single-active-consumer",
    "x-queue-mode",
    "x-queue-type",
    "x-queue-version",
    "x-unknown",
)
SOME_VALUES = ("bool", "minus", "zero", "int32", "int64", "double", "string", "bytes", "table", "array", "void", "time", "decimal")


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    """Registers a script under a name."""

    def register(function: Scenario) -> Scenario:
        assert name not in _FOUND, name
        _FOUND[name] = function
        return function

    return register


def all_scenarios() -> dict[str, Scenario]:
    """All of them, by name."""
    return {**_FOUND, **FEATURES, **MANAGED}


# --- queue arguments ---------------------------------------------------------------------------------------------------


def _declare(argument: str, value: Any, c: Client, q: str) -> None:
    c.do("queue.declare", queue=q, arguments={argument: value})


for _argument in ARGUMENTS:
    for _value in SOME_VALUES:
        _FOUND[f"argument {_argument} = {_value}"] = partial(_declare, _argument, VALUES[_value])
for _argument, _value in (
    ("x-message-ttl", Typed("l", 315_360_000_000)),
    ("x-message-ttl", Typed("l", 315_360_000_001)),
    ("x-max-priority", Typed("I", 255)),
    ("x-max-priority", Typed("I", 256)),
    ("x-overflow", "drop-head"),
    ("x-overflow", "reject-publish"),
    ("x-overflow", "reject-publish-dlx"),
    ("x-queue-mode", "lazy"),
    ("x-queue-type", "classic"),
    ("x-queue-type", "wrong"),
    ("x-queue-version", Typed("I", 2)),
    ("x-queue-version", Typed("I", 3)),
):
    _FOUND[f"argument {_argument} = {getattr(_value, 'value', _value)}"] = partial(_declare, _argument, _value)

# --- declared again ----------------------------------------------------------------------------------------------------

_AGAIN: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("same", {}, {}),
    ("durable", {"durable": True}, {}),
    ("not durable", {}, {"durable": True}),
    ("auto-delete", {"auto_delete": True}, {}),
    ("exclusive", {"exclusive": True}, {}),
    ("not exclusive", {}, {"exclusive": True}),
    ("argument more", {}, {"arguments": {"x-max-length": 5}}),
    ("argument less", {"arguments": {"x-max-length": 5}}, {}),
    ("argument other", {"arguments": {"x-max-length": 5}}, {"arguments": {"x-max-length": 6}}),
    ("argument other type", {"arguments": {"x-max-length": Typed("I", 5)}}, {"arguments": {"x-max-length": Typed("l", 5)}}),
    ("argument of text", {"arguments": {"x-overflow": "drop-head"}}, {"arguments": {"x-overflow": "reject-publish"}}),
    ("dead letters", {"arguments": {"x-dead-letter-exchange": "a"}}, {"arguments": {"x-dead-letter-exchange": "b"}}),
    ("dead letters gone", {"arguments": {"x-dead-letter-exchange": "a"}}, {}),
    ("unknown argument", {"arguments": {"x-foo": 5}}, {"arguments": {"x-foo": 6}}),
    ("priority", {"arguments": {"x-max-priority": 5}}, {"arguments": {"x-max-priority": 9}}),
    ("expires", {"arguments": {"x-expires": 50_000}}, {"arguments": {"x-expires": 60_000}}),
    ("ttl", {"arguments": {"x-message-ttl": 50_000}}, {}),
    ("single active", {"arguments": {"x-single-active-consumer": True}}, {"arguments": {"x-single-active-consumer": False}}),
)


def _again(method: str, first: dict[str, Any], second: dict[str, Any], c: Client, q: str) -> None:
    what = method.partition(".")[0]
    c.do(method, **{what: q}, **first)
    c.do(method, **{what: q}, **second)
    c.do(method, **{what: q}, passive=True, **second)


for _name, _first, _second in _AGAIN:
    _FOUND[f"queue again: {_name}"] = partial(_again, "queue.declare", _first, _second)
for _name, _first, _second in (
    ("same", {"type": "topic"}, {"type": "topic"}),
    ("type", {"type": "topic"}, {"type": "fanout"}),
    ("durable", {"type": "topic", "durable": True}, {"type": "topic"}),
    ("auto-delete", {"type": "topic"}, {"type": "topic", "auto_delete": True}),
    ("internal", {"type": "topic"}, {"type": "topic", "internal": True}),
    ("alternate", {"type": "topic"}, {"type": "topic", "arguments": {"alternate-exchange": "x"}}),
    (
        "other alternate",
        {"type": "topic", "arguments": {"alternate-exchange": "y"}},
        {"type": "topic", "arguments": {"alternate-exchange": "x"}},
    ),
    ("unknown argument", {"type": "topic"}, {"type": "topic", "arguments": {"x-foo": 1}}),
):
    _FOUND[f"exchange again: {_name}"] = partial(_again, "exchange.declare", _first, _second)
for _value in SOME_VALUES:
    _FOUND[f"alternate exchange = {_value}"] = lambda c, q, value=VALUES[_value]: (
        c.do(  # type: ignore[misc]
            "exchange.declare", exchange=q, type="fanout", arguments={"alternate-exchange": value}
        )
        and None
    )

# --- one method --------------------------------------------------------------------------------------------------------

NAMES = ("missing", "", "amq.direct", "amq.gen-x", "amq.nothing", "amq.rabbitmq.reply-to", "amq.rabbitmq.trace", "n" * 255, "a\r\nb", "q\n")
_ONE: dict[str, tuple[str, ...]] = {
    "queue.declare": ("queue",),
    "queue.delete": ("queue",),
    "queue.purge": ("queue",),
    "basic.get": ("queue",),
    "basic.consume": ("queue",),
    "exchange.declare": ("exchange",),
    "exchange.delete": ("exchange",),
}


def _own(value: Any, q: str) -> Any:
    """The names of NAMES that are nobody's, made this scenario's: others run at the same time."""
    if value == "n" * 255:
        return q + value[len(q) :]
    return q + value if value in ("missing", "a\r\nb", "q\n") else value


def _one(method: str, arguments: dict[str, Any], c: Client, q: str) -> None:
    c.do(method, **{name: _own(value, q) for name, value in arguments.items()})


for _method, (_field,) in _ONE.items():
    for _name in NAMES:
        _more = {"type": "direct"} if _method == "exchange.declare" else {}
        _shown = _name if len(_name) < 99 else "long"
        _FOUND[f"{_method} {_shown!r}"] = partial(_one, _method, {_field: _name, **_more})
        if _method.endswith("declare"):
            _FOUND[f"{_method} passive {_shown!r}"] = partial(_one, _method, {_field: _name, "passive": True, **_more})
for _name in NAMES:
    _shown = _name if len(_name) < 99 else "long"
    _FOUND[f"publish to {_shown!r}"] = lambda c, q, name=_name: c.publish(exchange=_own(name, q), routing_key="nowhere", mandatory=True)  # type: ignore[misc]
    for _method in ("queue.bind", "queue.unbind"):
        _more = {"routing_key": "k"}
        _FOUND[f"{_method} missing queue to {_shown!r}"] = partial(_one, _method, {"queue": "missing", "exchange": _name, **_more})
        _FOUND[f"{_method} {_shown!r} to amq.direct"] = partial(_one, _method, {"queue": _name, "exchange": "amq.direct", **_more})
    for _method in ("exchange.bind", "exchange.unbind"):
        _FOUND[f"{_method} {_shown!r} from amq.direct"] = partial(_one, _method, {"destination": _name, "source": "amq.direct"})
        _FOUND[f"{_method} amq.direct from {_shown!r}"] = partial(_one, _method, {"destination": "amq.direct", "source": _name})
for _kind in ("direct", "fanout", "topic", "headers", "", "x-unknown", "DIRECT", "x-delayed-message"):
    _FOUND[f"exchange of type {_kind!r}"] = lambda c, q, kind=_kind: c.do("exchange.declare", exchange=q, type=kind) and None  # type: ignore[misc]
for _method, _arguments in (
    ("basic.qos", {"prefetch_size": 5}),
    ("basic.recover", {"requeue": False}),
    ("basic.recover", {"requeue": True}),
    ("tx.commit", {}),
    ("tx.rollback", {}),
    ("basic.cancel", {"consumer_tag": "nobody"}),
    ("channel.flow", {"active": True}),
    ("channel.open", {}),
    ("channel.close", {"reply_code": 200, "reply_text": "bye"}),
):
    _FOUND[f"{_method} {_arguments}"] = partial(_one, _method, _arguments)
for _method, _arguments in (
    ("basic.ack", {"delivery_tag": 1}),
    ("basic.ack", {"delivery_tag": 0}),
    ("basic.ack", {"delivery_tag": 0, "multiple": True}),
    ("basic.ack", {"delivery_tag": 7, "multiple": True}),
    ("basic.nack", {"delivery_tag": 1}),
    ("basic.nack", {"delivery_tag": 9, "multiple": True}),
    ("basic.reject", {"delivery_tag": 1}),
    ("basic.recover-async", {"requeue": False}),
):
    _FOUND[f"{_method} {_arguments}"] = lambda c, q, m=_method, a=_arguments: c.say(m, **a)  # type: ignore[misc]

# --- properties and headers --------------------------------------------------------------------------------------------

PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 4,
    "correlation_id": "c",
    "reply_to": "r",
    "message_id": "m",
    "timestamp": 1_600_000_000,
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "cluster_id": "k",
}


def _round_trip(properties: dict[str, Any], c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.publish(b"body", routing_key=q, mandatory=True, **properties)
    c.get(q)


for _name, _value in PROPERTIES.items():
    _FOUND[f"property {_name}"] = partial(_round_trip, {_name: _value})
_FOUND["all properties"] = partial(_round_trip, {**PROPERTIES, "headers": VALUES})
for _value in ("other", ""):
    _FOUND[f"user-id {_value!r}"] = partial(_round_trip, {"user_id": _value})
for _value in ("0", "100000", "-1", "x", "10x", "", "1.5", " 5", "315360000000", "315360000001", "99999999999999999999"):
    _FOUND[f"expiration {_value!r}"] = lambda c, q, value=_value: _expiration(c, q, value)  # type: ignore[misc]


def _expiration(c: Client, q: str, value: str) -> None:
    c.do("queue.declare", queue=q)
    c.publish(b"body", routing_key=q, expiration=value)
    if value != "0":  # whether that one is there still is a matter of time
        c.get(q)


def _returned(headers: dict[str, Any], c: Client, q: str) -> None:
    c.publish(b"body", routing_key="nowhere", mandatory=True, headers=headers)


for _name, _value in VALUES.items():
    _FOUND[f"header {_name}"] = partial(_round_trip, {"headers": {"h": _value}})
    _FOUND[f"returned header {_name}"] = partial(_returned, {"h": _value})
    for _copy in ("CC", "BCC"):
        _FOUND[f"{_copy} = {_name}"] = partial(_round_trip, {"headers": {_copy: _value}})
        _FOUND[f"{_copy} = [{_name}]"] = partial(_round_trip, {"headers": {_copy: [_value]}})
    _FOUND[f"dead-lettered header {_name}"] = lambda c, q, value=_value: _dead(c, q, {"h": value})  # type: ignore[misc]


def _dead(c: Client, q: str, headers: dict[str, Any], **arguments: Any) -> None:
    c.do("queue.declare", queue=q + ".dead")
    c.do("queue.declare", queue=q, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": q + ".dead", **arguments})
    c.publish(b"body", routing_key=q, headers=headers)
    c.get(q, no_ack=False)
    c.say("basic.reject", delivery_tag=1, requeue=False)
    c.get(q + ".dead")


@scenario("copies reach their queues once, and BCC is not shown")
def _copies(c: Client, q: str) -> None:
    for name in "abc":
        c.do("queue.declare", queue=q + name)
    c.publish(b"x", routing_key=q + "a", headers={"CC": [q + "b", q + "a"], "BCC": [q + "c"], "k": Typed("b", 1)})
    for name in "abc":
        c.get(q + name)
        c.do("basic.get", queue=q + name)


# --- headers exchange --------------------------------------------------------------------------------------------------

_EQUAL = {
    "int 1": Typed("I", 1),
    "long 1": Typed("l", 1),
    "byte 1": Typed("b", 1),
    "1.0": Typed("d", 1.0),
    "float 1.0": Typed("f", 1.0),
    "time 1": Typed("T", 1),
    "true": True,
    "'1'": "1",
    "bytes 1": Typed("x", b"1"),
    "void": None,
    "table": {"a": Typed("I", 1)},
    "array": [Typed("I", 1)],
}


def _matches(bound: Any, sent: Any, match: str, c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("exchange.declare", exchange=q, type="headers")
    c.do("queue.bind", queue=q, exchange=q, arguments={"x-match": match, "h": bound})
    c.publish(b"x", exchange=q, headers={"h": sent}, mandatory=True)


for _bound in _EQUAL:
    for _sent in _EQUAL:
        _FOUND[f"headers: {_bound} bound, {_sent} sent"] = partial(_matches, _EQUAL[_bound], _EQUAL[_sent], "all")
for _match in ("all", "any", "all-with-x", "any-with-x", "", "wrong", Typed("I", 1)):
    _FOUND[f"x-match {_match!r}"] = partial(_matches, "v", "v", _match)  # type: ignore[arg-type]
for _match in ("all", "any", "all-with-x", "any-with-x"):
    for _has in ({"a": "1", "b": "2"}, {"a": "1"}, {"x-c": "3"}, {"a": "1", "b": "2", "x-c": "3"}, {"a": "9"}, {}):

        def _several(c: Client, q: str, match: str = _match, has: dict[str, Any] = _has) -> None:
            c.do("queue.declare", queue=q)
            c.do("exchange.declare", exchange=q, type="headers")
            c.do("queue.bind", queue=q, exchange=q, arguments={"x-match": match, "a": "1", "b": "2", "x-c": "3"})
            c.publish(b"x", exchange=q, headers=has, mandatory=True)

        _FOUND[f"x-match {_match} of {sorted(_has)} {_has.get('a')}"] = _several

# --- topic exchange ----------------------------------------------------------------------------------------------------

for _pattern in ("a", "*", "#", "a.*", "a.#", "#.b", "*.b.*", "a..b", "", "#.#", "*.#", "a.*.#.b"):

    def _topic(c: Client, q: str, pattern: str = _pattern) -> None:
        c.do("queue.declare", queue=q)
        c.do("exchange.declare", exchange=q, type="topic")
        c.do("queue.bind", queue=q, exchange=q, routing_key=pattern)
        for key in ("", "a", "b", "a.b", "a.b.c", "a..b", ".", "a.x.y.b"):
            c.publish(key.encode(), exchange=q, routing_key=key, mandatory=True)

    _FOUND[f"topic {_pattern!r}"] = _topic

# --- exchanges of RabbitMQ's plugins -----------------------------------------------------------------------------------

PLUGINS = ("rabbitmq_consistent_hash_exchange", "rabbitmq_random_exchange", "rabbitmq_recent_history_exchange", "rabbitmq_sharding")
_PLUGIN_KINDS = ("x-consistent-hash", "x-random", "x-modulus-hash", "x-recent-history")


def _declare_kind(kind: str, arguments: dict[str, Any], c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type=kind, arguments=arguments)
    c.do("exchange.declare", exchange=q, type=kind, arguments=arguments)
    c.do("exchange.declare", exchange=q, type=kind)


def _bind_kind(kind: str, key: str, c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("exchange.declare", exchange=q, type=kind)
    c.do("queue.bind", queue=q, exchange=q, routing_key=key)
    c.do("queue.bind", queue=q, exchange=q, routing_key=key)
    for sent in ("", "1", "k", "a.b"):
        c.publish(sent.encode(), exchange=q, routing_key=sent, mandatory=True)
    c.get(q, count=4)
    c.do("queue.unbind", queue=q, exchange=q, routing_key=key)
    c.publish(b"gone", exchange=q, routing_key=key, mandatory=True)


for _kind in _PLUGIN_KINDS:
    for _key in ("1", "k", "", "0", "-1", "1.5", "+2", "05", "a.*", "#"):
        _FOUND[f"{_kind} bound with {_key!r}"] = partial(_bind_kind, _kind, _key)
for _given in (
    {"hash-header": "h"},
    {"hash-property": "message_id"},
    {"hash-property": "correlation_id"},
    {"hash-property": "timestamp"},
    {"hash-property": "type"},
    {"hash-property": ""},
    {"hash-header": "h", "hash-property": "message_id"},
    {"hash-header": "h", "hash-property": "type"},
):
    _FOUND[f"x-consistent-hash with {_given}"] = partial(_declare_kind, "x-consistent-hash", _given)  # type: ignore[arg-type]
for _length in (Typed("I", 1), Typed("l", 100), Typed("I", 0), Typed("I", -1), "5", True, Typed("d", 2.0)):
    _FOUND[f"x-recent-history-length = {_length!r}"] = partial(_declare_kind, "x-recent-history", {"x-recent-history-length": _length})


@scenario("x-consistent-hash: one value, one queue")
def _one_queue(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="x-consistent-hash", arguments={"hash-header": "h"})
    for name in "abc":
        c.do("queue.declare", queue=q + name)
        c.do("queue.bind", queue=q + name, exchange=q, routing_key="1")
    c.do("queue.declare", queue=q + "all", arguments={"x-max-length": 0})
    for number in range(6):
        c.publish(b"x", exchange=q, routing_key=str(number), headers={"h": "same"}, mandatory=True)
        c.publish(b"x", exchange=q, routing_key=str(number), mandatory=True)
    c.do("queue.delete", queue=q + "all")


@scenario("x-recent-history: what a new queue gets")
def _history(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="x-recent-history", arguments={"x-recent-history-length": 3})
    for number in range(5):
        headers = {"n": Typed("I", number)} | ({"x-recent-history-no-store": True} if number == 3 else {})
        c.publish(b"%d" % number, exchange=q, routing_key=f"k{number}", headers=headers, mandatory=True, priority=number)
    c.do("queue.declare", queue=q)
    c.do("queue.bind", queue=q, exchange=q, routing_key="any")
    c.get(q, count=3)
    c.do("basic.get", queue=q)
    c.do("queue.bind", queue=q, exchange=q, routing_key="any")
    c.do("basic.get", queue=q)
    c.publish(b"now", exchange=q, mandatory=True)
    c.get(q)
    c.do("queue.bind", queue=q, exchange=q, routing_key="other")
    c.get(q, count=3)
    c.do("basic.get", queue=q)


@scenario("x-recent-history: what a new exchange gets")
def _history_on(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="x-recent-history")
    c.do("exchange.declare", exchange=q + "next", type="topic")
    c.do("queue.declare", queue=q)
    c.do("queue.bind", queue=q, exchange=q + "next", routing_key="a.*")
    c.publish(b"one", exchange=q, routing_key="a.b")
    c.publish(b"two", exchange=q, routing_key="b")
    c.publish(b"three", exchange=q, routing_key="a.c")
    c.do("exchange.bind", destination=q + "next", source=q)
    c.get(q, count=2)
    c.do("basic.get", queue=q)


@scenario("x-random: keys do not count")
def _random(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="x-random")
    c.publish(b"nobody", exchange=q, mandatory=True)
    c.do("queue.declare", queue=q)
    c.do("queue.bind", queue=q, exchange=q, routing_key="a")
    for key in ("a", "b", ""):
        c.publish(key.encode(), exchange=q, routing_key=key, mandatory=True)
    c.publish(b"copies", exchange=q, routing_key="a", headers={"CC": ["a", "b"]}, mandatory=True)
    c.get(q, count=4)
    c.do("basic.get", queue=q)


# --- frames ------------------------------------------------------------------------------------------------------------


def _open(c: Client) -> Client:
    c.do("queue.declare", queue="frames")
    return c


_FRAMES: dict[str, bytes] = {
    "unknown type 9": struct.pack(">BHI", 9, 1, 1) + b"x\xce",
    "unknown type 255": struct.pack(">BHI", 255, 0, 0) + b"\xce",
    "unknown type 4": struct.pack(">BHI", 4, 1, 0) + b"\xce",
    "bad end": struct.pack(">BHI", 1, 1, 4) + b"\x00\x3c\x00\x0a\x00",
    "too large": struct.pack(">BHI", 1, 1, 200_000),
    "heartbeat on a channel": struct.pack(">BHI", 8, 1, 0) + b"\xce",
    "heartbeat with a payload": struct.pack(">BHI", 8, 0, 1) + b"x\xce",
    "body first": frame(BODY, 1, b"x"),
    "header first": header_frame(1, 3),
    "method in the middle of a publish": method_frame(1, "basic.publish", routing_key="k") + method_frame(1, "basic.qos"),
    "method in the middle of a body": publish_bytes(1, b"x", routing_key="k")[:-9] + method_frame(1, "basic.qos"),
    "body longer than said": method_frame(1, "basic.publish", routing_key="k") + header_frame(1, 1) + frame(BODY, 1, b"xy"),
    "header of class 50": method_frame(1, "basic.publish", routing_key="k") + header_frame(1, 1, class_id=50),
    "header with a weight": method_frame(1, "basic.publish", routing_key="k") + header_frame(1, 0, weight=1),
    "unknown method": frame(1, 1, struct.pack(">HH", 60, 99)),
    "unknown class": frame(1, 1, struct.pack(">HH", 99, 10)),
    "method without an id": frame(1, 1, b"\x00\x3c"),
    "method cut short": frame(1, 1, struct.pack(">HHH", 50, 10, 0)),
    "method too long": frame(1, 1, struct.pack(">HHIHB", 60, 10, 0, 0, 0) + b"more"),
    "answer from a client": frame(1, 1, struct.pack(">HH", 60, 11)),
    "method on a closed channel": method_frame(7, "queue.declare", queue="q"),
    "publish on a closed channel": publish_bytes(7, b"x", routing_key="k"),
    "body on a closed channel": frame(BODY, 7, b"x"),
    "channel.close of a closed channel": method_frame(7, "channel.close", reply_code=200, reply_text=""),
    "channel.close-ok of a closed channel": method_frame(7, "channel.close-ok"),
    "connection method on a channel": method_frame(1, "connection.close", reply_code=200, reply_text=""),
    "channel method on channel 0": method_frame(0, "channel.open"),
    "queue method on channel 0": method_frame(0, "queue.declare", queue="q"),
    "protocol header again": HEADER,
    "tune-ok again": method_frame(0, "connection.tune-ok", channel_max=5, frame_max=8192, heartbeat=0),
    "open again": method_frame(0, "connection.open", virtual_host="/"),
    "table value of an unknown type": frame(1, 1, struct.pack(">HHHB", 50, 10, 0, 0) + b"\x00" + struct.pack(">I", 3) + b"\x01kz"),
    "table longer than its method": frame(1, 1, struct.pack(">HHHB", 50, 10, 0, 0) + b"\x00" + struct.pack(">I", 300) + b"\x01kI"),
}


def _after_publish(data: bytes, c: Client, q: str) -> None:
    c.publish(routing_key="nowhere")
    c.bytes(data)


for _name, _data in _FRAMES.items():
    _FOUND[f"frame: {_name}"] = lambda c, q, data=_data: _open(c).bytes(data)  # type: ignore[misc]
    _FOUND[f"frame: {_name}, after a publish"] = partial(_after_publish, _data)
_MISSING = publish_bytes(1, b"x", exchange="missing", routing_key="k")
for _name, _data in (
    ("channel.open", method_frame(1, "channel.open")),
    ("queue.declare", method_frame(1, "queue.declare", queue="q")),
    ("publish", publish_bytes(1, b"x", routing_key="k")),
    ("channel.close", method_frame(1, "channel.close", reply_code=200, reply_text="")),
    ("close-ok and open", method_frame(1, "channel.close-ok") + method_frame(1, "channel.open")),
    ("half a publish", method_frame(1, "basic.publish", routing_key="k")),
):
    # While the broker closes the channel: it has said so, and the client has not answered.
    _FOUND[f"closing channel: {_name}"] = lambda c, q, data=_data: c.bytes(_MISSING + data)  # type: ignore[misc]
    _FOUND[f"closing connection: {_name}"] = lambda c, q, data=_data: c.bytes(method_frame(1, "channel.open") + data)  # type: ignore[misc]

# --- errors of publishes -----------------------------------------------------------------------------------------------


@scenario("a publish to a missing exchange after a get")
def _missing_after(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("basic.get", queue=q)
    c.publish(exchange="missing")
    c.do("queue.bind", queue=q, exchange="amq.direct", routing_key="k")
    c.publish(exchange="amq.rabbitmq.trace")
    c.publish(routing_key=q, user_id="x")
    c.publish(routing_key=q, expiration="x")
    c.publish(routing_key=q, reply_to="amq.rabbitmq.reply-to")


@scenario("a nack of an unknown tag after a publish")
def _nack_after(c: Client, q: str) -> None:
    c.publish(routing_key="nowhere")
    c.say("basic.nack", delivery_tag=5)
    c.say("basic.reject", delivery_tag=5)
    c.say("basic.ack", delivery_tag=5)


@scenario("immediate")
def _immediate(c: Client, q: str) -> None:
    c.publish(routing_key="nowhere", immediate=True)


# --- confirms and transactions -----------------------------------------------------------------------------------------


@scenario("confirms, returned and routed")
def _confirms(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("confirm.select")
    c.publish(routing_key="nowhere", mandatory=True)
    c.quiet()
    c.publish(routing_key=q)
    c.quiet()
    c.do("tx.select")


@scenario("transactions")
def _transactions(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("tx.select")
    c.do("tx.select")
    c.publish(b"1", routing_key=q)
    c.do("basic.get", queue=q)
    c.do("tx.rollback")
    c.do("basic.get", queue=q)
    c.publish(b"2", routing_key=q)
    c.publish(b"3", routing_key="nowhere", mandatory=True)
    c.do("tx.commit")
    c.get(q, no_ack=False)
    c.say("basic.ack", delivery_tag=1)
    c.do("tx.rollback")
    c.say("basic.ack", delivery_tag=1)
    c.do("tx.commit")
    c.do("queue.declare", queue=q, passive=True)
    c.do("confirm.select")


# --- consumers ---------------------------------------------------------------------------------------------------------


@scenario("consumers of a queue")
def _consumers(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("basic.consume", queue=q, consumer_tag="a")
    c.do("basic.consume", queue=q, consumer_tag="a")
    c.do("basic.consume", queue=q, consumer_tag="b", exclusive=True)
    c.do("basic.consume", queue=q, consumer_tag="c")
    c.do("basic.cancel", consumer_tag="b")
    c.do("basic.consume", queue=q, consumer_tag="d")
    c.do("basic.consume", queue=q, consumer_tag="e", exclusive=True)
    c.do("queue.delete", queue=q, if_unused=True)


@scenario("deletion tells the consumer")
def _cancelled(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("basic.consume", queue=q, consumer_tag="a")
    c.do("queue.delete", queue=q)
    c.quiet()


def _consumer_priority(value: Any, c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("basic.consume", queue=q, consumer_tag="a", arguments={"x-priority": value})


for _value in SOME_VALUES:
    _FOUND[f"x-priority of a consumer = {_value}"] = partial(_consumer_priority, VALUES[_value])


@scenario("another connection's exclusive queue")
def _locked(c: Client, q: str) -> None:
    other = c.another()
    other.do("queue.declare", queue=q, exclusive=True)
    for method in ("queue.declare", "queue.delete", "queue.purge", "basic.get", "basic.consume", "queue.bind", "queue.unbind"):
        c.do(method, queue=q, **({"exchange": "amq.direct", "routing_key": "k"} if "bind" in method else {}))
    c.do("queue.declare", queue=q, passive=True)
    other.drop()


@scenario("deletion with conditions")
def _conditions(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.publish(routing_key=q)
    c.do("queue.delete", queue=q, if_empty=True)
    c.do("queue.purge", queue=q)
    c.do("queue.delete", queue=q, if_empty=True)
    c.do("exchange.declare", exchange=q, type="direct")
    c.do("exchange.bind", destination="amq.fanout", source=q, routing_key="k")
    c.do("exchange.delete", exchange=q, if_unused=True)
    c.do("exchange.unbind", destination="amq.fanout", source=q, routing_key="k")
    c.do("exchange.delete", exchange=q, if_unused=True)


@scenario("redelivered, in order")
def _redelivered(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    for number in range(3):
        c.publish(b"%d" % number, routing_key=q)
    c.get(q, count=2, no_ack=False)
    c.say("basic.nack", delivery_tag=2, multiple=True, requeue=True)
    c.get(q, count=3)


# --- limits, dead letters, time ----------------------------------------------------------------------------------------


def _limit(arguments: dict[str, Any], c: Client, q: str) -> None:
    c.do("queue.declare", queue=q + ".dead")
    if "x-dead-letter-exchange" in arguments:
        arguments = {**arguments, "x-dead-letter-routing-key": q + ".dead"}
    c.do("queue.declare", queue=q, arguments=arguments)
    c.do("confirm.select")
    for number in range(4):
        c.publish(b"%d" % number * 10, routing_key=q)
        c.quiet()
    for name in (q, q + ".dead"):
        for _ in range(5):
            c.do("basic.get", queue=name, no_ack=True)


for _arguments in (
    {"x-max-length": 2},
    {"x-max-length": 0},
    {"x-max-length-bytes": 25},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-max-length": 2, "x-overflow": "reject-publish", "x-dead-letter-exchange": ""},
    {"x-max-length": 2, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""},
    {"x-max-length": 2, "x-dead-letter-exchange": ""},
    {"x-max-length-bytes": 25, "x-dead-letter-exchange": ""},
):
    _FOUND[f"limit {_arguments}"] = partial(_limit, _arguments)


def _limit_with_a_consumer(arguments: dict[str, Any], c: Client, q: str) -> None:
    """Ready consumers first, then the limit: a burst of 40 to a consumer that takes 10."""
    c.do("queue.declare", queue=q + ".dead")
    if "x-dead-letter-exchange" in arguments:
        arguments = {**arguments, "x-dead-letter-routing-key": q + ".dead"}
    c.do("queue.declare", queue=q, arguments=arguments)
    c.do("channel.open", 2)
    c.do("basic.qos", 2, prefetch_count=10)
    c.do("basic.consume", 2, queue=q, consumer_tag="c")
    c.raw(b"".join(publish_bytes(1, b"%d" % (10 + number), routing_key=q) for number in range(40)))
    c.quiet()
    for name in (q, q + ".dead"):
        c.do("queue.declare", queue=name, passive=True)
        c.get(name, count=2)


for _arguments in (
    {"x-max-length": 5},
    {"x-max-length": 0},
    {"x-max-length-bytes": 10},
    {"x-max-length": 5, "x-max-priority": 3},
    {"x-max-length": 5, "x-single-active-consumer": True},
    {"x-max-length": 5, "x-dead-letter-exchange": ""},
    {"x-max-length": 5, "x-overflow": "reject-publish"},
    {"x-max-length": 0, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 10, "x-overflow": "reject-publish"},
    {"x-max-length": 5, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""},
):
    _FOUND[f"limit and a consumer {_arguments}"] = partial(_limit_with_a_consumer, _arguments)


@scenario("dead letters of time")
def _dead_of_time(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q + ".dead")
    c.do("queue.declare", queue=q, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": q + ".dead", "x-message-ttl": 50})
    c.publish(b"queue", routing_key=q)
    c.get(q + ".dead")
    c.publish(b"message", routing_key=q, expiration="20", headers={"a": Typed("s", 1), "CC": ["nowhere"]})
    c.get(q + ".dead")


@scenario("dead letters that go round")
def _round(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": q})
    c.publish(b"x", routing_key=q, headers={"a": "b"})
    for number in (1, 2, 3):
        c.get(q, no_ack=False)
        c.say("basic.nack", delivery_tag=number, requeue=False)
    c.get(q)


for _value in VALUES:
    _FOUND[f"x-death that is {_value}"] = lambda c, q, value=VALUES[_value]: _dead(c, q, {"x-death": value})  # type: ignore[misc]


@scenario("alternate exchange, and mandatory")
def _alternate(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("exchange.declare", exchange=q + ".alt", type="fanout")
    c.do("exchange.declare", exchange=q, type="direct", arguments={"alternate-exchange": q + ".alt"})
    c.publish(b"lost", exchange=q, routing_key="k", mandatory=True)
    c.do("queue.bind", queue=q, exchange=q + ".alt")
    c.publish(b"caught", exchange=q, routing_key="k", mandatory=True)
    c.get(q)


@scenario("direct reply-to")
def _reply_to(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="r")
    c.do("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True)
    c.do("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="s", no_ack=True)
    c.do("queue.declare", queue="amq.rabbitmq.reply-to")
    c.do("queue.delete", queue="amq.rabbitmq.reply-to")


@scenario("long texts are cut")
def _long(c: Client, q: str) -> None:
    name = q + "n" * (250 - len(q))
    c.do("queue.declare", queue=name, passive=True)
    c.do("queue.declare", queue=name)
    c.do("queue.declare", queue=name, durable=True)
    c.do("exchange.declare", exchange=name, type="x" * 200)
    c.publish(exchange=name)


@scenario("the close of a connection")
def _close(c: Client, q: str) -> None:
    c.do("connection.close", 0, reply_code=200, reply_text="bye")

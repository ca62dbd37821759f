"""Scenarios of what applications expect: time, dead letters, limits, priorities, quorum queues, exchanges behind exchanges, consumers.

in: nothing. out: FEATURES: name -> function of a Client and a prefix for the names it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tools.differential.client import Client, Typed, method_frame

FEATURES: dict[str, Callable[[Client, str], None]] = {}
# milliseconds after which what has a short time to live is gone, with room for a busy machine
SHORT, LONG = 30, 3_600_000
SOON_S = 0.5


def scenarios_of(found: dict[str, Callable[[Client, str], None]]) -> Callable[[str], Any]:
    """A decorator that puts a script into `found` under a name."""

    def scenario(name: str) -> Callable[[Callable[[Client, str], None]], Callable[[Client, str], None]]:
        def register(function: Callable[[Client, str], None]) -> Callable[[Client, str], None]:
            assert name not in found, name
            found[name] = function
            return function

        return register

    return scenario


scenario = scenarios_of(FEATURES)


def queue(c: Client, name: str, durable: bool = False, exclusive: bool = False, **arguments: Any) -> None:
    """Declares one; `max_length=5` is x-max-length."""
    c.do(
        "queue.declare",
        queue=name,
        durable=durable,
        exclusive=exclusive,
        arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()},
    )


def dying(c: Client, q: str, durable: bool = False, **arguments: Any) -> None:
    """A queue q and one for its dead letters, q.dead."""
    queue(c, q + ".dead")
    queue(c, q, durable, dead_letter_exchange="", dead_letter_routing_key=q + ".dead", **arguments)


def empty(c: Client, *names: str) -> None:
    for name in names:
        c.do("basic.get", queue=name)


# --- time -------------------------------------------------------------------------------------------------------------------


def _expires(own: str | None, arguments: dict[str, Any], more: dict[str, Any], c: Client, q: str) -> None:
    dying(c, q, **arguments)
    given = {} if own is None else {"expiration": own}
    c.publish(b"x", routing_key=q, message_id="m", delivery_mode=2, **given, **more)
    c.get(q + ".dead")
    empty(c, q)


for _name, _own, _arguments, _more in (
    ("the queue's", None, {"message_ttl": SHORT}, {}),
    ("its own", str(SHORT), {}, {}),
    ("zero of its own", "0", {}, {}),
    ("zero of the queue", None, {"message_ttl": 0}, {}),
    ("its own is shorter", str(SHORT), {"message_ttl": LONG}, {}),
    ("the queue's is shorter", str(LONG), {"message_ttl": SHORT}, {}),
    ("with copies", str(SHORT), {}, {"headers": {"CC": ["nowhere"], "BCC": ["nobody"], "k": "v"}}),
    ("with a priority", str(SHORT), {"max_priority": 3}, {"priority": 2}),
    ("with a user", str(SHORT), {}, {"user_id": "guest"}),
    ("and single active consumer", str(SHORT), {"single_active_consumer": True}, {}),
):
    FEATURES[f"expiry: {_name}"] = partial(_expires, _own, _arguments, _more)


@scenario("expiry: three queues, one behind the other")
def _three(c: Client, q: str) -> None:
    queue(c, q + "3")
    queue(c, q + "2", message_ttl=SHORT, dead_letter_exchange="", dead_letter_routing_key=q + "3")
    queue(c, q + "1", message_ttl=SHORT, dead_letter_exchange="", dead_letter_routing_key=q + "2")
    c.publish(b"x", routing_key=q + "1", headers={"h": "v"})
    c.get(q + "3")


@scenario("expiry: round and round ends after one round")
def _cycle(c: Client, q: str) -> None:
    queue(c, q + "2", message_ttl=SHORT, dead_letter_exchange="", dead_letter_routing_key=q)
    queue(c, q, message_ttl=SHORT, dead_letter_exchange="", dead_letter_routing_key=q + "2")
    c.publish(b"x", routing_key=q)
    c.pause(SOON_S)
    empty(c, q, q + "2")


@scenario("expiry: a round with a rejection goes on")
def _cycle_rejected(c: Client, q: str) -> None:
    queue(c, q + "2", dead_letter_exchange="", dead_letter_routing_key=q)
    queue(c, q, message_ttl=SHORT, dead_letter_exchange="", dead_letter_routing_key=q + "2")
    c.publish(b"x", routing_key=q)
    for number in (1, 2):
        c.get(q + "2", no_ack=False)
        c.say("basic.reject", delivery_tag=number, requeue=False)
    c.get(q + "2")


@scenario("expiry: a message in hand, given back too late")
def _too_late(c: Client, q: str) -> None:
    dying(c, q)
    c.publish(b"x", routing_key=q, expiration="300")
    c.get(q, no_ack=False)
    c.pause(SOON_S)
    empty(c, q + ".dead")
    c.say("basic.nack", delivery_tag=1, requeue=True)
    c.get(q + ".dead")
    empty(c, q)


@scenario("expiry: acknowledged in time")
def _in_time(c: Client, q: str) -> None:
    dying(c, q)
    c.publish(b"x", routing_key=q, expiration="300")
    c.get(q, no_ack=False)
    c.pause(SOON_S)
    c.say("basic.ack", delivery_tag=1)
    empty(c, q, q + ".dead")


@scenario("expiry: behind a head that lives")
def _behind(c: Client, q: str) -> None:
    dying(c, q)
    c.publish(b"lives", routing_key=q)
    c.publish(b"dies", routing_key=q, expiration=str(SHORT))
    c.pause(SOON_S)
    c.do("queue.declare", queue=q, passive=True)
    c.get(q)
    c.get(q + ".dead")


@scenario("expiry: without a dead letter exchange")
def _plain(c: Client, q: str) -> None:
    queue(c, q, message_ttl=SHORT)
    c.publish(b"x", routing_key=q)
    c.pause(SOON_S)
    c.do("queue.declare", queue=q, passive=True, arguments={})


@scenario("an unused queue goes, without dead letters")
def _unused(c: Client, q: str) -> None:
    dying(c, q, expires=100)
    c.publish(b"x", routing_key=q)
    c.pause(1.5)
    c.do("queue.declare", queue=q, passive=True)
    empty(c, q + ".dead")


@scenario("a queue with a consumer is used")
def _used(c: Client, q: str) -> None:
    queue(c, q, expires=100)
    c.do("basic.consume", queue=q, consumer_tag="c")
    c.pause(SOON_S)
    c.do("queue.declare", queue=q, passive=True)


# --- dead letters -----------------------------------------------------------------------------------------------------------


def _rejected(target: dict[str, Any], more: dict[str, Any], c: Client, q: str) -> None:
    """Dead letters of q go to an exchange of the scenario, behind which q.dead takes every key."""
    c.do("exchange.declare", exchange=q + ".dlx", type="topic")
    queue(c, q + ".dead")
    c.do("queue.bind", queue=q + ".dead", exchange=q + ".dlx", routing_key="#")
    queue(c, q, dead_letter_exchange=q + ".dlx", **target)
    c.do("queue.bind", queue=q, exchange="amq.topic", routing_key=q + ".in")
    c.publish(b"x", exchange="amq.topic", routing_key=q + ".in", **more)
    c.get(q, no_ack=False)
    c.say("basic.nack", delivery_tag=1, requeue=False)
    c.get(q + ".dead")
    empty(c, q + ".dead", q)


for _name, _target, _more in (
    ("its own key", {}, {}),
    ("another key", {"dead_letter_routing_key": "other"}, {}),
    ("an empty key", {"dead_letter_routing_key": ""}, {}),
    ("copies keep their keys", {}, {"headers": {"CC": ["c1", "c2"]}}),
    ("copies and another key", {"dead_letter_routing_key": "other"}, {"headers": {"CC": ["c1", "c2"]}}),
    ("blind copies", {}, {"headers": {"BCC": ["b1"]}}),
    ("blind copies and another key", {"dead_letter_routing_key": "other"}, {"headers": {"CC": ["c1"], "BCC": ["b1"]}}),
    ("all properties", {}, {"correlation_id": "c", "reply_to": "r", "type": "t", "app_id": "a", "priority": 3, "timestamp": 1_600_000_000}),
    ("an expiration that is not over", {}, {"expiration": str(LONG)}),
    ("mandatory", {}, {"mandatory": True}),
    (
        "headers of an earlier death",
        {},
        {"headers": {"x-first-death-queue": "a", "x-first-death-reason": "b", "x-first-death-exchange": "c"}},
    ),
):
    FEATURES[f"dead letter: {_name}"] = partial(_rejected, _target, _more)


@scenario("dead letter: the exchange is missing")
def _missing(c: Client, q: str) -> None:
    queue(c, q, dead_letter_exchange=q + ".none")
    c.publish(b"x", routing_key=q)
    c.get(q, no_ack=False)
    c.say("basic.reject", delivery_tag=1, requeue=False)
    empty(c, q)


@scenario("dead letter: several at once, in order")
def _several(c: Client, q: str) -> None:
    dying(c, q)
    for number in range(4):
        c.publish(b"%d" % number, routing_key=q)
    c.get(q, count=4, no_ack=False)
    c.say("basic.nack", delivery_tag=3, multiple=True, requeue=False)
    c.get(q + ".dead", count=3)
    c.say("basic.nack", delivery_tag=4, requeue=True)
    c.get(q)


@scenario("dead letter: a fanout of letters")
def _fanned(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="fanout")
    for name in "ab":
        queue(c, q + name)
        c.do("queue.bind", queue=q + name, exchange=q)
    queue(c, q, dead_letter_exchange=q)
    c.publish(b"x", routing_key=q)
    c.get(q, no_ack=False)
    c.say("basic.reject", delivery_tag=1, requeue=False)
    c.get(q + "a")
    c.get(q + "b")


@scenario("dead letter: rejected, then expired, then rejected")
def _mixed(c: Client, q: str) -> None:
    queue(c, q + "2", message_ttl=SHORT, dead_letter_exchange="", dead_letter_routing_key=q)
    queue(c, q, dead_letter_exchange="", dead_letter_routing_key=q + "2")
    c.publish(b"x", routing_key=q, expiration=str(LONG))
    for number in (1, 2):
        c.get(q, no_ack=False)
        c.say("basic.reject", delivery_tag=number, requeue=False)
    c.get(q)


@scenario("dead letter: neither a purge nor a deletion makes one")
def _neither(c: Client, q: str) -> None:
    dying(c, q)
    c.publish(b"x", routing_key=q)
    c.do("queue.purge", queue=q)
    c.publish(b"x", routing_key=q)
    c.do("queue.delete", queue=q)
    empty(c, q + ".dead")


@scenario("dead letter: in a transaction")
def _in_tx(c: Client, q: str) -> None:
    dying(c, q)
    c.do("channel.open", 2)
    c.do("tx.select", 2)
    c.publish(b"x", routing_key=q)
    c.get(q, 2, no_ack=False)
    c.say("basic.reject", 2, delivery_tag=1, requeue=False)
    empty(c, q + ".dead")
    c.do("tx.rollback", 2)
    empty(c, q + ".dead")
    c.say("basic.reject", 2, delivery_tag=1, requeue=False)
    c.do("tx.commit", 2)
    c.get(q + ".dead")


@scenario("dead letter: by a consumer whose connection ends there is none")
def _ended(c: Client, q: str) -> None:
    dying(c, q)
    c.publish(b"x", routing_key=q)
    other = c.another()
    other.get(q, no_ack=False)
    other.drop()
    c.get(q)
    empty(c, q + ".dead")


# --- length -----------------------------------------------------------------------------------------------------------------


def _full(arguments: dict[str, Any], messages: tuple[dict[str, Any], ...], c: Client, q: str) -> None:
    dying(c, q, **arguments)
    c.do("confirm.select")
    for number, given in enumerate(messages):
        c.publish(b"%d" % number + b"." * given.get("size", 9), routing_key=q, **{k: v for k, v in given.items() if k != "size"})
        c.quiet()
    for name in (q, q + ".dead"):
        c.do("queue.declare", queue=name, passive=True)
        for _ in range(len(messages) + 1):
            c.do("basic.get", queue=name, no_ack=True)


_PLAIN = ({}, {}, {}, {})
_RISING = ({"priority": 0}, {"priority": 1}, {"priority": 2}, {"priority": 1}, {"priority": 0})
for _overflow in ("drop-head", "reject-publish", "reject-publish-dlx"):
    for _name, _arguments, _messages in (
        ("two", {"max_length": 2}, _PLAIN),
        ("bytes", {"max_length_bytes": 25}, _PLAIN),
        ("both", {"max_length": 3, "max_length_bytes": 25}, _PLAIN),
        ("one too large for it", {"max_length_bytes": 25}, ({"size": 99}, {}, {"size": 99})),
        ("priorities", {"max_length": 2, "max_priority": 3}, _RISING),
        ("mandatory", {"max_length": 1}, ({"mandatory": True}, {"mandatory": True})),
        ("expired messages make room", {"max_length": 1}, ({"expiration": "0"}, {"expiration": "0"})),
    ):
        FEATURES[f"full, {_overflow}: {_name}"] = partial(_full, {"overflow": _overflow, **_arguments}, _messages)


def _full_of_many(overflow: str, c: Client, q: str) -> None:
    """One of two queues is full: what the publisher hears, and what the other one has."""
    c.do("exchange.declare", exchange=q, type="fanout")
    dying(c, q + "full", max_length=1, overflow=overflow)
    queue(c, q + "wide")
    for name in ("full", "wide"):
        c.do("queue.bind", queue=q + name, exchange=q)
    c.do("confirm.select")
    for number in range(3):
        c.publish(b"%d" % number, exchange=q, mandatory=True)
        c.quiet()
    for name in ("full", "wide", "full.dead"):
        c.get(q + name, count=3)


def _full_and_unacked(overflow: str, c: Client, q: str) -> None:
    """Messages in hand do not count; one that is given back may be too many."""
    dying(c, q, max_length=1, overflow=overflow)
    c.publish(b"0", routing_key=q)
    c.get(q, no_ack=False)
    c.publish(b"1", routing_key=q)
    c.publish(b"2", routing_key=q)
    c.do("queue.declare", queue=q, passive=True)
    c.say("basic.nack", delivery_tag=1, requeue=True)
    c.get(q)
    c.do("basic.get", queue=q, no_ack=True)
    for _ in range(3):
        c.do("basic.get", queue=q + ".dead", no_ack=True)


def _full_tx(overflow: str, c: Client, q: str) -> None:
    dying(c, q, max_length=1, overflow=overflow)
    c.do("tx.select")
    for number in range(3):
        c.publish(b"%d" % number, routing_key=q)
    c.do("tx.commit")
    c.do("queue.declare", queue=q, passive=True)
    c.get(q)


for _overflow in ("drop-head", "reject-publish", "reject-publish-dlx"):
    FEATURES[f"full, {_overflow}: one of two queues"] = partial(_full_of_many, _overflow)
    FEATURES[f"full, {_overflow}: messages in hand"] = partial(_full_and_unacked, _overflow)
    FEATURES[f"full, {_overflow}: a transaction"] = partial(_full_tx, _overflow)

# --- priorities -------------------------------------------------------------------------------------------------------------


def _priorities(most: int, given: tuple[int | None, ...], c: Client, q: str) -> None:
    queue(c, q, max_priority=most)
    for number, priority in enumerate(given):
        c.publish(b"%d" % number, routing_key=q, **({} if priority is None else {"priority": priority}))
    c.get(q, count=len(given))


for _most, _given in (
    (5, (0, 5, 3, 5, 1)),
    (5, (None, 0, 1, None)),
    (3, (9, 3, 255, 2)),
    (1, (2, 0, 1, 0)),
    (255, (255, 254, 0, 100)),
    (0, (3, 1, 2)),
):
    FEATURES[f"priorities up to {_most}: {_given}"] = partial(_priorities, _most, _given)


@scenario("priorities: given back, in its place")
def _priority_back(c: Client, q: str) -> None:
    queue(c, q, max_priority=3)
    for number, priority in enumerate((1, 2, 1, 2)):
        c.publish(b"%d" % number, routing_key=q, priority=priority)
    c.get(q, count=3, no_ack=False)
    c.say("basic.nack", delivery_tag=3, multiple=True, requeue=True)
    c.get(q, count=4)


@scenario("priorities: a purge, and the consumer's prefetch")
def _priority_consumer(c: Client, q: str) -> None:
    queue(c, q, max_priority=3)
    for priority in (1, 2, 3):
        c.publish(b"%d" % priority, routing_key=q, priority=priority)
    c.do("queue.purge", queue=q)
    for priority in (1, 3, 2):
        c.publish(b"%d" % priority, routing_key=q, priority=priority)
    c.do("channel.open", 2)
    c.do("basic.qos", 2, prefetch_count=1)
    c.do("basic.consume", 2, queue=q, consumer_tag="c")
    c.deliveries(1, 2)
    c.publish(b"late", routing_key=q, priority=3)
    for tag in (1, 2, 3):
        c.connection.send(_ack(2, tag))
        c.deliveries(1, 2)


def _ack(channel: int, tag: int) -> bytes:
    return method_frame(channel, "basic.ack", delivery_tag=tag)


# --- quorum queues ----------------------------------------------------------------------------------------------------------


def _declared(options: dict[str, Any], arguments: dict[str, Any], c: Client, q: str) -> None:
    c.do("queue.declare", queue=q, **{"durable": True, **options}, arguments={"x-queue-type": "quorum", **arguments})


for _name, _options, _arguments in (
    ("durable", {}, {}),
    ("transient", {"durable": False}, {}),
    ("exclusive", {"exclusive": True}, {}),
    ("auto-delete", {"auto_delete": True}, {}),
    ("delivery limit", {}, {"x-delivery-limit": Typed("I", 5)}),
    ("delivery limit of text", {}, {"x-delivery-limit": "5"}),
    ("overflow", {}, {"x-overflow": "reject-publish"}),
    ("group size", {}, {"x-quorum-initial-group-size": Typed("I", 1)}),
    ("group size of nobody", {}, {"x-quorum-initial-group-size": Typed("I", 0)}),
    ("strategy", {}, {"x-dead-letter-strategy": "at-least-once"}),
    ("no strategy", {}, {"x-dead-letter-strategy": "sometimes"}),
    ("in-memory length", {}, {"x-max-in-memory-length": Typed("I", 5)}),
):
    FEATURES[f"quorum queue: {_name}"] = partial(_declared, _options, _arguments)


def _delivery_limit(limit: int, c: Client, q: str) -> None:
    dying(c, q, True, queue_type="quorum", delivery_limit=Typed("I", limit))
    c.do("confirm.select")
    c.publish(b"x", routing_key=q, delivery_mode=2)
    c.quiet()
    for number in range(limit + 1):
        c.get(q, no_ack=False)
        c.say("basic.nack", delivery_tag=number + 1, requeue=True)
    c.get(q + ".dead")
    empty(c, q)
    c.do("queue.delete", queue=q)


for _limit in (0, 1, 3):
    FEATURES[f"quorum queue: delivery limit {_limit}"] = partial(_delivery_limit, _limit)


@scenario("quorum queue: rejected")
def _quorum_rejected(c: Client, q: str) -> None:
    dying(c, q, True, queue_type="quorum")
    c.do("confirm.select")
    c.publish(b"x", routing_key=q, headers={"h": "v"})
    c.quiet()
    c.get(q, no_ack=False)
    c.say("basic.reject", delivery_tag=1, requeue=False)
    c.get(q + ".dead")
    c.do("queue.delete", queue=q)


@scenario("quorum queue: expired")
def _quorum_expired(c: Client, q: str) -> None:
    dying(c, q, True, queue_type="quorum", message_ttl=SHORT)
    c.do("confirm.select")
    c.publish(b"x", routing_key=q)
    c.quiet()
    c.get(q + ".dead")
    c.do("queue.delete", queue=q)


def _quorum_full(overflow: str, c: Client, q: str) -> None:
    dying(c, q, True, queue_type="quorum", max_length=2, overflow=overflow)
    c.do("confirm.select")
    for number in range(3):
        c.publish(b"%d" % number, routing_key=q)
        c.quiet()
    c.get(q, count=2)
    c.do("queue.delete", queue=q)


for _overflow in ("drop-head", "reject-publish", "reject-publish-dlx"):
    FEATURES[f"quorum queue: full, {_overflow}"] = partial(_quorum_full, _overflow)


@scenario("quorum queue: redelivered, with a count")
def _quorum_counts(c: Client, q: str) -> None:
    queue(c, q, True, queue_type="quorum")
    c.do("confirm.select")
    c.publish(b"x", routing_key=q)
    c.quiet()
    for number in range(3):
        c.get(q, no_ack=False)
        c.say("basic.nack", delivery_tag=number + 1, requeue=True)
    c.get(q)
    c.do("queue.delete", queue=q)


# --- exchanges behind exchanges ---------------------------------------------------------------------------------------------


def _tell(c: Client, q: str, *keys: str, **more: Any) -> None:
    for key in keys:
        c.publish(key.encode(), exchange=q, routing_key=key, mandatory=True, **more)


@scenario("alternate exchanges: a chain")
def _chain(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q + "3", type="fanout")
    c.do("exchange.declare", exchange=q + "2", type="direct", arguments={"alternate-exchange": q + "3"})
    c.do("exchange.declare", exchange=q, type="direct", arguments={"alternate-exchange": q + "2"})
    for number, key in (("1", "a"), ("2", "b"), ("3", "")):
        queue(c, q + "q" + number)
        c.do("queue.bind", queue=q + "q" + number, exchange=q if number == "1" else q + number, routing_key=key)
    _tell(c, q, "a", "b", "c")
    for number in "123":
        c.get(q + "q" + number)
        empty(c, q + "q" + number)


@scenario("alternate exchanges: missing, then made")
def _made_later(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="direct", arguments={"alternate-exchange": q + "later"})
    _tell(c, q, "a")
    c.do("exchange.declare", exchange=q + "later", type="fanout")
    queue(c, q)
    c.do("queue.bind", queue=q, exchange=q + "later")
    _tell(c, q, "a")
    c.do("exchange.delete", exchange=q + "later")
    _tell(c, q, "a")
    c.get(q)


@scenario("alternate exchanges: round and round")
def _round(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q + "a", type="direct", arguments={"alternate-exchange": q + "b"})
    c.do("exchange.declare", exchange=q + "b", type="direct", arguments={"alternate-exchange": q + "a"})
    _tell(c, q + "a", "k")


@scenario("alternate exchanges: a binding that leads nowhere")
def _nowhere(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q + "alt", type="fanout")
    queue(c, q)
    c.do("queue.bind", queue=q, exchange=q + "alt")
    c.do("exchange.declare", exchange=q + "empty", type="fanout")
    c.do("exchange.declare", exchange=q, type="direct", arguments={"alternate-exchange": q + "alt"})
    c.do("exchange.bind", destination=q + "empty", source=q, routing_key="k")
    _tell(c, q, "k", "other")
    c.get(q, count=2)


@scenario("alternate exchanges: copies")
def _copies(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q + "alt", type="topic")
    queue(c, q)
    queue(c, q + "here")
    c.do("queue.bind", queue=q, exchange=q + "alt", routing_key="#")
    c.do("exchange.declare", exchange=q, type="direct", arguments={"alternate-exchange": q + "alt"})
    c.do("queue.bind", queue=q + "here", exchange=q, routing_key="here")
    _tell(c, q, "gone", headers={"CC": ["here"]})
    _tell(c, q, "gone", headers={"CC": ["away"]})
    c.get(q)
    c.get(q + "here")
    empty(c, q, q + "here")


@scenario("an internal exchange is for exchanges")
def _internal(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q + "in", type="fanout", internal=True)
    c.do("exchange.declare", exchange=q, type="fanout")
    c.do("exchange.bind", destination=q + "in", source=q)
    queue(c, q)
    c.do("queue.bind", queue=q, exchange=q + "in")
    _tell(c, q, "k")
    c.get(q)
    c.publish(b"x", exchange=q + "in")


@scenario("exchanges: two ways, one message")
def _two_ways(c: Client, q: str) -> None:
    for name in "abc":
        c.do("exchange.declare", exchange=q + name, type="topic")
    c.do("exchange.bind", destination=q + "b", source=q + "a", routing_key="x.*")
    c.do("exchange.bind", destination=q + "c", source=q + "a", routing_key="#")
    c.do("exchange.bind", destination=q + "c", source=q + "b", routing_key="*.y")
    c.do("exchange.bind", destination=q + "a", source=q + "c", routing_key="#")
    queue(c, q)
    for name in "abc":
        c.do("queue.bind", queue=q, exchange=q + name, routing_key="x.y")
    _tell(c, q + "a", "x.y", "x.z")
    c.get(q)
    empty(c, q)


@scenario("exchanges: auto-delete goes with its last binding")
def _auto_delete(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="direct", auto_delete=True)
    queue(c, q)
    c.do("queue.bind", queue=q, exchange=q, routing_key="k")
    c.do("queue.unbind", queue=q, exchange=q, routing_key="k")
    c.do("exchange.declare", exchange=q, type="direct", passive=True)


def _headers(bound: tuple[dict[str, Any], ...], sent: tuple[dict[str, Any] | None, ...], c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="headers")
    queue(c, q)
    for arguments in bound:
        c.do("queue.bind", queue=q, exchange=q, routing_key="r", arguments=arguments)
    for headers in sent:
        c.publish(b"x", exchange=q, mandatory=True, **({} if headers is None else {"headers": headers}))
    c.do("queue.unbind", queue=q, exchange=q, routing_key="r", arguments=bound[0])
    for headers in sent:
        c.publish(b"x", exchange=q, mandatory=True, **({} if headers is None else {"headers": headers}))
    c.do("queue.purge", queue=q)


for _name, _bound in (
    ("without x-match", ({"a": "1"},)),
    ("nothing at all", ({},)),
    ("all of nothing", ({"x-match": "all"},)),
    ("any of nothing", ({"x-match": "any"},)),
    ("that it is there", ({"x-match": "all", "a": None},)),
    ("any of two that are there", ({"x-match": "any", "a": None, "b": None},)),
    ("two bindings", ({"x-match": "all", "a": "1"}, {"x-match": "any", "b": "2", "c": "3"})),
    ("x- headers do not count", ({"x-match": "all", "a": "1", "x-b": "2"},)),
    ("x- headers count", ({"x-match": "all-with-x", "a": "1", "x-b": "2"},)),
):
    FEATURES[f"headers exchange: {_name}"] = partial(
        _headers, _bound, (None, {}, {"a": "1"}, {"a": "2"}, {"b": "2"}, {"a": "1", "b": "2", "x-b": "2"}, {"x-b": "2"}, {"A": "1"})
    )


def _topics(patterns: tuple[str, ...], c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="topic")
    queue(c, q)
    for pattern in patterns:
        c.do("queue.bind", queue=q, exchange=q, routing_key=pattern)
    keys = ("a", "a.b", "a.b.c", "b.a", "a.a.a", "", "a.", ".a", "a.b.b.c")
    _tell(c, q, *keys)
    c.do("queue.unbind", queue=q, exchange=q, routing_key=patterns[0])
    _tell(c, q, *keys)
    c.do("queue.purge", queue=q)


for _patterns in (
    ("a.#", "#.c"),
    ("*", "*.*", "*.*.*"),
    ("#.a.#",),
    ("a.#.c", "a.*.c"),
    ("#.*",),
    ("*.#.*",),
    ("a.*.#.c", "#.b.#"),
    ("##", "a.**"),
):
    FEATURES[f"topics {_patterns}"] = partial(_topics, _patterns)

# --- consumers --------------------------------------------------------------------------------------------------------------


@scenario("single active consumer: the next one takes over")
def _single_active(c: Client, q: str) -> None:
    queue(c, q, single_active_consumer=True)
    for channel in (2, 3):
        c.do("channel.open", channel)
        c.do("basic.consume", channel, queue=q, consumer_tag=f"c{channel}")
    c.publish(b"1", routing_key=q)
    c.deliveries(1, 2)
    c.publish(b"2", routing_key=q)
    c.deliveries(1, 2)
    c.say("basic.ack", 2, delivery_tag=1)
    c.do("basic.cancel", 2, consumer_tag="c2")
    c.publish(b"3", routing_key=q)
    c.deliveries(1, 3)
    c.do("channel.close", 3, reply_code=200, reply_text="")
    c.do("queue.declare", queue=q, passive=True)


@scenario("single active consumer: what its channel held goes to the next one")
def _active_held(c: Client, q: str) -> None:
    queue(c, q, single_active_consumer=True)
    for channel in (2, 3):
        c.do("channel.open", channel)
        c.do("basic.consume", channel, queue=q, consumer_tag=f"c{channel}")
    c.publish(b"1", routing_key=q)
    c.publish(b"2", routing_key=q)
    c.deliveries(2, 2)
    c.connection.send(method_frame(2, "channel.close", reply_code=200, reply_text=""))  # whose answer may come before or after the next
    c.deliveries(2, 3)


@scenario("single active consumer: no exclusive one")
def _active_exclusive(c: Client, q: str) -> None:
    queue(c, q, single_active_consumer=True)
    c.do("basic.consume", queue=q, consumer_tag="a", exclusive=True)
    c.do("basic.consume", queue=q, consumer_tag="b")


@scenario("consumer priorities: the higher one first, the lower one when it is full")
def _consumer_priorities(c: Client, q: str) -> None:
    queue(c, q)
    for channel, priority in ((2, 1), (3, 5), (4, -3)):
        c.do("channel.open", channel)
        c.do("basic.qos", channel, prefetch_count=1)
        c.do("basic.consume", channel, queue=q, consumer_tag=f"c{channel}", arguments={"x-priority": Typed("I", priority)})
    for number, channel in ((1, 3), (2, 2), (3, 4)):
        c.publish(b"%d" % number, routing_key=q)
        c.deliveries(1, channel)
    c.publish(b"4", routing_key=q)
    c.quiet()
    c.connection.send(_ack(2, 1))
    c.deliveries(1, 2)


@scenario("prefetch: of a consumer, and of the channel")
def _prefetch(c: Client, q: str) -> None:
    queue(c, q)
    c.do("channel.open", 2)
    c.do("basic.qos", 2, prefetch_count=2)
    c.do("basic.consume", 2, queue=q, consumer_tag="a")
    for number in range(4):
        c.publish(b"%d" % number, routing_key=q)
    c.deliveries(2, 2)
    c.quiet()
    c.connection.send(_ack(2, 1))
    c.deliveries(1, 2)
    c.quiet()


@scenario("recover gives back what the channel holds")
def _recover(c: Client, q: str) -> None:
    queue(c, q)
    for number in range(3):
        c.publish(b"%d" % number, routing_key=q)
    c.get(q, count=2, no_ack=False)
    c.do("basic.recover", requeue=True)
    c.get(q, count=3)


@scenario("direct reply-to: there and back")
def _replies(c: Client, q: str) -> None:
    queue(c, q)
    c.do("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True)
    c.publish(b"ask", routing_key=q, reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    other = c.another()
    asked = other.do("basic.get", queue=q, no_ack=True)
    assert asked is not None
    other.publish(b"answer", routing_key=asked.properties["reply_to"], correlation_id="7", mandatory=True)
    c.deliveries(1)
    c.do("basic.cancel", consumer_tag="r")
    other.publish(b"late", routing_key=asked.properties["reply_to"], mandatory=True)
    other.drop()


@scenario("an auto-delete queue goes with its last consumer")
def _last_consumer(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q, auto_delete=True)
    c.do("basic.consume", queue=q, consumer_tag="a")
    c.do("basic.consume", queue=q, consumer_tag="b")
    c.do("basic.cancel", consumer_tag="a")
    c.do("queue.declare", queue=q, passive=True, auto_delete=True)
    c.do("basic.cancel", consumer_tag="b")
    c.do("queue.declare", queue=q, passive=True, auto_delete=True)


@scenario("an exclusive queue goes with its connection")
def _exclusive(c: Client, q: str) -> None:
    other = c.another()
    other.do("queue.declare", queue=q, exclusive=True)
    other.drop()
    c.pause(SOON_S)
    c.do("queue.declare", queue=q, passive=True)


@scenario("confirms: several at once, and unroutable ones")
def _confirmed(c: Client, q: str) -> None:
    queue(c, q)
    c.do("confirm.select")
    c.do("confirm.select")
    for key in (q, "nowhere", q):
        c.publish(b"x", routing_key=key)
        c.quiet()
    c.publish(b"x", routing_key="nowhere", mandatory=True, headers={"CC": ["nobody"]})
    c.quiet()


@scenario("a transaction: returned messages come with the commit")
def _tx_returns(c: Client, q: str) -> None:
    queue(c, q)
    c.do("tx.select")
    c.publish(b"1", routing_key="nowhere", mandatory=True)
    c.publish(b"2", routing_key=q, mandatory=True)
    c.publish(b"3", routing_key="nobody", mandatory=True)
    c.quiet()
    c.do("tx.commit")
    c.quiet()
    c.get(q)

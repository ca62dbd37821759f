"""Scenarios that change a running broker by its API: policies, limits, topic permissions, the firehose, events, consumer timeouts.

in: nothing. out: MANAGED: name -> function of a Client with an API and a prefix for the names it uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from tools.differential.client import Client, Typed
from tools.differential.features import LONG, SHORT, SOON_S, dying, queue, scenarios_of

MANAGED: dict[str, Callable[[Client, str], None]] = {}
scenario = scenarios_of(MANAGED)
PLUGINS = ("rabbitmq_management", "rabbitmq_event_exchange")
# milliseconds of RabbitMQ's consumer_timeout, longer than any other scenario holds a delivery, and of the tick with which its channels look
# at it
CONSUMER_TIMEOUT_MS = 60_000
TICK_MS = 500
# seconds after which a time-out is over on a busy machine
ENDED_S = CONSUMER_TIMEOUT_MS / 1000 + 8
CONFIG = f"log.exchange = true\nconsumer_timeout = {CONSUMER_TIMEOUT_MS}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = "
ADVANCED = f"[{{rabbit, [{{channel_tick_interval, {TICK_MS}}}]}}]."
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


def policy(c: Client, q: str, definition: dict[str, Any], *, kind: str = "policies", apply_to: str = "queues", **more: Any) -> str:
    """Sets one for all names with the prefix, and waits until it is applied. Returns its path."""
    path = f"{kind}/%2F/{q}{more.pop('name', 'p')}"
    c.api("PUT", path, {"pattern": "^" + re.escape(q), "definition": definition, "apply-to": apply_to, **more})
    c.pause(SOON_S)
    return path


def told(c: Client, name: str, count: int) -> None:
    """Takes messages that a broker made: their keys and the names of their headers."""
    for _ in range(count):
        before = len(c.lines)
        c.get(name)
        message = c.last
        del c.lines[before:]
        headers = sorted(message.properties.get("headers", {})) if message is not None else []
        c.lines.append(f"{message and message.fields.get('routing_key')} {[one for one in headers if one not in ('pid', 'connection')]}")


# --- policies ---------------------------------------------------------------------------------------------------------------


@scenario("policy: time to live and dead letters come and go")
def _time_to_live(c: Client, q: str) -> None:
    c.do("queue.declare", queue="dead." + q)
    queue(c, q)
    path = policy(c, q, {"message-ttl": SHORT, "dead-letter-exchange": "", "dead-letter-routing-key": "dead." + q})
    c.publish(b"dies", routing_key=q)
    c.get("dead." + q)
    c.api("DELETE", path)
    c.pause(SOON_S)
    c.publish(b"lives", routing_key=q)
    c.pause(SOON_S)
    c.get(q)


@scenario("policy: a length limit drops what is there")
def _length(c: Client, q: str) -> None:
    queue(c, q)
    for number in range(3):
        c.publish(b"%d" % number, routing_key=q)
    policy(c, q, {"max-length": 1})
    c.publish(b"3", routing_key=q)
    c.do("queue.declare", queue=q, passive=True)
    c.get(q)


@scenario("policy: a full queue refuses")
def _refuses(c: Client, q: str) -> None:
    queue(c, q)
    path = policy(c, q, {"max-length": 1, "overflow": "reject-publish"})
    c.do("confirm.select")
    for number in range(2):
        c.publish(b"%d" % number, routing_key=q)
        c.quiet()
    c.api("DELETE", path)
    c.pause(SOON_S)
    c.publish(b"2", routing_key=q)
    c.quiet()
    c.get(q, count=2)


@scenario("policy: an unused queue goes")
def _expires(c: Client, q: str) -> None:
    queue(c, q)
    policy(c, q, {"expires": 500})
    c.pause(2)
    c.do("queue.declare", queue=q, passive=True)


@scenario("policy: an alternate exchange comes and goes")
def _alternate(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange="alt." + q, type="fanout")
    queue(c, "to." + q)
    c.do("queue.bind", queue="to." + q, exchange="alt." + q)
    c.do("exchange.declare", exchange=q, type="direct")
    path = policy(c, q, {"alternate-exchange": "alt." + q}, apply_to="exchanges")
    c.publish(b"x", exchange=q, routing_key="k", mandatory=True)
    c.api("DELETE", path)
    c.pause(SOON_S)
    c.publish(b"x", exchange=q, routing_key="k", mandatory=True)
    c.get("to." + q)


def _counted(arguments: dict[str, Any], policies: tuple[dict[str, Any], ...], c: Client, q: str) -> None:
    """How many of six messages a queue keeps under these policies."""
    queue(c, q, **arguments)
    for number, given in enumerate(policies):
        policy(c, q, name=f"p{number}", **given)
    for number in range(6):
        c.publish(b"%d" % number, routing_key=q)
    c.do("queue.declare", queue=q, passive=True)
    c.get(q)


def _at_most(most: int, **more: Any) -> dict[str, Any]:
    return {"definition": {"max-length": most}, **more}


_TTL = {"definition": {"message-ttl": LONG}}
_OPERATOR = {"kind": "operator-policies"}
for _name, _arguments, _policies in (
    ("the higher priority counts", {}, (_at_most(2, priority=1), _at_most(4, priority=5))),
    ("one of a higher priority hides all of the other", {}, (_at_most(2, priority=1), {**_TTL, "priority": 5})),
    ("one for exchanges is none for queues", {}, (_at_most(2, apply_to="exchanges"),)),
    ("one for all", {}, (_at_most(2, apply_to="all"),)),
    ("an argument and a higher one", {"max_length": 2}, (_at_most(4),)),
    ("an argument and a lower one", {"max_length": 4}, (_at_most(2),)),
    ("an operator's lower one", {}, (_at_most(4), _at_most(2, **_OPERATOR))),
    ("an operator's higher one", {}, (_at_most(2), _at_most(4, **_OPERATOR))),
    ("an operator's alone", {}, (_at_most(2, **_OPERATOR),)),
    ("an operator's and an argument", {"max_length": 4}, (_at_most(2, **_OPERATOR),)),
    ("an operator's adds to the other", {}, (_TTL, _at_most(2, **_OPERATOR))),
):
    MANAGED[f"policies: {_name}"] = partial(_counted, _arguments, _policies)


def _refused_policy(kind: str, value: dict[str, Any], c: Client, q: str) -> None:
    c.api("PUT", f"{kind}/%2F/{q}", {"pattern": "^" + re.escape(q), **value})


for _kind, _name, _value in (
    ("policies", "an unknown key", {"definition": {"no-such-key": 1}}),
    ("policies", "nothing", {"definition": {}}),
    ("policies", "a text for a number", {"definition": {"max-length": "5"}}),
    ("policies", "a negative number", {"definition": {"message-ttl": -1}}),
    ("policies", "an unknown overflow", {"definition": {"overflow": "sometimes"}}),
    ("policies", "a key of dead letters without an exchange", {"definition": {"dead-letter-routing-key": "k"}}),
    ("policies", "an unknown apply-to", {"definition": {"max-length": 1}, "apply-to": "some"}),
    ("policies", "a priority of text", {"definition": {"max-length": 1}, "priority": "high"}),
    ("policies", "a broken pattern", {"pattern": "(", "definition": {"max-length": 1}}),
    ("policies", "no definition", {}),
    ("operator-policies", "what only a policy may say", {"definition": {"dead-letter-exchange": "x"}}),
    ("operator-policies", "a limit", {"definition": {"max-length": 1}}),
):
    MANAGED[f"{_kind}: {_name}"] = partial(_refused_policy, _kind, _value)

# --- limits and permissions -------------------------------------------------------------------------------------------------


def _vhost(c: Client, q: str) -> str:
    name = q + "vhost"
    c.api("PUT", f"vhosts/{name}", {})
    c.api("PUT", f"permissions/{name}/guest", EVERYTHING)
    return name


def _user(c: Client, q: str) -> str:
    name = q + "user"
    c.api("PUT", f"users/{name}", {"password": "secret", "tags": ""})
    c.api("PUT", f"permissions/%2F/{name}", EVERYTHING)
    return name


@scenario("limits: queues of a virtual host")
def _queues_max(c: Client, q: str) -> None:
    vhost = _vhost(c, q)
    c.api("PUT", f"vhost-limits/{vhost}/max-queues", {"value": 1})
    other = c.another(vhost=vhost)
    for name in "aab":
        other.do("queue.declare", queue=q + name)
    other.drop()
    other = c.another(vhost=vhost)
    c.api("DELETE", f"vhost-limits/{vhost}/max-queues")
    other.do("queue.declare", queue=q + "b")
    other.drop()


@scenario("limits: connections of a virtual host")
def _connections_max(c: Client, q: str) -> None:
    vhost = _vhost(c, q)
    for value in (0, 1):
        c.api("PUT", f"vhost-limits/{vhost}/max-connections", {"value": value})
        first = c.attempt(vhost=vhost)
        second = c.attempt(vhost=vhost)
        for one in (first, second):
            if one is not None:
                one.drop()
        c.pause(SOON_S)


@scenario("limits: connections of a user")
def _user_connections(c: Client, q: str) -> None:
    user = _user(c, q)
    c.api("PUT", f"user-limits/{user}/max-connections", {"value": 1})
    first = c.attempt(user=user, password="secret")
    c.attempt(user=user, password="secret")
    if first is not None:
        first.drop()


@scenario("limits: channels of a user")
def _user_channels(c: Client, q: str) -> None:
    user = _user(c, q)
    c.api("PUT", f"user-limits/{user}/max-channels", {"value": 2})
    other = c.another(user=user, password="secret")
    other.do("channel.open", 2)
    other.do("channel.close", 2, reply_code=200, reply_text="")
    c.pause(SOON_S)
    other.do("channel.open", 2)
    other.do("channel.open", 3)
    other.drop()


for _path, _value in (("vhost-limits", 5), ("vhost-limits", "five"), ("vhost-limits", -1), ("user-limits", 5), ("user-limits", "five")):

    def _limit(c: Client, q: str, kind: str = _path, value: Any = _value) -> None:
        name = _vhost(c, q) if kind == "vhost-limits" else _user(c, q)
        for limit in ("max-connections", "max-queues", "max-channels", "no-such-limit"):
            c.api("PUT", f"{kind}/{name}/{limit}", {"value": value})

    MANAGED[f"{_path}: {_value!r}"] = _limit


@scenario("permissions of topics")
def _topics(c: Client, q: str) -> None:
    user = _user(c, q)
    c.do("exchange.declare", exchange=q, type="topic")
    c.api("PUT", f"topic-permissions/%2F/{user}", {"exchange": q, "write": "^a[.]", "read": "^b[.]"})
    other = c.another(user=user, password="secret")
    other.do("queue.declare", queue=q)
    other.do("queue.bind", queue=q, exchange=q, routing_key="b.x")
    other.do("queue.bind", queue=q, exchange=q, routing_key="a.x")
    for key in ("a.x", "b.x"):
        other.publish(b"x", exchange=q, routing_key=key)
    other.publish(b"x", exchange="amq.topic", routing_key="b.x")
    other.drop()


@scenario("permissions that are taken away")
def _taken_away(c: Client, q: str) -> None:
    user = _user(c, q)
    other = c.another(user=user, password="secret")
    other.do("queue.declare", queue=q)
    c.api("PUT", f"permissions/%2F/{user}", {"configure": "", "write": "^$", "read": ".*"})
    other.do("queue.declare", queue=q + "2")
    other.do("queue.bind", queue=q, exchange="amq.direct", routing_key="k")
    other.do("basic.get", queue=q)
    other.drop()


@scenario("a virtual host is deleted")
def _deleted(c: Client, q: str) -> None:
    vhost = _vhost(c, q)
    other = c.another(vhost=vhost)
    other.do("queue.declare", queue=q)
    c.api("DELETE", f"vhosts/{vhost}")
    other.quiet()
    other.drop()
    c.attempt(vhost=vhost)


# --- what the broker tells --------------------------------------------------------------------------------------------------


@scenario("the firehose")
def _firehose(c: Client, q: str) -> None:
    vhost = _vhost(c, q)
    other = c.another(vhost=vhost)
    for name in ("trace", "t"):
        other.do("queue.declare", queue=name)
    other.do("queue.bind", queue="trace", exchange="amq.rabbitmq.trace", routing_key="#")
    c.api("PUT", f"vhosts/{vhost}", {"tracing": True})
    other.drop()
    other = c.another(vhost=vhost)
    for exchange, key, headers in (("", "t", {}), ("amq.direct", "nowhere", {"CC": ["t"]})):
        other.publish(b"body", exchange=exchange, routing_key=key, headers=headers, message_id="m")
    other.get("t")
    c.api("PUT", f"vhosts/{vhost}", {"tracing": False})
    other.drop()
    other = c.another(vhost=vhost)
    other.get("trace", count=3)
    other.do("basic.get", queue="trace")
    other.drop()


def _event(keys: tuple[str, ...], count: int, act: Callable[[Client, str], object], c: Client, q: str) -> None:
    queue(c, q + "events", exclusive=True)
    other = c.another()
    act(other, q + "before")  # nobody hears of it
    c.pause(SOON_S)
    for key in keys:
        c.do("queue.bind", queue=q + "events", exchange="amq.rabbitmq.event", routing_key=key)
    del c.lines[:]
    act(other, q)
    del c.lines[:]
    told(c, q + "events", count)
    other.drop()


def _queue_comes_and_goes(c: Client, q: str) -> None:
    c.do("queue.declare", queue=q)
    c.do("queue.delete", queue=q)


def _exchange_comes_and_goes(c: Client, q: str) -> None:
    c.do("exchange.declare", exchange=q, type="fanout")
    c.do("exchange.delete", exchange=q)


def _user_comes_and_goes(c: Client, q: str) -> None:
    c.api("PUT", f"users/{q}", {"password": "p", "tags": "monitoring"})
    c.api("PUT", f"permissions/%2F/{q}", EVERYTHING)
    c.api("DELETE", f"users/{q}")


def _policy_comes_and_goes(c: Client, q: str) -> None:
    c.api("PUT", f"policies/%2F/{q}", {"pattern": "^nothing$", "definition": {"max-length": 1}})
    c.api("DELETE", f"policies/%2F/{q}")


for _name, _keys, _count, _act in (
    ("queues", ("queue.created", "queue.deleted"), 2, _queue_comes_and_goes),
    ("exchanges", ("exchange.created", "exchange.deleted"), 2, _exchange_comes_and_goes),
    ("users", ("user.created", "user.deleted", "user.tags.set"), 3, _user_comes_and_goes),
    ("policies", ("policy.#",), 2, _policy_comes_and_goes),
):
    MANAGED[f"events: {_name}"] = partial(_event, _keys, _count, _act)


@scenario("the log as messages")
def _log(c: Client, q: str) -> None:
    queue(c, q, exclusive=True)
    c.do("queue.bind", queue=q, exchange="amq.rabbitmq.log", routing_key="*")
    c.another().drop()
    del c.lines[:]
    c.get(q)
    got = c.last
    del c.lines[:]
    if got is not None:  # whose connection it was: others connect meanwhile
        properties = {name: value for name, value in got.properties.items() if name != "timestamp"}
        c.lines.append(
            f"{got.fields['routing_key'] in ('debug', 'info', 'warning', 'error')} {sorted(got.properties)} {c._stable(properties)}"
        )
    c.do("queue.unbind", queue=q, exchange="amq.rabbitmq.log", routing_key="*")


# --- consumer timeouts ------------------------------------------------------------------------------------------------------


@scenario("consumer timeout: a delivery is held too long")
def _held(c: Client, q: str) -> None:
    queue(c, q, consumer_timeout=Typed("l", CONSUMER_TIMEOUT_MS))
    other = c.another()
    other.do("basic.qos", prefetch_count=1)
    other.do("basic.consume", queue=q, consumer_tag="c")
    c.publish(b"x", routing_key=q)
    other.deliveries(1)
    other.until_closed(ENDED_S)
    other.drop()
    c.get(q)


@scenario("consumer timeout: acknowledged in time")
def _in_time(c: Client, q: str) -> None:
    queue(c, q, consumer_timeout=Typed("l", CONSUMER_TIMEOUT_MS))
    other = c.another()
    other.do("basic.consume", queue=q, consumer_tag="c")
    c.publish(b"x", routing_key=q)
    other.deliveries(1)
    c.pause(1)
    other.say("basic.ack", delivery_tag=1)
    other.until_closed(ENDED_S)
    other.drop()
    c.do("basic.get", queue=q)


# --- dead letters at-least-once ---------------------------------------------------------------------------------------------


@scenario("quorum queue: dead letters at-least-once")
def _at_least_once(c: Client, q: str) -> None:
    dying(c, q, True, queue_type="quorum", overflow="reject-publish", dead_letter_strategy="at-least-once")
    c.do("confirm.select")
    c.publish(b"x", routing_key=q, expiration=str(SHORT))
    c.quiet()
    c.get(q + ".dead")
    c.do("queue.delete", queue=q)

"""Property: exchanges (spec 1.6 and RabbitMQ's extensions) are declared, refused, bound and routed as RabbitMQ does."""

from __future__ import annotations

import pytest

from tests.support.broker import unique
from tests.support.rawamqp import RawChannel, RawConnection, Typed


def take(ch: RawChannel, queue: str) -> list[bytes]:
    """Everything ready in the queue, in order."""
    out = []
    while (got := ch.call("basic.get", queue=queue, no_ack=True)).name == "basic.get-ok":
        out.append(got.body)
    return out


def confirm(ch: RawChannel, count: int = 1) -> None:
    """Waits for confirms up to tag `count`."""
    seen = 0
    while seen < count:
        seen = ch.expect("basic.ack").delivery_tag


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_predeclared_exchanges(ch: RawChannel, kind: str) -> None:
    """amq.direct and the others exist, durable; declaring them passively works."""
    ch.call("exchange.declare", exchange=f"amq.{kind}", type=kind, passive=True)
    ch.call("exchange.declare", exchange=f"amq.{kind}", type=kind, durable=True)


def test_reserved_names(ch: RawChannel) -> None:
    """A new name that starts with amq. is refused with 403."""
    ch.refuse(
        403,
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        "exchange.declare",
        exchange="amq.mine",
        type="direct",
    )


def test_default_exchange_is_not_touched(ch: RawChannel, name: str) -> None:
    """Declare, delete and bind of the default exchange are refused with 403."""
    ch.queue(name, exclusive=True)
    text = "ACCESS_REFUSED - operation not permitted on the default exchange"
    ch.refuse(403, text, "exchange.declare", exchange="", type="direct")
    ch.refuse(403, text, "exchange.delete", exchange="")
    ch.refuse(403, text, "queue.bind", queue=name, exchange="", routing_key="x")
    ch.refuse(403, text, "queue.unbind", queue=name, exchange="", routing_key=name)


def test_passive_declare_of_nothing(ch: RawChannel, name: str) -> None:
    """404 with RabbitMQ's text."""
    ch.refuse(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'", "exchange.declare", exchange=name, type="direct", passive=True)


def test_inequivalent_type(ch: RawChannel, name: str) -> None:
    """Redeclaring with another type is 406 and names both."""
    ch.call("exchange.declare", exchange=name, type="direct", auto_delete=True)
    ch.refuse(
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'fanout' but current is 'direct'",
        "exchange.declare",
        exchange=name,
        type="fanout",
        auto_delete=True,
    )
    ch.call("exchange.delete", exchange=name)


@pytest.mark.parametrize("argument", ["durable", "auto_delete", "internal"])
def test_inequivalent_flag(ch: RawChannel, name: str, argument: str) -> None:
    """Redeclaring with another flag is 406 and names it."""
    ch.call("exchange.declare", exchange=name, type="direct")
    ch.refuse(
        406,
        f"inequivalent arg '{argument}' for exchange '{name}' in vhost '/': received 'true' but current is 'false'",
        "exchange.declare",
        exchange=name,
        type="direct",
        **{argument: True},
    )
    ch.call("exchange.delete", exchange=name)


def test_unknown_type(conn: RawConnection, name: str) -> None:
    """An exchange type that does not exist is a connection error 503."""
    conn.channel(1).send("exchange.declare", exchange=name, type="no-such")
    conn.expect_close(503, "COMMAND_INVALID - unknown exchange type 'no-such'")


def test_publish_to_an_unknown_exchange(ch: RawChannel, name: str) -> None:
    """404 closes the channel."""
    ch.publish(b"x", exchange=name, routing_key="k")
    ch.expect_close(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")


def test_bind_unknown(ch: RawChannel, name: str) -> None:
    """Binding to or from something that is not there is 404."""
    ch.refuse(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", "queue.bind", queue=name, exchange="amq.direct")
    ch.queue(name, exclusive=True)
    ch.refuse(404, f"NOT_FOUND - no exchange '{name}x' in vhost '/'", "queue.bind", queue=name, exchange=name + "x")


def test_direct(ch: RawChannel, name: str) -> None:
    """Direct: equal keys only; the same binding twice delivers once."""
    ch.call("exchange.declare", exchange=name, type="direct", auto_delete=True)
    ch.queue(name, exclusive=True)
    for key in ("a", "a", "b"):
        ch.call("queue.bind", queue=name, exchange=name, routing_key=key)
    for key in ("a", "b", "c", "A", ""):
        ch.publish(key.encode(), exchange=name, routing_key=key)
    assert take(ch, name) == [b"a", b"b"]


def test_fanout(ch: RawChannel, name: str) -> None:
    """Fanout: every queue once, whatever the key."""
    ch.call("exchange.declare", exchange=name, type="fanout", auto_delete=True)
    for n in "12":
        ch.queue(name + n, exclusive=True)
        for key in ("", "k"):
            ch.call("queue.bind", queue=name + n, exchange=name, routing_key=key)
    ch.publish(b"x", exchange=name, routing_key="whatever")
    assert take(ch, name + "1") == take(ch, name + "2") == [b"x"]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("#", ["", "a", "a.b.c"], []),
        ("*", ["a", ""], ["a.b", "."]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c", "A.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab", ""]),
        ("#.z", ["z", "a.z", "a.b.z"], ["z.a", ""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "az"]),
        ("*.*.#", ["a.b", "a.b.c.d"], ["a"]),
        ("#.*.#", ["a", "a.b.c"], []),
        ("a.b", ["a.b"], ["a.b.", "a", "a.b.c"]),
    ],
)
def test_topic(ch: RawChannel, name: str, pattern: str, yes: list[str], no: list[str]) -> None:
    """Topic: words between dots, * is one word, # is any number. (RabbitMQ: the empty key has no word.)"""
    ch.call("exchange.declare", exchange=name, type="topic", auto_delete=True)
    ch.queue(name, exclusive=True)
    ch.call("queue.bind", queue=name, exchange=name, routing_key=pattern)
    keys = [k for k in yes + no if k or pattern != "*"]
    for key in keys:
        ch.publish(key.encode(), exchange=name, routing_key=key)
    assert take(ch, name) == [k.encode() for k in yes if k in keys]


def test_topic_delivers_once_for_overlapping_bindings(ch: RawChannel, name: str) -> None:
    """Several matching bindings of one queue give one message."""
    ch.call("exchange.declare", exchange=name, type="topic", auto_delete=True)
    ch.queue(name, exclusive=True)
    for pattern in ("#", "a.#", "*.b", "a.b"):
        ch.call("queue.bind", queue=name, exchange=name, routing_key=pattern)
    ch.publish(b"1", exchange=name, routing_key="a.b")
    assert take(ch, name) == [b"1"]
    ch.call("queue.unbind", queue=name, exchange=name, routing_key="#")
    ch.publish(b"2", exchange=name, routing_key="x.y")
    ch.publish(b"3", exchange=name, routing_key="x.b")
    assert take(ch, name) == [b"3"]


@pytest.mark.parametrize(
    ("arguments", "headers", "match"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
        ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 3}, False),
        ({"x-match": "all", "a": None}, {"a": "anything"}, True),
        ({"x-match": "all", "a": None}, {"b": 1}, False),
        ({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {}, False),
        ({"a": True}, {"a": False}, False),
        ({"a": Typed("b", 5)}, {"a": Typed("l", 5)}, True),
    ],
)
def test_headers(ch: RawChannel, name: str, arguments: dict[str, object], headers: dict[str, object], match: bool) -> None:
    """Headers: all, any and their -with-x forms; void matches any value; integers compare by value."""
    ch.call("exchange.declare", exchange=name, type="headers", auto_delete=True)
    ch.queue(name, exclusive=True)
    ch.call("queue.bind", queue=name, exchange=name, arguments=arguments)
    ch.publish(b"1", exchange=name, headers=headers)
    assert take(ch, name) == ([b"1"] if match else [])


def test_headers_wrong_match(ch: RawChannel, name: str) -> None:
    """An unknown x-match is 406."""
    ch.queue(name, exclusive=True)
    text = "PRECONDITION_FAILED - Invalid x-match field value"
    ch.refuse(406, text, "queue.bind", queue=name, exchange="amq.headers", arguments={"x-match": "some"})


def test_default_exchange_routes_by_queue_name(ch: RawChannel, name: str) -> None:
    """Every queue is bound to the default exchange by its name."""
    ch.queue(name, exclusive=True)
    ch.publish(b"1", routing_key=name)
    assert take(ch, name) == [b"1"]


def test_exchange_to_exchange(ch: RawChannel, name: str) -> None:
    """exchange.bind: a message reaches a queue once through however many paths, and unbind ends it."""
    for x, kind in (("src", "topic"), ("mid", "fanout"), ("dst", "fanout")):
        ch.call("exchange.declare", exchange=name + x, type=kind)
    ch.queue(name, exclusive=True)
    ch.call("exchange.bind", destination=name + "mid", source=name + "src", routing_key="a.*")
    ch.call("exchange.bind", destination=name + "dst", source=name + "mid")
    ch.call("exchange.bind", destination=name + "dst", source=name + "src", routing_key="#")
    ch.call("exchange.bind", destination=name + "mid", source=name + "dst")  # a cycle
    ch.call("queue.bind", queue=name, exchange=name + "dst")
    ch.publish(b"1", exchange=name + "src", routing_key="a.b")
    assert take(ch, name) == [b"1"]
    ch.call("exchange.unbind", destination=name + "dst", source=name + "src", routing_key="#")
    ch.publish(b"2", exchange=name + "src", routing_key="b")
    ch.publish(b"3", exchange=name + "src", routing_key="a.c")
    assert take(ch, name) == [b"3"]
    for x in ("src", "mid", "dst"):
        ch.call("exchange.delete", exchange=name + x)
    ch.publish(b"4", exchange=name + "src", routing_key="a.b")
    ch.expect_close(404)


def test_alternate_exchange(ch: RawChannel, name: str) -> None:
    """What an exchange can't route goes to its alternate exchange; mandatory is satisfied by it."""
    ch.call("exchange.declare", exchange=name + "ae", type="fanout")
    ch.call("exchange.declare", exchange=name, type="direct", arguments={"alternate-exchange": name + "ae"})
    ch.queue(name, exclusive=True)
    ch.queue(name + "rest", exclusive=True)
    ch.call("queue.bind", queue=name, exchange=name, routing_key="k")
    ch.call("queue.bind", queue=name + "rest", exchange=name + "ae")
    ch.call("confirm.select")
    ch.publish(b"1", exchange=name, routing_key="k", mandatory=True)
    ch.publish(b"2", exchange=name, routing_key="other", mandatory=True)
    confirm(ch, 2)
    assert (take(ch, name), take(ch, name + "rest")) == ([b"1"], [b"2"])
    # Of several keys (CC) one is enough to keep the alternate out.
    ch.publish(b"copied", exchange=name, routing_key="other", headers={"CC": ["k"]})
    ch.publish(b"lost", exchange=name, routing_key="other", headers={"CC": ["nobody"]})
    confirm(ch, 4)
    assert (take(ch, name), take(ch, name + "rest")) == ([b"copied"], [b"lost"])
    ch.call("queue.unbind", queue=name + "rest", exchange=name + "ae")
    ch.publish(b"3", exchange=name, routing_key="other", mandatory=True)
    assert ch.expect("basic.return").reply_code == 312
    for x in ("", "ae"):
        ch.call("exchange.delete", exchange=name + x)


def test_internal_exchange(ch: RawChannel, name: str) -> None:
    """Publishing to an internal exchange is 403; messages reach it by a binding."""
    ch.call("exchange.declare", exchange=name + "in", type="fanout", internal=True)
    ch.call("exchange.declare", exchange=name, type="fanout")
    ch.call("exchange.bind", destination=name + "in", source=name)
    ch.queue(name, exclusive=True)
    ch.call("queue.bind", queue=name, exchange=name + "in")
    ch.publish(b"1", exchange=name)
    assert take(ch, name) == [b"1"]
    ch.publish(b"2", exchange=name + "in")
    ch.expect_close(403, f"ACCESS_REFUSED - cannot publish to internal exchange '{name}in' in vhost '/'")
    ch = ch.connection.channel(2)
    for x in ("in", ""):
        ch.call("exchange.delete", exchange=name + x)


def test_auto_delete(ch: RawChannel, name: str) -> None:
    """An auto-delete exchange goes with its last binding."""
    ch.call("exchange.declare", exchange=name, type="direct", auto_delete=True)
    ch.queue(name, exclusive=True)
    for key in "ab":
        ch.call("queue.bind", queue=name, exchange=name, routing_key=key)
    ch.call("queue.unbind", queue=name, exchange=name, routing_key="a")
    ch.call("exchange.declare", exchange=name, type="direct", passive=True)
    ch.call("queue.unbind", queue=name, exchange=name, routing_key="b")
    ch.refuse(404, "", "exchange.declare", exchange=name, type="direct", passive=True)


def test_auto_delete_by_deleting_the_queue(ch: RawChannel, name: str) -> None:
    """Deleting the last bound queue deletes the exchange as well."""
    ch.call("exchange.declare", exchange=name, type="direct", auto_delete=True)
    ch.queue(name)
    ch.call("queue.bind", queue=name, exchange=name, routing_key="a")
    ch.call("queue.delete", queue=name)
    ch.refuse(404, "", "exchange.declare", exchange=name, type="direct", passive=True)


def test_delete(ch: RawChannel, name: str) -> None:
    """Delete is idempotent; if-unused refuses a bound exchange with 406."""
    ch.call("exchange.delete", exchange=name)
    ch.call("exchange.declare", exchange=name, type="direct")
    queue = ch.queue(unique(), exclusive=True)
    ch.call("queue.bind", queue=queue, exchange=name, routing_key="k")
    text = f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use"
    ch.refuse(406, text, "exchange.delete", exchange=name, if_unused=True)
    ch.call("queue.unbind", queue=queue, exchange=name, routing_key="k")
    ch.call("exchange.delete", exchange=name, if_unused=True)
    ch.refuse(404, "", "exchange.declare", exchange=name, type="direct", passive=True)


def test_no_wait(ch: RawChannel, name: str) -> None:
    """no-wait methods take effect in order and give no answer."""
    ch.send("exchange.declare", exchange=name, type="direct", no_wait=True)
    ch.send("queue.declare", queue=name, exclusive=True, no_wait=True)
    ch.send("queue.bind", queue=name, exchange=name, routing_key="k", no_wait=True)
    ch.publish(b"1", exchange=name, routing_key="k")
    assert take(ch, name) == [b"1"]
    ch.send("exchange.delete", exchange=name, no_wait=True)
    ch.refuse(404, "", "exchange.declare", exchange=name, type="direct", passive=True)


def test_cc_and_bcc(ch: RawChannel, name: str) -> None:
    """CC and BCC headers add routing keys; each queue gets one copy; BCC is not delivered."""
    for n in "123":
        ch.queue(name + n, exclusive=True)
    ch.publish(b"x", routing_key=name + "1", headers={"CC": [name + "2", name + "1"], "BCC": [name + "3"], "keep": 1})
    for n in "123":
        got = ch.call("basic.get", queue=name + n, no_ack=True)
        assert got.body == b"x"
        assert got.routing_key == name + "1"
        assert got.properties["headers"] == {"CC": [name + "2", name + "1"], "keep": 1}
        assert take(ch, name + n) == []


def test_cc_of_a_wrong_type(ch: RawChannel, name: str) -> None:
    """A CC header that is no array is 406."""
    ch.publish(b"x", routing_key=name, headers={"CC": "not-a-list"})
    ch.expect_close(406, "PRECONDITION_FAILED - ")

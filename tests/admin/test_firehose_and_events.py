"""The firehose and the event exchange: what they say is what RabbitMQ says; off or full they are felt by nobody; no secret is in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner

from flintmq.cli.main import cli
from flintmq.loglines import LineLogger, line_logger
from flintmq.testing.broker import Broker
from tests.support.broker import wait_until

from .conftest import Client, basic


class Api(Client):
    """Puts and deletes, too."""

    def put(self, path: str, value: Any, **who: str) -> Any:
        return self.request("PUT", path, json.dumps(value).encode(), basic(**who))

    def delete(self, path: str) -> Any:
        return self.request("DELETE", path)


@pytest.fixture
def broker() -> Iterator[Any]:
    with Broker(limits={"housekeeping_ms": 20}, http_port=0) as made:
        yield made


@pytest.fixture
def api(broker: Broker) -> Api:
    return Api(broker)


@pytest.fixture
def open_channel(broker: Broker) -> Iterator[Callable[..., Any]]:
    opened = []

    def make(**options: Any) -> Any:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, **options))
        opened.append(connection)
        return connection.channel()

    yield make
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def ch(open_channel: Callable[..., Any]) -> Any:
    return open_channel()


def listen(ch: Any, exchange: str, key: str = "#") -> str:
    name = str(ch.queue_declare("", exclusive=True).method.queue)
    ch.queue_bind(name, exchange, key)
    return name


def drained(ch: Any, queue: str) -> list[Any]:
    found = []
    while (got := ch.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[0].routing_key, got[1], got[2]))
    return found


def take(ch: Any, queue: str, count: int) -> list[Any]:
    """(key, properties, body) of so many messages; no more are there."""
    found: list[Any] = []

    def more() -> bool:
        found.extend(drained(ch, queue))
        return len(found) >= count

    wait_until(more, 20, 0.01, f"{count} messages")
    assert len(found) == count, [key for key, _, _ in found]
    return found


# --- firehose -------------------------------------------------------------------------------------------------------------


def ctl(broker: Any, *words: str) -> str:
    result = CliRunner().invoke(cli, ["ctl", "--uri", f"http://127.0.0.1:{broker.node.http_port}", *words])
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_the_firehose_copies_what_is_published_and_delivered(broker: Any, api: Api, open_channel: Callable[..., Any]) -> None:
    """The conversation, the keys and the headers are those that RabbitMQ 3.10 gave."""
    listener, ch = open_channel(), open_channel()
    trace = listen(listener, "amq.rabbitmq.trace")
    ch.queue_declare("t")
    ch.queue_bind("t", "amq.fanout")
    properties = pika.BasicProperties(headers={"a": 1}, message_id="m", delivery_mode=2)
    ch.basic_publish("amq.fanout", "rk", b"before", properties)  # its route is cached, and the firehose is off
    assert ch.basic_get("t", auto_ack=True)[2] == b"before"
    assert ctl(broker, "trace_on").endswith("amq.rabbitmq.trace.\ntrace_on: done\n") and api.get("/api/vhosts/%2F").json["tracing"] is True
    ch.basic_publish("amq.fanout", "rk", b"body", properties)
    assert ch.basic_get("t", auto_ack=True)[2] == b"body"
    ch.basic_publish("", "t", b"body2")
    for _method, _properties, body in ch.consume("t", auto_ack=True):
        assert body == b"body2"
        break
    ch.cancel()
    published, delivered, second, consumed = take(listener, trace, 4)
    common = {
        "exchange_name": "amq.fanout",
        "routing_keys": ["rk"],
        "properties": {"headers": {"a": 1}, "message_id": "m", "delivery_mode": 2},
        "node": broker.node.broker.node_name,
        "vhost": "/",
        "connection": published[1].headers["connection"],
        "channel": 1,
        "user": "guest",
    }
    assert "127.0.0.1:" in common["connection"]
    assert (published[0], published[1].headers, published[2]) == ("publish.amq.fanout", common | {"routed_queues": ["t"]}, b"body")
    assert (delivered[0], delivered[1].headers, delivered[2]) == ("deliver.t", common | {"redelivered": 0}, b"body")
    assert (second[0], second[1].headers["routed_queues"], second[2]) == ("publish.", ["t"], b"body2")
    assert (consumed[0], consumed[1].headers["exchange_name"], consumed[2]) == ("deliver.t", "", b"body2")
    ctl(broker, "trace_off")
    ch.basic_publish("amq.fanout", "rk", b"after", properties)
    assert ch.basic_get("t", auto_ack=True)[2] == b"after"
    take(listener, trace, 0)


def test_routes_stay_cached_and_only_its_virtual_host_is_traced(broker: Any, api: Api, ch: Any) -> None:
    api.put("/api/vhosts/other", {})
    trace = listen(ch, "amq.rabbitmq.trace")
    ch.queue_declare("t")
    cache = broker.node.broker.routes.caches
    assert api.put("/api/vhosts/other", {"tracing": True}).status == 204
    ch.basic_publish("", "t", b"x")
    ch.basic_get("t", auto_ack=True)
    assert cache["/", ""].route_count >= 1 and api.get("/api/vhosts/%2F").json["tracing"] is False
    api.put("/api/vhosts/%2F", {"tracing": True})
    assert cache["/", ""].route_count >= 1
    api.put("/api/vhosts/%2F", {})  # says nothing of it
    assert api.get("/api/vhosts/%2F").json["tracing"] is True
    ch.basic_publish("", "t", b"x")
    ch.basic_get("t", auto_ack=True)
    take(ch, trace, 2)
    assert api.put("/api/vhosts/%2F", {"tracing": "yes"}).status == 400
    api.put("/api/vhosts/%2F", {"tracing": False})
    ch.basic_publish("", "t", b"x")
    ch.basic_get("t", auto_ack=True)
    assert cache["/", ""].route_count >= 1
    take(ch, trace, 0)


def test_nothing_is_copied_while_nobody_reads(broker: Any, api: Api, ch: Any) -> None:
    """A binding that comes later has what comes after it."""
    api.put("/api/vhosts/%2F", {"tracing": True})
    ch.queue_declare("t")
    for _ in range(2):
        ch.basic_publish("", "t", b"x")
        assert ch.basic_get("t", auto_ack=True)[2] == b"x"
    trace = listen(ch, "amq.rabbitmq.trace")
    ch.basic_publish("", "t", b"y")
    assert [body for _, _, body in take(ch, trace, 1)] == [b"y"]
    ch.queue_unbind(trace, "amq.rabbitmq.trace", "#")
    ch.queue_bind(trace, "amq.rabbitmq.trace", "deliver.*")
    assert ch.basic_get("t", auto_ack=True)[2] == b"y"
    assert [key for key, _, _ in take(ch, trace, 1)] == ["deliver.t"]


def test_a_traced_message_may_be_anything(broker: Any, api: Api, ch: Any) -> None:
    trace = listen(ch, "amq.rabbitmq.trace")
    api.put("/api/vhosts/%2F", {"tracing": True})
    ch.queue_declare("q" * 255)
    bodies = [b"", b"\x00" * 300_000]
    for body in bodies:
        ch.basic_publish(
            "", "q" * 255, body, pika.BasicProperties(headers={"k": [1, {"x": None}], "l": "ü" * 9000}, timestamp=5, priority=3)
        )
    assert [body for _, _, body in take(ch, trace, 2)] == bodies
    for body in bodies:
        assert ch.basic_get("q" * 255, auto_ack=True)[2] == body
    found = take(ch, trace, 2)
    assert found[0][1].headers["properties"]["headers"]["k"] == [1, {"x": None}] and len(found[0][0]) == 255


def test_limits_of_queues_bound_what_copies_hold_and_refusals_reach_nobody(broker: Any, api: Api, ch: Any) -> None:
    """A full queue of copies refuses them, and is no reason to refuse the message; dropped heads of copies are dead-lettered."""
    ch.queue_declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    ch.queue_declare("blocks", arguments={"x-max-length": 1, "x-overflow": "block"})
    ch.queue_declare("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ch.queue_declare("short", arguments={"x-max-length": 1, **letters})
    for queue in ("full", "blocks", "short"):
        ch.queue_bind(queue, "amq.rabbitmq.trace", "#")
    api.put("/api/vhosts/%2F", {"tracing": True})
    ch.queue_declare("t")
    ch.confirm_delivery()
    for number in range(20):
        ch.basic_publish("", "t", b"%d" % number)
        assert ch.basic_get("t", auto_ack=True)[2] == b"%d" % number
    api.put("/api/vhosts/%2F", {"tracing": False})
    for queue in ("full", "blocks"):
        assert [key for key, _, _ in take(ch, queue, 1)] == ["publish."]
    assert [(key, body) for key, _, body in take(ch, "short", 1)] == [("deliver.t", b"19")]
    assert len(take(ch, "dead", 39)) == 39
    counters = broker.node.broker.counters
    wait_until(lambda: counters.drops["maxlen"] >= 2 * 39, 20, 0.01, "refused copies are counted")
    assert counters.dead_lettered["maxlen"] >= 39 and counters.drops["maxlen"] < 3 * 39
    assert broker.node.broker.counters.drops["refused"] == 0


def test_copies_of_large_bodies_wait_in_bounded_memory_and_block_nobody() -> None:
    with Broker(http_port=0, limits={"trace_bytes_max": 3_000_000}) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        ch = connection.channel()
        trace = listen(ch, "amq.rabbitmq.trace")
        Api(broker).put("/api/vhosts/%2F", {"tracing": True})
        ch.queue_declare("t", arguments={"x-max-length": 1})
        ch.confirm_delivery()
        for size in (2_000_000, 1_048_576, 4_000_000):
            ch.basic_publish("", "t", bytes(size))
            if size < 3_000_000:
                (copy,) = take(ch, trace, 1)
                assert len(copy[2]) == size and copy[1].headers["routed_queues"] == ["t"]
        take(ch, trace, 0)
        assert broker.node.broker.counters.drops["trace"] == 1
        connection.close()


def test_copies_follow_exchanges_that_look_at_headers(api: Api, ch: Any) -> None:
    for kind, arguments in (("headers", {"x-match": "all", "redelivered": 0}), ("x-random", None), ("x-recent-history", None)):
        queue = str(ch.queue_declare("", exclusive=True).method.queue)
        ch.exchange_declare(kind, kind)
        ch.queue_bind(queue, kind, "#", arguments)
        ch.exchange_bind(kind, "amq.rabbitmq.trace", "#")
        api.put("/api/vhosts/%2F", {"tracing": True})
        ch.queue_declare("t")
        ch.basic_publish("", "t", b"x")
        assert ch.basic_get("t", auto_ack=True)[2] == b"x"
        copies = take(ch, queue, 1 if kind == "headers" else 2)
        assert copies[-1][0] == "deliver.t" and copies[-1][1].headers["exchange_name"] == "" and copies[-1][2] == b"x"
        api.put("/api/vhosts/%2F", {"tracing": False})
        ch.exchange_delete(kind)


def test_what_is_traced_of_replies_schedules_and_transactions(api: Api, ch: Any) -> None:
    trace = listen(ch, "amq.rabbitmq.trace")
    api.put("/api/vhosts/%2F", {"tracing": True})
    ch.queue_declare("t")
    ch.queue_declare("u")
    headers = {"CC": ["u", 5], "BCC": ["v"]}
    ch.basic_publish("", "t", b"copied", pika.BasicProperties(headers=headers))
    ch.basic_publish("", "t", b"later", pika.BasicProperties(headers={**headers, "x-delay": 1}))
    (copied, later) = (one[1].headers for one in take(ch, trace, 2))
    assert (copied["routing_keys"], sorted(copied["routed_queues"])) == (["t", "u", "v"], ["t", "u"])
    assert copied["properties"]["headers"] == {"CC": ["u", 5]}
    assert (later["routing_keys"], later["routed_queues"]) == (["t", "u", "v"], [])
    ch.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
    ch.basic_publish("", "t", b"ask", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    (asked,) = take(ch, trace, 1)
    reply_to = asked[1].headers["properties"]["reply_to"]
    assert reply_to.startswith("amq.rabbitmq.reply-to.")
    ch.basic_publish("", reply_to, b"answer")
    (answered,) = take(ch, trace, 1)  # its delivery from a queue that nobody declared is not traced
    assert (answered[0], answered[1].headers["routed_queues"]) == ("publish.", [reply_to])
    ch.tx_select()
    ch.basic_publish("", "t", b"back")
    ch.tx_rollback()
    assert [body for _, _, body in take(ch, trace, 1)] == [b"back"]


def test_a_stream_may_read_the_firehose(tmp_path: Path) -> None:
    """Also of deliveries to a connection that sends nothing: what its pass logged is told to the log."""
    with Broker(data_dir=tmp_path) as broker, pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as connection:
        ch = connection.channel()
        ch.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        ch.queue_bind("s", "amq.rabbitmq.trace", "deliver.#")
        ch.queue_declare("t")
        broker.node.broker.tracer.turn("/", True)
        taken: list[bytes] = []
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as silent:
            silent.channel().basic_consume("t", lambda *args: taken.append(args[3]), auto_ack=True)
            for number in range(5):
                ch.basic_publish("", "t", b"%d" % number)
            while len(taken) < 5:
                silent.process_data_events(1)
        broker.node.broker.tracer.turn("/", False)
        ch.basic_qos(prefetch_count=10)
        copies = [
            (method, properties, body)
            for _, (method, properties, body) in zip(range(5), ch.consume("s", arguments={"x-stream-offset": "first"}), strict=False)
        ]
        assert [body for _, _, body in copies] == taken and {method.routing_key for method, _, _ in copies} == {"deliver.t"}


def test_who_may_read_the_firehose_and_who_turns_it_on(broker: Any, api: Api, open_channel: Callable[..., Any]) -> None:
    for user, tags, read in (("tenant", "", "^mine"), ("keeper", "monitoring policymaker management", ".*")):
        api.put(f"/api/users/{user}", {"password": "x", "tags": tags})
        api.put(f"/api/permissions/%2F/{user}", {"configure": ".*", "write": ".*", "read": read})
    assert api.put("/api/vhosts/%2F", {"tracing": True}, user="keeper", password="x").status == 401
    channel = open_channel(credentials=pika.PlainCredentials("tenant", "x"))
    channel.queue_declare("mine")
    for exchange in ("amq.rabbitmq.trace", "amq.rabbitmq.event"):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
            channel.queue_bind("mine", exchange, "#")
        channel = channel.connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="cannot publish to internal exchange"):
            channel.basic_publish(exchange, "publish.x", b"false")
            channel.queue_declare("mine")
        channel = channel.connection.channel()


# --- events ---------------------------------------------------------------------------------------------------------------


def keys(found: list[Any]) -> list[str]:
    return [key for key, _, _ in found]


def test_events_of_a_connection_and_what_it_declares(ch: Any, open_channel: Callable[..., Any]) -> None:
    queue = listen(ch, "amq.rabbitmq.event")
    take(ch, queue, 1)  # the binding itself
    other = open_channel()
    other.queue_declare("q", arguments={"x-max-length": 5})
    other.exchange_declare("x", "fanout")
    other.queue_bind("q", "x", "k")
    other.basic_consume("q", lambda *_: None)
    other.queue_delete("q")
    other.exchange_delete("x")
    other.connection.close()
    found = take(ch, queue, 10)
    assert keys(found) == [
        "user.authentication.success",
        "connection.created",
        "queue.created",
        "exchange.created",
        "binding.created",
        "consumer.created",
        "binding.deleted",
        "queue.deleted",
        "exchange.deleted",
        "connection.closed",
    ]
    facts = {key: properties.headers for key, properties, _ in found}
    assert facts["connection.created"]["user"] == "guest" and facts["connection.created"]["vhost"] == "/"
    assert facts["connection.created"]["name"] == facts["connection.closed"]["name"]
    created = facts["queue.created"]
    assert (created["name"], created["vhost"], created["durable"], created["arguments"]) == ("q", "/", False, {"x-max-length": 5})
    bound = facts["binding.created"]
    assert (bound["source_name"], bound["destination_name"], bound["destination_kind"], bound["routing_key"]) == ("x", "q", "queue", "k")
    properties = found[0][1]
    assert found[0][2] == b"" and properties.delivery_mode == 2
    assert properties.timestamp == properties.headers["timestamp_in_ms"] // 1000


def test_events_of_definitions_name_who_did_it_and_no_secret(ch: Any, api: Api, broker: Any) -> None:
    queue = listen(ch, "amq.rabbitmq.event")
    take(ch, queue, 1)
    api.put("/api/users/u", {"password": "geheim", "tags": "management"})
    api.put("/api/users/u", {"password": "geheimer", "tags": "administrator"})
    known = api.get("/api/users/u").json
    kept = {name: known[name] for name in ("password_hash", "hashing_algorithm")}
    api.put("/api/users/u", {**kept, "tags": "monitoring"})  # its tags alone
    api.put("/api/permissions/%2F/u", {"configure": "c", "write": "w", "read": "r"})
    api.put("/api/topic-permissions/%2F/u", {"exchange": "amq.topic", "write": "a", "read": "b"})
    api.put("/api/policies/%2F/p", {"pattern": "^q$", "definition": {"max-length": 7}, "priority": 0, "apply-to": "queues"})
    api.put("/api/vhosts/v", {"description": "d"})
    api.put("/api/vhost-limits/v/max-queues", {"value": 5})
    api.put("/api/parameters/federation-upstream/%2F/up", {"value": {"uri": "amqp://user:geheim@host"}})
    for path in ("policies/%2F/p", "topic-permissions/%2F/u", "permissions/%2F/u", "users/u", "vhosts/v"):
        assert api.delete(f"/api/{path}").status == 204
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, credentials=pika.PlainCredentials("u", "geheim")))
    expected = [
        *("user.created", "user.tags.set", "user.password.changed", "user.tags.set", "user.tags.set"),
        *("permission.created", "topic.permission.created"),
        *("policy.set", "vhost.created", "permission.created", "vhost.limits.set", "parameter.set"),
        *("policy.cleared", "topic.permission.deleted", "permission.deleted", "user.deleted", "vhost.deleted"),
    ]
    found: list[Any] = []

    def all_came() -> bool:
        found.extend(drained(ch, queue))
        return {"vhost.deleted", "user.authentication.failure"} <= set(keys(found))

    wait_until(all_came, 20, 0.01, "the last events")
    found[:] = [one for one in found if one[0] != "exchange.deleted"]  # those of the virtual host
    assert [key for key in keys(found) if not key.startswith("user.auth")] == expected
    assert keys(found)[-1] == "user.authentication.failure" and found[-1][1].headers["name"] == "u"
    assert "geheim" not in repr([properties.headers for _, properties, _ in found])
    facts = {key: properties.headers for key, properties, _ in reversed(found)}
    assert facts["user.created"]["user_who_performed_action"] == "guest" and facts["user.created"]["name"] == "u"
    assert facts["policy.set"]["definition"] == {"max-length": 7} and facts["policy.set"]["pattern"] == "^q$"
    assert facts["vhost.created"]["name"] == "v" and facts["vhost.limits.set"]["max-queues"] == 5
    assert (facts["permission.created"]["configure"], facts["permission.created"]["vhost"]) == ("c", "/")


def test_nobody_listens_nothing_is_made_and_a_flood_is_bounded() -> None:
    with Broker(limits={"events_bytes_max": 5_000}) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
        ch = connection.channel()
        ch.queue_declare("before")
        assert not broker.node.broker.events.wanted
        queue = listen(ch, "amq.rabbitmq.event", "queue.*")
        broker.node.broker.events.tell("queue.large", name="x" * 10_000)
        broker.node.broker.events.tell("queue.wrong", name=object())
        ch.queue_declare("after")
        assert keys(take(ch, queue, 1)) == ["queue.created"]
        assert broker.node.broker.counters.drops["event"] == 1
        connection.close()


def test_many_queues_at_the_exchange_all_get_it_in_slices(broker: Any, ch: Any) -> None:
    queues = [listen(ch, "amq.rabbitmq.event", "queue.created") for _ in range(30)]
    for queue in queues:
        drained(ch, queue)
    ch.queue_declare("one")
    ch.queue_declare("two")
    for queue in queues:
        assert [properties.headers["name"] for _, properties, _ in take(ch, queue, 2)] == ["one", "two"]


# --- the log --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[Any]:
    """A broker whose log lines are messages."""
    with Broker(limits={"housekeeping_ms": 20}, log_exchange=True) as made:
        yield made


def lines(ch: Any, queue: str, text: str) -> tuple[str, Any]:
    """(key, properties) of the first line with the text."""
    found: list[Any] = []

    def more() -> bool:
        found.extend(one for one in drained(ch, queue) if text in one[2].decode())
        return bool(found)

    wait_until(more, 20, 0.01, text)
    return found[0][:2]


@pytest.mark.parametrize("short", [False, True])
def test_lines_of_the_log_are_messages(told: Any, open_channel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, short: bool) -> None:
    """By the logging module, and by the short way of lines of level INFO, which ends where it ended before."""
    ended: list[str] = []
    if short:
        told.node.broker.log_exchange.close()
        monkeypatch.setattr(LineLogger, "sink", lambda name, text: ended.append(text))
        told.node.broker.log_exchange.open()
    ch = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", told.port)).channel()
    every, severe = listen(ch, "amq.rabbitmq.log"), listen(ch, "amq.rabbitmq.log", "error")
    monkeypatch.setattr(logging.getLogger(), "level", logging.INFO)
    line_logger("flintmq.test.short").info("user %s came", "bob")
    key, properties = lines(ch, every, "flintmq.test.short: user bob came")
    assert (key, properties.content_type, properties.headers) == ("info", "text/plain", {"node": told.node.broker.node_name})
    assert properties.timestamp and ended == (["user bob came"] if short else [])
    logging.getLogger("flintmq.test").error("a fault")
    assert lines(ch, severe, "[ERROR] flintmq.test: a fault")[0] == "error"
    assert all(key == "error" for key, _, _ in drained(ch, severe))
    told.node.broker.log_exchange.close()
    logging.getLogger("flintmq.test").error("another one")
    assert not [one for one in drained(ch, severe) if b"another one" in one[2]]
    ch.connection.close()


def test_a_fault_of_the_log_exchange_does_not_feed_itself(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def broken(*_: Any) -> None:
        calls.append("tried")
        raise RuntimeError("no place")

    monkeypatch.setattr(told.node.broker.log_exchange._outbox, "_put", broken)
    ch = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", told.port)).channel()
    listen(ch, "amq.rabbitmq.log")
    for _ in range(3):
        before = len(calls)
        logging.getLogger("flintmq.test").critical("a fault")
        wait_until(lambda before=before: len(calls) > before, 20, 0.01, "it is tried")  # type: ignore[misc]
    drained(ch, listen(ch, "amq.fanout"))
    assert len(calls) == 3, "the errors that the faults left in the log are no messages"
    ch.connection.close()


def test_without_the_option_there_is_no_such_exchange(broker: Any, ch: Any) -> None:
    assert "amq.rabbitmq.log" not in broker.node.broker.vhosts["/"].exchanges
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"no exchange 'amq\.rabbitmq\.log'"):
        listen(ch, "amq.rabbitmq.log")

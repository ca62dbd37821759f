"""Logins by token over the wire, with pika: the token says who it is and what it may, and the connection ends with it."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from flintmq.clock import ManualClock
from flintmq.ports import PermissionRecord, UserRecord
from tests.support.issuer import ALL, AUDIENCE, Issuer
from tests.support.rawamqp import method_frame

ISSUER = Issuer()


class Clock(ManualClock):
    """Begins now: tokens say times of the world."""

    def __init__(self) -> None:
        super().__init__()
        self.began = time.time_ns() // 1_000_000 - super().wall_ms()

    def wall_ms(self) -> int:
        return self.began + super().wall_ms()


@pytest.fixture
def serve(start: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def make(limits: dict[str, Any] | None = None, **options: Any) -> Any:
        options.setdefault("clock", Clock())
        return start(limits, oauth_resource_server_id=AUDIENCE, oauth_jwks=ISSUER.write(tmp_path / "jwks.json"), **options)

    return make


def log_in(broker: Any, token: str, user: str = "", vhost: str = "/") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.port, vhost, pika.PlainCredentials(user, token), connection_attempts=1)
    )


def refused(broker: Any, token: str, caplog: Any) -> str:
    """The line of the audit."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flintmq.audit"), pytest.raises(ProbableAuthenticationError):
        log_in(broker, token, "somebody")
    assert not broker.node.broker.connections
    (line,) = [record.getMessage() for record in caplog.records if record.name == "flintmq.audit"]
    assert token not in caplog.text
    return str(line)


def test_a_token_is_a_password(serve: Callable[..., Any]) -> None:
    broker = serve()
    for key in ("rsa", "ec", "ed"):
        connection = log_in(broker, ISSUER.token(*ALL, key=key), "whatever")
        (handler,) = broker.node.broker.connections.values()
        assert (handler.user, handler.mechanism) == ("ann", "PLAIN")
        channel: Any = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="ann"))
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        connection.close()
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()  # passwords go on to work


def test_tokens_that_let_nobody_in(serve: Callable[..., Any], caplog: Any) -> None:
    broker = serve()
    assert "user 'somebody' at 127.0.0.1: login over AMQP: the token is for another audience" in refused(
        broker, ISSUER.token(*ALL, aud="other"), caplog
    )
    assert "the token is expired" in refused(broker, ISSUER.token(*ALL, seconds=-3600), caplog)
    good = ISSUER.token(*ALL)
    assert "the signature of the token is wrong" in refused(broker, good[:-8] + "AAAAAAAA", caplog)
    assert "'none' is not accepted" in refused(broker, f"{none()}.{good.split('.')[1]}.", caplog)
    assert "a user of the broker is called 'guest', too" in refused(broker, ISSUER.token(*ALL, sub="guest"), caplog)


def none() -> str:
    return base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "JWT"}).encode()).rstrip(b"=").decode()


def test_the_name_beside_a_token_means_nothing(serve: Callable[..., Any]) -> None:
    """Neither who is let in, nor what it may."""
    broker = serve()
    connection = log_in(broker, ISSUER.token("read:*/*"), "guest")
    (handler,) = broker.node.broker.connections.values()
    assert handler.user == "ann"
    with pytest.raises(ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("q")
    assert closed.value.reply_text == "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'ann'"
    connection.close()


def test_tokens_are_nothing_to_a_broker_without_them(start: Callable[..., Any]) -> None:
    broker = start()
    with pytest.raises(ProbableAuthenticationError):
        log_in(broker, ISSUER.token(*ALL), "guest")


def test_a_token_too_long_for_a_frame(serve: Callable[..., Any], connect: Callable[..., Any], caplog: Any) -> None:
    broker = serve({"token_bytes_max": 1024})
    assert "more than 1024 characters" in refused(broker, ISSUER.token(*ALL, more="x" * 2000), caplog)
    raw = connect(broker, handshake=False)
    raw.start()
    raw.start_ok("", ISSUER.token(*ALL, more="x" * 20_000))
    assert raw.expect(0, "connection.close").reply_code == 501
    assert not broker.node.broker.connections


def test_what_a_token_may(serve: Callable[..., Any]) -> None:
    broker = serve()
    admin: Any = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
    for name in ("a1", "b1"):
        admin.queue_declare(name)
    connection = log_in(broker, ISSUER.token("read:%2F/a*", "write:%2F/amq.default", "configure:%2F/a*"))
    channel: Any = connection.channel()
    channel.queue_declare("a2")
    channel.basic_publish("", "a1", b"x")
    channel.basic_get("a1")
    for refuse in (
        lambda one: one.basic_get("b1"),
        lambda one: one.queue_declare("b2"),
        lambda one: one.queue_purge("b1"),
        lambda one: one.queue_bind("a2", "amq.fanout"),
        lambda one: one.exchange_delete("amq.fanout"),
    ):
        with pytest.raises(ChannelClosedByBroker) as closed:
            refuse(connection.channel())
        assert closed.value.reply_code == 403
    connection.close()
    text = "NOT_ALLOWED - access to vhost ./. refused for user .ann."
    with pytest.raises(ProbableAccessDeniedError, match=text):
        log_in(broker, ISSUER.token("read:other/*"))


def test_routing_keys_are_asked_for_with_each_message(serve: Callable[..., Any]) -> None:
    broker = serve()
    connection = log_in(broker, ISSUER.token("configure:*/*", "read:*/*/a.*", "write:*/q*", "write:*/amq.*/a.*"))
    channel: Any = connection.channel()
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "a.#")
    channel.confirm_delivery()
    for key in ("a.1", "a.1", "a.2", "a.1"):
        channel.basic_publish("amq.topic", key, b"x")
    for key in ("b.1", "a"):
        other: Any = connection.channel()
        other.confirm_delivery()
        other.basic_publish("amq.topic", "a.1", b"x")  # what was allowed is not what comes next
        with pytest.raises(ChannelClosedByBroker) as closed:
            other.basic_publish("amq.topic", key, b"x")
        assert f"write access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'ann'" in closed.value.reply_text
    with pytest.raises(ChannelClosedByBroker):
        connection.channel().queue_bind("q", "amq.topic", "b.#")
    assert channel.queue_declare("q", passive=True).method.message_count == 6
    connection.close()


def test_two_tokens_of_one_user_are_two(serve: Callable[..., Any]) -> None:
    """What one may, the other does not get."""
    broker = serve()
    strong, weak = log_in(broker, ISSUER.token(*ALL)), log_in(broker, ISSUER.token("read:*/*"))
    strong.channel().queue_declare("q")
    with pytest.raises(ChannelClosedByBroker):
        weak.channel().queue_delete("q")
    strong.close()
    weak.close()


def test_a_connection_ends_with_its_token(serve: Callable[..., Any]) -> None:
    broker = serve()
    clock = broker.node.clock
    short, long = log_in(broker, ISSUER.token(*ALL, seconds=60)), log_in(broker, ISSUER.token(*ALL, seconds=36_000, sub="bob"))
    channel: Any = short.channel()
    channel.queue_declare("q")
    clock.advance(ms=3_600_000)
    with pytest.raises(ConnectionClosedByBroker) as closed:
        while True:
            short.process_data_events(0.05)
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - credential expired")
    long.channel().queue_declare("q", passive=True)
    long.close()


def test_a_new_token_keeps_the_connection(serve: Callable[..., Any]) -> None:
    broker = serve()
    clock = broker.node.clock
    connection = log_in(broker, ISSUER.token(*ALL, seconds=60))
    channel: Any = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x")
    connection.update_secret(ISSUER.token(*ALL, seconds=36_000), "the old one ends")
    clock.advance(ms=3_600_000)
    for _ in range(5):
        connection.process_data_events(0.02)
        channel.basic_publish("", "q", b"x")
    connection.update_secret(ISSUER.token("read:*/*", seconds=72_000), "fewer rights")
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.basic_publish("", "q", b"x")
    assert "write access to exchange 'amq.default'" in closed.value.reply_text
    clock.advance(ms=100_000_000)
    with pytest.raises(ConnectionClosedByBroker):
        while True:
            connection.process_data_events(0.05)


@pytest.mark.parametrize("fault", ["name", "expired", "vhost", "audience", "nonsense", "empty", "bytes", "long"])
def test_a_new_token_that_is_refused_ends_the_connection(serve: Callable[..., Any], connect: Callable[..., Any], fault: str) -> None:
    broker = serve()
    token = {
        "name": ISSUER.token(*ALL, sub="root"),
        "expired": ISSUER.token(*ALL, seconds=-3600),
        "vhost": ISSUER.token("read:other/*"),
        "audience": ISSUER.token(*ALL, aud="x"),
        "nonsense": "nonsense",
        "empty": "",
        "long": "eyJ" + "A" * 100_000,
    }.get(fault, "")
    raw = connect(broker, user="", password=ISSUER.token(*ALL))
    secret = b"\xff\xfe" if fault == "bytes" else token.encode()
    raw.send(method_frame(0, "connection.update-secret", new_secret=secret, reason="x") + method_frame(1, "channel.open"))
    closed = raw.expect(0, "connection.close")
    assert (closed.reply_code, closed.reply_text) == (530, "NOT_ALLOWED - New secret was refused by one of the backends")
    assert 1 not in raw.waiting


def test_what_follows_a_new_token_waits_for_it(serve: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = serve()
    raw = connect(broker, user="", password=ISSUER.token("read:*/*"))
    new = ISSUER.token(*ALL)
    raw.send(
        method_frame(0, "connection.update-secret", new_secret=new.encode(), reason="more")
        + method_frame(1, "channel.open")
        + method_frame(1, "queue.declare", queue="q")
    )
    assert raw.recv_any().name == "connection.update-secret-ok"
    raw.expect(1, "channel.open-ok")
    raw.expect(1, "queue.declare-ok")


def test_a_client_that_leaves_in_the_middle(serve: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Its check answers nobody, and others go on."""
    broker = serve()
    for number in range(20):
        raw = connect(broker, handshake=False)
        raw.start()
        raw.start_ok("", ISSUER.token(*ALL, sub=f"u{number}"))
        raw.drop()
    for number in range(10):
        raw = connect(broker, user="", password=ISSUER.token(*ALL, sub=f"v{number}"))
        raw.send(method_frame(0, "connection.update-secret", new_secret=ISSUER.token(*ALL, sub=f"v{number}", jti="2").encode(), reason=""))
        raw.drop()
    log_in(broker, ISSUER.token(*ALL)).close()


def test_a_user_of_the_broker_keeps_its_password(serve: Callable[..., Any]) -> None:
    """connection.update-secret changes nothing there, as on RabbitMQ."""
    broker = serve()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    connection.update_secret(ISSUER.token(*ALL), "x")
    (handler,) = broker.node.broker.connections.values()
    assert (handler.user, type(handler.user)) == ("guest", str)
    connection.close()


def test_notes_of_connections_that_are_gone_are_bounded(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from flintmq.broker import token_logins

    monkeypatch.setattr(token_logins, "_NOTES_LEAST", 8)
    broker = serve()
    broker.node.tokens._prune_at = 8
    token = ISSUER.token(*ALL)
    held = log_in(broker, token)
    for _ in range(40):
        log_in(broker, token).close()
    assert len(broker.node.tokens) <= 16
    held.close()


def call(broker: Any, method: str, path: str, authorization: str, body: Any = None) -> tuple[int, Any]:
    client = http.client.HTTPConnection("127.0.0.1", broker.node.http_port, timeout=60)
    head = {"authorization": authorization, "content-type": "application/json"}
    client.request(method, path, None if body is None else json.dumps(body), head)
    answer = client.getresponse()
    text = answer.read()
    client.close()
    return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text


def test_tokens_over_http(serve: Callable[..., Any], caplog: Any) -> None:
    broker = serve(http_port=0)
    bearer = f"Bearer {ISSUER.token(*ALL, 'tag:administrator')}"
    assert call(broker, "GET", "/api/whoami", bearer) == (200, {"name": "ann", "tags": ["administrator"]})
    assert call(broker, "PUT", "/api/queues/%2F/q", bearer, {})[0] == 201
    assert call(broker, "PUT", "/api/users/eve", bearer, {"password": "x", "tags": ""})[0] == 201
    basic = "Basic " + base64.b64encode(f"x:{ISSUER.token('read:*/*', 'tag:management')}".encode()).decode()
    assert call(broker, "GET", "/api/whoami", basic) == (200, {"name": "ann", "tags": ["management"]})
    assert call(broker, "GET", "/api/queues/%2F/q", basic)[0] == 200
    assert call(broker, "PUT", "/api/queues/%2F/q2", basic, {})[0] == 401
    assert call(broker, "PUT", "/api/users/eve2", basic, {"password": "x", "tags": ""})[0] == 401
    assert call(broker, "GET", "/api/overview", f"Bearer {ISSUER.token(*ALL)}")[0] == 401  # no tag: not of the management
    with caplog.at_level(logging.WARNING, "flintmq.audit"):
        assert call(broker, "GET", "/api/whoami", f"Bearer {ISSUER.token(*ALL, aud='x')}")[0] == 401
    assert "login over HTTP: the token was refused: the token is for another audience" in caplog.text
    for bad in ("Bearer ", "Bearer x", "Bearer eyJ.a.b", "bearer eyJ..", "Bearer " + "eyJ.a." + "x" * 9000):
        assert call(broker, "GET", "/api/whoami", bad)[0] == 401


def test_what_is_told_of_a_connection(serve: Callable[..., Any]) -> None:
    """Events, the firehose and the API name a token's user as any other."""
    broker = serve(http_port=0)
    basic = "Basic " + base64.b64encode(b"guest:guest").decode()
    assert call(broker, "PUT", "/api/vhosts/%2F", basic, {"tracing": True})[0] in (201, 204)
    watcher: Any = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
    watcher.queue_declare("told")
    watcher.queue_bind("told", "amq.rabbitmq.event", "connection.created")
    watcher.queue_bind("told", "amq.rabbitmq.trace", "publish.#")
    connection = log_in(broker, ISSUER.token(*ALL))
    channel: Any = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "", b"x")
    seen = [name["user"] for name in call(broker, "GET", "/api/connections", basic)[1]]
    assert sorted(seen) == ["ann", "guest"]
    assert [one["user"] for one in call(broker, "GET", "/api/channels", basic)[1] if one["user"] == "ann"] == ["ann"]
    connection.close()
    users = set()
    for _, properties, _ in watcher.consume("told", auto_ack=True, inactivity_timeout=60):
        users.add(properties.headers["user"])
        if "ann" in users and len(users) == 1 and properties.headers.get("exchange_name", "") == "amq.fanout":
            break
    assert users == {"ann"}
    watcher.connection.close()


def test_a_token_ends_over_http_too(serve: Callable[..., Any]) -> None:
    broker = serve(http_port=0)
    bearer = f"Bearer {ISSUER.token(*ALL, 'tag:monitoring', seconds=30)}"
    assert call(broker, "GET", "/api/whoami", bearer)[0] == 200
    broker.node.clock.advance(ms=3_600_000)
    assert call(broker, "GET", "/api/whoami", bearer)[0] == 401


def test_a_shovel_is_not_set_by_a_token(serve: Callable[..., Any]) -> None:
    """It would act for ever, and for whoever gets that name among the broker's users."""
    broker = serve(http_port=0)
    bearer = f"Bearer {ISSUER.token(*ALL, 'tag:administrator')}"
    value = {"value": {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}}
    status, answer = call(broker, "PUT", "/api/parameters/shovel/%2F/s", bearer, value)
    assert status == 400 and "'ann' is named by a token" in json.dumps(answer)


def test_a_user_who_is_made_later_is_another(serve: Callable[..., Any]) -> None:
    broker = serve()
    token = ISSUER.token("read:*/*")
    held = log_in(broker, token)
    broker.node.users.put(UserRecord("ann", "", ("administrator",)))
    broker.node.permissions.set_permissions(PermissionRecord("ann", "/", ".*", ".*", ".*"))
    with pytest.raises(ChannelClosedByBroker):
        held.channel().queue_declare("q")  # the rights of the token, not those of the new user
    held.close()
    with pytest.raises(ProbableAuthenticationError):
        log_in(broker, token)

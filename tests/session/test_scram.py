"""SCRAM-SHA-256 over the wire with py-amqp: the password is never sent, and what holds for PLAIN holds here."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqp
import pytest
from amqp import sasl, spec

from flintmq.access.hashes import keys_of
from flintmq.access.users import hash_password
from flintmq.definitions.change_line import BROKER
from flintmq.ports import PermissionRecord, UserRecord
from tests.support.rawamqp import method_frame

LIMITS = {"scram_iterations": 4096}
MECHANISMS = ("SCRAM-SHA-256", "PLAIN")


class Scram(sasl.SASL):
    """A client's half, as RFC 5802 has it."""

    mechanism = b"SCRAM-SHA-256"

    def __init__(self, user: str, password: str) -> None:
        self.bare = f"n={user},r={secrets.token_hex(9)}"
        self.password = password
        self.expected = b""
        self.proved = False

    def start(self, connection: Any) -> bytes:
        return b"n,," + self.bare.encode()

    def answer(self, challenge: bytes) -> bytes:
        if self.expected:
            assert challenge == self.expected  # the broker has the keys, too
            self.proved = True
            return b""
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = f"c=biws,r={fields['r']}"
        said = f"{self.bare},{challenge.decode()},{without}".encode()
        proof = bytes(a ^ b for a, b in zip(key, hmac.digest(hashlib.sha256(key).digest(), said, "sha256")))
        self.expected = b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256"))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()


class Client(amqp.Connection):
    """py-amqp with its empty answer to connection.secure filled in (it reads the challenge as a short string, too)."""

    _METHODS = {**amqp.Connection._METHODS, spec.Connection.Secure: spec.method(spec.Connection.Secure, "S")}

    def _on_secure(self, challenge: Any) -> None:
        challenge = challenge.encode() if isinstance(challenge, str) else bytes(challenge)
        self.send_method(spec.Connection.SecureOk, "S", (self.authentication[0].answer(challenge),))


def until(condition: Callable[[], bool]) -> None:
    """Waits for what is sure to come."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def log_in(broker: Any, user: str, password: str) -> Client:
    mechanism = Scram(user, password)
    client = Client(f"127.0.0.1:{broker.port}", authentication=mechanism)
    client.connect()
    assert mechanism.proved
    return client


@pytest.fixture
def serve(start: Callable[..., Any]) -> Callable[..., Any]:
    def make(mechanisms: tuple[str, ...] = MECHANISMS, **options: Any) -> Any:
        broker = start(LIMITS, auth_mechanisms=mechanisms, **options)
        broker.node.users.put(UserRecord("ann"))
        broker.node.users.set_password("ann", "secret")
        broker.node.permissions.set_permissions(PermissionRecord("ann", "/", ".*", ".*", ".*"))
        return broker

    return make


def test_a_client_logs_in_and_works(serve: Callable[..., Any]) -> None:
    broker = serve()
    client = log_in(broker, "ann", "secret")
    (handler,) = broker.node.broker.connections.values()
    assert (handler.user, handler.mechanism) == ("ann", "SCRAM-SHA-256")
    channel = client.channel()
    channel.queue_declare("q")
    channel.basic_publish(amqp.Message("x"), routing_key="q")
    assert channel.basic_get("q").body == "x"
    client.close()
    plain = amqp.Connection(f"127.0.0.1:{broker.port}", userid="ann", password="secret", login_method="PLAIN")
    plain.connect()
    plain.close()


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", "secret"), ("guest", "wrong")])
def test_who_cannot_prove_it_is_refused_alike(serve: Callable[..., Any], caplog: Any, user: str, password: str) -> None:
    broker = serve()
    with caplog.at_level(logging.WARNING, "flintmq.audit"), pytest.raises((amqp.exceptions.AccessRefused, OSError)):
        log_in(broker, user, password)
    assert not broker.node.broker.connections
    assert f"user '{user}' at 127.0.0.1: login over AMQP: wrong user or password" in caplog.text


def test_guest_gets_keys_with_its_first_password(serve: Callable[..., Any]) -> None:
    broker = serve()
    with pytest.raises((amqp.exceptions.AccessRefused, OSError)):
        log_in(broker, "guest", "guest")
    plain = amqp.Connection(f"127.0.0.1:{broker.port}", userid="guest", password="guest", login_method="PLAIN")
    plain.connect()
    plain.close()
    log_in(broker, "guest", "guest").close()


def test_keys_that_are_made_are_no_new_password(serve: Callable[..., Any]) -> None:
    """Nobody who listens to the events hears of a change that no user made."""
    broker = serve()
    users = broker.node.users
    users.put(UserRecord("bob", hash_password("pw")))
    broker.node.permissions.set_permissions(PermissionRecord("bob", "/", ".*", ".*", ".*"))
    ear = log_in(broker, "ann", "secret")
    channel = ear.channel()
    channel.queue_declare("heard")
    channel.queue_bind("heard", "amq.rabbitmq.event", "user.#")
    plain = amqp.Connection(f"127.0.0.1:{broker.port}", userid="bob", password="pw", login_method="PLAIN")
    plain.connect()
    plain.close()
    until(lambda: bool(keys_of(users.get("bob").password_hash)))
    broker.node.definitions.put_user(BROKER, "carl", "", lambda result, error: None)
    heard: list[str] = []

    def last() -> bool:
        message = channel.basic_get("heard", no_ack=True)
        if message is not None:
            heard.append(message.delivery_info["routing_key"])
        return "user.created" in heard

    until(last)
    assert heard == ["user.authentication.success", "user.created"]
    ear.close()


def test_keys_live_with_the_store(serve: Callable[..., Any], start: Callable[..., Any], tmp_path: Path) -> None:
    broker = serve(data_dir=str(tmp_path))
    log_in(broker, "ann", "secret").close()
    plain = amqp.Connection(f"127.0.0.1:{broker.port}", userid="guest", password="guest", login_method="PLAIN")
    plain.connect()
    plain.close()
    until(lambda: bool(keys_of(broker.node.users.get("guest").password_hash)))  # the database's thread says when they are kept
    log_in(broker, "guest", "guest").close()
    broker.node.stop()
    again = start(LIMITS, auth_mechanisms=MECHANISMS, data_dir=str(tmp_path))
    for user, password in (("ann", "secret"), ("guest", "guest")):
        log_in(again, user, password).close()
    again.node.stop()
    without = start(data_dir=str(tmp_path))
    assert keys_of(without.node.users.get("ann").password_hash)
    old = amqp.Connection(f"127.0.0.1:{without.port}", userid="ann", password="secret", login_method="PLAIN")
    old.connect()
    old.close()


def test_the_api_keeps_and_makes_keys(serve: Callable[..., Any]) -> None:
    """Tags change, the keys stay; a new password has new ones; no answer shows them."""
    import json
    import urllib.request

    broker = serve(http_port=0)

    def call(method: str, path: str, value: Any = None) -> Any:
        head = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "content-type": "application/json"}
        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{broker.node.http_port}/api/{path}", body, head, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    shown = call("GET", "users/ann")
    assert "SCRAM" not in json.dumps(shown) and "SCRAM" not in json.dumps(call("GET", "definitions"))
    kept = {name: shown[name] for name in ("password_hash", "hashing_algorithm")}
    call("PUT", "users/ann", {**kept, "tags": "monitoring"})
    log_in(broker, "ann", "secret").close()
    call("PUT", "users/ann", {"password": "new", "tags": ""})
    log_in(broker, "ann", "new").close()
    with pytest.raises((amqp.exceptions.AccessRefused, OSError)):
        log_in(broker, "ann", "secret")
    call("PUT", "users/ann", {"password_hash": "", "tags": ""})
    with pytest.raises((amqp.exceptions.AccessRefused, OSError)):
        log_in(broker, "ann", "new")


def test_what_is_not_offered_is_not_taken(serve: Callable[..., Any], start: Callable[..., Any], connect: Callable[..., Any]) -> None:
    """Nobody on the way can talk a client of a broker with SCRAM alone into sending its password to some use."""
    only = serve(("SCRAM-SHA-256",))
    log_in(only, "ann", "secret").close()
    for broker, mechanism in ((only, "PLAIN"), (only, "AMQPLAIN"), (start(LIMITS), "SCRAM-SHA-256")):
        raw = connect(broker, handshake=False)
        assert mechanism.encode() not in raw.start().mechanisms.split()
        raw.start_ok(mechanism=mechanism, response=b"\0ann\0secret")
        closed = raw.expect(0, "connection.close")
        assert (closed.reply_code, closed.reply_text) == (503, f"COMMAND_INVALID - unknown authentication mechanism '{mechanism}'")


def test_steps_come_in_their_order(serve: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = serve()
    raw = connect(broker, handshake=False)
    raw.start()
    raw.send(method_frame(0, "connection.secure-ok", response=b""))
    assert raw.expect(0, "connection.close").reply_code == 503
    raw = connect(broker, handshake=False)
    raw.start()
    raw.start_ok(mechanism="SCRAM-SHA-256", response=b"n,,n=ann,r=abc")
    raw.expect(0, "connection.secure")
    raw.send(method_frame(0, "connection.tune-ok", channel_max=0, frame_max=0, heartbeat=0))
    assert raw.expect(0, "connection.close").reply_code == 503
    assert not broker.node.broker.connections


def test_a_user_that_is_deleted_between_proof_and_answer(serve: Callable[..., Any], connect: Callable[..., Any]) -> None:
    broker = serve()
    raw = connect(broker, handshake=False)
    raw.start()
    mechanism = Scram("ann", "secret")
    raw.start_ok(mechanism="SCRAM-SHA-256", response=mechanism.start(None))
    raw.send(method_frame(0, "connection.secure-ok", response=mechanism.answer(bytes(raw.expect(0, "connection.secure").challenge))))
    challenge = raw.expect(0, "connection.secure").challenge
    broker.node.users.delete("ann")
    raw.send(method_frame(0, "connection.secure-ok", response=mechanism.answer(bytes(challenge))))
    assert raw.expect(0, "connection.close").reply_code == 403


def test_guesses_over_the_wire_are_slowed(start: Callable[..., Any]) -> None:
    broker = start({**LIMITS, "login_user_failures": 2, "login_user_failure_s": 3600}, auth_mechanisms=MECHANISMS)
    broker.node.users.put(UserRecord("ann"))
    broker.node.users.set_password("ann", "secret")
    broker.node.permissions.set_permissions(PermissionRecord("ann", "/", ".*", ".*", ".*"))
    log_in(broker, "ann", "secret").close()
    for _ in range(2):
        with pytest.raises((amqp.exceptions.AccessRefused, OSError)):
            log_in(broker, "ann", "wrong")
    with pytest.raises(amqp.exceptions.ResourceError):
        log_in(broker, "ann", "secret")

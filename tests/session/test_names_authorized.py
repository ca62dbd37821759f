"""The name that is authorized is the name that is used: over every verb of AMQP, over HTTP and over the data plane.

A user who may do everything but to names that begin with `secret` sends such names with CR and LF anywhere in them. Whatever is sent, the
secret queue and exchange stay as they are, nothing with such a name comes to be, and what came to be was asked for by its own name.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.access.users import hash_password
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.testing.broker import Broker
from tests.dataplane.rig import Rig, block
from tests.support.rawamqp import RawConnection

ALLOWED = "^(?!secret).*"


# line breaks (and, for what is not cleaned, other white space) at any place of a name that is not this user's, or of one that is
@st.composite
def _names(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(["secret", "secretx", "secret.2", "mine", "minex", ""]))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(name)))
        name = name[:at] + draw(st.sampled_from(["\r", "\n", "\r\n", " ", "\x00"])) + name[at:]
    return name


names = _names()

VERBS: dict[str, dict[str, Any]] = {
    "exchange.declare": {"exchange": str, "type": "fanout"},
    "exchange.declare alternate": {"exchange": str, "type": "fanout", "arguments": {"alternate-exchange": str}},
    "exchange.declare passive": {"exchange": str, "type": "fanout", "passive": True},
    "exchange.delete": {"exchange": str},
    "exchange.bind": {"destination": str, "source": str, "routing_key": "k"},
    "exchange.unbind": {"destination": str, "source": str, "routing_key": "k"},
    "queue.declare": {"queue": str},
    "queue.declare dead letters": {"queue": str, "arguments": {"x-dead-letter-exchange": str}},
    "queue.declare passive": {"queue": str, "passive": True},
    "queue.bind": {"queue": str, "exchange": str, "routing_key": "k"},
    "queue.unbind": {"queue": str, "exchange": str, "routing_key": "k"},
    "queue.purge": {"queue": str},
    "queue.delete": {"queue": str},
    "basic.consume": {"queue": str, "no_ack": True},
    "basic.get": {"queue": str, "no_ack": True},
    "basic.publish": {"exchange": str, "routing_key": "k"},
}


def prepare(node: Any) -> dict[str, Any]:
    """The user, the secret things, and a record of what permissions were asked for."""
    vhost = node.broker.vhosts["/"]
    node.users.put(UserRecord("mallory", hash_password("m"), ()))
    node.permissions.set_permissions(PermissionRecord("mallory", "/", ALLOWED, ALLOWED, ALLOWED))
    vhost.run(vhost.declare_queue("secret", durable=True))
    vhost.run(vhost.declare_exchange("secret", "fanout", durable=True))
    vhost.run(vhost.bind_queue("secret", "secret", b"k"))
    vhost.queues["secret"].core.publish(b"", b"secret", b"\0<\0\0" + bytes(10), b"", 0, 0, 0)
    return look(node)


def look(node: Any) -> dict[str, Any]:
    """Everything about names that begin with `secret`."""
    vhost = node.broker.vhosts["/"]
    queues = {
        name: (queue.core.ready_count(), queue.core.consumer_count(), len(queue.bindings or ()), queue.queue_id)
        for name, queue in vhost.queues.items()
        if name.startswith("secret")
    }
    exchanges = {
        name: (id(one), len(one.bindings), len(one.upstream)) for name, one in vhost.exchanges.items() if name.startswith("secret")
    }
    targets = [one.policy.dead_letter_exchange for one in vhost.queues.values()] + [one.alternate for one in vhost.exchanges.values()]
    return {"queues": queues, "exchanges": exchanges, "targets": [name for name in targets if name and name.startswith("secret")]}


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with Broker(http_port=0) as running:
        running.before = prepare(running.node)  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def asked(broker: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that permissions were asked for."""
    asked: list[str] = []
    permissions = broker.node.permissions
    authorize = permissions.authorize_method

    def record(user: str, vhost: str, method: str, given: Any) -> None:
        asked.extend(name for name in given.values() if name is not None)
        authorize(user, vhost, method, given)

    monkeypatch.setattr(permissions, "authorize_method", record)
    return asked


ours = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ours
@given(verb=st.sampled_from(sorted(VERBS)), sent=st.lists(names, min_size=2, max_size=2))
def test_amqp_uses_the_names_that_it_authorizes(broker: Any, asked: list[str], verb: str, sent: list[str]) -> None:
    node = broker.node
    vhost = node.broker.vhosts["/"]
    vhost.run(vhost.declare_queue("mine"))
    vhost.run(vhost.declare_exchange("mine", "fanout"))
    known = {*vhost.queues, *vhost.exchanges}
    given_names = iter(sent)

    def fill(value: Any) -> Any:
        if value is str:
            return next(given_names)
        return {name: fill(one) for name, one in value.items()} if isinstance(value, dict) else value

    with RawConnection("127.0.0.1", broker.port).open("mallory", "m") as connection:
        channel = connection.channel()
        arguments = {name: fill(value) for name, value in VERBS[verb].items()}
        asked.clear()
        if verb == "basic.publish":
            channel.publish(b"x", **arguments)
        else:
            channel.send(verb.split(" ")[0], **arguments)
        # Whatever it was, it is over when the next method is answered: by its answer, or by the close of the channel.
        channel.send("basic.qos", prefetch_count=1)
        while connection.recv(1).name not in ("basic.qos-ok", "channel.close"):
            pass
        assert look(node) == broker.before
    created = {*vhost.queues, *vhost.exchanges} - known
    assert created <= set(asked), (created, asked)
    assert not any("\r" in name or "\n" in name for name in created)


@ours
@given(
    verb=st.sampled_from(["GET ", "GET /messages", "POST /messages/ack", "POST /messages/nack", "POST /messages/extend"]),
    sent=names.filter(bool),
)
def test_http_uses_the_names_that_it_authorizes(broker: Any, asked: list[str], verb: str, sent: str) -> None:
    method, _, path = verb.partition(" ")
    headers = {"authorization": "Basic " + base64.b64encode(b"mallory:m").decode(), "content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", broker.node.http_port, timeout=30)
    asked.clear()
    try:
        connection.request(
            method,
            f"/api/v1/queues/%2F/{quote(sent, safe='')}{path}",
            json.dumps({"leases": ["1"]}) if method == "POST" else None,
            {**headers, "x-flintmq-request": "1"},
        )
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    assert set(asked) == {sent}  # a pull that had to wait for its turn asks once more
    assert answer.status != 200 or (sent in broker.node.broker.vhosts["/"].queues and not sent.startswith("secret"))
    assert look(broker.node) == broker.before


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory: Path = tmp_path_factory.mktemp("plane") / "d"
    with Rig(directory) as plane:
        plane.before = prepare(plane.node)  # type: ignore[attr-defined]
        plane.user = "mallory"
        plane.declare("mine")
        yield plane


@settings(max_examples=60, deadline=None)
@given(sent=names.filter(bool), call=st.sampled_from(["sub.open", "browse.open", "stream", "stage"]))
def test_the_data_plane_uses_the_names_that_it_authorizes(rig: Any, sent: str, call: str) -> None:
    if call == "stage":
        scope = rig.call("scope.open", scope="s")
        stage = rig.stage("s", scope["epoch"], 1, prepare=False)
        code = rig.code("block", block("x"), stage_id=stage, routes=[[sent, "k"]])
        rig.ask("stage.abort", scope="s", batch=1)
    elif call == "sub.open":
        code = rig.code(call, name=repr(sent), queues=[sent])
    elif call == "browse.open":
        code = rig.code(call, queues=[sent], max_messages=1)
    else:
        code = rig.code(call, queue=sent)
    assert code or sent == "mine", (call, sent, code)
    assert look(rig.node) == rig.before

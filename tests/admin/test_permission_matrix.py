"""Every method, over AMQP, HTTP and the data plane that Flight forwards to, with every set of permissions: allowed exactly where RabbitMQ's
guide to access control says so. The table below is that guide's; the broker's own is not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client
from tests.dataplane.rig import Rig

C, W, R = "configure", "write", "read"
SETS = [frozenset(one) for one in chain.from_iterable(combinations((C, W, R), count) for count in range(4))]
USER = "matrix"

Amqp = Callable[[Any], object]
# verb -> what it needs (on all that it touches), how it is asked for; {n}: a name that is new each time
AMQP: dict[str, tuple[frozenset[str], Amqp]] = {
    "exchange.declare": (frozenset({C}), lambda ch: ch.exchange_declare("mx-new", "direct")),
    "exchange.declare with alternate-exchange": (
        frozenset({C, W, R}),
        lambda ch: ch.exchange_declare("mx-alternate", "direct", arguments={"alternate-exchange": "mx"}),
    ),
    "exchange.delete": (frozenset({C}), lambda ch: ch.exchange_delete("mx-none")),
    "exchange.bind": (frozenset({W, R}), lambda ch: ch.exchange_bind("mx", "mx2")),
    "exchange.unbind": (frozenset({W, R}), lambda ch: ch.exchange_unbind("mx", "mx2")),
    "queue.declare": (frozenset({C}), lambda ch: ch.queue_declare("mq-new")),
    "queue.declare with dead-letter-exchange": (
        frozenset({C, W, R}),
        lambda ch: ch.queue_declare("mq-dead", arguments={"x-dead-letter-exchange": "mx"}),
    ),
    "queue.declare without a name": (frozenset({C}), lambda ch: ch.queue_declare("", exclusive=True)),
    "queue.delete": (frozenset({C}), lambda ch: ch.queue_delete("mq-none")),
    "queue.bind": (frozenset({W, R}), lambda ch: ch.queue_bind("mq", "mx")),
    "queue.unbind": (frozenset({W, R}), lambda ch: ch.queue_unbind("mq", "mx")),
    "queue.purge": (frozenset({R}), lambda ch: ch.queue_purge("mq")),
    "basic.publish": (frozenset({W}), lambda ch: published(ch, "mx")),
    "basic.publish to the default exchange": (frozenset({W}), lambda ch: published(ch, "")),
    "basic.get": (frozenset({R}), lambda ch: ch.basic_get("mq", auto_ack=True)),
    "basic.consume": (frozenset({R}), lambda ch: ch.basic_consume("mq", lambda *_: None)),
}
# these need one of the three, whichever
ANY: dict[str, Amqp] = {
    "exchange.declare passive": lambda ch: ch.exchange_declare("mx", passive=True),
    "queue.declare passive": lambda ch: ch.queue_declare("mq", passive=True),
}

Ask = tuple[str, str, Any]
_BINDING = "bindings/%2F/e/mx/q/mq"
HTTP: dict[str, tuple[frozenset[str], Ask]] = {
    "put queue": (frozenset({C}), ("PUT", "queues/%2F/mq-http", {"durable": False})),
    "put queue with dead letters": (
        frozenset({C, W, R}),
        ("PUT", "queues/%2F/mq-http-dead", {"durable": False, "arguments": {"x-dead-letter-exchange": "mx"}}),
    ),
    "delete queue": (frozenset({C}), ("DELETE", "queues/%2F/mq-spare", None)),
    "put exchange": (frozenset({C}), ("PUT", "exchanges/%2F/mx-http", {"type": "direct"})),
    "put exchange with alternate": (
        frozenset({C, W, R}),
        ("PUT", "exchanges/%2F/mx-http-alternate", {"type": "direct", "arguments": {"alternate-exchange": "mx"}}),
    ),
    "delete exchange": (frozenset({C}), ("DELETE", "exchanges/%2F/mx-spare", None)),
    "bind": (frozenset({W, R}), ("POST", _BINDING, {"routing_key": "k", "arguments": {}})),
    "unbind": (frozenset({W, R}), ("DELETE", f"{_BINDING}/kept", None)),
    "purge": (frozenset({R}), ("DELETE", "queues/%2F/mq/contents", None)),
    "get": (frozenset({R}), ("POST", "queues/%2F/mq/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})),
    "publish": (
        frozenset({W}),
        ("POST", "exchanges/%2F/mx/publish", {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string"}),
    ),
    "own publish": (frozenset({W}), ("POST", "v1/queues/%2F/mq/messages", {"body": "x"})),
    "own pull": (frozenset({R}), ("POST", "v1/queues/%2F/mq/messages/pull", None)),
    "own ack": (frozenset({R}), ("POST", "v1/queues/%2F/mq/messages/ack", {"leases": []})),
    "own nack": (frozenset({R}), ("POST", "v1/queues/%2F/mq/messages/nack", {"leases": []})),
    "own extend": (frozenset({R}), ("POST", "v1/queues/%2F/mq/messages/extend", {"leases": []})),
}
PLANE: dict[str, tuple[frozenset[str], dict[str, Any]]] = {
    "sub.open": (frozenset({R}), {"name": "s", "queues": ["mq"]}),
    "browse.open": (frozenset({R}), {"queues": ["mq"]}),
}


def published(channel: Any, exchange: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, "mq-none", b"x")


def granted(permissions: frozenset[str]) -> dict[str, str]:
    """Names that begin with `m` or `amq`: who may not, may with no name of these."""
    return {verb: "^(m|amq)" if verb in permissions else "" for verb in (C, W, R)}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Broker(limits={"housekeeping_ms": 20}, http_port=0) as broker:
        api = Api(Client(broker))
        api.user(USER, "management")
        yield api


@pytest.fixture(params=SETS, ids=lambda one: "+".join(sorted(one)) or "none")
def permissions(request: pytest.FixtureRequest, api: Api) -> frozenset[str]:
    vhost = api.client.node.broker.vhosts["/"]
    for name in ("mq", "mq-spare"):
        vhost.run(vhost.declare_queue(name))
    for name in ("mx", "mx2", "mx-spare"):
        vhost.run(vhost.declare_exchange(name, "fanout"))
    answer = api.ask("POST", "bindings/%2F/e/mx/q/mq", {"routing_key": "kept", "arguments": {}})
    assert answer.status == 201
    chosen: frozenset[str] = request.param
    assert api.ask("PUT", f"permissions/%2F/{USER}", granted(chosen)).status in (201, 204)
    return chosen


def test_amqp(api: Api, permissions: frozenset[str]) -> None:
    credentials = pika.PlainCredentials(USER, USER)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", api.client.node.amqp_port, credentials=credentials))
    allowed = {name: needs <= permissions for name, (needs, _) in AMQP.items()} | {name: bool(permissions) for name in ANY}
    found: dict[str, bool] = {}
    for name, ask in [*((name, ask) for name, (_, ask) in AMQP.items()), *ANY.items()]:
        channel: Any = connection.channel()
        try:
            ask(channel)
            channel.close()
            found[name] = True
        except pika.exceptions.ChannelClosedByBroker as refused:
            assert refused.reply_code == 403, (name, refused)
            found[name] = False
    connection.close()
    assert found == allowed
    there = api.client.node.broker.vhosts["/"]
    made = {"mq-new": "queue.declare", "mq-dead": "queue.declare with dead-letter-exchange"}
    assert made.keys() & there.queues.keys() == {queue for queue, verb in made.items() if allowed[verb]}
    for name in made:
        there.run(there.delete_queue(name))
    for name in ("mx-new", "mx-alternate"):
        there.run(there.delete_exchange(name))


def test_http(api: Api, permissions: frozenset[str]) -> None:
    user = Api(api.client, USER)
    allowed = {name: needs <= permissions for name, (needs, _) in HTTP.items()}
    found: dict[str, bool] = {}
    for name, (_, (method, path, value)) in HTTP.items():
        headers = {"X-FlintMQ-Request": "1"} if path.startswith("v1/") else None
        answer = user.ask(method, path, value, headers)
        assert answer.status in (200, 201, 204, 400, 401, 403), (name, answer)
        found[name] = answer.status not in (401, 403)
        assert answer.status != 400 or name in ("own ack", "own nack", "own extend"), (name, answer)
    assert found == allowed
    there = api.client.node.broker.vhosts["/"]
    for name in ("mq-http", "mq-http-dead"):
        there.run(there.delete_queue(name))
    for name in ("mx-http", "mx-http-alternate"):
        there.run(there.delete_exchange(name))


def test_data_plane(tmp_path: Path) -> None:
    """What the Flight service asks the broker on behalf of its callers."""
    with Rig(tmp_path / "store") as rig:
        rig.declare("mq")
        rig.user = "eve"
        for permissions in SETS:
            patterns = granted(permissions)
            rig.user_with("eve", read=patterns[R], write=patterns[W])
            if permissions <= {C}:
                assert {rig.code(call, **arguments) for call, (_, arguments) in PLANE.items()} == {"FORBIDDEN"}
                continue
            for call, (needs, arguments) in PLANE.items():
                assert (rig.code(call, **arguments) == "") is (needs <= permissions), (call, permissions)

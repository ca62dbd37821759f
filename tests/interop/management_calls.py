"""What clients of the management API ask, and what they read of the answers: amqpstorm's own code, and the calls that Flower, Terraform's
provider (by its client rabbit-hole) and rabbitmqadmin v2 document. Each script makes what it asks about and takes it away again.

in: a port of FlintMQ's or RabbitMQ's API, and the port of AMQP. out: (label, value) for each step; values that differ from run to run
(node names, ports, times) are left out.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pika

Step = tuple[str, Any]
VHOST = "calls"
BASIC = "Basic " + base64.b64encode(b"guest:guest").decode()


def picked(value: Any, *names: str) -> Any:
    """The members that a client reads; of a list, those of each, ordered."""
    if isinstance(value, list):
        return sorted((picked(one, *names) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return {name: value.get(name, "(missing)") for name in names}


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": BASIC, **({} if body is None else {"Content-Type": "application/json"})}
    connection.request(method, f"/api/{path}", None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    with contextlib.suppress(ValueError):
        raw = json.loads(raw)
    return answer.status, raw, {name.lower(): text for name, text in answer.getheaders()}


@contextlib.contextmanager
def at_work(amqp_port: int) -> Iterator[Any]:
    """A connection with a consumer and a message, which statistics tell of."""
    parameters = pika.ConnectionParameters("127.0.0.1", amqp_port, client_properties={"connection_name": "worker"})
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    channel.queue_declare("work", durable=True)
    channel.basic_consume("work", lambda *_: None, consumer_tag="worker-1")
    channel.basic_publish("", "work", b"job")
    connection.process_data_events(0.2)
    yield connection
    channel.queue_delete("work")
    connection.close()


def until(port: int, path: str, good: Callable[[Any], bool]) -> Any:
    """RabbitMQ's statistics come some seconds late."""
    deadline = time.monotonic() + 60
    while True:
        status, value, _ = ask(port, "GET", path)
        if (status == 200 and good(value)) or time.monotonic() > deadline:
            return value
        time.sleep(0.1)


# --- amqpstorm.management -----------------------------------------------------------------------------------------------------


def amqpstorm(port: int, amqp_port: int) -> Iterator[Step]:
    """Every method of amqpstorm.management."""
    from amqpstorm.management import ApiError, ManagementApi

    api = ManagementApi(f"http://127.0.0.1:{port}", "guest", "guest", timeout=60)

    def tried(call: Callable[[], Any], *names: str) -> Any:
        try:
            value = call()
        except ApiError as error:
            return f"ApiError {error.error_code}"
        return picked(value, *names) if names else value

    yield "whoami", tried(api.whoami, "name", "tags")
    yield "cluster_name", sorted(api.cluster_name())
    yield "aliveness_test", tried(api.aliveness_test)
    yield "healthchecks.get", tried(api.healthchecks.get)
    overview = api.overview()
    yield "overview", [overview["rabbitmq_version"], type(overview["object_totals"]).__name__, sorted(overview["object_totals"])]
    node = until(port, "nodes", lambda found: "uptime" in found[0])[0]
    wanted = ("name", "running", "type", "mem_alarm", "disk_free_alarm", "mem_used", "fd_used", "proc_used", "uptime")
    yield "node", sorted(name for name in wanted if name in api.node(node["name"]))
    yield "top", tried(lambda: [sorted(one) for one in api.top()])

    yield "virtual_host.create", tried(lambda: api.virtual_host.create(VHOST))
    yield "virtual_host.get", tried(lambda: api.virtual_host.get(VHOST), "name", "tracing", "description", "tags")
    yield "virtual_host.list", tried(api.virtual_host.list, "name")
    yield "virtual_host.get_permissions", tried(lambda: api.virtual_host.get_permissions(VHOST), "user", "vhost", "configure")
    yield "user.create", tried(lambda: api.user.create("storm", "secret", tags="management"))
    yield "user.get", tried(lambda: api.user.get("storm"), "name", "tags")
    yield "user.list", tried(api.user.list, "name", "tags")
    yield "user.set_permission", tried(lambda: api.user.set_permission("storm", VHOST))
    yield "user.get_permission", tried(lambda: api.user.get_permission("storm", VHOST))
    yield "user.get_permissions", tried(lambda: api.user.get_permissions("storm"))
    yield "user.delete_permission", tried(lambda: api.user.delete_permission("storm", VHOST))
    yield "user.get_permission of none", tried(lambda: api.user.get_permission("storm", VHOST))
    yield "user.delete", tried(lambda: api.user.delete("storm"))
    yield "user.delete of many", [tried(lambda: api.user.create("bulk", "x")), tried(lambda: api.user.delete(["bulk"]))]
    yield "user.get of none", tried(lambda: api.user.get("storm"))
    yield "user.set_permission in /", tried(lambda: api.user.set_permission("guest", VHOST))

    queue, exchange = api.queue, api.exchange
    yield "exchange.declare", tried(lambda: exchange.declare("ex", "topic", VHOST, durable=True))
    yield "exchange.declare passive", tried(lambda: exchange.declare("ex", virtual_host=VHOST, passive=True), "name", "type")
    yield "exchange.declare otherwise", tried(lambda: exchange.declare("ex", "fanout", VHOST, durable=True))
    yield (
        "exchange.get",
        tried(lambda: exchange.get("ex", VHOST), "name", "type", "durable", "auto_delete", "internal", "arguments", "vhost"),
    )
    yield "exchange.list", tried(lambda: exchange.list(VHOST), "name", "type")
    yield "queue.declare", tried(lambda: queue.declare("q", VHOST, durable=True, arguments={"x-max-length": 9}))
    yield "queue.declare passive", tried(lambda: queue.declare("q", VHOST, passive=True), "name", "durable")
    yield "queue.declare passive of none", tried(lambda: queue.declare("none", VHOST, passive=True))
    yield "queue.declare otherwise", tried(lambda: queue.declare("q", VHOST, durable=False))
    yield "queue.get", tried(lambda: queue.get("q", VHOST), "name", "durable", "auto_delete", "exclusive", "arguments", "vhost", "type")
    yield "queue.list", tried(lambda: queue.list(VHOST), "name", "vhost")
    yield "queue.list by name", tried(lambda: queue.list(VHOST, name="^q$", use_regex=True, page_size=10), "name")
    # RabbitMQ's test of aliveness leaves a queue behind
    yield "queue.list of all", tried(lambda: [one for one in queue.list(show_all=True) if one["name"] != "aliveness-test"], "name", "vhost")
    yield "queue.bind", tried(lambda: queue.bind("q", "ex", "a.#", VHOST))
    names = ("source", "destination", "destination_type", "routing_key", "properties_key", "vhost", "arguments")
    yield "queue.bindings", tried(lambda: queue.bindings("q", VHOST), *names)
    yield "exchange.bind", tried(lambda: exchange.bind("ex", "amq.fanout", "b", VHOST))
    yield "exchange.bindings", tried(lambda: exchange.bindings("ex", VHOST), *names)
    publish = api.basic.publish
    yield "basic.publish", tried(lambda: publish("hello", "a.b", "ex", VHOST, {"content_type": "text/plain", "headers": {"n": 1}}))
    yield "basic.publish to nobody", tried(lambda: publish("hello", "c", "ex", VHOST))
    yield "basic.publish to no exchange", tried(lambda: publish("hello", "c", "none", VHOST))
    got = lambda **how: api.basic.get("q", VHOST, to_dict=True, **how)  # noqa: E731
    yield "basic.get with requeue", tried(lambda: got(requeue=True), "payload", "redelivered", "routing_key", "exchange", "properties")
    yield "basic.get", tried(lambda: got(count=5), "payload", "redelivered", "message_count", "payload_bytes", "payload_encoding")
    yield "basic.get of nothing", tried(got)
    yield "queue.purge", [tried(lambda: publish("x", "a", "ex", VHOST)), tried(lambda: queue.purge("q", VHOST)), tried(got)]
    yield "queue.unbind", tried(lambda: queue.unbind("q", "ex", "a.#", VHOST))
    yield "queue.unbind again", tried(lambda: queue.unbind("q", "ex", "a.#", VHOST))
    yield "exchange.unbind", tried(lambda: exchange.unbind("ex", "amq.fanout", "b", VHOST))
    yield "queue.delete", tried(lambda: queue.delete("q", VHOST))
    yield "queue.delete of none", tried(lambda: queue.delete("q", VHOST))
    yield "exchange.delete", tried(lambda: exchange.delete("ex", VHOST))
    yield "virtual_host.delete", tried(lambda: api.virtual_host.delete(VHOST))
    yield "virtual_host.get of none", tried(lambda: api.virtual_host.get(VHOST))

    with at_work(amqp_port):
        until(port, "channels", lambda found: any(one.get("consumer_count") == 1 for one in found))
        connection = next(iter(api.connection.list()))
        keys = ("user", "vhost", "protocol", "auth_mechanism", "channels", "peer_host", "ssl", "type", "state")
        yield "connection.list", picked(connection, *keys)
        yield "connection.get", tried(lambda: api.connection.get(connection["name"]), *keys)
        channel = next(iter(api.channel.list()))
        keys = (
            "number",
            "user",
            "vhost",
            "prefetch_count",
            "consumer_count",
            "confirm",
            "transactional",
            "state",
            "messages_unacknowledged",
        )
        yield "channel.list", picked(channel, *keys)
        yield "channel.get", tried(lambda: api.channel.get(channel["name"]), *keys)
        yield "connection.close of none", tried(lambda: api.connection.close("nobody"))
    until(port, "connections", lambda found: not found)
    yield "connection.get of none", tried(lambda: api.connection.get("nobody"))


# --- Flower -------------------------------------------------------------------------------------------------------------------


def flower(port: int, amqp_port: int) -> Iterator[Step]:
    """flower.utils.broker.RabbitMQ asks this one path, and its page shows these members."""
    with at_work(amqp_port):
        until(port, "queues/%2F", lambda found: any(one.get("messages_unacknowledged") for one in found))
        status, queues, _ = ask(port, "GET", "queues/%2F")
        shown = ("name", "messages", "messages_unacknowledged", "messages_ready", "consumers", "idle_since")
        yield "status", status
        yield "a slash at the end", [ask(port, "GET", path)[0] for path in ("queues/", "overview/", "queues//", "queues/%2F/", "none/")]
        yield "queues", picked([one for one in queues if one["name"] == "work"], *shown[:5])


# --- Terraform's provider (rabbit-hole) ---------------------------------------------------------------------------------------


def crud(port: int, label: str, path: str, values: list[Any], read: Callable[[Any], Any], *, get: str = "") -> Iterator[Step]:
    """Create, read, update, read, delete, read: what the provider does with a resource."""
    for number, value in enumerate(values):
        status, told, _ = ask(port, "PUT", path, value)
        yield f"{label} {'updated' if number else 'created'}", [status, told if status >= 400 else ""]
        status, found, _ = ask(port, "GET", get or path)
        yield f"{label} read{' again' * number}", [status, read(found) if status == 200 else found]
    yield f"{label} deleted", ask(port, "DELETE", path)[0]
    status, found, _ = ask(port, "GET", get or path)
    yield f"{label} is gone", [status, found if isinstance(found, list) else ""]


def terraform(port: int, amqp_port: int) -> Iterator[Step]:
    """vhost, user, permissions, topic permissions, policy, operator policy, exchange, queue, limits, binding, shovel, upstream."""
    read = lambda *names: lambda value: picked(value, *names)  # noqa: E731
    yield from crud(port, "vhost", "vhosts/tf", [{"description": "d", "tracing": False}], read("name", "description", "tracing"))
    user = {"name": "tf", "password": "secret", "tags": "administrator"}
    yield from crud(port, "user", "users/tf", [user, user | {"tags": ["management", "policymaker"]}], read("name", "tags"))
    for path, body in (
        ("vhosts/tf", {}),
        ("users/tf", user),
        ("permissions/tf/guest", dict.fromkeys(("configure", "write", "read"), ".*")),
    ):
        yield f"PUT {path}", ask(port, "PUT", path, body)[0]
    rights = {"configure": ".*", "write": "^a", "read": ""}
    yield from crud(port, "permissions", "permissions/tf/tf", [rights, rights | {"read": ".*"}], read("user", "vhost", *rights))
    topic = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    yield from crud(port, "topic permissions", "topic-permissions/tf/tf", [topic, topic | {"write": "^b"}], read("user", "vhost", *topic))
    yield (
        "topic permission of one exchange",
        [
            ask(port, "PUT", "topic-permissions/tf/tf", topic)[0],
            ask(port, "DELETE", "topic-permissions/tf/tf/amq.topic")[0],
        ],
    )
    policy = {"vhost": "tf", "name": "p", "pattern": "^q", "priority": 1, "apply-to": "queues", "definition": {"max-length": 10}}
    names = read("vhost", "name", "pattern", "priority", "apply-to", "definition")
    yield from crud(port, "policy", "policies/tf/p", [policy, policy | {"definition": {"message-ttl": 1000}}], names)
    yield from crud(port, "operator policy", "operator-policies/tf/p", [policy, policy | {"priority": 2}], names)
    exchange = {"type": "topic", "durable": True, "auto_delete": False, "arguments": {"alternate-exchange": "amq.fanout"}}
    yield from crud(port, "exchange", "exchanges/tf/x", [exchange], read("name", "vhost", *exchange))
    queue = {"type": "", "durable": True, "auto_delete": False, "arguments": {"x-message-ttl": 5000, "x-queue-type": "quorum"}}
    yield from crud(port, "queue", "queues/tf/q", [queue], read("name", "vhost", "durable", "auto_delete", "arguments"))
    limit = read("vhost", "value")
    for name in ("max-connections", "max-queues"):
        yield from crud(port, f"limit {name}", f"vhost-limits/tf/{name}", [{"value": 5}, {"value": -1}], limit, get="vhost-limits/tf")
    yield from binding(port)
    shovel = {"src-protocol": "amqp091", "src-uri": "amqp:///tf", "src-queue": "from", "dest-protocol": "amqp091", "dest-uri": "amqp:///tf"}
    shovel |= {"dest-queue": "to", "ack-mode": "on-confirm", "src-delete-after": "never", "reconnect-delay": 5}
    values = [{"value": shovel}, {"value": shovel | {"src-queue": "other"}}]
    names = read("vhost", "component", "name", "value")
    yield from crud(port, "shovel", "parameters/shovel/tf/s", values, names)
    upstream = {"uri": "amqp://127.0.0.1:1", "prefetch-count": 100, "reconnect-delay": 60, "ack-mode": "on-confirm", "trust-user-id": False}
    upstream |= {"exchange": "x", "max-hops": 1, "expires": 1800000, "message-ttl": 60000, "queue": ""}
    values = [{"value": upstream}, {"value": upstream | {"max-hops": 2}}]
    yield from crud(port, "federation upstream", "parameters/federation-upstream/tf/u", values, names)
    secret = {"value": shovel | {"src-uri": "amqp://tf:secret@127.0.0.1:1/tf"}}
    yield from crud(port, "shovel with a password", "parameters/shovel/tf/w", [secret], lambda value: value["value"]["src-uri"])
    for path in ("users/tf", "vhosts/tf"):
        assert ask(port, "DELETE", path)[0] == 204


def binding(port: int) -> Iterator[Step]:
    """Its id is the properties_key, which the provider takes out of Location."""
    assert ask(port, "PUT", "queues/tf/bound", {"durable": True})[0] == 201
    for kind, destination in (("q", "bound"), ("e", "amq.fanout")):
        path = f"bindings/tf/e/amq.topic/{kind}/{quote(destination)}"
        for key, arguments in (("a.#", {}), ("", {}), ("k/ey", {"x": "y"})):
            body = {"source": "amq.topic", "vhost": "tf", "destination": destination, "routing_key": key, "arguments": arguments}
            status, _, headers = ask(port, "POST", path, body)
            where = headers.get("location", "").rpartition("/")[2]
            found = [
                one for one in ask(port, "GET", "bindings/tf")[1] if one["source"] == "amq.topic" and one["destination"] == destination
            ]
            label = f"binding of {destination} by {key!r}"
            same = [quote(one["properties_key"]) == where or one["properties_key"] == where for one in found]
            yield f"{label} created", [status, same, picked(found, "routing_key", "arguments", "destination_type")]
            yield f"{label} deleted", [ask(port, "DELETE", f"{path}/{where}")[0], ask(port, "GET", f"{path}/{where}")[0]]


# --- rabbitmqadmin v2 ---------------------------------------------------------------------------------------------------------

# what its client (rabbitmq_http_client) can't do without, by the path that it asks: a missing member is an error of the whole command
MUST = {
    "overview": "cluster_name node erlang_version erlang_full_version rabbitmq_version product_name product_version"
    " statistics_db_event_queue churn_rates queue_totals object_totals message_stats listeners",
    "nodes": "name uptime run_queue processors os_pid fd_total proc_total mem_limit mem_alarm disk_free_limit disk_free_alarm rates_mode"
    " enabled_plugins being_drained",
    "queues": "name vhost type durable auto_delete exclusive arguments",
    "exchanges": "name vhost type durable auto_delete arguments",
    "bindings": "vhost source destination destination_type routing_key arguments properties_key",
    "connections": "name node protocol user connected_at client_properties",
    "channels": "number name connection_details vhost state consumer_count confirm prefetch_count messages_unacknowledged"
    " messages_unconfirmed",
    "consumers": "consumer_tag active ack_required prefetch_count exclusive arguments consumer_timeout queue channel_details",
    "users": "name tags password_hash hashing_algorithm",
    "vhosts": "name",
    "permissions": "user vhost configure read write",
    "feature-flags": "name state stability desc",
    "policies": "name vhost pattern apply-to definition priority",
    "operator-policies": "name vhost pattern apply-to definition priority",
    "vhost-limits": "vhost value",
    "user-limits": "user value",
    "parameters": "name vhost component value",
    "global-parameters": "name value",
}
_CHECKS = (
    "alarms local-alarms ready-to-serve-clients node-is-quorum-critical node-is-mirror-sync-critical virtual-hosts"
    " below-node-connection-limit port-listener/{port} protocol-listener/amqp091 port-listener/1 protocol-listener/mqtt"
)


def rabbitmqadmin2(port: int, amqp_port: int) -> Iterator[Step]:
    """list and show commands, health checks, declare, publish, get, purge, delete, export and import of definitions."""
    made = [
        ("vhosts/v2", {"description": "d", "tracing": False}),
        ("permissions/v2/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("users/v2", {"name": "v2", "password_hash": "c2FsdL7ekDhtRQzqi3e4IviIcGXk5avxMsL53M/Mf71Mul41", "tags": "monitoring"}),
        ("policies/v2/p", {"vhost": "v2", "name": "p", "pattern": ".", "apply-to": "all", "priority": 3, "definition": {"max-length": 5}}),
        ("operator-policies/v2/o", {"vhost": "v2", "name": "o", "pattern": ".", "apply-to": "queues", "definition": {"max-length": 4}}),
        ("vhost-limits/v2/max-queues", {"value": 9}),
        ("user-limits/v2/max-channels", {"value": 9}),
        ("queues/v2/q", {"name": "q", "durable": True, "auto_delete": False, "exclusive": False, "arguments": {}}),
        ("exchanges/v2/x", {"name": "x", "type": "direct", "durable": True, "auto_delete": False, "arguments": {}}),
        ("parameters/federation-upstream/v2/u", {"name": "u", "vhost": "v2", "value": {"uri": "amqp://127.0.0.1:1"}}),
        ("global-parameters/g", {"name": "g", "value": {"a": 1}}),
    ]
    for path, body in made:
        yield f"PUT {path}", ask(port, "PUT", path, body)[0]
    yield "binding", ask(port, "POST", "bindings/v2/e/x/q/q", {"routing_key": "k", "arguments": {}})[0]
    publish = {"properties": {}, "routing_key": "k", "payload": "hello", "payload_encoding": "string"}
    yield "publish", ask(port, "POST", "exchanges/v2/x/publish", publish)[:2]
    wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    got = ask(port, "POST", "queues/v2/q/get", wanted)[1]
    names = ("payload_bytes", "redelivered", "exchange", "routing_key", "message_count", "properties", "payload", "payload_encoding")
    yield "get", picked(got, *names)
    with at_work(amqp_port):
        until(port, "channels", lambda found: any(one.get("consumer_count") == 1 for one in found))
        until(port, "consumers", bool)
        for path, members in MUST.items():
            status, value, _ = ask(port, "GET", path)
            items = value if isinstance(value, list) else [value]
            missing = sorted({name for one in items for name in members.split() if name not in one})
            yield f"GET {path}: members that are missing", [status, bool(items), missing]
    for check in _CHECKS.split():
        status, value, _ = ask(port, "GET", f"health/checks/{check.format(port=amqp_port)}")
        yield f"health check {check}", [status, value.get("status") if isinstance(value, dict) else ""]
    status, definitions, _ = ask(port, "GET", "definitions")
    members = "users vhosts permissions topic_permissions parameters global_parameters policies queues exchanges bindings"
    yield "definitions export", [status, sorted(name for name in members.split() if name not in definitions)]
    yield "definitions import", ask(port, "POST", "definitions", definitions)[0]
    status, own, _ = ask(port, "GET", "definitions/v2")
    yield "definitions of a vhost", [status, picked(own["queues"], "name"), picked(own["bindings"], "source", "destination")]
    yield "purge", ask(port, "DELETE", "queues/v2/q/contents")[0]
    yield "delete if unused", ask(port, "DELETE", "queues/v2/q?if-unused=true&if-empty=true")[0]
    for path, _ in reversed(made):
        if not path.startswith(("queues/", "permissions/")):
            yield f"DELETE {path}", ask(port, "DELETE", path)[0]
    yield (
        "DELETE of what is gone",
        [ask(port, "DELETE", path)[0] for path, _ in made if path.startswith(("vhosts/", "users/", "policies/"))],
    )
    yield "rebalance", ask(port, "POST", "rebalance/queues")[0]


SCRIPTS: dict[str, Callable[[int, int], Iterator[Step]]] = {
    "amqpstorm": amqpstorm,
    "flower": flower,
    "terraform": terraform,
    "rabbitmqadmin2": rabbitmqadmin2,
}

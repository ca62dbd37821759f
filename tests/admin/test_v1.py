"""/api/v1 for people: looks take nothing, moves lose nothing, and a tenant gets no further than its permissions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flintmq.admin import moving
from flintmq.admin.filters import Filter, parse_conditions, parse_path
from flintmq.admin.http_refusals import HttpError
from flintmq.admin.why import Why
from flintmq.config import Limits
from flintmq.protocol.v0_9_1.codec import encode_properties
from tests.admin.api import Api
from tests.admin.conftest import Answer, Client, basic
from tests.broker.test_letters_in_the_log import pairs
from tests.oracle.records import MESSAGES, fields_of
from tests.support.broker import wait_until

V1 = "/api/v1"
ROOT = f"{V1}/queues/%2F"


def peek(client: Client, name: str, query: str = "") -> Any:
    answer = client.get(f"{ROOT}/{name}/peek{query}")
    assert answer.status == 200, answer
    return answer.json


def post(client: Client, path: str, value: Any, status: int = 200, user: str = "guest") -> Any:
    answer = client.post(path, value, basic(user, user))
    assert answer.status == status, answer
    return answer.json


def bodies(answer: Any) -> list[str]:
    return [one["body"] for one in answer["messages"]]


# --- looks ------------------------------------------------------------------------------------------------------------------


def test_a_look_takes_and_flags_nothing(shared: Client, name: str) -> None:
    shared.queue(name)
    shared.publish("a", "b", "c", name=name)
    assert bodies(peek(shared, name)) == ["a", "b", "c"]
    assert bodies(post(shared, f"{ROOT}/{name}/search", {"filter": [{"in": "body", "op": "contains", "value": "b"}]})) == ["b"]
    connection = pika.BlockingConnection(pika.URLParameters(shared.broker.url))
    channel = connection.channel()
    seen = [channel.basic_get(name) for _ in range(3)]
    assert [body for _, _, body in seen] == [b"a", b"b", b"c"]
    assert not any(method.redelivered for method, _, _ in seen)
    assert peek(shared, name)["messages"] == []  # they are in the consumer's hands
    connection.close()


def test_a_look_goes_on_where_the_last_one_ended(shared: Client, name: str) -> None:
    shared.queue(name, x_max_priority=2)
    for number in range(7):
        properties = {"properties": {"priority": number % 3}}
        post(shared, f"{ROOT}/{name}/messages", {"body": str(number), **properties}, 201)
    found, place = [], "0"
    while place is not None:
        answer = peek(shared, name, f"?count=2&position={place}")
        assert len(answer["messages"]) <= 2
        found += bodies(answer)
        place = answer["next"]
    assert found == ["2", "5", "1", "4", "0", "3", "6"]  # highest priority first, as consumers get them


def test_a_look_is_bounded(start: Callable[..., Client]) -> None:
    client = start(limits={"search_messages_max": 10, "search_slice": 4, "peek_bytes_max": 5000})
    client.queue("q")
    client.publish(*["x" * 1000] * 30)
    answer = peek(client, "q", "?count=100&body_bytes=2000")
    assert len(answer["messages"]) == 5 and answer["next"] == "6"
    answer = post(client, f"{ROOT}/q/search", {"filter": [{"in": "body", "op": "eq", "value": "y"}]})
    assert answer["looked"] == 10 and answer["messages"] == [] and answer["next"] == "11"
    assert client.get(f"{ROOT}/q/peek?count=101").status == 400
    assert client.get(f"{ROOT}/q/peek?body_bytes=5001").status == 400


def test_a_body_is_cut_between_characters(shared: Client, name: str) -> None:
    shared.queue(name)
    shared.publish("aéé", name=name)
    (message,) = peek(shared, name, "?body_bytes=4")["messages"]
    assert (message["body"], message["encoding"], message["truncated"], message["body_bytes"]) == ("aé", "text", True, 5)


def test_a_stream_is_looked_at_by_offset(start: Callable[..., Client], tmp_path: Any) -> None:
    client = start(data_dir=str(tmp_path))
    client.node.broker.vhosts["/"].run(
        client.node.broker.vhosts["/"].declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
    )
    client.publish("a", "b", "c", name="s")
    answer = peek(client, "s", "?position=2")
    assert bodies(answer) == ["b", "c"] and answer["messages"][0]["offset"] == 1
    assert client.post(f"{ROOT}/s/move", {"routing_key": "x"}).status == 409


def test_messages_on_disk_only_are_found(start: Callable[..., Client], tmp_path: Any) -> None:
    client = start(data_dir=str(tmp_path), limits={"queue_hot_bytes": 4096})
    client.node.broker.vhosts["/"].run(client.node.broker.vhosts["/"].declare_queue("q", durable=True))
    client.publish(*[json.dumps({"n": number, "pad": "x" * 500}) for number in range(50)])
    wait_until(lambda: client.node.broker.vhosts["/"].queues["q"].core.cold_count > 0)
    found = post(client, f"{ROOT}/q/search", {"filter": [{"in": "json", "path": "$.n", "op": "gt", "value": 47}]})
    assert [json.loads(one)["n"] for one in bodies(found)] == [48, 49]


# --- filters ----------------------------------------------------------------------------------------------------------------


class Plain(NamedTuple):
    """A message as core.content_view.ContentView shows one."""

    exchange: bytes
    routing_key: bytes
    header: bytes
    raw: bytes

    @property
    def body_bytes(self) -> int:
        return len(self.raw)

    def body(self, start: int = 0, size: int = 0xFFFFFFFF) -> bytes:
        return self.raw[start : start + size]


DOCUMENT = {"a": {"b": [1, {"c d": "Deep"}]}, "n": 5, "yes": True, "nothing": None}
HEADER = encode_properties(0, {"headers": {"x": 7, "name": "abc", "b": b"\xff"}, "content_type": "text/plain", "priority": 3})


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"in": "routing_key", "op": "prefix", "value": "eu."}, True),
        ({"in": "exchange", "value": "x"}, True),
        ({"in": "header", "name": "x", "value": 7}, True),
        ({"in": "header", "name": "x", "value": "7"}, True),
        ({"in": "header", "name": "x", "op": "gt", "value": 7}, False),
        ({"in": "header", "name": "no", "op": "exists"}, False),
        ({"in": "header", "name": "no", "op": "ne", "value": 1}, True),
        ({"in": "header", "name": "b", "op": "contains", "value": "base64"}, True),
        ({"in": "property", "name": "content_type", "op": "contains", "value": "plain"}, True),
        ({"in": "property", "name": "priority", "op": "lt", "value": 4}, True),
        ({"in": "json", "path": "$.a.b[1]['c d']", "value": "Deep"}, True),
        ({"in": "json", "path": "a.b[0]", "value": 1}, True),
        ({"in": "json", "path": "$.a.b[9]", "op": "exists"}, False),
        ({"in": "json", "path": "yes", "value": True}, True),
        ({"in": "json", "path": "yes", "value": 1}, False),
        ({"in": "json", "path": "nothing", "value": None}, True),
        ({"in": "body", "op": "contains", "value": '"n": 5'}, True),
    ],
)
def test_conditions(condition: dict[str, Any], expected: bool) -> None:
    message = Plain(b"x", b"eu.orders", HEADER, json.dumps(DOCUMENT).encode())
    assert Filter(parse_conditions([condition]), Limits()).matches(message) is expected


@given(
    body=st.binary(max_size=200),
    path=st.sampled_from(["$", "$.a", "a[0].b", "['x']"]),
    value=st.none() | st.integers() | st.text(max_size=5),
)
def test_a_filter_answers_for_any_message(body: bytes, path: str, value: Any) -> None:
    condition = {"in": "json", "path": path, "value": value}
    Filter(parse_conditions([condition]), Limits()).matches(Plain(b"\xff", b"\xff", b"", body))


def test_a_deep_body_is_no_json() -> None:
    wanted = Filter(parse_conditions([{"in": "json", "path": "$", "op": "exists"}]), Limits())
    assert not wanted.matches(Plain(b"", b"", b"", b"[" * 100_000))
    assert not wanted.matches(Plain(b"", b"", b"", b'"' + b"x" * 200_000 + b'"')) and wanted.long == 1


@pytest.mark.parametrize("path", ["$.a[", "a..b", "$.a[x]", "a.", "x" * 600, ".".join("a" * 40)])
def test_a_path_that_can_not_be_read_is_refused(shared: Client, name: str, path: str) -> None:
    shared.queue(name)
    refused = post(shared, f"{ROOT}/{name}/search", {"filter": [{"in": "json", "path": path, "value": 1}]}, 400)
    assert "path" in refused["reason"]


def test_paths() -> None:
    assert parse_path("$") == () and parse_path("$.a.b[0]['c.d'][\"e\"]") == ("a", "b", 0, "c.d", "e")


# --- moves ------------------------------------------------------------------------------------------------------------------


def test_what_moves_keeps_order_and_properties(start: Callable[..., Client], tmp_path: Any) -> None:
    client = start(data_dir=str(tmp_path))
    for name in ("q", "r"):
        client.node.broker.vhosts["/"].run(client.node.broker.vhosts["/"].declare_queue(name, durable=True))
    for number in range(100):
        properties = {"headers": {"n": number, "even": number % 2 == 0}, "message_id": f"m{number}"}
        post(client, f"{ROOT}/q/messages", {"body": str(number), "properties": properties}, 201)
    even = [{"in": "header", "name": "even", "value": True}]
    answer = post(client, f"{ROOT}/q/move", {"routing_key": "r", "filter": even})
    assert answer == {"moved": 50, "looked": 100, "missing": 0, "stopped": None, "next": None}
    assert bodies(peek(client, "r", "?count=100")) == [str(number) for number in range(0, 100, 2)]
    assert bodies(peek(client, "q", "?count=100")) == [str(number) for number in range(1, 100, 2)]
    moved = peek(client, "r", "?count=1")["messages"][0]["properties"]
    assert moved == {"headers": {"n": 0, "even": True}, "message_id": "m0", "delivery_mode": 2}
    # what was moved is on disk, and what it was moved from is not
    client.broker.node.stop()
    again = start(data_dir=str(tmp_path))
    assert len(peek(again, "r", "?count=100")["messages"]) == 50 == len(peek(again, "q", "?count=100")["messages"])


@pytest.mark.parametrize("fails", [False, True])
def test_a_moved_message_is_in_one_place_whatever_happens(
    start: Callable[..., Client], tmp_path: Any, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The end of the original stands in the block of its copy; it ends, too, when nobody says that this block is on disk."""

    async def not_durable(*_: object) -> None:
        raise HttpError(503, "not_durable", "the message is not known to be on disk", "look")

    client = start(data_dir=str(tmp_path))
    vhost = client.node.broker.vhosts["/"]
    queues = {name: vhost.run(vhost.declare_queue(name, durable=True)) for name in ("q", "r")}
    for number in range(4):
        post(client, f"{ROOT}/q/messages", {"body": str(number)}, 201)
    if fails:
        monkeypatch.setattr(moving, "durable", not_durable)
    status = 503 if fails else 200
    post(client, f"{ROOT}/q/move", {"routing_key": "r", "positions": [1, 2, 3]}, status)
    post(client, f"{ROOT}/q/republish", {"position": "4", "routing_key": "r", "body": "new"}, status)
    assert bodies(peek(client, "r")) == ["0", "1", "2", "new"] and bodies(peek(client, "q")) == []
    client.broker.node.stop()
    ended = pairs(next(tmp_path.rglob("messages")).parent, queues["q"].queue_id, "move")
    assert len(ended) == 4
    for before, _ in ended:
        assert before is not None and fields_of(before, MESSAGES)["queue"] == queues["r"].queue_id


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ({"routing_key": "nobody"}, "leads to no queue"),
        ({"exchange": "amq.topic", "routing_key": "a"}, "leads to no queue"),
        ({"routing_key": "SELF"}, "come back"),
        ({"routing_key": "FULL"}, "is full"),
    ],
)
def test_what_can_not_move_stays_where_it_is(shared: Client, name: str, goal: dict[str, Any], reason: str) -> None:
    shared.queue(name)
    shared.queue(f"{name}-full", x_max_length=1, x_overflow="reject-publish")
    shared.publish("x", name=f"{name}-full")
    shared.publish("a", "b", name=name)
    goal = {key: value.replace("SELF", name).replace("FULL", f"{name}-full") for key, value in goal.items()}
    answer = post(shared, f"{ROOT}/{name}/move", goal)
    assert answer["moved"] == 0 and reason in answer["stopped"] and answer["next"] == "1"
    messages = peek(shared, name)["messages"]
    assert [(one["body"], one["deliveries"]) for one in messages] == [("a", 0), ("b", 0)]


def test_a_message_is_sent_anew_edited(shared: Client, name: str) -> None:
    shared.queue(name)
    shared.queue(f"{name}2")
    post(shared, f"{ROOT}/{name}/messages", {"body": "old", "properties": {"type": "t", "headers": {"a": 1}}}, 201)
    (message,) = peek(shared, name)["messages"]
    place = {"position": message["position"], "routing_key": f"{name}2"}
    assert post(shared, f"{ROOT}/{name}/republish", {**place, "body": "new", "remove": False}) == {"sent": True, "removed": False}
    properties = {"headers": {"b": [1, "x"]}, "content_type": "a/b"}
    post(shared, f"{ROOT}/{name}/republish", {**place, "properties": properties})
    assert peek(shared, name)["messages"] == []
    first, second = peek(shared, f"{name}2")["messages"]
    assert (first["body"], first["properties"]) == ("new", message["properties"])
    assert (second["body"], second["properties"]) == ("old", properties)


def test_topic_permissions_hold_for_what_is_moved_or_sent_anew(start: Callable[..., Client]) -> None:
    """Of each key of the message: its own, CC, and a BCC that it is given now."""
    client = start()
    node, vhost = client.node, client.node.broker.vhosts["/"]
    for queue in ("from", "to"):
        vhost.run(vhost.declare_queue(queue))
    vhost.run(vhost.bind_queue("to", "amq.topic", b"#"))
    node.permissions.set_topic("guest", "/", "amq.topic", "^mine", "")
    vhost.set_keyed(["amq.topic"])
    for headers in ({"CC": ["other"]}, {"CC": ["mine.2"]}):
        post(client, f"{ROOT}/from/messages", {"body": "x", "properties": {"headers": headers}}, 201)
    goal = {"exchange": "amq.topic", "routing_key": "mine.1"}
    answer = post(client, f"{ROOT}/from/move", {**goal, "positions": [1]})
    assert answer["moved"] == 0 and "write access to topic 'other'" in answer["stopped"]
    assert post(client, f"{ROOT}/from/move", {**goal, "positions": [2]})["moved"] == 1
    secret = {**goal, "position": 1, "properties": {"headers": {"BCC": ["other"]}}}
    assert "topic 'other'" in json.dumps(post(client, f"{ROOT}/from/republish", secret, 403))
    hidden = {**goal, "position": 1, "properties": {"headers": {"BCC": ["mine.3"], "x": 1}}}
    post(client, f"{ROOT}/from/republish", hidden)
    first, second = peek(client, "to")["messages"]
    assert (first["properties"]["headers"], second["properties"]["headers"]) == ({"CC": ["mine.2"]}, {"x": 1})


def test_a_message_that_can_not_be_sent_anew_stays(shared: Client, name: str) -> None:
    shared.queue(name)
    shared.publish("a", name=name)
    asked = {"position": 1, "routing_key": "nobody"}
    assert post(shared, f"{ROOT}/{name}/republish", asked, 409)["error"] == "not_sent"
    assert post(shared, f"{ROOT}/{name}/republish", {**asked, "properties": {"no": 1}}, 400)["error"] == "bad_request"
    assert post(shared, f"{ROOT}/{name}/republish", {**asked, "position": 77}, 409)["error"] == "gone"
    assert bodies(peek(shared, name)) == ["a"]


@pytest.mark.parametrize("position", [0, -1, 2**64, "x", None, True, 1.5, "9" * 30])
def test_a_position_that_is_none_is_refused(shared: Client, name: str, position: Any) -> None:
    shared.queue(name)
    for verb, body in (("remove", {"positions": [position]}), ("republish", {"position": position, "routing_key": "q"})):
        assert client_status(shared, f"{ROOT}/{name}/{verb}", body) == 400


def client_status(client: Client, path: str, body: Any) -> int:
    return client.post(path, body).status


def test_a_position_that_is_not_there_is_no_error(shared: Client, name: str) -> None:
    shared.queue(name)
    shared.publish("a", "b", name=name)
    wild = ["2", 3, 2**63, 2**64 - 1, (200 << 56) + 1, 1 << 40]
    assert post(shared, f"{ROOT}/{name}/remove", {"positions": wild}) == {"removed": 1, "missing": 5}
    assert bodies(peek(shared, name)) == ["a"]


# --- why --------------------------------------------------------------------------------------------------------------------


def test_why_says_which_bindings_match_and_why_not(shared: Client, name: str) -> None:
    vhost = shared.node.broker.vhosts["/"]
    shared.queue(name)
    vhost.run(vhost.declare_exchange(f"{name}.alt", "fanout"))
    vhost.run(vhost.declare_exchange(f"{name}.t", "topic", arguments={"alternate-exchange": f"{name}.alt"}))
    vhost.run(vhost.declare_exchange(f"{name}.h", "headers"))
    vhost.run(vhost.bind_queue(name, f"{name}.t", b"eu.*.paid", {}))
    vhost.run(vhost.bind_queue(name, f"{name}.h", b"", {"x-match": "all", "a": 1, "b": "x"}))
    path = f"{V1}/vhosts/%2F/route"
    answer = post(shared, path, {"exchange": f"{name}.t", "routing_key": "eu.orders.paid"})
    assert answer["routed"] and answer["queues"] == [name] and answer["steps"][0]["bindings"][0]["matches"]
    answer = post(shared, path, {"exchange": f"{name}.t", "routing_key": "eu.orders"})
    assert not answer["routed"] and "asks for more" in answer["steps"][0]["bindings"][0]["reason"]
    assert answer["steps"][1]["exchange"] == f"{name}.alt" and answer["advice"]
    answer = post(shared, path, {"exchange": f"{name}.h", "routing_key": "", "headers": {"a": 2}})
    assert answer["steps"][0]["bindings"][0]["reason"] == "header 'a' is 2, not 1; header 'b' is not there"
    assert post(shared, path, {"exchange": f"{name}.h", "headers": {"a": 1, "b": "x"}})["queues"] == [name]
    assert post(shared, path, {"exchange": "nobody"}, 404)["error"] == "not_found"


WORD = st.sampled_from(["a", "b", "#", "*", ""])
KEYS = st.lists(WORD, min_size=1, max_size=5).map(".".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns=st.lists(KEYS, max_size=5, unique=True), key=KEYS, kind=st.sampled_from(["topic", "direct", "fanout"]))
def test_the_explanation_agrees_with_the_routes(shared: Client, patterns: list[str], key: str, kind: str) -> None:
    vhost = shared.node.broker.vhosts["/"]
    vhost.run(vhost.declare_exchange("why", kind))
    try:
        for number, pattern in enumerate(patterns):
            vhost.run(vhost.declare_queue(f"why{number}", auto_delete=False))
            vhost.run(vhost.bind_queue(f"why{number}", "why", pattern.encode(), {}))
        answer = Why(vhost, Limits()).explain("why", key.encode(), {})
        assert {row["destination"] for row in answer["steps"][0]["bindings"] if row["matches"]} == set(answer["queues"])
        assert all(row["matches"] == (row["reason"] == "it matches") for row in answer["steps"][0]["bindings"])
    finally:
        vhost.run(vhost.delete_exchange("why"))


def test_an_explanation_is_bounded(shared: Client, name: str) -> None:
    vhost = shared.node.broker.vhosts["/"]
    shared.queue(name)
    vhost.run(vhost.declare_exchange(name, "direct"))
    for number in range(30):
        vhost.run(vhost.bind_queue(name, name, str(number).encode(), {}))
    answer = Why(vhost, Limits(why_bindings_max=10)).explain(name, b"3", {})
    assert len(answer["steps"][0]["bindings"]) == 10 and answer["steps"][0]["left_out"] == 20 and answer["routed"]


# --- who may ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tenants(shared: Client) -> Client:
    """Users: `none` without a tag, `m` (management) that may read `mine` alone, `out` (management) without a virtual host."""
    api = Api(shared)
    api.user("none", "", "%2F")
    api.put("users/m", {"password": "m", "tags": "management"})
    api.put("permissions/%2F/m", {"configure": "^$", "write": "^mine$", "read": "^mine$"})
    api.user("out", "management")
    api.user("mon", "monitoring")
    return shared


CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/queues/%2F/other/peek", None),
    ("POST", "/queues/%2F/other/search", {}),
    ("POST", "/queues/%2F/other/move", {"routing_key": "mine"}),
    ("POST", "/queues/%2F/other/republish", {"position": 1, "routing_key": "mine"}),
    ("POST", "/queues/%2F/other/remove", {"positions": [1]}),
    ("GET", "/queues/%2F/other/consumers", None),
    ("GET", "/queues/%2F/other/samples", None),
    ("POST", "/queues/%2F/mine/move", {"routing_key": "other"}),  # may not write the default exchange
    ("POST", "/queues/%2F/mine/republish", {"position": 1, "routing_key": "other"}),
    ("GET", "/samples", None),
    ("GET", "/logs", None),
    ("GET", "/events?topics=logs", None),
]


def ask(client: Client, method: str, path: str, body: Any, user: str) -> Answer:
    raw = None if body is None else json.dumps(body).encode()
    return client.request(method, V1 + path, raw, basic(user, user))


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_a_tenant_gets_no_further_than_its_permissions(tenants: Client, method: str, path: str, body: Any) -> None:
    for name in ("mine", "other"):
        tenants.queue(name)
    before = len(peek(tenants, "other")["messages"]), len(peek(tenants, "mine")["messages"])
    for user in ("m", "none", "out"):
        answer = ask(tenants, method, path, body, user)
        assert answer.status == 403 and answer.json["error"] == "forbidden", (user, answer)
    assert ask(tenants, method, path, body, "nobody").status == 401
    assert before == (len(peek(tenants, "other")["messages"]), len(peek(tenants, "mine")["messages"]))


def test_a_tenant_uses_what_it_may(tenants: Client) -> None:
    tenants.queue("mine")
    assert ask(tenants, "GET", "/queues/%2F/mine/peek", None, "m").status == 200
    assert ask(tenants, "POST", "/queues/%2F/mine/search", {}, "m").status == 200
    assert ask(tenants, "POST", "/vhosts/%2F/route", {"routing_key": "mine"}, "m").json["routed"]
    assert ask(tenants, "POST", "/vhosts/%2F/route", {"routing_key": "mine"}, "out").status == 403
    seen = ask(tenants, "GET", "/overview", None, "out").json
    assert seen["vhosts"] == [] and seen["now"]["queues"] == 0 and "drops" not in seen["now"]
    assert ask(tenants, "GET", "/samples", None, "mon").status == 200
    assert ask(tenants, "GET", "/vhosts/%2F/topology", None, "mon").status == 403  # as RabbitMQ: it looks, it has no permissions there


def test_an_exclusive_queue_of_another_connection_is_locked(shared: Client, name: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(shared.broker.url))
    connection.channel().queue_declare(name, exclusive=True)
    assert shared.get(f"{ROOT}/{name}/peek").status == 423
    assert shared.post(f"{ROOT}/{name}/move", {"routing_key": "x"}).status == 423
    connection.close()


def test_long_calls_of_one_user_have_a_limit(start: Callable[..., Client]) -> None:
    client = start(limits={"long_calls_max": 0})
    client.queue("q")
    answer = client.get(f"{ROOT}/q/peek")
    assert answer.status == 503 and answer.json["error"] == "busy" and answer.headers["retry-after"]


# --- consumers ----------------------------------------------------------------------------------------------------------------


def test_the_consumer_that_hoards_is_named(shared: Client, name: str) -> None:
    shared.queue(name)
    shared.publish(*["x"] * 40, name=name)
    connection = pika.BlockingConnection(pika.URLParameters(shared.broker.url))
    first, second = connection.channel(), connection.channel()
    first.basic_qos(prefetch_count=100)
    first.basic_consume(name, lambda *_: None, consumer_tag="greedy")
    while shared.node.broker.vhosts["/"].queues[name].core.ready_count():
        connection.process_data_events(0.01)
    second.basic_qos(prefetch_count=5)
    second.basic_consume(name, lambda *_: None, consumer_tag="modest")
    answer = shared.get(f"{ROOT}/{name}/consumers").json
    rows = {row["consumer_tag"]: (row["in_flight"], row["prefetch"], row["taken"]) for row in answer["consumers"]}
    assert rows == {"greedy": (40, 100, 40), "modest": (0, 5, 0)}
    assert answer["fairness"] == 0.5 and "greedy" in answer["hoarding"]
    connection.close()

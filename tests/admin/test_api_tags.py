"""Who may do what over RabbitMQ's API: every route and every tag."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from flintmq.access.tags import RULES, NotAuthorised, authorize
from flintmq.admin import api_access, api_clients, api_definitions, api_messages, api_names, api_node
from flintmq.admin.operations import Operation
from flintmq.testing.broker import Broker
from tests.admin.api import PERMISSION, Api
from tests.admin.conftest import Client
from tests.support.broker import wait_until

ROWS = [one for module in (api_node, api_access, api_names, api_messages, api_clients, api_definitions) for one in module.operations()]
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
PUBLISH = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
POLICY = {"pattern": "a", "definition": {"max-length": 3}}
# what is asked, and who may: m(anagement) and p(olicymaker) with permissions in v, M(onitoring) and A(dministrator) without. As a RabbitMQ
# 3.10.8 answered: 401 to all others
MATRIX = [
    ("GET", "overview", None, "mpMA"),
    ("GET", "nodes", None, "MA"),
    ("GET", "whoami", None, "mpMA"),
    ("GET", "extensions", None, "mpMA"),
    ("GET", "cluster-name", None, "mpMA"),
    ("PUT", "cluster-name", {"name": "c"}, "A"),
    ("GET", "vhosts", None, "mpMA"),
    ("GET", "vhosts/v", None, "A"),
    ("PUT", "vhosts/w", None, "A"),
    ("DELETE", "vhosts/w", None, "A"),
    ("GET", "vhosts/v/permissions", None, "A"),
    ("GET", "users", None, "A"),
    ("GET", "users/m", None, "A"),
    ("GET", "users/without-permissions", None, "A"),
    ("PUT", "users/z", {"tags": ""}, "A"),
    ("PATCH", "users/z", {"tags": ""}, "A"),
    ("DELETE", "users/z", None, "A"),
    ("GET", "users/m/permissions", None, "A"),
    ("GET", "permissions", None, "A"),
    ("GET", "permissions/v/m", None, "A"),
    ("PUT", "permissions/v/guest", PERMISSION, "A"),
    ("GET", "topic-permissions", None, "A"),
    ("GET", "vhost-limits", None, "mpMA"),
    ("GET", "vhost-limits/v", None, "mpMA"),
    ("PUT", "vhost-limits/v/max-queues", {"value": 1000}, "A"),
    ("DELETE", "vhost-limits/v/max-queues", None, "A"),
    ("GET", "user-limits", None, "mpMA"),
    ("GET", "user-limits/m", None, "mpMA"),
    ("PUT", "user-limits/m/max-channels", {"value": 100}, "A"),
    ("GET", "policies", None, "mpMA"),
    ("GET", "policies/v", None, "mpA"),
    ("PUT", "policies/v/p", POLICY, "pA"),
    ("GET", "policies/v/p", None, "pA"),
    ("GET", "operator-policies", None, "mpMA"),
    ("GET", "operator-policies/v", None, "mpA"),
    ("PUT", "operator-policies/v/p", POLICY, "A"),
    ("GET", "parameters", None, "pA"),
    ("GET", "parameters/federation-upstream", None, "pA"),
    ("GET", "parameters/federation-upstream/v", None, "pA"),
    ("PUT", "parameters/federation-upstream/v/n", {"value": {"uri": "amqp://x:y@/v"}}, "pA"),
    ("GET", "global-parameters", None, "pA"),
    ("PUT", "global-parameters/g", {"value": 1}, "pA"),
    ("GET", "queues", None, "mpMA"),
    ("GET", "queues/v", None, "mpA"),
    ("PUT", "queues/v/q", {}, "mp"),
    ("GET", "queues/v/q", None, "mpA"),
    ("GET", "exchanges", None, "mpMA"),
    ("GET", "exchanges/v", None, "mpA"),
    ("GET", "bindings", None, "mpMA"),
    ("GET", "bindings/v", None, "mpA"),
    ("POST", "exchanges/v/amq.default/publish", PUBLISH, "mp"),
    ("POST", "queues/v/q/get", GET, "mp"),
    ("DELETE", "queues/v/q/contents", None, "mp"),
    ("GET", "connections", None, "mpMA"),
    ("GET", "channels", None, "mpMA"),
    ("GET", "consumers", None, "mpMA"),
    ("GET", "vhosts/v/connections", None, "mpA"),
    ("GET", "definitions", None, "A"),
    ("GET", "definitions/v", None, "A"),
    ("POST", "definitions", {}, "A"),
    ("POST", "definitions/v", {}, "A"),
    ("GET", "aliveness-test/v", None, "mp"),
    ("GET", "healthchecks/node", None, "mpMA"),
    ("GET", "health/checks/alarms", None, "mpMA"),
    ("GET", "health/checks/virtual-hosts", None, "mpMA"),
    ("GET", "feature-flags", None, "A"),
    ("POST", "rebalance/queues", {}, "A"),
]


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, Api]]:
    """One of each tag, and n without any, on one broker."""
    with Broker(http_port=0) as broker:
        guest = Api(Client(broker))
        guest.put("vhosts/v")
        guest.put("queues/v/q", {})
        found = {"guest": guest, "n": guest.user("n", "", "v"), "m": guest.user("m", "management", "v")}
        found |= {"p": guest.user("p", "policymaker", "v"), "M": guest.user("M", "monitoring"), "A": guest.user("A", "administrator")}
        yield found


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row[0]} {row[1]}")
def test_the_matrix_of_rabbitmq(users: dict[str, Api], row: tuple[str, str, object, str]) -> None:
    method, path, value, allowed = row
    for name in "nmpMA":
        answer = users[name].ask(method, path, value)
        assert (answer.status != 401) == (name in allowed), (name, answer)
        assert answer.status in (200, 201, 204, 401), (name, answer)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path.removeprefix('/api/')}")
def test_no_route_serves_who_has_no_tag_or_no_password(users: dict[str, Api], row: Operation) -> None:
    """Generated from the table of routes, so a new route is asked, too."""
    path = re.sub(r"\{\w+\}", "v", row.path.removeprefix("/api/")).replace("bindings/v/e/v/v/", "bindings/v/e/v/q/")
    body = {} if row.method in ("PUT", "POST") else None
    answer = users["n"].ask(row.method, path, {**(body or {}), "tags": ""} if body is not None else None)
    assert (answer.status, answer.json["reason"]) == (401, "Not management user"), answer
    stranger = users["n"].ask(row.method, path, body, {"Authorization": "Basic %%%"})
    assert (stranger.status, stranger.json) == (401, {"error": "not_authorized", "reason": "Login failed"})
    assert stranger.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize("verb", sorted(RULES))
@pytest.mark.parametrize("tag", ["", "other", "management", "policymaker", "monitoring", "administrator"])
@pytest.mark.parametrize("own", [False, True])
def test_every_rule(verb: str, tag: str, own: bool) -> None:
    """An administrator may everything; who has no tag of management nothing; others what the rule says, in virtual hosts that it says."""
    rule = RULES[verb]
    expected = tag == "administrator" or (
        tag in rule.tags and (rule.vhosts == "any" or own or (rule.vhosts == "seen" and tag == "monitoring"))
    )
    try:
        authorize(verb, [tag], own)
    except NotAuthorised:
        assert not expected
    else:
        assert expected


def test_lists_show_what_the_caller_may_see(users: dict[str, Api]) -> None:
    users["guest"].put("vhosts/hidden", None, 201)
    users["guest"].put("queues/hidden/secret", {})
    assert {one["vhost"] for one in users["m"].get("queues")} == {"v"}
    assert {one["name"] for one in users["m"].get("vhosts")} == {"v"}
    assert {"hidden", "v", "/"} <= {one["vhost"] for one in users["M"].get("exchanges")}
    assert users["m"].get("queues/hidden/secret", 401)["reason"] == "User not authorised to access virtual host"
    # the overview keeps its sums for a second
    totals = wait_until(lambda: [one for one in [users["M"].get("overview")["object_totals"]] if one["queues"] > 1])[0]
    assert users["m"].get("overview")["object_totals"]["queues"] < totals["queues"]


def test_limits_of_other_users_are_not_shown(users: dict[str, Api]) -> None:
    """Who only manages learns neither the names nor the limits of others, and not whether a name is there."""
    for name in ("m", "p"):
        users["guest"].put(f"user-limits/{name}/max-channels", {"value": 500}, 204)
    own = [{"user": "m", "value": {"max-channels": 500}}]
    assert users["m"].get("user-limits") == own and users["m"].get("user-limits/m") == own
    assert users["m"].get("user-limits/p") == users["m"].get("user-limits/nobody") == []
    assert {one["user"] for one in users["M"].get("user-limits")} >= {"m", "p"} and users["M"].get("user-limits/p")
    users["M"].get("user-limits/nobody", 404)

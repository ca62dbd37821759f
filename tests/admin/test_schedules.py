"""Scheduled messages over HTTP: publishes that ask for a time, what waits, and who may cancel it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.pulls.requests import is_durable
from tests.admin.conftest import Client, basic
from tests.support.broker import wait_until

ROOT = "/api/v1/schedules/%2F"
HOUR = 3_600_000


def publish(client: Client, body: str, ms: int, path: str = "/api/exchanges/%2F/amq.direct/publish") -> Any:
    value = {"routing_key": "k", "payload": body, "payload_encoding": "string", "properties": {"headers": {"x-delay": ms}}}
    if "exchanges" not in path:
        value = {"body": body, "properties": {"headers": {"x-delay": ms}}}
    answer = client.post(path, value)
    assert answer.status in (200, 201), answer
    return answer.json


@pytest.mark.parametrize("durable", [False, True])
def test_a_publish_over_http_waits_for_its_time(start: Callable[..., Client], tmp_path: Any, durable: bool) -> None:
    client = start(store_dir=str(tmp_path / "store")) if durable else start()
    vhost = client.node.broker.vhosts["/"]
    queue = vhost.run(vhost.declare_queue("q", durable=True))
    vhost.run(vhost.bind_queue("q", "amq.direct", b"k"))
    assert publish(client, "a", 60) == {"routed": True}
    told = publish(client, "b", 60, "/api/v1/queues/%2F/q/messages")
    assert told["durable"] is durable and told["due_ms"] > 0
    wait_until(lambda: queue.core.ready_count() == 2)
    wait_until(lambda: client.node.broker.schedules.routed == 2, what="it is counted once it is there")


def test_what_waits_is_shown_and_cancelled(start: Callable[..., Client]) -> None:
    client = start()
    assert client.get(ROOT).json == {"vhost": "/", "messages_count": 0, "message_bytes": 0, "messages": [], "next": None}
    for body, ms in (("first", 2 * HOUR), ("second", HOUR), ("third", HOUR)):
        publish(client, body, ms)
    shown = client.get(f"{ROOT}?count=2").json
    assert (shown["messages_count"], shown["message_bytes"]) == (3, 16)
    first, second = shown["messages"]
    assert (first["exchange"], first["routing_key"], first["body_bytes"]) == ("amq.direct", "k", 5)
    assert first["due_ms"] - second["due_ms"] > HOUR // 2
    (third,) = client.get(f"{ROOT}?position={shown['next']}").json["messages"]
    assert client.request("DELETE", f"{ROOT}/{second['position']}").json == {"cancelled": 1}
    assert client.request("DELETE", f"{ROOT}/{second['position']}").status == 404
    assert client.request("DELETE", f"{ROOT}/nothing").status == 400
    assert [one["position"] for one in client.get(ROOT).json["messages"]] == [first["position"], third["position"]]
    assert client.request("DELETE", ROOT).json == {"cancelled": 2}
    assert client.get(ROOT).json["messages_count"] == 0


def test_what_was_cancelled_or_removed_is_gone_on_disk_when_the_answer_comes(start: Callable[..., Client], tmp_path: Any) -> None:
    """One record for each call, so the log is durable beyond where it ended before the call."""
    client = start(store_dir=str(tmp_path / "store"))
    log: Any = client.node.broker.log
    queue = client.node.broker.vhosts["/"].run(client.node.broker.vhosts["/"].declare_queue("q", durable=True))
    for number in range(8):
        publish(client, f"later {number}", HOUR, "/api/v1/queues/%2F/q/messages")
        client.publish(f"now {number}")
    waiting = [one["position"] for one in client.get(f"{ROOT}?count=100").json["messages"]]
    assert len(waiting) == 8 == queue.core.ready_count()
    for number, position in enumerate(waiting):
        before = log.tail_lsn()
        assert client.request("DELETE", f"{ROOT}/{position}").json == {"cancelled": 1}
        assert is_durable(log, before + 1, 0)
        before = log.tail_lsn()
        assert client.post("/api/v1/queues/%2F/q/remove", {"positions": [number + 1]}).json["removed"] == 1
        assert is_durable(log, before + 1, 0)


def test_a_tenant_neither_sees_nor_cancels_what_others_scheduled(start: Callable[..., Client]) -> None:
    client = start()
    client.post("/api/users/bulk-delete", {"users": []})
    client.request("PUT", "/api/users/app", b'{"password": "app", "tags": "management policymaker"}')
    client.request("PUT", "/api/permissions/%2F/app", b'{"configure": ".*", "write": ".*", "read": ".*"}')
    publish(client, "x", HOUR)
    (position,) = [one["position"] for one in client.get(ROOT).json["messages"]]
    for method, path in (("GET", ROOT), ("DELETE", ROOT), ("DELETE", f"{ROOT}/{position}")):
        assert client.request(method, path, None, basic("app", "app")).status == 403
    assert client.get(ROOT).json["messages_count"] == 1


def test_a_full_schedule_refuses_over_http(start: Callable[..., Client]) -> None:
    client = start(limits={"schedule_messages_max": 1})
    client.node.broker.vhosts["/"].run(client.node.broker.vhosts["/"].declare_queue("q"))
    assert publish(client, "a", HOUR) == {"routed": True}
    assert publish(client, "b", HOUR) == {"routed": False}
    value = {"body": "c", "properties": {"headers": {"x-delay": HOUR}}}
    assert client.post("/api/v1/queues/%2F/q/messages", value).status == 409

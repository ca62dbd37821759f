"""Operators see which application a connection is, and close it by the name that the application gave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pika
import pytest

from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client
from tests.support.broker import wait_until


def connection(broker: Broker, name: str) -> Any:
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = {"connection_name": name, "platform": "ours"}
    return pika.BlockingConnection(parameters)


def test_connections_by_the_names_of_their_applications(start: Callable[..., Client]) -> None:
    client = start()
    broker, api = client.broker, Api(client)
    billing, first, second = connection(broker, "billing"), connection(broker, "worker \u2713"), connection(broker, "worker \u2713")
    shown = api.get("connections")
    assert sorted(one["user_provided_name"] for one in shown) == ["billing", "worker \u2713", "worker \u2713"]
    (one,) = [one for one in shown if one["user_provided_name"] == "billing"]
    assert one["client_properties"]["platform"] == "ours" and one["client_properties"]["capabilities"]["basic.nack"] is True
    assert api.get("connections/billing")["name"] == one["name"]
    api.delete("connections/" + quote("worker \u2713"), 400)
    api.delete("connections/billing")
    wait_until(lambda: len(api.get("connections")) == 2)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        billing.process_data_events(5)
    first.close()
    second.close()


def test_connections_are_ordered_by_what_the_console_shows(shared: Client) -> None:
    """By the client's own name, its product, its user, its channels: the list is that of its values."""
    opened = []
    for number, own in enumerate(("b", "c", "a")):
        parameters = pika.ConnectionParameters("127.0.0.1", shared.node.amqp_port, client_properties={"connection_name": own})
        opened.append(pika.BlockingConnection(parameters))
        for _ in range(number):
            opened[-1].channel()
    for column in ("user_provided_name", "client_properties.product", "user", "vhost", "channels", "connected_at", "name"):
        for downwards in ("true", "false"):
            rows = shared.get(f"/api/connections?page=1&sort={column}&sort_reverse={downwards}").json["items"]
            values = []
            for row in rows:
                for part in column.split("."):
                    row = row[part]
                values.append(row)
            assert len(values) >= 3 and values == sorted(values, reverse=downwards == "true"), column
    for connection in opened:
        connection.close()


def test_queues_are_ordered_by_their_rates(shared: Client) -> None:
    """The cheap value that orders is the one that is shown."""
    shared.queue("rate-a")
    shared.queue("rate-b")
    shared.publish("x", name="rate-b")
    for column in ("publish", "deliver_get"):
        rows = shared.get(f"/api/queues?page=1&sort=message_stats.{column}_details.rate&sort_reverse=true").json["items"]
        rates = [row["message_stats"][f"{column}_details"]["rate"] for row in rows]
        known = [rate for rate in rates if rate is not None]  # of a queue that was not looked at twice there is none yet
        assert len(rates) >= 2 and known == sorted(known, reverse=True) and rates[: len(known)] == known

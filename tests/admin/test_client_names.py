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

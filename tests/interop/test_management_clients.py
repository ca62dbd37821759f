"""Clients of the management API get from FlintMQ what they get from RabbitMQ 3.10: the same scripts, their differences listed.

What a RabbitMQ 3.10.8 answered is kept in management_clients.json. With FLINTMQ_TEST_PEER set the scripts run on RabbitMQ, too, and are
compared with it (FLINTMQ_TEST_PEER=write writes it anew).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.interop.management_calls import SCRIPTS
from tests.support import servers

ANSWERS = Path(__file__).with_name("management_clients.json")
PLUGINS = ("rabbitmq_management", "rabbitmq_shovel", "rabbitmq_shovel_management", "rabbitmq_federation", "rabbitmq_federation_management")
# (script, step) -> (FlintMQ's answer, why it is another one); docs/COMPATIBILITY.md has this list
DIFFERENCES: dict[tuple[str, str], tuple[Any, str]] = {
    ("terraform", "shovel with a password read"): (
        [200, "amqp://tf:***@127.0.0.1:1/tf"],
        "passwords of URIs are shown to nobody: a plan of Terraform's shows such a URI as changed",
    ),
    ("rabbitmqadmin2", "get"): (
        [
            {
                "payload_bytes": 5,
                "redelivered": False,
                "exchange": "x",
                "routing_key": "k",
                "message_count": 0,
                "properties": {},
                "payload": "hello",
                "payload_encoding": "string",
            }
        ],
        "a message without properties has an empty object, not Erlang's empty list",
    ),
    ("rabbitmqadmin2", "GET nodes: members that are missing"): ([200, True, []], "3.10 has no being_drained, which v2 wants"),
    ("rabbitmqadmin2", "GET consumers: members that are missing"): ([200, True, []], "3.10 has no consumer_timeout, which v2 wants"),
    ("rabbitmqadmin2", "GET feature-flags: members that are missing"): ([200, False, []], "there are no feature flags"),
    ("rabbitmqadmin2", "health check ready-to-serve-clients"): ([200, "ok"], "3.10 has it not, which v2 asks for"),
    ("rabbitmqadmin2", "health check below-node-connection-limit"): ([200, "ok"], "3.10 has it not, which v2 asks for"),
}


def answers(script: str, port: int, amqp_port: int) -> list[Any]:
    """As JSON would have it: the kept ones are."""
    found: list[Any] = json.loads(json.dumps(list(SCRIPTS[script](port, amqp_port))))
    assert len({label for label, _ in found}) == len(found), "a label stands for one step"
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_on_flintmq(script: str) -> None:
    with Broker(http_port=0) as broker:
        port = broker.node.http_port
        assert port is not None
        found = answers(script, port, broker.port)
    theirs = dict(json.loads(ANSWERS.read_text())[script])
    meant = {step: ours for (name, step), (ours, _) in DIFFERENCES.items() if name == script}
    assert all(theirs[step] != ours for step, ours in meant.items()), "a difference that is none any more"
    assert dict(found) == theirs | meant


if os.environ.get("FLINTMQ_TEST_PEER"):  # a RabbitMQ takes half a minute

    def test_on_rabbitmq() -> None:
        (port,) = servers.free_ports(1)
        config = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\ncollect_statistics_interval = 1000"
        with servers.rabbitmq(plugins=PLUGINS, config=config) as server:
            found = {script: answers(script, port, server.port) for script in SCRIPTS}
        if os.environ["FLINTMQ_TEST_PEER"] == "write":
            ANSWERS.write_text(json.dumps(found, indent=1) + "\n")
        assert found == json.loads(ANSWERS.read_text())

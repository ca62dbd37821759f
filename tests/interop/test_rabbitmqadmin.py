"""rabbitmqadmin, unmodified, does on FlintMQ what it does on RabbitMQ: the same commands, the same output and exit codes.

What a RabbitMQ 3.10.8 answered is kept in rabbitmqadmin.json. With FLINTMQ_TEST_PEER set the commands run on RabbitMQ, too, and are
compared with it (FLINTMQ_TEST_PEER=write writes it anew).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flintmq.testing.broker import Broker
from tests.support import servers

HERE = Path(__file__).parent
ANSWERS = HERE / "rabbitmqadmin.json"
SCRIPT = Path("/usr/bin/rabbitmqadmin")
TSV = ["-f", "tsv"]
COMMANDS: list[list[str]] = [
    ["declare", "vhost", "name=shop"],
    ["declare", "user", "name=u", "password=p", "tags=management,policymaker"],
    ["declare", "user", "name=v", "password=p", "tags="],
    ["declare", "permission", "vhost=shop", "user=u", "configure=.*", "write=.*", "read=.*"],
    ["-V", "shop", "declare", "queue", "name=orders", 'arguments={"x-max-length": 100}'],
    ["-V", "shop", "declare", "queue", "name=temporary", "durable=false", "auto_delete=true"],
    ["-V", "shop", "declare", "queue", "name=temporary", "durable=true"],
    ["-V", "shop", "declare", "queue", "name=many", "queue_type=quorum"],
    ["-V", "shop", "declare", "exchange", "name=ex", "type=topic"],
    ["-V", "shop", "declare", "exchange", "name=ex", "type=fanout"],
    ["-V", "shop", "declare", "binding", "source=ex", "destination=orders", "routing_key=k.#"],
    ["-V", "shop", "declare", "binding", "source=ex", "destination=nobody", "routing_key=k.#"],
    ["-V", "shop", "declare", "binding", "source=ex", "destination_type=exchange", "destination=amq.fanout"],
    ["-V", "shop", "declare", "policy", "name=p", "pattern=^ord", 'definition={"max-length": 10}', "apply-to=queues", "priority=1"],
    ["-V", "shop", "declare", "policy", "name=q", "pattern=^ord", "definition={}"],
    ["-V", "shop", "declare", "operator_policy", "name=o", "pattern=^ord", 'definition={"max-length": 5}'],
    ["declare", "vhost_limit", "vhost=shop", "name=max-queues", "value=10"],
    ["-v", "-V", "shop", "publish", "exchange=ex", "routing_key=k.1", "payload=hello"],
    ["-v", "-V", "shop", "publish", "exchange=ex", "routing_key=none", "payload=hello"],
    ["-V", "shop", "publish", "exchange=nothing", "routing_key=none", "payload=hello"],
    [*TSV, "-V", "shop", "get", "queue=orders", "count=2"],
    [*TSV, "-V", "shop", "get", "queue=orders", "ackmode=ack_requeue_false"],
    [*TSV, "-V", "shop", "get", "queue=orders"],
    ["-V", "shop", "purge", "queue", "name=orders"],
    ["-V", "shop", "list", "queues", "name", "durable", "auto_delete", "type", "arguments.x-max-length"],
    [*TSV, "list", "vhosts", "name", "tracing"],
    [*TSV, "list", "users", "name", "tags"],
    [*TSV, "list", "permissions"],
    ["-V", "shop", "list", "exchanges", "name", "type", "durable", "internal"],
    [*TSV, "-V", "shop", "-S", "routing_key", "list", "bindings", "source", "destination", "destination_type", "routing_key"],
    [*TSV, "-V", "shop", "list", "policies", "vhost", "name", "pattern", "apply-to", "definition", "priority"],
    [*TSV, "list", "operator_policies", "name", "definition"],
    [*TSV, "list", "vhost_limits"],
    [*TSV, "-S", "name", "list", "parameters", "name", "component"],
    [*TSV, "list", "connections", "name"],
    [*TSV, "list", "channels", "name"],
    [*TSV, "list", "consumers"],
    [*TSV, "show", "overview", "rabbitmq_version", "management_version"],
    ["-u", "u", "-p", "p", *TSV, "list", "vhosts", "name"],
    ["-u", "u", "-p", "p", "list", "nodes", "name"],
    ["-u", "u", "-p", "p", "-V", "shop", "declare", "policy", "name=mine", "pattern=^x", 'definition={"expires": 1000000}'],
    ["-u", "v", "-p", "p", "list", "queues"],
    ["-u", "u", "-p", "wrong", "list", "queues"],
    ["close", "connection", "name=nobody"],
    ["-V", "shop", "delete", "binding", "source=ex", "destination_type=queue", "destination=orders", "properties_key=k.%23"],
    ["-V", "shop", "delete", "binding", "source=ex", "destination_type=queue", "destination=orders", "properties_key=k.%23"],
    ["-V", "shop", "delete", "policy", "name=p"],
    ["-V", "shop", "delete", "operator_policy", "name=o"],
    ["delete", "vhost_limit", "vhost=shop", "name=max-queues"],
    ["-V", "shop", "delete", "exchange", "name=ex"],
    ["-V", "shop", "delete", "queue", "name=orders"],
    ["-V", "shop", "delete", "queue", "name=orders"],
    ["delete", "permission", "vhost=shop", "user=u"],
    ["delete", "user", "name=u"],
    ["delete", "vhost", "name=shop"],
    ["delete", "vhost", "name=shop"],
]


def answers(port: int) -> list[Any]:
    """What rabbitmqadmin says to each command."""
    driver = [sys.executable, str(HERE / "rabbitmqadmin_driver.py"), str(SCRIPT), str(port)]
    run = subprocess.run(driver, input=json.dumps(COMMANDS), capture_output=True, text=True, timeout=120, check=True)
    found: list[Any] = json.loads(run.stdout)
    assert len(found) == len(COMMANDS)
    return found


def compare(found: list[Any]) -> None:
    expected = json.loads(ANSWERS.read_text())
    for words, ours, theirs in zip(COMMANDS, found, expected, strict=True):
        assert [" ".join(words), *ours] == theirs


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    if not SCRIPT.exists() and (reason := servers.rabbitmq_missing()):
        pytest.skip(reason)


def test_on_flintmq() -> None:
    with Broker(http_port=0) as broker:
        port = broker.node.http_port
        assert port is not None
        compare(answers(port))


if os.environ.get("FLINTMQ_TEST_PEER"):  # a RabbitMQ takes half a minute

    def test_on_rabbitmq() -> None:
        (port,) = servers.free_ports(1)
        config = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1"
        with servers.rabbitmq(plugins=["rabbitmq_management"], config=config):
            found = answers(port)
        if os.environ["FLINTMQ_TEST_PEER"] == "write":
            lines = [[" ".join(words), *one] for words, one in zip(COMMANDS, found, strict=True)]
            ANSWERS.write_text(json.dumps(lines, indent=1) + "\n")
        compare(found)

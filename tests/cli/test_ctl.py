"""`flintmq ctl` against a running broker: what it lists, changes and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from pika.exceptions import ConnectionClosedByBroker

from flintmq.cli.main import COMMANDS, cli
from flintmq.errors import OperatorError
from flintmq.testing.broker import Broker


class Operator:
    """Args: broker; uri: of its HTTP port, where it is in another process (broker is None then)."""

    def __init__(self, broker: Any, uri: str = "") -> None:
        self.broker = broker
        self.uri = uri or f"http://127.0.0.1:{broker.node.http_port}"

    def run(self, *words: str, code: int = 0, uri: str = "") -> str:
        result = CliRunner().invoke(cli, ["ctl", "--uri", uri or self.uri, *words])
        if isinstance(result.exception, OperatorError):
            assert result.exception.exit_code == code, result.exception
            return str(result.exception)
        assert result.exit_code == code, (result.output, result.exception)
        return result.output


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with Broker(http_port=0) as broker:
        yield Operator(broker)


def test_what_a_team_does_on_its_first_day(operator: Operator) -> None:
    run = operator.run
    run("add_vhost", "shop/eu")
    run("add_user", "app", "secret")
    run("set_user_tags", "app", "management", "policymaker")
    run("-p", "shop/eu", "set_permissions", "app", ".*", ".*", "^o")
    run("-p", "shop/eu", "set_topic_permissions", "app", "amq.topic", "^a", ".*")
    operator.broker.node.broker.vhosts["shop/eu"].run(operator.broker.node.broker.vhosts["shop/eu"].declare_queue("orders", durable=True))
    assert run("-p", "shop/eu", "list_queues") == "Listing queues for vhost shop/eu ...\nname\tmessages\norders\t0\n"
    assert run("-s", "-p", "shop/eu", "list_queues", "name", "durable") == "orders\ttrue\n"
    assert run("-s", "-p", "shop/eu", "list_queues", "effective_arguments", "ignored_arguments") == "[]\t[]\n"
    assert json.loads(run("-p", "shop/eu", "--formatter", "json", "list_permissions"))[0]["read"] == "^o"
    assert run("--formatter", "csv", "list_users", "name").splitlines() == ["name", "app", "guest"]
    run("-p", "shop/eu", "set_policy", "short", "^o", '{"max-length": 5}', "--apply-to", "queues", "--priority", "2")
    assert "short\t^o\tqueues" in run("-p", "shop/eu", "list_policies")
    run("-p", "shop/eu", "set_operator_policy", "op", "", '{"max-length": 3}')
    assert operator.broker.node.broker.vhosts["shop/eu"].queues["orders"].policy.max_length == 3
    run("-p", "shop/eu", "set_vhost_limit", "max-queues", "7")
    run("set_user_limit", "app", "max-channels", "9")
    assert '{"max-queues": 7}' in run("list_vhost_limits") and "app\t" in run("list_user_limits")
    run("change_password", "app", "other")
    assert run("-u", "app", "--password", "other", "ping") == "Ping succeeded\n"
    run("-u", "app", "--password", "secret", "ping", code=77)
    run("set_global_parameter", "g", "[1]")
    assert "g\t[1]" in run("list_global_parameters")
    for name in ("list_exchanges", "list_bindings", "list_topic_permissions", "list_operator_policies", "list_consumers"):
        assert run("-p", "shop/eu", name).startswith("Listing ")
    for words in (
        ("-p", "shop/eu", "clear_policy", "short"),
        ("-p", "shop/eu", "clear_operator_policy", "op"),
        ("-p", "shop/eu", "clear_vhost_limit", "max-queues"),
        ("clear_user_limit", "app", "max-channels"),
        ("clear_global_parameter", "g"),
        ("-p", "shop/eu", "purge_queue", "orders"),
        ("-p", "shop/eu", "clear_topic_permissions", "app"),
        ("-p", "shop/eu", "clear_permissions", "app"),
        ("-p", "shop/eu", "delete_queue", "orders"),
        ("delete_user", "app"),
        ("delete_vhost", "shop/eu"),
    ):
        assert run(*words).endswith("done\n")
    assert run("-s", "list_vhosts") == "/\n" and run("-s", "list_users", "name") == "guest\n"


def test_words_of_rabbitmqctl(operator: Operator) -> None:
    """Options behind the verb, users with their columns, all limits at once, a password that is asked for."""
    run = operator.run
    run("add_vhost", "after")
    run("add_user", "ann", "secret")
    run("set_permissions", "-p", "after", "ann", "^c", "^w", "^r")
    operator.broker.node.broker.vhosts["after"].run(operator.broker.node.broker.vhosts["after"].declare_queue("q"))
    assert run("list_queues", "-p", "after", "name") == "Listing queues for vhost after ...\nname\nq\n"
    assert run("list_queues", "name", "--vhost", "after", "-s") == "q\n"
    assert json.loads(run("list_queues", "--formatter", "json", "-p", "after")) == [{"name": "q", "messages": 0}]
    assert run("list_user_permissions", "ann") == (
        'Listing permissions for user "ann" ...\nvhost\tconfigure\twrite\tread\nafter\t^c\t^w\t^r\n'
    )
    run("set_user_tags", "ann", "monitoring", "policymaker")
    assert run("list_users").splitlines()[:2] == ["Listing users ...", "user\ttags"]
    assert "ann\t[monitoring, policymaker]" in run("list_users").splitlines()
    assert {"user": "ann", "tags": ["monitoring", "policymaker"]} in json.loads(run("list_users", "--formatter", "json"))
    assert run("authenticate_user", "ann", "secret") == 'Authenticating user "ann" ...\nSuccess\n'
    assert 'failed to authenticate user "ann"' in run("authenticate_user", "ann", "wrong", code=65)
    run("set_user_tags", "ann")
    assert run("authenticate_user", "ann", "secret").endswith("Success\n"), "who may not use the management"
    run("set_vhost_limits", "-p", "after", '{"max-connections": 64, "max-queues": -1}')
    assert '{"max-connections": 64, "max-queues": -1}' in run("list_vhost_limits")
    run("set_vhost_limits", '{"max-queues": 3}', "-p", "after")
    assert '{"max-queues": 3}' in run("list_vhost_limits") and "64" not in run("list_vhost_limits")
    run("clear_vhost_limits", "-p", "after")
    assert "after" not in run("list_vhost_limits")
    run("set_user_limits", "ann", '{"max-channels": 9}')
    assert "ann" in run("list_user_limits")
    run("clear_user_limits", "ann")
    assert "ann" not in run("list_user_limits")
    run("set_vhost_limit", "-p", "after", "max-queues", "-1")
    run("set_vhost_limits", "-p", "after", "[]", code=64)
    run("delete_vhost", "after")
    run("delete_user", "ann")


def test_connections(operator: Operator) -> None:
    with pika.BlockingConnection(pika.URLParameters(operator.broker.url)) as connection:
        connection.channel()
        (name,) = operator.run("-s", "list_connections", "name").splitlines()
        assert operator.run("-s", "list_channels", "name") == f"{name} (1)\n"
        operator.run("close_connection", name, "maintenance")
        with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - maintenance"):
            while True:
                connection.process_data_events(1)


def test_status(operator: Operator) -> None:
    text = operator.run("status")
    assert text.startswith("FlintMQ ") and f"listens: amqp 127.0.0.1:{operator.broker.port}" in text and "queues: 0" in text
    assert json.loads(operator.run("--formatter", "json", "status"))["product_name"] == "FlintMQ"


def test_definitions(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    operator.run("export_definitions", str(file))
    assert file.stat().st_mode & 0o777 == 0o600 and json.loads(file.read_text())["users"][0]["name"] == "guest"
    operator.run("import_definitions", str(file))
    binding = {"vhost": "/", "source": "amq.topic", "destination": "gone", "destination_type": "queue", "routing_key": "", "arguments": {}}
    file.write_text(json.dumps({"bindings": [binding]}))
    said = operator.run("import_definitions", str(file))
    assert "passed over: bindings 'amq.topic -> gone' in vhost '/': no queue 'gone' in vhost '/'" in said
    file.write_text("{")
    operator.run("import_definitions", str(file), code=65)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("-p", "nope", "list_queues"), 65, "no vhost 'nope' (404)"),
        (("delete_user", "nobody"), 65, "no user 'nobody' (404)"),
        (("purge_queue", "absent"), 65, "no queue 'absent' in vhost '/' (404)"),
        (("trace_on", "-p", "nope"), 65, "no vhost 'nope' (404)"),
        (("set_policy", "p", "a", "{"), 64, "DEFINITION is no JSON"),
        (("set_policy", "p", "(", '{"max-length": 1}'), 65, "Validation failed"),
        (("set_policy", "p", "a", '{"max-length": -1}'), 65, "invalid value for 'max-length': -1 is negative"),
        (("--password", "wrong", "ping"), 77, "Login failed (401)"),
    ],
)
def test_what_is_refused(operator: Operator, words: tuple[str, ...], code: int, text: str) -> None:
    assert text in operator.run(*words, code=code)


def test_no_broker(operator: Operator) -> None:
    assert "no broker answers at" in operator.run("ping", uri="http://127.0.0.1:1", code=69)
    assert "--uri is" in operator.run("ping", uri="nonsense", code=64)
    assert "ctl" in COMMANDS


def test_scheduled_messages_are_listed_and_cancelled(operator: Operator) -> None:
    with pika.BlockingConnection(pika.URLParameters(operator.broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "later", b"x", pika.BasicProperties(headers={"x-delay": 3_600_000}))
    shown = json.loads(operator.run("list_scheduled", "--count", "2"))
    assert shown["messages_count"] == 3 and len(shown["messages"]) == 2 and shown["next"]
    operator.run("cancel_scheduled", shown["messages"][0]["position"])
    assert len(json.loads(operator.run("list_scheduled", "--position", shown["next"]))["messages"]) == 1
    operator.run("purge_scheduled")
    assert json.loads(operator.run("list_scheduled"))["messages"] == []

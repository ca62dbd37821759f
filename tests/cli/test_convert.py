"""`flintmq import`: a rabbitmq.conf becomes options that `flintmq serve` takes; no line of it is passed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from flintmq.cli.convert import _EXPLAINED, _MAPPED, read, toml
from flintmq.cli.main import cli
from flintmq.cli.serve import serve
from flintmq.cli.serve_options import from_file
from flintmq.errors import OperatorError
from flintmq.testing.broker import Broker

CONF = """
# a comment
listeners.tcp.1 = 0.0.0.0:5673
listeners.ssl.default = 5671
ssl_options.cacertfile = /etc/ca.pem
ssl_options.certfile   = /etc/cert "of us".pem
ssl_options.keyfile    = /etc/key.pem
ssl_options.verify     = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
management.tcp.port = 15673   # the console
vm_memory_high_watermark.absolute = 2GiB
log.console.level = critical
default_user = admin
default_pass = very-secret
heartbeat = 30
cluster_formation.peer_discovery_backend = classic_config
hartbeat = 30
plugin.of.somebody = 7
listeners.tcp.2 = 10.0.0.1:5672
management.tcp.port = many
no equals sign
"""


def loaded(text: str, tmp_path: Path) -> dict[str, Any]:
    """What `flintmq serve --config` makes of it."""
    file = tmp_path / "serve.toml"
    file.write_text(text)
    return from_file(str(file), click.Context(serve))


def test_a_file_of_a_real_installation(tmp_path: Path) -> None:
    result = read(CONF)
    assert loaded(toml(result, "x"), tmp_path) == {
        "host": "0.0.0.0", "port": 5672, "tls_port": 5671, "tls_ca": "/etc/ca.pem", "tls_cert": '/etc/cert "of us".pem',
        "tls_key": "/etc/key.pem", "tls_require_client": True, "tls_login_from": "common_name", "http_port": 15673,
        "memory_limit": 2 << 30, "log_level": "error", "heartbeat": 30,
    }  # fmt: skip
    assert {note.partition(":")[0] for note in result.notes} == {
        "ssl_options.verify", "default_user", "default_pass", "cluster_formation.peer_discovery_backend",
    }  # fmt: skip
    assert "very-secret" not in "".join(result.notes)
    assert [line.partition(" ")[2] for line in result.unknown] == [
        "18: hartbeat (did you mean heartbeat?)",
        "19: plugin.of.somebody",
        "20: listeners.tcp.2: '10.0.0.1:5672' is another address than 0.0.0.0: FlintMQ listens on one (0.0.0.0 is all)",
        "21: management.tcp.port: 'many' is no port",
        "22: no line of the form key = value",
    ]


@given(st.lists(st.tuples(st.sampled_from([*_MAPPED, *_EXPLAINED]) | st.text(max_size=20), st.text(max_size=20)), max_size=20))
def test_no_key_is_passed_over_and_no_value_ends_it(pairs: list[tuple[str, str]]) -> None:
    lines = [f"{key.replace('*', 'x')} = {value}" for key, value in pairs]
    lines = [line for line in lines if len(line.splitlines()) == 1]
    for line in lines:
        alone = read(line)
        assert alone.options or alone.notes or alone.unknown or not line.strip() or line.strip().startswith("#"), line
    tomllib.loads(toml(read("\n".join(lines)), "x"))


def test_every_option_that_it_writes_is_one_of_serve() -> None:
    names = {param.name.replace("_", "-") for param in serve.params if param.name}
    for key, put in _MAPPED.items():
        for value in ("5672", "true", "common_name", "0.4", "2GB", "info"):
            result = read(f"{key.replace('*', '1')} = {value}")
            assert result.options.keys() <= names, (key, put)


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["import", *map(str, words)])
    if isinstance(result.exception, OperatorError):
        assert result.exception.exit_code == code, result.exception
        return str(result.exception)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_the_command(tmp_path: Path) -> None:
    file, made = tmp_path / "rabbitmq.conf", tmp_path / "flintmq.toml"
    file.write_text("listeners.tcp = none\nx = 1\x1b[2J\nq\x07 = 1\n")
    said = run(file, "-o", made)
    assert "NOT KNOWN: line 2: x" in said and "\x1b" not in said and "\x07" not in said and "1 options, 0 explained, 2 not known" in said
    assert loaded(made.read_text(), tmp_path) == {"port": None}
    assert "can't be written" in run(file, "-o", made, code=74)  # nothing is overwritten
    run(file, "--strict", code=65)
    file.write_text("[{rabbit, [{tcp_listeners, [5673]}]}].")
    assert "advanced.config" in run(file, code=65)
    file.write_bytes(b"\xff\xfe\x00")
    assert "no text in UTF-8" in run(file, code=65)


def test_what_it_writes_starts_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_text(
        "listeners.tcp.default = 0\nmanagement.tcp.port = 0\nvm_memory_high_watermark.absolute = 64MB\nlog.file.level = warning\n"
    )
    made = tmp_path / "flintmq.toml"
    run(file, "-o", made)
    command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--config", str(made), "--memory", "--flight-port", "off"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ)
    try:
        assert broker.stdout is not None
        assert json.loads(broker.stdout.readline())["ready"]
    finally:
        broker.terminate()
        assert broker.wait(60) == 0


def test_definitions_go_to_the_broker(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(
        json.dumps({"vhosts": [{"name": "shop"}], "queues": [{"name": "q", "vhost": "shop", "durable": True, "arguments": {}}]})
    )
    with Broker(http_port=0) as broker:
        uri = f"http://127.0.0.1:{broker.node.http_port}"
        assert "are in the broker" in run(file, "--uri", uri)
        assert "q" in broker.node.broker.vhosts["shop"].queues
        file.write_text("{" * 100_000)
        assert "is no JSON" in run(file, "--uri", uri, code=65)


@pytest.mark.parametrize("value", ["0.4", "1", ".5"])
def test_a_share_of_the_memory(value: str) -> None:
    """It stays a share: the file may go to another machine."""
    assert read(f"vm_memory_high_watermark.relative = {value}").options["memory-limit"] == f"{float(value):.0%}"


@pytest.mark.parametrize(
    "key",
    [
        "amqp10_client.ssl_options.verify", "anonymous_login_user", "auth_http.ssl_options.sni", "aws.prefer_imdsv2", "cluster_queue_limit",
        "cluster_formation.etcd.ssl_options.key.RSAPrivateKey", "cluster_partition_handling.pause_if_all_down.nodes.1", "node_tags.az",
        "credential_validator.min_length", "default_limits.vhosts.1.max_queues", "default_policies.operator.a.classic_queues.ha_mode",
        "definitions.tls.versions.1", "erlang.K", "event_exchange.vhost", "federation.queues.shutdown.timeout", "link_max_per_session",
        "log.connection.rotation.size", "log.file.formatter.json.field_map", "management.oauth_resource_servers.a.oauth_token.b",
        "management.listener.ssl_opts.certfile", "management.tcp.idle_timeout", "message_interceptors.incoming.a.b", "motd_file",
        "metadata_store.khepri.default_timeout", "mirroring_sync_max_throughput", "prometheus.ssl.ciphers.1", "queue_types.quorum.enabled",
        "raft.adaptive_failure_detector.poll_interval", "shovel.topology.predeclared", "ssl_options.crl_sources.1.path", "tracing.dir",
        "sysmon_handler.triggers.port", "trust_store.providers.1", "web_stomp.ws_path", "stream.replication.port_range.min",
    ],
)  # fmt: skip
def test_keys_of_rabbitmq_4_are_explained(key: str) -> None:
    """Of each family of its schemas."""
    result = read(f"{key} = 1")
    assert (len(result.notes), result.unknown, result.options) == (1, [], {})


def test_the_port_of_metrics_is_taken() -> None:
    assert read("prometheus.tcp.port = 15692").options == {"metrics-port": 15_692}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("definitions.json", '"users": []}', "is no JSON"),
        ("definitions.json", "users = []", "none of its lines has a key of RabbitMQ"),
        ("definitions.json", "", "is no JSON"),
        ("definitions.json", "[1, 2", "is no JSON"),
        ("export", '{"users": [}', "is no JSON"),
        ("export", '\n  "users": []\n}', "is no JSON"),
        ("export", "<html></html>", "none of its lines has a key of RabbitMQ"),
        ("rabbitmq.conf", "[{rabbit, []}].", "advanced.config"),
        ("advanced.config", "%% comment\n[{rabbit, []}].", "advanced.config"),
    ],
)
def test_a_broken_file_is_an_error_that_says_which_kind_it_was_taken_for(tmp_path: Path, name: str, text: str, reason: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert reason in run(file, "--uri", "http://127.0.0.1:1", code=65)


def test_a_conf_is_known_by_its_lines_whatever_its_name(tmp_path: Path) -> None:
    file = tmp_path / "broker.json"
    file.write_text("# comment\nlisteners.tcp.default = 5673\n")
    assert "port = 5673" in run(file)

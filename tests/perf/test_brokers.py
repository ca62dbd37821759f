"""Every mode of `flintmq perf` moves its messages through a real broker and finds nothing wrong, on FlintMQ and on RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from flintmq.cli.perf import perf
from tests.support import servers


@pytest.fixture(scope="module", params=["flintmq", "rabbitmq"])
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    try:
        with {"flintmq": servers.flintmq, "rabbitmq": servers.rabbitmq}[request.param]() as started:
            yield started
    except servers.Unavailable as reason:
        pytest.skip(str(reason))


def run(server: servers.Server, arguments: str) -> dict[str, Any]:
    options = ["--json", "--port", str(server.port), "--pid", str(server.pid), *arguments.split()]
    done = CliRunner().invoke(perf, options, catch_exceptions=False)
    result: dict[str, Any] = json.loads(done.output)
    assert done.exit_code == 0, result
    assert result["ok"]
    return result


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ("--count 20000", 20_000),
        ("--count 2000 --size 1024 --durable --persistent --confirm 64 --ack 1 --prefetch 32", 2_000),
        ("--count 3000 --producers 3 --queues 2 --consumers 4 --ack 50 --prefetch 100", 3_000),
        ("--count 500 --exchange fanout --queues 4 --size 100", 2_000),
        ("--count 3000 --exchange direct --queues 3 --bindings 30 --size 100", 3_000),
        ("--count 3000 --exchange topic --queues 3 --bindings 30 --size 100", 3_000),
        ("--count 3000 --exchange topic --queues 3 --bindings 30 --size 100 --random-keys", 3_000),
        ("--count 1000 --exchange headers --queues 2 --bindings 6 --size 100", 1_000),
        ("--count 20 --size 400000 --ack 1 --prefetch 2", 20),
        ("--count 200 --rate 2000 --same-conn --producers 20 --queues 20 --size 256 --ack 1 --prefetch 10", 200),
        ("--mode latency --count 100 --rate 1000", 100),
        ("--mode backlog --count 20000 --size 100 --settle 0", 20_000),
    ],
)
def test_messages_come_out_whole_and_in_order(server: servers.Server, arguments: str, received: int) -> None:
    result = run(server, arguments)
    assert result["received"] == result["expected"] == received
    assert result["broker"]["cpu_s"] > 0
    if "--mode backlog" not in arguments:
        assert result["latency_us"]["n"] == received
        assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["p99"] <= result["latency_us"]["max"]


def test_publish_then_consume(server: servers.Server) -> None:
    assert run(server, "--mode publish --count 700 --prefix twohalves --keep --settle 0")["depth"] == 700
    assert run(server, "--mode consume --count 700 --prefix twohalves")["received"] == 700


def test_consuming_more_than_there_is_counts_as_lost(server: servers.Server) -> None:
    run(server, "--mode publish --count 5 --prefix toofew --keep --settle 0")
    options = ["--json", "--port", str(server.port), "--mode", "consume", "--count", "7", "--prefix", "toofew", "--drain-timeout", "3"]
    done = CliRunner().invoke(perf, options)
    assert done.exit_code == 65
    assert json.loads(done.output)["lost"] == 2


def test_churn(server: servers.Server) -> None:
    result = run(server, "--mode churn --count 40")
    assert result["cycles"] == 40
    assert result["cycle_us"]["n"] == 40


def test_declare(server: servers.Server) -> None:
    result = run(server, "--mode declare --queues 50 --settle 0")
    assert result["queues"] == 50
    assert result["delete_rate"] > 0


def test_wrong_password(server: servers.Server) -> None:
    done = CliRunner().invoke(perf, ["--json", "--port", str(server.port), "--password", "wrong"])
    assert done.exit_code == 69
    assert not json.loads(done.output)["ok"]

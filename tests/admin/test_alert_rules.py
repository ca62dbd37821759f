"""The alert rules of deploy/prometheus: Prometheus itself (promtool) evaluates them against what a broker shows in each state."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.admin import metrics
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client
from tests.support.broker import wait_until
from tests.support.rawamqp import RawChannel, RawConnection
from tests.support.servers import ensure_debian_packages
from tests.twins.memory_log import MemoryLog

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules.yml"
# minutes: the state before, and until the rules are asked: longer than each `for`, shorter than each window of a rate
BEFORE, ASKED = 3, 12
# the log's pressure: no room on the disk (queue/types.pxd)
DISK = 2
LIMITS = {"housekeeping_ms": 20}
PATHS = ("/metrics", "/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count")


@pytest.fixture(scope="module")
def promtool() -> str:
    reason = ensure_debian_packages(["prometheus"])
    path = shutil.which("promtool")
    if path is None:
        pytest.skip(reason or "promtool is not installed")
    return path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch, Broker(http_port=0, data_dir=str(tmp_path_factory.mktemp("d")), limits=LIMITS) as started:
        patch.setattr(metrics, "disk_free", lambda parts: 1 << 50)  # whatever the machine has
        patch.setattr(metrics, "descriptors", lambda: (50, 65_536))
        yield started


@pytest.fixture
def channel(broker: Broker) -> Iterator[RawChannel]:
    connection = RawConnection("127.0.0.1", broker.port).open()
    yield connection.channel()
    connection.drop()


def scrape(broker: Broker) -> dict[str, float]:
    """Sample -> value, as Prometheus has it: with the labels of its target."""
    samples: dict[str, float] = {'up{instance="i",job="flintmq"}': 1}
    for path in PATHS:
        answer = Client(broker).get(path)
        assert answer.status == 200
        for line in answer.raw.decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                base, _, labels = name.rstrip("}").partition("{")
                samples[f'{base}{{{labels + "," if labels else ""}instance="i",job="flintmq"}}'] = float(value)
    return samples


def firing(promtool: str, directory: Path, before: dict[str, float], after: dict[str, float]) -> set[str]:
    """Names of the alerts that fire when `after` has been true for some minutes."""
    series = [
        {"series": name, "values": f"{before[name]}x{BEFORE} {value}x60" if name in before else f"_x{BEFORE} {value}x60"}
        for name, value in after.items()
    ]
    ask = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{ASKED}m",
        "exp_samples": [{"labels": "{}", "value": -1}],
    }
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [ask]}],
    }
    file = directory / "test.yml"
    file.write_text(json.dumps(test))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False)
    text = done.stdout + done.stderr
    assert "exp:" in text and "got:" in text, text  # one that is asked for -1 never passes: it tells what there is
    return set(re.findall(r'alertname=\\?"(\w+)', text))


def test_prometheus_takes_the_files(promtool: str, tmp_path: Path) -> None:
    for kind, name in (("rules", "rules.yml"), ("config", "scrape.yml")):
        text = (DEPLOY / "prometheus" / name).read_text().replace("/etc/prometheus/flintmq-password", str(tmp_path / "password"))
        (tmp_path / name).write_text(text)
        (tmp_path / "password").write_text("secret")
        done = subprocess.run([promtool, "check", kind, str(tmp_path / name)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboards_ask_for_metrics_that_exist(broker: Broker, channel: RawChannel) -> None:
    """Names in expressions of rules, and of all dashboards but those of the data plane (tests/dataplane/test_figures.py)."""
    channel.queue("there")
    known = {name.partition("{")[0] for name in scrape(broker)}
    texts = re.findall(r"expr:(.*?)(?:\n +for:|\n +labels:)", RULES.read_text(), re.DOTALL)
    texts += [file.read_text() for file in (DEPLOY / "grafana").glob("*.json")]
    asked = {name for text in texts for name in re.findall(r"\b(?:rabbitmq|flintmq)_\w+", text)}
    assert len(asked) > 15
    assert {name for name in asked if not name.startswith("flintmq_pipeline")} - known == set()
    annotations = re.findall(r"annotations:\n +summary: .+\n +action: .+", RULES.read_text())
    assert len(annotations) == RULES.read_text().count("- alert:")


def test_no_rule_fires_on_a_broker_that_is_well(promtool: str, tmp_path: Path, broker: Broker, channel: RawChannel) -> None:
    """With traffic: a queue that is consumed, and one whose messages are dead-lettered as its rules say."""
    before = scrape(broker)
    channel.queue("dead")
    channel.queue("busy", arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    for number in range(20):
        channel.publish(b"%d" % number, routing_key="busy")
    channel.wait_ready("dead", 19)
    for queue in ("dead", "busy"):
        channel.call("basic.consume", queue=queue, no_ack=True, consumer_tag=queue)
        channel.wait_ready(queue, 0)
    after = scrape(broker)
    assert firing(promtool, tmp_path, before, after) == set()
    assert firing(promtool, tmp_path, before, after | {'up{instance="i",job="flintmq"}': 0}) == {"FlintMQDown"}
    for queue in ("dead", "busy"):
        channel.call("queue.delete", queue=queue)


def test_messages_that_nobody_gets(promtool: str, tmp_path: Path, broker: Broker, channel: RawChannel) -> None:
    """In a queue without a consumer, in no queue, and dead with nowhere to go."""
    before = scrape(broker)
    channel.queue("nobody consumes")
    channel.queue("strict", arguments={"x-max-length": 0, "x-dead-letter-exchange": "missing"})
    for key in ("nobody consumes", "nowhere", "strict"):
        channel.publish(b"m", routing_key=key)
    channel.wait_ready("nobody consumes", 1)
    drops = broker.node.broker.counters.drops
    wait_until(lambda: drops["no_dead_letter_exchange"] == 1 and drops["unroutable"] == 1)
    wanted = {"FlintMQQueueWithoutConsumer", "FlintMQMessagesUnroutable", "FlintMQMessagesLost"}
    assert firing(promtool, tmp_path, before, scrape(broker)) == wanted
    for queue in ("nobody consumes", "strict"):
        channel.call("queue.delete", queue=queue)


def test_links_that_do_not_run(promtool: str, tmp_path: Path, broker: Broker) -> None:
    before = scrape(broker)
    api = Api(Client(broker))
    away = "amqp://127.0.0.1:1"
    shovel = {"src-uri": away, "src-queue": "s", "dest-uri": away, "dest-queue": "d", "reconnect-delay": 0}
    api.put("parameters/shovel/%2F/s", {"value": shovel})
    api.put("parameters/federation-upstream/%2F/u", {"value": {"uri": away}})
    api.put("exchanges/%2F/federated", {"type": "fanout"})
    api.put("policies/%2F/p", {"pattern": "^federated$", "definition": {"federation-upstream": "u"}})
    wait_until(lambda: [one["state"] for one in api.get("shovels")] == ["terminated"], what="the shovel ended")
    wait_until(lambda: "error" in [one["status"] for one in api.get("federation-links")], what="the link failed")
    assert firing(promtool, tmp_path, before, scrape(broker)) == {"FlintMQShovelTerminated", "FlintMQFederationLinkDown"}
    api.delete("parameters/shovel/%2F/s")
    api.delete("policies/%2F/p")


def test_logins_that_fail(promtool: str, tmp_path: Path, broker: Broker) -> None:
    client = Client(broker)
    client.get("/metrics", {"Authorization": "Basic eDp5"})
    before = scrape(broker)
    for _ in range(12):
        assert client.get("/api/overview", {"Authorization": "Basic eDp5"}).status == 401
    assert firing(promtool, tmp_path, before, scrape(broker)) == {"FlintMQLoginsFail"}


def test_resources_that_run_out(promtool: str, tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before an alarm: as if the system said so."""
    before = scrape(broker)
    limit = broker.node.http._parts.memory_limit  # type: ignore[union-attr]
    monkeypatch.setattr(metrics, "bytes_held", lambda: int(limit * 0.9))
    monkeypatch.setattr(metrics, "descriptors", lambda: (60_000, 65_536))
    assert firing(promtool, tmp_path, before, scrape(broker)) == {"FlintMQMemoryNearAlarm", "FlintMQDescriptorsRunOut"}
    monkeypatch.undo()
    reserve = broker.node.http._parts.disk_reserve  # type: ignore[union-attr]
    monkeypatch.setattr(metrics, "disk_free", lambda parts: 3 * reserve)
    assert firing(promtool, tmp_path, before, scrape(broker)) == {"FlintMQDiskNearAlarm"}


@pytest.mark.parametrize("alarm", ["memory_used", "free_disk_space"])
def test_alarms(promtool: str, tmp_path: Path, alarm: str) -> None:
    """Memory: of a broker whose limit any broker is above. Disk: its log says that there is no room."""
    log = MemoryLog()
    options: dict[str, Any] = {"memory_limit": 1} if alarm == "memory_used" else {"log": log}
    with Broker(http_port=0, limits=LIMITS, **options) as short:
        log.set_pressure(DISK)
        name = f'rabbitmq_alarms_{alarm}_watermark{{instance="i",job="flintmq"}}'
        wait_until(lambda: scrape(short)[name] == 1, what="the alarm")
        fired = firing(promtool, tmp_path, {}, scrape(short)) - {"FlintMQDescriptorsRunOut"}
        assert fired == ({"FlintMQMemoryAlarm", "FlintMQMemoryNearAlarm"} if alarm == "memory_used" else {"FlintMQDiskAlarm"})

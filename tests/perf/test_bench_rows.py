"""Every durable row of bench/ runs on tiny sizes, on both brokers where both are compared, and gives each of its figures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import brokers, disk, runners, soak, table
from bench.brokers import FLINTMQ, RABBITMQ, Broker
from bench.workloads import WORKLOADS, Workload
from tests.support import servers

TINY = {
    "W2": "--durable --persistent --size 1024 --confirm 256 --ack 1 --prefetch 256 --count 2000",
    "W5s": "--mode backlog --size 100 --count 20000 --settle 0",
    "W5b": "--mode backlog --durable --persistent --size 1024 --confirm 1000 --ack 100 --prefetch 1000 --count 3000 --settle 0",
    "W10": "--mode publish --durable --persistent --size 1024 --confirm 1 --count 100 --settle 0",
    "W11": "--size 1024 --count 3000",
    "D1": "--mode declare --durable --queues 20 --keep --settle 0",
    "D1p": "--mode declare --durable --queues 60 --keep --settle 0 --pipeline 20",
    "W12d": "--durable --persistent --exchange fanout --queues 3 --size 100 --count 2000",
    "W16": "--durable --persistent --producers 4 --consumers 2 --size 256 --confirm 1 --ack 1 --prefetch 10 --count 200",
    "W17": "--mode backlog --durable --persistent --size 100 --confirm 1000 --ack 100 --prefetch 1000 --count 3000 --settle 0",
    "B10": "--size 100 --count 20000 --confirm 1000",
    "LOG": "4194304 1024",
}
DURABLE = [workload for workload in WORKLOADS if workload.durable]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(brokers, "PAUSE_S", 0.0)
    monkeypatch.setattr(runners, "PROBE_S", 0.02)
    monkeypatch.setattr(disk, "PROBE_FILE", 4 * disk.MIB)
    monkeypatch.setattr(soak, "LOOK_S", 0.1)
    monkeypatch.setattr(soak, "SETTLE_S", 0.0)
    monkeypatch.setattr(soak, "RESULTS", tmp_path)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    made = Broker(request.param)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[Broker]:
    """One for all rows: its start takes ten seconds of a processor."""
    made = Broker(RABBITMQ)
    yield made
    made.stop()


def row(workload: Workload, broker: Broker) -> dict[str, object]:
    try:
        record = runners.measure(workload, broker, quick=True, arguments=TINY[workload.name].split())
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    assert record["result"].get("ok"), record["result"]
    return record


def test_every_durable_row_is_tried_here() -> None:
    assert {workload.name for workload in DURABLE} == set(TINY)


@pytest.mark.parametrize("broker", [FLINTMQ], indirect=True)
@pytest.mark.parametrize("workload", DURABLE, ids=lambda workload: workload.name)
def test_row_on_flintmq(workload: Workload, broker: Broker) -> None:
    record = row(workload, broker)
    for figure in workload.figures:
        value = table.figure_of(figure, record)
        assert value is not None, figure.caption
        # A small run may fit into memory that the broker had already.
        assert value > 0 or "per message" in figure.caption or "per queue" in figure.caption, figure.caption
    assert broker.directory is None or disk.filesystem(broker.directory) not in disk.MEMORY_FILE_SYSTEMS


@pytest.mark.parametrize("name", ["W10", "W11"])
def test_row_on_rabbitmq(name: str, rabbitmq: Broker) -> None:
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    try:
        result = runners.measure(workload, rabbitmq, quick=True, arguments=TINY[name].split())["result"]
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    assert result.get("ok") or "received" in result, result.get("error")
    if name == "W11" and result["received"]:  # what it still has after kill -9 is its promise, not ours
        assert 0 < result["restart_first_s"] <= result["restart_all_s"]


def test_a_broker_keeps_nothing_behind() -> None:
    broker = Broker(FLINTMQ)
    try:
        broker.server(durable=True)
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    directory = broker.directory
    assert directory is not None and broker.store.is_dir()
    broker.stop()
    assert not directory.exists()


def test_disk_probe_counts_what_it_did() -> None:
    result = disk.synced_writes(brokers.disk_directory(), 4096, count=7)
    assert result["count"] == 7
    assert result["bytes_per_s"] == pytest.approx(result["rate"] * 4096, rel=0.01)
    assert 0 < result["p50_us"] <= result["p99_us"]


def test_memory_file_systems_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLINTMQ_BENCH_DIR", str(tmp_path))
    monkeypatch.setattr(disk, "filesystem", lambda directory: "tmpfs")
    with pytest.raises(servers.Unavailable, match="tmpfs"):
        brokers.disk_directory()


def test_soak_runs_and_judges() -> None:
    try:
        verdict = soak.run(1.5, rate=2000.0)
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    assert verdict["load_ok"], verdict
    assert verdict["held_message_kept"]
    assert verdict["messages"] > 1000
    assert verdict["samples"] >= 2
    assert verdict["stats_samples"] >= 1
    assert verdict["used_broken"] == 0
    assert verdict["ok"] == (verdict["broken"] == 0)


@pytest.mark.timeout(900)
def test_soak_the_log_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of `make soak`: with the first message held, all files of the log, ready and dead ones included, are within 2 x live
    + 4 containers after the first 10 s, and the held message is there.

    A broker that gets no processor for a while makes a container more and gives it up soon after: one sample in twenty may see that (of the
    few of `log stats` one in four), and the count of containers may end higher than it began. A log that grows is above the bound at every
    sample from then on; `make soak` takes each sample, and the count."""
    monkeypatch.setattr(soak, "LOOK_S", 0.125)
    monkeypatch.setattr(soak, "SETTLE_S", 10.0)
    try:
        # A fixed rate: a consumer that a busy machine leaves behind would only make the bound wider.
        verdict = soak.run(20.0, rate=20_000.0)
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    assert verdict["messages"] > 50_000, verdict  # three times the bound
    assert verdict["samples"] > 50 and verdict["stats_samples"] > 0, verdict
    assert verdict["broken"] <= verdict["samples"] // 20 and verdict["used_broken"] <= verdict["stats_samples"] // 4, verdict
    assert verdict["load_ok"] and verdict["held_message_kept"], verdict


def sampled(sizes: list[int], counts: list[int], live: int = 0) -> soak.Samples:
    samples = soak.Samples(dict.fromkeys(soak.LOGS, 100), io.StringIO())
    for second, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        samples.note("directory", soak.WARM_S + second, {"messages": (size, count), "transactions": (0, 0)}, live)
    return samples


def test_soak_bound_is_twice_live_and_four_containers() -> None:
    assert not sampled([400], [4]).broken
    assert sampled([401], [4]).broken
    assert sampled([401], [4]).used_broken == 0
    assert not sampled([1400], [14], live=500).broken
    assert sampled([1401], [14], live=500).broken


def test_soak_tells_a_drift_of_the_container_count() -> None:
    assert sampled([0] * 8, [4, 6, 5, 4, 6, 5, 4, 8]).flat()
    assert not sampled([0] * 8, [4, 5, 6, 7, 8, 9, 10, 11]).flat()

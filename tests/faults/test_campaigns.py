"""Short runs of the fault campaigns against the shipped process: nothing confirmed is lost, nothing settled comes back, nothing is torn.

The long runs are the modules' command lines (tools/faults); docs/RELIABILITY.md holds their results.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.faults.again import until_enough, until_found
from tests.support.effort import tries
from tools.faults import disk_full, io_errors, shim, slow_disk, syscalls
from tools.faults.client import Plan
from tools.faults.kill_loop import NO_RETENTION, KillLoop, Summary
from tools.faults.power_loss import PowerLoss
from tools.faults.targets import Flint

pytestmark = pytest.mark.campaign
# small containers: growth, recycling and copying forward happen within seconds
SMALL = ("--container-size", str(512 * 1024))
needs_shim = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))
RESTART_S_MAX = 120.0  # the bar (5 s for 1 GiB) is measured by the campaign on a quiet machine; here only a hang is caught


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaigns' bars hold for a quiet machine; here only a hang is caught."""
    for name in ("RESUME_S", "STOP_S", "FILL_S_MAX", "DRAIN_S_MAX"):
        monkeypatch.setattr(disk_full, name, 90.0)


@pytest.mark.timeout(300)
def test_memory_broker_loses_and_is_found_out(folder: Path) -> None:
    """The same loop over a broker without a disk reports lost messages: it can fail."""
    loop = KillLoop(Flint(None), Plan(sizes="small"), folder, seed=3, gentle=0.0, load_s=(0.2, 0.3), remembers=False)
    summary = until_found(loop, 2)
    assert summary.violations["lost"] > 0 and set(summary.violations) <= {"lost", "torn"}, summary.to_json()


@pytest.mark.timeout(1200)
def test_t4_kill_9(durable: None, folder: Path) -> None:
    """T4: some lives under load (`make crash`: 500), ended by kill -9, at named points or by SIGTERM: no violation, and enough happened."""
    target = Flint(folder / "data", (*SMALL, *NO_RETENTION))
    lives = tries(8, 20)
    loop = KillLoop(target, Plan(), folder, seed=1, epoch=lives, failpoints=0.3, load_s=(0.05, 0.2), checkpoints=0.5)

    def enough(summary: Summary) -> bool:
        counts = summary.counts
        began = counts["confirmed"] > 500 and counts["redelivered"] > 50 and counts["tx_ok"] > 50
        return began and counts["starts_from_checkpoints"] > 0 and sum(summary.failpoints.values()) >= 2

    summary = until_enough(loop, lives, enough, times=7)
    assert summary.restart_s_max < RESTART_S_MAX


@needs_shim
@pytest.mark.timeout(600)
def test_t5_power_loss(durable: None, folder: Path) -> None:
    """T5: 3 lives that end with a loss of power, after which unsynced sectors and names are gone: no violation."""
    power = PowerLoss(folder / "data", folder / "shim")
    loop = KillLoop(Flint(folder / "data", SMALL), Plan(), folder, seed=2, epoch=3, gentle=0.0, load_s=(0.2, 0.4), power=power)
    summary = until_enough(loop, 3, lambda summary: summary.power["unsynced"] > 0 and summary.counts["confirmed"] > 100, times=12)
    assert summary.power["strikes"] == summary.cycles and not summary.power["overflow"], summary.to_json()


@needs_shim
@pytest.mark.timeout(300)
@pytest.mark.parametrize("suffix", [".flog", "definitions.db-wal"])
def test_t5_finds_a_sync_that_does_nothing(durable: None, folder: Path, suffix: str) -> None:
    """T5's own test: with the syncs of the log, or of the definitions, taken away, the same loop reports losses."""
    power = PowerLoss(folder / "data", folder / "shim", lies=("sync",), suffix=suffix)
    loop = KillLoop(Flint(folder / "data", SMALL), Plan(), folder, seed=2, epoch=3, gentle=0.0, load_s=(0.2, 0.4), power=power)
    assert not until_found(loop, 3).ok


@needs_shim
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "point",
    [
        io_errors.Point("sync", 14, False),
        io_errors.Point("pwrite", 25, True, errno.ENOSPC),
        io_errors.Point("rename", 2, True),
    ],
    ids=str,
)
def test_t7_io_error(durable: None, folder: Path, point: io_errors.Point) -> None:
    """T7: one failed call ends confirms for good; what was confirmed before is there after a restart, unsynced bytes gone."""
    outcome = io_errors.run_point(point, folder / "point", 1, SMALL)
    assert outcome.struck and not outcome.violations, outcome


@pytest.mark.timeout(600)
def test_t8_disk_full(durable: None, folder: Path, patient: None) -> None:
    """T8: publishers are blocked while two containers still fit, SIGTERM ends a broker whose disk is full, the full store opens, is
    drained, and publishing resumes after the drain."""
    if reason := disk_full.missing():
        pytest.skip(reason)
    with disk_full.small_disk(folder / "disk") as disk:
        campaign = disk_full.DiskFull(disk, folder, 1, SMALL)
        try:
            report = campaign.run(1)
        finally:
            if campaign.alive():
                campaign.broker.kill()
    assert report["ok"], "\n".join(report["shown"])
    assert report["cycles"] == 1 and len(report["free_at_block_mib"]) == 2 and report["lives"] == 3, report


@needs_shim
@pytest.mark.timeout(300)
def test_t9_slow_disk(durable: None, tmp_path: Path) -> None:
    """T9: with slow syncs and one that stalls, heartbeats are sent, nothing is confirmed early, memory stays bounded."""
    report = slow_disk.SlowDisk(tmp_path, 1, ()).run(1.0, (10.0, 200.0), 2.0, 192.0)
    assert report["ok"], "\n".join(report["shown"])
    assert report["counts"]["confirmed"] > 100, report


@pytest.mark.timeout(300)
def test_t3_only_the_file_port_writes(durable: None, tmp_path: Path) -> None:
    """T3: under strace nothing else changes the data directory, and every confirm follows a sync of the log."""
    if reason := syscalls.missing():
        pytest.skip(reason)
    found = syscalls.run(tmp_path / "data", tmp_path / "trace", 200)
    assert not found.violations, found.violations[:10]
    assert found.answers >= 200 and found.calls["fdatasync .flog"] >= 200, (found.answers, found.calls)

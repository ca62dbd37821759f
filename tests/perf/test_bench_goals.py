"""A bench that misses one of its goals ends with 1; what has no goal never does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import cold_groups, stream_log, streams, streams_socket
from bench.brokers import FLINTMQ, RABBITMQ

ROOT = Path(__file__).resolve().parents[2]


def cold(broker: str, *ratios: float) -> dict[str, Any]:
    def one(p99: float) -> dict[str, float]:
        return {"p50": 1.0, "p99": p99}

    return {"broker": broker, "rounds": [{"before_us": one(100), "during_us": one(100 * ratio), "drain_rate": 1} for ratio in ratios]}


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([cold(FLINTMQ, 1.0, 1.19, 9.0)], 0),
        ([cold(FLINTMQ, 1.0, 1.21, 1.3), cold(RABBITMQ, 1.0)], 1),
        ([cold(FLINTMQ, 1.0), cold(RABBITMQ, 7.0)], 0),
        ([cold(RABBITMQ, 7.0)], 0),
        ([cold(FLINTMQ), cold(RABBITMQ, 1.0)], 65),
        ([cold(FLINTMQ), cold(RABBITMQ)], 69),
        ([], 69),
    ],
)
def test_the_drain_beside_hot_queues(records: list[dict[str, Any]], code: int) -> None:
    """The median of FlintMQ's rounds counts; RabbitMQ has no goal; no figure is not a figure that is good."""
    assert cold_groups.exit_code(records) == code


def test_the_fan_out_of_streams() -> None:
    """Named rows of ten groups and 100 bytes are judged, others are not."""
    rows = [{"row": "live", "deliveries_s": streams.GOAL}, {"row": "replay", "deliveries_s": 1}]
    low = [{"row": "live", "deliveries_s": streams.GOAL - 1}]
    assert streams_socket.goal_missed is streams.goal_missed
    assert not streams.goal_missed(rows, 10, 100, ("memory", "live"))
    assert streams.goal_missed(rows, 10, 100, ("replay",))
    assert streams.goal_missed(low, 10, 100, ("live",))
    assert not streams.goal_missed(low, 9, 100, ("live",)) and not streams.goal_missed(low, 10, 101, ("live",))


@pytest.mark.parametrize("most_ms", [0, 60_000])
def test_the_opening_of_a_stream(most_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A real, small one: both openings are judged."""
    monkeypatch.setattr(stream_log, "OPEN_MS_MAX", most_ms)
    assert stream_log.main(["--messages", "2000", "--dir", str(tmp_path)]) == (0 if most_ms else 1)
    assert capsys.readouterr().err.count("goal missed") == (0 if most_ms else 2)


def test_all_of_them_run_and_the_end_says_who_missed(tmp_path: Path) -> None:
    """`bench/fairness_all.sh` with a Python that fails for some: every bench is called, then it ends with 1 and their names."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "called $2"\ncase "$2" in bench.streams|bench.cold_groups) exit 1;; esac\n')
    python.chmod(0o755)
    script = tmp_path / "bench" / "fairness_all.sh"
    script.parent.mkdir()
    script.write_text((ROOT / "bench/fairness_all.sh").read_text())
    done = subprocess.run(
        ["sh", str(script)], env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=50
    )
    called = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("called ")]
    assert len(called) == 8 and called[-1] == "bench.cold_groups"
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "missed: bench.streams bench.cold_groups"
    python.write_text("#!/bin/sh\n")
    done = subprocess.run(
        ["sh", str(script)], env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0 and "missed" not in done.stdout

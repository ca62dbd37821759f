"""The rows of bench.operate measure a broker that runs, and name their goals."""

from __future__ import annotations

import argparse

import pytest

from bench import operate
from tests.support import servers


@pytest.mark.parametrize("name", ["queues", "metrics", "consoles"])
def test_a_row_measures_a_broker(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(operate, "SECONDS", 0.5)
    monkeypatch.setattr(operate.time, "sleep", lambda seconds, sleep=operate.time.sleep: sleep(min(seconds, 0.1)))
    options = argparse.Namespace(queues=20, consoles=3)
    try:
        rows = list(operate.ROWS[name](options))
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    assert {goal for _, _, _, goal, _ in rows} - {0} == {"queues": {50}, "metrics": {300}, "consoles": {10, 32}}[name]
    assert all(unit and what for what, _, unit, _, _ in rows)
    if name != "consoles":
        assert rows[1][1] > 0 and "20 queues" in rows[1][0]

"""The rows of bench/others.py run: the others get figures beside a flood and beside a single long request."""

from __future__ import annotations

import pytest

from bench import others
from bench.others_row import PIECE, repeat
from flintmq.testing.broker import Broker


@pytest.mark.parametrize(("name", "kind"), [("get", "message"), ("churn", "passive")])
def test_a_row_measures_others(name: str, kind: str) -> None:
    with Broker() as broker:
        figures = others.measure(others.ROWS[name], broker.port, 0.3, kind, 0)
    assert figures["n"] >= 1
    assert 0 < figures["p50"] <= figures["p99"] <= figures["max"]


def test_floods_are_whole_frames() -> None:
    frames = repeat(b"12345")
    assert len(frames) % 5 == 0 and len(frames) <= PIECE

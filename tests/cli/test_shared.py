"""`flintmq shared measure`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from flintmq.cli.shared import shared


def test_each_way_is_measured_and_loses_nothing(tmp_path: Path) -> None:
    arguments = ["measure", "--dir", str(tmp_path), "--messages", "40", "--takers", "2"]
    result = CliRunner().invoke(shared, arguments, catch_exceptions=False)
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert [line["way"] for line in lines] == ["naive", "staged", "batched"]
    assert all(line["exactly_once"] and line["dequeued_per_s"] > 0 for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(shared, ["measure", "--dir", str(tmp_path / "none")])
    assert result.exit_code != 0
    assert "can't measure" in str(result.exception)


def test_an_engine_that_is_none_or_away_is_an_error() -> None:
    for url, told in (("mysql:x", "names no engine"), ("etcd://127.0.0.1:1", "no connection to 127.0.0.1:1")):
        result = CliRunner().invoke(shared, ["measure", "--engine", url])
        assert told in str(result.exception)

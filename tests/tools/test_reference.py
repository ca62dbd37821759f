"""docs/CONFIGURATION.md has every option and every limit, each with its unit, and is the page that the tool writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flintmq.cli.convert import _MAPPED
from flintmq.cli.serve import serve
from flintmq.config import Limits
from tools import reference


def test_the_page_is_current() -> None:
    assert reference.main([]) == 0


def test_a_page_that_is_not_current_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "TARGET", tmp_path / "CONFIGURATION.md")
    assert reference.main([]) == 1
    assert "is not current" in capsys.readouterr().out
    assert reference.main(["--write"]) == reference.main([]) == 0
    (tmp_path / "CONFIGURATION.md").write_text("else")
    assert reference.main([]) == 1


def test_each_option_and_each_key_of_rabbitmq_has_its_place() -> None:
    rows = list(reference.option_rows())[1:]
    assert len(rows) == len(serve.params) - 1, "all but --config"
    keys = set(re.findall(r"`([\w.*]+)`", "".join(row.split("|")[3] for row in rows)))
    assert keys == _MAPPED.keys()
    for row in rows:
        assert len(re.split(r"(?<!\\)\|", row)) == 8, row


def test_each_limit_stands_there_once_with_a_text() -> None:
    table = "".join(reference.limits())
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] + "\n" for line in table.splitlines() if line.startswith("| `")))
    assert sorted(named) == sorted(Limits.names())
    for line in table.splitlines():
        if line.startswith("| `"):
            _, names, values, text, _ = re.split(r"(?<!\\)\|", line)
            assert text.strip() and names.count("`") == 2 * len(values.split(";")), line

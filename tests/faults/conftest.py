"""Marker of the campaigns (select with `-m campaign`), and the durable broker they need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.faults.targets import Flint


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "campaign: starts and breaks real broker processes (some seconds each)")


@pytest.fixture(scope="session")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Skips when this build keeps nothing on disk."""
    broker = Flint(tmp_path_factory.mktemp("probe"))
    broker.start()
    broker.stop()
    if not broker.ready.get("store_dir"):
        pytest.skip("flintmq serve has no durable store in this build")
    yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data of one campaign."""
    (tmp_path / "data").mkdir()
    return tmp_path

"""Fixtures of the cluster tests: two nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flintmq.testing.broker import Broker
from tests.support.inprocess import connect, heap_of_others, start
from tests.support.two_nodes import Other, Owner

__all__ = ["connect", "heap_of_others", "start"]


@pytest.fixture
def owner(start: Callable[..., Broker]) -> Owner:
    return Owner(start())


@pytest.fixture
def other(start: Callable[..., Broker], tmp_path: Path) -> Iterator[Other]:
    made = Other(start(store_dir=str(tmp_path / "other")))
    yield made
    made.stop()

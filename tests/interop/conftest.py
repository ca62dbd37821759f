"""Fixtures of the interoperability tests: one broker per module, shared by its tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.broker import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of this module's own; its exit code 0 after SIGTERM is part of every module."""
    with Broker() as running:
        yield running

"""What holds for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def segments() -> Iterator[None]:
    """A store sets how many entries a segment of this process has: later tests count on the default."""
    yield
    try:
        from tests.drivers.queue_driver import set_segments
    except ImportError:  # not compiled: nothing here has made a store
        return
    set_segments()

"""What holds for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """A store that has queues is never freed: one that a test leaves open keeps chunks of memory, which tests of the memory account see.
    It also sets how many entries a segment of this process has."""
    yield
    try:
        from tests.drivers.queue_driver import set_segments
        from tests.store.rig import opened
    except ImportError:  # not compiled: nothing here has made a store
        return
    for store in opened:
        with contextlib.suppress(Exception):  # of a disk that fails, as the test wanted it
            store.close(clean=False)
    opened.clear()
    set_segments()

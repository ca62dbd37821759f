"""Fixtures of the tests of sockets, loops and connections."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.inprocess import connect, heap_of_others, start

__all__ = ["connect", "heap_of_others", "start"]


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    """Broker and clients share the interpreter here: with its usual 5 ms turns busy client threads would starve the loops."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(before)

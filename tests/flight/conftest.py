"""Fixtures of the Flight service's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.flight.fake import Plane


@pytest.fixture
def plane() -> Iterator[Plane]:
    """A service on a fake broker with three channels."""
    with Plane() as started:
        yield started


@pytest.fixture
def start() -> Iterator[Callable[..., Plane]]:
    """The same with options; all end with the test."""
    with ExitStack() as stack:

        def make(**options: Any) -> Plane:
            return stack.enter_context(Plane(**options))

        yield make

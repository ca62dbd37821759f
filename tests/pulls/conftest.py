"""A rig per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.pulls.rig import Rig


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    """`make(limit=value, ...)`: a rig that is closed after the test."""
    with ExitStack() as stack:

        def build(**limits: Any) -> Rig:
            return stack.enter_context(closing(Rig(**limits)))

        yield build


@pytest.fixture
def rig(make: Callable[..., Rig]) -> Rig:
    return make()

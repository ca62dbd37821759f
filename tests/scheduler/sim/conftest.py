"""One simulator (a child process with the simulated scheduler) for all tests of a session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tools.actor_sim.simulator import Simulator


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    with Simulator() as one:
        yield one

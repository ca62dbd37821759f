"""Worked by real threads without the GIL, the queue loses nothing, doubles nothing, keeps order and leaves nobody asleep."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.drivers.queue_driver")

from tests.queue import stress
from tests.support.effort import tries


@pytest.mark.parametrize("scenario", stress.SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: stress.Scenario) -> None:
    # Loads go through a thread that sleeps between them: fewer messages find as much.
    assert stress.run(scenario, tries(25_000, 100_000) if scenario.hot is None else tries(6_000, 20_000)) == []

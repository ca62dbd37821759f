"""Worked by real threads, actors never run twice at once, keep each producer's order, and every request gets exactly one answer."""

from __future__ import annotations

import pytest

pytest.importorskip("tests.drivers.actor_driver")

from tests.scheduler import stress


@pytest.mark.parametrize("scenario", stress.SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: stress.Scenario) -> None:
    assert stress.run(scenario, 20_000) == []

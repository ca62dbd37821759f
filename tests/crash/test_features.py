"""T1 of queue features: what power loss leaves of schedules, last values, letters, rings, groups, counts; planted faults are found."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.effort import tries
from tools.crash.campaign import crash_seeds
from tools.crash.features import FAULTS, FeatureSubject

IMAGES = tries(600, 20_000)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_image_breaks_a_promise() -> None:
    outcome = crash_seeds(FeatureSubject(), 1, 1, IMAGES, 150, 600)
    assert [f"--replay '{failure.replay}': {failure.text}" for failure in outcome.failures] == []
    assert outcome.images >= IMAGES


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_mistake_is_found(fault: str) -> None:
    assert crash_seeds(FeatureSubject(90, fault), 1, 1, 3_000, 150, 600, failures_max=1).failures

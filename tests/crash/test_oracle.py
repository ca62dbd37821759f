"""Property: workloads and oracle of the store campaign pass a right store and catch every broken variant of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.crash.one_file_store import VARIANTS, OneFileStore
from tests.twins.sim_disk import SimDisk
from tools.crash.campaign import crash_seeds, replay
from tools.crash.workload import StoreSubject


def open_variant(variant: str, disk: SimDisk, container_size: int, queues: set[int], high_water: int) -> Any:
    return OneFileStore(disk, variant, queues)


def test_a_right_store_passes() -> None:
    """No image of the unbroken store breaks a promise."""
    outcome = crash_seeds(StoreSubject(40, functools.partial(open_variant, "")), 1, 1, 1_500, 200, 60)
    assert [failure.text for failure in outcome.failures] == []
    assert outcome.images >= 1_500


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_store_is_caught(variant: str) -> None:
    """Each fault is found, and its replay shows the same failure."""
    subject = StoreSubject(40, functools.partial(open_variant, variant))
    outcome = crash_seeds(subject, 1, 1, 3_000, 200, 60, failures_max=1)
    assert outcome.failures, f"{outcome.images} images did not show it"
    assert not outcome.failures[0].text.startswith(("NameError", "AttributeError", "TypeError"))
    assert replay(subject, outcome.failures[0].replay) is not None

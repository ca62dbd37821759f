"""Property: the crash campaign passes a right log and catches every broken variant of it."""

from __future__ import annotations

import pytest

from tests.crash.toy import VARIANTS, ToySubject
from tools.crash.campaign import crash_seeds, replay


def test_a_right_log_passes() -> None:
    """No image of the unbroken toy breaks a promise."""
    outcome = crash_seeds(ToySubject(), 1, 1, 4_000, 400, 60)
    assert [failure.text for failure in outcome.failures] == []
    assert outcome.images >= 4_000
    assert outcome.recordings >= 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_variant_is_caught(variant: str) -> None:
    """Each missing guard is found within 4,000 images, and its replay shows the same failure."""
    subject = ToySubject(variant)
    outcome = crash_seeds(subject, 1, 1, 4_000, 400, 60, failures_max=1)
    assert outcome.failures, f"{outcome.images} images did not show it"
    if outcome.failures[0].position >= 0:
        again = replay(subject, outcome.failures[0].replay)
        assert again is not None
        assert again.text == outcome.failures[0].text

"""Property: whatever power loss, a failing disk or damage leave of the log, nothing confirmed is lost and nothing ended comes back."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.effort import tries
from tools.crash import corrupt, enumerate, fail_calls

# tests/crash/test_oracle.py shows how few images find each store that is wrong; `make crash` takes a million.
CRASH_IMAGES = tries(3_000, 20_000)
IMAGES_OF_ONE = tries(100, 300)
DAMAGED_IMAGES = tries(1_500, 5_000)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of recoveries of damaged stores say so: not into the report."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(1200)  # minutes on a busy machine
def test_t1_every_crash_point() -> None:
    """T1 and the log's side of T2: no image of any crash point, nor of a crash of its recovery, breaks a promise."""
    outcome = enumerate.run(CRASH_IMAGES, jobs=2, per_recording=IMAGES_OF_ONE)
    assert [f"--replay '{failure.replay}': {failure.text}" for failure in outcome.failures] == []
    assert outcome.images >= CRASH_IMAGES
    assert outcome.recordings >= tries(5, 40)


@pytest.mark.parametrize(("seed", "index"), [(224, 227), (287, 201), (310, 151), (527, 87)])
def test_t6_a_block_of_the_other_log_is_damage(seed: int, index: int) -> None:
    """Containers of both logs have the same LSNs: a block that was written to its place in the other log is no block there."""
    victim = corrupt.Victim(seed, 120)
    _, files = corrupt.damage(victim, random.Random(f"{seed} {index}"))
    figures: Counter[str] = Counter()
    corrupt.check_damage(victim, files, figures)
    assert figures["reported"] + figures["refused"] == 1


@pytest.mark.timeout(1200)  # minutes on a busy machine
def test_t6_damage_is_noticed() -> None:
    """T6: flipped bits, short files, swapped, misdirected and missing blocks: refused or reported, never served as good."""
    result = corrupt.run(DAMAGED_IMAGES)
    assert [f"--replay {failure.seed}:{failure.position}: {failure.text}" for failure in result.failures] == []
    assert result.images == DAMAGED_IMAGES
    assert result.figures["reported"] > DAMAGED_IMAGES // 10
    assert result.figures["harmless"] > DAMAGED_IMAGES // 20


@pytest.mark.timeout(1200)  # minutes on a busy machine
def test_t7_every_call_fails() -> None:
    """T7: each call of the disk fails, once and for ever: latched and named, nothing confirmed after it, nothing lost before it."""
    result = fail_calls.run(scripts=tries(1, 2))
    assert [f"--replay '{failure.choice}': {failure.text}" for failure in result.failures] == []
    assert result.points > 200
    assert result.latched > result.points // 4
    assert {"write", "sync", "rename", "allocate", "create", "sync_dir"} <= set(result.kinds)

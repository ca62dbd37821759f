"""The checker finds each of the seeded broken brokers, by the right name, and has nothing to say about a right one."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tools.faults import journal as j
from tools.faults.broken import DEFECTS, THE_TWELVE, FakeBroker
from tools.faults.checker import Report, check
from tools.faults.client import Plan, declare, run_session

PLAN = Plan(sizes="small", rate=1200, limit=60, answer_s=15, window=32, prefetch=10)
# roles of three lives: load with consumers, publishers alone (a backlog), a consumer that is alone, then the drain
LIVES = (
    ("confirm", "txpublish", "requeue", "move"),
    ("confirm", "txpublish", "each"),
    ("confirm", "txpublish", "move"),
    ("drain",),
)


def campaign(broker: FakeBroker, folder: Path, seed: int, plan: Plan = PLAN) -> Report:
    """Three lives with a crash after each, and the drain in the fourth; every role in a thread of its own."""
    journals = [j.Journal(folder / f"{number}") for number in range(5)]
    rng = random.Random(seed)
    for life, roles in enumerate(LIVES, 1):
        port = broker.start()
        journals[4].add(j.LIFE, life, "ready")
        declare(port, plan, journals[4], life, known=life > 1)
        stop = threading.Event()
        threads = [
            threading.Thread(
                target=run_session, args=(port, journals[at], f"{role}{life}", life, role, plan, rng.getrandbits(32), stop), daemon=True
            )
            for at, role in enumerate(roles)
        ]
        for thread in threads:
            thread.start()
        if roles == ("drain",):
            threads[0].join(120)
            assert not threads[0].is_alive()
            broker.crash()
            continue
        # until the publishers have done their work or died
        for thread, role in zip(threads, roles):
            if role in ("confirm", "txpublish"):
                thread.join(60)
        broker.crash()
        journals[4].add(j.LIFE, life, "killed")
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    for journal in journals:
        journal.close()
    return check(j.load(sorted(folder.iterdir())))


ENOUGH = {"confirmed": 150, "delivered": 200, "redelivered": 10, "tx_ok": 10, "tx_rolled": 1, "released": 1}


@pytest.mark.parametrize("seed", range(3))
def test_right_broker_is_left_alone(tmp_path: Path, seed: int) -> None:
    """No verdict over a broker that keeps its promises and crashes three times, after enough has happened to say so."""
    counts: Counter[str] = Counter()
    for again in range(5):  # what does not happen in one run, as threads take turns, happens in another
        folder = tmp_path / str(again)
        folder.mkdir()
        report = campaign(FakeBroker(seed=seed), folder, seed)
        assert report.ok, report.to_json()
        counts.update(report.counts)
        if all(counts[name] >= least for name, least in ENOUGH.items()):
            return
    raise AssertionError(f"{counts} of {ENOUGH}")


@pytest.mark.parametrize("defect", DEFECTS)
def test_broken_broker_is_found(tmp_path: Path, defect: str) -> None:
    """Each defect is found under one of its names; a run in which the defect had no chance to strike is repeated."""
    for seed in range(5):
        broker = FakeBroker(defect, seed=seed, rate=0.1)
        folder = tmp_path / str(seed)
        folder.mkdir()
        # a broker that keeps messages back is told by its silence
        report = campaign(broker, folder, seed, replace(PLAN, answer_s=0.4) if defect == "forgets-queue-end" else PLAN)
        if broker.broken:
            break
    assert broker.broken, "the defect never struck"
    assert set(report.kinds) & DEFECTS[defect], (broker.broken, report.to_json())


def test_there_are_twelve() -> None:
    """The seeded broken brokers of the test plan are all there."""
    assert len(THE_TWELVE) == 12 and len(set(DEFECTS)) > 12

"""The order of kills visits every point before any comes again, and every pair of point and victim in time."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from tools.crash.spark import plan, processes
from tools.crash.spark.hooks import Fault, Points
from tools.crash.spark.plan import Kill, series

ROUND = len(plan.POINTS) + plan.RANDOM_SHARE - 1


@pytest.mark.parametrize("cluster", [False, True])
def test_every_point_comes_in_each_round(cluster: bool) -> None:
    """Fifty kills are more than a round, so all named points are among them."""
    assert len([name for name in plan.POINTS if name != "random"]) >= 12 and ROUND <= 50
    kills = list(itertools.islice(series(3, cluster=cluster), 40 * ROUND))
    for start in range(0, len(kills), ROUND):
        assert {kill.point for kill in kills[start : start + ROUND]} == set(plan.POINTS)
    pairs = {
        Kill(query, name, victim)
        for name, (queries, victims) in plan.POINTS.items()
        for query in queries
        for victim in victims
        if cluster or victim != "executor"
    }
    assert set(kills) == pairs


def test_a_seed_gives_the_same_kills() -> None:
    """A failure can be run again."""
    first, again, other = (list(itertools.islice(series(seed, cluster=False), 100)) for seed in (1, 1, 2))
    assert first == again != other
    assert Kill.parse(str(first[0])) == first[0]
    with pytest.raises(ValueError, match="query is one of"):
        Kill.parse("files/nowhere/driver")


def arm(directory: Path, **named: object) -> None:
    (directory / "arm.json").write_text(json.dumps({"id": 1, "query": "files", "point": "read-end", "victim": "task", **named}))


def test_a_point_fires_once_and_only_where_it_was_asked_for(tmp_path: Path) -> None:
    """Another point, another query and a second process pass by."""
    mine, other = Points(str(tmp_path), "files"), Points(str(tmp_path), "copy")
    assert mine.at("read-end") == 0
    arm(tmp_path)
    assert other.at("read-end") == mine.at("read-begin") == 0
    with pytest.raises(Fault, match="fault 1"):
        mine.at("read-end")
    assert mine.at("read-end") == 0 and (tmp_path / "fired.1.json").exists()


def test_a_zombie_goes_on_when_it_is_woken_and_tells_what_came(tmp_path: Path) -> None:
    """The error of its call is noted, and passed on."""
    arm(tmp_path, victim="zombie", point="commit-enter", driver=0)
    points = Points(str(tmp_path), "files")
    with points.around("commit", zombie=False):
        pass
    assert (tmp_path / "arm.json").exists(), "a process that can't be left behind leaves it to another"
    (tmp_path / "awake.1").touch()
    with pytest.raises(ZeroDivisionError), points.around("commit"):
        raise ZeroDivisionError("FENCED")
    assert json.loads((tmp_path / "zombie.1.json").read_text()) == {"point": "commit", "came": "ZeroDivisionError: FENCED", "asks": True}


def test_processes_are_found_by_their_family(tmp_path: Path) -> None:
    """Children by a word of their command line, sessions as a whole; nobody else is touched."""
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "input('family')"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert sleeper.stdout is not None and sleeper.stdout.read(6) == b"family"
        assert processes.child(os.getpid(), "input('family')") == sleeper.pid
        assert sleeper.pid in processes.descendants(os.getpid())
        known = processes.facts(sleeper.pid)
        assert known is not None and known[1:] == (os.getpid(), sleeper.pid)
        assert processes.ancestor(sleeper.pid, "no such name") == 0
        processes.end_session(sleeper.pid)
        assert sleeper.wait(60) == -9
        assert processes.facts(sleeper.pid) is None and processes.child(os.getpid(), "input('family')") == 0
    finally:
        sleeper.kill()
        sleeper.communicate()

"""kill -9 at any moment: what returned is there, what was deleted stays away, no queue id is given out twice, the store keeps its UUID."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from flintmq.store.sql.definitions import SqlDefinitions

KILLS = 50
ROOT = Path(__file__).resolve().parents[2]


def killed_saver(directory: Path, run: int, lines: int) -> list[list[object]]:
    """Everything that a saver printed; it is killed after it printed `lines` lines."""
    command = [sys.executable, "-m", "tests.store_sql.saver", str(directory), str(run)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None
    printed = [child.stdout.readline() for _ in range(lines)]
    child.kill()
    printed += child.stdout.readlines()
    child.stdout.close()
    assert child.wait() == -9
    return [json.loads(line) for line in printed if line.endswith(b"\n")]


def test_fifty_kills_lose_nothing_that_returned(tmp_path: Path) -> None:
    chance = random.Random(3)
    saved: dict[str, int] = {}
    deleted: set[str] = set()
    open_deletes: set[str] = set()  # begun when the kill came: either outcome is right
    ids: set[int] = set()
    uuids: set[str] = set()
    for run in range(KILLS):
        for what, *words in killed_saver(tmp_path, run, chance.randint(1, 60)):
            if what == "open":
                uuids.add(str(words[0]))
            elif what == "id":
                assert isinstance(words[0], int)
                assert words[0] not in ids, "given out twice"
                ids.add(words[0])
            elif what in ("queue", "submitted"):
                name, queue_id = words
                assert isinstance(queue_id, int)
                saved[str(name)] = queue_id
            elif what == "deleting":
                open_deletes.add(str(words[0]))
            elif what == "delete":
                deleted.add(str(words[0]))
        if run % 5 == 4 or run == KILLS - 1:
            opened = SqlDefinitions.open(tmp_path)
            # What the killed process left in the WAL, perhaps unsynced, is in the database file now.
            assert (tmp_path / "definitions.db-wal").stat().st_size == 0
            there = {record.name: record.queue_id for record in opened.load_queues("/")}
            bound = {record.destination for record in opened.load_bindings("/")}
            kept = {name: queue_id for name, queue_id in saved.items() if name not in open_deletes}
            assert {name: there.get(name) for name in kept} == kept
            assert not deleted & there.keys()
            assert kept.keys() <= bound <= there.keys()
            assert set(there.values()) <= ids, "an id nobody got"
            assert max(ids, default=0) <= opened.queue_id_high_water
            assert not uuids or uuids == {opened.store_uuid.hex()}
            assert opened._driver._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)  # type: ignore[attr-defined]
            opened.close()
    assert len(saved) > KILLS
    assert deleted


def test_killed_while_the_store_is_made(tmp_path: Path) -> None:
    for run in range(8):
        directory = tmp_path / str(run)
        directory.mkdir()
        killed_saver(directory, run, 1)
        opened = SqlDefinitions.open(directory)
        assert [record.name for record in opened.load_vhosts()] == ["/"]
        assert len(opened.store_uuid) == 16
        opened.close()

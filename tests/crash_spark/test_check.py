"""The checker of the fault campaign sees each way to lose, repeat or mix up messages, and nothing where nothing is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.crash.spark.check import Finding, Row, Sent, body_of, check, committed_files, named, parquet_rows

KEYS = ("k0", "k1")
SENT = Sent({(key, number) for key in KEYS for number in range(40)}, {("k0", 40), ("k1", 40)})


def rows_of(sent: Sent, maybe: bool = True) -> list[Row]:
    """What a pipeline without faults gives: batches of ten, the keys one after the other."""
    names = sorted(sent.sure | (sent.maybe if maybe else set()), key=lambda name: (name[1] // 10, name))
    return [Row(key, number, number) for key, number in names]


def kinds(findings: Sequence[Finding]) -> set[str]:
    return {one.kind for one in findings}


@pytest.mark.parametrize("maybe", [True, False])
def test_what_is_right_is_no_finding(maybe: bool) -> None:
    """Messages without confirmation may be there or not."""
    assert check("out", SENT, rows_of(SENT, maybe)) == []


def test_a_batch_that_is_dropped_is_lost() -> None:
    """Seeded fault: one batch is missing."""
    rows = rows_of(SENT)
    (found,) = check("out", SENT, rows[:20] + rows[40:])
    assert (found.kind, found.count, len(found.examples)) == ("lost", 20, 10)
    assert "20 lost" in str(found)


def test_a_batch_that_is_doubled_is_a_duplicate() -> None:
    """Seeded fault: one batch comes twice, at once or later."""
    rows = rows_of(SENT)
    assert kinds(check("out", SENT, rows[:20] + rows[:20] + rows[20:])) == {"duplicate", "disorder"}
    assert kinds(check("out", SENT, rows + rows[-2:])) >= {"duplicate"}


def test_a_stage_that_is_published_twice_is_a_duplicate() -> None:
    """Seeded fault: one partition's rows, of one key, come again behind the others."""
    rows = rows_of(SENT)
    stage = [row for row in rows if row.key == "k1" and row.number < 10]
    found = {one.kind: one for one in check("copy", SENT, rows + stage)}
    assert found["duplicate"].count == 10 and "disorder" in found


def test_what_was_not_sent_is_alien() -> None:
    """Seeded fault: a message of nobody."""
    assert kinds(check("out", SENT, [*rows_of(SENT), Row("k0", 99, 99)])) == {"alien"}


@given(st.data())
def test_any_single_fault_is_found(data: st.DataObject) -> None:
    """One row lost, doubled or put elsewhere in its queue is found; what may be absent may only be absent."""
    rows = rows_of(SENT)
    at = data.draw(st.integers(0, len(rows) - 1))
    row, without = rows[at], rows[:at] + rows[at + 1 :]
    assert kinds(check("out", SENT, without)) == (set() if (row.key, row.number) in SENT.maybe else {"lost"})
    assert "duplicate" in kinds(check("out", SENT, rows[: at + 1] + rows[at:]))
    to = data.draw(st.integers(0, len(without)))
    moved = [*without[:to], row, *without[to:]]
    same = [one for one in moved if one.key == row.key] == [one for one in rows if one.key == row.key]
    assert kinds(check("out", SENT, moved)) == (set() if same else {"disorder"})


@given(st.sampled_from(KEYS), st.integers(0, 10**9), st.integers(0, 50))
def test_a_body_says_what_it_is(key: str, number: int, padding: int) -> None:
    """Bodies and names are two forms of the same."""
    assert named(body_of(key, number, padding)) == (key, number)


def test_the_journal_comes_back() -> None:
    """What the publisher knew can be read again for another look."""
    assert Sent.from_json(SENT.to_json()) == SENT


def write_part(directory: Path, name: str, rows: list[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"body": [body_of(row.key, row.number) for row in rows], "position": [row.position for row in rows]})
    pq.write_table(table, directory / name)


def write_log(directory: Path, name: str, parts: Sequence[str]) -> None:
    lines = [json.dumps({"path": f"file://{directory}/{part}", "action": "add"}) for part in parts]
    (directory / "_spark_metadata").mkdir(exist_ok=True)
    (directory / "_spark_metadata" / name).write_text("\n".join(["v1", *lines]))


def test_only_committed_files_count(tmp_path: Path) -> None:
    """Files of attempts that lost stand in the directory too; a compacted log holds what went before it."""
    rows = rows_of(SENT)
    parts = [f"part {number}.parquet" for number in range(4)]
    for number, part in enumerate(parts):
        write_part(tmp_path, part, rows[number * 20 : number * 20 + 20])
    write_part(tmp_path, "part-lost.parquet", rows[:20])
    for number in range(3):
        write_log(tmp_path, str(number), [parts[number]])
    assert [row.number for row in parquet_rows(tmp_path)] == [row.number for row in rows[:60]]
    write_log(tmp_path, "2.compact", parts[:3])
    (tmp_path / "_spark_metadata" / "0").unlink()
    (tmp_path / "_spark_metadata" / ".1.crc").touch()
    write_log(tmp_path, "3", [parts[3]])
    assert [file.name for file in committed_files(tmp_path)] == parts
    assert parquet_rows(tmp_path) == rows[:80]


def test_a_hole_in_the_metadata_log_is_an_error(tmp_path: Path) -> None:
    """Nobody may take half of the output for all of it."""
    write_log(tmp_path, "0", [])
    write_log(tmp_path, "2", [])
    with pytest.raises(ValueError, match="gaps"):
        committed_files(tmp_path)
    write_log(tmp_path, "1", [])
    assert committed_files(tmp_path) == []
    (tmp_path / "_spark_metadata" / "1").write_text("v9\n")
    with pytest.raises(ValueError, match="version v9"):
        committed_files(tmp_path)

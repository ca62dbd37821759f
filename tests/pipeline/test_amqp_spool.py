"""A batch file is whole or absent, ranges cover it exactly once, and a directory of another queue is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_flintmq.amqp import messages as schema
from pyspark_flintmq.amqp.messages import Delivery, Properties, to_record_batches
from pyspark_flintmq.amqp.spool import Spool, plan, read_batches
from pyspark_flintmq.errors import SourceError


def opened(path: Path, where: str = "here") -> Spool:
    spool = Spool(path)
    spool.open(where, 0)
    return spool


def rows(count: int) -> list[Delivery]:
    return [Delivery(i + 1, False, "", "", Properties(), b"%d" % i) for i in range(count)]


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30), pieces=st.integers(1, 12))
def test_ranges_cover_a_batch_once_in_order(sizes: list[int], pieces: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    spool = opened(tmp_path_factory.mktemp("spool"))
    spool.write(1, [batch for size in sizes for batch in to_record_batches("q", rows(size))])
    ranges = plan(spool.path, 1, pieces)
    assert len(ranges) == min(pieces, len(sizes))
    assert [i for first, last in ranges for i in range(first, last)] == list(range(len(sizes)))
    got = [batch.num_rows for first, last in ranges for batch in read_batches(spool.path, 1, first, last)]
    assert got == sizes
    spool.close()


def test_what_is_read_has_the_declared_schema(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.write(1, to_record_batches("q", rows(3)))
    (batch,) = spool.load(1)
    assert batch.schema.equals(schema.arrow_schema(), check_metadata=True)
    assert batch.column("body").to_pylist() == [b"0", b"1", b"2"]


def test_state_survives_and_half_written_files_go(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.state.committed = 4
    spool.save()
    name = spool.state.sub_id
    (tmp_path / ".tmp-batch-5").write_bytes(b"half")
    spool.close()
    again = opened(tmp_path)
    assert (again.state.sub_id, again.state.committed, again.prepared()) == (name, 4, None)
    assert not (tmp_path / ".tmp-batch-5").exists()


def test_a_failed_write_leaves_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SourceError, match=r"SPOOL_IO.*No space left"):
        spool.write(1, to_record_batches("q", rows(3)))
    assert spool.seqs() == []
    assert spool.prepared() is None


def test_a_batch_is_synced_with_its_directory_before_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        steps.append("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        fsync(fd)

    def noted_rename(source: str, target: str) -> None:
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    spool.write(1, to_record_batches("q", rows(3)))
    assert steps == ["file", "rename", "directory"]


def test_a_spool_of_another_queue_or_damaged_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a").close()
    with pytest.raises(SourceError, match="SPOOL_FOREIGN"):
        opened(tmp_path / "a", "elsewhere")
    state = tmp_path / "a" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "version": 99}))
    with pytest.raises(SourceError, match="SPOOL_FOREIGN"):
        opened(tmp_path / "a")
    state.write_text("{")
    with pytest.raises(SourceError, match="SPOOL_FOREIGN"):
        opened(tmp_path / "a")
    other = opened(tmp_path / "b")
    other.write(1, to_record_batches("q", rows(1)))
    other.close()
    (tmp_path / "b" / "state.json").unlink()
    with pytest.raises(SourceError, match="SPOOL_FOREIGN"):
        opened(tmp_path / "b")
    # ... and each refusal let the lock go.
    with pytest.raises(SourceError, match="SPOOL_FOREIGN"):
        opened(tmp_path / "b")


def test_a_missing_batch_says_what_spool_dir_must_be(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"SPOOL_MISSING.*every executor"):
        list(read_batches(tmp_path, 3, 0, None))


def test_a_place_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="SPOOL_IO"):
        opened(tmp_path / "file" / "spool")

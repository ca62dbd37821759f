"""The spool: where a micro-batch is kept from the moment its offset is promised to Spark until Spark has committed it.

In: record batches and a sequence number. Out: files `batch-<seq>.arrow` (Arrow IPC), `state.json`, `lock`.
Invariants: a batch file is complete and on disk (file and directory synced) before its name exists; `state.json` is replaced as a
whole; only the holder of `lock` writes. No AMQP here, and nothing of Spark.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_flintmq.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = 1
_LOCK_POLL_S = 0.1


@dataclass
class State:
    """What survives a restart, besides the batch files.

    sub_id: name of this incarnation, in every offset: a checkpoint of another one is recognised. where: the queue it belongs to.
    committed: last seq that Spark is known to have committed; 0 is none. base: `committed` when the present checkpoint began.
    acking: last seq whose acknowledgement may have been sent; written before it is, so a batch after it certainly was not acknowledged.
    """

    sub_id: str
    where: str
    committed: int = 0
    base: int = 0
    acking: int = 0
    version: int = FORMAT_VERSION


class Spool:
    """The spool directory of one subscription. Not usable before `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = State("", "")
        self._lock_fd = -1

    # --- one reader at a time -----------------------------------------------------------------------------------------

    def open(self, where: str, timeout_s: float) -> None:
        """Takes the lock, reads or creates the state, removes half-written files.

        A reader whose driver was killed needs a moment to notice, so the lock is tried for `timeout_s` seconds.
        Raises: SourceError READER_ACTIVE, SPOOL_FOREIGN or SPOOL_IO.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock(timeout_s)
            self._load(where)
        except OSError as e:
            self.close()
            raise SourceError("SPOOL_IO", f"spool directory {self.path}: {e.strerror or e}") from e
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        """Lets the lock go. Deletes nothing: what is spooled is still promised to Spark."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _lock(self, timeout_s: float) -> None:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                # flock belongs to the open file, so the kernel lets it go when the process dies, however it dies.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                    os.close(fd)
                    raise SourceError(
                        "READER_ACTIVE",
                        f"another reader (process {holder}) uses {self.path}: one subscription serves one streaming query, "
                        "and a DataFrame of this source can be started, joined or unioned only once",
                    ) from None
                time.sleep(min(_LOCK_POLL_S, max(0.0, deadline - time.monotonic())))
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    # --- state --------------------------------------------------------------------------------------------------------

    def _load(self, where: str) -> None:
        for leftover in self.path.glob(".tmp-*"):
            leftover.unlink()
        try:
            raw = json.loads((self.path / "state.json").read_text())
            if raw["version"] != FORMAT_VERSION:
                raise SourceError("SPOOL_FOREIGN", f"{self.path} has spool format {raw['version']}, this version reads {FORMAT_VERSION}")
            self.state = State(**raw)
        except FileNotFoundError:
            if self.seqs():
                raise SourceError("SPOOL_FOREIGN", f"{self.path} has batch files but no state.json: it is damaged or not a spool") from None
            self.state = State(sub_id=uuid.uuid4().hex, where=where)
            self.save()
        except (ValueError, KeyError, TypeError) as e:
            raise SourceError("SPOOL_FOREIGN", f"{self.path / 'state.json'} cannot be read: {e}") from e
        if self.state.where != where:
            raise SourceError("SPOOL_FOREIGN", f"{self.path} belongs to {self.state.where}, not to {where}")

    def save(self) -> None:
        """Makes `state` durable. Returns only after it is."""
        self._replace("state.json", json.dumps(asdict(self.state)).encode())

    # --- batches ------------------------------------------------------------------------------------------------------

    def file(self, seq: int) -> Path:
        return batch_file(self.path, seq)

    def seqs(self) -> list[int]:
        """Numbers of the batch files, ascending."""
        return sorted(int(name.stem.removeprefix("batch-")) for name in self.path.glob("batch-*.arrow"))

    def prepared(self) -> int | None:
        """The seq after `committed`, if it is spooled: promised to Spark and not known to be committed."""
        following = self.state.committed + 1
        return following if self.file(following).exists() else None

    def write(self, seq: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Makes batch `seq` durable under its name. `batches` has at least one record batch.

        Raises: SourceError SPOOL_IO, then nothing is under that name.
        """
        import pyarrow as pa

        schema = batches[0].schema.with_metadata({"flintmq.sub_id": self.state.sub_id, "flintmq.seq": str(seq)})
        temporary = self.path / f".tmp-batch-{seq}"
        try:
            with open(temporary, "wb") as file:
                with pa.ipc.new_file(file, schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self.file(seq))
            self._sync_directory()
        except OSError as e:
            raise SourceError("SPOOL_IO", f"cannot write batch {seq} to {self.path}: {e.strerror or e}") from e

    def remove(self, seq: int) -> None:
        """Forgets a committed batch. Its return after a crash is harmless, so the directory is not synced."""
        self.file(seq).unlink(missing_ok=True)
        self.file(seq).with_suffix(".read").unlink(missing_ok=True)

    def was_read(self, seq: int) -> bool:
        """Whether a task has read some of the batch."""
        return self.file(seq).with_suffix(".read").exists()

    def load(self, seq: int) -> Iterator[pa.RecordBatch]:
        """What this process itself looks at."""
        return _batches(self.path, seq, 0, None)

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self.path / f".tmp-{name}"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self.path / name)
        self._sync_directory()

    def _sync_directory(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def batch_file(path: Path, seq: int) -> Path:
    return path / f"batch-{seq:016d}.arrow"


def read_batches(path: Path, seq: int, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Record batches `first` <= i < `last` of batch `seq` (None: to the end), for a task. Needs no lock: a named file never changes.

    Raises: SourceError SPOOL_MISSING when the file is not there.
    """
    with contextlib.suppress(OSError):  # a task that may not write there: the driver explains
        batch_file(path, seq).with_suffix(".read").touch()
    yield from _batches(path, seq, first, last)


def _batches(path: Path, seq: int, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        source = pa.memory_map(str(batch_file(path, seq)), "r")
    except FileNotFoundError:
        raise SourceError(
            "SPOOL_MISSING", f"batch {seq} is not in {path}: spoolDir must be one directory that the driver and every executor see"
        ) from None
    with source, pa.ipc.open_file(source) as reader:
        for i in range(first, reader.num_record_batches if last is None else last):
            yield reader.get_batch(i).replace_schema_metadata(None)


def plan(path: Path, seq: int, pieces: int) -> list[tuple[int, int]]:
    """Cuts batch `seq` into at most `pieces` ranges of record batches, of about equal numbers of rows, in order. Pure.

    Raises: SourceError SPOOL_MISSING.
    """
    rows = [batch.num_rows for batch in read_batches(path, seq, 0, None)]
    pieces = max(1, min(pieces, len(rows)))
    cuts = [0]
    done, total = 0, sum(rows)
    for i, count in enumerate(rows):
        done += count
        remaining = len(rows) - i - 1
        # Cut when this piece has its share, or when each piece still to come needs one of the record batches left.
        if len(cuts) < pieces and (done * pieces >= total * len(cuts) or remaining == pieces - len(cuts)):
            cuts.append(i + 1)
    cuts.append(len(rows))
    return [(a, b) for a, b in pairwise(cuts) if a < b]

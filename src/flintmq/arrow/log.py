"""A store's logs for the log source: their containers, where they begin and end, the table of transactions.

in: a store directory, of a stopped broker (`offline_lock`) or one that a snapshot pins. out: plain values and one record batch;
the rows of records and messages come from scan.py, container by container.

Invariants: nothing is written; what a header or block says is used only when its CRC matches.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flintmq.arrow import schema
from flintmq.arrow.scan import scan_container
from flintmq.errors import StoreError
from flintmq.store.log import record_fields as kinds
from flintmq.store.log.containers import HEADER_SIZE, MESSAGES, SECTOR, TRANSACTIONS, read_header, sequence_of
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log.reader import block_at, blocks_in
from flintmq.store.log.scan import LogScan

if TYPE_CHECKING:
    import pyarrow as pa


class StoreBusy(Exception):
    """A broker has the store open: read it through the broker (log.snapshot), or stop it first."""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """A container, from its header. first_lsn: of its first byte; time_us: when the file got this header; good: the header checks (else
    epoch and time_us are 0, and the file's length stands for the size)."""

    sequence: int
    path: str
    size: int
    first_lsn: int
    epoch: int
    time_us: int
    store_uuid: bytes = b""
    good: bool = True


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where a log that nobody writes begins and ends. base: nothing below is needed by the broker; tail: LSN behind the last good block;
    durable: the highest durable hint (below it everything was synced); torn_at: LSN of a torn tail, 0 none; clean: stopped cleanly."""

    base: int
    tail: int
    durable: int
    torn_at: int
    clean: bool


def first_epoch(path: str, sequence: int, size: int) -> int:
    """Epoch of the first commit block of a container of the message log; -1: there is none. Raises: OSError."""
    with open(path, "rb") as file:
        file.seek(HEADER_SIZE)
        block = block_at(file.read(SECTOR), sequence * size + HEADER_SIZE, size - HEADER_SIZE, MESSAGES)
    return block[2] if block else -1


def block_epochs(path: str, sequence: int, size: int) -> list[tuple[int, int]]:
    """(epoch, LSN behind the last record) of each commit block of a container of the message log, in order. Raises: OSError."""
    return [(block[2], block[0] + block[1]) for block in blocks_in(Path(path).read_bytes(), sequence * size, MESSAGES)]


def list_log(directory: str | os.PathLike[str]) -> list[ContainerFacts]:
    """The log's containers in order; only headers are read. Raises: OSError."""
    containers: list[ContainerFacts] = []
    for name in sorted(os.listdir(directory)):
        number = sequence_of(name) or 0
        if not 0 < number < 1 << 33:
            continue
        path = os.path.join(os.fspath(directory), name)
        try:
            with open(path, "rb") as file:
                header = read_header(file.read(HEADER_SIZE))
                length = os.fstat(file.fileno()).st_size
        except FileNotFoundError:  # recycled since the directory was listed
            continue
        if header is not None and header.known and header.sequence == number:
            containers.append(
                ContainerFacts(number, path, header.size, number * header.size, header.epoch, header.time_us, header.store_uuid)
            )
        else:
            containers.append(ContainerFacts(number, path, length, 0, 0, 0, b"", False))
    sizes = {facts.size for facts in containers if facts.good}
    size = min(sizes) if len(sizes) == 1 else 0
    return [
        facts if facts.good else ContainerFacts(facts.sequence, facts.path, facts.size, facts.sequence * size, 0, 0, b"", False)
        for facts in containers
    ]


def _log_number(directory: str | os.PathLike[str]) -> int:
    return 2 if Path(directory).name == "transactions" else 1


def log_ends(directory: str | os.PathLike[str], log: int = 0) -> LogEnds:
    """Base and tail of a log that no broker writes now, from its last blocks (docs/FORMAT.md, "Reading").

    Args: log: 1 messages, 2 transactions; 0: as the directory's name says. Raises: OSError.
    """
    scan = LogScan(OsFiles(), os.fspath(directory), log or _log_number(directory))
    try:
        scan.ends()
    except StoreError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from error
        return LogEnds(0, 0, 0, 0, False)  # no container with a good header
    return LogEnds(scan.base, scan.block_end, scan.hint or scan.block_end, scan.torn_at, scan.clean)


@contextmanager
def offline_lock(store_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Holds a stopped store shared: no broker opens it meanwhile, other readers may. Raises: StoreBusy; OSError."""
    try:
        fd = os.open(os.path.join(os.fspath(store_dir), "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # a copy of a store
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreBusy(f"{os.fspath(store_dir)}: a broker has this store open") from error
        yield
    finally:
        os.close(fd)


# --- transactions -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Transaction:
    state: str = "open"
    xid: bytes | None = None
    started: int | None = None
    decided: int | None = None
    rows: list[dict[str, int]] = field(default_factory=list)
    sets: list[dict[str, int]] = field(default_factory=list)
    heuristic: str | None = None
    ended: bool = False


def _runs(rows: list[tuple[int, int, int]]) -> list[dict[str, int]]:
    return [{"queue_id": queue, "first": first, "count": count} for queue, first, count in rows]


def _apply(known: dict[int, _Transaction], lsn: int, kind: int, number: int, time_us: int, data: bytes) -> None:
    """One record of the transaction log. Raises: Malformed."""
    if kind == kinds.NOTE:
        return
    if kind in (kinds.DTX_START, kinds.TX_START):
        known[lsn] = _Transaction(started=time_us, xid=kinds.own_fields(kind, data, TRANSACTIONS).get("xid"))
        return
    transaction = known.setdefault(number or lsn, _Transaction())
    values = kinds.own_fields(kind, data, TRANSACTIONS)
    if kind == kinds.PREPARE:
        transaction.state = "prepared"
    elif kind == kinds.COMMIT:
        transaction.rows = _runs(values["rows"])
        transaction.state, transaction.decided = "committed", time_us
    elif kind == kinds.ROLLBACK:
        transaction.state, transaction.decided = "rolled back", time_us
    elif kind == kinds.END:
        transaction.ended = True
    elif kind == kinds.TX_COPY:
        transaction.state, transaction.xid, transaction.rows = values["state"], values["xid"] or None, _runs(values["rows"])
        if values["heuristic"] != kinds.HEURISTICS[0]:
            transaction.heuristic = values["heuristic"]
        transaction.ended = values["ended"]
        if "sets" in values:
            transaction.sets = _runs(values["sets"])
    elif kind == kinds.HEURISTIC:
        transaction.heuristic = "forgotten" if values["outcome"] == kinds.HEURISTICS[0] else values["outcome"]
    elif kind == kinds.ACQUIRE_SET:
        transaction.sets.extend(_runs(values["sets"]))


def transactions(
    containers: str | os.PathLike[str] | Iterable[ContainerFacts],
    *,
    columns: Iterable[str] | None = None,
    end: int | None = None,
    mode: str = "FAILFAST",
    warnings: list[str] | None = None,
) -> pa.RecordBatch:
    """The table `tx`: every transaction of which the log has a record, in order of its LSN. Reads the whole transaction log.

    Args: containers: the log's directory, or those of list_log that are to be read; end, mode: as scan_container; warnings: takes its
    texts. `started` is null where the start lay below the base and is gone; `state` of such a one without a decision is "open".
    Raises: scan.LogDamaged, scan.ContainerGone, OSError.
    """
    import pyarrow as pa

    facts = list_log(containers) if isinstance(containers, (str, os.PathLike)) else list(containers)
    known: dict[int, _Transaction] = {}
    for container in sorted(facts, key=lambda one: one.sequence):
        scan = scan_container(container.path, log="transactions", end=end, mode=mode)
        for records in scan.tuples():
            for lsn, kind, number, time_us, data in records:
                try:
                    _apply(known, lsn, kind, number, time_us, data)
                except kinds.Malformed as error:
                    scan.report(lsn, str(error))
        if warnings is not None:
            warnings.extend(scan.warnings)
    arrow = schema.tx_schema(columns)
    full = [
        {
            "tx_lsn": number,
            "xid": one.xid,
            "state": one.state,
            "started": one.started,
            "decided": one.decided,
            "rows": one.rows or None,
            "sets": one.sets or None,
            "heuristic": one.heuristic,
            "ended": one.ended,
        }
        for number, one in sorted(known.items())
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in full], type=arrow.field(name).type) for name in arrow.names], schema=arrow
    )

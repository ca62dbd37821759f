"""A store's logs for the log source: their containers, where they begin and end, the table of transactions.

in: a store directory, of a stopped broker (`offline_lock`) or one that a snapshot pins. out: plain values and one record batch;
the rows of records and messages come from scan.py, container by container.

Invariants: nothing is written; what a header or block says is used only when its CRC matches.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flintmq.arrow import schema
from flintmq.arrow.containers import Containers
from flintmq.arrow.records import OUTCOMES, STATES
from flintmq.arrow.scan import scan_container
from flintmq.core.checksum import crc32c_of

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".flog"
SECTOR = 512
_HEADER = struct.Struct("<8sII16sIIQQQ")
_PAIR = struct.Struct("<II")
_ROW = struct.Struct("<QQQ")
_CLEAN = 1


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


def list_log(directory: str | os.PathLike[str]) -> list[ContainerFacts]:
    """The log's containers in order; only headers are read. Raises: OSError."""
    found: list[ContainerFacts] = []
    for name in sorted(os.listdir(directory)):
        digits = name.removesuffix(SUFFIX)
        if len(name) != 20 + len(SUFFIX) or not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) < 1 << 33:
            continue
        path = os.path.join(os.fspath(directory), name)
        try:
            with open(path, "rb") as file:
                header = file.read(SECTOR)
                length = os.fstat(file.fileno()).st_size
        except FileNotFoundError:  # recycled since the directory was listed
            continue
        number = int(digits)
        if len(header) == SECTOR and crc32c_of(header[:508]) == int.from_bytes(header[508:], "little"):
            magic, version, sector, uuid, _, epoch, sequence, size, time_us = _HEADER.unpack_from(header)
            if magic == b"FLNTLOG1" and version in (1, 2) and sector == SECTOR and sequence == number and 4096 <= size <= 1 << 30:
                found.append(ContainerFacts(number, path, size, number * size, epoch, time_us, uuid))
                continue
        found.append(ContainerFacts(number, path, length, 0, 0, 0, b"", False))
    sizes = {facts.size for facts in found if facts.good}
    size = min(sizes) if len(sizes) == 1 else 0
    return [
        facts if facts.good else ContainerFacts(facts.sequence, facts.path, facts.size, facts.sequence * size, 0, 0, b"", False)
        for facts in found
    ]


def _log_number(directory: str | os.PathLike[str]) -> int:
    return 2 if Path(directory).name == "transactions" else 1


def log_ends(directory: str | os.PathLike[str], log: int = 0) -> LogEnds:
    """Base and tail of a log that no broker writes now, from its last blocks (docs/FORMAT.md, "Reading").

    Args: log: 1 messages, 2 transactions; 0: as the directory's name says. Raises: OSError.
    """
    sequences = [facts.sequence for facts in list_log(directory)]
    containers = Containers(os.fspath(directory), None, log or _log_number(directory))
    with containers.users:
        size = containers.learned_size()
        if not sequences or not size:
            return LogEnds(0, 0, 0, 0, False)
        return _ends(containers, sequences, size)


def _ends(containers: Containers, sequences: list[int], size: int) -> LogEnds:
    found: list[tuple[int, int, int, int, int, int, int]] = []
    for sequence in reversed(sequences):
        found = containers.headers_in(sequence) + found
        if found and found[0][1] <= max(block[3] for block in found):
            break
    epoch, chain = 0, []
    for block in found:
        if block[2] >= epoch:  # else it was cut off by a later epoch
            epoch = block[2]
            chain.append(block)
    start = sequences[0] * size + SECTOR
    if not chain:
        return LogEnds(start, start, start, 0, False)
    durable = max(block[3] for block in chain)
    index = max((i for i, block in enumerate(chain) if block[1] <= durable), default=-1)
    last = chain[index] if index >= 0 else None
    for block in chain[index + 1 :]:
        if last is not None and (block[4] != last[0] or block[0] not in (_sector(last[1]), (last[0] // size + 1) * size + SECTOR)):
            break
        if not containers.block_good(block[0]):
            break
        last = block
    if last is None:
        return LogEnds(start, start, durable, chain[0][0], False)
    tail = _sector(last[1])
    torn = tail if chain[-1][0] > last[0] or containers.begun_at(tail) else 0
    return LogEnds(last[5], tail, durable, torn, bool(last[6] & _CLEAN) and not torn)


def _sector(lsn: int) -> int:
    return -(-lsn // SECTOR) * SECTOR


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


class _Malformed(ValueError):
    """Fields that do not fit their record."""


def _runs(data: bytes, at: int) -> tuple[list[dict[str, int]], int]:
    """u32 count, u32 of another meaning, rows of (queue id, first, count); and the offset behind them."""
    if len(data) < at + 8:
        raise _Malformed("a table of rows is cut off")
    count, _ = _PAIR.unpack_from(data, at)
    end = at + 8 + count * _ROW.size
    if end > len(data):
        raise _Malformed(f"{count} rows do not fit")
    rows = [{"queue_id": queue, "first": first, "count": number} for queue, first, number in _ROW.iter_unpack(data[at + 8 : end])]
    return rows, end


def _xid(data: bytes, at: int) -> tuple[bytes, int]:
    size = int.from_bytes(data[at : at + 2], "little")
    if len(data) < at + 2 + size:
        raise _Malformed("an xid is cut off")
    return data[at + 2 : at + 2 + size], at + 2 + size


def _apply(known: dict[int, _Transaction], lsn: int, kind: int, number: int, time_us: int, data: bytes) -> None:
    """One record of the transaction log. Raises: _Malformed."""
    if kind == 33 or kind == 34:  # Dtx-Start, Tx-Start
        known[lsn] = _Transaction(started=time_us, xid=_xid(data, 0)[0] if kind == 33 else None)
        return
    if kind == 42:  # Note
        return
    transaction = known.setdefault(number or lsn, _Transaction())
    if kind == 35:  # Prepare
        transaction.state = "prepared"
    elif kind == 36:  # Commit
        transaction.rows = _runs(data, 0)[0]
        transaction.state, transaction.decided = "committed", time_us
    elif kind == 37:  # Rollback
        transaction.state, transaction.decided = "rolled back", time_us
    elif kind == 39:  # End
        transaction.ended = True
    elif kind == 40:  # Tx-Copy
        if len(data) < 6 or data[0] not in STATES or data[1] not in OUTCOMES:
            raise _Malformed("no state of a transaction")
        xid, at = _xid(data, 4)
        rows, at = _runs(data, at + -at % 4)
        transaction.state, transaction.xid, transaction.rows = STATES[data[0]].decode(), xid or None, rows
        transaction.heuristic = OUTCOMES[data[1]].decode() if data[1] else transaction.heuristic
        transaction.ended = bool(data[2])
        if data[3] & 1:
            transaction.sets = _runs(data, at)[0]
    elif kind == 41:  # Heuristic
        if not data or data[0] not in OUTCOMES:
            raise _Malformed("no outcome of a transaction")
        transaction.heuristic = OUTCOMES[data[0]].decode()
    elif kind == 43:  # Acquire-Set
        transaction.sets.extend(_runs(data, 0)[0])


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
                except _Malformed as error:
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

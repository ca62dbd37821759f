"""Which rows of a log's messages show a message once more: those of Message-Copies whose message is shown by a container before.

in: containers of one message log, ascending. out: by container, the ids of the rows to leave out. A message that stays long is copied
forward when its container is given back, and again: what the log still has of it may be the original, copies, or both.
C1  Of each message that any of the containers shows, one row is left: the first one. Rows are judged as they are read, so an original whose
    chunks are gone, or that is damaged, hides no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flintmq.arrow.scan import scan_container

if TYPE_CHECKING:
    import pyarrow as pa


def repeated(
    containers: Sequence[tuple[int, str]], size: int, end: int, store_uuid: bytes, keep: Callable[[], None] = lambda: None
) -> dict[int, pa.Array]:
    """Args: containers: (sequence, path); size: bytes of a container; keep: called before each one is read.

    Cost: the containers are read once for their copies, and those with originals of copies again; 12 bytes a copy.
    Raises: ContainerGone, OSError.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def rows_of(path: str, *, copy: bool) -> pa.Array:
        keep()
        scan = scan_container(
            path, log="messages", stream="messages", columns=["lsn", "copy"], body="none", end=end, mode="PERMISSIVE", store_uuid=store_uuid
        )
        rows = []
        for batch in scan:
            is_copy = batch.column("copy")
            rows.append(batch.column("lsn").filter(is_copy if copy else pc.invert(is_copy)))
        return pa.concat_arrays(rows) if rows else pa.array([], pa.int64())

    copies = [(sequence, ids) for sequence, path in containers if len(ids := rows_of(path, copy=True))]
    if not copies:
        return {}
    copied = pc.unique(pa.concat_arrays([ids for _, ids in copies]))
    origins = set(pc.unique(pc.divide(copied, size)).to_pylist())
    shown = list(copies)
    for sequence, path in containers:
        if sequence in origins:
            ids = rows_of(path, copy=False)
            shown.append((sequence, ids.filter(pc.is_in(ids, value_set=copied))))
    first = _table(shown).group_by("id").aggregate([("sequence", "min")])
    joined = _table(copies).join(first, "id")
    repeats = joined.filter(pc.greater(joined.column("sequence"), joined.column("sequence_min")))
    by_container: dict[int, Any] = {}
    for sequence in pc.unique(repeats.column("sequence")).to_pylist():
        by_container[sequence] = repeats.column("id").filter(pc.equal(repeats.column("sequence"), sequence)).combine_chunks()
    return by_container


def without(batch: pa.RecordBatch, ids: pa.Array | None) -> pa.RecordBatch:
    """`batch`, which has the columns `lsn` and `copy`, without the rows of these ids that `repeated` named for its container."""
    import pyarrow.compute as pc

    if ids is None or not len(ids):
        return batch
    return batch.filter(pc.invert(pc.and_(batch.column("copy"), pc.is_in(batch.column("lsn"), value_set=ids))))


def _table(rows: Sequence[tuple[int, Any]]) -> pa.Table:
    import pyarrow as pa

    ids = pa.concat_arrays([ids for _, ids in rows])
    return pa.table(
        {"id": ids, "sequence": pa.concat_arrays([pa.repeat(pa.scalar(sequence, pa.int64()), len(ids)) for sequence, ids in rows])}
    )

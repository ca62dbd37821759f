"""The log as an Arrow table without Spark: records or messages of a stopped broker's store, or of a running one on this machine.

in: a store directory, or a `DataPlane` of an administrator. out: a `pyarrow.RecordBatchReader`, container by container.

    with DataPlane("127.0.0.1", 15680) as plane:
        duckdb.from_arrow(log_reader(plane, "messages"))       the broker keeps the containers until the reader's end
    pl.from_arrow(log_reader("/var/lib/flintmq", "records"))   a stopped broker; none can start until then

L1  Nothing at or above the end is read: of a running broker the snapshot's, of a stopped one that of the last good block.
L2  Each container is checked; what is damaged is an error. Below the log's base, chunks of a long message may be gone: that is none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from flintmq.arrow.copies import repeated, without
from flintmq.arrow.log import ContainerFacts, list_log, log_ends, offline_lock
from flintmq.arrow.scan import scan_container
from flintmq.arrow.schema import arrow_schema
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError

if TYPE_CHECKING:
    import pyarrow as pa

# seconds for which a running broker keeps the containers of a reader that is not heard of
KEEP_S = 60


def log_reader(
    source: DataPlane | str | os.PathLike[str],
    table: str = "messages",
    *,
    log: str = "messages",
    columns: Iterable[str] | None = None,
    body: str | None = None,
    copies: bool = False,
) -> pa.RecordBatchReader:
    """What a log holds, in the order of its LSNs (docs/pipeline/log_tables.md has the columns).

    Args: source: a store directory, or the data plane of a broker on this machine; table: `messages` or `records`; log: `messages` or,
    of `records`, `transactions`; columns: names, all when left out; body: `none` or `prefix:N`; copies: of `messages`: a row for each copy
    that the log has of a message, and not one for each message.
    Raises: ValueError for a table, log or column that is none; from the reader StoreBusy, OSError, LogDamaged, and PlaneError FORBIDDEN.
    """
    import pyarrow as pa

    if table not in ("messages", "records") or log not in ("messages", "transactions") or (table, log) == ("messages", "transactions"):
        raise ValueError("table is 'messages' or 'records', log 'messages' or (of records) 'transactions'")
    schema = arrow_schema("log_messages" if table == "messages" else table, columns)

    def batches() -> Iterator[Any]:
        with _opened(source, log) as (containers, base, end, keep):
            once = table == "messages" and not copies and containers
            repeats: dict[int, Any] = {}
            if once:
                first = containers[0]
                repeats = repeated([(one.sequence, one.path) for one in containers], first.size, end, first.store_uuid, keep)
            for facts in containers:
                keep()
                scan = scan_container(
                    facts.path,
                    log=log,
                    stream=table,
                    columns=[*schema.names, *(("lsn", "copy") if facts.sequence in repeats else ())],
                    body=body,
                    end=end,
                    mode="FAILFAST" if facts.first_lsn >= base else "PERMISSIVE",
                    store_uuid=facts.store_uuid,
                )
                for batch in scan:
                    yield batch if facts.sequence not in repeats else without(batch, repeats[facts.sequence]).select(schema.names)
                    keep()

    return pa.RecordBatchReader.from_batches(schema, batches())


@contextmanager
def _opened(source: DataPlane | str | os.PathLike[str], log: str) -> Iterator[tuple[list[ContainerFacts], int, int, Any]]:
    """Containers, base and end of a log, and a function to call while they are read."""
    if not isinstance(source, DataPlane):
        with offline_lock(source):
            folder = os.path.join(os.fspath(source), log)
            ends = log_ends(folder)
            yield [one for one in list_log(folder) if one.good and one.first_lsn < ends.tail], ends.base, ends.tail, lambda: None
        return
    snapshot = source.log_snapshot(ttl_s=KEEP_S)
    keeping = [time.monotonic() + KEEP_S / 3]

    def keep() -> None:
        if time.monotonic() >= keeping[0]:
            keeping[0] = time.monotonic() + KEEP_S / 3
            source.log_extend(snapshot.id, KEEP_S)

    try:
        facts = snapshot.logs[log]
        folder, uuid = os.path.join(str(snapshot.store["directory"]), log), bytes.fromhex(str(snapshot.store["uuid"]))
        wanted = set(facts["containers"])
        containers = [one for one in list_log(folder) if one.sequence in wanted and one.store_uuid == uuid]
        if len(containers) < len(wanted):
            raise FileNotFoundError(2, "the broker's store is not on this machine", folder)
        yield containers, int(facts["base"]), int(facts["end"]), keep
    finally:
        with suppress(PlaneError):
            source.log_release(snapshot.id)

"""The streaming reader of queues over the data plane: what Spark's interface asks for, with the logic in claim.py (queues, whose messages
are taken) and cursor.py (streams, which are read by offset).

In: Spark's calls, in the order that docs/pipeline/source.md describes. Out: offsets, partitions, Arrow record batches.
Invariants: the constructor has no side effects; only options travel to executors; `read` changes nothing, so it can run anywhere and
any number of times; imports of pyarrow wait until they are needed.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_flintmq.claim import Claim
from pyspark_flintmq.commit_log import CommitLog
from pyspark_flintmq.cursor import Cursor, are_streams, lost, note_missing
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.heap import HEAP
from pyspark_flintmq.presence import Presence
from pyspark_flintmq.queue_options import MAX_MESSAGES_LIMIT, QueueOptions
from pyspark_flintmq.spark_api import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TicketPartition(InputPartition):  # type: ignore[misc]  # pyspark has no types here
    """One slice of a set or of a browse, as the data plane names it. store: where it is, when the broker has several addresses."""

    ticket: str
    store: str = ""


_settled = False


def settle() -> None:
    """Once in a process: takes what is imported by now out of the collector's sight.

    Spark's worker collects garbage after each task, and looked at all of PySpark and pyarrow each time: 20 ms of processor a task.
    """
    global _settled
    if not _settled:
        _settled = True
        with contextlib.suppress(ImportError):  # connection.open explains
            import pyarrow.flight  # noqa: F401
        gc.collect()
        gc.freeze()


def read_ticket(options: QueueOptions, partition: TicketPartition) -> Iterator[pa.RecordBatch]:
    """The record batches of a ticket, with exactly the columns of the table. For executors.

    Raises: SourceError FENCED, TICKET_GONE, DATA_LOSS, SCHEMA_MISMATCH, UNREACHABLE ...
    """
    connection, table, ticket = replace(options.connection, store=partition.store), options.table, partition.ticket
    settle()
    try:
        with HEAP.used(), connection.errors():
            plane = connection.open()
            try:
                rows = 0
                for batch in plane.read(ticket.encode(), columns=list(table.names), body=table.body_option):
                    rows += batch.num_rows
                    yield table.fit(batch)
            finally:
                plane.close()
        note_missing(ticket, rows)
    except SourceError as e:
        if e.code in ("TRUNCATED", "DAMAGED", "STREAM_REPLACED"):
            if not options.subscription:  # spark.read
                text = f"{options.what}: {e.text}. spark.read leaves nothing out: read what stands before and behind it by position"
                raise SourceError("DATA_LOSS", text) from None
            raise lost(options.what, e.text) from None
        if e.code == "SET_CHANGED":
            # Another task of the batch may have read the set as it was: the batch must be planned again, as a whole.
            raise SourceError("DATA_LOSS", f"{options.what}: {e.text}. Start the query again to go on without them") from None
        if e.code in ("FENCED", "CHECKPOINT_BEHIND", "NOT_PREPARED", "NOT_FOUND"):
            code = "FENCED" if e.code == "FENCED" else "TICKET_GONE"
            raise SourceError(
                code, f"{options.what}: the messages of this task are gone, its query or its time is over: {e.text}"
            ) from None
        raise


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark has no types here
    """Reads queues in micro-batches, each a prepared transaction of the broker."""

    def __init__(self, options: QueueOptions, schema: StructType | None = None) -> None:
        self._options = options if schema is None else replace(options, table=options.table.matched(schema))
        self._claim: Claim | Cursor | None = None
        self._presence: Presence | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Only options travel to the executors."""
        return {"_options": self._options, "_claim": None, "_presence": None}

    def _opened(self) -> Claim | Cursor:
        if self._claim is None:
            options, connect = self._options, self._options.connection.open
            if are_streams(options, connect):
                self._claim = Cursor(options, connect)
            else:
                commits = CommitLog(options.checkpoint) if options.checkpoint else None
                self._claim = Claim(options, connect)
                self._presence = Presence(self._claim, commits)
                self._presence.start()
        return self._claim

    def prepareForTriggerAvailableNow(self) -> None:
        self._opened().drain()

    def initialOffset(self) -> dict[str, Any]:
        return self._opened().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        messages, size = self._options.max_messages, self._options.max_bytes
        if isinstance(limit, ReadMaxRows):
            messages = max(1, min(messages, limit.max_rows))
        elif isinstance(limit, ReadMaxBytes):
            size = max(1, min(size, limit.max_bytes))
        elif isinstance(limit, ReadAllAvailable):
            # The engine asks for all (Trigger.Once), regardless of our limits.
            messages, size = MAX_MESSAGES_LIMIT, 2**62
        end = self._opened().latest(start, messages, size)
        if end != start:
            self._stir()
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._opened().lag() or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        opened = self._opened()
        tickets = opened.tickets(start, end)
        self._stir()
        return [TicketPartition(ticket, opened.store) for ticket in tickets]

    def _stir(self) -> None:
        if self._presence is not None:
            self._presence.stir()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TicketPartition)
        return read_ticket(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._opened().commit(end)

    def stop(self) -> None:
        """Not always called, and by an orphaned process late: nothing may depend on it, and it commits what Spark's commit log has only."""
        if self._presence is not None:
            self._presence.stop()
            self._presence = None
        if self._claim is not None:
            self._claim.close()
            self._claim = None

"""The streaming reader over AMQP: what Spark's interface asks for, with the logic in subscription.py.

In: Spark's calls, in the order that docs/pipeline/source.md describes. Out: offsets, partitions, Arrow record batches.
Invariants: the constructor has no side effects (Spark makes copies of the reader and pickles them); `read` opens spool files and nothing
else, so it can run anywhere and any number of times; imports of pika and pyarrow wait until they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_flintmq.amqp.options import Options
from pyspark_flintmq.schema import Table
from pyspark_flintmq.spark_api import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_flintmq.amqp.subscription import Link, Subscription


@dataclass(frozen=True)
class SpoolPartition(InputPartition):  # type: ignore[misc]  # pyspark has no types here
    """Record batches `first` <= i < `last` of batch `seq` in `path`."""

    path: str
    seq: int
    first: int
    last: int


class AmqpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark has no types here
    """Reads one queue in micro-batches."""

    def __init__(self, options: Options, table: Table) -> None:
        # Executors run in other directories: fix the spool's place while we are on the driver.
        self._options = replace(options, spoolDir=str(options.spool_path()))
        self._table = table
        self._subscription: Subscription | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Only options travel to the executors: a connection and a lock cannot."""
        return {"_options": self._options, "_table": self._table, "_subscription": None}

    def _opened(self) -> Subscription:
        if self._subscription is None:
            from pyspark_flintmq.amqp.subscription import Subscription

            def connect() -> Link:
                from pyspark_flintmq.amqp.link import AmqpLink

                return AmqpLink(self._options)

            self._subscription = Subscription(self._options, connect)
        return self._subscription

    def prepareForTriggerAvailableNow(self) -> None:
        self._opened().drain()

    def initialOffset(self) -> dict[str, Any]:
        return self._opened().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerTrigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        messages, size = self._options.maxMessagesPerTrigger, self._options.maxBytesPerTrigger
        if isinstance(limit, ReadMaxRows):
            messages = max(1, min(messages, limit.max_rows))
        elif isinstance(limit, ReadMaxBytes):
            size = max(1, min(size, limit.max_bytes))
        elif isinstance(limit, ReadAllAvailable):
            # The engine asks for all (Trigger.Once): as much as AMQP lets one connection hold.
            messages, size = self._options.prefetch, 2**62
        return self._opened().latest(start, messages, size)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        backlog = self._opened().backlog()
        return None if backlog is None else {"messages_behind": backlog}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        subscription = self._opened()
        path = str(subscription.spool.path)
        return [SpoolPartition(path, seq, first, last) for seq, first, last in subscription.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_flintmq.amqp.spool import read_batches

        assert isinstance(partition, SpoolPartition)
        for batch in read_batches(Path(partition.path), partition.seq, partition.first, partition.last):
            yield self._table.fit(batch)

    def commit(self, end: dict[str, Any]) -> None:
        self._opened().commit(end)

    def stop(self) -> None:
        """Not always called, so nothing depends on it: a killed process loses connection and lock as well."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

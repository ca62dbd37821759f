"""What Spark sees: the data source, its streaming reader and its partitions.

In: Spark's calls, in the order that docs/PIPELINE.md describes. Out: offsets, partitions, Arrow record batches.
Invariants: constructors have no side effects (Spark makes copies of the reader and pickles them); `read` opens spool files and nothing
else, so it can run anywhere and any number of times; imports of pika and pyarrow wait until they are needed, because Spark
imports this package in every session that looks for a Python data source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.options import Options
from pyspark_flintmq.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_flintmq.subscription import Link, Subscription


@dataclass(frozen=True)
class SpoolPartition(InputPartition):  # type: ignore[misc]  # pika and pyspark have no types here
    """Record batches `first` <= i < `last` of batch `seq` in `path`."""

    path: str
    seq: int
    first: int
    last: int


class FlintSource(DataSource):  # type: ignore[misc]  # pika and pyspark have no types here
    """`spark.readStream.format("flintmq")`. Options: docs/PIPELINE.md."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._raw = dict(options)

    @classmethod
    def name(cls) -> str:
        return "flintmq"

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        raise SourceError(
            "NO_BATCH_READ", 'spark.read.format("flintmq") comes with the data plane; use spark.readStream (trigger availableNow=True)'
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FlintStreamReader(_absolute(Options.parse(self._raw)))


class FlintStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pika and pyspark have no types here
    """Reads one queue in micro-batches. The logic is in subscription.py; here is only what Spark's interface asks for."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._subscription: Subscription | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Only options travel to the executors: a connection and a lock cannot."""
        return {"_options": self._options, "_subscription": None}

    def _opened(self) -> Subscription:
        if self._subscription is None:
            from pyspark_flintmq.subscription import Subscription

            def connect() -> Link:
                from pyspark_flintmq.amqp import AmqpLink

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
        from pyspark_flintmq.spool import read_batches

        assert isinstance(partition, SpoolPartition)
        yield from read_batches(Path(partition.path), partition.seq, partition.first, partition.last)

    def commit(self, end: dict[str, Any]) -> None:
        self._opened().commit(end)

    def stop(self) -> None:
        """Not always called, so nothing depends on it: a killed process loses connection and lock as well."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None


def _absolute(options: Options) -> Options:
    """Executors run in other directories: fix the spool's place while we are on the driver."""
    from dataclasses import replace

    return replace(options, spoolDir=str(options.spool_path()))

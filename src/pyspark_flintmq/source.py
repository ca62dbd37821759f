"""What Spark finds under the name `flintmq`, and the choice of the reader or writer that its options ask for.

In: options. Out: a schema, a reader, a writer.
Invariants: imports wait until they are needed, because Spark imports this package in every session that looks for a Python data source;
wrong options are refused by `load()`, before anything is connected.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from pyspark_flintmq.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class FlintSource(DataSource):  # type: ignore[misc]  # pyspark has no types here
    """`format("flintmq")`. Options: docs/pipeline/source.md.

    `log` or `stream`: the log itself; `queue`, `queues` or `queuePattern`: queues, over the data plane or with `transport=amqp`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        from pyspark_flintmq.spelling import respelled

        super().__init__(dict(options))
        self._raw = respelled(options)

    @classmethod
    def name(cls) -> str:
        return "flintmq"

    def schema(self) -> StructType:
        self._check_is_no_table()
        if self._log:
            return _log_source().log_schema(self._raw)
        if self._only_written:
            from pyspark_flintmq.sink_columns import sink_schema
            from pyspark_flintmq.sink_options import SinkOptions

            return sink_schema(SinkOptions.parse(self._raw, streaming=False))
        from pyspark_flintmq.schema import Table

        table, _ = Table.take(self._raw)
        self._checked()
        return table.spark()

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_is_no_table()
        if self._log:
            return _log_source().log_reader(schema, self._raw, pushdown=_pushdown_asked())
        if self._amqp:
            raise SourceError("NO_BATCH_READ", "transport=amqp reads streams only: use spark.readStream, or leave out transport=amqp")
        from pyspark_flintmq.queue_batch import batch_reader
        from pyspark_flintmq.queue_options import QueueOptions

        return batch_reader(QueueOptions.batch(self._raw), schema, pushdown=_pushdown_asked())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check_is_no_table()
        if self._log:
            raise SourceError("NO_STREAM_READ", "the log is read with spark.read; a queue or stream is read with option 'queue'")
        if self._amqp:
            from pyspark_flintmq.amqp.options import Options
            from pyspark_flintmq.amqp.reader import AmqpStreamReader
            from pyspark_flintmq.schema import Table
            from pyspark_flintmq.spark_api import TELLS_START

            if not TELLS_START:
                raise SourceError("SPARK_VERSION", "transport=amqp needs PySpark 4.2 or newer: older ones do not say where a query stands")
            table, rest = Table.take(self._without_transport())
            return AmqpStreamReader(Options.parse(rest), table.matched(schema))
        from pyspark_flintmq.queue_options import QueueOptions
        from pyspark_flintmq.queue_stream import QueueStreamReader
        from pyspark_flintmq.spark_api import TELLS_START

        if not TELLS_START:
            from pyspark_flintmq.checkpoint_reader import CheckpointReader

            return CheckpointReader(QueueOptions.stream(self._raw), schema)
        return QueueStreamReader(QueueOptions.stream(self._raw), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from pyspark_flintmq.sink import FlintStreamWriter

        return FlintStreamWriter(schema, self._raw)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        self._check_is_no_table()
        if overwrite:
            raise SourceError("MODE", 'a queue can not be overwritten: use mode("append")')
        from pyspark_flintmq.sink import FlintBatchWriter

        return FlintBatchWriter(schema, self._raw)

    # --- what the options ask for -------------------------------------------------------------------------------------

    def _check_is_no_table(self) -> None:
        """A table of Spark's catalog is refused when it is made or used: Spark (4.3) gives a Python source none of its options.

        Raises: SourceError NO_TABLE.
        """
        if not self._raw or self._option("provider") is not None:
            raise SourceError(
                "NO_TABLE",
                "option 'queue' is needed, as .option() of a DataFrame, or in CREATE TEMPORARY VIEW name USING flintmq OPTIONS ('queue' "
                "'q'), which SELECT and INSERT INTO take. A CREATE TABLE ... USING flintmq can't work: Spark gives a Python data source "
                "none of the table's options when it is read or written, but those of SELECT ... FROM name WITH (queue = 'q')",
            )

    def _option(self, name: str) -> str | None:
        return next((text for key, text in self._raw.items() if key.lower() == name.lower()), None)

    @property
    def _only_written(self) -> bool:
        """Whether the options say where messages go, and not which are read: a view with them is for INSERT INTO."""
        return bool({"exchange", "routingKey"} & self._raw.keys()) and not {"queue", "queues", "queuePattern"} & self._raw.keys()

    @property
    def _log(self) -> bool:
        return self._option("log") is not None or self._option("stream") is not None

    @property
    def _amqp(self) -> bool:
        transport = (self._option("transport") or "flight").lower()
        if transport not in ("flight", "amqp"):
            raise SourceError("OPTION_VALUE", f"option 'transport' must be 'flight' or 'amqp', not '{transport}'")
        return transport == "amqp"

    def _without_transport(self) -> dict[str, str]:
        return {key: text for key, text in self._raw.items() if key.lower() != "transport"}

    def _checked(self) -> None:
        """Refuses wrong options early. Whether a batch or a stream will be read is not known yet: one of the two must take them."""
        if self._amqp:
            from pyspark_flintmq.amqp.options import Options
            from pyspark_flintmq.schema import Table

            Options.parse(Table.take(self._without_transport())[1])
            return
        from pyspark_flintmq.queue_options import BATCH_OPTIONS, STREAM_OPTIONS, QueueOptions

        batch_only = {name.lower() for name in BATCH_OPTIONS} - {name.lower() for name in STREAM_OPTIONS}
        first, second = QueueOptions.stream, QueueOptions.batch
        if any(key.lower() in batch_only for key in self._raw):
            first, second = second, first
        try:
            first(self._raw)
        except SourceError as e:
            try:
                second(self._raw)
            except SourceError:
                raise e from None


def _log_source() -> Any:
    """The module of the log source. Raises: SourceError DEPENDENCY_MISSING where only this package is installed (pyspark-flintmq)."""
    try:
        from pyspark_flintmq import log_source
    except ModuleNotFoundError as e:
        if str(e.name).partition(".")[0] != "flintmq":
            raise
        raise SourceError(
            "DEPENDENCY_MISSING",
            "the log as a table is decoded by compiled modules of the broker's package: pip install 'flintmq[spark]' instead of "
            "pyspark-flintmq, here and on the executors",
        ) from None
    return log_source


def _pushdown_asked() -> bool:
    """Whether the caller is Spark's worker that pushes filters down.

    With `spark.sql.python.filterPushdown.enabled` off (the default), Spark refuses a reader that so much as has the method; the setting
    itself is not told to the worker, but another module asks for the reader then.
    """
    frame = sys._getframe(1)
    for _ in range(4):
        spec = frame.f_globals.get("__spec__")
        if str(getattr(spec, "name", "") or frame.f_globals.get("__name__", "")).endswith("data_source_pushdown_filters"):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False

"""The streaming reader for Spark 4.0 and 4.1, which do not tell a Python source where the query stands.

In: `latestOffset()` without arguments; the query's checkpoint. Out: the offsets of `QueueStreamReader`.
Invariants:
  * what follows a batch is asked for only after that batch is in Spark's commit log, as the log itself says: a set is committed then, as
    `latestOffset(start)` proves it to the reader of newer versions;
  * the log is read once for each batch: an offset that Spark was given already moves only by a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_flintmq.commit_log import CommitLog
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_options import QueueOptions
from pyspark_flintmq.queue_stream import QueueStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class CheckpointReader(QueueStreamReader):
    """Raises: SourceError OPTION_MISSING without `checkpointLocation`."""

    def __init__(self, options: QueueOptions, schema: StructType | None = None) -> None:
        if not options.checkpoint:
            raise SourceError(
                "OPTION_MISSING",
                "Spark 4.0 and 4.1 do not tell a Python source where a query stands: give the source the query's own checkpointLocation "
                "as an option, or use PySpark 4.2 or newer",
            )
        super().__init__(options, schema)
        # Where the query stood when Spark asked last, and what it was given then.
        self._start: dict[str, Any] | None = None
        self._given: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_start": None, "_given": None}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # the form of 4.0 and 4.1
        if self._start is None or self._given != self._start:
            self._start = self._stands()
        self._given = self._opened().latest(self._start, self._options.max_messages, self._options.max_bytes)
        return self._given

    def _stands(self) -> dict[str, Any]:
        """The end of the newest batch that Spark has committed. Raises: SourceError CHECKPOINT_FOREIGN."""
        log = CommitLog(self._options.checkpoint)
        if self._given is None:
            entries = self._own(log, "commits")
            if entries is None and (planned := self._own(log, "offsets")) is not None:
                # With AvailableNow Spark asks before it runs a first batch again.
                entries = self._opened().before(planned)
            return self.initialOffset() if entries is None else entries
        if not log.has(self._given):
            raise SourceError(
                "CHECKPOINT_FOREIGN",
                f"the checkpoint {self._options.checkpoint} lacks a batch that Spark has ended: give the source the query's own "
                "checkpointLocation, and leave asynchronous progress tracking out",
            )
        return self._given

    def _own(self, log: CommitLog, folder: str) -> dict[str, Any] | None:
        """This source's offset of the newest batch; None: there is no batch."""
        opened = self._opened()
        entries = log.newest(opened.KEYS, folder)
        # Each batch has an offset of each source. A single one is this source's, also when its queues are others now.
        if len(entries) > 1:
            entries = [one for one in entries if opened.owns(one)]
        return entries[0] if entries else None

"""The batch reader of queues: what stands in them now, without consuming.

In: options, and filters when Spark pushes them down. Out: partitions (tickets of a browse), Arrow record batches.
Invariants: nothing in a queue changes; a filter that is pushed down only narrows what is fetched, Spark still applies it; constructors
have no side effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from pyspark_flintmq.claim import matching_queues
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_options import Position, QueueOptions
from pyspark_flintmq.queue_stream import TicketPartition, read_ticket

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def batch_reader(options: QueueOptions, schema: StructType, *, pushdown: bool) -> DataSourceReader:
    """A reader; one that takes filters only when Spark asks for that (it refuses a reader that has the method otherwise)."""
    options = replace(options, table=options.table.matched(schema))
    return PushingBrowseReader(options) if pushdown else BrowseReader(options)


class BrowseReader(DataSourceReader):  # type: ignore[misc]  # pyspark has no types here
    """Reads the messages that stand in the queues when the query is planned."""

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with options.connection.errors():
            plane = options.connection.open()
            try:
                queues = matching_queues(plane, options) if options.pattern else list(options.queues)
                queues = [queue for queue in queues if self._wanted(queue)]
                if not queues:
                    return []
                limit = {"max_messages": options.limit} if options.limit else {}
                start, end = self._range()
                answer = plane.action("browse.open", queues=queues, start=start, end=end, slices=options.partitions, **limit)
            except Exception as e:
                if getattr(e, "code", "") == "NOT_FOUND":
                    raise SourceError("QUEUE_MISSING", f"{options.connection.where}: {getattr(e, 'text', e)}") from e
                raise
            finally:
                plane.close()
        return [TicketPartition(json.dumps(ticket)) for ticket in answer["tickets"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes up one partition when there are none.
        if not isinstance(partition, TicketPartition):
            return iter(())
        return read_ticket(self._options, partition.ticket)

    def _wanted(self, queue: str) -> bool:
        return True

    def _range(self) -> tuple[Position, Position]:
        return self._options.start, self._options.end


class PushingBrowseReader(BrowseReader):
    """The same, and filters on queue, position, lsn and enqueued_time narrow what is fetched."""

    def __init__(self, options: QueueOptions) -> None:
        super().__init__(options)
        self._queues: frozenset[str] | None = None
        # Bounds of each column in the data plane's units, both included.
        self._bounds: dict[str, tuple[int, int]] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            self._take(one)
        # All are given back: Spark checks each row again, so a bound may be wider than its filter, never narrower.
        return filters

    def _take(self, one: Filter) -> None:
        if isinstance(one, EqualTo | In) and one.attribute == ("queue",):
            values = {one.value} if isinstance(one, EqualTo) else set(one.value)
            names = frozenset(str(value) for value in values if value is not None)
            self._queues = names if self._queues is None else self._queues & names
        elif isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) and len(one.attribute) == 1:
            key = {"position": "position", "lsn": "lsn", "enqueued_time": "time_us"}.get(one.attribute[0])
            value = _number(one.value)
            if key is None or value is None:
                return
            low, high = self._bounds.get(key, (0, 2**63 - 1))
            if not isinstance(one, LessThan | LessThanOrEqual):
                low = max(low, value)
            if not isinstance(one, GreaterThan | GreaterThanOrEqual):
                high = min(high, value)
            self._bounds[key] = (low, high)

    def _wanted(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues

    def _range(self) -> tuple[Position, Position]:
        """The browse takes one start and one end: those of the options, narrowed by the first column that has bounds."""
        start, end = super()._range()
        for key, (low, high) in self._bounds.items():
            start = _narrowed(start, key, low, max)
            end = _narrowed(end, key, high, min)
        return start, end


def _narrowed(given: Position, key: str, bound: int, choose: Any) -> Position:
    if not 0 < bound < 2**63 - 1:
        return given
    if isinstance(given, str):
        return {key: bound}
    if key in given:
        return {key: choose(given[key], bound)}
    return given


def _number(value: Any) -> int | None:
    """A whole number; of a time its microseconds since 1970 (Spark's filters have times without zone in UTC)."""
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return value if isinstance(value, int) and not isinstance(value, bool) else None

"""The batch reader of queues and streams: what stands in them now, without consuming.

In: options, and filters when Spark pushes them down. Out: partitions (tickets of a browse), Arrow record batches.
Invariants: nothing in a queue changes; a filter that is pushed down only narrows what is fetched, Spark still applies it; constructors
have no side effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_flintmq.claim import Plane, matching_queues
from pyspark_flintmq.cursor import are_streams, by_offset
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.queue_options import Position, QueueOptions
from pyspark_flintmq.queue_stream import TicketPartition, read_ticket
from pyspark_flintmq.spark_api import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


# Positions are counted in 63 bits.
_POSITION_MAX = 2**63


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
            streams = are_streams(options, options.connection.open)
            plane = options.connection.open()
            try:
                queues = matching_queues(plane, options) if options.pattern else list(options.queues)
                queues = [queue for queue in queues if self._wanted(queue)]
                tickets = self._ranges(plane, queues) if streams else self._browse(plane, queues) if queues else []
                store = plane.store
            except Exception as e:
                if getattr(e, "code", "") == "NOT_FOUND":
                    raise SourceError("QUEUE_MISSING", f"{options.connection.where}: {getattr(e, 'text', e)}") from e
                raise
            finally:
                plane.close()
        return [TicketPartition(json.dumps(ticket), store) for ticket in tickets]

    def _browse(self, plane: Plane, queues: list[str]) -> list[dict[str, Any]]:
        """Tickets of all that stands in the range: of one browse, or of as many as it takes when there is more than one may hold."""
        start, end = self._range()
        answer = self._open(plane, queues, start, end, self._options.limit)
        if not answer["more"] or answer["count"] == self._options.limit:
            return list(answer["tickets"])
        plane.calls.browse_close(id=answer["id"])
        tickets: list[dict[str, Any]] = []
        room = self._options.limit
        for queue in queues:
            begin: Position | None = start
            while begin is not None and (room or not self._options.limit):
                answer = self._open(plane, [queue], begin, end, room)
                tickets += answer["tickets"]
                room = max(0, room - answer["count"])
                begin = {"position": answer["queues"][0]["last"] + 1} if answer["more"] else None
        return tickets

    def _ranges(self, plane: Plane, streams: list[str]) -> list[dict[str, Any]]:
        """Tickets of ranges of offsets: what the streams hold between the two places now."""
        start, end = (by_offset(place) for place in self._range())
        tickets: list[dict[str, Any]] = []
        room = self._options.limit
        for name in streams:
            opened = plane.calls.stream_open(queue=name, start=start)
            stream, first = opened["stream"], int(opened["offset"])
            last = int(plane.calls.stream_open(queue=name, stream=stream, start=end)["offset"])
            if self._options.limit:
                last = min(last, first + room)
            if first < last:
                slices, key = self._options.partitions, self._options.key or None
                planned = plane.calls.stream_plan(queue=name, stream=stream, offset=first, end=last, slices=slices, key=key)
                tickets += planned["tickets"]
                room -= last - first
        return tickets

    def _open(self, plane: Plane, queues: list[str], start: Position, end: Position, limit: int) -> Any:
        slices = self._options.partitions
        return plane.calls.browse_open(queues=queues, start=start, end=end, slices=slices, max_messages=limit or None)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes up one partition when there are none.
        if not isinstance(partition, TicketPartition):
            return iter(())
        return read_ticket(self._options, partition)

    def _wanted(self, queue: str) -> bool:
        return True

    def _range(self) -> tuple[Position, Position]:
        return self._options.start, self._options.end


class PushingBrowseReader(BrowseReader):
    """The same, and filters on queue and position narrow what is fetched.

    Not those on times or LSNs: a message that a transaction published early and enqueued late stands behind newer ones, so no range of
    positions holds exactly what such a filter means. `startingTimestamp` and its like are what saves work there.
    """

    def __init__(self, options: QueueOptions) -> None:
        super().__init__(options)
        self._queues: frozenset[str] | None = None
        # Positions, the first one included, the last one not.
        self._low, self._high = 0, _POSITION_MAX

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            if isinstance(one, EqualTo | In) and one.attribute == ("queue",):
                values = (one.value,) if isinstance(one, EqualTo) else tuple(one.value)
                names = frozenset(str(value) for value in values if value is not None)
                self._queues = names if self._queues is None else self._queues & names
            elif isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) and one.attribute == (
                "position",
            ):
                self._narrow(one)
        # All are given back: Spark checks each row again, so what is fetched may be more than a filter lets through, never less.
        return filters

    def _narrow(self, one: Any) -> None:
        if not isinstance(one.value, int):
            return
        above = one.value + 1
        if isinstance(one, EqualTo | GreaterThanOrEqual):
            self._low = max(self._low, one.value)
        elif isinstance(one, GreaterThan):
            self._low = max(self._low, above)
        if isinstance(one, EqualTo | LessThanOrEqual):
            self._high = min(self._high, above)
        elif isinstance(one, LessThan):
            self._high = min(self._high, one.value)

    def _wanted(self, queue: str) -> bool:
        return self._low < self._high and (self._queues is None or queue in self._queues)

    def _range(self) -> tuple[Position, Position]:
        start, end = super()._range()
        if self._low > 0 and (start == "earliest" or "position" in start):
            start = {"position": max(self._low, start["position"] if isinstance(start, dict) else 0)}
        if self._high < _POSITION_MAX and (end == "latest" or "position" in end):
            end = {"position": min(self._high, end["position"] if isinstance(end, dict) else _POSITION_MAX)}
        return start, end

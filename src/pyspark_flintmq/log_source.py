"""`spark.read.format("flintmq").option("stream", ...)`: the log itself as a table, of a running broker, a stopped one, or an archive.

In: options, filters when Spark pushes them down. Out: partitions (neighbouring containers), record batches of exactly the declared schema.

Invariants: nothing of a store is written; a container is read whole, then its header again: one that was recycled meanwhile is an error,
never rows; what is pushed down only narrows what is read, Spark filters again; constructors have no side effects.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.heap import HEAP
from pyspark_flintmq.log_options import LSN_MAX, LogOptions, matching
from pyspark_flintmq.log_view import LogFacts, LogView, offline, take_view
from pyspark_flintmq.spark_api import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("flintmq.log_source")

# bytes of containers in one partition: less is not worth a task
PARTITION_BYTES = 32 * 1024 * 1024
# A wall clock that is set back by more than this hides rows from a read by time (microseconds). A read by LSN is exact.
CLOCK_SLACK_US = 600_000_000
_BLOCK_TIME = slice(40, 48)  # "time base of the records" in a commit block's header
_INCOMPLETE = "chunks of the message are missing"
_NAME = "Name"


def log_schema(raw: Mapping[str, str]) -> StructType:
    """The schema that the options ask for. Raises: SourceError."""
    return LogOptions.parse(raw).spark()


def log_reader(schema: StructType, raw: Mapping[str, str], pushdown: bool = False) -> DataSourceReader:
    """A reader; one that takes filters only when Spark asks for that (`pushdown`; it refuses a reader that has the method otherwise)."""
    options = LogOptions.parse(raw)
    matching(options, schema)
    return PushingLogReader(options) if pushdown else LogReader(options)


@dataclass(frozen=True)
class LogPartition(InputPartition):  # type: ignore[misc]  # pyspark has no types here
    """Neighbouring containers of one log. paths: (sequence, path); below: where chunks may go on that lie in another directory."""

    log: str
    paths: tuple[tuple[int, str], ...]
    base: int
    end: int
    uuid: str
    queue_ids: frozenset[int]
    size: int
    directory: str = ""
    snapshot: str = ""
    links: tuple[tuple[int, str], ...] = ()
    # ids of rows that show a message again, by container; None: each copy's original is in the log
    repeated: Mapping[int, Any] | None = field(default_factory=dict)


class LogReader(DataSourceReader):  # type: ignore[misc]  # pyspark has no types here
    """Reads what the logs hold when the query is planned."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        view = take_view(options)
        ids = view.queue_ids(options)
        parts: list[InputPartition] = []
        for name in options.logs:
            facts = view.logs[name]
            if facts.torn_at:
                log.warning("%s log of %s: torn tail at LSN %d left out: it was never durable", name, view.directory, facts.torn_at)
            chosen = self._chosen(facts)
            if not chosen:
                continue
            repeats = self._repeated(view, facts, chosen)
            groups = [chosen] if options.stream == "tx" else _grouped(chosen, facts.size, options.partitions)
            for group in groups:
                parts.append(
                    LogPartition(
                        log=name,
                        paths=tuple(group),
                        base=facts.base,
                        end=facts.end,
                        uuid=view.uuid,
                        queue_ids=ids,
                        size=facts.size,
                        directory=view.directory,
                        snapshot="" if view.kept else view.snapshot,
                        links=_links(group, facts),
                        repeated=None if repeats is None else {number: repeats[number] for number, _ in group if number in repeats},
                    )
                )
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes up one partition when there are none.
        if not isinstance(partition, LogPartition):
            return iter(())
        return read_partition(self._options, partition)

    def _repeated(self, view: LogView, facts: LogFacts, chosen: list[tuple[int, str]]) -> Mapping[int, Any] | None:
        """Of messages: which rows show one again. None: all that are copies. Raises: SourceError LOG_GONE."""
        options = self._options
        if options.stream != "messages" or options.copies:
            return {}
        if facts.horizon == 0 and options.strict:
            return None
        from flintmq.arrow.copies import repeated
        from flintmq.arrow.scan import ContainerGone

        snapshot = "" if view.kept else view.snapshot
        everything = LogPartition(
            "messages", tuple(chosen), facts.base, facts.end, view.uuid, frozenset(), facts.size, links=_links(chosen, facts)
        )
        keeper = _Keeper(options, snapshot)
        try:
            with offline("" if keeper.online or options.view else options.store_dir), _linked(everything) as paths:
                numbers = [number for number, _ in chosen]
                copies = repeated(list(zip(numbers, paths, strict=True)), facts.size, facts.end, bytes.fromhex(view.uuid), keeper.extend)
        except (ContainerGone, FileNotFoundError) as e:
            raise SourceError("LOG_GONE", f"{e}: the broker gave the container back while the query was planned; load() again") from e
        return copies

    def _chosen(self, facts: LogFacts) -> list[tuple[int, str]]:
        """Containers that may hold wanted rows."""
        options, size = self._options, facts.size
        if options.stream == "tx":  # a transaction's records lie in several containers
            return list(facts.containers)
        chosen = [one for one in facts.containers if (one[0] + 1) * size > options.first_lsn and one[0] * size < options.end_lsn]
        if options.stream == "consumers" or (options.since_us is None and options.until_us is None):
            return chosen
        # A container's records are not older than its first block, and hardly younger than the next one's.
        times = [_first_time(path) for _, path in chosen]
        kept = []
        for i, one in enumerate(chosen):
            began, next_began = times[i], times[i + 1] if i + 1 < len(times) else 0
            if options.until_us is not None and began and began > options.until_us + CLOCK_SLACK_US:
                continue
            if options.since_us is not None and next_began and next_began < options.since_us - CLOCK_SLACK_US:
                continue
            kept.append(one)
        return kept


class PushingLogReader(LogReader):
    """The same, and filters on lsn, time, log, queue_id and container narrow what is read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            name = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else ""
            if isinstance(one, EqualTo | In):
                values = (one.value,) if isinstance(one, EqualTo) else tuple(one.value)
                self._among(name, tuple(value for value in values if value is not None))
            if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
                self._compared(name, one)
        return filters

    def _among(self, name: str, values: tuple[Any, ...]) -> None:
        options = self._options
        if name == "log":
            self._options = replace(options, logs=tuple(one for one in options.logs if one in values))
        elif name == "queue_id" and options.stream == "records" and not options.filters_queues and values:
            self._options = replace(options, queue_ids=tuple(int(value) for value in values))

    def _compared(self, name: str, one: Any) -> None:
        options = self._options
        low = isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual)
        high = isinstance(one, EqualTo | LessThan | LessThanOrEqual)
        # Of a message, `lsn` is that of its first writing: a copy stands elsewhere.
        if name == "lsn" and isinstance(one.value, int) and options.stream == "records":
            first = max(options.first_lsn, one.value) if low else options.first_lsn
            end = min(options.end_lsn, one.value + 1) if high else options.end_lsn
            self._options = replace(options, first_lsn=first, end_lsn=end)
        elif name == "time" and isinstance(one.value, datetime) and options.stream == "records":
            moment = one.value if one.value.tzinfo else one.value.replace(tzinfo=UTC)
            us = int(moment.timestamp() * 1_000_000)
            # One microsecond of slack each way: floating point.
            since = max(options.since_us or 0, us - 1) if low else options.since_us
            until = min(LSN_MAX if options.until_us is None else options.until_us, us + 2) if high else options.until_us
            self._options = replace(options, since_us=since, until_us=until)


def _grouped(containers: list[tuple[int, str]], size: int, partitions: int) -> list[list[tuple[int, str]]]:
    """Neighbours together: PARTITION_BYTES each, or less so that there are `partitions` groups."""
    most = max(1, PARTITION_BYTES // max(size, 1))
    step = max(1, min(most, -(-len(containers) // partitions)))
    return [containers[i : i + step] for i in range(0, len(containers), step)]


def _links(group: list[tuple[int, str]], facts: LogFacts) -> tuple[tuple[int, str], ...]:
    """All paths from the group's first container on, when a message may go on in a container of another directory; else nothing."""
    first, last = group[0][0], group[-1][0]
    directories = {os.path.dirname(path) for number, path in facts.containers if first <= number <= last + 1}
    return tuple(one for one in facts.containers if one[0] >= first) if len(directories) > 1 else ()


def _first_time(path: str) -> int:
    """Time of the container's first block, microseconds; 0: not known."""
    try:
        with open(path, "rb") as file:
            file.seek(512)
            head = file.read(64)
    except OSError:
        return 0
    return int.from_bytes(head[_BLOCK_TIME], "little") if head[:4] == b"FBLK" else 0


# --- on executors -----------------------------------------------------------------------------------------------------------


def read_partition(options: LogOptions, part: LogPartition) -> Iterator[pa.RecordBatch]:
    """The partition's record batches. Raises: SourceError LOG_DAMAGED, LOG_GONE, LOG_NOT_VISIBLE, STORE_BUSY."""
    from flintmq.arrow.scan import ContainerGone, LogDamaged

    keeper = _Keeper(options, part.snapshot)
    with HEAP.used(), offline("" if keeper.online or options.view else options.store_dir):
        try:
            if options.stream == "tx":
                yield from _transactions(options, part)
                return
            with _linked(part) as paths:
                for path in paths:
                    keeper.extend()
                    for batch in _container(options, part, path):
                        yield batch
                        keeper.extend()
        except LogDamaged as e:
            raise SourceError("LOG_DAMAGED", f"{e}. mode=PERMISSIVE counts and skips what is damaged") from e
        except (ContainerGone, FileNotFoundError) as e:
            if part.directory and not os.path.isdir(part.directory):
                text = f"the store {part.directory} is not on this machine: executors must see it under the same path"
                raise SourceError("LOG_NOT_VISIBLE", text) from e
            raise SourceError("LOG_GONE", f"{e}: the broker gave the container back since the query was planned; load() again") from e
        except OSError as e:
            raise SourceError("LOG_IO", f"{e.filename or part.directory}: {e.strerror}") from e


class _Keeper:
    """Keeps the snapshot of a running broker while its containers are read. A broker that does not know it any more (it restarted, or time
    ran out) is no error: what is read is checked."""

    def __init__(self, options: LogOptions, snapshot: str) -> None:
        self.online = bool(snapshot)
        self._options = options
        self._snapshot = snapshot
        self._next = 0.0

    def extend(self) -> None:
        now = time.monotonic()
        if not self._snapshot or now < self._next:
            return
        self._next = now + self._options.ttl_s / 3
        connection = replace(self._options.connection, timeout=min(5, self._options.connection.timeout))
        try:
            plane = connection.open()
            try:
                plane.log_extend(self._snapshot, self._options.ttl_s)
            finally:
                plane.close()
        except Exception as e:
            log.warning("snapshot %s can not be kept (%s): containers may go while they are read", self._snapshot, e)
            self._snapshot = ""


@contextmanager
def _linked(part: LogPartition) -> Iterator[list[str]]:
    """Paths to scan. Where store and archive are read together, through one directory of links: a message's chunks may lie in both."""
    if not part.links:
        yield [path for _, path in part.paths]
        return
    directory = tempfile.mkdtemp(prefix="flintmq-log-")
    try:
        for number, path in part.links:
            os.symlink(os.path.abspath(path), os.path.join(directory, f"{number:020d}.flog"))
        yield [os.path.join(directory, f"{number:020d}.flog") for number, _ in part.paths]
    finally:
        with suppress(OSError):
            shutil.rmtree(directory)


def _container(options: LogOptions, part: LogPartition, path: str) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    from flintmq.arrow.copies import without
    from flintmq.arrow.scan import LogDamaged, scan_container

    stream = "messages" if options.stream == "messages" else "records"
    if options.stream == "consumers":
        wanted = ["lsn", "kind"]
    else:
        wanted = [*options.names, *_hidden(options)]
    number = int(os.path.basename(path)[:20])
    # Below the base the rest of a long message may have been given back: that is no damage, so we must judge ourselves there.
    strict = options.strict and number * part.size >= part.base
    scan = scan_container(
        path,
        log=part.log,
        stream=stream,
        columns=wanted,
        body=options.body,
        end=part.end,
        mode="FAILFAST" if strict else "PERMISSIVE",
        store_uuid=bytes.fromhex(part.uuid),
    )
    schema = options.arrow()
    for batch in scan:
        _judge(options, strict, scan.damage, LogDamaged)
        if options.stream == "consumers":
            yield _consumers(options, batch, path, number * part.size)
            continue
        batch = _kept(options, part, batch)
        if part.repeated is None:
            batch = batch.filter(pc.invert(batch.column("copy")))
        elif number in part.repeated:
            batch = without(batch, part.repeated[number])
        if batch.num_rows:
            yield batch if batch.schema.equals(schema) else batch.select(list(options.names)).cast(schema)
    _judge(options, strict, scan.damage, LogDamaged)
    if scan.warnings:
        shown = "; ".join(scan.warnings[:3])
        log.warning(
            "%s: %d warnings (%d damaged, %d torn, %d incomplete): %s",
            *(path, len(scan.warnings), len(scan.damage)),
            *(scan.torn, scan.incomplete, shown),
        )


def _judge(options: LogOptions, strict: bool, damage: list[str], error: Any) -> None:
    if options.strict and not strict:
        real = next((text for text in damage if not text.endswith(_INCOMPLETE)), None)
        if real is not None:
            raise error(real, 0)


def _hidden(options: LogOptions) -> list[str]:
    """Columns that filters need besides those that are shown."""
    needed = []
    if options.since_us is not None or options.until_us is not None:
        needed += ["time"] if options.stream == "records" else ["published_time", "enqueued_time"]
    if options.first_lsn > 0 or options.end_lsn < LSN_MAX:
        needed.append("lsn")
    if options.filters_queues and options.stream == "records":
        needed.append("queue_id")
    if options.stream == "messages" and not options.copies:
        needed += ["lsn", "copy"]
    return needed


def _kept(options: LogOptions, part: LogPartition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that the options let through."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask: Any = None

    def also(one: Any) -> None:
        nonlocal mask
        mask = one if mask is None else pc.and_(mask, one)

    if options.since_us is not None or options.until_us is not None:
        times = (
            batch.column("time")
            if options.stream == "records"
            else pc.coalesce(batch.column("published_time"), batch.column("enqueued_time"))
        )
        for bound, compare in ((options.since_us, pc.greater_equal), (options.until_us, pc.less)):
            if bound is not None:
                also(compare(times, pa.scalar(bound, times.type)))
    if options.first_lsn > 0:
        also(pc.greater_equal(batch.column("lsn"), options.first_lsn))
    if options.end_lsn < LSN_MAX:
        also(pc.less(batch.column("lsn"), options.end_lsn))
    if part.queue_ids and options.stream == "records":
        also(pc.is_in(batch.column("queue_id"), value_set=pa.array(sorted(part.queue_ids), pa.int64())))
    return batch if mask is None else batch.filter(mask)


def _consumers(options: LogOptions, batch: pa.RecordBatch, path: str, start: int) -> pa.RecordBatch:
    """The Name records of a batch: few, so they are read one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from flintmq.store.log.containers import MESSAGES
    from flintmq.store.log.reader import record_in
    from flintmq.store.log.record_fields import Record, fields_of

    rows = []
    named = batch.filter(pc.equal(batch.column("kind"), _NAME)).column("lsn").to_pylist()
    if named:
        with open(path, "rb") as file:
            for lsn in named:
                file.seek(lsn - start)
                head = file.read(24)
                raw = head + file.read(max(0, min(int.from_bytes(head[:4], "little"), 4096) - 24))
                record = record_in(raw, lsn)
                values = fields_of(Record(*record), MESSAGES) if record else {}
                if values.get("kind") == 1:
                    tag, group = values["tag"].decode(errors="replace"), values["group"].decode(errors="replace")
                    rows.append({"consumer_id": values["id"], "tag": tag, "group": group, "lsn": lsn})
    return pa.RecordBatch.from_pylist([{name: row[name] for name in options.names} for row in rows], schema=options.arrow())


def _transactions(options: LogOptions, part: LogPartition) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from flintmq.arrow.log import ContainerFacts, transactions

    facts = [ContainerFacts(number, path, part.size, number * part.size, 0, 0) for number, path in part.paths]
    warnings: list[str] = []
    needed = {*options.names, "tx_lsn", "started", "decided", "rows", "sets"}
    batch = transactions(facts, columns=needed, end=part.end, mode=options.mode, warnings=warnings)
    for text in warnings:
        log.warning("%s", text)
    keep = list(range(batch.num_rows))
    if options.since_us is not None or options.until_us is not None or part.queue_ids or options.first_lsn or options.end_lsn < LSN_MAX:
        keep = [row for row in keep if _wanted_transaction(options, part, {name: batch.column(name)[row].as_py() for name in needed})]
    batch = batch.take(pa.array(keep, pa.int64())) if len(keep) < batch.num_rows else batch
    schema = options.arrow()
    rows = 32_768
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows).select(list(options.names)).cast(schema)


def _wanted_transaction(options: LogOptions, part: LogPartition, row: dict[str, Any]) -> bool:
    """Whether it lived in the time asked for, touched a queue asked for, and began at an LSN asked for."""
    started, decided = (None if row[name] is None else int(row[name].timestamp() * 1_000_000) for name in ("started", "decided"))
    if options.until_us is not None and started is not None and started >= options.until_us:
        return False
    if options.since_us is not None and decided is not None and decided < options.since_us:
        return False
    if not options.first_lsn <= row["tx_lsn"] < options.end_lsn:
        return False
    return not part.queue_ids or any(run["queue_id"] in part.queue_ids for name in ("rows", "sets") for run in row[name] or ())

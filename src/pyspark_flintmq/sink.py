"""The sink: a DataFrame as messages, each batch published exactly once.

In: Arrow record batches of Spark's tasks, the scope (query id or `txnId`) and batch they belong to. Out: messages in queues.
Invariants:
  * a task publishes nothing: each attempt fills a stage of its own and has it prepared; one call of the driver publishes the stages of the
    attempts that won, all or none, and rolls back the others (retries, speculation, killed drivers);
  * nothing is added to a stage whose put broke off, as what arrived of it is not known: it is given up, and another one is begun, for its
    rows again; so it is for a stage that the broker has no more, and when the broker had no room for a while;
  * a stage is one transaction of the broker, which has a limit: an attempt with more than STAGE_ROWS rows fills several, one after another;
  * a batch that is committed already is not staged again, and a driver whose epoch is not the newest commits nothing;
  * a batch that the broker has committed while Spark's checkpoint is older is an error, never a silent skip;
  * messages of one partition keep the order of its rows, and partitions follow each other.
Spark gives query id and batch id to tasks only, so the names of the stages come back in the commit messages.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_flintmq.connection import Connection
from pyspark_flintmq.errors import SourceError
from pyspark_flintmq.heap import HEAP
from pyspark_flintmq.sink_columns import ColumnPlan, plan_columns
from pyspark_flintmq.sink_options import SinkOptions
from pyspark_flintmq.spark_api import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

    from flintmq.flight.client import DataPlane

log = logging.getLogger(__name__)

# Local properties of a task of a streaming query. Spark's own names, not documented: tests/pipeline/test_sink_spark.py watches them.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# Refusals that a second attempt of the same task would get as well: told to the driver, which fails the batch at once.
_FINAL = frozenset({"BAD_ROW", "FORBIDDEN"})
# An attempt's number for the broker: Spark's, and random bits below, since a driver that was started again counts from zero.
_RANDOM_BITS = 30
# A task keeps its rows up to so many bytes until they are prepared: a broker that restarts gets them again, without a retry by Spark.
KEPT_BYTES = 64 * 1024 * 1024
# Times that the same rows are staged at most, one after the other. Each waits up to `timeout` for the broker.
STAGES_PER_ATTEMPT = 4
# Rows of one stage. The broker's limit is a million places in queues (`dtx_enrolments_max`), and a message may go to several queues.
STAGE_ROWS = 250_000
# What a broker lacks for a while, and seconds until rows are staged again, the first time and at most.
_NO_ROOM = frozenset({"NO_ROOM", "LOW_DISK", "BUSY"})
_AWAY = frozenset({"UNAVAILABLE", "STOPPING", "TIMED_OUT"})
_ROOM_S, _ROOM_MOST_S = 0.25, 2.0
_TOO_LARGE = "a transaction has at most"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):  # type: ignore[misc]  # pyspark has no types here
    """What a task attempt did. stage_ids: none when it had no rows, when the batch was committed `already`, or when it was `refused`."""

    scope: str
    epoch: int
    batch: int
    part: int
    stage_ids: tuple[str, ...] = ()
    already: bool = False
    # rows that were not staged, because the batch was committed already
    skipped: int = 0
    count: int = 0
    bytes: int = 0
    unroutable: int = 0
    over_limit: int = 0
    refused: str = ""
    code: str = ""


@dataclass(frozen=True)
class _Place:
    """What a task attempt writes for."""

    scope: str
    epoch: int
    batch: int
    part: int
    attempt: int


class _Writer:
    """What both writers do. Pickled: it goes to the tasks and, for batch writes, to the driver's commit."""

    def __init__(self, schema: StructType, raw: Mapping[str, str], *, streaming: bool) -> None:
        self._options = SinkOptions.parse(raw, streaming=streaming)
        # How long the broker remembers what was committed: docs/DATAPLANE.md, Scopes.
        self._kind = "query" if streaming else "write" if self._options.txnId else "once"
        self._plan: ColumnPlan = plan_columns(schema, self._options)
        # Checked here, on the driver before any task: is the broker there, may this user log in.
        with _opened(self._options.connection) as plane:
            self._epoch = plane.scope_open()
            # Tasks and commit talk to the same store, whichever of several addresses leads to it then.
            self._options = replace(self._options, connection=replace(self._options.connection, store=plane.store))

    def _stage(self, place: _Place, batches: Iterator[pa.RecordBatch]) -> Staged:
        """One task attempt."""
        done = Staged(place.scope, place.epoch, place.batch, place.part)
        rows = (piece for batch in batches for piece in self._plan.pieces(batch))
        try:
            first = next(rows, None)
            if first is None:
                return done
            with _opened(self._options.connection) as plane:
                portions = _Portions(first, rows, STAGE_ROWS)
                try:
                    while portions.more and not done.already:
                        empty = Staged(place.scope, place.epoch, place.batch, place.part)
                        done = _both(done, self._fill(plane, place, portions.next(), empty))
                except Exception as e:
                    for stage_id in done.stage_ids:  # nobody will hear of them
                        _abort_one(plane, place, stage_id, e)
                    raise
                return _with(done, skipped=done.skipped + _drain(rows))
        except SourceError as e:
            too_large = e.code == "LIMIT" and _TOO_LARGE in e.text
            if e.code not in _FINAL and e.code not in ("NULL_BODY", "COLUMN_VALUE") and not too_large:
                raise
            _drain(batches)
            advice = ". A message counts for each queue that it goes to: repartition() into smaller partitions" if too_large else ""
            return _with(done, stage_ids=(), refused=f"{e.text}{advice}", code=e.code)

    def _fill(self, plane: DataPlane, place: _Place, rows: Iterator[pa.RecordBatch], done: Staged) -> Staged:
        kept, retries = _Kept(rows, KEPT_BYTES), _Again(self._options.connection.timeout)
        while True:
            begun = plane.stage_begin(
                place.scope,
                place.epoch,
                place.batch,
                part=place.part,
                attempt=place.attempt,
                unroutable=self._options.unroutable,
                over_limit=self._options.overLimit,
                kind=self._kind,
            )
            if begun.already or begun.stage_id is None:
                return _with(done, already=True, skipped=_drain(rows))
            sent = False
            try:
                plane.put(begun.stage_id, kept.from_first())
                sent = True
                facts = plane.stage_prepare(begun.stage_id)
            except Exception as e:
                if kept.whole and retries.may(e, sent):
                    log.info("batch %d of %s, partition %d is staged again: %s", place.batch, place.scope, place.part, e)
                    _abort_one(plane, place, begun.stage_id, e)
                    retries.pause()
                    continue
                lost = _lost(getattr(e, "text", "")) if getattr(e, "code", "") == "STAGE_FAILED" else None
                if lost is None:
                    _abort_one(plane, place, begun.stage_id, e)
                    raise
                return _with(done, unroutable=lost[0], over_limit=lost[1], refused=lost[2], code="UNROUTABLE" if lost[0] else "OVER_LIMIT")
            return _with(
                done,
                stage_ids=(begun.stage_id,),
                count=facts.count,
                bytes=facts.bytes,
                unroutable=facts.unroutable,
                over_limit=facts.over_limit,
            )

    def _publish(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, newer_is_done: bool) -> None:
        """The driver's commit. newer_is_done: a scope that is further than `batch` has done it; else it is an error.

        Raises: SourceError.
        """
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        place = staged[0]
        if any((one.scope, one.batch) != (place.scope, batch) for one in staged):
            raise SourceError("INTERNAL", f"Spark gave messages of another batch or query to the commit of batch {batch}")
        epoch = max(one.epoch for one in staged)
        with _opened(self._options.connection) as plane:
            if any(one.refused for one in staged):
                with contextlib.suppress(Exception):
                    plane.stage_abort(place.scope, batch, epoch=epoch)
                raise _refused(staged)
            if any(one.already for one in staged):
                # Some of its stages may be missing, so it must not be committed: unless the broker has forgotten, it was.
                committed = plane.scope_status(place.scope).get("committed")
                if committed is None or committed < batch:
                    raise SourceError(
                        "SCOPE_LOST",
                        f"scope '{place.scope}' had batch {batch} committed, and the broker does not know that any more: run it again",
                    )
            answer = plane.stage_commit(place.scope, epoch, batch, [stage_id for one in staged for stage_id in one.stage_ids])
        if answer.committed > batch and not newer_is_done:
            raise SourceError(
                "CHECKPOINT_BEHIND",
                f"batch {answer.committed} of this query is in its queues already, and Spark runs batch {batch}: the checkpoint is an old "
                "copy, or another driver goes on with it. Nothing was published now. Begin with a new checkpoint",
            )
        if skipped := sum(one.skipped for one in staged):
            text = "batch %d of %s is in its queues already (the last one there is %d): %d rows that were written again are not published"
            log.warning(text, batch, place.scope, answer.committed, skipped)
        for word, count in (("unroutable", sum(one.unroutable for one in staged)), ("over a limit", sum(one.over_limit for one in staged))):
            if count:
                log.warning("batch %d of %s: %d messages were %s and went where the options say", batch, place.scope, count, word)

    def _give_up(self, scope: str, batch: int, epoch: int) -> None:
        """The driver's abort: frees what was staged now instead of at the next commit. Never an error: the batch has one already."""
        try:
            with _opened(self._options.connection) as plane:
                plane.stage_abort(scope, batch, epoch=epoch)
        except Exception as e:
            log.warning("what batch %d of %s staged is rolled back later: %s", batch, scope, e)


class FlintStreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`df.writeStream.format("flintmq")`. Args: schema: of the DataFrame; raw_options: docs/pipeline/sink.md.

    Raises: SourceError for wrong options or columns, or a broker that is not there.
    """

    def __init__(self, schema: StructType, raw_options: Mapping[str, str]) -> None:
        super().__init__(schema, raw_options, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        scope, batch = self._named(context)
        return self._stage(_Place(scope, self._epoch, batch, context.partitionId(), _attempt(context)), iterator)

    def _named(self, context: TaskContext) -> tuple[str, int]:
        """(scope, batch id). A query with a new checkpoint has a new id, so its batches, counted from 0 again, are new ones."""
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        label = self._options.scope
        if batch is None or not str(batch).isdigit():
            raise SourceError(
                "SPARK_VERSION", f"this Spark does not tell tasks the batch id ({BATCH_ID}): nothing can be written exactly once"
            )
        if not query and not label:
            raise SourceError(
                "SPARK_VERSION", f"this Spark does not tell tasks the query id ({QUERY_ID}): give option 'scope', new for each checkpoint"
            )
        return ":".join(filter(None, (label, query))), int(batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._publish(messages, batchId, newer_is_done=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        known = next((message for message in messages if isinstance(message, Staged)), None)
        if known is not None:
            self._give_up(known.scope, batchId, known.epoch)


class FlintBatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """`df.write.format("flintmq").mode("append")`. Args and errors: as FlintStreamWriter.

    With `txnId` the write happens once, however often it is run; without, once per run that ends well. In `foreachBatch` that is once for
    each checkpoint: a new one counts its batches from 0, and `txnVersion=batch_id` would leave them out.
    """

    def __init__(self, schema: StructType, raw_options: Mapping[str, str]) -> None:
        super().__init__(schema, raw_options, streaming=False)
        self._named = bool(self._options.txnId)
        self._scope = f"txn:{self._options.txnId}" if self._named else f"once:{uuid.uuid4()}"
        self._batch = self._options.txnVersion

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        # Tasks alone are told the query, and a batch of another query is another write.
        query = context.getLocalProperty(QUERY_ID) if self._named else None
        scope = f"{self._scope}:{query}" if query else self._scope
        return self._stage(_Place(scope, self._epoch, self._batch, context.partitionId(), _attempt(context)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._publish(messages, self._batch, newer_is_done=True)
        self._forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        known = next((message for message in messages if isinstance(message, Staged)), None)
        self._give_up(self._scope if known is None else known.scope, self._batch, self._epoch)

    def _forget(self) -> None:
        """A name that nobody will use again need not be remembered."""
        if self._named:
            return
        with contextlib.suppress(Exception), _opened(self._options.connection) as plane:
            plane.scope_forget(self._scope)


@contextlib.contextmanager
def _opened(connection: Connection) -> Iterator[DataPlane]:
    """A client, and its errors in words for people."""
    with HEAP.used(), connection.errors(), contextlib.closing(connection.open()) as plane:
        yield plane


def _attempt(context: TaskContext) -> int:
    return int(context.taskAttemptId() << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS))


class _Kept:
    """Rows that are given once or, while they are few enough, again. Args: rows; limit: bytes that are kept."""

    def __init__(self, rows: Iterator[pa.RecordBatch], limit: int) -> None:
        self._rows = rows
        self._limit = limit
        self._kept: list[pa.RecordBatch] = []
        self._bytes = 0

    @property
    def whole(self) -> bool:
        """Whether all that was given can be given again."""
        return self._bytes <= self._limit

    def from_first(self) -> Iterator[pa.RecordBatch]:
        """The kept rows, then the rest. To be used again only while `whole`."""
        yield from list(self._kept)
        for one in self._rows:
            self._bytes += one.nbytes
            if self.whole:
                self._kept.append(one)
            else:
                self._kept.clear()
            yield one


class _Again:
    """Whether the rows of a stage are worth another one. Args: seconds: that the broker may be without room."""

    def __init__(self, seconds: float) -> None:
        self._left = STAGES_PER_ATTEMPT
        self._until = time.monotonic() + seconds
        self._pause = 0.0

    def may(self, error: Exception, sent: bool) -> bool:
        """Whether another stage may do: the broker went away with one that was not prepared, or has it no more; the connection of its put
        broke; or there was no room, and there may be soon.

        Args: sent: its put ended well. A prepare that got no answer was tried for long enough.
        """
        code, text = getattr(error, "code", ""), str(getattr(error, "text", ""))
        if not sent and code in _NO_ROOM:
            self._pause = min(max(2 * self._pause, _ROOM_S), _ROOM_MOST_S)
            return time.monotonic() < self._until
        self._left -= 1
        self._pause = 0.0
        gone = (not sent and code in _AWAY) or (code == "NOT_FOUND" and text.startswith("there is no stage"))
        return gone and self._left > 0

    def pause(self) -> None:
        """Room that all tasks ask for at once would find no room again."""
        if self._pause:
            time.sleep(self._pause * random.uniform(0.5, 1.5))


def _abort_one(plane: DataPlane, place: _Place, stage_id: str, error: Exception) -> None:
    """What an attempt gives up takes room that others wait for. A broker that is away forgets it, or rolls it back by time."""
    if getattr(error, "code", "") not in _AWAY:
        with contextlib.suppress(Exception):
            plane.stage_abort(place.scope, place.batch, stage_id=stage_id)


class _Portions:
    """Record batches in portions of about `limit` rows, each taken to its end before the next one. Args: first, rest: the batches."""

    def __init__(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], limit: int) -> None:
        self._next: pa.RecordBatch | None = first
        self._rest = rest
        self._limit = limit

    @property
    def more(self) -> bool:
        """Whether there are rows that no portion had."""
        return self._next is not None

    def next(self) -> Iterator[pa.RecordBatch]:
        """The next portion."""
        rows = 0
        while self._next is not None and rows < self._limit:
            one, self._next = self._next, None
            rows += one.num_rows
            yield one
            self._next = next(self._rest, None)


def _drain(batches: Iterator[pa.RecordBatch]) -> int:
    """Spark's task wants its rows taken, also when nobody needs them. Returns: how many there were."""
    return sum(batch.num_rows for batch in batches)


def _both(one: Staged, other: Staged) -> Staged:
    """What two portions of one attempt came to."""
    refused = one if one.refused else other
    return _with(
        one,
        stage_ids=() if one.already or other.already else (*one.stage_ids, *other.stage_ids),
        already=one.already or other.already,
        **{name: getattr(one, name) + getattr(other, name) for name in ("skipped", "count", "bytes", "unroutable", "over_limit")},
        refused=refused.refused,
        code=refused.code,
    )


def _with(staged: Staged, **changes: Any) -> Staged:
    return replace(staged, **changes)


def _lost(text: str) -> tuple[int, int, str] | None:
    """(unroutable, over a limit, the first of them) of the broker's `N messages are unroutable, M are over the limit of a queue: ...`."""
    counts, _, example = text.partition(": ")
    numbers = [int(word) for word in counts.split() if word.isdigit()]
    if len(numbers) != 2 or "unroutable" not in counts or not any(numbers):
        return None
    return numbers[0], numbers[1], example


def _refused(staged: Sequence[Staged]) -> SourceError:
    """One error for all tasks of a batch that were refused."""
    refused = [one for one in staged if one.refused]
    first = refused[0]
    unroutable, over_limit = sum(one.unroutable for one in refused), sum(one.over_limit for one in refused)
    if not unroutable and not over_limit:
        suffix = f" (and {len(refused) - 1} more partitions were refused)" if len(refused) > 1 else ""
        return SourceError(first.code, f"partition {first.part}: {first.refused}{suffix}. Nothing of the batch was published")
    counts = " and ".join(
        f"{count} {word}"
        for count, word in ((unroutable, "unroutable messages"), (over_limit, "messages over the limit of a queue"))
        if count
    )
    return SourceError(
        "UNROUTABLE" if unroutable else "OVER_LIMIT",
        f"batch {first.batch} has {counts}, for instance: {first.refused}. Nothing of the batch was published; "
        "bind a queue or make room, or set option 'unroutable' (drop, exchange:NAME) or 'overLimit' (exchange:NAME)",
    )

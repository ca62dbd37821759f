"""Running a streaming query to its end, or until it is told to stop, with one report a batch.

in: how to start the query. out: `BatchReport` for each batch that had rows; the sums.
Q1  A report decides nothing: the query runs the same without anybody who listens.
Q2  A query that is told to stop ends between two batches if one ends within STOP_S_MAX, else in the middle of one, which loses nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flintmq.pipeline.jobs.failures import explained

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# seconds between two looks at the query
LOOK_S = 0.25
STOP_S_MAX = 60.0


@dataclass(frozen=True)
class BatchReport:
    """One micro-batch. rows_per_s: of the batch alone; behind_*: what waits in the queues after it was taken, None: not known;
    duration_ms: by phase, as Spark names them."""

    batch: int
    rows: int
    rows_per_s: float
    behind_messages: int | None = None
    behind_bytes: int | None = None
    oldest_age_ms: int | None = None
    duration_ms: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """For people."""
        text = f"batch {self.batch}: {self.rows:,} messages, {self.rows_per_s:,.0f}/s"
        if self.behind_messages is None:
            return text
        text += f", behind {self.behind_messages:,}"
        if self.behind_messages and self.oldest_age_ms is not None:
            text += f" (oldest {self.oldest_age_ms / 1000:,.1f} s)"
        return text

    @property
    def figures(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


Listener = Callable[[BatchReport], None]


@dataclass
class Totals:
    """What a query did. rows: messages read; batches: those that had any; seconds: from start to end; interrupted: it was told to stop,
    and ended in the middle of a batch, which its next start runs again."""

    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    interrupted: bool = False


def report_of(progress: Any) -> BatchReport:
    """From Spark's StreamingQueryProgress."""
    behind: Any = {}
    if progress.sources:
        behind = progress.sources[0].latestOffset
        if isinstance(behind, str):
            try:
                behind = json.loads(behind)
            except ValueError:
                behind = {}
    if not isinstance(behind, dict):
        behind = {}
    durations = {str(name): int(ms) for name, ms in dict(progress.durationMs or {}).items()}
    seconds = durations.get("triggerExecution", 0) / 1000
    rows = int(progress.numInputRows)
    return BatchReport(
        int(progress.batchId),
        rows,
        rows / seconds if seconds else 0.0,
        _number(behind.get("messages_behind")),
        _number(behind.get("bytes_behind")),
        _number(behind.get("oldest_age_ms")),
        durations,
    )


def _number(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def run_query(
    start: Callable[[], StreamingQuery], subject: str, listener: Listener | None = None, stop: threading.Event | None = None
) -> Totals:
    """Starts the query and waits for its end. Args: subject: for errors; stop: set by whoever wants it to end.

    Raises: OperatorError with the code and line of docs/pipeline/source.md.
    """
    totals, began, seen = Totals(), time.monotonic(), -1
    try:
        query = start()
    except Exception as error:
        raise explained(error, subject) from error
    try:
        over = False
        while not over:
            over = bool(query.awaitTermination(LOOK_S)) or not query.isActive or (stop is not None and stop.is_set())
            seen = _look(query, seen, totals, listener)
        if query.isActive:
            _end(query)
            seen = _look(query, seen, totals, listener)
        failure = query.exception()
        if failure is not None:
            raise failure
    except Exception as error:
        # A signal for all of a process group ends Spark's JVM too, under the hands of a query that was to end anyway.
        if stop is None or not stop.is_set():
            _stop(query)
            raise explained(error, subject) from error
        totals.interrupted = True
    except BaseException:
        _stop(query)
        raise
    totals.seconds = time.monotonic() - began
    return totals


def _look(query: StreamingQuery, seen: int, totals: Totals, listener: Listener | None) -> int:
    for progress in query.recentProgress:
        if progress.batchId > seen and progress.numInputRows:
            seen = int(progress.batchId)
            one = report_of(progress)
            totals.rows += one.rows
            totals.batches += 1
            if listener is not None:
                listener(one)
    return seen


def _stop(query: StreamingQuery) -> None:
    """The error that is under way says more than one of this."""
    with contextlib.suppress(Exception):
        query.stop()


def _end(query: StreamingQuery) -> None:
    until = time.monotonic() + STOP_S_MAX
    while query.isActive and query.status.get("isTriggerActive") and query.status.get("isDataAvailable") and time.monotonic() < until:
        time.sleep(LOOK_S)
    query.stop()

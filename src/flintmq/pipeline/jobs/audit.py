"""Audit: every message of the log accounted for, every violation found, with examples.

in: a log. out: counts of good records, counts and examples of violations; exit code 65 when there are some.

How: each record says something of a message (key: its LSN) and of a place (key: queue and position). Both kinds of keys go through one
aggregation, so there is one shuffle; what comes out of it is judged key by key, and only counts and examples reach the driver.

A1  Below the log's horizon records may be missing: what is missing there is `truncated`, never a violation.
A2  What transactions that are open or prepared did is `in doubt`, what rolled back ones did never happened. Redelivery is no duplicate.
A3  Positions without any record are told, not condemned: transient messages and rolled back transactions leave such gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flintmq.errors import OperatorError
from flintmq.pipeline.jobs.job import EX_DATA, EX_OK, EX_USAGE, LogParameters, Summary, parameter
from flintmq.pipeline.jobs.reading import LEVEL_BITS, LogReading, commit_rows, epoch_ends, set_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# Bytes before the end of an epoch in which a message may be unfinished: its start was durable, its enqueue not yet. Twice a commit block.
UNFINISHED_BYTES = 2 * 1024 * 1024
# groups by which examples are spread
_BUCKETS = 4
_MASK = (1 << LEVEL_BITS) - 1
# what records say of a key, as bits
(
    _START,
    _COPY,
    _ENQUEUE,
    _DELETE,
    _NO_PLACE,
    _VOID_ENQUEUE,
    _DOUBT,
    _TRUNCATED,
    _COMMIT_ROW,
    _SET_DONE,
    _QUEUE_END,
    _NO_TX,
) = (1 << i for i in range(12))

# verdict -> (class of violation, what it means)
VIOLATIONS = {
    "enqueued twice": ("duplicate", "two enqueues took the same place"),
    "dequeued twice": ("duplicate", "a place was dequeued for good twice"),
    "dequeued, never enqueued": ("lost", "a place was dequeued, but nothing put a message there"),
    "dequeued as another": ("lost", "the place's dequeue names another message than its enqueue"),
    "never placed": ("lost", "a message was written, but neither enqueued nor ended"),
    "no start": ("orphan", "records of a message whose start is missing"),
    "no transaction": ("orphan", "records in a transaction that the log does not know"),
    "transaction without start": ("orphan", "records of a transaction whose start is missing"),
    "enqueue missing": ("torn", "a committed transaction has a row for the place, but the enqueue is missing"),
    "no position": ("torn", "a committed transaction enqueued the message, but gave it no position"),
    "set not dequeued": ("torn", "a set was committed and ended, but the place's dequeue is missing"),
    "void, yet dequeued": ("torn", "a place was dequeued whose enqueue is of a transaction that did not commit"),
    "ended undecided": ("torn", "a transaction ended without a decision"),
}
CLASSES = ("lost", "duplicate", "orphan", "torn")


@dataclass(frozen=True)
class AuditParameters(LogParameters):
    """Parameters of `audit`. since and until are refused: what a part of the log lacks is no violation."""

    examples: int = parameter(5, "examples of each kind of violation, 1 to 100")


@dataclass
class AuditResult:
    """What `build` made."""

    reading: LogReading
    frame: DataFrame
    transactions: pa.Table


class Audit:
    """The job `audit`."""

    name = "audit"
    about = "every enqueued message accounted for: lost, duplicate, orphan, torn, in doubt"
    parameters = AuditParameters

    def build(self, spark: SparkSession, params: AuditParameters) -> AuditResult:
        """A frame of verdicts: side, verdict, queue_id, level, bucket, n, low, high, example. Raises: SourceError, OperatorError."""
        if params.since or params.until:
            raise OperatorError("audit reads the whole log: since and until are not for it", EX_USAGE)
        reading = LogReading(spark, params)
        try:
            known = reading.transactions()
            return AuditResult(reading, _verdicts(reading, known), known)
        except BaseException:
            reading.close()
            raise

    def summarise(self, result: AuditResult) -> Summary:
        """Runs the audit."""
        rows = [row.asDict(recursive=True) for row in result.frame.collect()]
        return _summary(result, rows)

    def report(self, result: AuditResult, summary: Summary) -> str | None:
        """None: a table says it all."""
        return None

    def close(self, result: AuditResult) -> None:
        """Lets the view go."""
        result.reading.close()


# --- the plan -----------------------------------------------------------------------------------------------------------


def _verdicts(reading: LogReading, known: pa.Table) -> DataFrame:
    from pyspark.sql import functions as f

    keyed = _keyed(reading)
    for extra in _of_transactions(reading, known):
        keyed = keyed.unionByName(extra)
    judged = (
        keyed.groupBy("side", "k1", "k2")
        .agg(
            f.sum("e").alias("e"),
            f.sum("d").alias("d"),
            f.bit_or("flags").alias("flags"),
            f.min("msg").alias("msg_low"),
            f.max("msg").alias("msg_high"),
            f.min("lsn").alias("lsn_low"),
            f.max("lsn").alias("lsn_high"),
        )
        .withColumn("verdict", f.when(f.col("side") == 0, _place_verdict()).otherwise(_message_verdict(epoch_ends(reading.view))))
    )
    is_place = f.col("side") == 0
    example = f.struct("lsn_low", "lsn_high", "msg_low", "msg_high", "k2")
    # Examples are wanted of violations only; a struct of a healthy key would be compared for nothing.
    bad = f.col("verdict").isin(list(VIOLATIONS))
    return judged.groupBy(
        "side",
        "verdict",
        f.when(is_place, f.col("k1")).alias("queue_id"),
        f.when(is_place, f.shiftrightunsigned("k2", LEVEL_BITS)).alias("level"),
        f.when(bad, f.pmod(f.xxhash64("k2"), f.lit(_BUCKETS))).alias("bucket"),
    ).agg(
        f.count("*").alias("n"),
        f.min(f.when(is_place, f.col("k2"))).alias("low"),
        f.max(f.when(is_place, f.col("k2"))).alias("high"),
        f.sum("e").alias("e"),
        f.sum("d").alias("d"),
        f.min(f.when(bad, example)).alias("example"),
        f.max(f.when(bad, example)).alias("example2"),
    )


def _keyed(reading: LogReading) -> DataFrame:
    """Two rows per record at most: one for its place (side 0, queue, position), one for its message (side 1, 0, LSN)."""
    from pyspark.sql import functions as f

    horizon = reading.view.logs["messages"].horizon
    tx = reading.view.logs["transactions"]
    frame = reading.records(["msg_lsn"]).where(~f.col("kind").isin("Queue-Mark", "Queue-Delivered", "Queue-Redelivered", "Name"))
    kind, counts = f.col("kind"), f.col("counts")
    enqueue, dequeue, copy = kind == "Message-Enqueue", kind == "Message-Dequeue", kind == "Message-Copy"
    doubt = f.coalesce(f.col("outcome").isin("prepared", "open"), f.lit(False))
    no_tx = f.coalesce(f.col("outcome").isNull() & (f.col("tx_lsn") >= max(tx.horizon, 1)) & (f.col("tx_lsn") < tx.end), f.lit(False))
    truncated = f.coalesce(f.col("msg_lsn") < horizon, f.lit(False))
    unplaced = enqueue & counts & f.col("place").isNull()

    def flags(*pairs: tuple[Column, int]) -> Column:
        total = f.lit(0)
        for condition, bit in pairs:
            total = total + f.when(condition, f.lit(bit)).otherwise(f.lit(0))
        return total.cast("int")

    none = f.lit(None).cast("long")
    place = f.struct(
        f.lit(0).alias("side"),
        f.col("queue_id").alias("k1"),
        f.when(kind == "Queue-End", f.lit(-1).cast("long")).otherwise(f.coalesce("place", f.col("position"))).alias("k2"),
        f.when(enqueue & counts, 1).otherwise(0).cast("long").alias("e"),
        f.when(dequeue & counts, 1).otherwise(0).cast("long").alias("d"),
        flags(
            (copy, _COPY),
            (enqueue & ~counts, _VOID_ENQUEUE),
            (doubt, _DOUBT),
            (truncated, _TRUNCATED),
            (kind == "Queue-End", _QUEUE_END),
        ).alias("flags"),
        # A copy of an undecided enqueue names no fixed place; a dequeue that did not happen says nothing of the entry there.
        f.when((enqueue & counts) | (dequeue & counts) | copy, f.col("msg_lsn")).otherwise(none).alias("msg"),
        "lsn",
    )
    message = f.struct(
        f.lit(1).alias("side"),
        f.lit(0).cast("long").alias("k1"),
        f.col("msg_lsn").alias("k2"),
        f.lit(0).cast("long").alias("e"),
        f.lit(0).cast("long").alias("d"),
        flags(
            (kind == "Message-Start", _START),
            (copy, _COPY),
            (enqueue, _ENQUEUE),
            (kind == "Message-Delete", _DELETE),
            (unplaced, _NO_PLACE),
            (truncated, _TRUNCATED),
            (no_tx, _NO_TX),
        ).alias("flags"),
        f.col("msg_lsn").alias("msg"),
        "lsn",
    )
    exploded = frame.select(f.explode(f.array(place, message)).alias("one")).select("one.*")
    return exploded.where(f.col("k2").isNotNull() & f.col("k1").isNotNull())


def _of_transactions(reading: LogReading, known: pa.Table) -> list[DataFrame]:
    """Places that committed transactions say they filled, and that ended sets say they emptied."""
    from pyspark.sql import functions as f

    findings = []
    begun = _began_after_horizon(reading, known)
    none = f.lit(None).cast("long")
    sets = set_rows(known)
    for table, bit in ((commit_rows(known), _COMMIT_ROW), (_done(sets), _SET_DONE), (_undecided(sets), _DOUBT)):
        if not table.num_rows:
            continue
        old = f.when(f.col("tx_lsn") < begun, f.lit(_TRUNCATED)).otherwise(f.lit(0))
        frame = reading.spark.createDataFrame(table.select(["tx_lsn", "queue_id", "first", "count"]))
        frame = frame.where((f.col("first") > 0) & (f.col("count") > 0))
        last = f.col("first") + f.col("count") - 1
        findings.append(
            frame.select(
                f.lit(0).alias("side"),
                f.col("queue_id").alias("k1"),
                f.explode(f.sequence(f.col("first"), last)).alias("k2"),
                f.lit(0).cast("long").alias("e"),
                f.lit(0).cast("long").alias("d"),
                (f.lit(bit) + (old if bit == _COMMIT_ROW else f.lit(0))).cast("int").alias("flags"),
                none.alias("msg"),
                none.alias("lsn"),
            )
        )
    return findings


def _done(sets: pa.Table) -> pa.Table:
    """Sets whose transaction committed and ended: every entry must have been dequeued."""
    import pyarrow.compute as pc

    return sets.filter(pc.and_(pc.equal(sets.column("state"), "committed"), sets.column("ended")))


def _undecided(sets: pa.Table) -> pa.Table:
    """Sets of transactions that are prepared, or open."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return sets.filter(pc.is_in(sets.column("state"), value_set=pa.array(["prepared", "open"])))


def _began_after_horizon(reading: LogReading, known: pa.Table) -> int:
    """The first transaction all of whose enqueues lie above the message log's horizon: by time, which is what both logs share."""
    horizon = reading.view.logs["messages"].horizon
    if not horizon:
        return 0
    from flintmq.arrow.scan import scan_container

    facts = reading.view.logs["messages"]
    path = next((path for number, path in facts.containers if (number + 1) * facts.size > horizon), None)
    times: list[Any] = []
    if path is not None:
        first = next(iter(scan_container(path, columns=["time"], base=horizon, end=facts.end, mode="PERMISSIVE", rows_max=1)), None)
        times = first.column("time").to_pylist() if first is not None else []
    if not times:
        return 2**63 - 1
    for tx_lsn, started in zip(known.column("tx_lsn").to_pylist(), known.column("started").to_pylist(), strict=True):
        if started is not None and started >= times[0]:
            return int(tx_lsn)
    return 2**63 - 1


def _has(bit: int) -> Column:
    from pyspark.sql import functions as f

    return f.col("flags").bitwiseAND(f.lit(bit)) != 0


def _place_verdict() -> Column:
    from pyspark.sql import functions as f

    e, d = f.col("e"), f.col("d")
    stood = (e > 0) | _has(_COPY)
    return (
        f.when(_has(_QUEUE_END), "queue ended")
        .when(e > 1, "enqueued twice")
        .when((e > 0) & (f.col("msg_low") != f.col("msg_high")), "dequeued as another")
        .when(d > 1, "dequeued twice")
        .when((d > 0) & ~stood & _has(_TRUNCATED), "truncated")
        .when((d > 0) & ~stood & _has(_VOID_ENQUEUE), "void, yet dequeued")
        .when((d > 0) & ~stood, "dequeued, never enqueued")
        .when(_has(_COMMIT_ROW) & ~stood & _has(_TRUNCATED), "truncated")
        .when(_has(_COMMIT_ROW) & ~stood, "enqueue missing")
        .when(stood & (d == 0) & _has(_SET_DONE), "set not dequeued")
        .when(d > 0, "settled")
        .when(_has(_DOUBT), "in doubt")
        .when(stood, "open")
        .otherwise("undone")
    )


def _message_verdict(ends: list[int]) -> Column:
    from pyspark.sql import functions as f

    begun, placed = _has(_START) | _has(_COPY), _has(_ENQUEUE) | _has(_COPY) | _has(_DELETE)
    last = f.col("lsn_high")
    unfinished = f.exists(f.array(*map(f.lit, ends[-1000:])), lambda end: (last < end) & (last >= end - UNFINISHED_BYTES))
    return (
        f.when(~begun & _has(_TRUNCATED), "truncated")
        .when(~begun, "no start")
        .when(_has(_NO_TX), "no transaction")
        .when(_has(_NO_PLACE), "no position")
        .when(~placed & unfinished, "unfinished")
        .when(~placed, "never placed")
        .otherwise("message")
    )


# --- the summary --------------------------------------------------------------------------------------------------------


def _transaction_findings(result: AuditResult) -> list[dict[str, Any]]:
    """What the table of transactions says by itself."""
    horizon = result.reading.view.logs["transactions"].horizon
    findings = []
    columns = [result.transactions.column(name).to_pylist() for name in ("tx_lsn", "state", "started", "ended")]
    for tx_lsn, state, started, ended in zip(*columns, strict=True):
        if ended and state in ("open", "prepared") and started is not None:
            findings.append({"verdict": "ended undecided", "tx_lsn": tx_lsn})
        elif started is None and state != "open" and tx_lsn >= max(horizon, 1) and not _copied(result, tx_lsn):
            findings.append({"verdict": "transaction without start", "tx_lsn": tx_lsn})
    return findings


def _copied(result: AuditResult, tx_lsn: int) -> bool:
    """Whether the transaction began below the base: then a Tx-Copy stands for its start."""
    return tx_lsn < result.reading.view.logs["transactions"].base


def _summary(result: AuditResult, rows: list[dict[str, Any]]) -> Summary:
    reading, params = result.reading, result.reading.params
    wanted = frozenset(reading.queue_ids)
    ended = {row["queue_id"] for row in rows if row["verdict"] == "queue ended"}
    counts: dict[str, int] = {}
    examples: dict[str, list[dict[str, Any]]] = {}
    spans: dict[tuple[int, int], list[int]] = {}
    enqueued = dequeued = 0
    for row in rows:
        verdict, queue = row["verdict"], row["queue_id"]
        if verdict == "queue ended" or (wanted and queue is not None and queue not in wanted):
            continue
        # A queue that was deleted took its entries with it.
        if queue in ended and verdict in ("open", "set not dequeued", "enqueue missing", "in doubt"):
            verdict = "gone with its queue"
        counts[verdict] = counts.get(verdict, 0) + row["n"]
        if row["side"] == 0:
            enqueued, dequeued = enqueued + row["e"], dequeued + row["d"]
            if verdict != "undone":
                span = spans.setdefault((queue, row["level"]), [row["low"], row["high"], 0])
                spans[queue, row["level"]] = [min(span[0], row["low"]), max(span[1], row["high"]), span[2] + row["n"]]
        if verdict in VIOLATIONS:
            for one in (row["example"], row["example2"]):
                if one is not None:
                    examples.setdefault(verdict, []).append(_example(reading, row, one))
    for finding in _transaction_findings(result):
        counts[finding["verdict"]] = counts.get(finding["verdict"], 0) + 1
        examples.setdefault(finding["verdict"], []).append({"tx_lsn": finding["tx_lsn"]})
    limit = max(1, min(getattr(params, "examples", 5), 100))
    examples = {verdict: _distinct(findings)[:limit] for verdict, findings in examples.items()}
    gaps = {f"{queue}/{level}": high - low + 1 - n for (queue, level), (low, high, n) in spans.items() if high - low + 1 > n}
    violations = {verdict: counts[verdict] for verdict in VIOLATIONS if counts.get(verdict)}
    states = result.transactions.column("state").to_pylist()
    figures = {
        "violations": sum(violations.values()),
        "classes": {name: sum(n for verdict, n in violations.items() if VIOLATIONS[verdict][0] == name) for name in CLASSES},
        "by_kind": violations,
        "examples": examples,
        "messages": sum(counts.get(verdict, 0) for verdict in ("message", "unfinished")),
        "enqueued": enqueued,
        "dequeued": dequeued,
        "open": counts.get("open", 0),
        "settled": counts.get("settled", 0),
        "in_doubt": counts.get("in doubt", 0),
        "truncated": counts.get("truncated", 0),
        "unfinished": counts.get("unfinished", 0),
        "gone_with_queue": counts.get("gone with its queue", 0),
        "positions_without_record": sum(gaps.values()),
        "transactions": {state: states.count(state) for state in sorted(set(states))},
        "horizon": reading.view.logs["messages"].horizon,
        "end": reading.view.logs["messages"].end,
    }
    return Summary("audit", _lines(reading, figures, gaps), figures, EX_DATA if violations else EX_OK)


def _example(reading: LogReading, row: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    lsns = sorted({one["lsn_low"], one["lsn_high"]} - {None})
    if row["side"] == 1:
        return {"message": one["k2"], "lsns": lsns}
    example = {"queue": reading.queue_name(row["queue_id"]), "position": one["k2"], "lsns": lsns}
    messages = sorted({one["msg_low"], one["msg_high"]} - {None})
    return {**example, "messages": messages} if messages else example


def _distinct(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for one in sorted(examples, key=lambda one: one.get("lsns") or [0]):
        if one not in kept:
            kept.append(one)
    return kept


def position_text(position: int) -> str:
    """A position for people: its index, and its priority level unless that is 0 (the highest)."""
    level = position >> LEVEL_BITS
    return f"{position & _MASK:,}" + (f" of level {level}" if level else "")


def _lines(reading: LogReading, figures: dict[str, Any], gaps: dict[str, int]) -> list[str]:
    facts = reading.view.logs["messages"]
    lines = [f"audit of {len(facts.containers):,} containers of messages up to LSN {facts.end:,}", ""]
    for name, text in (
        ("messages", "messages"),
        ("enqueued", "places enqueued"),
        ("settled", "  settled"),
        ("open", "  still open"),
        ("in_doubt", "  in doubt (prepared or open transactions)"),
        ("gone_with_queue", "  gone with their queue"),
        ("truncated", "truncated: began below the log's horizon"),
        ("unfinished", "unfinished when the broker stopped: never confirmed"),
        ("positions_without_record", "positions without a record (transient or undone)"),
    ):
        if figures[name] or name in ("messages", "enqueued", "settled", "open"):
            lines.append(f"  {text:<52}{figures[name]:>16,}")
    for state, count in figures["transactions"].items():
        lines.append(f"  {'transactions ' + state:<52}{count:>16,}")
    lines.append("")
    if note := reading.truncated_line():
        lines += [note, ""]
    if not figures["violations"]:
        return [*lines, "no violation: nothing lost, duplicate, orphaned or torn"]
    for verdict, count in figures["by_kind"].items():
        kind, text = VIOLATIONS[verdict]
        lines.append(f"{kind.upper():<10}{count:>12,}  {text}")
        for one in figures["examples"].get(verdict, ()):
            lines.append(" " * 24 + _example_text(one))
    return [*lines, "", f"{figures['violations']:,} violations"]


def _example_text(one: dict[str, Any]) -> str:
    parts = []
    if "queue" in one:
        parts.append(f"{one['queue']} position {position_text(one['position'])}")
    if "message" in one:
        parts.append(f"message {one['message']}")
    if "tx_lsn" in one:
        parts.append(f"transaction {one['tx_lsn']}")
    if one.get("messages"):
        parts.append("message " + ", ".join(map(str, one["messages"])))
    if one.get("lsns"):
        parts.append("LSN " + ", ".join(map(str, one["lsns"])))
    return "; ".join(parts)

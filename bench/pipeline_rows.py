"""The rows of bench/pipeline.py: what each prepares, measures and checks.

in: a Bench (Spark session, scratch directory, sizes). out: figures of one run.

R1  What is measured stands in `with bench.metered(...)`; preparing and checking do not.
R2  Every run checks what came out: all messages, each once. A run that fails its check has no figures.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.brokers import FLINTMQ, Broker
from bench.runners import perf
from bench.spark_parts import ConstantSource, CpuMeter, busy_s, spent
from bench.workloads import Target, above, below
from flintmq.flight.client import DataPlane
from tests.support import servers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROOT = Path(__file__).resolve().parents[1]
BODY = 100
# the columns of facts B1 and B2: a string, a long, a binary
THREE = "queue,position,body"
Values = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """Messages of each row."""

    steady: int = 2_000_000
    sink: int = 1_000_000
    parallel: int = 3_000_000
    triggers: int = 120
    today: int = 200_000
    flight: int = 500_000
    warm: int = 100_000
    # different messages of the constant source: more than a dictionary of Parquet takes
    constant: int = 200_000


QUICK = Sizes(steady=400_000, sink=300_000, parallel=300_000, triggers=20, today=50_000, flight=200_000, warm=50_000)


@dataclass
class Metered:
    """What the measured part of a run cost."""

    elapsed_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    looks: list[tuple[float, float]] = field(default_factory=list)
    other_cores: float = 0.0


class Bench:
    """One sitting. Args: spark; scratch: a directory on a disk; sizes."""

    def __init__(self, spark: SparkSession, scratch: Path, sizes: Sizes) -> None:
        self.spark = spark
        self.scratch = scratch
        self.sizes = sizes
        self.meter = Metered()
        self.jvm = int(spark._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]
        self._pids: tuple[int | None, int | None] = (None, None)
        self._broker: Broker | None = None
        self._stack = contextlib.ExitStack()
        self.flight_port = 0
        self.amqp_port = 0

    # --- a broker -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def broker(self) -> Iterator[Bench]:
        """A fresh durable broker with its data plane."""
        (self.flight_port,) = servers.free_ports(1)
        broker = Broker(FLINTMQ, options=("--flight-port", str(self.flight_port), "--log-level", "warning"))
        try:
            server = broker.server(fresh=True, durable=True)
            self.amqp_port, self._broker = server.port, broker
            with self.plane() as plane:
                self._pids = (server.pid, int(plane.status()["flight"]["pid"]))
            yield self
        except Exception as error:
            log = (broker.directory or self.scratch) / "stderr.log"
            raise RuntimeError(f"{error}; the broker's log: {log.read_text()[-1500:] if log.exists() else '-'}") from error
        finally:
            self._pids, self._broker = (None, None), None
            broker.stop()

    def plane(self) -> DataPlane:
        return DataPlane("127.0.0.1", self.flight_port)

    def fill(self, count: int, prefix: str = "f", size: int = BODY) -> str:
        """Publishes durable, persistent messages with confirms. Returns: the queue. Raises: RuntimeError."""
        assert self._broker is not None
        server = self._broker.server(durable=True)
        arguments = f"--mode publish --durable --persistent --keep --size {size} --count {count} --confirm 5000 --prefix {prefix}"
        filled = perf(server, arguments.split(), 300)
        if not filled.get("ok"):
            raise RuntimeError(f"the queue was not filled: {filled.get('error') or filled}")
        return f"{prefix}.q00000"

    @property
    def pid(self) -> int:
        """The broker's. Raises: AssertionError: none runs."""
        assert self._pids[0] is not None
        return self._pids[0]

    @property
    def pids(self) -> dict[str, int]:
        """Of the broker and its Flight service, while they run."""
        return {name: pid for name, pid in zip(("broker", "service"), self._pids, strict=True) if pid}

    def declare(self, queue: str, arguments: dict[str, Any] | None = None) -> None:
        self._channel(lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments))

    def ready(self, queue: str) -> int:
        """Messages that are ready in a queue."""
        return int(self._channel(lambda channel: channel.queue_declare(queue, passive=True).method.message_count))

    def _channel(self, work: Callable[[Any], Any]) -> Any:
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            return work(connection.channel())
        finally:
            connection.close()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/%2F"

    # --- measuring ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def metered(self) -> Iterator[Metered]:
        """What happens inside is what the run cost."""
        meter = Metered()
        cpu, busy, began = CpuMeter(*self._pids, self.jvm), busy_s(), time.perf_counter()
        yield meter
        meter.elapsed_s = time.perf_counter() - began
        meter.cpu_s, whole = cpu.end(), busy_s() - busy
        meter.looks = cpu.looks
        meter.other_cores = max(0.0, whole - sum(meter.cpu_s.values())) / max(meter.elapsed_s, 1e-9)
        self.meter = meter

    def folder(self, name: str) -> Path:
        """A new directory, gone with the sitting."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))

    # --- Spark --------------------------------------------------------------------------------------------------------

    def stream(self, queue: str, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("flintmq").option("queue", queue).option("flightPort", self.flight_port)
        reader = reader.option("onNewCheckpoint", "continue")  # each run has a checkpoint and a path of its own
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def constant(self, path: Path, rows: int, *, stream: bool, per_batch: int = 500_000) -> DataFrame:
        self.spark.dataSource.register(ConstantSource)
        reader = (self.spark.readStream if stream else self.spark.read).format(ConstantSource.name())
        options = {"path": str(path), "rows": rows, "partitions": 2, "perBatch": per_batch}
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def sample(self, queue: str, columns: str | None) -> Path:
        """The broker's messages in a queue as an Arrow file, for the constant source."""
        import pyarrow as pa

        path = self.folder("constant") / "batch.arrow"
        with self.plane() as plane:
            browse = plane.browse_open([queue])
            batches = [
                batch for ticket in browse.tickets for batch in plane.read(ticket, columns=None if columns is None else columns.split(","))
            ]
            plane.browse_close(browse.id)
        with pa.OSFile(str(path), "w") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return path


def run_now(frame: DataFrame, target: Path | None, checkpoint: Path, **sink: Any) -> tuple[StreamingQuery, list[dict[str, Any]]]:
    """An AvailableNow run to its end, into Parquet at `target` (None: the format of `sink`). Returns: the query, its batches with rows."""
    writer = frame.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
    writer = writer.format("parquet").option("path", str(target)) if target is not None else writer.format(sink.pop("format", "noop"))
    for name, value in sink.items():
        writer = writer.option(name, value)
    query = writer.start()
    query.awaitTermination()
    if (error := query.exception()) is not None:
        raise RuntimeError(str(error))
    return query, [json.loads(each.json) for each in query.recentProgress if each.numInputRows]


def steady_rate(batches: list[dict[str, Any]]) -> float:
    """Messages per second of the batches after the first one (of all, when there is one only), by what each trigger took."""
    counted = batches[1:] or batches
    return sum(each["numInputRows"] for each in counted) / (sum(each["durationMs"]["triggerExecution"] for each in counted) / 1e3)


def steady_busy(batches: list[dict[str, Any]], meter: Metered) -> float:
    """Share of all cores that broker, service, JVM and Python used while the batches of `steady_rate` ran."""
    counted = batches[1:] or batches
    begin, last = (datetime.datetime.fromisoformat(batch["timestamp"]).timestamp() for batch in (counted[0], counted[-1]))
    end = last + counted[-1]["durationMs"]["triggerExecution"] / 1e3
    return spent(meter.looks, begin, end) / (end - begin) / (os.cpu_count() or 1)


def check_parquet(target: Path, count: int) -> None:
    """R2. Raises: RuntimeError."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(str(target), format="parquet").to_table(columns=["position"])
    different = pc.count_distinct(table["position"]).as_py()
    if table.num_rows != count or different != count:
        raise RuntimeError(f"{table.num_rows} rows, {different} different ones, instead of {count}")


# --- rows -------------------------------------------------------------------------------------------------------------


def _to_parquet(bench: Bench, count: int, **options: Any) -> Values:
    """Queue to Parquet; the figures of R1. A short run before it, on the same broker, makes everything warm."""
    with bench.broker():
        warm = bench.fill(bench.sizes.warm, "w")
        queue = bench.fill(count)
        run_now(bench.stream(warm, **options), bench.folder("warm"), bench.folder("cp"))
        frame, target, checkpoint = bench.stream(queue, **options), bench.folder("out"), bench.folder("cp")
        with bench.metered() as meter:
            _, batches = run_now(frame, target, checkpoint)
        check_parquet(target, count)
        shutil.rmtree(target)
    return {
        "steady": steady_rate(batches),
        "whole": count / meter.elapsed_s,
        "busy": steady_busy(batches, meter),
        "busy_whole": sum(meter.cpu_s.values()) / meter.elapsed_s / (os.cpu_count() or 1),
        "batches": len(batches),
    }


def steady(bench: Bench) -> Values:
    return _to_parquet(bench, bench.sizes.steady)


def steady_three(bench: Bench) -> Values:
    return _to_parquet(bench, bench.sizes.steady, columns=THREE)


def partitions(bench: Bench) -> Values:
    """One queue with one and with four partitions."""
    found: Values = {}
    for count in (1, 4):
        values = _to_parquet(bench, bench.sizes.parallel, minPartitions=count, maxMessagesPerTrigger=bench.sizes.parallel // 3)
        found |= {f"rate{count}": values["steady"], f"busy{count}": values["busy"], f"busy_whole{count}": values["busy_whole"]}
    return found | {"ratio": found["rate4"] / found["rate1"]}


def _ceiling(bench: Bench, columns: str | None) -> Values:
    """Constant batches of the same columns."""
    rows, found = bench.sizes.steady, {}
    with bench.broker():
        path = bench.sample(bench.fill(bench.sizes.constant), columns)
    warm = bench.sizes.warm
    run_now(bench.constant(path, warm, stream=True), bench.folder("warm"), bench.folder("cp"))
    target = bench.folder("out")
    with bench.metered():
        _, batches = run_now(bench.constant(path, rows, stream=True), target, bench.folder("cp"))
    meter = bench.meter
    found["parquet"] = steady_rate(batches)
    found["whole"] = rows / meter.elapsed_s
    shutil.rmtree(target)
    bench.constant(path, warm, stream=False).write.format("noop").mode("overwrite").save()
    for name in ("noop", "parquet"):
        began = time.perf_counter()
        writer = bench.constant(path, rows, stream=False).write.mode("overwrite")
        writer.format("noop").save() if name == "noop" else writer.parquet(str(bench.scratch / "ceiling"))
        found[f"batch_{name}"] = rows / (time.perf_counter() - began)
    shutil.rmtree(bench.scratch / "ceiling")
    bench.meter = meter
    return found


def ceiling(bench: Bench) -> Values:
    return _ceiling(bench, None)


def ceiling_three(bench: Bench) -> Values:
    return _ceiling(bench, THREE)


def sink(bench: Bench) -> Values:
    """A DataFrame of `body` into a queue: staged, prepared, committed, all durable."""
    count = bench.sizes.sink

    def save(rows: int, queue: str) -> None:
        frame = bench.spark.range(0, rows, 1, 2).selectExpr("cast(rpad(cast(id as string), 100, 'x') as binary) as body")
        frame.write.format("flintmq").option("flightPort", bench.flight_port).option("queue", queue).mode("append").save()

    with bench.broker():
        for queue in ("warm", "out"):
            bench.declare(queue)
        save(bench.sizes.warm, "warm")
        with bench.metered() as meter:
            save(count, "out")
        if (found := bench.ready("out")) != count:
            raise RuntimeError(f"{found} messages in the queue instead of {count}")
    return {"rate": count / meter.elapsed_s}


def queue_to_queue(bench: Bench) -> Values:
    """Source and sink in one query: out of one queue, into another. Without `headers`, which `headers_raw` has exactly."""
    count = bench.sizes.sink
    with bench.broker():
        warm, queue = bench.fill(bench.sizes.warm, "w"), bench.fill(count)
        bench.declare("out")
        bench.declare("warm")
        options = {"format": "flintmq", "flightPort": bench.flight_port}
        run_now(bench.stream(warm).drop("headers"), None, bench.folder("cp"), queue="warm", **options)
        with bench.metered() as meter:
            _, batches = run_now(bench.stream(queue).drop("headers"), None, bench.folder("cp"), queue="out", **options)
        if (found := bench.ready("out")) != count:
            raise RuntimeError(f"{found} messages in the queue instead of {count}")
    return {"rate": count / meter.elapsed_s, "steady": steady_rate(batches)}


# seconds between two looks at what is committed: the error of the lag, upwards
LOOK_S = 0.01


class Committed:
    """Watches which set a subscription has committed: the time at which each is first seen. A context manager."""

    def __init__(self, plane: DataPlane, name: str) -> None:
        self.seen: dict[int, int] = {}
        self._plane, self._name = plane, name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Committed:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        known = 0
        while not self._ended.wait(LOOK_S):
            try:
                committed = int(self._plane.sub_status(self._name)["committed"])
            except Exception:  # the query has not made it yet
                continue
            now = time.time_ns()
            for seq in range(known + 1, committed + 1):
                self.seen[seq] = now
            known = max(known, committed)


def triggers(bench: Bench) -> Values:
    """Batches of 100 messages: what one takes, and how long after Spark's commit the broker has committed it."""
    count = bench.sizes.triggers
    with bench.broker():
        warm, queue = bench.fill(1_000, "w"), bench.fill(100 * count)
        options = {"maxMessagesPerTrigger": 100, "subscription": "triggers"}
        run_now(bench.stream(warm, maxMessagesPerTrigger=100, columns=THREE), bench.folder("warm"), bench.folder("cp"))
        target, checkpoint = bench.folder("out"), bench.folder("cp")
        with bench.plane() as plane, Committed(plane, "triggers") as committed, bench.metered():
            _, batches = run_now(bench.stream(queue, **options), target, checkpoint)
        check_parquet(target, 100 * count)
    lags = []
    for path in (checkpoint / "commits").iterdir():
        if path.name.isdigit():
            seq = json.loads((checkpoint / "offsets" / path.name).read_text().splitlines()[-1])["seq"]
            lags.append((committed.seen[seq] - path.stat().st_ctime_ns) / 1e6)
    spent = sorted(each["durationMs"]["triggerExecution"] for each in batches[1:])
    lags.sort()
    found = {
        "trigger_p50": statistics.median(spent),
        "trigger_p99": spent[int(len(spent) * 0.99)],
        "lag_p50": statistics.median(lags),
        "lag_p99": lags[int(len(lags) * 0.99)],
        "batches": float(len(batches)),
    }
    for phase in sorted({name for each in batches for name in each["durationMs"]} - {"triggerExecution"}):
        found[f"ms_{phase}"] = statistics.median(each["durationMs"].get(phase, 0) for each in batches[1:])
    return found


def today(bench: Bench) -> Values:
    """A consumer with pika writes JSON files, Spark reads them into Parquet: one after the other."""
    count = bench.sizes.today
    with bench.broker():
        queue = bench.fill(count)
        files, target = bench.folder("json"), bench.folder("out")
        with bench.metered() as meter:
            consumed = _consumer(bench, queue, count, files)
            began = time.perf_counter()
            schema = "queue string, exchange string, routing_key string, message_id string, headers map<string,string>, body string"
            frame = bench.spark.readStream.schema(schema).json(str(files)).selectExpr("* except (body)", "unbase64(body) as body")
            run_now(frame, target, bench.folder("cp"))
            converted = time.perf_counter() - began
        _check_rows(target, count)
    return {"consumer": count / consumed, "spark": count / converted, "both": count / meter.elapsed_s}


def today_without_spark(bench: Bench) -> Values:
    """The least that does it: a consumer with pika writes Parquet with pyarrow."""
    count = bench.sizes.today
    with bench.broker():
        queue = bench.fill(count)
        target = bench.folder("out")
        with bench.metered() as meter:
            consumed = _consumer(bench, queue, count, target, "--parquet")
        _check_rows(target, count)
    return {"consumer": count / consumed, "both": count / meter.elapsed_s}


def _consumer(bench: Bench, queue: str, count: int, folder: Path, *options: str) -> float:
    """Runs a consumer of today in a process of its own. Returns: its seconds. Raises: RuntimeError."""
    command = [sys.executable, "-m", "bench.spark_parts", bench.url, queue, str(count), str(folder), *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"the consumer failed: {done.stderr[-300:]}")
    return float(json.loads(done.stdout)["seconds"])


def _check_rows(target: Path, count: int) -> None:
    import pyarrow.dataset as ds

    if (rows := ds.dataset(str(target), format="parquet").count_rows()) != count:
        raise RuntimeError(f"{rows} rows instead of {count}")


def flight(bench: Bench) -> Values:
    """bench/flight.py: 100-byte bodies with the publisher of W6b beside it, and 1 KiB."""
    from bench.flight import measure

    found: Values = {}
    for size in (BODY, 1024):
        with bench.metered():
            result = measure(size, bench.sizes.flight, with_publisher=size == BODY)
        found |= {f"{size}_{readers}_{key}": value for readers in ("one_reader", "two_readers") for key, value in result[readers].items()}
        if "w6b" in result:
            found |= {"w6b_read": result["w6b"]["read_mb_s"]}
            found |= {f"w6b_{name}_{key}": value for name in ("p50", "p99") for key, value in result["w6b"][name].items()}
    return found


NO_TARGET = Target()


@dataclass(frozen=True)
class Figure:
    """One line of the table. key: of the values."""

    key: str
    caption: str
    target: Target = NO_TARGET


@dataclass(frozen=True)
class Row:
    """messages: of the measured part, for the CPU per million; None: not told."""

    name: str
    title: str
    work: Callable[[Bench], Values]
    figures: tuple[Figure, ...]
    messages: Callable[[Sizes], int] | None = None


ROWS: tuple[Row, ...] = (
    Row(
        "steady", "queue -> Parquet, all 25 columns", steady,
        (
            Figure("steady", "messages/s, steady", above(120_000, "at least 120,000")),
            Figure("whole", "messages/s, from start to end of the run"),
        ),
        lambda sizes: sizes.steady,
    ),
    Row(
        "three", "queue -> Parquet, 3 columns (queue, position, body)", steady_three,
        (Figure("steady", "messages/s, steady"), Figure("whole", "messages/s, from start to end of the run")),
        lambda sizes: sizes.steady,
    ),
    Row(
        "ceiling", "Spark alone: constant record batches, all 25 columns", ceiling,
        (
            Figure("parquet", "rows/s, stream -> Parquet, steady"),
            Figure("batch_parquet", "rows/s, batch -> Parquet"),
            Figure("batch_noop", "rows/s, batch -> noop"),
        ),
        lambda sizes: sizes.steady,
    ),
    Row(
        "ceiling3", "Spark alone: constant record batches, 3 columns", ceiling_three,
        (
            Figure("parquet", "rows/s, stream -> Parquet, steady"),
            Figure("batch_parquet", "rows/s, batch -> Parquet"),
            Figure("batch_noop", "rows/s, batch -> noop"),
        ),
        lambda sizes: sizes.steady,
    ),
    Row(
        "today", "what people write today: pika -> JSON files -> Spark -> Parquet", today,
        (
            Figure("both", "messages/s, one after the other"),
            Figure("consumer", "messages/s, the consumer"),
            Figure("spark", "messages/s, Spark's part"),
        ),
        lambda sizes: sizes.today,
    ),
    Row(
        "glue", "the least that people write today: pika -> pyarrow -> Parquet, without Spark", today_without_spark,
        (Figure("both", "messages/s"), Figure("consumer", "messages/s, without the start of its process")),
        lambda sizes: sizes.today,
    ),
    Row(
        "sink", "DataFrame -> queue: staged, prepared, committed, durable", sink,
        (Figure("rate", "messages/s", above(60_000, "at least 60,000")),),
        lambda sizes: sizes.sink,
    ),
    Row(
        "through", "queue -> Spark -> queue, exactly once, 24 columns", queue_to_queue,
        (Figure("steady", "messages/s, steady"), Figure("rate", "messages/s, from start to end of the run")),
        lambda sizes: sizes.sink,
    ),
    Row(
        "triggers", "batches of 100 messages -> Parquet", triggers,
        (
            Figure("trigger_p50", "ms of a trigger, p50", below(600, "at most 600 ms")),
            Figure("trigger_p99", "ms of a trigger, p99"),
            Figure("lag_p99", "ms from Spark's commit to the broker's, p99", below(250, "at most 250 ms")),
            Figure("lag_p50", "ms from Spark's commit to the broker's, p50"),
        ),
    ),
    Row(
        "partitions", "one queue, 4 partitions beside 1", partitions,
        (
            Figure("ratio", "rate of 4 / rate of 1", above(1.3, "at least 1.3, or 0.9 busy with one")),
            Figure("busy1", "share of both cores that is busy with one, while the rate is taken"),
            Figure("busy_whole1", "the same from start to end of the run"),
            Figure("rate1", "messages/s, one"),
            Figure("rate4", "messages/s, four"),
        ),
        lambda sizes: sizes.parallel,
    ),
    Row(
        "flight", "Flight do_get, one reader, from the hot window", flight,
        (
            Figure("1024_one_reader_arrow_mb_s", "MB/s of Arrow buffers, 1 KiB bodies", above(500, "at least 500")),
            Figure("100_one_reader_arrow_mb_s", "MB/s of Arrow buffers, 100-byte bodies"),
            Figure("100_one_reader_rows_per_s", "rows/s, 100-byte bodies"),
            Figure("w6b_p50_ratio", "W6b: confirm latency p50 beside a reader / quiet", below(2, "at most 2")),
            Figure("w6b_p99_ratio", "W6b: confirm latency p99 beside a reader / quiet"),
            Figure("w6b_read", "MB/s that were read beside it"),
        ),
    ),
)  # fmt: skip

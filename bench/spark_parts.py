"""What the rows of bench/pipeline.py are made of: CPU by process, a Spark source that costs nothing, and what people write today.

in: pids; a file of record batches; a queue. out: seconds of CPU; rows; JSON files.

K1  Spark's Python processes come and go, and nobody waits for them: they are looked at ten times a second, and what one used after the
    last look is lost.
K2  The constant source gives the very batches that the broker sent once, so that Spark has the same work with them.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

TICKS = os.sysconf("SC_CLK_TCK")
# seconds between two looks at the processes
LOOK_S = 0.1

# --- CPU --------------------------------------------------------------------------------------------------------------


def _stat(pid: int) -> tuple[int, float] | None:
    """(parent, seconds of CPU); None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS


class CpuMeter:
    """Seconds of CPU since it was made: broker, Flight service, JVM, Spark's Python processes (below the JVM), this process (K1)."""

    def __init__(self, broker: int | None, service: int | None, jvm: int) -> None:
        self._pids = {"broker": broker, "service": service, "jvm": jvm}
        self._groups: dict[int, str] = {}
        self._last: dict[int, float] = {}
        # (seconds since 1970, seconds of CPU until then of all of them and of this process), ascending
        self.looks: list[tuple[float, float]] = []
        self._look()
        self._first = dict(self._last)
        self._own = os.times()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        table = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
        known = {pid: name for name, pid in self._pids.items() if pid}
        for pid, entry in table.items():
            if entry is None:
                continue
            group, above, steps = known.get(pid), entry, 0
            while group is None and above[0] > 1 and steps < 50:
                if above[0] == self._pids["jvm"]:
                    group = "python"
                above, steps = table.get(above[0]) or (0, 0.0), steps + 1
            if group is not None:
                self._groups[pid], self._last[pid] = group, entry[1]
        own = os.times()
        self.looks.append((time.time(), sum(self._last.values()) + own.user + own.system))

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()

    def end(self) -> dict[str, float]:
        """Seconds by group."""
        self._ended.set()
        self._thread.join()
        self._look()
        own, was = os.times(), self._own
        found = dict.fromkeys(("broker", "service", "jvm", "python"), 0.0)
        found["driver"] = own.user + own.system - was.user - was.system
        # what this process started and waited for: the consumer that people write today
        found["python"] = own.children_user + own.children_system - was.children_user - was.children_system
        for pid, seconds in self._last.items():
            found[self._groups[pid]] += seconds - self._first.get(pid, 0.0)
        return {name: round(value, 3) for name, value in found.items()}


def spent(looks: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds of CPU between two times, by what CpuMeter saw before and behind each. ValueError: it did not look on both sides."""

    def until(moment: float) -> float:
        for (before, low), (after, high) in pairwise(looks):
            if before <= moment <= after:
                return low + (high - low) * (moment - before) / max(after - before, 1e-9)
        raise ValueError("nobody looked at the processes then")

    return until(end) - until(begin)


def busy_s() -> float:
    """Seconds of CPU that the whole machine has used."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS


# --- Spark's own ceiling ----------------------------------------------------------------------------------------------


class ConstantSource(DataSource):  # type: ignore[misc]  # pyspark has no types here
    """`flintmq_bench_constant`: the batches of an Arrow file again and again. Options: path, rows, partitions; per_batch for streams."""

    @classmethod
    def name(cls) -> str:
        return "flintmq_bench_constant"

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(_batches(self.options["path"])[0].schema)
        if isinstance(schema, str):  # pragma: no cover - other versions of Spark
            raise TypeError(schema)
        return schema

    def reader(self, schema: Any) -> DataSourceReader:
        return ConstantReader(dict(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ConstantStream(dict(self.options))


def _batches(path: str) -> list[Any]:
    import pyarrow as pa

    with pa.memory_map(path) as file, pa.ipc.open_file(file) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]


class Part(InputPartition):  # type: ignore[misc]
    """Args: number: of the partition; rows."""

    def __init__(self, number: int, rows: int) -> None:
        self.number = number
        self.rows = rows


def _parts(rows: int, partitions: int) -> Sequence[InputPartition]:
    return [Part(number, rows // partitions + (number < rows % partitions)) for number in range(partitions)]


def _give(path: str, rows: int) -> Iterator[Any]:
    batches = _batches(path)
    number = 0
    while rows > 0:
        batch = batches[number % len(batches)]
        yield batch if batch.num_rows <= rows else batch.slice(0, rows)
        rows -= batch.num_rows
        number += 1


class ConstantReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str]) -> None:
        self.path, self.rows, self.count = options["path"], int(options["rows"]), int(options["partitions"])

    def partitions(self) -> Sequence[InputPartition]:
        return _parts(self.rows, self.count)

    def read(self, partition: Any) -> Iterator[Any]:
        return _give(self.path, partition.rows)


class ConstantStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str]) -> None:
        self.path, self.rows, self.count = options["path"], int(options["rows"]), int(options["partitions"])
        self.per_batch = int(options["perbatch"])

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.per_batch)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": min(self.rows, start["rows"] + self.per_batch)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _parts(end["rows"] - start["rows"], self.count)

    def read(self, partition: Any) -> Iterator[Any]:
        return _give(self.path, partition.rows)


# --- what people write today ------------------------------------------------------------------------------------------

# messages of a JSON file, and deliveries that are acknowledged at once, after a sync
FILE_MESSAGES, ACK_EVERY, PREFETCH = 50_000, 1_000, 2_000


def consume_to_json(url: str, queue: str, count: int, folder: Path) -> float:
    """A consumer with pika that writes JSON lines, syncs, then acknowledges; a file gets its name when it is complete. Returns: seconds."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    began = time.perf_counter()
    files = 0
    path = folder / f".{files}.tmp"
    file = path.open("w")
    for done, (method, properties, body) in enumerate(channel.consume(queue), 1):
        line = {
            "queue": queue,
            "exchange": method.exchange,
            "routing_key": method.routing_key,
            "message_id": properties.message_id,
            "headers": properties.headers,
            "body": base64.b64encode(body).decode(),
        }
        file.write(json.dumps(line) + "\n")
        if done % ACK_EVERY == 0 or done == count:
            file.flush()
            os.fsync(file.fileno())
            if done % FILE_MESSAGES == 0 or done == count:
                file.close()
                path.rename(folder / f"{files}.json")
                files += 1
                path = folder / f".{files}.tmp"
                if done < count:
                    file = path.open("w")
            channel.basic_ack(method.delivery_tag, multiple=True)
        if done == count:
            break
    channel.cancel()
    elapsed = time.perf_counter() - began
    connection.close()
    return elapsed


def consume_to_parquet(url: str, queue: str, count: int, folder: Path) -> float:
    """A consumer with pika and pyarrow, without Spark: a Parquet file, synced, then its messages acknowledged. Returns: seconds.

    A kill between the two gives a file's messages twice: it is at-least-once, as the one with JSON is.
    """
    import pika
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("queue", "exchange", "routing_key", "message_id", "headers", "body")
    types = (pa.string(), pa.string(), pa.string(), pa.string(), pa.map_(pa.string(), pa.string()), pa.binary())
    schema = pa.schema(list(zip(names, types, strict=True)))
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=FILE_MESSAGES)
    began = time.perf_counter()
    columns: list[list[Any]] = [[] for _ in names]
    for done, (method, properties, body) in enumerate(channel.consume(queue), 1):
        headers = None if properties.headers is None else [(name, str(value)) for name, value in properties.headers.items()]
        row = (queue, method.exchange, method.routing_key, properties.message_id, headers, body)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        if done % FILE_MESSAGES == 0 or done == count:
            path = folder / f".{done}.tmp"
            with path.open("wb") as file:
                pq.write_table(pa.table(columns, schema=schema), file)
                file.flush()
                os.fsync(file.fileno())
            path.rename(folder / f"{done}.parquet")
            columns = [[] for _ in names]
            channel.basic_ack(method.delivery_tag, multiple=True)
        if done == count:
            break
    channel.cancel()
    elapsed = time.perf_counter() - began
    connection.close()
    return elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description="The consumers that people write today; prints its seconds.")
    parser.add_argument("url")
    parser.add_argument("queue")
    parser.add_argument("count", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parquet", action="store_true", help="write Parquet with pyarrow, instead of JSON for Spark")
    options = parser.parse_args()
    consume = consume_to_parquet if options.parquet else consume_to_json
    print(json.dumps({"seconds": consume(options.url, options.queue, options.count, options.folder)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

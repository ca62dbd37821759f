"""The rows beside Kafka that are no queue -> Parquet: latency of micro-batches, DataFrame -> stream, a plain consumer, a long run.

in: a Bench, `flintmq` or `kafka`, options. out: a dictionary of figures for each run; a run whose check fails raises RuntimeError.

K1  Both sides have a broker of their own for each run, on the same disk, and a short run before the measured one.
K2  The age of a message in a micro-batch is counted from the broker's own time of its append (Kafka: LogAppendTime) to the end of the
    trigger that committed it in Spark. A file of Parquet belongs to the trigger in which it was closed.
K3  The producer of `latency` sends what has come in LINGER_S at once, with confirms, as Kafka's does (`linger.ms` is 5, `acks` all).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import kafka
from bench.pipeline_rows import ROOT, Bench, run_now
from bench.spark_cpu import Parts, below
from bench.spark_parts import TICKS
from bench.streams_socket import Reader, frame_size, produce
from tests.support.rawamqp import RawConnection
from tests.support.rawcodec import publish_bytes

Run = dict[str, Any]
RATE = 5_000
# seconds of a run of `latency` before its figures begin
WARM_S = 8.0
LINGER_S = 0.005
# seconds for a producer on a machine that is too busy for it
PRODUCER_S = 600
PREFETCH = 10_000
# messages of a round of `soak`, and of a partition that Kafka keeps meanwhile (bytes; segments are a quarter)
ROUND, KEPT = 200_000, 512 * 1024 * 1024
# of a frame of basic.ack: 7 + 13 + 1
ACK_BYTES = 21


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *below(pid)]


def cpu_s(pid: int) -> float:
    """Seconds of processor of a process and of all below it that live now."""
    seconds = 0.0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / TICKS
    return seconds


def resident(pid: int) -> dict[str, float]:
    """MiB of a process and of all below it: resident, and of it what no file is behind."""
    found = {"rss": 0.0, "anon": 0.0}
    for one in tree(pid):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{one}/status").read_text().splitlines() if ":" in line)
            for name, key in (("rss", "VmRSS"), ("anon", "RssAnon")):
                found[name] += int(lines.get(key, "0 kB").split()[0]) / 1024
    return {name: round(value, 1) for name, value in found.items()}


@contextlib.contextmanager
def _kafka(bench: Bench, where: Path, more: str = "") -> Iterator[kafka.Kafka]:
    scratch = bench.folder("kafka")
    try:
        with kafka.kafka(where, scratch, more) as server:
            yield server
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# --- latency ----------------------------------------------------------------------------------------------------------


def latency(bench: Bench, source: str, given: argparse.Namespace, where: Path) -> Run:
    """A query with the default trigger into Parquet while a producer sends RATE messages of 1 KiB a second."""
    count = int(RATE * (given.seconds + WARM_S))
    with contextlib.ExitStack() as stack:
        if source == "flintmq":
            stack.enter_context(bench.broker())
            frame, pid, moment = bench.stream(bench.fill(1_000, "lat", 1024)), bench.pid, "enqueued_time"
            command = [sys.executable, "-m", "bench.kafka_rows", str(bench.amqp_port), "lat.q00000", str(count)]
        else:
            server = stack.enter_context(_kafka(bench, where))
            server.fill("lat", 1_000, 1024)
            frame, pid, moment = server.stream(bench.spark, "lat", None), server.pid, "timestamp"
            command = server.producer("lat", count, 1024, RATE)
        target, checkpoint = bench.folder("out"), bench.folder("cp")
        writer = frame.writeStream.format("parquet").option("path", str(target)).option("checkpointLocation", str(checkpoint))
        query = writer.start()
        query.processAllAvailable()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
        producer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
        stack.callback(producer.wait)
        stack.callback(producer.kill)
        time.sleep(WARM_S)
        begin, before = time.time(), cpu_s(pid)
        if producer.wait(PRODUCER_S):
            raise RuntimeError(f"{source}: the producer ended with {producer.returncode}")
        end, after = time.time(), cpu_s(pid)
        query.processAllAvailable()
        progress = list(query.recentProgress)
        query.stop()
    ages = _ages(target, moment, progress, begin, end, 1_000 + count)
    shutil.rmtree(target)
    return {
        "messages": len(ages),
        "p50_s": round(statistics.median(ages), 3),
        "p99_s": round(ages[int(len(ages) * 0.99)], 3),
        "cores": round((after - before) / (end - begin), 3),
        "batches": sum(1 for one in progress if one.numInputRows),
    }


def send(port: int, queue: str, count: int) -> None:
    """K3: messages of 1 KiB, RATE a second; returns when all are confirmed."""
    channel = RawConnection("127.0.0.1", port).open().channel()
    channel.call("confirm.select")
    sock, one = channel.connection.sock, publish_bytes(1, b"x" * 1024, routing_key=queue, delivery_mode=2)
    began, sent, confirmed, rest = time.perf_counter(), 0, 0, b""
    sock.setblocking(False)
    while confirmed < count:
        due = min(count, int((time.perf_counter() - began) * RATE)) - sent
        if due:
            sock.setblocking(True)
            sock.sendall(one * due)
            sock.setblocking(False)
            sent += due
        with contextlib.suppress(BlockingIOError):
            rest += sock.recv(1 << 16)
        if whole := len(rest) // ACK_BYTES:
            confirmed = int.from_bytes(rest[(whole - 1) * ACK_BYTES + 11 :][:8], "big")
            rest = rest[whole * ACK_BYTES :]
        time.sleep(LINGER_S)


def _ages(target: Path, moment: str, progress: list[Any], begin: float, end: float, count: int) -> list[float]:
    """K2: seconds, ascending, of the messages that came between two times. Raises: RuntimeError: not all `count` are there."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    ends = sorted(
        datetime.datetime.fromisoformat(one.timestamp).timestamp() + one.durationMs["triggerExecution"] / 1e3
        for one in progress
        if one.numInputRows
    )
    ages, rows = [], 0
    for path in target.glob("*.parquet"):
        column = pq.read_table(path, columns=[moment])[moment]
        rows += len(column)
        closed = path.stat().st_mtime
        done = next(one for one in ends if one >= closed)
        came = [one / 1e6 for one in pc.cast(pc.cast(column, "timestamp[us]"), "int64").to_pylist()]
        ages += [done - one for one in came if begin <= one <= end]
    if rows != count or not ages:
        raise RuntimeError(f"{rows} rows instead of {count}")
    return sorted(ages)


# --- DataFrame -> stream ----------------------------------------------------------------------------------------------


def sink(bench: Bench, source: str, given: argparse.Namespace, where: Path) -> Run:
    """A DataFrame of 1 KiB rows into a stream, or a topic: until all of it can be read."""
    count = given.messages

    def frame(rows: int) -> Any:
        return bench.spark.range(0, rows, 1, 2).selectExpr("cast(rpad(cast(id as string), 1024, 'x') as binary) as value")

    with contextlib.ExitStack() as stack:
        if source == "flintmq":
            stack.enter_context(bench.broker())
            pids = bench.pids

            def save(rows: int, name: str) -> None:
                writer = frame(rows).write.format("flintmq").option("flightPort", bench.flight_port).option("queue", name)
                writer.mode("append").save()
                until = time.monotonic() + 60
                while bench.ready(name) < rows and time.monotonic() < until:
                    time.sleep(0.01)

            for name in ("warm", "out"):
                bench.declare(name, {"x-queue-type": "stream"})
        else:
            server = stack.enter_context(_kafka(bench, where))
            pids = {"kafka": server.pid}

            def save(rows: int, name: str) -> None:
                writer = frame(rows).write.format("kafka").option("kafka.bootstrap.servers", server.address).option("topic", name)
                writer.save()

        save(min(100_000, count), "warm")
        with Parts(pids, bench.jvm) as parts:
            began = time.perf_counter()
            save(count, "out")
            seconds = time.perf_counter() - began
        if (found := bench.ready("out") if source == "flintmq" else server.count("out")) != count:
            raise RuntimeError(f"{source}: {found} messages instead of {count}")
    spent = {part: round(value / count * 1e6, 2) for part, value in parts.seconds().items()}
    return {"rate": round(count / seconds), "all": round(sum(spent.values()), 2), "cpu_s_per_m": spent}


# --- a plain consumer -------------------------------------------------------------------------------------------------


def consume(bench: Bench, source: str, given: argparse.Namespace, where: Path) -> Run:
    """A client of the broker's own protocol reads a stream, or a topic, from its beginning: what that costs the broker."""
    count = given.messages - given.messages % 500
    with contextlib.ExitStack() as stack:
        if source == "flintmq":
            stack.enter_context(bench.broker())
            pid, body = bench.pid, b"x" * 1024
            bench.declare("full", {"x-queue-type": "stream"})
            frame = frame_size(bench.amqp_port, "full", body)
            channel = RawConnection("127.0.0.1", bench.amqp_port).open().channel()
            channel.call("confirm.select")
            produce(channel, "full", body, count)

            def read(group: str) -> None:
                reader = Reader(bench.amqp_port, "full", group, 1, PREFETCH, frame)
                buffer = bytearray(1 << 20)
                while reader.count < count:
                    reader.read(buffer)
                reader.finish()
                reader.connection.drop()

        else:
            server = stack.enter_context(_kafka(bench, where))
            pid = server.pid
            server.fill("full", count, 1024)

            def read(group: str) -> None:
                server.consume("full", count)

        read("warm")
        before, began = cpu_s(pid), time.perf_counter()
        read("measured")
        return {"broker_s": round((cpu_s(pid) - before) / count * 1e6, 3), "rate": round(count / (time.perf_counter() - began))}


# --- memory over a long run -------------------------------------------------------------------------------------------


def soak(bench: Bench, source: str, given: argparse.Namespace, where: Path) -> Run:
    """Rounds of publishing and of a query over what came, for `soak_s` seconds, with a look at the broker's memory after each."""
    samples: list[dict[str, float]] = []
    checkpoint, began = bench.folder("cp"), time.monotonic()
    with contextlib.ExitStack() as stack:
        if source == "flintmq":
            stack.enter_context(bench.broker())
        else:
            kept = f"log.retention.bytes={KEPT}\nlog.segment.bytes={KEPT // 4}\nlog.retention.check.interval.ms=5000\n"
            server = stack.enter_context(_kafka(bench, where, kept))
        pid = bench.pid if source == "flintmq" else server.pid
        while time.monotonic() - began < given.soak_s or len(samples) < 4:
            if source == "flintmq":
                frame = bench.stream(bench.fill(ROUND, "soak", 1024), maxMessagesPerTrigger=given.batch)
            else:
                server.fill("soak", ROUND, 1024)
                frame = server.stream(bench.spark, "soak", given.batch)
            run_now(frame, None, checkpoint, format="noop")
            samples.append({"s": round(time.monotonic() - began, 1)} | resident(pid))
    quarter = max(1, len(samples) // 4)
    first, last = (max(one["rss"] for one in part) for part in (samples[:quarter], samples[-quarter:]))
    highest = max(one["rss"] for one in samples)
    return {"rounds": len(samples), "highest": highest, "growth": round(last / first, 3), "samples": samples}


WORK = {"latency": latency, "sink": sink, "consume": consume, "soak": soak}

if __name__ == "__main__":
    send(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

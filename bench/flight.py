"""What Arrow Flight reads from a queue, and what that costs a publisher beside it.

`python -m bench.flight [--count 500000] [--sizes 100,1024] [--json]`

in: sizes of bodies, messages. out: per size rows/s and MB/s of one reader and of two at once, from a set that is read again and again
(page cache), with the CPU that service and broker spend; W6b: confirm latency of an AMQP publisher, quiet and while SHARE_MB_S are read.

F1  The set stays prepared: all rounds read the same rows, and each round is checked for their number and for positions without gaps.
F2  Readers are processes of their own, as Spark's workers are; the publisher is `flintmq perf`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from bench.runners import perf
from flintmq.flight.client import DataPlane
from tests.support.broker import Broker

ROUNDS = 3
# MB (10^6 bytes) of Arrow buffers per second that are read beside the publisher of W6b
SHARE_MB_S = 500.0
# messages per second of that publisher, body bytes, and seconds of each run
RATE, BODY, SECONDS = 5_000, 100, 4.0
PAIRS = 3
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """What bench.runners.perf needs of a broker."""

    port: int
    pid: int


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, without its children."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def read_all(port: int, ticket: bytes) -> tuple[int, int, int]:
    """One round. Returns: rows, bytes of Arrow buffers, bytes of bodies. Raises: AssertionError for a gap (F1)."""
    import pyarrow.compute as pc

    rows = size = bodies = 0
    after = None
    with DataPlane("127.0.0.1", port) as plane:
        for batch in plane.read(ticket):
            rows += batch.num_rows
            size += batch.nbytes
            bodies += pc.sum(pc.binary_length(batch.column("body"))).as_py()
            positions = batch.column("position")
            first, last = positions[0].as_py(), positions[-1].as_py()
            assert last - first + 1 == batch.num_rows and after in (None, first), "positions have a gap"
            after = last + 1
    return rows, size, bodies


def reader(port: int, ticket: bytes, out: Any) -> None:
    """A process: one round when it is told to, again and again."""
    while out.recv():
        began = time.perf_counter()
        rows, size, bodies = read_all(port, ticket)
        out.send((rows, size, bodies, time.perf_counter() - began))


def paced(port: int, ticket: bytes, out: Any) -> None:
    """A process: reads at SHARE_MB_S until it is told to stop; then says what it read, and in which time."""
    out.recv()
    size, began = 0, time.perf_counter()
    with DataPlane("127.0.0.1", port) as plane:
        while not out.poll():
            for batch in plane.read(ticket):
                size += batch.nbytes
                ahead = size / (SHARE_MB_S * 1e6) - (time.perf_counter() - began)
                if ahead > 0:
                    time.sleep(ahead)
                if out.poll():
                    break
    out.send((size, time.perf_counter() - began))


class Readers:
    """Processes that read: started before anything is measured. A context manager."""

    def __init__(self, port: int, tickets: list[bytes], work: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Any] = []
        self._processes = []
        for ticket in tickets:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(port, ticket, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe, process in zip(self.pipes, self._processes, strict=True):
            if exc[0] is None and process.is_alive():
                pipe.send(False)
            else:
                process.terminate()
            process.join(10)

    def round(self) -> list[tuple[int, int, int, float]]:
        """One round of all at once: what each read."""
        for pipe in self.pipes:
            pipe.send(True)
        return [pipe.recv() for pipe in self.pipes]


def prepared(plane: DataPlane, queue: str, count: int) -> tuple[Any, int]:
    """Opens a subscription and prepares all of the queue as one set: (subscription, seq)."""
    opened = plane.sub_open("bench", [queue])
    seq = opened.committed + 1
    set_ = plane.sub_acquire(opened.sub_id, opened.epoch, seq, max_messages=count, max_bytes=1 << 40, max_wait_ms=5000)
    assert set_.count == count, f"a set of {set_.count} of {count} messages"
    return opened, seq


def rates(broker: Broker, port: int, tickets: list[bytes], count: int) -> dict[str, float]:
    """Medians over the rounds after the first one."""
    assert broker.pid is not None
    with DataPlane("127.0.0.1", port) as plane:
        child = int(plane.status()["flight"]["pid"])
    found = []
    with Readers(port, tickets, reader) as readers:
        for number in range(ROUNDS + 1):
            before = cpu_s(child), cpu_s(broker.pid)
            parts = readers.round()
            spent = cpu_s(child) - before[0], cpu_s(broker.pid) - before[1]
            rows, elapsed = sum(part[0] for part in parts), max(part[3] for part in parts)
            assert rows == count, f"{rows} rows of {count}"
            if number:
                size, bodies = sum(part[1] for part in parts), sum(part[2] for part in parts)
                found.append((rows / elapsed, size / elapsed / 1e6, bodies / elapsed / 1e6, spent[0] / rows * 1e6, spent[1] / rows * 1e6))
    names = ("rows_per_s", "arrow_mb_s", "body_mb_s", "service_cpu_s_per_million", "broker_cpu_s_per_million")
    return {name: round(statistics.median(values), 2) for name, values in zip(names, zip(*found, strict=True), strict=True)}


def beside(broker: Broker, port: int, ticket: bytes) -> dict[str, Any]:
    """W6b: quiet and loaded runs of the publisher, alternated."""
    assert broker.pid is not None
    server = Server(broker.port, broker.pid)
    load = f"--mode publish --durable --persistent --size {BODY} --rate {RATE} --confirm 256 --time {SECONDS} --prefix w6b"
    quiet, loaded, read = [], [], []
    for _ in range(PAIRS):
        quiet.append(_confirms(perf(server, load.split(), 60)))
        with Readers(port, [ticket], paced) as readers:
            time.sleep(1.0)  # its start is not part of the run
            readers.pipes[0].send(True)
            loaded.append(_confirms(perf(server, load.split(), 60)))
            readers.pipes[0].send(False)
            size, elapsed = readers.pipes[0].recv()
            read.append(size / elapsed / 1e6)
    result: dict[str, Any] = {"read_mb_s": round(statistics.median(read), 1)}
    for name in ("p50", "p99"):
        before, after = (statistics.median(run[name] for run in runs) for runs in (quiet, loaded))
        result[name] = {"quiet_us": before, "loaded_us": after, "ratio": round(after / before, 2)}
    return result


def _confirms(result: dict[str, Any]) -> dict[str, float]:
    if not result.get("ok") or not result.get("confirm_us"):
        raise RuntimeError(f"the publisher failed: {result.get('error') or result}")
    figures: dict[str, float] = result["confirm_us"]
    return figures


def measure(size: int, count: int, with_publisher: bool) -> dict[str, Any]:
    """One broker, one queue of `count` messages of `size` bytes."""
    with Broker("--flight-port", "0", "--log-level", "warning") as broker:
        assert broker.pid is not None
        port = int(broker.ready["flight_port"])
        fill = f"--mode publish --durable --persistent --keep --size {size} --count {count} --confirm 1000 --prefix f"
        filled = perf(Server(broker.port, broker.pid), fill.split(), 300)
        if not filled.get("ok"):
            raise RuntimeError(f"the queue was not filled: {filled}")
        with DataPlane("127.0.0.1", port) as plane:
            began = time.perf_counter()
            opened, seq = prepared(plane, "f.q00000", count)
            result: dict[str, Any] = {"size": size, "count": count, "prepare_s": round(time.perf_counter() - began, 3)}
            one = plane.sub_plan(opened.sub_id, opened.epoch, seq, 1)
            two = plane.sub_plan(opened.sub_id, opened.epoch, seq, 2)
            result["one_reader"] = rates(broker, port, one, count)
            result["two_readers"] = rates(broker, port, two, count)
            if with_publisher:
                result["w6b"] = beside(broker, port, one[0])
            began = time.perf_counter()
            plane.sub_commit(opened.sub_id, opened.epoch, seq)
            result["commit_s"] = round(time.perf_counter() - began, 3)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500_000, help="messages (at most 1,000,000: one set)")
    parser.add_argument("--sizes", default="100,1024", help="bytes of bodies")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    for number, size in enumerate(int(text) for text in options.sizes.split(",")):
        result = measure(size, options.count, with_publisher=number == 0)
        results.append(result)
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        print(f"{result['count']:,} messages of {size} bytes: prepared in {result['prepare_s']} s, committed in {result['commit_s']} s")
        for name in ("one_reader", "two_readers"):
            print(f"  {name}: " + ", ".join(f"{key} {value:,}" for key, value in result[name].items()))
        if "w6b" in result:
            print(f"  confirms beside a reader of {result['w6b']['read_mb_s']} MB/s: {result['w6b']['p50']} p99 {result['w6b']['p99']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

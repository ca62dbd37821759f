"""Many tasks of Spark at once at one broker: what they write, what they read, and whether one of them fails.

`python -m bench.flight_crowd [--tasks 60,320,1000] [--readers 8,320,600] [--total 1000] [--rows 500] [--count 1000000] [--processes 8]`

in: how many tasks are there at once. out: for each number the failures, seconds and rows/s, with the processor time of service, broker and
clients, and how often the service said BUSY.

C1  A task does what the sink's does, or the source's: a connection of its own, its calls, its rows. Tasks are threads of a few processes,
    which begin together; a Spark executor has a process for each, which costs the executors more and the broker the same. Writers do
    `--total` tasks in all, or as many as there are at once when that is more: one after another in so many threads.
C2  What was written is committed and counted; what was read is counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bench.flight import Server, cpu_s, prepared
from bench.runners import perf
from flintmq.flight.client import DataPlane
from tests.support.broker import Broker

QUEUE = "crowd"
BODY = 100


def write_one(port: int, number: int, told: dict[str, Any]) -> dict[str, Any]:
    """What a task of the sink does. Returns: the id of its stage."""
    import pyarrow as pa

    rows = told["rows"]
    batch = pa.record_batch({"routing_key": [QUEUE] * rows, "body": pa.array([b"x" * BODY] * rows, pa.binary())})
    with DataPlane("127.0.0.1", port, timeout_s=told["timeout_s"], busy_s=3_600.0) as plane:
        begun = plane.stage_begin(told["scope"], told["epoch"], told["batch"], part=number, attempt=number, kind="once")
        assert begun.stage_id is not None
        plane.put(begun.stage_id, [batch])
        facts = plane.stage_prepare(begun.stage_id)
        assert facts.count == rows, facts
        return {"rows": rows, "stage": begun.stage_id}


def read_one(port: int, number: int, told: dict[str, Any]) -> dict[str, Any]:
    """What a task of the source does."""
    with DataPlane("127.0.0.1", port, timeout_s=told["timeout_s"], busy_s=3_600.0) as plane:
        return {"rows": sum(batch.num_rows for batch in plane.read(told["tickets"][number]))}


def crowd(port: int, work: Callable[[int, int, dict[str, Any]], dict[str, Any]], pipe: Any) -> None:
    """A process: threads that begin together when it is told to, again and again."""
    import pyarrow.flight  # noqa: F401

    while (told := pipe.recv()) is not None:
        found: list[dict[str, Any]] = []
        ready = threading.Barrier(told["at_once"] + 1)
        left = deque(told["numbers"])

        def task(told: dict[str, Any] = told, ready: Any = ready, found: Any = found, left: Any = left) -> None:
            ready.wait()
            while True:
                began = time.perf_counter()
                try:
                    done = work(port, left.popleft(), told)
                except IndexError:
                    return
                except Exception as error:
                    done = {"error": str(error)}
                found.append({**done, "seconds": time.perf_counter() - began})

        threads = [threading.Thread(target=task) for _ in range(told["at_once"])]
        for thread in threads:
            thread.start()
        pipe.send("ready")
        pipe.recv()
        ready.wait()
        before = time.process_time()
        for thread in threads:
            thread.join()
        pipe.send((found, time.process_time() - before))


class Crowd:
    """Processes with tasks. A context manager."""

    def __init__(self, port: int, work: Any, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self._processes = [], []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=crowd, args=(port, work, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe, process in zip(self.pipes, self._processes, strict=True):
            pipe.send(None) if exc[0] is None else process.terminate()
            process.join(20)

    def run(self, at_once: int, total: int, told: dict[str, Any]) -> tuple[list[dict[str, Any]], float, float]:
        """So many tasks at once. Returns: what each did; seconds to the last one's end; processor seconds of the clients."""
        used = self.pipes[:at_once]
        for number, pipe in enumerate(used):
            threads = len(range(number, at_once, len(used)))
            pipe.send({**told, "numbers": list(range(number, total, len(used))), "at_once": threads})
        for pipe in used:
            assert pipe.recv() == "ready"
        began = time.perf_counter()
        for pipe in used:
            pipe.send(True)
        answers = [pipe.recv() for pipe in used]
        elapsed = time.perf_counter() - began
        return [one for found, _ in answers for one in found], elapsed, sum(spent for _, spent in answers)


def row_of(at_once: int, found: list[dict[str, Any]], elapsed: float, spent: tuple[float, float, float]) -> dict[str, Any]:
    """Figures of one run."""
    errors = [one["error"] for one in found if "error" in one]
    rows = sum(one.get("rows", 0) for one in found)
    seconds = sorted(one["seconds"] for one in found)
    return {
        "at_once": at_once,
        "tasks": len(found),
        "failed": len(errors),
        "seconds": round(elapsed, 2),
        "rows_per_s": round(rows / elapsed),
        "median_s": round(statistics.median(seconds), 2),
        "last_s": round(seconds[-1], 2),
        "service_cpu_s": round(spent[0], 2),
        "broker_cpu_s": round(spent[1], 2),
        "clients_cpu_s": round(spent[2], 2),
        **({"errors": sorted({error[:160] for error in errors})[:4]} if errors else {}),
    }


def timed(broker: Broker, crowded: Crowd, numbers: tuple[int, int], told: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One run and its figures. Args: numbers: of tasks at once, and in all."""
    assert broker.pid is not None
    with DataPlane("127.0.0.1", int(broker.ready["flight_port"])) as plane:
        service = plane.status()["flight"]
        child, busy = int(service["pid"]), int(service["line"]["busy"])
        before = cpu_s(child), cpu_s(broker.pid)
        found, elapsed, clients = crowded.run(*numbers, told)
        spent = cpu_s(child) - before[0], cpu_s(broker.pid) - before[1], clients
        busy = int(plane.status()["flight"]["line"]["busy"]) - busy
        return found, {**row_of(numbers[0], found, elapsed, spent), "told_busy": busy}


def writes(broker: Broker, port: int, numbers: list[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """C1, C2 for writers."""
    figures = []
    with Crowd(port, write_one, options.processes) as crowded, DataPlane("127.0.0.1", port) as plane:
        for batch, tasks in enumerate(numbers):
            scope = f"once:crowd-{batch}"
            told = {"rows": options.rows, "scope": scope, "epoch": plane.scope_open(), "batch": batch, "timeout_s": options.timeout}
            found, row = timed(broker, crowded, (tasks, max(tasks, options.total)), told)
            stages = [one["stage"] for one in found if "stage" in one]
            plane.stage_commit(scope, told["epoch"], batch, stages)
            figures.append(row)
            print(json.dumps({"writers": row}), flush=True)
    return figures


def reads(broker: Broker, port: int, numbers: list[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """C1, C2 for readers: all of one set, as many slices as readers."""
    assert broker.pid is not None
    fill = f"--mode publish --durable --persistent --keep --size {BODY} --count {options.count} --confirm 1000 --prefix f"
    filled = perf(Server(broker.port, broker.pid), fill.split(), 300)
    assert filled.get("ok"), filled
    figures = []
    with Crowd(port, read_one, options.processes) as crowded, DataPlane("127.0.0.1", port) as plane:
        opened, seq = prepared(plane, "f.q00000", options.count)
        for readers in numbers:
            tickets = plane.sub_plan(opened.sub_id, opened.epoch, seq, readers)
            _, row = timed(broker, crowded, (len(tickets), len(tickets)), {"tickets": tickets, "timeout_s": options.timeout})
            figures.append(row)
            print(json.dumps({"readers": row}), flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", default="60,320,1000")
    parser.add_argument("--total", type=int, default=1_000)
    parser.add_argument("--readers", default="8,320,600")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with Broker("--flight-port", "0", "--log-level", "warning") as broker:
        port = int(broker.ready["flight_port"])
        with DataPlane("127.0.0.1", port) as plane:
            plane.status()  # the service starts on demand
        import pika

        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        for name, numbers, measure in (("writers", options.tasks, writes), ("readers", options.readers, reads)):
            if numbers:
                result[name] = measure(broker, port, [int(one) for one in numbers.split(",")], options)
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

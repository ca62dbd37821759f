"""What durable declares and binds cost: `python -m bench.definitions [--beside CHECKOUT] [--rounds 5] [--count 5000]`.

Each row is a number of connections and how many requests each has on its way. Figures: microseconds of the broker's processor for a
declare and for a bind (to amq.direct), and how many a second. With `--beside` a broker of another checkout, which is built, takes turns
with this one; the ratio is that of each pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flintmq.perf import wire
from tests.support.rawamqp import method_frame

HERE = Path(__file__).parents[1]
# connections, requests of each on their way
ROWS = ((200, 1), (4, 50), (1, 200), (1, 1))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(port: int, pid: int, clients: int, depth: int, frames: Sequence[bytes], answer: int) -> tuple[float, float]:
    """Sends the frames over `clients` connections. Returns: (microseconds of the broker, answers a second)."""
    connections = [wire.Client("127.0.0.1", port, "guest", "guest", "/") for _ in range(clients)]
    parts = [frames[number::clients] for number in range(clients)]
    sent, answered = [0] * clients, [0] * clients
    cpu, begun = cpu_s(pid), time.monotonic()
    while sum(answered) < len(frames):
        for number, connection in enumerate(connections):
            if sent[number] < len(parts[number]) and sent[number] - answered[number] <= depth // 2:
                until = min(len(parts[number]), answered[number] + depth)
                connection.send(b"".join(parts[number][sent[number] : until]))
                sent[number] = until
        for number, connection in enumerate(connections):
            for _ in range((sent[number] - answered[number] + 1) // 2):
                connection.wait_for(answer)
                answered[number] += 1
    seconds, spent = time.monotonic() - begun, cpu_s(pid) - cpu
    for connection in connections:
        connection.close()
    return spent / len(frames) * 1e6, len(frames) / seconds


def measure(checkout: Path, clients: int, depth: int, count: int) -> list[float]:
    """Of a new broker: declare_us, declares_s, bind_us, binds_s."""
    serve = [checkout / ".venv/bin/flintmq", "serve", "--port", "0", "--http-port", "off", "--flight-port", "off", "--data-dir"]
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen([*serve, directory], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        try:
            port = json.loads(process.stdout.readline())["amqp_port"]
            names = [f"q{number:08}" for number in range(count)]
            declares = [wire.queue_declare(name, durable=True, arguments=None) for name in names]
            binds = [method_frame(1, "queue.bind", queue=name, exchange="amq.direct", routing_key=name) for name in names]
            return [
                *ask(port, process.pid, clients, depth, declares, wire.QUEUE_DECLARE_OK),
                *ask(port, process.pid, clients, depth, binds, wire.QUEUE_BIND_OK),
            ]
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=5_000)
    options = parser.parse_args()
    checkouts = [HERE, *([options.beside] if options.beside else [])]
    for clients, depth in ROWS:
        runs = [[measure(one, clients, depth, options.count) for one in checkouts] for _ in range(options.rounds)]
        for index, name in enumerate(("declare, us", "declares/s", "bind, us", "binds/s")):
            figures = [statistics.median(run[which][index] for run in runs) for which in range(len(checkouts))]
            line = f"{clients:4} x {depth:3}  {name:12} {figures[0]:10.1f}"
            if options.beside:
                line += f"  beside {figures[1]:10.1f}  ratio {statistics.median(run[0][index] / run[1][index] for run in runs):.3f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()

"""What a start with very many durable queues costs: `python -m bench.many_queues [--queues 100000] [--runs 5]`.

in: options. out: one line per figure. Each queue has a binding to amq.direct and one persistent message of 100 bytes, which came through
that binding. The store is made once, by this checkout or as `--store` names it; the broker is killed (SIGKILL), and each run starts on a
copy of what it left. Figures: seconds until the ready line, until the first message of a queue is there, the processor time until then, RSS
a second later, the peak of RSS. With `--beside` a broker of another checkout, which is built, takes turns with this one.

A run fails when a queue, a binding or a message is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.brokers import disk_directory
from bench.definitions import ask, cpu_s
from flintmq.perf import wire
from tests.support.rawamqp import method_frame

HERE = Path(__file__).parents[1]
EXCHANGE = "amq.direct"
BODY = b"x" * 100
GOALS = {"ready, s": 1.5, "RSS, MiB": 200.0}
# messages that may wait for their confirm
WINDOW = 1_000


def name_of(number: int) -> str:
    return f"queue.{number:08}"


@contextmanager
def started(checkout: Path, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, float]]:
    """A broker, its AMQP port, and seconds until it was ready. It is killed at the end."""
    words = [checkout / ".venv/bin/flintmq", "serve", "--port", "0", "--http-port", "0", "--flight-port", "off", "--data-dir", directory]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin_s = time.monotonic()
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{checkout}: the broker ended with {process.wait()}")
        yield process, json.loads(line)["amqp_port"], time.monotonic() - begin_s
    finally:
        process.kill()
        process.wait()


def fill(port: int, pid: int, count: int) -> None:
    """Declares and binds the queues, and publishes a message to each, confirmed."""
    names = [name_of(number) for number in range(count)]
    ask(port, pid, 4, 200, [wire.queue_declare(name, durable=True, arguments=None) for name in names], wire.QUEUE_DECLARE_OK)
    binds = [method_frame(1, "queue.bind", queue=name, exchange=EXCHANGE, routing_key=name) for name in names]
    ask(port, pid, 4, 200, binds, wire.QUEUE_BIND_OK)
    client = wire.Client("127.0.0.1", port, "guest", "guest", "/")
    client.call(method_frame(1, "confirm.select"), wire.CONFIRM_SELECT_OK)
    content = wire.content(BODY, frame_max=client.frame_max, persistent=True)
    confirmed = 0
    for first in range(0, count, WINDOW):
        until = min(count, first + WINDOW)
        client.send(b"".join(wire.publish_method(EXCHANGE, name) + content for name in names[first:until]))
        while confirmed < until:
            (tag,) = struct.unpack_from(">Q", client.wait_for(wire.BASIC_ACK))
            confirmed = max(confirmed, tag)
    client.close()


def status_kib(pid: int, name: str) -> int:
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith(f"{name}:")]
    return int(line.split()[1])


def measure(checkout: Path, store: Path, count: int) -> dict[str, float]:
    """One start on a copy of `store`."""
    with tempfile.TemporaryDirectory(dir=disk_directory()) as folder:
        directory = Path(folder) / "store"
        subprocess.run(["cp", "-r", "--sparse=always", store, directory], check=True)
        os.sync()
        began_s = time.monotonic()
        with started(checkout, directory) as (process, port, ready_s):
            client = wire.Client("127.0.0.1", port, "guest", "guest", "/")
            got = client.call(wire.basic_get(name_of(count // 2)), wire.BASIC_GET_OK)
            first_s = time.monotonic() - began_s
            spent_s = cpu_s(process.pid)
            time.sleep(1)
            row = {
                "ready, s": ready_s,
                "first message, s": first_s,
                "CPU until then, s": spent_s,
                "RSS, MiB": status_kib(process.pid, "VmRSS") / 1024,
                "RSS peak, MiB": status_kib(process.pid, "VmHWM") / 1024,
            }
            if not got:
                raise SystemExit("a message is missing")
            check(client, count)
        return row


def check(client: wire.Client, count: int) -> None:
    """One message more goes through the binding of some queues: they and the ones of before are there."""
    content = wire.content(BODY, frame_max=client.frame_max)
    for number in range(0, count, max(1, count // 100)):
        name = name_of(number)
        client.send(wire.publish_method(EXCHANGE, name) + content)
        arguments = client.call(wire.queue_declare(name, durable=True, passive=True), wire.QUEUE_DECLARE_OK)
        (messages,) = struct.unpack_from(">I", arguments, 1 + arguments[0])
        wanted = 1 if number == count // 2 else 2
        if messages != wanted:
            raise SystemExit(f"queue {name} has {messages} messages, not {wanted}")


def make_store(checkout: Path, store: Path, count: int) -> None:
    with started(checkout, store) as (process, port, _):
        fill(port, process.pid, count)


def report(rows: list[list[dict[str, float]]]) -> int:
    """Prints the figures of the checkouts. Returns how many goals the first one misses."""
    missed = 0
    for name in rows[0][0]:
        figures = [statistics.median(run[name] for run in runs) for runs in rows]
        goal = GOALS.get(name)
        line = f"{name:20} {figures[0]:8.2f}"
        if len(rows) > 1:
            ratio = statistics.median(ours[name] / theirs[name] for ours, theirs in zip(rows[0], rows[1], strict=True))
            line += f"  beside {figures[1]:8.2f}  ratio {ratio:.3f}"
        if goal is not None:
            line += f"  goal {goal:g}: {'ok' if figures[0] <= goal else 'MISSED'}"
            missed += figures[0] > goal
        print(line, flush=True)
    return missed


def main() -> int:
    """See module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="another checkout, which is built")
    parser.add_argument("--store", type=Path, help="use this store, made by an earlier call with --keep")
    parser.add_argument("--keep", type=Path, help="make the store there, and leave it")
    options = parser.parse_args()
    checkouts = [HERE, *([options.beside.resolve()] if options.beside else [])]
    rows: list[list[dict[str, float]]] = [[] for _ in checkouts]
    with tempfile.TemporaryDirectory(dir=disk_directory()) as folder:
        store = options.store or options.keep or Path(folder) / "store"
        if not options.store:
            make_store(HERE, store, options.queues)
        for number in range(options.runs):
            for which in range(len(checkouts)) if number % 2 == 0 else reversed(range(len(checkouts))):
                rows[which].append(measure(checkouts[which], store, options.queues))
        if not options.store and options.keep is None:
            shutil.rmtree(store, ignore_errors=True)
    return 1 if report(rows) else 0


if __name__ == "__main__":
    sys.exit(main())

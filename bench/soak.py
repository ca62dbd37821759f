"""`make soak`: the load of W2 for half an hour while the first message stays unacknowledged; the log must not grow.

in: options. out: lines on the way, one JSON line at the end, bench/results/soak-DATE.jsonl (a sample per line). Exit code 0; 65 when a
bound was broken or a message was wrong; 69 when nothing could be measured.

Every second: the sizes of the container files as the directory tells them, between two questions to the broker how many messages the
queue holds. As often as it can, one after the other: `flintmq log stats`, which reads the running store and tells what is live in it.
Bound, for the message log and for the transaction log: size <= 2 x live bytes + 4 containers, from SETTLE_S on. The broker runs without
retention, which is on top of that bound. Live bytes are those of message bodies, and what the log writes about each of them: of the
messages in the queue (the delivered ones not counted, which only makes the bound tighter), or as `log stats` says.
"Size" is that of the files, containers that stand ready in front of the tail or wait to be used again included; `used` of the verdict
is what lies between base and tail.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file: `python bench/soak.py`
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.brokers import FLINTMQ, Broker  # noqa: E402
from tests.support import servers  # noqa: E402

RESULTS = ROOT / "bench/results"
LOGS = ("messages", "transactions")
PREFIX = "soak"
QUEUE = f"{PREFIX}.q00000"
# bytes of a message's body
BODY = 1024
# containers that a log may have beyond twice what is live in it
SPARE_CONTAINERS = 4
# seconds between two looks at the directory
LOOK_S = 1.0
# seconds after which the bound is put
SETTLE_S = 5.0
# seconds after which the container count must have found its level: it is compared with the count then
WARM_S = 10.0
# containers that the count may move by afterwards: one is full, its successor ready, a recycled one on its way between two names
COUNT_SLACK = 4
HELD_BODY = b"held".ljust(BODY, b".")
# bytes of log about one message of this load beyond its body: the part of docs/FORMAT.md that `log stats` does not count as body
ABOUT_MESSAGE = 160


class Held:
    """The first message of the queue, delivered and never acknowledged."""

    def __init__(self, port: int) -> None:
        from flintmq.perf import wire

        self.queue = QUEUE
        self.client = wire.Client("127.0.0.1", port, "guest", "guest", "/")
        self.client.declare_queue(self.queue, durable=True)
        self.client.confirm_select()
        publish = wire.publish_method("", self.queue) + wire.content(HELD_BODY, frame_max=self.client.frame_max, persistent=True)
        self.client.call(publish, wire.BASIC_ACK)
        self.client.consume(self.queue, autoack=False, prefetch=1)
        self.client.wait_for(wire.BASIC_DELIVER)

    def still_there(self, port: int) -> bool:
        """Gives it up: the broker must have it, whole."""
        from flintmq.perf import wire

        self.client.close()
        other = wire.Client("127.0.0.1", port, "guest", "guest", "/")
        try:
            other.call(wire.basic_get(self.queue), wire.BASIC_GET_OK)
            return other.body() == HELD_BODY
        except wire.BrokerError:
            return False
        finally:
            other.close()


class Samples:
    """What was seen, and what was wrong with it."""

    def __init__(self, container_sizes: dict[str, int], out: IO[str]) -> None:
        self.container_sizes = container_sizes
        self.out = out
        self.used_worst = dict.fromkeys(LOGS, 0.0)
        self.lock = threading.Lock()
        self.live = dict.fromkeys(LOGS, 0)
        self.worst = dict.fromkeys(LOGS, 0.0)
        self.first_worst = dict.fromkeys(LOGS, 0.0)  # before SETTLE_S
        self.counts: dict[str, list[int]] = {log: [] for log in LOGS}
        self.largest = dict.fromkeys(LOGS, 0)
        self.looks = self.stats = 0
        self.broken: list[str] = []
        self.used_broken = 0

    def bound(self, log: str) -> int:
        return 2 * self.live[log] + SPARE_CONTAINERS * self.container_sizes[log]

    def note(self, source: str, elapsed: float, sizes: dict[str, tuple[int, int]], live: int) -> None:
        """sizes: log -> (bytes, containers); live: bytes of the messages."""
        with self.lock:
            self.live["messages"] = live
            print(json.dumps({"t": round(elapsed, 2), "from": source, "sizes": sizes, "live": self.live}), file=self.out, flush=True)
            for log, (size, count) in sizes.items():
                worst = self.worst if elapsed >= SETTLE_S else self.first_worst
                worst[log] = max(worst[log], size / self.bound(log))
                self.largest[log] = max(self.largest[log], size)
                if size > self.bound(log) and elapsed >= SETTLE_S:
                    self.broken.append(f"{elapsed:.0f} s, {source}: {log} has {size:,} bytes, the bound is {self.bound(log):,}")
                if source == "directory" and elapsed >= WARM_S:
                    self.counts[log].append(count)

    def used(self, log: str, elapsed: float, size: int) -> None:
        """Bytes between base and tail; after `note` of the same answer."""
        if elapsed >= SETTLE_S:
            self.used_worst[log] = max(self.used_worst[log], size / self.bound(log))
            self.used_broken += size > self.bound(log)

    def flat(self) -> bool:
        """The container counts did not drift: the last quarter's highest is not above the first quarter's by more than COUNT_SLACK."""
        for counts in self.counts.values():
            quarter = max(1, len(counts) // 4)
            if counts and max(counts[-quarter:]) > max(counts[:quarter]) + COUNT_SLACK:
                return False
        return True


def directory(store: Path) -> dict[str, tuple[int, int]]:
    """(bytes, containers) of each log, containers in the making included."""
    result = {}
    for log in LOGS:
        # A file that is renamed meanwhile may be seen twice or not at all: each counts once, and the fuller of two looks is right.
        files = max((_files(store / log) for _ in range(2)), key=len)
        result[log] = (sum(files.values()), len(files))
    return result


def _files(folder: Path) -> dict[int, int]:
    """inode -> bytes of the container files of a log."""
    found: dict[int, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".flog", ".tmp")):
                with contextlib.suppress(FileNotFoundError):
                    found[entry.inode()] = entry.stat().st_size
    return found


def container_sizes(store: Path) -> dict[str, int]:
    """Bytes of a container of each log: the size of its first file."""
    return {log: next((store / log).glob("*.flog")).stat().st_size for log in LOGS}


def read_stats(store: Path) -> dict[str, Any] | None:
    """`flintmq log stats --json`, at low priority; None when it failed."""
    command = ["nice", "-n", "19", sys.executable, "-m", "flintmq.cli.main", "log", "stats", str(store), "--json"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    with contextlib.suppress(ValueError, IndexError):
        figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return figures
    return None


def look(samples: Samples, store: Path, port: int, began: float, ending: threading.Event) -> None:
    """A thread: the directory every LOOK_S."""
    from flintmq.perf import wire

    asking = wire.Client("127.0.0.1", port, "guest", "guest", "/")
    question = wire.queue_declare(QUEUE, durable=True, passive=True)

    def depth() -> int:
        answer = asking.call(question, wire.QUEUE_DECLARE_OK)
        return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])

    try:
        while not ending.wait(LOOK_S):
            before = depth()
            sizes = directory(store)
            live = max(before, depth()) * (BODY + ABOUT_MESSAGE)
            samples.note("directory", time.monotonic() - began, sizes, live)
            samples.looks += 1
    finally:
        asking.close()


def ask(samples: Samples, store: Path, began: float, ending: threading.Event) -> None:
    """A thread: `log stats` again and again. Size and live bytes of one answer belong together."""
    while not ending.wait(LOOK_S):
        figures = read_stats(store)
        if figures is None:
            continue
        elapsed = time.monotonic() - began
        messages = figures["messages"]
        live = messages["live_body_bytes"] + ABOUT_MESSAGE * (messages["live"] + messages["pending"])
        logs = figures["logs"]
        samples.note("log stats", elapsed, {log: (part["bytes"], part["containers"]) for log, part in logs.items()}, live)
        for log, part in logs.items():
            samples.used(log, elapsed, part["tail"] - part["base"])
        samples.stats += 1


@contextlib.contextmanager
def watching(samples: Samples, store: Path, port: int, with_stats: bool) -> Iterator[None]:
    ending = threading.Event()
    began = time.monotonic()
    threads = [threading.Thread(target=look, args=(samples, store, port, began, ending), daemon=True)]
    if with_stats:
        threads.append(threading.Thread(target=ask, args=(samples, store, began, ending), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def run(seconds: float, *, container_size: int = 0, with_stats: bool = True, rate: float = 0.0) -> dict[str, Any]:
    """The whole soak. container_size: bytes, 0 for the broker's default.

    Raises: servers.Unavailable, RuntimeError when the broker does not start.
    """
    from bench.runners import perf

    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"soak-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}.jsonl"
    sized = ("--container-size", str(container_size)) if container_size else ()
    broker = Broker(FLINTMQ, options=("--log-retain-bytes", "0", "--log-retain-age", "0", *sized))
    load = f"--durable --persistent --size {BODY} --confirm 256 --ack 1 --prefetch 256 --drain-timeout 20 --keep --prefix {PREFIX}"
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        out = stack.enter_context(path.open("w"))
        server = broker.server(fresh=True, durable=True)
        held = Held(server.port)
        samples = Samples(container_sizes(broker.store), out)
        with watching(samples, broker.store, server.port, with_stats):
            result = perf(server, (*load.split(), "--time", str(seconds), "--rate", str(rate)), seconds + 120)
        kept = held.still_there(server.port)
    verdict: dict[str, Any] = {
        "ok": bool(result.get("ok")) and kept and not samples.broken and not samples.used_broken and samples.flat() and samples.looks > 0,
        "seconds": seconds,
        "messages": result.get("published", 0),
        "rate": result.get("end_to_end_rate"),
        "load_ok": bool(result.get("ok")),
        "error": result.get("error"),
        "held_message_kept": kept,
        "samples": samples.looks,
        "stats_samples": samples.stats,
        "largest_bytes": samples.largest,
        "share_of_bound_first_seconds": {log: round(share, 3) for log, share in samples.first_worst.items()},
        "share_of_bound_worst": {log: round(share, 3) for log, share in samples.worst.items()},
        "used_share_of_bound_worst": {log: round(share, 3) for log, share in samples.used_worst.items()},
        "container_bytes": samples.container_sizes,
        "containers": {log: {"least": min(counts), "most": max(counts)} for log, counts in samples.counts.items() if counts},
        "flat": samples.flat(),
        "broken": len(samples.broken),
        "used_broken": samples.used_broken,
        "first_broken": samples.broken[:5],
        "broker": result.get("broker"),
        "file": path.name,
    }
    with path.open("a") as out:
        print(json.dumps({"verdict": verdict}), file=out)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/soak.py", description="W2 for long, with the first message held unacknowledged.")
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long (default 1800)")
    parser.add_argument("--container-size", type=int, default=0, help="bytes of a log container (default: the broker's)")
    parser.add_argument("--rate", type=float, default=0.0, help="messages per second; 0: as fast as it goes")
    parser.add_argument("--no-stats", action="store_true", help="look at the directory only; `log stats` takes some CPU")
    options = parser.parse_args()
    try:
        verdict = run(options.seconds, container_size=options.container_size, with_stats=not options.no_stats, rate=options.rate)
    except (servers.Unavailable, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 69
    print(json.dumps(verdict))
    return 0 if verdict["ok"] else 65


if __name__ == "__main__":
    raise SystemExit(main())

"""What a stream's log costs: append, durable append, hot and cold reads, opening a large one.

python bench/stream_log.py [--messages 5000000] [--body 100] [--dir DIR]: one line a figure, JSON with --json. One process, one core for
the appender or the reader, one writer thread; a real fdatasync before anything is visible.
Goal (issue 5): a stream of 100 million messages opens in less than a second. A smaller one has the same; exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flintmq.clock import SystemClock
from flintmq.store.log.containers import STREAMS, LogSettings
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log.writer import LogWriter
from flintmq.store.stream.stream_files import Stream
from flintmq.store.stream.stream_log import StreamSpace
from tests.drivers.stream_reader import StreamReader, append_many

MIB = 1 << 20
# appended and not written: what publishers' back-pressure allows
UNWRITTEN_MAX = 10 * MIB
# milliseconds that opening may take
OPEN_MS_MAX = 1_000


class Bench:
    """One stream in a directory, with a running writer."""

    def __init__(self, root: str, container: int) -> None:
        self.files = OsFiles()
        self.root = root
        self.container = container

    def open(self) -> float:
        """Opens the stream; returns seconds."""
        writer: Any = LogWriter  # compiled: its arguments are not seen by mypy
        self.writer = writer(self.files)
        self.space: Any = StreamSpace(4 * MIB, 128 * MIB, 65536)
        stream: Any = Stream
        start = time.perf_counter()
        settings = LogSettings("streams/1", STREAMS, bytes(16), self.container, SystemClock())
        self.stream: Any = stream.open(self.files, self.root, 1, settings, self.writer, self.space)
        took = time.perf_counter() - start
        self.stopping = False
        self.keeper = threading.Thread(target=self.keep, daemon=True)
        self.keeper.start()
        self.writer.start()
        return took

    def keep(self) -> None:
        """Maintains the stream, as the store's own thread does."""
        seen = 0
        while not self.stopping:
            seen = self.writer.wait_progress(seen, 0.1)
            self.stream.maintain()

    def close(self) -> None:
        """Proves the end and closes, as a clean stop does."""
        self.settle()
        self.stopping = True
        self.keeper.join()
        self.writer.stop()
        while self.stream.mark():
            while self.writer.flush() == 1 or self.stream.prepare():
                pass
        self.stream.close()

    def settle(self) -> None:
        """Waits until everything is visible."""
        while self.stream.visible < self.stream.next:
            self.writer.kick()
            time.sleep(0.0005)


def main(arguments: list[str]) -> int:
    """Runs the bench and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--container", type=int, default=4 * MIB)
    parser.add_argument("--dir", help="where the stream is written (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        bench = Bench(root, options.container)
        bench.open()
        body = b"x" * options.body
        header = struct.pack(">HHQH", 60, 0, len(body), 0x1000) + b"\x02"
        appended, cpu, done = 0.0, 0.0, 0
        begin = time.perf_counter()
        while done < options.messages:
            while bench.space.unwritten > UNWRITTEN_MAX:
                time.sleep(0.0002)
            start, thread = time.perf_counter(), time.thread_time()
            done += append_many(bench.stream, b"", b"stream", header, body, min(1000, options.messages - done))
            appended += time.perf_counter() - start
            cpu += time.thread_time() - thread
            bench.writer.kick()
        bench.settle()
        took = time.perf_counter() - begin
        figures["append, ns of cpu per message"] = cpu / done * 1e9
        figures["append, ns per message"] = appended / done * 1e9
        figures["durable, messages/s"] = done / took
        figures["log bytes per message"] = bench.stream.bytes / done
        reader = StreamReader(bench.stream)
        start, thread = time.perf_counter(), time.thread_time()
        read, _ = reader.skim(0, options.messages)
        figures["cold read (page cache), messages/s"] = read / (time.perf_counter() - start)
        figures["cold read, ns of cpu per message"] = (time.thread_time() - thread) / read * 1e9
        if read != done:
            print(f"only {read} of {done} messages were read", file=sys.stderr)
            return 1
        start = time.perf_counter()
        for step in range(200):
            reader.read(step * 7_919_993 % done, 1)
        figures["random read, us"] = (time.perf_counter() - start) / 200 * 1e6
        start = time.perf_counter()
        reader.find_time(int(time.time() * 1000) - 1000)
        figures["time search, ms"] = (time.perf_counter() - start) * 1e3
        del reader
        bench.close()
        figures["open after a clean stop, ms"] = bench.open() * 1e3
        figures["bytes read to open it"] = bench.stream.opened_bytes
        figures["containers"] = bench.stream.container_count
        if bench.stream.visible != done:
            print("messages are missing after the restart", file=sys.stderr)
            return 1
        bench.stream.append(b"", b"stream", header, body)
        bench.settle()
        bench.writer.stop()
        bench.stream.close()
        figures["open after a kill, ms"] = bench.open() * 1e3
        bench.writer.stop()
        bench.stream.close()
        figures["directory, MiB"] = sum(path.stat().st_size for path in Path(root).rglob("*.flog")) / MIB
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:40} {value:14,.1f}")
    late = [name for name, value in figures.items() if name.startswith("open after") and value >= OPEN_MS_MAX]
    for name in late:
        print(f"goal missed: {name} {figures[name]:,.0f}, less than {OPEN_MS_MAX:,}", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

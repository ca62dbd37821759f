"""Rates of the Arrow codec on one core: rows of a set to batches, batches to blocks, containers to batches.

python bench/arrow.py [messages [body bytes]]: makes a log of that many messages (published, enqueued, dequeued) in a temporary
directory, reads it from the page cache, prints millions of rows per second and milliseconds per 10,000 rows: the best of five.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import crc32c

from flintmq.arrow import schema
from flintmq.arrow.blocks import blocks_of
from flintmq.arrow.containers import Containers
from flintmq.arrow.log import list_log
from flintmq.arrow.messages import rows_to_batches
from flintmq.arrow.scan import scan_container
from tests.support import logbytes as lb

ROW = struct.Struct("<QQQIHBB")


def make(directory: str, messages: int, body: int) -> tuple[bytes, int]:
    """A message log; returns the rows of all its messages and its tail."""
    lb.crc32c = lambda data, crc=0: crc32c.crc32c(data, crc)  # type: ignore[assignment]
    log = lb.LogBytes(size=4 << 20)
    rows = bytearray()
    for i in range(messages):
        name = f"{i:08d}".encode()
        header = struct.pack(">HHQH", 60, 0, body, 0x1000 | 0x80) + b"\x02" + bytes([len(name)]) + name
        number = log.add(lb.START, lb.content(b"\0\5queue", header, b"x" * body))
        log.add(lb.ENQUEUE, lb.enqueue(7, i + 1), undo_prev=number)
        log.add(lb.DEQUEUE, lb.dequeue(7, i + 1), undo_prev=number)
        rows += ROW.pack(i + 1, number, number, body, 0, 0, 0)
        if i % 500 == 499:
            log.sync()
    log.sync()
    log.write(directory)
    return bytes(rows), log.tail


def rate(name: str, work: Callable[[], int]) -> None:
    best, rows = 1e9, 0
    for _ in range(5):
        began = time.process_time()
        rows = work()
        best = min(best, time.process_time() - began)
    print(f"{name:58s} {rows / best / 1e6:8.2f} M rows/s {best / rows * 1e7:8.2f} ms per 10 k")


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    body = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with tempfile.TemporaryDirectory() as directory:
        rows, tail = make(f"{directory}/messages", messages, body)
        containers = Containers(f"{directory}/messages")
        pieces = [rows[at : at + 320_000] for at in range(0, len(rows), 320_000)]
        queues = [[["queue", len(piece) // 32, 7]] for piece in pieces]

        def decode(columns: list[str] | None) -> int:
            return sum(
                batch.num_rows
                for piece, queue in zip(pieces, queues, strict=True)
                for batch in rows_to_batches(containers, piece, queue, columns=columns)
            )

        def scan(stream: str, columns: list[str] | None) -> int:
            return sum(
                batch.num_rows
                for facts in list_log(f"{directory}/messages")
                for batch in scan_container(facts.path, stream=stream, columns=columns, end=tail)
            )

        (batch, *_) = rows_to_batches(containers, pieces[0], queues[0])
        plain = [name for name, _, _ in schema.RECORDS if name != "body"]
        print(f"{messages} messages with {body} bytes, process time on one core")
        rate("rows to messages, all columns", lambda: decode(None))
        rate("rows to messages, position and body", lambda: decode(["position", "body"]))
        rate("messages to blocks", lambda: batch.num_rows if list(blocks_of(batch)) else 0)
        rate("scan to records, all columns but body", lambda: scan("records", plain))
        rate("scan to records, all columns", lambda: scan("records", None))
        rate("scan to records, 5 columns", lambda: scan("records", ["lsn", "kind", "time", "queue_id", "position"]))
        rate("scan to messages, all columns", lambda: scan("messages", None))
        rate("scan to messages, lsn and body", lambda: scan("messages", ["lsn", "body"]))


if __name__ == "__main__":
    main()

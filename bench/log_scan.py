"""Speed of scanning and recovering a log: `python bench/log_scan.py [--messages N] [--body BYTES] [--acked SHARE]`.

in: options. out: one JSON line: GB/s and records/s of the scan, messages/s of recovery, bytes of memory per message. Makes a log of plain
messages (Start and Enqueue, some dequeued again) in a temporary directory first; that takes about 5 us a message and is not measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import tempfile
import time
from pathlib import Path

import crc32c as crc32c_module

from flintmq.store.log.file_port import OsFiles
from flintmq.store.log.scan import LogScan
from flintmq.store.recovery import Recovery

SECTOR = 512
UUID = bytes(16)
crc32c = crc32c_module.crc32c


def container_header(sequence: int, size: int) -> bytes:
    head = struct.pack("<8sII16sIIQQQ", b"FLNTLOG1", 1, SECTOR, UUID, 1, 1, sequence, size, 0).ljust(508, b"\0")
    return head + struct.pack("<I", crc32c(head))


def block_header(length: int, lsn: int, records: int, base: int, previous: int) -> bytes:
    head = struct.pack("<IIQIIQQQQI", 0x4B4C4246, length, lsn, 1, records, lsn, base, 0, previous, 0)
    return head + struct.pack("<I", crc32c(head))


def record(lsn: int, kind: int, undo_prev: int, body: bytes) -> bytes:
    length = 24 + len(body)
    rest = struct.pack("<BBHIQ", kind, 0, 0, 0, undo_prev) + body
    crc = crc32c(rest, crc32c(struct.pack("<QII", lsn, length, 0)))
    return (struct.pack("<II", length, crc) + rest).ljust(length + 7 & ~7, b"\0")


def make(directory: Path, messages: int, body: int, acked: float, size: int, block: int) -> int:
    """Writes the log: every message on queue 1. Returns its bytes."""
    route, header = b"\0\5queue", b"h" * 14
    content = struct.pack("<IIHBBI", body, len(header), len(route), 1, 0, len(route) + len(header) + body) + route + header + b"b" * body
    sequence, previous, number, total = 1, 0, 0, 0
    base = size + SECTOR
    share, due = 0.0, []
    most = len(content) + 24 + 8 + 40 + 56
    while number < messages:
        data = bytearray(container_header(sequence, size))
        while number < messages and size - len(data) > 64 + most:
            start = len(data)
            lsn = sequence * size + start
            parts, used, count = [], 64, 0
            while number < messages and used < block and size - start - used > most:
                number += 1
                message = lsn + used
                parts.append(record(message, 1, 0, content))
                used += len(parts[-1])
                parts.append(record(lsn + used, 4, message, struct.pack("<QQ", 1, number)))
                used += len(parts[-1])
                count += 2
                share += acked
                if share >= 1:
                    share -= 1
                    due.append((message, number))
                if len(due) > 1000:
                    gone, position = due.pop(0)
                    parts.append(record(lsn + used, 5, gone, struct.pack("<QQQIHBB", 1, position, 0, 0, 0, 1, 0)))
                    used += len(parts[-1])
                    count += 1
            data += block_header(used, lsn, count, base, previous) + b"".join(parts)
            data += bytes(-len(data) % SECTOR)
            previous = lsn
        (directory / f"{sequence:020d}.flog").write_bytes(data.ljust(size, b"\0"))
        total += size
        sequence += 1
    return total


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--acked", type=float, default=0.0, help="share of the messages that are dequeued again")
    parser.add_argument("--container-size", type=int, default=1 << 20)
    parser.add_argument("--block", type=int, default=64 * 1024, help="bytes of a commit block")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        total = make(Path(name), options.messages, options.body, options.acked, options.container_size, options.block)
        scan = LogScan(OsFiles(), name, 1)
        begun = time.perf_counter()
        scan.check()
        scanned = time.perf_counter() - begun
        scan = LogScan(OsFiles(), name, 1)
        recovery = Recovery()
        before = rss()
        begun = time.perf_counter()
        recovery.run(scan, None, {1}, 1, True)
        recovered = time.perf_counter() - begun
        print(
            json.dumps(
                {
                    "messages": options.messages,
                    "live": recovery.live_count,
                    "log_bytes": total,
                    "scan_s": round(scanned, 3),
                    "scan_gb_per_s": round(total / scanned / 1e9, 2),
                    "scan_records_per_s": round(scan.records / scanned),
                    "recovery_s": round(recovered, 3),
                    "recovery_messages_per_s": round(options.messages / recovered),
                    "memory_bytes_per_message": round((rss() - before) / options.messages, 1),
                    "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                }
            )
        )


if __name__ == "__main__":
    main()

"""The log's append ceiling: records through the real log with its writer and maintenance, against the disk alone with the same groups.

in: a directory on the disk, bytes. out: bytes per second of both, and the share that the log reaches.

An appender keeps the writer busy and never more than AHEAD_BYTES in front of it. What gathers while a sync runs is the next group, so
the mean group comes out of the run; the disk is then given groups of just that size: one writev and one fdatasync each.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import disk

# bytes appended and not yet durable at which the appender waits
AHEAD_BYTES = 4 * disk.MIB
# bytes after which the writer is told that there is work, as connections tell it after each read
KICK_BYTES = 256 * 1024
# a record that nothing refers to: a later start would skip it (docs/FORMAT.md, Message-Chunk)
CHUNK = 2
# seconds between two looks at the writer's progress
LOOK_S = 0.00005
STALL_S = 30.0
# seconds: the broker's threads append without the interpreter's lock, as here; the maintenance must not wait long for it either
SWITCH_S = 0.0001


def through_log(directory: Path, total: int, record: int) -> dict[str, Any]:
    """Appends `total` bytes in records of `record` bytes. Raises: OSError, StoreError; RuntimeError when nothing becomes durable."""
    from flintmq.config import Config
    from flintmq.store.log_store import LogStore
    from tests.drivers.log_driver import append_many

    store = LogStore.open(None, str(directory), container_size=Config().container_size)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        log, writer = store.messages, store.writer
        payload = bytes(range(256)) * (record // 256) + bytes(record % 256)
        passes, first = writer.figures["passes"], log.tail
        cpu = time.process_time()
        began = moved_at = time.perf_counter()
        durable, end = log.durable_lsn, first
        several = max(1, KICK_BYTES // record)
        for _ in range(max(1, total // record // several)):
            end = append_many(log, CHUNK, payload, several)
            writer.kick()
            if end - durable < AHEAD_BYTES:
                continue
            while end - durable >= AHEAD_BYTES:
                time.sleep(LOOK_S)
                seen = log.durable_lsn
                if seen != durable:
                    durable, moved_at = seen, time.perf_counter()
                elif time.perf_counter() - moved_at > STALL_S:
                    raise RuntimeError(f"the log made nothing durable for {STALL_S:.0f} s")
        writer.kick()
        while log.durable_lsn < end and time.perf_counter() - moved_at < STALL_S:
            time.sleep(LOOK_S)
        elapsed = time.perf_counter() - began
        groups = max(1, writer.figures["passes"] - passes)
        return {
            "bytes_per_s": round((end - first) / elapsed),
            "groups": groups,
            "group_bytes": (end - first) // groups,
            "cpu_s": round(time.process_time() - cpu, 3),
        }
    finally:
        sys.setswitchinterval(switch_s)
        store.close(clean=False)


def measure(directory: Path, *, total: int, record: int) -> dict[str, Any]:
    """The log and the disk one after the other, twice in changing order: `share` is the log's mean rate divided by the disk's."""
    logs: list[dict[str, Any]] = []
    raws: list[dict[str, Any]] = []

    def log() -> None:
        place = Path(tempfile.mkdtemp(prefix="append-", dir=directory))
        try:
            logs.append(through_log(place, total, record))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def raw() -> None:
        size = min(logs[0]["group_bytes"], disk.PROBE_FILE)
        raws.append(disk.synced_writes(directory, size, count=max(1, total // size)))

    for step in (log, raw, raw, log):
        step()
    log_rate = 2 / sum(1 / each["bytes_per_s"] for each in logs)
    raw_rate = 2 / sum(1 / each["bytes_per_s"] for each in raws)
    return {
        "ok": True,
        "mode": "append",
        "share": round(log_rate / raw_rate, 4),
        "log_bytes_per_s": round(log_rate),
        "raw_bytes_per_s": round(raw_rate),
        "group_bytes": logs[0]["group_bytes"],
        "logs": logs,
        "raws": raws,
    }

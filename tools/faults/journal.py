"""What each client process saw: append-only records of invokes and completions with a monotonic stamp (ns, one clock for all processes).

in: calls of one client. out: JSON arrays, one a line: [stamp, kind, ...] (the kinds below), read back by `load`.

J1  An invoke is on disk before its bytes go to the socket (`sync` before send): what a broker could know, the journal knows.
J2  A completion is stamped after it was read from the socket. So a stamp order says "happened before" across processes.
J3  A torn last line (the client itself was killed) is dropped by `load`; a damaged line elsewhere is an error.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = list[Any]
Ref: TypeAlias = tuple[str, int]  # (producer id, sequence)

LIFE = "L"  # life, "ready" | "killed" | "stopped" | "unborn" (killed in its start: nobody was served)
OPEN = "S"  # session, life, role, queues it consumes from
CLOSE = "E"  # session, graceful (close-ok was read)
PUBLISH = "P"  # producer (= session), sequence, queues it must reach, size, crc, transaction or ""
CONFIRM = "C"  # producer, sequences, accepted (0: basic.nack)
COMMIT = "T"  # transaction, session: tx.commit is about to be sent
OUTCOME = "O"  # transaction, "ok" | "rolled"; a transaction without one is unknown
DELIVER = "D"  # session, queue, producer, sequence, size, crc, redelivered, intact (properties and crc agree)
ACK = "A"  # session, queue, [[producer, sequence]...], transaction or ""
RELEASE = "R"  # session, queue, [[producer, sequence]...]: nack or reject with requeue
DRAINED = "Z"  # queue, empty
FAULT = "X"  # session, kind ("stalled", "protocol", "definition"), text
NOTE = "N"  # session, text, value: blocked, unblocked, heartbeat; for the campaigns, no verdict
# of the campaign over streams (a group "": a reader of its own)
STREAM = "M"  # life, stream, its arguments: it was declared, empty, and the broker said so
SEAT = "G"  # session, stream, group, start (an x-stream-offset; 0 of a group: made while the stream was empty): consume-ok was read
READ = "V"  # session, stream, group, offset, producer, sequence, size, crc, redelivered, intact, x-stream-lost, [reason, queue] of a death
SETTLE = "Y"  # session, stream, group, [offset...], "ack" | "requeue" | "reject", transaction or ""
KNOWN = "K"  # session: an answer proves that all it sent before has been done
END = "Q"  # session, stream, group, offset of the message that was published last of all: read to there
FIGURES = "F"  # stream, first offset kept, {group: offsets lost to it}: what the broker itself says at the end


class Journal:
    """The journal of one client process (one thread). Records are buffered until `sync`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lines: list[str] = []

    def add(self, kind: str, *fields: Any) -> int:
        """Appends one record and returns its stamp (ns)."""
        stamp = time.monotonic_ns()
        self._lines.append(json.dumps([stamp, kind, *fields], separators=(",", ":")))
        return stamp

    def sync(self) -> None:
        """Everything added so far is on disk when this returns."""
        if self._lines:
            data = ("\n".join(self._lines) + "\n").encode()
            self._lines.clear()
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Syncs and closes. Idempotent."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1


def load(paths: Iterable[Path]) -> list[Event]:
    """All records of these journals, by stamp. Raises: ValueError for a damaged line that is not the last of its file."""
    events: list[Event] = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        if lines.pop():
            pass  # no newline at the end: the client was killed while it wrote this line (J3)
        for number, line in enumerate(lines, 1):
            try:
                events.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path.name}:{number}: {error}") from None
    events.sort(key=_stamp)
    return events


def _stamp(event: Sequence[Any]) -> int:
    return int(event[0])

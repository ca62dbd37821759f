#!/usr/bin/env python
"""Makes tests/fixtures/stream-v1: a stream queue's log as this version writes it, which every later version opens or refuses by name.

    python tools/make_stream_fixture.py [DIRECTORY]

in: nothing. out: DIRECTORY/unclean (as a kill leaves it), DIRECTORY/clean (after a clean stop), each a store with the stream of queue 4,
and DIRECTORY/expected.json: offset -> SHA-256 of the body. Run it once per released format; never again for an old one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

from flintmq.store.log_store import LogStore

UUID = bytes.fromhex("5f1e7b2a9c0d4e6f8a1b2c3d4e5f6071")
CONTAINER = 65536
QUEUE = 4
GROUP = b"billing"
STATE = b"state of a group, as the store sees it"
MESSAGES = 60


def body_of(number: int) -> bytes:
    """Small ones, empty ones, and some that take several records."""
    return struct.pack("<I", number) * (20_000 if number % 20 == 19 else number % 7 * 11)


def header_of(number: int, size: int) -> bytes:
    """Without headers, and with a filter value."""
    if number % 3:
        return struct.pack(">HHQH", 60, 0, size, 0x1000) + b"\x02"
    table = b"\x15x-stream-filter-valueS" + struct.pack(">I", 3) + b"red"
    return struct.pack(">HHQHI", 60, 0, size, 0x3000, len(table)) + table + b"\x02"


def make(directory: Path) -> dict[str, Any]:
    """Writes both stores and expected.json; returns the expectation."""
    if directory.exists():
        shutil.rmtree(directory)
    clean, unclean = directory / "clean", directory / "unclean"
    clean.mkdir(parents=True)
    opening: Any = LogStore.open
    store = opening(None, str(clean), container_size=CONTAINER, store_uuid=UUID, known_queues={QUEUE}, threads=False, spill=False)
    stream = store.streams.open(QUEUE)
    expected = {}
    for number in range(MESSAGES):
        body = body_of(number)
        offset, _ = stream.append(b"fixture", b"key %d" % number, header_of(number, len(body)), body)
        expected[str(offset)] = hashlib.sha256(body).hexdigest()
        if number % 9 == 0:
            while store.flush() == 1 or store.streams.prepare():
                stream.maintain()
    store.streams.save_group(QUEUE, GROUP, STATE)
    while store.flush() == 1 or store.streams.prepare():
        stream.maintain()
    shutil.copytree(clean, unclean)
    store.close(clean=True)
    for path in (clean / "lock", unclean / "lock"):
        path.unlink(missing_ok=True)
    told = {"queue": QUEUE, "uuid": UUID.hex(), "group": GROUP.decode(), "state": STATE.decode(), "messages": expected}
    (directory / "expected.json").write_text(json.dumps(told, indent=1) + "\n")
    return told


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "tests/fixtures/stream-v1"
    print(f"{target}: {len(make(target)['messages'])} messages")

"""Logs of streams of released formats: each one opens with everything that was in it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flintmq.store.log_store import LogStore
from tests.store_stream.test_stream_store import read_all

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "stream-v1"
EXPECTED: dict[str, Any] = json.loads((FIXTURE / "expected.json").read_text())


@pytest.mark.parametrize("kind", ["clean", "unclean"])
def test_a_stream_of_format_1_opens(kind: str, tmp_path: Path) -> None:
    """Every message stands at its offset, the group has its place, and the stream goes on behind the last message."""
    path = shutil.copytree(FIXTURE / kind, tmp_path / kind)
    opening: Any = LogStore.open
    store = opening(
        None,
        str(path),
        container_size=65536,
        store_uuid=bytes.fromhex(EXPECTED["uuid"]),
        known_queues={EXPECTED["queue"]},
        threads=False,
        spill=False,
    )
    stream = store.streams.open(EXPECTED["queue"])
    assert stream.damage == []
    found = {str(offset): hashlib.sha256(body).hexdigest() for offset, body in read_all(stream).items()}
    assert found == EXPECTED["messages"]
    assert store.streams.groups(EXPECTED["queue"]) == {EXPECTED["group"].encode(): EXPECTED["state"].encode()}
    offset, _ = stream.append(b"", b"key", b"", b"more")
    assert offset == len(found)
    store.close()

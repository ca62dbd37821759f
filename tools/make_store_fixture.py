#!/usr/bin/env python
"""Makes tests/fixtures/store-v3: a store as this version writes it, which every later version must open or refuse by name.

    python tools/make_store_fixture.py [DIRECTORY]

in: nothing. out: DIRECTORY/unclean (as a crash leaves it), DIRECTORY/clean (after a clean stop), DIRECTORY/expected.json: what must come
back, written down from what was done, not read from the store. Run it once per released format; never again for an old one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from flintmq.ports import DequeueReason
from tests.drivers.log_driver import LogDriver
from tests.drivers.store_driver import DrivenStore
from tests.support.stored import StoredContent

UUID = bytes.fromhex("5f1e7b2a9c0d4e6f8a1b2c3d4e5f6071")
CONTAINER = 16 * 1024
QUEUES = (1, 2, 3, 4)
DROPPED = 5
HEADER = bytes.fromhex("003c0000000000000000000b90000a746578742f706c61696e02")


class Maker:
    """Does things to a store and notes what must come back of them."""

    def __init__(self, directory: Path) -> None:
        self.store = DrivenStore.open(
            None,
            str(directory),
            container_size=CONTAINER,
            initial_containers=2,
            store_uuid=UUID,
            known_queues={*QUEUES, DROPPED},
            queue_high_water=DROPPED,
            threads=False,
            spill=False,
        )
        self.driver = LogDriver(self.store)
        self.live: dict[int, dict[int, dict[str, Any]]] = {queue: {} for queue in (*QUEUES, DROPPED)}
        self.next = dict.fromkeys(self.live, 1)
        self.numbers: dict[tuple[int, int], int] = {}

    def content(self, key: str, body: bytes) -> tuple[int, dict[str, Any]]:
        number = self.store.append_content(StoredContent(b"fixture", key.encode(), HEADER, body))
        digest = hashlib.sha256(body).hexdigest()
        told = {"exchange": "fixture", "routing_key": key, "header": HEADER.hex(), "size": len(body), "sha256": digest}
        return number, told

    def publish(self, queues: tuple[int, ...], key: str, body: bytes, expires: int = 0) -> list[int]:
        """One message on each of the queues; returns its positions."""
        number, told = self.content(key, body)
        positions = []
        for queue in queues:
            position = self.take(queue)
            self.store.enqueue(queue, position, number, expires_at_ms=expires)
            self.live[queue][position] = told | {"expires_at_ms": expires}
            positions.append(position)
        return positions

    def publish_shaped(self, queue: int, key: str, body: bytes, expires: int = 0) -> int:
        """As the message path does it: a Message, from the second one of its shape in a container on. Returns its position."""
        position = self.take(queue)
        number, _ = self.driver.publish([(queue, position, expires)], b"fixture", key.encode(), HEADER, body)
        digest = hashlib.sha256(body).hexdigest()
        told = {"exchange": "fixture", "routing_key": key, "header": HEADER.hex(), "size": len(body), "sha256": digest}
        self.live[queue][position] = told | {"expires_at_ms": expires}
        self.numbers[queue, position] = number
        return position

    def settle_shaped(self, queue: int, position: int) -> None:
        self.driver.ack(queue, position, self.numbers.pop((queue, position)), 1)
        del self.live[queue][position]

    def take(self, queue: int, count: int = 1) -> int:
        self.next[queue] += count
        return self.next[queue] - count

    def settle(self, queue: int, position: int, reason: DequeueReason = DequeueReason.ACK) -> None:
        self.store.dequeue(queue, position, reason, delivery_count=1)
        del self.live[queue][position]

    def transact(self, key: str, queues: tuple[int, ...], xid: bytes | None, take: tuple[int, int] | None, outcome: str) -> int:
        """A transaction that publishes one message per queue and may settle an entry; outcome: commit, rollback, prepare."""
        tx = self.store.begin(xid)
        made = []
        for queue in queues:
            number, told = self.content(f"{key}.{queue}", f"{key} on {queue}".encode())
            self.store.enqueue(queue, 0, number, tx=tx)
            made.append((queue, told))
        if take is not None:
            self.store.dequeue(take[0], take[1], DequeueReason.ACK, tx=tx)
        if xid is not None:
            self.store.prepare(tx)
        if outcome == "commit":
            first = {queue: self.take(queue, queues.count(queue)) for queue in set(queues)}
            self.store.commit(tx, dict(first))
            for queue, told in made:
                self.live[queue][first[queue]] = told | {"expires_at_ms": 0}
                first[queue] += 1
            if take is not None:
                del self.live[take[0]][take[1]]
        elif outcome == "rollback":
            self.store.rollback(tx)
        self.flush()
        return int(tx)

    def flush(self) -> None:
        """Everything is on disk; maintenance makes the containers that this needs."""
        while self.store.flush() in (1, 2):  # progress, or a container is missing
            self.store.maintain()
        self.store.maintain()


def fill(maker: Maker) -> dict[str, Any]:
    """Everything the format can hold; returns what else than entries must come back."""
    for i in range(60):
        (position,) = maker.publish((1,), f"plain.{i}", bytes([i]) * (100 + 37 * i), expires=0 if i % 5 else 4_000_000_000_000 + i)
        if i % 2:
            maker.settle(1, position, DequeueReason.REJECT if i % 3 == 0 else DequeueReason.ACK)
        if i % 7 == 0:
            maker.flush()
    for i in range(60):
        position = maker.publish_shaped(4, f"shape.{i % 2}", bytes([i]) * i, expires=0 if i % 3 else 4_000_000_000_000 + i)
        if i % 4 == 1:
            maker.settle_shaped(4, position)
        if i % 9 == 0:
            maker.flush()
    shared = maker.publish((1, 2, 3), "shared", b"on three queues")
    maker.settle(2, shared[1])
    maker.publish((4,), "big", bytes(range(256)) * 200)
    maker.publish((3,), "empty", b"")
    maker.flush()
    for i in range(220):
        (position,) = maker.publish((2,), f"gone.{i}", b"x" * 900)
        maker.settle(2, position)
        maker.flush()
    maker.transact("committed", (2, 3, 2), None, (1, shared[0]), "commit")
    maker.transact("rolled-back", (2,), None, None, "rollback")
    maker.transact("decided", (4,), b"\0\0\0\1decided", None, "commit")
    (held,) = maker.publish((3,), "held", b"a prepared transaction wants it")
    maker.transact("in-doubt", (2, 4), b"\0\0\0\1in doubt", (3, held), "prepare")
    maker.store.note(1, b"subscription", b"position 7")
    maker.store.note(1, b"removed", b"soon")
    maker.store.note(1, b"removed", b"")
    for i in range(5):
        maker.publish((DROPPED,), f"dropped.{i}", b"never seen again")
    maker.store.drop_queue(DROPPED)
    maker.live.pop(DROPPED)
    maker.flush()
    return {
        "uuid": UUID.hex(),
        "container_size": CONTAINER,
        "high_water": DROPPED,
        "in_doubt": {b"\0\0\0\1in doubt".hex(): {"enqueues": [2, 4], "dequeues": [[3, held]]}},
        "notes": {"subscription": "position 7"},
    }


def make(directory: Path) -> dict[str, Any]:
    """Writes both stores and expected.json; returns the expectation."""
    if directory.exists():
        shutil.rmtree(directory)
    clean, unclean = directory / "clean", directory / "unclean"
    clean.mkdir(parents=True)
    maker = Maker(clean)
    expected = fill(maker)
    expected["queues"] = {str(queue): {str(p): entry for p, entry in sorted(live.items())} for queue, live in maker.live.items()}
    shutil.copytree(clean, unclean)
    maker.store.close(clean=True)
    for path in (clean / "lock", unclean / "lock"):
        path.unlink(missing_ok=True)
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    return expected


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "tests/fixtures/store-v3"
    told = make(target)
    print(f"{target}: {sum(map(len, told['queues'].values()))} entries on {len(told['queues'])} queues")

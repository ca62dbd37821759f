"""What things take of a process, next to what the account of memory says: run as a program, so that nothing else allocates meanwhile.

Prints a JSON object: what was made -> [bytes of the process, bytes of the account], each for one of them.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flintmq.core.memory_account import bytes_held
from flintmq.testing.broker import Broker


def process_bytes() -> int:
    """Anonymous memory of this process."""
    gc.collect()
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(text.split("Anonymous:")[1].split()[0])


def per_piece(count: int, make: Callable[[int], object]) -> list[float]:
    make(count)
    process, account = process_bytes(), bytes_held()
    for number in range(count):
        make(number)
    return [(process_bytes() - process) / count, (bytes_held() - account) / count]


def definitions(broker: Any) -> dict[str, list[float]]:
    vhost = broker.node.broker.vhosts["/"]
    deep = b".".join([b"word"] * 40)
    table = {f"k{number}": number for number in range(20)}
    letters = {"x-message-ttl": 1000, "x-dead-letter-exchange": "x", "x-expires": 10_000_000}
    return {
        "queue": per_piece(8000, lambda n: vhost.run(vhost.declare_queue(f"queue-{n:08d}"))),
        "queue with a long name": per_piece(4000, lambda n: vhost.run(vhost.declare_queue(f"{n:0200d}"))),
        "queue with arguments": per_piece(4000, lambda n: vhost.run(vhost.declare_queue(f"letters-{n:08d}", arguments=letters))),
        "queue with priorities": per_piece(
            1000, lambda n: vhost.run(vhost.declare_queue(f"levels-{n:08d}", arguments={"x-max-priority": 100}))
        ),
        "exclusive queue": per_piece(4000, lambda n: vhost.run(vhost.declare_queue(f"mine-{n:08d}", exclusive=True, connection_id=n))),
        "exchange": per_piece(4000, lambda n: vhost.run(vhost.declare_exchange(f"headers-{n:08d}", "headers"))),
        "direct binding": per_piece(8000, lambda n: vhost.run(vhost.bind_queue("queue-00000001", "amq.direct", b"key-%08d" % n))),
        "binding with a long key": per_piece(4000, lambda n: vhost.run(vhost.bind_queue("queue-00000001", "amq.direct", b"%0200d" % n))),
        "topic binding": per_piece(4000, lambda n: vhost.run(vhost.bind_queue("queue-00000001", "amq.topic", b"part.%08d" % n))),
        "deep topic binding": per_piece(500, lambda n: vhost.run(vhost.bind_queue("queue-00000001", "amq.topic", b"%08d." % n + deep))),
        "headers binding": per_piece(
            4000, lambda n: vhost.run(vhost.bind_queue("queue-00000001", "amq.headers", b"", {"x-match": "all", "a": n}))
        ),
        "wide headers binding": per_piece(
            1000, lambda n: vhost.run(vhost.bind_queue("queue-00000001", "amq.headers", b"", {"x-match": "any", "n": n, **table}))
        ),
    }


def streams(broker: Any) -> dict[str, list[float]]:
    vhost = broker.node.broker.vhosts["/"]
    made = vhost.run(vhost.declare_queue("stream", durable=True, arguments={"x-queue-type": "stream"}))
    service = broker.node.broker.streams
    kept = []

    def seat(group: bytes | None, *filters: bytes) -> None:
        kept.append(service.open_seat(made.queue_id, lambda: None, ("first", 0), group, list(filters) or None))

    return {
        "group": per_piece(3000, lambda n: seat(b"group-%08d" % n)),
        "group with a filter": per_piece(1000, lambda n: seat(b"filter-%08d" % n, b"value-%d" % n)),
        "reader": per_piece(3000, lambda n: seat(None)),
    }


def main() -> None:
    if sys.argv[1] == "streams":
        with tempfile.TemporaryDirectory() as directory, Broker(data_dir=directory, limits={"stream_groups_max": 10_000}) as broker:
            print(json.dumps(streams(broker)))
    else:
        print(json.dumps(definitions(Broker())))


if __name__ == "__main__":
    main()

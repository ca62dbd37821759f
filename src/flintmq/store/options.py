"""StoreOptions: what a durable store is opened with.

in: the configuration, or a test. out: LogStore.open reads it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any

from flintmq.clock import Clock, SystemClock
from flintmq.config import Limits
from flintmq.slotted import slotted

# bytes that --max-write-buffers counts in
WRITE_BUFFER = 1 << 20


@slotted(frozen=True, kw_only=True)
class StoreOptions:
    """Args: container_size: of new logs, bytes; initial_containers: of new logs; max_write_buffers: MiB that may wait to be written;
    known_queues: ids of durable queues; queue_high_water: no id above it was ever given out; retain_bytes, retain_s: how much and how
    long dead containers are kept readable; hot_bytes: bodies of a queue that stay in memory; content_bytes: contents
    in memory below which a queue keeps more; rest_least: bodies that a queue keeps however many share what resting queues keep, 0: none
    shares; spill: transient messages past that go to
    the page log; archive_dir: where dead containers are copied before they go (its parent exists); disk_free_limit: bytes of the disk
    below which publishers are blocked, if the log itself does not need more; threads: False: nothing runs by
    itself, see LogStore.flush and maintain (tests); actors: the ActorSystem that reads of cold messages run on (None: a small one of the
    store's own); limits: cold_*, stream_*, log_*.
    """

    container_size: int
    initial_containers: int = 2
    max_write_buffers: int = 10
    store_uuid: bytes = bytes(16)
    known_queues: Collection[int] = ()
    queue_high_water: int = 2**63
    threads: bool = True
    clock: Clock = field(default_factory=SystemClock)
    retain_bytes: int = 0
    retain_s: int = 0
    hot_bytes: int = 4 << 20
    content_bytes: int = 0
    rest_least: int = 0
    spill: bool = True
    archive_dir: str | None = None
    disk_free_limit: int = 0
    actors: Any = None
    limits: Limits = field(default_factory=Limits)

    @property
    def unwritten_max(self) -> int:
        """Bytes of records that may wait to be written."""
        return self.max_write_buffers * WRITE_BUFFER

"""Opens what a durable node stands on: store directory, definitions, logs; and puts recovered entries into their queues.

in: the node's configuration. out: Definitions and a LogStore that belong together.

Order at start: directory, lock (in LogStore.open), SQL, logs; the definitions are read before the logs, since recovery asks them which
queues exist. Order at stop: the logs, then SQL.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flintmq.clock import Clock
from flintmq.config import Config
from flintmq.errors import OperatorError, StoreError
from flintmq.store.directory import make_directory, store_directory
from flintmq.store.log.containers import round_container_size
from flintmq.store.log.file_port import OsFiles
from flintmq.store.log_store import LogStore, missing_text
from flintmq.store.sql.definitions import SqlDefinitions
from flintmq.store.sql.failures import DISK_ERRORS

log = logging.getLogger("flintmq.store")


def container_size(config: Config) -> int:
    """--container-size by the rules of seed 003: below 512 KiB and to a multiple of 4 KiB rounded up, with a line in the log."""
    size = round_container_size(config.container_size, config.limits.container_bytes_min)
    if size > config.limits.container_bytes_max:
        raise OperatorError(f"--container-size {config.container_size} is above the limit of {config.limits.container_bytes_max} bytes", 64)
    if size != config.container_size:
        log.info("--container-size %d is rounded up to %d", config.container_size, size)
    return size


class DurableStore:
    """Definitions and logs of one node. Made by `open`."""

    def __init__(self, directory: Path, definitions: SqlDefinitions, logs: LogStore) -> None:
        self.directory = directory
        self.definitions = definitions
        self.logs = logs

    @classmethod
    def open(cls, config: Config, clock: Clock, timestamp: Any, actors: Any = None, first: Sequence[Any] = ()) -> DurableStore:
        """Args: timestamp: the codec's type of timestamps in argument tables; actors: the node's ActorSystem, stopped after the store;
        first: records (users, permissions) that a new store is made with.

        Raises: OperatorError (directory, database), StoreError (logs).
        """
        directory = store_directory(config)
        size = container_size(config)
        try:
            make_directory(directory)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise StoreError(f"cannot make the store directory {directory}: {error.strerror}") from error
            raise OperatorError(f"cannot make the store directory {directory}: {error.strerror}. Choose another --data-dir.", 69) from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise OperatorError(f"the store directory {directory} is not writable for this user", 69)
        definitions = SqlDefinitions.open(directory, config.connect, config.catalog, clock, config.limits, timestamp=timestamp, first=first)
        try:
            definitions.reserve_ids()
            known = {queue.queue_id for vhost in definitions.load_vhosts() for queue in definitions.load_queues(vhost.name)}
            if known and not (directory / "messages").is_dir():
                raise StoreError(missing_text(str(directory / "messages"), f"the definitions know {len(known)} durable queues"))
            files: Any = OsFiles  # compiled: its arguments are not seen by mypy
            logs = LogStore.open(
                files(config.direct_io),
                str(directory),
                container_size=size,
                initial_containers=max(2, config.initial_containers),
                max_write_buffers=max(1, config.max_write_buffers),
                store_uuid=definitions.store_uuid,
                known_queues=known,
                queue_high_water=definitions.queue_id_high_water,
                clock=clock,
                retain_bytes=config.log_retain_bytes,
                retain_s=config.log_retain_age,
                hot_bytes=config.limits.queue_hot_bytes,
                archive_dir=str(Path(config.log_archive_dir).absolute()) if config.log_archive_dir else None,
                actors=actors,
                limits=config.limits,
            )
        except OSError as error:
            definitions.close()
            raise StoreError(f"{error.filename or directory}: {error.strerror}") from error
        except BaseException:
            definitions.close()
            raise
        # Whether the queue that a lost commit was about still exists, nobody knows: nothing may be confirmed for it any more.
        definitions.on_failure(logs.failed)
        return cls(directory, definitions, logs)

    def restore(self, queues: Any, log_stream: Callable[[int], object]) -> int:
        """Puts the recovered entries into the cores of these durable queues; a stream's are those that it lacks of what transactions
        committed, and `log_stream` hears of its id. Returns how many."""
        restored = 0
        for queue in queues:
            if not queue.policy.is_stream:
                restored += self.logs.restore(queue.core)
            elif waiting := self.logs.restore_inbox(queue.queue_id):
                log_stream(queue.queue_id)
                log.info("stream '%s': %d messages of committed transactions are looked for in it", queue.name, waiting)
        self.logs.restored()
        return restored

    def close(self, clean: bool) -> None:
        """clean: all connections are gone and nothing is under way."""
        self.logs.close(clean)
        self.definitions.close()

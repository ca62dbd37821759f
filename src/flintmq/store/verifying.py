"""The part of the message log that a start from a checkpoint did not read, read while the broker serves.

in: containers below the begin of the checkpoint. out: damaged places, named and set aside as a start does it.

V1  It gives way: between two containers it sleeps ten times as long as they take to read at a gigabyte a second.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from flintmq.errors import StoreError
from flintmq.store.log.containers import MESSAGES
from flintmq.store.log.managed import set_damage_aside
from flintmq.store.log.scan import LogScan

log = logging.getLogger("flintmq.store")

# seconds of rest for each MiB of a container
REST_S = 0.010


class _StoppedError(Exception):
    """The store is closed."""


class Verifier:
    """Reads the message log below a checkpoint. Args: store: LogStore; begin: of the checkpoint."""

    def __init__(self, store: Any, begin: int) -> None:
        self.store = store
        self.begin = begin
        self.damage: list[Any] = []
        self.done = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="flintmq-verify", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it behind the container that it reads. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _rest(self) -> None:
        if self._stopping.wait(self.store.messages.container_size / (1 << 20) * REST_S):
            raise _StoppedError

    def run(self) -> None:
        """The whole of it, on the caller's thread. Raises: StoreError: a container can't be read."""
        messages = self.store.messages
        damage: list[Any] = []
        place = 0
        while place < self.begin:
            base = messages.base
            scan: Any = LogScan(self.store.files, messages.directory, MESSAGES, messages.store_uuid)
            scan.begin, scan.until, scan.between = place, self.begin, self._rest
            try:
                scan.check()
                place = self.begin
            except StoreError:
                if messages.base == base:
                    raise
                place = max(place, scan.block_end, messages.base)  # a container went meanwhile: what it had was not needed
            damage += scan.damage
        self.damage = [one for one in damage if one.lsn >= messages.base]
        set_damage_aside(self.store.files, self.store.directory, "messages", self.damage, messages.container_size)
        self.done = True

    def _run(self) -> None:
        try:
            self.run()
        except _StoppedError:
            pass
        except StoreError as error:
            if not self._stopping.is_set():
                log.warning("the log below LSN %d was not read to its end: %s", self.begin, error)
        except Exception:
            log.exception("internal error in the reading of the log below a checkpoint")

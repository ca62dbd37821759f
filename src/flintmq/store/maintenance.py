"""Maintenance of the store's logs: containers in front of the tail, the base behind it, copy-forward, blocked publishers.

in: wake-ups of the writer, the clock. out: calls on the logs. One thread, or `once()` by a test.

Order of one pass, each step relying on the ones before: seal full containers; mark queues whose last record would go; move the base;
retire what the base on disk has passed; copy forward; make or recycle containers; trim; say whether the disk is full.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from flintmq.errors import StoreError
from flintmq.store import marks
from flintmq.store.copy_forward import copy_container

log = logging.getLogger("flintmq.store")

# containers of the message log that nothing but acks and outcomes may use (the reserve)
RESERVE = 2
# a copy-forward cycle that did not shrink the log waits until the log has grown by this factor
GROWTH = 1.25
# containers kept ready at most, when the writer had to wait for one
AHEAD_BYTES_MAX = 64 << 20
# a log that fills its containers more slowly than this is calm
CALM_NS = 2_000_000_000
# seconds between two passes when nothing happens
IDLE_S = 1.0


class Maintenance:
    """Maintains the logs of a LogStore."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.copied_messages = 0
        self.copied_bytes = 0
        self._cycle_end = 0  # LSN at which the present copy-forward cycle began: it ends when the base reaches it
        self._cycle_size = 0  # bytes in use when the last cycle ended
        self._tails: dict[str, tuple[int, int]] = {}  # log -> its tail's container, and when that was first seen
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._ahead_least = store.messages.ahead

    # --- thread -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self.store.on_maintain = self._wake.set
        self._thread = threading.Thread(target=self._run, name="flintmq-maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the pass under way."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(IDLE_S)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.once()
            except OSError as error:
                self.store.failed(StoreError(f"{error.filename or 'a container'}: {error.strerror}"))
                return
            except StoreError:
                return  # the log has failed, and said so
            except Exception:
                log.exception("internal error in the maintenance of the store")

    # --- a pass -----------------------------------------------------------------------------------------------------

    def once(self) -> None:
        """One pass. Raises: OSError when a file operation fails other than for space; StoreError."""
        store = self.store
        messages, transactions, pages = store.messages, store.transaction_records, store.pages
        for one in (messages, transactions, pages):
            if one is not None:
                one.seal()
        store.collect_released()
        self._move_base()
        self._copy_forward()
        if transactions.used_bytes > 2 * transactions.live_bytes + 4 * transactions.container_size:
            store.copy_transactions(transactions.base + transactions.container_size)
        for one in (messages, transactions, pages):
            if one is None:
                continue
            starved = one.ready_ahead == 0
            if one is messages and starved and one.ahead * one.container_size < AHEAD_BYTES_MAX:
                one.set_ahead(one.ahead * 2)
            if one.prepare(self._is_calm(one)):
                store.writer.kick()
            one.trim()
        self._watch_space()

    def _is_calm(self, one: Any) -> bool:
        """Whether new containers are filled with zeros: cheaper syncs later for twice the writing now, which under load would only
        compete with the messages for the disk."""
        now = self.store.clock.monotonic_ns()
        tail, since = self._tails.get(one.name, (0, now - CALM_NS))
        at = one.tail // one.container_size
        if at != tail:
            self._tails[one.name] = (at, now)
        return bool(now - since >= CALM_NS)

    def _move_base(self) -> None:
        store = self.store
        messages = store.messages
        target = messages.base_target()
        if target > messages.base:
            marks.write_marks(store, store.tails_below(target))
            messages.advance_base()
            store.writer.kick()
        messages.retire()
        if store.transaction_records.advance_base():
            store.writer.kick()
        store.transaction_records.retire()
        if store.pages is not None:
            store.pages.advance_base()
            store.pages.retire()

    def _copy_forward(self) -> None:
        """size <= 2 x live + 4 containers: else the oldest container's live messages move to the tail."""
        messages = self.store.messages
        used = messages.used_bytes
        if used <= 2 * messages.live_bytes + 4 * messages.container_size:
            return
        if self._cycle_end and messages.base >= self._cycle_end:
            self._cycle_end = 0
            self._cycle_size = used
        if not self._cycle_end:
            if used < self._cycle_size * GROWTH:
                return
            self._cycle_end = messages.tail
        containers = messages.containers()
        if len(containers) < 2 or containers[0][1] == 0:
            return
        sequence = containers[0][0]
        if containers[0][3] != 2:  # CONTAINER_SEALED
            return
        copied, written = copy_container(self.store, sequence)
        self.copied_messages += copied
        self.copied_bytes += written
        self.store.writer.kick()

    def _watch_space(self) -> None:
        store = self.store
        messages = store.messages
        low = bool(messages.low) and messages.ready_ahead <= RESERVE
        if store.disk_low != low:
            store.set_disk_low(low)
            if low:
                log.warning(
                    "no space for more log containers in %s: publishers are blocked until messages are consumed or space is freed",
                    messages.directory,
                )
            else:
                log.warning("there is space for log containers again: publishers go on")

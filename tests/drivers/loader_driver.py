"""The cold reader of a LogStore without consumers: parked deliveries and read-aheads as the queue core asks for them.

in: plain values of a test. out: calls of the log port's `load`; what the queue then says of its entries.
"""

from __future__ import annotations

from cython import NULL, address, cast, cclass, cfunc, exceptval, nogil, p_char, pointer, void
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_load64, at_store64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.content import content_body, content_decref, content_t
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.entry_list import list_slot_locked
from cython.cimports.flintmq.queue.queue_core import queue_add_waiter, queue_cold_count, queue_remove_waiter
from cython.cimports.flintmq.queue.slot import LOADING_FIRST, slot_begin_loading
from cython.cimports.flintmq.queue.types import ENTRY_FAILED, ENTRY_LOADING, ENTRY_NOT_RESIDENT, segment_t, slot_t, waiter_t
from cython.cimports.flintmq.store.content_reader import ContentReader
from cython.cimports.flintmq.store.log_store import LogStore
from cython.cimports.libc.stdint import uint64_t


@cclass
class LoaderDriver:
    """Args: store: with a started loader."""

    def __init__(self, store: LogStore) -> None:
        self.store = store

    def park(self, handle: QueueHandle, position: int) -> bool:
        """A delivery needs this cold entry. True: it was the first, so the store was asked."""
        at: uint64_t = position
        message_id: uint64_t
        segment: pointer[segment_t] = NULL
        slot: pointer[slot_t]
        spin_lock(address(handle.queue.entries.lock))
        slot = list_slot_locked(address(handle.queue.entries), at, address(segment))
        spin_unlock(address(handle.queue.entries.lock))
        if slot == NULL:
            raise KeyError(position)
        if slot_begin_loading(slot) != LOADING_FIRST:
            return False
        message_id = slot.message_id
        with nogil:
            self.store.port.load(self.store.port.context, handle.queue, at, message_id)
        return True

    def read_ahead(self, handle: QueueHandle, position: int) -> None:
        """A consumer will soon want what comes from there on."""
        at: uint64_t = position
        with nogil:
            self.store.port.load(self.store.port.context, handle.queue, at, 0)

    def state(self, handle: QueueHandle, position: int) -> str:
        """'resident', 'cold', 'loading' (asked for) or 'failed'. Raises: KeyError."""
        segment: pointer[segment_t] = NULL
        slot: pointer[slot_t]
        found: uint64_t = 0
        at: uint64_t = position
        spin_lock(address(handle.queue.entries.lock))
        slot = list_slot_locked(address(handle.queue.entries), at, address(segment))
        if slot != NULL:
            found = at_load64(address(slot.state))
        spin_unlock(address(handle.queue.entries.lock))
        if slot == NULL:
            raise KeyError(position)
        if found & ENTRY_FAILED:
            return "failed"
        if found & ENTRY_NOT_RESIDENT:
            return "loading" if found & ENTRY_LOADING else "cold"
        return "resident"

    def resident(self, handle: QueueHandle) -> list:
        """Positions in memory, in order, of a queue with one level and all its entries."""
        return [position for position in range(1, handle.tail() + 1) if self.state(handle, position) == "resident"]

    def message_id(self, handle: QueueHandle, position: int) -> int:
        """Id of the message of an entry. Raises: KeyError."""
        segment: pointer[segment_t] = NULL
        slot: pointer[slot_t]
        at: uint64_t = position
        spin_lock(address(handle.queue.entries.lock))
        slot = list_slot_locked(address(handle.queue.entries), at, address(segment))
        spin_unlock(address(handle.queue.entries.lock))
        if slot == NULL:
            raise KeyError(position)
        return slot.message_id

    def set_hot_bytes(self, count: int) -> None:
        """Bytes of bodies that a queue keeps in memory from now on."""
        window: uint64_t = count
        at_store64(address(self.store.port.hot_bytes), window)

    def cost_of_reads(self, ns: int) -> None:
        """Manual clock: what the load of one message is charged as waiting for the disk."""
        self.store.loader.loader.read_ns = ns

    def hot_messages(self, count: int) -> None:
        """So many messages came to queues that have nothing on disk."""
        more: uint64_t = count
        at_store64(address(self.store.logs.ml.hot_arrivals), self.store.logs.ml.hot_arrivals + more)

    @property
    def hot_arrivals(self) -> int:
        return at_load64(address(self.store.logs.ml.hot_arrivals))


@cclass
class BacklogReader:
    """One of the cold reader's readers, by itself. Args: store."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.reader = ContentReader(store.messages, store.pages, ahead=True)
        self.kept = []

    def body(self, message_id: int) -> bytes | None:
        """None: it can't be read. Messages of one record."""
        wanted: uint64_t = message_id
        content: pointer[content_t]
        with nogil:
            content = self.reader.read(wanted)
        if content == NULL:
            return None
        found: bytes = PyBytes_FromStringAndSize(cast(p_char, content_body(content)), content.body_len)
        content_decref(content)
        return found

    def keep(self, message_id: int) -> bool:
        """Reads a content, which stays in memory until `close`. False: it can't be read."""
        wanted: uint64_t = message_id
        content: pointer[content_t]
        with nogil:
            content = self.reader.read(wanted)
        if content != NULL:
            self.kept.append(cast(uint64_t, content))
        return content != NULL

    @property
    def no_means(self) -> bool:
        """The last read found no memory or descriptor."""
        return self.reader.no_means

    @property
    def ahead(self) -> bool:
        """Pieces of the log are read ahead around the page cache."""
        return self.reader.ring.on

    def close(self) -> None:
        content: uint64_t
        for content in self.kept:
            content_decref(cast(pointer[content_t], content))
        self.kept = []
        self.reader.close()


@cfunc
@nogil
@exceptval(check=False)
def _note_wake(waiter: pointer[waiter_t]) -> void:
    woken: pointer[woken_t] = cast(pointer[woken_t], waiter.context)
    woken.cold = queue_cold_count(woken.queue)
    woken.wakes += 1


@cclass
class Woken:
    """Waits for entries of a queue that are parked on, and notes what it finds when it is woken. Args: handle: of the queue."""

    def __init__(self, handle: QueueHandle) -> None:
        self.handle = handle
        self.woken.queue = handle.queue
        self.waiter.context = address(self.woken)
        self.waiter.wake = _note_wake
        queue_add_waiter(handle.queue, address(self.waiter))

    def close(self) -> None:
        """No wakes any more."""
        queue_remove_waiter(self.handle.queue, address(self.waiter))

    @property
    def seen(self) -> tuple:
        """(wakes so far, entries that were not in memory at the last of them)."""
        return self.woken.wakes, self.woken.cold

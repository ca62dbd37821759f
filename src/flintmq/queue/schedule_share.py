"""What messages of one user take of a schedule (see schedule_share.pxd).

in: messages that come to the schedule, with their due times. out: whether one more of this user may come.

H1  A message counts from its publish to its due time at least, and for a sixteenth of its delay (16 ms) longer at most.
H2  Nobody tells when a message leaves: its interval is over. A message that is cancelled counts until then; a purge clears all.
H3  Two threads that ask at the same moment may both be let in: the limit is exact but for one message of each thread.

A count in each entry would be exact, and take memory of every message of every queue.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, exceptval, nogil, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add32, at_load32, at_load64, at_store64, at_sub32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.clock import wall_ms
from cython.cimports.flintmq.core.memory_account import MEMORY_ENTRIES, memory_add
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset


@cfunc
@nogil
@exceptval(check=False)
def _over(share: pointer[schedule_share_t], interval: pointer[share_interval_t]) -> void:
    share.messages -= interval.messages
    share.bytes -= interval.bytes
    interval.messages = 0
    interval.bytes = 0


@cfunc
@nogil
@exceptval(check=False)
def _look(share: pointer[schedule_share_t], now_ms: int64_t) -> void:
    """Under the lock: forgets the intervals that are over."""
    level: uint32_t
    i: uint32_t
    ring: pointer[share_interval_t]
    if share.messages == 0 or share.looked_ms == now_ms:
        return
    share.looked_ms = now_ms
    for level in range(SHARE_LEVELS):
        ring = share.levels[level]
        if ring == NULL:
            continue
        for i in range(SHARE_RING):
            if ring[i].messages and ring[i].number << level <= cast(uint64_t, now_ms):
                _over(share, address(ring[i]))


@cfunc
@nogil
@exceptval(check=False)
def _fits(share: pointer[schedule_share_t], messages: uint64_t, size: uint64_t, body_len: uint32_t) -> bint:
    return share.messages + messages < at_load64(address(share.messages_max)) and share.bytes + size + body_len <= at_load64(
        address(share.bytes_max)
    )


def share_takes(share: pointer[schedule_share_t], messages: uint64_t, size: uint64_t, body_len: uint32_t) -> bint:
    fits: bint
    spin_lock(address(share.lock))
    fits = _fits(share, messages, size, body_len)
    if not fits:
        _look(share, wall_ms())
        fits = _fits(share, messages, size, body_len)
    spin_unlock(address(share.lock))
    return fits


def share_note(share: pointer[schedule_share_t], due_ms: int64_t, body_len: uint32_t) -> void:
    delay: uint64_t
    level: uint32_t = SHARE_LEVEL_MIN
    number: uint64_t
    interval: pointer[share_interval_t]
    now_ms: int64_t = wall_ms()
    if due_ms <= now_ms:
        return
    delay = cast(uint64_t, due_ms - now_ms)
    while level < SHARE_LEVELS - 1 and delay >> level >= 32:
        level += 1
    number = (cast(uint64_t, due_ms) >> level) + 1
    spin_lock(address(share.lock))
    if share.levels[level] == NULL:
        share.levels[level] = cast(pointer[share_interval_t], calloc(SHARE_RING, sizeof(share_interval_t)))
        if share.levels[level] == NULL:
            spin_unlock(address(share.lock))
            return
        memory_add(MEMORY_ENTRIES, SHARE_RING * sizeof(share_interval_t))
    interval = address(share.levels[level][number % SHARE_RING])
    if interval.number != number:
        _over(share, interval)  # 64 intervals ago
        interval.number = number
    interval.messages += 1
    interval.bytes += body_len
    share.messages += 1
    share.bytes += body_len
    spin_unlock(address(share.lock))


def share_incref(share: pointer[schedule_share_t]) -> void:
    at_add32(address(share.refs), 1)


def share_decref(share: pointer[schedule_share_t]) -> void:
    level: uint32_t
    if at_sub32(address(share.refs), 1) != 1:
        return
    for level in range(SHARE_LEVELS):
        if share.levels[level] != NULL:
            free(share.levels[level])
            memory_add(MEMORY_ENTRIES, -cast(int64_t, SHARE_RING * sizeof(share_interval_t)))
    free(share)


@cclass
class ScheduleShare:
    """See schedule_share.pyi."""

    def __cinit__(self):
        self.share = cast(pointer[schedule_share_t], calloc(1, sizeof(schedule_share_t)))
        if self.share == NULL:
            raise MemoryError
        self.share.refs = 1
        self.share.messages_max = ~cast(uint64_t, 0)
        self.share.bytes_max = ~cast(uint64_t, 0)

    def __dealloc__(self):
        if self.share != NULL:
            share_decref(self.share)

    def limit(self, messages: int, size: int) -> None:
        """See schedule_share.pyi."""
        at_store64(address(self.share.messages_max), messages)
        at_store64(address(self.share.bytes_max), size)

    def takes(self, body_bytes: int) -> bool:
        """See schedule_share.pyi."""
        return share_takes(self.share, 0, 0, body_bytes)

    def note(self, due_ms: int, body_bytes: int) -> None:
        """See schedule_share.pyi."""
        share_note(self.share, due_ms, body_bytes)

    def forget(self) -> None:
        """See schedule_share.pyi."""
        level: uint32_t
        spin_lock(address(self.share.lock))
        for level in range(SHARE_LEVELS):
            if self.share.levels[level] != NULL:
                memset(self.share.levels[level], 0, SHARE_RING * sizeof(share_interval_t))
        self.share.messages = 0
        self.share.bytes = 0
        spin_unlock(address(self.share.lock))

    def figures(self) -> tuple:
        """See schedule_share.pyi."""
        messages: uint64_t
        size: uint64_t
        spin_lock(address(self.share.lock))
        _look(self.share, wall_ms())
        messages = self.share.messages
        size = self.share.bytes
        spin_unlock(address(self.share.lock))
        return messages, size

    def known(self) -> bool:
        """See schedule_share.pyi."""
        return at_load32(address(self.share.refs)) > 1

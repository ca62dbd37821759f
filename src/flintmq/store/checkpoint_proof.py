"""Whether a checkpoint and the log behind it come to what the whole log does (see checkpoint_proof.pxd).

in: the logs of a store that nobody writes. out: differences, as text.
"""

from __future__ import annotations

from typing import Any

from cython import NULL, address, bint, cast, cclass, cfunc, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.types import RESTORED_HELD, RESTORED_UNSIZED, restored_t
from cython.cimports.flintmq.store.past import past_first, past_owner, past_owner_at, past_segment, past_segment_t
from cython.cimports.flintmq.store.recovery import Recovery
from cython.cimports.flintmq.store.recovery_past import past_standing
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc

from flintmq.store.start import read_store

# above any queue id: whatever the log names may be a queue
QUEUE_IDS = 1 << 62
# differences that are named
NAMED_MAX = 20


@cclass
class _Walk:
    """The entries of a queue in the order of their positions: those of the log and those of the checkpoint's runs."""

    recovery: Recovery
    entries: pointer[restored_t]
    count: uint64_t
    at: uint64_t
    run: pointer[restored_t]
    standing: c_int
    in_run: c_int
    segment: uint64_t
    segments_end: uint64_t
    unread: bint  # a run could not be read: it has no more entries

    def __cinit__(self, recovery: Recovery, queue_id: int):
        owner: int64_t = -1
        self.recovery = recovery
        self.entries = recovery.entries(queue_id, address(self.count))
        self.run = cast(pointer[restored_t], malloc(LARGE_SLOTS * sizeof(restored_t)))
        if self.run == NULL:
            raise MemoryError("no memory to compare entries")
        if recovery.past is not None:
            owner = past_owner(address(recovery.past.past), queue_id)
        if owner >= 0:
            self.segment = past_owner_at(address(recovery.past.past), owner).first
            self.segments_end = self.segment + past_owner_at(address(recovery.past.past), owner).count

    def __dealloc__(self):
        free(self.run)

    @cfunc
    def next(self) -> pointer[restored_t]:
        """NULL: there are no more, or a run can't be read (`unread`)."""
        segment: pointer[past_segment_t]
        ended: uint32_t = 0
        while self.in_run >= self.standing and self.segment < self.segments_end:
            segment = past_segment(address(self.recovery.past.past), self.segment)
            # Not before it is its turn: its run is read into memory.
            if self.at < self.count and self.entries[self.at].position < past_first(segment):
                break
            self.segment += 1
            self.in_run = self.standing = 0
            if not segment.purged and not segment.taken:
                self.standing = past_standing(address(self.recovery._work), segment, self.run, self.run, address(ended))
                if self.standing < 0:
                    self.unread = True
                    self.segment = self.segments_end
                    return NULL
        if self.in_run < self.standing and (self.at >= self.count or self.run[self.in_run].position < self.entries[self.at].position):
            self.in_run += 1
            return self.run + (self.in_run - 1)
        if self.at < self.count:
            self.at += 1
            return self.entries + (self.at - 1)
        return NULL


def entry_difference(whole: Recovery, other: Recovery, queue_id: object) -> object:
    left: _Walk = _Walk(whole, queue_id)
    right: _Walk = _Walk(other, queue_id)
    a: pointer[restored_t]
    b: pointer[restored_t]
    same: bint
    while True:
        a = left.next()
        b = right.next()
        if left.unread or right.unread:
            return f"queue id {queue_id}: a run of the checkpoint can't be read"
        if a == NULL and b == NULL:
            return None
        if a == NULL or (b != NULL and b.position < a.position):
            return f"queue id {queue_id}: the checkpoint has an entry at position {b.position}, the log has none"
        if b == NULL or a.position < b.position:
            return f"queue id {queue_id}: the log has an entry at position {a.position}, the checkpoint has none"
        same = (
            a.message_id == b.message_id
            and a.expires_at_ms == b.expires_at_ms
            and (a.body_len == b.body_len or b.flags & RESTORED_UNSIZED != 0)
            and (a.flags ^ b.flags) & RESTORED_HELD == 0
        )
        if not same:
            return (
                f"queue id {queue_id}: at position {a.position} the log has message {a.message_id} ({a.body_len} bytes, expiry"
                f" {a.expires_at_ms}), the checkpoint message {b.message_id} ({b.body_len} bytes, expiry {b.expires_at_ms})"
            )


def prove(files: Any, directory: str) -> tuple[int | None, list[str]]:
    """Reads a store as a start would, from its newest checkpoint, and once more from its whole log. Returns the LSN from which the first
    reading began, None: it has no checkpoint that a start would use; and the differences, NAMED_MAX at most. O(log). Raises: StoreError."""
    known: set = set(read_store(files, directory, None, (), QUEUE_IDS, whole=True).recovery.unknown_queues)
    other = read_store(files, directory, None, known, QUEUE_IDS)
    if other.index is None:
        return None, []
    whole = read_store(files, directory, None, known, QUEUE_IDS, whole=True)
    differences: list[str] = []
    for queue_id in sorted(known | set(other.recovery.marks)):
        difference = entry_difference(whole.recovery, other.recovery, queue_id)
        if difference is not None:
            differences.append(difference)
        tails = whole.recovery.marks.get(queue_id), other.recovery.marks.get(queue_id)
        if tails[0] != tails[1]:
            differences.append(f"queue id {queue_id}: the log has used positions up to {tails[0]}, the checkpoint says {tails[1]}")
        if len(differences) >= NAMED_MAX:
            break
    return other.recovery.past.begin, differences[:NAMED_MAX]

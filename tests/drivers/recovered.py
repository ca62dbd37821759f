"""What a Recovery found, as lists: entries of queues, live messages, transactions that messages name."""

from __future__ import annotations

from cython import address, cast, cfunc, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.queue.entry_list import LARGE_SLOTS
from cython.cimports.flintmq.queue.types import RESTORED_HELD, RESTORED_REDELIVERED, restored_t
from cython.cimports.flintmq.store.past import past_owner, past_owner_at, past_segment, past_segment_t
from cython.cimports.flintmq.store.recovery import Recovery
from cython.cimports.flintmq.store.recovery_past import past_standing
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free


def entries_of(recovery: Recovery, queue_id: int) -> list:
    """(position, message id, expires_at_ms, body length, redelivered, held) of a queue's entries, those of a checkpoint among them."""
    count: uint64_t = 0
    i: uint64_t
    ended: uint32_t = 0
    standing: c_int
    owner: int64_t
    first: uint64_t
    segment: pointer[past_segment_t]
    run: pointer[restored_t]
    entries: pointer[restored_t] = recovery.entries(queue_id, address(count))
    found = [_facts(entries + i) for i in range(count)]
    owner = past_owner(address(recovery.past.past), queue_id) if recovery.past is not None and queue_id in recovery.marks else -1
    if owner < 0:
        return found
    run = cast(pointer[restored_t], calloc(LARGE_SLOTS, sizeof(restored_t)))
    first = past_owner_at(address(recovery.past.past), owner).first
    for i in range(first, first + past_owner_at(address(recovery.past.past), owner).count):
        segment = past_segment(address(recovery.past.past), i)
        if segment.purged or segment.taken:
            continue
        standing = past_standing(address(recovery._work), segment, run, run, address(ended))
        assert standing >= 0, "a run can't be read"
        found += [_facts(run + j) for j in range(standing)]
    free(run)
    return sorted(found)


@cfunc
def _facts(entry: pointer[restored_t]) -> tuple:
    return (
        entry.position,
        entry.message_id,
        entry.expires_at_ms,
        entry.body_len,
        bool(entry.flags & RESTORED_REDELIVERED),
        bool(entry.flags & RESTORED_HELD),
    )


def live_messages(recovery: Recovery) -> list:
    """(lsn, id, bytes, places) of every live message, places as (queue id, position, expiry, enqueued by, dequeued by)."""
    found = []
    at: uint64_t = 0
    i: uint64_t
    n: uint32_t
    for i in range(recovery.kept_count):
        if recovery.live[i].id == 0:
            continue
        places = []
        for n in range(recovery.live[i].places):
            place = recovery.locations[at]
            places.append((place.queue_id, place.position, place.expires_at_ms, place.enqueued_by, place.dequeued_by))
            at += 1
        found.append((recovery.live[i].lsn, recovery.live[i].id, recovery.live[i].bytes, places))
    return found


def named_transactions(recovery: Recovery) -> list:
    """(message id, transaction) for every live message and every transaction that its records name."""
    return [(recovery.names[i].message_id, recovery.names[i].tx) for i in range(recovery.name_count)]

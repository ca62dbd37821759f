"""What a Recovery found, as lists: entries of queues, live messages, transactions that messages name."""

from __future__ import annotations

from cython import address, pointer
from cython.cimports.flintmq.queue.types import RESTORED_HELD, RESTORED_REDELIVERED, restored_t
from cython.cimports.flintmq.store.recovery import Recovery
from cython.cimports.libc.stdint import uint32_t, uint64_t


def entries_of(recovery: Recovery, queue_id: int) -> list:
    """(position, message id, expires_at_ms, body length, redelivered, held) of a queue's entries."""
    count: uint64_t = 0
    i: uint64_t
    entries: pointer[restored_t] = recovery.entries(queue_id, address(count))
    found = []
    for i in range(count):
        entry = entries[i]
        found.append(
            (
                entry.position,
                entry.message_id,
                entry.expires_at_ms,
                entry.body_len,
                bool(entry.flags & RESTORED_REDELIVERED),
                bool(entry.flags & RESTORED_HELD),
            )
        )
    return found


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

# Recovery of the message log (and, before it, the transaction log): what a restart puts back. docs/RELIABILITY.md has the rules.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport restored_t
from flintmq.store.log.record cimport record_t
from flintmq.store.log.scan cimport LogScan

cdef struct live_t:             # a live message: where its content is now (Message-Start or the last Message-Copy)
    uint64_t lsn
    uint64_t id                 # equals lsn unless it was copied
    uint32_t bytes              # of its Start or Copy and its chunks, in the log
    uint32_t places             # how many places (below) it has; 0 = one plain place, not listed

cdef struct location_t:         # a place of a message that stands on several queues, or that a transaction touched
    uint64_t queue_id
    uint64_t position           # 0: enqueued by a transaction that has not committed
    int64_t expires_at_ms
    uint64_t enqueued_by        # transaction that put it there and that the log still names; 0 = none
    uint64_t dequeued_by        # undecided (prepared) transaction that wants to take it; 0 = none

cdef class Recovery:
    # --- result, after run()
    cdef live_t *live           # ascending lsn
    cdef uint64_t live_count
    cdef location_t *locations  # those of live[0], then those of live[1], ...: `places` each
    cdef uint64_t location_count
    cdef readonly dict transactions      # id -> RecoveredTx (recovery.py): xid, state, rows, heuristic, ended, references
    cdef readonly dict notes             # (kind, key) -> value
    cdef readonly dict marks             # queue id -> tuple of highest position index per level, from Queue-Mark and from entries
    cdef readonly list unknown_queues    # ids the log names that are not in SQL and at or below its high water: their entries ended
    cdef readonly object report          # RecoveryReport (recovery.py): counts for the log line, damage, torn tails, what was lost
    # Entries of a queue that come back, ascending position (array owned by Recovery); flags of restored_t: redelivered, held (in doubt: dequeued by
    # a prepared transaction). Entries enqueued by an undecided transaction are not among them.
    cdef restored_t *entries(self, uint64_t queue_id, uint64_t *count)

# Recovery of the message log (and, before it, the transaction log): what a restart puts back. docs/RELIABILITY.md has the rules.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.queue.types cimport restored_t
from flintmq.store.log.record cimport record_t
from flintmq.store.log.scan cimport LogScan
from flintmq.store.recovery_state cimport work_t

cdef struct live_t:             # a live message: where its content is now (Message-Start or the last Message-Copy)
    uint64_t lsn
    uint64_t id                 # equals lsn unless it was copied
    uint32_t bytes              # of its Start or Copy and its chunks, in the log
    uint32_t places             # how many places (below) it has; 0 = one plain place, not listed

cdef struct location_t:         # a place of a message that stands on several queues, or that a transaction touched
    uint64_t queue_id
    uint64_t position           # 0: enqueued by a prepared transaction, which gives it its position when it commits
    int64_t expires_at_ms
    uint64_t enqueued_by        # prepared transaction that wants to put it there; 0 = it is there
    uint64_t dequeued_by        # prepared transaction that wants to take it; 0 = none

cdef struct named_t:            # a record of this live message names this transaction, which stays valid as long as the message lives
    uint64_t message_id
    uint64_t tx

cdef class Recovery:
    # --- result, after run()
    cdef live_t *live           # ascending lsn
    cdef readonly uint64_t live_count
    cdef location_t *locations  # those of live[0], then those of live[1], ...: `places` each
    cdef readonly uint64_t location_count
    cdef named_t *names         # in the order of `live`
    cdef readonly uint64_t name_count
    cdef readonly dict transactions      # id -> RecoveredTx (recovery.py): xid, state, rows, heuristic, ended, references
    cdef readonly dict notes             # (kind, key) -> value
    cdef readonly dict marks             # queue id -> tuple of highest position index per level, from Queue-Mark and from entries
    cdef readonly list unknown_queues    # ids the log names that are not in SQL and at or below its high water: their entries ended
    cdef readonly list homeless          # ids of messages that stand nowhere, have no end in the log and name a transaction: delete them
    cdef readonly uint64_t named_tx_max  # highest transaction id that the message log names; new ones must be higher
    cdef readonly object report          # RecoveryReport (recovery.py): counts for the log line, damage, torn tails, what was lost
    # Entries of a queue that come back, ascending position (array owned by Recovery); flags of restored_t: redelivered, held (in doubt: dequeued by
    # a prepared transaction). Entries enqueued by an undecided transaction are not among them.
    cdef restored_t *entries(self, uint64_t queue_id, uint64_t *count)
    # --- private
    cdef work_t _work
    cdef restored_t *_entries
    cdef object _error

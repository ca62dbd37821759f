# Recovery of the message log (and, before it, the transaction log): what a restart puts back. docs/RELIABILITY.md has the rules.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.queue.types cimport restored_t
from flintmq.store.log.record cimport record_t
from flintmq.store.log.scan cimport LogScan
from flintmq.store.past cimport Past
from flintmq.store.recovery_work cimport live_t, location_t, named_t, work_t

cdef class Recovery:
    # --- result, after run()
    cdef live_t *live           # ascending lsn; dead ones among them (id 0): every place at which a message stood
    cdef readonly uint64_t kept_count    # of `live`
    cdef readonly uint64_t live_count
    cdef location_t *locations  # those of live[0], then those of live[1], ...: `places` each
    cdef readonly uint64_t location_count
    cdef named_t *names         # in the order of `live`
    cdef readonly uint64_t name_count
    cdef readonly dict transactions      # id -> RecoveredTx (transaction_log.py): xid, state, rows, heuristic, ended, references
    cdef readonly dict notes             # (kind, key) -> value
    cdef readonly dict marks             # queue id -> tuple of highest position index per level, from Queue-Mark and from entries
    cdef readonly dict delivered         # queue id -> tuple of highest index per level that may have been delivered, of queues with a Queue-Delivered
    cdef readonly list unknown_queues    # ids the log names that are not in SQL and at or below its high water: their entries ended
    cdef readonly list homeless          # ids of messages that stand nowhere, have no end in the log and name a transaction: delete them
    cdef readonly list taken             # entries of committed sets that still stood: (queue id, position, message id, consumer id, acquired us)
    cdef readonly uint64_t named_tx_max  # highest transaction id that the message log names; new ones must be higher
    cdef readonly Past past              # the checkpoint behind which the log was read; None: all of it was
    cdef readonly object report          # RecoveryReport (recovery.py): counts for the log line, damage, torn tails, what was lost
    # Entries of a queue that come back, ascending position (array owned by Recovery); flags of restored_t: redelivered, held (in doubt: dequeued by
    # a prepared transaction). Entries enqueued by an undecided transaction are not among them.
    cdef restored_t *entries(self, uint64_t queue_id, uint64_t *count)
    # --- private
    cdef work_t _work
    cdef restored_t *_entries
    cdef object _error
    cdef LogScan _scan                 # of the transaction log, while it is read
    cdef uint64_t _behind              # the last record of the transaction log that was read ends there

# --- applying the table
# Applies the decision table (recovery.lookup) to every place. last_damage: the LSN behind the last damaged stretch, 0 = none.
cdef void work_decide(work_t *work, const uint8_t *table, uint64_t last_damage, uint64_t lost_max) noexcept nogil
# Writes what lives into arrays of the sizes that work_decide counted. `live` is the memory of work.seen itself. flags: of every entry.
cdef void result_fill(work_t *work, restored_t *entries, live_t *live, location_t *locations, named_t *names, uint32_t flags) noexcept nogil

# A durable store: message log, transaction log, page log and what stands on them, as one LogPort and as the store of transactions.
from flintmq.queue.log_port cimport LogPort
from flintmq.store.checkpoints cimport Checkpoints
from flintmq.store.content_loader cimport ContentLoader
from flintmq.store.count_notes cimport CountNotes
from flintmq.store.entry_pager cimport EntryPager
from flintmq.store.index_log cimport IndexLog
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.writer cimport LogWriter
from flintmq.store.logs cimport Logs
from flintmq.store.past_restore cimport PastRestore
from flintmq.store.recovery cimport Recovery

cdef class LogStore(LogPort):
    cdef readonly Logs logs
    # those of `logs`, for callers
    cdef readonly ManagedLog messages
    cdef readonly ManagedLog transaction_records
    cdef readonly ManagedLog pages             # None: nothing is spilled
    cdef readonly IndexLog index
    cdef readonly EntryPager pager
    cdef readonly Checkpoints checkpoints
    cdef readonly object verifier              # Verifier: of what a start from a checkpoint did not read; None
    cdef readonly LogWriter writer
    cdef readonly ContentLoader loader
    cdef readonly object files
    cdef readonly str directory
    cdef readonly object clock
    cdef readonly object transactions          # TransactionLog
    cdef readonly object lock                  # of transactions and tickets: an RLock, never held while waiting for the disk
    cdef Recovery recovery                     # until its entries are in the queues
    cdef PastRestore past                      # the same, of entries that a checkpoint has; None: there is none
    cdef readonly object report                # RecoveryReport
    cdef readonly bint was_clean
    cdef readonly dict queues                  # queue id -> QueueHandle
    cdef dict _copied_delivered
    cdef public object on_failure              # (StoreError) -> None
    cdef readonly object maintenance           # Maintenance, or None
    cdef object lock_file
    cdef readonly object bulk                  # BulkTransactions
    cdef readonly CountNotes counts
    cdef readonly object streams               # StreamStore

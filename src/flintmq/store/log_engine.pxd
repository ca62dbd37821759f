# The logs of a durable store: message log, transaction log, page log, their writer and readers, as one LogPort.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport queue_t, slot_t
from flintmq.store.content_loader cimport ContentLoader
from flintmq.store.content_reader cimport ContentReader
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.writer cimport LogWriter
from flintmq.store.message_log cimport message_log_t
from flintmq.store.recovery cimport Recovery

cdef class LogEngine(LogPort):
    cdef message_log_t ml
    cdef readonly ManagedLog messages
    cdef readonly ManagedLog transaction_records
    cdef readonly ManagedLog pages             # None: nothing is spilled
    cdef readonly LogWriter writer
    cdef readonly ContentLoader loader
    cdef ContentReader reader                  # under reader_lock
    cdef object reader_lock
    cdef readonly object files
    cdef readonly str directory
    cdef readonly object clock
    cdef readonly object transactions          # TransactionLog
    cdef readonly object lock                  # of transactions and tickets: an RLock, never held while waiting for the disk
    cdef Recovery recovery                     # until its entries are in the queues
    cdef readonly object report                # RecoveryReport
    cdef readonly bint was_clean
    cdef readonly dict queues                  # queue id -> QueueHandle
    cdef object tickets                        # deque of [ticket, message LSN, transaction LSN], not durable yet
    cdef uint64_t last_ticket
    cdef uint64_t durable_ticket
    cdef list waiting                          # heap of (ticket, order, callback)
    cdef object order
    cdef bint running                          # a thread runs callbacks that are due
    cdef readonly object failure               # StoreError once the disk has failed
    cdef public object on_failure              # (StoreError) -> None
    cdef readonly object maintenance           # Maintenance, or None
    cdef object lock_file
    cdef readonly object bulk                  # BulkTransactions
    cdef readonly object streams               # StreamStore
    cdef bint closed

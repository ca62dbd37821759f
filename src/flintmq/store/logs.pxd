# The open logs of a durable store, and tickets: see logs.py.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.store.content_reader cimport ContentReader
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.writer cimport LogWriter
from flintmq.store.message_log cimport message_log_t

cdef class Logs:
    cdef message_log_t ml
    cdef readonly ManagedLog messages
    cdef readonly ManagedLog transaction_records
    cdef readonly ManagedLog pages             # None: nothing is spilled
    cdef readonly LogWriter writer
    cdef ContentReader reader                  # under reader_lock
    cdef object reader_lock
    cdef readonly object transactions          # TransactionLog
    cdef readonly object lock                  # of transactions and tickets: an RLock, never held while waiting for the disk
    cdef object failure                        # StoreError once the disk has failed
    cdef bint closed
    cdef object tickets                        # deque of [ticket, message LSN, transaction LSN], not durable yet
    cdef uint64_t last_ticket
    cdef uint64_t durable_ticket
    cdef list waiting                          # heap of (ticket, order, callback)
    cdef object order
    cdef bint running                          # a thread runs callbacks that are due
    # The logs are open: what they hold is durable.
    cdef void begin(self, ManagedLog messages, ManagedLog transaction_records, ManagedLog pages, LogWriter writer)
    # See LogPort.
    cdef content_t *load(self, uint64_t message_id) except NULL
    cdef int note_consumer(self, uint32_t consumer_id, bytes tag, bytes group) except -1
    cdef object error(self)
    # Highest ticket up to which everything is durable.
    cdef uint64_t durable(self)
    # The ticket of these two LSNs (0: none). Under `lock`.
    cpdef uint64_t ticket(self, uint64_t message_lsn, uint64_t transaction_lsn)
    cdef void count_waiting(self)

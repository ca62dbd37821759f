# Distributed transactions with very many messages: sets, runs of entries that are dequeued, and the store's face for them.
from libc.stdint cimport uint8_t, uint64_t
from flintmq.queue.held_runs cimport Run
from flintmq.store.logs cimport Logs

cdef class HeldSet:             # HeldRun of transactions/bulk.py
    cdef Logs logs
    cdef readonly Run run
    cdef uint64_t opened        # tail of the message log when the store was opened: what is below is on disk
    cdef uint64_t _rows(self, uint64_t start, uint64_t number, uint8_t *out) noexcept nogil

cdef class BulkTransactions:
    cdef Logs logs
    cdef object worker          # Background, or None: everything runs in the caller's thread
    cdef uint64_t opened
    cdef public object streams  # StreamStore, once it is open
    cdef dict inboxes           # queue id -> StreamInbox
    cdef set named              # consumer ids whose names this run has logged

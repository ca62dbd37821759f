# A local transaction that is mostly small: see tx_block.py.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.enrolment cimport Enrolment
from flintmq.queue.types cimport queue_t, slot_t
from flintmq.store.enrolment cimport LogEnrolment
from flintmq.store.logs cimport Logs
from flintmq.store.tx_sets cimport BulkTransactions

cdef enum:
    BLOCK_BYTES = 65536         # records of a transaction that is written as a whole, under the log's lock: about 20 us
    BLOCK_RECORDS = 256         # its enqueues and dequeues

cdef struct ending_t:           # a delivered entry that the transaction dequeues. Its front keeps the queue
    queue_t *queue
    uint64_t position
    slot_t *slot
    uint64_t delivered_us
    uint32_t owner
    int reason

cdef class BlockEnrolment(Enrolment):
    cdef Logs logs
    cdef BulkTransactions bulk
    cdef LogEnrolment large     # the transaction of both logs; None: it is not decided, or one block has it
    cdef uint64_t lsn           # behind that block; 0: nothing is in it
    cdef ending_t *endings
    cdef uint32_t ending_count
    cdef uint32_t ending_size
    cdef uint32_t _bytes(self) noexcept nogil
    cdef uint64_t _write(self, uint32_t size) noexcept nogil
    cdef void _end_deleted(self) noexcept nogil
    cdef object _write_large(self)

# Checkpoints of the durable store: what stands in the log, written into the index log while the broker works (docs/adr/0017).
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.types cimport restored_t
from flintmq.store.checkpoint_parts cimport parts_t
from flintmq.store.entry_pager cimport entry_pager_t
from flintmq.store.index_log cimport IndexLog, index_log_t
from flintmq.store.log.deaths cimport deaths_t, tally_t
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.logs cimport Logs
from flintmq.store.message_log cimport message_log_t
from flintmq.store.vectors cimport vector_t

cdef struct checkpoint_t:       # one that is written
    message_log_t *ml
    index_log_t *index
    entry_pager_t *pager
    parts_t parts
    uint64_t begin              # LSN of the message log
    tally_t *tallies            # its containers then
    uint32_t tally_count
    uint32_t tally_room
    deaths_t deaths
    restored_t *entries         # of one segment
    uint8_t *bytes              # of one run, or of rows of the message list
    uint64_t room
    bint waits                  # who writes the log is another thread
    bint last                   # of a clean stop: the pager has stopped
    uint32_t waited             # times, since something was taken

cdef class Checkpoints:
    cdef checkpoint_t work
    cdef object store                  # LogStore
    cdef Logs logs
    cdef ManagedLog messages
    cdef IndexLog index
    cdef uint64_t interval             # bytes of the message log
    cdef vector_t force_parts          # of the one in force: records of the index log that live for it alone
    cdef vector_t written_parts        # of the one that is written, and not on disk yet
    cdef uint64_t written_end          # LSN of the index log behind its last record; 0: there is none
    cdef uint64_t written_keep         # tail of the index log when it began
    cdef uint64_t kept                 # that of the one in force
    cdef list _ended                   # handles of deleted queues of which the log does not know all ends yet; under the store's lock
    cdef readonly bint in_force        # a start would use one
    cdef readonly uint64_t begin       # of the newest
    cdef readonly uint64_t size        # bytes of the newest, with the runs that were made for it
    cdef uint64_t again                # tails of message log and index log, added, from which the next try is made
    cdef int64_t rest_until            # monotonic nanoseconds before which none begins
    cdef object still                  # tails as above, and since when they are that, monotonic nanoseconds
    cdef readonly uint64_t written     # figures
    cdef readonly uint64_t given_up
    cdef readonly uint64_t bytes
    cdef bint _begin(self)
    cdef bint _queue(self, QueueHandle handle)
    cdef bint _has_ended(self, QueueHandle handle)
    cdef int _drop(self, vector_t *lsns) except -1

# Messages that transactions bring into a stream: see stream_inbox.py.
from libc.stdint cimport uint64_t
from flintmq.queue.held_runs cimport placed_t
from flintmq.queue.types cimport restored_t
from flintmq.store.logs cimport Logs
from flintmq.store.stream.stream_files cimport Stream

cdef class Batch:               # messages of one transaction for one stream, by rising positions
    cdef placed_t *placed
    cdef uint64_t count
    cdef object keep            # owns `placed`; None: the batch does
    cdef uint64_t at            # the first that is not appended
    cdef uint64_t ended         # the first whose original has no end
    cdef list marks             # (number behind a piece that was appended, offset of its last message; -1: it has none)

cdef class StreamInbox:
    cdef readonly Stream stream
    cdef Logs logs
    cdef object bulk            # BulkTransactions
    cdef object lock            # of what follows
    cdef object batches         # deque
    cdef uint64_t tail          # the last position that was given
    cdef bint again             # a pump waits for its turn
    cdef bint stuck             # a message could not be appended: nothing passes it before the next start
    cdef bint dropped           # the stream was deleted; changed under the lock of `logs`
    cdef object pumping         # one thread at a time appends
    cdef uint64_t reserve(self, placed_t *placed, uint64_t count) except? 0
    cdef object take(self, placed_t *placed, uint64_t count, object keep)
    cdef object restore(self, restored_t *entries, uint64_t count)
    cdef int _append(self, Batch batch, uint64_t *bytes, uint64_t *last) noexcept nogil
    cdef bint _end(self, Batch batch, uint64_t until) noexcept nogil

# The cold reader: loads content of parked entries on a thread of its own, in runs, and hands it to their queues.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport queue_t
from flintmq.store.content_reader cimport ContentReader

cdef struct request_t:
    queue_t *queue              # counted
    uint64_t position
    request_t *next

cdef struct loader_t:
    uint32_t lock
    uint32_t signal             # futex word
    uint32_t stopping
    request_t *first
    request_t *last
    uint64_t loaded             # figures: entries, runs, entries whose content could not be read
    uint64_t runs
    uint64_t failed

cdef void loader_request(loader_t *loader, queue_t *queue, uint64_t position) noexcept nogil
# log_port_t.load
cdef void store_load(void *context, queue_t *queue, uint64_t position, uint64_t message_id) noexcept nogil

cdef class ContentLoader:
    cdef loader_t loader
    cdef ContentReader reader
    cdef object thread
    cdef public object on_failed       # (queue id, position, message id): content of a live entry could not be read
    cdef uint64_t failed_queue
    cdef uint64_t failed_position
    cdef uint64_t failed_message
    cdef int serve(self) noexcept nogil
    cdef int run(self, queue_t *queue, uint64_t position) noexcept nogil

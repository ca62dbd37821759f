# What the queue core and the disk do to a store's cold reader, for tests that have no consumers.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.types cimport queue_t, waiter_t
from flintmq.store.content_reader cimport ContentReader
from flintmq.store.log_store cimport LogStore

cdef struct woken_t:
    queue_t *queue
    uint64_t cold                       # entries that were not in memory at the last wake
    uint32_t wakes

cdef class LoaderDriver:
    cdef readonly LogStore store

cdef class BacklogReader:
    cdef readonly LogStore store        # whose logs must outlive the reader
    cdef ContentReader reader
    cdef list kept                      # addresses of contents, a reference each

cdef class Woken:
    cdef QueueHandle handle
    cdef waiter_t waiter
    cdef woken_t woken

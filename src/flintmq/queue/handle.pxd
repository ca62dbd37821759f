# The Python face of one queue_t: what the control plane, management and tests hold.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.types cimport queue_t

# (exchange, routing key, content header payload, body), all bytes
cdef tuple content_tuple(content_t *content)

cdef class QueueHandle:
    cdef queue_t *queue               # counted reference
    cdef public uint32_t destination_flags   # DEST_* of route_cache.pxd, copied into every route
    cdef public int64_t ttl_ms        # -1: none
    cdef public uint64_t max_length   # messages; 2**64-1: none
    cdef public uint64_t max_bytes    # bytes; 2**64-1: none
    cdef public bint dead_letters     # a dead-letter exchange is set: refused and expired messages go the slow way
    cdef public object owner          # the control plane's Queue
    cdef object log                   # the LogPort it writes to, or None

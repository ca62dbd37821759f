# A queue for the control plane: the Python object over one queue_t, which virtual hosts, management and tests hold.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.queue.due_index cimport DueIndex
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport delivery_t, queue_t

# (exchange, routing key, content header payload, body), all bytes
cdef tuple content_tuple(content_t *content)
# That of the entry at a position, read from `log` (or None) when it is not in memory. Raises KeyError, StoreError.
cdef tuple queue_message(queue_t *queue, LogPort log, uint64_t position)

cdef class QueueHandle:
    cdef queue_t *queue               # counted reference
    cdef public uint32_t destination_flags   # DEST_* of route_cache.pxd, copied into every route
    cdef public int64_t ttl_ms        # -1: none
    cdef public uint32_t ttl_least_ms # what a message's own expiration is raised to; 0: stays
    cdef public bint dead_letters     # a dead-letter exchange is set: refused and expired messages go the slow way
    cdef public object owner          # the control plane's Queue
    cdef LogPort log                  # the log it writes to, or None
    cdef uint64_t _publish_letter(self, content_t *content, int64_t expires_at_ms, tuple ended, uint64_t *lsn)
    cdef bint _page_in(self, uint64_t position) except -1
    cdef tuple _read(self, delivery_t *delivery, bint taken)
    cdef tuple _end(self, delivery_t *delivery, int reason, object before)

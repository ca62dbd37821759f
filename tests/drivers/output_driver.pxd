# See output_driver.py. The .pxd makes it a compiled module.
from flintmq.core.buffer cimport outbuf_t
from flintmq.core.content cimport arena_t, content_t

cdef class OutputDriver:
    cdef outbuf_t out
    cdef arena_t *arena

cdef class ContentDriver:
    cdef arena_t *arena
    cdef content_t *content
    cdef readonly int filled

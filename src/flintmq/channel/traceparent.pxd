# W3C trace context in the headers of a message, looked for without being decoded.
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "string.h" nogil:
    const void *memmem(const void *haystack, size_t size, const void *needle, size_t needle_size)

cpdef enum:                   # connection_t.traced
    TRACED_FIREHOSE = 1       # the firehose gets a copy of each delivery (broker/trace.py)
    TRACED_SHIFT = 8          # above: 0: no spans; else spans for sampled traces whose last 24 bits are at most this (broker/spans.py)
    TRACED_MOST = 16777215    # there: for all of them

# Whether a table of headers (without its length) has a traceparent of version 00 that is sampled, and whose trace is among those of
# `traced`. What it finds may stand within another value: whoever makes a span reads the table. O(size).
cdef bint trace_wanted(const uint8_t *table, uint32_t size, uint32_t traced) noexcept nogil
# The same for tests.
cpdef bint is_wanted(bytes table, uint32_t traced)

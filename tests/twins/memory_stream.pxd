# A stream's log in memory with everything in the test's hand: what is visible, hot, kept, damaged, failing. For tests only.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.store.stream.stream_files cimport StreamSource
from flintmq.store.stream.stream_log cimport stream_visible_t

cdef struct memory_stream_t:
    uint32_t lock
    content_t **items
    int64_t *times
    uint64_t room
    uint64_t appended
    uint64_t visible            # atomic
    uint64_t first              # atomic
    uint64_t hot_window         # so many of the last visible ones are hot
    uint64_t damaged_from       # can't be read from the disk
    uint64_t damaged_to
    uint32_t failing            # reads fail
    uint32_t refusing           # appends fail
    uint64_t read_most          # offsets one cold read looks at
    uint64_t reads              # atomic
    uint64_t places             # atomic: new less freed
    uint32_t told_lock
    stream_visible_t tell
    void *context
    void *owner

cdef void memory_stream_publish(memory_stream_t *log, uint64_t upto) noexcept nogil

cdef class MemoryStream(StreamSource):
    cdef memory_stream_t log

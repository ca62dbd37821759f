# Failpoints: places where a test may let the process die (kill -9). Off unless FLINTMQ_FAILPOINT names one: then a hit costs one load.
from libc.stdint cimport uint32_t

cdef enum:
    FAIL_MESSAGE_WRITTEN = 0    # messages are written, not synced
    FAIL_MESSAGE_SYNCED = 1     # synced, nobody knows yet
    FAIL_COMMIT_WRITTEN = 2
    FAIL_COMMIT_SYNCED = 3
    FAIL_CONTAINER_CREATED = 4  # renamed to its name, directory not synced
    FAIL_CONTAINER_RECYCLED = 5
    FAIL_COPY_FORWARD = 6       # some of a container's messages are copied
    FAIL_SQL_COMMITTED = 7      # a definition is durable, the log does not know
    FAIL_RESTART_MARKED = 8     # marks of a clean stop are written, the block that says "clean" is not
    FAIL_STREAM_APPENDED = 9    # messages of a transaction are durable in a stream, and have no end in the message log
    FAILPOINTS = 10

cdef void failpoint(uint32_t which) noexcept nogil

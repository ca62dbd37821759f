# A stream with its files: opened, kept within its bounds, deleted. Streams of a store are kept by stream_store.StreamStore.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.record cimport record_t
from flintmq.store.log.scan cimport LogScan
from flintmq.store.stream.stream_log cimport StreamSpace, stream_t

# What the log's scan found (the container with the tail, and what recovery must read before it).
cdef struct recovered_t:
    uint64_t next               # offset behind the last whole message; meaningful when `any`
    uint64_t start              # LSN of that message
    uint64_t highest            # offset behind the highest one seen, whole or not
    uint64_t mark               # next offset that the last Stream-Mark told
    uint64_t mark_lsn
    uint64_t last_lsn           # of the last record
    uint64_t open_offset        # a message whose chunks are not all there yet
    uint64_t open_start
    uint64_t open_left
    bint any
    bint marked
    bint first_seen
    uint64_t first              # first offset that starts in what was read
    uint64_t first_us
    uint64_t first_lsn

cdef class Stream:
    cdef stream_t *stream
    cdef readonly ManagedLog managed
    cdef readonly uint64_t queue_id
    cdef readonly str directory
    cdef readonly object damage        # texts: what was found damaged
    cdef readonly bint broken          # it can't be appended to: its end is damaged beyond reading
    cdef object files
    cdef StreamSpace shared
    cdef bint made                     # its directory is there
    cdef uint64_t settled              # tail of the log when its last Stream-Mark was written
    cdef uint64_t seen                 # appends at the last maintenance, and since when there were no more
    cdef int64_t seen_ms
    cdef bint cooled
    cdef object gone                   # its files are removed

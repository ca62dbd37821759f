# What the log of a stream tells when it is opened: by its records, and by how it ends.
from libc.stdint cimport uint64_t
from flintmq.store.log.record cimport record_t
from flintmq.store.log.scan cimport LogScan

cdef struct recovered_t:        # what the log's scan found: the container with the tail, and what recovery reads before it
    uint64_t container_size
    uint64_t next               # offset behind the last whole message
    uint64_t start              # LSN of that message; 0: none was found
    uint64_t mark_lsn           # of the last Stream-Mark
    uint64_t last_lsn           # of the last record
    uint64_t open_start         # a message whose chunks are not all there yet, and its bytes that are and are not
    uint64_t open_filled
    uint64_t open_left
    uint64_t container          # the last one in which a message starts; its first offset, and when that was written
    uint64_t first
    uint64_t first_us
    bint any

# Takes in one record of the scan; `context`: a recovered_t whose container_size is set.
cdef void stream_on_record(void *context, record_t *record) noexcept nogil
# LSN of the block before a Stream-Mark that proves everything before it, or None.
cdef object stream_proven(object files, str directory, LogScan scan, recovered_t *found)

# A stream with its files: opened, kept within its bounds, deleted. Those of a store are kept by stream_store.StreamStore.
from libc.stdint cimport int64_t, uint64_t
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.scan cimport LogScan
from flintmq.store.log.writer cimport LogWriter
from flintmq.store.stream.stream_log cimport StreamSpace, stream_t
from flintmq.store.stream.stream_source cimport source_t

cdef struct first_t:            # the first message that starts in a container
    uint64_t container          # 0: none
    uint64_t offset
    uint64_t us                 # when it was written

cdef struct recovered_t:        # what the log's scan found: the container with the tail, and what recovery reads before it
    uint64_t container_size
    uint64_t next               # offset behind the last whole message
    uint64_t start              # LSN of that message; 0: none was found
    uint64_t mark_lsn           # of the last Stream-Mark
    uint64_t last_lsn           # of the last record
    uint64_t open_start         # a message whose chunks are not all there yet, and its bytes that are and are not
    uint64_t open_filled
    uint64_t open_left
    first_t lowest              # of the containers that were scanned, the first and the last one in which a message starts
    first_t last
    bint any

cdef class StreamSource:            # a log of which a stream core can be made: its table of functions
    cdef source_t source

cdef class Stream(StreamSource):
    cdef stream_t *stream
    cdef readonly ManagedLog managed
    cdef readonly uint64_t queue_id
    cdef readonly str directory
    cdef readonly list damage          # texts: what was found damaged
    cdef readonly bint broken          # its log can't be opened: nothing is appended or read; its files stay as they are
    cdef readonly uint64_t opened_bytes    # bytes that were read to open it
    cdef public int64_t inbound            # messages of transactions whose originals have no durable end: retention waits (stream_inbox.py)
    cdef object files
    cdef object clock
    cdef str store_dir
    cdef LogWriter writer
    cdef StreamSpace shared
    cdef set told                      # containers that were named as damaged
    cdef bint made                     # its directory is there
    cdef uint64_t settled              # appends when its end was last proven (Stream-Mark)
    cdef uint64_t seen                 # appends at the last maintenance, and when that number changed
    cdef int64_t seen_ms
    cdef bint cooled
    cdef bint held                     # the object holds itself until `finish`
    cdef readonly bint gone            # deleted, its files removed
    cdef int _recover(self, LogScan scan, recovered_t *recovered) except -1
    cdef uint64_t _first_of(self, uint64_t sequence, uint64_t *first_us)

# Cold reads of a stream's log for Python callers.
from flintmq.store.stream.stream_files cimport Stream
from flintmq.store.stream.stream_reader cimport stream_reader_t

cdef class StreamReader:
    cdef Stream owner
    cdef stream_reader_t *reader

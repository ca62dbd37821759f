# A stream's log on disk as the stream core sees it.
from flintmq.store.stream.stream_files cimport Stream
from flintmq.streams.source cimport StreamSource

cdef class DiskSource(StreamSource):
    cdef readonly Stream stream

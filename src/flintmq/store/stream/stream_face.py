"""Cold reads of a stream for Python callers (see stream_face.pxd).

in: an open Stream. out: its messages as Python values.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.store.stream.stream_batch import (
    stream_batch_clear,
    stream_batch_free,
    stream_batch_items,
    stream_batch_t,
    stream_filter_free,
    stream_filter_new,
    stream_filter_t,
)
from cython.cimports.flintmq.store.stream.stream_files import Stream
from cython.cimports.flintmq.store.stream.stream_log import STREAM_MESSAGES
from cython.cimports.flintmq.store.stream.stream_reader import stream_find_time, stream_read
from cython.cimports.flintmq.store.stream.stream_walk import stream_reader_free, stream_reader_new, stream_reader_rest
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memset

# bytes of one read of `skim`
READ_BYTES = cython.declare(uint64_t, 1 << 20)


@cython.cclass
class StreamReader:
    """A reader of a stream's containers, for Python callers. `close` it."""

    def __cinit__(self, owner: Stream):
        self.owner = owner
        self.reader = stream_reader_new(owner.stream)
        if self.reader == cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        stream_reader_free(self.reader)

    def read(self, offset: int, count: int = 100, max_bytes: int = 1 << 20, values: object = None, unfiltered: bool = False) -> tuple:
        """A cold read: (outcome STREAM_*, next offset, [(offset, exchange, routing key, header, body)])."""
        batch: stream_batch_t
        chosen: cython.pointer(stream_filter_t) = cython.NULL
        outcome: cython.int
        start: uint64_t = offset
        most: uint32_t = count
        most_bytes: uint64_t = max_bytes
        memset(cython.address(batch), 0, cython.sizeof(stream_batch_t))
        if values is not None:
            chosen = stream_filter_new(values, unfiltered)
        with cython.nogil:
            outcome = stream_read(self.owner.stream, self.reader, start, most, most_bytes, chosen, cython.address(batch))
            stream_filter_free(chosen)
        return outcome, batch.next_offset, stream_batch_items(cython.address(batch))

    def skim(self, offset: int, count: int, per_read: int = 256) -> tuple:
        """Reads `count` messages and drops them, without the GIL (benchmarks). Returns (messages, bytes of bodies and headers)."""
        batch: stream_batch_t
        at: uint64_t = offset
        end: uint64_t = offset + count
        most: uint32_t = per_read
        read: uint64_t = 0
        size: uint64_t = 0
        memset(cython.address(batch), 0, cython.sizeof(stream_batch_t))
        with cython.nogil:
            while at < end:
                if stream_read(self.owner.stream, self.reader, at, most, READ_BYTES, cython.NULL, cython.address(batch)) != STREAM_MESSAGES:
                    break
                read += batch.count
                size += batch.bytes
                at = batch.next_offset
                stream_batch_clear(cython.address(batch))
            stream_batch_free(cython.address(batch))
        return read, size

    def find_time(self, ms: int) -> int:
        """See stream_find_time."""
        return stream_find_time(self.owner.stream, self.reader, ms)

    def rest(self) -> None:
        """Gives window and file back."""
        stream_reader_rest(self.reader)

    @property
    def bytes_read(self) -> int:
        """Bytes read from the disk so far."""
        return self.reader.bytes_read

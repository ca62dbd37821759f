"""Cold reads of a stream's log, and many appends, for Python callers.

in: an open Stream. out: its messages as Python values.
"""

from __future__ import annotations

from cython import NULL, address, cclass, declare, nogil, pointer, sizeof
from cython import int as c_int
from cython.cimports.flintmq.core.content import content_decref, content_from_bytes, content_t
from cython.cimports.flintmq.store.stream.stream_batch import (
    stream_batch_clear, stream_batch_free, stream_batch_items, stream_batch_t, stream_filter_free, stream_filter_new, stream_filter_t,
)  # fmt: skip
from cython.cimports.flintmq.store.stream.stream_files import Stream
from cython.cimports.flintmq.store.stream.stream_log import STREAM_FAILED, STREAM_MESSAGES, stream_append
from cython.cimports.flintmq.store.stream.stream_reader import (
    stream_find_time, stream_read, stream_reader_free, stream_reader_new, stream_reader_rest,
)  # fmt: skip
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memset

# bytes of one read of `skim`
READ_BYTES = declare(uint64_t, 1 << 20)


@cclass
class StreamReader:
    """A reader of a stream's containers."""

    def __cinit__(self, owner: Stream):
        self.owner = owner
        self.reader = stream_reader_new(owner.stream)
        if self.reader == NULL:
            raise MemoryError

    def __dealloc__(self):
        stream_reader_free(self.reader)

    def read(self, offset: int, count: int = 100, max_bytes: int = 1 << 20, values: object = None, unfiltered: bool = False) -> tuple:
        """A cold read: (outcome STREAM_*, next offset, [(offset, exchange, routing key, header, body)])."""
        batch: stream_batch_t
        chosen: pointer[stream_filter_t] = NULL
        outcome: c_int
        start: uint64_t = offset
        most: uint32_t = count
        most_bytes: uint64_t = max_bytes
        memset(address(batch), 0, sizeof(stream_batch_t))
        if values is not None:
            chosen = stream_filter_new(values, unfiltered)
        with nogil:
            outcome = stream_read(self.owner.stream, self.reader, start, most, most_bytes, chosen, address(batch))
            stream_filter_free(chosen)
        return outcome, batch.next_offset, stream_batch_items(address(batch))

    def skim(self, offset: int, count: int, per_read: int = 256) -> tuple:
        """Reads `count` messages and drops them, without the GIL. Returns (messages, bytes of bodies and headers)."""
        batch: stream_batch_t
        at: uint64_t = offset
        end: uint64_t = offset + count
        most: uint32_t = per_read
        read: uint64_t = 0
        size: uint64_t = 0
        memset(address(batch), 0, sizeof(stream_batch_t))
        with nogil:
            while at < end:
                if stream_read(self.owner.stream, self.reader, at, most, READ_BYTES, NULL, address(batch)) != STREAM_MESSAGES:
                    break
                read += batch.count
                size += batch.bytes
                at = batch.next_offset
                stream_batch_clear(address(batch))
            stream_batch_free(address(batch))
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


def append_many(stream: Stream, exchange: bytes, routing_key: bytes, header: bytes, body: bytes, count: int) -> int:
    """Appends the same message `count` times, without the GIL. Returns how many were taken."""
    ticket: uint64_t = 0
    i: uint64_t
    most: uint64_t = count
    taken: uint64_t = 0
    content: pointer[content_t] = content_from_bytes(exchange, routing_key, header, body, 0, 0)
    with nogil:
        for i in range(most):
            if stream_append(stream.stream, content, 0, address(ticket)) == STREAM_FAILED:
                break
            taken += 1
    content_decref(content)
    return taken

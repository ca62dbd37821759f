# A growable output buffer. Owned by one loop thread; no locking.
#
# Output is a stream of bytes: those of `data`, with large bodies between them that are not copied: an outref_t names a message content
# and is sent as its body frames, straight from the content's memory, so that many slow readers of one message hold it once.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec
from flintmq.core.content cimport content_t

cdef enum:
    OUT_PIECES = 64           # of one out_gather
    OUT_SCRATCH = 512         # bytes of frame headers that one out_gather may need

cdef struct outref_t:         # a body that is sent from its content
    content_t *content        # counted
    uint64_t at               # bytes of `data` (since the buffer's beginning) that come before it
    uint64_t done             # bytes of its frames that are sent
    uint64_t total            # bytes of its frames
    uint32_t most             # payload bytes of a frame
    uint16_t channel

cdef struct outbuf_t:
    uint8_t *data
    size_t size               # bytes allocated
    size_t start              # unsent bytes are data[start:end]
    size_t end
    uint64_t taken            # bytes of `data` sent since the beginning
    outref_t *refs            # ring, oldest first
    uint32_t ref_size
    uint32_t ref_first
    uint32_t ref_count
    uint64_t ref_bytes        # bytes of all their frames that are not sent

# For out_reserve below: makes the room.
cdef uint8_t *out_grow(outbuf_t *out, size_t count) noexcept nogil
# The body frames of `content` on `channel`, each with at most `most` bytes of payload, come next. Takes a reference. False: no memory.
cdef bint out_refer(outbuf_t *out, content_t *content, uint16_t channel, uint32_t most) noexcept nogil
cdef void out_sent(outbuf_t *out, size_t count) noexcept nogil       # drops `count` bytes from the front
# The next bytes of the stream, in order: fills `pieces` (OUT_PIECES), returns how many. `scratch`: OUT_SCRATCH bytes that
# live as long as the pieces.
cdef int out_gather(outbuf_t *out, iovec *pieces, uint8_t *scratch) noexcept nogil
# Moves up to `room` bytes from the front to `place`; returns how many.
cdef size_t out_take(outbuf_t *out, uint8_t *place, size_t room) noexcept nogil
cdef void out_release(outbuf_t *out) noexcept nogil                  # gives all memory back
cdef void out_trim(outbuf_t *out) noexcept nogil                     # gives memory of an empty buffer back

# Room for `count` more bytes at the returned address, which stays valid until the next call; NULL when memory is exhausted.
cdef inline uint8_t *out_reserve(outbuf_t *out, size_t count) noexcept nogil:
    return out.data + out.end if out.size - out.end >= count else out_grow(out, count)

# Bytes that wait to be sent.
cdef inline uint64_t out_pending(outbuf_t *out) noexcept nogil:
    return out.end - out.start + out.ref_bytes

# Message content: reference-counted blobs of wire bytes, bump-allocated in chunks that are given back to the system.
#
# A content is written once by the loop thread that received it and is immutable from then on; any thread may take and drop
# references. Layout of the bytes that follow the header struct (all lengths in bytes):
#
#     route   exchange as shortstr, routing key as shortstr                       (route_len)
#     header  7-byte frame header, content header payload, 0xCE                   (header_len + 8)
#     body    7-byte frame header, whole body, 0xCE; absent when body_len is 0    (body_len + 8)
#
# Header and body stand there as the frames of a delivery, so a delivery is one copy plus the channel number; a body longer
# than the consumer's frame_max is cut up again while it is copied.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.atomics cimport at_add32, at_sub32

cpdef enum:                   # flags of a content
    CONTENT_PERSISTENT = 1    # delivery-mode 2
    CONTENT_EXPIRES = 2       # the expiration property is set (milliseconds, as text)
    CONTENT_HEADERS = 4       # the headers property is set
    CONTENT_REPLY_TO = 8      # the reply-to property is set
    CONTENT_PRIORITY = 16     # the priority property is set (AMQP 0-10 rules read an absent one as 4)
    CONTENT_SHARED = 32       # goes to several queues: the store counts its places, and is told when all are known (placed)

cdef extern from "sys/mman.h" nogil:
    cdef enum:
        MREMAP_MAYMOVE, MREMAP_FIXED

cpdef enum:
    FRAME_HEADER_SIZE = 7     # type, channel, size
    FRAME_END = 206
    FRAME_OVERHEAD = 8        # frame header and frame end octet

cdef enum:
    COPY_BARE = 262144        # bytes of a body above which Python's copy of it is made without the GIL

cdef struct content_t:
    uint32_t refs             # atomic; the last drop frees
    uint32_t header_len
    uint32_t body_len
    uint16_t route_len
    uint8_t flags             # CONTENT_*
    uint8_t priority          # the priority property; 0 when absent (RabbitMQ)
    uint64_t message_id       # persistence id, once the store wrote it; 0 before. Written by the creator's thread only

cdef struct chunk_t:
    uint64_t refs             # atomic: bytes of live contents in it; while an arena allocates from it: ARENA_SHARE less the bytes that went
    uint64_t size             # mapped bytes, this header included
    uint64_t used             # bump offset; only the owning arena moves it
    chunk_t *next             # free list link

cdef struct arena_t:          # owned by one loop thread
    chunk_t *current

cdef arena_t *arena_new() noexcept nogil
cdef void arena_free(arena_t *arena) noexcept nogil
# New content with one reference, header fields zeroed but the lengths; NULL when memory is exhausted. O(1).
cdef content_t *content_new(arena_t *arena, uint32_t route_len, uint32_t header_len, uint32_t body_len) noexcept nogil
# Room for a body of `body_len` bytes (more than it has) in a content that only its creator knows; `filled` bytes of the body are kept. The
# content may move: returns where it is then; NULL when memory is exhausted: nothing changed. O(filled) at most, no copy of large bodies.
cdef content_t *content_grow(arena_t *arena, content_t *content, uint32_t filled, uint32_t body_len) noexcept nogil
# A content with the same bytes in another chunk; NULL when memory is exhausted. O(size).
cdef content_t *content_copy(arena_t *arena, content_t *content) noexcept nogil
# Whether little but this content keeps its chunk: moved elsewhere, it gives memory back.
cdef bint content_is_thin(content_t *content) noexcept nogil
# The last reference is gone.
cdef void content_free(content_t *content) noexcept nogil
# Writes the frame headers and ends around header and body (channel 0): the last step of filling a content.
cdef void content_frame(content_t *content) noexcept nogil
# Bytes mapped by all arenas of the process (chunks in use; the bounded free list is not counted). thin_bytes(): for Python.
cdef uint64_t content_bytes_mapped() noexcept nogil
# A content from Python values, for tests, management and the pipeline. Takes the GIL's arena.
cdef content_t *content_from_bytes(bytes exchange, bytes routing_key, bytes header, bytes body, uint8_t flags, uint8_t priority) except NULL

cdef inline void content_incref(content_t *content) noexcept nogil:
    at_add32(&content.refs, 1)

cdef inline void content_decref(content_t *content) noexcept nogil:
    if at_sub32(&content.refs, 1) == 1:
        content_free(content)

cdef inline uint8_t *content_route(content_t *content) noexcept nogil:
    return <uint8_t *>(content + 1)

# The header payload, past its frame header.
cdef inline uint8_t *content_header(content_t *content) noexcept nogil:
    return content_route(content) + content.route_len + FRAME_HEADER_SIZE

# The body, past its frame header.
cdef inline uint8_t *content_body(content_t *content) noexcept nogil:
    return content_header(content) + content.header_len + 1 + FRAME_HEADER_SIZE

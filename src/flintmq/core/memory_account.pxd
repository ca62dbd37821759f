# The account of memory that clients make the broker hold, beside message contents (core/content.pxd counts those itself).
#
# Counted where an array or a buffer grows and shrinks, never per message. One counter a kind; any thread.
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    MEMORY_OUTPUT = 0         # buffers of output that is not sent
    MEMORY_INPUT = 1          # frames that are not complete, requests that wait for an answer before them
    MEMORY_UNACKED = 2        # maps of unacked deliveries
    MEMORY_TX = 3             # records of open transactions (their messages are contents)
    MEMORY_ENTRIES = 4        # segments of queues' entry lists
    MEMORY_CHANNELS = 5       # channels, the tables that find them, their confirms that wait
    MEMORY_DEFINITIONS = 6    # queues, exchanges and bindings with their arguments (vhost/weights.py)
    MEMORY_STREAMS = 7        # groups and readers of streams: tables, windows, batches (their messages are contents)
    MEMORY_CONNECTIONS = 8    # connections with their TLS, consumers with their arguments (channel/weights.py)
    MEMORY_ROUTES = 9         # routes that exchanges remember, and shapes of messages that the log does (store/log/shapes.pxd)
    MEMORY_KINDS = 10

cdef void memory_add(int kind, int64_t change) noexcept nogil
cdef uint64_t memory_of(int kind) noexcept nogil          # bytes of one kind
# Bytes of all kinds and of message contents: what the memory watermark is compared with.
cdef uint64_t memory_held() noexcept nogil

# What several holders have together. Any thread.
cdef class MemoryTotal:
    cdef uint64_t bytes                                   # atomic; of two signs, as a difference

# What one holder (a virtual host, a connection) has of a kind; it is given back with the object. Under the GIL.
cdef class MemoryShare:
    cdef int kind
    cdef int64_t bytes
    cdef MemoryTotal total                                # None: it is in no total

# A connection's socket as its loop holds it, and the loop's run queue.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.buffer cimport outbuf_t
from flintmq.session.connection cimport Connection
from flintmq.session.types cimport connection_t

cdef enum:                    # socket_t.kind
    KIND_CONNECTION = 0
    KIND_LISTENER = 1
    KIND_WAKE = 2

cdef struct run_queue_t:      # connections that have work for their consumers; any thread pushes, the loop pops
    uint32_t lock
    connection_t *first
    connection_t *last
    int wake                  # eventfd of the loop
    uint32_t sleeping         # atomic: the loop is in epoll_wait (or about to be): a push must wake it

cdef struct socket_t:
    int fd
    int kind
    connection_t *connection
    run_queue_t *run_queue    # its loop's
    void *owner               # the Python object (borrowed; the Loop's table holds it)
    uint8_t *rest             # start of a frame that is not complete
    uint32_t rest_size
    uint32_t rest_room
    uint32_t interest         # epoll events registered
    bint dirty                # on the dirty list
    bint failed               # on the failed list: LOOP_CLOSED is due
    bint dead                 # closed; the memory is freed when no event can name it any more
    bint paused               # not read: publisher during a memory alarm
    bint tls
    bint lingering            # output finished and shut down: reads are thrown away until the peer hangs up
    outbuf_t cipher           # TLS: encrypted output
    socket_t *next_dirty
    socket_t *next_failed
    uint64_t bytes_in
    uint64_t bytes_out
    int64_t received_ms       # monotonic
    int64_t sent_ms

cdef class Socket:
    cdef socket_t socket
    cdef readonly Connection connection
    cdef public object tls            # net.tls.TlsLayer or None
    cdef public object sock           # the Python socket, which owns the descriptor

cdef void run_queue_push(run_queue_t *queue, connection_t *connection) noexcept nogil
cdef connection_t *run_queue_pop(run_queue_t *queue) noexcept nogil            # NULL when empty
cdef void run_queue_forget(run_queue_t *queue, connection_t *connection) noexcept nogil
# Step 6 of seed 004 (connection_t.schedule): joins the loop's run queue and wakes it. Any thread; `scheduled` was won before.
cdef void connection_schedule(connection_t *connection) noexcept nogil
# Takes a socket that closes off the loop's lists of dirty and failed ones. O(entries).
cdef void sockets_forget(socket_t **dirty, socket_t **failed, socket_t *socket) noexcept nogil

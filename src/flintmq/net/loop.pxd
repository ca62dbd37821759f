# One I/O thread: epoll, reads, the run queue of connections with work, one send per dirty connection per pass.
from libc.stdint cimport int64_t
from flintmq.core.buffer cimport outbuf_t
from flintmq.net.loop_base cimport LoopBase
from flintmq.net.sockets cimport Socket, socket_t

cdef enum:                    # why a pass returns to Python
    LOOP_ACCEPT = 1
    LOOP_SLOW = 2             # connection.slow says what
    LOOP_CLOSED = 3           # the peer hung up or the socket failed
    LOOP_TIMER = 4
    LOOP_CALLS = 5            # functions that other threads left
    LOOP_TLS_IN = 6           # encrypted bytes are in the read buffer
    LOOP_TLS_OUT = 7          # clear bytes wait to be encrypted
    LOOP_ALARM = 8            # message memory or disk space crossed its mark, one way or the other
    LOOP_BLOCKED = 9          # a publisher was paused because of an alarm
    LOOP_COMMITS = 10         # the log moved, and transactions wait for it
    LOOP_CHORES = 11          # long work in Python gets its share of the pass

cdef class Loop(LoopBase):
    cdef int run_pass(self) noexcept nogil
    cdef int give_shares(self) noexcept nogil
    cdef bint heavy_may(self) noexcept nogil
    cdef void sleep(self, int64_t now) noexcept nogil
    cdef int take_event(self) noexcept nogil
    cdef int read_socket(self, socket_t *entry) noexcept nogil
    cdef int take_turn(self, int which) noexcept nogil
    cdef int feed_current(self) noexcept nogil
    cdef bint stop_asking(self, socket_t *entry) noexcept nogil
    cdef void ask_on(self, socket_t *entry) noexcept nogil
    cdef int cut_turn(self, socket_t *entry) noexcept nogil
    cdef int look_at_publisher(self, socket_t *entry) noexcept nogil
    cdef void deliver(self) noexcept nogil
    cdef void flush(self, socket_t *entry) noexcept nogil
    cdef void flush_confirms(self, socket_t *entry) noexcept nogil
    cdef ssize_t send_pieces(self, socket_t *entry, outbuf_t *out) noexcept nogil
    cdef bint send_buffer(self, socket_t *entry, outbuf_t *out) noexcept nogil
    cdef void _run_calls(self)
    cdef void _serve(self, Socket entry, int what)
    cdef object _tls_in(self, Socket entry)
    cdef object _queue_cipher(self, Socket entry, bytes cipher)
    cdef object _tls_out(self, Socket entry)

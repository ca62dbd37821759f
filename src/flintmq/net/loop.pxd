# One I/O thread: epoll, reads, the run queue of connections with work, one send per dirty connection per pass.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.buffer cimport outbuf_t
from flintmq.core.content cimport arena_t
from flintmq.net.sockets cimport Socket, run_queue_t, socket_t
from flintmq.net.sysio cimport epoll_event
from flintmq.session.connection cimport Connection
from flintmq.session.types cimport connection_t

cdef enum:
    EVENTS_MAX = 256          # per epoll_wait

cdef enum:                    # why a pass returns to Python
    LOOP_ACCEPT = 1
    LOOP_SLOW = 2             # connection.slow says what
    LOOP_CLOSED = 3           # the peer hung up or the socket failed
    LOOP_TIMER = 4
    LOOP_CALLS = 5            # functions that other threads left
    LOOP_TLS_IN = 6           # encrypted bytes are in the read buffer
    LOOP_TLS_OUT = 7          # clear bytes wait to be encrypted
    LOOP_ALARM = 8            # message memory crossed the watermark, one way or the other
    LOOP_BLOCKED = 9          # a publisher was paused because of the alarm

cdef class Loop:
    cdef int epoll
    cdef run_queue_t run_queue
    cdef arena_t *arena
    cdef uint8_t *buffer
    cdef size_t buffer_size
    cdef epoll_event events[EVENTS_MAX]
    cdef int event_count
    cdef int event_next
    cdef socket_t *current            # being fed
    cdef size_t position
    cdef size_t end
    cdef socket_t *subject            # of the event a pass returned
    cdef socket_t wake_socket
    cdef socket_t *dirty
    cdef socket_t *failed
    cdef int64_t timer_ms
    cdef int64_t timer_period_ms
    cdef uint64_t memory_high
    cdef uint64_t memory_low
    cdef uint64_t memory_hard
    cdef bint alarm
    cdef uint32_t turn_messages
    cdef uint32_t output_max
    cdef dict sockets                 # fd -> Socket or listener
    cdef list graves
    cdef object calls
    cdef public object on_accept      # (listener socket) -> None
    cdef public object on_timer       # (now_ms) -> None
    cdef public object on_alarm       # (bool) -> None
    cdef public bint stopping
    cdef public object log
    cdef object thread_id
    cdef int run_pass(self) noexcept nogil
    cdef int feed_current(self) noexcept nogil
    cdef void flush(self, socket_t *socket) noexcept nogil
    cdef bint send_buffer(self, socket_t *socket, outbuf_t *out) noexcept nogil
    cdef void mark_dirty(self, socket_t *socket) noexcept nogil
    cdef void mark_failed(self, socket_t *socket) noexcept nogil
    cdef void set_interest(self, socket_t *socket, uint32_t interest) noexcept nogil
    cdef void deliver(self) noexcept nogil
    cdef void pause_if_publisher(self, socket_t *socket) noexcept nogil
    cdef void _register(self, Socket entry)
    cdef void _serve(self, Socket entry, int what)
    cdef object _tls_in(self, Socket entry)
    cdef object _queue_cipher(self, Socket entry, bytes cipher)
    cdef object _tls_out(self, Socket entry)

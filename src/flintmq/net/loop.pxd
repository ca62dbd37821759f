# One I/O thread: epoll, reads, the run queue of connections with work, one send per dirty connection per pass.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t
from flintmq.core.counters cimport counters_t
from flintmq.core.jobs cimport jobs_t
from flintmq.core.pass_trace cimport trace_t
from flintmq.net.chores cimport Chores
from flintmq.net.patience cimport Patience
from flintmq.net.sockets cimport EVENTS_MAX, Socket, io_t, run_queue_t, socket_t
from flintmq.net.sysio cimport epoll_event
from flintmq.queue.log_port cimport LogPort

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

@cython.final
cdef class Loop:
    cdef io_t io
    cdef run_queue_t run_queue
    cdef arena_t *arena
    cdef counters_t counts
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
    cdef int64_t turn_ns              # nanoseconds of one turn of anything
    cdef int64_t turn_spent           # of the present turn of `current`, in Python
    cdef int64_t reads_end            # when this pass reads no more
    cdef int64_t fresh_end            # when it begins no more turns of publishers and resumed connections
    cdef bint fresh_had               # it has begun one
    cdef int64_t sends_end            # when this pass begins no more sends; 0: it has not begun one
    cdef int delivering               # passes for which publishers still count as competing with deliveries
    cdef int64_t heavy_end            # when this pass begins no more turns of heavy ones; 0: it has not begun one
    cdef int64_t ends_end             # the same of connections that end (LIST_FAILED): thousands hang up together
    cdef jobs_t jobs                  # long work without the GIL
    cdef Patience patience            # whether a wait begins with a poll
    cdef Chores chores                # and with it
    cdef bint jobs_had                # jobs and chores had their share of this pass
    cdef bint calls_had               # the functions that other threads left had theirs
    cdef int64_t jobs_ns              # nanoseconds of a pass that jobs and chores get together
    cdef int64_t chores_end           # when this pass runs no more chores
    cdef int64_t polled_ns            # when the loop looked at its sockets last
    cdef int64_t late_ns              # how long it may not look before it counts as late
    cdef readonly int64_t awake_ms    # monotonic: when it was late last; nobody is blamed for the time before
    cdef uint64_t thrown_away_max
    cdef list listeners
    cdef readonly bint accept_paused  # nobody is accepted: there are no descriptors
    cdef int64_t timer_ms
    cdef int64_t timer_period_ms
    cdef uint32_t alarm_told          # the same as on_alarm was told last
    cdef LogPort log_port
    cdef bint logged                  # since the last kick
    cdef bint awaited                 # somebody waits for some of that
    cdef object commits               # channel.transaction.Transaction that wait for the log, oldest first
    cdef bint commits_wait
    cdef uint32_t turn_messages
    cdef uint64_t output_asks_max     # unsent output above which no more requests are read
    cdef dict sockets                 # fd -> Socket or listener
    cdef list graves
    cdef object calls
    cdef public object on_accept      # (listener socket) -> None
    cdef public object on_timer       # (now_ms) -> None
    cdef public object on_alarm       # (what is low: str, "" = nothing) -> None
    cdef public bint stopping
    cdef public object log
    cdef object thread_id
    cdef trace_t trace
    cdef void notice_late(self, int64_t now_ns, int64_t allowed_ns) noexcept nogil
    cdef void _register(self, Socket entry)
    # One call of the log for all that was logged since the last one.
    cdef void kick(self) noexcept nogil
    cdef object _complete(self)
    cdef bint is_light(self) noexcept nogil
    cdef int run_pass(self) noexcept nogil
    cdef bint flush(self) noexcept nogil
    cdef int give_shares(self) noexcept nogil
    cdef bint may_begin(self, int64_t *end) noexcept nogil
    cdef void sleep(self, int64_t now) noexcept nogil
    cdef int take_event(self) noexcept nogil
    cdef int read_socket(self, socket_t *entry) noexcept nogil
    cdef int take_turn(self, int which) noexcept nogil
    cdef int feed_current(self) noexcept nogil
    cdef void collect_logged(self, socket_t *entry) noexcept nogil
    cdef bint stop_asking(self, socket_t *entry) noexcept nogil
    cdef int cut_turn(self, socket_t *entry) noexcept nogil
    cdef int look_at_publisher(self, socket_t *entry) noexcept nogil
    cdef void deliver(self) noexcept nogil
    cdef void _run_calls(self)
    cdef void _serve(self, Socket entry, int reason)
    cdef object _tls_in(self, Socket entry)

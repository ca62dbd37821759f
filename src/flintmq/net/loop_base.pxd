# What an I/O thread holds between and during its passes (loop.pxd).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t
from flintmq.core.jobs cimport jobs_t, turn_clock_t
from flintmq.net.sockets cimport LIST_COUNT, TURNS_COUNT, Socket, run_queue_t, socket_t, turns_t
from flintmq.net.sysio cimport epoll_event
from flintmq.queue.log_port cimport LogPort
from flintmq.queue.types cimport log_port_t

cdef enum:
    EVENTS_MAX = 256          # per epoll_wait
    READ_SIZE = 262144        # bytes of one read at most: it fills about one content chunk
    # The first read, and the one after a turn that was cut: what is left of a turn is kept. Each read that is full doubles the next.
    READ_LEAST = 16384

cdef enum:                    # LoopBase.alarm
    ALARM_MEMORY = 1
    ALARM_DISK = 2

cdef class LoopBase:
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
    cdef socket_t *lists[LIST_COUNT]
    cdef turn_clock_t clock
    cdef int64_t turn_ns              # nanoseconds of one turn of anything
    cdef int64_t turn_spent           # of the present turn of `current`, in Python
    cdef int64_t reads_end            # when this pass reads no more
    cdef int64_t fresh_end            # when it begins no more turns of publishers and resumed connections
    cdef bint fresh_had               # it has begun one
    cdef int delivering               # passes for which publishers still count as competing with deliveries
    cdef int64_t heavy_end            # when this pass begins no more turns of heavy ones; 0: it has not begun one
    cdef int64_t heavy_ns             # how long a connection is heavy after it used up a turn
    cdef turns_t turns[TURNS_COUNT]
    cdef jobs_t jobs                  # long work without the GIL
    cdef object chores                # and with it: (step, ended)
    cdef bint chores_wait             # there are some
    cdef bint jobs_had                # jobs and chores had their share of this pass
    cdef bint calls_had               # the functions that other threads left had theirs
    cdef int64_t jobs_ns              # nanoseconds of a pass that jobs and chores get together
    cdef int64_t chores_end           # when this pass runs no more chores
    cdef bint over                    # `run` is at its end
    cdef int64_t polled_ns            # when the loop looked at its sockets last
    cdef int64_t late_ns              # how long it may not look before it counts as late
    cdef readonly int64_t awake_ms    # monotonic: when it was late last; nobody is blamed for what was before
    cdef uint64_t thrown_away_max
    cdef list listeners
    cdef readonly bint accept_paused  # nobody is accepted: there are no descriptors
    cdef int64_t timer_ms
    cdef int64_t timer_period_ms
    cdef uint64_t memory_high
    cdef uint64_t memory_low
    cdef uint64_t memory_hard
    cdef uint32_t alarm               # ALARM_* that hold now
    cdef uint32_t alarm_told          # the same as on_alarm was told last
    cdef bint alarm_paused            # a publisher was paused by an alarm since on_alarm was told that nothing is low
    cdef log_port_t *port             # NULL: nothing is logged
    cdef LogPort log_port
    cdef bint logged                  # since the last kick
    cdef bint awaited                 # somebody waits for some of that
    cdef object commits               # session.transaction.Transaction that wait for the log, oldest first
    cdef bint commits_wait
    cdef uint32_t turn_messages
    cdef uint32_t output_max
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
    cdef void notice_late(self, int64_t allowed_ns) noexcept nogil
    cdef void _register(self, Socket entry)
    cdef void mark_dirty(self, socket_t *entry) noexcept nogil
    cdef void mark_failed(self, socket_t *entry) noexcept nogil
    cdef void set_interest(self, socket_t *entry, uint32_t interest) noexcept nogil
    # One call of the log for all that was logged since the last one.
    cdef void kick(self) noexcept nogil
    # Looks at alarms and pressure after a publisher was read. False: it was paused, and must be told (LOOP_BLOCKED).
    cdef bint may_publish(self, socket_t *entry) noexcept nogil
    cdef void look_for_alarms(self) noexcept nogil
    cdef void pause(self, socket_t *entry, uint32_t why) noexcept nogil
    cdef void unthrottle(self) noexcept nogil
    # Nothing may hold it back any more: it is read, or gets a turn for what was read already.
    cdef void let_go(self, socket_t *entry) noexcept nogil
    # It waits for its turn among the fresh or the heavy ones.
    cdef void queue_turn(self, socket_t *entry) noexcept nogil
    # Its turn was used up: for a while it counts as heavy.
    cdef void make_heavy(self, socket_t *entry) noexcept nogil
    cdef object _complete(self)
    cdef void _run_chores(self)
    cdef void _end_jobs(self)

# A connection's socket as its loop holds it, and the loop's run queue.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.buffer cimport outbuf_t
from flintmq.core.jobs cimport turn_clock_t
from flintmq.queue.types cimport log_port_t, queue_t
from flintmq.channel.connection cimport Connection
from flintmq.channel.types cimport connection_t

cdef enum:                    # socket_t.kind
    KIND_CONNECTION = 0
    KIND_LISTENER = 1
    KIND_WAKE = 2

cdef enum:                    # socket_t.paused: why it is not read
    PAUSED_ALARM = 1          # publisher while memory or disk is low; it was told so (connection.blocked)
    PAUSED_BUFFERS = 2        # publisher while the log has too much to write
    PAUSED_ANSWER = 4         # connection.waiting: an answer must come before what follows in the stream is looked at
    PAUSED_TURN = 8           # it waits for its next turn on one of the loop's lists of turns
    PAUSED_OUTPUT = 16        # its answers are not read by the client: it asks on when they are

cdef enum:                    # lists of a loop that its sockets are on
    LIST_DIRTY = 0            # has output, or confirms to send
    LIST_FAILED = 1           # LOOP_CLOSED is due
    LIST_WAITING = 2          # has confirms that wait for the log
    LIST_THROTTLED = 3        # PAUSED_BUFFERS is set
    LIST_LINGERING = 4        # their last frames are sent, out of epoll: looked at when io_t.linger_ms has come
    LIST_COUNT = 5

cdef enum:                    # lists of turns
    TURNS_FRESH = 0           # publishes, or goes on after a pause: served after the other events of a pass
    TURNS_HEAVY = 1           # used up a turn lately: served after everybody else
    TURNS_LAGGED = 2          # its consumers lag (channel/turns.pxd connection_lagging): looked at once a pass, and fresh when they do not
    TURNS_COUNT = 3

cdef enum:                    # bytes of text of an address and of a port; an IPv6 address with the name of its link has 62
    HOST_SIZE = 128
    PORT_SIZE = 8

cdef struct turns_t:          # sockets that wait for a turn, in the order they came
    socket_t *first
    socket_t *last

cdef struct run_queue_t:      # connections that have work for their consumers; any thread pushes, the loop pops
    uint32_t lock
    connection_t *first
    connection_t *last
    int wake                  # eventfd of the loop, edge-triggered there: it is written to and never read
    uint32_t sleeping         # atomic: the loop is in epoll_wait (or about to be): a push must wake it
    uint32_t log_moved        # atomic: the log's durable LSN or its pressure moved since the loop looked
    uint32_t log_wanted       # atomic: something of the loop waits for that: it is to be woken
    uint32_t called           # atomic: Loop.call left a function

cdef struct socket_t:
    int fd
    int kind
    connection_t *connection
    run_queue_t *run_queue    # its loop's
    void *owner               # the Python object (borrowed; the Loop's table holds it)
    uint8_t *rest             # start of a frame that is not complete; `unfed`: all that was read and not fed yet
    uint32_t rest_size
    uint32_t rest_room
    uint32_t interest         # epoll events registered
    uint32_t on               # bit n: it is on list n (LIST_*)
    uint32_t paused           # PAUSED_*; 0 = it is read
    uint32_t read_size        # bytes of the next read at most: doubled by each full one, the least after a turn that was cut
    bint unfed                # `rest` may hold whole frames: it gets a turn when nothing pauses it any more
    int64_t heavy_ns          # by the clock of turns: until then it is heavy, and read in its turn among the heavy ones. 0: it is not
    int turns                 # the list of turns that it is on while PAUSED_TURN is set
    int64_t lagged_ns         # by the clock of turns: when it is read whatever its consumers do
    queue_t *lag_queue        # which its consumers' pace is of; never looked into
    uint64_t lag_taken        # what they had taken
    int64_t lag_from_ns       # and when
    bint lag_paced            # they keep up Limits.queue_lag_pace
    socket_t *next_turn
    bint spared               # under the memory alarm its publishes go on up to the hard limit: others hold the memory
    bint owned                # the descriptor is ours to close; of a listener it is `Socket.sock`'s
    bint dead                 # closed; the memory is freed when no event can name it any more
    bint tls
    bint overrun              # its output came above output_bytes_max: it is cut off
    uint64_t thrown_away      # bytes read while it lingers
    bint lingering            # output finished: reads are thrown away until the peer hangs up
    outbuf_t cipher           # TLS: encrypted output
    socket_t *next[LIST_COUNT]
    int64_t received_ms       # monotonic
    int64_t sent_ms
    uint64_t received_bytes   # figures of a connection: bytes and calls of the system
    uint64_t received_packets
    uint64_t sent_bytes
    uint64_t sent_packets

cdef enum:                    # io_t.alarm
    ALARM_MEMORY = 1
    ALARM_DISK = 2

cdef enum:
    EVENTS_MAX = 256          # per epoll_wait
    READ_SIZE = 262144        # bytes of one read at most: it fills about one content chunk
    # The first read, and the one after a turn that was cut: what is left of a turn is kept. Each read that is full doubles the next.
    READ_LEAST = 16384
    JOIN_BYTES = 4096         # the largest frame that joins methods whose answers are still to come

cdef struct io_t:             # what a loop knows of all its sockets
    int epoll
    socket_t *lists[2 * LIST_COUNT]   # the first of each, then the last of each (not looked at while there is no first)
    turns_t turns[TURNS_COUNT]
    turn_clock_t clock
    uint64_t lag_bytes        # bytes of bodies and messages above which a queue lags (channel/turns.pxd connection_lagging)
    uint64_t lag_messages
    int64_t lag_pace          # messages a second
    int64_t lag_ns            # how long a publisher waits for its consumers at most
    int64_t heavy_ns          # how long a connection is heavy after it used up a turn
    log_port_t *port          # NULL: nothing is logged
    uint64_t memory_high      # bytes of message memory: the alarm begins above, ends below `low`; nobody publishes above `hard`
    uint64_t memory_low
    uint64_t memory_hard
    uint32_t alarm            # ALARM_* that hold now
    bint alarm_paused         # a publisher was paused by an alarm since on_alarm was told that nothing is low
    uint32_t output_max
    int64_t linger_ms         # monotonic: when LIST_LINGERING is looked at, if it is not empty
    int64_t close_look_ms

cdef class Socket:
    cdef socket_t socket
    cdef readonly Connection connection
    cdef public object tls            # net.tls.TlsLayer or None
    cdef public object sock           # of a listener: the Python socket; else None

cdef void run_queue_push(run_queue_t *queue, connection_t *connection) noexcept nogil
cdef connection_t *run_queue_pop(run_queue_t *queue) noexcept nogil            # NULL when empty
cdef void run_queue_forget(run_queue_t *queue, connection_t *connection) noexcept nogil
# Step 6 of seed 004 (connection_t.schedule): joins the loop's run queue and wakes it. Any thread; `scheduled` was won before.
cdef void connection_schedule(connection_t *connection) noexcept nogil
# log_waker_t of a loop; `context` is its run_queue_t. Any thread, no GIL: a flag, and the eventfd when the loop sleeps.
cdef void loop_log_moved(void *context) noexcept nogil
# Wakes the loop if it sleeps; what it is to see was stored before. Any thread.
cdef void loop_wake(run_queue_t *queue) noexcept nogil
cdef void list_push(socket_t **lists, int which, socket_t *socket) noexcept nogil    # does nothing when it is on that list
cdef socket_t *list_pop(socket_t **lists, int which) noexcept nogil                  # NULL when empty; first in, first out
# Takes a socket that closes off all lists. O(entries).
cdef void lists_forget(socket_t **lists, socket_t *socket) noexcept nogil
# Copies what was read and can't be fed now into socket.rest. False: no memory.
cdef bint socket_keep(socket_t *socket, const uint8_t *data, size_t size) noexcept nogil
# Bytes of the next frame, when it is a method that joins those whose answers the connection waits for (session/underway.py); else 0.
cdef size_t socket_next_joining(socket_t *socket, const uint8_t *data, size_t size) noexcept nogil
# An answer must come before `data` is looked at: it waits in socket.rest.
cdef void socket_wait(io_t *io, socket_t *socket, const uint8_t *data, size_t size) noexcept nogil
cdef void turn_push(turns_t *turns, socket_t *socket) noexcept nogil                 # to the end; it must not be on a list of turns
cdef socket_t *turn_pop(turns_t *turns) noexcept nogil                               # the first; NULL when empty
# Takes a socket that closes off a list of turns. O(entries).
cdef void turns_forget(turns_t *turns, socket_t *socket) noexcept nogil
cdef void socket_interest(io_t *io, socket_t *socket, uint32_t interest) noexcept nogil
# The peer has hung up: nothing more is read, and the connection ends behind the others' events (LIST_FAILED).
cdef void socket_ended(io_t *io, socket_t *socket) noexcept nogil
cdef void socket_pause(io_t *io, socket_t *socket, uint32_t why) noexcept nogil      # PAUSED_*


# --- output of a connection to its socket. The loop's thread only
cdef enum:
    CIPHER_PIECE = 262144     # bytes that are encrypted at a time, while fewer than that wait to be sent

# Writes the confirms that are due and sends what the socket takes.
cdef void output_flush(io_t *io, socket_t *entry) noexcept nogil
# Closes each lingering socket (last frames sent) whose peer hung up, and puts the others into epoll again, which reports the hang-up.
# Called when the first of them is due; O(lingering sockets).
cdef void output_lingering(io_t *io) noexcept nogil
cdef void output_confirms(io_t *io, socket_t *entry) noexcept nogil
cdef object output_encrypt(io_t *io, Socket entry)
# Encrypted bytes of TLS itself wait to be sent.
cdef object output_cipher(io_t *io, Socket entry, bytes cipher)


# --- which sockets of a loop are read, and when. The loop's thread only
# Looks at alarms and pressure after a publisher was read. False: it was paused, and must be told (LOOP_BLOCKED).
cdef bint intake_may_publish(io_t *io, socket_t *entry) noexcept nogil
# Once a pass: sets and clears io_t.alarm.
cdef void intake_look(io_t *io) noexcept nogil
# Nothing may hold it back any more: it is read, or gets a turn for its bytes in memory.
cdef void intake_resume(io_t *io, socket_t *entry) noexcept nogil
# The output of a connection that was not read because of it is sent.
cdef void intake_ask_on(io_t *io, socket_t *entry) noexcept nogil
# It waits for its turn among the fresh or the heavy ones.
cdef void intake_queue_turn(io_t *io, socket_t *entry) noexcept nogil
# Whether the consumers of a publisher lag and could take more, now or in a moment. O(consumers on NOTIFIED).
cdef bint intake_outruns(io_t *io, socket_t *entry) noexcept nogil
# A publisher that outran its consumers: its next helping is small, and waits until they had theirs.
cdef void intake_queue_lagged(io_t *io, socket_t *entry) noexcept nogil
# Once a pass, after deliveries: those whose consumers do not lag any more, or that waited for long enough, are fresh. O(LAG_LOOKS).
cdef void intake_look_lagged(io_t *io) noexcept nogil
# Its turn was used up: for a while it counts as heavy.
cdef void intake_make_heavy(io_t *io, socket_t *entry) noexcept nogil

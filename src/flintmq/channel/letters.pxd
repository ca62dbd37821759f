# Dead letters on the message path: from an entry that ends to the queues of its letter's route, without Python.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.channel.types cimport connection_t
from flintmq.queue.control cimport QueueHandle
from flintmq.queue.types cimport delivery_t, letters_t, original_t, queue_t
from flintmq.routing.route_cache cimport exchange_t

cdef enum:                      # reasons of deaths, as x-death names them
    DEATH_REJECTED = 0
    DEATH_EXPIRED = 1
    DEATH_MAXLEN = 2
    DEATH_DELIVERY_LIMIT = 3
    DEATH_REASONS = 4

cdef enum:
    FILLED_MAX = 16             # queues above their limit that one piece of work remembers; the housekeeping meets what is more
    LETTERS_AT_ONCE = 64        # letters that queues make in turn when one fills the next, in one piece: some 60 us
    LETTER_COPY_MAX = 1048576   # bytes of bodies that one piece of work copies, some 100 us; a larger body goes the slow way

# Where the dead letters of one queue go, by its policy and the routing table of now. It never changes: queue_set_letters puts another one in
# its place. The bytes of `name` and `key` stand behind it.
cdef struct address_t:
    letters_t head
    uint64_t number             # no other address ever has it
    exchange_t *exchange        # the dead-letter exchange: counted
    bint keeps                  # at-least-once: all targets must take the letter
    bint has_key                # a dead-letter routing key replaces all keys
    uint16_t name_size
    uint16_t key_size
    const uint8_t *name         # of the queue
    const uint8_t *key

cdef struct letter_run_t:       # what one piece of work made; zeroed but for the arena in the beginning
    arena_t *arena
    int64_t time_s              # Unix time of the first one; 0: there is none yet
    uint64_t lsn                # highest one of an enqueue
    uint64_t copied             # bytes of bodies: a piece of work ends with the letter that goes beyond LETTER_COPY_MAX
    uint64_t letters[DEATH_REASONS]  # messages that were published to their dead-letter exchanges
    uint64_t cycles             # queues that would have closed a circle
    uint64_t dropped            # heads of queues without a dead-letter exchange that letters filled
    uint64_t refused            # letters that a full queue did not take
    uint32_t filled_count
    queue_t *filled[FILLED_MAX] # counted: above their limits, and dead-letter what they drop

# Gives a letter of the message to the queues of its route. The caller ends the original afterwards (an entry of the log; else NULL). False:
# nothing was done; it is left to Python, which finds out what is missing here (the address, the route) and remembers it. O(bytes of the
# message).
cdef bint letter_send(queue_t *queue, content_t *content, int reason, original_t *original, letter_run_t *run) noexcept nogil
# The same for an entry that `owner` (a consumer id, 0 the broker) holds. end: REASON_* of the dequeue that follows; delivered_us: wall clock of
# the delivery, 0 = not known.
cdef bint letter_of_entry(queue_t *queue, delivery_t *entry, uint32_t owner, int reason, int end, uint64_t delivered_us, letter_run_t *run) noexcept nogil
# Dead-letters what a queue is over its limit for, `most` entries at most. Returns how many. `*held`: the position of the next one, which is
# left to Python and which the broker holds; 0: there is none.
cdef uint32_t letters_make_room(queue_t *queue, uint32_t most, letter_run_t *run, uint64_t *held) noexcept nogil
# The same; an entry that is left to Python is back in its place, and the queue above its limit.
cdef uint32_t letters_drop(queue_t *queue, uint32_t most, letter_run_t *run) noexcept nogil
# The same for the queues that letters of the run filled, in turn, LETTERS_AT_ONCE in all. Queues that are above their limits then stay in run.filled.
cdef void letters_cascade(letter_run_t *run) noexcept nogil
# Begins a run of a connection; and ends it: its counts are the connection's, the queues that are left go to Connection.take_refused.
# True: SLOW_POLICY is due.
cdef void letters_begin(connection_t *connection, letter_run_t *run) noexcept nogil
cdef bint letters_end(connection_t *connection, letter_run_t *run) noexcept nogil

# Python dead-letters the message after this event, or, NULL, brings the queue back under its limit. `reason`: REASON_DROP or
# REASON_REJECT. False: no memory, it is only refused.
cdef bint note_refused(connection_t *connection, queue_t *queue, content_t *content, int reason) noexcept nogil
# A connection's message filled a queue that dead-letters what it drops: its head is dropped, some 60 us at most. True: SLOW_POLICY is due.
cdef bint letters_drop_head(connection_t *connection, queue_t *queue) noexcept nogil
# x-overflow reject-publish-dlx: the queue refused the connection's message. True: SLOW_POLICY is due.
cdef bint letter_refused(connection_t *connection, queue_t *queue, content_t *content) noexcept nogil

# Runs that Python starts. It holds the GIL throughout: a piece of them takes some 100 us.
cdef class LetterWork:
    cdef arena_t *arena
    cdef letter_run_t run
    cdef object counters
    cdef object on_filled
    cdef void _end(self)

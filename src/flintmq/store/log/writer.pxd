# The writer: one thread that puts all logs of a store on disk. Group commit without a timer: what gathers while a sync runs is the
# next group. Only what nobody waits for (messages without confirms) gathers for some milliseconds.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.core.pass_trace cimport trace_t
from flintmq.queue.types cimport log_port_t
from flintmq.store.log.file_port cimport FilePort
from flintmq.store.log.log cimport PIECES_MAX, log_t, piece_t

cdef enum:
    LOGS_MAX = 1024
    WAVE_MAX = 64               # logs of streams that are written before the first of them is synced

cdef enum:                      # what a pass came to
    PASS_IDLE = 0
    PASS_PROGRESS = 1
    PASS_STARVED = 2            # a container that is needed is not ready
    PASS_FAILED = 3

cdef struct batch_t:            # what one pass took out of one log
    log_t *log
    uint32_t count              # 0: nothing; else it waits to be written
    bint complete               # nothing of the log is left over
    uint64_t upto
    piece_t pieces[PIECES_MAX]

cdef enum:                      # dirty_log_t.state, under the log's lock
    DIRTY_NOT = 0
    DIRTY_QUEUED = 1            # in writer_t.dirty, or being written
    DIRTY_STARVED = 2           # waits for a container; writer_resume brings it back

cdef struct dirty_log_t

# A log of this kind was written, or its turn is over. Called by the writer, without a lock and without the GIL.
ctypedef void (*dirty_log_call_t)(dirty_log_t *dirty) noexcept nogil

cdef struct dirty_log_t:        # a log that the writer looks at only when told: there may be thousands of them, most of them idle
    log_t *log
    uint32_t state
    dirty_log_t *next
    dirty_log_call_t moved      # its durable LSN moved
    dirty_log_call_t done       # the writer does not hold it any more (writer_dirty counted one more holder)
    # --- under the log's lock
    uint64_t letter             # LSN behind the last dead letter in it that may not be durable; 0: none
    bint waived                 # a full disk: nobody waits for its dead letters

cdef struct wave_t:             # one of the logs of streams that are written together
    dirty_log_t *dirty
    uint64_t target             # its tail when its turn came
    uint64_t upto
    uint32_t count              # pieces
    bint complete
    bint dead                   # it has failed: nothing of it is ever written again
    bint ended                  # nothing more of it in this pass
    piece_t pieces[PIECES_MAX]

cdef struct writer_t:
    uint32_t failed             # atomic: errno of the failure that stopped it
    uint32_t dirty_lock
    dirty_log_t *dirty_first    # told by writer_dirty, in their order
    dirty_log_t *dirty_last
    uint32_t starved_logs       # atomic: how many of them wait for a container
    uint64_t starvations        # how often one came to wait for a container
    uint32_t letters            # atomic: a dead letter went to one of them since the last pass
    uint32_t letters_starved    # atomic: how many of those that wait for a container have a dead letter
    uint32_t letters_late       # atomic: how often one of them came to wait, or got one while it waited
    bint held                   # the other logs wait for a dead letter
    wave_t *wave                # WAVE_MAX
    uint32_t wanting            # atomic: one of them went on to another container: maintenance should run
    uint32_t signal             # futex word: changed by every kick
    uint32_t urgent             # atomic: somebody waits for a record that was kicked for since the last pass
    uint32_t soon               # atomic: there is something that nobody waits for
    int soon_ms                 # how long that may gather
    uint32_t sleeping           # atomic: 1 till it is woken, 2 for `soon_ms` at most
    uint32_t stopping           # atomic
    uint32_t callbacks          # atomic: Python callbacks wait for durability
    uint32_t progress           # futex word: changed when a log went on to another container or waits for one
    uint32_t lock               # of `logs`
    uint32_t log_count
    log_t *logs[LOGS_MAX]       # in the order in which they are written; they are taken in the opposite order
    batch_t *batches
    log_port_t *port            # woken after progress; may be NULL
    bint starved_told           # maintenance knows that a container is missing
    bint left_over              # the last pass could not take everything
    uint64_t passes
    uint64_t syncs
    uint64_t last_container     # tail container of logs[0] when progress was told last
    int failed_errno
    uint32_t failed_log
    uint64_t failed_lsn
    bint failed_sync            # a sync, not a write

# Something that the caller appended, or anybody, is not durable: O(logs), three in a store, and one look for all streams.
cdef bint writer_has_work(writer_t *writer) noexcept nogil
# There is something to write, and somebody waits for it.
cdef void writer_kick(writer_t *writer) noexcept nogil
# There is something to write that nobody waits for: it may gather for `soon_ms`.
cdef void writer_kick_soon(writer_t *writer) noexcept nogil
# The log has something to write. Its lock is held. True when it was not known to be dirty: the caller then counts a holder of it before
# letting go of the lock; `done` gives that back.
cdef bint writer_dirty(writer_t *writer, dirty_log_t *dirty) noexcept nogil
# It waited for a container, which is ready now (or it is given up). Takes the log's lock.
cdef void writer_resume(writer_t *writer, dirty_log_t *dirty) noexcept nogil

# A dead letter was appended to it; what ends its original comes next: no record of another log that is appended from now on is written
# before the letter is durable. Takes the log's lock.
cdef void writer_letter(writer_t *writer, dirty_log_t *dirty) noexcept nogil
# The disk has no room for the container that it waits for: nobody waits for its letters till there is (acks must go on, they make the
# room). False: nobody did. Takes the log's lock.
cdef bint writer_waive(writer_t *writer, dirty_log_t *dirty) noexcept nogil

cdef class LogWriter:
    cdef writer_t writer
    cdef FilePort files
    cdef public object on_callbacks    # durability moved and someone asked to be called
    cdef public object on_failed       # (errno, log id, LSN, "write" or "sync"): latched, nothing is written any more
    cdef object thread
    cdef trace_t trace
    cdef int add(self, log_t *log) except -1
    cdef int one_pass(self, uint32_t flags) noexcept nogil
    cdef int run_until_python(self) noexcept nogil
    cdef void _tell_progress(self) noexcept nogil
    cdef int _write_dirty(self, uint32_t flags) noexcept nogil
    cdef bint _letters_first(self, uint32_t flags, int *result) noexcept nogil
    cdef int _write_wave(self, uint32_t count, uint32_t flags) noexcept nogil
    cdef int _take_one(self, wave_t *one, uint32_t flags) noexcept nogil
    cdef int _sync_one(self, wave_t *one) noexcept nogil
    cdef void _end_one(self, wave_t *one) noexcept nogil
    cdef int _fail(self, log_t *log, uint64_t lsn, int error, bint sync, uint32_t count) noexcept nogil

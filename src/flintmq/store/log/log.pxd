# A log: an endless run of records in containers, appended to in memory and written by the log's writer (writer.pxd).
#
# The appender holds log_t.lock (a spin lock: nothing below blocks). LSNs are final when a record is appended. An appended record lies in
# write buffers, each a window of the LSN range; the writer takes finished blocks out of them, writes and syncs, and reports back.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.core.hash64 cimport map64_t
from flintmq.store.log.record cimport block_t, record_t

cdef enum:
    DEAD_GRAIN = 16             # bytes of LSN range per bit of a dead map: the shortest thing that lives, a Tx-Start, takes 24
    DEATHS_MAX = 512            # deaths that a container lists before it gets a map of them

cpdef enum:                     # states of a container
    CONTAINER_ABSENT = 0        # not made yet, or gone
    CONTAINER_READY = 1         # its file is there, header durable
    CONTAINER_SEALED = 2        # full, written and synced; its descriptor may be closed

cdef enum:
    PIECES_MAX = 64

cdef uint64_t LSN_NEVER         # an LSN that is never durable: what appending to a failed log gives

cdef struct buffer_t:           # a window of the log in memory
    uint64_t start              # LSNs [start, end): inside one container
    uint64_t end
    uint64_t origin             # LSN from which it is filled: what is before was written by an earlier run
    uint64_t used               # LSN up to which it is filled, with finished blocks
    uint64_t taken              # LSN up to which the writer has it
    uint8_t *bytes
    buffer_t *next

cdef struct container_t:
    uint64_t sequence
    int fd                      # -1: not open
    uint32_t state
    uint64_t live_count         # live messages (transactions, notes) whose content is here
    uint64_t count              # all that were ever here, and their bytes in the log
    uint64_t bytes
    uint64_t ended_at           # LSN of the last record that ended a message here: durable before the container goes
    uint64_t *dead              # bit per DEAD_GRAIN at which something died; NULL: `deaths` has them
    uint32_t *deaths            # grains, rising; like `dead` it is kept while something here lives, or the tail is here
    uint32_t death_count
    uint32_t death_room
    bint blurred                # there was no memory for a death: what seems to live here may not be written anew
    bint doubtful               # recovery could not read all of it: what it did not find alive counts as dead (`dead` is there)

cdef struct piece_t:            # bytes that go to one container with one write
    uint64_t lsn
    uint64_t size
    const uint8_t *bytes
    int fd

cdef struct log_t:
    uint32_t lock
    uint32_t id                 # as in the container's header (containers.py)
    uint32_t epoch
    bint syncs                  # the page log is written, never synced
    uint64_t container_size
    uint64_t buffer_size
    uint64_t tail               # LSN of the next record
    uint64_t block              # LSN of the open block's header; 0 = none is open
    uint64_t last_block         # LSN of the last closed block
    uint64_t shape_floor        # Message-Shapes from this LSN on may be named (shapes.pxd): they are in the tail's container, and of this run
    uint32_t block_records
    uint64_t block_us           # time base of the open block
    uint64_t now_us             # wall clock of the present append session
    uint64_t base               # atomic: nothing below is needed by recovery
    uint64_t base_durable       # atomic: base as the last durable block tells it
    uint64_t base_closed        # base told by the last closed block
    uint64_t base_taken         # base told by the last block that the writer took
    uint64_t durable            # atomic: everything below is durable
    uint64_t ready_end          # atomic: LSN behind the last container that is ready
    uint32_t failed             # atomic: errno of the write or sync that failed; latched
    buffer_t *first             # buffers not given back yet, by LSN
    buffer_t *last
    buffer_t *spare
    uint32_t spare_count
    uint32_t buffers            # in `first`..`last`
    container_t *containers     # containers[0] has sequence `first_sequence`
    uint64_t first_sequence
    uint32_t container_count
    uint32_t container_room
    uint64_t live_count         # of all containers
    uint64_t appended           # figures: records, bytes, blocks
    uint64_t written
    uint64_t blocks
    uint64_t copied             # bytes of live messages that were copied forward
    map64_t moved               # id -> LSN, of messages that were copied forward
    uint32_t dividing           # contents of which some chunks are written: their messages are in no table yet

cdef log_t *log_new(uint32_t log_id, uint64_t container_size, uint64_t buffer_size, bint syncs) noexcept nogil
cdef void log_free(log_t *log) noexcept nogil
# Continues where a scan ended: tail (sector aligned), its last block, the epoch of this run. Before the first append.
cdef void log_continue(log_t *log, uint64_t tail, uint64_t last_block, uint32_t epoch, uint64_t base) noexcept nogil

# --- append (between log_begin and log_end)
cdef void log_begin(log_t *log) noexcept nogil
cdef void log_end(log_t *log) noexcept nogil
# Room for one record of `length` bytes, 8-byte aligned; its LSN in `*lsn`. NULL: the log has failed or memory is exhausted, `*lsn` is
# LSN_NEVER then. Fill it in (record_encode), then log_append_done. O(1).
cdef uint8_t *log_append(log_t *log, uint32_t length, uint64_t *lsn) noexcept nogil
cdef void log_append_done(log_t *log, uint8_t *record, uint32_t length, uint64_t lsn) noexcept nogil
# Bytes of records that fit before the present window ends; when that is less than `least`, goes on to the next window first.
cdef uint32_t log_room(log_t *log, uint32_t least) noexcept nogil
cdef uint32_t log_time(log_t *log) noexcept nogil       # of a record appended now: microseconds after the open block's time base

# --- the writer
# Closes the open block and hands out everything not yet taken, in order; returns the number of pieces. `*upto`: LSN that is durable when
# all of them are synced. A log that doesn't sync hands out full windows only. A container that is not ready ends the list; `*complete` says whether nothing is left.
cdef uint32_t log_take(log_t *log, piece_t *pieces, uint64_t *upto, bint *complete, uint32_t flags) noexcept nogil
# The pieces up to this LSN are on disk: buffers that are full are given back, durable moves.
cdef void log_written(log_t *log, uint64_t upto) noexcept nogil
cdef bint log_dirty(log_t *log) noexcept nogil           # something waits for log_take
# Gives the write buffers back that wait for reuse: for a log that fills slowly.
cdef void log_trim(log_t *log) noexcept nogil
# Gives all write buffers back when everything in them is durable; the next append makes a new one. False: something waits.
cdef bint log_release(log_t *log) noexcept nogil

# --- live things (log lock held): messages of the message log, transactions and notes of the transaction log, spilled pages
# A log knows what died in it: what nobody touched takes no memory.
# `size`: bytes it takes in the log.
cdef void log_live(log_t *log, uint64_t lsn, uint64_t size) noexcept nogil
# `by`: LSN of the record that ended it. A thing that is dead already, or stands below the base, changes nothing.
cdef void log_dead(log_t *log, uint64_t lsn, uint64_t by) noexcept nogil
# Recovery, before log_live: a part of this container is damaged. Another reader may find what recovery did not. False: no memory.
cdef bint log_doubt(log_t *log, uint64_t sequence) noexcept nogil
# Recovery: something was here and had died. After log_live of everything that lives. False: no memory.
cdef bint log_died(log_t *log, uint64_t lsn, uint64_t size) noexcept nogil
# Recovery from a checkpoint: so much was in a container below its begin, and so many of that lived; then each place at which something had
# died. False: the container is unknown, or no memory.
cdef bint log_restore_container(log_t *log, uint64_t sequence, uint64_t count, uint64_t live, uint64_t bytes) noexcept nogil
cdef bint log_restore_death(log_t *log, uint64_t sequence, uint32_t grain) noexcept nogil
# Whether what was written at this LSN lives: the caller knows that something was.
cdef bint log_is_live(log_t *log, uint64_t lsn) noexcept nogil
# The same, and the log is sure of it: it may be written anew.
cdef bint log_may_copy(log_t *log, uint64_t lsn) noexcept nogil
# Forgets which things died in a container in which nothing lives.
cdef void log_forget_deaths(container_t *container) noexcept nogil
# Where the thing with this id is now: its LSN, or that of its last copy.
cdef uint64_t log_where(log_t *log, uint64_t thing) noexcept nogil
# Bytes of live things: exact for containers whose things are of one size, else estimated by the container's mean.
cdef uint64_t log_live_bytes(log_t *log) noexcept nogil
# The table entry of a container; made (ABSENT) when it is the next one. NULL: unknown, or no memory.
cdef container_t *log_container(log_t *log, uint64_t sequence) noexcept nogil
# Forgets the containers below `sequence`.
cdef void log_forget_containers(log_t *log, uint64_t sequence) noexcept nogil

# Copies up to `size` bytes at `lsn` out of the write buffer that holds it; returns how many, 0 when it is not (or no longer) in memory.
# Takes the lock. Bytes of the open block's header are not final yet; records are.
cdef uint64_t log_read_buffered(log_t *log, uint64_t lsn, uint8_t *out, uint64_t size) noexcept nogil


# --- contents as records: written whole or in chunks, read back from records
# In the log a content is one run of bytes: route, content header payload, body (docs/FORMAT.md, Message-Start).
cdef enum:
    PIECE_MAX = 65536           # bytes of content in one record of a long message: the lock is held for about 20 us each

cdef uint32_t content_total(content_t *content) noexcept nogil
# Bytes [offset, offset + size) of the run.
cdef void content_copy_out(content_t *content, uint32_t offset, uint32_t size, uint8_t *out) noexcept nogil
# Writes Message-Start (or Page-Content) and its chunks, and marks it live. Log lock held; let go between chunks. follows: bytes of records
# that must fit behind an undivided one in the same window. Returns its LSN, or LSN_NEVER.
cdef uint64_t content_write(log_t *log, uint8_t kind, uint32_t split_above, uint32_t follows, content_t *content) noexcept nogil
# A content from the record of a Message-Start, Message-Copy or Page-Content, as far as its own bytes go. `*filled`: how many bytes of the
# run it had. NULL: malformed, or no memory.
cdef content_t *content_from_record(arena_t *arena, record_t *record, uint32_t *filled) noexcept nogil
# Puts a chunk into it; false when it does not fit.
cdef bint content_add_chunk(content_t *content, record_t *record) noexcept nogil
# The same for a content that is not longer than split_above, from its bytes: `route` as in the run, `data` its header and body (`length` bytes in all).
cdef uint64_t content_write_small(log_t *log, uint32_t follows, const uint8_t *route, uint16_t route_len, const uint8_t *data, uint32_t header_len, uint32_t length, uint8_t flags, uint8_t priority) noexcept nogil

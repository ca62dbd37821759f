# Reads message content back from the log by LSN. One thread at a time uses a reader: it has a window of the log in memory.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_t
from flintmq.store.ahead_ring cimport AheadRing
from flintmq.store.log.file_port cimport FilePort
from flintmq.store.log.log cimport log_t
from flintmq.store.log.managed cimport ManagedLog
from flintmq.store.log.reader cimport log_reader_t
from flintmq.store.log.record cimport record_t, shape_t
from flintmq.store.shape_reads cimport shape_reads_t

cdef enum:
    SHAPE_READ = 8192           # bytes read for one Message-Shape: the longest has room

cdef extern from *:
    """
    #ifndef FLINTMQ_IO_WAIT_H
    #define FLINTMQ_IO_WAIT_H
    #include <stdint.h>
    #include <sys/resource.h>
    #include <time.h>
    /* The thread gave its core up of its own will that often: to wait. Being pre-empted does not count. */
    static inline long io_wait_switches(void) {
        struct rusage usage;
        return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
    }
    static inline int64_t io_wait_ns(void) {
        struct timespec t, cpu;
        clock_gettime(CLOCK_MONOTONIC, &t);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
        return ((int64_t)t.tv_sec - cpu.tv_sec) * 1000000000 + (t.tv_nsec - cpu.tv_nsec);
    }
    #endif
    """
    long io_wait_switches() noexcept nogil     # of the calling thread so far
    int64_t io_wait_ns() noexcept nogil        # time that the calling thread did not compute; only differences mean something

cdef class ContentReader:
    cdef ManagedLog messages
    cdef ManagedLog pages              # None when nothing is spilled
    cdef log_t *message_log
    cdef log_t *page_log               # NULL when nothing is spilled
    cdef FilePort files
    cdef arena_t *arena
    cdef log_reader_t walk             # its window: `own`, or a piece of the ring
    cdef log_t *source                 # the log that it reads; NULL: none yet
    cdef uint8_t *own
    cdef uint64_t own_size
    cdef int64_t io_ns                 # waited for the disk since whoever uses it set this to 0
    cdef bint no_means                 # the last read found no descriptor or memory: it may be tried again
    cdef int descriptor                # of the sealed container that was read last; -1: none
    cdef log_t *descriptor_log
    cdef uint64_t descriptor_sequence
    cdef uint64_t asked                # the last container that the disk was asked for ahead; 0: none in this run
    cdef AheadRing ring                # None: this reader never reads ahead by itself
    cdef uint64_t run_start            # LSN at which reads began to follow each other
    cdef uint64_t run_end              # behind the last window of that run
    cdef uint64_t wanted               # bytes of records that were read, all in all
    cdef uint64_t run_wanted           # the same when the run began
    cdef uint64_t window_wanted        # the same when the present window was read
    cdef uint64_t span                 # bytes that were asked for then
    cdef shape_reads_t shapes
    cdef log_reader_t shape_walk       # for shapes outside of the window, which stays for the run
    cdef uint8_t *shape_bytes          # its window
    cdef uint32_t strays               # reads outside of the ring since the last one inside
    # The content with this id (MESSAGE_SPILLED_BIT: of the page log), one reference to the caller. NULL: it can't be read (gone, or
    # damaged: who asked knows whether the message should be there), or can't be now (no_means).
    cdef content_t *read(self, uint64_t message_id) noexcept nogil
    cdef content_t *_content(self, log_t *source, uint64_t thing, uint64_t lsn, bint spilled) noexcept nogil
    cdef content_t *_brief(self, log_t *source, record_t *record) noexcept nogil
    # The shape that this Message names. NULL: there is none in its container, or it can't be read (no_means: now).
    cdef shape_t *_shape(self, log_t *source, record_t *record) noexcept nogil
    cdef shape_t *_keep(self, record_t *record) noexcept nogil
    cdef uint64_t _load_shape(self, uint64_t lsn) noexcept nogil
    cdef bint _record(self, log_t *source, uint64_t lsn, record_t *out) noexcept nogil
    cdef void _use(self, log_t *source) noexcept nogil
    cdef uint64_t _load(self, uint64_t lsn, uint64_t least) noexcept nogil
    cdef uint64_t _from_ring(self, log_t *source, uint64_t lsn, uint64_t least) noexcept nogil
    cdef uint64_t _span(self, uint64_t least) noexcept nogil
    cdef bint _dense(self, uint64_t lsn, uint64_t share) noexcept nogil
    cdef void _follow(self, log_t *source, uint64_t lsn) noexcept nogil
    cdef void _end_run(self) noexcept nogil
    cdef void _close_container(self) noexcept with gil
    cdef bint _start(self, log_t *source, uint64_t lsn) noexcept with gil
    cdef int _open(self, log_t *source, uint64_t lsn) noexcept with gil
    cdef void _ask_ahead(self, log_t *source, uint64_t sequence) noexcept with gil
    # Body length, CONTENT_* flags and priority of a logged message, from its first record; false when that can't be read.
    cdef bint facts(self, uint64_t message_id, uint32_t *body_len, uint8_t *flags, uint8_t *priority) noexcept nogil

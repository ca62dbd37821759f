# A backlog that is read in its order: the next pieces of the log are on their way from the disk while one is taken apart.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.store.log.file_port cimport DirectReads, FilePort, direct_read_t
from flintmq.store.log.log cimport log_t
from flintmq.store.log.managed cimport ManagedLog

cdef enum:
    AHEAD_PIECES = 5            # under way or here
    AHEAD_PIECE = 1048576       # bytes; what a container has at its end may be less.
    AHEAD_CARRY = 262144        # bytes of room before a piece: for a record that begins in the piece before

cdef struct ahead_piece_t:
    direct_read_t read
    uint64_t lsn                # of its first byte
    uint64_t begin              # the same, or of the bytes that were carried over from the piece before, which stand before the data
    bint last                   # of its container, whose descriptor ends with it

cdef class AheadRing:
    cdef readonly bint on              # it has pieces, or will have some
    cdef ManagedLog owner              # of the run; None: there was none yet
    cdef log_t *log
    cdef FilePort files
    cdef DirectReads reads             # None: not asked for yet, or there is no such thing here
    cdef bint refused                  # the system or its file system has no such thing: not tried again
    cdef uint8_t *memory
    cdef ahead_piece_t pieces[AHEAD_PIECES]
    cdef uint32_t first                # a queue in a ring
    cdef uint32_t count
    cdef uint64_t next_lsn             # where the piece behind the last one begins
    cdef int fd                        # of the container with next_lsn; -1: not open
    # Begins a run with the piece that has `lsn`. False: not possible here, or not all of that container is on disk yet.
    cdef bint start(self, ManagedLog owner, uint64_t lsn) noexcept with gil
    # The piece with `least` bytes from `lsn` on, waited for; pieces before it are given up, and others asked for in their place. NULL: the
    # ring has none, or it could not be read. `least` is at most AHEAD_CARRY.
    cdef ahead_piece_t *piece(self, uint64_t lsn, uint64_t least) noexcept nogil
    # Ends the run and gives the memory back; waits for the reads under way.
    cdef void stop(self) noexcept nogil
    cdef bint _carry(self, uint64_t lsn) noexcept nogil
    cdef void _fill(self) noexcept nogil
    cdef void _release(self) noexcept nogil
    cdef bint _open(self, uint64_t sequence) noexcept with gil
    cdef void _close(self, int fd) noexcept with gil

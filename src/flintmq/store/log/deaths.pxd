# The containers of a log and all that died in them, as of one LSN: for checkpoints (store/checkpoints.pxd).
from libc.stdint cimport uint32_t, uint64_t
from flintmq.store.log.log cimport DEATHS_MAX, log_t

cdef enum:                      # log_copy_deaths
    DEATHS_SOME = 0             # some things died there, or none; others live
    DEATHS_ALL = 1              # nothing that stood there lives
    DEATHS_GONE = 2             # the log knows the container no more
    DEATHS_UNSURE = 3           # the log does not know all of them

cdef struct tally_t:            # a container at one moment
    uint64_t sequence
    uint64_t count              # things that were ever in it, and their bytes
    uint64_t bytes

cdef struct deaths_t:
    uint64_t *bits              # the caller's: room for a container's grains
    bint mapped                 # they are in `bits`, else in `grains`
    uint32_t count
    uint32_t grains[512]        # rising

# The containers up to the tail's, at most `room`. Returns how many there are; `*unsure`: what died in one of them is not known. Log lock held.
cdef uint32_t log_tally(log_t *log, tally_t *out, uint32_t room, bint *unsure) noexcept nogil
# What died in a container at a grain below `below`. Takes the lock, for 32 KiB at a time. `bits` has whole words, zero from `below` on.
cdef int log_copy_deaths(log_t *log, uint64_t sequence, uint32_t below, deaths_t *out) noexcept nogil

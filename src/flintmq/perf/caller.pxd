# A blocking client that repeats a fixed conversation: the workloads that measure declarations and short connections.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.perf.histogram cimport histogram_t

cdef enum:
    STEPS_MAX = 16
    PLACES_MAX = 8
    INPUT_ROOM = 65536
    NUMBER_DIGITS = 10

cdef struct step_t:
    uint8_t *data             # sent first (size 0: nothing)
    size_t size
    size_t[8] places          # offsets of the ten digits that are the cycle's number
    uint32_t place_count
    uint32_t answer           # method id that ends the step; 0: none awaited
    uint32_t again            # method id after which the step is repeated; 0: none
    bint content              # a content follows the answer; its body must be the cycle's number

cdef class Caller:
    cdef bytes host
    cdef int port, fd
    cdef bint persistent, stop_all
    cdef step_t[16] steps
    cdef uint32_t step_count
    cdef uint64_t done, failures
    cdef int64_t first_ns, last_ns
    cdef histogram_t cycles
    cdef uint8_t *input
    cdef size_t input_start, input_end
    cdef char[260] failure
    cdef object kept
    cdef bint note(self, const char *text, const uint8_t *detail, size_t size) noexcept nogil
    cdef uint8_t *frame(self, uint32_t *size) noexcept nogil
    cdef bint step(self, step_t *step, uint8_t *digits) noexcept nogil
    cdef bint cycle(self, const char *host, uint64_t number) noexcept nogil

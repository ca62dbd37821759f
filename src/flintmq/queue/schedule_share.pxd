# How much of one schedule the messages of one user are, without a word in each of them: a message counts from its publish until the end of
# a short interval behind its due time.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    SHARE_LEVEL_MIN = 4         # intervals of 2 ** 4 = 16 ms for delays below 512 ms
    SHARE_LEVELS = 29           # up to delays of 2 ** 33 ms
    SHARE_RING = 64             # intervals of a level: 34 of them can be ahead at a time

cdef struct share_interval_t:
    uint64_t number             # of the level's intervals since 1970
    uint64_t messages
    uint64_t bytes              # of bodies

cdef struct schedule_share_t:
    uint32_t refs               # atomic: the ScheduleShare, and routes to the schedule
    uint32_t lock               # a spin lock; innermost
    uint64_t messages           # that count now
    uint64_t bytes
    uint64_t messages_max       # atomic
    uint64_t bytes_max          # atomic
    int64_t looked_ms           # when intervals that are over were looked for last
    share_interval_t *levels[SHARE_LEVELS]      # NULL: no message had such a delay yet

cdef void share_incref(schedule_share_t *share) noexcept nogil
cdef void share_decref(schedule_share_t *share) noexcept nogil
# Whether one more message fits, with `messages` and `size` bytes that are not noted yet. O(1) below the limit; at the limit O(intervals),
# once in a millisecond.
cdef bint share_takes(schedule_share_t *share, uint64_t messages, uint64_t size, uint32_t body_len) noexcept nogil
# A message is in the schedule. Without memory for its interval it is not counted. O(1).
cdef void share_note(schedule_share_t *share, int64_t due_ms, uint32_t body_len) noexcept nogil

cdef class ScheduleShare:
    cdef schedule_share_t *share

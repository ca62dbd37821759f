# A queue as a checkpoint writes it down, segment by segment, and as a start puts it back (docs/adr/0016).
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.paging cimport shell_t
from flintmq.queue.types cimport queue_t, restored_t

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *place) noexcept nogil

# The first segment of the level that ends behind index `index`, as it stands. A shell: `facts.run` is not 0, and nothing is written to `entries`.
# Else: its logged entries (room for LARGE_SLOTS), whoever has them; `facts.live` of them. An entry that was acked just now is among them
# while the log is told of it: who writes them down leaves those out whose message has ended in the log. `*tail`: the last index in use when it
# is the last segment (or there is none behind `index`, then nothing else is written and the result is false), else 0; nothing at or below
# it is added any more. Any thread; some 10 us under the queue's locks.
cdef bint queue_snapshot(queue_t *queue, uint32_t level, uint64_t index, restored_t *entries, shell_t *facts, uint64_t *tail) noexcept nogil
# A start: a shell with these facts stands behind all that the level has. False: no memory, or a position that is used. Before anyone uses
# the queue.
cdef bint queue_adopt_shell(queue_t *queue, uint32_t level, const shell_t *facts) noexcept nogil
# A start: what is put in from index `base` on has a segment of at most `count` slots (one at least), unless the last one has a place for it:
# a shell may stand behind it. False: no memory.
cdef bint queue_open_segment(queue_t *queue, uint32_t level, uint64_t base, uint64_t count) noexcept nogil

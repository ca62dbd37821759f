# Log and content ports that give out ids and count, and keep nothing: for tests that answer loads themselves.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from libc.stdint cimport uint8_t
from flintmq.queue.types cimport queue_t, restored_t, slot_t, swept_t, waiter_t

cdef struct kept_run_t:           # a run, as the index log has it
    uint8_t *bytes                # NULL: nobody has it any more
    uint32_t size

cdef struct loads_t:              # what the ports were asked for; ids are given out, nothing is kept
    uint32_t lock
    uint32_t count
    uint64_t positions[4096]
    uint64_t ids
    int64_t logged                # enqueues less dequeues that the log was told of
    int64_t spilled               # spills less unspills
    uint32_t runs_lost            # runs can't be read
    uint32_t runs_full            # no run is taken
    uint32_t refusals             # how often
    uint32_t run_count            # runs that were written
    kept_run_t runs[4096]

# Functions of log_port_t; the context is a loads_t.
cdef void note_load(void *context, queue_t *queue, uint64_t position, uint64_t message_id) noexcept nogil
cdef uint64_t note_enqueue(void *context, queue_t *queue, uint64_t position, slot_t *slot, int64_t expires_at_ms) noexcept nogil
cdef uint64_t note_dequeue(void *context, queue_t *queue, uint64_t position, slot_t *slot, uint32_t owner, int reason, uint64_t delivered_us) noexcept nogil
cdef uint64_t note_sweep(void *context, queue_t *queue, swept_t *swept, uint32_t count, bint ended) noexcept nogil
cdef uint64_t note_spill(void *context, content_t *content) noexcept nogil
cdef void note_unspill(void *context, uint64_t message_id) noexcept nogil
cdef uint64_t note_page_out(void *context, queue_t *queue, restored_t *entries, uint32_t count) noexcept nogil
cdef uint32_t note_page_in(void *context, uint64_t run, restored_t *entries, uint32_t room) noexcept nogil
cdef void note_page_end(void *context, uint64_t run) noexcept nogil
cdef uint64_t note_page_bury(void *context, queue_t *queue, uint64_t run, uint64_t first, uint64_t last, bint ended) noexcept nogil
cdef void loads_free(loads_t *loads) noexcept nogil
# waiter_t.wake; the context is a counter.
cdef void count_wake(waiter_t *waiter) noexcept nogil

# Decides every place by the table and writes the result's arrays: see recovery_result.py.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.queue.types cimport restored_t
from flintmq.store.recovery_read cimport live_t, location_t, named_t, work_t

# Applies the decision table (decisions.lookup) to every place. last_damage: the LSN behind the last damaged stretch, 0 = none.
cdef void work_decide(work_t *work, const uint8_t *table, uint64_t last_damage, uint64_t lost_max) noexcept nogil
# Writes what lives into arrays of the sizes that work_decide counted. `live` is the memory of work.seen itself. flags: of every entry.
cdef void result_fill(work_t *work, restored_t *entries, live_t *live, location_t *locations, named_t *names, uint32_t flags) noexcept nogil
# Brings a queue's entries into position order; returns how many there are of positions that are taken twice (they come last).
cdef uint64_t result_sort(restored_t *entries, uint64_t count) noexcept nogil
# Flags the entries with positions first..last as delivered before.
cdef void result_mark_range(restored_t *entries, uint64_t count, uint64_t first, uint64_t last) noexcept nogil
# How many entries have positions first..first+length-1; `*start`: the first of them.
cdef uint64_t result_range(restored_t *entries, uint64_t count, uint64_t first, uint64_t length, uint64_t *start) noexcept nogil
# Those of a set in doubt: held, and in the same delivery as before.
cdef void result_hold_range(restored_t *entries, uint64_t count, uint64_t first, uint64_t length) noexcept nogil

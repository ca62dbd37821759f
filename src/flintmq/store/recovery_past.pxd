# What of a checkpoint's runs a start puts back, once the log behind it was read. Plain C, no GIL.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.queue.types cimport restored_t
from flintmq.store.past cimport past_segment_t
from flintmq.store.recovery_work cimport queue_info_t, work_t

# Applies purges and deliveries to all segments. unclean: what the queue's mark covers counts as delivered before.
# O(segments + their purges and ranges).
cdef void past_judge(work_t *work, bint unclean) noexcept nogil
# Entries of the segment that stand, into `out` (room for LARGE_SLOTS), with their flags. Those that a purge ended go to `purged`, `*ended` of
# them; NULL: they are noted as gone. Returns how many stand; -1: the run can't be read. May wait for the disk.
cdef int past_standing(work_t *work, past_segment_t *segment, restored_t *out, restored_t *purged, uint32_t *ended) noexcept nogil
# Entries of the segment's run that the run alone tells of, into `out`: what of them ended is to be counted out. Returns how many; -1: the
# run can't be read. May wait for the disk.
cdef int past_alone(work_t *work, past_segment_t *segment, restored_t *out) noexcept nogil
# Whether an entry of the checkpoint stands at this position. May wait for the disk.
cdef bint past_stands(work_t *work, uint64_t queue_id, uint64_t position) noexcept nogil
# Lowest index at which a run of this level may have an entry, 0: none; highest one that may be flagged as delivered before. O(segments).
cdef uint64_t past_lowest(work_t *work, uint64_t queue_id, uint32_t level) noexcept nogil
cdef uint64_t past_flagged(work_t *work, uint64_t queue_id, uint32_t level) noexcept nogil
# Entries of the runs of a queue of the work about which nothing else tells: at most so many come back. O(its segments).
cdef uint64_t past_left(work_t *work, queue_info_t *info) noexcept nogil

# Places and messages that stand in the message log, in pieces under its lock: for checkpoints (checkpoints.pxd).
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.core.hash64 cimport map64_cell_t
from flintmq.queue.types cimport restored_t
from flintmq.store.log.log cimport log_t
from flintmq.store.message_log cimport message_log_t

cdef enum:
    STANDING_CELLS = 1024       # messages of one piece

cdef struct piece_walk_t:       # a walk over a map that changes meanwhile: zeroed, it begins
    uint64_t mask               # of the map when the walk came to it
    uint64_t first              # where the next piece begins
    uint64_t width              # of a piece
    uint32_t number             # of the map

# Which of these entries of a queue have a place still: they are moved to the front, and counted; those of the message list are flagged, and
# are `*listed`. In sections of SWEPT_MAX. O(entries).
cdef uint32_t ml_standing(message_log_t *ml, uint64_t queue_id, restored_t *entries, uint32_t count, uint32_t *listed) noexcept nogil
# The next piece of the message list, as rows of docs/FORMAT.md (kind 6) one behind the other; `*size`: their bytes. False: the walk is at
# its end, and nothing was written. `*size` above `room`: nothing was written, call again with that much.
cdef bint ml_copy_listed(message_log_t *ml, piece_walk_t *walk, uint8_t *out, uint64_t room, uint64_t *size) noexcept nogil
# Bytes of the row that stands there.
cdef uint64_t listed_size(const uint8_t *row) noexcept nogil
# The next piece of log_t.moved; `*count`: how many, more than STANDING_CELLS (there is room for those): not all. False: the walk is at its end.
cdef bint log_copy_moved(log_t *log, piece_walk_t *walk, map64_cell_t *out, uint64_t *count) noexcept nogil

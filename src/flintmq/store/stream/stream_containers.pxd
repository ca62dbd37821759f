# Containers of a stream: the offset that a record tells, the first one of a container, the container of an offset or a time.
from libc.stdint cimport uint64_t
from flintmq.store.log.reader cimport log_reader_t
from flintmq.store.log.record cimport record_t

cdef uint64_t OFFSET_UNKNOWN    # all bits: no offset is that large
# The container holds a piece of a message, and no message starts behind it: until one does, nobody knows its first offset.
cdef uint64_t OFFSET_PENDING

# Offset of the first message that starts in a container or behind it, and the time of its first record that checks; OFFSET_UNKNOWN when
# nothing in it can be read, OFFSET_PENDING.
ctypedef uint64_t (*first_of_t)(void *context, uint64_t sequence, uint64_t *first_us) noexcept nogil

# The offset that a record tells: of the message that starts with it or behind it; OFFSET_UNKNOWN: none.
cdef uint64_t stream_told(record_t *record) noexcept nogil
# As first_of_t, by reading: the reader's place moves.
cdef uint64_t stream_look(log_reader_t *reader, uint64_t sequence, uint64_t *first_us) noexcept nogil
# The last container of [low, high] whose first offset (or first time in microseconds, when `us` is given) is not above the wanted one, `low`
# when all are; containers that can't be read are passed over. 0: the disk refused. O(log containers) calls of first_of.
cdef uint64_t stream_container(log_reader_t *reader, uint64_t low, uint64_t high, uint64_t offset, uint64_t us, first_of_t first_of, void *context) noexcept nogil

# Copy-forward of one message: Message-Copy and its chunks.
from libc.stdint cimport uint64_t
from flintmq.core.content cimport content_t
from flintmq.store.message_log cimport location_t, message_log_t

# Writes a Message-Copy of a live message whose record at `at` is the current one. `plain`: its only place when it is not listed, or
# NULL. published_us: time of its Message-Start, 0 not known. Returns bytes written, 0 when the message died or moved meanwhile, or the log has failed.
cdef uint64_t ml_copy(message_log_t *ml, content_t *content, uint64_t message_id, uint64_t to_lsn, location_t *plain, uint64_t published_us) noexcept nogil

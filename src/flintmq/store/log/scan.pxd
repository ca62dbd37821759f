# Reads a log through the file port: containers in order, blocks along their chain, records checked. Used by recovery, by
# copy-forward and by `flintmq log verify`.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.store.log.file_port cimport FilePort
from flintmq.store.log.record cimport record_t

# Called for every good record, in LSN order. The record and its data are valid during the call.
ctypedef void (*scan_record_t)(void *context, record_t *record) noexcept nogil

cdef class LogScan:
    cdef FilePort files
    cdef readonly str directory
    cdef readonly uint32_t log_id
    cdef readonly object store_uuid           # 16 bytes; None: taken from the first container
    cdef readonly uint64_t container_size     # 0: the log has no container yet
    cdef readonly list containers             # sequence numbers with a good header, ascending
    cdef readonly uint64_t base               # base LSN of the last good block; recovery started there
    cdef readonly uint64_t tail               # LSN at which appending goes on: a sector boundary behind the last good block
    cdef readonly uint64_t last_block         # LSN of the last good block; 0: none
    cdef readonly uint32_t epoch              # of the last good block
    cdef readonly bint clean                  # the last block is that of a clean stop, and nothing follows it
    cdef readonly uint64_t torn_at            # LSN of a torn tail that is to be cut off; 0: none
    cdef readonly list damage                 # Damage records (scan.py): file, offset, lsn, next good lsn, reason
    # Reads everything from the base on. Raises StoreError for what can't be read at all (wrong store, unknown format, gap).
    cdef int run(self, scan_record_t on_record, void *context) except -1

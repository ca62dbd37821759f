# Reads a log through the file port: containers in order, blocks along their chain, records checked. Used by recovery, by
# copy-forward and by `flintmq log verify`.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.store.log.file_port cimport FilePort
from flintmq.store.log.record cimport block_t, record_t

# Called for every good record, in LSN order. The record and its data are valid during the call.
ctypedef void (*scan_record_t)(void *context, record_t *record) noexcept nogil

cdef class LogScan:
    cdef FilePort files
    cdef readonly str directory
    cdef readonly uint32_t log_id
    cdef readonly object store_uuid           # 16 bytes; None: taken from the first container
    cdef readonly uint64_t container_size     # 0: the log has no container yet
    cdef readonly list containers             # sequence numbers with a good header, ascending
    cdef public uint64_t begin                # set before `run`: records below are not handed out; 0: from the base on
    cdef public uint64_t until                # set before `run`: it ends with the block that reaches this LSN, and looks at no tail; 0: it does not
    cdef public object between                # () called behind each container that is read, None: nothing is; what it raises ends `run`
    cdef readonly uint32_t begin_epoch        # of the block from which records are handed out; 0: there is none
    cdef readonly uint64_t base               # base LSN of the last good block; recovery started there
    cdef readonly uint64_t tail               # LSN at which appending goes on: a sector boundary behind the last good block
    cdef readonly uint64_t last_block         # LSN of the last good block; 0: none
    cdef readonly uint64_t block_end          # behind the last good block; while a block's records are handed out: behind the one before
    cdef readonly uint32_t epoch              # of the last good block
    cdef readonly uint64_t hint               # highest durable hint near the end: below it a fault is damage
    cdef readonly bint clean                  # the last block is that of a clean stop, and nothing follows it
    cdef readonly uint64_t torn_at            # LSN of a torn tail that is to be cut off; 0: none
    cdef readonly list damage                 # Damage records (scan.py): file, offset, lsn, next good lsn, reason
    cdef readonly list unusable               # sequence numbers whose container header does not check, ascending
    cdef readonly uint64_t blocks             # figures: good blocks, records handed out, bytes of containers read
    cdef readonly uint64_t records
    cdef readonly uint64_t bytes_read
    cdef public LogScan before                # set before `run`, which takes the headers of this other reading of the log, unchanged since
    # --- private
    cdef dict _names                          # sequence -> file name, of good and unusable containers
    cdef list _candidates                     # block headers near the end of the log: (lsn, end, epoch, hint, previous, base, flags)
    cdef uint64_t _last                       # LSN of the block that told the base
    cdef uint64_t _proven                     # LSN of the last good block, 0: none; the sector behind it; where the next one would begin; its flags
    cdef uint64_t _behind
    cdef uint64_t _ends_at
    cdef uint32_t _flags
    cdef uint64_t _loaded                     # sequence that `_bytes` holds; 0 = none
    cdef uint8_t *_bytes
    cdef uint64_t _filled                     # bytes of `_bytes` that may not be zero
    # Reads everything from the base on. Raises StoreError for a log that can't be read at all (wrong store, unknown format, a failing read).
    cdef int run(self, scan_record_t on_record, void *context) except -1
    # After `run`: the sector at an LSN; whether nothing but zeros follows it in its container.
    cdef bytes sector(self, uint64_t lsn)
    cdef bint is_last(self, uint64_t lsn) except -1
    cdef int _load(self, uint64_t sequence) except -1
    cdef bint _block_at(self, uint64_t offset, uint64_t lsn, block_t *out) noexcept
    cdef bint _next(self, uint64_t *lsn, uint64_t last, uint32_t epoch, bint any_previous, block_t *out) except -1
    cdef uint64_t _search(self, uint64_t offset, uint64_t start, uint32_t epoch, block_t *out) noexcept
    cdef bint _is_bad(self, block_t *block) noexcept
    cdef int _end(self, uint64_t lsn, uint32_t flags) except -1
    cdef int _note(self, uint64_t lsn, uint64_t upto, str reason) except -1
    cdef uint64_t _resume(self, uint64_t lsn) except? 0
    cdef int _salvage(self, block_t *block, scan_record_t on_record, void *context) except -1

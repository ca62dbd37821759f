# A log with its files: what the store opens, hands to the writer and maintains.
from libc.stdint cimport uint32_t, uint64_t
from flintmq.store.log.file_port cimport FilePort
from flintmq.store.log.log cimport log_t

cdef class ManagedLog:
    cdef log_t *log
    cdef readonly FilePort files
    cdef readonly str directory
    cdef readonly str name
    cdef readonly object store_uuid
    cdef readonly object clock
    cdef bint _unmade                  # its directory is made with its first container
    cdef bint _dead_held               # dead containers must stay until a block of this run is durable
    cdef list _dead                    # sequences of files below the base that still exist, oldest first
    cdef dict _sealed_ms               # sequence -> monotonic ms at which it was sealed
    cdef readonly uint64_t ahead       # containers kept ready in front of the tail
    cdef readonly uint32_t low         # 1: no room for more containers (disk full)
    cdef uint64_t retain_bytes
    cdef uint64_t retain_ms
    cdef readonly object archive       # directory for copies of dead containers, or None
    cdef set _archived                 # sequences of dead containers that have a durable copy there
    cdef object pins                   # callable -> lowest sequence that someone reads, or None
    cdef readonly object reserves               # space.Reserves: what stays free of the disk when a container is made
    cdef readonly uint64_t needed      # containers ready in front of the tail's that are made although the disk is tight
    cdef readonly bint tight           # the disk is nearly full: nothing is kept for readers of the past
    cdef readonly uint64_t keep_from   # what ended at or behind this LSN may be needed still: its container stays
    cdef readonly uint64_t most        # files from the base to the last ready one, beyond which only `needed` ones are made

# Copy-forward: writes the live messages of the oldest container anew, so that the base can pass it.
from libc.stdint cimport uint8_t, uint64_t
from flintmq.store.log.file_port cimport port_read_t
from flintmq.store.logs cimport Logs

cdef struct copied_t:           # the container that is read
    port_read_t read_at
    void *files
    uint8_t *bytes
    uint64_t room               # of `bytes`
    uint64_t sequence
    int fd

# Returns (messages copied, bytes written); the container is empty of live messages then, unless a message could not be read.
cpdef tuple copy_container(Logs logs, uint64_t sequence)

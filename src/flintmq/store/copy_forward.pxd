# Copy-forward: writes the live messages of the oldest container anew, so that the base can pass it.
from libc.stdint cimport uint64_t

cdef enum:
    FEW = 16                    # live messages of a container that are read one by one

# Returns (messages copied, bytes written); the container is empty of live messages then, unless a message could not be read.
cpdef tuple copy_container(object store_object, unsigned long long sequence)

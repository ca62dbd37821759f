# What the queue core and the disk do to a store's cold reader, for tests that have no consumers.
from flintmq.store.log_store cimport LogStore

cdef class LoaderDriver:
    cdef readonly LogStore store

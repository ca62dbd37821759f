# Small tables of the core by themselves: see tables.py.
from flintmq.core.hash64 cimport map64_t
from flintmq.queue.owner_ids cimport owner_ids_t

cdef class Map64:
    cdef map64_t map

cdef class OwnerIds:
    cdef owner_ids_t ids

# A content for Python: its bytes where they lie, with one counted reference.
from flintmq.core.content cimport content_t

cdef class ContentView:
    cdef content_t *content           # one reference of its own; NULL: made by Python's own constructor
    cdef readonly bytes exchange
    cdef readonly bytes routing_key
    cdef readonly bytes header        # content header payload

# Takes over the caller's reference.
cdef ContentView content_view(content_t *content)

# Connections that have not opened a virtual host yet. Compiled, as every connection comes here twice.

cdef class Pending:
    cdef dict _sources            # source -> its connections, in the order they came
    cdef dict _source_of          # connection -> source

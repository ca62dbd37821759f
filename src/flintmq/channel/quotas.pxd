# How many connections, channels and consumers each user and each virtual host has. Compiled, as every connection comes here four times.

cdef class Quotas:
    cdef dict _set                # (kind, name) -> {limit: number}, as the operator set them
    cdef object _user_count
    cdef double _share            # of the node's connections that one user may have
    cdef dict _most               # limit of a user that the operator set none for
    cdef object _lock
    cdef dict _of_vhosts          # name -> its connections; who has none is not in it
    cdef dict _of_users           # CONNECTIONS, CHANNELS, CONSUMERS -> name -> number
    cdef object _take(self, str limit, object user)
    cdef long _reached(self, object user, str limit, long default, long own) except -2

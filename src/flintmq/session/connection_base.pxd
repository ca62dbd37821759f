# What a connection is apart from its consumers (connection.pxd): output, phases, publishes.
from libc.stdint cimport uint16_t, uint32_t
from flintmq.queue.log_port cimport LogPort
from flintmq.session.types cimport channel_t, connection_t

cdef class ConnectionBase:
    cdef connection_t connection
    cdef public object handler          # session.handlers.ConnectionHandler
    cdef public object peer             # what the listener knows of the peer
    cdef uint32_t table_depth_max
    cdef uint32_t table_fields_max
    cdef LogPort log                    # whose LSNs the confirms wait for, or None
    cdef readonly dict committing       # channel number -> its Transactions that wait for the log, oldest first
    cpdef object write_method(self, uint16_t number, bytes payload)
    cdef channel_t *channel(self, uint16_t number) except NULL
    cdef void _check_generation(self, channel_t *channel)
    # SLOW_RESOLVE: asks the routing table for the publish under way. False: the exchange is gone, go the long way.
    cdef bint resolve_route(self) except -1

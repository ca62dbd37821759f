# A publish that asks for a time of its own: from the message path to Python and back.
from libc.stdint cimport int64_t
from flintmq.channel.connection cimport Connection

# Puts the waiting message of the channel on the schedule that the connection knows (or into its transaction). True when a policy pass is due.
cdef bint timed_accept(Connection connection, int number, int64_t due_ms) except -1

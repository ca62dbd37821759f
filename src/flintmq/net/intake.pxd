# Which sockets of a loop are read, and when: see intake.py. The loop's thread only.
from flintmq.net.sockets cimport io_t, socket_t

# Looks at alarms and pressure after a publisher was read. False: it was paused, and must be told (LOOP_BLOCKED).
cdef bint intake_may_publish(io_t *io, socket_t *entry) noexcept nogil
# Once a pass: sets and clears io_t.alarm.
cdef void intake_look(io_t *io) noexcept nogil
# Nothing may hold it back any more: it is read, or gets a turn for what was read already.
cdef void intake_let_go(io_t *io, socket_t *entry) noexcept nogil
# The output of a connection that was not read because of it is sent.
cdef void intake_ask_on(io_t *io, socket_t *entry) noexcept nogil
# It waits for its turn among the fresh or the heavy ones.
cdef void intake_queue_turn(io_t *io, socket_t *entry) noexcept nogil
# Its turn was used up: for a while it counts as heavy.
cdef void intake_make_heavy(io_t *io, socket_t *entry) noexcept nogil

# Births and ends of actor systems for scenes and loads.
from flintmq.scheduler.actor cimport actor_system_t
from flintmq.scheduler.system cimport ActorSystem

cdef ActorSystem make_system(str policy, int workers, object mailbox_max)
# From a virtual thread: asks all threads of the system to end.
cdef void stop_system(actor_system_t *system) noexcept nogil
# When they ended (or, with real threads, ends them): what waits is answered CLOSED.
cdef object stop_threads(ActorSystem system)
# After a failed run: never looked at again.
cdef object forget_system(ActorSystem system)

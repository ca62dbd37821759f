# One seed = one interleaving, from the birth of an actor system to its end.
from flintmq.actor_sim.scene cimport scene_t

# Stops the system from within a virtual thread, or from outside of all.
cdef void scene_stop(scene_t *scene) noexcept nogil

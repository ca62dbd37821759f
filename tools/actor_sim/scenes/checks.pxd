# The properties, looked at while the scheduler runs. Each failure text begins with the property's number in docs/FAIRNESS.md.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from flintmq.actor_sim.scene cimport ask_t, scene_t
from flintmq.scheduler.actor cimport actor_t

# From inside of process(), at its beginning and end.
cdef void check_enter(scene_t *scene, actor_t *actor, ask_t *ask) noexcept nogil
cdef void check_leave(scene_t *scene, actor_t *actor, ask_t *ask, int result) noexcept nogil
# In answer().
cdef void check_answer(scene_t *scene, ask_t *ask) noexcept nogil
# At any moment: heap, state words, lists. Looks only at what no thread has locked.
cdef void check_moment(scene_t *scene) noexcept nogil
# Nobody can run before the clock moves: nothing may be left undone.
cdef void check_quiet(scene_t *scene, int64_t now) noexcept nogil
# The system was stopped and every thread ended.
cdef void check_end(scene_t *scene) noexcept nogil

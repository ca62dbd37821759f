# The simulator (sim.h) for compiled scenes, and its Python face in runtime.py.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:  # sim.h is included first in every module (build.sh)
    ctypedef struct sim_site_t:
        const char *function
        int line
        int kind
        int number
        int mutation
        uint64_t passed
        uint64_t left
        sim_site_t *next
    ctypedef struct sim_options_t:
        uint64_t seed
        int plan
        int switch_in_1024
        int changes
        int changes_within
        int jump_in_1024
        int64_t jump_ns
        int64_t tick_ns
        int access_in_64k
        int cores
        uint64_t sites_max
    ctypedef void (*sim_body)(void *) noexcept nogil
    enum: SIM_WALK
    enum: SIM_PRIORITY
    enum: SIM_ROUND
    enum: SIM_SIMULATED
    enum: SIM_ENDED
    enum: SIM_QUIET
    enum: SIM_STUCK
    enum: SIM_FAILED
    void sim_begin(const sim_options_t *options) noexcept nogil
    int sim_spawn(sim_body body, void *context) noexcept nogil
    int sim_run(int64_t until_ns) noexcept nogil
    int64_t sim_now() noexcept nogil
    int sim_self() noexcept nogil
    int sim_alive() noexcept nogil
    int sim_locked() noexcept nogil
    uint64_t sim_random() noexcept nogil
    uint64_t sim_switches() noexcept nogil
    uint64_t sim_sites_passed() noexcept nogil
    void sim_spend(int64_t ns) noexcept nogil
    void sim_burn(int64_t ns) noexcept nogil
    int64_t sim_next() noexcept nogil
    int64_t sim_end() noexcept nogil
    void sim_catch_crashes() noexcept nogil
    void sim_fail_allocations(uint64_t every) noexcept nogil
    void sim_wait(int64_t ns) noexcept nogil
    void sim_fail(const char *text) noexcept nogil
    const char *sim_failure() noexcept nogil
    void sim_abandon() noexcept nogil
    sim_site_t *sim_sites() noexcept nogil
    void sim_clear_counts() noexcept nogil
    void sim_tracing(int on) noexcept nogil
    int sim_trace(int *threads, sim_site_t **sites, int64_t *times, int room) noexcept nogil

# Fills `options` for a randomised run: the plan and its strength come from the seed, too.
cdef void sim_vary(sim_options_t *options, uint64_t seed) noexcept nogil

/* The few calls of sim.h that the load uses, on real threads and clocks. Included first in every module of the plain build. */
#ifndef ACTOR_PLAIN_H
#define ACTOR_PLAIN_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <stdint.h>
#include <time.h>
static inline int64_t plain_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline int64_t sim_now(void) { return plain_clock(CLOCK_MONOTONIC); }
/* Works for `ns` of this thread's CPU time. */
static inline void sim_spend(int64_t ns) {
    int64_t end = plain_clock(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (plain_clock(CLOCK_THREAD_CPUTIME_ID) < end)
        for (volatile int i = 0; i < 200; i++) { }
}
static inline void sim_wait(int64_t ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    if (ns > 0) nanosleep(&t, 0);
}
enum { SIM_ROUND = 2, SIM_SIMULATED = 0 };
typedef struct sim_options { uint64_t seed; int plan; int cores; } sim_options_t;
typedef void (*sim_body)(void *);
static inline void sim_begin(const sim_options_t *options) { (void)options; }
static inline int sim_spawn(sim_body body, void *context) { (void)body; (void)context; return 0; }
static inline int sim_run(int64_t until_ns) { int64_t now = sim_now(); sim_wait(until_ns - now); return 0; }
static inline void sim_abandon(void) { }
static inline int64_t sim_end(void) { return 0; }
#endif

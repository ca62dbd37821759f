/* Deterministic simulation of threads: what the scheduler's C code is compiled against instead of the machine's primitives.
 *
 * The build of tools/actor_sim includes this file first in every module (`-include sim.h`). It takes the place of core/atomics.pxd,
 * core/futex.pxd and core/clock.pxd (their include guards are defined here) and of the few libc calls that block or read a clock.
 * So the real scheduler runs on virtual threads (coroutines on one OS thread): each atomic operation, lock, futex call and clock
 * reading is a *site*, at which the simulator may switch to another virtual thread, chosen by a seed.
 *
 * Between two sites, plain loads and stores may be switch points, too: the scheduler's modules are compiled with -fsanitize=thread, whose
 * calls (__tsan_read8 and so on) end in the simulator instead of a sanitizer. So a lock that is not taken is seen.
 *
 * Invariants: one virtual thread runs at a time; a switch happens only at a site or such an access; the same seed and build give the same run.
 * Sites carry the function's name and line, so that coverage is counted and a *mutant* (one operation made wrong) has a name.
 */
#ifndef ACTOR_SIM_H
#define ACTOR_SIM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define FLINTMQ_ATOMICS_H
#define FLINTMQ_FUTEX_H
#define FLINTMQ_CLOCK_H
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum sim_kind { SIM_LOAD, SIM_STORE, SIM_CAS, SIM_ADD, SIM_SWAP, SIM_LOCK, SIM_UNLOCK, SIM_WAIT, SIM_WAKE, SIM_CLOCK, SIM_YIELD, SIM_SLEEP, SIM_KINDS };
/* What a mutated site does wrong. */
enum sim_mutation {
    SIM_RIGHT,
    SIM_TORN,    /* read, let others run, write: no longer atomic */
    SIM_FORCED,  /* a compare-and-swap that always swaps and says it did */
    SIM_SKIPPED  /* the write, lock or wake does not happen */
};

typedef struct sim_site {
    const char *function;
    int line;
    int kind;
    int number;      /* from 1 in order of first use; 0: not used yet */
    int mutation;
    uint64_t passed; /* how often */
    uint64_t left;   /* how often another thread ran next */
    struct sim_site *next;
} sim_site_t;

/* Whether the site is that mutant. */
int sim_is(const sim_site_t *site, int mutation);
/* Called before the operation of every site. */
void sim_point(sim_site_t *site);
/* For torn operations: a switch between the two halves. */
void sim_gap(void);
void sim_lock(sim_site_t *site, uint32_t *lock);
void sim_unlock(sim_site_t *site, uint32_t *lock);
void sim_futex_wait(sim_site_t *site, uint32_t *word, uint32_t seen, int64_t ns);
void sim_futex_wake(sim_site_t *site, uint32_t *word, int count);
void sim_sleep(sim_site_t *site, uint64_t ns);
int sim_clock(sim_site_t *site, clockid_t clock, struct timespec *out);

#define SIM_SITE(kind) static sim_site_t sim_site_ = {__func__, __LINE__, kind, 0, 0, 0, 0, 0}

#define at_yield() ({ SIM_SITE(SIM_YIELD); sim_point(&sim_site_); })
/* The accesses themselves, out of the reach of the sanitizer's calls: nobody runs in the middle of an atomic operation. */
uintptr_t sim_read(const void *p, unsigned size);
void sim_write(void *p, unsigned size, uintptr_t value);
#define SIM_READ(type, p) ((type)sim_read(p, sizeof(type)))
#define SIM_WRITE(type, p, v) sim_write(p, sizeof(type), (uintptr_t)(v))
#define SIM_LOADING(type, p) ({ SIM_SITE(SIM_LOAD); sim_point(&sim_site_); SIM_READ(type, p); })
#define SIM_STORING(type, p, v) ({ SIM_SITE(SIM_STORE); type sim_v_ = (type)(v); sim_point(&sim_site_); \
    if (!sim_is(&sim_site_, SIM_SKIPPED)) SIM_WRITE(type, p, sim_v_); (void)0; })
#define SIM_CASING(type, p, e, w) ({ SIM_SITE(SIM_CAS); void *sim_p_ = (p); \
    type sim_e_ = (type)(e), sim_w_ = (type)(w); int sim_r_; sim_point(&sim_site_); \
    sim_r_ = SIM_READ(type, sim_p_) == sim_e_; \
    if (sim_is(&sim_site_, SIM_TORN)) sim_gap(); else if (sim_is(&sim_site_, SIM_FORCED)) sim_r_ = 1; \
    if (sim_r_) SIM_WRITE(type, sim_p_, sim_w_); sim_r_; })
#define SIM_ADDING(type, p, v) ({ SIM_SITE(SIM_ADD); void *sim_p_ = (p); type sim_v_ = (type)(v), sim_o_; \
    sim_point(&sim_site_); sim_o_ = SIM_READ(type, sim_p_); if (sim_is(&sim_site_, SIM_TORN)) sim_gap(); \
    if (!sim_is(&sim_site_, SIM_SKIPPED)) SIM_WRITE(type, sim_p_, (type)(sim_o_ + sim_v_)); sim_o_; })
#define SIM_SWAPPING(type, p, v) ({ SIM_SITE(SIM_SWAP); void *sim_p_ = (p); type sim_v_ = (type)(v), sim_o_; \
    sim_point(&sim_site_); sim_o_ = SIM_READ(type, sim_p_); if (sim_is(&sim_site_, SIM_TORN)) sim_gap(); \
    if (!sim_is(&sim_site_, SIM_SKIPPED)) SIM_WRITE(type, sim_p_, sim_v_); sim_o_; })

#define at_load64(p) SIM_LOADING(uint64_t, p)
#define at_load32(p) SIM_LOADING(uint32_t, p)
#define at_load_ptr(p) SIM_LOADING(voidp_sim, p)
#define at_store64(p, v) SIM_STORING(uint64_t, p, v)
#define at_store32(p, v) SIM_STORING(uint32_t, p, v)
#define at_store_ptr(p, v) SIM_STORING(voidp_sim, p, v)
#define at_cas64(p, e, w) SIM_CASING(uint64_t, p, e, w)
#define at_cas32(p, e, w) SIM_CASING(uint32_t, p, e, w)
#define at_cas_ptr(p, e, w) SIM_CASING(voidp_sim, p, e, w)
#define at_add64(p, v) SIM_ADDING(uint64_t, p, v)
#define at_add32(p, v) SIM_ADDING(uint32_t, p, v)
#define at_sub64(p, v) SIM_ADDING(uint64_t, p, 0 - (uint64_t)(v))
#define at_sub32(p, v) SIM_ADDING(uint32_t, p, 0 - (uint32_t)(v))
#define at_swap32(p, v) SIM_SWAPPING(uint32_t, p, v)
#define at_swap_ptr(p, v) SIM_SWAPPING(voidp_sim, p, v)
typedef void *voidp_sim;

#define spin_lock(p) ({ SIM_SITE(SIM_LOCK); sim_lock(&sim_site_, p); })
#define spin_unlock(p) ({ SIM_SITE(SIM_UNLOCK); sim_unlock(&sim_site_, p); })
#define futex_wait(word, seen, ms) ({ SIM_SITE(SIM_WAIT); \
    sim_futex_wait(&sim_site_, word, seen, (ms) < 0 ? (int64_t)-1 : (int64_t)(ms) * 1000000); })
#define futex_wake(word, count) ({ SIM_SITE(SIM_WAKE); sim_futex_wake(&sim_site_, word, count); })

#define clock_gettime(clock, out) ({ SIM_SITE(SIM_CLOCK); sim_clock(&sim_site_, clock, out); })
#define usleep(us) ({ SIM_SITE(SIM_SLEEP); sim_sleep(&sim_site_, (uint64_t)(us) * 1000); 0; })
#define sched_yield() ({ SIM_SITE(SIM_YIELD); sim_point(&sim_site_); 0; })

/* Memory given back is overwritten and kept until the run ends: a later write is found, a later read finds nonsense. */
void sim_free(void *memory);
void *sim_calloc(size_t count, size_t size);
void *sim_malloc(size_t size);
void *sim_realloc(void *memory, size_t size);
#ifndef ACTOR_SIM_ITSELF
#define free(p) sim_free(p)
#define calloc(n, s) sim_calloc(n, s)
#define malloc(s) sim_malloc(s)
#define realloc(p, s) sim_realloc(p, s)
#endif

static inline int64_t sim_clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
#define wall_ms() (sim_clock_ns(CLOCK_REALTIME) / 1000000)
#define monotonic_ms() (sim_clock_ns(CLOCK_MONOTONIC) / 1000000)
#define monotonic_ns() sim_clock_ns(CLOCK_MONOTONIC)
#define wall_us() ((uint64_t)(sim_clock_ns(CLOCK_REALTIME) / 1000))

/* --- for the scenes that drive the simulation ------------------------------------------------------------------------------ */

enum { SIM_THREADS_MAX = 64, SIM_TRACE = 4096 };
enum sim_plan { SIM_WALK, SIM_PRIORITY, SIM_ROUND };

typedef struct sim_options {
    uint64_t seed;
    int plan;              /* SIM_WALK: at each site, switch with probability switch_in_1024 to any runnable thread;
                              SIM_PRIORITY: the highest priority runs, priorities change at `changes` random sites;
                              SIM_ROUND: no switch at sites, only where a thread blocks (simulated time) */
    int switch_in_1024;
    int changes;
    int changes_within;    /* the changes fall within this many first sites */
    int jump_in_1024;      /* probability at a site that the clock jumps, although threads can run */
    int64_t jump_ns;       /* by up to this much */
    int64_t tick_ns;       /* the clock moves this much at every reading */
    int access_in_64k;     /* SIM_WALK, SIM_PRIORITY: probability of a switch at every plain load and store of the scheduler's modules,
                              which are compiled with the calls of a thread sanitizer; 0: only at sites */
    int cores;             /* sim_spend: so many threads spend at once, in slices of 1 ms; who has used least comes first, as
                              with the Linux scheduler; 0: no bound */
    uint64_t sites_max;    /* more than this: the run is stuck (livelock) */
} sim_options_t;

enum { SIM_SIMULATED = 1 };
typedef void (*sim_body)(void *);

void sim_begin(const sim_options_t *options);
/* A new virtual thread; returns its number, from 1. It runs at the next switch. */
int sim_spawn(sim_body body, void *context);
/* Only from outside of virtual threads: runs until every thread ended, or nobody can run before `until_ns`, or the run is stuck.
   Returns SIM_ENDED.. below. */
enum { SIM_ENDED, SIM_QUIET, SIM_STUCK, SIM_FAILED };
int sim_run(int64_t until_ns);
int64_t sim_now(void);
/* When the next sleeping thread is due; INT64_MAX: never. */
int64_t sim_next(void);
/* Ends the run: memory that was given back is looked at. Returns allocations minus frees since sim_begin; a write into freed memory
   is told by sim_fail. */
int64_t sim_end(void);
/* At a crash (SIGSEGV and the like) the seed is printed. */
void sim_catch_crashes(void);
/* Every n-th allocation fails from now on; 0: none. */
void sim_fail_allocations(uint64_t every);
int sim_self(void);
int sim_alive(void);
/* Threads that wait for a spin lock. */
int sim_locked(void);
uint64_t sim_random(void);
uint64_t sim_switches(void);
uint64_t sim_sites_passed(void);
/* Busy for `ns` of simulated CPU time of the calling virtual thread. */
void sim_spend(int64_t ns);
/* The same on a machine with one core: the clock moves on for everybody, nobody else runs meanwhile, then anybody may. */
void sim_burn(int64_t ns);
/* Waits `ns` (I/O): no CPU time is charged to the thread. */
void sim_wait(int64_t ns);
/* A property is broken: the run stops at once. The text must outlive the run. */
void sim_fail(const char *text);
const char *sim_failure(void);
/* Drops all virtual threads (as after a failed run). */
void sim_abandon(void);
sim_site_t *sim_sites(void);
void sim_clear_counts(void);
void sim_tracing(int on);
/* The last sites passed, oldest first: thread and site; returns how many. */
int sim_trace(int *threads, sim_site_t **sites, int64_t *times, int room);
#endif

/* Virtual threads and their scheduler; see sim.h. One OS thread; stacks are kept and used again. */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE 1
#define ACTOR_SIM_ITSELF
#include "sim.h"
#undef clock_gettime
#undef usleep
#undef sched_yield
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK_BYTES = 256 * 1024 };
enum state { FREE, READY, ON_LOCK, ON_WORD, ASLEEP, ON_CORE };

typedef struct thread {
    jmp_buf place;
    ucontext_t birth;
    char *stack;
    int started;
    int state;
    uint32_t *word;     /* ON_LOCK, ON_WORD */
    int64_t wake_ns;    /* ON_WORD, ASLEEP; INT64_MAX: no end */
    int64_t cpu_ns;
    int64_t used_ns;    /* ON_CORE: CPU time, never far behind the others' */
    uint64_t priority;
    sim_body body;
    void *context;
} thread_t;

static thread_t threads[SIM_THREADS_MAX + 1]; /* 0 is the caller of sim_run */
static int top;                               /* highest number in use */
static int current;                           /* 0: outside */
static jmp_buf outside;
static int64_t now_ns, until;
static uint64_t random_state, switched, passed, site_limit;
static sim_options_t options;
static uint64_t change_at[16];
static int verdict;
static const char *failure;
static sim_site_t *sites, **sites_end = &sites;
static int sites_count;
static int tracing;
static struct { int thread; sim_site_t *site; int64_t time; } trace[SIM_TRACE];
static uint64_t trace_count;
static int64_t allocated;

uint64_t sim_random(void) {
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t sim_now(void) { return now_ns; }
int sim_self(void) { return current; }
uint64_t sim_switches(void) { return switched; }
uint64_t sim_sites_passed(void) { return passed; }
const char *sim_failure(void) { return failure; }
sim_site_t *sim_sites(void) { return sites; }
void sim_tracing(int on) { tracing = on; }

int sim_alive(void) {
    int count = 0;
    for (int i = 1; i <= top; i++) count += threads[i].state != FREE;
    return count;
}

int sim_locked(void) {
    int count = 0;
    for (int i = 1; i <= top; i++) count += threads[i].state == ON_LOCK;
    return count;
}

void sim_clear_counts(void) {
    for (sim_site_t *s = sites; s; s = s->next) s->passed = s->left = 0;
}

int sim_trace(int *out_threads, sim_site_t **out_sites, int64_t *out_times, int room) {
    uint64_t have = trace_count < SIM_TRACE ? trace_count : SIM_TRACE;
    int count = have < (uint64_t)room ? (int)have : room;
    for (int i = 0; i < count; i++) {
        uint64_t at = (trace_count - count + i) % SIM_TRACE;
        out_threads[i] = trace[at].thread; out_sites[i] = trace[at].site; out_times[i] = trace[at].time;
    }
    return count;
}

/* The next thread to run, or 0 when sim_run must look at the time. */
static int choose(int keep) {
    int ready[SIM_THREADS_MAX], count = 0;
    for (int i = 1; i <= top; i++) if (threads[i].state == READY) ready[count++] = i;
    if (!count) return 0;
    if (options.plan == SIM_PRIORITY) {
        int best = ready[0];
        for (int i = 1; i < count; i++) if (threads[ready[i]].priority > threads[best].priority) best = ready[i];
        return best;
    }
    if (options.plan == SIM_ROUND) {
        if (keep && threads[keep].state == READY) return keep;
        for (int i = 0; i < count; i++) if (ready[i] > current) return ready[i];
        return ready[0];
    }
    return ready[count == 1 ? 0 : sim_random() % count];
}

static void body_loop(void) {
    for (;;) {
        thread_t *self = &threads[current];
        self->body(self->context);
        self->state = FREE;
        if (!_setjmp(self->place)) _longjmp(outside, 1);
    }
}

static void enter(int number) {
    thread_t *t = &threads[number];
    current = number;
    if (t->started) _longjmp(t->place, 1);
    t->started = 1;
    setcontext(&t->birth);
}

/* Leaves the current thread: to `number`, or outside when 0. Comes back when it is chosen again. */
static void leave(int number) {
    if (number == current) return;
    switched++;
    if (_setjmp(threads[current].place)) return;
    if (!number) { _longjmp(outside, 1); }
    enter(number);
}

static void stop(int why) {
    verdict = why;
    if (!_setjmp(threads[current].place)) _longjmp(outside, 1);
}

static void note(sim_site_t *site) {
    if (!site->number) {
        site->number = ++sites_count;
        *sites_end = site;
        sites_end = &site->next;
    }
    site->passed++;
    if (tracing) {
        uint64_t at = trace_count++ % SIM_TRACE;
        trace[at].thread = current; trace[at].site = site; trace[at].time = now_ns;
    }
}

static void expire(void) {
    for (int i = 1; i <= top; i++)
        if ((threads[i].state == ASLEEP || threads[i].state == ON_WORD) && threads[i].wake_ns <= now_ns) threads[i].state = READY;
}

static void consider(sim_site_t *site) {
    if (++passed > site_limit) { stop(SIM_STUCK); return; }
    if (options.jump_in_1024 && (int)(sim_random() & 1023) < options.jump_in_1024) {
        now_ns += (int64_t)(sim_random() % (uint64_t)(options.jump_ns + 1));
        expire();
    }
    int next = current;
    if (options.plan == SIM_WALK) {
        if ((int)(sim_random() & 1023) < options.switch_in_1024) next = choose(0);
    } else if (options.plan == SIM_PRIORITY) {
        for (int i = 0; i < options.changes; i++)
            if (change_at[i] == passed) threads[current].priority = (uint64_t)i; /* below every first priority */
        next = choose(0);
    }
    if (next != current) { if (site) site->left++; leave(next); }
}

void sim_point(sim_site_t *site) {
    if (!current) return; /* the main program, outside of the simulation */
    note(site);
    consider(site);
}

/* --- plain loads and stores, as the compiler's thread sanitizer reports them ------------------------------------------------- */

static sim_site_t access_site = {"access", 0, SIM_YIELD, 0, 0, 0, 0, 0};

static void access_point(void) {
    if (!current || !options.access_in_64k) return;
    if ((int)(sim_random() & 65535) >= options.access_in_64k) return;
    note(&access_site);
    if (++passed > site_limit) { stop(SIM_STUCK); return; }
    if (options.plan == SIM_PRIORITY) threads[current].priority = sim_random() & 1023; /* one more change of priorities */
    int next = choose(0);
    if (next != current) { access_site.left++; leave(next); }
}

#define ACCESS(name) void name(void *address); void name(void *address) { (void)address; access_point(); }
ACCESS(__tsan_read1) ACCESS(__tsan_read2) ACCESS(__tsan_read4) ACCESS(__tsan_read8) ACCESS(__tsan_read16)
ACCESS(__tsan_write1) ACCESS(__tsan_write2) ACCESS(__tsan_write4) ACCESS(__tsan_write8) ACCESS(__tsan_write16)
ACCESS(__tsan_unaligned_read2) ACCESS(__tsan_unaligned_read4) ACCESS(__tsan_unaligned_read8) ACCESS(__tsan_unaligned_read16)
ACCESS(__tsan_unaligned_write2) ACCESS(__tsan_unaligned_write4) ACCESS(__tsan_unaligned_write8) ACCESS(__tsan_unaligned_write16)
#define RANGE(name) void name(void *address, size_t size); void name(void *address, size_t size) { (void)address; (void)size; access_point(); }
RANGE(__tsan_read_range) RANGE(__tsan_write_range)
void __tsan_init(void); void __tsan_init(void) { }
void __tsan_func_entry(void *from); void __tsan_func_entry(void *from) { (void)from; }
void __tsan_func_exit(void); void __tsan_func_exit(void) { }

int sim_is(const sim_site_t *site, int mutation) { return site->mutation == mutation; }

uintptr_t sim_read(const void *p, unsigned size) {
    return size == 8 ? *(const volatile uint64_t *)p : size == 4 ? *(const volatile uint32_t *)p : (abort(), 0);
}

void sim_write(void *p, unsigned size, uintptr_t value) {
    if (size == 8) *(volatile uint64_t *)p = value;
    else if (size == 4) *(volatile uint32_t *)p = (uint32_t)value;
    else abort();
}

void sim_gap(void) {
    if (!current) return;
    /* A torn operation must be seen torn: others run here more often than elsewhere. */
    if (options.plan == SIM_WALK && (sim_random() & 1)) { passed++; leave(choose(0)); } else consider(0);
}

static void block(int state, uint32_t *word, int64_t wake_ns) {
    thread_t *t = &threads[current];
    t->state = state; t->word = word; t->wake_ns = wake_ns;
    leave(choose(0));
}

void sim_lock(sim_site_t *site, uint32_t *lock) {
    if (!current) { *lock = 1; return; }
    note(site);
    consider(site);
    if (site->mutation == SIM_SKIPPED) return;
    while (*lock) { site->left++; block(ON_LOCK, lock, INT64_MAX); }
    *lock = 1;
}

void sim_unlock(sim_site_t *site, uint32_t *lock) {
    if (!current) { *lock = 0; return; }
    note(site);
    consider(site);
    *lock = 0;
    for (int i = 1; i <= top; i++) if (threads[i].state == ON_LOCK && threads[i].word == lock) threads[i].state = READY;
}

void sim_futex_wait(sim_site_t *site, uint32_t *word, uint32_t seen, int64_t ns) {
    if (!current) return;
    note(site);
    consider(site);
    if (*(volatile uint32_t *)word != seen && site->mutation != SIM_FORCED) return;
    if (ns == 0) return;
    block(ON_WORD, word, ns < 0 ? INT64_MAX : now_ns + ns);
}

void sim_futex_wake(sim_site_t *site, uint32_t *word, int count) {
    if (current) { note(site); consider(site); }
    if (site->mutation == SIM_SKIPPED) return;
    int first = top ? 1 + (int)(sim_random() % (uint64_t)top) : 1; /* the kernel promises no order */
    for (int k = 0; k < top && count > 0; k++) {
        int i = 1 + (first - 1 + k) % top;
        if (threads[i].state == ON_WORD && threads[i].word == word) { threads[i].state = READY; count--; }
    }
}

void sim_sleep(sim_site_t *site, uint64_t ns) {
    if (!current) return;
    note(site);
    block(ASLEEP, 0, now_ns + (int64_t)(ns ? ns : 1));
}

void sim_wait(int64_t ns) { if (current && ns > 0) block(ASLEEP, 0, now_ns + ns); }

static int cores_free;
static int64_t least_used_ns;

/* Gives the core to who has used least, or back. */
static void leave_core(void) {
    thread_t *next = 0;
    for (int i = 1; i <= top; i++)
        if (threads[i].state == ON_CORE && (!next || threads[i].used_ns < next->used_ns)) next = &threads[i];
    if (next) {
        next->state = READY;
        if (next->used_ns > least_used_ns) least_used_ns = next->used_ns;
    } else cores_free++;
}

void sim_spend(int64_t ns) {
    if (!current || ns <= 0) return;
    thread_t *t = &threads[current];
    while (ns > 0) {
        int64_t part = options.cores && ns > 1000000 ? 1000000 : ns;
        if (options.cores) {
            if (cores_free) cores_free--;
            else {
                if (t->used_ns < least_used_ns - 3000000) t->used_ns = least_used_ns - 3000000;
                block(ON_CORE, 0, INT64_MAX);
            }
        }
        t->cpu_ns += part;
        t->used_ns += part;
        block(ASLEEP, 0, now_ns + part);
        if (options.cores) leave_core();
        ns -= part;
    }
}

void sim_burn(int64_t ns) {
    if (!current || ns <= 0) return;
    threads[current].cpu_ns += ns;
    now_ns += ns;
    expire();
    consider(0);
}

int64_t sim_next(void) {
    int64_t soonest = INT64_MAX;
    for (int i = 1; i <= top; i++)
        if ((threads[i].state == ASLEEP || threads[i].state == ON_WORD) && threads[i].wake_ns < soonest) soonest = threads[i].wake_ns;
    return soonest;
}

int sim_clock(sim_site_t *site, clockid_t clock, struct timespec *out) {
    if (current) { note(site); consider(site); }
    now_ns += options.tick_ns;
    int64_t value = clock == CLOCK_THREAD_CPUTIME_ID ? threads[current].cpu_ns : now_ns;
    out->tv_sec = value / 1000000000;
    out->tv_nsec = value % 1000000000;
    return 0;
}

void sim_begin(const sim_options_t *wanted) {
    options = *wanted;
    random_state = options.seed * 0x9e3779b97f4a7c15u + 0x1234567;
    now_ns = 1000000000;
    switched = passed = trace_count = 0;
    site_limit = options.sites_max ? options.sites_max : UINT64_MAX;
    failure = 0;
    allocated = 0;
    verdict = SIM_ENDED;
    cores_free = options.cores;
    least_used_ns = 0;
    if (options.changes > 16) options.changes = 16;
    for (int i = 0; i < options.changes; i++) change_at[i] = 1 + sim_random() % (uint64_t)(options.changes_within ? options.changes_within : 1);
    for (int i = 1; i <= top; i++) { threads[i].state = FREE; }
    top = 0;
}

int sim_spawn(sim_body body, void *context) {
    int number = 0;
    for (int i = 1; i <= top && !number; i++) if (threads[i].state == FREE) number = i;
    if (!number) {
        if (top == SIM_THREADS_MAX) abort();
        number = ++top;
    }
    thread_t *t = &threads[number];
    if (!t->stack) {
        t->stack = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
        if (t->stack == MAP_FAILED) abort();
        mprotect(t->stack, 4096, PROT_NONE);
    }
    getcontext(&t->birth);
    t->birth.uc_stack.ss_sp = t->stack;
    t->birth.uc_stack.ss_size = STACK_BYTES;
    t->birth.uc_link = 0;
    makecontext(&t->birth, body_loop, 0);
    t->started = 0;
    t->body = body;
    t->context = context;
    t->cpu_ns = 0;
    t->used_ns = 0;
    t->state = READY;
    t->priority = (sim_random() >> 1) | 1024;
    return number;
}

int sim_run(int64_t until_ns) {
    until = until_ns;
    verdict = SIM_ENDED;
    if (_setjmp(outside)) {
        if (verdict == SIM_STUCK || verdict == SIM_FAILED) { current = 0; return verdict; }
    }
    for (;;) {
        int next = choose(0);
        if (next) { enter(next); }
        current = 0;
        int64_t soonest = INT64_MAX;
        int alive = 0;
        for (int i = 1; i <= top; i++) {
            if (threads[i].state == FREE) continue;
            alive = 1;
            if ((threads[i].state == ASLEEP || threads[i].state == ON_WORD) && threads[i].wake_ns < soonest) soonest = threads[i].wake_ns;
        }
        if (!alive) return SIM_ENDED;
        if (soonest == INT64_MAX || soonest > until) return SIM_QUIET;
        if (soonest > now_ns) now_ns = soonest;
        expire();
    }
}

void sim_fail(const char *text) {
    if (!failure) failure = text;
    if (current) stop(SIM_FAILED);
}

/* --- memory ---------------------------------------------------------------------------------------------------------------- */

enum { KEPT_MAX = 65536 };
static struct { void *memory; size_t size; } kept[KEPT_MAX];
static uint32_t kept_count;
static uint64_t fail_every, allocations;

static int refused(void) { return fail_every && ++allocations % fail_every == 0; }

void sim_fail_allocations(uint64_t every) { fail_every = every; allocations = 0; }

void *sim_calloc(size_t count, size_t size) {
    if (refused()) return 0;
    void *memory = calloc(count, size);
    allocated += memory != 0;
    return memory;
}

void *sim_malloc(size_t size) {
    if (refused()) return 0;
    void *memory = malloc(size);
    allocated += memory != 0;
    if (memory) memset(memory, 0xcd, size);
    return memory;
}

void sim_free(void *memory) {
    if (!memory) return;
    allocated--;
    if (kept_count == KEPT_MAX) { free(memory); return; }
    size_t size = malloc_usable_size(memory);
    for (uint32_t i = 0; i < kept_count; i++) if (kept[i].memory == memory) { sim_fail("memory: freed twice"); return; }
    memset(memory, 0xdd, size);
    kept[kept_count].memory = memory;
    kept[kept_count++].size = size;
}

void *sim_realloc(void *memory, size_t size) { /* always moves, so that old pointers are found */
    if (refused()) return 0;
    void *fresh = malloc(size);
    if (!fresh) return 0;
    allocated++;
    if (memory) {
        size_t old = malloc_usable_size(memory);
        memcpy(fresh, memory, old < size ? old : size);
        sim_free(memory);
    }
    return fresh;
}

int64_t sim_end(void) {
    fail_every = 0;
    for (uint32_t i = 0; i < kept_count; i++) {
        unsigned char *bytes = kept[i].memory;
        for (size_t at = 0; at < kept[i].size; at++) if (bytes[at] != 0xdd) { sim_fail("memory: written after it was freed"); break; }
        free(kept[i].memory);
    }
    kept_count = 0;
    return allocated;
}

static void crashed(int number) {
    char text[128];
    int length = snprintf(text, sizeof text, "simulation: signal %d at seed %llu, site %llu\n", number,
                          (unsigned long long)options.seed, (unsigned long long)passed);
    if (write(2, text, (size_t)length) < 0) { }
    signal(number, SIG_DFL);
    raise(number);
}

static char crash_stack[16384];

void sim_catch_crashes(void) {
    stack_t stack = {.ss_sp = crash_stack, .ss_size = sizeof crash_stack};
    struct sigaction action = {.sa_handler = crashed, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, 0);
    int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    for (int i = 0; i < 5; i++) sigaction(numbers[i], &action, 0);
}

void sim_abandon(void) {
    for (int i = 1; i <= top; i++) threads[i].state = FREE;
    top = 0;
    current = 0;
}

/* LD_PRELOAD shim: the wall clock of one process is as many seconds off as a file says.
 *
 * in:  FLINT_CLOCK_FILE  a file of 8 bytes, a signed number in the machine's byte order (tools/faults/clock_shim.py)
 * out: clock_gettime of the real-time clocks, gettimeofday and time are off; the monotonic clocks are as they were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static volatile const int64_t *seconds = &none;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FLINT_CLOCK_FILE");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) seconds = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (real_clock_gettime == NULL) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime"); /* before the constructor */
    int answer = real_clock_gettime(clock, now);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *seconds;
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone; /* obsolete: the kernel's is zero */
    struct timespec exact;
    int answer = clock_gettime(CLOCK_REALTIME, &exact);
    if (answer == 0) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return answer;
}

time_t time(time_t *now) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return (time_t)-1;
    if (now != NULL) *now = exact.tv_sec;
    return exact.tv_sec;
}

# Checks of invariants: what our own code guarantees, looked at where it would be broken. On in every build.
#
#     check(segment.live > 0, b"entry_list I5 a deleted entry was live", segment.live, index)
#
# The name begins with the module and the label of an invariant in that module's header, then says what is looked at here; no two checks have
# the same name. `tools/checks.py` sees to both. The two numbers are the state that tells most; they are evaluated only when it does not hold.
#
# A check that holds costs a comparison and a branch that is never taken. One that does not writes one line to stderr, in the form of the
# log, with the name, the file, the line and the numbers, then ends the process by SIGABRT, which is what the disk sees of a kill: what was
# confirmed is there after the restart. It allocates nothing, takes no lock and not the GIL. docs/RELIABILITY.md, "Checks".
#
# Nothing that a peer sent and nothing that was read from the disk is checked so: what is wrong with these is answered, or salvaged.
# Python has the same in flintmq/invariant.py.
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_CHECK_H
    #define FLINTMQ_CHECK_H
    #include <poll.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <time.h>
    #include <unistd.h>
    typedef struct { char text[1024]; unsigned used; } flintmq_line_t;

    static void flintmq_line_text(flintmq_line_t *line, const char *text) {
        while (*text && line->used < sizeof line->text - 1) line->text[line->used++] = *text++;
    }
    static void flintmq_line_number(flintmq_line_t *line, uint64_t number, int digits) {
        char turned[24];
        int count = 0;
        do { turned[count++] = (char)('0' + number % 10); number /= 10; } while (number || count < digits);
        while (count && line->used < sizeof line->text - 1) line->text[line->used++] = turned[--count];
    }
    /* The wall clock as the log writes it. gmtime takes a lock, so the date is counted here: years begin in March, 400 of them are an era. */
    static void flintmq_line_time(flintmq_line_t *line) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t second = (uint64_t)now.tv_sec, days = second / 86400 + 719468, era = days / 146097, day = days % 146097;
        uint64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
        uint64_t of_year = day - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;
        flintmq_line_number(line, year + era * 400 + (month >= 10), 4);
        flintmq_line_text(line, "-");
        flintmq_line_number(line, month < 10 ? month + 3 : month - 9, 2);
        flintmq_line_text(line, "-");
        flintmq_line_number(line, of_year - (153 * month + 2) / 5 + 1, 2);
        flintmq_line_text(line, " ");
        flintmq_line_number(line, second / 3600 % 24, 2);
        flintmq_line_text(line, ":");
        flintmq_line_number(line, second / 60 % 60, 2);
        flintmq_line_text(line, ":");
        flintmq_line_number(line, second % 60, 2);
        flintmq_line_text(line, ".");
        flintmq_line_number(line, (uint64_t)now.tv_nsec / 1000000, 3);
        flintmq_line_text(line, "Z");
    }
    __attribute__((cold, noinline, noreturn, unused))
    static void flintmq_check_failed(const char *name, const char *file, int number, uint64_t first, uint64_t second) {
        flintmq_line_t line;
        struct pollfd ready = {2, POLLOUT, 0};
        line.used = 0;
        flintmq_line_time(&line);
        flintmq_line_text(&line, " [CRITICAL] flintmq.check: invariant broken: ");
        flintmq_line_text(&line, name);
        flintmq_line_text(&line, " at ");
        flintmq_line_text(&line, file);
        flintmq_line_text(&line, ":");
        flintmq_line_number(&line, (uint64_t)number, 1);
        flintmq_line_text(&line, ", state ");
        flintmq_line_number(&line, first, 1);
        flintmq_line_text(&line, " ");
        flintmq_line_number(&line, second, 1);
        flintmq_line_text(&line, "; the process ends\\n");
        /* A reader of the log that has stopped reading must not keep a broken process alive. */
        if (poll(&ready, 1, 1000) > 0 && write(2, line.text, line.used) < 0) abort();
        abort();
    }
    #define FLINTMQ_CHECK(holds, name, first, second) \\
        (__builtin_expect(!!(holds), 1) ? (void)0 : flintmq_check_failed((name), __FILE__, __LINE__, (uint64_t)(first), (uint64_t)(second)))
    #endif
    """
    void check "FLINTMQ_CHECK"(bint holds, const char *name, uint64_t first, uint64_t second) noexcept nogil

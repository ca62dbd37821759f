# System calls and byte order helpers of the load generator, callable without the GIL. Linux.
#
# Kept apart from flintmq.net on purpose: the generator checks the broker, so it shares none of its code.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #ifndef FLINTMQ_PERF_NATIVE_H
    #define FLINTMQ_PERF_NATIVE_H
    #include <arpa/inet.h>
    #include <errno.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/epoll.h>
    #include <sys/prctl.h>
    #include <sys/socket.h>
    #include <sys/time.h>
    #include <sys/timerfd.h>
    #include <time.h>
    #include <unistd.h>
    static inline int64_t pf_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    static inline uint16_t pf_get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t pf_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static inline uint64_t pf_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static inline void pf_put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    static inline void pf_digits(uint8_t *at, int width, uint64_t value) {
        while (width--) { at[width] = (uint8_t)('0' + value % 10); value /= 10; }
    }
    static inline int pf_log2(uint64_t v) { return 63 - __builtin_clzll(v); }
    static inline int pf_timer(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC); }
    static inline void pf_timer_at(int fd, int64_t when_ns) {
        struct itimerspec t = {{0, 0}, {when_ns / 1000000000, when_ns % 1000000000}};
        timerfd_settime(fd, TFD_TIMER_ABSTIME, &t, 0);
    }
    /* Wake-ups on time: the default slack of a thread is 50 us, as much as the latency to be measured. */
    static inline void pf_timer_exact(void) { prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0); }
    static inline void pf_sleep(int64_t ns) { struct timespec t = {ns / 1000000000, ns % 1000000000}; nanosleep(&t, 0); }
    /* A connected blocking socket with TCP_NODELAY and a receive timeout, or -1 (errno tells). `host` is a dotted address. */
    static inline int pf_connect(const char *host, int port, int timeout_s) {
        struct sockaddr_in to = {0};
        struct timeval limit = {timeout_s, 0};
        int one = 1, fd;
        to.sin_family = AF_INET;
        to.sin_port = htons((uint16_t)port);
        if (inet_pton(AF_INET, host, &to.sin_addr) != 1) { errno = EINVAL; return -1; }
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) { int e = errno; close(fd); errno = e; return -1; }
        return fd;
    }
    #endif
    """
    int64_t now_ns "pf_now"() noexcept nogil
    uint16_t get16 "pf_get16"(const uint8_t *p) noexcept nogil
    uint32_t get32 "pf_get32"(const uint8_t *p) noexcept nogil
    uint64_t get64 "pf_get64"(const uint8_t *p) noexcept nogil
    void put64 "pf_put64"(uint8_t *p, uint64_t value) noexcept nogil
    void put_digits "pf_digits"(uint8_t *at, int width, uint64_t value) noexcept nogil   # decimal, leading zeros
    int log2_floor "pf_log2"(uint64_t value) noexcept nogil    # value > 0
    int timer_new "pf_timer"() noexcept nogil
    void timer_at "pf_timer_at"(int fd, int64_t when_ns) noexcept nogil
    void timer_exact "pf_timer_exact"() noexcept nogil
    void sleep_ns "pf_sleep"(int64_t ns) noexcept nogil
    int tcp_connect "pf_connect"(const char *host, int port, int timeout_s) noexcept nogil

    cdef enum:
        EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CLOEXEC, MSG_NOSIGNAL, EAGAIN, EINTR
    ctypedef union epoll_data_t:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags) nogil
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event) nogil
    int epoll_wait(int epfd, epoll_event *events, int count, int timeout_ms) nogil
    ssize_t recv(int fd, void *buffer, size_t size, int flags) nogil
    ssize_t send(int fd, const void *buffer, size_t size, int flags) nogil
    ssize_t read_fd "read"(int fd, void *buffer, size_t size) nogil
    int close_fd "close"(int fd) nogil
    int errno

# System calls of the I/O loop, callable without the GIL. Linux: epoll, eventfd.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

cdef extern from "sys/epoll.h" nogil:
    cdef enum:
        EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLET
        EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int count, int timeout_ms)

cdef extern from "sys/eventfd.h" nogil:
    cdef enum:
        EFD_NONBLOCK, EFD_CLOEXEC
    int eventfd(unsigned int initial, int flags)

cdef extern from "sys/socket.h" nogil:
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    cdef enum:
        MSG_NOSIGNAL, MSG_DONTWAIT, MSG_MORE, MSG_PEEK, SHUT_WR
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)
    int shutdown(int fd, int how)
    ctypedef unsigned int socklen_t
    ctypedef unsigned short sa_family_t
    cdef struct sockaddr:
        sa_family_t sa_family
    cdef struct sockaddr_storage:
        pass
    cdef enum:
        SOCK_CLOEXEC, AF_INET
    int accept4(int fd, sockaddr *address, socklen_t *size, int flags)

cdef extern from "netinet/in.h" nogil:
    cdef struct in_addr:
        pass
    cdef struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr

cdef extern from "arpa/inet.h" nogil:
    const char *inet_ntop(int family, const void *source, char *text, socklen_t size)
    uint16_t ntohs(uint16_t number)

cdef extern from "netdb.h" nogil:
    cdef enum:
        NI_NUMERICHOST, NI_NUMERICSERV
    int getnameinfo(const sockaddr *address, socklen_t size, char *host, socklen_t host_size, char *port, socklen_t port_size, int flags)

cdef extern from "unistd.h" nogil:
    ssize_t sys_write "write"(int fd, const void *buffer, size_t size)
    int sys_close "close"(int fd)

cdef extern from "errno.h" nogil:
    int errno
    cdef enum:
        EAGAIN, EINTR, ECONNABORTED

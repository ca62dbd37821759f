"""A connection's socket, and the run queue of connections that have work for their consumers (see sockets.pxd)."""

from __future__ import annotations

import os

import cython
from cython import NULL, address, bint, cast, cclass, char, declare, p_char, p_void, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_add32, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import out_release, out_trim
from cython.cimports.flintmq.core.memory_account import MEMORY_INPUT, memory_add
from cython.cimports.flintmq.net.sysio import (
    AF_INET,
    EAGAIN,
    ECONNABORTED,
    EINTR,
    EPOLL_CTL_MOD,
    EPOLLIN,
    NI_NUMERICHOST,
    NI_NUMERICSERV,
    SOCK_CLOEXEC,
    accept4,
    epoll_ctl,
    epoll_event,
    errno,
    getnameinfo,
    inet_ntop,
    ntohs,
    sockaddr,
    sockaddr_in,
    sockaddr_storage,
    socklen_t,
    sys_close,
    sys_write,
)
from cython.cimports.flintmq.session.types import connection_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy, memset

# bytes of an unfinished frame's buffer that an idle connection may keep
REST_KEPT = declare(uint32_t, 4096)


def run_queue_push(queue: pointer[run_queue_t], connection: pointer[connection_t]) -> void:
    connection.next_run = NULL
    spin_lock(address(queue.lock))
    if queue.first == NULL:
        queue.first = connection
    else:
        queue.last.next_run = connection
    queue.last = connection
    spin_unlock(address(queue.lock))


def connection_schedule(connection: pointer[connection_t]) -> void:
    """Step 6 of seed 004: the connection joins its loop's run queue. Any thread; `scheduled` was won by the caller."""
    queue: pointer[run_queue_t] = cast(pointer[socket_t], connection.loop).run_queue
    run_queue_push(queue, connection)
    loop_wake(queue)


def run_queue_pop(queue: pointer[run_queue_t]) -> pointer[connection_t]:
    connection: pointer[connection_t]
    spin_lock(address(queue.lock))
    connection = queue.first
    if connection != NULL:
        queue.first = connection.next_run
    spin_unlock(address(queue.lock))
    return connection


def run_queue_forget(queue: pointer[run_queue_t], connection: pointer[connection_t]) -> void:
    """Takes a connection that ends off the run queue."""
    at: pointer[connection_t]
    before: pointer[connection_t] = NULL
    spin_lock(address(queue.lock))
    at = queue.first
    while at != NULL and at != connection:
        before = at
        at = at.next_run
    if at == connection:
        if before == NULL:
            queue.first = connection.next_run
        else:
            before.next_run = connection.next_run
        if queue.last == connection:
            queue.last = before
    spin_unlock(address(queue.lock))


def loop_wake(queue: pointer[run_queue_t]) -> void:
    one: uint64_t = 1
    # Pairs with the at_swap32 before epoll_wait: the loop says it sleeps, then looks once more at all that can wake it.
    if at_swap32(address(queue.sleeping), 0):
        sys_write(queue.wake, address(one), 8)


def loop_log_moved(context: p_void) -> void:
    queue: pointer[run_queue_t] = cast(pointer[run_queue_t], context)
    at_store32(address(queue.log_moved), 1)
    # Read by a read-modify-write, as the loop writes it: either this sees that the loop wants to know, or the loop, which looks at
    # log_moved after it wrote log_wanted, sees the store above.
    if at_add32(address(queue.log_wanted), 0):
        loop_wake(queue)


def list_push(lists: pointer[pointer[socket_t]], which: c_int, socket: pointer[socket_t]) -> void:
    if not socket.on & (cast(uint32_t, 1) << which):
        socket.on |= cast(uint32_t, 1) << which
        socket.next[which] = lists[which]
        lists[which] = socket


def list_pop(lists: pointer[pointer[socket_t]], which: c_int) -> pointer[socket_t]:
    socket: pointer[socket_t] = lists[which]
    if socket != NULL:
        lists[which] = socket.next[which]
        socket.on &= ~(cast(uint32_t, 1) << which)
    return socket


def lists_forget(lists: pointer[pointer[socket_t]], socket: pointer[socket_t]) -> void:
    which: c_int
    link: pointer[pointer[socket_t]]
    for which in range(LIST_COUNT):
        if socket.on & (cast(uint32_t, 1) << which):
            link = lists + which
            while link[0] != socket:
                link = address(link[0].next[which])
            link[0] = socket.next[which]
    socket.on = 0


def turn_push(turns: pointer[turns_t], socket: pointer[socket_t]) -> void:
    socket.next_turn = NULL
    if turns.first == NULL:
        turns.first = socket
    else:
        turns.last.next_turn = socket
    turns.last = socket


def turn_pop(turns: pointer[turns_t]) -> pointer[socket_t]:
    socket: pointer[socket_t] = turns.first
    if socket != NULL:
        turns.first = socket.next_turn
    return socket


def turns_forget(turns: pointer[turns_t], socket: pointer[socket_t]) -> void:
    at: pointer[socket_t] = turns.first
    before: pointer[socket_t] = NULL
    while at != NULL and at != socket:
        before = at
        at = at.next_turn
    if at == socket:
        if before == NULL:
            turns.first = socket.next_turn
        else:
            before.next_turn = socket.next_turn
        if turns.last == socket:
            turns.last = before


def socket_keep(socket: pointer[socket_t], data: pointer[cython.const[uint8_t]], size: size_t) -> bint:
    room: size_t = 512
    grown: pointer[uint8_t]
    if socket.rest_room < size:
        while room < size:
            room *= 2
        grown = cast(pointer[uint8_t], realloc(socket.rest, room))
        if grown == NULL:
            return False
        memory_add(MEMORY_INPUT, cast(int64_t, room - socket.rest_room))
        socket.rest = grown
        socket.rest_room = cast(uint32_t, room)
    if size:
        memcpy(socket.rest, data, size)
    socket.rest_size = cast(uint32_t, size)
    return True


def accept(listener: c_int) -> tuple[int, str, int] | None:
    """The next connection that waits at a listening TCP socket that does not block: (descriptor, host, port of the peer). None: none waits.

    The descriptor is the caller's. Made without a Python socket, which would cost a short connection a system call and some 200
    bytecodes of its 4,100. Raises: OSError when there is no descriptor, or no memory, for it.
    """
    peer: sockaddr_storage
    v4: pointer[sockaddr_in] = cast(pointer[sockaddr_in], address(peer))
    size: socklen_t = sizeof(sockaddr_storage)
    host: char[HOST_SIZE]
    port: char[PORT_SIZE]
    fd: c_int = accept4(listener, cast(pointer[sockaddr], address(peer)), address(size), SOCK_CLOEXEC)
    if fd < 0:
        if errno == EAGAIN or errno == EINTR or errno == ECONNABORTED:  # the last: the peer was quicker than we were
            return None
        raise OSError(errno, os.strerror(errno))
    if cast(pointer[sockaddr], address(peer)).sa_family == AF_INET:
        inet_ntop(AF_INET, address(v4.sin_addr), host, HOST_SIZE)
        return fd, cast(p_char, host).decode("ascii"), ntohs(v4.sin_port)
    # Of an IPv6 address that holds on one link only, the name says which.
    if getnameinfo(cast(pointer[sockaddr], address(peer)), size, host, HOST_SIZE, port, PORT_SIZE, NI_NUMERICHOST | NI_NUMERICSERV):
        sys_close(fd)
        return None
    return fd, cast(p_char, host).decode("ascii"), int(cast(p_char, port))


@cclass
class Socket:
    """A connection's socket, as its loop holds it."""

    def __cinit__(self, sock: object, fd: c_int, connection: object):
        memset(address(self.socket), 0, sizeof(socket_t))
        self.sock = sock
        self.connection = connection
        self.socket.fd = fd

    def __dealloc__(self):
        # `sock` may be gone by now: who owns the descriptor must not be asked of it.
        if self.socket.owned:
            sys_close(self.socket.fd)
        free(self.socket.rest)
        memory_add(MEMORY_INPUT, -cast(int64_t, self.socket.rest_room))
        out_release(address(self.socket.cipher))

    def close(self) -> None:
        """Closes the socket, which takes it out of epoll, too; once. On the loop's thread."""
        if self.socket.owned:
            self.socket.owned = False
            sys_close(self.socket.fd)
        elif self.sock is not None:
            self.sock.close()

    def trim(self) -> None:
        """Gives memory back that an idle connection does not need now."""
        if self.socket.kind != KIND_CONNECTION:
            return
        out_trim(address(self.connection.connection.out))
        if self.socket.rest_size == 0 and self.socket.rest_room > REST_KEPT:
            free(self.socket.rest)
            memory_add(MEMORY_INPUT, -cast(int64_t, self.socket.rest_room))
            self.socket.rest = NULL
            self.socket.rest_room = 0
        self.connection.reap()

    @property
    def received_ms(self) -> int:
        """Monotonic time of the last byte received, milliseconds."""
        return self.socket.received_ms

    @property
    def sent_ms(self) -> int:
        return self.socket.sent_ms

    @property
    def spared(self) -> bool:
        """True: under the memory alarm its publishes go on up to the hard limit. Written by the memory keeper, read by the loop."""
        return self.socket.spared

    @spared.setter
    def spared(self, value: bool) -> None:
        self.socket.spared = value

    @property
    def asks_held(self) -> bool:
        """True while its requests are not read because it does not read our answers."""
        return self.socket.paused & PAUSED_OUTPUT != 0

    @property
    def paused(self) -> bool:
        """True while nothing is read from it."""
        return self.socket.paused != 0

    @property
    def lingering(self) -> bool:
        return self.socket.lingering


def socket_interest(io: pointer[io_t], socket: pointer[socket_t], interest: uint32_t) -> void:
    event: epoll_event
    if socket.interest == interest or socket.dead:
        return
    socket.interest = interest
    event.events = interest
    event.data.ptr = socket
    epoll_ctl(io.epoll, EPOLL_CTL_MOD, socket.fd, address(event))


def socket_pause(io: pointer[io_t], socket: pointer[socket_t], why: uint32_t) -> void:
    socket.paused |= why
    socket_interest(io, socket, socket.interest & ~cast(uint32_t, EPOLLIN))

"""A connection's socket, and the run queue of connections that have work for their consumers (see sockets.pxd)."""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_add32, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import out_release, out_trim
from cython.cimports.flintmq.core.memory_account import MEMORY_INPUT, memory_add
from cython.cimports.flintmq.net.sysio import sys_write
from cython.cimports.flintmq.session.types import connection_t
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy, memset

# bytes of an unfinished frame's buffer that an idle connection may keep
REST_KEPT = cython.declare(uint32_t, 4096)


def run_queue_push(queue, connection):
    connection.next_run = cython.NULL
    spin_lock(cython.address(queue.lock))
    if queue.first == cython.NULL:
        queue.first = connection
    else:
        queue.last.next_run = connection
    queue.last = connection
    spin_unlock(cython.address(queue.lock))


def connection_schedule(connection):
    """Step 6 of seed 004: the connection joins its loop's run queue. Any thread; `scheduled` was won by the caller."""
    queue: cython.pointer(run_queue_t) = cython.cast(cython.pointer(socket_t), connection.loop).run_queue
    run_queue_push(queue, connection)
    loop_wake(queue)


def run_queue_pop(queue):
    connection: cython.pointer(connection_t)
    spin_lock(cython.address(queue.lock))
    connection = queue.first
    if connection != cython.NULL:
        queue.first = connection.next_run
    spin_unlock(cython.address(queue.lock))
    return connection


def run_queue_forget(queue, connection):
    """Takes a connection that ends off the run queue."""
    at: cython.pointer(connection_t)
    before: cython.pointer(connection_t) = cython.NULL
    spin_lock(cython.address(queue.lock))
    at = queue.first
    while at != cython.NULL and at != connection:
        before = at
        at = at.next_run
    if at == connection:
        if before == cython.NULL:
            queue.first = connection.next_run
        else:
            before.next_run = connection.next_run
        if queue.last == connection:
            queue.last = before
    spin_unlock(cython.address(queue.lock))


def loop_wake(queue):
    one: uint64_t = 1
    # Pairs with the at_swap32 before epoll_wait: the loop says it sleeps, then looks once more at all that can wake it.
    if at_swap32(cython.address(queue.sleeping), 0):
        sys_write(queue.wake, cython.address(one), 8)


def loop_log_moved(context):
    queue: cython.pointer(run_queue_t) = cython.cast(cython.pointer(run_queue_t), context)
    at_store32(cython.address(queue.log_moved), 1)
    # Read by a read-modify-write, as the loop writes it: either this sees that the loop wants to know, or the loop, which looks at
    # log_moved after it wrote log_wanted, sees the store above.
    if at_add32(cython.address(queue.log_wanted), 0):
        loop_wake(queue)


def list_push(lists, which, socket):
    if not socket.on & (cython.cast(uint32_t, 1) << which):
        socket.on |= cython.cast(uint32_t, 1) << which
        socket.next[which] = lists[which]
        lists[which] = socket


def list_pop(lists, which):
    socket: cython.pointer(socket_t) = lists[which]
    if socket != cython.NULL:
        lists[which] = socket.next[which]
        socket.on &= ~(cython.cast(uint32_t, 1) << which)
    return socket


def lists_forget(lists, socket):
    which: cython.int
    link: cython.pointer(cython.pointer(socket_t))
    for which in range(LIST_COUNT):
        if socket.on & (cython.cast(uint32_t, 1) << which):
            link = lists + which
            while link[0] != socket:
                link = cython.address(link[0].next[which])
            link[0] = socket.next[which]
    socket.on = 0


def turn_push(turns, socket):
    socket.next_turn = cython.NULL
    if turns.first == cython.NULL:
        turns.first = socket
    else:
        turns.last.next_turn = socket
    turns.last = socket


def turn_pop(turns):
    socket: cython.pointer(socket_t) = turns.first
    if socket != cython.NULL:
        turns.first = socket.next_turn
    return socket


def turns_forget(turns, socket):
    at: cython.pointer(socket_t) = turns.first
    before: cython.pointer(socket_t) = cython.NULL
    while at != cython.NULL and at != socket:
        before = at
        at = at.next_turn
    if at == socket:
        if before == cython.NULL:
            turns.first = socket.next_turn
        else:
            before.next_turn = socket.next_turn
        if turns.last == socket:
            turns.last = before


def socket_keep(socket, data, size):
    room: cython.size_t = 512
    grown: cython.pointer(uint8_t)
    if socket.rest_room < size:
        while room < size:
            room *= 2
        grown = cython.cast(cython.pointer(uint8_t), realloc(socket.rest, room))
        if grown == cython.NULL:
            return False
        memory_add(MEMORY_INPUT, cython.cast(int64_t, room - socket.rest_room))
        socket.rest = grown
        socket.rest_room = cython.cast(uint32_t, room)
    if size:
        memcpy(socket.rest, data, size)
    socket.rest_size = cython.cast(uint32_t, size)
    return True


@cython.cclass
class Socket:
    """A connection's socket, as its loop holds it."""

    def __cinit__(self, sock: object, connection: object):
        memset(cython.address(self.socket), 0, cython.sizeof(socket_t))
        self.sock = sock
        self.connection = connection
        self.socket.fd = sock.fileno()

    def __dealloc__(self):
        free(self.socket.rest)
        memory_add(MEMORY_INPUT, -cython.cast(int64_t, self.socket.rest_room))
        out_release(cython.address(self.socket.cipher))

    def trim(self) -> None:
        """Gives memory back that an idle connection does not need now."""
        if self.socket.kind != KIND_CONNECTION:
            return
        out_trim(cython.address(self.connection.connection.out))
        if self.socket.rest_size == 0 and self.socket.rest_room > REST_KEPT:
            free(self.socket.rest)
            memory_add(MEMORY_INPUT, -cython.cast(int64_t, self.socket.rest_room))
            self.socket.rest = cython.NULL
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

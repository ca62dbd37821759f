"""A connection's socket, and the run queue of connections that have work for their consumers (see sockets.pxd)."""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.atomics import at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import out_release, out_trim
from cython.cimports.flintmq.net.sysio import sys_write
from cython.cimports.flintmq.session.types import connection_t
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset

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
    one: uint64_t = 1
    run_queue_push(queue, connection)
    # Pairs with the at_swap32 before epoll_wait: the loop says it sleeps, then looks at the queue once more.
    if at_swap32(cython.address(queue.sleeping), 0):
        sys_write(queue.wake, cython.address(one), 8)


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


def sockets_forget(dirty, failed, socket):
    while dirty[0] != cython.NULL and dirty[0] != socket:
        dirty = cython.address(dirty[0].next_dirty)
    if dirty[0] == socket:
        dirty[0] = socket.next_dirty
    while failed[0] != cython.NULL and failed[0] != socket:
        failed = cython.address(failed[0].next_failed)
    if failed[0] == socket:
        failed[0] = socket.next_failed


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
        out_release(cython.address(self.socket.cipher))

    def trim(self) -> None:
        """Gives memory back that an idle connection does not need now."""
        if self.socket.kind != KIND_CONNECTION:
            return
        out_trim(cython.address(self.connection.connection.out))
        if self.socket.rest_size == 0 and self.socket.rest_room > REST_KEPT:
            free(self.socket.rest)
            self.socket.rest = cython.NULL
            self.socket.rest_room = 0
        self.connection.reap()

    @property
    def bytes_received(self) -> int:
        return self.socket.bytes_in

    @property
    def bytes_sent(self) -> int:
        return self.socket.bytes_out

    @property
    def received_ms(self) -> int:
        """Monotonic time of the last byte received, milliseconds."""
        return self.socket.received_ms

    @property
    def sent_ms(self) -> int:
        return self.socket.sent_ms

    @property
    def paused(self) -> bool:
        return self.socket.paused

    @property
    def lingering(self) -> bool:
        return self.socket.lingering

"""A connection's socket: whether it is read, what is sent; and the run queue of connections that have work for their consumers (see
sockets.pxd).

I1  A socket is read exactly while socket_t.paused is 0; each bit there has one place that sets it and one that clears it.
I2  Under an alarm (memory, disk) publishers are not read; connections that also consume are, until the hard limit of memory.
I3  A socket is on a list of turns (socket_t.turns) exactly while PAUSED_TURN is set.
"""

from __future__ import annotations

import os

import cython
from cython import (
    NULL, Py_ssize_t, address, bint, cast, cclass, cfunc, char, declare, exceptval, nogil, p_char, p_void, pointer, size_t, sizeof, ssize_t,
    void,
)  # fmt: skip
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.channel.placing import connection_flush_confirms
from cython.cimports.flintmq.channel.turns import (
    connection_block_output, connection_consumes, connection_lagging, connection_unblock_output,
)  # fmt: skip
from cython.cimports.flintmq.channel.types import PUBLISHED_NOW, connection_t
from cython.cimports.flintmq.core.atomics import at_add32, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import (
    OUT_PIECES, OUT_SCRATCH, out_gather, out_pending, out_release, out_reserve, out_sent, out_take, out_trim, outbuf_t,
)  # fmt: skip
from cython.cimports.flintmq.core.clock import monotonic_ms
from cython.cimports.flintmq.core.jobs import turn_now
from cython.cimports.flintmq.core.memory_account import MEMORY_INPUT, memory_add, memory_held
from cython.cimports.flintmq.net.sysio import (
    AF_INET, EAGAIN, ECONNABORTED, EINTR, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, MSG_DONTWAIT, MSG_MORE,
    MSG_NOSIGNAL, MSG_PEEK, NI_NUMERICHOST, NI_NUMERICSERV, SHUT_WR, SOCK_CLOEXEC, accept4, epoll_ctl, epoll_event, errno, getnameinfo,
    inet_ntop, msghdr, ntohs, recv, send, sendmsg, shutdown, sockaddr, sockaddr_in, sockaddr_storage, socklen_t, sys_close, sys_write,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.engine import PHASE_CLOSED, engine_next_method
from cython.cimports.flintmq.protocol.v0_9_1.ids import EXCHANGE_DECLARE, QUEUE_BIND, QUEUE_DECLARE
from cython.cimports.flintmq.queue.limits import WANTED_VISITS, queue_taken, queue_wanted
from cython.cimports.flintmq.queue.types import PRESSURE_BUFFERS, PRESSURE_DISK, PRESSURE_NONE, queue_t
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.uio import iovec

# nanoseconds over which the pace of a publisher's consumers is measured, at least
LAG_LOOK_NS = declare(int64_t, 1_000_000)
SECOND_NS = declare(int64_t, 1_000_000_000)
# publishers that wait for their consumers which one pass looks at: some 50 us, those that wait longest first
LAG_LOOKS = declare(uint32_t, 256)
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
    one: pointer[connection_t]
    before: pointer[connection_t] = NULL
    spin_lock(address(queue.lock))
    one = queue.first
    while one != NULL and one != connection:
        before = one
        one = one.next_run
    if one == connection:
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
    if socket.on & (cast(uint32_t, 1) << which):
        return
    socket.on |= cast(uint32_t, 1) << which
    socket.next[which] = NULL
    if lists[which] == NULL:
        lists[which] = socket
    else:
        lists[LIST_COUNT + which].next[which] = socket
    lists[LIST_COUNT + which] = socket


def list_pop(lists: pointer[pointer[socket_t]], which: c_int) -> pointer[socket_t]:
    socket: pointer[socket_t] = lists[which]
    if socket != NULL:
        lists[which] = socket.next[which]
        socket.on &= ~(cast(uint32_t, 1) << which)
    return socket


def lists_forget(lists: pointer[pointer[socket_t]], socket: pointer[socket_t]) -> void:
    which: c_int
    one: pointer[socket_t]
    before: pointer[socket_t]
    for which in range(LIST_COUNT):
        if socket.on & (cast(uint32_t, 1) << which):
            one = lists[which]
            before = NULL
            while one != socket:
                before = one
                one = one.next[which]
            if before == NULL:
                lists[which] = socket.next[which]
            else:
                before.next[which] = socket.next[which]
            if lists[LIST_COUNT + which] == socket:
                lists[LIST_COUNT + which] = before
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
    one: pointer[socket_t] = turns.first
    before: pointer[socket_t] = NULL
    while one != NULL and one != socket:
        before = one
        one = one.next_turn
    if one == socket:
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


def socket_next_joining(socket: pointer[socket_t], data: pointer[cython.const[uint8_t]], size: size_t) -> size_t:
    frame: size_t = 0
    method: uint32_t
    if not socket.connection.joins:
        return 0
    method = engine_next_method(address(socket.connection.engine), data, size, address(frame))
    if frame > JOIN_BYTES or (method != QUEUE_DECLARE and method != QUEUE_BIND and method != EXCHANGE_DECLARE):
        return 0
    return frame


def socket_wait(io: pointer[io_t], socket: pointer[socket_t], data: pointer[cython.const[uint8_t]], size: size_t) -> void:
    socket.unfed = True
    socket.read_size = READ_LEAST
    if not socket_keep(socket, data, size):
        list_push(io.lists, LIST_FAILED, socket)
    socket_pause(io, socket, PAUSED_ANSWER)


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

    def traffic(self) -> tuple:
        """(bytes received, reads, bytes sent, writes) of the socket so far. Any thread: each number as it was a moment ago."""
        socket: pointer[socket_t] = address(self.socket)
        return (socket.received_bytes, socket.received_packets, socket.sent_bytes, socket.sent_packets)

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


def socket_ended(io: pointer[io_t], socket: pointer[socket_t]) -> void:
    event: epoll_event
    epoll_ctl(io.epoll, EPOLL_CTL_DEL, socket.fd, address(event))
    list_push(io.lists, LIST_FAILED, socket)


def socket_pause(io: pointer[io_t], socket: pointer[socket_t], why: uint32_t) -> void:
    socket.paused |= why
    socket_interest(io, socket, socket.interest & ~cast(uint32_t, EPOLLIN))


# --- output ---------------------------------------------------------------------------------------------------------------------
#
# in: sockets that are dirty. out: confirms that are due, one send, encryption in pieces; LIST_DIRTY while more can be encrypted,
# LIST_FAILED for a peer that is cut off; consumers suspended and resumed at the marks of the output (output_bytes_high,
# output_bytes_low).


def output_flush(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    connection: pointer[connection_t] = entry.connection
    out: pointer[outbuf_t] = address(entry.cipher) if entry.tls else address(connection.out)
    waiting: size_t
    output_confirms(io, entry)
    if not _send(io, entry, out):
        list_push(io.lists, LIST_FAILED, entry)
        return
    waiting = out_pending(out)
    if entry.tls:
        waiting += out_pending(address(connection.out))
        if out_pending(address(connection.out)) and out.end - out.start < CIPHER_PIECE:
            list_push(io.lists, LIST_DIRTY, entry)  # the next piece can be encrypted
    # One message may be larger than what the rest of the output may come to.
    if waiting > io.output_max and waiting - io.output_max > connection.largest_out:
        entry.overrun = True
        list_push(io.lists, LIST_FAILED, entry)
        return
    if waiting == 0:
        connection.largest_out = 0
    if entry.paused & PAUSED_OUTPUT and waiting < connection.output_low:
        intake_ask_on(io, entry)
    if connection.write_blocked:
        if waiting < connection.output_low:
            connection_unblock_output(connection)
    elif waiting >= connection.output_high:
        connection_block_output(connection)  # TLS: the backlog is in the encrypted buffer, which a turn doesn't see
    if waiting == 0 and connection.engine.phase == PHASE_CLOSED and not entry.lingering:
        _linger(io, entry)


@cfunc
@nogil
@exceptval(check=False)
def _linger(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    """The last frames are sent: the socket is closed when the peer has hung up or its time is over. It is shut down for sending now, but
    where the peer asked for the close: the end of the stream is the peer's then.

    A close at once would meet what the peer still sends with a reset, which can take our last frames away from it. The peer's end needs no
    event of its own: nearly all hang up within microseconds, so all that linger are looked at together.
    """
    event: epoll_event
    entry.lingering = True
    if not entry.connection.awaits_end:
        shutdown(entry.fd, SHUT_WR)
    epoll_ctl(io.epoll, EPOLL_CTL_DEL, entry.fd, address(event))
    if io.lists[LIST_LINGERING] == NULL:
        io.linger_ms = monotonic_ms() + io.close_look_ms
    list_push(io.lists, LIST_LINGERING, entry)


def output_lingering(io: pointer[io_t]) -> void:
    event: epoll_event
    octet: uint8_t
    count: Py_ssize_t
    entry: pointer[socket_t]
    if io.lists[LIST_LINGERING] == NULL or monotonic_ms() < io.linger_ms:
        return
    entry = list_pop(io.lists, LIST_LINGERING)
    while entry != NULL:
        count = recv(entry.fd, address(octet), 1, MSG_DONTWAIT | MSG_PEEK)
        entry.interest = EPOLLIN
        event.events = EPOLLIN
        event.data.ptr = entry
        if count == 0 or (count < 0 and errno != EAGAIN and errno != EINTR):
            list_push(io.lists, LIST_FAILED, entry)
        elif epoll_ctl(io.epoll, EPOLL_CTL_ADD, entry.fd, address(event)) < 0:
            list_push(io.lists, LIST_FAILED, entry)
        entry = list_pop(io.lists, LIST_LINGERING)


def output_confirms(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    if entry.connection.confirming != NULL:
        connection_flush_confirms(entry.connection)
        if entry.connection.confirming != NULL:
            list_push(io.lists, LIST_WAITING, entry)


@cfunc
@nogil
@exceptval(check=False)
def _send(io: pointer[io_t], entry: pointer[socket_t], out: pointer[outbuf_t]) -> bint:
    """Sends what the socket takes. False when the socket failed."""
    count: Py_ssize_t
    flags: c_int = MSG_NOSIGNAL | MSG_DONTWAIT
    if entry.connection.engine.phase == PHASE_CLOSED and not entry.connection.awaits_end and not entry.tls:
        flags |= MSG_MORE  # the last words go with the end of the stream (flush), in one packet
    while out_pending(out):
        if out.ref_count:
            count = _send_pieces(entry, out)
        else:
            count = send(entry.fd, out.data + out.start, out.end - out.start, flags)
        if count < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                socket_interest(io, entry, entry.interest | EPOLLOUT)
                return True
            return False
        out_sent(out, count)
        entry.sent_ms = monotonic_ms()
        entry.sent_bytes += count
        entry.sent_packets += 1
        if entry.connection != NULL:
            entry.connection.counters.sent_bytes += count
            entry.connection.counters.sent_packets += 1
    socket_interest(io, entry, entry.interest & ~cast(uint32_t, EPOLLOUT))
    return True


@cfunc
@nogil
@exceptval(check=False)
def _send_pieces(entry: pointer[socket_t], out: pointer[outbuf_t]) -> ssize_t:
    """One call of the system for output that refers to contents. What sendmsg returned."""
    pieces: iovec[OUT_PIECES]
    scratch: uint8_t[OUT_SCRATCH]
    message: msghdr
    memset(address(message), 0, sizeof(msghdr))
    message.msg_iov = pieces
    message.msg_iovlen = out_gather(out, pieces, scratch)
    return sendmsg(entry.fd, address(message), MSG_NOSIGNAL | MSG_DONTWAIT)


def output_encrypt(io: pointer[io_t], entry: Socket | None) -> object:
    """Encrypts the clear output and sends it, in pieces: the next one when the socket took the one before."""
    out: pointer[outbuf_t] = address(entry.socket.connection.out)
    cipher: pointer[outbuf_t] = address(entry.socket.cipher)
    if out_pending(out) and entry.tls.established and cipher.end - cipher.start < CIPHER_PIECE:
        clear: bytes = PyBytes_FromStringAndSize(NULL, min(CIPHER_PIECE, out_pending(out)))
        out_take(out, cast(pointer[uint8_t], cast(p_char, clear)), len(clear))
        output_cipher(io, entry, entry.tls.send(clear))
    if not _send(io, address(entry.socket), cipher):
        list_push(io.lists, LIST_FAILED, address(entry.socket))


def output_cipher(io: pointer[io_t], entry: Socket | None, cipher: bytes | None) -> object:
    if not cipher:
        return  # a layer with nothing to say; the buffer may not be there yet
    place: pointer[uint8_t] = out_reserve(address(entry.socket.cipher), len(cipher))
    if place == NULL:
        raise MemoryError
    memcpy(place, cast(p_char, cipher), len(cipher))
    entry.socket.cipher.end += len(cipher)
    list_push(io.lists, LIST_DIRTY, address(entry.socket))


# --- which sockets of a loop are read ---------------------------------------------------------------------------------------------
#
# in: sockets that were read or may go on; the alarms' marks, the log's pressure. out: socket_t.paused, epoll interests, lists of turns.


def intake_may_publish(io: pointer[io_t], entry: pointer[socket_t]) -> bint:
    """Looks at alarms and pressure after a publisher was read. False: it was paused and must be told."""
    connection: pointer[connection_t] = entry.connection
    consumes: bint
    published: bint = (connection.publisher & PUBLISHED_NOW) != 0
    pressure: c_int = PRESSURE_NONE
    connection.publisher &= ~PUBLISHED_NOW
    if io.port != NULL and io.port.pressure != NULL:
        pressure = io.port.pressure(io.port.context)
    if pressure == PRESSURE_DISK:
        io.alarm |= ALARM_DISK
    if io.alarm == 0 and pressure == PRESSURE_NONE:
        return True
    consumes = connection_consumes(connection)
    # The log's buffers empty without anybody's acks, but a connection that only settled has not filled them either.
    if pressure == PRESSURE_BUFFERS and (published or not consumes):
        socket_pause(io, entry, PAUSED_BUFFERS)
        list_push(io.lists, LIST_THROTTLED, entry)
    if io.alarm == 0 or entry.paused & PAUSED_ALARM:
        return True
    # A connection that also consumes is still read until the hard limit: its acks are what frees memory and disk (I2).
    # So is one of a tenant that holds little (broker/memory_keeper.py): who holds the memory waits first.
    if (consumes or (entry.spared and io.alarm == ALARM_MEMORY)) and memory_held() < io.memory_hard:
        return True
    socket_pause(io, entry, PAUSED_ALARM)
    io.alarm_paused = True
    return False


def intake_look(io: pointer[io_t]) -> void:
    pressure: c_int
    held: uint64_t = memory_held()
    if held > io.memory_high:
        io.alarm |= ALARM_MEMORY
    elif held < io.memory_low:
        io.alarm &= ~cast(uint32_t, ALARM_MEMORY)
    if io.port == NULL or io.port.pressure == NULL:
        return
    pressure = io.port.pressure(io.port.context)
    if pressure == PRESSURE_DISK:
        io.alarm |= ALARM_DISK
    else:
        io.alarm &= ~cast(uint32_t, ALARM_DISK)
    if pressure != PRESSURE_BUFFERS and io.lists[LIST_THROTTLED] != NULL:
        _unthrottle(io)


@cfunc
@nogil
@exceptval(check=False)
def _unthrottle(io: pointer[io_t]) -> void:
    """The log has room again (or none at all, which is another alarm): publishers that waited for its buffers are read."""
    entry: pointer[socket_t] = list_pop(io.lists, LIST_THROTTLED)
    while entry != NULL:
        entry.paused &= ~cast(uint32_t, PAUSED_BUFFERS)
        entry.received_ms = monotonic_ms()
        intake_resume(io, entry)
        entry = list_pop(io.lists, LIST_THROTTLED)


def intake_resume(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    if entry.paused or entry.dead:
        return
    if entry.unfed:
        intake_queue_turn(io, entry)
    else:
        socket_interest(io, entry, entry.interest | EPOLLIN)


def intake_ask_on(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    """The output of a connection that was not read because of it is sent."""
    entry.paused &= ~cast(uint32_t, PAUSED_OUTPUT)
    entry.received_ms = monotonic_ms()  # what it sent meanwhile waits in the kernel: it must not look dead before that is read
    intake_resume(io, entry)


def intake_queue_turn(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    if entry.heavy_ns and turn_now(address(io.clock)) >= entry.heavy_ns:
        entry.heavy_ns = 0
    entry.paused |= PAUSED_TURN
    entry.turns = TURNS_HEAVY if entry.heavy_ns else TURNS_FRESH
    turn_push(address(io.turns[entry.turns]), entry)


def intake_outruns(io: pointer[io_t], entry: pointer[socket_t]) -> bint:
    queue: pointer[queue_t] = connection_lagging(entry.connection, io.lag_bytes, io.lag_messages)
    now: int64_t
    taken: uint64_t
    if queue == NULL:
        return False
    now = turn_now(address(io.clock))
    taken = queue_taken(queue)
    if queue != entry.lag_queue or now >= entry.lag_from_ns + LAG_LOOK_NS:
        entry.lag_paced = (
            queue == entry.lag_queue
            and taken > entry.lag_taken
            and (cast(int64_t, taken - entry.lag_taken) * SECOND_NS >= io.lag_pace * (now - entry.lag_from_ns))
        )
        entry.lag_queue = queue
        entry.lag_taken = taken
        entry.lag_from_ns = now
    return entry.lag_paced or queue_wanted(queue, 1, WANTED_VISITS) != 0


def intake_queue_lagged(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    entry.read_size = READ_LEAST
    entry.lagged_ns = turn_now(address(io.clock)) + io.lag_ns
    socket_pause(io, entry, PAUSED_TURN)
    entry.turns = TURNS_LAGGED
    turn_push(address(io.turns[TURNS_LAGGED]), entry)


def intake_look_lagged(io: pointer[io_t]) -> void:
    last: pointer[socket_t] = io.turns[TURNS_LAGGED].last
    entry: pointer[socket_t] = turn_pop(address(io.turns[TURNS_LAGGED]))
    looks: uint32_t = LAG_LOOKS
    while entry != NULL:
        looks -= 1
        if turn_now(address(io.clock)) < entry.lagged_ns and intake_outruns(io, entry):
            turn_push(address(io.turns[TURNS_LAGGED]), entry)
        else:
            intake_queue_turn(io, entry)
        entry = NULL if entry == last or looks == 0 else turn_pop(address(io.turns[TURNS_LAGGED]))


def intake_make_heavy(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    entry.heavy_ns = turn_now(address(io.clock)) + io.heavy_ns
    entry.read_size = READ_LEAST

"""One I/O thread (see loop.pxd): reads and parses without the GIL, delivers, sends once per connection and pass.

in: sockets. out: calls of the protocol engine; Python only for what the fast path leaves over (LOOP_* events).

A pass: handle every ready socket (read, feed the engine), give each connection with work its turn, send what became dirty, then
sleep in epoll until something is ready, another thread schedules a connection, or the timer is due.

I1  A connection, its channels and its buffers are touched by its own loop's thread only; other threads reach it through
    `schedule` (run queue under run_lock, eventfd when the loop sleeps) and `call`.
I2  A socket_t is freed only after the epoll batch that may still name it is done.
I3  Under a memory alarm publishers are not read; consumers are, until the hard limit.
"""

from __future__ import annotations

import collections
import logging
import threading

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import out_reserve, out_sent, outbuf_t
from cython.cimports.flintmq.core.clock import monotonic_ms
from cython.cimports.flintmq.core.content import arena_free, arena_new, content_bytes_mapped
from cython.cimports.flintmq.net.sockets import (
    KIND_CONNECTION,
    KIND_LISTENER,
    KIND_WAKE,
    Socket,
    connection_schedule,
    run_queue_forget,
    run_queue_pop,
    run_queue_push,
    socket_t,
    sockets_forget,
)
from cython.cimports.flintmq.net.sysio import (
    EAGAIN,
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EINTR,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_MOD,
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SHUT_WR,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    errno,
    eventfd,
    recv,
    send,
    shutdown,
    sys_close,
    sys_read,
    sys_write,
)
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_ERROR, FEED_MORE, FEED_VERSION, PHASE_CLOSED, engine_feed
from cython.cimports.flintmq.session.confirms import connection_flush_confirms
from cython.cimports.flintmq.session.connection import Connection
from cython.cimports.flintmq.session.types import SLOW_ERROR, SLOW_NONE, SLOW_RESOLVE, SLOW_ROUTE, SLOW_VERSION, connection_t
from cython.cimports.flintmq.session.work import (
    WORK_DONE,
    WORK_FULL,
    connection_block_output,
    connection_consumes,
    connection_unblock_output,
    connection_work,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcpy

# bytes; one read fills about one content chunk
READ_SIZE = cython.declare(cython.size_t, 256 * 1024)
# messages delivered between two looks at the sockets
PASS_MESSAGES = cython.declare(uint32_t, 8192)


@cython.cclass
class Loop:
    """An I/O thread's loop.

    Args: config: flintmq.config.Config; memory_limit: bytes of message content at which publishers are paused.
    Callbacks (set before run): on_accept(listener), on_timer(now_ms), on_alarm(active).
    """

    def __cinit__(self, config: object, memory_limit: int):
        limits = config.limits
        event: epoll_event
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.run_queue.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.epoll < 0 or self.run_queue.wake < 0:
            raise OSError(errno, "cannot create epoll or eventfd")
        self.arena = arena_new()
        # Room for the largest unfinished frame before a full read.
        self.buffer_size = READ_SIZE + limits.frame_size_max + 8
        self.buffer = cython.cast(cython.pointer(uint8_t), malloc(self.buffer_size))
        if self.arena == cython.NULL or self.buffer == cython.NULL:
            raise MemoryError
        self.wake_socket.fd = self.run_queue.wake
        self.wake_socket.kind = KIND_WAKE
        event.events = EPOLLIN
        event.data.ptr = cython.address(self.wake_socket)
        epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.run_queue.wake, cython.address(event))
        self.timer_period_ms = limits.housekeeping_ms
        self.timer_ms = monotonic_ms() + self.timer_period_ms
        self.memory_high = memory_limit
        self.memory_low = cython.cast(uint64_t, memory_limit * limits.memory_resume)
        self.memory_hard = memory_limit + memory_limit // 4
        self.turn_messages = limits.turn_messages_max
        self.output_max = limits.output_bytes_max
        self.sockets = {}
        self.graves = []
        self.calls = collections.deque()
        self.log = logging.getLogger("flintmq.net")

    def __dealloc__(self):
        if self.epoll > 0:
            sys_close(self.epoll)
        if self.run_queue.wake > 0:
            sys_close(self.run_queue.wake)
        free(self.buffer)
        if self.arena != cython.NULL:
            arena_free(self.arena)

    # --- registration (loop thread) ---------------------------------------------------------------------------------

    def add_listener(self, sock: object) -> None:
        """Accepts on a listening, non-blocking Python socket: on_accept(sock) is called when it is ready."""
        entry: Socket = Socket(sock, None)
        entry.socket.kind = KIND_LISTENER
        self._register(entry)

    def add(self, sock: object, connection: Connection, tls: object) -> Socket:
        """Serves a connected Python socket (the loop itself asks the kernel not to wait). `tls`: a net.tls.TlsLayer, or None."""
        entry: Socket = Socket(sock, connection)
        entry.socket.kind = KIND_CONNECTION
        entry.socket.connection = cython.address(connection.connection)
        entry.socket.received_ms = monotonic_ms()
        entry.socket.sent_ms = entry.socket.received_ms
        entry.tls = tls
        entry.socket.tls = tls is not None
        connection.connection.loop = cython.address(entry.socket)
        connection.connection.schedule = connection_schedule
        connection.connection.arena = self.arena
        self._register(entry)
        return entry

    def _register(self, entry):
        event: epoll_event
        entry.socket.owner = cython.cast(cython.p_void, entry)
        entry.socket.run_queue = cython.address(self.run_queue)
        entry.socket.interest = EPOLLIN
        event.events = EPOLLIN
        event.data.ptr = cython.address(entry.socket)
        self.sockets[entry.socket.fd] = entry
        epoll_ctl(self.epoll, EPOLL_CTL_ADD, entry.socket.fd, cython.address(event))

    def remove(self, entry: Socket) -> None:
        """Closes the socket. Its memory stays until no pending event can name it (I2)."""
        if entry.socket.dead:
            return
        entry.socket.dead = True
        if entry.socket.connection != cython.NULL:
            run_queue_forget(cython.address(self.run_queue), entry.socket.connection)
        sockets_forget(cython.address(self.dirty), cython.address(self.failed), cython.address(entry.socket))
        if self.current == cython.address(entry.socket):
            self.current = cython.NULL
        self.sockets.pop(entry.socket.fd, None)
        entry.sock.close()  # which takes it out of epoll, too
        self.graves.append(entry)
        if entry.connection is not None:
            # Handler and connection name each other: without this they would wait for the cycle collector.
            entry.connection.handler = None

    def entries(self) -> list:
        """Every Socket of the loop, listeners included."""
        return list(self.sockets.values())

    def resume(self, entry: Socket) -> None:
        """Reads a paused publisher again."""
        if entry.socket.paused and not entry.socket.dead:
            entry.socket.paused = False
            # What it sent meanwhile waits in the kernel: it must not look dead before that is read.
            entry.socket.received_ms = monotonic_ms()
            self.set_interest(cython.address(entry.socket), entry.socket.interest | EPOLLIN)

    def touch(self, entry: Socket) -> None:
        """Output was written outside a read of this socket: send it in this pass."""
        self.mark_dirty(cython.address(entry.socket))

    def call(self, function: object) -> None:
        """Runs `function()` on the loop's thread. Any thread."""
        one: uint64_t = 1
        self.calls.append(function)
        sys_write(self.run_queue.wake, cython.address(one), 8)

    def is_current(self) -> bool:
        """True on the loop's own thread, and before it runs."""
        return self.thread_id is None or self.thread_id == threading.get_ident()

    def set_timer(self, period_ms: int) -> None:
        """Changes how often on_timer is called; the next call comes after one period."""
        self.timer_period_ms = period_ms
        self.timer_ms = monotonic_ms() + period_ms

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until `stopping` is set (by a call or a callback)."""
        what: cython.int
        self.thread_id = threading.get_ident()
        while not self.stopping:
            with cython.nogil:
                what = self.run_pass()
            if what == LOOP_CALLS:
                while self.calls:
                    self._guard(self.calls.popleft())
            elif what == LOOP_TIMER:
                self._guard(self.on_timer, monotonic_ms())
            elif what == LOOP_ALARM:
                self._guard(self.on_alarm, bool(self.alarm))
            elif what == LOOP_ACCEPT:
                self._guard(self.on_accept, cython.cast(Socket, self.subject.owner).sock)
            else:
                self._serve(cython.cast(Socket, self.subject.owner), what)
            if self.event_next >= self.event_count and self.current == cython.NULL and self.graves:
                self.graves.clear()

    def _guard(self, function, *args):
        """A bug in a callback must not end the thread that all connections of the loop live on. True when there was none."""
        try:
            function(*args)
            return True
        except Exception:
            self.log.exception("internal error in a callback of the loop")
            return False

    def _serve(self, entry, what):
        """An event of one connection that needs Python. A bug in a handler costs that connection, not the node."""
        connection: cython.pointer(connection_t) = entry.socket.connection
        slow: cython.int
        handler = entry.connection.handler
        try:
            if what == LOOP_SLOW:
                slow = connection.slow
                connection.slow = SLOW_NONE
                if slow == SLOW_RESOLVE:
                    if entry.connection.resolve_route():
                        return
                    slow = SLOW_ROUTE
                handler.slow(
                    slow,
                    connection.slow_channel,
                    PyBytes_FromStringAndSize(
                        cython.cast(cython.p_char, cython.cast(cython.p_void, connection.slow_payload)), connection.slow_size
                    )
                    if connection.slow_payload != cython.NULL
                    else None,
                    connection.slow_method,
                    connection.slow_tag,
                    connection.slow_size,
                )
                connection.slow_payload = cython.NULL
            elif what == LOOP_TLS_IN:
                self._tls_in(entry)
            elif what == LOOP_TLS_OUT:
                self._tls_out(entry)
            elif what == LOOP_BLOCKED:
                handler.blocked()
            else:
                handler.closed("connection closed by peer")
                self.remove(entry)
        except Exception:
            self.log.exception("internal error on a connection: it is closed")
            if handler is None or not self._guard(handler.failed):
                self.remove(entry)

    def _tls_in(self, entry):
        """Decrypts what was read; clear bytes replace it in the buffer and are fed on."""
        connection: cython.pointer(connection_t) = entry.socket.connection
        data: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.buffer) + self.position, self.end - self.position)
        try:
            clear: bytes = entry.tls.receive(data)
        except OSError as error:
            entry.connection.handler.closed(f"TLS failed: {error}")
            self.remove(entry)
            return
        self._queue_cipher(entry, entry.tls.pending())
        if entry.tls.eof:
            entry.connection.handler.closed("connection closed by peer")
            self.remove(entry)
            return
        total: cython.size_t = entry.socket.rest_size + len(clear)
        if total > self.buffer_size:
            self.buffer_size = total
            self.buffer = cython.cast(cython.pointer(uint8_t), realloc(self.buffer, total))
            if self.buffer == cython.NULL:
                raise MemoryError
        if entry.socket.rest_size:
            memcpy(self.buffer, entry.socket.rest, entry.socket.rest_size)
        memcpy(self.buffer + entry.socket.rest_size, cython.cast(cython.p_char, clear), len(clear))
        entry.socket.rest_size = 0
        self.position = 0
        self.end = total
        self.current = cython.address(entry.socket)
        self.mark_dirty(cython.address(entry.socket))

    def _queue_cipher(self, entry, cipher):
        place: cython.pointer(uint8_t) = out_reserve(cython.address(entry.socket.cipher), len(cipher))
        if place == cython.NULL:
            raise MemoryError
        memcpy(place, cython.cast(cython.p_char, cipher), len(cipher))
        entry.socket.cipher.end += len(cipher)
        self.mark_dirty(cython.address(entry.socket))

    def _tls_out(self, entry):
        """Encrypts the clear output and sends it."""
        out: cython.pointer(outbuf_t) = cython.address(entry.socket.connection.out)
        if out.end > out.start and entry.tls.established:
            clear: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, out.data) + out.start, out.end - out.start)
            out_sent(out, len(clear))
            self._queue_cipher(entry, entry.tls.send(clear))
        if not self.send_buffer(cython.address(entry.socket), cython.address(entry.socket.cipher)):
            self.mark_failed(cython.address(entry.socket))

    def run_pass(self):
        entry: cython.pointer(socket_t)
        ready: uint32_t
        count: cython.Py_ssize_t
        now: int64_t
        timeout: cython.int
        mapped: uint64_t
        result: cython.int
        drained: uint64_t
        while True:
            if self.current != cython.NULL:
                result = self.feed_current()
                if result:
                    return result
            if self.event_next < self.event_count:
                entry = cython.cast(cython.pointer(socket_t), self.events[self.event_next].data.ptr)
                ready = self.events[self.event_next].events
                self.event_next += 1
                if entry.dead:
                    continue
                if entry.kind == KIND_LISTENER:
                    self.subject = entry
                    return LOOP_ACCEPT
                if entry.kind == KIND_WAKE:
                    sys_read(entry.fd, cython.address(drained), 8)
                    return LOOP_CALLS
                if ready & EPOLLOUT:
                    self.mark_dirty(entry)
                if not ready & (EPOLLIN | EPOLLERR | EPOLLHUP):
                    continue
                if entry.paused and not ready & (EPOLLERR | EPOLLHUP):
                    continue
                if entry.rest_size and not entry.tls:
                    memcpy(self.buffer, entry.rest, entry.rest_size)
                count = recv(
                    entry.fd,
                    self.buffer + (0 if entry.tls else entry.rest_size),
                    self.buffer_size - (0 if entry.tls else entry.rest_size),
                    MSG_DONTWAIT,
                )
                if count <= 0:
                    if count < 0 and (errno == EAGAIN or errno == EINTR):
                        continue
                    self.subject = entry
                    return LOOP_CLOSED
                entry.received_ms = monotonic_ms()
                entry.bytes_in += count
                if entry.lingering:
                    continue
                self.position = 0
                if entry.tls:
                    self.end = count
                    self.subject = entry
                    return LOOP_TLS_IN
                self.end = entry.rest_size + count
                entry.rest_size = 0
                self.current = entry
                continue
            self.deliver()
            while self.dirty != cython.NULL:
                entry = self.dirty
                self.dirty = entry.next_dirty
                entry.dirty = False
                if entry.tls:
                    connection_flush_confirms(entry.connection)
                    if entry.connection.out.end > entry.connection.out.start:
                        self.subject = entry
                        # Encrypting needs Python; sending happens there too.
                        return LOOP_TLS_OUT
                self.flush(entry)
            if self.failed != cython.NULL:
                entry = self.failed
                self.failed = entry.next_failed
                entry.failed = False
                self.subject = entry
                return LOOP_CLOSED
            mapped = content_bytes_mapped()
            if not self.alarm and mapped > self.memory_high:
                self.alarm = True
                return LOOP_ALARM
            if self.alarm and mapped < self.memory_low:
                self.alarm = False
                return LOOP_ALARM
            now = monotonic_ms()
            if now >= self.timer_ms:
                self.timer_ms = now + self.timer_period_ms
                return LOOP_TIMER
            # Say that we sleep, then look once more: a push after the look sees `sleeping` and writes the eventfd.
            at_swap32(cython.address(self.run_queue.sleeping), 1)
            spin_lock(cython.address(self.run_queue.lock))
            timeout = 0 if self.run_queue.first != cython.NULL else cython.cast(cython.int, self.timer_ms - now)
            spin_unlock(cython.address(self.run_queue.lock))
            self.event_count = epoll_wait(self.epoll, self.events, EVENTS_MAX, timeout)
            at_store32(cython.address(self.run_queue.sleeping), 0)
            self.event_next = 0
            if self.event_count < 0:
                self.event_count = 0

    def feed_current(self):
        """Feeds the engine what was read; keeps an unfinished frame. Returns a LOOP_* event or 0."""
        entry: cython.pointer(socket_t) = self.current
        connection: cython.pointer(connection_t) = entry.connection
        consumed: cython.size_t = 0
        result: cython.int
        rest: cython.size_t
        room: uint32_t
        grown: cython.pointer(uint8_t)
        if connection.engine.phase == PHASE_CLOSED:
            self.current = cython.NULL
            return 0
        result = engine_feed(
            cython.address(connection.engine), self.buffer + self.position, self.end - self.position, cython.address(consumed)
        )
        self.position += consumed
        self.mark_dirty(entry)
        if result != FEED_MORE:
            self.subject = entry
            if result == FEED_ERROR:
                connection.slow = SLOW_ERROR
            elif result == FEED_VERSION:
                connection.slow = SLOW_VERSION
            return LOOP_SLOW
        self.current = cython.NULL
        rest = self.end - self.position
        if rest:
            if entry.rest_room < rest:
                # Whole frames are at most frame_size_max, which the engine has checked: so is what is kept.
                room = 512
                while room < rest:
                    room *= 2
                grown = cython.cast(cython.pointer(uint8_t), realloc(entry.rest, room))
                if grown == cython.NULL:
                    self.mark_failed(entry)
                    return 0
                entry.rest = grown
                entry.rest_room = room
            memcpy(entry.rest, self.buffer + self.position, rest)
        entry.rest_size = cython.cast(uint32_t, rest)
        if self.alarm and connection.publisher and not entry.paused:
            self.pause_if_publisher(entry)
            if entry.paused:
                self.subject = entry
                return LOOP_BLOCKED
        return 0

    def pause_if_publisher(self, entry):
        """A connection that also consumes is still read until the hard limit: its acks are what frees memory (I3)."""
        if content_bytes_mapped() < self.memory_hard and connection_consumes(entry.connection):
            return
        entry.paused = True
        self.set_interest(entry, entry.interest & ~cython.cast(uint32_t, EPOLLIN))

    def deliver(self):
        """Steps 7 to 12 of seed 004: every connection with work gets its turn; bounded, so that reads go on."""
        connection: cython.pointer(connection_t)
        entry: cython.pointer(socket_t)
        before: uint64_t
        done: uint64_t = 0
        result: cython.int
        while done < PASS_MESSAGES:
            connection = run_queue_pop(cython.address(self.run_queue))
            if connection == cython.NULL:
                return
            # Cleared before the turn: what arrives during it schedules the connection again.
            at_store32(cython.address(connection.scheduled), 0)
            entry = cython.cast(cython.pointer(socket_t), connection.loop)
            before = connection.deliveries
            result = connection_work(connection, self.turn_messages)
            done += connection.deliveries - before + 1
            if connection.deliveries != before:
                self.mark_dirty(entry)
            if result == WORK_FULL:
                if entry.tls:
                    connection_block_output(connection)
                    self.mark_dirty(entry)
                    continue
                self.flush(entry)
                if connection.out.end - connection.out.start >= connection.output_high:
                    connection_block_output(connection)
                    continue
            if result != WORK_DONE and not at_swap32(cython.address(connection.scheduled), 1):
                run_queue_push(cython.address(self.run_queue), connection)

    def mark_dirty(self, entry):
        if not entry.dirty:
            entry.dirty = True
            entry.next_dirty = self.dirty
            self.dirty = entry

    def mark_failed(self, entry):
        if not entry.failed:
            entry.failed = True
            entry.next_failed = self.failed
            self.failed = entry

    def set_interest(self, entry, interest):
        event: epoll_event
        if entry.interest == interest or entry.dead:
            return
        entry.interest = interest
        event.events = interest
        event.data.ptr = entry
        epoll_ctl(self.epoll, EPOLL_CTL_MOD, entry.fd, cython.address(event))

    def send_buffer(self, entry, out):
        """Sends what the socket takes. False when the socket failed."""
        count: cython.Py_ssize_t
        while out.start < out.end:
            count = send(entry.fd, out.data + out.start, out.end - out.start, MSG_NOSIGNAL | MSG_DONTWAIT)
            if count < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    self.set_interest(entry, entry.interest | EPOLLOUT)
                    return True
                return False
            entry.bytes_out += count
            out_sent(out, count)
            entry.sent_ms = monotonic_ms()
        self.set_interest(entry, entry.interest & ~cython.cast(uint32_t, EPOLLOUT))
        return True

    def flush(self, entry):
        connection: cython.pointer(connection_t) = entry.connection
        out: cython.pointer(outbuf_t) = cython.address(entry.cipher) if entry.tls else cython.address(connection.out)
        waiting: cython.size_t
        if connection.confirming != cython.NULL:
            connection_flush_confirms(connection)
        if not self.send_buffer(entry, out):
            self.mark_failed(entry)
            return
        waiting = out.end - out.start
        if entry.tls:
            waiting += connection.out.end - connection.out.start
        if waiting > self.output_max:
            self.mark_failed(entry)
            return
        if connection.write_blocked:
            if waiting < connection.output_low:
                connection_unblock_output(connection)
        elif waiting >= connection.output_high:
            connection_block_output(connection)  # TLS: the backlog is in the encrypted buffer, which a turn doesn't see
        if waiting == 0 and connection.engine.phase == PHASE_CLOSED and connection.hang_up:
            self.mark_failed(entry)
        elif waiting == 0 and connection.engine.phase == PHASE_CLOSED and not entry.lingering:
            # The peer must see our last frames: closing with unread input would reset the connection under them.
            entry.lingering = True
            shutdown(entry.fd, SHUT_WR)

    def trim(self) -> None:
        """Gives the buffers of idle connections back (housekeeping)."""
        for entry in self.sockets.values():
            entry.trim()

    @property
    def now_ms(self) -> int:
        """The loop's monotonic clock, milliseconds: what on_timer is called with."""
        return monotonic_ms()

    @property
    def alarmed(self) -> bool:
        """True while message memory is above the watermark."""
        return self.alarm

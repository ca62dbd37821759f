"""One I/O thread (see loop.pxd): reads and parses without the GIL, delivers, sends once per connection and pass.

in: sockets. out: calls of the protocol engine; Python only for what the fast path leaves over (LOOP_* events).

A pass: handle ready sockets (read, feed the engine) for one turn's time, those that publish last and for a part of it while there is
something to deliver, tell the log to write, give each connection with work its turn, send what became dirty, give long work and heavy
connections their share, then sleep in epoll until something is ready, another thread schedules a connection, the log moved, or the timer
is due.

A turn: what a connection's requests take of the loop in Python is added up (one reading of the clock before and after each). When it is
Limits.turn_us, the engine is not fed on: the rest of what was read waits in socket_t.rest, and the connection is heavy for Limits.heavy_ms.
Heavy connections are read and fed from a list of their own, one turn's time of each pass for all of them, behind everybody else's
reads and deliveries. Publishes, settlements and deliveries are not measured one by one.

I1  A connection, its channels and its buffers are touched by its own loop's thread only; other threads reach it through
    `schedule` (run queue under run_lock, eventfd when the loop sleeps) and `call`.
I2  A socket_t is freed only after the epoll batch that may still name it is done.
I3  A confirm that waits for the log needs no Python and no event of its connection: the log's writer sets run_queue.log_moved,
    and the pass that sees it flushes the confirms of LIST_WAITING.
I4  Between two turns of a heavy connection everybody else with something to read or to get has had one; jobs have had their share.
"""

from __future__ import annotations

import threading

from cython import NULL, Py_ssize_t, address, bint, cast, cclass, declare, nogil, p_char, p_void, pointer, size_t, sizeof, ssize_t, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.core.atomics import at_load32, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import (
    OUT_PIECES,
    OUT_SCRATCH,
    out_gather,
    out_pending,
    out_reserve,
    out_sent,
    out_take,
    outbuf_t,
)
from cython.cimports.flintmq.core.clock import monotonic_ms
from cython.cimports.flintmq.core.jobs import jobs_run, turn_now
from cython.cimports.flintmq.net.loop_base import ALARM_DISK, EVENTS_MAX, READ_LEAST, READ_SIZE, LoopBase
from cython.cimports.flintmq.net.sockets import (
    KIND_LISTENER,
    KIND_WAKE,
    LIST_DIRTY,
    LIST_FAILED,
    LIST_THROTTLED,
    LIST_WAITING,
    PAUSED_ANSWER,
    PAUSED_OUTPUT,
    PAUSED_TURN,
    TURNS_FRESH,
    TURNS_HEAVY,
    Socket,
    list_pop,
    list_push,
    loop_log_moved,
    run_queue_pop,
    run_queue_push,
    socket_keep,
    socket_t,
    turn_pop,
)
from cython.cimports.flintmq.net.sysio import (
    EAGAIN,
    EINTR,
    EPOLLERR,
    EPOLLHUP,
    EPOLLIN,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_MORE,
    MSG_NOSIGNAL,
    SHUT_WR,
    epoll_wait,
    errno,
    msghdr,
    recv,
    send,
    sendmsg,
    shutdown,
)
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_ERROR, FEED_MORE, FEED_PAUSE, FEED_VERSION, PHASE_CLOSED, engine_feed
from cython.cimports.flintmq.session.confirms import connection_flush_confirms
from cython.cimports.flintmq.session.slow import SLOW_ERROR, SLOW_METHOD, SLOW_NONE, SLOW_RESOLVE, SLOW_ROUTE, SLOW_VERSION
from cython.cimports.flintmq.session.types import connection_t
from cython.cimports.flintmq.session.work import (
    WORK_DONE,
    WORK_FULL,
    connection_block_output,
    connection_unblock_output,
    connection_work,
)
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import realloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.uio import iovec

from flintmq.net.loop_base import ALARM_NAMES, OVERRUN

# sockets that may be ready at once before each reads less
READERS = declare(c_int, 8)
# of a turn's time, the part that publishers are read for in a pass while messages are delivered, and for how many passes more
PUBLISHERS_PART = declare(int64_t, 8)
DELIVERING_PASSES = declare(c_int, 16)
# messages delivered between two looks at the sockets
PASS_MESSAGES = declare(uint32_t, 8192)
# bytes that are encrypted at a time, while fewer than that wait to be sent
CIPHER_PIECE = declare(size_t, 256 * 1024)


@cclass
class Loop(LoopBase):
    """An I/O thread's loop. Arguments and callbacks: see LoopBase."""

    def run(self) -> None:
        """Runs until `stopping` is set (by a call or a callback)."""
        what: c_int
        before: int64_t
        self.thread_id = threading.get_ident()
        if self.log_port is not None:
            self.log_port.add_waker(loop_log_moved, address(self.run_queue))
        try:
            while not self.stopping:
                with nogil:
                    what = self.run_pass()
                # Whatever Python does now may log; and housekeeping takes what nobody waits for (ends of messages) to the disk.
                self.logged = self.awaited = self.port != NULL
                if what == LOOP_CALLS:
                    self._run_calls()
                elif what == LOOP_TIMER:
                    self._guard(self.on_timer, monotonic_ms())
                elif what == LOOP_COMMITS:
                    self._complete()
                elif what == LOOP_CHORES:
                    self._run_chores()
                elif what == LOOP_ALARM:
                    self._guard(self.on_alarm, ALARM_NAMES[self.alarm])
                elif what == LOOP_ACCEPT:
                    self._guard(self.on_accept, cast(Socket, self.subject.owner).sock)
                else:
                    before = turn_now(address(self.clock))
                    self._serve(cast(Socket, self.subject.owner), what)
                    self.turn_spent += turn_now(address(self.clock)) - before
                if self.event_next >= self.event_count and self.current == NULL and self.graves:
                    self.graves.clear()
        finally:
            self._end_jobs()
            if self.log_port is not None:
                self.log_port.remove_waker(address(self.run_queue))

    def _run_calls(self) -> void:
        """What other threads left, for one turn's time; the rest is for the next pass."""
        end: int64_t = turn_now(address(self.clock)) + self.turn_ns
        while self.calls:
            self._guard(self.calls.popleft())
            if turn_now(address(self.clock)) >= end:
                break
        if self.calls:
            at_store32(address(self.run_queue.called), 1)

    def _guard(self, function, *args):
        """A bug in a callback must not end the thread that all connections of the loop live on. True when there was none."""
        try:
            function(*args)
            return True
        except Exception:
            self.log.exception("internal error in a callback of the loop")
            return False

    def _serve(self, entry: Socket | None, what: c_int) -> void:
        """An event of one connection that needs Python. A bug in a handler costs that connection, not the node."""
        connection: pointer[connection_t] = entry.socket.connection
        slow: c_int
        handler = entry.connection.handler
        try:
            if what == LOOP_SLOW:
                slow = connection.slow
                connection.slow = SLOW_NONE
                if slow == SLOW_RESOLVE:
                    if entry.connection.resolve_route():
                        connection.slow_payload = NULL  # the next event may have none, and the buffer it is in may move
                        return
                    slow = SLOW_ROUTE
                payload = None
                if connection.slow_payload != NULL:
                    payload = PyBytes_FromStringAndSize(cast(p_char, cast(p_void, connection.slow_payload)), connection.slow_size)
                if slow == SLOW_METHOD:
                    handler.method(connection.slow_channel, payload, connection.slow_method)
                else:
                    handler.slow(slow, connection.slow_channel, payload, connection.slow_method, connection.slow_tag, connection.slow_size)
                connection.slow_payload = NULL
            elif what == LOOP_TLS_IN:
                self._tls_in(entry)
            elif what == LOOP_TLS_OUT:
                self._tls_out(entry)
            elif what == LOOP_BLOCKED:
                handler.blocked(ALARM_NAMES[self.alarm])
            else:
                if not entry.socket.lingering:  # else the handler has ended it
                    handler.closed(OVERRUN if entry.socket.overrun else "connection closed by peer")
                self.remove(entry)
        except Exception:
            self.log.exception("internal error on a connection: it is closed")
            if handler is None or not self._guard(handler.failed):
                self.remove(entry)

    def _tls_in(self, entry: Socket | None) -> object:
        """Decrypts what was read; clear bytes replace it in the buffer and are fed on."""
        data: bytes = PyBytes_FromStringAndSize(cast(p_char, self.buffer) + self.position, self.end - self.position)
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
        total: size_t = entry.socket.rest_size + len(clear)
        grown: pointer[uint8_t]
        if total > self.buffer_size:
            grown = cast(pointer[uint8_t], realloc(self.buffer, total))
            if grown == NULL:  # the old buffer still stands: other connections are read with it
                raise MemoryError
            self.buffer = grown
            self.buffer_size = total
        if entry.socket.rest_size:
            memcpy(self.buffer, entry.socket.rest, entry.socket.rest_size)
        memcpy(self.buffer + entry.socket.rest_size, cast(p_char, clear), len(clear))
        entry.socket.rest_size = 0
        entry.socket.unfed = False
        self.position = 0
        self.end = total
        self.current = address(entry.socket)
        self.mark_dirty(address(entry.socket))

    def _queue_cipher(self, entry: Socket | None, cipher: bytes | None) -> object:
        place: pointer[uint8_t] = out_reserve(address(entry.socket.cipher), len(cipher))
        if place == NULL:
            raise MemoryError
        memcpy(place, cast(p_char, cipher), len(cipher))
        entry.socket.cipher.end += len(cipher)
        self.mark_dirty(address(entry.socket))

    def _tls_out(self, entry: Socket | None) -> object:
        """Encrypts the clear output and sends it, in pieces: the next one when the socket took the one before."""
        out: pointer[outbuf_t] = address(entry.socket.connection.out)
        cipher: pointer[outbuf_t] = address(entry.socket.cipher)
        if out_pending(out) and entry.tls.established and cipher.end - cipher.start < CIPHER_PIECE:
            clear: bytes = PyBytes_FromStringAndSize(NULL, min(CIPHER_PIECE, out_pending(out)))
            out_take(out, cast(pointer[uint8_t], cast(p_char, clear)), len(clear))
            self._queue_cipher(entry, entry.tls.send(clear))
        if not self.send_buffer(address(entry.socket), cipher):
            self.mark_failed(address(entry.socket))

    def run_pass(self) -> c_int:
        entry: pointer[socket_t]
        now: int64_t
        result: c_int
        while True:
            if self.current != NULL:
                result = self.feed_current()
                if result:
                    return result
            # Reads have their time, then deliveries have theirs: what is left of the batch waits for the next pass.
            if self.event_next < self.event_count and turn_now(address(self.clock)) < self.reads_end:
                result = self.take_event()
                if result:
                    return result
                continue
            # Publishers are behind who settles, asks and connects; one at least is read.
            if self.turns[TURNS_FRESH].first != NULL and (not self.fresh_had or turn_now(address(self.clock)) < self.fresh_end):
                self.fresh_had = True
                result = self.take_turn(TURNS_FRESH)
                if result:
                    return result
                continue
            self.kick()
            self.deliver()
            if at_load32(address(self.run_queue.log_moved)):
                # Swapped before the durable LSN is read: what moves later sets it again.
                at_swap32(address(self.run_queue.log_moved), 0)
                entry = list_pop(self.lists, LIST_WAITING)
                while entry != NULL:
                    self.mark_dirty(entry)
                    entry = list_pop(self.lists, LIST_WAITING)
                if self.commits_wait:
                    return LOOP_COMMITS
            entry = list_pop(self.lists, LIST_DIRTY)
            while entry != NULL:
                if entry.tls:
                    self.flush_confirms(entry)
                    if out_pending(address(entry.connection.out)) and entry.cipher.end - entry.cipher.start < CIPHER_PIECE:
                        self.subject = entry
                        # Encrypting needs Python; sending happens there too.
                        return LOOP_TLS_OUT
                self.flush(entry)
                entry = list_pop(self.lists, LIST_DIRTY)
            entry = list_pop(self.lists, LIST_FAILED)
            if entry != NULL:
                self.subject = entry
                return LOOP_CLOSED
            if at_load32(address(self.run_queue.called)) and not self.calls_had:
                self.calls_had = True
                at_swap32(address(self.run_queue.called), 0)
                return LOOP_CALLS
            self.look_for_alarms()
            # Or it came and went since the last look: who was paused by it must be let go on.
            if self.alarm != self.alarm_told or (self.alarm == 0 and self.alarm_paused):
                self.alarm_told = self.alarm
                self.alarm_paused = self.alarm_paused and self.alarm != 0
                return LOOP_ALARM
            self.kick()
            now = monotonic_ms()
            if now >= self.timer_ms:
                self.notice_late(0)
                self.timer_ms = now + self.timer_period_ms
                return LOOP_TIMER
            if not self.jobs_had and (self.chores_wait or self.jobs.first != NULL):
                result = self.give_shares()
                if result:
                    return result
            # Who else is in this batch comes first.
            if self.turns[TURNS_HEAVY].first != NULL and self.event_next >= self.event_count and self.heavy_may():
                result = self.take_turn(TURNS_HEAVY)
                if result:
                    return result
                continue
            self.sleep(now)

    def give_shares(self) -> c_int:
        """Long work has its share of the pass: what needs no Python here; returns LOOP_CHORES when there is some that does, else 0."""
        now: int64_t = turn_now(address(self.clock))
        self.jobs_had = True
        if self.jobs.first != NULL:
            jobs_run(address(self.jobs), address(self.clock), now + (self.jobs_ns // 2 if self.chores_wait else self.jobs_ns))
        self.chores_end = now + self.jobs_ns
        return LOOP_CHORES if self.chores_wait else 0

    def heavy_may(self) -> bint:
        """Whether another turn of a heavy connection may begin in this pass."""
        now: int64_t = turn_now(address(self.clock))
        if self.heavy_end == 0:
            self.heavy_end = now + self.turn_ns
        return now < self.heavy_end

    def sleep(self, now: int64_t) -> void:
        """The end of a pass: waits until there is something to do, and not at all when there is already."""
        timeout: c_int
        wanted: bint = self.port != NULL and (
            self.lists[LIST_WAITING] != NULL or self.lists[LIST_THROTTLED] != NULL or self.commits_wait or self.alarm & ALARM_DISK != 0
        )
        if self.port != NULL:
            at_swap32(address(self.run_queue.log_wanted), 1 if wanted else 0)
        # Say that we sleep, then look once more: who comes after the look sees `sleeping` and writes the eventfd.
        at_swap32(address(self.run_queue.sleeping), 1)
        spin_lock(address(self.run_queue.lock))
        timeout = 0 if self.run_queue.first != NULL else cast(c_int, self.timer_ms - now)
        spin_unlock(address(self.run_queue.lock))
        if (wanted and at_load32(address(self.run_queue.log_moved))) or at_load32(address(self.run_queue.called)):
            timeout = 0
        if self.turns[TURNS_FRESH].first != NULL or self.turns[TURNS_HEAVY].first != NULL or self.jobs.first != NULL or self.chores_wait:
            timeout = 0
        # Events that this pass had no time for come first; then the kernel is asked again.
        if self.event_next >= self.event_count:
            self.notice_late(0)
            self.polled_ns = turn_now(address(self.clock))
            self.event_count = epoll_wait(self.epoll, self.events, EVENTS_MAX, timeout)
            self.event_next = 0
            if self.event_count < 0:
                self.event_count = 0
            # A process that was stopped comes back late, too.
            self.notice_late(timeout * 1_000_000)
            self.polled_ns = turn_now(address(self.clock))
        at_store32(address(self.run_queue.sleeping), 0)
        self.reads_end = turn_now(address(self.clock)) + self.turn_ns
        self.fresh_end = self.reads_end
        if self.delivering:
            # While there is something to deliver, publishers are read in small helpings: what consumers settle is seen soon, and what a
            # pass can deliver (a prefetch count, a full output) is not outrun by what it reads.
            self.delivering -= 1
            self.fresh_end -= self.turn_ns - self.turn_ns / PUBLISHERS_PART
        self.fresh_had = False
        self.heavy_end = 0
        self.jobs_had = False
        self.calls_had = False

    def take_event(self) -> c_int:
        """The next event of the batch. Returns a LOOP_* event or 0."""
        entry: pointer[socket_t] = cast(pointer[socket_t], self.events[self.event_next].data.ptr)
        ready: uint32_t = self.events[self.event_next].events
        self.event_next += 1
        if entry.dead:
            return 0
        if entry.kind == KIND_LISTENER:
            self.subject = entry
            return LOOP_ACCEPT
        if entry.kind == KIND_WAKE:
            return 0  # what it is about is looked at in the pass
        if ready & EPOLLOUT:
            self.mark_dirty(entry)
        if not ready & (EPOLLIN | EPOLLERR | EPOLLHUP) or entry.paused & PAUSED_TURN:
            return 0
        if entry.paused and not ready & (EPOLLERR | EPOLLHUP):
            return 0
        if entry.paused & (PAUSED_ANSWER | PAUSED_OUTPUT):
            self.subject = entry
            return LOOP_CLOSED  # nobody is there to get the answer
        if entry.paused:
            return self.read_socket(entry)  # it hung up, or failed
        if entry.heavy_ns and turn_now(address(self.clock)) >= entry.heavy_ns:
            entry.heavy_ns = 0
        if entry.heavy_ns or entry.connection.publisher:
            self.queue_turn(entry)
            return 0
        return self.read_socket(entry)

    def read_socket(self, entry: pointer[socket_t]) -> c_int:
        """Reads what a socket has, behind what is kept of it: it is `current` then. Returns a LOOP_* event or 0."""
        kept: size_t = 0 if entry.tls else entry.rest_size
        room: size_t = self.buffer_size - kept
        count: Py_ssize_t
        if kept:
            memcpy(self.buffer, entry.rest, kept)
        if room > entry.read_size:
            room = entry.read_size
        # Many at a time read less each, so that who only acks is not far behind who publishes.
        if self.event_count > READERS and room > READ_SIZE * READERS / self.event_count:
            room = READ_SIZE * READERS / self.event_count
        count = recv(entry.fd, self.buffer + kept, room, MSG_DONTWAIT)
        if count <= 0:
            if count < 0 and (errno == EAGAIN or errno == EINTR):
                return 0
            self.subject = entry
            return LOOP_CLOSED
        if cast(size_t, count) == room and entry.read_size < READ_SIZE:
            entry.read_size *= 2
        entry.received_ms = monotonic_ms()
        if entry.lingering:
            entry.thrown_away += count
            if entry.thrown_away <= self.thrown_away_max:
                return 0
            self.subject = entry
            return LOOP_CLOSED
        self.turn_spent = 0
        self.position = 0
        if entry.tls:
            self.end = count
            self.subject = entry
            return LOOP_TLS_IN
        self.end = kept + count
        entry.rest_size = 0
        entry.unfed = False
        self.current = entry
        return 0

    def take_turn(self, which: c_int) -> c_int:
        """The first of a list of turns goes on: with what is kept of it, else with what its socket has. Returns a LOOP_* event or 0."""
        entry: pointer[socket_t] = turn_pop(address(self.turns[which]))
        entry.paused &= ~cast(uint32_t, PAUSED_TURN)
        if entry.paused:
            return 0  # let_go brings it back when the rest of what holds it is over
        self.set_interest(entry, entry.interest | EPOLLIN)
        entry.received_ms = monotonic_ms()  # what it sent meanwhile was not read: it is not to blame for that
        if not entry.unfed:
            return self.read_socket(entry)
        self.turn_spent = 0
        self.position = 0
        self.end = entry.rest_size
        if entry.rest_size:
            memcpy(self.buffer, entry.rest, entry.rest_size)
        entry.rest_size = 0
        entry.unfed = False
        self.current = entry
        return 0

    def feed_current(self) -> c_int:
        """Feeds the engine what was read; keeps an unfinished frame. Returns a LOOP_* event or 0."""
        entry: pointer[socket_t] = self.current
        connection: pointer[connection_t] = entry.connection
        consumed: size_t = 0
        result: c_int
        if connection.engine.phase == PHASE_CLOSED:
            self.current = NULL
            return 0
        if connection.waiting:
            # The last method can't be answered yet: what follows it waits in `rest`.
            self.current = NULL
            entry.unfed = True
            entry.read_size = READ_LEAST
            if not socket_keep(entry, self.buffer + self.position, self.end - self.position):
                self.mark_failed(entry)
            self.pause(entry, PAUSED_ANSWER)
            return 0
        if out_pending(address(connection.out)) > self.output_asks_max + connection.largest_out and self.stop_asking(entry):
            return 0
        if self.turn_spent >= self.turn_ns and self.position < self.end:
            return self.cut_turn(entry)
        result = engine_feed(address(connection.engine), self.buffer + self.position, self.end - self.position, address(consumed))
        self.position += consumed
        self.mark_dirty(entry)
        if connection.logged:
            connection.logged = 0
            self.logged = True
            self.awaited = self.awaited or connection.awaited
            connection.awaited = False
        if result == FEED_PAUSE and connection.slow == SLOW_NONE:
            connection.wide = 0  # publishes to very many queues have used up the turn
            self.turn_spent = self.turn_ns
            if self.position < self.end:
                return self.cut_turn(entry)
        elif result != FEED_MORE:
            self.subject = entry
            if result == FEED_ERROR:
                connection.slow = SLOW_ERROR
            elif result == FEED_VERSION:
                connection.slow = SLOW_VERSION
            return LOOP_SLOW
        self.current = NULL
        if self.turn_spent >= self.turn_ns:
            self.make_heavy(entry)
        # Whole frames are at most frame_size_max, which the engine has checked: so is what is kept.
        if not socket_keep(entry, self.buffer + self.position, self.end - self.position):
            self.mark_failed(entry)
            return 0
        return self.look_at_publisher(entry)

    def stop_asking(self, entry: pointer[socket_t]) -> bint:
        """Its answers wait unsent: what it asks next waits in `rest`, and nothing more is read. False: the socket took enough of them."""
        connection: pointer[connection_t] = entry.connection
        if not entry.tls:
            self.flush(entry)
            if out_pending(address(connection.out)) <= self.output_asks_max + connection.largest_out:
                return False
        self.current = NULL
        entry.unfed = True
        entry.read_size = READ_LEAST
        if not socket_keep(entry, self.buffer + self.position, self.end - self.position):
            self.mark_failed(entry)
        self.pause(entry, PAUSED_OUTPUT)
        self.mark_dirty(entry)
        return True

    def ask_on(self, entry: pointer[socket_t]) -> void:
        """The output of a connection that was not read because of it is sent."""
        entry.paused &= ~cast(uint32_t, PAUSED_OUTPUT)
        entry.received_ms = monotonic_ms()  # what it sent meanwhile waits in the kernel: it must not look dead before that is read
        self.let_go(entry)

    def cut_turn(self, entry: pointer[socket_t]) -> c_int:
        """The turn is used up and there is more to feed: it goes on at the end of the list of heavy ones."""
        self.current = NULL
        self.make_heavy(entry)
        if not socket_keep(entry, self.buffer + self.position, self.end - self.position):
            self.mark_failed(entry)
            return 0
        entry.unfed = True
        self.queue_turn(entry)
        return self.look_at_publisher(entry)

    def look_at_publisher(self, entry: pointer[socket_t]) -> c_int:
        """Whether a publisher may go on. Returns LOOP_BLOCKED when it must be told that it may not, else 0."""
        if entry.connection.publisher and not self.may_publish(entry):
            self.subject = entry
            return LOOP_BLOCKED
        return 0

    def deliver(self) -> void:
        """Steps 7 to 12 of seed 004: every connection with work gets its turn; bounded, so that reads go on."""
        connection: pointer[connection_t]
        entry: pointer[socket_t]
        before: uint64_t
        done: uint64_t = 0
        result: c_int
        # Twice what a pass reads: consumers get what producers bring, whatever a delivery costs.
        end: int64_t = turn_now(address(self.clock)) + 2 * self.turn_ns
        while done < PASS_MESSAGES and (done == 0 or turn_now(address(self.clock)) < end):
            connection = run_queue_pop(address(self.run_queue))
            if connection == NULL:
                return
            # Cleared before the turn: what arrives during it schedules the connection again.
            at_store32(address(connection.scheduled), 0)
            entry = cast(pointer[socket_t], connection.loop)
            before = connection.deliveries
            result = connection_work(connection, self.turn_messages)
            done += connection.deliveries - before + 1
            if connection.deliveries != before:
                self.delivering = DELIVERING_PASSES
                self.mark_dirty(entry)
            if result == WORK_FULL:
                if entry.tls:
                    connection_block_output(connection)
                    self.mark_dirty(entry)
                    continue
                self.flush(entry)
                if out_pending(address(connection.out)) >= connection.output_high:
                    connection_block_output(connection)
                    continue
            if result != WORK_DONE and not at_swap32(address(connection.scheduled), 1):
                run_queue_push(address(self.run_queue), connection)

    def send_buffer(self, entry: pointer[socket_t], out: pointer[outbuf_t]) -> bint:
        """Sends what the socket takes. False when the socket failed."""
        count: Py_ssize_t
        flags: c_int = MSG_NOSIGNAL | MSG_DONTWAIT
        if entry.connection.engine.phase == PHASE_CLOSED and not entry.tls:
            flags |= MSG_MORE  # the last words go with the end of the stream (flush), in one packet
        while out_pending(out):
            if out.ref_count:
                count = self.send_pieces(entry, out)
            else:
                count = send(entry.fd, out.data + out.start, out.end - out.start, flags)
            if count < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    self.set_interest(entry, entry.interest | EPOLLOUT)
                    return True
                return False
            out_sent(out, count)
            entry.sent_ms = monotonic_ms()
        self.set_interest(entry, entry.interest & ~cast(uint32_t, EPOLLOUT))
        return True

    def send_pieces(self, entry: pointer[socket_t], out: pointer[outbuf_t]) -> ssize_t:
        """One call of the system for output that refers to contents. What sendmsg returned."""
        pieces: iovec[OUT_PIECES]
        scratch: uint8_t[OUT_SCRATCH]
        message: msghdr
        memset(address(message), 0, sizeof(msghdr))
        message.msg_iov = pieces
        message.msg_iovlen = out_gather(out, pieces, scratch)
        return sendmsg(entry.fd, address(message), MSG_NOSIGNAL | MSG_DONTWAIT)

    def flush_confirms(self, entry: pointer[socket_t]) -> void:
        if entry.connection.confirming != NULL:
            connection_flush_confirms(entry.connection)
            if entry.connection.confirming != NULL:
                list_push(self.lists, LIST_WAITING, entry)

    def flush(self, entry: pointer[socket_t]) -> void:
        connection: pointer[connection_t] = entry.connection
        out: pointer[outbuf_t] = address(entry.cipher) if entry.tls else address(connection.out)
        waiting: size_t
        self.flush_confirms(entry)
        if not self.send_buffer(entry, out):
            self.mark_failed(entry)
            return
        waiting = out_pending(out)
        if entry.tls:
            waiting += out_pending(address(connection.out))
            if out_pending(address(connection.out)) and out.end - out.start < CIPHER_PIECE:
                self.mark_dirty(entry)  # the next piece can be encrypted
        # One message may be larger than what the rest of the output may come to.
        if waiting > self.output_max and waiting - self.output_max > connection.largest_out:
            entry.overrun = True
            self.mark_failed(entry)
            return
        if waiting == 0:
            connection.largest_out = 0
        if entry.paused & PAUSED_OUTPUT and waiting < connection.output_low:
            self.ask_on(entry)
        if connection.write_blocked:
            if waiting < connection.output_low:
                connection_unblock_output(connection)
        elif waiting >= connection.output_high:
            connection_block_output(connection)  # TLS: the backlog is in the encrypted buffer, which a turn doesn't see
        if waiting == 0 and connection.engine.phase == PHASE_CLOSED and not entry.lingering:
            # The peer must see our last frames: closing with unread input would reset the connection under them.
            entry.lingering = True
            shutdown(entry.fd, SHUT_WR)

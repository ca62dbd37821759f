"""One I/O thread (see loop.pxd): reads and parses without the GIL, delivers, sends once per connection and pass.

in: sockets, functions to call, transactions that wait for the log. out: calls of the protocol engine, kicks of the log; Python only for
what the fast path leaves over (LOOP_* events).

A pass: handle ready sockets (read, feed the engine) for one turn's time, those that publish last and for a part of it while there is
something to deliver, tell the log to write (a light pass does so later), give each connection with work its turn, send what became dirty
for one turn's time (the output that waits longest first; the rest gathers more until the next pass), give long work and heavy connections
their share, then sleep in epoll until something is ready, another thread schedules a connection, the log moved, or the timer is due.

A turn: what a connection's requests take in Python is added up. At Limits.turn_us its bytes wait in socket_t.rest, and it is heavy for
Limits.heavy_ms: read from a list of its own, one turn's time of each pass for all of them, behind everybody else's reads and deliveries.

I1  A connection, its channels and its buffers are touched by its own loop's thread only; other threads reach it through
    `schedule` (run queue under run_lock, eventfd when the loop sleeps) and `call`.
I2  A socket_t is freed only after the epoll batch that may still name it is done.
I3  A confirm that waits for the log needs no Python and no event of its connection: the log's writer sets run_queue.log_moved,
    and the pass that sees it flushes the confirms of LIST_WAITING.
I4  Between two turns of a heavy connection everybody else with something to read or to get has had one; jobs have had their share.
I5  A socket is on a list exactly while the bit of that list is set in socket_t.on; it leaves all of them when it is removed.
I6  Transactions of the loop take effect in the order in which they were committed.
"""

from __future__ import annotations

import collections
import functools
import logging
import threading

from cython import NULL, Py_ssize_t, address, bint, cast, cclass, declare, nogil, p_char, p_void, pointer, size_t, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.flintmq.channel.connection import Connection
from cython.cimports.flintmq.channel.slow import SLOW_ERROR, SLOW_METHOD, SLOW_NONE, SLOW_RESOLVE, SLOW_ROUTE, SLOW_VERSION
from cython.cimports.flintmq.channel.turns import WORK_DONE, WORK_FULL, connection_block_output, connection_work
from cython.cimports.flintmq.channel.types import connection_t
from cython.cimports.flintmq.core.atomics import at_load32, at_store32, at_swap32, spin_lock, spin_unlock
from cython.cimports.flintmq.core.buffer import out_pending
from cython.cimports.flintmq.core.clock import monotonic_ms
from cython.cimports.flintmq.core.content import arena_free, arena_new
from cython.cimports.flintmq.core.jobs import jobs_end, jobs_run, turn_now
from cython.cimports.flintmq.core.pass_trace import (
    PHASE_DELIVER, PHASE_GIL, PHASE_LOG, PHASE_PYTHON, PHASE_READ, PHASE_REST, PHASE_SEND, PassTrace, pass_trace, trace_free, trace_phase,
    trace_sleeps, trace_wakes,
)  # fmt: skip
from cython.cimports.flintmq.net.chores import Chores
from cython.cimports.flintmq.net.patience import Patience
from cython.cimports.flintmq.net.sockets import (
    ALARM_DISK, CIPHER_PIECE, KIND_CONNECTION, KIND_LISTENER, KIND_WAKE, LIST_DIRTY, LIST_FAILED, LIST_LINGERING, LIST_THROTTLED,
    LIST_WAITING, PAUSED_ALARM, PAUSED_ANSWER, PAUSED_OUTPUT, PAUSED_TURN, READ_LEAST, READ_SIZE, TURNS_COUNT, TURNS_FRESH, TURNS_HEAVY,
    TURNS_LAGGED, Socket, connection_schedule, intake_look, intake_look_lagged, intake_make_heavy, intake_may_publish, intake_outruns,
    intake_queue_lagged, intake_queue_turn, intake_resume, list_pop, list_push, lists_forget, loop_log_moved, loop_wake, output_cipher,
    output_confirms, output_encrypt, output_flush, output_lingering, run_queue_forget, run_queue_pop, run_queue_push, socket_ended,
    socket_interest, socket_keep, socket_next_joining, socket_pause, socket_t, socket_wait, turn_pop, turns_forget,
)  # fmt: skip
from cython.cimports.flintmq.net.sysio import (
    EAGAIN, EFD_CLOEXEC, EFD_NONBLOCK, EINTR, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CLOEXEC, EPOLL_CTL_ADD, MSG_DONTWAIT,
    epoll_create1, epoll_ctl, epoll_event, errno, eventfd, recv, sys_close,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.engine import FEED_ERROR, FEED_MORE, FEED_PAUSE, FEED_VERSION, PHASE_CLOSED, engine_feed
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcpy

# by ALARM_*: what connection.blocked says is low
ALARM_NAMES = ("", "memory", "disk", "memory & disk")
OVERRUN = "it does not read: more than output_bytes_max of its output is not sent"
# sockets that may be ready at once before each reads less
READERS = declare(c_int, 8)
# of a turn's time, the part that publishers are read for in a pass while messages are delivered, and for how many passes more
PUBLISHERS_PART = declare(int64_t, 8)
DELIVERING_PASSES = declare(c_int, 16)
# a pass that read no more sockets than this, for less than this, delivers before it wakes the writer
LIGHT_EVENTS = declare(c_int, 4)
LIGHT_NS = declare(int64_t, 50_000)
# messages delivered between two looks at the sockets
PASS_MESSAGES = declare(uint32_t, 8192)


@cclass
class Loop:
    """An I/O thread's loop.

    Args: config: flintmq.config.Config; memory_limit: bytes of message content at which publishers are paused.
    Callbacks (set before run): on_accept(listener), on_timer(now_ms), on_alarm(what is low; "": nothing any more).
    """

    def __cinit__(self, config: object, memory_limit: int):
        limits = config.limits
        self.log = logging.getLogger("flintmq.net")
        event: epoll_event
        self.io.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.run_queue.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.io.epoll < 0 or self.run_queue.wake < 0:
            raise OSError(errno, "cannot create epoll or eventfd")
        self.arena = arena_new()
        # Room for the largest unfinished frame before a full read.
        self.buffer_size = READ_SIZE + limits.frame_size_max + 8
        self.buffer = cast(pointer[uint8_t], malloc(self.buffer_size))
        if self.arena == NULL or self.buffer == NULL:
            raise MemoryError
        self.wake_socket.fd = self.run_queue.wake
        self.wake_socket.kind = KIND_WAKE
        event.events = EPOLLIN | EPOLLET
        event.data.ptr = address(self.wake_socket)
        epoll_ctl(self.io.epoll, EPOLL_CTL_ADD, self.run_queue.wake, address(event))
        self.timer_period_ms = limits.housekeeping_ms
        self.timer_ms = monotonic_ms() + self.timer_period_ms
        self.io.memory_high = memory_limit
        self.io.memory_low = cast(uint64_t, memory_limit * limits.memory_resume)
        self.io.memory_hard = memory_limit + memory_limit // 4
        self.io.clock.manual_ns = -1
        self.turn_ns = limits.turn_us * 1000
        self.jobs_ns = limits.jobs_us * 1000
        self.patience = Patience(limits.loop_poll_us)
        self.io.heavy_ns = limits.heavy_ms * 1_000_000
        self.io.lag_bytes = limits.queue_lag_bytes
        self.io.lag_messages = limits.queue_lag_messages
        self.io.lag_pace = limits.queue_lag_pace
        self.io.lag_ns = limits.queue_lag_ms * 1_000_000
        self.chores = Chores(self.log)
        self.chores.clock = address(self.io.clock)
        self.late_ns = limits.loop_late_ms * 1_000_000
        self.thrown_away_max = limits.close_bytes_max
        self.io.close_look_ms = limits.close_look_ms
        self.listeners = []
        self.turn_messages = limits.turn_messages_max
        self.io.output_max = limits.output_bytes_max
        self.output_asks_max = limits.output_asks_max
        self.sockets = {}
        self.graves = []
        self.calls = collections.deque()
        self.commits = collections.deque()

    def __dealloc__(self):
        if self.io.epoll > 0:
            sys_close(self.io.epoll)
        if self.run_queue.wake > 0:
            sys_close(self.run_queue.wake)
        free(self.buffer)
        trace_free(address(self.trace))
        if self.arena != NULL:
            arena_free(self.arena)

    # --- registration (loop thread) -------------------------------------------------------------------------------------

    def add_listener(self, sock: object) -> None:
        """Accepts on a listening, non-blocking Python socket: on_accept(sock) is called when it is ready."""
        entry: Socket = Socket(sock, sock.fileno(), None)
        entry.socket.kind = KIND_LISTENER
        self.listeners.append(entry)
        self._register(entry)

    def accept(self, wanted: bool) -> None:
        """Accepts no more, or again: a listener that can't get a descriptor would be ready in every pass. O(listeners)."""
        entry: Socket
        self.accept_paused = not wanted
        for entry in self.listeners:
            socket_interest(address(self.io), address(entry.socket), EPOLLIN if wanted else 0)

    def add(self, fd: c_int, connection: Connection, tls: object) -> Socket:
        """Serves a connected socket, whose descriptor is the loop's from now on (it asks the kernel not to wait). `tls`: a
        net.tls.TlsLayer, or None."""
        entry: Socket = Socket(None, fd, connection)
        entry.socket.owned = True
        entry.socket.kind = KIND_CONNECTION
        entry.socket.connection = address(connection.connection)
        entry.socket.received_ms = monotonic_ms()
        entry.socket.sent_ms = entry.socket.received_ms
        entry.tls = tls
        entry.socket.tls = tls is not None
        connection.connection.loop = address(entry.socket)
        connection.connection.schedule = connection_schedule
        connection.connection.arena = self.arena
        connection.connection.jobs = address(self.jobs)
        connection.connection.counters = address(self.counts)
        self._register(entry)
        return entry

    def _register(self, entry: Socket | None) -> void:
        event: epoll_event
        entry.socket.owner = cast(p_void, entry)
        entry.socket.run_queue = address(self.run_queue)
        entry.socket.interest = EPOLLIN
        entry.socket.read_size = READ_LEAST
        event.events = EPOLLIN
        event.data.ptr = address(entry.socket)
        self.sockets[entry.socket.fd] = entry
        epoll_ctl(self.io.epoll, EPOLL_CTL_ADD, entry.socket.fd, address(event))

    def remove(self, entry: Socket) -> None:
        """Closes the socket. Its memory stays until no pending event can name it (I2)."""
        if entry.socket.dead:
            return
        entry.socket.dead = True
        self.unschedule(entry)
        lists_forget(self.io.lists, address(entry.socket))
        if entry.socket.paused & PAUSED_TURN:
            turns_forget(address(self.io.turns[entry.socket.turns]), address(entry.socket))
        if self.current == address(entry.socket):
            self.current = NULL
        self.sockets.pop(entry.socket.fd, None)
        if entry.socket.kind == KIND_LISTENER:
            self.listeners.remove(entry)  # its descriptor is somebody else's soon
        entry.close()
        self.graves.append(entry)
        if self.accept_paused:
            self.accept(True)  # a descriptor is free
        if entry.connection is not None:
            entry.connection.handler = None  # they name each other: they would wait for the cycle collector

    def unschedule(self, entry: Socket) -> None:
        """No consumer of the connection is left: it has no turn to come, and its memory may go. O(connections that wait for a turn)."""
        if entry.socket.connection != NULL:
            run_queue_forget(address(self.run_queue), entry.socket.connection)

    @property
    def socket_count(self) -> int:
        """Sockets that the loop holds, listeners included. Any thread."""
        return len(self.sockets)

    def counters(self) -> dict:
        """What the loop counted since it began (core/counters.pxd); `sizes`: messages by the size of their bodies. Any thread."""
        counts: dict = dict(self.counts)
        counts["sizes"] = list(self.counts.sizes)
        return counts

    def entries(self) -> list:
        """Every Socket of the loop, listeners included."""
        return list(self.sockets.values())

    def touch(self, entry: Socket) -> None:
        """Output was written outside a read of this socket: send it in this pass."""
        list_push(self.io.lists, LIST_DIRTY, address(entry.socket))

    def set_timer(self, period_ms: int) -> None:
        """Changes how often on_timer is called; the next call comes after one period."""
        self.timer_period_ms = period_ms
        self.timer_ms = monotonic_ms() + period_ms

    # --- other threads --------------------------------------------------------------------------------------------------

    def call(self, function: object) -> None:
        """Runs `function()` on the loop's thread. Any thread."""
        self.calls.append(function)
        at_store32(address(self.run_queue.called), 1)
        loop_wake(address(self.run_queue))

    def is_current(self) -> bool:
        """True on the loop's own thread, and before it runs."""
        return self.thread_id is None or self.thread_id == threading.get_ident()

    # --- long work in slices ----------------------------------------------------------------------------------------------

    def job(self, step: object, ended: object = None) -> None:
        """Long work on the loop's thread, a slice at a time. Any thread.

        Args: step: () -> bool, called until it says True (nothing is left to do); one call does work of at most some 50 us (a few dozen
        messages, say), and all jobs of the loop together get Limits.jobs_us of each pass, in turn. ended: (done: bool) -> None, called
        once on the loop's thread after the last step; False: `step` raised, or the loop ended first.
        """
        if self.is_current():
            self.chores.add(step, ended)
        else:
            self.call(functools.partial(self.chores.add, step, ended))

    @property
    def working(self) -> bool:
        """True while a job of the loop is not done."""
        return self.chores.waiting or self.jobs.first != NULL

    @property
    def turns_waiting(self) -> bool:
        """True while a connection waits for a turn."""
        which: c_int
        for which in range(TURNS_COUNT):
            if self.io.turns[which].first != NULL:
                return True
        return False

    @property
    def manual_ns(self) -> int:
        """What the clock of turns and jobs says, nanoseconds; negative: it is the monotonic clock. Tests set it."""
        return self.io.clock.manual_ns

    @manual_ns.setter
    def manual_ns(self, value: int) -> None:
        self.io.clock.manual_ns = value

    def passes(self) -> PassTrace:
        """Where the time of its passes goes."""
        return pass_trace("loop", address(self.trace), self)

    # --- the log (loop thread) ------------------------------------------------------------------------------------------

    def attach_log(self, log: LogPort) -> None:
        """From now on confirms wait for this log, and its pressure holds publishers back. Before `run`."""
        self.log_port = log
        self.io.port = address(log.port)

    def commit(self, transaction: object) -> None:
        """Completes the transaction when the log has it, in order with the loop's others; at once when it has it already."""
        self.logged = self.awaited = self.io.port != NULL
        self.commits.append(transaction)
        if not self.commits_wait:
            self._complete()

    def _complete(self) -> object:
        """The log moved: transactions that it has by now take effect, oldest first."""
        while self.commits:
            done = True
            try:
                done = self.commits[0].advance()
            except Exception:
                self.log.exception("internal error while a transaction took effect")
            if not done:
                break
            self.commits.popleft()
        self.commits_wait = len(self.commits) != 0

    def kick(self) -> void:
        """One call of the log for all that the pass logged; what gathers while it writes goes together the next time."""
        if self.logged:
            trace_phase(address(self.trace), PHASE_LOG)
            if self.io.port != NULL and self.io.port.kick != NULL:
                self.io.port.kick(self.io.port.context, self.awaited)
            self.logged = False
            self.awaited = False
        trace_phase(address(self.trace), PHASE_REST)

    def is_light(self) -> bint:
        """Little came: what is delivered goes first. The writer, once woken, may take this thread's processor before it has delivered."""
        return self.event_count <= LIGHT_EVENTS and turn_now(address(self.io.clock)) - self.polled_ns < LIGHT_NS

    # --- who is read, and who is not ------------------------------------------------------------------------------------

    def resume(self, entry: Socket) -> None:
        """Reads the socket again as far as nothing holds it back any more: an alarm (handler.is_blocked), an answer that must come
        first (connection.waiting), the log's buffers."""
        was: uint32_t = entry.socket.paused
        if entry.socket.dead or was == 0:
            return
        if not entry.connection.handler.is_blocked:
            entry.socket.paused &= ~cast(uint32_t, PAUSED_ALARM)
        if was & PAUSED_ANSWER and not entry.connection.connection.waiting:
            entry.socket.paused &= ~cast(uint32_t, PAUSED_ANSWER)
        # What it sent meanwhile waits in the kernel: it must not look dead before that is read.
        entry.socket.received_ms = monotonic_ms()
        intake_resume(address(self.io), address(entry.socket))

    def release(self, entry: Socket) -> None:
        """A connection that ends is read on, whatever held it back: its close-ok must be seen, and unread input would reset it."""
        entry.socket.paused &= PAUSED_TURN
        intake_resume(address(self.io), address(entry.socket))

    def notice_late(self, now_ns: int64_t, allowed_ns: int64_t) -> void:
        """Whether the loop did not look at its sockets for longer than `allowed_ns` and its tolerance: then nobody is to blame."""
        if now_ns - self.polled_ns > allowed_ns + self.late_ns:
            self.awake_ms = monotonic_ms()

    @property
    def now_ms(self) -> int:
        """The loop's monotonic clock, milliseconds: what on_timer is called with."""
        return monotonic_ms()

    @property
    def alarmed(self) -> bool:
        """True while message memory is above the watermark, or the log's disk is full."""
        return self.io.alarm != 0

    @property
    def disk_low(self) -> bool:
        """True while the log's disk is full."""
        return self.io.alarm & ALARM_DISK != 0

    # --- events ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until `stopping` is set (by a call or a callback)."""
        reason: c_int
        before: int64_t
        self.thread_id = threading.get_ident()
        if self.log_port is not None:
            self.log_port.add_waker(loop_log_moved, address(self.run_queue))
        try:
            while not self.stopping:
                with nogil:
                    reason = self.run_pass()
                    trace_phase(address(self.trace), PHASE_GIL)
                trace_phase(address(self.trace), PHASE_PYTHON)
                # Whatever Python does now may log; and housekeeping takes what nobody waits for (ends of messages) to the disk.
                self.logged = self.awaited = self.io.port != NULL
                if reason == LOOP_CALLS:
                    self._run_calls()
                elif reason == LOOP_TIMER:
                    self._guard(self.on_timer, monotonic_ms())
                elif reason == LOOP_COMMITS:
                    self.logged = self.awaited = False  # that they have ended: nobody waits for it, it goes with the next group
                    self._complete()
                    self.logged = self.awaited = self.awaited or self.commits_wait
                elif reason == LOOP_CHORES:
                    self.chores.run(self.chores_end)
                elif reason == LOOP_ALARM:
                    self._guard(self.on_alarm, ALARM_NAMES[self.io.alarm])
                elif reason == LOOP_ACCEPT:
                    self._guard(self.on_accept, cast(Socket, self.subject.owner).sock)
                else:
                    before = turn_now(address(self.io.clock))
                    self._serve(cast(Socket, self.subject.owner), reason)
                    self.turn_spent += turn_now(address(self.io.clock)) - before
                if self.event_next >= self.event_count and self.current == NULL and self.graves:
                    self.graves.clear()
        finally:
            self.chores.end()
            jobs_end(address(self.jobs))
            if self.log_port is not None:
                self.log_port.remove_waker(address(self.run_queue))

    def _run_calls(self) -> void:
        """What other threads left, for one turn's time; the rest is for the next pass."""
        end: int64_t = turn_now(address(self.io.clock)) + self.turn_ns
        while self.calls and turn_now(address(self.io.clock)) < end:
            self._guard(self.calls.popleft())
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

    def _serve(self, entry: Socket | None, reason: c_int) -> void:
        """An event of one connection that needs Python. A bug in a handler costs that connection, not the node."""
        connection: pointer[connection_t] = entry.socket.connection
        slow: c_int
        handler = entry.connection.handler
        try:
            if reason == LOOP_SLOW:
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
            elif reason == LOOP_TLS_IN:
                self._tls_in(entry)
            elif reason == LOOP_TLS_OUT:
                output_encrypt(address(self.io), entry)
            elif reason == LOOP_BLOCKED:
                handler.blocked(ALARM_NAMES[self.io.alarm])
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
            # What it has to say (an alert, why a request is refused), as far as the socket takes it now.
            output_cipher(address(self.io), entry, entry.tls.pending())
            output_flush(address(self.io), address(entry.socket))
            entry.connection.handler.closed(f"{entry.tls.NAME} failed: {error}")
            self.remove(entry)
            return
        output_cipher(address(self.io), entry, entry.tls.pending())
        if entry.tls.over and out_pending(address(entry.socket.cipher)) == 0:
            entry.tls = None  # net.proxy: what follows is not changed on its way
            entry.socket.tls = False
        elif entry.tls.eof:
            output_flush(address(self.io), address(entry.socket))
            entry.connection.handler.closed("connection closed by peer")
            self.remove(entry)
            return
        elif entry.socket.lingering:
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
        list_push(self.io.lists, LIST_DIRTY, address(entry.socket))

    def run_pass(self) -> c_int:
        entry: pointer[socket_t]
        now: int64_t
        result: c_int
        while True:
            trace_phase(address(self.trace), PHASE_READ)
            if self.current != NULL:
                result = self.feed_current()
                if result:
                    return result
            # Reads have their time, then deliveries have theirs: what is left of the batch waits for the next pass.
            if self.event_next < self.event_count and turn_now(address(self.io.clock)) < self.reads_end:
                result = self.take_event()
                if result:
                    return result
                continue
            # Publishers are behind who settles, asks and connects; one at least is read.
            if self.io.turns[TURNS_FRESH].first != NULL and (not self.fresh_had or turn_now(address(self.io.clock)) < self.fresh_end):
                self.fresh_had = True
                result = self.take_turn(TURNS_FRESH)
                if result:
                    return result
                continue
            if not self.is_light():
                self.kick()
            self.deliver()
            if at_load32(address(self.run_queue.log_moved)):
                # Swapped before the durable LSN is read: what moves later sets it again.
                at_swap32(address(self.run_queue.log_moved), 0)
                entry = list_pop(self.io.lists, LIST_WAITING)
                while entry != NULL:
                    list_push(self.io.lists, LIST_DIRTY, entry)
                    entry = list_pop(self.io.lists, LIST_WAITING)
                if self.commits_wait:
                    self.kick()
                    return LOOP_COMMITS
            if self.flush():
                return LOOP_TLS_OUT
            self.kick()
            output_lingering(address(self.io))
            if self.io.lists[LIST_FAILED] != NULL and self.may_begin(address(self.ends_end)):
                self.subject = list_pop(self.io.lists, LIST_FAILED)
                return LOOP_CLOSED
            if at_load32(address(self.run_queue.called)) and not self.calls_had:
                self.calls_had = True
                at_swap32(address(self.run_queue.called), 0)
                return LOOP_CALLS
            intake_look(address(self.io))
            # Or it came and went since the last look: who was paused by it must be let go on.
            if self.io.alarm != self.alarm_told or (self.io.alarm == 0 and self.io.alarm_paused):
                self.alarm_told = self.io.alarm
                self.io.alarm_paused = self.io.alarm_paused and self.io.alarm != 0
                return LOOP_ALARM
            self.kick()
            now = monotonic_ms()
            if now >= self.timer_ms:
                self.notice_late(turn_now(address(self.io.clock)), 0)
                self.timer_ms = now + self.timer_period_ms
                return LOOP_TIMER
            if not self.jobs_had and (self.chores.waiting or self.jobs.first != NULL):
                result = self.give_shares()
                if result:
                    return result
            # Who else is in this batch comes first.
            if self.io.turns[TURNS_HEAVY].first != NULL and self.event_next >= self.event_count and self.may_begin(address(self.heavy_end)):
                result = self.take_turn(TURNS_HEAVY)
                if result:
                    return result
                continue
            self.sleep(now)

    def flush(self) -> bint:
        """Sends what connections have to send, for one turn's time: the output of the others gathers meanwhile, and a send costs as much
        as ten messages. True: that of `subject` is to be encrypted, which needs Python; it is sent there, too."""
        entry: pointer[socket_t]
        trace_phase(address(self.trace), PHASE_SEND)
        while self.io.lists[LIST_DIRTY] != NULL and self.may_begin(address(self.sends_end)):
            entry = list_pop(self.io.lists, LIST_DIRTY)
            if entry.tls:
                output_confirms(address(self.io), entry)
                if out_pending(address(entry.connection.out)) and entry.cipher.end - entry.cipher.start < CIPHER_PIECE:
                    self.subject = entry
                    return True
            output_flush(address(self.io), entry)
        return False

    def give_shares(self) -> c_int:
        """Long work has its share of the pass: what needs no Python here; returns LOOP_CHORES when there is some that does, else 0."""
        now: int64_t = turn_now(address(self.io.clock))
        self.jobs_had = True
        if self.jobs.first != NULL:
            jobs_run(address(self.jobs), address(self.io.clock), now + (self.jobs_ns // 2 if self.chores.waiting else self.jobs_ns))
        self.chores_end = now + self.jobs_ns
        return LOOP_CHORES if self.chores.waiting else 0

    def may_begin(self, end: pointer[int64_t]) -> bint:
        """Whether another one of a kind of work may begin in this pass, a turn's time for all. *end: when none does; 0: none has begun."""
        now: int64_t = turn_now(address(self.io.clock))
        if end[0] == 0:
            end[0] = now + self.turn_ns
        return now < end[0]

    def sleep(self, now: int64_t) -> void:
        """The end of a pass: waits until there is something to do, and not at all when there is already."""
        timeout: c_int
        wanted: bint = self.io.port != NULL and (
            self.io.lists[LIST_WAITING] != NULL
            or self.io.lists[LIST_THROTTLED] != NULL
            or self.commits_wait
            or self.io.alarm & ALARM_DISK != 0
        )
        if self.io.port != NULL:
            at_swap32(address(self.run_queue.log_wanted), 1 if wanted else 0)
        intake_look_lagged(address(self.io))
        # Say that we sleep, then look once more: who comes after the look sees `sleeping` and writes the eventfd.
        at_swap32(address(self.run_queue.sleeping), 1)
        spin_lock(address(self.run_queue.lock))
        timeout = 0 if self.run_queue.first != NULL else cast(c_int, self.timer_ms - now)
        spin_unlock(address(self.run_queue.lock))
        if (wanted and at_load32(address(self.run_queue.log_moved))) or at_load32(address(self.run_queue.called)):
            timeout = 0
        if (
            self.io.turns[TURNS_FRESH].first != NULL
            or self.io.turns[TURNS_HEAVY].first != NULL
            or self.jobs.first != NULL
            or self.chores.waiting
            or self.io.lists[LIST_FAILED] != NULL
            or self.io.lists[LIST_DIRTY] != NULL
        ):
            timeout = 0
        if self.io.turns[TURNS_LAGGED].first != NULL:
            timeout = min(timeout, 1)  # its consumers may be another loop's
        if self.io.lists[LIST_LINGERING] != NULL and timeout > self.io.linger_ms - now:
            timeout = cast(c_int, self.io.linger_ms - now) if self.io.linger_ms > now else 0
        # Events that this pass had no time for come first; then the kernel is asked again.
        now_ns: int64_t = turn_now(address(self.io.clock))
        if self.event_next >= self.event_count:
            self.notice_late(now_ns, 0)
            worked_ns: int64_t = now_ns - self.polled_ns
            self.polled_ns = now_ns
            trace_sleeps(address(self.trace))
            count: c_int = self.patience.wait(self.io.epoll, self.events, timeout, worked_ns, address(self.io.clock), self.polled_ns)
            self.event_next = 0
            self.event_count = max(count, 0)
            trace_wakes(address(self.trace))
            # A process that was stopped comes back late, too.
            now_ns = turn_now(address(self.io.clock))
            self.notice_late(now_ns, cast(int64_t, timeout) * 1_000_000)
            self.polled_ns = now_ns
        at_store32(address(self.run_queue.sleeping), 0)
        self.reads_end = now_ns + self.turn_ns
        self.fresh_end = self.reads_end
        if self.delivering:
            # While there is something to deliver, publishers are read in small helpings: what consumers settle is seen soon, and what a
            # pass can deliver (a prefetch count, a full output) is not outrun by what it reads.
            self.delivering -= 1
            # Where the sends of a pass take their turn's time, though, more messages for each of them are what a pass needs most.
            if self.sends_end == 0 or now_ns < self.sends_end:
                self.fresh_end -= self.turn_ns - self.turn_ns / PUBLISHERS_PART
        self.fresh_had = False
        self.heavy_end = self.ends_end = self.sends_end = 0
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
            list_push(self.io.lists, LIST_DIRTY, entry)
        if not ready & (EPOLLIN | EPOLLERR | EPOLLHUP) or entry.paused & PAUSED_TURN:
            return 0
        if entry.paused and not ready & (EPOLLERR | EPOLLHUP):
            return 0
        if entry.paused & (PAUSED_ANSWER | PAUSED_OUTPUT):
            socket_ended(address(self.io), entry)  # nobody is there to get the answer
            return 0
        if entry.paused:
            return self.read_socket(entry)  # it hung up, or failed
        if entry.heavy_ns and turn_now(address(self.io.clock)) >= entry.heavy_ns:
            entry.heavy_ns = 0
        if entry.heavy_ns or entry.connection.publisher:
            intake_queue_turn(address(self.io), entry)
            return 0
        return self.read_socket(entry)

    def read_socket(self, entry: pointer[socket_t]) -> c_int:
        """Reads what a socket has, behind its kept bytes: it is `current` then. Returns a LOOP_* event or 0."""
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
            if count == 0 or (errno != EAGAIN and errno != EINTR):
                socket_ended(address(self.io), entry)
            return 0
        self.subject = entry
        entry.received_bytes += count
        entry.received_packets += 1
        self.counts.received_bytes += count
        self.counts.received_packets += 1
        if cast(size_t, count) == room and entry.read_size < READ_SIZE:
            entry.read_size *= 2
        entry.received_ms = monotonic_ms()
        if entry.lingering:
            entry.thrown_away += count
            if entry.thrown_away > self.thrown_away_max:
                return LOOP_CLOSED
            if not entry.tls:
                return 0  # TLS says in its bytes that the stream ends
        self.turn_spent = 0
        self.position = 0
        if entry.tls:
            self.end = count
            return LOOP_TLS_IN
        self.end = kept + count
        entry.rest_size = 0
        entry.unfed = False
        self.current = entry
        return 0

    def take_turn(self, which: c_int) -> c_int:
        """The first of a list of turns goes on: with its kept bytes, else with what its socket has. Returns a LOOP_* event or 0."""
        entry: pointer[socket_t] = turn_pop(address(self.io.turns[which]))
        entry.paused &= ~cast(uint32_t, PAUSED_TURN)
        if entry.paused:
            return 0  # let_go brings it back when its other holds are over
        socket_interest(address(self.io), entry, entry.interest | EPOLLIN)
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
        size: size_t = self.end - self.position
        if connection.waiting:
            size = socket_next_joining(entry, self.buffer + self.position, size)
            if size == 0:
                self.current = NULL
                socket_wait(address(self.io), entry, self.buffer + self.position, self.end - self.position)
                return 0
        if out_pending(address(connection.out)) > self.output_asks_max + connection.largest_out and self.stop_asking(entry):
            return 0
        if self.turn_spent >= self.turn_ns and self.position < self.end:
            return self.cut_turn(entry)
        result = engine_feed(address(connection.engine), self.buffer + self.position, size, address(consumed))
        self.position += consumed
        list_push(self.io.lists, LIST_DIRTY, entry)
        self.collect_logged(entry)
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
            intake_make_heavy(address(self.io), entry)
        # Whole frames are at most frame_size_max, which the engine has checked: so is what is kept.
        if not socket_keep(entry, self.buffer + self.position, self.end - self.position):
            list_push(self.io.lists, LIST_FAILED, entry)
            return 0
        return self.look_at_publisher(entry)

    def collect_logged(self, entry: pointer[socket_t]) -> void:
        connection: pointer[connection_t] = entry.connection
        if connection.logged:
            connection.logged = 0
            self.logged = True
            self.awaited = self.awaited or connection.awaited
            connection.awaited = False

    def stop_asking(self, entry: pointer[socket_t]) -> bint:
        """Its answers wait unsent: what it asks next waits in `rest`, and nothing more is read. False: the socket took enough of them."""
        connection: pointer[connection_t] = entry.connection
        if not entry.tls:
            output_flush(address(self.io), entry)
            if out_pending(address(connection.out)) <= self.output_asks_max + connection.largest_out:
                return False
        self.current = NULL
        entry.unfed = True
        entry.read_size = READ_LEAST
        if not socket_keep(entry, self.buffer + self.position, self.end - self.position):
            list_push(self.io.lists, LIST_FAILED, entry)
        socket_pause(address(self.io), entry, PAUSED_OUTPUT)
        list_push(self.io.lists, LIST_DIRTY, entry)
        return True

    def cut_turn(self, entry: pointer[socket_t]) -> c_int:
        """The turn is used up and there is more to feed: it goes on at the end of the list of heavy ones."""
        self.current = NULL
        intake_make_heavy(address(self.io), entry)
        if not socket_keep(entry, self.buffer + self.position, self.end - self.position):
            list_push(self.io.lists, LIST_FAILED, entry)
            return 0
        entry.unfed = True
        intake_queue_turn(address(self.io), entry)
        return self.look_at_publisher(entry)

    def look_at_publisher(self, entry: pointer[socket_t]) -> c_int:
        """Whether a publisher may go on. Returns LOOP_BLOCKED when it must be told that it may not, else 0."""
        if entry.connection.publisher == 0:
            return 0
        if not intake_may_publish(address(self.io), entry):
            self.subject = entry
            return LOOP_BLOCKED
        if entry.paused == 0 and intake_outruns(address(self.io), entry):
            intake_queue_lagged(address(self.io), entry)
        return 0

    def deliver(self) -> void:
        """Steps 7 to 12 of seed 004: every connection with work gets its turn; bounded, so that reads go on."""
        connection: pointer[connection_t]
        entry: pointer[socket_t]
        before: uint64_t
        done: uint64_t = 0
        result: c_int
        end: int64_t = 0
        trace_phase(address(self.trace), PHASE_DELIVER)
        while done < PASS_MESSAGES and (done == 0 or turn_now(address(self.io.clock)) < end):
            connection = run_queue_pop(address(self.run_queue))
            if connection == NULL:
                return
            if end == 0:
                # Twice what a pass reads: consumers get what producers bring, whatever a delivery costs.
                end = turn_now(address(self.io.clock)) + 2 * self.turn_ns
            # Cleared before the turn: what arrives during it schedules the connection again.
            at_store32(address(connection.scheduled), 0)
            entry = cast(pointer[socket_t], connection.loop)
            before = connection.deliveries
            result = connection_work(connection, self.turn_messages)
            done += connection.deliveries - before + 1
            self.collect_logged(entry)
            if connection.deliveries != before:
                self.delivering = DELIVERING_PASSES
                list_push(self.io.lists, LIST_DIRTY, entry)
            if result == WORK_FULL:
                if entry.tls:
                    connection_block_output(connection)
                    list_push(self.io.lists, LIST_DIRTY, entry)
                    continue
                output_flush(address(self.io), entry)
                if out_pending(address(connection.out)) >= connection.output_high:
                    connection_block_output(connection)
                    continue
            if result != WORK_DONE and not at_swap32(address(connection.scheduled), 1):
                run_queue_push(address(self.run_queue), connection)

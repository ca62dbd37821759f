"""What an I/O thread holds: its sockets and their lists, what other threads leave for it, and who of its publishers is read now.

in: sockets to serve, functions to call, the log whose pressure holds publishers back. out: epoll interests, kicks of the log. The
passes over all this are in loop.py.

I1  A socket is on a list exactly while the bit of that list is set in socket_t.on; it leaves all of them when it is removed.
I2  A socket is read exactly while socket_t.paused is 0; each bit there has one who sets it and one who clears it.
I3  Under an alarm (memory, disk) publishers are not read; connections that also consume are, until the hard limit of memory.
I4  Transactions of the loop take effect in the order in which they were committed.
I5  A socket is on a list of turns exactly while PAUSED_TURN is set.
"""

from __future__ import annotations

import collections
import functools
import logging
import threading

from cython import NULL, address, bint, cast, cclass, p_void, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.atomics import at_store32
from cython.cimports.flintmq.core.clock import monotonic_ms
from cython.cimports.flintmq.core.content import arena_free, arena_new
from cython.cimports.flintmq.core.jobs import jobs_end, turn_now
from cython.cimports.flintmq.core.memory_account import memory_held
from cython.cimports.flintmq.net.sockets import (
    KIND_CONNECTION,
    KIND_LISTENER,
    KIND_WAKE,
    LIST_DIRTY,
    LIST_FAILED,
    LIST_THROTTLED,
    PAUSED_ALARM,
    PAUSED_ANSWER,
    PAUSED_BUFFERS,
    PAUSED_TURN,
    TURNS_FRESH,
    TURNS_HEAVY,
    Socket,
    connection_schedule,
    list_pop,
    list_push,
    lists_forget,
    loop_wake,
    run_queue_forget,
    socket_t,
    turn_push,
    turns_forget,
)
from cython.cimports.flintmq.net.sysio import (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_MOD,
    EPOLLET,
    EPOLLIN,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    errno,
    eventfd,
    sys_close,
)
from cython.cimports.flintmq.queue.log_port import LogPort
from cython.cimports.flintmq.queue.types import PRESSURE_BUFFERS, PRESSURE_DISK, PRESSURE_NONE
from cython.cimports.flintmq.session.connection import Connection
from cython.cimports.flintmq.session.types import PUBLISHED_NOW, connection_t
from cython.cimports.flintmq.session.work import connection_consumes
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc

# by ALARM_*: what connection.blocked says is low
ALARM_NAMES = ("", "memory", "disk", "memory & disk")
OVERRUN = "it does not read: more than output_bytes_max of its output is not sent"


@cclass
class LoopBase:
    """See module.

    Args: config: flintmq.config.Config; memory_limit: bytes of message content at which publishers are paused.
    Callbacks (set before run): on_accept(listener), on_timer(now_ms), on_alarm(what is low; "": nothing any more).
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
        self.buffer = cast(pointer[uint8_t], malloc(self.buffer_size))
        if self.arena == NULL or self.buffer == NULL:
            raise MemoryError
        self.wake_socket.fd = self.run_queue.wake
        self.wake_socket.kind = KIND_WAKE
        event.events = EPOLLIN | EPOLLET
        event.data.ptr = address(self.wake_socket)
        epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.run_queue.wake, address(event))
        self.timer_period_ms = limits.housekeeping_ms
        self.timer_ms = monotonic_ms() + self.timer_period_ms
        self.memory_high = memory_limit
        self.memory_low = cast(uint64_t, memory_limit * limits.memory_resume)
        self.memory_hard = memory_limit + memory_limit // 4
        self.clock.manual_ns = -1
        self.turn_ns = limits.turn_us * 1000
        self.jobs_ns = limits.jobs_us * 1000
        self.heavy_ns = limits.heavy_ms * 1_000_000
        self.chores = collections.deque()
        self.late_ns = limits.loop_late_ms * 1_000_000
        self.thrown_away_max = limits.close_bytes_max
        self.listeners = []
        self.turn_messages = limits.turn_messages_max
        self.output_max = limits.output_bytes_max
        self.output_asks_max = limits.output_asks_max
        self.sockets = {}
        self.graves = []
        self.calls = collections.deque()
        self.commits = collections.deque()
        self.log = logging.getLogger("flintmq.net")

    def __dealloc__(self):
        if self.epoll > 0:
            sys_close(self.epoll)
        if self.run_queue.wake > 0:
            sys_close(self.run_queue.wake)
        free(self.buffer)
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
            self.set_interest(address(entry.socket), EPOLLIN if wanted else 0)

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
        epoll_ctl(self.epoll, EPOLL_CTL_ADD, entry.socket.fd, address(event))

    def remove(self, entry: Socket) -> None:
        """Closes the socket. Its memory stays until no pending event can name it (I2)."""
        if entry.socket.dead:
            return
        entry.socket.dead = True
        if entry.socket.connection != NULL:
            run_queue_forget(address(self.run_queue), entry.socket.connection)
        lists_forget(self.lists, address(entry.socket))
        if entry.socket.paused & PAUSED_TURN:
            turns_forget(address(self.turns[TURNS_HEAVY if entry.socket.heavy_ns else TURNS_FRESH]), address(entry.socket))
        if self.current == address(entry.socket):
            self.current = NULL
        self.sockets.pop(entry.socket.fd, None)
        entry.close()
        self.graves.append(entry)
        if self.accept_paused:
            self.accept(True)  # a descriptor is free
        if entry.connection is not None:
            # Handler and connection name each other: without this they would wait for the cycle collector.
            entry.connection.handler = None

    def unschedule(self, entry: Socket) -> None:
        """No consumer of the connection is left: it has no turn to come, and its memory may go. O(connections that wait for a turn)."""
        if entry.socket.connection != NULL:
            run_queue_forget(address(self.run_queue), entry.socket.connection)

    @property
    def socket_count(self) -> int:
        """Sockets that the loop holds, listeners included. Any thread."""
        return len(self.sockets)

    def entries(self) -> list:
        """Every Socket of the loop, listeners included."""
        return list(self.sockets.values())

    def touch(self, entry: Socket) -> None:
        """Output was written outside a read of this socket: send it in this pass."""
        self.mark_dirty(address(entry.socket))

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
            self._add_chore(step, ended)
        else:
            self.call(functools.partial(self._add_chore, step, ended))

    def _add_chore(self, step, ended):
        if self.over:
            self._chore_ended(ended, False)
            return
        self.chores.append((step, ended))
        self.chores_wait = True

    def _chore_ended(self, ended, done):
        try:
            if ended is not None:
                ended(done)
        except Exception:
            self.log.exception("internal error at the end of a job of the loop")

    def _run_chores(self) -> void:
        """One share of a pass for the chores, each in its turn."""
        done: bint
        while self.chores and turn_now(address(self.clock)) < self.chores_end:
            step, ended = self.chores.popleft()
            try:
                done = step()
            except Exception:
                self.log.exception("internal error in a job of the loop: it is given up")
                self._chore_ended(ended, False)
                continue
            if done:
                self._chore_ended(ended, True)
            else:
                self.chores.append((step, ended))
        self.chores_wait = len(self.chores) != 0

    def _end_jobs(self) -> void:
        """The loop ends: who still waits for a slice is told."""
        self.over = True
        jobs_end(address(self.jobs))
        while self.chores:
            self._chore_ended(self.chores.popleft()[1], False)
        self.chores_wait = False

    @property
    def working(self) -> bool:
        """True while a job of the loop is not done."""
        return self.chores_wait or self.jobs.first != NULL

    @property
    def turns_waiting(self) -> bool:
        """True while a connection waits for a turn."""
        return self.turns[TURNS_FRESH].first != NULL or self.turns[TURNS_HEAVY].first != NULL

    @property
    def manual_ns(self) -> int:
        """What the clock of turns and jobs says, nanoseconds; negative: it is the monotonic clock. Tests set it."""
        return self.clock.manual_ns

    @manual_ns.setter
    def manual_ns(self, value: int) -> None:
        self.clock.manual_ns = value

    # --- the log (loop thread) ------------------------------------------------------------------------------------------

    def attach_log(self, log: LogPort) -> None:
        """From now on confirms wait for this log, and its pressure holds publishers back. Before `run`."""
        self.log_port = log
        self.port = address(log.port)

    def commit(self, transaction: object) -> None:
        """Completes the transaction when the log has it, in order with the loop's others; at once when it has it already."""
        self.logged = self.awaited = self.port != NULL
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
            if self.port != NULL and self.port.kick != NULL:
                self.port.kick(self.port.context, self.awaited)
            self.logged = False
            self.awaited = False

    # --- who is read, and who is not ------------------------------------------------------------------------------------

    def may_publish(self, entry: pointer[socket_t]) -> bint:
        """Looks at alarms and pressure after a publisher was read. False: it was paused and must be told."""
        connection: pointer[connection_t] = entry.connection
        consumes: bint
        published: bint = (connection.publisher & PUBLISHED_NOW) != 0
        pressure: c_int = PRESSURE_NONE
        connection.publisher &= ~PUBLISHED_NOW
        if self.port != NULL and self.port.pressure != NULL:
            pressure = self.port.pressure(self.port.context)
        if pressure == PRESSURE_DISK:
            self.alarm |= ALARM_DISK
        if self.alarm == 0 and pressure == PRESSURE_NONE:
            return True
        consumes = connection_consumes(connection)
        # The log's buffers empty without anybody's acks, but a connection that only settled has not filled them either.
        if pressure == PRESSURE_BUFFERS and (published or not consumes):
            self.pause(entry, PAUSED_BUFFERS)
            list_push(self.lists, LIST_THROTTLED, entry)
        if self.alarm == 0 or entry.paused & PAUSED_ALARM:
            return True
        # A connection that also consumes is still read until the hard limit: its acks are what frees memory and disk (I3).
        # So is one of a tenant that holds little (session/memory_keeper.py): who holds the memory waits first.
        if (consumes or (entry.spared and self.alarm == ALARM_MEMORY)) and memory_held() < self.memory_hard:
            return True
        self.pause(entry, PAUSED_ALARM)
        self.alarm_paused = True
        return False

    def look_for_alarms(self) -> void:
        pressure: c_int
        held: uint64_t = memory_held()
        if held > self.memory_high:
            self.alarm |= ALARM_MEMORY
        elif held < self.memory_low:
            self.alarm &= ~cast(uint32_t, ALARM_MEMORY)
        if self.port == NULL or self.port.pressure == NULL:
            return
        pressure = self.port.pressure(self.port.context)
        if pressure == PRESSURE_DISK:
            self.alarm |= ALARM_DISK
        else:
            self.alarm &= ~cast(uint32_t, ALARM_DISK)
        if pressure != PRESSURE_BUFFERS and self.lists[LIST_THROTTLED] != NULL:
            self.unthrottle()

    def pause(self, entry: pointer[socket_t], why: uint32_t) -> void:
        entry.paused |= why
        self.set_interest(entry, entry.interest & ~cast(uint32_t, EPOLLIN))

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
        self.let_go(address(entry.socket))

    def unthrottle(self) -> void:
        """The log has room again (or none at all, which is another alarm): publishers that waited for its buffers are read."""
        entry: pointer[socket_t] = list_pop(self.lists, LIST_THROTTLED)
        while entry != NULL:
            entry.paused &= ~cast(uint32_t, PAUSED_BUFFERS)
            entry.received_ms = monotonic_ms()
            self.let_go(entry)
            entry = list_pop(self.lists, LIST_THROTTLED)

    def release(self, entry: Socket) -> None:
        """A connection that ends is read on, whatever held it back: its close-ok must be seen, and unread input would reset it."""
        entry.socket.paused &= PAUSED_TURN
        self.let_go(address(entry.socket))

    def notice_late(self, allowed_ns: int64_t) -> void:
        """Whether the loop did not look at its sockets for longer than `allowed_ns` and its tolerance: then nobody is to blame."""
        if turn_now(address(self.clock)) - self.polled_ns > allowed_ns + self.late_ns:
            self.awake_ms = monotonic_ms()

    def let_go(self, entry: pointer[socket_t]) -> void:
        if entry.paused or entry.dead:
            return
        if entry.unfed:
            self.queue_turn(entry)
        else:
            self.set_interest(entry, entry.interest | EPOLLIN)

    def queue_turn(self, entry: pointer[socket_t]) -> void:
        if entry.heavy_ns and turn_now(address(self.clock)) >= entry.heavy_ns:
            entry.heavy_ns = 0
        entry.paused |= PAUSED_TURN
        turn_push(address(self.turns[TURNS_HEAVY if entry.heavy_ns else TURNS_FRESH]), entry)

    def make_heavy(self, entry: pointer[socket_t]) -> void:
        entry.heavy_ns = turn_now(address(self.clock)) + self.heavy_ns
        entry.read_size = READ_LEAST

    def set_interest(self, entry: pointer[socket_t], interest: uint32_t) -> void:
        event: epoll_event
        if entry.interest == interest or entry.dead:
            return
        entry.interest = interest
        event.events = interest
        event.data.ptr = entry
        epoll_ctl(self.epoll, EPOLL_CTL_MOD, entry.fd, address(event))

    # --- lists ----------------------------------------------------------------------------------------------------------

    def mark_dirty(self, entry: pointer[socket_t]) -> void:
        list_push(self.lists, LIST_DIRTY, entry)

    def mark_failed(self, entry: pointer[socket_t]) -> void:
        list_push(self.lists, LIST_FAILED, entry)

    @property
    def now_ms(self) -> int:
        """The loop's monotonic clock, milliseconds: what on_timer is called with."""
        return monotonic_ms()

    @property
    def alarmed(self) -> bool:
        """True while message memory is above the watermark, or the log's disk is full."""
        return self.alarm != 0

    @property
    def disk_low(self) -> bool:
        """True while the log's disk is full."""
        return self.alarm & ALARM_DISK != 0

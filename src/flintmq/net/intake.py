"""Which sockets of a loop are read: alarms, the log's pressure, turns, answers and output that must come first.

in: sockets that were read or may go on; the alarms' marks, the log's pressure. out: socket_t.paused, epoll interests, lists of turns.

I1  A socket is read exactly while socket_t.paused is 0; each bit there has one who sets it and one who clears it.
I2  Under an alarm (memory, disk) publishers are not read; connections that also consume are, until the hard limit of memory.
I3  A socket is on a list of turns exactly while PAUSED_TURN is set.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, exceptval, nogil, pointer, void
from cython import int as c_int
from cython.cimports.flintmq.core.clock import monotonic_ms
from cython.cimports.flintmq.core.jobs import turn_now
from cython.cimports.flintmq.core.memory_account import memory_held
from cython.cimports.flintmq.net.sockets import (
    ALARM_DISK,
    ALARM_MEMORY,
    LIST_THROTTLED,
    PAUSED_ALARM,
    PAUSED_BUFFERS,
    PAUSED_OUTPUT,
    PAUSED_TURN,
    READ_LEAST,
    TURNS_FRESH,
    TURNS_HEAVY,
    io_t,
    list_pop,
    list_push,
    socket_interest,
    socket_pause,
    socket_t,
    turn_push,
)
from cython.cimports.flintmq.net.sysio import EPOLLIN
from cython.cimports.flintmq.queue.types import PRESSURE_BUFFERS, PRESSURE_DISK, PRESSURE_NONE
from cython.cimports.flintmq.session.types import PUBLISHED_NOW, connection_t
from cython.cimports.flintmq.session.work import connection_consumes
from cython.cimports.libc.stdint import uint32_t, uint64_t


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
    # So is one of a tenant that holds little (session/memory_keeper.py): who holds the memory waits first.
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
        intake_let_go(io, entry)
        entry = list_pop(io.lists, LIST_THROTTLED)


def intake_let_go(io: pointer[io_t], entry: pointer[socket_t]) -> void:
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
    intake_let_go(io, entry)


def intake_queue_turn(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    if entry.heavy_ns and turn_now(address(io.clock)) >= entry.heavy_ns:
        entry.heavy_ns = 0
    entry.paused |= PAUSED_TURN
    turn_push(address(io.turns[TURNS_HEAVY if entry.heavy_ns else TURNS_FRESH]), entry)


def intake_make_heavy(io: pointer[io_t], entry: pointer[socket_t]) -> void:
    entry.heavy_ns = turn_now(address(io.clock)) + io.heavy_ns
    entry.read_size = READ_LEAST

"""What of a connection's output goes to its socket: confirms that are due, one send, encryption in pieces.

in: sockets that are dirty. out: bytes to the kernel; LIST_DIRTY while more can be encrypted, LIST_FAILED for who is cut off; consumers
suspended and resumed at the marks of the output (output_bytes_high, output_bytes_low).
"""

from __future__ import annotations

from cython import NULL, Py_ssize_t, address, bint, cast, cfunc, exceptval, nogil, p_char, pointer, size_t, sizeof, ssize_t, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
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
from cython.cimports.flintmq.net.intake import intake_ask_on
from cython.cimports.flintmq.net.sockets import (
    LIST_DIRTY,
    LIST_FAILED,
    LIST_LINGERING,
    LIST_WAITING,
    PAUSED_OUTPUT,
    Socket,
    io_t,
    list_pop,
    list_push,
    socket_interest,
    socket_t,
)
from cython.cimports.flintmq.net.sysio import (
    EAGAIN,
    EINTR,
    EPOLL_CTL_ADD,
    EPOLL_CTL_DEL,
    EPOLLIN,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_MORE,
    MSG_NOSIGNAL,
    MSG_PEEK,
    SHUT_WR,
    epoll_ctl,
    epoll_event,
    errno,
    msghdr,
    recv,
    send,
    sendmsg,
    shutdown,
)
from cython.cimports.flintmq.protocol.v0_9_1.engine import PHASE_CLOSED
from cython.cimports.flintmq.session.confirms import connection_flush_confirms
from cython.cimports.flintmq.session.types import connection_t
from cython.cimports.flintmq.session.work import connection_block_output, connection_unblock_output
from cython.cimports.libc.stdint import uint8_t, uint32_t
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.posix.uio import iovec


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
    """The last frames are sent: the socket is shut down for sending, and closed when the peer has hung up or its time is over.

    A close at once would meet what the peer still sends with a reset, which can take our last frames away from it. The peer's end needs no
    event of its own: nearly all hang up within microseconds, so all that linger are looked at together.
    """
    event: epoll_event
    entry.lingering = True
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
    if entry.connection.engine.phase == PHASE_CLOSED and not entry.tls:
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
    place: pointer[uint8_t] = out_reserve(address(entry.socket.cipher), len(cipher))
    if place == NULL:
        raise MemoryError
    memcpy(place, cast(p_char, cipher), len(cipher))
    entry.socket.cipher.end += len(cipher)
    list_push(io.lists, LIST_DIRTY, address(entry.socket))

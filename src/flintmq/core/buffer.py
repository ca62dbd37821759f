"""The output buffer of a connection: grows by doubling, is sent from the front, gives memory back when idle.

in: frames from the session layer. out: bytes for one send() of the loop per pass.

O1  Bytes leave in the order in which out_reserve and out_refer were called.
O2  A referenced content is held until the last byte of its frames is sent, or the buffer is released.
O3  What buffers allocate is counted where they grow and shrink (memory_account.pxd), never per message.
O4  What is sent was there; what is reserved has its room.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, pointer, size_t, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.byte_order import put16, put32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.content import (
    FRAME_END, FRAME_HEADER_SIZE, FRAME_OVERHEAD, content_body, content_decref, content_incref, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.memory_account import MEMORY_OUTPUT, memory_add
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.posix.uio import iovec

# bytes; most idle connections never need more than the handshake
INITIAL_SIZE = declare(size_t, 2048)


def out_grow(out: pointer[outbuf_t], count: size_t) -> pointer[uint8_t]:
    used: size_t = out.end - out.start
    size: size_t = out.size if out.size else INITIAL_SIZE
    data: pointer[uint8_t]
    if out.start and out.size - used >= count and out.start >= used:
        # At least half of the buffer is sent already: moving the rest costs less than growing.
        memmove(out.data, out.data + out.start, used)
        out.start = 0
        out.end = used
        return out.data + out.end
    while size - out.end < count:
        size *= 2
    data = cast(pointer[uint8_t], realloc(out.data, size))
    if data == NULL:
        return NULL
    memory_add(MEMORY_OUTPUT, cast(int64_t, size - out.size))
    out.data = data
    out.size = size
    check(out.end + count <= size, b"buffer O4 a grown buffer has the room", out.end, count)
    return out.data + out.end


@cfunc
@inline
@nogil
@exceptval(check=False)
def _ref(out: pointer[outbuf_t], number: uint32_t) -> pointer[outref_t]:
    """The reference that is `number` places behind the oldest."""
    return address(out.refs[(out.ref_first + number) % out.ref_size])


def out_refer(out: pointer[outbuf_t], content: pointer[content_t], channel: uint16_t, most: uint32_t) -> bint:
    size: uint32_t
    i: uint32_t
    refs: pointer[outref_t]
    ref: pointer[outref_t]
    if out.ref_count == out.ref_size:
        size = out.ref_size * 2 if out.ref_size else 4
        refs = cast(pointer[outref_t], malloc(size * sizeof(outref_t)))
        if refs == NULL:
            return False
        for i in range(out.ref_count):
            refs[i] = _ref(out, i)[0]
        free(out.refs)
        memory_add(MEMORY_OUTPUT, (size - out.ref_size) * sizeof(outref_t))
        out.refs = refs
        out.ref_size = size
        out.ref_first = 0
    ref = _ref(out, out.ref_count)
    content_incref(content)
    ref.content = content
    ref.at = out.taken + (out.end - out.start)
    ref.done = 0
    ref.total = content.body_len + cast(uint64_t, (content.body_len + most - 1) // most) * FRAME_OVERHEAD
    ref.most = most
    ref.channel = channel
    out.ref_count += 1
    out.ref_bytes += ref.total
    return True


def out_sent(out: pointer[outbuf_t], count: size_t) -> void:
    ref: pointer[outref_t]
    before: uint64_t
    check(count <= out_pending(out), b"buffer O4 what was sent was in the buffer", count, out_pending(out))
    while out.ref_count and count:
        ref = _ref(out, 0)
        before = ref.at - out.taken
        if before:
            if before > count:
                before = count
            out.start += before
            out.taken += before
            count -= before
            continue
        before = ref.total - ref.done
        if before > count:
            before = count
        ref.done += before
        out.ref_bytes -= before
        count -= before
        if ref.done == ref.total:
            content_decref(ref.content)
            out.ref_first = (out.ref_first + 1) % out.ref_size
            out.ref_count -= 1
    out.start += count
    out.taken += count
    if out.start == out.end:
        out.start = 0
        out.end = 0


@cfunc
@nogil
@exceptval(check=False)
def _frame_piece(ref: pointer[outref_t], offset: uint64_t, scratch: pointer[uint8_t], piece: pointer[iovec]) -> bint:
    """The piece of the body's frames that begins at `offset`: what is left of a frame header (put into `scratch`: true), of a payload,
    or a frame end with the next frame's header (both in `scratch`)."""
    number: uint64_t = offset // (ref.most + FRAME_OVERHEAD)
    inside: uint64_t = offset - number * (ref.most + FRAME_OVERHEAD)
    begin: uint64_t = number * ref.most
    payload: uint64_t = ref.content.body_len - begin
    if payload > ref.most:
        payload = ref.most
    if inside >= FRAME_HEADER_SIZE and inside < FRAME_HEADER_SIZE + payload:
        piece.iov_base = content_body(ref.content) + begin + (inside - FRAME_HEADER_SIZE)
        piece.iov_len = FRAME_HEADER_SIZE + payload - inside
        return False
    if inside < FRAME_HEADER_SIZE:
        scratch[0] = 3
        put16(scratch + 1, ref.channel)
        put32(scratch + 3, cast(uint32_t, payload))
        piece.iov_base = scratch + inside
        piece.iov_len = FRAME_HEADER_SIZE - inside
        return True
    scratch[0] = FRAME_END
    piece.iov_base = scratch
    piece.iov_len = 1
    return True


def out_gather(out: pointer[outbuf_t], pieces: pointer[iovec], scratch: pointer[uint8_t]) -> c_int:
    count: c_int = 0
    number: uint32_t = 0
    at: uint64_t = out.taken
    offset: uint64_t
    ref: pointer[outref_t]
    while number < out.ref_count and count < OUT_PIECES:
        ref = _ref(out, number)
        if ref.at > at:
            pieces[count].iov_base = out.data + out.start + (at - out.taken)
            pieces[count].iov_len = ref.at - at
            at = ref.at
            count += 1
            continue
        offset = ref.done
        while offset < ref.total and count < OUT_PIECES:
            if _frame_piece(ref, offset, scratch, pieces + count):
                scratch += FRAME_OVERHEAD
            offset += pieces[count].iov_len
            count += 1
        number += 1
    if count < OUT_PIECES and out.taken + (out.end - out.start) > at:
        pieces[count].iov_base = out.data + out.start + (at - out.taken)
        pieces[count].iov_len = out.taken + (out.end - out.start) - at
        count += 1
    return count


def out_take(out: pointer[outbuf_t], place: pointer[uint8_t], room: size_t) -> size_t:
    pieces: iovec[OUT_PIECES]
    scratch: uint8_t[OUT_SCRATCH]
    done: size_t = 0
    size: size_t
    count: c_int
    i: c_int
    while done < room:
        count = out_gather(out, pieces, scratch)
        if count == 0:
            break
        size = 0
        for i in range(count):
            if pieces[i].iov_len > room - done - size:
                pieces[i].iov_len = room - done - size
            memcpy(place + done + size, pieces[i].iov_base, pieces[i].iov_len)
            size += pieces[i].iov_len
        out_sent(out, size)
        done += size
    return done


def out_release(out: pointer[outbuf_t]) -> void:
    while out.ref_count:
        content_decref(_ref(out, 0).content)
        out.ref_first = (out.ref_first + 1) % out.ref_size
        out.ref_count -= 1
    memory_add(MEMORY_OUTPUT, -cast(int64_t, out.size + out.ref_size * sizeof(outref_t)))
    free(out.refs)
    out.refs = NULL
    out.ref_size = 0
    out.ref_first = 0
    out.ref_bytes = 0
    free(out.data)
    out.data = NULL
    out.size = 0
    out.start = 0
    out.end = 0


def out_trim(out: pointer[outbuf_t]) -> void:
    if out.start == out.end and out.ref_count == 0 and (out.size > INITIAL_SIZE or out.ref_size):
        out_release(out)

"""The output buffer of a connection: grows by doubling, is sent from the front, gives memory back when idle.

in: frames from the session layer. out: bytes for one send() of the loop per pass.

O1  Bytes leave in the order in which out_reserve and out_refer were called.
O2  A referenced content is held until the last byte of its frames is sent, or the buffer is released.
O3  What buffers allocate is counted where they grow and shrink (memory_account.pxd), never per message.
"""

from __future__ import annotations

import cython
from cython.cimports.flintmq.core.content import content_body, content_decref, content_incref
from cython.cimports.flintmq.core.memory_account import MEMORY_OUTPUT, memory_add
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.posix.uio import iovec

# bytes; most idle connections never need more than the handshake
INITIAL_SIZE = cython.declare(cython.size_t, 2048)
# bytes of a frame's header, and of header and end octet together
HEADER_SIZE = cython.declare(uint64_t, 7)
FRAME_AROUND = cython.declare(uint64_t, 8)
FRAME_END = cython.declare(uint8_t, 0xCE)


def out_grow(out, count):
    used: cython.size_t = out.end - out.start
    size: cython.size_t = out.size if out.size else INITIAL_SIZE
    data: cython.pointer(uint8_t)
    if out.start and out.size - used >= count and out.start >= used:
        # At least half of the buffer is sent already: moving the rest costs less than growing.
        memmove(out.data, out.data + out.start, used)
        out.start = 0
        out.end = used
        return out.data + out.end
    while size - out.end < count:
        size *= 2
    data = cython.cast(cython.pointer(uint8_t), realloc(out.data, size))
    if data == cython.NULL:
        return cython.NULL
    memory_add(MEMORY_OUTPUT, cython.cast(int64_t, size - out.size))
    out.data = data
    out.size = size
    return out.data + out.end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _ref(out: cython.pointer(outbuf_t), number: uint32_t) -> cython.pointer(outref_t):
    """The reference that is `number` places behind the oldest."""
    return cython.address(out.refs[(out.ref_first + number) % out.ref_size])


def out_refer(out, content, channel, most):
    size: uint32_t
    i: uint32_t
    refs: cython.pointer(outref_t)
    ref: cython.pointer(outref_t)
    if out.ref_count == out.ref_size:
        size = out.ref_size * 2 if out.ref_size else 4
        refs = cython.cast(cython.pointer(outref_t), malloc(size * cython.sizeof(outref_t)))
        if refs == cython.NULL:
            return False
        for i in range(out.ref_count):
            refs[i] = _ref(out, i)[0]
        free(out.refs)
        memory_add(MEMORY_OUTPUT, (size - out.ref_size) * cython.sizeof(outref_t))
        out.refs = refs
        out.ref_size = size
        out.ref_first = 0
    ref = _ref(out, out.ref_count)
    content_incref(content)
    ref.content = content
    ref.at = out.taken + (out.end - out.start)
    ref.done = 0
    ref.total = content.body_len + cython.cast(uint64_t, (content.body_len + most - 1) // most) * FRAME_AROUND
    ref.most = most
    ref.channel = channel
    out.ref_count += 1
    out.ref_bytes += ref.total
    return True


def out_sent(out, count):
    ref: cython.pointer(outref_t)
    before: uint64_t
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _frame_piece(
    ref: cython.pointer(outref_t), offset: uint64_t, scratch: cython.pointer(uint8_t), piece: cython.pointer(iovec)
) -> cython.bint:
    """The piece of the body's frames that begins at `offset`: what is left of a frame header (put into `scratch`: true), of a payload,
    or a frame end with the next frame's header (both in `scratch`)."""
    number: uint64_t = offset // (ref.most + FRAME_AROUND)
    inside: uint64_t = offset - number * (ref.most + FRAME_AROUND)
    begin: uint64_t = number * ref.most
    payload: uint64_t = ref.content.body_len - begin
    if payload > ref.most:
        payload = ref.most
    if inside >= HEADER_SIZE and inside < HEADER_SIZE + payload:
        piece.iov_base = content_body(ref.content) + begin + (inside - HEADER_SIZE)
        piece.iov_len = HEADER_SIZE + payload - inside
        return False
    if inside < HEADER_SIZE:
        scratch[0] = 3
        put16(scratch + 1, ref.channel)
        put32(scratch + 3, cython.cast(uint32_t, payload))
        piece.iov_base = scratch + inside
        piece.iov_len = HEADER_SIZE - inside
        return True
    scratch[0] = FRAME_END
    piece.iov_base = scratch
    piece.iov_len = 1
    return True


def out_gather(out, pieces, scratch):
    count: cython.int = 0
    number: uint32_t = 0
    at: uint64_t = out.taken
    offset: uint64_t
    ref: cython.pointer(outref_t)
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
                scratch += FRAME_AROUND
            offset += pieces[count].iov_len
            count += 1
        number += 1
    if count < OUT_PIECES and out.taken + (out.end - out.start) > at:
        pieces[count].iov_base = out.data + out.start + (at - out.taken)
        pieces[count].iov_len = out.taken + (out.end - out.start) - at
        count += 1
    return count


def out_take(out, place, room):
    pieces: iovec[OUT_PIECES]
    scratch: uint8_t[OUT_SCRATCH]
    done: cython.size_t = 0
    size: cython.size_t
    count: cython.int
    i: cython.int
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


def out_release(out):
    while out.ref_count:
        content_decref(_ref(out, 0).content)
        out.ref_first = (out.ref_first + 1) % out.ref_size
        out.ref_count -= 1
    memory_add(MEMORY_OUTPUT, -cython.cast(int64_t, out.size + out.ref_size * cython.sizeof(outref_t)))
    free(out.refs)
    out.refs = cython.NULL
    out.ref_size = 0
    out.ref_first = 0
    out.ref_bytes = 0
    free(out.data)
    out.data = cython.NULL
    out.size = 0
    out.start = 0
    out.end = 0


def out_trim(out):
    if out.start == out.end and out.ref_count == 0 and (out.size > INITIAL_SIZE or out.ref_size):
        out_release(out)

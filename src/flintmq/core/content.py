"""Message content: reference-counted wire bytes in chunks (see content.pxd for the layout).

in: a loop thread that received a publish, or a Python caller. out: pointers that queues, unacked records and the store share.

I1  A content's bytes never change after its creator handed it out.
I2  A chunk is unmapped or recycled only when no content in it is referenced and no arena allocates from it.
I3  Mapped bytes are exact: the memory watermark reads them. They grow as body bytes arrive, never by an announced length.
I4  chunk.refs is the sum of the sizes of its live contents; while an arena allocates from it, ARENA_SHARE less the sizes of those that
    went, so that a new content costs no atomic operation: what was allocated is subtracted from the share once, when the arena leaves.
I5  Empty chunks that wait for reuse are counted.
I6  _thin_chunks counts the chunks of CHUNK_SIZE that no arena allocates from and whose refs are above 0 and below THIN_SIZE. Sizes go one
    by one and each drop knows what it left, so exactly one of them makes a chunk thin.

Chunks are aligned to their size so that a content finds its chunk by masking its own address: no back pointer per message.
Price of the scheme: one old message keeps its whole chunk alive (256 KiB). Contents of thin chunks, of which little is alive (I6), are
copied into fresh ones as soon as there are many of them (queue/sweep.py).
"""

from __future__ import annotations

from cython import NULL, Py_ssize_t, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_char, p_void, pointer, sizeof, void
from cython.cimports.flintmq.core.atomics import at_add64, at_load64, at_sub64, spin_lock, spin_unlock
from cython.cimports.flintmq.core.byte_order import put32
from cython.cimports.flintmq.core.check import check
from cython.cimports.flintmq.core.sanitizer import FLINTMQ_ASAN
from cython.cimports.libc.stdint import int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy
from cython.cimports.posix.mman import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, mremap, munmap

# 256 KiB: a read pass fills about one, so recycling stays in cache; large enough that mapping is rare, small enough that a
# straggler pins little.
CHUNK_SIZE = declare(uint64_t, 256 * 1024)
# Contents above this get a mapping of their own: they would waste the rest of a chunk.
LARGE_SIZE = declare(uint64_t, 64 * 1024)
# Bytes of live contents below which a chunk is thin: five eighths of it. So chunks that are not thin take at most 1.6 times what lives in
# them, and a byte that is given back costs at most 1.7 bytes that are copied.
THIN_SIZE = declare(uint64_t, 160 * 1024)
# Far above every size, so that a chunk never looks empty while its arena allocates from it.
ARENA_SHARE = declare(uint64_t, 1 << 62)
# At most this many empty chunks (16 MiB) wait for reuse; the rest goes back to the system at once.
FREE_CHUNKS_MAX = declare(uint32_t, 64)

_mapped_bytes = declare(uint64_t, 0)
_thin_chunks = declare(uint64_t, 0)
_free_lock = declare(uint32_t, 0)
_free_chunks = declare(pointer[chunk_t], NULL)
_free_count = declare(uint32_t, 0)
_python_arena = declare(pointer[arena_t], NULL)


@cfunc
@nogil
@exceptval(check=False)
def _map_aligned(size: uint64_t) -> p_char:
    """Maps `size` bytes (a multiple of the page size) at an address aligned to CHUNK_SIZE; NULL when refused."""
    if FLINTMQ_ASAN:
        return cast(p_char, malloc(size))  # nobody looks for the chunk by its alignment then: see _chunk_of
    span: uint64_t = size + CHUNK_SIZE
    raw: p_char = cast(p_char, mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))
    if cast(Py_ssize_t, raw) == -1:
        return NULL
    start: uint64_t = cast(uint64_t, raw)
    aligned: uint64_t = (start + CHUNK_SIZE - 1) & ~(CHUNK_SIZE - 1)
    if aligned > start:
        munmap(raw, aligned - start)
    end: uint64_t = start + span
    if end > aligned + size:
        munmap(cast(p_char, aligned + size), end - aligned - size)
    return cast(p_char, aligned)


@cfunc
@nogil
@exceptval(check=False)
def _chunk_new(size: uint64_t) -> pointer[chunk_t]:
    """An empty chunk, whose `refs` the caller sets; NULL: no memory."""
    global _free_chunks, _free_count
    chunk: pointer[chunk_t] = NULL
    if size == CHUNK_SIZE:
        spin_lock(address(_free_lock))
        chunk = _free_chunks
        if chunk != NULL:
            _free_chunks = chunk.next
            check(_free_count > 0, b"content I5 a waiting chunk is counted", _free_count, size)
            _free_count -= 1
        spin_unlock(address(_free_lock))
    if chunk == NULL:
        chunk = cast(pointer[chunk_t], _map_aligned(size))
        if chunk == NULL:
            return NULL
    chunk.size = size
    chunk.used = sizeof(chunk_t)
    chunk.next = NULL
    at_add64(address(_mapped_bytes), size)
    return chunk


@cfunc
@nogil
@exceptval(check=False)
def _chunk_end(chunk: pointer[chunk_t]) -> void:
    """Nothing is in it any more, and no arena allocates from it: it waits for reuse, or is unmapped."""
    global _free_chunks, _free_count
    size: uint64_t = chunk.size
    before: uint64_t = at_sub64(address(_mapped_bytes), size)
    check(before >= size, b"content I3 an unmapped chunk was counted", before, size)
    if FLINTMQ_ASAN:
        free(chunk)
        return
    if size == CHUNK_SIZE:
        spin_lock(address(_free_lock))
        if _free_count < FREE_CHUNKS_MAX:
            chunk.next = _free_chunks
            _free_chunks = chunk
            _free_count += 1
            chunk = NULL
        spin_unlock(address(_free_lock))
        if chunk == NULL:
            return
    munmap(chunk, size)


@cfunc
@nogil
@exceptval(check=False)
def _thinner(before: uint64_t, after: uint64_t) -> void:
    """I6. A chunk with less than THIN_SIZE lost something. Its end may be counted before its beginning, by another thread."""
    if before >= THIN_SIZE and after:
        at_add64(address(_thin_chunks), 1)
    elif before < THIN_SIZE and after == 0:
        at_sub64(address(_thin_chunks), 1)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _chunk_drop(chunk: pointer[chunk_t], amount: uint64_t) -> void:
    """Gives up a content's size, or what is left of the arena's share; the last one ends the chunk."""
    size: uint64_t = chunk.size  # the chunk may be another one's when the drop is done
    before: uint64_t = at_sub64(address(chunk.refs), amount)
    if before - amount < THIN_SIZE and size == CHUNK_SIZE:
        _thinner(before, before - amount)
    if before == amount:
        _chunk_end(chunk)


def arena_new() -> pointer[arena_t]:
    return cast(pointer[arena_t], calloc(1, sizeof(arena_t)))


def arena_free(arena: pointer[arena_t]) -> void:
    if arena.current != NULL:
        _leave(arena.current)
    free(arena)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _allocated(chunk: pointer[chunk_t]) -> uint64_t:
    """Bytes of all contents that an arena made in it, live or not."""
    return chunk.used - sizeof(chunk_t)


@cfunc
@nogil
@exceptval(check=False)
def _leave(chunk: pointer[chunk_t]) -> void:
    """Its arena allocates from it no more."""
    _chunk_drop(chunk, ARENA_SHARE - _allocated(chunk))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _size_of(route_len: uint32_t, header_len: uint32_t, body_len: uint32_t) -> uint64_t:
    """Bytes of a content in its chunk: a multiple of 8 (I4)."""
    size: uint64_t = sizeof(content_t)
    size += route_len
    size += header_len + FRAME_OVERHEAD
    if body_len:
        size += body_len
        size += FRAME_OVERHEAD
    return size if FLINTMQ_ASAN else (size + 7) & ~cast(uint64_t, 7)


@cfunc
@inline
@nogil
@exceptval(check=False)
def _chunk_of(content: pointer[content_t]) -> pointer[chunk_t]:
    """The chunk that a content stands in. Under AddressSanitizer each has one of its own, right before it."""
    if FLINTMQ_ASAN:
        return cast(pointer[chunk_t], cast(p_char, content) - sizeof(chunk_t))
    return cast(pointer[chunk_t], cast(uint64_t, content) & ~(CHUNK_SIZE - 1))


@cfunc
@inline
@nogil
@exceptval(check=False)
def _own_chunk_size(size: uint64_t) -> uint64_t:
    """Bytes of a chunk that holds one content of `size` bytes."""
    if FLINTMQ_ASAN:
        return size + sizeof(chunk_t)
    return (size + sizeof(chunk_t) + 4095) & ~cast(uint64_t, 4095)


@cfunc
@nogil
@exceptval(check=False)
def _next_chunk(arena: pointer[arena_t]) -> pointer[chunk_t]:
    """An empty chunk for the arena, in the place of its full one; NULL: no memory."""
    chunk: pointer[chunk_t] = arena.current
    if chunk != NULL and at_load64(address(chunk.refs)) == ARENA_SHARE - _allocated(chunk):
        check(chunk.used <= CHUNK_SIZE, b"content I4 contents lie in their chunk", chunk.used, chunk.size)
        chunk.used = sizeof(chunk_t)  # everything in it is gone: start over in memory that is still warm
        chunk.refs = ARENA_SHARE
        return chunk
    if chunk != NULL:
        _leave(chunk)
    chunk = _chunk_new(CHUNK_SIZE)
    arena.current = chunk
    if chunk != NULL:
        chunk.refs = ARENA_SHARE
    return chunk


def content_new(arena: pointer[arena_t], route_len: uint32_t, header_len: uint32_t, body_len: uint32_t) -> pointer[content_t]:
    size: uint64_t = _size_of(route_len, header_len, body_len)
    chunk: pointer[chunk_t] = arena.current
    content: pointer[content_t]
    if FLINTMQ_ASAN or size > LARGE_SIZE:
        chunk = _chunk_new(_own_chunk_size(size))
        if chunk == NULL:
            return NULL
        chunk.refs = size  # no arena allocates from it
        content = cast(pointer[content_t], cast(p_char, chunk) + sizeof(chunk_t))
    else:
        if chunk == NULL or chunk.used + size > CHUNK_SIZE:
            chunk = _next_chunk(arena)
            if chunk == NULL:
                return NULL
        content = cast(pointer[content_t], cast(p_char, chunk) + chunk.used)
        chunk.used += size
    content.refs = 1
    content.header_len = header_len
    content.body_len = body_len
    content.route_len = cast(uint16_t, route_len)
    content.flags = 0
    content.priority = 0
    content.message_id = 0
    return content


def content_free(content: pointer[content_t]) -> void:
    _chunk_drop(_chunk_of(content), _size_of(content.route_len, content.header_len, content.body_len))


@cfunc
@nogil
@exceptval(check=False)
def _copy_to(arena: pointer[arena_t], content: pointer[content_t], filled: uint32_t, body_len: uint32_t) -> pointer[content_t]:
    """A new content with room for `body_len`; route, header and `filled` bytes of the body are copied."""
    fresh: pointer[content_t] = content_new(arena, content.route_len, content.header_len, body_len)
    if fresh == NULL:
        return NULL
    memcpy(content_route(fresh), content_route(content), content.route_len)
    memcpy(content_header(fresh), content_header(content), content.header_len)
    if filled:
        memcpy(content_body(fresh), content_body(content), filled)
    fresh.flags = content.flags
    fresh.priority = content.priority
    fresh.message_id = content.message_id
    return fresh


def content_grow(arena: pointer[arena_t], content: pointer[content_t], filled: uint32_t, body_len: uint32_t) -> pointer[content_t]:
    old: uint64_t = _size_of(content.route_len, content.header_len, content.body_len)
    size: uint64_t = _size_of(content.route_len, content.header_len, body_len)
    chunk: pointer[chunk_t] = _chunk_of(content)
    end: uint64_t = cast(uint64_t, content) - cast(uint64_t, chunk)
    fresh: pointer[content_t]
    if chunk == arena.current and end + old == chunk.used and size <= LARGE_SIZE and end + size <= CHUNK_SIZE:
        chunk.used += size - old  # it is the last one there
        content.body_len = body_len
        return content
    if old > LARGE_SIZE and not FLINTMQ_ASAN:
        return _grow_own(chunk, size, body_len)
    fresh = _copy_to(arena, content, filled, body_len)
    if fresh != NULL:
        content_decref(content)
    return fresh


@cfunc
@nogil
@exceptval(check=False)
def _grow_own(chunk: pointer[chunk_t], size: uint64_t, body_len: uint32_t) -> pointer[content_t]:
    """The one content of a chunk of its own gets more room: its pages move, no byte is copied. NULL: no memory, nothing changed."""
    wanted: uint64_t = _own_chunk_size(size)
    content: pointer[content_t]
    place: p_char
    if wanted > chunk.size:
        place = _map_aligned(wanted)
        if place == NULL:
            return NULL
        if cast(Py_ssize_t, mremap(chunk, chunk.size, wanted, MREMAP_MAYMOVE | MREMAP_FIXED, cast(p_void, place))) == -1:
            munmap(place, wanted)
            return NULL
        chunk = cast(pointer[chunk_t], place)
        at_add64(address(_mapped_bytes), wanted - chunk.size)
        chunk.size = wanted
    chunk.refs = size
    content = cast(pointer[content_t], cast(p_char, chunk) + sizeof(chunk_t))
    content.body_len = body_len
    return content


def content_copy(arena: pointer[arena_t], content: pointer[content_t]) -> pointer[content_t]:
    fresh: pointer[content_t] = _copy_to(arena, content, content.body_len, content.body_len)
    if fresh != NULL:
        content_frame(fresh)
    return fresh


def content_is_thin(content: pointer[content_t]) -> bint:
    refs: uint64_t = at_load64(address(_chunk_of(content).refs))
    return refs < THIN_SIZE and _chunk_of(content).size == CHUNK_SIZE


def content_bytes_mapped() -> uint64_t:
    return at_load64(address(_mapped_bytes))


def thin_bytes() -> int:
    """Bytes of memory of chunks of which little is alive, in this process (I6)."""
    count: int64_t = cast(int64_t, at_load64(address(_thin_chunks)))
    return count * CHUNK_SIZE if count > 0 else 0


def give_back_chunks() -> int:
    """Unmaps the empty chunks that wait for reuse (I5), one after the other: for when nothing will need them soon. Returns how many."""
    global _free_chunks, _free_count
    chunk: pointer[chunk_t] = NULL
    count: uint32_t = 0
    with nogil:
        while True:
            spin_lock(address(_free_lock))
            chunk = _free_chunks
            if chunk != NULL:
                _free_chunks = chunk.next
                check(_free_count > 0, b"content I5 a waiting chunk that is unmapped was counted", _free_count, 0)
                _free_count -= 1
            spin_unlock(address(_free_lock))
            if chunk == NULL:
                break
            munmap(chunk, CHUNK_SIZE)
            count += 1
    return count


def bytes_mapped() -> int:
    """Bytes of memory that message contents hold in this process (what the memory watermark compares)."""
    return content_bytes_mapped()


@cfunc
@nogil
@exceptval(check=False)
def _put_frame(byte: pointer[uint8_t], kind: uint8_t, size: uint32_t) -> void:
    """Writes the frame header before, and the frame end octet after, a payload of `size` bytes at `byte` (channel 0)."""
    frame: pointer[uint8_t] = byte - FRAME_HEADER_SIZE
    frame[0] = kind
    frame[1] = 0
    frame[2] = 0
    put32(frame + 3, size)
    byte[size] = 0xCE


def content_frame(content: pointer[content_t]) -> void:
    _put_frame(content_header(content), 2, content.header_len)
    if content.body_len:
        _put_frame(content_body(content), 3, content.body_len)


def content_from_bytes(
    exchange: bytes | None, routing_key: bytes | None, header: bytes | None, body: bytes | None, flags: uint8_t, priority: uint8_t
) -> pointer[content_t]:
    global _python_arena
    if len(exchange) > 255 or len(routing_key) > 255:
        raise ValueError("exchange and routing key are shortstr: at most 255 bytes")
    if _python_arena == NULL:
        _python_arena = arena_new()
    route: bytes = bytes([len(exchange)]) + exchange + bytes([len(routing_key)]) + routing_key
    content: pointer[content_t] = content_new(_python_arena, len(route), len(header), len(body))
    if content == NULL:
        raise MemoryError("no memory for message content")
    memcpy(content_route(content), cast(p_char, route), len(route))
    memcpy(content_header(content), cast(p_char, header), len(header))
    source: p_char = cast(p_char, body)
    if len(body) > COPY_BARE:
        with nogil:  # 128 MiB take 30 ms: others need the interpreter
            memcpy(content_body(content), source, content.body_len)
    elif len(body):
        memcpy(content_body(content), source, len(body))
    content_frame(content)
    content.flags = flags
    content.priority = priority
    return content

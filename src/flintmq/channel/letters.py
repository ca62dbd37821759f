"""Dead letters on the message path (see letters.pxd).

in: entries that die, the address of their queue's letters. out: letters on the queues of their routes; counts.

L1  A letter is on its queues before its original ends. The log gets the end of a logged original with the letter's last place, in one
    commit block: a crash leaves one of the two. Where the last queue does not log, a crash in between leaves both, never none.
L2  At-least-once: the original ends here only when every target takes the letter at once. A target that may refuse, one that is shared or
    a stream, a line of letters that wait: all that is broker/letters.py's.
L3  Letters fill queues, whose heads die in turn: in a row, not one inside the other, and LETTERS_AT_ONCE in one piece.
L4  What is missing here (the address after a change of policy, a route that is not cached) is found out by Python with one message.
"""

from __future__ import annotations

from cython import NULL, address, bint, cast, cclass, cfunc, declare, exceptval, inline, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING
from cython.cimports.flintmq.channel.arrival import drop_head, expiry_on
from cython.cimports.flintmq.channel.deciding import route_by_key
from cython.cimports.flintmq.channel.letter_memo import form_t, letter_memo, memo_find, memo_is_cycle, memo_keep
from cython.cimports.flintmq.channel.types import DROP_CYCLE, DROP_LETTER, DROP_MAXLEN, DROP_PASSED, connection_t, refused_t
from cython.cimports.flintmq.core.atomics import at_load32, at_load64
from cython.cimports.flintmq.core.clock import wall_ms
from cython.cimports.flintmq.core.content import (
    CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY, CONTENT_SHARED, arena_free, arena_new, content_body, content_decref,
    content_frame, content_header, content_incref, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.memory_account import MEMORY_DEFINITIONS, memory_add
from cython.cimports.flintmq.protocol.v0_9_1.death import DEATH_READ, death_free, death_read, death_t, death_write, letter_head_t, text_t
from cython.cimports.flintmq.queue.control import QueueHandle
from cython.cimports.flintmq.queue.limits import queue_limit_waits, queue_over_limit, queue_refuses, queue_take_excess
from cython.cimports.flintmq.queue.queue_core import (
    letters_decref, queue_decref, queue_dequeue, queue_enqueue_letter, queue_enqueue_once, queue_forget_logged, queue_incref,
    queue_is_deleted, queue_letters, queue_release, queue_set_letters, queue_take_expired,
)  # fmt: skip
from cython.cimports.flintmq.queue.restoring import original_of, queue_borrow
from cython.cimports.flintmq.queue.slot import slot_borrow
from cython.cimports.flintmq.queue.types import (
    QUEUE_MIRRORED, REASON_DROP, REASON_EXPIRE, delivery_t, letters_t, log_port_t, original_t, queue_t,
)  # fmt: skip
from cython.cimports.flintmq.routing.route_cache import (
    DEST_BLOCK, DEST_DEAD_LETTERS, DEST_LIMITED, DEST_MIRRORED, DEST_ONCE, DEST_REJECT_OVER, DEST_SHARED, DEST_STREAM, RouteCache,
    destination_t, exchange_decref, exchange_incref, exchange_t, route_decref, route_t,
)  # fmt: skip
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy, memset

# addresses that were made; under the GIL
_addresses = declare(uint64_t, 0)
# names of DEATH_*, in their order
REASONS = ("rejected", "expired", "maxlen", "delivery_limit")


# --- the address of a queue's letters ------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _address_free(letters: pointer[letters_t]) -> void:
    place: pointer[address_t] = cast(pointer[address_t], letters)
    memory_add(MEMORY_DEFINITIONS, -cast(int64_t, sizeof(address_t) + place.name_size + place.key_size))
    exchange_decref(place.exchange)
    free(place)


def set_address(core: QueueHandle, cache: RouteCache, name: bytes, key: bytes | None, keeps: bool) -> None:
    """From now on the dead letters of a queue go to this exchange, without Python where they can.

    Args: cache: of the dead-letter exchange; name: of the queue; key: its dead-letter routing key (at most 255 bytes); keeps: the strategy
    is at-least-once. Raises: MemoryError. The caller looks afterwards whether the queue's policy is still the one that says so.
    """
    size: uint32_t = sizeof(address_t) + len(name) + (0 if key is None else len(key))
    place: pointer[address_t] = cast(pointer[address_t], malloc(size))
    octets: pointer[uint8_t]
    global _addresses
    if place == NULL:
        raise MemoryError("no memory for the address of dead letters")
    memset(place, 0, sizeof(address_t))
    octets = cast(pointer[uint8_t], place + 1)
    place.head.refs = 1
    place.head.destroy = _address_free
    _addresses += 1
    place.number = _addresses
    place.exchange = cache.exchange
    exchange_incref(cache.exchange)
    place.keeps = keeps
    place.name_size = len(name)
    place.name = octets
    memcpy(octets, PyBytes_AS_STRING(name), len(name))
    if key is not None:
        place.has_key = True
        place.key_size = len(key)
        place.key = octets + len(name)
        memcpy(octets + len(name), PyBytes_AS_STRING(key), len(key))
    memory_add(MEMORY_DEFINITIONS, size)
    queue_set_letters(core.queue, address(place.head))


def has_address(core: QueueHandle, cache: RouteCache) -> bool:
    """Whether the dead letters of a queue go to this exchange already."""
    letters: pointer[letters_t] = queue_letters(core.queue)
    known: bint = letters != NULL and cast(pointer[address_t], letters).exchange == cache.exchange
    letters_decref(letters)
    return bool(known)


# --- one letter -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _reason_text(reason: c_int) -> text_t:
    text: text_t
    name: p_char = b"rejected"
    text.size = 8
    if reason == DEATH_EXPIRED:
        name = b"expired"
        text.size = 7
    elif reason == DEATH_MAXLEN:
        name = b"maxlen"
        text.size = 6
    elif reason == DEATH_DELIVERY_LIMIT:
        name = b"delivery_limit"
        text.size = 14
    text.data = cast(pointer[uint8_t], cast(p_void, name))
    return text


@cfunc
@nogil
@exceptval(check=False)
def _death_of(place: pointer[address_t], content: pointer[content_t], reason: c_int, time_s: int64_t, death: pointer[death_t]) -> void:
    route: pointer[uint8_t] = content_route(content)
    death.queue.data = place.name
    death.queue.size = place.name_size
    death.reason = _reason_text(reason)
    death.exchange.data = route + 1
    death.exchange.size = route[0]
    death.routing_key.data = route + 2 + route[0]
    death.routing_key.size = route[1 + route[0]]
    death.new_key.data = place.key if place.has_key else NULL
    death.new_key.size = place.key_size
    death.time_s = time_s


@cfunc
@nogil
@exceptval(check=False)
def _find_route(
    place: pointer[address_t], content: pointer[content_t], key: pointer[uint8_t], key_len: pointer[uint32_t]
) -> pointer[route_t]:
    """The cached route of a letter, with a reference; its exchange and routing key stand in `key`. NULL: it is not cached, or headers
    decide."""
    exchange: pointer[exchange_t] = place.exchange
    own: pointer[uint8_t] = content_route(content) + 1 + content_route(content)[0]
    how: uint8_t = 0
    key[0] = cast(uint8_t, exchange.name_len)
    memcpy(key + 1, exchange.name, exchange.name_len)
    key_len[0] = 2 + exchange.name_len + (cast(uint32_t, place.key_size) if place.has_key else own[0])
    key[1 + exchange.name_len] = cast(uint8_t, key_len[0] - 2 - exchange.name_len)
    memcpy(key + 2 + exchange.name_len, place.key if place.has_key else own + 1, key_len[0] - 2 - exchange.name_len)
    return route_by_key(exchange, key, key_len[0], address(how))


@cfunc
@nogil
@exceptval(check=False)
def _may_place(place: pointer[address_t], route: pointer[route_t]) -> bint:
    """Whether every destination can be decided here (L2)."""
    destination: pointer[destination_t]
    i: uint32_t
    if place.keeps and route.count == 0:
        return False
    for i in range(route.count):
        destination = address(route.destinations[i])
        if destination.flags & (DEST_STREAM | DEST_SHARED | DEST_MIRRORED):
            return False
        if destination.queue.name_hash == 0 or queue_is_deleted(destination.queue):
            return False
        if place.keeps and destination.flags & (DEST_REJECT_OVER | DEST_BLOCK):
            return False
    return True


@cfunc
@nogil
@exceptval(check=False)
def _made(
    content: pointer[content_t], form: pointer[form_t], key: pointer[uint8_t], key_len: uint32_t, run: pointer[letter_run_t]
) -> pointer[content_t]:
    """The letter: its route and header, and the body of the original. NULL: no memory."""
    letter: pointer[content_t] = content_new(run.arena, key_len, form.size, content.body_len)
    if letter == NULL:
        return NULL
    memcpy(content_route(letter), key, key_len)
    if form.head != NULL:
        death_write(form.head, content_header(letter))
    else:
        memcpy(content_header(letter), form.header, form.size)
    if content.body_len:
        memcpy(content_body(letter), content_body(content), content.body_len)
        run.copied += content.body_len
    content_frame(letter)
    letter.flags = CONTENT_HEADERS
    if form.delivery_mode == 2:
        letter.flags |= CONTENT_PERSISTENT
    if form.has_priority:
        letter.flags |= CONTENT_PRIORITY
        letter.priority = content.priority
    return letter


@cfunc
@nogil
@exceptval(check=False)
def _place(
    destination: pointer[destination_t], letter: pointer[content_t], original: pointer[original_t], run: pointer[letter_run_t]
) -> void:
    queue: pointer[queue_t] = destination.queue
    expires_at: int64_t = expiry_on(destination, -1)
    position: uint64_t
    if destination.flags & (DEST_REJECT_OVER | DEST_BLOCK) and queue_refuses(queue, letter.body_len, 0, 0):
        run.refused += 1
        return
    if destination.flags & DEST_ONCE:
        position = queue_enqueue_once(queue, letter, expires_at, False, address(run.lsn))
    else:
        position = queue_enqueue_letter(queue, letter, expires_at, address(run.lsn), original)
    if position == 0 or not destination.flags & DEST_LIMITED or not queue_over_limit(queue) or queue_limit_waits(queue):
        return
    if not destination.flags & DEST_DEAD_LETTERS:
        run.dropped += drop_head(queue)
    else:
        _note_filled(queue, run)


@cfunc
@nogil
@exceptval(check=False)
def _note_filled(queue: pointer[queue_t], run: pointer[letter_run_t]) -> void:
    i: uint32_t
    for i in range(run.filled_count):
        if run.filled[i] == queue:
            return
    if run.filled_count < FILLED_MAX:
        queue_incref(queue)
        run.filled[run.filled_count] = queue
        run.filled_count += 1


@cfunc
@nogil
@exceptval(check=False)
def _publish(
    place: pointer[address_t], content: pointer[content_t], reason: c_int, form: pointer[form_t], original: pointer[original_t],
    run: pointer[letter_run_t],
) -> bint:  # fmt: skip
    """A letter whose header was made. False: nothing was done."""
    key: uint8_t[512]
    key_len: uint32_t = 0
    route: pointer[route_t] = _find_route(place, content, key, address(key_len))
    letter: pointer[content_t] = NULL
    port: pointer[log_port_t] = NULL
    good: uint32_t = 0
    placed: uint32_t = 0
    i: uint32_t
    if route == NULL:
        return False
    if _may_place(place, route):
        for i in range(route.count):
            good += not _is_cycle(route, i, reason, form)
        if good or not place.keeps:
            letter = _made(content, form, key, key_len, run)
    if letter == NULL:
        route_decref(route)
        return False
    if good > 1 and letter.flags & CONTENT_PERSISTENT:
        letter.flags |= CONTENT_SHARED
    for i in range(route.count):
        if _is_cycle(route, i, reason, form):
            run.cycles += 1
            continue
        if route.destinations[i].queue.port != NULL and route.destinations[i].queue.port.placed != NULL:
            port = route.destinations[i].queue.port
        placed += 1
        # L1: with the last one the original ends.
        _place(address(route.destinations[i]), letter, original if placed == good else NULL, run)
    if port != NULL and letter.message_id and letter.flags & CONTENT_SHARED:
        port.placed(port.context, letter)
    content_decref(letter)
    route_decref(route)
    run.letters[reason] += 1
    return True


@cfunc
@inline
@nogil
@exceptval(check=False)
def _is_cycle(route: pointer[route_t], index: uint32_t, reason: c_int, form: pointer[form_t]) -> bint:
    return reason != DEATH_REJECTED and memo_is_cycle(letter_memo(), form, route.destinations[index].queue.name_hash)


@cfunc
@nogil
@exceptval(check=False)
def _read_and_publish(
    place: pointer[address_t], content: pointer[content_t], reason: c_int, original: pointer[original_t], run: pointer[letter_run_t]
) -> bint:
    """The letter of a message that did not die as the thread's last one did. False: nothing was done."""
    death: death_t
    head: letter_head_t
    form: form_t
    sent: bint = False
    _death_of(place, content, reason, run.time_s, address(death))
    if death_read(content_header(content), content.header_len, address(death), address(head)) != DEATH_READ:
        return False
    if head.copies.data == NULL:
        memo_keep(letter_memo(), content, place.number, reason, run.time_s, address(head), address(form))
        sent = _publish(place, content, reason, address(form), original, run)
    death_free(address(head))
    return sent


def letter_send(
    queue: pointer[queue_t],
    content: pointer[content_t],
    reason: c_int,
    original: pointer[original_t],
    run: pointer[letter_run_t],
) -> bint:
    place: pointer[address_t]
    form: form_t
    sent: bint = False
    if content.body_len > LETTER_COPY_MAX:
        return False
    place = cast(pointer[address_t], queue_letters(queue))
    if place == NULL:
        return False
    if at_load32(address(place.exchange.usable)) and not (place.keeps and at_load64(address(queue.kept))):
        if run.time_s == 0:
            run.time_s = wall_ms() // 1000
        if memo_find(letter_memo(), content, place.number, reason, run.time_s, address(form)):
            sent = _publish(place, content, reason, address(form), original, run)
        else:
            sent = _read_and_publish(place, content, reason, original, run)
    letters_decref(address(place.head))
    return sent


def letter_of_entry(
    queue: pointer[queue_t],
    entry: pointer[delivery_t],
    owner: uint32_t,
    reason: c_int,
    end: c_int,
    delivered_us: uint64_t,
    run: pointer[letter_run_t],
) -> bint:
    content: pointer[content_t] = slot_borrow(entry.slot, True, NULL)
    sent: bint
    if content == NULL:
        return False  # it is on disk only
    sent = _send_logged(queue, content, entry.position, owner, reason, end, delivered_us, run)
    content_decref(content)
    return sent


@cfunc
@nogil
@exceptval(check=False)
def _send_logged(
    queue: pointer[queue_t],
    content: pointer[content_t],
    position: uint64_t,
    owner: uint32_t,
    reason: c_int,
    end: c_int,
    delivered_us: uint64_t,
    run: pointer[letter_run_t],
) -> bint:
    """The letter of a held entry. Where the log knows the entry, it learns of both at once (L1). What died in a shared queue is left to
    Python: it ends when its targets have the letter for good (ADR 15, R9)."""
    original: original_t
    if queue.durable == QUEUE_MIRRORED:
        return False
    if not content.flags & CONTENT_PERSISTENT or not original_of(queue, position, owner, end, delivered_us, address(original)):
        return letter_send(queue, content, reason, NULL, run)
    if not letter_send(queue, content, reason, address(original), run):
        return False
    if original.ended:
        queue_forget_logged(queue, NULL, position, owner)
    return True


# --- many -------------------------------------------------------------------------------------------------------------------


def letters_make_room(queue: pointer[queue_t], most: uint32_t, run: pointer[letter_run_t], held: pointer[uint64_t]) -> uint32_t:
    delivery: delivery_t
    ended: uint32_t = 0
    held[0] = 0
    while ended < most and (ended == 0 or run.copied < LETTER_COPY_MAX) and queue_take_excess(queue, address(delivery)):
        if not letter_of_entry(queue, address(delivery), 0, DEATH_MAXLEN, REASON_DROP, 0, run):
            held[0] = delivery.position
            break
        queue_dequeue(queue, delivery.slot, delivery.position, 0, REASON_DROP)
        ended += 1
    return ended


def letters_drop(queue: pointer[queue_t], most: uint32_t, run: pointer[letter_run_t]) -> uint32_t:
    held: uint64_t = 0
    ended: uint32_t = letters_make_room(queue, most, run, address(held))
    if held:
        queue_release(queue, NULL, held, 0, False)
    return ended


def letters_cascade(run: pointer[letter_run_t]) -> void:
    budget: uint32_t = LETTERS_AT_ONCE
    looked: uint32_t = 0
    queue: pointer[queue_t]
    while looked < run.filled_count and budget and run.copied < LETTER_COPY_MAX:
        queue = run.filled[looked]
        budget -= letters_drop(queue, budget, run)
        if queue_over_limit(queue):
            looked += 1
            continue
        run.filled_count -= 1
        run.filled[looked] = run.filled[run.filled_count]
        queue_decref(queue)


def letters_begin(connection: pointer[connection_t], run: pointer[letter_run_t]) -> void:
    memset(run, 0, sizeof(letter_run_t))
    run.arena = connection.arena


def letters_end(connection: pointer[connection_t], run: pointer[letter_run_t]) -> bint:
    i: uint32_t
    if run.filled_count:
        letters_cascade(run)
    for i in range(run.filled_count):
        note_refused(connection, run.filled[i], NULL, REASON_DROP)
        queue_decref(run.filled[i])
    connection.dropped[DROP_MAXLEN] += run.dropped
    connection.dropped[DROP_LETTER] += run.refused
    connection.dropped[DROP_CYCLE] += run.cycles
    for i in range(DEATH_REASONS):
        connection.letters[i] += run.letters[i]
    if run.lsn > connection.logged:
        connection.logged = run.lsn
    return connection.refused != NULL


def note_refused(connection: pointer[connection_t], queue: pointer[queue_t], content: pointer[content_t], reason: c_int) -> bint:
    refused: pointer[refused_t]
    if content == NULL and connection.refused != NULL:
        refused = connection.refused_last
        if refused.queue == queue and refused.content == NULL:
            return True
    refused = cast(pointer[refused_t], calloc(1, sizeof(refused_t)))
    if refused == NULL:
        return False
    queue_incref(queue)
    if content != NULL:
        content_incref(content)
    refused.reason = reason
    refused.queue = queue
    refused.content = content
    if connection.refused == NULL:
        connection.refused = refused
    else:
        connection.refused_last.next = refused
    connection.refused_last = refused
    return True


def letters_drop_head(connection: pointer[connection_t], queue: pointer[queue_t]) -> bint:
    run: letter_run_t
    letters_begin(connection, address(run))
    letters_drop(queue, LETTERS_AT_ONCE, address(run))
    if queue_over_limit(queue):
        note_refused(connection, queue, NULL, REASON_DROP)
    return letters_end(connection, address(run))


def letter_refused(connection: pointer[connection_t], queue: pointer[queue_t], content: pointer[content_t]) -> bint:
    run: letter_run_t
    connection.dropped[DROP_PASSED] += 1
    letters_begin(connection, address(run))
    if not letter_send(queue, content, DEATH_MAXLEN, NULL, address(run)):
        note_refused(connection, queue, content, REASON_DROP)
    return letters_end(connection, address(run))


@cclass
class LetterWork:
    """Letters that Python asks for: expiry, limits that fell, deliveries that came back too often.

    Args: counters: takes what was counted (broker/counters.py); on_filled: called with the id of each queue that letters filled above its
    limit, and that the run had no time for. Holds the GIL throughout: any thread, one at a time.
    """

    def __cinit__(self, counters: object, on_filled: object):
        self.counters = counters
        self.on_filled = on_filled
        self.arena = arena_new()
        if self.arena == NULL:
            raise MemoryError
        self.run.arena = self.arena

    def __dealloc__(self):
        if self.arena != NULL:
            arena_free(self.arena)

    def expire(self, core: QueueHandle, now_ms: int, most: int) -> tuple[int, int]:
        """Dead-letters messages whose time is over (now_ms: wall clock), `most` at most. Returns (how many; the position of the next one,
        which the broker holds and the caller ends, 0: there is none)."""
        delivery: delivery_t
        ended: uint32_t = 0
        limit: uint32_t = most
        now: int64_t = now_ms
        held: uint64_t = 0
        while ended < limit and self.run.copied < LETTER_COPY_MAX and queue_take_expired(core.queue, now, address(delivery)):
            if not letter_of_entry(core.queue, address(delivery), 0, DEATH_EXPIRED, REASON_EXPIRE, 0, address(self.run)):
                held = delivery.position
                break
            queue_dequeue(core.queue, delivery.slot, delivery.position, 0, REASON_EXPIRE)
            ended += 1
        self._end()
        return ended, held

    def make_room(self, core: QueueHandle, most: int) -> tuple[int, int]:
        """Dead-letters what a queue is over its limit for, `most` messages at most; counts them. Returns as `expire`."""
        held: uint64_t = 0
        ended: uint32_t = letters_make_room(core.queue, most, address(self.run), address(held))
        self._end()
        return ended, held

    def send(self, core: QueueHandle, position: int, reason: str, end: int) -> bool:
        """The letter of an entry that the broker holds. False: nothing was done. Args: end: DequeueReason of its end, which follows."""
        message_id: uint64_t = 0
        content: pointer[content_t] = queue_borrow(core.queue, position, address(message_id))
        sent: bint = False
        if content != NULL:
            sent = _send_logged(core.queue, content, position, 0, REASONS.index(reason), end, 0, address(self.run))
            content_decref(content)
        self._end()
        return bool(sent)

    def _end(self) -> void:
        """What letters filled is looked after, and all is counted."""
        run: letter_run_t
        i: uint32_t
        if self.run.filled_count:
            letters_cascade(address(self.run))
        run = self.run
        memset(address(self.run), 0, sizeof(letter_run_t))  # what follows may let other threads run
        self.run.arena = self.arena
        filled: list = []
        for i in range(run.filled_count):
            filled.append(run.filled[i].id)
            queue_decref(run.filled[i])
        lost: tuple = (("maxlen", run.dropped), ("dead_letter_refused", run.refused), ("dead_letter_cycle", run.cycles))
        drops: dict = {name: count for name, count in lost if count}
        letters: dict = {name: count for name, count in zip(REASONS, run.letters, strict=True) if count}
        if drops or letters:
            self.counters.add_drops(drops)
            self.counters.add_letters(letters)
        for queue_id in filled:
            self.on_filled(queue_id)

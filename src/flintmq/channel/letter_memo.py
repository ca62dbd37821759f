"""The last letter of a thread (see letter_memo.pxd).

in: a message that dies, what death_read says of it. out: the form of its letter, read or remembered.

M1  Everything that a header is made of is compared: the queue's address (its name, the dead-letter routing key), the reason, the second,
    and the message's route and header. An address has a number of its own, which no other one ever gets.
M2  What is remembered holds nothing that is counted: a queue or an exchange goes when it is deleted.
"""

from __future__ import annotations

from cython import NULL, bint, cast, declare, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.flintmq.core.content import content_header, content_route, content_t
from cython.cimports.flintmq.protocol.v0_9_1.death import death_is_cycle, death_write, letter_head_t
from cython.cimports.libc.stdint import int64_t, uint64_t, uint8_t
from cython.cimports.libc.string import memcmp, memcpy

# bytes of letter_memo_place
PLACE_BYTES = declare(uint64_t, 420 * 8)

if sizeof(letter_memo_t) > PLACE_BYTES:
    raise SystemError(f"a remembered letter takes {sizeof(letter_memo_t)} bytes")


def letter_memo() -> pointer[letter_memo_t]:
    return cast(pointer[letter_memo_t], letter_memo_place())


def memo_find(
    memo: pointer[letter_memo_t], content: pointer[content_t], number: uint64_t, reason: c_int, time_s: int64_t, form: pointer[form_t]
) -> bint:
    if (
        memo.address != number
        or memo.time_s != time_s
        or memo.reason != reason
        or memo.route_len != content.route_len
        or memo.header_len != content.header_len
        or memcmp(memo.given, content_route(content), memo.route_len) != 0
        or memcmp(cast(pointer[uint8_t], memo.given) + memo.route_len, content_header(content), memo.header_len) != 0
    ):
        return False
    form[0] = memo.form
    return True


def memo_keep(
    memo: pointer[letter_memo_t],
    content: pointer[content_t],
    number: uint64_t,
    reason: c_int,
    time_s: int64_t,
    head: pointer[letter_head_t],
    form: pointer[form_t],
) -> void:
    form.head = head
    form.header = NULL
    form.size = head.size
    form.delivery_mode = head.delivery_mode
    form.has_priority = head.has_priority
    form.cut = head.cut
    form.deaths = head.deaths
    memo.address = 0
    memo.asked_of = 0
    if (
        head.copies.data != NULL
        or content.route_len + content.header_len > MEMO_GIVEN
        or cast(uint64_t, head.size) + head.deaths.size > MEMO_MADE
    ):
        return
    death_write(head, memo.made)
    form.head = NULL
    form.header = memo.made
    # A cycle is looked for in a copy of the deaths behind it: where they stand in it is death_write's.
    memcpy(cast(pointer[uint8_t], memo.made) + head.size, head.deaths.data, head.deaths.size)
    form.deaths.data = cast(pointer[uint8_t], memo.made) + head.size
    memcpy(memo.given, content_route(content), content.route_len)
    memcpy(cast(pointer[uint8_t], memo.given) + content.route_len, content_header(content), content.header_len)
    memo.route_len = content.route_len
    memo.header_len = content.header_len
    memo.reason = reason
    memo.time_s = time_s
    memo.address = number
    memo.form = form[0]


def memo_is_cycle(memo: pointer[letter_memo_t], form: pointer[form_t], queue_hash: uint64_t) -> bint:
    if memo.asked_of != queue_hash:
        memo.asked_of = queue_hash
        memo.is_cycle = death_is_cycle(form.deaths, form.cut, queue_hash)
    return memo.is_cycle

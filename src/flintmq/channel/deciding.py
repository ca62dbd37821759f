"""The route of a message that its key alone does not decide (see deciding.pxd).

in: a complete message of a channel. out: its route, from what its exchange remembers, or by chance.

D1  A route is found only as long as the one is valid whose sieve wrote the deciding bytes: a binding may ask for another header since.
D2  The exchange is one that this user is authorized for. Where keys are asked for it is the user's own (broker/routes), which has only
    routes whose keys, those of CC and BCC too, the user may use.
"""

from __future__ import annotations

import cython
from cython import NULL, address, cast, cfunc, declare, exceptval, nogil, pointer
from cython import int as c_int
from cython.cimports.flintmq.channel.types import AUTHORIZED_MAX, SLOWLY_BY_CHANCE, channel_t, connection_t
from cython.cimports.flintmq.core.byte_order import get32, put32
from cython.cimports.flintmq.core.content import (
    CONTENT_HEADERS, content_body, content_decref, content_frame, content_header, content_new, content_route, content_t,
)  # fmt: skip
from cython.cimports.flintmq.core.header_field import header_look, header_look_t, value_size
from cython.cimports.flintmq.routing.route_cache import (
    ROUTE_BY_CHANCE, exchange_find, exchange_t, route_choose, route_decref, route_is_valid, route_t,
)  # fmt: skip
from cython.cimports.flintmq.routing.sieve import sieve_write
from cython.cimports.libc.stdint import uint32_t, uint8_t
from cython.cimports.libc.string import memcmp, memcpy

from flintmq.config import Limits
from flintmq.errors import check

KEY_BYTES_MAX = declare(uint32_t, Limits().content_key_bytes_max)
check(KEY_BYTES_MAX + 512 <= DECIDING_ROOM, "deciding.pxd and Limits disagree")


def channel_exchange(channel: pointer[channel_t]) -> pointer[exchange_t]:
    exchange: pointer[exchange_t]
    key: pointer[uint8_t] = channel.route.key
    i: c_int
    for i in range(AUTHORIZED_MAX):
        exchange = channel.authorized[i]
        if exchange != NULL and exchange.name_len == key[0] and memcmp(exchange.name, key + 1, key[0]) == 0:
            return exchange
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _found_by(channel: pointer[channel_t], look: pointer[header_look_t], out: pointer[uint8_t]) -> uint32_t:
    route: pointer[route_t] = channel.route
    content: pointer[content_t] = channel.content
    size: c_int
    table: uint32_t = 0
    look.table = look.cut_size = 0
    if not route_is_valid(route):
        return 0  # D1
    if content.flags & CONTENT_HEADERS:
        if not header_look(content_header(content), content.header_len, b"BCC", NULL, look):
            return 0
        table = look.table + 4
    memcpy(out, route.key, route.key_len)
    size = sieve_write(route.sieve, content_header(content) + table, look.end - table if table else 0, out + route.key_len, KEY_BYTES_MAX)
    return 0 if size < 0 else route.key_len + cast(uint32_t, size)


def channel_found_by(channel: pointer[channel_t], out: pointer[uint8_t]) -> uint32_t:
    look: header_look_t
    return _found_by(channel, address(look), out)


def route_by_key(
    exchange: pointer[exchange_t], key: pointer[cython.const[uint8_t]], key_len: uint32_t, how: pointer[uint8_t]
) -> pointer[route_t]:
    route: pointer[route_t]
    chosen: pointer[route_t] = NULL
    how[0] = 0
    route = exchange_find(exchange, key, key_len, how)
    if route == NULL or how[0] == 0:
        return route
    if how[0] == ROUTE_BY_CHANCE:
        chosen = route_choose(route)
    route_decref(route)
    return chosen


def channel_decide(connection: pointer[connection_t], channel: pointer[channel_t]) -> pointer[route_t]:
    found_by: uint8_t[DECIDING_ROOM]
    look: header_look_t
    size: uint32_t
    how: uint8_t = 0
    exchange: pointer[exchange_t]
    decided: pointer[route_t]
    shorter: pointer[content_t]
    if channel.slow_publish == SLOWLY_BY_CHANCE:
        return route_choose(channel.route) if route_is_valid(channel.route) else NULL
    exchange = channel_exchange(channel)
    if exchange == NULL:
        return NULL
    size = _found_by(channel, address(look), found_by)
    if size == 0:
        return NULL
    decided = exchange_find(exchange.contents, found_by, size, address(how))
    if decided != NULL and look.cut_size:
        shorter = _without_bcc(connection, channel.content, address(look))
        if shorter == NULL:
            route_decref(decided)
            return NULL
        content_decref(channel.content)
        channel.content = shorter
    return decided


@cfunc
@nogil
@exceptval(check=False)
def _without_bcc(connection: pointer[connection_t], content: pointer[content_t], look: pointer[header_look_t]) -> pointer[content_t]:
    """The message without its header BCC; everything else keeps its bytes. NULL: no memory."""
    header: pointer[uint8_t] = content_header(content)
    shorter: pointer[content_t] = content_new(connection.arena, content.route_len, content.header_len - look.cut_size, content.body_len)
    place: uint32_t = look.table + 4
    out: pointer[uint8_t]
    size: uint32_t
    if shorter == NULL:
        return NULL
    out = content_header(shorter)
    memcpy(out, header, place)
    put32(out + look.table, get32(header + look.table) - look.cut_size)
    out += place
    while place < look.end:
        size = 1 + cast(uint32_t, header[place])
        size += value_size(header + place + size, look.end - place - size)
        if header[place] != 3 or memcmp(header + place + 1, b"BCC", 3) != 0:
            memcpy(out, header + place, size)
            out += size
        place += size
    memcpy(out, header + look.end, content.header_len - look.end)
    memcpy(content_route(shorter), content_route(content), content.route_len)
    if content.body_len:
        memcpy(content_body(shorter), content_body(content), content.body_len)
    shorter.flags = content.flags
    shorter.priority = content.priority
    content_frame(shorter)
    return shorter

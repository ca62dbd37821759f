"""The content header of a dead letter: RabbitMQ's x-death, spliced into the wire bytes of the dead message's headers (see death.pxd).

in: the content header payload of a dead message, and how it died. out: the payload of its letter; whether a queue closes a cycle.

`x-death` is an array of tables, most recent first, one for each (queue, reason), with count (int64), reason, queue, time (of the first such
death), exchange, routing-keys and, for a message that had an expiration property, original-expiration. `x-first-death-*` are set with the
first x-death and never change. The expiration property goes. Everything else keeps its bytes; the table is sorted by name, as RabbitMQ
leaves it. Celery, NServiceBus and Spring read it.

D1  A death costs the same whatever the message has died of before: one table is counted, the others are passed by their lengths.
D2  x-death has `dead_letter_deaths_bytes_max` bytes at most: the oldest deaths go.
D3  No byte outside the payload is read, whatever it holds; malformed bytes are an answer.
D4  What clients have put into x-death is put in order while it has at most TIDY_MAX items: one table for a queue and reason, no other
    types. An array of more items that is no list of tables, and an x-death of another type, are set anew.

tests/oracle/dead_letter.py says the same in Python. Source: rabbit_dead_letter.erl, rabbit_basic.erl (prepend_table_header),
rabbit_misc.erl (sort_field_table) of RabbitMQ 3.10.
"""

from __future__ import annotations

import os

import cython
from cython import NULL, address, bint, cast, cfunc, declare, exceptval, inline, nogil, p_char, p_void, pointer, sizeof, void
from cython import int as c_int
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.flintmq.core.byte_order import get16, get32, get64, put16, put32, put64
from cython.cimports.flintmq.core.header_field import value_size
from cython.cimports.flintmq.core.keyed_hash import hash_key_t, keyed_hash
from cython.cimports.flintmq.protocol.v0_9_1.ids import CLASS_BASIC
from cython.cimports.flintmq.protocol.v0_9_1.scan import (
    CONTENT_HEADER_SIZE, PROP_CONTENT_TYPE, PROP_DELIVERY_MODE, PROP_EXPIRATION, PROP_HEADERS, PROP_PRIORITY, PROP_TIMESTAMP, PROP_UNKNOWN,
)  # fmt: skip
from cython.cimports.flintmq.protocol.v0_9_1.tables import syntax_error
from cython.cimports.libc.stdint import int16_t, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, malloc, qsort
from cython.cimports.libc.string import memcmp, memcpy

from flintmq.config import Limits

DEATHS_BYTES_MAX = declare(uint32_t, Limits().dead_letter_deaths_bytes_max)
TIDY_MAX = declare(uint32_t, 8)
# fields that are put in order by insertion; most tables have fewer, and are in order
INSERTED_MAX = declare(uint32_t, 32)
# bytes of the new values of a letter beside the names and texts in them: field names, types, lengths
VALUES_FIXED = declare(uint32_t, 512)
INT64_MAX = declare(uint64_t, 0x7FFFFFFFFFFFFFFF)
_hash_key = declare(hash_key_t)


@cfunc
def _draw_key() -> None:
    octets: bytes = os.urandom(sizeof(hash_key_t))
    memcpy(address(_hash_key), PyBytes_AS_STRING(octets), sizeof(hash_key_t))


_draw_key()


def name_hash(name: pointer[cython.const[uint8_t]], size: uint32_t) -> uint64_t:
    return keyed_hash(address(_hash_key), name, size) | 1


# --- reading ----------------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _is(name: pointer[cython.const[uint8_t]], size: uint32_t, wanted: p_char, wanted_size: uint32_t) -> bint:
    return size == wanted_size and memcmp(name, wanted, wanted_size) == 0


@cfunc
@nogil
@exceptval(check=False)
def _split(
    table: pointer[cython.const[uint8_t]], size: uint32_t, fields: pointer[field_t], room: uint32_t, count: pointer[uint32_t]
) -> bint:
    """The first `room` fields of a table without its length; `*count`: of all. False: it is malformed."""
    offset: uint32_t = 0
    value: uint32_t
    name_size: uint32_t
    count[0] = 0
    while offset < size:
        name_size = table[offset]
        if size - offset <= 1 + name_size:
            return False
        value = value_size(table + offset + 1 + name_size, size - offset - 1 - name_size)
        if value == 0:
            return False
        if count[0] < room:
            fields[count[0]].name = table + offset + 1
            fields[count[0]].name_size = cast(uint8_t, name_size)
            fields[count[0]].value = table + offset + 1 + name_size
            fields[count[0]].value_size = value
            fields[count[0]].number = count[0]
        count[0] += 1
        offset += 1 + name_size + value
    return True


@cfunc
@nogil
@exceptval(check=False)
def _first(fields: pointer[field_t], count: uint32_t, name: p_char, name_size: uint32_t) -> pointer[field_t]:
    """Of names that a table repeats the first counts. NULL: it is not there."""
    i: uint32_t
    for i in range(count):
        if _is(fields[i].name, fields[i].name_size, name, name_size):
            return address(fields[i])
    return NULL


@cfunc
@nogil
@exceptval(check=False)
def _value_of(table: pointer[cython.const[uint8_t]], size: uint32_t, name: p_char, name_size: uint32_t) -> text_t:
    """The first value of that name, with its type octet, in a table without its length; none: it is not there."""
    offset: uint32_t = 0
    value: uint32_t
    text: text_t
    text.data = NULL
    text.size = 0
    while offset < size:
        if size - offset <= 1 + cast(uint32_t, table[offset]):
            break
        value = value_size(table + offset + 1 + table[offset], size - offset - 1 - table[offset])
        if value == 0:
            break
        if _is(table + offset + 1, table[offset], name, name_size):
            text.data = table + offset + 1 + table[offset]
            text.size = value
            break
        offset += 1 + table[offset] + value
    return text


@cfunc
@inline
@nogil
@exceptval(check=False)
def _same_text(value: text_t, text: text_t) -> bint:
    """Whether a value is that long string."""
    return value.data != NULL and value.size == text.size + 5 and value.data[0] == 83 and memcmp(value.data + 5, text.data, text.size) == 0


@cfunc
@inline
@nogil
@exceptval(check=False)
def _same_texts(one: text_t, other: text_t) -> bint:
    """Whether two values are the same long string, or none of them is one."""
    first: bint = one.data != NULL and one.data[0] == 83
    second: bint = other.data != NULL and other.data[0] == 83
    if not first or not second:
        return first == second
    return one.size == other.size and memcmp(one.data, other.data, one.size) == 0


@cfunc
@nogil
@exceptval(check=False)
def _compare(one: pointer[cython.const[void]], other: pointer[cython.const[void]]) -> c_int:
    left: pointer[field_t] = cast(pointer[field_t], one)
    right: pointer[field_t] = cast(pointer[field_t], other)
    least: uint32_t = left.name_size if left.name_size < right.name_size else right.name_size
    order: c_int = memcmp(left.name, right.name, least)
    if order:
        return order
    if left.name_size != right.name_size:
        return 1 if left.name_size > right.name_size else -1
    return 1 if left.number > right.number else -1


@cfunc
@nogil
@exceptval(check=False)
def _sort(fields: pointer[field_t], count: uint32_t) -> void:
    """By name; fields of one name stay in their order."""
    i: uint32_t
    place: uint32_t
    field: field_t
    if count > INSERTED_MAX:
        for i in range(1, count):
            if _compare(address(fields[i - 1]), address(fields[i])) > 0:
                qsort(fields, count, sizeof(field_t), _compare)
                return
        return
    for i in range(1, count):
        place = i
        if _compare(address(fields[i - 1]), address(fields[i])) < 0:
            continue
        field = fields[i]
        while place and _compare(address(fields[place - 1]), address(field)) > 0:
            fields[place] = fields[place - 1]
            place -= 1
        fields[place] = field


@cfunc
@nogil
@exceptval(check=False)
def _read_properties(
    payload: pointer[cython.const[uint8_t]], size: uint32_t, out: pointer[letter_head_t], table: pointer[text_t]
) -> text_t:
    """Cuts a content header payload. Returns the expiration property, without its length; its data is NULL when there is none.
    out.payload is NULL: the payload is malformed."""
    expiration: text_t
    flags: uint16_t
    flag: uint16_t = PROP_CONTENT_TYPE
    offset: uint32_t = CONTENT_HEADER_SIZE
    middle: uint32_t
    length: uint32_t
    expiration.data = NULL
    expiration.size = 0
    table.data = payload
    table.size = 0
    out.payload = NULL
    if size < CONTENT_HEADER_SIZE or get16(payload) != CLASS_BASIC or get16(payload + 2) != 0:
        return expiration
    flags = get16(payload + 12)
    if flags & PROP_UNKNOWN:
        return expiration
    out.property_flags = flags
    middle = offset
    while flag > 2:
        if flag == PROP_HEADERS:
            out.front_size = offset - CONTENT_HEADER_SIZE
            middle = offset
        elif flag == PROP_EXPIRATION:
            out.middle.data = payload + middle
            out.middle.size = offset - middle
        if flags & flag:
            length = 1
            if flag == PROP_HEADERS:
                if size - offset < 4:
                    return expiration
                table.data = payload + offset + 4
                table.size = get32(payload + offset)
                if size - offset - 4 < table.size:
                    return expiration
                length = 4 + table.size
            elif flag == PROP_TIMESTAMP:
                length = 8
            elif offset >= size:
                return expiration
            elif flag != PROP_DELIVERY_MODE and flag != PROP_PRIORITY:
                length = 1 + cast(uint32_t, payload[offset])
            if size - offset < length:
                return expiration
            if flag == PROP_HEADERS:
                middle = offset + length
            elif flag == PROP_DELIVERY_MODE:
                out.delivery_mode = payload[offset]
            elif flag == PROP_PRIORITY:
                out.has_priority = True
                out.priority = payload[offset]
            elif flag == PROP_EXPIRATION:
                expiration.data = payload + offset + 1
                expiration.size = length - 1
            offset += length
        if flag == PROP_EXPIRATION:
            out.end.data = payload + offset
        flag >>= 1
    if offset == size:
        out.end.size = cast(uint32_t, payload + size - out.end.data)
        out.payload = payload
    return expiration


# --- new values -------------------------------------------------------------------------------------------------------------


@cfunc
@inline
@nogil
@exceptval(check=False)
def _put(out: pointer[letter_head_t], data: pointer[cython.const[void]], size: uint32_t) -> void:
    memcpy(out.scratch + out.scratch_used, data, size)
    out.scratch_used += size


@cfunc
@nogil
@exceptval(check=False)
def _put_name(out: pointer[letter_head_t], name: p_char, size: uint32_t) -> void:
    out.scratch[out.scratch_used] = cast(uint8_t, size)
    out.scratch_used += 1
    _put(out, name, size)


@cfunc
@nogil
@exceptval(check=False)
def _put_long(out: pointer[letter_head_t], kind: uint8_t, value: uint64_t) -> void:
    out.scratch[out.scratch_used] = kind
    put64(out.scratch + out.scratch_used + 1, value)
    out.scratch_used += 9


@cfunc
@nogil
@exceptval(check=False)
def _put_text(out: pointer[letter_head_t], text: text_t) -> void:
    out.scratch[out.scratch_used] = 83
    put32(out.scratch + out.scratch_used + 1, text.size)
    out.scratch_used += 5
    _put(out, text.data, text.size)


@cfunc
@nogil
@exceptval(check=False)
def _open(out: pointer[letter_head_t], kind: uint8_t) -> uint32_t:
    """Begins a table or array; returns the offset for _close."""
    out.scratch[out.scratch_used] = kind
    out.scratch_used += 5
    return out.scratch_used


@cfunc
@nogil
@exceptval(check=False)
def _close(out: pointer[letter_head_t], start: uint32_t) -> void:
    put32(out.scratch + start - 4, out.scratch_used - start)


@cfunc
@nogil
@exceptval(check=False)
def _put_exchange_and_expiration(out: pointer[letter_head_t], death: pointer[cython.const[death_t]], expiration: text_t) -> void:
    _put_name(out, b"exchange", 8)
    _put_text(out, death.exchange)
    if expiration.data != NULL:
        _put_name(out, b"original-expiration", 19)
        _put_text(out, expiration)


@cfunc
@nogil
@exceptval(check=False)
def _put_keys(out: pointer[letter_head_t], death: pointer[cython.const[death_t]], copies: text_t) -> void:
    """routing-keys: the message's own, then those of CC."""
    start: uint32_t
    offset: uint32_t = 0
    value: uint32_t
    _put_name(out, b"routing-keys", 12)
    start = _open(out, 65)
    _put_text(out, death.routing_key)
    while offset < copies.size:
        value = value_size(copies.data + offset, copies.size - offset)
        if copies.data[offset] == 83:
            _put(out, copies.data + offset, value)
        offset += value
    _close(out, start)


@cfunc
@nogil
@exceptval(check=False)
def _put_first(
    out: pointer[letter_head_t], death: pointer[cython.const[death_t]], expiration: text_t, copies: text_t, sorted_: bint
) -> void:
    """A death that is not in x-death yet. RabbitMQ sorts the fields of all but the first one of a message."""
    start: uint32_t = _open(out, 70)
    _put_name(out, b"count", 5)
    _put_long(out, 108, 1)
    if sorted_:
        _put_exchange_and_expiration(out, death, expiration)
        _put_name(out, b"queue", 5)
        _put_text(out, death.queue)
    _put_name(out, b"reason", 6)
    _put_text(out, death.reason)
    if sorted_:
        _put_keys(out, death, copies)
    else:
        _put_name(out, b"queue", 5)
        _put_text(out, death.queue)
    _put_name(out, b"time", 4)
    _put_long(out, 84, cast(uint64_t, death.time_s))
    if not sorted_:
        _put_name(out, b"exchange", 8)
        _put_text(out, death.exchange)
        _put_keys(out, death, copies)
        if expiration.data != NULL:
            _put_name(out, b"original-expiration", 19)
            _put_text(out, expiration)
    _close(out, start)


@cfunc
@nogil
@exceptval(check=False)
def _count_of(value: pointer[cython.const[uint8_t]]) -> uint64_t:
    """The count of a death, and one more. One that is no number, which a client made up, starts again at 1; the count saturates."""
    kind: uint8_t = value[0]
    count: uint64_t
    if kind == 108 or kind == 76:  # l, L
        count = get64(value + 1)
        return INT64_MAX if count == INT64_MAX else count + 1
    if kind == 73:
        return cast(uint64_t, cast(int64_t, cast(int32_t, get32(value + 1)))) + 1
    if kind == 105:
        return cast(uint64_t, get32(value + 1)) + 1
    if kind == 115:
        return cast(uint64_t, cast(int64_t, cast(int16_t, get16(value + 1)))) + 1
    if kind == 117:
        return cast(uint64_t, get16(value + 1)) + 1
    if kind == 98:
        return cast(uint64_t, cast(int64_t, cast(int8_t, value[1]))) + 1
    if kind == 66:
        return cast(uint64_t, value[1]) + 1
    return 1


@cfunc
@nogil
@exceptval(check=False)
def _put_counted(out: pointer[letter_head_t], table: text_t) -> c_int:
    """The same death once more; `table`: its fields, well formed. DEATH_*."""
    few: field_t[FIELDS_FEW]
    fields: pointer[field_t] = few
    count: uint32_t = 0
    i: uint32_t
    start: uint32_t
    counter: pointer[field_t]
    octets: uint8_t[9]
    if not _split(table.data, table.size, fields, FIELDS_FEW - 1, address(count)):
        return DEATH_MALFORMED
    if count >= FIELDS_FEW:
        fields = cast(pointer[field_t], calloc(count + 1, sizeof(field_t)))
        if fields == NULL:
            return DEATH_NO_MEMORY
        _split(table.data, table.size, fields, count, address(count))
    counter = _first(fields, count, b"count", 5)
    octets[0] = 108
    put64(cast(pointer[uint8_t], octets) + 1, 1 if counter == NULL else _count_of(counter.value))
    if counter == NULL:
        counter = address(fields[count])
        counter.name = cast(pointer[uint8_t], cast(p_char, b"count"))
        counter.name_size = 5
        counter.number = count
        count += 1
    counter.value = octets
    counter.value_size = 9
    _sort(fields, count)
    start = _open(out, 70)
    for i in range(count):
        _put_name(out, cast(p_char, cast(p_void, fields[i].name)), fields[i].name_size)
        _put(out, fields[i].value, fields[i].value_size)
    _close(out, start)
    if fields != few:
        free(fields)
    return DEATH_READ


@cfunc
@nogil
@exceptval(check=False)
def _tables_of(value: text_t, tidy: pointer[text_t], count: pointer[uint32_t]) -> text_t:
    """The tables in a value of x-death without its length, most recent first. `*count` of them are in `tidy` (at most TIDY_MAX); 0: it has
    more, all tables, and they are the items that are returned, or there are none (D4)."""
    items: text_t
    none: text_t
    offset: uint32_t = 0
    size: uint32_t
    seen: uint32_t = 0
    fields: uint32_t
    is_tables: bint = True
    none.data = NULL
    none.size = 0
    count[0] = 0
    if value.data == NULL or value.data[0] != 65:
        return none
    items.data = value.data + 5
    items.size = value.size - 5
    while offset < items.size:
        size = value_size(items.data + offset, items.size - offset)
        if size == 0:
            return none
        seen += 1
        is_tables = is_tables and items.data[offset] == 70
        offset += size
    if seen > TIDY_MAX:
        return items if is_tables else none
    offset = 0
    while offset < items.size:
        size = value_size(items.data + offset, items.size - offset)
        if items.data[offset] == 70:
            if not _split(items.data + offset + 5, size - 5, NULL, 0, address(fields)):
                count[0] = 0
                return none
            tidy[count[0]].data = items.data + offset
            tidy[count[0]].size = size
            if not _repeats(tidy, count[0]):
                count[0] += 1
        offset += size
    return items if count[0] else none


@cfunc
@nogil
@exceptval(check=False)
def _repeats(tables: pointer[text_t], last: uint32_t) -> bint:
    """Whether the last of these tables has the queue and reason of one before it: clients that copy headers may have repeated them."""
    queue: text_t = _value_of(tables[last].data + 5, tables[last].size - 5, b"queue", 5)
    reason: text_t = _value_of(tables[last].data + 5, tables[last].size - 5, b"reason", 6)
    i: uint32_t
    for i in range(last):
        if _same_texts(queue, _value_of(tables[i].data + 5, tables[i].size - 5, b"queue", 5)) and _same_texts(
            reason, _value_of(tables[i].data + 5, tables[i].size - 5, b"reason", 6)
        ):
            return True
    return False


@cfunc
@nogil
@exceptval(check=False)
def _is_death(table: text_t, death: pointer[cython.const[death_t]]) -> bint:
    """Whether a table, with its type and length, is that of the queue and reason."""
    return (
        table.size >= 5
        and table.data[0] == 70
        and _same_text(_value_of(table.data + 5, table.size - 5, b"queue", 5), death.queue)
        and _same_text(_value_of(table.data + 5, table.size - 5, b"reason", 6), death.reason)
    )


@cfunc
@nogil
@exceptval(check=False)
def _put_deaths(
    out: pointer[letter_head_t], death: pointer[cython.const[death_t]], value: text_t, expiration: text_t, copies: text_t
) -> c_int:
    """The new value of x-death. DEATH_*."""
    tidy: text_t[9]
    count: uint32_t = 0
    items: text_t = _tables_of(value, tidy, address(count))
    start: uint32_t = _open(out, 65)
    one: text_t
    known: text_t
    i: uint32_t = 0
    offset: uint32_t = 0
    outcome: c_int = DEATH_READ
    known.data = NULL
    known.size = 0
    while known.data == NULL and (i < count if count else offset < items.size):
        one = _table_at(items, tidy, count, i, offset)
        if _is_death(one, death):
            known = one
        i += 1
        offset += one.size
    if known.data == NULL:
        _put_first(out, death, expiration, copies, value.data != NULL)
    else:
        one.data = known.data + 5
        one.size = known.size - 5
        outcome = _put_counted(out, one)
    i = 0
    offset = 0
    while outcome == DEATH_READ and (i < count if count else offset < items.size):
        one = _table_at(items, tidy, count, i, offset)
        if one.data != known.data:
            if out.scratch_used - start + one.size > DEATHS_BYTES_MAX:
                out.cut = True
                break
            _put(out, one.data, one.size)
        i += 1
        offset += one.size
    out.deaths.data = out.scratch + start
    out.deaths.size = out.scratch_used - start
    _close(out, start)
    return outcome


@cfunc
@inline
@nogil
@exceptval(check=False)
def _table_at(items: text_t, tidy: pointer[text_t], count: uint32_t, index: uint32_t, offset: uint32_t) -> text_t:
    """The next table: of `tidy` when that has any, else at `offset` of the items, whose lengths were checked."""
    one: text_t
    if count:
        return tidy[index]
    one.data = items.data + offset
    one.size = value_size(one.data, items.size - offset)
    return one


# --- the letter -------------------------------------------------------------------------------------------------------------


@cfunc
@nogil
@exceptval(check=False)
def _copies_of(fields: pointer[field_t], count: uint32_t, copies: pointer[text_t]) -> bint:
    """The items of CC; anything but an array has none. False: it is malformed."""
    field: pointer[field_t] = _first(fields, count, b"CC", 2)
    offset: uint32_t = 0
    value: uint32_t
    copies.data = NULL
    copies.size = 0
    if field == NULL or field.value[0] != 65:
        return True
    copies.data = field.value + 5
    copies.size = field.value_size - 5
    while offset < copies.size:
        value = value_size(copies.data + offset, copies.size - offset)
        if value == 0:
            return False
        offset += value
    return True


@cfunc
@nogil
@exceptval(check=False)
def _store(out: pointer[letter_head_t], name: p_char, size: uint32_t, start: uint32_t) -> void:
    """The value from `start` of the scratch on replaces the first field of that name, or is a new one: there is room for it."""
    field: pointer[field_t] = _first(out.fields, out.count, name, size)
    if field == NULL:
        field = address(out.fields[out.count])
        field.name = cast(pointer[uint8_t], cast(p_void, name))
        field.name_size = cast(uint8_t, size)
        field.number = out.count
        out.count += 1
    field.value = out.scratch + start
    field.value_size = out.scratch_used - start


@cfunc
@nogil
@exceptval(check=False)
def _store_text(out: pointer[letter_head_t], name: p_char, size: uint32_t, text: text_t) -> void:
    start: uint32_t = out.scratch_used
    _put_text(out, text)
    _store(out, name, size, start)


@cfunc
@nogil
@exceptval(check=False)
def _make_room(out: pointer[letter_head_t], table: text_t, death: pointer[cython.const[death_t]], expiration: text_t) -> c_int:
    """The fields of the table, with room for four more, and for new values. DEATH_*."""
    texts: uint32_t = 2 * (death.queue.size + death.reason.size + death.exchange.size) + death.routing_key.size + expiration.size
    out.fields = out.few_fields
    out.scratch = out.few_scratch
    out.scratch_size = SCRATCH_FEW
    if not _split(table.data, table.size, out.fields, FIELDS_FEW - 4, address(out.count)):
        return DEATH_MALFORMED
    if out.count > FIELDS_FEW - 4:
        out.fields = cast(pointer[field_t], calloc(out.count + 4, sizeof(field_t)))
        if out.fields == NULL:
            return DEATH_NO_MEMORY
        _split(table.data, table.size, out.fields, out.count, address(out.count))
    if VALUES_FIXED + texts + 2 * table.size > SCRATCH_FEW:
        out.scratch_size = VALUES_FIXED + texts + 2 * table.size  # x-death once more, and CC in it
        out.scratch = cast(pointer[uint8_t], malloc(out.scratch_size))
        if out.scratch == NULL:
            return DEATH_NO_MEMORY
    return DEATH_READ


def death_read(
    payload: pointer[cython.const[uint8_t]], size: uint32_t, death: pointer[cython.const[death_t]], out: pointer[letter_head_t]
) -> c_int:
    table: text_t
    value: text_t
    copies: text_t
    expiration: text_t
    field: pointer[field_t]
    start: uint32_t
    outcome: c_int
    out.fields = NULL
    out.scratch = NULL
    out.scratch_used = 0
    out.delivery_mode = 0
    out.has_priority = False
    out.priority = 0
    out.cut = False
    expiration = _read_properties(payload, size, out, address(table))
    if out.payload == NULL:
        return DEATH_MALFORMED
    outcome = _make_room(out, table, death, expiration)
    if outcome == DEATH_READ and not _copies_of(out.fields, out.count, address(copies)):
        outcome = DEATH_MALFORMED
    if outcome == DEATH_READ:
        value.data = NULL
        value.size = 0
        field = _first(out.fields, out.count, b"x-death", 7)
        if field != NULL:
            value.data = field.value
            value.size = field.value_size
        else:
            _store_text(out, b"x-first-death-reason", 20, death.reason)
            _store_text(out, b"x-first-death-queue", 19, death.queue)
            _store_text(out, b"x-first-death-exchange", 22, death.exchange)
        start = out.scratch_used
        outcome = _put_deaths(out, death, value, expiration, copies)
        _store(out, b"x-death", 7, start)
    if outcome != DEATH_READ:
        death_free(out)
        return outcome
    out.copies = copies
    if death.new_key.data != NULL:
        _drop_copies(out)
    _sort(out.fields, out.count)
    _measure(out)
    return DEATH_READ


@cfunc
@nogil
@exceptval(check=False)
def _drop_copies(out: pointer[letter_head_t]) -> void:
    """The dead-letter routing key replaces all keys: CC goes."""
    i: uint32_t
    kept: uint32_t = 0
    for i in range(out.count):
        if not _is(out.fields[i].name, out.fields[i].name_size, b"CC", 2):
            out.fields[kept] = out.fields[i]
            kept += 1
    out.count = kept
    out.copies.data = NULL
    out.copies.size = 0


@cfunc
@nogil
@exceptval(check=False)
def _measure(out: pointer[letter_head_t]) -> void:
    i: uint32_t
    out.table_size = 0
    for i in range(out.count):
        out.table_size += 1 + out.fields[i].name_size + out.fields[i].value_size
    out.property_flags = (out.property_flags | PROP_HEADERS) & ~cast(uint16_t, PROP_EXPIRATION)
    out.size = CONTENT_HEADER_SIZE + out.front_size + 4 + out.table_size + out.middle.size + out.end.size


def death_write(head: pointer[letter_head_t], out: pointer[uint8_t]) -> void:
    i: uint32_t
    memcpy(out, head.payload, CONTENT_HEADER_SIZE + head.front_size)
    put16(out + 12, head.property_flags)
    out += CONTENT_HEADER_SIZE + head.front_size
    put32(out, head.table_size)
    out += 4
    for i in range(head.count):
        out[0] = head.fields[i].name_size
        memcpy(out + 1, head.fields[i].name, head.fields[i].name_size)
        out += 1 + head.fields[i].name_size
        memcpy(out, head.fields[i].value, head.fields[i].value_size)
        out += head.fields[i].value_size
    memcpy(out, head.middle.data, head.middle.size)
    memcpy(out + head.middle.size, head.end.data, head.end.size)


def death_free(head: pointer[letter_head_t]) -> void:
    if head.fields != head.few_fields:
        free(head.fields)
    if head.scratch != head.few_scratch:
        free(head.scratch)


def death_is_cycle(deaths: text_t, cut: bint, queue_hash: uint64_t) -> bint:
    offset: uint32_t = 0
    size: uint32_t
    value: text_t
    reason: text_t
    rejected: bint = False
    while offset < deaths.size:
        size = value_size(deaths.data + offset, deaths.size - offset)
        if size == 0:
            break
        if deaths.data[offset] == 70:
            reason = _value_of(deaths.data + offset + 5, size - 5, b"reason", 6)
            rejected = rejected or (reason.size == 13 and memcmp(reason.data, b"S\x00\x00\x00\x08rejected", 13) == 0)
            value = _value_of(deaths.data + offset + 5, size - 5, b"queue", 5)
            if value.data != NULL and value.data[0] == 83 and name_hash(value.data + 5, value.size - 5) == queue_hash:
                return not rejected
            if rejected:
                return False  # whatever died before that, a client stands in the loop
        offset += size
    return cut and not rejected


# --- for Python -------------------------------------------------------------------------------------------------------------


@cfunc
def _text(data: bytes) -> text_t:
    text: text_t
    text.data = cast(pointer[uint8_t], PyBytes_AS_STRING(data))
    text.size = cast(uint32_t, PyBytes_GET_SIZE(data))
    return text


def queue_hash(name: bytes) -> int:
    """What `is_cycle` and QueueHandle.name_hash take for a queue's name. Of this process."""
    return name_hash(cast(pointer[uint8_t], PyBytes_AS_STRING(name)), len(name))


def is_cycle(deaths: bytes, cut: bool, queue: int) -> bool:
    """Whether a letter closes a loop without a client in it when it goes to the queue of that `queue_hash`. Args: of letter_header."""
    return death_is_cycle(_text(deaths), cut, queue)


def letter_header(
    header: bytes,
    queue: bytes,
    reason: bytes,
    exchange: bytes,
    routing_key: bytes,
    time_s: int,
    new_key: bytes | None = None,
) -> tuple[bytes, list[bytes], bytes, bool, int, int | None]:
    """The content header of the letter of a message that died.

    Args: header: the dead message's content header payload; queue: where it died; exchange, routing_key: as it was published; time_s: Unix
    time; new_key: the queue's dead-letter routing key, which replaces all keys.
    Returns: payload; routing keys; the items of x-death; whether that has lost its oldest ones; delivery mode (0: absent); priority.
    Raises: PeerError SYNTAX_ERROR: the header is malformed; MemoryError. O(bytes of the headers).
    """
    death: death_t
    head: letter_head_t
    offset: uint32_t = 0
    value: uint32_t
    outcome: c_int
    death.queue = _text(queue)
    death.reason = _text(reason)
    death.exchange = _text(exchange)
    death.routing_key = _text(routing_key)
    death.new_key.data = NULL
    death.new_key.size = 0
    if new_key is not None:
        death.new_key = _text(new_key)
    death.time_s = time_s
    outcome = death_read(cast(pointer[uint8_t], PyBytes_AS_STRING(header)), len(header), address(death), address(head))
    if outcome == DEATH_NO_MEMORY:
        raise MemoryError("no memory for a dead letter")
    if outcome != DEATH_READ:
        raise syntax_error("the properties of a dead message are malformed")
    keys: list = [routing_key if new_key is None else new_key]
    while offset < head.copies.size:
        value = value_size(head.copies.data + offset, head.copies.size - offset)
        if head.copies.data[offset] == 83:
            keys.append(PyBytes_FromStringAndSize(cast(p_char, cast(p_void, head.copies.data)) + offset + 5, value - 5))
        offset += value
    payload: bytes = PyBytes_FromStringAndSize(NULL, head.size)
    death_write(address(head), cast(pointer[uint8_t], PyBytes_AS_STRING(payload)))
    deaths: bytes = PyBytes_FromStringAndSize(cast(p_char, cast(p_void, head.deaths.data)), head.deaths.size)
    death_free(address(head))
    return payload, keys, deaths, bool(head.cut), head.delivery_mode, head.priority if head.has_priority else None

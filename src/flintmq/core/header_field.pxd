# Fields of the headers table in a content header payload: looked for, and put into a copy of the content. Wire bytes alone: AMQP 0-9-1
# specification 2.3.5.2 (property flags: 15 content type, 14 content encoding, 13 headers), 4.2.5.5 (tables).
#
# I1  Nothing outside the payload is read, whatever it holds: each length is compared with the remaining bytes.
#
# Inline: the names are constants of the callers, and each stream's append comes here.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, strlen
from flintmq.core.byte_order cimport get16, get32, put16, put32, put64
from flintmq.core.content cimport CONTENT_HEADERS, arena_t, content_body, content_frame, content_header, content_new, content_route, content_t

cdef enum:
    FLAGS_AT = 12               # offset of the property flags in a payload
    FIXED_SIZE = 14             # bytes of class, weight, body size and property flags
    HAS_HEADERS = 0x2000

cdef struct parts_t:            # a content in pieces; the bytes are borrowed
    const uint8_t *route
    const uint8_t *header
    const uint8_t *body         # NULL when body_len is 0
    uint32_t header_len
    uint32_t body_len
    uint16_t route_len
    uint8_t flags
    uint8_t priority

cdef struct header_look_t:      # offsets from the beginning of the payload
    uint32_t table              # the length of the headers table; 0: there are no headers
    uint32_t end                # behind the table, or where one belongs
    uint32_t cut_size           # bytes of the fields of the wanted name; 0: there is none
    uint32_t text_at            # the text of the field `text_name` as it stands when the cut fields are gone; 0: there is none
    uint32_t text_size

cdef inline void parts_of(content_t *content, parts_t *out) noexcept nogil:
    out.route = content_route(content)
    out.header = content_header(content)
    out.body = content_body(content) if content.body_len else NULL
    out.route_len = content.route_len
    out.header_len = content.header_len
    out.body_len = content.body_len
    out.flags = content.flags
    out.priority = content.priority

# Bytes of a field's value from its type octet on; 0: the type is unknown, or the value is longer than `left`.
cdef inline uint32_t value_size(const uint8_t *p, uint64_t left) noexcept nogil:
    cdef uint64_t size = 0
    cdef uint8_t kind
    if left == 0:
        return 0
    kind = p[0]
    if kind == c'S' or kind == c'x' or kind == c'F' or kind == c'A':
        if left < 5:
            return 0
        size = 5 + <uint64_t>get32(p + 1)
    elif kind == c't' or kind == c'b' or kind == c'B':
        size = 2
    elif kind == c'I' or kind == c'i' or kind == c'f':
        size = 5
    elif kind == c'l' or kind == c'L' or kind == c'd' or kind == c'T':
        size = 9
    elif kind == c's' or kind == c'u':
        size = 3
    elif kind == c'D':
        size = 6
    elif kind == c'V':
        size = 1
    return <uint32_t>size if size <= left else 0

# Looks through a payload of n bytes for the fields of `name`, and for a text of `text_name` (NULL: none is wanted). False: the payload can't
# be read. O(bytes of the headers).
cdef inline bint header_look(const uint8_t *p, uint32_t n, const char *name, const char *text_name, header_look_t *out) noexcept nogil:
    cdef uint32_t at = FIXED_SIZE
    cdef uint32_t name_size = <uint32_t>strlen(name)
    cdef uint32_t text_name_size = <uint32_t>strlen(text_name) if text_name != NULL else 256  # no name is that long
    cdef uint32_t size
    cdef uint32_t value
    cdef uint32_t flags
    cdef uint32_t prop = 0x8000
    out.table = 0
    out.end = 0
    out.cut_size = 0
    out.text_at = 0
    out.text_size = 0
    if n < FIXED_SIZE:
        return False
    flags = get16(p + FLAGS_AT)
    if flags & 1:
        return False  # more flags follow: no property of class basic needs them
    while prop > HAS_HEADERS:  # content type and encoding stand before the headers
        if flags & prop:
            if at >= n or at + 1 + p[at] > n:
                return False
            at += 1 + p[at]
        prop >>= 1
    if not flags & HAS_HEADERS:
        out.end = at
        return True
    if at + 4 > n or get32(p + at) > n - at - 4:
        return False
    out.table = at
    out.end = at + 4 + get32(p + at)
    at += 4
    while at < out.end:
        size = 1 + <uint32_t>p[at]
        if at + size >= out.end:
            return False
        value = value_size(p + at + size, out.end - at - size)
        if value == 0:
            return False
        if size == name_size + 1 and memcmp(p + at + 1, name, name_size) == 0:
            out.cut_size += size + value
        elif size == text_name_size + 1 and p[at + size] == c'S' and memcmp(p + at + 1, text_name, text_name_size) == 0:
            out.text_at = at + size + 5 - out.cut_size
            out.text_size = value - 5
        at += size + value
    return at == out.end

# A content of these parts with the field `name` (int64) as the last of its headers, instead of those of that name that it had. look: what
# header_look said of this header and name; *at: where the 8 bytes of the value stand (big endian). NULL: no memory.
cdef inline content_t *parts_with_field(arena_t *arena, const parts_t *parts, const header_look_t *look, const char *name, uint64_t value, uint8_t **at) noexcept nogil:
    cdef uint32_t name_size = <uint32_t>strlen(name)
    cdef uint32_t field = 1 + name_size + 1 + 8
    cdef const uint8_t *header = parts.header
    cdef uint32_t length = parts.header_len - look.cut_size + field + (0 if look.table else 4)
    cdef content_t *content = content_new(arena, parts.route_len, length, parts.body_len)
    cdef uint32_t place
    cdef uint32_t size
    cdef uint8_t *out
    if content == NULL:
        return NULL
    out = content_header(content)
    if look.cut_size == 0:
        memcpy(out, header, look.end)
        out += look.end
    else:
        place = look.table + 4
        memcpy(out, header, place)
        out += place
        while place < look.end:
            size = 1 + <uint32_t>header[place]
            size += value_size(header + place + size, look.end - place - size)
            if header[place] != name_size or memcmp(header + place + 1, name, name_size) != 0:
                memcpy(out, header + place, size)
                out += size
            place += size
    if look.table:
        put32(content_header(content) + look.table, get32(header + look.table) - look.cut_size + field)
    else:
        put16(content_header(content) + FLAGS_AT, <uint16_t>(get16(header + FLAGS_AT) | HAS_HEADERS))
        put32(out, field)
        out += 4
    out[0] = <uint8_t>name_size
    memcpy(out + 1, name, name_size)
    out[1 + name_size] = c'l'
    at[0] = out + 2 + name_size
    put64(at[0], value)
    memcpy(out + field, header + look.end, parts.header_len - look.end)
    memcpy(content_route(content), parts.route, parts.route_len)
    if parts.body_len:
        memcpy(content_body(content), parts.body, parts.body_len)
    content.flags = parts.flags | CONTENT_HEADERS
    content.priority = parts.priority
    content_frame(content)
    return content

# The same for a content. NULL: no memory, or a header that can't be read. O(bytes of the message).
cdef inline content_t *content_with_field(arena_t *arena, content_t *content, const char *name, uint64_t value) noexcept nogil:
    cdef parts_t parts
    cdef header_look_t look
    cdef uint8_t *at = NULL
    parts_of(content, &parts)
    if not header_look(parts.header, parts.header_len, name, NULL, &look):
        return NULL
    return parts_with_field(arena, &parts, &look, name, value, &at)

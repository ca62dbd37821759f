# Fields of the headers table in a content header payload: looked for, and put into a copy of the content. Wire bytes alone: AMQP 0-9-1
# specification 2.3.5.2 (property flags: 15 content type, 14 content encoding, 13 headers), 4.2.5.5 (tables).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport arena_t, content_body, content_header, content_route, content_t

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
cdef uint32_t value_size(const uint8_t *p, uint64_t left) noexcept nogil
# Looks through a payload of n bytes for the fields of `name`, and for a text of `text_name` (NULL: none is wanted). False: the payload can't
# be read. O(bytes of the headers).
cdef bint header_look(const uint8_t *p, uint32_t n, const char *name, const char *text_name, header_look_t *out) noexcept nogil
# A content of these parts with the field `name` (int64) as the last of its headers, instead of those of that name that it had. look: what
# header_look said of this header and name; *at: where the 8 bytes of the value stand (big endian). NULL: no memory.
cdef content_t *parts_with_field(arena_t *arena, const parts_t *parts, const header_look_t *look, const char *name, uint64_t value, uint8_t **at) noexcept nogil
# The same for a content. NULL: no memory, or a header that can't be read. O(bytes of the message).
cdef content_t *content_with_field(arena_t *arena, content_t *content, const char *name, uint64_t value) noexcept nogil

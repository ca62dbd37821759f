# The properties of a message that routing, queues and expiry look at, without Python objects: once per publish.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    SCAN_DEPTH_MAX = 32         # nested tables and arrays that are accepted (Limits.table_depth_max)
    CONTENT_HEADER_SIZE = 14    # bytes of class, weight, body size and flags before the properties
    PRIORITY_ABSENT = 255
    EXPIRATION_ABSENT = -1

cpdef enum:
    EXPIRATION_INVALID = -2     # no decimal number, negative, or above EXPIRATION_MAX: 406 as on RabbitMQ

cdef enum:                      # property flags, in wire order
    PROP_CONTENT_TYPE = 0x8000
    PROP_CONTENT_ENCODING = 0x4000
    PROP_HEADERS = 0x2000
    PROP_DELIVERY_MODE = 0x1000
    PROP_PRIORITY = 0x0800
    PROP_CORRELATION_ID = 0x0400
    PROP_REPLY_TO = 0x0200
    PROP_EXPIRATION = 0x0100
    PROP_MESSAGE_ID = 0x0080
    PROP_TIMESTAMP = 0x0040
    PROP_TYPE = 0x0020
    PROP_USER_ID = 0x0010
    PROP_APP_ID = 0x0008
    PROP_CLUSTER_ID = 0x0004
    PROP_UNKNOWN = 0x0003       # bit 1 is not defined, bit 0 announces more flags: both are refused

cdef struct props_scan_t:
    uint64_t body_size
    int64_t expiration_ms       # 0 .. EXPIRATION_MAX, EXPIRATION_ABSENT or EXPIRATION_INVALID
    const uint8_t *reply_to     # NULL when absent; points into the payload
    const uint8_t *user_id      # the same
    const uint8_t *headers      # the table's bytes after its length; NULL when absent; points into the payload
    uint32_t headers_len
    uint16_t flags              # PROP_*
    uint8_t delivery_mode       # 0 when absent
    uint8_t priority            # PRIORITY_ABSENT when absent; 255 on the wire reads as 254 (no queue tells them apart)
    uint8_t reply_to_len
    uint8_t user_id_len
    bint has_cc                 # the headers have a top-level CC or BCC
    bint has_time               # the headers have a top-level field that may name a delivery time (channel/scheduling.pxd)

# Reads a content header payload. 0, or -1 when it is malformed: other class than basic, weight not 0, unknown or continued
# flags, a length that overruns, bytes left over, unknown field type, deeper than SCAN_DEPTH_MAX. `out` is undefined after -1.
# Time O(n), no allocation.
cdef int scan_properties(const uint8_t *p, uint32_t n, props_scan_t *out) noexcept nogil

# AMQP 0-9-1 codec: bytes of method, content header and table <-> Python values, and a scan of properties without Python.
#
# Every length is checked against what is left of the enclosing table or payload before a byte is read, so all of it is safe
# on arbitrary bytes. Nesting is bounded (depth 1 is the outermost table), and so is the number of fields.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    SCAN_DEPTH_MAX = 32         # nested tables and arrays that scan_properties accepts (Limits.table_depth_max)
    SCAN_FIELDS_MAX = 1024      # fields of the headers, nested ones counted too (Limits.table_fields_max)
    NESTING_MAX = 256           # whatever a caller asks for: the decoder and the encoder recurse on the C stack
    PRIORITY_ABSENT = 255
    EXPIRATION_ABSENT = -1
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

cdef enum:                      # type octets of table fields, as RabbitMQ reads them (its errata to specification 4.2.1)
    TYPE_ARRAY = 65             # A
    TYPE_UINT8 = 66             # B
    TYPE_DECIMAL = 68           # D
    TYPE_TABLE = 70             # F
    TYPE_INT32 = 73             # I
    TYPE_INT64_QPID = 76        # L
    TYPE_LONGSTR = 83           # S
    TYPE_TIMESTAMP = 84         # T
    TYPE_VOID = 86              # V
    TYPE_INT8 = 98              # b
    TYPE_DOUBLE = 100           # d
    TYPE_FLOAT = 102            # f
    TYPE_UINT32 = 105           # i
    TYPE_INT64 = 108            # l
    TYPE_INT16 = 115            # s
    TYPE_BOOL = 116             # t
    TYPE_UINT16 = 117           # u
    TYPE_BYTES = 120            # x

cdef enum:                      # letters of Method.WIRE
    WIRE_RESERVED = 45          # -
    WIRE_TABLE = 70             # F
    WIRE_LONGSTR = 83           # S
    WIRE_BIT = 98               # b
    WIRE_SHORT = 104            # h
    WIRE_LONG = 108             # l
    WIRE_OCTET = 111            # o
    WIRE_LONGLONG = 113         # q
    WIRE_SHORTSTR = 115         # s
    WIRE_TIMESTAMP = 116        # t

cdef struct props_scan_t:
    uint64_t body_size
    int64_t expiration_ms       # 0 .. 2**32 - 1, EXPIRATION_ABSENT or EXPIRATION_INVALID
    const uint8_t *reply_to     # NULL when absent; points into the payload
    const uint8_t *headers      # the table's bytes after its length; NULL when absent; points into the payload
    uint32_t headers_len
    uint16_t flags              # PROP_*
    uint8_t delivery_mode       # 0 when absent
    uint8_t priority            # PRIORITY_ABSENT when absent; 255 on the wire reads as 254 (no queue tells them apart)
    uint8_t reply_to_len
    bint has_cc                 # the headers have a top-level CC or BCC

cdef struct reader_t:           # what is left of the innermost table or of the payload
    const uint8_t *at
    const uint8_t *end
    uint32_t fields_left
    uint32_t fields_max
    uint32_t depth_left
    uint32_t depth_max

cdef struct writer_t:
    uint8_t *data
    size_t used
    size_t size

# Reads a content header payload. 0, or -1 when it is malformed: other class than basic, weight not 0, unknown or continued
# flags, a length that overruns, bytes left over, unknown field type, deeper than SCAN_DEPTH_MAX, more fields than
# SCAN_FIELDS_MAX. `out` is undefined after -1. Time O(n), no allocation.
cdef int scan_properties(const uint8_t *p, uint32_t n, props_scan_t *out) noexcept nogil
# As the Python functions of the same names, without a bytes object in between.
cdef object decode_method_at(const uint8_t *data, size_t size, uint32_t depth_max, uint32_t fields_max)
cdef dict decode_table_at(const uint8_t *data, size_t size, uint32_t depth_max, uint32_t fields_max)

# AMQP 0-9-1 codec for C callers. The rest of it: tables.pxd (field values, reader, writer), scan.pxd (properties of a publish).
from libc.stdint cimport uint8_t, uint32_t

# cimport from here works too: callers need not know how the codec is cut up.
from flintmq.protocol.v0_9_1.scan cimport (
    EXPIRATION_ABSENT,
    EXPIRATION_INVALID,
    PRIORITY_ABSENT,
    PROP_DELIVERY_MODE,
    PROP_EXPIRATION,
    PROP_HEADERS,
    PROP_PRIORITY,
    PROP_REPLY_TO,
    PROP_USER_ID,
    props_scan_t,
    scan_properties,
)
from flintmq.protocol.v0_9_1.tables cimport decode_table_at

cdef enum:                      # letters of Method.WIRE
    WIRE_RESERVED = 45          # -
    WIRE_TABLE = 70             # F
    WIRE_BIT = 98               # b
    WIRE_SHORT = 104            # h
    WIRE_LONG = 108             # l
    WIRE_OCTET = 111            # o
    WIRE_LONGLONG = 113         # q
    WIRE_SHORTSTR = 115         # s
    WIRE_TIMESTAMP = 116        # t

cpdef bytes encode_method(object method)
# As the Python function decode_method, without a bytes object in between. strict: short strings that are not UTF-8 are FRAME_ERROR.
cdef object decode_method_at(const uint8_t *data, size_t size, uint32_t depth_max, uint32_t fields_max, bint strict)

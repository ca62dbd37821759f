# Record batches of messages to publish -> blocks of the broker's call `block` (docs/DATAPLANE.md).
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:                    # inputs, by index in `blocks.INPUTS`: the properties stand in wire order
    IN_CONTENT_TYPE = 0
    IN_CONTENT_ENCODING = 1
    IN_HEADERS = 2
    IN_DELIVERY_MODE = 3
    IN_PRIORITY = 4
    IN_CORRELATION_ID = 5
    IN_REPLY_TO = 6
    IN_EXPIRATION = 7
    IN_MESSAGE_ID = 8
    IN_TIMESTAMP = 9
    IN_TYPE = 10
    IN_USER_ID = 11
    IN_APP_ID = 12
    IN_CLUSTER_ID = 13
    IN_PROPERTIES = 14        # number of those
    IN_HEADERS_RAW = 14
    IN_BODY = 15
    IN_EXCHANGE = 16
    IN_ROUTING_KEY = 17
    IN_COUNT = 18

cdef enum:                    # kinds of inputs
    INPUT_NONE = 0
    INPUT_TEXT = 1            # offsets and data of a string or binary array
    INPUT_INT = 2             # int64 values
    INPUT_MAP = 3             # offsets into the entries

cdef enum:                    # what is wrong with a row
    ROW_FINE = 0
    ROW_FULL = 1              # it does not fit in the block any more
    ROW_NULL = 2
    ROW_LONG = 3
    ROW_NAME_LONG = 4
    ROW_EXPIRATION = 5
    ROW_TABLE = 6
    ROW_OCTET = 7
    ROW_TIME = 8
    ROW_HUGE = 9
    ROW_MEMORY = 10

cdef struct input_t:
    const uint8_t *valid      # bits; NULL: no null
    const int32_t *offsets
    const uint8_t *data
    const int64_t *numbers
    const uint8_t *otherwise  # bytes where there is no column or its value is null; NULL: none
    int64_t number_otherwise  # -1: none
    uint32_t otherwise_size
    uint32_t bit              # of row 0 in `valid`
    uint8_t kind
    uint8_t constant          # `otherwise` stands for every row

cdef struct route_t:
    const uint8_t *exchange
    const uint8_t *key
    uint32_t exchange_size
    uint32_t key_size

cdef struct row_t:              # one row on its way into a block
    const uint8_t *exchange
    uint64_t exchange_size
    const uint8_t *key
    uint64_t key_size
    const uint8_t *body
    uint64_t body_size
    const uint8_t *raw          # its headers as a field table, with the length; NULL: it has a map, or none
    int64_t table               # bytes of its headers as a field table, without the length; -1: none
    uint64_t size               # of its content header, at most
    uint16_t flags              # properties that it has

cdef class Encoder:
    cdef input_t inputs[18]
    cdef input_t names        # keys and values of header maps
    cdef input_t values
    cdef uint32_t rows
    cdef uint32_t next
    cdef uint64_t first_row
    cdef uint8_t *out
    cdef uint64_t used
    cdef uint64_t size
    cdef uint64_t block_bytes
    cdef route_t *routes
    cdef uint32_t route_count
    cdef uint32_t *slots
    cdef uint32_t last_route
    cdef uint32_t bad         # index of the input that a row is refused for
    cdef list kept
    cdef int _take(self, input_t *source, object array, uint8_t kind, object name, uint64_t most) except -1
    cdef bint _reserve(self, uint64_t bytes_more) noexcept nogil
    cdef uint32_t _route(self, const uint8_t *exchange, uint32_t exchange_size, const uint8_t *key, uint32_t key_size) noexcept nogil
    cdef int64_t _map_size(self, uint32_t row) noexcept nogil
    cdef uint8_t *_put_map(self, uint8_t *p, uint32_t row) noexcept nogil
    cdef int _look(self, uint32_t row, row_t *parts) noexcept nogil
    cdef uint8_t *_put_properties(self, uint32_t row, row_t *parts, uint8_t *byte) noexcept nogil
    cdef int _row(self, uint32_t row) noexcept nogil

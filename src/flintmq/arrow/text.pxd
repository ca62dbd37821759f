# Content header payloads (properties of a message) -> columns of a Table.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from flintmq.arrow.table cimport Table, column_t

cdef enum:                    # columns of schema.MESSAGES (and LOG_MESSAGES), by index
    M_QUEUE = 0
    M_POSITION = 1
    M_LSN = 2
    M_ENQUEUED = 3
    M_EXCHANGE = 4
    M_ROUTING_KEY = 5
    M_REDELIVERED = 6
    M_BODY = 7
    M_HEADERS = 8
    M_HEADERS_RAW = 9
    M_CONTENT_TYPE = 10
    M_CONTENT_ENCODING = 11
    M_DELIVERY_MODE = 12
    M_PRIORITY = 13
    M_CORRELATION_ID = 14
    M_REPLY_TO = 15
    M_EXPIRATION = 16
    M_MESSAGE_ID = 17
    M_TIMESTAMP = 18
    M_TYPE = 19
    M_USER_ID = 20
    M_APP_ID = 21
    M_CLUSTER_ID = 22
    M_PUBLISHED = 23
    M_DELIVERIES = 24
    M_COPY = 25

# The columns from M_HEADERS to M_CLUSTER_ID of a row. False: the payload is malformed, nothing was put.
cdef bint put_header(Table table, uint32_t row, const uint8_t *p, uint32_t n) noexcept nogil
# Exchange and routing key from a route of `n` bytes. False: malformed, nothing was put.
cdef bint put_route(column_t *exchange, column_t *key, uint32_t row, const uint8_t *p, uint32_t n) noexcept nogil
cdef bint route_good(const uint8_t *p, uint32_t n) noexcept nogil
# The message-id property of a payload: its length byte's address, NULL when absent or malformed.
cdef const uint8_t *find_message_id(const uint8_t *p, uint32_t n) noexcept nogil
# A point in time for a timestamp column; null when Spark can't hold it.
cdef void put_time(column_t *c, uint32_t row, uint64_t time_us) noexcept nogil

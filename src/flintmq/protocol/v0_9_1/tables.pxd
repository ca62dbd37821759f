# AMQP 0-9-1 tables, and the bounded reader and growing writer that all of the codec uses.
#
# Every length is checked against the rest of the enclosing table or payload before a byte is read, so all of it is safe
# on arbitrary bytes. Nesting is bounded (depth 1 is the outermost table), and so is the number of fields.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    NESTING_MAX = 256           # whatever a caller asks for: the decoder and the encoder recurse on the C stack

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

cdef struct reader_t:           # what is left of the innermost table or of the payload
    const uint8_t *at
    const uint8_t *end
    uint32_t fields_left
    uint32_t fields_max
    uint32_t depth_left
    uint32_t depth_max
    bint strict                 # short strings of a method must be UTF-8

cdef struct writer_t:
    uint8_t *data
    size_t used
    size_t size

# The big-endian number of `size` bytes (at most 8) at `at`.
cdef inline uint64_t be_load(const uint8_t *at, uint32_t size) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint32_t i = 0
    while i < size:
        value = value << 8 | at[i]
        i += 1
    return value
cdef void be_store(uint8_t *byte, uint64_t value, uint32_t size) noexcept nogil

cdef object syntax_error(str text)      # the PeerError to raise

# Reading. All but reader_init raise PeerError SYNTAX_ERROR when the reader's end would be passed.
cdef void reader_init(reader_t *reader, const uint8_t *data, size_t size, uint32_t depth_max, uint32_t fields_max) noexcept nogil
cdef uint64_t read_number(reader_t *reader, uint32_t size) except? 0xFFFFFFFFFFFFFFFF
cdef str read_shortstr(reader_t *reader)
cdef bytes read_longstr(reader_t *reader)
cdef dict read_table(reader_t *reader)  # with its 4-byte length
# As the Python function decode_table (no length), without a bytes object in between.
cdef dict decode_table_at(const uint8_t *data, size_t size, uint32_t depth_max, uint32_t fields_max)

# Writing. Start from a zeroed writer_t, free(writer.data) in the end. ValueError or TypeError for what does not fit.
cdef int writer_reserve(writer_t *writer, size_t size) except -1
cdef bytes writer_bytes(writer_t *writer)
cdef int put_uint(writer_t *writer, uint64_t value, uint32_t size) except -1            # the low bytes, unchecked
cdef int put_number(writer_t *writer, object number, uint32_t size) except -1           # checked against 0 .. 2**(8 * size) - 1
cdef int put_bytes(writer_t *writer, bytes data, uint32_t length_size) except -1        # after a length of length_size bytes
cdef int put_table(writer_t *writer, dict table, uint32_t depth) except -1              # with its 4-byte length
cdef bytes utf8_bytes(object text)      # of a short string: surrogate escapes become the bytes they stand for

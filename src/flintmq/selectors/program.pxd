# A selector as a program for a small stack machine, and its run over the wire bytes of one message.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t

cpdef enum:                     # operations; the operands are on the stack, the last one on top
    OP_CONST = 0                # pushes constant `arg`
    OP_NAME = 1                 # pushes the value of name `arg`
    OP_EQUAL = 2
    OP_DIFFERS = 3
    OP_LESS = 4
    OP_AT_MOST = 5
    OP_MORE = 6
    OP_AT_LEAST = 7
    OP_ADD = 8
    OP_SUBTRACT = 9
    OP_MULTIPLY = 10
    OP_DIVIDE = 11
    OP_MODULO = 12
    OP_NEGATE = 13
    OP_NOT = 14
    OP_AND = 15                 # of the two on top
    OP_OR = 16
    OP_END_FALSE = 17           # the top is false: go on at operation `arg`, with it there; else go on with the next
    OP_END_TRUE = 18
    OP_LIKE = 19                # the top and pattern `arg`
    OP_IN = 20                  # the top and set `arg`
    OP_BETWEEN = 21             # the third from the top lies between the two above it
    OP_IS_NULL = 22

cpdef enum:                     # kinds of values
    KIND_NULL = 0
    KIND_BOOLEAN = 1
    KIND_INTEGER = 2
    KIND_FLOAT = 3
    KIND_TEXT = 4

cpdef enum:                     # where a name's value comes from
    FROM_HEADERS = 0
    # 2 to 15: the property whose flag is that bit of the property flags
    FROM_EXCHANGE = 16
    FROM_ROUTING_KEY = 17
    FROM_JMS_PRIORITY = 18      # 4 when absent
    FROM_JMS_DELIVERY_MODE = 19 # 'PERSISTENT' or 'NON_PERSISTENT'
    FROM_JMS_TIMESTAMP = 20     # milliseconds
    FROM_COUNT = 21

cpdef enum:                     # elements of a pattern; below: an octet that must be there
    LIKE_ONE = 256              # any one character
    LIKE_MANY = 257             # any number of them

cdef enum:
    NAMES_MAX = 64
    STACK_MAX = 256
    BUCKETS = 64

cdef struct value_t:
    uint32_t kind
    uint32_t size               # of a text
    int64_t integer             # or boolean
    double number
    const uint8_t *text         # inside the message or the program

cdef struct op_t:
    uint32_t code
    uint32_t arg

cdef struct name_t:
    uint32_t source             # FROM_*
    uint32_t size
    const uint8_t *text
    uint32_t next               # of the same bucket, + 1; 0: none

cdef struct range_t:            # of constants (a set), or of pattern elements
    uint32_t first
    uint32_t count

cdef struct program_t:          # one block of memory, never changed; counted references
    uint32_t refs               # atomic
    uint32_t op_count
    uint32_t name_count
    uint32_t header_names       # names whose values are headers
    uint32_t last_property      # no property behind the one with this bit is needed; 16: none is
    uint32_t key_name           # a message that matches has one of `keys` as the value of this name; name_count: nothing is known
    uint32_t key_count
    uint64_t *keys              # hashes (program_hash), none twice
    op_t *ops
    value_t *constants
    name_t *names
    range_t *sets
    range_t *patterns
    uint32_t *elements          # of all patterns
    uint64_t block_size
    uint64_t hash               # of the text
    const uint8_t *text
    uint32_t text_size
    uint32_t buckets[BUCKETS]   # first header name + 1
    uint32_t sources[FROM_COUNT]  # name of that source + 1

# Whether the message is selected: the program's value is true. `steps` falls by what the run cost; a run that would take more than there
# are ends as not selected, with 0 steps left. Any thread; reads nothing outside the content.
cdef bint program_selects(program_t *program, content_t *content, int64_t *steps) noexcept nogil
# interest_t of queue/types.pxd: program_selects with STEPS_MAX steps; context: program_t.
cdef bint program_wants(void *context, content_t *content) noexcept nogil
# Whether they are made from the same text.
cdef bint program_same(program_t *left, program_t *right) noexcept nogil
# A program that selects nothing, for the values of one name: name `number` of `source`. One reference; NULL: no memory.
cdef program_t *program_of_name(program_t *source, uint32_t number) noexcept nogil
# Whether both names mean the same value.
cdef bint program_same_name(program_t *left, uint32_t left_number, program_t *right, uint32_t right_number) noexcept nogil
# Hash of the value that the program's first name has in this message, as in `keys`: equal values have one hash. 0: it has none.
cdef uint64_t program_hash(program_t *program, content_t *content, int64_t *steps) noexcept nogil
# A program for the value of one header. One reference; NULL: no memory.
cdef program_t *program_of_header(const uint8_t *name, uint32_t size) noexcept nogil
# The value of its first name in this message; its text is good as long as the content.
cdef void program_value(program_t *program, content_t *content, int64_t *steps, value_t *out) noexcept nogil
# The octets that stand for a value: equal ones for equal values, of numbers of the two kinds, too (the value becomes an integer where it
# can). Good as long as the value and its content.
cdef inline const uint8_t *value_octets(value_t *value, uint32_t *size) noexcept nogil:
    size[0] = 8
    # 9e18: beyond it the conversion of a double is not defined.
    if value.kind == KIND_FLOAT and -9.0e18 < value.number < 9.0e18 and <double><int64_t>value.number == value.number:
        value.kind = KIND_INTEGER  # as selectors compare them
        value.integer = <int64_t>value.number
    if value.kind == KIND_TEXT:
        size[0] = value.size
        return value.text
    if value.kind == KIND_NULL:
        size[0] = 0
    if value.kind == KIND_FLOAT:
        return <uint8_t *>&value.number
    return <uint8_t *>&value.integer

cdef void program_incref(program_t *program) noexcept nogil
cdef void program_decref(program_t *program) noexcept nogil

cdef class Selector:
    cdef program_t *program
    cdef readonly str text

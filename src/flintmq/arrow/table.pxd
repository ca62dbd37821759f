# Columns of a record batch under construction: growing C buffers in Arrow's layout, filled row by row without the GIL, handed over
# without a copy.
#
# Rows are filled in ascending order, and a row that a column gets no value for is null: absent properties cost nothing. A column that
# nobody wants has kind COL_NONE, and puts into it return at once. Running out of memory (or past 2 GiB of a column) marks the column
# failed; Table.finish raises then, so puts need no result.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    COL_NONE = 0
    COL_BOOL = 1
    COL_INT32 = 2
    COL_INT64 = 3
    COL_BYTES = 4             # string and binary
    COL_MAP = 5               # string -> string: the entries are two columns of their own

cdef struct column_t:
    uint8_t *values           # fixed width, or bits, or int32 offsets (room + 1); NULL: nothing but nulls so far
    uint8_t *valid            # bits; NULL: no null so far
    uint8_t *data             # of COL_BYTES
    uint64_t used             # bytes of `data`
    uint64_t size
    uint32_t rows             # filled so far
    uint32_t room
    uint32_t nulls
    uint8_t kind
    uint8_t failed

# Makes the next row `row`: allocates, fills the gap before it with nulls, marks it valid. False: the column failed.
cdef bint col_slow(column_t *c, uint32_t row) noexcept nogil
cdef bint col_room(column_t *c, uint32_t rows) noexcept nogil
cdef bint col_grow(column_t *c, uint64_t bytes_more) noexcept nogil
# Text that should be UTF-8: bytes that are none are replaced by U+FFFD.
cdef void col_text(column_t *c, uint32_t row, const uint8_t *p, uint64_t n) noexcept nogil

cdef inline bint col_next(column_t *c, uint32_t row) noexcept nogil:
    if c.kind == COL_NONE:
        return False
    if row != c.rows or c.valid != NULL or c.values == NULL or row >= c.room:
        if not col_slow(c, row):
            return False
    c.rows = row + 1
    return True

cdef inline void col_int64(column_t *c, uint32_t row, int64_t value) noexcept nogil:
    if col_next(c, row):
        (<int64_t *>c.values)[row] = value

cdef inline void col_int32(column_t *c, uint32_t row, int32_t value) noexcept nogil:
    if col_next(c, row):
        (<int32_t *>c.values)[row] = value

cdef inline void col_bool(column_t *c, uint32_t row, bint value) noexcept nogil:
    if col_next(c, row) and value:
        c.values[row >> 3] |= <uint8_t>(1 << (row & 7))

cdef inline void col_bytes(column_t *c, uint32_t row, const void *p, uint64_t n) noexcept nogil:
    if not col_next(c, row):
        return
    if c.used + n > c.size and not col_grow(c, n):
        n = 0
    if n:
        memcpy(c.data + c.used, p, n)
    c.used += n
    (<int32_t *>c.values)[row + 1] = <int32_t>c.used

cdef class Memory:
    cdef void *address

cdef class Table:
    cdef column_t *columns
    cdef column_t keys        # entries of the one map column
    cdef column_t items
    cdef uint32_t entries
    cdef uint32_t count
    cdef readonly uint32_t room
    cdef object schema
    cdef list wanted          # indices of the wanted columns, in order
    cdef object finish(self, uint32_t rows)

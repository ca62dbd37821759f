"""Record batches built column by column in C (see table.pxd).

in: values, row by row, from decoders that hold no GIL. out: a pyarrow RecordBatch over the same memory.

I1  A column's offsets and validity cover exactly the rows that were finished.
I2  Memory goes over to the batch or is freed with the table; never both.
I3  What a string column holds is UTF-8.
"""

from __future__ import annotations

import cython
from cython import (
    NULL, Py_ssize_t, address, bint, cast, cclass, cfunc, declare, exceptval, nogil, p_char, p_void, pointer, size_t, sizeof, void,
    with_gil,
)  # fmt: skip
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.flintmq.core.utf8 import is_utf8
from cython.cimports.libc.stdint import int32_t, uint32_t, uint64_t, uint8_t
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.libc.string import memset

# Arrow's string and binary arrays have 32-bit offsets.
DATA_MAX = declare(uint64_t, 0x7FFFFFFF)

_KINDS = {
    "boolean": COL_BOOL,
    "integer": COL_INT32,
    "long": COL_INT64,
    "timestamp": COL_INT64,
    "string": COL_BYTES,
    "binary": COL_BYTES,
    "map": COL_MAP,
}


@cfunc
@nogil
@exceptval(check=False)
def _value_bytes(kind: uint8_t, rows: uint64_t) -> uint64_t:
    if kind == COL_BOOL:
        return (rows + 7) >> 3
    if kind == COL_INT32:
        return rows * 4
    if kind == COL_INT64:
        return rows * 8
    return (rows + 1) * 4


@cfunc
@nogil
@exceptval(check=False)
def _fill(c: pointer[column_t], upto: uint32_t) -> void:
    """Rows [rows, upto) become null."""
    i: uint32_t
    last: int32_t
    offsets: pointer[int32_t]
    if c.rows >= upto:
        return
    if c.valid == NULL:
        c.valid = cast(pointer[uint8_t], calloc((cast(uint64_t, c.room) + 7) >> 3, 1))
        if c.valid == NULL:
            c.failed = 1
            return
        memset(c.valid, 0xFF, c.rows >> 3)
        for i in range(c.rows & ~cast(uint32_t, 7), c.rows):
            c.valid[i >> 3] |= cast(uint8_t, 1 << (i & 7))
    if c.kind == COL_BYTES or c.kind == COL_MAP:
        offsets = cast(pointer[int32_t], c.values)
        last = offsets[c.rows]
        for i in range(c.rows, upto):
            offsets[i + 1] = last
    c.nulls += upto - c.rows
    c.rows = upto


def col_slow(c: pointer[column_t], row: uint32_t) -> bint:
    if c.failed:
        return False
    if row >= c.room and not col_room(c, row + 1):
        return False
    if c.values == NULL:
        c.values = cast(pointer[uint8_t], calloc(_value_bytes(c.kind, c.room), 1))
        if c.values == NULL:
            c.failed = 1
            return False
    if row > c.rows:
        _fill(c, row)
    elif row < c.rows:
        c.failed = 1  # rows come in order: a mistake of the caller
    if c.failed:
        return False
    if c.valid != NULL:
        c.valid[row >> 3] |= cast(uint8_t, 1 << (row & 7))
    return True


def col_room(c: pointer[column_t], rows: uint32_t) -> bint:
    """At least `rows` rows fit. Used for entries of maps; other columns have the table's room from the start."""
    room: uint64_t = c.room if c.room else 64
    old: uint64_t
    values: pointer[uint8_t]
    valid: pointer[uint8_t]
    if rows <= c.room and c.room:
        return True
    while room < rows:
        room *= 2
    if room > 0x7FFFFFFF:
        c.failed = 1
        return False
    if c.values != NULL:
        old = _value_bytes(c.kind, c.room)
        values = cast(pointer[uint8_t], realloc(c.values, _value_bytes(c.kind, room)))
        if values == NULL:
            c.failed = 1
            return False
        memset(values + old, 0, _value_bytes(c.kind, room) - old)
        c.values = values
    if c.valid != NULL:
        old = (cast(uint64_t, c.room) + 7) >> 3
        valid = cast(pointer[uint8_t], realloc(c.valid, (room + 7) >> 3))
        if valid == NULL:
            c.failed = 1
            return False
        memset(valid + old, 0, ((room + 7) >> 3) - old)
        c.valid = valid
    c.room = cast(uint32_t, room)
    return True


def col_grow(c: pointer[column_t], more: uint64_t) -> bint:
    """Room for `more` bytes of data."""
    size: uint64_t = c.size * 2 if c.size else 4096
    data: pointer[uint8_t]
    if c.failed or c.used + more > DATA_MAX:
        c.failed = 1
        return False
    if c.size == 0 and c.rows > 1:
        size = 65536
    while size < c.used + more:
        size *= 2
    data = cast(pointer[uint8_t], realloc(c.data, size))
    if data == NULL:
        c.failed = 1
        return False
    c.data = data
    c.size = size
    return True


@cfunc
@with_gil
@exceptval(check=False)
def _col_replaced(c: pointer[column_t], row: uint32_t, p: pointer[cython.const[uint8_t]], n: uint64_t) -> void:
    """Text with bytes that are not UTF-8. Rare, so Python may do it."""
    try:
        text: bytes = PyUnicode_DecodeUTF8(cast(p_char, p), n, b"replace").encode()
        col_bytes(c, row, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    except MemoryError:
        c.failed = 1


def col_text(c: pointer[column_t], row: uint32_t, p: pointer[cython.const[uint8_t]], n: uint64_t) -> void:
    if c.kind == COL_NONE:
        return
    if is_utf8(p, n):
        col_bytes(c, row, p, n)
    else:
        _col_replaced(c, row, p, n)


@cclass
class Memory:
    """Owns one block of C memory that a pyarrow buffer shows."""

    def __dealloc__(self):
        free(self.address)


@cfunc
def _buffer(memory: p_void, size: uint64_t):
    """A pyarrow buffer that owns `address` from now on."""
    import pyarrow as pa

    if memory == NULL:
        return pa.py_buffer(b"")
    owner: Memory = Memory.__new__(Memory)
    owner.address = memory
    return pa.foreign_buffer(cast(size_t, memory), size, owner)


@cfunc
@nogil
@exceptval(check=False)
def _release(c: pointer[column_t]) -> void:
    free(c.values)
    free(c.valid)
    free(c.data)
    memset(c, 0, sizeof(column_t))


@cfunc
def _array(c: pointer[column_t], kind, rows: uint32_t, children: list):
    """The column as an Arrow array of `rows` rows; the column is empty afterwards."""
    import pyarrow as pa

    if c.values == NULL:
        return pa.nulls(rows, kind)
    if c.rows < rows:
        _fill(c, rows)
    if c.failed:
        raise MemoryError("no memory for a column of a record batch, or more than 2 GiB in it")
    nulls = c.nulls
    valid = None
    if c.valid != NULL:
        valid = _buffer(c.valid, (cast(uint64_t, rows) + 7) >> 3)
        c.valid = NULL
    buffers = [valid, _buffer(c.values, _value_bytes(c.kind, rows))]
    c.values = NULL
    if c.kind == COL_BYTES:
        buffers.append(_buffer(c.data, c.used))
        c.data = NULL
    made = pa.Array.from_buffers(kind, rows, buffers, nulls, 0, children or None)
    _release(c)
    return made


@cclass
class Table:
    """Args: columns: (name, type, nullable) of schema.py, all that the decoder knows by index; wanted: names to build; schema: of
    those; room: rows at most."""

    def __cinit__(self, columns, wanted, schema, room: uint32_t):
        i: uint32_t
        self.count = len(columns)
        self.room = room if room else 1
        self.schema = schema
        self.wanted = []
        self.columns = cast(pointer[column_t], calloc(self.count, sizeof(column_t)))
        if self.columns == NULL:
            raise MemoryError
        for i in range(self.count):
            name, kind, _ = columns[i]
            if name in wanted:
                self.columns[i].kind = _KINDS[kind]
                self.columns[i].room = self.room
                self.wanted.append(i)
        self.keys.kind = COL_BYTES
        self.items.kind = COL_BYTES

    def __dealloc__(self):
        i: uint32_t
        if self.columns != NULL:
            for i in range(self.count):
                _release(address(self.columns[i]))
            free(self.columns)
        _release(address(self.keys))
        _release(address(self.items))

    def finish(self, rows: uint32_t) -> object:
        """The RecordBatch of rows [0, rows); the table is used up. Raises: MemoryError."""
        import pyarrow as pa

        c: pointer[column_t]
        arrays: list = []
        position: Py_ssize_t
        for position in range(len(self.wanted)):
            c = address(self.columns[cast(uint32_t, self.wanted[position])])
            kind = self.schema.field(position).type
            if c.failed or self.keys.failed or self.items.failed:
                raise MemoryError("no memory for a column of a record batch, or more than 2 GiB in it")
            children: list = []
            if c.kind == COL_MAP and c.values != NULL:
                entry = kind.field(0).type if hasattr(kind, "field") else None
                if entry is None:
                    entry = pa.struct([kind.key_field, kind.item_field])
                key = _array(address(self.keys), pa.string(), self.entries, [])
                item = _array(address(self.items), pa.string(), self.entries, [])
                children = [pa.Array.from_buffers(entry, self.entries, [None], 0, 0, [key, item])]
            arrays.append(_array(c, kind, rows, children))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

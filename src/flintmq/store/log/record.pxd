# Layout of containers, commit blocks and records (docs/FORMAT.md). Everything here is inline: encoding and decoding of the bytes, no
# state. Little endian, as the machines FlintMQ runs on are (checked when the store is opened).
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy
from flintmq.core.crc32c cimport crc32c

cdef enum:
    SECTOR = 512
    CONTAINER_HEADER = 512
    BLOCK_HEADER = 64
    BLOCK_MAGIC = 0x4B4C4246
    BLOCK_CLEAN = 1             # flag of a block: the last one of a clean stop
    BLOCK_LOG_SHIFT = 8         # its flags from here on: which log it is of; 0 in blocks from before that was written
    RECORD_HEADER = 24
    CONTENT_FIXED = 16          # the fixed fields of Message-Start before the content
    SHAPE_PLACE = 16            # queue id and position of a Message-Shape; the rest is as in Message-Start
    BRIEF_FIXED = 4             # the fixed field of a Message before the body
    PLACE_SIZE = 40             # one place of a Message-Copy
    COPY_PUBLISHED = 1          # flag of a Message-Copy: the time of its Message-Start follows the places
    SPLIT_ABOVE = 16384         # bytes of content; more is cut into chunks
    CONTENT_MAX = 0x7FFFFFFF    # bytes of one message; more is not believed

cdef enum:
    # Looking for the next record inside a damaged block checks at most this many times the block's bytes: a body made to look like the
    # heads of large records must not keep recovery busy for hours. The rest of the block then counts as damaged.
    SALVAGE_EFFORT = 64
    STREAM_SALVAGE_EFFORT = 16  # in the log of a stream, where readers wait for it

cdef enum:                      # types of records
    RECORD_START = 1
    RECORD_CHUNK = 2
    RECORD_MESSAGE_DELETE = 3
    RECORD_ENQUEUE = 4
    RECORD_DEQUEUE = 5
    RECORD_COPY = 6
    RECORD_QUEUE_MARK = 7
    RECORD_REDELIVERED = 8
    RECORD_NAME = 9
    RECORD_QUEUE_END = 10
    RECORD_QUEUE_PURGE = 11
    RECORD_SHAPE = 12
    RECORD_MESSAGE = 13
    RECORD_DELIVERED = 14
    RECORD_DTX_START = 33
    RECORD_TX_START = 34
    RECORD_PREPARE = 35
    RECORD_COMMIT = 36
    RECORD_ROLLBACK = 37
    RECORD_TX_DELETE = 38
    RECORD_END = 39
    RECORD_TX_COPY = 40
    RECORD_HEURISTIC = 41
    RECORD_NOTE = 42
    RECORD_ACQUIRE_SET = 43
    RECORD_PAGE_CONTENT = 64
    RECORD_INDEX_RUN = 72
    RECORD_CHECKPOINT_PART = 73
    RECORD_CHECKPOINT = 74

cdef enum:                      # flags of a record
    RECORD_UNDO_NEXT = 1
    RECORD_TRANSACTION = 2
    RECORD_EXPIRES = 4
    RECORD_LAST = 8             # the message ends with this record

cdef struct record_t:           # a record, decoded
    uint64_t lsn
    uint64_t undo_prev
    uint64_t undo_next          # 0 when absent
    uint64_t tx                 # 0 when absent
    int64_t expires_at_ms       # 0 when absent
    uint64_t time_us            # wall clock
    uint32_t length             # of the whole record, without padding
    uint32_t size               # bytes of `data`
    const uint8_t *data         # the type's own fields; borrowed
    uint16_t flags
    uint8_t type
    uint8_t stream

cdef struct head_t:             # what the record that begins a message says of its content
    const uint8_t *run          # the content's bytes in this record: route, header, body; borrowed
    uint64_t published_us       # of a Message-Copy: the time of its Message-Start; 0: not known, or it is one
    uint64_t total              # bytes of the whole content
    uint32_t body_len
    uint32_t header_len
    uint32_t here               # bytes at `run`
    uint16_t route_len
    uint8_t flags
    uint8_t priority

cdef struct shape_t:            # a Message-Shape: what the Messages that name it share
    uint64_t queue_id
    uint64_t position           # of each: this and its own distance
    head_t head                 # route and content header, no body

cdef struct block_t:            # header of a commit block, decoded
    uint64_t lsn
    uint64_t durable_hint
    uint64_t base
    uint64_t time_us
    uint64_t previous
    uint32_t length
    uint32_t epoch
    uint32_t records
    uint32_t flags

# --- the position of an enqueue inside a transaction that waits for its Commit: which of the transaction's enqueues on the queue it is.
# No position looks like that: its index would be near 2^56 on level 255.
cdef inline uint64_t position_waiting(uint32_t number) noexcept nogil:
    return 0xFFFFFFFFULL << 32 | number

cdef inline bint position_waits(uint64_t position) noexcept nogil:
    return position >> 32 == 0xFFFFFFFFULL

cdef inline uint32_t position_number(uint64_t position) noexcept nogil:
    return <uint32_t>position

cdef inline uint16_t le16(const uint8_t *p) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, p, 2)
    return value

cdef inline uint32_t le32(const uint8_t *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value

cdef inline uint64_t le64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return value

# Bytes of a Message-Copy before what it has in common with Message-Start. The caller has 8 readable bytes.
cdef inline uint64_t copy_prefix(const uint8_t *p) noexcept nogil:
    return 8 + <uint64_t>le32(p) * PLACE_SIZE + (8 if le32(p + 4) & COPY_PUBLISHED else 0)

# The fields of a content as they stand in every record that has some: `left` bytes from `p` on. False: their lengths contradict each other.
cdef inline bint content_fixed(const uint8_t *p, uint64_t left, head_t *out) noexcept nogil:
    if left < CONTENT_FIXED:
        return False
    out.run = p + CONTENT_FIXED
    out.body_len = le32(p)
    out.header_len = le32(p + 4)
    out.route_len = le16(p + 8)
    out.flags = p[10]
    out.priority = p[11]
    out.here = le32(p + 12)
    out.total = <uint64_t>out.body_len + out.header_len + out.route_len
    return out.here == left - CONTENT_FIXED and out.here <= out.total and out.total >> 32 == 0

# Decodes what a Message-Start, Message-Copy or Page-Content that was checked says of its content. False: it is none of them, or its lengths
# contradict each other.
cdef inline bint content_head(const record_t *record, head_t *out) noexcept nogil:
    cdef const uint8_t *p = record.data
    cdef uint64_t left = record.size
    cdef uint64_t places
    out.published_us = 0
    if record.type == RECORD_COPY:
        if left < 8 or copy_prefix(p) > left:
            return False
        places = copy_prefix(p)
        if le32(p + 4) & COPY_PUBLISHED:
            out.published_us = le64(p + places - 8)
        p += places
        left -= places
    elif record.type != RECORD_START and record.type != RECORD_PAGE_CONTENT:
        return False
    return content_fixed(p, left, out)

# Decodes a Message-Shape that was checked. False: it is none, or its lengths contradict each other.
cdef inline bint shape_head(const record_t *record, shape_t *out) noexcept nogil:
    if record.type != RECORD_SHAPE or record.size < SHAPE_PLACE:
        return False
    out.queue_id = le64(record.data)
    out.position = le64(record.data + 8)
    out.head.published_us = 0
    return content_fixed(record.data + SHAPE_PLACE, record.size - SHAPE_PLACE, &out.head) and out.head.body_len == 0 and out.head.here == out.head.total

# Whether a record that was checked is a Message; its position is that of its shape and `*distance`.
cdef inline bint brief_head(const record_t *record, uint32_t *distance) noexcept nogil:
    if record.type != RECORD_MESSAGE or record.size < BRIEF_FIXED or record.undo_prev == 0:
        return False
    distance[0] = le32(record.data)
    return True

cdef inline void set16(uint8_t *p, uint16_t value) noexcept nogil:
    memcpy(p, &value, 2)

cdef inline void set32(uint8_t *p, uint32_t value) noexcept nogil:
    memcpy(p, &value, 4)

cdef inline void set64(uint8_t *p, uint64_t value) noexcept nogil:
    memcpy(p, &value, 8)

cdef inline uint64_t align8(uint64_t n) noexcept nogil:
    return (n + 7) & ~<uint64_t>7

cdef inline uint64_t align_sector(uint64_t n) noexcept nogil:
    return (n + SECTOR - 1) & ~<uint64_t>(SECTOR - 1)

# Bytes before the type's own fields.
cdef inline uint32_t record_prefix(uint16_t flags) noexcept nogil:
    return RECORD_HEADER + 8 * ((flags & 1) + ((flags >> 1) & 1) + ((flags >> 2) & 1))

# CRC of a record at `p`: its CRC field is taken as zero.
cdef inline uint32_t record_crc(const uint8_t *p, uint32_t length, uint64_t lsn) noexcept nogil:
    cdef uint64_t start[2]
    start[0] = lsn
    start[1] = le32(p)          # the length, and zero where the CRC stands
    return crc32c(crc32c(0, start, 16), p + 8, length - 8)

# Decodes the record at `p`. left: readable bytes; check: verify the CRC. False: it is none, or damaged.
cdef inline bint record_decode(const uint8_t *p, uint64_t lsn, uint64_t left, uint64_t time_base, bint check, record_t *out) noexcept nogil:
    cdef uint32_t at = RECORD_HEADER
    if left < RECORD_HEADER:
        return False
    out.length = le32(p)
    out.flags = le16(p + 10)
    if out.length < record_prefix(out.flags) or out.length > left or out.flags > 15:
        return False
    if check and record_crc(p, out.length, lsn) != le32(p + 4):
        return False
    out.lsn = lsn
    out.type = p[8]
    out.stream = p[9]
    out.time_us = time_base + le32(p + 12)
    out.undo_prev = le64(p + 16)
    out.undo_next = 0
    out.tx = 0
    out.expires_at_ms = 0
    if out.flags & RECORD_UNDO_NEXT:
        out.undo_next = le64(p + at)
        at += 8
    if out.flags & RECORD_TRANSACTION:
        out.tx = le64(p + at)
        at += 8
    if out.flags & RECORD_EXPIRES:
        out.expires_at_ms = <int64_t>le64(p + at)
        at += 8
    out.data = p + at
    out.size = out.length - at
    return True

# Writes everything of the record but its own fields and the CRC; returns where its own fields go.
cdef inline uint8_t *record_encode(uint8_t *p, uint32_t length, uint8_t kind, uint8_t stream, uint16_t flags, uint32_t time, uint64_t undo_prev, uint64_t tx, int64_t expires_at_ms) noexcept nogil:
    cdef uint32_t at = RECORD_HEADER
    set32(p, length)
    p[8] = kind
    p[9] = stream
    set16(p + 10, flags)
    set32(p + 12, time)
    set64(p + 16, undo_prev)
    if flags & RECORD_TRANSACTION:
        set64(p + at, tx)
        at += 8
    if flags & RECORD_EXPIRES:
        set64(p + at, <uint64_t>expires_at_ms)
        at += 8
    return p + at

# Decodes the block header at `p` (BLOCK_HEADER readable bytes) that should have this LSN. False: there is none, or it is one of another
# log than the one with this id, which a disk wrote to the wrong place (containers of the logs have the same LSNs).
cdef inline bint block_decode(const uint8_t *p, uint64_t lsn, uint64_t left, uint32_t log_id, block_t *out) noexcept nogil:
    if left < BLOCK_HEADER or le32(p) != BLOCK_MAGIC or le64(p + 8) != lsn or crc32c(0, p, 60) != le32(p + 60):
        return False
    out.length = le32(p + 4)
    out.lsn = lsn
    out.epoch = le32(p + 16)
    out.records = le32(p + 20)
    out.durable_hint = le64(p + 24)
    out.base = le64(p + 32)
    out.time_us = le64(p + 40)
    out.previous = le64(p + 48)
    out.flags = le32(p + 56)
    if out.flags >> BLOCK_LOG_SHIFT and out.flags >> BLOCK_LOG_SHIFT != log_id:
        return False
    return out.length >= BLOCK_HEADER and out.length <= left

# Whether a block was begun at `p` (BLOCK_HEADER readable bytes), whole or torn: it names its LSN, or its header does not check. A whole header
# with another LSN is an old one of a recycled file.
cdef inline bint block_begun(const uint8_t *p, uint64_t lsn) noexcept nogil:
    return le64(p + 8) == lsn or (le32(p) == BLOCK_MAGIC and crc32c(0, p, 60) != le32(p + 60))

cdef inline void block_encode(uint8_t *p, block_t *block) noexcept nogil:
    set32(p, BLOCK_MAGIC)
    set32(p + 4, block.length)
    set64(p + 8, block.lsn)
    set32(p + 16, block.epoch)
    set32(p + 20, block.records)
    set64(p + 24, block.durable_hint)
    set64(p + 32, block.base)
    set64(p + 40, block.time_us)
    set64(p + 48, block.previous)
    set32(p + 56, block.flags)
    set32(p + 60, crc32c(0, p, 60))

# The content header of a dead letter, made of the wire bytes of the dead message's: RabbitMQ's x-death. Without Python objects.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:                      # what death_read answers
    DEATH_READ = 0
    DEATH_MALFORMED = -1
    DEATH_NO_MEMORY = -2

cdef enum:
    FIELDS_FEW = 24             # fields for which no memory is allocated
    SCRATCH_FEW = 1536          # bytes of new values for which none is

cdef struct text_t:
    const uint8_t *data         # NULL: there is none
    uint32_t size

cdef struct death_t:            # how a message died
    text_t queue                # name of the queue in which it died
    text_t reason
    text_t exchange             # as the message was published, without its length
    text_t routing_key
    text_t new_key              # the queue's dead-letter routing key; none: the message's own keys stay, those of CC, too
    int64_t time_s              # Unix time

cdef struct field_t:
    const uint8_t *name
    const uint8_t *value        # with its type octet
    uint32_t value_size
    uint32_t number             # in the table as it was
    uint8_t name_size

cdef struct letter_head_t:      # a letter's content header in pieces, most of them borrowed from the dead message's
    uint32_t size               # bytes of the payload
    uint16_t property_flags
    uint8_t delivery_mode       # 0: absent
    bint has_priority
    uint8_t priority
    bint cut                    # x-death lost its oldest tables
    const uint8_t *payload      # the dead message's
    uint32_t front_size         # bytes of content type and content encoding
    text_t middle               # delivery mode to reply-to
    text_t end                  # message id to cluster id
    text_t deaths               # the items of x-death, most recent first
    text_t copies               # the items of the CC that stays; data NULL: there is none, or it has gone
    uint32_t table_size
    uint32_t count              # of fields
    field_t *fields             # in the order of their names
    uint8_t *scratch            # new values
    uint32_t scratch_size
    uint32_t scratch_used
    field_t few_fields[FIELDS_FEW]
    uint8_t few_scratch[SCRATCH_FEW]

# Reads the content header payload of a dead message (`size` bytes) and prepares the header of its letter. DEATH_*; after DEATH_READ the
# caller ends with death_free. O(bytes of the headers), and O(n log n) of n fields that were not in the order of their names.
cdef int death_read(const uint8_t *payload, uint32_t size, const death_t *death, letter_head_t *out) noexcept nogil
# Writes the header payload, head.size bytes.
cdef void death_write(letter_head_t *head, uint8_t *out) noexcept nogil
cdef void death_free(letter_head_t *head) noexcept nogil
# Whether a letter with these deaths would close a loop without a client in it when it goes to the queue of that name_hash: it died there
# before, and none of the deaths since then, that one included, was a reject. With `cut` a letter without any reject counts as one that goes in a
# circle. Not to be asked for a letter that was rejected just now. O(bytes of the tables up to that queue's).
cdef bint death_is_cycle(text_t deaths, bint cut, uint64_t queue_hash) noexcept nogil
# A number that stands for the name of a queue in this process; never 0. Two names share one with a chance of 2**-64, and nobody outside knows
# the key: that a letter is dropped for it is less likely than a memory error.
cdef uint64_t name_hash(const uint8_t *name, uint32_t size) noexcept nogil

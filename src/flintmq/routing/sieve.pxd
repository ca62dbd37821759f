# The bytes of a message's headers that can decide its route: what is left when the fields that no exchange asks for are gone.
#
# Two messages with the same routing key and the same deciding bytes have the same route, however many other headers differ.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.keyed_hash cimport hash_key_t

cdef struct sieve_entry_t:    # a header's name, or a name with one string that it is compared with
    uint64_t hash             # 0: the entry is free
    uint32_t start            # in sieve_t.octets
    uint16_t name_size
    uint8_t how               # SIEVE_* of a name
    uint8_t reserved
    uint32_t size             # of both

cdef enum:                    # sieve_entry_t.how
    SIEVE_STRINGS = 1         # its value is compared with the strings that stand here
    SIEVE_OTHERS = 2          # and with values of other types
    SIEVE_WHOLE = 4           # its value decides as it stands

cdef struct sieve_t:          # immutable
    uint32_t refs             # atomic
    uint32_t mask             # entries - 1: a power of two
    uint32_t size             # bytes of it all
    uint64_t number           # of all sieves of the process: another one after each change
    hash_key_t hash_key
    sieve_entry_t *entries
    uint8_t *octets

cdef void sieve_incref(sieve_t *sieve) noexcept nogil
cdef void sieve_decref(sieve_t *sieve) noexcept nogil
# Args: names: of headers (bytes) -> the strings that they are compared with, or None: their values decide as they stand; others: names
# that are compared with values of other types, too.
cdef sieve_t *sieve_new(dict names, object others) except NULL
# Writes the deciding bytes of a headers table (wire bytes without its length), CC and BCC among them. `sieve` NULL: these two alone. Returns
# their size; -1: more than `room`, or malformed. O(size).
cdef int sieve_write(sieve_t *sieve, const uint8_t *table, uint32_t size, uint8_t *out, uint32_t room) noexcept nogil

# The content header of the last letter that a thread made: messages of one publisher mostly have the same header, and so have their letters.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from flintmq.core.content cimport content_t
from flintmq.protocol.v0_9_1.death cimport death_t, letter_head_t, text_t

cdef enum:
    MEMO_GIVEN = 1024           # bytes of a route and a header that are remembered, and of the header that was made of them; messages
    MEMO_MADE = 2048            # with more are read each time

cdef struct form_t:             # what the content of a letter is made of
    letter_head_t *head         # its header in pieces; NULL: in one
    const uint8_t *header       # `size` bytes, borrowed until the thread makes its next letter
    uint32_t size
    uint8_t delivery_mode       # 0: absent
    bint has_priority
    bint cut
    text_t deaths               # as letter_head_t's

cdef struct letter_memo_t:
    uint64_t address            # address_t.number; 0: nothing is remembered
    int64_t time_s
    int reason
    uint16_t route_len
    uint32_t header_len
    form_t form
    uint64_t asked_of           # name_hash; 0: of none
    bint is_cycle               # whether a letter to the queue of that name closes a circle
    uint8_t given[MEMO_GIVEN]   # route and header of the message that died
    uint8_t made[MEMO_MADE]

# The calling thread's.
cdef letter_memo_t *letter_memo() noexcept nogil
# The form of the letter of a message that died as the last one did; False: it is another one. number: address_t.number.
cdef bint memo_find(letter_memo_t *memo, content_t *content, uint64_t number, int reason, int64_t time_s, form_t *form) noexcept nogil
# Makes the form of a letter from what death_read said, and remembers it if it is small. The head is freed by the caller, after its letter.
cdef void memo_keep(letter_memo_t *memo, content_t *content, uint64_t number, int reason, int64_t time_s, letter_head_t *head, form_t *form) noexcept nogil
# death_is_cycle for a form that memo_find or memo_keep gave last.
cdef bint memo_is_cycle(letter_memo_t *memo, form_t *form, uint64_t queue_hash) noexcept nogil

cdef extern from *:
    """
    static __thread uint64_t letter_memo_of_thread[420];
    static inline void *letter_memo_place(void) { return letter_memo_of_thread; }
    """
    void *letter_memo_place() noexcept nogil

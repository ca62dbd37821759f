# Whether this is a build with AddressSanitizer (`make asan`): a constant of the C compiler, so other builds have no trace of it.
#
# Where memory is handed out from blocks of our own (contents in chunks, entries in segments), such a build takes each piece from malloc
# and gives it back at once: only so does the sanitizer see who reads behind its end, or after it was freed.
cdef extern from *:
    """
    #ifndef FLINTMQ_SANITIZER_H
    #define FLINTMQ_SANITIZER_H
    #if defined(__SANITIZE_ADDRESS__)
    #define FLINTMQ_ASAN 1
    #else
    #define FLINTMQ_ASAN 0
    #endif
    #endif
    """
    const int FLINTMQ_ASAN

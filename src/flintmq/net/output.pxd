# What of a connection's output goes to its socket: see output.py. The loop's thread only.
from flintmq.net.sockets cimport Socket, io_t, socket_t

cdef enum:
    CIPHER_PIECE = 262144     # bytes that are encrypted at a time, while fewer than that wait to be sent

# Writes the confirms that are due and sends what the socket takes.
cdef void output_flush(io_t *io, socket_t *entry) noexcept nogil
# Of the peers whose last frames are sent: whoever has hung up is closed, whoever has not is in epoll again, which says when. When it is
# time; O(those that linger).
cdef void output_lingering(io_t *io) noexcept nogil
cdef void output_confirms(io_t *io, socket_t *entry) noexcept nogil
cdef object output_encrypt(io_t *io, Socket entry)
# Encrypted bytes of TLS itself wait to be sent.
cdef object output_cipher(io_t *io, Socket entry, bytes cipher)

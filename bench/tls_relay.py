"""A client's end of TLS for load generators that speak none: connections come in plain and go on to a broker over TLS.

    python -m bench.tls_relay --port PORT [--plain]

Listens on a free port of this machine, which it prints, and has a process for each connection. With --plain it goes on without TLS: what a
relay costs by itself. It checks no certificate: the broker is the benchmark's own, on this machine.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import ssl
import sys

# bytes of one read, and of what waits for one side before the other is not read
PIECE = 1 << 18
WAITING_MAX = 1 << 21


def opened(port: int, plain: bool) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if plain:
        return sock
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(sock)


def read(sock: socket.socket) -> bytes | None:
    """None: nothing now; b"": the end."""
    try:
        return sock.recv(PIECE)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    except OSError:
        return b""


def write(sock: socket.socket, data: bytearray) -> None:
    while data:
        try:
            del data[: sock.send(bytes(data[:PIECE]))]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return


def relay(near: socket.socket, far: socket.socket) -> None:
    """Until one side ends."""
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting = {near: bytearray(), far: bytearray()}  # what goes to each
    other = {near: far, far: near}
    for one in waiting:
        one.setblocking(False)
    while True:
        readers = [one for one in waiting if len(waiting[other[one]]) < WAITING_MAX]
        writers = [one for one, data in waiting.items() if data]
        if not (isinstance(far, ssl.SSLSocket) and far.pending() and far in readers):
            readers, writers, _ = select.select(readers, writers, [])
        for one in readers:
            data = read(one)
            if data == b"":
                return
            if data:
                waiting[other[one]] += data
        for one, data in waiting.items():
            write(one, data)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True, help="of the broker")
    parser.add_argument("--plain", action="store_true", help="go on without TLS")
    options = parser.parse_args()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        near, _ = listener.accept()
        if os.fork() == 0:
            try:
                listener.close()
                relay(near, opened(options.port, options.plain))
            finally:
                os._exit(0)
        near.close()


if __name__ == "__main__":
    sys.exit(main())

"""A listening socket takes the place of the one that is bound next, where it is preloaded; every other bind is as it was."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from flintmq.dataplane.supervisor import adopting_library
from flintmq.flight.listener import adopt

# Says on a line for each: what adopt answered, whom a socket that was bound to the port accepts, whether two other binds are as ever.
PROGRAM = """
import socket, sys
from flintmq.flight.listener import adopt
descriptor, family, wide = int(sys.argv[1]), getattr(socket, sys.argv[2]), sys.argv[3]
address = adopt(descriptor)
print(address)
host, port = address
free = socket.socket()
free.bind(("127.0.0.1", 0))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", port))
print(free.getsockname()[1] != port and datagrams.getsockname()[1] == port)
one = socket.socket(family)
one.bind((wide, port))
one.listen(5)
peer = socket.socket(fileno=socket.dup(one.fileno())).accept()[0]
print(peer.getpeername()[1], peer.recv(5).decode())
try:
    socket.socket(family).bind((wide, port))
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize(("family", "wide"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::ffff:127.0.0.1"), ("AF_INET6", "::")])
def test_the_socket_that_is_bound_to_the_port_next_is_the_one_that_listens(family: str, wide: str) -> None:
    """gRPC binds an IPv4 address by a socket of IPv6 where there is IPv6."""
    library = adopting_library()
    assert library
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port), 60) as client:
            client.sendall(b"hello")
            number = listener.fileno()
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(number), family, wide],
                env={**os.environ, "LD_PRELOAD": library},
                pass_fds=[number],
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines() == [
                str((host, port)),
                "True",
                f"{client.getsockname()[1]} hello",
                "Address already in use",
            ]


def test_without_the_preload_nothing_is_taken_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert adopt(listener.fileno()) is None
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(listener.getsockname())


def test_what_is_no_socket_is_refused() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError):
            adopt(reading)
    finally:
        os.close(reading)
        os.close(writing)

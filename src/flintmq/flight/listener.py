"""The listening socket that the broker hands to the service: gRPC serves it in place of one of its own (`_adopt.c`).

in: its descriptor, inherited; LD_PRELOAD, which the broker sets. out: the address that the service is to be made with.
"""

from __future__ import annotations

import importlib
import os
import socket


def adopt(descriptor: int) -> tuple[str, int] | None:
    """Makes the listener that this process binds next the socket of that descriptor, which is owned from now on.

    Returns: its host and port, which the service has to be made with; None: the preload is not there, and nothing changes.
    Raises: OSError, the descriptor is none of a TCP socket.
    """
    with socket.socket(fileno=os.dup(descriptor)) as listener:
        host, port = listener.getsockname()[:2]
    try:
        library = importlib.import_module("flintmq.flight._adopt")
    except ImportError:
        return None
    return (host, port) if library.adopt(descriptor) else None

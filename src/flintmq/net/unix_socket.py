"""A Unix domain socket that listens for AMQP, and who is at the other end of its connections.

in: a path and its permissions. out: a listener; of each connection the descriptor, "unix-uid-" with the user's number, and the process.

U1  Nobody but its owner can connect before the socket has the permissions that were asked for.
U2  A socket file that nobody listens at any more makes room; one that somebody does, and any other file, stays.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from pathlib import Path

from flintmq.errors import OperatorError

# bytes of a path: sun_path without its zero
_PATH_BYTES = 107
_CREDENTIALS = struct.Struct("iII")


def listen(path: str, mode: int) -> socket.socket:
    """A listener at `path`. Raises: OperatorError (69)."""
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise OperatorError(f"--unix-socket {path}: a path of a Unix socket has at most {_PATH_BYTES} bytes", 69)
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # what bind gives the file: nobody slips in before chmod
        listener.bind(path)
        os.chmod(path, mode)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise OperatorError(f"--unix-socket {path}: {error.strerror}", 69) from error
    listener.setblocking(False)
    return listener


def _make_room(path: str) -> None:
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise OperatorError(f"--unix-socket {path}: {error.strerror}", 69) from error
    if not stat.S_ISSOCK(kind):
        raise OperatorError(f"--unix-socket {path}: there is a file that is no socket", 69)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass  # somebody listens, with a full line, or it is not ours to ask
    raise OperatorError(f"--unix-socket {path}: another process listens there", 69)


def accept(listener: socket.socket) -> tuple[int, str, int] | None:
    """The next connection: (descriptor, "unix-uid-" and the user's number, number of the process). None: none waits. Raises: OSError."""
    try:
        made, _ = listener.accept()
    except (BlockingIOError, InterruptedError, ConnectionAbortedError):
        return None
    with made:
        process, user, _ = _CREDENTIALS.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return made.detach(), f"unix-uid-{user}", process


def remove(path: str, number: int) -> None:
    """Takes the file away when it is the one with this inode number still."""
    with contextlib.suppress(OSError):
        if os.lstat(path).st_ino == number:
            Path(path).unlink()

"""systemd's two conventions, without its library: sockets that it opened, and a word when the state changes.

in: LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES; NOTIFY_SOCKET, WATCHDOG_USEC. out: listening descriptors by name; datagrams.

Source: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from flintmq.errors import OperatorError

# the first descriptor that is passed
_FIRST = 3
NAMES = ("amqp", "amqps", "http", "flight")


def inherited(environment: MutableMapping[str, str] = os.environ) -> tuple[tuple[str, int], ...]:
    """(name, descriptor) of the listening sockets that were passed to this process; the variables are removed, as children have none.

    Names are NAMES (FileDescriptorName= of the socket unit); a single socket of another name is for AMQP. Raises: OperatorError (78).
    """
    pid, count, names = (environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()) or not count.isdigit() or int(count) == 0:
        return ()
    given_names = names.split(":") if names else []
    sockets: dict[str, int] = {}
    for index in range(int(count)):
        fd = _FIRST + index
        name = given_names[index] if index < len(given_names) else ""
        if name not in NAMES and int(count) == 1:
            name = "amqp"
        if name not in NAMES or name in sockets:
            names_text = f"FileDescriptorName= is one of {', '.join(NAMES)}, each once"
            raise OperatorError(f"socket {index + 1} of {count} that systemd passed is called {name!r}: {names_text}")
        _check(fd, name)
        os.set_inheritable(fd, False)
        sockets[name] = fd
    return tuple(sockets.items())


def _check(fd: int, name: str) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as one:
            kind = one.family, one.type, one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise OperatorError(f"the socket {name!r} that systemd passed is none: {error.strerror}") from error
    if kind[0] not in (socket.AF_INET, socket.AF_INET6) or kind[1] != socket.SOCK_STREAM or not kind[2]:
        raise OperatorError(f"the socket {name!r} that systemd passed does not listen on a TCP port (ListenStream=)")


class Notifier:
    """Tells the service manager, if there is one. A manager that does not read is not waited for."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        every = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        mine = every.isdigit() and pid in ("", str(os.getpid()))
        # seconds between two signs of life; None: nobody waits for one
        self.watchdog_s = int(every) / 2_000_000 if mine and self._address else None

    def tell(self, *states: str) -> bool:
        """Sends states (READY=1, STATUS=...). False: there is nobody."""
        if not self._address:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as one:
                one.sendto("\n".join(states).encode(), address)
        except OSError:
            return False
        return True

"""The process that moves messages, seen from the broker: one life of it, and the channel to it.

in: messages of moves.control, sockets. out: the process's messages; its end. One thread uses it, but for `kill`.

X1  The process has the other end of the channel, and nobody else has: whoever of the two dies, the other one reads the end of it.
X2  A process that does not read is ended: nothing waits longer than SEND_S for it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from flintmq.config import Config, Limits
from flintmq.moves.control import Decoder, encode

log = logging.getLogger("flintmq.links")

MODULE = "flintmq.shovel"
# seconds that the process may not read
SEND_S = 5.0
_READ = 65_536


class Process:
    """Args: config; command: of the process, for tests. Raises: OSError."""

    def __init__(self, config: Config, command: Sequence[str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.channel = ours
        self._decoder = Decoder()
        self._end_s = config.limits.shovel_end_ms / 1000
        arguments = ["--channel", str(theirs.fileno()), "--nice", str(config.limits.shovel_nice), "--log-level", config.log_level]
        try:
            self._process = subprocess.Popen(
                [*(command or (sys.executable, "-m", MODULE)), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(SEND_S)
        limits = {name: getattr(config.limits, name) for name in Limits.names() if name.startswith("shovel_")}
        self.send({"op": "limits", "limits": limits})

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any], handed: socket.socket | None = None) -> bool:
        """Sends a message, and a socket with it, which is closed here. False: the process is gone, or does not read (X2)."""
        if handed is not None:
            message["fd"] = True
        data = encode(message)
        try:
            if handed is None:
                self.channel.sendall(data)
            else:
                sent = socket.send_fds(self.channel, [data], [handed.fileno()])
                self.channel.sendall(data[sent:])
        except OSError as error:
            log.error("the process that moves messages takes nothing: %s", error)
            with contextlib.suppress(OSError):
                self.channel.shutdown(socket.SHUT_RDWR)
            return False
        finally:
            if handed is not None:
                handed.close()
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """Messages that are there; None: the process is gone. After the channel was readable. Raises: ControlError."""
        try:
            data = self.channel.recv(_READ)
        except OSError:
            data = b""
        return list(self._decoder.feed(data)) if data else None

    def end(self) -> int:
        """The process is gone when this returns. Its exit code (negative: a signal)."""
        self.channel.close()
        try:
            return self._process.wait(self._end_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._process.wait()

"""The child process: takes over the broker's socket and moves messages until the broker is gone.

`python -m flintmq.shovel --channel FD --nice N --log-level L`

in: the descriptor of a connected socket (inherited). out: exit code 0 when the broker closed it, or on SIGTERM. Logs go to stderr.
What links may do, and their passwords, come over the socket: command lines are seen by everybody on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys

from flintmq.config import Limits
from flintmq.loglines import LineFormatter
from flintmq.shovel.agent import Agent


def main(arguments: list[str] | None = None) -> int:
    """Runs until the broker is gone. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="flintmq.shovel", description="Shovels and federation of a FlintMQ broker (started by it).")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of a connected socket")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    channel = socket.socket(fileno=options.channel)
    channel.set_inheritable(False)
    # Passwords and messages of all tenants must not be written to a file when the process crashes.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with contextlib.suppress(OSError):
        os.nice(options.nice)
    # Ctrl-C goes to the whole group of processes: the broker stops its links in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_run(channel))
    return 0


async def _run(channel: socket.socket) -> None:
    agent = Agent(channel, Limits())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.end)
    await agent.run()
    # Links end with their sockets: what they had not settled comes again. Names that are still being looked up would be waited for.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

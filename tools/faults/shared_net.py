"""Machines in one machine: a network namespace each, on a bridge, in a network of the campaign's own.

in: root. out: `Machine`: processes start in it, threads enter it, it is cut off from others. All of it goes with the campaign's process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_BRIDGE = "campaign"
# of the machines' addresses
NETWORK = "10.213.77.0/24"
# places of rules of routing, in the order in which they are looked at
_DROPS, _LOCAL = "10", "20"
_kept: list[int] = []
_libc = ctypes.CDLL(None, use_errno=True)
# set in the process that has a network and mounts of its own
INSIDE = "FLINTMQ_CAMPAIGN_INSIDE"


def why_not() -> str | None:
    """The reason why there can be no namespaces here (one line)."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is missing"
    done = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no network namespace can be made: {done.stderr.strip()}" if done.returncode else None


def enter_network(module: str) -> int | None:
    """Runs this program again in a network and mounts of its own; its exit code. None: it is in there already."""
    if os.environ.get(INSIDE):
        # the bridge lives as long as somebody has its network, and this thread will visit others
        _kept.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        ip("link", "set", "lo", "up")
        ip("link", "add", _BRIDGE, "type", "bridge")
        ip("link", "set", _BRIDGE, "up")
        return None
    command = ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, "-m", module, *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | {INSIDE: "1"}, check=False).returncode


def come_back() -> None:
    """The calling thread has left the machines that it entered."""
    _enter(_kept[0])


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machine:
    """Args: number: 1 to 200. `address`: where the other machines find it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = NETWORK.replace("0/24", str(number))
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        here = os.readlink("/proc/self/ns/net")
        path = Path(f"/proc/{self._holder.pid}/ns/net")
        while os.readlink(path) == here or not Path(f"/proc/{self._holder.pid}/cmdline").read_bytes().startswith(b"sleep"):
            time.sleep(0.01)
        self.namespace = os.open(path, os.O_RDONLY)
        link, inner = f"v{number}", f"w{number}"
        ip("link", "add", link, "type", "veth", "peer", "name", inner)
        ip("link", "set", inner, "netns", str(self._holder.pid))
        ip("link", "set", link, "master", _BRIDGE)
        ip("link", "set", link, "up")
        self._inside("addr", "add", f"{self.address}/24", "dev", inner)
        self._inside("link", "set", inner, "up")
        self._inside("link", "set", "lo", "up")
        # rules that drop what comes from others have to stand before the one that takes whatever is for this machine
        self._inside("rule", "add", "pref", _LOCAL, "lookup", "local")
        self._inside("rule", "del", "pref", "0", "lookup", "local")

    def _inside(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, preexec_fn=self.enter)

    def enter(self) -> None:
        """The calling thread's new sockets, or the process that is about to begin, are this machine's."""
        _enter(self.namespace)

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Args: environment: what is added to this process's."""
        with log.open("ab") as output:
            return subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=self.enter,
            )  # fmt: skip

    def cut(self, others: Sequence[Machine]) -> None:
        """Nothing passes between this machine and the others."""
        for other in others:
            self._inside("route", "add", "blackhole", f"{other.address}/32")
            other._inside("route", "add", "blackhole", f"{self.address}/32")

    def deafen(self, others: Sequence[Machine]) -> None:
        """Nothing that the others send arrives here; what this machine sends arrives there."""
        for other in others:
            self._inside("rule", "add", "pref", _DROPS, "from", f"{other.address}/32", "blackhole")

    def hear(self, others: Sequence[Machine]) -> None:
        """Ends `deafen`."""
        for other in others:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._inside("rule", "del", "pref", _DROPS, "from", f"{other.address}/32", "blackhole")

    def join(self, others: Sequence[Machine]) -> None:
        """Ends `cut`."""
        for other in others:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._inside("route", "del", "blackhole", f"{other.address}/32")
            with contextlib.suppress(subprocess.CalledProcessError):
                other._inside("route", "del", "blackhole", f"{self.address}/32")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        os.close(self.namespace)

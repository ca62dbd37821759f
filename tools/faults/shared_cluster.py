"""Three members of etcd and three brokers, each on a machine of its own (shared_net.py).

in: a folder. out: processes that are killed, stopped, cut off, whose disk is filled, and that are started again.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.etcd import etcd_program
from tools.faults.shared_net import Machine

ROOT = Path(__file__).resolve().parents[2]
CLIENT_PORT, PEER_PORT, AMQP_PORT = 2379, 2380, 5672
# bytes of the disk of a member: etcd reserves 64 MB for its log twice
_DISK_MIB = 256
START_S_MAX = 120.0


class Process:
    """A program on a machine."""

    def __init__(self, name: str, machine: Machine, command: list[str], folder: Path) -> None:
        self.name = name
        self.machine = machine
        self.log = folder / f"{name}.log"
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.process = self.machine.start(self._command, self.log)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        if self.runs:
            assert self.process is not None
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


class Cluster:
    """Args: folder: for data and logs. Raises: servers.Unavailable: there is no etcd."""

    def __init__(self, folder: Path) -> None:
        program = etcd_program()
        self.folder = folder
        member_machines = [Machine(number) for number in (1, 2, 3)]
        broker_machines = [Machine(number) for number in (11, 12, 13)]
        self.machines = [*member_machines, *broker_machines]
        peers = ",".join(f"m{machine.number}=http://{machine.address}:{PEER_PORT}" for machine in member_machines)
        self._disks = [folder / f"disk{machine.number}" for machine in member_machines]
        self.members = []
        for machine, disk in zip(member_machines, self._disks, strict=True):
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(disk)], check=True)
            client, peer = f"http://{machine.address}:{CLIENT_PORT}", f"http://{machine.address}:{PEER_PORT}"
            command = [program, "--name", f"m{machine.number}", "--data-dir", str(disk / "data"), "--initial-cluster", peers]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--log-level", "error"]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            self.members.append(Process(f"member{machine.number}", machine, command, folder))
        engine = "etcd://" + ",".join(f"{machine.address}:{CLIENT_PORT}" for machine in member_machines)
        self.brokers = []
        for machine in broker_machines:
            data = folder / f"data{machine.number}"
            command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--data-dir", str(data), "--port", str(AMQP_PORT)]
            command += ["--http-port", "off", "--flight-port", "off", "--shared-engine", engine]
            self.brokers.append(Process(f"broker{machine.number}", machine, command, folder))

    def wait_ready(self) -> None:
        """Until each broker answers. Raises: TimeoutError."""
        until = time.monotonic() + START_S_MAX
        for broker in self.brokers:
            while b'"ready": true' not in (broker.log.read_bytes() if broker.log.exists() else b""):
                if time.monotonic() > until or not broker.runs:
                    raise TimeoutError(f"{broker.name} is not ready: {broker.log.read_text()[-500:]}")
                time.sleep(0.05)

    def fill(self, number: int) -> None:
        """The disk of a member has no byte left."""
        with (self._disks[number] / "filler").open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def free(self, number: int) -> None:
        (self._disks[number] / "filler").unlink(missing_ok=True)

    def answers(self, number: int) -> bool:
        """Whether a member is part of a cluster with a leader. The caller's thread is on a machine that reaches it."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(self.members[number].machine.address, CLIENT_PORT, timeout=2)
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        return False

    def close(self) -> None:
        for process in (*self.brokers, *self.members):
            process.kill()
        for machine in self.machines:
            machine.close()
        for disk in self._disks:
            subprocess.run(["umount", "-l", str(disk)], check=False)

    def keep_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for process in (*self.brokers, *self.members):
            if process.log.exists():
                shutil.copy(process.log, folder)

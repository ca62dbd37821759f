"""Three members of etcd and three brokers, each on a machine of its own (shared_net.py).

in: a folder. out: processes that are killed, stopped, cut off, whose disk or quota is filled, and that are started again.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flintmq.shared.layout import Owner
from tests.support.etcd import etcd_program
from tools.faults.shared_net import Machine

ROOT = Path(__file__).resolve().parents[2]
CLIENT_PORT, PEER_PORT, AMQP_PORT = 2379, 2380, 5672
# MiB of the disk of a member: etcd reserves 64 MB for its log twice, and needs the quota twice to defragment
_DISK_MIB = 512
# bytes of etcd's quota: the campaign fills it in seconds
_QUOTA = 64 << 20
START_S_MAX = 120.0
# seconds that a member has for one request of the campaign
_ASK_S = 2.0
# bytes of a row that fills the quota; etcd takes 1.5 MiB
_FILLER = 1 << 20
_READY = b'"ready": true'


def _coded(text: bytes) -> str:
    return base64.b64encode(text).decode()


class Process:
    """A program on a machine."""

    def __init__(self, name: str, machine: Machine, command: list[str], folder: Path) -> None:
        self.name = name
        self.machine = machine
        self.log = folder / f"{name}.log"
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self._began = 0
        self.start()

    def start(self) -> None:
        self._began = self.log.stat().st_size if self.log.exists() else 0
        self.process = self.machine.start(self._command, self.log)

    def said(self, text: bytes) -> bool:
        """Whether its log has this since its last start."""
        return self.log.exists() and text in self.log.read_bytes()[self._began :]

    def stop(self) -> None:
        """SIGTERM, and the end of the process."""
        self.send(signal.SIGTERM)
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(START_S_MAX)
        self.kill()

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
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--quota-backend-bytes", str(_QUOTA)]
            self.members.append(Process(f"member{machine.number}", machine, command, folder))
        engine = "etcd://" + ",".join(f"{machine.address}:{CLIENT_PORT}" for machine in member_machines)
        self.brokers = []
        for machine in broker_machines:
            data = folder / f"data{machine.number}"
            command = [sys.executable, "-m", "flintmq.cli.main", "serve", "--data-dir", str(data), "--port", str(AMQP_PORT)]
            command += ["--http-port", "off", "--flight-port", "off", "--cluster", engine, "--node-name", f"broker{machine.number}"]
            command += ["--host", "0.0.0.0", "--advertise-host", machine.address]
            self.brokers.append(Process(f"broker{machine.number}", machine, command, folder))

    def wait_ready(self, brokers: Sequence[Process] = ()) -> None:
        """Until each broker (all without `brokers`) answers. Raises: TimeoutError."""
        until = time.monotonic() + START_S_MAX
        for broker in brokers or self.brokers:
            while not broker.said(_READY):
                if time.monotonic() > until or not broker.runs:
                    raise TimeoutError(f"{broker.name} is not ready: {broker.log.read_text()[-500:]}")
                time.sleep(0.05)

    def owner(self) -> Process | None:
        """The broker that owns the only shared queue. None: nobody, or no member answers."""
        answer = self.ask("/v3/kv/range", key=_coded(b"flintmq/o/"), range_end=_coded(b"flintmq/o0"), limit=1)
        rows = (answer or {}).get("kvs", [])
        if not rows:
            return None
        name = Owner.unpack(base64.b64decode(rows[0]["value"])).node
        return next((broker for broker in self.brokers if broker.name == name), None)

    def ask(self, path: str, **request: Any) -> dict[str, Any] | None:
        """The answer of the first member that gives one. None: none does, or it refuses."""
        answers: list[dict[str, Any]] = []

        def run() -> None:
            for member in self.members:
                member.machine.enter()  # this thread's sockets alone
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    connection = http.client.HTTPConnection(member.machine.address, CLIENT_PORT, timeout=_ASK_S)
                    connection.request("POST", path, json.dumps(request))
                    got = connection.getresponse()
                    text = got.read()
                    if got.status == 200:
                        answers.append(json.loads(text))
                    if got.status < 500 or answers:
                        return

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return answers[0] if answers else None

    def fill_quota(self) -> None:
        """Rows of nobody until etcd refuses more."""
        filler = _coded(bytes(_FILLER))
        for number in range(2 * _QUOTA // _FILLER):
            refused = self.ask("/v3/kv/put", key=_coded(b"filler/%d" % number), value=filler) is None
            if refused and (self.ask("/v3/maintenance/alarm", action="GET") or {}).get("alarms"):
                return

    def free_quota(self) -> None:
        """Those rows go. The brokers have to end the alarm."""
        self.ask("/v3/kv/deleterange", key=_coded(b"filler/"), range_end=_coded(b"filler0"))

    def fill(self, number: int) -> None:
        """The disk of a member has no byte left."""
        with (self._disks[number] / "filler").open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def free(self, number: int) -> None:
        (self._disks[number] / "filler").unlink(missing_ok=True)

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

"""The engines of the campaign: three members of etcd, each on a machine of its own, or one PostgreSQL.

in: a folder for data and logs. out: processes; rows; disks, and a quota, that are full.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import pwd
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.support.etcd import etcd_program
from tests.support.postgres import postgres_missing, postgres_programs
from tests.support.servers import Unavailable
from tools.faults.shared_net import NETWORK, Machine
from tools.faults.shared_process import Process

T = TypeVar("T")

CLIENT_PORT, PEER_PORT, POSTGRES_PORT = 2379, 2380, 5432
# MiB of a disk: etcd reserves 64 MB for its log twice, and needs the quota twice to defragment
_DISK_MIB = 512
# bytes of etcd's quota: the campaign fills it in seconds
_QUOTA = 64 << 20
# seconds that a member has for one request of the campaign
_ASK_S = 2.0
# bytes of a row that fills the quota; etcd takes 1.5 MiB
_FILLER = 1 << 20
# of PostgreSQL: its log of writes has to find room on the disk
_SETTINGS = {
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "50",
    "min_wal_size": "32MB",
    "max_wal_size": "96MB",
}


def _coded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _on(machine: Machine, work: Callable[[], T], timeout_s: float) -> T | None:
    """Runs `work` with sockets of that machine. None: it failed, or is not done in time."""
    answers: list[T] = []

    def run() -> None:
        machine.enter()  # this thread's sockets alone
        answers.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else None


class Disk:
    """A file system in memory, of which the campaign takes all bytes. Args: options: of its mount."""

    def __init__(self, path: Path, options: str = "") -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m{options}", "tmpfs", str(path)], check=True)

    def fill(self) -> None:
        """No byte is left."""
        with (self.path / "filler").open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))

    def free(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False)


class Etcd:
    """Raises: servers.Unavailable: there is no etcd."""

    without: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        program = etcd_program()
        machines = [Machine(number) for number in (1, 2, 3)]
        peers = ",".join(f"m{machine.number}=http://{machine.address}:{PEER_PORT}" for machine in machines)
        self.disks = [Disk(folder / f"disk{machine.number}") for machine in machines]
        self.members = []
        for machine, disk in zip(machines, self.disks, strict=True):
            client, peer = f"http://{machine.address}:{CLIENT_PORT}", f"http://{machine.address}:{PEER_PORT}"
            command = [program, "--name", f"m{machine.number}", "--data-dir", str(disk.path / "data"), "--initial-cluster", peers]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--log-level", "error"]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--quota-backend-bytes", str(_QUOTA)]
            self.members.append(Process(f"member{machine.number}", machine, command, folder))
        self.url = "etcd://" + ",".join(f"{machine.address}:{CLIENT_PORT}" for machine in machines)

    def row(self, key: bytes) -> bytes | None:
        """Of the brokers. None: there is none, or no member answers."""
        rows = (self.ask("/v3/kv/range", key=_coded(b"flintmq/" + key)) or {}).get("kvs", [])
        return base64.b64decode(rows[0]["value"]) if rows else None

    def ask(self, path: str, **request: Any) -> dict[str, Any] | None:
        """The answer of the first member that gives one. None: none does, or it refuses."""

        for member in self.members:

            def work(address: str = member.machine.address) -> tuple[int, bytes]:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    connection = http.client.HTTPConnection(address, CLIENT_PORT, timeout=_ASK_S)
                    connection.request("POST", path, json.dumps(request))
                    got = connection.getresponse()
                    return got.status, got.read()
                return 503, b""

            status, text = _on(member.machine, work, 3 * _ASK_S) or (503, b"")
            if status < 500:
                return json.loads(text) if status == 200 else None
        return None

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


class _Postmaster(Process):
    """Its children have sessions of their own."""

    def send(self, number: int) -> None:
        if not self.runs:
            return
        assert self.process is not None
        pids = [self.process.pid]
        if number != signal.SIGTERM:
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Postgres:
    """One server without standbys. Raises: servers.Unavailable: there is none."""

    # faults for which there have to be several members, or a quota
    without = frozenset({"part-half", "deaf-member", "full-quota"})

    def __init__(self, folder: Path) -> None:
        if reason := postgres_missing():
            raise Unavailable(reason)
        programs, account = postgres_programs(), pwd.getpwnam("postgres")
        assert programs is not None
        folder.chmod(0o711)  # the server is another user's
        machine = Machine(1)
        disk = Disk(folder / "disk1", f",uid={account.pw_uid},gid={account.pw_gid},mode=700")
        self.disks = [disk]
        data, password, password_file = disk.path / "data", secrets.token_hex(16), disk.path / "password"
        password_file.write_text(password)
        os.chown(password_file, account.pw_uid, account.pw_gid)
        as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        made = [
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            f"--pwfile={password_file}",
            "--no-sync",
        ]
        done = subprocess.run([*as_user, *made], cwd=disk.path, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"initdb failed: {' '.join(done.stderr.split())[-300:]}")
        with (data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {NETWORK} scram-sha-256\n")
        settings = {"listen_addresses": machine.address, "port": str(POSTGRES_PORT), **_SETTINGS}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.members: list[Process] = [
            _Postmaster("member1", machine, [*as_user, str(programs / "postgres"), "-D", str(data), *options], folder)
        ]
        self._url = f"postgresql://postgres:{password}@{machine.address}:{POSTGRES_PORT}/postgres"
        file_of_url = folder / "engine"
        file_of_url.touch(0o600)
        file_of_url.write_text(self._url)
        self.url = f"file:{file_of_url}"

    def row(self, key: bytes) -> bytes | None:
        """Of the brokers. None: there is none, or the server does not answer."""

        import psycopg

        from flintmq.engines.postgres import SCHEMA

        def work() -> bytes | None:
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._url, connect_timeout=2) as connection:
                found = connection.execute(f"SELECT value FROM {SCHEMA}.rows WHERE key = %s", (key,)).fetchone()
                return None if found is None else bytes(found[0])
            return None

        return _on(self.members[0].machine, work, 3 * _ASK_S)

    def fill_quota(self) -> None:
        """There is none."""

    def free_quota(self) -> None:
        """There is none."""


ENGINES = {"etcd": Etcd, "postgres": Postgres}

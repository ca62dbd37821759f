"""An etcd of our own for tests: Debian's server, temporary data directories, free loopback ports, stopped by pid.

in: nothing. out: `EtcdCluster`, or `servers.Unavailable` with the reason to skip. Rules S1-S3 of servers.py hold here too.
FLINTMQ_ETCD names another server program.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.servers import Unavailable, ensure_debian_packages, free_ports

PACKAGE = "etcd-server"
START_S_MAX = 120.0


def etcd_program() -> str:
    """Installs Debian's etcd when it is not there and may be. Raises: Unavailable."""
    named = os.environ.get("FLINTMQ_ETCD")
    program = named or shutil.which("etcd")
    if program is None:
        reason = ensure_debian_packages([PACKAGE])
        program = shutil.which("etcd")
        if program is None:
            raise Unavailable(reason or "the package has no etcd program")
    return program


class EtcdCluster:
    """Members on loopback.

    Args: count: of members; options: more of the server's; tls: files (certificate, its key, authority) of members that ask clients for a
    certificate of that authority.
    """

    def __init__(self, count: int = 1, options: Sequence[str] = (), tls: tuple[str, str, str] | None = None) -> None:
        self._program = etcd_program()
        self.base = Path(tempfile.mkdtemp(prefix="flintmq-etcd-"))
        ports = list(free_ports(3 * count))
        self._client_ports, self._peer_ports, self._health_ports = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self.endpoints = tuple(f"{'https' if tls else 'http'}://127.0.0.1:{port}" for port in self._client_ports)
        self._options = list(options)
        if tls:
            certificate, key, authority = tls
            self._options += ["--cert-file", certificate, "--key-file", key, "--trusted-ca-file", authority, "--client-cert-auth"]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count
        for number in range(count):
            self.start(number)
        for number in range(count):
            self._wait(number)

    def start(self, number: int) -> None:
        client, peer = self.endpoints[number], f"http://127.0.0.1:{self._peer_ports[number]}"
        members = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(self._peer_ports))
        command = [self._program, "--name", f"m{number}", "--data-dir", str(self.base / f"m{number}"), "--initial-cluster", members]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--log-level", "error"]
        command += ["--listen-metrics-urls", f"http://127.0.0.1:{self._health_ports[number]}", *self._options]
        with (self.base / f"m{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _wait(self, number: int) -> None:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self._health_ports[number], timeout=5)
                connection.request("GET", "/health")
                healthy = b'"true"' in connection.getresponse().read()
                connection.close()
                if healthy:
                    return
            time.sleep(0.05)
        raise Unavailable(f"etcd is not healthy after {START_S_MAX:.0f} s: {(self.base / f'm{number}.log').read_text()[-300:]}")

    def wait_healthy(self, number: int = 0) -> None:
        """Waits until the member is part of a cluster that has a leader."""
        self._wait(number)

    def kill(self, number: int) -> None:
        """kill -9."""
        process = self.processes[number]
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.processes[number] = None

    def signal(self, number: int, signal_number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        process = self.processes[number]
        assert process is not None
        process.send_signal(signal_number)

    def close(self) -> None:
        for number in range(len(self.processes)):
            self.kill(number)
        shutil.rmtree(self.base, ignore_errors=True)


@contextlib.contextmanager
def etcd_cluster(count: int = 1, options: Sequence[str] = (), tls: tuple[str, str, str] | None = None) -> Iterator[EtcdCluster]:
    """See EtcdCluster. Raises: Unavailable."""
    cluster = EtcdCluster(count, options, tls)
    try:
        yield cluster
    finally:
        cluster.close()

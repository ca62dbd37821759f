"""Starts a FlintMQ broker as a child process for tests, or points the tests at a broker that runs already.

In: extra arguments of `flintmq serve`. Out: host, port, URL, pid, memory and stderr of the broker.
Invariants: only the started process is ever signalled, by its pid; it listens on loopback and on a free port; leaving the context sends
SIGTERM and demands exit code 0 unless the test killed the broker itself.

With FLINTMQ_TEST_URL (`amqp://guest:guest@127.0.0.1:5672/`) the same tests run against that broker instead, for instance a RabbitMQ:
this is how it is known that the tests ask for what clients really get today.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pytest

ENV_URL = "FLINTMQ_TEST_URL"
READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0


def unique(prefix: str = "t") -> str:
    """A name that no other test uses, on a broker that lives on between runs as well."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def wait_until(condition: Callable[[], Any], timeout: float = 30.0, step: float = 0.01, what: str = "condition") -> Any:
    """Polls `condition` until it is true and returns its value.

    Raises: AssertionError after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} still false after {timeout} s")
        time.sleep(step)


class Broker:
    """A broker under test; a context manager. Attributes: host, port, url, pid (None for an outside broker), ready (the ready line)."""

    def __init__(self, *extra: str, env: dict[str, str] | None = None) -> None:
        self.extra = extra
        self.env = env or {}
        self.host = "127.0.0.1"
        self.port = 0
        self.user = "guest"
        self.password = "guest"
        self.pid: int | None = None
        self.ready: dict[str, Any] = {}
        self.external = False
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._killed = False
        self._store: tempfile.TemporaryDirectory[str] | None = None
        self._pump: threading.Thread | None = None

    # --- life -------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        outside = os.environ.get(ENV_URL)
        if outside:
            self._attach(outside)
        else:
            self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.stop()
        finally:
            if self._pump is not None:
                self._pump.join(STOP_TIMEOUT_S)
            self._stderr.close()

    def _attach(self, url: str) -> None:
        if self.extra:
            pytest.skip(f"needs a broker started with {' '.join(self.extra)}, but {ENV_URL} names a running one")
        parts = urlsplit(url)
        self.external = True
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 5672
        self.user = unquote(parts.username or "guest")
        self.password = unquote(parts.password or "guest")

    def start(self, again: int = 3) -> None:
        """Starts the child and returns when it has printed its ready line.

        again: how often more when it came up without the data plane that was asked for.

        Raises: AssertionError with the child's stderr when it ends or stays silent.
        """
        # On the durable store, as users run it; the environment asks for the other kind.
        memory = "--memory" in self.extra or os.environ.get("FLINTMQ_TEST_MEMORY")
        self._store = None if memory else tempfile.TemporaryDirectory(prefix="flintmq-test-")
        kept = (["--memory"] if "--memory" not in self.extra else []) if self._store is None else ["--data-dir", self._store.name]
        command = [sys.executable, "-m", "flintmq.cli.main", "serve", *kept, "--port", "0"]
        command += ["--http-port", "off", "--flight-port", "off", *self.extra]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._stderr, env={**os.environ, **self.env})
        self._process = process
        self.pid = process.pid
        lines: queue.Queue[bytes] = queue.Queue()
        assert process.stdout is not None
        self._pump = threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True)
        self._pump.start()
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise AssertionError(f"no ready line within {READY_TIMEOUT_S} s; stderr:\n{self.stderr_text()}") from None
            if not line:
                raise AssertionError(f"broker ended with {process.wait()} before it was ready; stderr:\n{self.stderr_text()}")
            with contextlib.suppress(ValueError):
                ready = json.loads(line)
                if isinstance(ready, dict) and ready.get("ready"):
                    break
        if not memory and again and "--flight-port" in self.extra and ready["flight_port"] is None:
            # On a busy machine its child may come too late for the ready line: then nobody could tell its port.
            self.stop()
            self.start(again - 1)
            return
        self.ready = ready
        self.port = int(ready["amqp_port"])

    def stop(self) -> None:
        """Ends the child (`_end`) and removes its store."""
        try:
            self._end()
        finally:
            if self._store is not None:
                self._store.cleanup()

    def _end(self) -> None:
        """SIGTERM, and exit code 0 is demanded; a broker that does not end is killed and the test fails."""
        process = self._process
        if process is None:
            return
        self._process = None
        if self._killed:
            process.wait(STOP_TIMEOUT_S)
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"broker did not stop within {STOP_TIMEOUT_S} s of SIGTERM; stderr:\n{self.stderr_text()}") from None
        assert code == 0, f"broker ended with {code}; stderr:\n{self.stderr_text()}"

    def kill(self) -> None:
        """SIGKILL to the started process."""
        assert self._process is not None, "only a broker that this object started can be killed"
        self._killed = True
        self._process.kill()
        self._process.wait()

    # --- what tests ask ---------------------------------------------------------------------------------------------
    @property
    def url(self) -> str:
        """AMQP URL of vhost `/`."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/%2F"

    def alive(self) -> bool:
        """Whether the process still runs (an outside broker: whether it accepts a connection)."""
        if self._process is not None:
            return self._process.poll() is None
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=2):
            return True
        return False

    def stderr_text(self) -> str:
        """What the broker wrote to stderr so far."""
        # Not by seek and read: the child writes where this file stands, and would write over what it wrote before.
        return os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0).decode("utf-8", "replace")

    def rss_bytes(self) -> int:
        """Resident memory of the process. Skips the test for an outside broker."""
        if self.pid is None:
            pytest.skip("the memory of an outside broker is not read")
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS line")

    def open_sockets(self) -> int:
        """Sockets the process holds open, listeners included. Skips the test for an outside broker."""
        if self.pid is None:
            pytest.skip("the sockets of an outside broker are not counted")
        count = 0
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += os.readlink(entry).startswith("socket:")
        return count


def _pump(stream: Any, lines: queue.Queue[bytes]) -> None:
    """Moves lines to the queue until the end, which is an empty line: the pipe must never fill up."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(b"")


@contextlib.contextmanager
def self_signed_certificate() -> Iterator[tuple[str, str]]:
    """A certificate for localhost and 127.0.0.1: paths of (certificate, key) in a directory that is removed afterwards."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=7))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory() as folder:
        cert_path, key_path = Path(folder, "cert.pem"), Path(folder, "key.pem")
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        yield str(cert_path), str(key_path)

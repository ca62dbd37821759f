"""A PostgreSQL of our own for tests: real server, temporary data directory, free loopback port, stopped by pid.

in: nothing. out: `PostgresServer`, or `servers.Unavailable` with the reason to skip. Rules S1-S3 of servers.py hold here too.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.servers import Unavailable, ensure_debian_packages, free_ports

PACKAGE = "postgresql"
START_S_MAX = 150.0


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """Superuser `postgres` with a random password, by TCP only."""

    port: int
    pid: int
    password: str

    def url(self, database: str = "postgres", user: str = "postgres", password: str | None = None, port: int | None = None) -> str:
        """As an operator writes it for --connect."""
        return f"postgresql://{user}:{password or self.password}@127.0.0.1:{port or self.port}/{database}"

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs statements as the superuser; the rows of the last one."""
        import psycopg

        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)  # type: ignore[arg-type]
                rows = cursor.fetchall() if cursor.description else []
        return rows


def postgres_programs() -> Path | None:
    """The folder of the newest version's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def postgres_missing() -> str | None:
    """Installs Debian's PostgreSQL when it is not there and may be; the reason to skip otherwise."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'psycopg[binary]'"
    if postgres_programs():
        return None
    return ensure_debian_packages([PACKAGE]) or (None if postgres_programs() else "the package has no postgres program")


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; gone afterwards. Raises: Unavailable."""
    if reason := postgres_missing():
        raise Unavailable(reason)
    programs = postgres_programs()
    assert programs is not None
    with contextlib.ExitStack() as stack:
        base, run_as = _place(stack)
        password = secrets.token_hex(16)
        password_file = base / "password"
        password_file.write_text(password)
        if run_as:
            os.chown(password_file, run_as["user"], run_as["group"])
        data, log = base / "data", base / "log"
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(base), "LC_ALL": "C.UTF-8"}
        command = [
            programs / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            f"--pwfile={password_file}",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        with log.open("wb") as output:
            done = subprocess.run(
                command, env=environment, cwd=base, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, **run_as
            )
            if done.returncode != 0:
                raise Unavailable(f"initdb failed: {' '.join(log.read_text(errors='replace').split())[-300:]}")
            (port,) = free_ports(1)
            process = _start(stack, data, port, output, environment, run_as)
        server = PostgresServer(port, process.pid, password)
        _wait_ready(server, process, log)
        yield server


def _place(stack: contextlib.ExitStack) -> tuple[Path, dict[str, Any]]:
    """A directory for a server until `stack` ends, and as whom the server runs. Raises: Unavailable."""
    base = Path(tempfile.mkdtemp(prefix="flintmq-postgres-"))
    stack.callback(shutil.rmtree, base, ignore_errors=True)
    if os.geteuid() != 0:
        return base, {}
    try:  # the server refuses to run as root
        account = pwd.getpwnam("postgres")
    except KeyError:
        raise Unavailable("PostgreSQL does not run as root and there is no user postgres") from None
    os.chown(base, account.pw_uid, account.pw_gid)
    return base, {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _start(
    stack: contextlib.ExitStack, data: Path, port: int, output: Any, environment: dict[str, str], run_as: dict[str, Any]
) -> subprocess.Popen[bytes]:
    """A server of that directory, until `stack` ends."""
    programs = postgres_programs()
    assert programs is not None
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "shared_buffers": "16MB",
        "max_connections": "30",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    process = subprocess.Popen(
        [programs / "postgres", "-D", data, *options],
        env=environment, cwd=data.parent, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **run_as,
    )  # fmt: skip
    stack.callback(_stop, process)
    return process


@contextlib.contextmanager
def standbys(server: PostgresServer, count: int) -> Iterator[list[int]]:
    """Standbys of a server, all synchronous: a commit waits for each of them. Yields their pids. Raises: Unavailable."""
    programs = postgres_programs()
    assert programs is not None
    with contextlib.ExitStack() as stack:
        pids: list[int] = []
        for _ in range(count):
            base, run_as = _place(stack)
            environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(base), "LC_ALL": "C.UTF-8"}
            data = base / "data"
            with (base / "log").open("wb") as output:
                copy: Sequence[str] = [
                    str(programs / "pg_basebackup"),
                    "-D",
                    str(data),
                    "-R",
                    "-X",
                    "stream",
                    "-c",
                    "fast",
                    "-d",
                    server.url(),
                ]
                done = subprocess.run(copy, env=environment, cwd=base, stdout=output, stderr=output, check=False, **run_as)
                if done.returncode != 0:
                    raise Unavailable(f"pg_basebackup failed: {(base / 'log').read_text(errors='replace')[-300:]}")
                (port,) = free_ports(1)
                pids.append(_start(stack, data, port, output, environment, run_as).pid)
        server.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'FIRST {count} (*)'", "SELECT pg_reload_conf()")
        end = time.monotonic() + START_S_MAX
        while server.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")[0][0] < count:
            if time.monotonic() > end:
                raise Unavailable(f"not all standbys follow after {START_S_MAX:.0f} s")
            time.sleep(0.05)
        yield pids


def _wait_ready(server: PostgresServer, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    end = time.monotonic() + START_S_MAX
    while True:
        try:
            psycopg.connect(server.url(), connect_timeout=2).close()
            return
        except psycopg.Error:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start; its log ends with:\n{log.read_text(errors='replace')[-2000:]}") from None
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Fast shutdown; the backends end with their parent."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    if process.poll() is None:
        process.kill()
    process.wait()

"""Brokers and Debian packages that tests and bench/ need: started here, on free loopback ports, stopped by pid.

in: names of Debian packages, a command line of ours. out: `Server` (port, pid, version), or `Unavailable` with the reason to skip.

S1  Nothing that runs already is touched: every server has a data directory, ports and (Erlang) an epmd of its own.
S2  A Debian package never starts a service here: policy-rc.d denies it for the time of the installation.
S3  Only processes started here are ended, by pid.

For people: `python -m tests.support.servers rabbitmq` (or `flintmq`) keeps one running and prints {"port": ...} until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POLICY = Path("/usr/sbin/policy-rc.d")
# The highest AMQP protocol header: a broker that is up answers it with connection.start.
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
START_S_MAX = 120.0
APT_S_MAX = 900.0


class Unavailable(Exception):
    """The server can't be had on this machine; the text is the reason to skip (one line)."""


@dataclass(slots=True)
class Server:
    """A broker that was started here. `pid` is the root of its process tree; `cpu` and RSS count the whole tree."""

    name: str
    port: int
    pid: int
    version: str
    data_dir: Path
    log: Path
    ready: dict[str, object]

    @property
    def alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()


# --- Debian packages --------------------------------------------------------------------------------------------------
def package_installed(package: str) -> bool:
    """True when dpkg says that the package is installed and configured."""
    if shutil.which("dpkg-query") is None:
        return False
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout == "install ok installed"


@contextlib.contextmanager
def _machine_lock(name: str) -> Iterator[None]:
    """One process (and thread) of this machine at a time."""
    path = Path(tempfile.gettempdir()) / f"flintmq-{name}-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Denies service starts by maintainer scripts (Debian policy 9.3.3.1) unless the machine has a policy of its own."""
    try:
        handle = os.open(POLICY, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o755)
    except FileExistsError:
        yield  # a container's or the administrator's policy: kept as it is
        return
    with os.fdopen(handle, "w") as file:
        file.write("#!/bin/sh\nexit 101\n")
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def ensure_debian_packages(packages: Sequence[str]) -> str | None:
    """Installs the packages that are missing, without starting any service. Returns None, or why it can't be done (one line).

    Safe to call from several test processes at once. Set FLINTMQ_NO_APT=1 to forbid installing.
    """
    if all(map(package_installed, packages)):
        return None
    with _machine_lock("apt"):
        missing = [package for package in packages if not package_installed(package)]
        if not missing:
            return None
        hint = f"apt-get install --no-install-recommends {' '.join(missing)}"
        if shutil.which("apt-get") is None:
            return f"not a Debian system: {', '.join(missing)} can't be installed"
        if os.environ.get("FLINTMQ_NO_APT") or os.geteuid() != 0:
            return f"missing Debian packages, as root: {hint}"
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
        with _no_services():
            for command in ([*apt, "update"], [*apt, "install", "--no-install-recommends", *missing]):
                try:
                    done = subprocess.run(
                        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=APT_S_MAX, check=False
                    )
                except subprocess.TimeoutExpired:
                    return f"'{' '.join(command)}' took longer than {APT_S_MAX:.0f} s"
                # An update may fail for one source of many; the installation decides.
                if done.returncode != 0 and command[-1] != "update":
                    return f"'{hint}' failed: {' '.join(done.stderr.split())[-300:]}"
    return None


# --- processes --------------------------------------------------------------------------------------------------------
def free_ports(count: int) -> list[int]:
    """Different loopback TCP ports that nobody listens on now. The caller binds them soon: another process may be faster.

    They are below those that the system gives out by itself: no connection and no broker of another test gets one of them meanwhile.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(16_384, _first_given_out()), 1000):
        if len(found) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _first_given_out() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 0
    return first if first > 20_000 else 32_768


def _process_group_stop(process: subprocess.Popen[bytes], *, graceful_s: float) -> None:
    """Ends a process started here in a session of its own, with the helpers in its group. Idempotent."""
    group = process.pid
    if process.poll() is None and graceful_s > 0:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(graceful_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as peer:
            peer.settimeout(5)
            peer.sendall(PROTOCOL_HEADER)
            return peer.recv(8)[:3] == b"\x01\x00\x00"
    except OSError:
        return False


def _wait_ready(name: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S_MAX
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > end:
            what = f"ended with {process.returncode}" if process.poll() is not None else f"was not ready after {START_S_MAX:.0f} s"
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise RuntimeError(f"{name} {what}; its log ends with:\n{tail}")
        time.sleep(0.05)


@contextlib.contextmanager
def _directory(data_dir: Path | None, name: str) -> Iterator[Path]:
    if data_dir is not None:
        data_dir.mkdir(parents=True, exist_ok=True)
        yield data_dir
        return
    path = Path(tempfile.mkdtemp(prefix=f"flintmq-{name}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- RabbitMQ ---------------------------------------------------------------------------------------------------------
def rabbitmq_missing() -> str | None:
    """Installs Debian's RabbitMQ when it is not there and may be; the reason to skip otherwise."""
    if _rabbitmq_script():
        return None
    return ensure_debian_packages(["rabbitmq-server"]) or (None if _rabbitmq_script() else "the package has no rabbitmq-server script")


def _rabbitmq_script() -> Path | None:
    # Debian's wrapper in /usr/sbin changes the user and the directories; the script under it takes ours from the environment.
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found else None


def rabbitmq_version() -> str:
    """Of the installed package, such as 3.10.8; empty when there is none."""
    script = _rabbitmq_script()
    return script.parents[1].name.rpartition("-")[2] if script else ""


@contextlib.contextmanager
def rabbitmq(*, data_dir: Path | None = None, plugins: Sequence[str] = (), config: str = "", advanced: str = "") -> Iterator[Server]:
    """A RabbitMQ of our own (guest/guest, vhost /), with an epmd of its own; both are gone afterwards.

    Args: data_dir: kept when given (then RabbitMQ is stopped gracefully), else temporary; plugins: names to enable;
    config: more lines for rabbitmq.conf; advanced: advanced.config. Raises: Unavailable.
    """
    if reason := rabbitmq_missing():
        raise Unavailable(reason)
    script = _rabbitmq_script()
    assert script is not None
    with _directory(data_dir, "rabbitmq") as base, contextlib.ExitStack() as stack:
        port, dist_port, epmd_port = free_ports(3)
        (base / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{port}\nloopback_users = none\n{config}\n")
        if advanced:
            (base / "advanced.config").write_text(advanced)
        (base / "plugins").write_text(f"[{','.join(plugins)}].\n")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        environment |= {
            "HOME": str(base),  # the Erlang cookie is made there
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"flintpeer{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_PID_FILE": str(base / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(base / "none"),  # Debian's file in /etc would change ports and names
            # No busy waiting of the schedulers: it would be charged to messages, and takes the cores from everyone else.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_ALLOW_INPUT": "true",  # the shell becomes the broker: one process, no trap in between
        }
        log = base / "out.log"
        output = stack.enter_context(log.open("ab"))

        def start(command: list[str], graceful_s: float) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                command, env=environment, cwd=base, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            stack.callback(_process_group_stop, process, graceful_s=graceful_s)
            return process

        # In the foreground: a daemon started by the Erlang runtime could not be told from somebody else's.
        start([shutil.which("epmd") or "/usr/bin/epmd", "-port", str(epmd_port), "-address", "127.0.0.1"], 0)
        process = start(["/bin/sh", str(script), "-noinput"], 30.0 if data_dir is not None else 0.0)
        _wait_ready("RabbitMQ", port, process, log)
        yield Server("rabbitmq", port, process.pid, rabbitmq_version(), base, log, {})


# --- FlintMQ ----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def flintmq(*arguments: str, data_dir: Path | None = None, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """`flintmq serve` of this checkout on a free port, as a child process.

    Without `arguments`: AMQP only, everything in memory. Raises: Unavailable when it is not built.
    """
    executable = Path(sys.executable).with_name("flintmq")
    if not executable.exists():
        executable = ROOT / ".venv/bin/flintmq"
    if not executable.exists():
        raise Unavailable(f"{executable} is missing: make build")
    options = list(arguments) or ["--http-port", "off", "--flight-port", "off", "--memory"]
    with _directory(data_dir, "serve") as base, contextlib.ExitStack() as stack:
        log = base / "stderr.log"
        output = stack.enter_context(log.open("ab"))
        process = subprocess.Popen(
            [str(executable), "serve", "--port", "0", *options],
            env=os.environ | (environment or {}), cwd=base, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        stack.callback(_process_group_stop, process, graceful_s=10.0)
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        # readline would wait for ever on a broker that hangs: ending it makes the read return.
        watchdog = threading.Timer(START_S_MAX, process.kill)
        watchdog.start()
        line = process.stdout.readline()
        watchdog.cancel()
        try:
            ready = json.loads(line)
            port = int(ready["amqp_port"])
        except (ValueError, KeyError, TypeError):
            raise RuntimeError(f"flintmq serve printed {line!r} instead of a ready line; its log:\n{log.read_text()[-2000:]}") from None
        from flintmq import __version__ as version

        yield Server("flintmq", port, process.pid, str(version), base, log, ready)


def main() -> int:
    kinds: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {"rabbitmq": rabbitmq, "flintmq": flintmq}
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        print(f"usage: python -m tests.support.servers {'|'.join(kinds)}", file=sys.stderr)
        return 64
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with kinds[sys.argv[1]]() as server:
            print(json.dumps({"port": server.port, "pid": server.pid, "version": server.version}), flush=True)
            while server.alive and not stop.wait(0.5):
                pass
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

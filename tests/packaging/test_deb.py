"""The Debian package: in a root of its own it runs, systemd takes its units, and its purge leaves the messages alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tools import deb

# what FlintMQ stands on: pyproject's dependencies, and theirs
NAMES = [
    *("click", "argon2", "_argon2_cffi_bindings", "cffi", "pycparser", "pcre2", "starlette", "anyio", "idna", "uvicorn", "h11"),
    "typing_extensions.py",
    f"_cffi_backend{sysconfig.get_config_var('EXT_SUFFIX')}",
]

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg: packages of Debian are made on Debian")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    return deb.build(python, deb.copied(Path(sysconfig.get_path("platlib")), NAMES), tmp_path_factory.mktemp("deb"), "2.28")


@pytest.fixture(scope="module")
def root(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A system with nothing in it but the package."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "var/lib/dpkg/info").mkdir(parents=True)
    (folder / "var/lib/dpkg/status").touch()
    yield folder


def dpkg(root: Path, *words: object) -> str:
    command = ["dpkg", f"--root={root}", "--force-not-root", "--force-depends", "--force-script-chrootless", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() and "var/lib/dpkg" not in str(path)}


def test_an_installed_package_runs_and_purging_it_leaves_the_messages_alone(package: Path, root: Path, tmp_path: Path) -> None:
    dpkg(root, "--install", package)
    status = subprocess.run(["dpkg", f"--root={root}", "--status", "flintmq"], capture_output=True, text=True, check=True).stdout
    assert "Status: install ok installed" in status
    minor = sys.version_info[1]
    assert f"Depends: python3 (>= 3.{minor}), python3 (<< 3.{minor + 1}), libc6 (>= 2.28)" in status
    assert not [path for path in (root / "usr/lib/flintmq").rglob("*.py") if not _bytecode(path).exists()], "a start would compile it"
    assert "_flintmq_completion" in (root / "usr/share/bash-completion/completions/flintmq").read_text()

    data = root / "var/lib/flintmq"
    config = tmp_path / "flintmq.toml"
    given = (root / "etc/flintmq/flintmq.toml").read_text()
    config.write_text(given.replace("/var/lib/flintmq", str(data)))
    # its own interpreter, as the command's first line has it: that path is there once the package is in the real root
    words = [
        root / "usr/lib/flintmq/bin/python3",
        (root / "usr/bin/flintmq").resolve(),
        "serve",
        "--config",
        config,
        "--port",
        "0",
        "--http-port",
        "0",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    broker = subprocess.Popen([str(one) for one in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert broker.stdout is not None
        ready = json.loads(broker.stdout.readline())
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ready["amqp_port"]))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"hello", pika.BasicProperties(delivery_mode=2))
        connection.close()
    finally:
        broker.terminate()
        _, errors = broker.communicate(timeout=60)
    assert broker.returncode == 0, errors

    kept = {path for path in files_of(root) if path.startswith("var/lib/flintmq/")}
    assert kept
    (root / "etc/flintmq/flintmq.toml").write_text(given + 'log-level = "warning"\n')
    dpkg(root, "--remove", "flintmq")
    assert "etc/flintmq/flintmq.toml" in files_of(root)
    said = dpkg(root, "--purge", "flintmq")
    assert "stay in /var/lib/flintmq" in said
    assert files_of(root) == kept


def _bytecode(path: Path) -> Path:
    return path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: Debian's package systemd has it")
def test_systemd_finds_nothing_wrong_with_the_units(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    units = tmp_path / "usr/lib/systemd/system"
    assert "ExecStart=/usr/bin/flintmq serve --config /etc/flintmq/flintmq.toml\n" in (units / "flintmq.service").read_text()
    # the command is checked, too: as it stands in this directory
    text = (units / "flintmq.service").read_text().replace("ExecStart=/usr", f"ExecStart={tmp_path}/usr")
    (units / "flintmq.service").write_text(text)
    (tmp_path / "usr/bin/flintmq").unlink()
    (tmp_path / "usr/bin/flintmq").write_text("#!/bin/sh\n")
    (tmp_path / "usr/bin/flintmq").chmod(0o755)
    for name in ("flintmq.service", "flintmq.socket"):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", units / name], capture_output=True, text=True, timeout=60)
        ours = [line for line in done.stderr.splitlines() if "flintmq" in line]
        assert done.returncode == 0 and not ours, done.stderr

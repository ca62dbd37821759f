"""`make dist`: the source distribution and a wheel for this Python, each installed in a clean environment where it passes a message.

in: this checkout, a C compiler, pip. out: build/dist/*.tar.gz, *.whl; a line for each package that says what was done with it. Exit 0, or 1
when a package does not work.

    python tools/dist.py [--python PYTHON]... [--no-sdist-install]

A wheel is built for each PYTHON that is there (default: this one). Where `auditwheel` and `patchelf` are installed it becomes a manylinux
one; else it keeps the name linux_x86_64 and is good for machines with this C library, and the last line says so. The recipe for all
versions and machines is cibuildwheel's, with [tool.cibuildwheel] of pyproject.toml: it needs containers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "dist"
# what a user does first; run by the environment's own Python, outside of this checkout
TRY = """
import json, os, subprocess, sys
import flintmq, pika
assert os.path.dirname(flintmq.__file__).startswith(sys.prefix), flintmq.__file__
options = ["--port", "0", "--http-port", "0", "--flight-port", "off", "--data-dir", "data"]
command = [os.path.join(sys.prefix, "bin", "flintmq"), "serve", *options]
broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
try:
    port = json.loads(broker.stdout.readline())["amqp_port"]
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"hello", pika.BasicProperties(delivery_mode=2))
    assert channel.basic_get("q", auto_ack=True)[2] == b"hello"
    connection.close()
finally:
    broker.terminate()
assert broker.wait(60) == 0
print("passed a message with flintmq", flintmq.__version__, "on Python", sys.version.split()[0])
"""


def run(*command: object, cwd: Path = ROOT) -> str:
    """The output of a command. Raises: SystemExit with the end of it when it failed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(str(one) for one in command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def built(python: str, kind: str) -> Path:
    """A package of this checkout. Args: kind: sdist or wheel."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sdist":
            run(python, "-c", f"from setuptools.build_meta import build_sdist; build_sdist({folder!r})")
        else:
            run(_builder(python, Path(folder)), "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ".")
        (made,) = [one for one in Path(folder).iterdir() if one.suffix in (".gz", ".whl")]
        return Path(shutil.move(made, OUT / made.name))


def _builder(python: str, folder: Path) -> Path:
    """A Python that has what a build needs: this one, or an environment of another one with the locked versions."""
    if Path(python).resolve() == Path(sys.executable).resolve():
        return Path(sys.executable)
    run(python, "-m", "venv", folder / "build")
    inside = folder / "build" / "bin" / "python"
    locked = (ROOT / "requirements-dev.lock").read_text().split()
    needed = [one for one in locked if one.lower().startswith(("cython==", "setuptools==", "wheel=="))]
    run(inside, "-m", "pip", "install", "--quiet", *needed)
    return inside


def repaired(wheel: Path) -> Path:
    """The manylinux wheel of a linux one; the same one where the tools for that are not there."""
    if not (shutil.which("auditwheel") and shutil.which("patchelf")):
        return wheel
    run("auditwheel", "repair", "-w", OUT / "manylinux", wheel)
    (made,) = (OUT / "manylinux").glob("*.whl")
    wheel.unlink()
    return Path(shutil.move(made, OUT / made.name))


def tried(python: str, package: Path) -> str:
    """Installs a package in a new environment and passes a message through it."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", Path(folder, "env"))
        inside = Path(folder, "env", "bin", "python")
        run(inside, "-m", "pip", "install", "--quiet", package, "pika")
        return run(inside, "-c", TRY, cwd=Path(folder)).strip()


def main() -> int:
    """See module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", action="append", help="build a wheel for this interpreter, too (repeatable)")
    parser.add_argument("--no-sdist-install", action="store_true", help="do not compile the source distribution a second time")
    options = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    source = built(sys.executable, "sdist")
    print(f"{source.name}: {source.stat().st_size >> 10} KiB", flush=True)
    if not options.no_sdist_install:
        print(f"{source.name}: {tried(sys.executable, source)}", flush=True)
    for python in options.python or [sys.executable]:
        wheel = repaired(built(python, "wheel"))
        print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB; {tried(python, wheel)}", flush=True)
        if "manylinux" not in wheel.name:
            print(f"{wheel.name} is for machines with this C library: auditwheel and patchelf, which make it a manylinux one, are not here")
    return 0


if __name__ == "__main__":
    sys.exit(main())

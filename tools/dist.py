"""`make dist`: the source distribution and wheels for CPython, each installed in a clean environment where it passes a message; a Debian
package; the container image.

in: this checkout, a C compiler, pip. out: build/dist/*.tar.gz, *.whl, *.deb; a line for each package that says what was done with it. Exit
0, or 1 when a package does not work.

    python tools/dist.py [--python PYTHON]... [--no-sdist-install]

A wheel is built for each PYTHON that is named (default: this one and the others from 3.11 to 3.14 that are on the path, or pyenv's); a
line names the versions that are not. auditwheel, in an environment of its own (build/dist-tool), gives it the manylinux tag of the oldest
C library that it runs with. Built here that is this machine's library or a little older. The recipe for old ones, and for aarch64, is
cibuildwheel's, with [tool.cibuildwheel] of pyproject.toml: it needs containers. Wheels are stripped: lines of compiled code are in builds
of a checkout alone. The Debian package (tools/deb.py) is for Debian's own CPython, the image is built where docker or podman runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import deb  # noqa: E402

OUT = ROOT / "build" / "dist"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
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


def run(*command: object, cwd: Path = ROOT, path: Path | None = None) -> str:
    """The output of a command. Args: path: where programs are looked for first. Raises: SystemExit with the end of it when it failed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment.get('PATH', '')}"
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(str(one) for one in command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def built(python: str, source: Path | None = None) -> Path:
    """The source distribution of this checkout; with `source`, its wheel: the build directory of a checkout that is in use has modules of
    other states, which would be in a wheel made there."""
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            run(python, "-c", f"from setuptools.build_meta import build_sdist; build_sdist({folder!r})")
        else:
            run(_builder(python, Path(folder)), "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source)
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


def pythons() -> tuple[list[str], list[str]]:
    """The interpreters of VERSIONS that are here, this one first, and the versions of which there is none."""
    chosen, missing = [], []
    for version in VERSIONS:
        if sys.version_info[:2] == tuple(map(int, version.split("."))):
            chosen.insert(0, sys.executable)
            continue
        candidates = [shutil.which(f"python{version}"), *map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))]
        ask = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
        for candidate in filter(None, candidates):
            done = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                chosen.append(candidate)
                break
        else:
            missing.append(version)
    return chosen, missing


def repaired(wheel: Path) -> Path:
    """The manylinux wheel of a linux one."""
    tool = ROOT / "build" / "dist-tool"
    if not (tool / "bin" / "auditwheel").exists():
        run(sys.executable, "-m", "venv", tool)
        lock = ROOT / "tools/dist_tool/requirements.lock"
        run(tool / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock)
    folder = OUT / "manylinux"
    run(tool / "bin" / "python", "-m", "auditwheel", "repair", "--strip", "-w", folder, wheel, path=tool / "bin")
    (made,) = folder.glob("*.whl")
    wheel.unlink()
    return Path(shutil.move(made, OUT / made.name))


def tried(python: str, package: Path) -> str:
    """Installs a package in a new environment and passes a message through it."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", Path(folder, "env"))
        inside = Path(folder, "env", "bin", "python")
        run(inside, "-m", "pip", "install", "--quiet", package, "pika")
        return run(inside, "-c", TRY, cwd=Path(folder)).strip()


def debian(wheels: list[Path]) -> str:
    """Makes the package for /usr/bin/python3; what was made, or why nothing was."""
    python = Path("/usr/bin/python3").resolve()
    if not python.exists() or shutil.which("dpkg-deb") is None:
        return "no Debian package: this machine has no dpkg or no /usr/bin/python3"
    tag = run(python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").strip()
    for wheel in wheels:
        found = re.search(rf"-{tag}-{tag}-.*manylinux_2_(\d+)_", wheel.name)
        if found is None:
            continue

        def fill(home: Path, wheel: Path = wheel) -> None:
            run(sys.executable, "-m", "pip", "--python", home / "bin" / "python3", "install", "--quiet", "--no-compile", wheel)

        package = deb.build(python, fill, OUT, f"2.{found[1]}")
        return f"{package.name}: {package.stat().st_size >> 10} KiB, for Debian's {python.name}"
    return f"no Debian package: no wheel is for {python} ({tag})"


def image() -> str:
    """Builds the container image, where an engine runs; a line about it."""
    for engine in ("podman", "docker"):
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True).returncode == 0:
            run(engine, "build", "--tag", "flintmq", "--file", ROOT / "deploy/Containerfile", ROOT)
            said = run(engine, "run", "--rm", "flintmq", "--version").strip()
            return f"image flintmq, by {engine}: {said}"
    return "no container image: neither podman nor docker runs here"


def main() -> int:
    """See module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", action="append", help="build a wheel for this interpreter and no others (repeatable)")
    parser.add_argument("--no-sdist-install", action="store_true", help="do not compile the source distribution a second time")
    options = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    source = built(sys.executable)
    print(f"{source.name}: {source.stat().st_size >> 10} KiB", flush=True)
    if not options.no_sdist_install:
        print(f"{source.name}: {tried(sys.executable, source)}", flush=True)
    chosen, missing = (options.python, []) if options.python else pythons()
    wheels = []
    for python in chosen:
        wheel = repaired(built(python, source))
        wheels.append(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB; {tried(python, wheel)}", flush=True)
    for version in missing:
        print(f"no wheel for CPython {version}: there is no such interpreter here")
    print(debian(wheels), image(), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

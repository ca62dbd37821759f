"""A Debian package of the broker: an environment of its own in /usr/lib/flintmq, systemd's units, a configuration file.

in: a CPython of Debian, and a function that puts FlintMQ with what it needs into the environment. out: a .deb.

The environment's interpreter is a link to Debian's, so the package needs that minor version of Python (Depends) and no pip. Messages are in
/var/lib/flintmq, where neither removal nor purge touches them. Files of deploy/ go in as they are, but for the path of the command.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
HOME = "usr/lib/flintmq"
_COMMAND = f"""#!/{HOME}/bin/python3
import sys

from flintmq.cli.main import main

sys.exit(main())
"""
_CONTROL = """Package: flintmq
Version: {version}-1
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kib}
Depends: python3 (>= {minor}), python3 (<< {next_minor}), libc6 (>= {libc})
Recommends: logrotate
Section: net
Priority: optional
Description: durable, strictly ordered AMQP message broker
 FlintMQ speaks AMQP 0-9-1 with the extensions and the management API of
 RabbitMQ, keeps queues and streams on disk, and exchanges messages with Spark
 exactly once.
"""


def build(python: Path, fill: Callable[[Path], None], out: Path, libc: str, maintainer: str = "FlintMQ <packages@localhost>") -> Path:
    """The package, in the directory `out`. Args: python: Debian's interpreter; fill: gets the environment's root, whose `bin/python3`
    works; libc: the oldest version that the compiled modules run with. Raises: CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder, "stage")
        stage.mkdir(mode=0o755)
        version, minor = _environment(python, stage, fill)
        _files(stage)
        _control(stage, version, minor, libc, maintainer)
        architecture = _output("dpkg", "--print-architecture")
        package = out / f"flintmq_{version}-1_{architecture}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(stage), str(package)], check=True, capture_output=True)
        return package


def _environment(python: Path, stage: Path, fill: Callable[[Path], None]) -> tuple[str, tuple[int, int]]:
    home = stage / HOME
    subprocess.run([str(python), "-m", "venv", "--without-pip", "--symlinks", str(home)], check=True, capture_output=True)
    fill(home)
    for script in home.glob("bin/*"):
        if not script.is_symlink() or script.name not in ("python3",):
            script.unlink()
    inside = home / "bin" / "python3"
    inside.unlink()
    inside.symlink_to(python)
    facts = json.loads(_output(inside, "-c", "import json, sys, flintmq; print(json.dumps([flintmq.__version__, sys.version_info[:2]]))"))
    (home / "pyvenv.cfg").write_text(
        f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {'.'.join(map(str, facts[1]))}\n"
    )
    # with the paths that it will have: tracebacks show them
    subprocess.run([str(inside), "-m", "compileall", "-q", "-f", "-s", str(stage), "-p", "/", str(home / "lib")], check=True)
    command = home / "bin" / "flintmq"
    command.write_text(_COMMAND)
    command.chmod(0o755)
    return facts[0], (facts[1][0], facts[1][1])


def _files(stage: Path) -> None:
    _put(stage / "etc/flintmq/flintmq.toml", (DEPLOY / "debian/flintmq.toml").read_text())
    _put(stage / "etc/logrotate.d/flintmq", (DEPLOY / "flintmq.logrotate").read_text())
    lines = (DEPLOY / "flintmq.service").read_text().splitlines(keepends=True)
    unit = [line for line in lines if not line.startswith(("#", "ExecStart="))]
    unit.insert(unit.index("Type=notify\n") + 1, "ExecStart=/usr/bin/flintmq serve --config /etc/flintmq/flintmq.toml\n")
    _put(stage / "usr/lib/systemd/system/flintmq.service", "".join(unit))
    _put(stage / "usr/lib/systemd/system/flintmq.socket", (DEPLOY / "flintmq.socket").read_text())
    _put(stage / "usr/share/doc/flintmq/copyright", (ROOT / "LICENSE").read_text())
    link = stage / "usr/bin/flintmq"
    link.parent.mkdir(parents=True)
    link.symlink_to(f"../../{HOME}/bin/flintmq")
    completion = _output(stage / HOME / "bin/python3", stage / HOME / "bin/flintmq", "completion", "bash")
    _put(stage / "usr/share/bash-completion/completions/flintmq", completion + "\n")


def _control(stage: Path, version: str, minor: tuple[int, int], libc: str, maintainer: str) -> None:
    control = stage / "DEBIAN"
    kib = sum(path.lstat().st_size for path in stage.rglob("*")) // 1024
    fields = {
        "version": version,
        "architecture": _output("dpkg", "--print-architecture"),
        "maintainer": maintainer,
        "kib": kib,
        "minor": f"{minor[0]}.{minor[1]}",
        "next_minor": f"{minor[0]}.{minor[1] + 1}",
        "libc": libc,
    }
    _put(control / "control", _CONTROL.format(**fields))
    _put(control / "conffiles", "/etc/flintmq/flintmq.toml\n/etc/logrotate.d/flintmq\n")
    for name in ("postinst", "prerm", "postrm"):
        _put(control / name, (DEPLOY / "debian" / name).read_text())
        (control / name).chmod(0o755)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)


def _output(*command: object) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(one) for one in command]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def copied(packages: Path, names: list[str]) -> Callable[[Path], None]:
    """A `fill` that takes FlintMQ from this checkout, as it is compiled here, and the named packages from a site-packages directory."""

    def fill(home: Path) -> None:
        (site,) = home.glob("lib/python3*/site-packages")
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src/flintmq", site / "flintmq", ignore=skipped)
        for name in names:
            source = packages / name
            if source.is_dir():
                shutil.copytree(source, site / name, ignore=skipped)
            else:
                shutil.copy2(source, site / name)

    return fill

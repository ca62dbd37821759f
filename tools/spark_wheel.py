"""Builds `pyspark-flintmq`, the wheel for Spark's driver and executors: source, sink and client in pure Python, without the broker.

in: src/pyspark_flintmq, the modules of src/flintmq that it needs, pyproject.toml. out: pyspark_flintmq-VERSION-py3-none-any.whl.

    python tools/spark_wheel.py [DIRECTORY]        (default: build/wheel)

1  The modules of the broker's package stand below `pyspark_flintmq._flintmq`, with their imports rewritten: no `flintmq` is in it.
2  What is not among them is refused, but for the log source, whose decoders are compiled: it asks for the broker's package.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, INSIDE = "pyspark_flintmq", "pyspark_flintmq._flintmq"
# modules of flintmq that source, sink and client need; none of them is compiled or imports another one of it
CARRIED = (
    *("endpoint", "errors", "flight.calls", "flight.client", "flight.plane_error", "flight.headers", "flight.results"),
    *("arrow.readable", "arrow.schema"),
)
# modules that need the broker's package, and say so
NEED_BROKER = ("log_source", "log_view")
_IMPORT = re.compile(r"^(\s*)from flintmq\.([a-z_.0-9]+) import", re.MULTILINE)
_ANY = re.compile(r"^\s*(?:from|import) flintmq\b", re.MULTILINE)
# Older than the broker's own extra asks for, whose jobs are not tried with 4.0 and 4.1: `make spark-sites` tries source and sink.
PYSPARK = "pyspark>=4.0,<5"
# the first moment that a zip file can have: the same sources give the same wheel
_MOMENT = (1980, 1, 1, 0, 0, 0)
_SUMMARY = "Source and sink of Apache Spark for the message broker FlintMQ, without the broker"
_DESCRIPTION = """\
Queues and streams of a FlintMQ broker as DataFrames, and DataFrames as messages, exactly once: `format("flintmq")`.
This package is pure Python and stands alone; the package `flintmq` has the broker, the command line, and the same source and sink.
Install one of the two. The log as a table needs `flintmq`.
"""


def rewritten(text: str, module: str) -> str:
    """A module's text with the imports of carried modules inside of the package. Raises: ValueError for an import that is not carried."""

    def inside(found: re.Match[str]) -> str:
        return f"{found[1]}from {INSIDE}.{found[2]} import" if found[2] in CARRIED else found[0]

    text = _IMPORT.sub(inside, text)
    if module not in NEED_BROKER and (left := _ANY.search(text)):
        raise ValueError(f"{module}: '{left[0].strip()}' is not carried: see CARRIED in tools/spark_wheel.py")
    return text


def files() -> dict[str, str]:
    """Path in the wheel -> text."""
    found: dict[str, str] = {}
    source = ROOT / "src" / PACKAGE
    for path in sorted(source.rglob("*.py")):
        found[f"{PACKAGE}/{path.relative_to(source).as_posix()}"] = rewritten(path.read_text(), path.stem)
    folder = INSIDE.replace(".", "/")
    for module in CARRIED:
        path = ROOT / "src/flintmq" / f"{module.replace('.', '/')}.py"
        if path.with_suffix(".pxd").exists():
            raise ValueError(f"flintmq.{module} is compiled")
        found[f"{folder}/{module.replace('.', '/')}.py"] = rewritten(path.read_text(), module)
    for package in sorted({folder, *(f"{folder}/{module.rpartition('.')[0]}" for module in CARRIED if "." in module)}):
        found[f"{package}/__init__.py"] = '"""Modules of the package flintmq, as they were when this wheel was made."""\n'
    return found


def build(directory: Path) -> Path:
    """Writes the wheel. Returns: its path. Raises: ValueError (rule 2)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = f"{PACKAGE}-{project['version']}.dist-info"
    wanted = [PYSPARK if one.startswith("pyspark") else one for one in project["optional-dependencies"]["spark"] if "pika" not in one]
    needs = "".join(f"Requires-Dist: {one}\n" for one in wanted)
    contents = files() | {
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: pyspark-flintmq\nVersion: {project['version']}\nSummary: {_SUMMARY}\n"
        f"License-Expression: {project['license']}\nLicense-File: LICENSE\nRequires-Python: {project['requires-python']}\n{needs}"
        f'Provides-Extra: amqp\nRequires-Dist: pika>=1.3.2; extra == "amqp"\nDescription-Content-Type: text/markdown\n\n{_DESCRIPTION}',
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tools/spark_wheel.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_text(),
    }
    record = "".join(f"{name},sha256={_digest(text)},{len(text.encode())}\n" for name, text in sorted(contents.items()))
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{PACKAGE}-{project['version']}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in contents.items():
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/wheel")))

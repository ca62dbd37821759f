"""Source and sink where users have them, beside a broker with TLS and a user with a password: older PySparks, clusters, Spark Connect.

`python -m tests.pipeline.sites [SITE ...]` (`make spark-sites`; all of them: about ten minutes, and 1 GB in build/spark-sites once).
Each site has the wheel `pyspark-flintmq` in place of the broker's package, and sees no store directory. Its job (site_job.py) looks at a
queue, reads it into Parquet (also after a first batch that failed), writes a DataFrame to a queue, moves that to a stream and reads the
stream: each message once. Exit code 1 when one site has not what it must.

| site | what it is |
|---|---|
| 4.0, 4.1 | `local[2]` of that PySpark, in a virtual environment of its own |
| cluster | `local-cluster[2,1,1024]` of the checkout's PySpark: driver and executors are processes of their own |
| connect | a Spark Connect server that PySpark starts; the client has a session of it |
| archive | `spark-submit --archives`: executors run the Python of an archive that venv-pack made |
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flintmq.pipeline.session import java_options
from tests.pipeline.plane import channel_of, publish, ready
from tests.support.broker import Broker, self_signed_certificate
from tools import spark_wheel

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build/spark-sites"
JOB = ROOT / "tests/pipeline/site_job.py"
COUNT = 1_000
OLDER = {"4.0": "4.0.1", "4.1": "4.1.1"}
# seconds of a job, on a machine that is too busy for it
JOB_S = 1_800


@dataclass
class Site:
    """How a job is started. options: more for its Spark; argv: what comes before the job's own argument."""

    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)


def environment_of(name: str, *packages: str) -> Path:
    """A virtual environment with packages, kept for the next run, and the wheel of now. Returns: its interpreter."""
    folder = KEPT / name
    python, stamp = folder / "bin/python", folder / "packages"
    if not stamp.exists() or stamp.read_text() != " ".join(packages):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip(python, *packages)
        stamp.write_text(" ".join(packages))
    pip(python, "--force-reinstall", "--no-deps", str(spark_wheel.build(KEPT / "wheel")))
    return python


def pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments], check=True)


def without_broker(folder: Path) -> dict[str, str]:
    """The environment for the checkout's PySpark with the wheel's modules in front of the checkout's."""
    target = folder / "wheel"
    with zipfile.ZipFile(spark_wheel.build(KEPT / "wheel")) as wheel:
        wheel.extractall(target)
    return {"PYTHONPATH": str(target), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def older(name: str) -> Site:
    python = environment_of(name, f"pyspark=={OLDER[name]}", "pyarrow>=18,<24", "pandas>=2.2,<3")
    return Site([str(python), str(JOB)], {"PYSPARK_PYTHON": str(python)}, {"master": "local[2]"})


def cluster(folder: Path) -> Site:
    return Site([sys.executable, str(JOB)], without_broker(folder), {"master": "local-cluster[2,1,1024]"})


def connect(folder: Path) -> Site:
    import pyspark

    python = environment_of("connect", f"pyspark[connect]=={pyspark.__version__}", "pyarrow>=18", "pandas>=2.2,<3")
    return Site([str(python), str(JOB)], {"PYSPARK_PYTHON": str(python)}, {"remote": "local[2]"})


def archive(folder: Path) -> Site:
    import pyspark

    python = environment_of("archive", "venv-pack", "pyarrow>=18", "setuptools<81")
    packed = folder / "env.tar.gz"
    subprocess.run([str(python.with_name("venv-pack")), "-q", "-p", str(python.parents[1]), "-o", str(packed)], check=True)
    home = Path(pyspark.__file__).parent
    submit = [str(home / "bin/spark-submit"), "--master", "local-cluster[2,1,1024]", "--archives", f"{packed}#environment", str(JOB)]
    pythons = {"PYSPARK_DRIVER_PYTHON": str(python), "PYSPARK_PYTHON": "./environment/bin/python"}
    return Site(submit, pythons, {"master": "local-cluster[2,1,1024]"})


SITES: dict[str, Callable[[Path], Site]] = {
    "4.0": lambda folder: older("4.0"),
    "4.1": lambda folder: older("4.1"),
    "cluster": cluster,
    "connect": connect,
    "archive": archive,
}


def settings(folder: Path) -> dict[str, str]:
    """Of Spark, for all sites: quiet, on loopback."""
    log4j = folder / "log4j2.properties"
    log4j.write_text("rootLogger.level = error\n")
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(log4j),
        "spark.executor.memory": "512m",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.session.timeZone": "UTC",
    }


def make_user(broker: Broker, certificate: str, name: str, password: str) -> None:
    """A user who may do all in `/`."""
    trusted = ssl.create_default_context(cafile=certificate)
    login = {"Content-Type": "application/json", "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}

    def put(path: str, body: dict[str, str]) -> None:
        url = f"https://127.0.0.1:{broker.ready['http_port']}/api/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), login, method="PUT")
        urllib.request.urlopen(request, timeout=30, context=trusted).close()

    put(f"users/{name}", {"password": password, "tags": ""})
    put(f"permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})


def run(name: str, broker: Broker, options: dict[str, str]) -> list[str]:
    """One site. Returns: what is wrong."""
    with tempfile.TemporaryDirectory(prefix=f"flintmq-site-{name}-") as scratch:
        folder = Path(scratch)
        (folder / "spark").mkdir()
        site = SITES[name](folder)
        queues = {key: f"{name}.{key}" for key in ("queue", "again", "through", "stream")}
        for queue in (queues["queue"], queues["again"]):
            publish(broker, queue, [str(number).encode() for number in range(COUNT)])
        publish(broker, queues["through"], [])
        with channel_of(broker) as channel:
            channel.queue_declare(queues["stream"], durable=True, arguments={"x-queue-type": "stream"})
        job = site.job | queues | {"count": COUNT, "options": options, "out": str(folder / "out"), "conf": settings(folder)}
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK", "SPARK"))}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1"} | site.environment
        began = time.monotonic()
        done = subprocess.run(
            [*site.argv, json.dumps(job)], cwd=folder, env=environment, capture_output=True, text=True, timeout=JOB_S, check=False
        )
        seconds = time.monotonic() - began
        if done.returncode:
            return [f"exit code {done.returncode}: {done.stderr[-3000:]}"]
        told = json.loads(done.stdout.strip().splitlines()[-1])
        found = [
            f"{part}: {len(told[part])} messages, {len(set(told[part]))} different"
            for part in ("looked", "files", "again", "streamed")
            if told.get(part, list(range(COUNT))) != list(range(COUNT))
        ]
        found += [f"{queue} holds {left} messages" for queue in (queues["queue"], queues["through"]) if (left := ready(broker, queue))]
        if name not in OLDER and not told["behind"]:
            found.append("no progress report says how far behind the source is")
        print(f"{name}: Spark {told['spark']}, {seconds:.0f} s: {'; '.join(found) or 'each message once'}", flush=True)
        return found


def main(names: list[str]) -> int:
    wrong = 0
    with self_signed_certificate() as (certificate, key):
        tls = ("--tls-port", "0", "--tls-cert", certificate, "--tls-key", key)
        with Broker("--flight-port", "0", "--http-port", "0", *tls) as broker:
            make_user(broker, certificate, "etl", "a secret")
            where = f"grpc+tls://127.0.0.1:{broker.ready['flight_port']}"
            options = {"url": where, "tlsCa": certificate, "user": "etl", "password": "a secret", "timeout": "60"}
            for name in names or list(SITES):
                found = run(name, broker, options)
                if found:
                    print(f"{name}: {found}", flush=True)
                wrong += bool(found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

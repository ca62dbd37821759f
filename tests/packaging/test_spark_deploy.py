"""What stands in `deploy` for Spark's machines: the init script works without a package index, the pod template is one that Spark takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools import spark_wheel

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_the_init_script_installs_the_wheel_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    wheel, target = spark_wheel.build(tmp_path / "wheel"), tmp_path / "target"
    script = DEPLOY / "spark/init.sh"
    environment = os.environ | {"PYTHON": sys.executable, "FLINTMQ_WHEEL": str(wheel), "PIP_TARGET": str(target), "PYTHONPATH": str(target)}
    done = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name.partition("-")[0] for path in target.iterdir()} == {"pyspark_flintmq"}
    del environment["FLINTMQ_WHEEL"]
    done = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode and "pyspark_flintmq-VERSION-py3-none-any.whl" in done.stderr


def test_the_pod_template_mounts_the_secret_that_its_comment_makes() -> None:
    text = (DEPLOY / "kubernetes/spark-pod.yaml").read_text()
    pod = yaml.safe_load(text)
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    (container,) = pod["spec"]["containers"]
    (volume,) = pod["spec"]["volumes"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"] and mount["readOnly"]
    assert f"secret generic {volume['secret']['secretName']}" in text
    assert "image" not in container and "command" not in container, "Spark fills them in"

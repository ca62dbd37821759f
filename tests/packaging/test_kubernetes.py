"""The manifests of deploy/kubernetes are what Kubernetes takes, and their probes ask for what the broker serves."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from flintmq.testing.broker import Broker

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
# one that is in use for long, and the newest that the validator knows
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(KUBERNETES.glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            yield f"{path.name}: {one['kind']}", one


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", [pytest.param(one, id=name) for name, one in manifests() if name != "spark-pod.yaml: Pod"])
def test_a_manifest_is_what_the_schema_says(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_pod_template_of_spark_is_one_once_spark_filled_in_the_image() -> None:
    (template,) = [one for name, one in manifests() if name == "spark-pod.yaml: Pod"]
    filled = {**template, "metadata": {**template["metadata"], "name": "driver"}}
    filled["spec"] = {**template["spec"], "containers": [{**one, "image": "spark"} for one in template["spec"]["containers"]]}
    kubernetes_validate.validate(filled, VERSIONS[-1], strict=True)


def test_a_mistake_in_a_manifest_is_seen() -> None:
    (manifest,) = [one for name, one in manifests() if name == "flintmq.yaml: StatefulSet"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    container["livenessProbe"]["httpGet"]["pth"] = container["livenessProbe"]["httpGet"].pop("path")
    with pytest.raises(kubernetes_validate.ValidationError, match="pth"):
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


def test_probes_ask_a_port_and_a_path_that_answer() -> None:
    (manifest,) = [one for name, one in manifests() if name == "flintmq.yaml: StatefulSet"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"amqp": 5672, "http": 15672}
    with Broker(http_port=0) as broker:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container[name]["httpGet"]
            assert probe["port"] == "http"
            url = f"http://127.0.0.1:{broker.node.http_port}{probe['path']}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert answer.status == 200

"""What an operator sees of Spark's readers and writers in /metrics."""

from __future__ import annotations

import re
from pathlib import Path

from flintmq.admin.figures import own_families
from flintmq.admin.parts import Parts

from .rig import Rig


def samples(rig: Rig) -> dict[str, float]:
    """The metrics of the pipeline, without their prefix."""
    parts = Parts(rig.broker, rig.node.pulls, dict, pipeline=rig.service.figures)
    found = [(name + line).rpartition(" ") for name, _, _, lines in own_families(parts) for line in lines if name.startswith("pipeline_")]
    return {sample.removeprefix("pipeline_"): float(value) for sample, _, value in found}


def test_metrics_show_prepared_batches_and_their_age_stages_and_scopes(rig: Rig) -> None:
    rig.declare("r")
    rig.put("q", *"abc")
    reader = rig.open("s", "q", "r")
    rig.open("idle", "r")
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    rig.call("sub.commit", **reader, upto=1)
    rig.call("sub.acquire", **reader, seq=2, max_messages=1)
    epoch = rig.call("scope.open")["epoch"]
    rig.stage("query", epoch, 0, "a")
    rig.stage("query", epoch, 0, "b", prepare=False)
    rig.call("stage.commit", scope="txn:x", epoch=epoch, batch=0, stage_ids=[])
    rig.clock.advance(ms=90_000)
    rig.call("sub.alive", **reader)
    refused = samples(rig)["calls_refused_total"]
    assert rig.code("sub.status", name="none") == "NOT_FOUND"
    found = samples(rig)
    of_s, of_idle = '{vhost="/",subscription="s"}', '{vhost="/",subscription="idle"}'
    assert found["subscriptions"] == 2
    for name, busy, idle in (
        ("committed_batches", 1, 0),
        ("messages_behind", 1, 0),
        ("prepared_messages", 1, 0),
        ("prepared_age_seconds", 90, 0),
        ("reader_active", 1, 0),
    ):
        assert (found[f"{name}{of_s}"], found[f"{name}{of_idle}"]) == (busy, idle), name
    assert [found[f'scopes{{kind="{kind}"}}'] for kind in ("query", "write", "once")] == [1, 1, 0]
    assert [found[f'stages{{vhost="/",user="guest",state="{state}"}}'] for state in ("open", "prepared")] == [1, 1]
    assert found["stage_prepared_age_seconds"] == 90
    assert found["calls_refused_total"] == refused + 1


def test_metrics_show_whether_the_flight_service_runs(rig: Rig) -> None:
    assert "service_up" not in samples(rig)  # it is off
    for state, up in (("up", 1), ("waiting", 0), ("down", 0)):
        rig.service.flight = lambda state=state: {"state": state, "failed_starts": 3}
        found = samples(rig)
        assert (found["service_up"], found["service_failed_starts"]) == (up, 3)


def test_a_node_without_a_data_plane_shows_nothing_of_it(rig: Rig) -> None:
    assert not [name for name, *_ in own_families(Parts(rig.broker, rig.node.pulls, dict)) if name.startswith("pipeline")]


def test_the_dashboard_asks_for_metrics_that_there_are(rig: Rig) -> None:
    rig.open("s", "q")
    board = (Path(__file__).resolve().parents[2] / "deploy/grafana/pipelines.json").read_text()
    asked = set(re.findall(r"flintmq_pipeline_(\w+)", board))
    assert asked >= {"messages_behind", "prepared_age_seconds"}
    assert asked <= {name.partition("{")[0] for name in samples(rig)}

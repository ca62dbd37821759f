"""The data plane reads and writes queues; a stream is refused by name, whatever asks for it, and nothing of the refused call happened."""

from __future__ import annotations

import pytest

from flintmq.dataplane.wire import Refused

from .rig import Rig, block


@pytest.fixture
def stream(rig: Rig) -> str:
    rig.broker.vhosts["/"].declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
    return "s"


def text_of(rig: Rig, what: str, *data: bytes, **arguments: object) -> str:
    with pytest.raises(Refused) as refused:
        rig.call(what, *data, **arguments)
    assert refused.value.code == "BAD_ARGUMENT"
    return refused.value.text


def test_browse_and_subscription(rig: Rig, stream: str) -> None:
    assert "'s' in vhost '/' is a stream" in text_of(rig, "browse.open", queues=["q", "s"])
    assert "'s' in vhost '/' is a stream" in text_of(rig, "sub.open", name="x", queues=["s"])


def test_a_stage(rig: Rig, stream: str) -> None:
    epoch = rig.call("scope.open")["epoch"]
    stage_id = rig.call("stage.begin", scope="x", epoch=epoch, batch=0, part=0, attempt=0)["stage_id"]
    assert "is routed to the stream 's' in vhost '/'" in text_of(rig, "block", block("a"), stage_id=stage_id, routes=[["", "s"]])
    assert rig.broker.queues[rig.broker.vhosts["/"].queue("s").queue_id].core.ready_count() == 0


def test_a_distributed_transaction_knows_no_such_queue(rig: Rig, stream: str) -> None:
    assert rig.broker.branch_queues is not None
    number = rig.broker.vhosts["/"].queue("s").queue_id
    assert rig.broker.branch_queues.core(number) is None
    assert rig.broker.branch_queues.core(rig.broker.vhosts["/"].queue("q").queue_id) is not None

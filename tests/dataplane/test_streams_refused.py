"""Nothing is taken out of a stream: what would do so is refused by name."""

from __future__ import annotations

import pytest

from flintmq.dataplane.wire import Refused
from flintmq.transactions import TransactionRefused, Xid

from .rig import Rig


@pytest.fixture
def stream(rig: Rig) -> str:
    rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].declare_queue("s", durable=True, arguments={"x-queue-type": "stream"}))
    return "s"


def text_of(rig: Rig, what: str, **arguments: object) -> str:
    with pytest.raises(Refused) as refused:
        rig.call(what, **arguments)
    assert refused.value.code == "BAD_ARGUMENT"
    return refused.value.text


def test_browse_and_subscription(rig: Rig, stream: str) -> None:
    assert "'s' in vhost '/' is a stream" in text_of(rig, "browse.open", queues=["q", "s"])
    assert "'s' in vhost '/' is a stream" in text_of(rig, "sub.open", name="x", queues=["s"])


def test_a_distributed_transaction_holds_nothing_of_a_stream(rig: Rig, stream: str) -> None:
    coordinator = rig.broker.transactions
    assert coordinator is not None
    xid = Xid(1, b"g", b"b", "/")
    coordinator.select("me")
    coordinator.start("me", xid)
    with pytest.raises(TransactionRefused, match="there is no queue"):
        coordinator.hold_run("me", xid, rig.broker.vhosts["/"].queue("s").queue_id, messages_max=1, bytes_max=1)

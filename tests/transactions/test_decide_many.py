"""One decision about many branches: it is taken in pieces, and nobody else ends one of them in between."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.transactions import TransactionRefused, Xid, coordinator
from flintmq.transactions.coordinator import SLICE
from tests.support.blocks import enrol

from .broker import OK, Broker

NOTE = (2, b"scope", b"decided")


def prepared(broker: Broker, count: int) -> list[Xid]:
    """Branches with a message each."""
    session, c = broker.session(), broker.coordinator
    xids = [Xid(1, b"global", b"%05d" % number) for number in range(count)]
    for number, xid in enumerate(xids):
        c.start(session, xid)
        enrol(c, session, xid, (1,), b"%d" % number)
        c.end(session, xid)
        assert c.prepare(xid).result(0) is OK
    return xids


def test_nobody_ends_a_branch_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator, a manager or another decision is refused from the first piece on; the lock is free between them."""
    broker = Broker()
    c, xids = broker.coordinator, prepared(broker, 3 * SLICE + 1)
    refused: list[str] = []

    def between(seconds: float) -> None:
        for command in (c.heuristic_rollback, c.rollback, c.commit, lambda xid: c.decide(NOTE, [xid])):
            try:
                command(xids[-1])
            except TransactionRefused as error:
                refused.append(error.condition.name)
        c.tick()

    monkeypatch.setattr(coordinator.time, "sleep", between)
    assert c.decide(NOTE, xids).result(0) is OK
    assert refused == ["ILLEGAL_STATE"] * 4 * 3
    assert broker.labels(1) == [str(number) for number in range(len(xids))] and not c.list()


def test_a_decision_that_is_refused_leaves_all_as_they_were() -> None:
    """The one that can't be committed is the last of many."""
    broker = Broker()
    c, xids = broker.coordinator, prepared(broker, SLICE + 3)
    c.heuristic_rollback(xids[-1])
    with pytest.raises(TransactionRefused, match="heuristically rolled back"):
        c.decide(NOTE, xids)
    assert broker.labels(1) == [] and not broker.store.notes(2)
    assert c.rollback(xids[0]).result(0) is OK
    assert c.decide(NOTE, xids[1:-1]).result(0) is OK


def test_what_is_not_counted_takes_no_place_of_others() -> None:
    """Branches whose maker has bounds of its own, also after a restart; others find as many places as without them."""
    broker = Broker(limits=Limits(dtx_branches_max=2))
    c, session = broker.coordinator, broker.session()

    def begin(number: int, **options: Any) -> str:
        try:
            c.start(session, xid := Xid(1, b"g", b"%d" % number), **options)
        except TransactionRefused as error:
            return error.condition.name
        c.end(session, xid)
        return ""

    assert [begin(number, counted=False) for number in range(5)] == [""] * 5
    assert [begin(number) for number in range(5, 8)] == ["", "", "RESOURCE_LIMIT_EXCEEDED"]
    c.rollback(Xid(1, b"g", b"0"))
    assert begin(8) == "RESOURCE_LIMIT_EXCEEDED"
    c.rollback(Xid(1, b"g", b"5"))
    assert begin(8) == ""


def test_a_deleted_queue_is_taken_from_the_branches_that_have_work_there() -> None:
    """Also from those of before a restart; others are not looked at."""
    broker = Broker()
    c, session = broker.coordinator, broker.session()
    xids = [Xid(1, b"g", b"%d" % queue_id) for queue_id in (1, 2)]
    for queue_id, xid in enumerate(xids, 1):
        c.start(session, xid)
        enrol(c, session, xid, (queue_id,), b"m")
        c.end(session, xid)
    assert [len(c._registry.touching(queue_id)) for queue_id in (1, 2, 3)] == [1, 1, 0]
    c.prepare(xids[0])
    again = Broker(store=broker.store)
    assert [len(again.coordinator._registry.touching(queue_id)) for queue_id in (1, 2)] == [1, 0]
    again.delete(1)
    assert again.coordinator.commit(xids[0]).result(0) is OK
    assert not again.coordinator._registry.touching(1)

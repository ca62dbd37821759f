"""A commit fits into one record: what it may need is refused at enrolment, not found out when it is too late."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flintmq.store.log_store")

from flintmq.transactions import TransactionRefused, XaStatus, Xid
from tests.support.blocks import enrol

from .on_disk import OnDisk

X = Xid(1, b"global", b"branch")


@pytest.mark.parametrize("priorities", [(0,), (3,), (0, 3), (0, 3, 3)])
def test_what_a_commit_can_not_say_in_one_record_is_refused(tmp_path: Path, priorities: tuple[int, ...]) -> None:
    """One message at a time into a queue with priorities: each turn to another one is a row, and 256 neighbours are one."""
    (tmp_path / "store").mkdir()
    broker = OnDisk(tmp_path / "store")
    limit = broker.store.bulk.rows_max
    broker.coordinator.select("me")
    broker.coordinator.start("me", X)
    taken = 0
    while taken < 2 * limit:
        try:
            enrol(broker.coordinator, "me", X, (2,), b"%d" % taken, priority=priorities[taken % len(priorities)])
        except TransactionRefused as refused:
            assert "by turns" in str(refused)
            break
        taken += 1
    turns = 1 if len(priorities) == 1 else taken * 2 // len(priorities)
    assert (turns == 1 and taken == 2 * limit) or limit - 2 <= turns <= limit
    broker.coordinator.end("me", X)
    outcome = broker.coordinator.commit(X, one_phase=True)
    broker.settle()
    assert outcome.result(0) is XaStatus.XA_OK
    assert len(broker.available(2)) == taken
    again = OnDisk(broker.image(tmp_path / "again"))
    assert again.available(2) == broker.available(2)
    again.kill()
    broker.kill()

"""A commit fits into one record: what it may need is refused at enrolment, not found out when it is too late."""

from __future__ import annotations

from typing import Any

import pytest

from flintmq.ports import StoredContent
from flintmq.queue.handle import QueueHandle
from flintmq.queue.runs import reserve_many
from flintmq.transactions.errors import TransactionRefused
from flintmq.transactions.work import Work


class Store:
    """Takes everything. `bulk.rows_max`: rows that fit into one record."""

    class bulk:
        rows_max = 20

    def begin(self, xid: bytes | None = None) -> int:
        return 1

    def append_content(self, content: Any, *, priority: int | None = None) -> int:
        return 7

    def enqueue(self, *args: Any, **more: Any) -> int:
        return 0


class Effects:
    def durable(self, queue_id: int) -> bool:
        return True


@pytest.fixture
def made() -> Any:
    store: Any = Store()
    effects: Any = Effects()
    return Work(store, effects, xid=b"x", log_transient=False, enrolments_max=1_000_000, content_bytes_max=1 << 20)


def enrol(made: Any, count: int, priorities: tuple[int | None, ...]) -> int:
    for at in range(count):
        try:
            made.enqueue(1, StoredContent(b"", b"k", b"", b"x"), durable=True, priority=priorities[at % len(priorities)], expires_at_ms=0)
        except TransactionRefused as refused:
            assert "by turns" in str(refused)
            return at
    return count


def test_positions_are_reserved_together() -> None:
    core: Any = QueueHandle(1, 1, 3)
    positions = reserve_many(core, [None, 2, 2, 1, None])
    assert [(position >> 56, position & 0xFF) for position in positions] == [(2, 1), (0, 1), (0, 2), (1, 1), (2, 2)]
    core.mark_deleted()
    assert reserve_many(core, [1, 2]) == []


@pytest.mark.parametrize(("priorities", "taken"), [((None,), 2560), ((0, 1), 10), ((3,), 2560)])
def test_what_a_commit_can_not_say_in_one_record_is_refused(priorities: tuple[int | None, ...], taken: int, made: Any) -> None:
    assert enrol(made, 5000, priorities) == taken

"""Taking over with transactions under way: rows that say which messages are here count, and go, as their batches do."""

from __future__ import annotations

import asyncio

from flintmq.shared.transaction_rows import applied, transaction_id
from tests.shared.owners_of_one_queue import QUEUE, OwnerNode, Store

TRANSACTION = transaction_id("a" * 16, 1)


def marks(store: Store) -> list[bytes]:
    begin, end = applied(QUEUE)
    return [key for key in store.rows if begin <= key < end]


def put(node: OwnerNode, body: bytes) -> asyncio.Future[None]:
    """A message of the transaction."""
    assert node.log is not None
    position = node.handle.publish(b"", b"q", b"\0" * 14, body, 1, 0)
    settled = node.log.apply(TRANSACTION, 0, [position]).settled
    node.look()
    return settled


def test_a_batch_behind_a_gap_does_not_count_and_neither_does_the_row_of_its_transaction() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        commits: list[str] = []

        async def gate(call: str) -> None:
            commits.append(call)
            if len(commits) == 1:
                await asyncio.Event().wait()

        store.faults.gate = gate
        first.publish(b"lost")
        while not commits:
            await asyncio.sleep(0)
        settled = put(first, b"of the transaction")
        while not marks(store):
            await asyncio.sleep(0)
        first.kill()
        assert settled.exception() is not None
        second = await OwnerNode(store, "b").take_over()
        assert second.bodies() == [] and marks(store) == []

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_message_of_a_transaction_that_is_settled_is_known_to_the_next_owner() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        await put(first, b"1")
        first.kill()
        second = await OwnerNode(store, "b").take_over()
        assert second.bodies() == [b"1"] and len(marks(store)) == 1

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_full_row_of_a_part_is_told_once_all_its_batches_are_in() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        assert first.log is not None
        positions = [first.handle.publish(b"", b"q", b"\0" * 14, b"%d" % number, 1, 0) for number in range(20)]
        settled = first.log.apply(TRANSACTION, 0, positions).settled
        first.look()
        await settled
        assert all(map(first.mirror.is_settled, positions)) and len(marks(store)) == 3  # batches of 8
        await first.log.forget([], [applied(QUEUE)])
        assert marks(store) == []

    asyncio.run(asyncio.wait_for(scene(), 30))

"""Transactions in one queue, by its owner: however many come at once, a commit has no more rows than the engine takes."""

from __future__ import annotations

import asyncio

from flintmq.engines.engine import Commit
from flintmq.shared.queue_transactions import QueueTransactions
from flintmq.shared.serving import Served
from flintmq.shared.taking_over import TakenOver
from flintmq.shared.transaction_rows import Message, TransactionRow, pack_part, pending_key, transaction_id, transaction_key
from tests.shared.owners_of_one_queue import LIMITS, QUEUE, OwnerNode, Store

COUNT, COMMIT_ROWS = 60, 24
LARGE_BATCHES = LIMITS.replace(shared_segment_messages=400, shared_flight_messages=400)


async def served(store: Store, name: str) -> tuple[OwnerNode, QueueTransactions]:
    node = await OwnerNode(store, name, LARGE_BATCHES).take_over()
    assert node.log is not None
    here = Served(QUEUE, node.handle, node.mirror, node.log, TakenOver(node.log.owner, {}, [], 0, False, {}))
    return node, QueueTransactions(node.engine, here, LARGE_BATCHES)


def decided(number: int) -> tuple[bytes, TransactionRow, list[bytes]]:
    message = Message(b"", b"q", b"\0" * 14, b"%d" % number, 1, 0)
    return transaction_id("a" * 16, number), TransactionRow(True, "a", "a", [QUEUE.decode()]), [pack_part([message], [])]


async def write(store: Store) -> None:
    for number in range(COUNT):
        transaction, row, parts = decided(number)
        assert await store.engine().commit(
            Commit((), {transaction_key(transaction): row.pack(), pending_key(QUEUE, transaction, 0, 0): parts[0]})
        )


def test_more_transactions_than_a_commit_has_rows_for_are_put_into_a_queue_at_once() -> None:
    async def scene() -> None:
        store = Store(commit_rows=COMMIT_ROWS)
        node, transactions = await served(store, "a")
        await write(store)
        ones = [decided(number) for number in range(COUNT)]
        await asyncio.gather(*(transactions.apply(one, (row, parts)) for one, row, parts in ones))
        assert node.lost is None
        assert sorted(map(int, node.bodies())) == list(range(COUNT))

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_new_owner_puts_as_many_there_before_anybody_consumes() -> None:
    async def scene() -> None:
        store = Store(commit_rows=COMMIT_ROWS)
        await write(store)
        node, transactions = await served(store, "b")
        assert node.log is not None
        await transactions.restore()
        await node.drain()
        assert node.lost is None
        assert sorted(map(int, node.bodies())) == list(range(COUNT))

    asyncio.run(asyncio.wait_for(scene(), 30))

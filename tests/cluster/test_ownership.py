"""A lease that was in doubt, with brokers on etcd.

Properties: a queue that another node took meanwhile is delivered to clients of this node as of any other; one whose epoch this node raises
itself goes on.
"""

from __future__ import annotations

import threading
from typing import Any

from flintmq.broker.pausing import LEASE
from flintmq.engines.engine import Commit
from flintmq.shared.layout import Owner, owner_key
from tests.cluster.test_two_nodes import begin, connect, declared, etcd, heap_of_others, publish, queue, start
from tests.support.broker import wait_until

__all__ = ["begin", "connect", "etcd", "heap_of_others", "queue", "start"]
WAIT_S = 30


def on_engine_thread(shared: Any, work: Any) -> None:
    over, errors = threading.Event(), []

    def done(result: Any, error: Exception | None) -> None:
        errors.append(error)
        over.set()

    shared.thread.run(work, done)
    assert over.wait(WAIT_S)
    assert errors == [None]


def served_log(shared: Any, queue: str) -> Any:
    (log,) = [entry.served.log for entry in shared.ownership.by_row.values() if entry.name == queue and entry.served is not None]
    return log


def test_a_queue_that_another_node_took_while_the_lease_was_in_doubt_is_delivered_here_too(begin: Any, connect: Any, queue: str) -> None:
    first, second = begin("a"), begin("b")
    owner, _ = declared(connect, first, queue), declared(connect, second, queue)
    publish(owner, queue, b"1")
    shared, heir = first.node.broker.shared, second.node.broker.shared.me

    async def lose() -> None:
        log = served_log(shared, queue)
        shared.ownership.doubt()
        key = owner_key(log._queue)
        assert await shared.thread.engine.commit(
            Commit([(key, log.owner.pack())], {key: Owner(log.owner.epoch + 1, heir.name, heir.life).pack()})
        )
        await shared.ownership.sure()

    on_engine_thread(shared, lose)
    queue_id = first.node.broker.vhosts["/"].queues[queue].queue_id
    wait_until(lambda: not first.node.broker.resting.get(queue_id, 0) & LEASE, WAIT_S, what="deliveries rest")
    again = connect(first).channel()
    again.consume(queue, "c", no_ack=True)
    assert again.expect("basic.deliver").body == b"1"


def test_a_queue_whose_epoch_its_owner_raises_itself_goes_on_when_the_lease_is_sure_again(begin: Any, connect: Any, queue: str) -> None:
    broker = begin("a")
    channel = declared(connect, broker, queue)
    publish(channel, queue, b"1")
    shared = broker.node.broker.shared
    queue_id = broker.node.broker.vhosts["/"].queues[queue].queue_id

    async def raise_epoch() -> None:
        log = served_log(shared, queue)
        shared.ownership.doubt()
        before, log.owner = log.owner, log.owner.next(log.owner.node, log.owner.life)
        await shared.ownership.sure()
        log.owner = before

    on_engine_thread(shared, raise_epoch)
    assert not broker.node.broker.resting.get(queue_id, 0) & LEASE

"""A local transaction in one commit block: plain records, one sync, all of it or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.rig import Rig


def message(rig: Rig, queue: int, body: bytes = b"body", expires: int = 0) -> tuple[Any, ...]:
    """A publish of LogDriver.tx_small, on the queue's next position."""
    rig.next[queue] += 1
    return (queue, rig.next[queue] - 1, expires, b"", b"key", b"header", body)


def note(rig: Rig, publishes: list[tuple[Any, ...]], messages: list[int]) -> None:
    """The model has what a transaction brought."""
    for (queue, position, *_, body), one in zip(publishes, messages, strict=True):
        rig.model[queue][position] = one
        rig.bodies[one] = body


def test_all_of_it_is_in_the_message_log() -> None:
    """Messages on two queues and an ack: the transaction log gets nothing, and a restart has all of it."""
    rig = Rig(size=16384)
    old = rig.publish(1)
    rig.settle()
    before = rig.store.transaction_records.tail
    publishes = [message(rig, 2), message(rig, 3, b"x" * 3000), message(rig, 2, expires=1 << 50)]
    messages, ticket, tx = rig.driver.tx_small(publishes, [(1, 1, old)])
    assert tx == 0
    told: list[bool] = []
    rig.store.on_durable(ticket, lambda: told.append(True))
    assert not told
    rig.flush()
    assert told and rig.store.transaction_records.tail == before
    note(rig, publishes, messages)
    del rig.model[1][1]
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()


@pytest.mark.parametrize(
    "publishes", [[(2, b"x")] * 257, [(2, b"x" * 3000)] * 30, [(2, b"y"), (3, b"x" * 20_000)]], ids=["many", "large", "long"]
)
def test_what_fits_no_block_has_an_outcome_of_its_own(publishes: list[tuple[int, bytes]]) -> None:
    """More records than the lock may be held for, more bytes, or a message of several chunks."""
    rig = Rig(size=1 << 18)
    sent = [message(rig, queue, body) for queue, body in publishes]
    messages, ticket, tx = rig.driver.tx_small(sent, [])
    assert tx != 0
    rig.store.on_durable(ticket, lambda: rig.driver.tx_applied(tx))
    rig.flush()
    note(rig, sent, messages)
    rig.reopen(clean=False)
    assert rig.recovered() == rig.model
    rig.check_contents()


def test_a_place_that_its_queue_ended_is_not_ended_twice() -> None:
    """The sweep of a deleted queue told the log of an entry that the transaction settles: nothing is written for it."""
    rig = Rig(size=16384)
    old = rig.publish(1)
    rig.ack(1, 1)
    before = rig.store.messages.tail
    _, ticket, tx = rig.driver.tx_small([], [(1, 1, old)])
    assert tx == 0 and rig.store.messages.tail == before
    rig.store.on_durable(ticket, lambda: None)

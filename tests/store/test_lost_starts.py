"""Transactions that the message log names and whose starts were lost: they rolled back, however often a start is cut short."""

from __future__ import annotations

import pytest

from tests.store.rig import Rig
from tests.twins.sim_disk import SimDisk

TRANSACTIONS = 150


@pytest.mark.parametrize("near_the_end", [False, True])
def test_a_start_that_is_cut_short_loses_nothing_of_them(near_the_end: bool) -> None:
    """The message log is on disk with what transactions take, the transaction log without their starts; then power fails at any point of
    the start that follows: every entry is there again, free, and nothing is called lost. near_the_end: of a container, so that the first
    block of the start stands in the next one, behind the place of the starts."""
    rig = Rig(size=4096)
    while near_the_end and rig.store.transaction_records.tail % 4096 < 3072:
        rig.store.rollback(rig.store.begin(b"before"))
        rig.flush()
    messages = [rig.publish(1, body=b"%d" % number) for number in range(TRANSACTIONS)]
    rig.settle()
    before = rig.disk.position
    for position, message in enumerate(messages, 1):
        tx = rig.store.begin(b"xid %d" % position)
        rig.store.dequeue(1, position, 1, tx=tx, message_id=message)
    rig.flush()
    expected = [(position, message, 0, False) for position, message in enumerate(messages, 1)]
    halves = 0
    for position in range(before, rig.disk.position + 1):
        image = list(rig.disk.images(position, 2))[-1]
        first = Rig(4096, SimDisk.from_image(image))
        if first.store.report.rolled_back == 0 or first.store.transaction_records.tail < rig.store.transaction_records.tail:
            continue  # nothing is named yet, or the transactions began
        first.flush()
        writes = [number + 1 for number, operation in enumerate(first.disk.journal) if operation[0] == "write"]
        for cut in [*range(0, first.disk.position + 1, 3), *writes[-2:]]:  # the last ones are the first blocks of the new run: torn, too
            for second in first.disk.images(cut, 12 if cut in writes[-2:] else 1):
                again = Rig(4096, SimDisk.from_image(second))
                assert [entry[:4] for entry in again.driver.recovered(1)] == expected, (position, cut, second.choice)
                assert again.store.report.lost_count == 0 and again.store.in_doubt() == []
                halves += 1
    assert halves > 50

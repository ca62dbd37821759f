"""The clock of pulls is told when the first lease or delay ends, and a look at that time gives back what is due."""

from __future__ import annotations

import pytest

from tests.pulls.rig import Rig, bodies, leases


def test_the_first_end_is_armed(rig: Rig) -> None:
    """A housekeeping pass arms the end of the first lease of all groups, a delay its own; a pass at that time gives back what is due."""
    queue, other = rig.queue(), rig.queue("other")
    rig.publish(queue, b"a", b"b")
    rig.publish(other, b"c")
    assert rig.pulls.clock.armed_ns == 0
    begin = rig.actors.now_ns()
    rig.now(queue, "slow", visibility_s=20)
    rig.now(other, visibility_s=5)
    second = rig.now(queue, "quick", visibility_s=20)
    rig.advance(1)
    assert rig.pulls.clock.armed_ns == begin + 5 * 10**9
    assert rig.pulls.nack(queue, leases(rig, second), delay_ms=50) == ["ok"]
    assert rig.pulls.clock.armed_ns == begin + 1_050_000_000
    rig.clock.advance(ms=50)
    rig.actors.now_ns()  # which reads the clock anew
    assert rig.pulls._give_back() == begin + 5 * 10**9
    assert bodies(rig.now(queue)) == [b"b"] and other.core.ready_count() == 0
    rig.clock.advance(ms=3_950)
    rig.actors.now_ns()
    assert rig.pulls._give_back() == begin + 20 * 10**9
    assert other.core.ready_count() == 1


@pytest.mark.parametrize("ended", ["settled", "deleted"])
def test_what_has_ended_otherwise_is_not_waited_for(rig: Rig, ended: str) -> None:
    """Without leases, or with a deleted queue, a pass has nothing to wait for."""
    queue = rig.queue()
    rig.publish(queue, b"a")
    pull = rig.now(queue)
    if ended == "settled":
        assert rig.pulls.ack(queue, leases(rig, pull)) == ["ok"]
    else:
        rig.vhost.run(rig.vhost.delete_queue("q"))
    assert rig.pulls._give_back() == 0

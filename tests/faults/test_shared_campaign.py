"""The campaign of shared queues judges how long nobody, or one publisher, had a confirm."""

from __future__ import annotations

from tools.faults.shared_campaign import LEASE_S, SERVED_S, Gap, Gaps
from tools.faults.shared_checker import Sent


class _Clients:
    sent: list[Sent]


def gaps(*all_of: Gap) -> Gaps:
    made = Gaps(_Clients(), 1, 0)  # type: ignore[arg-type]
    made.all += all_of
    return made


def test_a_queue_that_nobody_served_for_longer_than_the_lease_and_two_seconds_is_seen() -> None:
    bound = LEASE_S + SERVED_S
    assert gaps(Gap("kill-owner", bound, bound)).violations(5) == []
    assert len(gaps(Gap("kill-owner", bound + 0.1, bound + 0.1)).violations(5)) == 1


def test_a_publisher_alone_has_the_grace() -> None:
    assert gaps(Gap("stop-other", 0.1, LEASE_S + 5)).violations(5) == []
    assert len(gaps(Gap("stop-other", 0.1, LEASE_S + 5.1)).violations(5)) == 1


def test_a_clock_that_jumps_is_no_reason_for_another_owner() -> None:
    assert gaps(Gap("clock-owner", SERVED_S, SERVED_S)).violations(5) == []
    assert len(gaps(Gap("clock-owner", SERVED_S + 0.1, SERVED_S + 0.1)).violations(5)) == 1


def test_a_fault_that_is_not_overcome_is_seen() -> None:
    assert len(gaps(Gap("kill-other", 0, 0, overcome=False)).violations(5)) == 1
    assert gaps(Gap("full-quota", 30, 30)).violations(5) == []
    assert len(gaps(Gap("full-quota", 60, 60, overcome=False)).violations(5)) == 1


def test_the_worst_of_each_kind_is_told() -> None:
    assert gaps(Gap("a", 1, 5), Gap("a", 2, 3), Gap("b", 0, 0)).worst() == {"a": [2, 5], "b": [0, 0]}

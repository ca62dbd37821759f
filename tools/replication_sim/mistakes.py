"""Planted mistakes: each breaks one rule of ADR 13, and the walks must find it.

in: nothing. out: `MISTAKES`, name -> rules with that mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tools.replication_sim.rules import Block, Config, End, Rules


class SameEpoch(Rules):
    def raises_epoch(self) -> bool:
        return False


class LateActivation(Rules):
    def may_activate(self, epoch: int, newest: int) -> bool:
        return True


class SealsNobody(Rules):
    """The leader trusts its lease: it has its own word alone."""

    def is_majority(self, config: Config, members: Collection[int]) -> bool:
        return isinstance(members, Mapping) or super().is_majority(config, members)


class TakesOldBlocks(Rules):
    def refuses(self, epoch: int, promised: int) -> bool:
        return False


class UnsyncedPromise(Rules):
    def promise_is_synced(self) -> bool:
        return False


class LongestLog(Rules):
    def best(self, ends: Mapping[int, End]) -> int:
        return max(ends, key=lambda member: ends[member][1])


class OwnLog(Rules):
    def takes_best(self) -> bool:
        return False


class NoMatch(Rules):
    def matches(self, log: Sequence[Block], index: int, epoch: int) -> bool:
        return len(log) >= index


class CutsAlways(Rules):
    """Old messages that come late take newer blocks away."""

    def cut(self, log: Sequence[Block], index: int, blocks: Sequence[Block]) -> int:
        return min(len(log), index)


class NeverCuts(Rules):
    """A tail of an earlier epoch stays where the leader has other blocks."""

    def cut(self, log: Sequence[Block], index: int, blocks: Sequence[Block]) -> int:
        return max(len(log), index)


class AcksUnsynced(Rules):
    def synced_before_ack(self) -> bool:
        return False


class CountsOldAcks(Rules):
    def counts_ack(self, ack_epoch: int, epoch: int) -> bool:
        return True


class HalfIsEnough(Rules):
    def is_majority(self, config: Config, members: Collection[int]) -> bool:
        return 2 * len(config & frozenset(members)) >= len(config)


class ConfirmsBeforeActive(Rules):
    def confirms(self, is_active: bool) -> bool:
        return True


class EmptyDiskComesBack(Rules):
    def new_disk_is_new_member(self) -> bool:
        return False


MISTAKES: dict[str, type[Rules]] = {
    "R1 two leaders have the same epoch": SameEpoch,
    "R2 an epoch becomes active although there is a newer one": LateActivation,
    "R3 a leader trusts its lease, and seals nobody": SealsNobody,
    "R4 a member takes blocks of an epoch that it gave up": TakesOldBlocks,
    "R5 a member gives its word before it is on disk": UnsyncedPromise,
    "R6 the longest log wins, whatever its epoch": LongestLog,
    "R6 a new leader goes on from its own log": OwnLog,
    "R7 blocks are added behind blocks that the leader does not have": NoMatch,
    "R8 a message that comes late cuts what stands behind its blocks": CutsAlways,
    "R8 a tail that differs stays": NeverCuts,
    "R9 a member answers before its disk has the block": AcksUnsynced,
    "R9 an answer of an earlier epoch counts": CountsOldAcks,
    "R10 half of the members is enough": HalfIsEnough,
    "R11 a leader confirms before its epoch is active": ConfirmsBeforeActive,
    "R12 a machine with an empty disk comes back as the same member": EmptyDiskComesBack,
}

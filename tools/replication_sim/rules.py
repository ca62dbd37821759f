"""The guards of ADR 13, one function each. A planted mistake (mistakes.py) is a class that overrides one of them.

in: what a member or the coordinator knows. out: whether it may go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

# (epoch that wrote it, content); the index of a block is its place in the log, from 1 on
Block = tuple[int, int]
# (epoch of the last block, index of the last block)
End = tuple[int, int]
Config = frozenset[int]


class Rules:
    """R1 to R12 of the ADR."""

    # --- coordinator ------------------------------------------------------------------------------------------------

    def raises_epoch(self) -> bool:
        """R1: each leadership, and each change of the members, has an epoch of its own."""
        return True

    def may_activate(self, epoch: int, newest: int) -> bool:
        """R2: only the newest epoch becomes the active one."""
        return epoch == newest

    # --- who leads --------------------------------------------------------------------------------------------------

    def seals(self, active: Config, own: Config) -> Config:
        """R3: a new leader has the word of a majority of these: the members of the active epoch, whose confirms it must not lose."""
        return active

    def refuses(self, epoch: int, promised: int) -> bool:
        """R4: a member that gave its word to an epoch takes nothing of an earlier one."""
        return epoch < promised

    def promise_is_synced(self) -> bool:
        """R5: the word is on disk before it is given."""
        return True

    def best(self, ends: Mapping[int, End]) -> int:
        """R6: of the sealed members, the one whose log is the truth: the latest epoch, then the longest."""
        return max(ends, key=lambda member: ends[member])

    def takes_best(self) -> bool:
        """R6: the leader goes on from that log, not from its own."""
        return True

    # --- blocks -----------------------------------------------------------------------------------------------------

    def matches(self, log: Sequence[Block], index: int, epoch: int) -> bool:
        """R7: blocks are added only behind the block that the leader has there, too."""
        return index == 0 or (len(log) >= index and log[index - 1][0] == epoch)

    def cut(self, log: Sequence[Block], index: int, blocks: Sequence[Block]) -> int:
        """R8: length that stays of a log to which `blocks` are added behind `index`: only what differs goes. A message that comes late has
        blocks that are there already, and others stand behind them."""
        for number, block in enumerate(blocks):
            if index + number >= len(log) or log[index + number] != block:
                return min(len(log), index + number)
        return len(log)

    def synced_before_ack(self) -> bool:
        """R9: a member says that it has a block when the block is on its disk."""
        return True

    def counts_ack(self, ack_epoch: int, epoch: int) -> bool:
        """R9: an answer counts in its own epoch."""
        return ack_epoch == epoch

    # --- confirms ---------------------------------------------------------------------------------------------------

    def is_majority(self, config: Config, members: Collection[int]) -> bool:
        """R10: more than half of the members that the epoch has, answering or not."""
        return 2 * len(config & frozenset(members)) > len(config)

    def confirms(self, is_active: bool) -> bool:
        """R11: a leader confirms nothing before its epoch is the active one."""
        return is_active

    # --- disks ------------------------------------------------------------------------------------------------------

    def new_disk_is_new_member(self) -> bool:
        """R12: a machine that lost its disk comes back under another id."""
        return True

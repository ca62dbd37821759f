"""What a recovery found, for the log line and for the operator.

in: counts, damaged places, entries that are lost. out: text.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from flintmq.slotted import slotted


@slotted(frozen=True)
class Lost:
    """An entry that should be there, or may have been. queue_id 0: the log does not say where the message stood."""

    message_id: int
    queue_id: int
    position: int
    reason: str

    def __str__(self) -> str:
        where = f"at position {self.position} of queue {self.queue_id}" if self.queue_id else "on a queue that is not known"
        return f"message {self.message_id} {where}: {self.reason}"


@slotted()
class RecoveryReport:
    """What recovery found: for the log line and for the operator."""

    messages: int = 0  # live
    entries: int = 0
    queues: int = 0  # with entries
    dead: int = 0  # messages in the log that ended
    prepared: int = 0
    rolled_back: int = 0  # were open
    records: int = 0
    malformed: int = 0  # records that check and make no sense
    unknown_kinds: int = 0  # records of types that this version does not know
    stray: int = 0  # records about messages or places that are gone
    damage: list[Any] = field(default_factory=list)
    torn: list[tuple[str, int]] = field(default_factory=list)  # (directory, LSN) of tails that are cut off
    lost: list[Lost] = field(default_factory=list)
    lost_count: int = 0  # more than `lost` names when there are very many

    def __str__(self) -> str:
        text = f"{self.messages} messages, {self.entries} entries on {self.queues} queues, {self.prepared} transactions in doubt"
        if self.rolled_back:
            text += f", {self.rolled_back} open transactions rolled back"
        for directory, lsn in self.torn:
            text += f"; torn tail of {directory} cut off at LSN {lsn}"
        if self.damage:
            text += f"; {len(self.damage)} damaged places"
        if self.lost_count:
            text += f"; {self.lost_count} entries lost"
        return text

# Python face of group_kinds.py (compiled), for the type checker.
from flintmq.queue.control import QueueHandle
from flintmq.queue.log_port import LogPort

MODES: dict[str, int]

def new_grouped(
    queue_id: int,
    mode: str,
    header: bytes,
    log: LogPort | None,
    durable: bool,
    *,
    list_kind: int,
    levels: int,
    level_rule: int,
    groups_max: int,
    idle_max: int,
) -> QueueHandle:
    """A queue whose consumers get the messages of a group one consumer at a time.

    Args: mode: "shared": a group is a consumer's while one of its messages is unacked; "sticky": until the consumer leaves; "sorted": no
    groups, messages in the order of the header's value. header: whose value is a message's group. groups_max: groups at a time, above it
    values share some; idle_max: groups without a message that stay with their consumer. Raises: MemoryError."""

def restore_groups(handle: QueueHandle) -> None:
    """After a restart, before anybody consumes: groups of the entries that are there are read when consumers come to them. O(levels)."""

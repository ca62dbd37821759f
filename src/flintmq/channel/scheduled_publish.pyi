from typing import Any

def due(connection: Any, number: int) -> int:
    """When the waiting message of a channel is due (wall clock, milliseconds); 0: now, -1: its headers have to be asked (due_of)."""

def schedule(handler: Any, channel: int, due_ms: int) -> None:
    """Puts the waiting message of a channel on the schedule, which is made for the first one: the connection waits for the database then.

    Raises: PeerError: the transaction is too large (406), no memory for it (506), the virtual host is deleted (530).
    """

"""Ends of connections without a loop that runs."""

from __future__ import annotations

from flintmq.channel.connection import Connection


def close_all(connection: Connection) -> None:
    """The connection ends in one piece: every channel is closed, everything unacked goes back to its place."""
    connection.leave()
    while not connection.end_some(1024):
        pass

"""Limits of the engines of shared queues (flintmq.engines), as those in `flintmq.config`."""

from __future__ import annotations

from flintmq.config.frozen import Frozen
from flintmq.config.units import KIB, MIB


class EnginesLimits(Frozen):
    """Rows and commits of an engine; times that one has to answer."""

    # bytes of a key: names of a virtual host and of a queue, 255 bytes each, escaped; a longer one is refused (TooLarge)
    engine_key_bytes_max: int = 2 * KIB
    # bytes of a value in memory and SQLite; bytes, and rows, of one commit there: some 50 ms of SQLite; more is refused (TooLarge)
    engine_value_bytes_max: int = 1 * MIB
    engine_commit_bytes_max: int = 8 * MIB
    engine_commit_rows_max: int = 20_000
    # keys that a watch keeps for a reader that is late; it says None instead of more
    engine_watch_keys_max: int = 10_000
    # commits that wait for SQLite; one more is refused (Unavailable): the disk has stopped, or callers do not wait for answers
    engine_sqlite_waiting_max: int = 10_000
    # bytes of values of one SQLite transaction: commits behind them wait for the next sync, some 50 ms
    engine_sqlite_group_bytes: int = 8 * MIB
    # bytes of the file system that stay free for the log of deletes; below them puts are refused (Full)
    engine_sqlite_reserve_bytes: int = 64 * MIB

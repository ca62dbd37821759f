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
    # milliseconds between two times that a node has its engine tidied: what rows of the past take grows as long, and an alarm that has lost
    # its reason stays as long
    engine_tidy_ms: int = 15_000
    # bytes of a value and of a commit in etcd, which takes requests of 1.5 MiB; rows of a commit: it takes 128 operations. More is refused
    # (TooLarge)
    engine_etcd_value_bytes_max: int = 512 * KIB
    engine_etcd_commit_bytes_max: int = 1 * MIB
    engine_etcd_commit_rows_max: int = 120
    # milliseconds that etcd has to answer; then a commit's outcome is unknown, and a read has failed (Unavailable)
    engine_etcd_request_ms: int = 3_000
    # milliseconds without a sign from a member after which it is asked for one (etcd allows no less than 5,000); half of them later it is
    # taken for gone
    engine_etcd_keepalive_ms: int = 10_000
    # milliseconds between two tries to connect to a member, at most; and between two tries of a watch
    engine_etcd_reconnect_ms: int = 1_000
    engine_etcd_pause_ms: int = 200
    # milliseconds for which revisions of the past stay: a page is read at one revision. Tidying compacts older ones
    engine_etcd_history_ms: int = 60_000
    # revisions, with their times, that an engine remembers between two compactions: as many calls of tidy(); the oldest is forgotten
    engine_etcd_revisions_max: int = 1_000
    # bytes of etcd's quota where it does not say (before 3.6): its own default (--quota-backend-bytes)
    engine_etcd_quota_bytes: int = 2_048 * MIB
    # milliseconds that the defragmentation of one member may take, some 10 s for each gigabyte; then it goes on unseen
    engine_etcd_defragment_ms: int = 120_000
    # milliseconds between two defragmentations of an etcd with an alarm: the first time, and the longest, as it doubles. Each stops a
    # member, and is in vain while rows fill the quota
    engine_etcd_defragment_pause_ms: int = 30_000
    engine_etcd_defragment_pause_ms_max: int = 600_000
    # rows of one commit in PostgreSQL: some 50 ms of its function; more is refused (TooLarge)
    engine_postgres_commit_rows_max: int = 2_000
    # connections of one node for commits and reads; watches have one more. A call that finds all of them busy waits, for a request's time
    engine_postgres_connections: int = 8
    # milliseconds that PostgreSQL has to answer; then a commit's outcome is unknown, and a read has failed (Unavailable)
    engine_postgres_request_ms: int = 5_000
    # milliseconds between two tries of a watch to connect
    engine_postgres_pause_ms: int = 200
    # milliseconds that one VACUUM may take, some 5 s for each gigabyte; then it is given up (Unavailable)
    engine_postgres_tidy_ms: int = 120_000
    # bytes of a value in FoundationDB, which takes 100,000; bytes of keys and values of a commit: it takes 10,000,000, each key counted
    # three times; rows of a commit: some 20 ms. More is refused (TooLarge)
    engine_fdb_value_bytes_max: int = 100_000
    engine_fdb_commit_bytes_max: int = 3 * MIB
    engine_fdb_commit_rows_max: int = 2_000
    # milliseconds that a call has in FoundationDB, which reads one version for 5,000 at most; then a commit's outcome is unknown, and a
    # read has failed (Unavailable)
    engine_fdb_request_ms: int = 5_000
    # milliseconds after which a watch that FoundationDB said nothing of is made anew; and between two tries when it fails
    engine_fdb_watch_ms: int = 30_000
    engine_fdb_pause_ms: int = 200
    # ranges that are watched in one cluster; above them one range stands for all, and says more than its readers asked for
    engine_fdb_ranges_max: int = 100
    # milliseconds for which changed keys stay in FoundationDB for the readers of watches; one that is later reads everything anew
    engine_fdb_history_ms: int = 60_000
    # milliseconds between two looks at the status of a cluster that was full, or gave no versions
    engine_fdb_status_ms: int = 2_000

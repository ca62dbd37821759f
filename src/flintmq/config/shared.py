"""Limits of shared queues and their engines (docs/SHARED.md), as those in `flintmq.config`."""

from __future__ import annotations

from flintmq.config.frozen import Frozen
from flintmq.config.units import KIB, MIB


class SharedLimits(Frozen):
    """Keys and transactions of an engine; messages that wait for it."""

    # bytes of a key; names of a virtual host and a queue, each of 255 bytes, escaped; more is refused as too large
    kv_key_bytes_max: int = 2 * KIB
    # bytes of a value; a body above it goes into rows of `shared_chunk_bytes`
    kv_value_bytes_max: int = 1 * MIB
    # bytes, and rows, that one transaction writes: what SQLite commits in some 50 ms; a larger batch is cut
    kv_transaction_bytes_max: int = 8 * MIB
    kv_transaction_writes_max: int = 20_000
    # milliseconds from the first read of a transaction to its commit: a snapshot keeps the write-ahead log long; it is made anew
    kv_transaction_ms_max: int = 5_000
    # rows written that the embedded engine remembers to judge reads; a transaction that read before them is made anew
    kv_resolver_writes: int = 200_000
    # bytes of a value, and of a transaction, in etcd: it refuses requests above 1.5 MiB; rows written: it takes 128 operations in a request
    kv_etcd_value_bytes_max: int = 512 * KIB
    kv_etcd_transaction_bytes_max: int = 1 * MIB
    kv_etcd_transaction_writes_max: int = 120
    # milliseconds that etcd has to answer; after that its answer counts as unknown
    kv_etcd_request_ms_max: int = 5_000
    # bytes of a value in FoundationDB, which takes 100,000; bytes, and rows, of a transaction: it takes 10,000,000 with the keys that are
    # declared
    kv_fdb_value_bytes_max: int = 100_000
    kv_fdb_transaction_bytes_max: int = 4 * MIB
    kv_fdb_transaction_writes_max: int = 10_000
    # milliseconds that a transaction of FoundationDB has from its begin (it reads for 5 s at most); a commit that is not answered by then
    # counts as unknown
    kv_fdb_request_ms_max: int = 10_000
    # milliseconds between two compactions of etcd: revisions younger than that stay; a transaction lives for kv_transaction_ms_max
    kv_etcd_compact_ms: int = 60_000
    # messages, and bytes of rows, of one batch of a shared queue: one commit of the engine carries it; what is above goes into the next one
    shared_segment_messages: int = 400
    shared_segment_bytes: int = 256 * KIB
    # batches of one queue under way; a further one than the first leaves when so many messages wait for it: commits of few cost more than
    # they hasten
    shared_flights: int = 6
    shared_flight_messages: int = 100
    # milliseconds for which ends of messages wait for a batch that takes them with it
    shared_ends_ms: int = 25
    # batches that are settled and not covered by a mark: a new owner keeps what is behind the mark in memory until it has read all rows
    shared_mark_batches: int = 64
    # milliseconds without a sign of life after which the queues of a node go to others; signs come four times as often
    shared_node_lease_ms: int = 5_000
    # bytes of bodies of one queue that its owner keeps in memory of what the engine has; others are read again when they are delivered
    shared_hot_bytes: int = 16 * MIB
    # milliseconds until a full engine is tried again
    shared_full_ms: int = 500
    # bytes of rows that a new owner asks for at once
    shared_scan_bytes: int = 2 * MIB
    # bytes of content that stand in the row of a message; more is in chunks of its own, which a take does not rewrite
    shared_inline_bytes: int = 2 * KIB
    # bytes of a chunk of a larger content (FoundationDB takes 100,000 bytes a value)
    shared_chunk_bytes: int = 90_000
    # messages, and bytes of rows, of one transaction of a queue; what is above goes into the next one
    shared_batch: int = 500
    shared_batch_bytes: int = 1 * MIB
    # milliseconds between two tries of a transaction that met another one: the first, and the longest, as it doubles
    shared_retry_ms: int = 1
    shared_retry_ms_max: int = 1_000
    # milliseconds without a sign of life after which a node counts as gone; its unacked messages go back then, flagged
    shared_lease_ms: int = 10_000
    # shared queues of a node (some 5 KiB each), and of one virtual host; one more is refused with 406
    shared_queues_max: int = 2_000
    shared_vhost_queues_max: int = 1_000
    # threads that wait for the engine on behalf of shared queues: an engine that is away stops these alone
    shared_workers: int = 4
    # milliseconds between two looks at other nodes, and at queues that no watch told of: shared_polls of them at a time, in turn, so of
    # 2,000 queues each is looked at every 10 s
    shared_poll_ms: int = 1_000
    shared_polls: int = 200
    # definitions in an engine, some 1.5 KiB each in every node; one more is refused with 406, and stays on its node until that looks again
    shared_definitions_max: int = 100_000
    # rows, and bytes, of definitions that a node reads at once: a page is parsed in slices
    shared_definitions_page: int = 500
    shared_definitions_page_bytes: int = 1 * MIB
    # definitions that one commit of the engine carries; what is above goes into the next one
    shared_definitions_batch: int = 50
    # definitions of other nodes that wait for the database of this one at once
    shared_definitions_verbs: int = 200
    # lines of the log about definitions of a node that end as it joins others; the rest is counted
    shared_definitions_lines: int = 100
    # milliseconds without a sign after which another node goes on with the first definitions of an engine
    shared_definitions_first_ms: int = 5_000
    # milliseconds until a queue or binding of other nodes that this node could not make is tried again
    shared_definitions_retry_ms: int = 10_000
    # bytes of messages that wait for the engine (with 512 for each), of one queue, and of all queues of one virtual host; the next publish
    # is refused (nack)
    shared_waiting_bytes_max: int = 16 * MIB
    shared_vhost_waiting_bytes_max: int = 32 * MIB
    # milliseconds a publish, a basic.get, a purge or a declaration waits for an engine that does not answer; then it is refused (nack, 541)
    shared_waiting_ms_max: int = 30_000
    # milliseconds for which one transaction is made anew; then its queue waits, and others have their turn
    shared_patience_ms: int = 5_000
    # milliseconds before a queue that failed, or an engine that is away, is tried again: the first time, and the longest, as it doubles
    shared_pause_ms: int = 200
    shared_pause_ms_max: int = 2_000
    # milliseconds for which messages that no consumer of this node wants wait for those that its clients still have, so that all go back
    # to the engine together, in order
    shared_unwanted_ms: int = 5_000
    # bytes of contents that one take brings into a node; one message may be larger
    shared_window_bytes: int = 4 * MIB
    # dead letters of one shared queue that wait for their targets on this node, and bytes of their bodies: the node takes nothing more of
    # that queue then; what it has taken before (shared_batch) may die, too
    shared_letters_max: int = 500
    shared_letters_bytes_max: int = 8 * MIB
    # nodes of one engine, those that are gone and not swept included; what more of them did is missing in the counts of a queue
    shared_nodes_max: int = 256
    # connections that a node which is drained closes in shared_poll_ms: the others have to take them all
    cluster_drain_connections: int = 500
    # messages, and bytes of their contents, of one set that a subscription takes, whatever its caller asks for: each message is three rows
    # of the engine to write, and the next set waits for this one's end
    shared_set_messages_max: int = 10_000
    shared_set_bytes_max: int = 16 * MIB
    # subscriptions on shared queues of an engine, on all nodes; of a user and of a virtual host subscriptions_user_max and _vhost_max
    # count, too. One more is refused with LIMIT
    shared_subscriptions_max: int = 1_000
    # shared queues that one subscription names: a look for messages asks the engine about each; more are refused with BAD_ARGUMENT
    shared_set_queues_max: int = 16
    # calls about such subscriptions that wait for the engine at once, always fewer than dataplane_channels and shared_workers; of one user
    # one less. One more is told BUSY, and its client asks again
    shared_set_calls: int = 3
    # milliseconds that such a call waits for one request to the engine; then it is told UNAVAILABLE, and its client asks again
    shared_set_wait_ms: int = 5_000
    # milliseconds between two looks of a node at sets that could not be ended when they were decided, of queues that it serves: one read of
    # the engine for each that is there
    shared_sets_look_ms: int = 5_000
    # milliseconds between two looks at subscriptions that were deleted and still have something to end: a read of all of them
    shared_sets_sweep_ms: int = 60_000
    # sets of which a node remembers what is in them (2.5 MB for the largest); of another one it is read again
    shared_sets_known: int = 8
    # milliseconds for which a subscription that found nothing is told so again without a request to the engine
    shared_set_look_ms: int = 200
    # messages, and bytes of their contents, that stand in one part of a transaction: the owner puts a part into its queue at once, some
    # 2 ms; a larger message is a part of its own
    shared_part_messages: int = 400
    shared_part_bytes: int = 256 * KIB
    # shared queues of one transaction: the commit that decides it compares the owner of each, and etcd takes 120 rows and conditions; one
    # that names more is refused with 406
    shared_transaction_queues_max: int = 40
    # transactions of a node that wait for the engine at once, each with its messages in memory (tx_bytes_max); one more is refused with 541
    shared_transactions_max: int = 1_000
    # milliseconds between two looks of a node at rows of its transactions that are over everywhere
    shared_transactions_look_ms: int = 1_000
    # milliseconds between two looks at transactions of nodes that are gone: a read of all of them
    shared_transactions_sweep_ms: int = 30_000
    # bytes of contents that one stage on shared queues puts aside in the engine, and stages of one user that a node takes blocks of; more
    # are refused with LIMIT: a task writes several stages in turn, and of the 1,000 tasks that a job may run a node has a share
    shared_stage_bytes_max: int = 256 * MIB
    shared_user_stages_max: int = 500

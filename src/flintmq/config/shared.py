"""Limits of shared queues and their engines (docs/SHARED.md), as those in `flintmq.config`."""

from __future__ import annotations

from flintmq.config.frozen import Frozen
from flintmq.config.units import KIB, MIB


class SharedLimits(Frozen):
    """Rows of an engine; messages that wait for it; its nodes."""

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
    # rows that a node asks the engine for at once, whose bodies its consumers want: 256 KiB each, or one larger message; others wait
    shared_loads_max: int = 16
    # milliseconds until a full engine is tried again
    shared_full_ms: int = 500
    # bytes of rows that a new owner asks for at once
    shared_scan_bytes: int = 2 * MIB
    # shared queues of a node (some 5 KiB each), and of one virtual host; one more is refused with 406
    shared_queues_max: int = 2_000
    shared_vhost_queues_max: int = 1_000
    # milliseconds between two looks of a node: at letters that wait, at its own drain, at the counts of queues of other nodes
    shared_poll_ms: int = 1_000
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
    # dead letters of one shared queue that wait for their targets, and bytes of their bodies: the queue delivers nothing more then
    shared_letters_max: int = 500
    shared_letters_bytes_max: int = 8 * MIB
    # nodes of one engine, those that are gone and not swept included; what more of them did is missing in the counts of a queue
    shared_nodes_max: int = 256
    # connections that a node which is drained closes in shared_poll_ms: the others have to take them all
    cluster_drain_connections: int = 500
    # messages, and bytes of their contents, of one set that a subscription takes, whatever its caller asks for: the next set waits for
    # this one's end
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
    # share of them that one user may have under way; one more is refused with 541, and others go on
    shared_transactions_user_share: float = 0.5
    # milliseconds between two looks of a node at rows of its transactions that are over everywhere
    shared_transactions_look_ms: int = 1_000
    # milliseconds between two looks at transactions of nodes that are gone: a read of all of them
    shared_transactions_sweep_ms: int = 30_000
    # bytes of contents that one stage on shared queues puts aside in the engine, and stages of one user that a node takes blocks of; more
    # are refused with LIMIT: a task writes several stages in turn, and of the 1,000 tasks that a job may run a node has a share
    shared_stage_bytes_max: int = 256 * MIB
    shared_user_stages_max: int = 500

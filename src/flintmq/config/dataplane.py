"""Limits of the data plane and its Flight process (docs/DATAPLANE.md), as those in `flintmq.config`."""

from __future__ import annotations

from flintmq.config.frozen import Frozen
from flintmq.config.units import KIB, MIB


class DataplaneLimits(Frozen):
    """Sets, stages, tables, and what one user may keep of them."""

    # socket pairs between broker and Flight service, a thread each: calls that run at once; more wait in the service, then BUSY
    dataplane_channels: int = 8
    # bytes of a frame's head (JSON): the ids of all stages of a commit, the tickets of a plan; a larger frame ends the channel
    dataplane_head_max: int = 8 * MIB
    # bytes of a frame's payload: one message of message_size_max and its neighbours; a larger frame ends the channel
    dataplane_payload_max: int = 136 * MIB
    # bytes of inline contents after which an answer to `rows` ends; the rest is asked for with the next call
    dataplane_inline_max: int = 8 * MIB
    # rows that one answer to `rows` has at most; fewer are given, `more` says so
    dataplane_rows_max: int = 65_536
    # subscriptions of the node, of one virtual host, and of those that one user made; one more is refused with LIMIT
    subscriptions_max: int = 10_000
    subscriptions_vhost_max: int = 5_000
    subscriptions_user_max: int = 1_000
    # milliseconds since the last call of a subscription's reader for which it counts as working: a reader without a checkpoint is refused
    # meanwhile. A reader of the Spark source calls once a second.
    subscription_alive_ms: int = 5_000
    # queues that one subscription names (its note has them all); more are refused with BAD_ARGUMENT
    subscription_queues_max: int = 256
    # queues that one pattern reads: a subscription leaves out those that match besides, and says so; a look at queues is refused
    subscription_matches_max: int = 4_096
    # milliseconds between two looks at which queues match the pattern of a subscription
    subscription_look_ms: int = 1_000
    # bytes of the name of a subscription or scope (UTF-8); longer ones are refused with BAD_ARGUMENT
    dataplane_name_max: int = 255
    # messages of one set, whatever its caller asks for (16 bytes of memory each while it is held)
    acquire_messages_max: int = 1_000_000
    # bytes of bodies of one set, whatever its caller asks for
    acquire_bytes_max: int = 4096 * MIB
    # milliseconds that sub.acquire waits for messages, whatever its caller asks for: it takes a channel meanwhile
    acquire_wait_ms_max: int = 5_000
    # slices of a set or of a browse; more are refused with BAD_ARGUMENT
    slices_max: int = 4_096
    # parts of a range of a stream by key; more are refused with BAD_ARGUMENT. Each part's reader goes through the whole range
    key_slices_max: int = 256
    # scopes of queries: of the node, of one virtual host, of one user; for one more the longest unused one (of the node, vhost, user) is
    # forgotten if that is long ago, else it is refused with LIMIT
    scopes_max: int = 10_000
    scopes_vhost_max: int = 5_000
    scopes_user_max: int = 1_000
    # scopes of named writes (`txnId`) and of single ones: of the node, of one virtual host, of one user (about 1.8 KB of memory each); for
    # one more, one that nobody can repeat is forgotten, or the longest unused one if that is long ago, else it is refused with LIMIT
    writes_max: int = 100_000
    writes_vhost_max: int = 75_000
    writes_user_max: int = 50_000
    # seconds after its last commit that the scope of a query or of a named write is surely remembered: what is repeated later may be
    # written twice
    scope_remember_s: int = 2_592_000
    # scopes and stages of an answer to scope.list (250 bytes each), more are asked for; stages that a scope's status names, all are counted
    scopes_page: int = 10_000
    scope_stages_shown: int = 1_000
    # share of the memory limit that stages which are not committed or rolled back take, of the node, of one virtual host, of one user; one
    # more, or one more block, is refused with LIMIT. There is no number of stages but this: a DataFrame has as many partitions as it has
    staged_share: float = 1.0
    staged_vhost_share: float = 0.75
    staged_user_share: float = 0.5
    # bytes of memory that a stage counts for, and each place of a message of it in a queue (both measured: 5.3 KB and 200 bytes)
    stage_bytes: int = 6 * KIB
    staged_message_bytes: int = 200
    # stages that one pass of housekeeping rolls back because they were left behind: about a millisecond
    stages_a_pass: int = 16
    # routes of one block of staged messages; more are refused with BAD_ARGUMENT
    block_routes_max: int = 65_536
    # seconds after the last block at which an unprepared stage is rolled back: its task is gone
    stage_unprepared_s: int = 600
    # seconds after which a prepared stage that nobody decided is rolled back: its driver is gone for good
    stage_prepared_s: int = 86_400
    # seconds a snapshot of the log lives without log.extend unless its caller says otherwise, and may live (its containers are kept
    # meanwhile); more are refused
    snapshot_ttl_s: int = 60
    snapshot_ttl_s_max: int = 3_600
    # snapshots and browses together, of the node, of one virtual host, of one user (a browse holds up to 8 MB of positions); one more is
    # refused with LIMIT
    snapshots_max: int = 64
    snapshots_vhost_max: int = 48
    snapshots_user_max: int = 32
    # messages of one browse; it ends there and says so
    browse_max: int = 1_000_000
    # levels of queues of which a housekeeping pass notes how far they have come, for the times of messages that no log has: a millisecond
    # of an I/O loop. A broker of more queues takes several passes for all of them, and a time is right to as long
    arrival_looks_max: int = 250
    # of these notes, 16 bytes each, for a level with messages; when there are more, every other one goes
    arrival_samples_max: int = 32
    # seconds a browse lives after it was last read from
    browse_ttl_s: int = 600
    # pins on containers of streams that pipelines read, of the node, of one virtual host, of one user; one more, and the oldest (of the
    # node, the virtual host, the user) is dropped: its reader may find them gone
    stream_pins_max: int = 1_024
    stream_pins_vhost_max: int = 768
    stream_pins_user_max: int = 512
    # seconds such a pin keeps containers after its reader was last heard of; retention goes on then
    stream_pin_s: int = 120
    # seconds the start of a broker waits for its Flight service (`--flight-start at-once`); then it goes on without, and the service comes
    # up later. A start that takes twice as long is given up
    flight_start_s: int = 20
    # milliseconds for which a port in use is tried again before that is an error: the service of a broker that was killed ends within
    # flight_stop_ms. The ready line waits for it
    flight_port_ms: int = 2_000
    # connections that wait in the kernel while no Flight service runs; one more is not answered, and its client's kernel tries again. The
    # service that comes makes the queue as long as net.core.somaxconn
    flight_backlog: int = 256
    # milliseconds before a Flight service that died is started again, doubled each time up to the second number
    flight_restart_ms: int = 500
    flight_restart_ms_max: int = 30_000
    # seconds after which such a service was well: the next pause is the first one again
    flight_well_s: int = 60
    # milliseconds for the service to exit by itself, then after SIGTERM; then it is killed
    flight_end_ms: int = 3_000
    flight_term_ms: int = 2_000
    # calls that the Flight service has at once, those included that nobody let in yet (a thread each); one more is refused with BUSY
    flight_calls_max: int = 512
    # calls that are in at once (flight/line.py), of each kind: actions, readers, calls of tasks that write, readers that wait for messages.
    # One query has at most half of them, one user three quarters; more stand in line or come again
    flight_actions_max: int = 16
    flight_reads_max: int = 16
    flight_writes_max: int = 24
    flight_waits_max: int = 64
    # calls of one kind that stand in line for that (a thread each), and milliseconds that they do; then, and at once for one more, BUSY
    flight_line_max: int = 96
    flight_line_ms: int = 1_000
    # milliseconds after which a call that was refused with BUSY is told to come again, at least and at most: between them as long as those
    # before it will take
    flight_busy_ms: int = 20
    flight_busy_ms_max: int = 3_000
    # logins that wait for their turn in all (of one address a quarter); one more is refused with BUSY
    flight_waiting_max: int = 64
    # milliseconds that a call waits for a channel to the broker, or a login for its turn; then BUSY
    flight_wait_ms: int = 5_000
    # milliseconds that a block of rows waits for such a channel: what of a write has arrived can't be sent again
    flight_block_wait_ms: int = 60_000
    # milliseconds the Flight service remembers a verified credential (as a keyed MAC); then it asks the broker again
    flight_auth_cache_ms: int = 5_000
    # remembered credentials; at the limit all are forgotten
    flight_auth_cache_max: int = 1_024
    # characters of one header of a call (gRPC takes 8 KiB of all): a token of 4,096 characters as the password of Basic; more is refused
    # with UNAUTHENTICATED
    flight_header_max: int = 6 * KIB
    # seconds the token of a Flight handshake is good for; then the client must give its password again
    flight_token_s: int = 600
    # logins by OAuth 2 or a directory that the broker keeps for the Flight service, in all and of one name (some KiB each: scopes or
    # groups); at a limit the one that was not used for longest ends, of that name or of the name with the most: its client logs in again
    flight_outside_max: int = 4_096
    flight_outside_user_max: int = 64
    # bytes of a ticket; anything longer was not made here, and is refused with BAD_ARGUMENT
    flight_ticket_bytes_max: int = 64 * KIB
    # bytes of the JSON of an action or descriptor (the broker's answer may be larger); more is refused with BAD_ARGUMENT
    flight_action_bytes_max: int = 4 * MIB
    # milliseconds of a waiting sub.acquire that are spent in one call to the broker: its channel is others' in between
    flight_slice_ms: int = 250
    # milliseconds that a sub.acquire over Flight waits, whatever its caller asks for
    flight_acquire_wait_ms_max: int = 60_000
    # rows, and bytes of bodies, that do_get asks for and decodes at a time: its memory per caller (a larger message comes alone)
    flight_piece_rows: int = 40_000
    flight_piece_bytes: int = 16 * MIB
    # bytes of log containers that one reading call keeps in memory
    flight_reader_bytes: int = 16 * MIB
    # times that rows are asked for again because their records were copied forward meanwhile; then the store is damaged there
    flight_moved_max: int = 20
    # bytes of one record batch of do_put; a larger one is refused with BAD_ARGUMENT
    flight_put_bytes_max: int = 256 * MIB
    # rows of such a batch (rows of constants take no bytes on the wire); more are refused with BAD_ARGUMENT
    flight_put_rows_max: int = 4_194_304
    # bytes of messages that one such batch may become (constants, dictionaries and views repeat what came once); more are refused with
    # BAD_ARGUMENT, and the stage is given up
    flight_put_made_max: int = 1024 * MIB
    # how much lower than the broker's the priority of the Flight service is (nice): bulk reads cost throughput, not latency
    flight_nice: int = 5
    # milliseconds that calls may take to end when the broker stops; then the service ends without them
    flight_stop_ms: int = 500
    # heaps of the service's allocator, size from which a block comes from the kernel, free bytes that a heap may keep at its end: record
    # batches are as large as a piece, and each page that goes back is filled with zeros for the next one
    flight_heaps: int = 2
    flight_heap_block_max: int = 32 * MIB
    flight_heap_kept: int = 64 * MIB
    # milliseconds without a transfer after which the service gives back what it keeps for the next one: warm readers, freed memory
    flight_rest_ms: int = 2_000

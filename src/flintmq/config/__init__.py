"""Every limit that a user of the broker can meet: value, unit, reason, and what happens when it is reached.

That is: how much of anything there may be, what is refused, closed, dropped or forgotten, how long somebody waits, and how the time of
loops and workers is shared. Other numbers stand beside their code: sizes and steps of algorithms, which nobody sees but as speed
(buffers, pieces, tables that grow); numbers of protocols and formats (a shortstr's 255 bytes, what an argument can say); weights that were
measured. The Spark source and sink, the pipeline and `flintmq perf` are clients: their bounds stand with their options.

Where no Config is at hand, or a limit is asked for with each message, a module takes it from Limits() when it is loaded (wide_turn,
zero_ttl_ms, topic_steps_max, table_depth_max, log_hold_ms and others): a Config with another value of these changes nothing.

Zero never means "unlimited" below the configuration parser, except where AMQP itself says so on the wire (prefetch 0).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from flintmq.config.cluster import ClusterLimits
from flintmq.config.dataplane import DataplaneLimits
from flintmq.config.engines import EnginesLimits
from flintmq.config.http import HttpLimits
from flintmq.config.moves import MovesLimits
from flintmq.config.shared import SharedLimits
from flintmq.config.units import KIB, MIB
from flintmq.slotted import replaced, slotted

__all__ = ["AT_ONCE", "FLIGHT_STARTS", "KIB", "MIB", "Config", "Limits"]

# when the Flight service's process starts: with the first connection to its port, or with the broker
ON_DEMAND, AT_ONCE = FLIGHT_STARTS = ("on-demand", "at-once")


class Limits(ClusterLimits, DataplaneLimits, EnginesLimits, HttpLimits, MovesLimits, SharedLimits):
    """Limits of one node. Each comment: unit; reason; behaviour at the limit. Those of a large subject stand in a module of its own."""

    # --- connection -------------------------------------------------------------------------------------------------
    # bytes; RabbitMQ's default; a larger frame closes the connection with 501
    frame_size_max: int = 128 * KIB
    # bytes; frames before connection.open (RabbitMQ initial_frame_max): an unauthenticated peer can't make us buffer more; 501
    frame_size_max_before_open: int = 8 * KIB
    # bytes; the least a client may negotiate (AMQP frame-min-size); less is refused with 530
    frame_size_min: int = 4 * KIB
    # bytes in total before connection.open; a peer that sends more is cut off
    handshake_bytes_max: int = 64 * KIB
    # milliseconds for the whole handshake, TLS included (RabbitMQ 10 s; a per-read timeout can be kept alive byte by byte); cut off
    handshake_ms_max: int = 10_000
    # milliseconds for TLS alone (RabbitMQ 5 s); cut off
    tls_handshake_ms_max: int = 5_000
    # bytes of a header of the PROXY protocol, version 2 (values of TLS included); tls_handshake_ms_max is its time; a longer one: cut off
    proxy_header_max: int = 4 * KIB
    # bytes of the request that begins a WebSocket; a longer one is refused with 431
    websocket_head_max: int = 8 * KIB
    # seconds; suggested to clients; a client may choose less, or 0 for none
    heartbeat_s: int = 60
    # connections of the node, as far as its descriptors reach (net/descriptors.py); above it a new one is closed at once and counted
    connections_max: int = 10_000
    # connections that have not finished their handshake; above it the oldest of the address that has the most of them is cut off
    unauthenticated_connections_max: int = 1_024
    # channels open at once on a connection, whatever their numbers (RabbitMQ 2,047); opening more closes the connection with 530
    channels_max: int = 2_047
    # bytes of unsent output above which a connection's consumers are suspended (back-pressure)
    output_bytes_high: int = 256 * KIB
    # bytes of unsent output under which they are resumed
    output_bytes_low: int = 64 * KIB
    # bytes of unsent answers, its largest message on top, above which a connection's requests are not read: a client that asks and does not
    # read is held by its own socket. It is read again under output_bytes_low. Deliveries alone never come there (output_bytes_high)
    output_asks_max: int = 1 * MIB
    # milliseconds such a client may read nothing at all; then it is cut off
    output_stuck_ms: int = 60_000
    # bytes of unsent output (replies of a peer that does not read) above which the connection is cut off; its largest message comes on top
    output_bytes_max: int = 64 * MIB
    # milliseconds a closing connection may take to answer close-ok, or to hang up after our last word; then the socket is closed
    close_ms_max: int = 5_000
    # milliseconds between our last word and the first look whether the peer has hung up: most have, and all of them are closed in one
    # pass, where an event for each would wake the loop for each (6 % of the cpu of a short connection)
    close_look_ms: int = 10
    # bytes that such a peer may still send, which are thrown away; then the socket is closed
    close_bytes_max: int = 64 * MIB
    # of the descriptors that are left for peers, HTTP gets one part in so many
    descriptors_http_part: int = 4
    # milliseconds between two lines of the log about connections that can't be accepted
    accept_log_ms: int = 10_000
    # descriptors (RLIMIT_NOFILE) that peers' sockets never get: log containers, streams, SQL, the Flight service, sockets to it
    descriptors_reserve: int = 1_024
    # milliseconds without a look at the sockets after which a loop counts as late: what its peers sent meanwhile is read first, and their
    # time (heartbeats, handshakes, closes) begins anew
    loop_late_ms: int = 250

    # --- user (an operator may set others: `flintmq user limit`; a node with one user has no such limits) -------------------------
    # share of the connections that the node takes; one more of this user is refused with 530
    user_connections_share: float = 0.9
    # channels, and consumers, on all connections of the user (about 1.5 and 2 KiB of memory each); one more closes its connection with 530
    user_channels_max: int = 500_000
    user_consumers_max: int = 500_000
    # share of the memory limit that connections of one user may hold (messages that are not complete, open transactions, output, unacked
    # maps, consumers) while others are connected, whether memory is short or not; above it the largest is closed with 506, one a round
    user_memory_share: float = 0.5

    # --- content ----------------------------------------------------------------------------------------------------
    # bytes of one message body (RabbitMQ 4: 16 MiB; older 128 MiB, which clients' tests still use); 406 at the header, before any body byte
    message_size_max: int = 128 * MIB
    # nested tables and arrays (RabbitMQ CVE-2026-69220); deeper closes with 502
    table_depth_max: int = 32
    # octets that are kept of what a client says of itself (connection.start-ok), for lists of connections; what is longer is cut
    client_properties_bytes_max: int = 4 * KIB
    # fields of one table, nested ones counted too. A field takes a byte at least, so a frame (frame_size_max) never has more: what AMQP
    # brings is limited in bytes alone. Tables of the API's JSON with more are refused with 400
    table_fields_max: int = 128 * KIB

    # --- channel ----------------------------------------------------------------------------------------------------
    # consumers of one channel; one more is refused with 530
    channel_consumers_max: int = 4_096
    # milliseconds that a consumer may take to settle a delivery of a queue for which neither an argument nor a policy says so (RabbitMQ
    # 1,800,000, which ends its channel); then the message goes back, flagged redelivered. 0: any time, as clients of old brokers expect
    consumer_timeout_ms: int = 0
    # bytes of uncommitted publishes plus acks of one tx; above it the channel is closed with 406 and the transaction rolled back
    tx_bytes_max: int = 256 * MIB
    # commits of one channel that may wait for the log; one more is not read before an earlier one is answered
    channel_commits_max: int = 256

    # --- distributed transactions -----------------------------------------------------------------------------------
    # seconds a branch may stay unprepared unless set-timeout says otherwise (qpidd 60); then it is rolled back: XA_RBTIMEOUT
    dtx_timeout_s: int = 60
    # seconds; the most set-timeout accepts (qpidd 3,600); more is refused with COMMAND_INVALID; 0 there means none
    dtx_timeout_s_max: int = 3_600
    # seconds a rolled back branch that nobody asks about is remembered, so that its manager hears why; then it is NOT_FOUND
    dtx_remember_s: int = 3_600
    # branches of the node but for stages, which have bounds of their own (staged_share); above it a start is refused with
    # RESOURCE_LIMIT_EXCEEDED (rolled back ones are forgotten first)
    dtx_branches_max: int = 10_000
    # enqueues plus dequeues of one transaction (about 40 bytes of memory each); one more is refused with RESOURCE_LIMIT_EXCEEDED
    dtx_enrolments_max: int = 1_000_000

    # bytes of the message log that are not on disk yet above which a block of staged messages waits
    staged_unwritten_bytes: int = 6 * MIB

    # --- virtual host -----------------------------------------------------------------------------------------------
    # queues of one vhost; one more is refused with 406
    queues_max: int = 1_000_000
    # exchanges of one vhost; one more is refused with 406
    exchanges_max: int = 100_000
    # bindings of one vhost; one more is refused with 406
    bindings_max: int = 1_000_000
    # bytes of memory (routing.binding.field_bytes) of the arguments of one binding, and of those of all bindings of one vhost: a frame can
    # carry 128 KiB of them, and 1,000,000 bindings may carry a frame each; one more is refused with 406
    binding_arguments_bytes_max: int = 64 * KIB
    bindings_arguments_bytes_max: int = 256 * MIB
    # shares of the memory limit that the definitions (queues, exchanges, bindings, with their arguments and what finds them) of one vhost,
    # and those of all together, may take: they never leave memory, so an alarm that they raise would not end; one more is refused with 406
    definitions_vhost_share: float = 0.5
    definitions_share: float = 0.7
    # bytes of an exchange, queue or routing key name: what a shortstr can hold
    name_bytes_max: int = 255
    # queues of a route above which a publish counts as wide (some 0.3 us for each queue), and queues that wide publishes of a connection go
    # to until its turn ends
    wide_route: int = 32
    wide_turn: int = 2_048
    # milliseconds that a message with a TTL of 0 ("to a consumer now, or not at all") is kept: what a pass of the loop may take until the
    # consumer's turn
    zero_ttl_ms: int = 20
    # steps (about 30 ns each) of matching one routing key with the patterns of a topic exchange, so some 1.5 ms of a loop. The publish that
    # would take more is refused with 406. Keys of up to six words take 39,062 at most, whatever others have bound; longer ones reach the
    # limit only with tens of thousands of patterns that all go on matching ('#' before other words)
    topic_steps_max: int = 40_000
    # routing keys of one message with those of CC and BCC (a frame holds 18,000), some 0.7 us each; more is refused with 406
    message_keys_max: int = 4_096
    # steps of all routing keys of one message together, some 6 ms of a loop; more is refused with 406
    topic_message_steps_max: int = 200_000
    # destinations of one x-consistent-hash exchange: a message whose route is not cached draws once for each of them, some 10 ns; one more
    # is refused with 406. The weight that a binding key says: nobody needs a share below one in a million; more is refused with 406
    hash_destinations_max: int = 4_096
    hash_weight_max: int = 1_000_000
    # messages and bytes that one x-recent-history exchange remembers at most, however many it was declared with; the oldest go first. Each
    # new binding puts all of them on a queue
    history_messages_max: int = 4_096
    history_bytes_max: int = 8 * MIB
    # values that one x-message-deduplication exchange remembers at most, whatever x-cache-size says
    dedup_cache_max: int = 1_000_000
    # values that one queue with x-message-deduplication remembers at most (32 to 64 bytes each), never more than it has messages; a
    # message that brings one more comes in, and its value is not compared
    dedup_queue_max: int = 1_000_000
    # values that one last value queue knows at most (40 to 80 bytes each); a message that brings one more stays as one without a value
    last_values_max: int = 4_000_000
    # bytes of memory of what all exchanges of a vhost remember of messages (histories, deduplication); at the limit each gives up its
    # own oldest, and remembers nothing new when it has none
    kept_bytes_max: int = 64 * MIB
    # share of it for messages of one user, while there are other users: at that limit a user's message makes room among that user's own
    kept_user_share: float = 0.5
    # bytes of copies with bodies above 1 MiB that wait for the firehose (amq.rabbitmq.trace), and of events that wait for their exchange
    # (amq.rabbitmq.event): they are put on queues by the next slices; at the limit what comes is dropped, counted as `trace` and `event`
    trace_bytes_max: int = 32 * MIB
    events_bytes_max: int = 4 * MIB
    # milliseconds that a message may be scheduled ahead: the limit of RabbitMQ's delayed message plugin, 49.7 days. More in x-delay is no
    # delay (as there); more in a field of another name is refused with 406
    schedule_delay_ms_max: int = 2**32 - 1
    # scheduled messages of a virtual host (34 bytes of memory each), and bytes of their bodies, most of which lie in the log; what would be
    # more is refused as by a full queue: nacked where the publisher wants confirms, else counted
    schedule_messages_max: int = 20_000_000
    schedule_bytes_max: int = 64 * 1024 * MIB
    # share of both that the messages of one user may be, while there are other users: more is refused in the same way
    schedule_user_share: float = 0.5
    # due messages that are routed in one transaction of the log, and bytes of their bodies; others wait for the next one
    schedule_batch_max: int = 1_024
    schedule_batch_bytes_max: int = 4 * MIB
    # milliseconds between two looks at due work
    schedule_gap_ms: int = 2
    # milliseconds before what could not be routed (a full disk, no memory) is tried again
    schedule_retry_ms: int = 500
    # cached routes per exchange; at the limit new ones take the places of others
    route_cache_max: int = 65_536
    # cached routes per exchange of messages whose headers decide (CC and BCC, a headers exchange), and bytes of them: the routes of some
    # buckets make room for others; a change of a binding drops all, 2 ms at most
    content_routes_max: int = 2_048
    content_routes_bytes_max: int = 4 * 2**20
    # bytes of such headers; the route of a message with more is asked for each time
    content_key_bytes_max: int = 2_048
    # names and values of headers that bindings ask for, up to which only these values decide a cached route; above it all values of
    # the names do; with more names than that each route is asked for each time
    deciding_headers_max: int = 1_024
    # exchanges of which a connection remembers the routes that its user's topic permissions allow; above it those are asked for again
    user_routes_max: int = 64

    # --- patterns of users (regular expressions of permissions, policies, links, filters of the API) ----------------------------------
    # bytes of a pattern of an administrator (permissions), and of anybody else (policies, filters); a longer one is refused
    pattern_bytes_max: int = 4_096
    pattern_short_bytes_max: int = 512
    # steps of one search in a name of up to 40 bytes (some 25 ns each, 0.3 us at worst); a longer name has fewer, and the policies of a
    # virtual host share them. The depth of its way back, and KiB of memory. An undecided search matches nothing
    pattern_steps_max: int = 20_000
    pattern_depth_max: int = 1_000
    pattern_heap_kib: int = 1_024
    # compiled patterns that are kept, of at most 15 KiB each; one more drops the one that was not used for the longest time
    pattern_cache_max: int = 2_048

    # --- definitions in SQL -----------------------------------------------------------------------------------------
    # queue ids reserved by one commit (transient queues take ids too, thousands a second); a restart skips the rest of the block. The next
    # block is reserved when half of one is used: a database that is silent for longer than the other half lasts holds up declares
    queue_id_block: int = 10_000
    # milliseconds to wait for a lock that another process holds on the database; then a change is refused (NotSaved), a start ends with 69
    sql_busy_ms: int = 5_000
    # milliseconds to connect to a database server; then the start fails with exit code 69
    sql_connect_ms: int = 10_000
    # milliseconds until the deletion of a queue or exchange that goes by itself (x-expires, auto-delete) is tried again after a refusal
    sql_retry_ms: int = 1_000
    # changes of users, permissions, virtual hosts, policies and parameters that may wait for those before them; one more is refused (503)
    definitions_line_max: int = 1_000
    # users, virtual hosts, policies (and operator policies) of a virtual host, other parameters; one more is refused (400). All are in
    # memory,
    # some KiB each, a virtual host 30 KiB. A declaration asks each policy of its virtual host: 1.5 us each, but 0.3 ms for one that was
    # made to be slow, so who is no administrator may set fewer
    users_max: int = 100_000
    vhosts_max: int = 10_000
    policies_vhost_max: int = 1_000
    policies_policymaker_max: int = 100
    parameters_max: int = 100_000
    # parameters of one component in a virtual host, and of the node; one more is refused (400): a policymaker leaves others their share
    parameters_vhost_max: int = 1_000
    # bytes of the value of a policy or parameter as JSON; a larger one is refused (400)
    parameter_bytes_max: int = 64 * KIB
    # submissions that one SQL transaction takes together; more go into the next one
    sql_group_max: int = 1_024
    # bytes of a SQLite file that a start checks for damage (7 ms a MiB); a larger one is opened without, and the log says so
    sql_check_bytes_max: int = 16 * MIB

    # --- store ------------------------------------------------------------------------------------------------------
    # bytes; CLFS's least container (seed 003); smaller sizes are rounded up
    container_bytes_min: int = 512 * KIB
    # bytes; a container is read whole by recovery and copy-forward; more is refused at start
    container_bytes_max: int = 64 * MIB
    # bytes that definitions need of the disk: for their own log (SQLite checkpoints it at 1,000 pages of 4 KiB) and growth of their file,
    # and for their recovery at a start (shared memory file, first pages); publishers are blocked before they are used, see log/space.py
    log_sql_bytes: int = 4 * MIB
    log_sql_start_bytes: int = 1 * MIB
    # milliseconds, and bytes, that what nobody waits for (messages published without confirms, and the ends of messages) may gather before
    # the log is written and synced: a slow flow would else have a sync for each message
    log_soon_ms: int = 5
    log_soon_bytes: int = 256 * KIB
    # bytes of the message log (or of the index log, when entries come and go) between two checkpoints at least, and a hundred times as
    # many as the last one took; a quarter of both once nobody writes for two seconds. The time between two is ten times what the last one
    # took, five seconds at most, since with millions of entries in memory each looks at all of them. A start after a crash reads about so
    # much of the log. With less, checkpoints would be more than a hundredth of all bytes written
    checkpoint_bytes: int = 32 * MIB
    # entries of a segment, which leave memory together when all of them are cold (the first two of a queue have 2 and 16). At most
    # 1,365, eight pages: fewer make more runs in the index log and more segments in memory
    entry_segment: int = 1365
    # places that one slice of a purge, or of the end of a deleted queue, looks at: about 0.1 us each, with the queue's lock held for 256 of
    # them at a time. Fewer are done at once; the rest goes on in slices of the loop, and the answer waits for it
    sweep_places: int = 512
    # consumers and deliveries that one slice of a close, a hang-up, an acknowledgement of many or a recover gives back: some 50 us. Four
    # slices are done at once; the rest goes on in slices of the loop, the answer waits for it, and nothing more of the connection is read
    work_step: int = 256
    # bytes of the message log that nothing but acks and outcomes may use, under load: what publishers have under way when they are told
    # that the disk is full. Two containers at least, eight at most
    log_reserve_bytes: int = 12 * MIB
    # containers of room that acks and outcomes may fill after publishers were blocked
    log_ending_containers: int = 2
    # bytes free beyond those at which blocked publishers go on: with them the reserve need not stand ready as containers
    log_roomy_bytes: int = 1024 * MIB
    # milliseconds that publishers wait at most for the first container of a log that has all the files it may have: it comes back within
    # some syncs, and else it is held by something that is nothing to wait for
    log_hold_ms: int = 500
    # bytes of the log that a start has the disk read while its modules are loaded (the page cache holds them); what is more is read when
    # its turn comes
    start_read_ahead_bytes: int = 1024 * MIB
    # streams of a node (a log each: some descriptors and files), and of one vhost; one more is refused with 406
    streams_max: int = 1_000
    streams_vhost_max: int = 900
    # message groups of one queue that have messages, are unacked, or belong to a consumer (about 200 bytes each, and 8 for each message);
    # above it values share 1,024 groups: less goes to several consumers at once, and the order inside a value stays. A sorted queue serves
    # the values above it behind all others
    message_groups_max: int = 1_000_000
    # ... of them groups without a message that stay with their consumer (qpid.group_header_key alone); above it the one that is idle for
    # longest is forgotten, and its next message may go to another consumer
    message_groups_idle_max: int = 100_000
    # consumer groups of one stream (3 KiB each, and 24 bytes for each message that they have delivered and that is not settled); they are
    # remembered as long as the stream. A consumer of one more is refused with 406, a pull with 400
    stream_groups_max: int = 1_000
    # bytes of a stream's container at most, whatever x-stream-max-segment-size-bytes says: it is a write buffer, and a start reads one
    stream_container_bytes_max: int = 16 * MIB
    # bytes of messages of one stream kept in memory, ready to be sent; what is older is read from the disk
    stream_hot_bytes: int = 4 * MIB
    # bytes of all streams' messages in memory; above it a stream keeps no more than the second number, until idle ones gave theirs back
    streams_hot_bytes_max: int = 128 * MIB
    stream_hot_bytes_least: int = 64 * KIB
    # milliseconds between two notes of a group's place; what was acked since is delivered again after a crash
    stream_cursor_ms: int = 100
    # messages of a group that are delivered and not settled, or wait to come again; at the limit it waits for its oldest
    stream_open_max: int = 65_536
    # a selector of a consumer: its bytes, nesting, words and signs, different names; a longer one is refused with 406. Each message is
    # compared with it, and the parser goes down one call for each level
    selector_bytes_max: int = 8_192
    selector_depth_max: int = 48
    selector_tokens_max: int = 1_024
    selector_names_max: int = 64  # also the size of a table on the stack of each comparison (selectors/program.pxd)
    # values of one x-stream-filter (each is compared with each message's); more are refused with 406
    stream_filter_values_max: int = 256
    # messages, and bytes of bodies, by which a queue with x-max-length or x-max-length-bytes may be above it while consumers with credit
    # are about to take from it (queue/limits.py): a read of the smallest publishes, and of a few large ones. Above that the limit holds,
    # whoever waits: the head is dropped, or the publish refused
    over_limit_messages: int = 4_096
    over_limit_bytes: int = 16 * MIB
    # milliseconds that this may last when no consumer takes anything; then the head is dropped
    over_limit_ms: int = 20
    # bytes of bodies a queue keeps in memory; later arrivals stay in the log (logged) or go to the page log (transient) until they are next
    queue_hot_bytes: int = 4 * MIB
    # bytes of bodies that all queues together keep in memory when they rest: each keeps queue_hot_bytes, a half, a quarter of it and so on,
    # as their number allows, but at least queue_rest_bytes_least. A queue that is read has queue_hot_bytes, however many there are, unless
    # contents take more than content_memory_max
    queues_rest_bytes_max: int = 16 * MIB
    queue_rest_bytes_least: int = 16 * KIB
    # share of the memory limit, and bytes, that contents in memory may take before queues keep to that (or Config.content_memory): what
    # arrives and is taken within seconds does not go over the disk. A queue that rests for some 3 s goes back to queue_hot_bytes, and the
    # largest one when contents take more than this
    content_memory_share: float = 0.0625
    content_memory_max: int = 512 * MIB
    # bytes of bodies, or messages, that wait in a queue while consumers could take them at once, above which connections that publish
    # there, and consume nothing, are read in small helpings, and only when deliveries had their turn
    queue_lag_bytes: int = 2 * MIB
    queue_lag_messages: int = 16_384
    # milliseconds that such a connection waits for a helping at most, whatever the consumers do
    queue_lag_ms: int = 20
    # messages a second: consumers that take as many keep up, and count as ready between their acks too; slower ones hold no publisher
    queue_lag_pace: int = 250_000
    # messages a second that all cold reads together bring into memory while messages come to queues that have nothing on disk, so that
    # old messages do not take the cores from new ones (a queue that gets more itself goes twice as fast as those); 0: never held back
    cold_pace: int = 25_000
    # bytes of bodies a second, in the same case
    cold_pace_bytes: int = 100 * MIB
    # bytes of contents that wait in several queues (a fan-out), kept for half a second or so after one of them read them back, so that
    # they are read once for all; what was read longest ago goes
    cold_shared_bytes: int = 8 * MIB
    # messages a second on queues that have nothing on disk from which on cold reads are held back
    cold_hot_rate: int = 100

    # --- node -------------------------------------------------------------------------------------------------------
    # share of the memory limit (cgroup or machine) that message content may take before publishers are blocked (RabbitMQ 0.4-0.6)
    memory_watermark: float = 0.6
    # publishers are let go again under this share of the watermark: without a gap they would flap
    memory_resume: float = 0.9
    # milliseconds between two looks of the memory keeper; longer where a round over all queues takes more than a twentieth of that
    memory_sweep_ms: int = 250
    # bytes held (or half the watermark) under which it looks at no queue
    memory_sweep_least: int = 64 * MIB
    # milliseconds between two looks at how much of the memory of messages is in chunks of which little is alive
    memory_thin_ms: int = 10
    # bytes of such chunks, and on top this share of the memory of messages, above which what lives in them is copied into full ones: so
    # messages that stay behind hold at most twice their size and 32 MiB
    memory_thin_bytes: int = 8 * MIB
    memory_thin_share: float = 0.125
    # share of the watermark from which memory counts as short: all delivered bodies that the log has leave memory, what keeps thin chunks
    # is copied out of them, long before publishers would have to wait
    memory_sweep_low: float = 0.75
    # share of the watermark: a virtual host whose queues hold less is spared by the memory alarm up to the hard limit (1.25 watermarks);
    # connections that hold more together (unfinished messages, transactions, output) lose the largest one of the largest user, 506
    memory_spared: float = 0.125
    # messages delivered in one turn of one connection before others of the loop get theirs
    turn_messages_max: int = 512
    # microseconds that the requests of one connection may take of its loop in Python (declares, binds, gets: all but publishes, settlements
    # and deliveries whose route is known) before others get their turn; what is read already waits until the connection's next one. A pass
    # reads for as long, too, before it delivers, and sends for as long: what is not sent then gathers more until the next pass
    turn_us: int = 1_000
    # milliseconds that a connection counts as heavy after it used up a turn: its requests are served after everybody else's, and all heavy
    # connections of a loop together get one turn's time of each pass
    heavy_ms: int = 100
    # microseconds of each pass that long work in slices gets (purges, sweeps, closes of large connections): all jobs of a loop together
    jobs_us: int = 1_000
    # microseconds for which a loop polls its sockets before it sleeps, where one request after the other came sooner than that (prefetch 1,
    # gets); 0: it always sleeps at once
    loop_poll_us: int = 50
    # microseconds after which a thread that waits for the interpreter gets it from the one that runs (Python's own: 5,000): with several
    # loops a storm of slow requests on one would delay each single request on another by as much
    interpreter_switch_us: int = 500
    # milliseconds between two housekeeping passes (idle pointers, heartbeats, limits)
    housekeeping_ms: int = 500
    # milliseconds after which a dead letter whose target is absent or full is tried again though nothing happened that would help it
    # (x-dead-letter-strategy at-least-once); twice as long after each attempt that was in vain, up to the second figure
    dead_letter_retry_ms: int = 1_000
    dead_letter_retry_max_ms: int = 60_000
    # bytes of a message's x-death: of more deaths the oldest are forgotten, and a message that lost some and was moved by the broker alone
    # since then is dropped (at-least-once: waits) as one that goes in a circle. Some 700 deaths; AMQP can't cut a header into frames
    dead_letter_deaths_bytes_max: int = 96 * KIB
    # milliseconds between two log entries about one place of the code where a failure was caught (guard); others are counted
    guard_log_ms: int = 10_000
    # password checks (argon2id, 19 MiB and 50 ms each) that run at once; more wait in line
    password_checks_max: int = 2
    # seconds that an HTTP request, or a login over Flight, waits for its check; then 503, BUSY
    password_check_s: int = 30
    # characters of a user's name, and of a password, over HTTP and Flight; more is refused as wrong
    login_name_max: int = 255
    login_password_max: int = 4_096
    # different credentials that wait for their check (two at once are served 40 a second: 6 s, less than a handshake may take). A newcomer
    # pushes out the newest of the source with the longest line, if that is longer than its own; else it is refused itself. Refused is:
    # AMQP connection.close 506, HTTP 503, Flight BUSY
    password_waiting_max: int = 256
    # the same of one source (address, or first 64 bits of an IPv6 one); a newcomer pushes out the newest of that source's user with the
    # longest line, if that is longer than its own user's; else it is refused itself
    password_waiting_source_max: int = 128
    # credentials whose check goes before all others (they were right, from the same source), and milliseconds for which they do; at the
    # limit the longest unused ones stand in line as everybody
    password_recent_max: int = 4_096
    password_recent_ms: int = 3_600_000
    # iterations of the keys that SCRAM needs (30 ms for the broker once, for a client at each login; RFC 7677 wants 4,096 at least). Keys
    # that are there keep theirs
    scram_iterations: int = 100_000
    # wrong passwords of one user from one source, and seconds until one is forgiven: at the limit no password of the user is looked at
    # from there, and the answer is "too many logins" (20 guesses a minute go on)
    login_user_failures: int = 20
    login_user_failure_s: int = 3
    # the same of a source, whatever the users: many clients may share an address, and each may be configured wrongly
    login_source_failures: int = 500
    login_source_failure_ms: int = 100
    # milliseconds for which an I/O loop may not come round before the watchdog of the service manager hears nothing any more
    loop_alive_ms: int = 20_000
    # (user, source) pairs and sources that failures are counted of (200 bytes each); the one unused for longest makes room
    login_failures_max: int = 10_000
    # --- tokens (docs/ACCESS.md, OAuth 2) ---
    # characters of a token: what a frame before connection.open, or a request's head, holds; a longer one is refused as wrong
    token_bytes_max: int = 8 * KIB
    # verified tokens that are remembered (credential_cache_ms, and their end, bound how long); the one unused for longest makes room
    token_cache_max: int = 4_096
    # seconds by which `nbf` may lie in the future: clocks differ. There is no such grace for `exp`
    token_leeway_s: int = 10
    # bytes and keys of a key set, milliseconds that its server may take (also what a start waits for it), seconds between two looks at it,
    # milliseconds between two that tokens with unknown keys cause; a set beyond that is not taken, the last one stays
    jwks_bytes_max: int = 256 * KIB
    jwks_keys_max: int = 256
    jwks_ms: int = 5_000
    jwks_refresh_s: int = 300
    jwks_pause_ms: int = 10_000
    # --- directories (docs/ACCESS.md, LDAP) ---
    # logins that ask a directory at once, a thread and a connection each; more wait in line, as for password checks
    ldap_checks_max: int = 8
    # milliseconds that all servers together may take for one login: half of what AMQP's handshake may; then it is refused
    ldap_answer_ms: int = 5_000
    # milliseconds for which a server that did not answer is asked after all others
    ldap_down_ms: int = 10_000
    # groups that one user may be in, as far as queries ask; a login of one with more is refused: a query may say `not`
    ldap_groups_max: int = 1_000
    # verified logins that are remembered, for credential_cache_ms; the one unused for longest makes room
    ldap_cache_max: int = 4_096
    # lines of the audit that one user's refusals get in a second; the others are counted
    audit_user_lines: int = 10
    # users whose refusals are counted like that; the one unused for longest makes room
    audit_users_max: int = 10_000
    # lines of the log in a second that one user causes by mistakes on channels and connections, one address by such before a login; the
    # others are counted, and the next line says how many they were. A broken client in a loop makes ten thousand a second otherwise
    peer_lines: int = 50
    # lines of the log in ten seconds about one kind of trouble with a directory (LDAP)
    ldap_lines: int = 5
    # lines of the audit file that may wait for the disk (1 KiB each or so); more are dropped, and counted
    audit_line_max: int = 10_000
    # milliseconds a verified credential is remembered (as a keyed MAC)
    credential_cache_ms: int = 60_000
    # milliseconds a graceful stop may take before sockets are closed
    shutdown_ms_max: int = 30_000
    # milliseconds that a stop may take before stderr says where each thread is (the stop goes on): four times close_ms_max, and less than
    # service managers wait before they kill
    stop_report_ms: int = 20_000

    # --- actors (docs/SCHEDULER.md) -----------------------------------------------------------------------------------
    # worker threads per core: they sleep on disk reads, so there are more than cores (QMQ 4); asleep they cost nothing
    actor_workers_per_core: int = 4
    # requests waiting in one actor's mailbox (QMQ 10,000); one more is refused with BUSY
    actor_mailbox_max: int = 10_000
    # actors of the node (under 1 KiB each); a request for one more is refused with BUSY
    actors_max: int = 1_000_000
    # parked requests of the node (about 120 bytes each); one more is answered BUSY instead of being parked
    actors_parked_max: int = 200_000
    # microseconds of one slice: the first request always, then until they are spent (QMQ 5 ms)
    actor_quantum_us: int = 5_000
    # microseconds; with more than 8 runnable actors the slice shrinks in proportion, not under this
    actor_slice_min_us: int = 500
    # milliseconds without work after which an actor that nobody holds is given up; 0: never
    actor_idle_ms: int = 60_000
    # milliseconds that an actor pauses after a failed request, doubled each time in a row up to the second number
    actor_pause_ms: int = 10
    actor_pause_ms_max: int = 1_000

    # --- memory of the process --------------------------------------------------------------------------------------
    # bytes of a block that comes from the kernel and goes back when it is freed, and free bytes that a heap of the allocator may keep at
    # its end; larger ones made the heaps of the data plane's threads keep 200 MiB (allocator.py)
    heap_block_max: int = MIB
    heap_kept: int = 2 * MIB

    # --- spans of messages (docs/OPERATIONS.md, OpenTelemetry) ------------------------------------------------------------
    # spans that wait for the collector, some 1 KiB each; a virtual host gets no more than the free room beside its own. What finds no
    # room is dropped and counted
    spans_max: int = 8_192
    # spans of one request to the collector, and milliseconds between two requests while there are fewer
    spans_batch: int = 512
    spans_pause_ms: int = 2_000
    # milliseconds for the collector to take a batch; then it is tried again, after a pause that doubles up to the second number,
    # `spans_tries` times in all
    spans_answer_ms: int = 10_000
    spans_retry_ms_max: int = 30_000
    spans_tries: int = 6
    # milliseconds that the last batch may take when the broker stops
    spans_stop_ms: int = 1_000


@slotted(eq=False)
class Config:
    """What `flintmq serve` was asked to do. Ports: 0 picks a free one, None is off."""

    host: str = "127.0.0.1"
    port: int | None = 5672
    # listened on with tls_cert only
    tls_port: int | None = 5671
    # addresses and networks of proxies: AMQP's connections from there begin with a header of the PROXY protocol; empty: it is not read
    proxy_from: tuple[str, ...] = ()
    # the same for HTTP: a proxy may speak for clients of one of the two only
    http_proxy_from: tuple[str, ...] = ()
    # path of a Unix domain socket for AMQP, and its permissions; None: there is none
    unix_socket: str | None = None
    unix_socket_mode: int = 0o600
    # AMQP over WebSocket, with TLS where there is a certificate; None: off. Pages of these origins may use it ("*": of any)
    websocket_port: int | None = None
    websocket_origins: tuple[str, ...] = ()
    # management, pulls over HTTP: off unless asked for (`flintmq serve` asks for 15672)
    http_port: int | None = None
    # further names by which HTTP clients may call the broker (Host header); "*": any
    http_hosts: tuple[str, ...] = ()
    # a port for metrics and health alone, beside that of HTTP; None: there is none
    metrics_port: int | None = None
    # whether metrics need no login wherever they are asked for from; False: on a loopback listener only
    metrics_public: bool = False
    # hosts that shovels and federation may reach (moves.hosts); empty: an administrator's any, other users' none
    shovel_hosts: tuple[str, ...] = ()
    # Arrow Flight: off unless asked for (`flintmq serve` asks for 15680); its process starts with the first connection, or at once
    flight_port: int | None = None
    flight_start: str = ON_DEMAND
    data_dir: str | None = None
    store_dir: str | None = None
    no_data_dir: bool = False
    memory: bool = False
    connect: str | None = None
    # the engine (engines/opening.py) of the cluster (cluster/view.py) that this node is a member of; None: it is alone, and its shared
    # queues are in shared_queues.db of the store directory
    cluster: str | None = None
    # authorities (PEM) of other nodes' certificates: nodes are reached by TLS on their ports for it, and show their own certificate; None:
    # without TLS
    cluster_ca: str | None = None
    # its name there (None: flintmq@ and the machine's, and a part of the store's id), and the host in its addresses (None: `host`, or the
    # machine's name where that is any address)
    node_name: str | None = None
    advertise_host: str | None = None
    catalog: str | None = None
    container_size: int = 4 * MIB
    initial_containers: int = 2
    max_write_buffers: int = 10
    # dead log containers are kept readable for the pipeline: bytes per log, and seconds (0: off)
    log_retain_bytes: int = 256 * MIB
    log_retain_age: int = 86_400
    # directory for copies of dead containers, made before their files are used again or removed; None: no copies
    log_archive_dir: str | None = None
    # the log is written around the page cache where the file system is known to do that well (docs/adr/0007-direct-writes.md)
    direct_io: bool = True
    tls_cert: str | None = None
    tls_key: str | None = None
    # certificates of those who sign clients' certificates (PEM): clients that show one may log in with EXTERNAL; None: none is asked for
    tls_ca: str | None = None
    # clients of AMQP without such a certificate are not let in
    tls_require_client: bool = False
    # what of a client's certificate names the user: distinguished_name, common_name, subject_alternative_name
    tls_login_from: str = "distinguished_name"
    # SASL mechanisms that AMQP offers to everybody, in the order of preference (access.mechanisms.MECHANISMS)
    auth_mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    # OAuth 2 (docs/ACCESS.md): the name of this broker in `aud`; None: tokens are not looked at. Then: place of the keys (path or URL), who
    # signs that server's certificate, `iss`, prefix of scopes (None: the name and a dot), further claims with scopes, claims that may name
    # the user, algorithms that are accepted, whether `aud` must name the broker
    oauth_resource_server_id: str | None = None
    oauth_jwks: str | None = None
    oauth_ca: str | None = None
    oauth_issuer: str | None = None
    oauth_scope_prefix: str | None = None
    oauth_scopes_claims: tuple[str, ...] = ()
    oauth_username_claims: tuple[str, ...] = ("sub", "client_id")
    oauth_algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    oauth_verify_audience: bool = True
    # LDAP (docs/ACCESS.md): servers; none: passwords are the broker's. Then: whether TLS begins with STARTTLS, who signs the servers'
    # certificates (None: whom the system trusts), the DN of a user with ${username}, where and by which attribute users are looked for, as
    # whom, where groups are looked for (None: the same place), and queries (access/ldap_queries.py). Without one for virtual hosts only
    # users of the broker who have no password are let in
    ldap_urls: tuple[str, ...] = ()
    ldap_starttls: bool = False
    ldap_ca: str | None = None
    ldap_user_dn: str | None = None
    ldap_base: str | None = None
    ldap_attribute: str = "uid"
    ldap_bind_dn: str | None = None
    ldap_bind_password_file: str | None = None
    ldap_group_base: str | None = None
    ldap_vhost_query: str | None = None
    ldap_resource_query: str = "{constant, true}"
    ldap_topic_query: str = "{constant, true}"
    ldap_tag_queries: tuple[str, ...] = ()
    # OpenTelemetry: the collector (http or https URL; None: no spans), and the share of sampled traces that get spans, above 0 to 1
    otel_endpoint: str | None = None
    otel_sample: float = 1.0
    # file of refused accesses and of changes of definitions; None: they are in the log only
    audit_log: str | None = None
    # lines of the log are messages, too (broker.log_exchange)
    log_exchange: bool = False
    io_threads: int = 1
    log_level: str = "info"
    # listening sockets that the service manager opened: (amqp, amqps, http or flight, descriptor); the ports above are not opened then
    inherited: tuple[tuple[str, int], ...] = ()
    # bytes held for clients at which publishers are blocked; None: Limits.memory_watermark of the machine's or cgroup's memory
    memory_limit: int | None = None
    # bytes of the disk below which publishers are blocked; None, or fewer than the log itself needs: what that needs (store/log/space.py)
    disk_free_limit: int | None = None
    # bytes of contents in memory below which a queue keeps more than Limits.queue_hot_bytes; None: a share of memory_limit; 0: none does
    content_memory: int | None = None
    limits: Limits = field(default_factory=Limits)

    def with_limits(self, **changes: Any) -> Config:
        """A copy with some limits changed (tests, configuration file)."""
        return replaced(self, limits=self.limits.replace(**changes))

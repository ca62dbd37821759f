"""Limits of HTTP (docs/HTTP.md), as those in `flintmq.config`."""

from __future__ import annotations

from flintmq.config.frozen import Frozen
from flintmq.config.units import KIB, MIB


class HttpLimits(Frozen):
    """Pulls, the management API, the console."""

    # --- pulls (docs/HTTP.md) -----------------------------------------------------------------------------------------
    # messages of one pull (QMQ caps at 10,000; its answer is one JSON document); a larger count is refused
    pull_messages_max: int = 1_000
    # bytes of messages (bodies, headers, routes) of one pull, the message that reaches it not counted; a larger number is refused. A get of
    # RabbitMQ's API ends before it, and has one message at least
    pull_bytes_max: int = 8 * MIB
    # milliseconds that the first pull of a stream's group waits until the group's place is on disk; then 503, and the next pull waits again
    pull_place_ms: int = 5_000
    # milliseconds a pull may wait for messages (seed 002: 60 s); a longer hold is refused
    pull_hold_ms_max: int = 60_000
    # milliseconds beyond its hold that a pull may wait for its turn (QMQ 5 s); then it is answered EXPIRED
    pull_wait_ms_max: int = 5_000
    # milliseconds that a pull waits for a message that is being read from disk, even without a hold (at most pull_wait_ms_max); then it
    # is answered BUSY
    pull_load_ms: int = 2_000
    # milliseconds a lease is good for unless the pull says otherwise, and what it may say; then the message goes back, flagged redelivered
    pull_visibility_ms: int = 30_000
    pull_visibility_ms_min: int = 1_000
    pull_visibility_ms_max: int = 43_200_000
    # messages one group has handed out and that are neither settled nor back (48 bytes each); a pull is answered BUSY above it
    pull_leases_max: int = 100_000
    # groups of pulls of the node (about 1 KiB each with their actor); a pull of one more is refused BUSY
    pull_groups_max: int = 10_000
    # share of them that pulls of one user may begin while there are other users; a pull of one more is refused BUSY
    pull_groups_user_share: float = 0.75
    # milliseconds that a stop waits for pulls that a worker has begun (they only take what is in memory)
    pull_close_ms: int = 2_000
    # milliseconds after which a group that nobody pulls from, and that holds nothing, leaves its queue
    pull_idle_ms: int = 10_000
    # milliseconds between two looks at what ends (leases, delays, visibility times of streams' groups), at least: a look costs a tenth of a
    # microsecond a group; what ends in between waits for the next one
    due_gap_ms: int = 10

    # --- HTTP (docs/HTTP.md) ------------------------------------------------------------------------------------------
    # connections; held polls are one each (2,000 are promised); at the limit one of the address with most of them makes room, counted
    http_connections_max: int = 4_096
    # share of them on which one user may hold polls while there are other users; one poll more is refused with 503
    http_held_user_share: float = 0.75
    # share of the bytes of bodies and answers, of event streams, long calls, scrapes and logins that one user may have, of what it has and
    # what is free (core.shares): one alone half, two a third each; and that one source (address) may have; more is 503
    http_user_share: float = 0.5
    http_source_share: float = 0.75
    # bytes that answers on their way keep in memory: messages that were taken, lists that are being sent; above it 503
    http_answers_bytes_max: int = 512 * MIB
    # bytes of a page of a list of RabbitMQ's API; it ends there and says so (`cut`)
    http_page_bytes_max: int = 16 * MIB
    # messages of one get of RabbitMQ's API, and gets that run at once; more messages are left, and the answer says so; more gets are 503
    http_get_messages_max: int = 50_000
    http_gets_max: int = 64
    # milliseconds from accepting a connection, or from the last answer on it, to the end of a request's head, and for which a client may
    # read nothing of its answer; then it is closed
    http_request_ms: int = 20_000
    # bytes of a request's line and headers; more is refused with 400 or 431
    http_head_bytes_max: int = 16 * KIB
    # bytes of a request's body: of a message published as it is (application/octet-stream), and of JSON; more is refused with 413. Python's
    # parser holds the interpreter, and the I/O loops with it, for up to 20 ns a byte, and the collector doubles that: 2 to 3 ms here
    http_publish_bytes_max: int = 16 * MIB
    http_json_bytes_max: int = 128 * KIB
    # bytes of a definitions file that an administrator imports; parsing one holds the interpreter for some 10 ms a MiB. A larger one is
    # 413:
    # import it in parts
    http_definitions_bytes_max: int = 4 * MIB
    # bytes of all requests' bodies of which the rest is waited for (4,096 of 16 MiB would be 64 GiB); above it 503
    http_arriving_bytes_max: int = 256 * MIB
    # milliseconds that a request's body may take to arrive; then 408
    http_body_ms: int = 20_000
    # leases of one ack, nack or extend, and characters of one; more are refused with 400
    http_leases_max: int = 1_000
    http_lease_max: int = 64
    # milliseconds that the answer to a publish waits for the disk; then 503: the message may be there
    http_durable_ms: int = 30_000
    # sessions of the console, of all users and of one (about 500 bytes each); one more ends the one that was used least lately
    http_sessions_max: int = 4_096
    http_sessions_user_max: int = 32
    # milliseconds that a session lasts (RabbitMQ's login_session_timeout: 8 hours), that it lasts without a request (an open page asks each
    # few seconds), and that it lasts for a user of a directory, which is not asked meanwhile; then the console asks for the password
    http_session_ms: int = 28_800_000
    http_session_idle_ms: int = 3_600_000
    http_session_outside_ms: int = 3_600_000
    # requests that wait for a password check; one more is refused with 503
    http_logins_max: int = 256
    # milliseconds that answers may take to leave when the broker stops; then their connections are cut
    http_stop_ms: int = 2_000

    # --- management under /api/v1, console (docs/HTTP.md) ---------------------------------------------------------------
    # messages that one peek shows, bytes of bodies in its answer, bytes of one body unless the peek says otherwise; more is refused with
    # 400, a longer body is cut and says so
    peek_messages_max: int = 100
    peek_bytes_max: int = 1 * MIB
    peek_body_bytes: int = 4 * KIB
    # messages, bytes of bodies and milliseconds of one search; it ends there and says where the next one goes on
    search_messages_max: int = 1_000
    search_bytes_max: int = 16 * MIB
    search_ms: int = 500
    # messages that one search, or one move, looks at before other requests have their turn
    search_slice: int = 32
    # bytes of a body that a search reads as JSON (Python's parser takes up to 20 ns a byte of the interpreter); a longer one does not match
    search_json_bytes_max: int = 128 * KIB
    # messages of one move; more are refused with 400: move in parts
    move_messages_max: int = 1_000
    # peeks, searches, moves, route tests and topologies that run at once (http_user_share of them one user's); one more is refused with 503
    long_calls_max: int = 16
    # bindings that a route test explains, and steps of matching that it takes for them; the rest is counted, not explained
    why_bindings_max: int = 500
    why_steps_max: int = 100_000
    # exchanges and queues of one topology; more are left out and counted
    topology_nodes_max: int = 400
    # answers of /metrics that are on their way at once (http_user_share of them one user's; some 150 bytes for each line are held until the
    # client has read it); one more is refused with 503
    metrics_answers_max: int = 16
    # groups of streams of one virtual host that have lines of their own; the rest is counted
    metrics_groups_max: int = 1_000
    # consumers of a queue that are shown with their figures; the rest is counted
    consumers_shown_max: int = 1_000
    # clients of event streams (http_user_share of them one user's); one more is refused with 503
    sse_clients_max: int = 512
    # events that wait for one client (a slow one loses the oldest and is told how many), and characters of a log line that one gets
    sse_waiting_max: int = 256
    sse_text_max: int = 2_000
    # milliseconds between two looks of a stream at its broker (it stops, the user is gone), and between two beats of a quiet stream
    sse_look_ms: int = 500
    sse_beat_ms: int = 15_000
    # milliseconds between two overviews, and events of the past that are kept for a client that comes
    sse_overview_ms: int = 1_000
    events_kept: int = 200
    # queues that have samples of their own (4 KiB each); for one more the one that nothing happened to for the longest time loses its own
    samples_queues_max: int = 2_000

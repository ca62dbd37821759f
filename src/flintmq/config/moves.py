"""Limits of shovels and federation (docs/SHOVEL.md), as those in `flintmq.config`."""

from __future__ import annotations

from flintmq.config.frozen import Frozen
from flintmq.config.units import KIB


class MovesLimits(Frozen):
    """Links, and what the process that moves messages may take."""

    # links (a shovel, a federated exchange or queue with one upstream) of a virtual host, of a user, of the node: each has two
    # connections and up to 1 MiB of buffers in the process that moves messages; one more shovel is refused with 400, one more link than the
    # node takes says so in its status
    links_vhost_max: int = 64
    links_user_max: int = 64
    links_max: int = 256
    # bytes of a frame that a link takes (RabbitMQ's default); a larger one ends the link
    shovel_frame_max: int = 128 * KIB
    # bytes of a connection's input buffer, at most; two frames fit. What does not fit stays in the socket
    shovel_input_bytes: int = 256 * KIB
    # milliseconds for a name, for a connection, and for each step of the handshake; then the next address, and the next URI
    shovel_connect_ms: int = 10_000
    # names of hosts that are looked up at once: of the process, and of one user's links; more wait for their turn, as long as
    # `shovel_connect_ms`. A thread each: a name server that does not answer holds one for some 40 s
    shovel_names_max: int = 64
    shovel_names_user_max: int = 2
    # milliseconds for the answer to a declaration; then the link begins again
    shovel_answer_ms: int = 30_000
    # milliseconds for the answer to connection.close; then the socket is closed
    shovel_close_ms: int = 2_000
    # seconds between heartbeats, unless the URI says otherwise; after two without a byte the link begins again
    shovel_heartbeat_s: int = 30
    # seconds between two tries of a link, at most: `reconnect-delay` is doubled up to here while nothing is moved
    shovel_pause_s_max: int = 60
    # milliseconds before a process that died is started again, doubled each time up to the second number
    shovel_restart_ms: int = 500
    shovel_restart_ms_max: int = 30_000
    # milliseconds for the process to exit by itself; then it is killed
    shovel_end_ms: int = 3_000
    # milliseconds between two looks at the rights of links' owners, and two reports of counters
    shovel_look_ms: int = 1_000
    # milliseconds between two looks at federated queues: whether their consumers want messages of the upstream
    federation_look_ms: int = 100
    # the same while one of them wants some: for each look it gets its `prefetch-count` at most
    federation_busy_ms: int = 20
    # bindings of a federated exchange, which its links pass on; with more they end, and say so
    federation_bindings_max: int = 10_000
    # how much lower than the broker's the priority of the process is (nice)
    shovel_nice: int = 5

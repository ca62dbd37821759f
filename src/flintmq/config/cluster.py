"""Limits between the nodes of a cluster (flintmq.cluster), as those in `flintmq.config`."""

from __future__ import annotations

from flintmq.config.frozen import Frozen
from flintmq.config.units import KIB, MIB


class ClusterLimits(Frozen):
    """Connections from a node to another one, and what is under way on them."""

    # channels of a connection of another node: one for each consumer of its clients; AMQP has numbers of 16 bits; the next is refused
    cluster_channels_max: int = 65_535
    # milliseconds from the first byte to an open connection: nodes of a cluster are near each other; after that one counts as not reached
    cluster_connect_ms_max: int = 3_000
    # milliseconds between signs of life on a connection; after two without a byte it counts as lost, when the node's lease is over, too
    cluster_heartbeat_ms: int = 3_000
    # milliseconds for which a connection, or a channel for publishes, is kept without use; then it is closed
    cluster_idle_ms: int = 60_000
    # bytes of messages of one queue that were sent to its owner and not answered; what is above waits on this node
    cluster_flight_bytes_max: int = 4 * MIB
    # messages, and bytes by their average size so far, that wait on a client's node for a consumer without a limit of its own; more
    # wait at the owner, until the client has been sent half of them
    cluster_window_messages: int = 500
    cluster_window_bytes: int = 4 * MIB
    # messages and settlements that are handed to connections before answers are read again: some 5 ms
    cluster_items_at_once: int = 500
    # requests of a node that another one has not answered; one more is refused, and its caller asks again
    cluster_requests_max: int = 64
    # bytes of a request; of an answer: one message of a shared queue, and less than 2 MiB of others; a larger one counts as none
    cluster_request_bytes_max: int = 256 * KIB
    cluster_answer_bytes_max: int = 132 * MIB
    # bytes of one message of an answer: other nodes' answers have their turn between two
    cluster_piece_bytes: int = 256 * KIB
    # milliseconds until the caller of a request is told that the other node does not answer
    cluster_request_ms_max: int = 5_000
    # bytes of an answer over HTTP that a queue's owner collects for another node, in the account of answers; a longer one is refused: half
    # of the messages of a pull, as JSON
    cluster_forward_bytes_max: int = 16 * MIB
    # bytes of messages of a `get` for another node: they are gone when the answer is made, so it always has room, six times as large as
    # JSON; a larger message stays, and its client is told to ask the owner
    cluster_forward_get_bytes_max: int = 2 * MIB
    # milliseconds that a pull waits at the owner before it is asked for again: less than cluster_request_ms_max
    cluster_forward_hold_ms: int = 3_000
    # milliseconds that consumers have to give back what they hold of a queue that moves; then it goes with all its messages flagged
    cluster_move_ms_max: int = 6_000
    # milliseconds that clients of other nodes have to do so, at a node that is drained; then the connections of these nodes are closed:
    # longer than shared_poll_ms, after which they close their clients themselves
    cluster_move_calm_ms: int = 1_500
    # milliseconds between two looks whether they have
    cluster_move_look_ms: int = 20
    # queues that a drained node hands over at once: each is a scan of its rows for the node that takes it
    cluster_moves_max: int = 16
    # milliseconds between two looks at the room that an engine has
    cluster_room_ms: int = 10_000
    # share of an engine's quota above which publishers to shared queues wait, and what can't wait is refused; below the second one they go
    # on; above the third one all is refused: ends, moves and signs of life need what is left
    cluster_room_used: float = 0.8
    cluster_room_used_low: float = 0.75
    cluster_room_used_max: float = 0.9
    # queues of which one answer about the cluster tells messages, and owners that are asked in shared_poll_ms for answers about queues:
    # each is a request
    cluster_counts_max: int = 100
    # milliseconds between two looks whether an empty queue is better where its consumers are, and looks in a row that say so: five minutes,
    # since its consumers have to connect again
    cluster_placement_ms: int = 30_000
    cluster_placement_looks: int = 10

"""Connections that an operator ends: those of a user, a virtual host, a node that is drained.

in: virtual hosts that were deleted, users that are gone, orders. out: connections that are told why they end; queues of a deleted virtual
host that end behind them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.errors import ReplyCode
from flintmq.guard import guarded

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState
    from flintmq.channel.loop_port import LoopPort

# queues of a deleted virtual host that end in one slice
ENDS_AT_ONCE = 32
# connections that are told to go in one slice
CLOSES_AT_ONCE = 64


def close_connections(state: NodeState, which: Callable[[Client], bool], text: str) -> int:
    """Closes connections with 320 CONNECTION_FORCED and `text`, each on its own loop, in slices. Returns how many. Any thread."""
    state.forbid_old_openings()
    chosen = [client for client in list(state.connections.values()) if which(client)]

    def some() -> bool:
        for _ in range(min(CLOSES_AT_ONCE, len(chosen))):
            client = chosen.pop()
            state.loops.run_on(client, partial(guarded, "connections that are closed", client.name, _close, client, text))
        return not chosen

    count = len(chosen)
    if chosen:
        state.loops.in_slices(some)
    return count


def close_one(state: NodeState, client: Client, text: str) -> None:
    """Closes one connection as `close_connections`. Any thread."""
    state.loops.run_on(client, partial(guarded, "connections that are closed", client.name, _close, client, text))


def _close(client: Client, text: str) -> None:
    if not client.is_open:
        return
    client.close(ReplyCode.CONNECTION_FORCED, f"CONNECTION_FORCED - {text}")
    if client.socket is not None:
        client.loop.touch(client.socket)


def end_vhost(state: NodeState, name: str, done: Callable[[bool], object]) -> None:
    """A virtual host whose definitions are gone: nobody opens it any more, its connections are closed with RabbitMQ's text, its queues
    end in slices; then `done`. Any thread."""
    vhost = state.vhosts.pop(name, None)
    if vhost is None:
        done(True)
        return
    vhost.deleted = True
    state.forbid_old_openings()
    remaining, lock = [len(state.loops) or 1], threading.Lock()

    def ended(whole: bool) -> None:
        state.counters.vhost_leaves(name)
        done(whole)

    def closed(whole: bool) -> None:
        with lock:
            remaining[0] -= 1
            last = not remaining[0]
        if last:
            state.loops.in_slices(partial(vhost.end_some, ENDS_AT_ONCE), ended)

    if not state.loops:
        closed(True)
    # On its loop each connection is found, whether it was opened before or while this runs, and what it had sent is done with: no publish
    # is on its way to the queues when they end.
    for loop in state.loops:
        loop.job(partial(_close_some, state, loop, vhost), closed)


def _close_some(state: NodeState, loop: LoopPort, vhost: Any) -> bool:
    """On the loop: some of its connections in a deleted virtual host. True: there are no more."""
    clients = [one for one in list(state.connections.values()) if one.vhost is vhost and one.loop is loop and not one.ended]
    for client in clients[:CLOSES_AT_ONCE]:
        guarded("connections that are closed", client.name, _close, client, f"vhost '{vhost.name}' is deleted")
    return len(clients) <= CLOSES_AT_ONCE

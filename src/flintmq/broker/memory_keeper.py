"""The thread that keeps memory in bounds: the connections that cause a shortage are the first that wait for its end.

in: the account of memory (core/memory_account), queues, connections. out: bodies that leave memory, connections that are spared or closed.

K1  Nothing here is on the way of a message. A round begins only when memory is used (memory_sweep_least); queues without bodies in
    memory cost one look each.
K2  A shortage ends by itself: what can be read back from the log is evicted, what keeps thin chunks is moved (queue/sweep.py). What keeps
    thin chunks is moved without a shortage, too, when there are many of them (thin_chunks.py).
K3  While memory is short, publishers of virtual hosts whose queues hold less than memory_spared of the limit go on up to the hard limit.
K4  While it is short and connections themselves hold (messages not complete, open transactions, output, unacked maps) more than
    memory_spared of the limit, the user who holds most loses the connection that holds most: 506, one a round.
K5  The same happens, also when memory is not short, to a user whose connections hold more than user_memory_share of the limit while
    another user is connected.
K6  Messages and definitions count for the virtual host of their queue (K3), what a connection holds for its user (K4, K5).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.thin_chunks import ThinChunks
from flintmq.core.content import give_back_chunks, thin_bytes
from flintmq.core.memory_account import bytes_by_kind, bytes_held
from flintmq.errors import ReplyCode
from flintmq.queue.sweep import Sweeper

if TYPE_CHECKING:
    from flintmq.broker.client import Client
    from flintmq.broker.state import NodeState

log = logging.getLogger("flintmq.memory")

# queues between two moments in which others get the GIL
QUEUES_AT_A_TIME = 200
# a round, and a look at thin chunks, take these shares of the thread's time at most, so that a node with very many queues isn't swept all
# the time
SHARE = 0.05
THIN_SHARE = 0.25


class MemoryKeeper:
    """Args: memory_limit: bytes; loops: of the node, to reach connections on their own threads."""

    def __init__(self, state: NodeState, loops: list[Any], memory_limit: int) -> None:
        self.state = state
        self.loops = loops
        self.memory_limit = memory_limit
        self.limits = state.limits
        self.sweeper = Sweeper()
        self.rounds = 0
        self.closed = 0
        self._narrowing = False
        self._weighing: set[Any] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.thin = ThinChunks(state, loops, self.sweeper, self._stopping.is_set)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="flintmq-memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No round begins after this, and none is under way. Again is no error."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self.state.log is not None:
                self.sweeper.forget(self.state.log)

    def _run(self) -> None:
        pause = self.limits.memory_sweep_ms / 1000
        wait, due = self.thin.pause_s, time.monotonic() + pause
        while not self._stopping.wait(wait):
            began = time.monotonic()
            self._guard("a look at thin chunks", self.thin.look)
            looked = time.monotonic()
            if looked >= due:
                self._guard("a look at the queues' windows", self.narrow)
                narrowed = time.monotonic()
                self._guard("a round of the memory keeper", self.round)
                ended = time.monotonic()
                due = ended + max(pause, (ended - narrowed) / SHARE)
            wait = min(max(self.thin.pause_s, (looked - began) / THIN_SHARE), max(due - time.monotonic(), 0.001))

    @staticmethod
    def _guard(work: str, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception:
            log.exception("internal error: %s failed", work)

    def narrow(self) -> None:
        """Queues that keep more than their windows and rest go back to them. O(1) when there are none."""
        before = self.sweeper.evicted
        if self.state.log is not None:
            self.sweeper.narrow(self.state.log, self.limits.queues_rest_bytes_max)
        if self.sweeper.evicted != before:
            self._narrowing = True
        elif self._narrowing:
            self._narrowing = False
            give_back_chunks()  # else up to 16 MiB of what left memory would wait for the next rush

    def round(self) -> None:
        """One look, and what follows from it. O(queues) when memory is used, and O(entries) of those with something to do."""
        held = bytes_held()
        if held < min(self.limits.memory_sweep_least, self.memory_limit // 2):
            return
        self.rounds += 1
        low = held >= self.memory_limit * self.limits.memory_sweep_low
        of_vhost: Counter[str] = Counter()
        for number, queue in enumerate([*self.state.queues.values(), *self.state.reply_queues.values()]):
            if number % QUEUES_AT_A_TIME == QUEUES_AT_A_TIME - 1:
                time.sleep(0.0005)
                if self._stopping.is_set():
                    break
            resident = queue.core.resident_bytes
            if resident:
                of_vhost[queue.vhost] += resident
                self.sweeper.queue(queue.core, low)
        self.sweeper.end()
        defined = sum(vhost.holding.bytes for vhost in list(self.state.vhosts.values()))
        others = held - sum(of_vhost.values()) - defined
        if low:
            self._share(of_vhost, held)
        if held > self.memory_limit:
            if self.state.streams is not None:
                self.state.streams.forget_hot()
            self._forget_routes()
        # The other bytes may be of connections, which are looked at only when there are enough of them to matter.
        if held > self.memory_limit or others > self.memory_limit * self.limits.user_memory_share:
            self._weigh(held > self.memory_limit)

    def _forget_routes(self) -> None:
        """Memory is short and remembered routes are a part of it: they are found anew."""
        if bytes_by_kind()["routes"] > self.memory_limit * self.limits.memory_spared:
            self.state.routes.forget_all()

    # --- who waits first ------------------------------------------------------------------------------------------------

    def _share(self, of_vhost: Counter[str], held: int) -> None:
        """K3."""
        most = self.memory_limit * self.limits.memory_spared
        for vhost in list(self.state.vhosts.values()):
            of_vhost[vhost.name] += vhost.holding.bytes
        for client in list(self.state.connections.values()):
            socket = client.socket
            if socket is None or client.vhost is None:
                continue
            socket.spared = of_vhost[client.vhost.name] < most
            # It was held before it was known to be innocent.
            if socket.spared and client.is_blocked and held < self.memory_limit * 5 // 4:
                client.loop.call(partial(self._let_go, client))

    @staticmethod
    def _let_go(client: Client) -> None:
        """On the client's own loop. A full disk is everybody's: whoever waits for that goes on waiting."""
        if not client.loop.disk_low:
            client.unblocked()

    def _weigh(self, short: bool) -> None:
        """K4, K5: connections are weighed on their own threads; who answers last draws the conclusion."""
        if self._weighing:
            return  # a loop has not come to it yet
        weights: list[tuple[int, Client]] = []
        self._weighing = set(self.loops)
        for loop in self.loops:
            loop.call(partial(self._weigh_loop, loop, weights, short))

    def _weigh_loop(self, loop: Any, weights: list[tuple[int, Client]], short: bool) -> None:
        for entry in loop.entries():
            client = None if entry.connection is None else entry.connection.handler
            if client is not None and not client.ended:
                if short:
                    entry.connection.leave_thin_chunks()
                weights.append((entry.connection.held_bytes + client.memory.held, client))
        self._weighing.discard(loop)
        if not self._weighing:
            self._close_heaviest(weights)

    def _close_heaviest(self, weights: list[tuple[int, Client]]) -> None:
        of_user: Counter[str] = Counter()
        for weight, client in weights:
            of_user[client.user] += weight
        if not of_user:
            return
        user, most = of_user.most_common(1)[0]
        short = bytes_held() > self.memory_limit and of_user.total() >= self.memory_limit * self.limits.memory_spared
        if not short and (len(of_user.keys() - {""}) < 2 or most <= self.memory_limit * self.limits.user_memory_share):
            return
        weight, heaviest = max(((weight, client) for weight, client in weights if client.user == user), key=lambda one: one[0])
        self.closed += 1
        why = "memory is low" if short else f"user '{user}' holds {most} bytes of memory, more than its share,"
        text = f"RESOURCE_ERROR - {why} and this connection holds {weight} bytes of messages and answers that are not complete"
        heaviest.loop.call(partial(self._close, heaviest, text))

    @staticmethod
    def _close(client: Client, text: str) -> None:
        if not client.ended:
            client.close(ReplyCode.RESOURCE_ERROR, text)
            if client.socket is not None:
                client.loop.touch(client.socket)

    # --- figures ----------------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Bytes held by kind, rounds, bodies evicted and copied since the start with their bytes, connections closed (K4)."""
        return {
            "held": bytes_by_kind(),
            "rounds": self.rounds,
            "evicted": self.sweeper.evicted,
            "evicted_bytes": self.sweeper.evicted_bytes,
            "copied": self.sweeper.copied,
            "copied_bytes": self.sweeper.copied_bytes,
            "thin": thin_bytes(),
            "closed": self.closed,
        }

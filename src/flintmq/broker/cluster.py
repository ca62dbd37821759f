"""This node as a member of a cluster: it says in the engine who it is, sees the others, and is drained when it is told so.

in: where the node listens; an order to be drained, of any node. out: the row of this node; all nodes, as they were a moment ago; a node
that serves nobody and holds nothing.

K1  Nobody waits for the engine but this thread. What others see of the cluster is the last answer, and its age.
K2  A drain goes one way: no new connections, then the open ones in slices, each after what it had not acked went back; then the leases of
    shared queues. A node that was drained serves again after a restart.
K3  A node whose name another one has is no member, says so once, and goes on with its shared queues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flintmq import __version__
from flintmq.broker.closing import close_connections
from flintmq.endpoint import endpoint
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught, guarded
from flintmq.kv.engine import Engine, EngineError
from flintmq.shared.members import (
    DOWN,
    DRAINED,
    DRAINING,
    UP,
    Member,
    NameTaken,
    NoMember,
    NotUp,
    StillUp,
    is_address,
    is_name,
    is_ordered,
    order_drain,
    read_members,
    remove_member,
    write_member,
)
from flintmq.shared.queue import Fenced

if TYPE_CHECKING:
    from flintmq.broker.shared_service import Done, SharedService
    from flintmq.broker.state import NodeState

log = logging.getLogger("flintmq.cluster")

# bytes of the hosts that connection.open-ok names
_KNOWN_HOSTS_BYTES = 255
_TEXT = "node is drained: connect to another one"


class Cluster:
    """Args: service: of shared queues; name: of this node; host: by which others reach it; store: id of its store, hex.

    Raises: ValueError: no node has such a name, or host: others would not read what this one says of itself.
    """

    def __init__(self, state: NodeState, service: SharedService, name: str, host: str, store: str) -> None:
        if not is_name(name):
            raise ValueError(f"--node-name {name!r} is no name of a node: 1 to 128 letters, digits and . _ @ -")
        if not is_address(endpoint(host, 1)):
            raise ValueError(f"{host!r} is no host that other machines could be told: give --advertise-host a name or an address")
        self._node = state
        self._service = service
        self._limits = self._node.limits
        self.name = name
        self._store = store
        self.where: Callable[[], Mapping[str, str]] = dict  # service -> host:port, once the listeners are open. Any thread
        self.on_drain: Callable[[], None] = lambda: None  # no new connections from then on. Any thread
        self._event = threading.Event()
        self._written: Member | None = None
        self._since_ms = self._node.clock.wall_ms()
        self._others: list[tuple[Member, bool]] = []
        self._read_s: float | None = None
        self.refused = 0  # rows that can't be read
        self.why_not = ""  # no member: the reason
        self.state = UP
        self.left = 0

    # --- any thread -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._event.set()

    def drain(self) -> None:
        """Begins to drain this node. Idempotent."""
        if self.state != UP:
            return
        self.state = DRAINING
        log.warning("this node is drained: no new connections, the open ones are closed, and leases of shared queues go back")
        self._node.draining = True
        guarded("a drain", "listeners", self.on_drain)
        self._event.set()

    def members(self) -> list[dict[str, object]]:
        """All nodes as they were when the engine was read last, this one first."""
        rows = [self._shown(self._me(b""), True)]
        rows += [self._shown(member, lives) for member, lives in self._others if member.name != self.name]
        return rows

    @property
    def age_s(self) -> float | None:
        """Seconds since the engine was read; None: never."""
        return None if self._read_s is None else time.monotonic() - self._read_s

    def addresses(self, service: str) -> list[str]:
        """Where clients that lose this node can go: nodes that are up and not drained, the others first."""
        found = [
            member.addresses.get(service, "") for member, lives in self._others if lives and member.state == UP and member.name != self.name
        ]
        if self.state == UP:
            found.append(self.where().get(service, ""))
        return [address for address in found if address]

    def known_hosts(self, secure: bool) -> bytes:
        """The same as connection.open-ok can say it, for a client with or without TLS: as many as fit, with commas."""
        hosts = b""
        for address in self.addresses("amqps" if secure else "amqp"):
            longer = hosts + (b"," if hosts else b"") + address.encode("ascii")
            if len(longer) > _KNOWN_HOSTS_BYTES:
                break
            hosts = longer
        return hosts

    def order(self, name: str, done: Done) -> None:
        """Asks a node to be drained. `done` on any thread; errors: PeerError: 404 no such node, 406 it is down, 541."""
        self._ask(order_drain, name, done)

    def remove(self, name: str, done: Done) -> None:
        """Forgets a node that is down. `done` on any thread; errors: PeerError: 404 no such node, 406 it is up, 541."""
        self._ask(remove_member, name, done)

    def _ask(self, verb: Callable[[Engine, str, int], None], name: str, done: Done) -> None:
        def run() -> None:
            engine, _ = self._service.node()
            try:
                verb(engine, name, self._limits.shared_patience_ms)
            except NoMember as error:
                raise PeerError(ReplyCode.NOT_FOUND, str(error)) from error
            except (NotUp, StillUp) as error:
                raise PeerError(ReplyCode.PRECONDITION_FAILED, str(error)) from error
            self._event.set()

        self._service.ask(run, done)

    def _me(self, life: bytes) -> Member:
        return Member(self.name, self._store, life, self.state, __version__, self.where(), self._since_ms, self.left)

    @staticmethod
    def _shown(member: Member, lives: bool) -> dict[str, object]:
        return {
            "name": member.name,
            "state": member.state if lives else DOWN,
            "version": member.version,
            "addresses": dict(member.addresses),
            "since_ms": member.since_ms,
            "left": member.left if lives else 0,
        }

    # --- the thread -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the broker stops."""
        service = self._service
        while not service.stopping:
            if self.state != UP:
                guarded("a drain", "connections", self._drain_some)
            try:
                engine, owners = service.node()
                self._say(engine, owners.owner)
                if self.state == UP and is_ordered(engine, self.name, owners.owner):
                    self.drain()
                self._others, self.refused = read_members(engine, self._limits)
                self._read_s = time.monotonic()
            except EngineError as error:
                log.debug("the cluster was not read: %s", error)
            except Exception as error:
                caught("the cluster", f"node {self.name!r}", error)
            self._event.wait(self._limits.shared_poll_ms / 1000)
            self._event.clear()

    def _say(self, engine: Engine, life: bytes) -> None:
        member = self._me(life)
        if member == self._written:
            return
        try:
            write_member(engine, member, self._limits.shared_patience_ms)
        except NameTaken as error:
            if not self.why_not:
                log.error("this node is no member of its cluster: %s. Give it another --node-name", error)
            self.why_not = str(error)
        except Fenced:
            pass  # its next life says so
        else:
            if self.why_not or self._written is None:
                log.info("this node is %r in its cluster", self.name)
            self._written, self.why_not = member, ""

    def _drain_some(self) -> None:
        """The next connections; then what the leases of shared queues are still about."""
        chosen = set(list(self._node.connections)[: self._limits.cluster_drain_connections])
        if chosen:
            close_connections(self._node, lambda client: client.connection_id in chosen, _TEXT)
        self._service.give_back_all()
        self.left = len(self._node.connections) + self._service.holds()
        state = DRAINING if self.left else DRAINED
        if state != self.state:
            log.warning("this node is %s", "drained: it can be stopped" if state == DRAINED else "drained further: something came")
        self.state = state

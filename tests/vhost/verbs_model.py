"""A virtual host whose verbs wait for a database, beside a model that knows no waiting: each verb happens whole, when it is answered.

in: steps of a test: a client asks, the database answers or refuses, a loop runs what it was called with, the node dies. out: AssertionError
where the virtual host, its database and the model differ.

Two loops, each with two connections; a connection has one verb on its way, as nothing more of it is read before the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flintmq.errors import PeerError, StoreError
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.changes import Change
from flintmq.vhost.changes import Verb, _apply

from .fakes import World

Request = tuple[str, tuple[Any, ...], dict[str, Any]]
LOOPS = 2
CLIENTS = 4


class Database(MemoryDefinitions):
    """Commits what was submitted when the test says so, in the order of submission."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[tuple[Sequence[Change], Callable[[Exception | None], None], Client | None]] = deque()
        self.asking: Client | None = None  # whose verb runs now

    def submit(self, changes: Sequence[Change], callback: Callable[[Exception | None], None]) -> None:
        self.waiting.append((changes, callback, self.asking))
        if self.asking is not None:
            self.asking.submitted = True

    def commit(self) -> None:
        """The oldest transaction is durable. The broker learns it with `tell`, unless the node dies before."""
        changes, _callback, client = self.waiting[0]
        for change in changes:
            _apply(self, change)
        if client is not None:
            client.durable = True

    def tell(self, error: Exception | None = None) -> None:
        self.waiting.popleft()[1](error)


class Client:
    """A connection. `calls`: of its loop."""

    def __init__(self, number: int, calls: deque[Callable[[], None]]) -> None:
        self.number = number
        self.calls = calls
        self.alive = True
        self.request: Request | None = None
        self.submitted = self.durable = False


class Refusal(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Model:
    """What the virtual host should have. Queues: name -> (durable, owner); exchanges: name -> durable; bindings: (queue, exchange, key)."""

    def __init__(self) -> None:
        self.queues: dict[str, tuple[bool, int | None]] = {}
        self.exchanges: dict[str, bool] = {}
        self.bindings: set[tuple[str, str, bytes]] = set()

    def do(self, request: Request, ready: int = 0) -> Any:
        """The verb at once. Raises: Refusal."""
        verb, arguments, options = request
        return getattr(self, verb)(*arguments, **options, **({"ready": ready} if options.get("if_empty") else {}))

    def _queue(self, name: str, client: int) -> None:
        if name not in self.queues:
            raise Refusal(404)
        if self.queues[name][1] not in (None, client):
            raise Refusal(405)

    def declare_queue(self, name: str, connection_id: int, passive: bool = False, durable: bool = False, exclusive: bool = False) -> str:
        if passive:
            self._queue(name, connection_id)
            return name
        owner = connection_id if exclusive else None
        durable = durable and not exclusive
        if name in self.queues:
            if self.queues[name][1] != owner:
                raise Refusal(405)
            if self.queues[name][0] != durable:
                raise Refusal(406)
        self.queues[name] = durable, owner
        return name

    def delete_queue(self, name: str, connection_id: int, if_empty: bool = False, ready: int = 0) -> Any:
        if name not in self.queues:
            return 0
        self._queue(name, connection_id)
        if if_empty and ready:
            raise Refusal(406)
        del self.queues[name]
        self.bindings = {one for one in self.bindings if one[0] != name}
        return ...

    def declare_exchange(self, name: str, kind: str, durable: bool) -> str:
        if self.exchanges.get(name, durable) != durable:
            raise Refusal(406)
        self.exchanges[name] = durable
        return name

    def delete_exchange(self, name: str, if_unused: bool = False) -> bool:
        if name not in self.exchanges:
            return False
        if if_unused and any(one[1] == name for one in self.bindings):
            raise Refusal(406)
        del self.exchanges[name]
        self.bindings = {one for one in self.bindings if one[1] != name}
        return True

    def bind_queue(self, queue: str, exchange: str, key: bytes, arguments: None, connection_id: int) -> bool:
        if exchange not in self.exchanges:
            raise Refusal(404)
        self._queue(queue, connection_id)
        new = (queue, exchange, key) not in self.bindings
        self.bindings.add((queue, exchange, key))
        return new

    def unbind_queue(self, queue: str, exchange: str, key: bytes, arguments: None, connection_id: int) -> bool:
        if exchange not in self.exchanges or queue not in self.queues:
            return False
        self._queue(queue, connection_id)
        known = (queue, exchange, key) in self.bindings
        self.bindings.discard((queue, exchange, key))
        return known

    def restart(self) -> None:
        """What is not durable is gone."""
        self.queues = {name: one for name, one in self.queues.items() if one[0]}
        self.exchanges = {name: durable for name, durable in self.exchanges.items() if durable}
        self.bindings = {one for one in self.bindings if one[0] in self.queues and one[1] in self.exchanges}


class Node:
    """The virtual host with its two loops, and its model."""

    def __init__(self) -> None:
        self.database = Database()
        self.model = Model()
        self.connections = 0
        self._start()

    def _start(self) -> None:
        self.world = World(self.database)
        self.vhost = self.world.vhost
        self.home: deque[Callable[[], None]] = deque()
        self.vhost.home_call = self.home.append
        self.loops: list[deque[Callable[[], None]]] = [deque() for _ in range(LOOPS)]
        self.clients = [self._connect(number) for number in range(CLIENTS)]

    def _connect(self, place: int) -> Client:
        self.connections += 1
        return Client(self.connections, self.loops[place % LOOPS])

    def ask(self, place: int, verb: str, *arguments: Any, own: bool = False, **options: Any) -> bool:
        """A client asks, if it is not waiting for an answer. Args: own: the verb is told the connection."""
        client = self.clients[place]
        if client.request is not None:
            return False
        if own:
            options["connection_id"] = client.number
        client.request = verb, arguments, options
        client.submitted = client.durable = False
        perform(self, client, getattr(self.vhost, verb)(*arguments, **options))
        self.check()
        return True

    def run(self, loop: int) -> None:
        """A loop runs the next of what it was called with."""
        calls = self.home if loop == LOOPS else self.loops[loop]
        if calls:
            calls.popleft()()
            self.check()

    def as_client(self, client: Client, function: Callable[[], Any]) -> None:
        """Runs a part of a client's verb."""
        before, self.database.asking = self.database.asking, client
        try:
            function()
        finally:
            self.database.asking = before

    def finished(self, client: Client, result: Any, error: Exception | None) -> None:
        """The answer: the model does the verb now, and says the same."""
        request = client.request
        assert request is not None, "answered twice"
        client.request = None
        if isinstance(error, StoreError):
            assert client.submitted and not client.durable
            return
        ready = 0
        if request[2].get("if_empty") and isinstance(error, PeerError) and error.code == 406:
            ready = 1  # the verb has looked; what a model sees later says nothing
        try:
            expected: Any = self.model.do(request, ready)
        except Refusal as refusal:
            assert isinstance(error, PeerError) and error.code == refusal.code, (request, error or result, refusal)
            assert not client.submitted
            return
        assert error is None, (request, error)
        answer = getattr(result, "name", result)
        assert expected is ... or answer == expected, (request, answer, expected)
        self.check_answered(request)

    def check_answered(self, request: Request) -> None:
        """What a positive answer says is in the database and in memory."""
        verb, arguments, _options = request
        if verb == "declare_queue":
            queue = self.vhost.queues[arguments[0]]
            records = {one.name: one.queue_id for one in self.database.load_queues("/")}
            assert records.get(queue.name) == (queue.queue_id if queue.durable else None)

    def check(self) -> None:
        """The virtual host has what the model has, but for verbs that the database has and that are not answered: those are before."""
        vhost = self.vhost
        assert {name: (one.durable, one.exclusive_owner) for name, one in vhost.queues.items()} == self.model.queues
        own = {name: one.durable for name, one in vhost.exchanges.items() if name and not name.startswith("amq.")}
        assert own == self.model.exchanges
        bound = {
            (one.destination.name, one.source.name, one.routing_key) for each in vhost.exchanges.values() for one in each.bindings.values()
        }
        assert bound == self.model.bindings
        for queue in vhost.queues.values():
            core: Any = queue.core
            assert not core.held or any(self._deletes(client, queue.name) for client in self.clients), "arrivals are refused for nobody"

    @staticmethod
    def _deletes(client: Client, name: str) -> bool:
        return client.request is not None and client.request[0] == "delete_queue" and client.request[1] == (name,)

    def arrive(self, name: str) -> None:
        """A message comes to a queue."""
        queue = self.vhost.queues.get(name)
        if queue is not None and not queue.core.held:
            queue.core.ready += 1

    def hang_up(self, place: int) -> None:
        """A connection ends and another one takes its place. What it gave to the database happens; what had to wait for a name does not."""
        client = self.clients[place]
        client.alive = False
        if client.request is not None and not client.submitted:
            client.request = None
        while not self.vhost.connection_closed(client.number):
            pass
        gone = {name for name, one in self.model.queues.items() if one[1] == client.number}
        for name in gone:
            self.model.delete_queue(name, client.number)
        if client.request is None:
            self.clients[place] = self._connect(place)
        self.check()

    def forget(self) -> None:
        """Connections whose last verb has ended are forgotten."""
        for place, client in enumerate(self.clients):
            if not client.alive and client.request is None:
                self.clients[place] = self._connect(place)

    def commit(self, tell: bool = True) -> None:
        if self.database.waiting:
            self.database.commit()
            if tell:
                self.database.tell()
                self.check()

    def refuse(self) -> None:
        if self.database.waiting:
            self.database.tell(StoreError("disk full"))
            self.check()

    def crash(self) -> None:
        """The node dies and starts: it has what the database has, which is what was answered, and what was durable and not answered."""
        for client in self.clients:
            if client.durable and client.request is not None:
                self.model.do(client.request)
        self.model.restart()
        self.database.waiting.clear()
        self._start()
        self.vhost.restore()
        self.check()

    def settle(self) -> None:
        """Until nothing is under way; then nothing is kept of what was."""
        while self.database.waiting or self.home or any(self.loops):
            self.commit()
            for loop in range(LOOPS + 1):
                self.run(loop)
        assert all(client.request is None for client in self.clients), "a verb is never answered"
        assert not self.vhost._changes._held and not self.vhost._changes._waiting
        queues = {name: one.queue_id for name, one in self.vhost.queues.items() if one.durable}
        assert queues == {one.name: one.queue_id for one in self.database.load_queues("/")}
        exchanges = {name for name, durable in self.model.exchanges.items() if durable}
        assert exchanges == {one.name for one in self.database.load_exchanges("/")}
        bindings = {one for one in self.model.bindings if self.model.exchanges[one[1]] and self.model.queues[one[0]][0]}
        assert bindings == {(one.destination, one.source, one.routing_key) for one in self.database.load_bindings("/")}


def perform(node: Node, client: Client, verb: Verb[Any]) -> None:
    """As a connection asks."""

    def call(function: Callable[[], None]) -> None:
        client.calls.append(partial(node.as_client, client, function))

    node.as_client(client, partial(node.vhost.perform, verb, call, partial(node.finished, client), lambda: client.alive))

"""One request: who asks, what its path, its query and its body say, and how changes are waited for.

in: requests that were admitted (admin.router). out: values that were checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flintmq.access.tags import sees_everything
from flintmq.admin.answers import answer
from flintmq.admin.arguments import checked_object, parameters, path_name
from flintmq.admin.auth import JSON, OCTETS, content_type
from flintmq.admin.http_refusals import HttpError, bad, missing
from flintmq.admin.operations import Access, Handler, Operation
from flintmq.admin.pools import Pools, take, who_of
from flintmq.core.shares import Holding, Who
from flintmq.definitions.change_line import Actor
from flintmq.vhost.changes import Verb

# what RabbitMQ calls the default exchange in paths
DEFAULT_EXCHANGE = "amq.default"


def nothing(new: bool = False) -> Response:
    """201 for a new object, 204 for one that was there, or is gone."""
    return Response(b"", 201 if new else 204)


@dataclass(slots=True)
class Call:
    """See module. Args: app: admin.app.Application; request; operation: its row; caller: who was authenticated, None: nobody was."""

    app: Any
    request: Request
    operation: Operation
    caller: Any = None
    place: tuple[Any, Any] = (None, None)
    _params: dict[str, Any] | None = None

    @property
    def queue(self) -> Any:
        """The queue of the path, where Operation.needs asked for it; `place`: its virtual host, and the queue."""
        return self.place[1]

    @property
    def params(self) -> dict[str, Any]:
        """The query as Operation.query says (arguments.parameters). Raises: HttpError 400."""
        if self._params is None:
            self._params = parameters(self.request.scope["query_string"], self.operation.query or {})
        return self._params

    def find_queue(self) -> None:
        """Asks for AMQP's permissions on the queue of the path, once; and when rights changed meanwhile. Raises: HttpError, PeerError."""
        needs, path = self.operation.needs, self.request.path_params
        if self.operation.access is Access.PERMISSIONS:
            vhost_name, name = path_name(path["vhost"], "virtual host"), path_name(path["queue"], "queue")
            vhost = self.caller.authorize(vhost_name, needs, **({"exchange": ""} if needs == "basic.publish" else {"queue": name}))
        else:
            vhost, name = self.vhost(), self.name("queue")
            self.authorize(vhost, needs, queue=name)
        # No connection has this id: another connection's exclusive queue is refused as AMQP refuses it.
        self.place = vhost, vhost.queue(name, 0)

    @property
    def broker(self) -> Any:
        return self.app.parts.broker

    @property
    def pools(self) -> Pools:
        return self.app.pools  # type: ignore[no-any-return]

    @property
    def who(self) -> Who:
        return who_of(self.request.scope)

    def turn(self) -> Holding:
        """A place among the calls that take long, for a `with`. Raises: HttpError 503."""
        return take(self.pools.calls, self.who, "long calls run")

    @property
    def service(self) -> Any:
        """definitions.service.DefinitionsService"""
        return self.app.parts.definitions

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def actor(self) -> Actor:
        client = self.request.client
        return Actor(self.caller.user, "unknown" if client is None else client.host)

    @property
    def tags(self) -> tuple[str, ...]:
        record = self.broker.users.get(self.caller.user)
        return () if record is None else record.tags

    def name(self, member: str) -> str:
        """A name of the path. Raises: HttpError 400."""
        return path_name(self.request.path_params[member], member)

    def exchange_name(self) -> str:
        name = self.name("exchange")
        return "" if name == DEFAULT_EXCHANGE else name

    # --- virtual hosts --------------------------------------------------------------------------------------------------

    def vhost(self) -> Any:
        """The virtual host of the path. Raises: HttpError 404."""
        vhost = self.broker.vhosts.get(self.name("vhost"))
        if vhost is None:
            raise missing("vhost", self.name("vhost"))
        return vhost

    def exists(self) -> bool | None:
        """False: the request makes something new (`If-None-Match: *`, RFC 9110); True: it changes something that is there
        (`If-Match: *`); None: either. There are no entity tags. Raises: HttpError 400 for other values."""
        headers = self.request.headers
        none, some = headers.get("if-none-match"), headers.get("if-match")
        for name, value in (("If-None-Match", none), ("If-Match", some)):
            if value is not None and value.strip() != "*":
                raise bad(f"{name} can only be *: there are no entity tags")
        if none is not None and some is not None:
            raise bad("If-Match and If-None-Match exclude each other")
        return False if none is not None else True if some is not None else None

    def sees(self, vhost: str) -> bool:
        """Whether lists show what is in it."""
        return sees_everything(self.tags) or self.broker.permissions.has_vhost(self.caller.user, vhost)

    def vhosts(self) -> list[Any]:
        """The virtual host of the path, or those that the caller sees, by name."""
        if "vhost" in self.request.path_params:
            return [self.vhost()]
        every = sees_everything(self.tags)
        vhosts = [
            one for one in list(self.broker.vhosts.values()) if every or self.broker.permissions.has_vhost(self.caller.user, one.name)
        ]
        return sorted(vhosts, key=lambda one: one.name)

    def authorize(self, vhost: Any, method: str, **names: str | None) -> None:
        """AMQP's permissions for a method. Raises: PeerError."""
        permissions = self.broker.permissions
        permissions.authorize_vhost(self.caller.user, vhost.name)
        permissions.authorize_method(self.caller.user, vhost.name, method, names)

    # --- bodies ---------------------------------------------------------------------------------------------------------

    async def json(self) -> dict[str, Any]:
        """The body, a JSON object that meets the schema of its row; {} when there is none. Raises: HttpError 400, 408, 413, 415, 503."""
        schema, limits = self.operation.body, self.app.limits
        if schema is None:
            raise TypeError(f"{self.operation.method} {self.operation.path} reads a body and has no schema for it")
        if self.operation.is_own:
            kind = content_type(self.request.headers.get("content-type", "").encode("latin-1"))
            if kind not in (JSON, ""):  # none: there is no body (auth.W3)
                raise HttpError(415, "content_type", f"this needs the content type {JSON}, not {kind[:80]}", "see docs/HTTP.md")
        fix = f"send less at a time; a message goes as {OCTETS}, too"
        raw = await self.app.body(self.request, getattr(limits, self.operation.bytes_max), fix)
        if len(raw) > limits.http_json_bytes_max:  # other requests have their turns meanwhile
            return await asyncio.to_thread(checked_object, raw, schema)
        return checked_object(raw, schema)

    # --- changes --------------------------------------------------------------------------------------------------------

    async def change(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """A verb of the definitions service, waited for. Raises: what it is refused with."""
        return await waited(lambda done: getattr(self.service, verb)(self.actor, *arguments, done, **options))

    async def perform(self, vhost: Any, verb: Verb[Any]) -> Any:
        """A verb of a virtual host, waited for until the database has it. Raises: PeerError, StoreError."""
        loop = asyncio.get_running_loop()

        def call(function: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(function)

        return await waited(lambda done: vhost.perform(verb, call, done))


async def waited(begin: Callable[[Callable[[Any, Exception | None], None]], object]) -> Any:
    """What `done(result, error)` is called with, from any thread; `begin` gets it."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: Exception | None) -> None:
        if over.done():
            return
        if error is None:
            over.set_result(result)
        else:
            over.set_exception(error)

    def done(result: Any, error: Exception | None) -> None:
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            return  # the service has ended: nobody waits

    begin(done)
    return await over


def flags_of(value: Mapping[str, Any], *names: str) -> dict[str, bool]:
    """Flags of a body that met its schema: RabbitMQ takes texts, too, and what is left out is false."""
    return {name: value.get(name) in (True, "true") for name in names}


def check_table(value: Any, depth_max: int, fields_max: int) -> dict[str, Any]:
    """Arguments of JSON that AMQP can say. Raises: HttpError 400; UnicodeEncodeError for half a character (Q1)."""
    if not isinstance(value, dict):
        raise bad("'arguments' must be an object")
    if _weigh(value, depth_max, 0) > fields_max:
        raise bad(f"'arguments' have more than {fields_max} values")
    return value


def _weigh(value: Any, depth_max: int, depth: int) -> int:
    if depth > depth_max:
        raise bad(f"'arguments' are nested deeper than {depth_max}")
    if isinstance(value, dict):
        if any(len(key.encode("utf-8", "surrogateescape")) > 255 for key in value):
            raise bad("a name in 'arguments' is longer than 255 bytes")
        return 1 + sum(_weigh(one, depth_max, depth + 1) for one in value.values())
    if isinstance(value, list):
        return 1 + sum(_weigh(one, depth_max, depth + 1) for one in value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise bad("a number in 'arguments' has more than 64 bits")
    if isinstance(value, str):
        value.encode("utf-8", "surrogateescape")  # half a character would fail in the database
    return 1


def fixed(value: Any, status: int = 200) -> Handler:
    """A handler that always answers the same."""

    async def run(call: Call) -> Response:
        return answer(value, status)

    return run

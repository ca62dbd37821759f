"""One request to RabbitMQ's API (`/api`): who asks, what the path and the body say, and how changes and refusals are answered.

in: requests that were authenticated. out: values that were checked; answers with RabbitMQ's status codes and bodies.

Q1  A refusal is `{"error": word, "reason": text}`. What the user may not do is 401 (RabbitMQ's choice), what is not there 404, any other
    mistake 400 with the text that AMQP would give.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flintmq.access.tags import NotAuthorised, sees_everything
from flintmq.admin.answers import answer
from flintmq.admin.arguments import checked_object, path_name
from flintmq.admin.auth import Caller
from flintmq.admin.errors import HttpError
from flintmq.admin.pools import Pools, take, who_of
from flintmq.core.shares import Holding, Who
from flintmq.definitions.change_line import Actor, Refused
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.vhost.changes import Verb

# what RabbitMQ calls the default exchange in paths
DEFAULT_EXCHANGE = "amq.default"


class ApiError(HttpError):
    """A refusal in RabbitMQ's form: no third member. `failed`: of a health check, whose answer has a status in place of the error."""

    failed = False

    def __init__(self, status: int, error: str, reason: Any, headers: dict[str, str] | None = None, more: Mapping[str, Any] = {}) -> None:
        super().__init__(status, error, str(reason), "", headers)
        self._more = dict(more)

    @property
    def body(self) -> dict[str, Any]:
        return {"error": self.error, "reason": self.reason, **self._more}


def not_found(reason: str = "Not Found") -> ApiError:
    return ApiError(404, "Object Not Found", reason)


def bad(reason: str) -> ApiError:
    return ApiError(400, "bad_request", reason)


def of_error(error: Exception) -> ApiError | None:
    """The refusal in RabbitMQ's words; None: it is none."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NotAuthorised):
        return ApiError(401, "not_authorised", error)
    if isinstance(error, Refused):
        if error.kind == "not_found":
            return not_found() if error.reason == "Not Found" else ApiError(404, "not_found", error.reason)
        if error.kind == "busy":
            return ApiError(503, "busy", error.reason, {"retry-after": "1"})
        return bad(error.reason)
    if isinstance(error, PeerError):
        if error.code in (ReplyCode.ACCESS_REFUSED, ReplyCode.NOT_ALLOWED):
            return ApiError(401, "not_authorised", error.reply_text)
        return ApiError(404, "not_found", error.text) if error.code == ReplyCode.NOT_FOUND else bad(error.told)
    if isinstance(error, UnicodeEncodeError):  # JSON can say half a character
        return bad("a text of the request is no text that UTF-8 can say")
    if isinstance(error, StoreError):
        return ApiError(503, "store", "the definitions can't be saved, or the disk failed: see the broker's log")
    if isinstance(error, HttpError):
        if error.status == 401:
            reason = "Login failed" if "only connect from" not in error.reason else "User can only log in via localhost"
            return ApiError(401, "not_authorized", reason, error.headers)
        return ApiError(error.status, error.error, error.reason, error.headers)
    return None


def nothing(new: bool = False) -> Response:
    """201 for what is new, 204 for what was there, or is gone."""
    return Response(b"", 201 if new else 204)


@dataclass(slots=True)
class Call:
    """See module. Args: app: admin.app.Application; request; caller: who was authenticated."""

    app: Any
    request: Request
    caller: Caller

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
        """The virtual host of the path. Raises: ApiError 404."""
        found = self.broker.vhosts.get(self.name("vhost"))
        if found is None:
            raise not_found()
        return found

    def sees(self, vhost: str) -> bool:
        """Whether lists show what is in it."""
        return sees_everything(self.tags) or self.broker.permissions.has_vhost(self.caller.user, vhost)

    def vhosts(self) -> list[Any]:
        """The virtual host of the path, or those that the caller sees, by name."""
        if "vhost" in self.request.path_params:
            return [self.vhost()]
        every = sees_everything(self.tags)
        found = [one for one in list(self.broker.vhosts.values()) if every or self.broker.permissions.has_vhost(self.caller.user, one.name)]
        return sorted(found, key=lambda one: one.name)

    def authorize(self, vhost: Any, method: str, **names: str | None) -> None:
        """AMQP's permissions for a method. Raises: PeerError."""
        permissions = self.broker.permissions
        permissions.authorize_vhost(self.caller.user, vhost.name)
        permissions.authorize_method(self.caller.user, vhost.name, method, names)

    # --- bodies ---------------------------------------------------------------------------------------------------------

    async def json(self, bytes_max: int = 0) -> dict[str, Any]:
        """The body, a JSON object; {} when there is none. Raises: HttpError."""
        usual = self.app.limits.http_json_bytes_max
        raw = await self.app.body(self.request, bytes_max or usual)
        if len(raw) > usual:  # other requests have their turns meanwhile
            return await asyncio.to_thread(checked_object, raw, self.request.scope)
        return checked_object(raw, self.request.scope)

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


def member(value: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """A member of a body. Raises: ApiError 400 for one of another type; `true` is no number."""
    found = value.get(name)
    if found is None:
        return default
    if kind is bool and found in ("true", "false"):  # RabbitMQ takes texts
        return found == "true"
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise bad(f"'{name}' must be a {kind.__name__}")
    return found


def check_table(value: Any, depth_max: int, fields_max: int) -> dict[str, Any]:
    """Arguments of JSON that AMQP can say. Raises: ApiError 400; UnicodeEncodeError for half a character (Q1)."""
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


Handler = Callable[[Call], Awaitable[Response]]
# method, path, verb of access.tags (None: the definitions service asks), handler
Entry = tuple[str, str, str | None, Handler]


def fixed(value: Any, status: int = 200) -> Handler:
    """A handler that always answers the same."""

    async def run(call: Call) -> Response:
        return answer(value, status)

    return run

"""Refusals over HTTP: a status, a word for programs, the cause and the fix for people. There is one kind, which each API says its own way.

in: our own refusals, errors of the broker. out: HttpError; the JSON body that an API shows of it.

Q1  /api/v1 says `{"error": word, "reason": cause, "fix": what to do}`.
Q2  RabbitMQ's API says `{"error": word, "reason": text}`. What the user may not do is 401 (RabbitMQ's choice), what is not there 404, any
    other mistake 400 with the text that AMQP would give, its Erlang terms in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect

from flintmq.access.tags import NotAuthorised
from flintmq.admin.refusal_words import in_words
from flintmq.definitions.change_line import Refused
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.pulls import pull_service as pulls
from flintmq.pulls.pull_service import PullRefused

_SEE = "see docs/HTTP.md"
# AMQP reply code -> (status, word, fix)
_PEER: dict[ReplyCode, tuple[int, str, str]] = {
    ReplyCode.ACCESS_REFUSED: (403, "forbidden", "grant the user the permission that is named, or use another user"),
    ReplyCode.NOT_ALLOWED: (403, "forbidden", "grant the user access to the virtual host, or use another one"),
    ReplyCode.NOT_FOUND: (404, "not_found", "declare it first, and percent-encode names in the path (the virtual host / is %2F)"),
    ReplyCode.RESOURCE_LOCKED: (423, "locked", "an exclusive queue serves only the connection that declared it"),
    ReplyCode.PRECONDITION_FAILED: (409, "precondition_failed", "change the request as the reason says"),
    ReplyCode.CONTENT_TOO_LARGE: (413, "too_large", "send less at a time"),
    ReplyCode.RESOURCE_ERROR: (503, "resources", "try again later"),
    ReplyCode.INTERNAL_ERROR: (
        503,
        "unavailable",
        "look at the disk, or the engine of shared queues, that the reason names; then try again",
    ),
}
_PULL = {pulls.EXCLUSIVE: (423, "locked"), pulls.NO_QUEUE: (404, "not_found"), pulls.INVALID: (400, "bad_request")}
# RabbitMQ's word for a missing object
_ABSENT = "Object Not Found"


class HttpError(Exception):
    """A request that is refused.

    Args: status: of HTTP; error: one word, stable, for programs; reason: the cause; fix: what the client can do; headers: further ones;
    value: the JSON body in place of the usual one.
    """

    def __init__(
        self,
        status: int,
        error: str,
        reason: str,
        fix: str = "",
        headers: dict[str, str] | None = None,
        value: Mapping[str, Any] | None = None,
    ) -> None:
        self.reason = in_words(reason)  # wherever it is made: of AMQP's refusals, of policies, of objects of a file
        super().__init__(self.reason)
        self.status = status
        self.error = error
        self.fix = fix
        self.headers = headers or {}
        self.value = value

    @property
    def body(self) -> Mapping[str, Any]:
        """Q1."""
        if self.value is not None:
            return self.value
        return {"error": "not_found" if self.error == _ABSENT else self.error, "reason": self.reason, "fix": self.fix}

    @property
    def rabbit_body(self) -> Mapping[str, Any]:
        """Q2."""
        return {"error": self.error, "reason": self.reason} if self.value is None else self.value


def of_peer_error(error: PeerError) -> HttpError:
    """The same refusal in HTTP's words."""
    status, word, fix = _PEER.get(error.code, (400, "refused", "change the request as the reason says"))
    return HttpError(status, word, error.text, fix)


def not_found(reason: str) -> HttpError:
    """404. Args: reason: the thing that is not there, by its kind and name: a path names several."""
    return HttpError(404, _ABSENT, reason, _SEE)


def missing(kind: str, name: str, vhost: str | None = None) -> HttpError:
    """404 for one thing of the path: "no queue 'q' in vhost '/'", as AMQP says it."""
    return not_found(f"no {kind} '{name}'" + ("" if vhost is None else f" in vhost '{vhost}'"))


def bad(reason: str, fix: str = _SEE) -> HttpError:
    """400."""
    return HttpError(400, "bad_request", reason, fix)


def busy(reason: str, fix: str = "try again, and spread the calls") -> HttpError:
    """503 with Retry-After."""
    return HttpError(503, "busy", reason, fix, {"retry-after": "1"})


def closing() -> HttpError:
    """503: the broker stops."""
    return HttpError(503, "closing", "the broker stops", "try again when it is back", {"retry-after": "5"})


def _of_pull(error: PullRefused) -> HttpError:
    if error.kind == pulls.BUSY:
        return busy(error.text)
    if error.kind == pulls.STOPPING:
        return closing()
    status, name = _PULL[error.kind]
    return HttpError(status, name, error.text, _SEE)


def _of_service(error: Refused) -> HttpError:
    if error.kind == "not_found":
        return not_found(error.reason)
    if error.kind == "exists":
        return HttpError(412, "precondition_failed", error.reason, "without If-None-Match the request replaces it")
    return HttpError(503, "busy", error.reason, "try again", {"retry-after": "1"}) if error.kind == "busy" else bad(error.reason)


# kind of error -> its refusal (Q1); the first that fits
_KINDS: tuple[tuple[type[BaseException], Callable[[Any], HttpError]], ...] = (
    (HttpError, lambda error: error),
    (
        NotAuthorised,
        lambda error: HttpError(403, "forbidden", str(error), "give the user the tag, or permissions in the virtual host (docs/HTTP.md)"),
    ),
    (Refused, _of_service),
    (PeerError, of_peer_error),
    (PullRefused, _of_pull),
    # JSON can say half a character
    (UnicodeEncodeError, lambda error: bad("a text of the request is no text that UTF-8 can say", "send UTF-8")),
    (
        StoreError,
        lambda error: HttpError(503, "store", "the broker's disk failed", "nothing is confirmed any more: see the broker's log"),
    ),
    (ClientDisconnect, lambda error: bad("the client is gone")),
    # The grace of a stop is over (nothing else cancels requests), as with a body of which the rest never came.
    (asyncio.CancelledError, lambda error: closing()),
)


def refusal(error: BaseException) -> HttpError | None:
    """The refusal (Q1); None: the error is none."""
    return next((made(error) for kind, made in _KINDS if isinstance(error, kind)), None)


def rabbit_refusal(error: BaseException) -> HttpError | None:
    """The refusal in RabbitMQ's words (Q2); None: the error is none."""
    if isinstance(error, NotAuthorised):
        return HttpError(401, "not_authorised", str(error))
    if isinstance(error, PeerError):
        if error.code in (ReplyCode.ACCESS_REFUSED, ReplyCode.NOT_ALLOWED):
            return HttpError(401, "not_authorised", error.reply_text)
        if error.code == ReplyCode.INTERNAL_ERROR:
            return HttpError(503, "unavailable", error.text)
        return HttpError(404, "not_found", error.text) if error.code == ReplyCode.NOT_FOUND else bad(error.told)
    if isinstance(error, StoreError):
        return HttpError(503, "store", "the definitions can't be saved, or the disk failed: see the broker's log")
    refused = refusal(error)
    if refused is not None and refused.error == "unauthenticated":
        reason = "Login failed" if "only connect from" not in refused.reason else "User can only log in via localhost"
        return HttpError(401, "not_authorized", reason, "", refused.headers)
    return refused

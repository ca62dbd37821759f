"""Refusals over HTTP: a status, a word for programs, the cause and the fix for people.

in: our own refusals, PeerErrors of the broker. out: status and JSON body `{"error": word, "reason": cause, "fix": what to do}`.
"""

from __future__ import annotations

from flintmq.errors import PeerError, ReplyCode

# AMQP reply code -> (status, word, fix)
_PEER: dict[ReplyCode, tuple[int, str, str]] = {
    ReplyCode.ACCESS_REFUSED: (403, "forbidden", "grant the user the permission that is named, or use another user"),
    ReplyCode.NOT_ALLOWED: (403, "forbidden", "grant the user access to the virtual host, or use another one"),
    ReplyCode.NOT_FOUND: (404, "not_found", "declare it first, and percent-encode names in the path (the virtual host / is %2F)"),
    ReplyCode.RESOURCE_LOCKED: (423, "locked", "an exclusive queue serves only the connection that declared it"),
    ReplyCode.PRECONDITION_FAILED: (409, "precondition_failed", "change the request as the reason says"),
    ReplyCode.CONTENT_TOO_LARGE: (413, "too_large", "send less at a time"),
    ReplyCode.RESOURCE_ERROR: (503, "resources", "try again later"),
}


class HttpError(Exception):
    """A request that is refused.

    Args: status: of HTTP; error: one word, stable, for programs; reason: the cause; fix: what the client can do; headers: further ones.
    """

    def __init__(self, status: int, error: str, reason: str, fix: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.fix = fix
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, str]:
        return {"error": self.error, "reason": self.reason, "fix": self.fix}


def of_peer_error(error: PeerError) -> HttpError:
    """The same refusal in HTTP's words."""
    status, word, fix = _PEER.get(error.code, (400, "refused", "change the request as the reason says"))
    return HttpError(status, word, error.text, fix)


def bad(reason: str, fix: str = "see docs/HTTP.md") -> HttpError:
    """400."""
    return HttpError(400, "bad_request", reason, fix)


def busy(reason: str, fix: str = "try again, and spread the calls") -> HttpError:
    """503 with Retry-After."""
    return HttpError(503, "busy", reason, fix, {"retry-after": "1"})


def closing() -> HttpError:
    """503: the broker stops."""
    return HttpError(503, "closing", "the broker stops", "try again when it is back", {"retry-after": "5"})

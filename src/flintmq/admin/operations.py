"""The table of what HTTP serves: each row is one method of one path, with its right, the form of its request, and that of its answer.

in: rows with their handlers (api, v1, app). out: the routes (router) and the OpenAPI document (3.1) of /api/v1 are made from the rows.

O1  What is served is in the table, and what is in the table is served.
O2  Each row says who may: a verb of access.tags, or a member of Access.
O3  A handler gets a body only with the row's schema, and up to the row's limit.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from starlette.responses import Response

from flintmq import __version__

Handler = Callable[[Any], Awaitable[Response]]
Schema = Mapping[str, Any]

PREFIX = "/api/v1"
RABBIT = "/api"
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
_NAME = re.compile(r"\{(\w+)\}")
_NAMES = {
    "vhost": "virtual host, percent-encoded (/ is %2F)",
    "queue": "queue, percent-encoded",
    "exchange": "exchange, percent-encoded; amq.default is the nameless one",
}
_REFUSED = {
    "400": "a parameter or the body is wrong",
    "401": "no user, or a wrong password",
    "403": "the user may not, or a page of another site asked",
    "404": "there is no such thing",
    "405": "another method",
    "408": "the body did not arrive in time",
    "409": "the state of the queue forbids it",
    "413": "the body is too large",
    "415": "another content type",
    "421": "the Host header names another machine",
    "423": "exclusive to another connection",
    "431": "the request's head is too large",
    "500": "the broker failed",
    "503": "busy, closing, or the disk failed",
}


def whole(low: int, high: int, default: int | None = None) -> Schema:
    """A whole number."""
    return {"type": "integer", "minimum": low, "maximum": high} | ({} if default is None else {"default": default})


def number(low: float, high: float, default: float | None = None) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high} | ({} if default is None else {"default": default})


def one_of(*words: str) -> Schema:
    """One of some words, the first of which is the default."""
    return {"type": "string", "enum": list(words), "default": words[0]}


def listing(of: Schema, low: int = 0, high: int | None = None) -> Schema:
    return {"type": "array", "items": of, "minItems": low} | ({} if high is None else {"maxItems": high})


def record(needed: Sequence[str] = (), members: Mapping[str, Schema] = {}, *, closed: bool = True) -> Schema:
    """An object. `closed`: other members are refused, as those of requests are."""
    value: dict[str, Any] = {"type": "object", "properties": dict(members)}
    if needed:
        value["required"] = list(needed)
    if closed:
        value["additionalProperties"] = False
    return value


class Access(Enum):
    """The right to an operation for which no verb of access.tags speaks before the handler."""

    ANYBODY = "anybody"
    PERMISSIONS = "AMQP's permissions decide: Operation.needs"
    MONITORING = "who has a tag that lets it look at the node"
    SCRAPER = "as MONITORING; anybody where metrics are public"
    LOGGED_IN = "whoever has logged in: it ends its own session"
    SERVICE = "who has a tag at all; then the definitions service asks for the change"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Args: path: with names in braces; access: a verb of access.tags, or who may; handler: of an api_call.Call; summary; query: name ->
    schema of a parameter, None: the handler reads it as it is; body: schema of a JSON body, None: no body is read; bytes_max: name of the
    limit (config.Limits) of the body; needs_body; octets: it may be octets, too; needs: AMQP's method whose permissions on the path's
    queue the caller needs, "" for none; answer: schema; status: of success; media: of the answer; header: one that is needed.
    """

    method: str
    path: str
    access: str | Access
    handler: Handler
    summary: str = ""
    query: Mapping[str, Schema] | None = field(default_factory=dict)
    body: Schema | None = None
    bytes_max: str = "http_json_bytes_max"
    needs_body: bool = True
    octets: bool = False
    needs: str = ""
    answer: Schema = field(default_factory=lambda: OBJECT)
    status: int = 200
    media: str = "application/json"
    header: str = ""

    @property
    def is_own(self) -> bool:
        """Under /api/v1."""
        return self.path.startswith(f"{PREFIX}/")

    def described(self) -> dict[str, Any]:
        """Its part of the document."""
        parameters: list[dict[str, Any]] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _NAMES.get(name, name),
                "schema": {"type": "string", "minLength": 1},
            }
            for name in _NAME.findall(self.path)
        ]
        parameters += [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in (self.query or {}).items()]
        if self.header:
            parameters.append({"name": self.header, "in": "header", "required": True, "schema": {"type": "string", "const": "1"}})
        answers: dict[str, Any] = {str(self.status): {"description": "done", "content": {self.media: {"schema": self.answer}}}}
        for status, text in _REFUSED.items():
            answers[status] = {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}}
        words = [self.method.lower(), *re.findall(r"\w+", self.path.removeprefix(PREFIX))]
        who = f"a user who may {self.access!r} (access.tags)" if isinstance(self.access, str) else "the permissions of AMQP"
        document: dict[str, Any] = {
            "operationId": "_".join(words),
            "summary": self.summary,
            "description": f"Needs {who}.",
            "parameters": parameters,
            "responses": answers,
        }
        if self.body is not None:
            kinds = {"application/json": {"schema": self.body}}
            if self.octets:
                kinds["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
            document["requestBody"] = {"required": self.needs_body, "content": kinds}
        return document


def rabbit(
    method: str, path: str, access: str | Access, handler: Handler, body: Schema | None = None, bytes_max: str = "http_json_bytes_max"
) -> Operation:
    """A row of RabbitMQ's API. Args: path: below /api."""
    return Operation(method, f"{RABBIT}/{path}", access, handler, query=None, body=body, bytes_max=bytes_max)


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI document of those under /api/v1."""
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        if one.is_own:
            paths.setdefault(one.path, {})[one.method.lower()] = one.described()
    text = {"type": "string"}
    refusal = {"type": "object", "required": ["error", "reason"], "properties": {"error": text, "reason": text, "fix": text}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "FlintMQ", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {"Refusal": refusal},
        },
    }

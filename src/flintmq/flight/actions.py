"""The control calls that go through `do_action`, as docs/DATAPLANE.md lists them, and how their bodies are read.

in: the body of an Action. out: arguments for the broker, which checks them. The names here are all that a client can call: what the
service asks for itself (`auth`, `rows`, `block`) is not among them.
"""

from __future__ import annotations

import json
from typing import Any

from flintmq.flight.errors import BAD_ARGUMENT, PlaneError

ACTIONS: dict[str, str] = {
    "sub.open": "open a subscription: name or sub_id, queues or pattern, mode create|attach, start, fresh refuse|continue, onlost",
    "sub.acquire": "prepare the next set: sub_id, epoch, seq, max_messages, max_bytes, max_wait_ms, onlost",
    "sub.plan": "tickets of a prepared set: sub_id, epoch, seq, slices",
    "sub.commit": "commit sets: sub_id, epoch, upto, read",
    "sub.alive": "the reader works, or ends: sub_id, epoch, leave",
    "sub.tail": "what waits: sub_id, drain, epoch",
    "sub.list": "all subscriptions of the vhost",
    "sub.status": "one subscription: name or sub_id",
    "sub.reset": "for operators: name, action redeliver|commit|delete, seq, may_duplicate",
    "scope.open": "a number above all given out before: fences older writers",
    "scope.status": "one scope: scope",
    "scope.list": "all scopes of the vhost: after",
    "scope.forget": "forget a scope: scope",
    "stage.begin": "begin the stage of one task attempt: scope, epoch, batch, part, attempt, unroutable, over_limit, kind",
    "stage.prepare": "prepare a stage: stage_id",
    "stage.commit": "commit stages and roll back others up to the batch: scope, epoch, batch, stage_ids",
    "stage.abort": "roll back: scope, batch",
    "log.snapshot": "keep the containers of now readable: ttl_s, logs",
    "log.extend": "keep them longer: id, ttl_s",
    "log.release": "let them go: id",
    "queue.match": "names of the queues that match and may be read: pattern",
    "browse.open": "tickets to read without consuming: queues, start, end, max_messages, slices",
    "browse.close": "let a browse go: id",
    "stream.open": "a stream's identity and bounds, and an offset: queue, start, stream",
    "stream.next": "where a batch ends: queue, stream, offset, upto, max_messages, max_bytes",
    "stream.tail": "what waits behind an offset: queue, stream, offset",
    "stream.plan": "tickets of a range of offsets, its containers kept: queue, stream, offset, end, slices, key, tolerant, release",
    "stream.release": "let the containers go: queue, pin",
    "status": "version, store and figures",
}

# What the service itself writes into the head of a request: a client's argument of such a name would speak for somebody else.
RESERVED = frozenset({"call", "user", "vhost", "outside"})


def read_object(body: bytes, what: str, limit: int) -> dict[str, Any]:
    """A JSON object of a client. Args: what: for the text; limit: bytes.

    Raises: PlaneError BAD_ARGUMENT: too long, no UTF-8, no JSON, no object, nested too deep, NaN, or a reserved name.
    """
    if len(body) > limit:
        raise PlaneError(BAD_ARGUMENT, f"{what}: {len(body)} bytes, at most {limit} are read")
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant) if body else {}
    except UnicodeDecodeError:
        raise PlaneError(BAD_ARGUMENT, f"{what} is not UTF-8") from None
    except ValueError as error:
        raise PlaneError(BAD_ARGUMENT, f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise PlaneError(BAD_ARGUMENT, f"{what} is nested too deep") from None
    if not isinstance(value, dict):
        raise PlaneError(BAD_ARGUMENT, f"{what} must be a JSON object, not {type(value).__name__}")
    taken = RESERVED & value.keys()
    if taken:
        raise PlaneError(BAD_ARGUMENT, f"{what}: '{min(taken)}' is not an argument")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def whole(arguments: dict[str, Any], name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number among the arguments. Raises: PlaneError BAD_ARGUMENT when it is missing, of another type or out of range."""
    value = arguments.get(name, default)
    if value is None:
        raise PlaneError(BAD_ARGUMENT, f"'{name}' is missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlaneError(BAD_ARGUMENT, f"'{name}' must be a whole number")
    if not least <= value <= most:
        raise PlaneError(BAD_ARGUMENT, f"'{name}' must be {least} to {most}")
    return value

"""How the bodies of the control calls that go through `do_action` are read (dataplane.calls has the table of them).

in: the body of an Action. out: arguments for the broker, which checks them.
"""

from __future__ import annotations

import json
from typing import Any

from flintmq.arguments import is_whole
from flintmq.dataplane.calls import ENVELOPE
from flintmq.flight.plane_error import BAD_ARGUMENT, PlaneError


def read_object(body: bytes, subject: str, limit: int) -> dict[str, Any]:
    """A JSON object of a client. Args: subject: for the text; limit: bytes.

    Raises: PlaneError BAD_ARGUMENT: too long, no UTF-8, no JSON, no object, nested too deep, NaN, or a reserved name.
    """
    if len(body) > limit:
        raise PlaneError(BAD_ARGUMENT, f"{subject}: {len(body)} bytes, at most {limit} are read")
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant) if body else {}
    except UnicodeDecodeError:
        raise PlaneError(BAD_ARGUMENT, f"{subject} is not UTF-8") from None
    except ValueError as error:
        raise PlaneError(BAD_ARGUMENT, f"{subject} is not JSON: {error}") from None
    except RecursionError:
        raise PlaneError(BAD_ARGUMENT, f"{subject} is nested too deep") from None
    if not isinstance(value, dict):
        raise PlaneError(BAD_ARGUMENT, f"{subject} must be a JSON object, not {type(value).__name__}")
    taken = ENVELOPE & value.keys()
    if taken:
        raise PlaneError(BAD_ARGUMENT, f"{subject}: '{min(taken)}' is not an argument")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def whole(arguments: dict[str, Any], name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number among the arguments. Raises: PlaneError BAD_ARGUMENT when it is missing, of another type or out of range."""
    value = arguments.get(name, default)
    if value is None:
        raise PlaneError(BAD_ARGUMENT, f"'{name}' is missing")
    if not is_whole(value):
        raise PlaneError(BAD_ARGUMENT, f"'{name}' must be a whole number")
    if not least <= value <= most:
        raise PlaneError(BAD_ARGUMENT, f"'{name}' must be {least} to {most}")
    return value

"""Refusals of the data plane: a code, a text, and how both travel over Flight.

in: errors of the broker, of the codec, of pyarrow. out: PlaneError here, a Flight error on the wire (message `CODE: text`, and the
same as JSON in `extra_info`, which gRPC hands over unchanged while it decorates messages).

E1  Whatever goes wrong in the service reaches the caller with a code, never as a bare Python trace.
E2  Each BUSY of the service says when to come again, whoever refused: `to_flight` adds what its author left out.
"""

from __future__ import annotations

import json
from typing import Any

from flintmq.errors import FlintError

BUSY = "BUSY"
UNAVAILABLE = "UNAVAILABLE"
UNAUTHENTICATED = "UNAUTHENTICATED"
FORBIDDEN = "FORBIDDEN"
NOT_FOUND = "NOT_FOUND"
INTERNAL = "INTERNAL"
BAD_ARGUMENT = "BAD_ARGUMENT"
# a batch that can't become messages: the text names row and column
BAD_ROW = "BAD_ROW"
# a record of a set does not check and stands nowhere else: the store is damaged
DAMAGED = "DAMAGED"
# the answer does not look like one of a FlintMQ of this version
PROTOCOL = "PROTOCOL"
TIMED_OUT = "TIMED_OUT"

# The same call may succeed a moment later, or after the broker's restart.
RETRIED = frozenset({BUSY, UNAVAILABLE, "STOPPING", "STORE_FAILED", "NO_ROOM", "LOW_DISK"})

# bytes of an error text that travel (UTF-8): it is in gRPC's trailers three times, once percent-encoded, and all of them have 8 KiB
TEXT_MAX = 1_000
CODE_MAX = 40


class PlaneError(FlintError):
    """A call that was refused or failed.

    Args: code: as in docs/DATAPLANE.md (FENCED, NOT_FOUND ...); text: what happened, and what to do where that is known; wait_ms: of BUSY,
    milliseconds after which the caller is to come again, 0: as it likes.
    """

    def __init__(self, code: str, text: str, wait_ms: int = 0) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.wait_ms = wait_ms

    def __reduce__(self) -> tuple[type[PlaneError], tuple[str, str, int]]:
        return type(self), (self.code, self.text, self.wait_ms)  # Spark carries exceptions between processes

    @property
    def may_retry(self) -> bool:
        """Whether the same call may succeed a moment later."""
        return self.code in RETRIED


def to_flight(error: BaseException, busy_ms: int) -> Any:
    """The Flight error that carries `error`. Anything but PlaneError becomes INTERNAL: its type and first line, no trace.

    Args: busy_ms: the wait of a BUSY that has none (E2).
    """
    from pyarrow import flight

    if isinstance(error, flight.FlightError):
        return error
    if not isinstance(error, PlaneError):
        error = PlaneError(INTERNAL, f"{type(error).__name__}: {first_line(str(error))}")
    kind = {
        UNAUTHENTICATED: flight.FlightUnauthenticatedError,
        FORBIDDEN: flight.FlightUnauthorizedError,
        **dict.fromkeys(RETRIED, flight.FlightUnavailableError),
        INTERNAL: flight.FlightInternalError,
    }.get(error.code, flight.FlightServerError)
    # One line, and no control characters: names that some peer chose must not reach somebody else's terminal as they are.
    code = error.code[:CODE_MAX]
    text = "".join(character if character.isprintable() else "?" for character in error.text[:TEXT_MAX])
    text = text.encode("utf-8", "replace")[:TEXT_MAX].decode("utf-8", "ignore")
    fields: dict[str, Any] = {"code": code, "text": text}
    if code == BUSY:
        fields["wait_ms"] = error.wait_ms or busy_ms
    return kind(f"{code}: {text}", json.dumps(fields, ensure_ascii=False).encode())


def from_flight(error: BaseException) -> PlaneError:
    """What a client makes of an error that pyarrow raised: the service's own code, or one for what the transport says."""
    extra = getattr(error, "extra_info", b"")
    if extra:
        try:
            answer = json.loads(extra)
            wait_ms = answer.get("wait_ms", 0)
            return PlaneError(str(answer["code"]), str(answer["text"]), wait_ms if isinstance(wait_ms, int) else 0)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
    from pyarrow import flight

    text = shorten(str(error))
    told_code = code_of(text)
    if told_code is not None:
        return PlaneError(told_code[0], told_code[1])
    if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError | flight.FlightInternalError):
        # Without a code it is the transport's word: nobody listens, the connection broke, the server went away in mid-call.
        return PlaneError(UNAVAILABLE, text)
    if isinstance(error, flight.FlightTimedOutError):
        return PlaneError(TIMED_OUT, text)
    if isinstance(error, flight.FlightUnauthenticatedError):
        return PlaneError(UNAUTHENTICATED, text)
    if isinstance(error, flight.FlightUnauthorizedError):
        return PlaneError(FORBIDDEN, text)
    if isinstance(error, ValueError | TypeError):  # pyarrow, of what it was given
        return PlaneError(BAD_ARGUMENT, text)
    if isinstance(error, OSError):
        return PlaneError(UNAVAILABLE, text)
    return PlaneError(PROTOCOL, text)


def shorten(message: str) -> str:
    """A message of gRPC without its decoration: what stands between `with message: ` and `gRPC client debug context`."""
    for mark in (" gRPC client debug context:", " Client context:", ". Detail: "):
        message = message.partition(mark)[0]
    before, separator, after = message.partition("with message: ")
    return first_line(after if separator else before).rstrip(". ")


def code_of(text: str) -> tuple[str, str] | None:
    """`CODE: text` taken apart; None when it does not begin with a code."""
    code, separator, rest = text.partition(": ")
    if not separator or not 3 <= len(code) <= CODE_MAX or not all("A" <= letter <= "Z" or letter == "_" for letter in code):
        return None
    return code, rest


def first_line(text: str) -> str:
    """The first line, at most TEXT_MAX characters."""
    return text.partition("\n")[0][:TEXT_MAX]

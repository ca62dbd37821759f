"""The four error families: whose mistake it is decides what happens.

PeerError      a client broke a rule or asked for what cannot be: answered on the wire with its AMQP reply code.
OperatorError  configuration or command line: printed in one line, sysexits code.
StoreError     the disk or the store failed: latched, the node stops.
InvariantError our own bug: never looks like the user's mistake; logged with state, the node stops.
"""

from __future__ import annotations

from enum import IntEnum


class ReplyCode(IntEnum):
    """AMQP 0-9-1 reply codes (specification 1.2) that FlintMQ sends."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


# bytes of a reply text on the wire (shortstr)
REPLY_TEXT_MAX = 255

# Soft errors close the channel, all others the connection (specification 1.2, "class" of the constant).
SOFT_ERRORS = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)


class FlintError(Exception):
    """Base of every error that FlintMQ raises on purpose."""


class PeerError(FlintError):
    """A client's request that is refused.

    Args: code: AMQP reply code; text: what RabbitMQ would say, without the code's name (added by `reply_text`);
    hard: close the connection even for a soft code (used during the handshake); hint: what to do about it, in our words: it follows the
    text where both have room.
    """

    def __init__(self, code: ReplyCode, text: str, *, hard: bool = False, hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.hint = hint
        self.hard = hard or code not in SOFT_ERRORS

    @property
    def reply_text(self) -> str:
        """`NOT_FOUND - no queue 'q' in vhost '/'`: the form that people grep for. At most 255 bytes of UTF-8 go on the wire."""
        plain = self.plain_text
        text = f"{self.code.name} - {self.told}"
        return text if len(text.encode("utf-8", "surrogateescape")) <= REPLY_TEXT_MAX else plain

    @property
    def plain_text(self) -> str:
        """The same without the hint: what RabbitMQ says."""
        return f"{self.code.name} - {self.text}"

    @property
    def told(self) -> str:
        """The text and the hint: `no queue 'q' in vhost '/' (hint: ...)`."""
        return f"{self.text} (hint: {self.hint})" if self.hint else self.text


class OperatorError(FlintError):
    """Wrong configuration or use. `exit_code` is from sysexits: 64 usage, 69 unavailable, 78 configuration."""

    def __init__(self, text: str, exit_code: int = 78) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class StoreError(FlintError):
    """The durable store failed (exit code 74). Latched: after one of these nothing is confirmed any more."""


class StoreBusyError(StoreError):
    """The store could not do it now, for want of a file descriptor or memory. Nothing is latched: it can be tried again."""


class NoRoomError(StoreError):
    """The disk has no room for what this would need later. Nothing is latched and nothing was written: it can be tried again."""


class EnrolmentRefused(FlintError):
    """A transaction can't take this. `missing`: there is no such queue; else a limit is reached."""

    def __init__(self, text: str, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


class InvariantError(FlintError):
    """A state that the code forbids. Carries a snapshot of the state for the log."""


def check(condition: bool, text: str, state: object = None) -> None:
    """Stops on a broken invariant of ours; never used on peer input.

    Raises: InvariantError when `condition` is false.
    """
    if not condition:
        raise InvariantError(f"{text}: {state!r}" if state is not None else text)

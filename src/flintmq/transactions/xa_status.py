"""Answers of a transaction command: a status of the field's own vocabulary, or a refusal.

in: nothing. out: XaStatus (results of AMQP 0-10 class dtx, numbers as there), Condition (names of AMQP 0-10 execution exceptions)
and TransactionRefused, which every front end maps by a field of its condition.

I1  A status is an answer: the command was understood and names the state of the branch. A refusal changed nothing.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from flintmq.errors import PeerError, ReplyCode


class XaStatus(IntEnum):
    """Result of a command (AMQP 0-10 domain xa-status). FlintMQ sends the first six but XA_HEURHAZ: it knows its own effects."""

    XA_OK = 0
    XA_RBROLLBACK = 1
    XA_RBTIMEOUT = 2
    XA_HEURHAZ = 3
    XA_HEURCOM = 4
    XA_HEURRB = 5
    XA_HEURMIX = 6
    XA_RDONLY = 7


class Condition(Enum):
    """Why a command is refused: the AMQP 0-10 execution exception, its code there, the AMQP 0-9-1 code and the AMQP 1.0 condition."""

    NOT_FOUND = ("not-found", 404, ReplyCode.NOT_FOUND, "amqp:not-found")
    ILLEGAL_STATE = ("illegal-state", 409, ReplyCode.PRECONDITION_FAILED, "amqp:illegal-state")
    COMMAND_INVALID = ("command-invalid", 503, ReplyCode.COMMAND_INVALID, "amqp:invalid-field")
    RESOURCE_LIMIT_EXCEEDED = ("resource-limit-exceeded", 506, ReplyCode.RESOURCE_ERROR, "amqp:resource-limit-exceeded")
    NOT_ALLOWED = ("not-allowed", 530, ReplyCode.NOT_ALLOWED, "amqp:not-allowed")

    def __init__(self, exception_name: str, exception_code: int, reply_code: ReplyCode, amqp_1_0: str) -> None:
        self.exception_name = exception_name
        self.exception_code = exception_code
        self.reply_code = reply_code
        self.amqp_1_0 = amqp_1_0


# AMQP 1.0's names of a transaction that ended otherwise than asked for (part 4, transactions, "transaction errors").
STATUS_1_0 = {
    XaStatus.XA_RBROLLBACK: "amqp:transaction:rollback",
    XaStatus.XA_RBTIMEOUT: "amqp:transaction:timeout",
}


class TransactionRefused(PeerError):
    """A command that cannot be done in this state; nothing changed. `condition` says why in every protocol's words."""

    def __init__(self, condition: Condition, text: str) -> None:
        super().__init__(condition.reply_code, text)
        self.condition = condition

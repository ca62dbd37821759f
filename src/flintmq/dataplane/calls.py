"""The calls of the data plane, as docs/DATAPLANE.md lists them: one table for the broker, for the Flight service and for its client.

in: nothing. out: `CALLS`: for each name who answers, who may, what it takes.

K1  A client may call what is not Answers.INSIDE. Whatever is not in the table is no call, on both ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Answers(Enum):
    """Who answers a call."""

    BROKER = "the broker; the service hands it on"
    SERVICE = "the Flight service, from what the broker tells it"
    INSIDE = "the broker, for the Flight service alone"


@dataclass(frozen=True, slots=True)
class Call:
    """text: what it does, a colon, its arguments (for people, and for `arguments`); administrators: it needs their tag; goes_on: of a call
    of a task that writes, whether it goes on with begun work, None: it is none of those."""

    text: str
    answers: Answers = Answers.BROKER
    administrators: bool = False
    goes_on: bool | None = None

    @property
    def arguments(self) -> frozenset[str]:
        """Names of its arguments."""
        parts = [part for group in self.text.partition(": ")[2].split(", ") for part in group.split(" or ")]
        return frozenset(part.split()[0] for part in parts if part)


_SERVICE, _INSIDE = Answers.SERVICE, Answers.INSIDE
CALLS: dict[str, Call] = {
    "sub.open": Call("open a subscription: name or sub_id, queues or pattern, mode create|attach, start, fresh refuse|continue, onlost"),
    "sub.acquire": Call("prepare the next set: sub_id, epoch, seq, max_messages, max_bytes, max_wait_ms, onlost"),
    "sub.plan": Call("tickets of a prepared set: sub_id, epoch, seq, slices"),
    "sub.commit": Call("commit sets: sub_id, epoch, upto, read"),
    "sub.alive": Call("the reader works, or ends: sub_id, epoch, leave"),
    "sub.tail": Call("what waits: sub_id, drain, epoch"),
    "sub.list": Call("all subscriptions of the vhost"),
    "sub.status": Call("one subscription: name or sub_id"),
    "sub.reset": Call("for operators: name, action redeliver|commit|delete, seq, may_duplicate"),
    "scope.open": Call("a number above all given out before, which fences older writers: scope, shared"),
    "scope.status": Call("one scope: scope, shared"),
    "scope.list": Call("all scopes of the vhost: after, shared"),
    "scope.forget": Call("forget a scope: scope, shared"),
    "stage.begin": Call(
        "begin the stage of one task attempt: scope, epoch, batch, part, attempt, unroutable, over_limit, kind, shared", goes_on=False
    ),
    "stage.prepare": Call("prepare a stage: stage_id", goes_on=True),
    "stage.commit": Call("commit stages and roll back others up to the batch: scope, epoch, batch, stage_ids, shared"),
    "stage.abort": Call("roll back: scope, batch, epoch, stage_id, shared"),
    "log.snapshot": Call("keep the containers of now readable: ttl_s, logs", administrators=True),
    "log.extend": Call("keep them longer: id, ttl_s", administrators=True),
    "log.release": Call("let them go: id", administrators=True),
    "queue.match": Call("names of the queues that match and may be read: pattern"),
    "browse.open": Call("tickets to read without consuming: queues, start, end, max_messages, slices"),
    "browse.close": Call("let a browse go: id"),
    "stream.open": Call("a stream's identity and bounds, and an offset: queue, start, stream", _SERVICE),
    "stream.next": Call("where a batch ends: queue, stream, offset, upto, max_messages, max_bytes, release", _SERVICE),
    "stream.tail": Call("what waits behind an offset: queue, stream, offset", _SERVICE),
    "stream.plan": Call(
        "tickets of a range of offsets, its containers kept: queue, stream, offset, end, slices, key, tolerant, release", _SERVICE
    ),
    "stream.release": Call("let the containers go: queue, pin", _SERVICE),
    "status": Call("version, store and figures"),
    "auth": Call("who a password or a token lets in: password, peer, source", _INSIDE),
    "token": Call("whose token it is: token", _INSIDE),
    "rows": Call("rows of a ticket, with first and count", _INSIDE),
    "block": Call("rows of a task that writes", _INSIDE),
    "stream": Call("facts of a stream", _INSIDE),
}

# What the service itself writes into the head of a request: a client's argument of such a name would speak for somebody else.
ENVELOPE = frozenset({"call", "user", "vhost", "outside"})

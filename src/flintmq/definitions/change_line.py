"""Changes of definitions, one after the other: authorised, made durable, made visible, told.

in: jobs of the service. out: the database's answer first, then the change in memory; one line of the log for each, refusals included.

L1  One change is under way at a time: what a job checks still holds when it is saved, and memory has the changes in the database's order.
L2  A job changes nothing in memory before the database has its records; a crash in between leaves the change whole, found at the start.
L3  Nobody waits: the database's writer thread goes on with a job when its records are durable (without such a thread, at once).
L4  What a job says of itself has no secret in it. It goes to the log with the user and the address it came from.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

from flintmq.access.tags import NotAuthorised
from flintmq.errors import PeerError, StoreError
from flintmq.ports import (
    Definitions,
    LimitsRecord,
    ParameterRecord,
    PermissionRecord,
    UserRecord,
    VhostRecord,
)
from flintmq.slotted import slotted
from flintmq.store.sql.changes import Change, Save

log = logging.getLogger("flintmq.definitions")

# characters of what a job says of itself that the log gets: a policy may be as long as a body of a request
WHAT_MAX = 1_000

# (result, error): one of them
Done = Callable[[Any, Exception | None], None]
OnChange = Callable[[Sequence[tuple[Any, bool]], Any, str | None, object], object]


class Refused(Exception):
    """A change that is refused. Args: kind: bad_request, not_found, exists, busy, not_authorised; reason: for people."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Actor(NamedTuple):
    """The asker. Args: user: None: the broker itself, which may do everything; peer: the address."""

    user: str | None
    peer: str = ""


BROKER = Actor(None, "broker")
# a node that has decided a change which this one follows: no node is told of it
OTHER_NODE = Actor(None, "another node")


@slotted()
class Plan:
    """What a job does once it was allowed. Args: changes: records, all or nothing; apply: changes memory; after: work that goes on in
    slices
    and calls what it is given; result: for whoever asked; quiet: nobody is told: what users see is as before; before: the
    record that a verb replaces, where events say what of it changed."""

    changes: Sequence[Change]
    apply: Callable[[], object]
    result: Any = None
    after: Callable[[Callable[[], None]], None] | None = None
    quiet: bool = False
    before: object = None


@slotted()
class Job:
    """Args: actor; what: for the log (L4); allow: asks for authorization; plan: checks, and says what is to be done; done."""

    actor: Actor
    what: str
    allow: Callable[[], None]
    plan: Callable[[], Plan]
    done: Done
    made: Plan | None = field(default=None)


def _apply_now(definitions: Definitions, change: Change) -> None:
    """One change, durable when this returns: definitions without a writer thread."""
    record, saves = change.record, isinstance(change, Save)
    if isinstance(record, UserRecord):
        definitions.save_user(record) if saves else definitions.delete_user(record.name)
    elif isinstance(record, PermissionRecord):
        definitions.save_permission(record) if saves else definitions.delete_permission(record.user, record.vhost)
    elif isinstance(record, LimitsRecord):
        definitions.save_limits(record if saves else LimitsRecord(record.kind, record.name))
    elif isinstance(record, ParameterRecord):
        definitions.save_parameter(record) if saves else definitions.delete_parameter(record)
    elif isinstance(record, VhostRecord):
        definitions.save_vhost(record) if saves else definitions.delete_vhost(record.name)
    else:
        raise TypeError(f"no verb of the service changes a {type(record).__name__}")


class Line:
    """Args: definitions: the port; line_max: changes that may wait; on_change: gets the changes that are durable, the verb's result and who
    asked. Any thread."""

    def __init__(self, definitions: Definitions, line_max: int, on_change: OnChange = lambda *_: None) -> None:
        self._definitions = definitions
        self._on_change = on_change
        # of a node among others (cluster/told.py): the definitions that tell nobody of a change, and the wait for those who are told
        self._untold: Definitions = getattr(definitions, "untold", definitions)
        self._when_told: Any = getattr(definitions, "when_told", None)
        self._line_max = line_max
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._busy = False
        self._here = threading.local()

    def perform(self, job: Job) -> None:
        """`job.done` is called once: before this returns, or from another thread."""
        with self._lock:
            full = len(self._waiting) >= self._line_max
            if not full:
                self._waiting.append(job)
        if full:
            job.done(None, Refused("busy", f"{self._line_max} changes of definitions wait already"))
            return
        self._pump()

    def _pump(self) -> None:
        if getattr(self._here, "pumping", False):
            return  # whoever pumps here goes on
        self._here.pumping = True
        try:
            while True:
                with self._lock:
                    if self._busy or not self._waiting:
                        return
                    self._busy = True
                    job = self._waiting.popleft()
                self._begin(job)
        finally:
            self._here.pumping = False

    def _begin(self, job: Job) -> None:
        try:
            job.allow()
            job.made = job.plan()
            definitions: Any = self._untold if job.actor is OTHER_NODE else self._definitions
            if not job.made.changes:
                self._durable(job, None)
            elif hasattr(definitions, "submit"):
                definitions.submit(job.made.changes, partial(self._durable, job))
            else:
                for change in job.made.changes:
                    _apply_now(definitions, change)
                self._durable(job, None)
        except Exception as error:
            self._end(job, error)

    def _durable(self, job: Job, error: Exception | None) -> None:
        """The database has the records, or `error`."""
        plan = job.made
        assert plan is not None
        if error is None:
            try:
                plan.apply()
                if not plan.quiet:
                    changes = [(change.record, isinstance(change, Save)) for change in plan.changes]
                    self._on_change(changes, plan.result, job.actor.user, plan.before)
                if plan.after is not None:
                    plan.after(partial(self._end, job, None))
                    return
            except Exception as caught:
                error = caught
        self._end(job, error)

    def _end(self, job: Job, error: Exception | None) -> None:
        if job.actor.user is None:
            who = "another node" if job.actor is OTHER_NODE else "the broker"
        else:
            who = f"user {job.actor.user!r} at {job.actor.peer}"
        text = job.what if len(job.what) <= WHAT_MAX else f"{job.what[:WHAT_MAX]}... ({len(job.what)} characters)"
        if error is None:
            if job.made is not None and job.made.changes:
                log.info("%s: %s", who, text)
        elif isinstance(error, NotAuthorised | Refused | PeerError):
            log.warning("%s: refused: %s: %s", who, text, str(error)[:WHAT_MAX])
        elif isinstance(error, StoreError):
            log.error("%s: not saved: %s: %s", who, text, error)
        else:
            log.error("%s: failed: %s", who, text, exc_info=error)
        with self._lock:
            self._busy = False
        try:
            self._answer(job, error)
        finally:
            self._pump()

    def _answer(self, job: Job, error: Exception | None) -> None:
        """Now, or when the other nodes can see the change."""

        def answer(failure: Exception | None) -> None:
            job.done(None if failure is not None or made is None else made.result, failure)

        made = job.made
        waits = error is None and made is not None and self._when_told is not None and job.actor is not OTHER_NODE
        if not waits or made is None or self._when_told(made.changes, answer):
            answer(error)

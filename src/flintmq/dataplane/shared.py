"""What all parts of the data plane share: the broker, its store and coordinator, waiting for the disk, notes, who may do what.

in: the parts' questions. out: values, or Refused.

P1  Nobody waits for the disk on an I/O loop: only the threads of channels call `wait` and `durable`.
P2  When the broker stops, or its disk has failed, every wait ends with Refused (UNAVAILABLE): no thread is left behind.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flintmq.broker.broker import Broker
from flintmq.dataplane.wire import Refused
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.ports import Resource, Verb
from flintmq.transactions import BranchState, BranchView, Outcome, TransactionCoordinator, TransactionRefused, XaStatus, Xid
from flintmq.transactions.ports import Session

log = logging.getLogger("flintmq.dataplane")

# seconds between two looks at whether a wait has lost its point, and at whether there is room
_LOOK_S, _ROOM_LOOK_S = 0.25, 0.002
_NO_ROOM = "the log has no room for the outcome of another prepared transaction"

_CODES = {
    ReplyCode.ACCESS_REFUSED: "FORBIDDEN",
    ReplyCode.NOT_ALLOWED: "FORBIDDEN",
    ReplyCode.NOT_FOUND: "NOT_FOUND",
    ReplyCode.RESOURCE_LOCKED: "FORBIDDEN",
    ReplyCode.RESOURCE_ERROR: "LIMIT",
    ReplyCode.CONTENT_TOO_LARGE: "LIMIT",
}


def _nothing() -> None:
    pass


def refusal_of(error: PeerError) -> Refused:
    """What AMQP would refuse, in the words of the data plane."""
    return Refused(_CODES.get(error.code, "BAD_ARGUMENT"), error.text)


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a call is made: an authenticated user in a virtual host.

    user: what permissions are asked for, an OutsideUser perhaps; what outlives the call keeps `name`, which has no rights of its own.
    """

    user: str
    vhost: str

    @property
    def name(self) -> str:
        """The user's name as plain text."""
        return str(self.user)


class Plane:
    """See module. Args: broker: of this node, durable; store: its LogStore."""

    def __init__(self, broker: Broker, store: Any) -> None:
        coordinator = broker.transactions
        assert coordinator is not None, "the data plane stands on a durable store"
        self.broker = broker
        self.store = store
        self.coordinator: TransactionCoordinator = coordinator
        self.limits = broker.limits
        self.clock = broker.clock
        self.stopping = threading.Event()

    # --- disk -----------------------------------------------------------------------------------------------------------

    def wait(self, outcome: Outcome) -> XaStatus:
        """The status, once it is durable and done in the queues. Raises: Refused (P2)."""
        while True:
            try:
                return outcome.result(_LOOK_S)
            except TimeoutError:
                self.check_alive()

    def durable(self, ticket: int) -> None:
        """Returns when everything up to the ticket is durable. Raises: Refused (P2)."""
        done = threading.Event()
        self.store.on_durable(ticket, done.set)
        while not done.wait(_LOOK_S):
            self.check_alive()

    def check_alive(self) -> None:
        """Raises: Refused when the broker stops or its disk has failed."""
        if self.store.failure is not None or self.store.messages.failed or self.store.transaction_records.failed:
            raise Refused("UNAVAILABLE", "the disk of the broker has failed: nothing is confirmed any more")
        if self.stopping.is_set():
            raise Refused("UNAVAILABLE", "the broker stops")

    def pause(self, seconds: float) -> None:
        """Waits. Raises: Refused (P2)."""
        self.stopping.wait(seconds)
        self.check_alive()

    def settle(self) -> None:
        """Returns when what both logs have now is durable, and so in their files. Raises: Refused (P2)."""
        ends = [(log, log.tail) for log in (self.store.messages, self.store.transaction_records)]
        self.store.on_durable(0, _nothing)  # wakes the writer
        for log_, end in ends:
            while log_.durable_lsn < end:
                self.pause(0.001)

    def make_room(self) -> None:
        """Waits while publishers would have to: the log has more to write than its buffers should hold, or the disk is nearly full.

        Raises: Refused (LOW_DISK) after some seconds of a full disk.
        """
        messages, store = self.store.messages, self.store
        most = self.broker.config.max_write_buffers << 20
        text = "low on disk: publishers are blocked until messages are consumed or space is freed"
        self._while(lambda: store.disk_low, "LOW_DISK", text, lambda: messages.tail - messages.durable_lsn > most)

    def room_for_outcome(self) -> None:
        """Waits while nothing can be prepared, because the disk has no room for the outcome. To be called before something is prepared:
        what is refused here is as it was, and may be prepared when there is room.

        Raises: Refused (NO_ROOM) after some seconds.
        """
        transactions = self.store.transactions
        self._while(lambda: not transactions.has_room, "NO_ROOM", f"{_NO_ROOM}: free disk space", lambda: False)

    def _while(self, lacks: Callable[[], bool], code: str, text: str, behind: Callable[[], bool]) -> None:
        """Waits while something lacks, for some seconds, or the disk is behind. Raises: Refused."""
        until = time.monotonic() + self.limits.acquire_wait_ms_max / 1000
        while (missing := lacks()) or behind():
            if missing and time.monotonic() >= until:
                raise Refused(code, text)
            self.pause(_ROOM_LOOK_S)

    # --- notes ----------------------------------------------------------------------------------------------------------

    @staticmethod
    def encode(value: dict[str, Any]) -> bytes:
        """The value of a note."""
        return json.dumps(value, separators=(",", ":")).encode()

    def notes(self, kind: int) -> Iterable[tuple[bytes, dict[str, Any]]]:
        """(key, value) of all notes of a kind. Raises: StoreError for one that this program did not write."""
        for key, value in sorted(self.store.notes(kind).items()):
            try:
                decoded = json.loads(value)
                if not isinstance(decoded, dict):
                    raise ValueError("no object")
            except ValueError as error:
                raise StoreError(f"the transaction log has a note of kind {kind} that can't be read ({key!r}): {error}") from None
            yield key, decoded

    # --- names and permissions ------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Wall clock."""
        return self.clock.wall_ms()

    def vhost(self, caller: Caller) -> Any:
        """The caller's virtual host. Raises: Refused when it is not there, or not for this user."""
        try:
            self.broker.permissions.authorize_vhost(caller.user, caller.vhost)
        except PeerError as error:
            raise refusal_of(error) from None
        vhost = self.broker.vhosts.get(caller.vhost)
        if vhost is None:
            raise Refused("NOT_FOUND", f"there is no vhost '{caller.vhost}'")
        return vhost

    def authorize(self, caller: Caller, verb: Verb, kind: str, names: Iterable[str]) -> None:
        """The one place where the data plane asks for permissions. Raises: Refused (FORBIDDEN)."""
        for name in names:
            try:
                self.broker.permissions.authorize(caller.user, caller.vhost, verb, Resource(kind, name))
            except PeerError as error:
                raise refusal_of(error) from None

    def authorize_topic(self, caller: Caller, exchange: str, keys: Iterable[bytes]) -> None:
        """Whether the caller may publish with these routing keys (as session.authorization has it).

        Raises: Refused (FORBIDDEN).
        """
        vhost = self.vhost(caller)
        try:
            self.broker.permissions.authorize_keys(caller.user, vhost, Verb.WRITE, exchange, keys)
        except PeerError as error:
            raise refusal_of(error) from None

    def check_grants(self, caller: Caller, *verbs: Verb) -> None:
        """For calls that name nothing yet: whoever may do none of this to anything has nothing to do there.

        Raises: Refused (FORBIDDEN).
        """
        if not self.broker.permissions.grants(caller.user, caller.vhost, *verbs):
            verbs_text = " or ".join(verb.value for verb in verbs)
            raise Refused("FORBIDDEN", f"user '{caller.user}' has no permission to {verbs_text} anything in vhost '{caller.vhost}'")

    def may_read(self, caller: Caller, queues: Iterable[str]) -> bool:
        """Whether the caller may read all of them."""
        try:
            self.authorize(caller, Verb.READ, "queue", queues)
        except Refused:
            return False
        return True

    def identity(self, caller: Caller) -> tuple[str, int]:
        """The caller as one that others of the same name, by another token or after it was deleted, are not."""
        return str(caller.user), self.broker.users.born(caller.user)

    def is_administrator(self, caller: Caller) -> bool:
        """Whether the user has the tag `administrator`."""
        record = self.broker.users.get(caller.user)
        return record is not None and "administrator" in record.tags

    def _queue(self, vhost: str, name: str) -> Any:
        """Raises: Refused NOT_FOUND."""
        virtual_host = self.broker.vhosts.get(vhost)
        if virtual_host is None:
            raise Refused("NOT_FOUND", f"there is no vhost '{vhost}'")
        try:
            return virtual_host.queue(name)
        except PeerError as error:
            raise refusal_of(error) from None

    def is_shared(self, vhost: str, name: object) -> bool:
        """Whether that is the name of a shared queue of this node."""
        virtual_host = self.broker.vhosts.get(vhost)
        queue = virtual_host.queues.get(name) if virtual_host is not None and isinstance(name, str) else None
        return queue is not None and bool(queue.policy.is_shared)

    def shared_queue(self, vhost: str, name: str) -> Any:
        """A shared queue. Raises: Refused NOT_FOUND, BAD_ARGUMENT."""
        queue = self._queue(vhost, name)
        if not queue.policy.is_shared:
            text = f"queue '{name}' in vhost '{vhost}' is no shared queue: a subscription reads shared queues alone, or none"
            raise Refused("BAD_ARGUMENT", text)
        return queue

    def queue(self, vhost: str, name: str) -> Any:
        """A queue that a pipeline may read. Raises: Refused NOT_FOUND, FORBIDDEN (exclusive to a connection), BAD_ARGUMENT (a stream)."""
        queue = self._queue(vhost, name)
        if queue.exclusive:
            raise Refused("FORBIDDEN", f"queue '{name}' in vhost '{vhost}' is exclusive to a connection")
        if queue.policy.is_shared:
            text = "a subscription reads shared queues alone, by their names, and nobody looks at them without taking"
            raise Refused("BAD_ARGUMENT", f"queue '{name}' in vhost '{vhost}' is a shared queue: {text}")
        if queue.policy.is_stream:
            raise Refused("BAD_ARGUMENT", f"queue '{name}' in vhost '{vhost}' is a stream: it is read by offset (stream.open)")
        return queue

    def queue_name(self, queue_id: int) -> str:
        """For people: also of a queue that is gone."""
        queue = self.broker.queues.get(queue_id)
        return queue.name if queue is not None else f"(deleted queue {queue_id})"

    # --- transactions ---------------------------------------------------------------------------------------------------

    def begin(self, session: Session, xid: Xid) -> None:
        """A new branch without a timeout, in which the session works: its maker has bounds for such branches. Raises: Refused."""
        self.coordinator.select(session)
        try:
            self.coordinator.start(session, xid, counted=False)
            self.coordinator.set_timeout(xid, 0)
        except TransactionRefused as error:
            raise refusal_of(error) from None

    def prepare(self, session: Session, xid: Xid) -> None:
        """Phase one, durable when this returns. Raises: Refused (NO_ROOM: there is none after all, and it was rolled back)."""
        try:
            self.coordinator.end(session, xid)
            outcome = self.coordinator.prepare(xid)
        except TransactionRefused as error:
            raise refusal_of(error) from None
        finally:
            self.coordinator.session_closed(session)
        if self.wait(outcome) is not XaStatus.XA_OK:
            raise Refused("NO_ROOM", f"{_NO_ROOM}, and it was rolled back: free disk space")

    def discard(self, session: Session, xid: Xid) -> Outcome | None:
        """Rolls back what was not prepared; the name is free again when the outcome is there. None: there is nothing."""
        self.coordinator.session_closed(session)
        return self.roll_back(xid)

    def roll_back(self, xid: Xid) -> Outcome | None:
        """Rolls back a branch, prepared or not. None: it is not there, or decided already."""
        try:
            return self.coordinator.rollback(xid)
        except TransactionRefused:
            return None

    def rolled_back(self, xid: Xid, outcome: Outcome) -> None:
        """Waits for a rollback. What an operator decided before is over with it. Raises: Refused (P2)."""
        status = self.wait(outcome)
        if status is XaStatus.XA_HEURRB:
            self.wait(self.coordinator.forget(xid))
        elif status is XaStatus.XA_HEURCOM:
            log.warning("transaction %s: an operator committed it, and it is to be rolled back: left as it is", xid)

    def branches(self, format_id: int) -> dict[Xid, BranchView]:
        """All branches whose xid has this format."""
        return {view.xid: view for view in self.coordinator.list() if view.xid.format == format_id}

    def branch(self, xid: Xid) -> BranchState | None:
        """Its state, None when there is none: asked when something is not as it should be."""
        return next((view.state for view in self.coordinator.list() if view.xid == xid), None)

    def guarded(self, effect: Callable[[], Outcome]) -> Outcome:
        """Runs a command of the coordinator. Raises: Refused (NOT_PREPARED) when it says that this can't be."""
        try:
            return effect()
        except TransactionRefused as error:
            raise Refused("NOT_PREPARED", error.text) from None

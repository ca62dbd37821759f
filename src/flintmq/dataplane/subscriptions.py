"""Subscriptions: a destructive reader's durable place on some queues, and the one set of messages it may have prepared.

in: the sub.* calls, a restart. out: prepared and committed transactions, notes of kind 1, rows.

U1  A note of kind 1 is the subscription: incarnation, epoch, committed, what was planned, queues. Its key is vhost, NUL, name.
U2  The set `seq` is the branch FLNS / incarnation / seq. It is prepared exactly when seq == committed + 1 and the branch is there.
U3  A call with an epoch below the present one is refused and changes nothing; the present one is durable before it is given out.
U4  A reader without a checkpoint (`fresh`) fences nobody: it is refused while another one is heard of, or where another checkpoint's
    batches were committed or planned, before the epoch changes.
U5  `committed = n` becomes durable in one step with the commit of set n (TransactionCoordinator.decide); `restore` completes it.
Locks: `_lock` for the tables; each subscription's own, held while its change becomes durable. Never the second inside the first.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

from flintmq.arguments import is_whole
from flintmq.dataplane.arguments import Arguments
from flintmq.dataplane.choice import checked, chosen, matching, readable
from flintmq.dataplane.in_log import FORMAT_SET, NOTE_SUBSCRIPTION
from flintmq.dataplane.quotas import Quota
from flintmq.dataplane.sets import MessageSet
from flintmq.dataplane.shared import Caller, Plane, log
from flintmq.dataplane.taking import SEQ_MAX, Subscription, active, ahead, allowed, hold, lost, planned, take, unknown, unread, used
from flintmq.dataplane.times import LogTimes, QueueWatch, last_position, position_before
from flintmq.dataplane.wire import Refused
from flintmq.errors import StoreError
from flintmq.ports import Verb
from flintmq.transactions import BranchState, Outcome, TransactionRefused, Xid

_BYTES_MAX = 2**62
# a pattern, or names of queues; neither: those that it has
_Wanted = tuple[str | None, list[str] | None]
# seconds between two looks for messages in sub.acquire: the first, and the longest
_LOOK_S, _LOOK_MAX_S = 0.001, 0.02


class Subscriptions:
    """See module. Threading: any thread but I/O loops."""

    def __init__(self, plane: Plane, times: LogTimes) -> None:
        self._plane = plane
        self._times = times
        self._lock = threading.Lock()
        self._by_name: dict[tuple[str, str], Subscription] = {}
        self._by_id: dict[uuid.UUID, Subscription] = {}
        self._watches: dict[int, QueueWatch] = {}
        limits = plane.limits
        self._quota = Quota(
            "subscriptions",
            "`sub.reset` some with action delete",
            node=limits.subscriptions_max,
            vhost=limits.subscriptions_vhost_max,
            user=limits.subscriptions_user_max,
        )

    # --- restart --------------------------------------------------------------------------------------------------------

    def restore(self) -> list[Outcome]:
        """After a restart, before anything is served. Returns what must be waited for. Raises: StoreError."""
        plane = self._plane
        for key, value in plane.notes(NOTE_SUBSCRIPTION):
            try:
                vhost, _, name = key.decode().partition("\0")
                planned = value["planned"]
                subscription = Subscription(
                    name,
                    vhost,
                    uuid.UUID(value["id"]),
                    int(value["epoch"]),
                    int(value["committed"]),
                    list(value["queues"]),
                    int(value["created_ms"]),
                    None if planned is None else (int(planned[0]), int(planned[1]), int(planned[2])),
                    pattern=value.get("pattern"),
                    user=str(value.get("user", "")),
                    # Its reader may be there: nobody knows until its next sign of life.
                    heard_ns=plane.clock.monotonic_ns(),
                )
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise StoreError(f"the note of subscription {key!r} can't be read: {error!r}") from None
            self._add(subscription)
        outcomes = [self._restore_branch(xid, view.state) for xid, view in plane.branches(FORMAT_SET).items()]
        return [outcome for outcome in outcomes if outcome is not None]

    def _restore_branch(self, xid: Xid, state: BranchState) -> Outcome | None:
        coordinator = self._plane.coordinator
        subscription = self._by_id.get(uuid.UUID(bytes=xid.global_id)) if len(xid.global_id) == 16 else None
        seq = int.from_bytes(xid.branch_id[:8], "big")
        if subscription is not None and subscription.vhost != xid.vhost:
            subscription = None
        try:
            if state in (BranchState.HEURISTIC_COMMIT, BranchState.HEURISTIC_ROLLBACK):
                return self._operator_decided(subscription, seq, xid, state)
            if state is not BranchState.PREPARED:
                return None
            if subscription is not None and (seq <= subscription.committed or len(xid.branch_id) != 8):
                log.info("subscription %s: the commit of set %d is completed", subscription.name, seq)
                return coordinator.commit(xid)
            if subscription is not None and seq == subscription.committed + 1:
                since = (
                    subscription.planned[2] if subscription.planned is not None and subscription.planned[0] == seq else self._plane.now_ms()
                )
                subscription.prepared = MessageSet(seq, xid, coordinator.runs(xid), self._plane.queue_name, since, read=None)
                return None
            log.warning("transaction %s belongs to no subscription: it is rolled back", xid)
            return coordinator.rollback(xid)
        except TransactionRefused as error:
            raise StoreError(f"transaction {xid} of a subscription can't be completed: {error}") from None

    def _operator_decided(self, subscription: Subscription | None, seq: int, xid: Xid, state: BranchState) -> Outcome:
        """Somebody decided a set with `flintmq tx`: the subscription goes on from there."""
        if subscription is not None and state is BranchState.HEURISTIC_COMMIT and seq == subscription.committed + 1:
            subscription.committed = seq
            self._plane.store.note(NOTE_SUBSCRIPTION, subscription.key, self._plane.encode(subscription.value()))
        log.warning("set %d of subscription %s: an operator decided (%s)", seq, subscription.name if subscription else "?", state.value)
        return self._plane.coordinator.forget(xid)

    def watch(self) -> None:
        """Once per housekeeping pass: remembers how far the queues have come (I/O loop)."""
        now_us = self._plane.now_ms() * 1000
        queues = self._plane.broker.queues
        for queue_id, one in list(self._watches.items()):
            if queue_id in queues:
                one.sample(now_us)
            else:
                del self._watches[queue_id]

    # --- calls ----------------------------------------------------------------------------------------------------------

    def open(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.open."""
        limits = self._plane.limits
        mode = arguments.choice("mode", ("create", "attach"), "create")
        identity = arguments.identity("sub_id") if mode == "attach" and arguments.given("sub_id") else None
        name = arguments.text("name", limits.dataplane_name_max, *(() if identity is None else (None,)))
        pattern = arguments.text("pattern", limits.name_bytes_max, None)
        queues = arguments.texts("queues", limits.name_bytes_max, limits.subscription_queues_max, None)
        start = self._start(arguments)
        fresh = arguments.choice("fresh", ("refuse", "continue"), None)
        on_lost = arguments.choice("onlost", ("fail", "redeliver"), "fail")
        arguments.done()
        if pattern is not None and queues is not None:
            raise Refused("BAD_ARGUMENT", "sub.open: give queues or pattern, not both")
        if mode == "create" and pattern is None and queues is None:
            raise Refused("BAD_ARGUMENT", "sub.open: queues is missing")
        wanted = (pattern, queues)
        self._plane.check_grants(caller, Verb.READ)
        while True:
            with self._lock:
                subscription = self._by_name.get((caller.vhost, name)) if identity is None else self._by_id.get(identity)
            if subscription is None:
                if mode == "attach":
                    raise unknown(caller, name if identity is None else str(identity))
                opened = self._open_new(caller, name, wanted, start)
                if opened is not None:
                    return opened
                continue
            if subscription.vhost != caller.vhost:
                raise unknown(caller, str(identity))
            with subscription.lock:
                if subscription.deleted:
                    continue
                self._check_control(caller, subscription)
                if mode == "create" and fresh != "continue":
                    self._check_same(subscription, wanted)
                changes = self._changed(caller, subscription, wanted)
                if fresh is not None:
                    self._check_fresh(subscription, fresh, on_lost)
                elif subscription.is_other(changes) and (heard_ms := self._active_ms(subscription)) is not None:
                    raise active(subscription, heard_ms)  # a query with other queues has the checkpoint of this one
                subscription.drain = None
                self._note(subscription, epoch=subscription.epoch + 1, **changes)
                self._hear(subscription, subscription.epoch)
                return self._opened(subscription)

    def _open_new(self, caller: Caller, name: str, wanted: _Wanted, start: tuple[str, int]) -> dict[str, Any] | None:
        """None: somebody else was faster. Raises: Refused NOT_FOUND, FORBIDDEN, LIMIT, QUEUE_BUSY."""
        plane = self._plane
        created = Subscription(name, caller.vhost, uuid.uuid4(), 1, 0, [], plane.now_ms(), user=caller.name)
        for field, value in self._changed(caller, created, wanted).items():
            setattr(created, field, value)
        if not created.queues:
            raise Refused("NOT_FOUND", f"no queue in vhost '{caller.vhost}' that user '{caller.user}' may read matches '{created.pattern}'")
        cores = [queue.core for queue in readable(plane, created)]
        with created.lock:
            if not self._claim(created):
                return None
            try:
                discarded = self._create(created, cores, start)
            except BaseException:
                self._remove(created)
                raise
            self._hear(created, created.epoch)
        if discarded:
            text = "subscription %s is new: %d messages that stood in its queues are committed unread, says user %s"
            log.warning(text, name, discarded, caller.user)
        return {**self._opened(created), "discarded": discarded}

    @staticmethod
    def _check_same(subscription: Subscription, wanted: _Wanted) -> None:
        """Raises: Refused QUEUES_DIFFER."""
        pattern, queues = wanted
        if pattern == subscription.pattern and (pattern is not None or sorted(queues or ()) == sorted(subscription.queues)):
            return
        has = ", ".join(subscription.queues) if subscription.pattern is None else f"'{subscription.pattern}'"
        asked = ", ".join(queues or ()) if pattern is None else pattern
        text = f"subscription '{subscription.name}' reads {has}: it can't be opened with {asked}"
        raise Refused("QUEUES_DIFFER", f"{text}; take another name, or `sub.reset` it with action delete")

    def _changed(self, caller: Caller, subscription: Subscription, wanted: _Wanted) -> dict[str, Any]:
        """What the queues of a subscription become; of named ones those that were read before may be gone.

        Raises: Refused FORBIDDEN, NOT_FOUND, BAD_ARGUMENT.
        """
        pattern, queues = wanted
        if pattern is None and queues is None:
            pattern, queues = subscription.pattern, subscription.queues
        if pattern is not None:
            names, subscription.left_out = chosen(self._plane, caller, pattern, subscription.queues)
            subscription.looked = (self._plane.clock.monotonic_ns(), self._plane.identity(caller))
            return {"pattern": pattern, "queues": names}
        names = queues or []
        checked(self._plane, caller, names, subscription.queues)
        return {"pattern": None, "queues": subscription.queues if sorted(names) == sorted(subscription.queues) else names}

    def _check_fresh(self, subscription: Subscription, fresh: str, on_lost: str) -> None:
        """U4. Raises: Refused CHECKPOINT_NEW, READER_ACTIVE, CHECKPOINT_LOST."""
        active_ms = self._active_ms(subscription)
        if subscription.committed and fresh == "refuse":
            raise used(subscription, active_ms is not None)
        if active_ms is not None:
            raise active(subscription, active_ms)
        held = self._prepared(subscription)
        if held is not None and subscription.may_be_read(held.seq) and on_lost == "fail":
            raise lost(subscription, held.seq)

    def _heard_ms(self, subscription: Subscription) -> int | None:
        """Milliseconds since its reader was heard of; None: it said good-bye, or there was none."""
        heard_ns = subscription.heard_ns
        return None if heard_ns is None else max(0, self._plane.clock.monotonic_ns() - heard_ns) // 1_000_000

    def _active_ms(self, subscription: Subscription) -> int | None:
        """The same, of a reader that works; None: there is none."""
        heard_ms = self._heard_ms(subscription)
        return heard_ms if heard_ms is not None and heard_ms < self._plane.limits.subscription_alive_ms else None

    def alive(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.alive: the reader of the present epoch works, or (`leave`) ends."""
        subscription = self._known(caller, arguments)
        epoch = arguments.integer("epoch", 1, SEQ_MAX)
        leave = arguments.boolean("leave", False)
        arguments.done()
        with subscription.lock:
            self._hear(subscription, epoch)
            if leave:
                subscription.heard_ns = None
            else:
                self._keep_queues(subscription)
            return {"epoch": subscription.epoch, "committed": subscription.committed}

    def _start(self, arguments: Arguments) -> tuple[str, int]:
        value = arguments.raw("start", "earliest")
        if value in ("earliest", "latest"):
            return value, 0
        if isinstance(value, dict) and len(value) == 1:
            kind, number = next(iter(value.items()))
            if kind in ("lsn", "time_us") and is_whole(number, 0, 2**63 - 1):
                return kind, number
        raise arguments.refuse("start", '"earliest", "latest", {"lsn": n} or {"time_us": n}', value)

    @staticmethod
    def _opened(subscription: Subscription) -> dict[str, Any]:
        prepared = None if subscription.prepared is None else subscription.prepared.seq
        return {
            "sub_id": str(subscription.incarnation),
            "epoch": subscription.epoch,
            "committed": subscription.committed,
            "prepared": prepared,
            "planned": prepared is not None and subscription.is_planned(prepared),
            "queues": subscription.queues,
            "pattern": subscription.pattern,
        }

    def acquire(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.acquire."""
        plane, limits = self._plane, self._plane.limits
        subscription, epoch, seq = self._subject(caller, arguments)
        messages = min(arguments.integer("max_messages", 1, SEQ_MAX, limits.acquire_messages_max), limits.acquire_messages_max)
        size = min(arguments.integer("max_bytes", 1, SEQ_MAX, limits.acquire_bytes_max), limits.acquire_bytes_max)
        wait_ms = min(arguments.integer("max_wait_ms", 0, 2**31, 0), limits.acquire_wait_ms_max)
        on_lost = arguments.choice("onlost", ("fail", "redeliver"), "fail")
        arguments.done()
        until = time.monotonic() + wait_ms / 1000
        pause = _LOOK_S
        while True:
            with subscription.lock:
                self._hear(subscription, epoch)
                self._check_seq(subscription, seq)
                if seq > subscription.committed + 1:
                    raise ahead(subscription, seq)
                held = self._prepared(subscription)
                if held is not None:
                    is_lost = subscription.may_be_read(seq, before=epoch)
                    # One that nobody has seen and of which nothing is left makes way: it would mean "nothing is there" for ever.
                    if not is_lost and (held.count or subscription.is_planned(seq)):
                        return held.facts()
                    if is_lost and on_lost == "fail":
                        raise lost(subscription, seq)
                    log.warning("subscription %s: set %d (%d messages) goes back to its queues", subscription.name, seq, held.count)
                    self._roll_back(subscription, held)
                self._look(caller, subscription)  # under this lock: another caller's look may have chosen names that this one may not read
                self._keep_queues(subscription)
                held = self._acquire(subscription, seq, messages, size)
                if held is not None:
                    return held.facts()
            if time.monotonic() >= until:
                return {"seq": seq, "count": 0, "bytes": 0, "queues": []}
            plane.pause(min(pause, max(0.0, until - time.monotonic())))
            pause = min(pause * 1.5, _LOOK_MAX_S)

    def plan(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.plan."""
        subscription, epoch, seq = self._subject(caller, arguments)
        slices = arguments.integer("slices", 1, self._plane.limits.slices_max, 1)
        arguments.done()
        with subscription.lock:
            self._hear(subscription, epoch)
            self._check_seq(subscription, seq)
            held = self._prepared(subscription)
            if held is None or held.seq != seq:
                raise Refused("NOT_PREPARED", f"subscription '{subscription.name}': set {seq} is not prepared")
            if subscription.planned != (seq, epoch, held.since_ms):
                self._note(subscription, planned=(seq, epoch, held.since_ms))
            bounds = held.bounds(min(slices, held.count))
        # The rows are in the ticket: slices are cut by number, so those of a set that has lost some since must not be mixed with these.
        ticket = {"kind": "set", "sub_id": str(subscription.incarnation), "epoch": epoch, "seq": seq, "rows": held.count}
        tickets = [{**ticket, "slice": number, "slices": len(bounds) - 1} for number in range(len(bounds) - 1)]
        return {"seq": seq, "count": held.count, "bytes": held.bytes, "tickets": tickets}

    def rows(self, caller: Caller, arguments: Arguments) -> tuple[dict[str, Any], list[bytes]]:
        """rows of a ticket of kind set."""
        subscription, epoch, seq = self._subject(caller, arguments)
        planned = arguments.integer("rows", 1, SEQ_MAX)
        slices = arguments.integer("slices", 1, min(planned, self._plane.limits.slices_max), 1)
        number = arguments.integer("slice", 0, slices - 1, 0)
        first = arguments.integer("first", 0, SEQ_MAX, 0)
        count = arguments.integer("count", 1, SEQ_MAX, self._plane.limits.dataplane_rows_max)
        arguments.done()
        with subscription.lock:
            self._check(subscription, epoch)
            self._check_seq(subscription, seq)
            held = subscription.prepared
            if held is None or held.seq != seq:
                raise Refused("NOT_PREPARED", f"subscription '{subscription.name}': set {seq} is not prepared")
            if planned != held.count:
                text = f"subscription '{subscription.name}': set {seq} had {planned} messages when it was planned, and has {held.count} now"
                raise Refused("SET_CHANGED", f"{text}: a queue was deleted, or the broker was killed and had transient messages")
            held.read = True
            bounds = held.bounds(slices)
        # Without the lock: slices are read concurrently. Whoever commits meanwhile does not need these rows any more.
        begin = min(bounds[number] + first, bounds[number + 1])
        queues, payload, end = held.rows(begin, min(begin + count, bounds[number + 1]), self._plane.limits)
        if subscription.prepared is not held:
            raise Refused("NOT_PREPARED", f"subscription '{subscription.name}': set {seq} was decided while it was read")
        return {"queues": queues, "more": end < bounds[number + 1]}, payload

    def commit(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.commit."""
        subscription = self._known(caller, arguments)
        epoch = arguments.integer("epoch", 1, SEQ_MAX)
        upto = arguments.integer("upto", 0, SEQ_MAX)
        only_read = arguments.boolean("read", False)
        arguments.done()
        with subscription.lock:
            self._hear(subscription, epoch)
            if upto > subscription.committed:
                held = self._prepared(subscription)  # an operator may have committed it meanwhile
                if upto > subscription.committed:
                    if held is None or held.seq != upto:
                        raise ahead(subscription, upto)
                    if only_read and held.read is False and held.count:
                        raise unread(subscription, upto, held.count)
                    self._commit(subscription, held)
            return {"committed": subscription.committed}

    def tail(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.tail. From memory: no record is read but for messages of before the broker started."""
        subscription = self._known(caller, arguments)
        epoch = arguments.integer("epoch", 1, SEQ_MAX, None)
        drain = arguments.boolean("drain", False)
        arguments.done()
        now_ms = self._plane.now_ms()
        queues = []
        marks: dict[int, list[int]] = {}
        held = subscription.prepared
        for name in subscription.queues:
            try:
                queue = self._plane.queue(subscription.vhost, name)
            except Refused:
                continue  # deleted: sub.acquire says so
            core = queue.core
            watch = self._watched(queue.queue_id, core)
            ready = core.ready_count()
            marks[queue.queue_id] = [last_position(core), ready + core.unacked_count() if core.priorities() > 1 else SEQ_MAX]
            queues.append(
                {
                    "queue": name,
                    "ready": ready,
                    "bytes": core.ready_bytes(),
                    "oldest_us": watch.oldest_us() if ready else None,
                    "prepared": held.held(queue.queue_id) if held is not None else 0,
                    "next": core.next_available(0),
                    "last": marks[queue.queue_id][0],
                }
            )
        if epoch is not None or drain:
            with subscription.lock:
                if epoch is not None:
                    self._check(subscription, epoch)
                if drain:
                    subscription.drain = marks
        oldest = min((one["oldest_us"] for one in queues if one["oldest_us"] is not None), default=None)
        return {
            "queues": queues,
            "behind_messages": sum(one["ready"] for one in queues),
            "behind_bytes": sum(one["bytes"] for one in queues),
            "oldest_age_ms": None if oldest is None else max(0, now_ms - oldest // 1000),
        }

    def list_all(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.list: those whose queues the caller may read."""
        arguments.done()
        with self._lock:
            subscriptions = [one for one in self._by_name.values() if one.vhost == caller.vhost]
        shown = (one for one in sorted(subscriptions, key=lambda one: one.name) if self._may_see(caller, one))
        return {"subscriptions": [self._status(one) for one in shown]}

    def status(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.status."""
        if arguments.given("sub_id"):
            subscription = self._known(caller, arguments)
        else:
            subscription = self._named(caller, arguments.text("name", self._plane.limits.dataplane_name_max))
        arguments.done()
        return self._status(subscription)

    def reset(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """sub.reset: an operator decides. The reader that has the subscription open is fenced."""
        name = arguments.text("name", self._plane.limits.dataplane_name_max)
        action = arguments.choice("action", ("redeliver", "commit", "delete"))
        seq = arguments.integer("seq", 1, SEQ_MAX, None)
        may_duplicate = arguments.boolean("may_duplicate", True)
        arguments.done()
        subscription = self._named(caller, name)
        with subscription.lock:
            if subscription.deleted:
                raise unknown(caller, name)
            held = self._prepared(subscription)
            if seq is not None and (held is None or held.seq != seq):
                return self._status(subscription)  # done before
            if held is not None and action != "commit" and not may_duplicate and subscription.may_be_read(held.seq):
                raise planned(subscription, held.seq)
            log.warning("subscription %s: reset (%s) by user %s", name, action, caller.user)
            subscription.heard_ns = None
            if action == "commit":
                if held is not None:
                    self._commit(subscription, held, epoch=subscription.epoch + 1)
                return self._status(subscription)
            if held is not None:
                self._roll_back(subscription, held, epoch=subscription.epoch + 1)
            if action == "delete":
                subscription.deleted = True
                self._plane.durable(self._plane.store.note(NOTE_SUBSCRIPTION, subscription.key, b""))
                self._remove(subscription)
                return {**self._status(subscription), "deleted": True}
            return self._status(subscription)

    def match(self, caller: Caller, arguments: Arguments) -> dict[str, Any]:
        """queue.match: names of the queues that match a pattern now and that the caller may read."""
        limits = self._plane.limits
        pattern = arguments.text("pattern", limits.name_bytes_max)
        arguments.done()
        matches = matching(self._plane, caller, pattern)
        if len(matches) > limits.subscription_matches_max:
            raise Refused("LIMIT", f"{len(matches)} queues match '{pattern}', at most {limits.subscription_matches_max} are read at once")
        return {"queues": matches}

    def prepared_by_queue(self, vhost: str) -> dict[str, int]:
        """Queue name -> messages that prepared sets of subscriptions hold: neither ready nor lost."""
        prepared: dict[str, int] = {}
        with self._lock:
            all_ = list(self._by_name.values())
        for one in all_:
            held = one.prepared
            if one.vhost == vhost and held is not None:
                for run in held.runs:
                    name = held.names[run.queue_id]
                    prepared[name] = prepared.get(name, 0) + run.count
        return prepared

    def figures(self) -> list[dict[str, Any]]:
        """For metrics: each subscription with its committed and prepared batch, what waits in its queues, and whether its reader works.

        O(queues of all subscriptions); each queue is asked once.
        """
        with self._lock:
            all_ = sorted(self._by_name.values(), key=lambda one: (one.vhost, one.name))
        vhosts, rows = self._plane.broker.vhosts, []
        ready: dict[int, int] = {}
        for one in all_:
            here = vhosts.get(one.vhost)
            queues = [queue for name in one.queues if here is not None and (queue := here.queues.get(name)) is not None]
            ready |= {queue.queue_id: queue.core.ready_count() for queue in queues if queue.queue_id not in ready}
            held = one.prepared
            rows.append(
                {
                    "vhost": one.vhost,
                    "name": one.name,
                    "committed": one.committed,
                    "behind": sum(ready[queue.queue_id] for queue in queues),
                    "prepared": 0 if held is None else held.count,
                    "prepared_age_ms": 0 if held is None else max(0, self._plane.now_ms() - held.since_ms),
                    "active": self._active_ms(one) is not None,
                }
            )
        return rows

    def counts(self) -> dict[str, int]:
        """For `status`."""
        with self._lock:
            all_ = list(self._by_name.values())
        return {"subscriptions": len(all_), "prepared_sets": sum(one.prepared is not None for one in all_)}

    def knows(self, vhost: str, name: object = None, sub_id: object = None) -> bool:
        """Whether there is a subscription of that name, or with that id."""
        with self._lock:
            if isinstance(sub_id, str):
                try:
                    return uuid.UUID(sub_id) in self._by_id
                except ValueError:
                    return True  # it is refused here
            return (vhost, name) in self._by_name

    # --- tables ---------------------------------------------------------------------------------------------------------

    def _claim(self, created: Subscription) -> bool:
        """Enters a new one under its name; False when somebody else was faster."""
        with self._lock:
            if (created.vhost, created.name) in self._by_name:
                return False
            self._quota.check(created.user, created.vhost)
            self._quota.enter(created.incarnation, created.user, created.vhost)
            self._by_name[created.vhost, created.name] = created
            self._by_id[created.incarnation] = created
            return True

    def _add(self, subscription: Subscription) -> None:
        self._by_name[subscription.vhost, subscription.name] = subscription
        self._by_id[subscription.incarnation] = subscription
        self._quota.enter(subscription.incarnation, subscription.user, subscription.vhost)
        for name in subscription.queues:
            try:
                queue = self._plane.queue(subscription.vhost, name)
            except Refused:
                continue
            self._watched(queue.queue_id, queue.core)

    def _remove(self, subscription: Subscription) -> None:
        subscription.deleted = True
        with self._lock:
            self._by_name.pop((subscription.vhost, subscription.name), None)
            self._by_id.pop(subscription.incarnation, None)
            self._quota.leave(subscription.incarnation)

    def _watched(self, queue_id: int, core: Any) -> QueueWatch:
        watch = self._watches.get(queue_id)
        if watch is None:
            watch = self._watches.setdefault(queue_id, QueueWatch(core, self._times, self._plane.now_ms() * 1000))
        return watch

    def _known(self, caller: Caller, arguments: Arguments) -> Subscription:
        identity = arguments.identity("sub_id")
        with self._lock:
            subscription = self._by_id.get(identity)
        if subscription is None or subscription.vhost != caller.vhost:
            raise Refused("NOT_FOUND", f"there is no subscription with id {identity} in vhost '{caller.vhost}': it was deleted")
        self._authorize(caller, subscription)
        return subscription

    def _authorize(self, caller: Caller, subscription: Subscription) -> None:
        """Every queue that is read, and those of which a set holds messages. Raises: Refused FORBIDDEN."""
        plane = self._plane
        if subscription.pattern is None:
            plane.authorize(caller, Verb.READ, "queue", subscription.queues)
        else:
            plane.check_grants(caller, Verb.READ)
            self._check_control(caller, subscription)
            self._look(caller, subscription)
        self._authorize_held(caller, subscription)

    def _authorize_held(self, caller: Caller, subscription: Subscription) -> None:
        held = subscription.prepared
        if held is not None:
            there = self._plane.broker.queues
            names = [held.names[run.queue_id] for run in held.runs if run.queue_id in there]
            self._plane.authorize(caller, Verb.READ, "queue", names)

    def _check_control(self, caller: Caller, subscription: Subscription) -> None:
        """Before anything is asked of a subscription, or its queues are chosen anew: its owner may, and whoever may read all that it reads
        and holds. A caller that may read one queue, or none that matches, could else take a pattern, or a name, from its reader.

        Raises: Refused FORBIDDEN.
        """
        if subscription.user in ("", caller.user):
            return
        names = self._read_by_owner(subscription)
        if not names and not self._plane.is_administrator(caller):
            raise Refused("FORBIDDEN", f"subscription '{subscription.name}' belongs to user '{subscription.user}', and reads no queue now")
        self._plane.authorize(caller, Verb.READ, "queue", names)
        self._authorize_held(caller, subscription)

    def _read_by_owner(self, subscription: Subscription) -> list[str]:
        """The queues that it reads; of a pattern at which nobody looked since the start, those that its owner would read."""
        if subscription.pattern is None or subscription.queues:
            return subscription.queues
        try:
            return chosen(self._plane, Caller(subscription.user, subscription.vhost), subscription.pattern, ())[0]
        except Refused:  # the owner is gone, or may not open the virtual host any more
            return []

    def _may_see(self, caller: Caller, subscription: Subscription) -> bool:
        if subscription.pattern is not None and subscription.user in ("", caller.user):
            return True
        names = self._read_by_owner(subscription)
        return bool(names) and self._plane.may_read(caller, names)

    def _look(self, caller: Caller, subscription: Subscription) -> None:
        """The queues of a pattern come and go between sets; those of names are what they are."""
        if subscription.pattern is None:
            return
        now, looked, who = self._plane.clock.monotonic_ns(), subscription.looked, self._plane.identity(caller)
        if looked is not None and looked[1] == who and now - looked[0] < self._plane.limits.subscription_look_ms * 1_000_000:
            return
        with subscription.lock:
            names, left_out = chosen(self._plane, caller, subscription.pattern, subscription.queues)
            if left_out > subscription.left_out:
                log.warning("subscription %s: %d queues more match '%s' than are read", subscription.name, left_out, subscription.pattern)
            subscription.queues, subscription.left_out, subscription.looked = names, left_out, (now, who)

    def _named(self, caller: Caller, name: str) -> Subscription:
        with self._lock:
            subscription = self._by_name.get((caller.vhost, name))
        if subscription is None:
            raise unknown(caller, name)
        self._authorize(caller, subscription)
        return subscription

    def _subject(self, caller: Caller, arguments: Arguments) -> tuple[Subscription, int, int]:
        subscription = self._known(caller, arguments)
        return subscription, arguments.integer("epoch", 1, SEQ_MAX), arguments.integer("seq", 1, SEQ_MAX)

    # --- rules: all under the subscription's lock -----------------------------------------------------------------------

    @staticmethod
    def _check(subscription: Subscription, epoch: int) -> None:
        """U3."""
        if subscription.deleted:
            raise Refused("NOT_FOUND", f"subscription '{subscription.name}' was deleted")
        if epoch < subscription.epoch:
            raise Refused(
                "FENCED",
                f"subscription '{subscription.name}' was opened again (epoch {subscription.epoch}, this is {epoch}): another reader has it",
            )
        if epoch > subscription.epoch:
            raise Refused(
                "BAD_ARGUMENT",
                f"subscription '{subscription.name}': epoch {epoch} was never given out (the present one is {subscription.epoch})",
            )

    def _hear(self, subscription: Subscription, epoch: int) -> None:
        """The same, and the caller, its reader, works. What only looks does not count: a reader that ended may be asked for its figures."""
        self._check(subscription, epoch)
        subscription.heard_ns = self._plane.clock.monotonic_ns()

    @staticmethod
    def _check_seq(subscription: Subscription, seq: int) -> None:
        if seq <= subscription.committed:
            name, committed = subscription.name, subscription.committed
            text = f"subscription '{name}' has committed set {committed}, and is asked for set {seq}: the checkpoint is older"
            raise Refused("CHECKPOINT_BEHIND", text)

    def _prepared(self, subscription: Subscription) -> MessageSet | None:
        """The prepared set. What happened to it behind our back (an operator's `flintmq tx`, a deleted queue) is taken note of first."""
        held = subscription.prepared
        if held is None:
            return None
        coordinator = self._plane.coordinator
        try:
            runs = coordinator.runs(held.xid)
            if sum(run.count for run in runs) == held.count:
                return held
        except TransactionRefused:
            runs = ()
        state = self._plane.branch(held.xid)
        if state is BranchState.PREPARED:
            subscription.prepared = MessageSet(held.seq, held.xid, runs, self._plane.queue_name, held.since_ms, held.arrivals, held.read)
            return subscription.prepared
        subscription.prepared = None
        if state in (BranchState.HEURISTIC_COMMIT, BranchState.HEURISTIC_ROLLBACK):
            self._plane.wait(self._operator_decided(subscription, held.seq, held.xid, state))
        return None

    def _note(self, subscription: Subscription, **changes: Any) -> None:
        """Changes the subscription, durable when this returns."""
        ticket = self._plane.store.note(NOTE_SUBSCRIPTION, subscription.key, self._plane.encode(subscription.value(**changes)))
        for name, value in changes.items():
            setattr(subscription, name, value)
        self._plane.durable(ticket)

    def _decide(self, subscription: Subscription, commits: Sequence[Xid], rollbacks: Sequence[Xid], **changes: Any) -> None:
        """Changes the subscription in one step with transactions; durable and done in the queues when this returns."""
        note = (NOTE_SUBSCRIPTION, subscription.key, self._plane.encode(subscription.value(**changes)))
        outcome = self._plane.guarded(lambda: self._plane.coordinator.decide(note, commits, rollbacks))
        # A written decision will happen, also when the wait below ends early: calls that come later wait for later records.
        for name, value in changes.items():
            setattr(subscription, name, value)
        subscription.prepared = None
        self._plane.wait(outcome)

    def _commit(self, subscription: Subscription, held: MessageSet, **changes: Any) -> None:
        self._decide(subscription, [held.xid], [], committed=held.seq, planned=None, **changes)

    def _roll_back(self, subscription: Subscription, held: MessageSet, **changes: Any) -> None:
        self._decide(subscription, [], [held.xid], planned=None, **changes)

    # --- taking messages ------------------------------------------------------------------------------------------------

    def _acquire(self, subscription: Subscription, seq: int, messages: int, size: int) -> MessageSet | None:
        """Prepares a set of the messages that are ready; None when none is."""
        plane = self._plane
        queues = readable(plane, subscription)
        for queue in queues:
            self._watched(queue.queue_id, queue.core)
        turn = seq % max(1, len(queues))  # another queue is first each time
        queues = queues[turn:] + queues[:turn]
        rests = plane.broker.pauses.rests
        ready = [0 if rests(queue) else min(queue.core.ready_count(), allowed(subscription, queue.queue_id)) for queue in queues]
        if not any(ready):
            return None
        xid = subscription.xid(seq)
        session = ("set", subscription.incarnation, seq)
        plane.begin(session, xid)
        try:
            taken = take(plane, subscription, queues, ready, messages, size, session, xid)
            if taken:
                plane.prepare(session, xid)
        except BaseException:
            plane.discard(session, xid)
            raise
        if not taken:
            outcome = plane.discard(session, xid)
            if outcome is not None:
                plane.wait(outcome)  # the name must be free for the next try
            return None
        if subscription.drain is not None:
            for queue_id, count in taken.items():
                subscription.drain[queue_id][1] -= count
        came = {queue.queue_id: self._watched(queue.queue_id, queue.core).arrivals() for queue in queues if queue.queue_id in taken}
        subscription.prepared = MessageSet(seq, xid, plane.coordinator.runs(xid), plane.queue_name, plane.now_ms(), came)
        return subscription.prepared

    def _keep_queues(self, subscription: Subscription) -> None:
        """A queue with x-expires stays while its reader works, however long its triggers are apart."""
        vhost = self._plane.broker.vhosts.get(subscription.vhost)
        if vhost is None:
            return
        for name in subscription.queues:
            queue = vhost.queues.get(name)
            if queue is not None:
                vhost.keep(queue, self._plane.limits.subscription_alive_ms)

    # --- a new subscription ---------------------------------------------------------------------------------------------

    def _create(self, created: Subscription, cores: Sequence[Any], start: tuple[str, int]) -> int:
        """Writes the note; what stands before the start is committed with it, unread. Returns how many messages that were."""
        kind, number = start
        discarded = 0
        skipped: list[Xid] = []
        lsn = self._times.lsn_at(number) if kind == "time_us" else number
        try:
            for core in cores:
                upto = 0
                if kind == "latest":
                    upto = last_position(core)
                elif kind != "earliest":
                    upto = position_before(core, lsn)
                while upto and (count := self._skip(created, core.queue_id, upto, skipped)):
                    discarded += count
            if skipped:
                self._decide(created, skipped, [])
            else:
                self._note(created)
        except BaseException:
            for xid in skipped:
                self._plane.roll_back(xid)  # without effect once it is decided
            raise
        for core in cores:
            self._watched(core.queue_id, core)
        return discarded

    def _skip(self, created: Subscription, queue_id: int, upto: int, skipped: list[Xid]) -> int:
        """Prepares the dequeue of a part of the messages up to a position. Returns how many; 0: there is none."""
        plane = self._plane
        branch = bytes(8) + len(skipped).to_bytes(4, "big")  # longer than that of any set: restore tells them by it
        xid = Xid(FORMAT_SET, created.incarnation.bytes, branch, created.vhost)
        session = ("skip", created.incarnation, len(skipped))
        plane.begin(session, xid)
        try:
            facts = hold(plane, session, xid, queue_id, plane.limits.acquire_messages_max, _BYTES_MAX, created.name, upto)
            if not facts.count:
                outcome = plane.discard(session, xid)
                if outcome is not None:
                    plane.wait(outcome)
                return 0
            plane.prepare(session, xid)
        except BaseException:
            plane.discard(session, xid)
            raise
        skipped.append(xid)
        return int(facts.count)

    def _status(self, subscription: Subscription) -> dict[str, Any]:
        held = subscription.prepared
        return {
            "name": subscription.name,
            "vhost": subscription.vhost,
            **self._opened(subscription),
            "created_ms": subscription.created_ms,
            "left_out": subscription.left_out,
            "heard_ms": self._heard_ms(subscription),
            "prepared_messages": 0 if held is None else held.count,
            "prepared_bytes": 0 if held is None else held.bytes,
            "prepared_age_ms": None if held is None else max(0, self._plane.now_ms() - held.since_ms),
            "prepared_queues": {} if held is None else {held.names[run.queue_id]: held.held(run.queue_id) for run in held.runs},
        }

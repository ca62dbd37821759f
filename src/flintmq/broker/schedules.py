"""Scheduled messages: the queue that keeps them in each virtual host, and the thread that routes them when they are due.

in: publishes that ask for a time (channel/scheduling.py). out: messages on the queues of their routes, at their time.

A schedule is a durable queue that no client can name (`Queue` SCHEDULE of its virtual host): an entry's expiry is the time at which its
message is due, so the log, recovery, memory and its limits are those of every queue. The index of expiries (queue/expiries.py) is the
index of due messages.

S1  A message is confirmed when its entry is durable in the schedule. It is routed when it is due, by the bindings of then; `mandatory` and
    `immediate` ask nothing (as with RabbitMQ's plugin).
S2  Due messages of a virtual host are routed in the order of their times, of one millisecond in the order in which they were published.
S3  A batch moves in one transaction of the log (channel/firing.py). What fails goes back, and is tried again after schedule_retry_ms.
S5  While there are several users, the messages of one are schedule_user_share of a schedule at most (queue/schedule_share.py). A start
    forgets whose the messages are that it finds.
S4  One message that can't be routed holds up no other; a virtual host has one batch, then others that are due have theirs.
S6  The route of a message comes from the cache that publishes use (channel/firing.py). Planned here are the first message of a route, and
    those with CC or BCC, of exchanges whose routes headers decide, of queues that may refuse, and of shared queues.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flintmq.broker.routes import REPLY_PREFIX
from flintmq.channel.firing import Firing
from flintmq.core.content import CONTENT_EXPIRES, CONTENT_HEADERS, CONTENT_PERSISTENT, CONTENT_PRIORITY, CONTENT_REPLY_TO
from flintmq.errors import PeerError
from flintmq.guard import caught, guarded
from flintmq.protocol.v0_9_1.codec import decode_properties, scan_properties_of
from flintmq.protocol.v0_9_1.splice import join_properties, join_table, split_properties, split_table
from flintmq.queue.control import QueueHandle
from flintmq.queue.due_index import DueIndex
from flintmq.queue.schedule_share import ScheduleShare
from flintmq.routing.message import MessageHeaders, keys_of
from flintmq.routing.route_cache import DEST_REJECT_OVER, DEST_SCHEDULE, RouteCache
from flintmq.scheduler.due_clock import DueClock
from flintmq.vhost.arguments import DROPPING, REJECT_PUBLISH_DLX
from flintmq.vhost.dead_letter import MAXLEN

if TYPE_CHECKING:
    from flintmq.broker.dead_letters import DeadLetters
    from flintmq.broker.queue_limits import QueueLimits
    from flintmq.broker.state import NodeState
    from flintmq.channel.quotas import Quotas

log = logging.getLogger("flintmq.schedules")

# of scan_properties_of: the message has none
_NO_PRIORITY = 255
# shares of users that one housekeeping pass looks at
SHARES_AT_ONCE = 256
# seconds between two looks whether the node stops while a batch waits for the disk
_LOOK_S = 0.5


def without_bcc(header: bytes) -> bytes | None:
    """The content header without its BCC, None when it has none."""
    size, parts = split_properties(header)
    fields = split_table(parts["headers"])
    kept = [field for field in fields if field[0] != b"BCC"]
    if len(kept) == len(fields):
        return None
    parts["headers"] = join_table(kept)
    return join_properties(size, parts)


def expires_on(core: QueueHandle, own: int | None, now: int, zero_ttl_ms: int) -> int:
    """When a message expires on a queue (channel/placing.py, expiry_on). own: its expiration property, milliseconds."""
    if own is not None:
        own = max(own, core.ttl_least_ms)
    if core.ttl_ms >= 0:
        own = core.ttl_ms if own is None else min(own, core.ttl_ms)
    return 0 if own is None else now + (own or zero_ttl_ms)


def _facts(scanned: Mapping[str, Any]) -> tuple[int, int]:
    """(flags of a content, priority) of scanned properties."""
    flags = CONTENT_HEADERS
    flags |= CONTENT_PERSISTENT if scanned.get("delivery_mode") == 2 else 0
    flags |= CONTENT_EXPIRES if scanned.get("expiration_ms", -1) >= 0 else 0
    flags |= CONTENT_REPLY_TO if scanned.get("reply_to") is not None else 0
    priority = scanned.get("priority", _NO_PRIORITY)
    return (flags, 0) if priority == _NO_PRIORITY else (flags | CONTENT_PRIORITY, priority)


class _Plan:
    """Where one message of a batch goes. targets: (queue, when it expires there); refused: full queues; changed: its content header for
    them, when it is another."""

    __slots__ = ("changed", "refused", "targets")

    def __init__(self) -> None:
        self.targets: list[tuple[Any, int]] = []
        self.refused: list[Any] = []
        self.changed: bytes | None = None


# of a message: what Firing.route says of it
Facts = tuple[int, bytes, int, bool, int]


class _Batch:
    """What the messages of one batch share that are planned here. routes: route that headers have no say in -> queues."""

    __slots__ = ("firing", "now", "routes", "sums", "vhost")

    def __init__(self, vhost: Any, firing: Firing, now: int) -> None:
        self.vhost = vhost
        self.firing = firing
        self.now = now
        self.routes: dict[bytes, list[Any]] = {}
        # queue that may refuse -> messages and bytes that the batch puts on it
        self.sums: dict[Any, list[int]] = {}

    def refuses(self, queue: Any, size: int) -> bool:
        """Whether a full queue refuses the next message; one that it takes is counted."""
        if not _may_refuse(queue):
            return False
        before = self.sums.setdefault(queue, [0, 0])
        if queue.core.refuses(size, *before):
            return True
        before[0] += 1
        before[1] += size
        return False


def _may_refuse(queue: Any) -> bool:
    policy = getattr(queue, "policy", None)  # a reply queue has none
    return policy is not None and not policy.is_stream and policy.overflow not in DROPPING


def _is_shared(queue: Any) -> bool:
    policy = getattr(queue, "policy", None)
    return policy is not None and policy.is_shared


class Schedules:
    """The schedules of one state. `start`, then its own thread routes; everything else on any thread."""

    def __init__(self, state: NodeState, dead_letters: DeadLetters, queue_limits: QueueLimits, quotas: Quotas) -> None:
        self._state = state
        self._dead_letters = dead_letters
        self._queue_limits = queue_limits
        self._quotas = quotas
        self._limits = state.limits
        self.index = DueIndex()
        self._clock = DueClock(self._rings, self._limits.schedule_gap_ms)
        # (when, queue id) and queue id -> its time there; wall clock, milliseconds. The thread's own
        self._heap: list[tuple[int, int]] = []
        self._times: dict[int, int] = {}
        self._stopping = threading.Event()
        # (virtual host, user) -> what the user's messages are of its schedule; and those that upkeep has still to look at
        self._shares: dict[tuple[str, object], ScheduleShare] = {}
        self._shares_left: list[tuple[str, object]] = []
        self._shares_idle: set[tuple[str, object]] = set()
        self._shares_lock = threading.Lock()
        # messages that were routed, and batches
        self.routed = 0
        self.batches = 0
        # a stop went on without a batch that a full disk did not take: what is in memory may be behind the log
        self.left_behind = False

    # --- life -----------------------------------------------------------------------------------------------------------

    def new_core(self, queue_id: int, durable: bool) -> QueueHandle:
        """The core of a virtual host's schedule."""
        core = QueueHandle(queue_id)
        core.set_durable(durable)
        if self._state.log is not None:
            core.attach_log(self._state.log)
        core.watch(self.index)
        core.max_length = self._limits.schedule_messages_max
        core.max_bytes = self._limits.schedule_bytes_max
        core.destination_flags = DEST_REJECT_OVER | DEST_SCHEDULE
        return core

    def start(self) -> None:
        """From now on messages are routed at their time."""
        self.index.use_clock(self._clock)
        self._clock.start()
        self.index.arm(1)  # what became due before

    def stop(self) -> None:
        """Ends the thread; a batch that is on its way to the disk is waited for. Idempotent."""
        self._stopping.set()
        self._clock.stop()

    def close(self) -> None:
        """Lets go of the queues. Idempotent."""
        self.index.release()

    # --- what users may have --------------------------------------------------------------------------------------------

    def share(self, vhost: str, user: object) -> ScheduleShare:
        """What this user's messages are of the schedule (S5). user: a text, or whom a token names."""
        with self._shares_lock:
            self._shares_idle.discard((vhost, user))
            share = self._shares.get((vhost, user))
            if share is None:
                share = self._shares[vhost, user] = ScheduleShare()
                self._limit(share)
            return share

    def purged(self, vhost: str) -> None:
        """All that waited was cancelled, or went with its virtual host."""
        with self._shares_lock:
            for (name, _), share in self._shares.items():
                if name == vhost:
                    share.forget()

    def _limit(self, share: ScheduleShare) -> None:
        limits = self._limits
        part = 1.0 if self._quotas.alone() else limits.schedule_user_share
        share.limit(int(limits.schedule_messages_max * part), int(limits.schedule_bytes_max * part))

    def _keep_shares(self) -> None:
        with self._shares_lock:
            if not self._shares_left:
                self._shares_left = list(self._shares)
            for _ in range(min(SHARES_AT_ONCE, len(self._shares_left))):
                key = self._shares_left.pop()
                share = self._shares.get(key)
                if share is None:
                    continue
                self._limit(share)
                if share.known() or share.figures()[0]:
                    continue
                if key not in self._shares_idle:
                    self._shares_idle.add(key)  # somebody may have taken it, and not given it to a connection yet
                    continue
                self._shares_idle.discard(key)
                del self._shares[key]

    def tick(self) -> None:
        """A housekeeping pass: upkeep, and what the clock did not ring for because the wall clock was set."""
        self._keep_shares()
        for queue_id in self.index.take_worked():
            queue = self._state.queues.get(queue_id)
            if queue is not None:
                guarded("housekeeping of queues", f"schedule of vhost {queue.vhost!r}", queue.core.housekeeping)
        with contextlib.suppress(IndexError):
            self.index.arm(self._heap[0][0])

    # --- the thread -----------------------------------------------------------------------------------------------------

    def _rings(self) -> int:
        self._take()
        now = self._state.clock.wall_ms()
        while self._heap and self._heap[0][0] <= now and not self._stopping.is_set():
            due_ms, queue_id = heapq.heappop(self._heap)
            if self._times.get(queue_id) == due_ms:
                del self._times[queue_id]
                queue = self._state.queues.get(queue_id)
                if queue is not None:
                    self._turn(queue, now)
            self._take()
            now = self._state.clock.wall_ms()
        if self._heap:
            self.index.arm(self._heap[0][0])
        return 0

    def _take(self) -> None:
        for due_ms, queue_id in self.index.take_due():
            self._note(due_ms, queue_id)

    def _note(self, due_ms: int, queue_id: int) -> None:
        known = self._times.get(queue_id)
        if due_ms and (known is None or due_ms < known):
            self._times[queue_id] = due_ms
            heapq.heappush(self._heap, (due_ms, queue_id))

    def _turn(self, queue: Any, now: int) -> None:
        """One batch of a schedule, and when its next one is due (S4)."""
        done: list[bool] = []
        guarded("scheduled messages", f"vhost {queue.vhost!r}", lambda: done.append(self._fire(queue, now)))
        due_ms = queue.core.rearm()
        if done != [True]:
            self._note(now + self._limits.schedule_retry_ms, queue.queue_id)
        elif due_ms:
            self._note(max(due_ms, now), queue.queue_id)

    def _fire(self, queue: Any, now: int) -> bool:
        """Routes one batch. False: it can't be now. Raises: what fails; the batch is back in the schedule then."""
        state = self._state
        vhost = state.vhosts.get(queue.vhost)
        if vhost is None or queue.deleted:
            return True
        if getattr(state.log, "disk_low", False):
            return False
        firing = Firing(queue.core, state.log)
        count = firing.take(now, self._limits.schedule_batch_max, self._limits.schedule_batch_bytes_max)
        if firing.unreadable:
            state.counters.drop("unreadable_content", firing.unreadable)
            log.error("%d scheduled messages of vhost %r can't be read; they stay in the schedule", firing.unreadable, queue.vhost)
        if not count:
            return True
        try:
            others = firing.route(partial(self._cache, vhost), partial(self._learn, vhost))
            plans = self._plans(_Batch(vhost, firing, now), others)
            firing.begin()
            self._place_all(firing, plans, count)
            if state.streams is not None:
                for queue_id in firing.streamed:
                    state.streams.letter(queue_id)
            durable = threading.Event()
            waits = firing.decide(durable.set)
        except BaseException:
            firing.abandon()
            raise
        if waits and not self._became_durable(firing, durable):
            return False
        firing.apply()
        self.batches += 1
        self.routed += count - len(others) + len(plans)
        self._settle_limits(plans, firing.limited)
        return True

    def _became_durable(self, firing: Firing, durable: threading.Event) -> bool:
        """Waits for the disk. False: the node ends before, since the disk failed, or is full at a stop; the next start reads the disk.
        A full disk whose reserve takes the batch has written it in the time that clients have for their close."""
        log = self._state.log
        until = 0.0
        while not durable.wait(_LOOK_S) and not firing.is_durable():
            if getattr(log, "failure", None) is not None:
                return False
            if self._stopping.is_set() and getattr(log, "disk_low", False):
                until = until or time.monotonic() + self._limits.close_ms_max / 1000
                if time.monotonic() >= until:
                    self.left_behind = True
                    return False
        return True

    def _cache(self, vhost: Any, exchange: bytes) -> RouteCache | None:
        return self._state.routes.caches.get((vhost.name, exchange.decode("utf-8", "surrogateescape")))

    def _learn(self, vhost: Any, exchange: bytes, key: bytes) -> RouteCache | None:
        """The cache of an exchange, with the route of a key in it if it may be kept."""
        name = exchange.decode("utf-8", "surrogateescape")
        if name not in vhost.exchanges:
            return None
        try:
            return self._state.routes.learn(vhost, name, key)
        except Exception:  # the exchange went, its bindings are too many: the message's plan meets the same, and answers for it alone (S4)
            return None

    def _plans(self, batch: _Batch, others: list[Facts]) -> list[tuple[int, _Plan]]:
        """Where messages go that have no cached route, by the bindings of now."""
        counters = self._state.counters
        counters.in_python["schedule"] += max(len(others), batch.firing.learned)
        if batch.firing.unroutable:
            counters.drop("unroutable", batch.firing.unroutable)
        plans: list[tuple[int, _Plan]] = []
        for facts in others:
            try:
                plans.append((facts[0], self._plan(batch, facts)))
            except Exception as error:
                batch.firing.set_aside(facts[0])
                counters.drop("schedule_failed")
                caught("scheduled messages", f"a message of vhost {batch.vhost.name!r}: it stays until the next start", error)
        return plans

    def _plan(self, batch: _Batch, facts: Facts) -> _Plan:
        index, route, expiration_ms, has_keys, size = facts
        plan = _Plan()
        try:
            queues = self._queues(batch, index, route, has_keys)
        except PeerError:  # its exchange is gone, or its bindings are too many to look at
            queues = []
        if not queues:
            self._state.counters.drop("unroutable")
        if has_keys:
            plan.changed = without_bcc(batch.firing.header(index))
        own = expiration_ms if expiration_ms >= 0 else None
        for queue in queues:
            if batch.refuses(queue, size):
                plan.refused.append(queue)
            else:
                plan.targets.append((queue, expires_on(queue.core, own, batch.now, self._limits.zero_ttl_ms)))
        return plan

    def _queues(self, batch: _Batch, index: int, route: bytes, has_keys: bool) -> list[Any]:
        """Raises: PeerError 404, 406."""
        vhost, routes = batch.vhost, batch.routes
        if not has_keys and route in routes:
            return routes[route]
        state = self._state
        name = route[1 : 1 + route[0]].decode("utf-8", "surrogateescape")
        key = route[2 + route[0] :]
        if not name and key.startswith(REPLY_PREFIX):
            reply = state.reply_queues.get((vhost.name, key.decode("utf-8", "surrogateescape")))
            return [] if reply is None else [reply]
        by_key = vhost.route_is_cacheable(name)
        headers: Any = None
        if has_keys or not by_key:
            header = batch.firing.header(index)
            properties = decode_properties(header, state.limits.table_depth_max, state.limits.table_fields_max)[1]
            table = properties.get("headers")
            message = partial(batch.firing.message, index)
            headers = MessageHeaders(table if isinstance(table, dict) else {}, lambda: properties, message)
        keys = keys_of(key, headers, None) if has_keys else [key]
        queues: list[Any] = vhost.route_keys(name, keys, headers)
        if headers is None:
            routes[route] = queues
        return queues

    def _place_all(self, firing: Firing, plans: list[tuple[int, _Plan]], count: int) -> None:
        """In the order of their times (S2). Raises: StoreError."""
        first = refused = 0
        for index, plan in plans:
            refused += firing.place_routed(first, index)
            self._place(firing, index, plan)
            first = index
        refused += firing.place_routed(first, count)
        if refused:
            self._state.counters.drop("refused", refused)

    def _place(self, firing: Firing, index: int, plan: _Plan) -> None:
        """Raises: StoreError."""
        state = self._state
        for queue, expires_at in plan.targets:
            if _is_shared(queue):
                exchange, key, header, body = firing.message(index)
                header = header if plan.changed is None else plan.changed
                facts = _facts(scan_properties_of(header) or {})
                taken = self._dead_letters.place_shared(queue, (exchange, key, header, body, *facts), expires_at)
            elif plan.changed is None:
                taken = firing.place(index, queue.core, expires_at)
            else:
                exchange, key, _, body = firing.message(index)
                scanned = scan_properties_of(plan.changed) or {}
                taken = firing.hold(queue.core, exchange, key, plan.changed, body, *_facts(scanned), expires_at)
            if not taken:
                state.counters.drop("refused")
        for queue in plan.refused:
            if queue.policy.overflow != REJECT_PUBLISH_DLX or not queue.core.dead_letters:
                state.counters.drop("refused")
            else:
                guarded("dead letters", queue.name, self._dead_letters.publish, queue, firing.message(index), MAXLEN, firing)

    def _settle_limits(self, plans: list[tuple[int, _Plan]], others: list[int]) -> None:
        state = self._state
        touched = {queue.queue_id for _, plan in plans for queue, _ in plan.targets if queue in state.limited_queues}
        self._queue_limits.settle_many(touched.union(others))

"""The pull service of a node: groups of queues, their pulls, leases as clients know them.

in: pulls and settlements on behalf of a user who is authorized already. out: Pulls (pulls.requests), results by lease.

S1  What is refused is told: PullRefused with its reason, or an answer with its outcome. Nothing is dropped in silence.
S2  A lease id names pull group and lease; it is good for the queue it was given for, in this run of the broker, and until the message was
    settled or went back. Whatever else it says is "gone".
S3  On an ordinary queue, groups share the messages (each goes to one of them), each with its own turn; on a stream each group has a cursor.

Threading: any thread; `_lock` guards the table of pull groups and that none is closed while a pull enters it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from flintmq.broker.loops import STEP_NS
from flintmq.core.shares import Holding, Pool, Who
from flintmq.errors import FlintError, PeerError, ReplyCode, StoreError
from flintmq.ports import DequeueReason
from flintmq.pulls.requests import Answers, Pull, PullGroup, tend
from flintmq.scheduler.due_clock import DueClock
from flintmq.streams.control import FilterDiffers, Seat
from flintmq.vhost.dead_letter import REJECTED
from flintmq.vhost.stream_arguments import StreamStart

log = logging.getLogger("flintmq.pulls")

# what becomes of a lease in a settlement
DONE = "ok"
GONE = "gone"

INVALID = "invalid"
BUSY = "busy"
EXCLUSIVE = "exclusive"
NO_QUEUE = "no_queue"
STOPPING = "stopping"

_MS = 1_000_000
# leases of one pull group that one housekeeping pass gives back before others have their turn
_DUE_AT_ONCE = 1_000


class PullRefused(FlintError):
    """A pull that was not accepted. kind: INVALID, BUSY, EXCLUSIVE, NO_QUEUE or STOPPING."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class PullService:
    """See module. Args: broker: of this node; system: its ActorSystem."""

    def __init__(self, broker: Any, system: Any) -> None:
        self._broker = broker
        self._system = system
        self._limits = broker.limits
        self._lock = threading.Lock()
        self._pull_groups: dict[tuple[int, str], PullGroup] = {}
        self._by_key: dict[str, PullGroup] = {}
        self._closing: list[PullGroup] = []
        limits = broker.limits
        # Places of pull groups, shared by the users whose pulls made them.
        self._places = Pool(limits.pull_groups_max, limits.pull_groups_user_share, 1.0, None, broker.quotas.alone)
        self._makers: dict[PullGroup, Holding] = {}
        self._serial = 0
        self._run = os.urandom(4).hex()
        self.stopping = False
        # counts
        self.refused_busy = 0
        self.refused_invalid = 0
        self._before: dict[str, int] = {}
        self.clock = DueClock(self._give_back, broker.limits.due_gap_ms)
        broker.pauses.followers.append(self.pause)

    # --- pulls ----------------------------------------------------------------------------------------------------------

    def pull(
        self,
        queue: Any,
        group: str,
        answers: Answers,
        context: object,
        *,
        most: int,
        bytes_max: int,
        visibility_ms: int,
        hold_ms: int,
        start: StreamStart | None = None,
        user: str = "",
    ) -> Pull:
        """Asks `queue` for messages; the Pull comes out of `answers` when it is answered: messages, nothing within the hold, or why not.

        Args: group: up to 255 bytes; context: kept in the Pull; most: messages; bytes_max: of bodies, the message that reaches it is still
        given; visibility_ms: how long the leases are good; hold_ms: how long to wait for the first message, 0: not at all.
        start: where a group of a stream that has no place yet begins; user: who asks.
        Raises: PullRefused.
        """
        self._check(group, most, bytes_max, visibility_ms, hold_ms)
        vhost = self._broker.vhosts.get(queue.vhost)
        if vhost is not None:
            vhost.touch(queue)
        with self._lock:
            pull_group = self._pull_group(queue, group, start, user)
            pull = pull_group.pull(answers, context, most, bytes_max, visibility_ms * _MS, hold_ms * _MS)
        if pull is None:
            if queue.deleted or self.stopping:
                raise self._gone(queue)
            self.refused_busy += 1
            raise PullRefused(BUSY, f"too many pulls wait for their turn at queue '{queue.name}'")
        return pull

    def is_open(self, queue: Any, group: str) -> bool:
        """Whether a pull of the group can be asked at once: all but the first of a stream's group."""
        pull_group = self._pull_groups.get((queue.queue_id, group))
        return not queue.policy.is_stream or self.stopping or queue.deleted or (pull_group is not None and not pull_group.closed)

    def declare_group(self, queue: Any, group: str, start: StreamStart | None, ready: Callable[[], None]) -> bool:
        """Makes the place of a stream's group. True: a pull finds it. False: it is not on disk; `ready` is called (any thread) when it is.

        Takes no lock of this service, and waits for no writing; but looking for a start by time may read the disk: not for a loop.
        Raises: PullRefused.
        """
        return self.is_open(queue, group) or self._seat(queue, group, start, ready) is not None

    def _check(self, group: str, most: int, bytes_max: int, visibility_ms: int, hold_ms: int) -> None:
        limits = self._limits
        for name, value, low, high in (
            ("count", most, 1, limits.pull_messages_max),
            ("bytes", bytes_max, 1, limits.pull_bytes_max),
            ("visibility", visibility_ms, limits.pull_visibility_ms_min, limits.pull_visibility_ms_max),
            ("hold", hold_ms, 0, limits.pull_hold_ms_max),
            ("group", len(group.encode("utf-8", "surrogateescape")), 0, limits.name_bytes_max),
        ):
            if not low <= value <= high:
                self.refused_invalid += 1
                raise PullRefused(INVALID, f"{name}: {value} is not between {low} and {high}")

    def _pull_group(self, queue: Any, group: str, start: StreamStart | None, user: str) -> PullGroup:
        """The pull group of a group, made when first needed. Under `_lock`. Raises: PullRefused."""
        if self.stopping or queue.deleted:
            raise self._gone(queue)
        group_known = self._pull_groups.get((queue.queue_id, group))
        if group_known is not None:
            if not group_known.closed and group_known.handle is queue.core:  # that of a shared queue changes with its owner
                return group_known
            self._retire(group_known)
        if len(self._pull_groups) >= self._limits.pull_groups_max:
            self.refused_busy += 1
            raise PullRefused(BUSY, f"the node serves {self._limits.pull_groups_max} groups of pulls already")
        seat = None
        if queue.policy.browse_only:
            raise PullRefused(INVALID, f"a pull takes messages, and queue '{queue.name}' is for browsers")
        if self._broker.is_window(queue):
            raise PullRefused(BUSY, f"queue '{queue.name}' is on its way to another node")
        if queue.policy.is_stream:
            seat = self._seat(queue, group, start, _nothing)
            if seat is None:
                self.refused_busy += 1
                raise PullRefused(BUSY, f"the place of group '{group}' is not on disk yet")
        place = self._places.take(Who(user, ""))
        if place is None:
            self.refused_busy += 1
            text = f"user '{user}' has {self._places.of_user(user)} groups of pulls already, and all have {len(self._pull_groups)}"
            raise PullRefused(BUSY, f"{text}: that is as many as it may have")
        self._serial += 1
        limits = self._limits
        pull_group = PullGroup(
            self._system,
            queue.core,
            queue,
            group,
            f"{self._run}{self._serial:x}",
            self._serial,
            leases_max=limits.pull_leases_max,
            grace_ns=limits.pull_wait_ms_max * _MS,
            load_ns=limits.pull_load_ms * _MS,
            on_expired=self._expire,
        )
        if not pull_group.attach(seat):
            pull_group.stop()
            place.release()
            self._closing.append(pull_group)
            if queue.deleted or queue.core.is_deleted():
                raise self._gone(queue)
            raise PullRefused(EXCLUSIVE, f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
        self._pull_groups[queue.queue_id, group] = pull_group
        self._by_key[pull_group.key] = pull_group
        self._makers[pull_group] = place
        if self._broker.pauses.rests(queue):
            pull_group.pause(True)
        return pull_group

    def pause(self, queue: Any, paused: bool) -> None:
        """A queue rests, or is resumed (broker.pausing). Any thread."""
        with self._lock:
            for (queue_id, _), pull_group in self._pull_groups.items():
                if queue_id == queue.queue_id:
                    pull_group.pause(paused)

    def _seat(self, queue: Any, group: str, start: StreamStart | None, ready: Callable[[], None]) -> Seat | None:
        """The group's place in a stream; leases keep the time. None: it is new, and not on disk; `ready` is called then, as
        StreamService.open_seat says, the one way that AMQP takes as well. Raises: PullRefused."""
        if not group:
            self.refused_invalid += 1
            raise PullRefused(INVALID, f"queue '{queue.name}' is a stream: name the group that pulls")
        service = self._broker.streams
        if service is None:
            raise self._gone(queue)
        kind, value = ("next", 0) if start is None else (start.kind, start.value)
        name = group.encode("utf-8", "surrogateescape")
        try:
            seat: Seat | None = service.open_seat(queue.queue_id, ready, (kind, value), name, None, False, 0)
        except FilterDiffers:
            raise PullRefused(INVALID, f"group '{group}' has consumers with a filter: pulls have none") from None
        except PeerError as error:
            if error.code == ReplyCode.PRECONDITION_FAILED:
                raise PullRefused(INVALID, error.text) from None
            raise self._gone(queue) from None
        return seat

    def _gone(self, queue: Any) -> PullRefused:
        if self.stopping:
            return PullRefused(STOPPING, "the broker stops")
        return PullRefused(NO_QUEUE, f"no queue '{queue.name}' in vhost '{queue.vhost}'")

    def _expire(self, queue: Any) -> bool:
        clock = self._broker.clock
        return bool(self._broker.expiry.expire(queue, clock.wall_ms(), clock.monotonic_ns() + STEP_NS))

    # --- leases ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def lease_id(pull: Pull, lease: int) -> str:
        """What the client is told of a message's lease."""
        return f"{pull.pull_group.key}.{lease:x}"

    def _find(self, queue: Any, lease_id: str) -> tuple[PullGroup, int] | None:
        key, _, number = lease_id.partition(".")
        pull_group = self._by_key.get(key)
        # Leases of a shared queue end with its owner: what is settled there, the next one knows nothing of.
        ours = pull_group is not None and pull_group.queue is queue and pull_group.handle is queue.core
        if pull_group is None or not ours or not 1 <= len(number) <= 16 or not set(number) <= set("0123456789abcdef"):
            return None
        return pull_group, int(number, 16)

    def _each(self, queue: Any, leases: Iterable[str], action: Callable[[PullGroup, int], bool]) -> list[str]:
        results = []
        for lease_id in leases:
            lease = self._find(queue, lease_id)
            results.append(DONE if lease is not None and action(*lease) else GONE)
        return results

    def ack(self, queue: Any, leases: Iterable[str]) -> list[str]:
        """The messages are done with. Per lease DONE, or GONE: its time was over, or it was settled before."""
        return self._each(queue, leases, lambda pull_group, lease: pull_group.settle(lease, DequeueReason.ACK))

    def nack(self, queue: Any, leases: Iterable[str], *, requeue: bool = True, delay_ms: int | None = None) -> list[str]:
        """The messages go back to their places, flagged redelivered: at once, after `delay_ms`, or, None, as their queue says. Not
        requeued: they go to the queue's dead-letter exchange, or are dropped, counted. Raises: StoreError."""
        if requeue:
            delay_ns = -1 if delay_ms is None else delay_ms * _MS
            results = self._each(queue, leases, lambda pull_group, lease: pull_group.release(lease, delay_ns, True))
            if delay_ns > 0 and not queue.policy.is_stream:  # a stream's group keeps the time of a return
                self.clock.arm(self._system.now_ns() + delay_ns)
            return results
        return self._each(queue, leases, self._reject)

    def _reject(self, pull_group: PullGroup, lease: int) -> bool:
        queue, broker = pull_group.queue, self._broker
        if queue.policy.dead_letter_exchange is None or queue.policy.is_stream:
            # A stream sees to its dead letters itself.
            done = pull_group.settle(lease, DequeueReason.REJECT)
            if done and not queue.policy.is_stream:
                broker.counters.drop("rejected")
            return bool(done)
        position = pull_group.take(lease)
        if position == 0:
            return False
        try:
            if queue.policy.keeps_letters:
                passed_on = bool(pull_group.pass_on(position))
                if passed_on:
                    broker.letters.bury(queue, position, REJECTED)
                return passed_on
            # The dead letter is logged before the end of its original: a crash in between leaves both, never none.
            broker.dead_letters.publish_at(queue, position, REJECTED)
        except (KeyError, StoreError):
            log.exception("a rejected message of queue %r is not dead-lettered; it goes back", queue.name)
            pull_group.put_back(position, True)
            return False
        except BaseException:
            pull_group.put_back(position, True)
            raise
        return bool(pull_group.finish(position, DequeueReason.REJECT))

    def extend(self, queue: Any, leases: Iterable[str], visibility_ms: int) -> list[str]:
        """The leases are good for that time from now."""
        return self._each(queue, leases, lambda pull_group, lease: pull_group.extend(lease, visibility_ms * _MS))

    # --- life -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """From now on a lease ends at its time; before, and with a clock that a test moves, at the next `tick`."""
        self.clock.start()

    def _give_back(self) -> int:
        """The due leases go back. Returns the time of the next one."""
        return tend(list(self._pull_groups.values()), self._limits.pull_idle_ms * _MS, _DUE_AT_ONCE)[1]

    def tick(self, now_ms: int) -> None:
        """A housekeeping pass: what is due goes back, idle groups leave their queues."""
        idle_ns = self._limits.pull_idle_ms * _MS
        closing, due_ns = tend(list(self._pull_groups.values()), idle_ns, _DUE_AT_ONCE)
        # No lease is shorter than the time between two passes, but for delays, which `nack` arms: so none is over before it was seen here.
        self.clock.arm(due_ns)
        for pull_group in closing:
            deleted = pull_group.queue.core.is_deleted()
            with self._lock:
                # Under the lock no pull comes in: idle now means idle until it is closed.
                if deleted or pull_group.idle_ns() >= idle_ns:
                    self._retire(pull_group)
        if self._closing:
            with self._lock:
                self._closing = [pull_group for pull_group in self._closing if not pull_group.close()]

    def _retire(self, pull_group: PullGroup) -> None:
        """Under `_lock`."""
        pull_group.stop()
        if self._pull_groups.pop((pull_group.queue.queue_id, pull_group.group), None) is not None:
            del self._by_key[pull_group.key]
            self._makers.pop(pull_group).release()
            for name, value in pull_group.figures().items():
                self._before[name] = self._before.get(name, 0) + value
            self._closing.append(pull_group)

    def stop(self) -> None:
        """Pulls that wait are answered CLOSED; new ones are refused. Again is no error."""
        with self._lock:
            self.stopping = True
            pull_groups = list(self._pull_groups.values())
        for pull_group in pull_groups:
            pull_group.stop()

    def close(self) -> None:
        """Before the store stops: what is leased goes back, flagged redelivered."""
        self.stop()
        self.clock.stop()
        until = time.monotonic() + self._limits.pull_close_ms / 1000
        with self._lock:
            self._closing += self._pull_groups.values()
            self._pull_groups.clear()
            self._by_key.clear()
            self._makers.clear()
            for pull_group in self._closing:
                while not pull_group.close():  # a worker finishes the pull it has begun
                    if time.monotonic() > until:
                        log.error("a pull of queue %r does not end; its messages are back after the restart", pull_group.queue.name)
                        break
                    time.sleep(0.001)
            self._closing = []

    # --- figures --------------------------------------------------------------------------------------------------------

    def groups(self, queue: Any) -> dict[str, dict[str, int]]:
        """Group -> figures, of a queue's groups that pull."""
        return {pull_group.group: pull_group.figures() for pull_group in list(self._pull_groups.values()) if pull_group.queue is queue}

    def figures(self) -> dict[str, int]:
        """Of all groups together: counts since the start, and waiting, leased, groups: now."""
        total = {"pulls": 0, "waiting": 0, "leased": 0, "delivered": 0, "acked": 0, "nacked": 0, "expired": 0, "given_back": 0}
        with self._lock:
            pull_groups = list(self._pull_groups.values())
            for name in ("pulls", "delivered", "acked", "nacked", "expired", "given_back"):
                total[name] = self._before.get(name, 0)
        for pull_group in pull_groups:
            for name, value in pull_group.figures().items():
                total[name] += value
        return {**total, "groups": len(pull_groups), "refused_busy": self.refused_busy, "refused_invalid": self.refused_invalid}


def _nothing() -> None:
    """Nobody waits."""

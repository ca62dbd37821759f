"""The streams of a node: opened and deleted with their queues, their groups' places kept, their dead letters published.

in: declared and deleted stream queues; time. out: a StreamQueue on each stream's core, states of groups in the log, dead letters, a line
in the log for every cursor that retention overtook, figures.

S1  A stream's files come after its definition and go after it: a crash in between leaves an empty stream, or files that nobody knows,
    which the next start removes.
S2  A group's place on disk is never ahead of what its members settled.
S3  A dead letter is in the log before its original counts as done.
S4  A dead letter in a stream is on disk before the end of its original, which is in another log, unless the disk is full.
S5  What ends in a group (visibility times, delays) does so at its time, not at the next tick: the clock's thread, which never waits for
    the disk, sees to it.
S6  A group gives nothing before its first place is on disk (`open_seat`): after a crash its deliveries would come again without a flag.

Threading: `open` and `delete` under a virtual host's lock; everything periodic on a thread of its own, since it may read from the disk,
under `_lock`. Nobody waits for that lock but a stop: what `delete` leaves while a tick runs is done by the tick when it ends. `_table`
guards what the calls of connections change, for moments; the order is `_lock`, `_table`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flintmq.broker.cores import STREAM_BOUNDS, STREAM_RULES, facts
from flintmq.broker.stream_letters import StreamLetters
from flintmq.errors import PeerError, ReplyCode, StoreError
from flintmq.guard import caught, guarded
from flintmq.scheduler.due_clock import DueClock
from flintmq.streams import cold_reads
from flintmq.streams.control import Seat, StreamQueue
from flintmq.vhost.names import describe

if TYPE_CHECKING:
    from flintmq.broker.dead_letters import DeadLetters
    from flintmq.broker.state import NodeState
    from flintmq.queue.control import QueueHandle
    from flintmq.vhost.queue import QueueSpec

log = logging.getLogger("flintmq.streams")


class StreamService:
    """Args: store: StreamStore of its durable store; actors: ActorSystem that reads from the disk."""

    def __init__(self, state: NodeState, dead_letters: DeadLetters, store: Any, actors: Any) -> None:
        self._state = state
        self._store = store
        self._actors = actors
        self._streams: dict[int, StreamQueue] = {}
        self._places: dict[int, set[bytes]] = {}  # groups that were noted
        # groups whose first place is not on disk yet -> who is told when it is
        self._coming: dict[tuple[int, bytes], list[Callable[[], None]]] = {}
        self._vhosts: dict[int, str] = {}  # -> of its queue
        self._doomed: list[int] = []  # deleted streams whose files are still there
        self._table = threading.Lock()  # of the four above
        self._lock = threading.Lock()  # one tick at a time, and none while the files of a stream are removed
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._looked_ns = 0
        self._letters = StreamLetters(state, dead_letters)
        self.clock = DueClock(self._give_back, state.limits.due_gap_ms)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to tick, every Limits.stream_cursor_ms; and to end visibility times and delays of groups at their time."""
        self.clock.start()
        self._thread = threading.Thread(target=self._run, name="flintmq-streams", daemon=True)
        self._thread.start()

    def stop(self, clean: bool) -> None:
        """Ends the thread. `clean`: nobody consumes any more; the places of all groups are written as they are. Idempotent."""
        self._stopping.set()
        self.clock.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if clean:
            with self._lock:
                for queue_id, stream in list(self._streams.items()):
                    guarded("places of groups at the stop", f"queue id {queue_id}", self._save, queue_id, stream, True)

    def _run(self) -> None:
        while not self._stopping.wait(self._state.limits.stream_cursor_ms / 1000):
            guarded("housekeeping of streams", "a pass", self.tick)

    # --- queues -----------------------------------------------------------------------------------------------------

    def adopt(self, queue_id: int, spec: QueueSpec, core: QueueHandle) -> None:
        """Makes the core of a declared or restored queue a stream, with the groups that are known of it.

        Raises: PeerError 406 when the node has as many streams as it may, 541 when its files can't be made or opened.
        """
        policy = spec.policy
        description = describe("queue", spec.name, spec.vhost)
        self._check_room(spec.vhost, description)
        try:
            source = self._store.open(queue_id, **facts(STREAM_BOUNDS, policy), segment_bytes=policy.stream_segment_bytes or 0)
        except (StoreError, OSError) as error:
            log.error("the stream of %s can't be opened: %s", description, error)
            raise PeerError(ReplyCode.INTERNAL_ERROR, f"the stream of {description} can't be opened") from error
        limits = self._state.limits
        stream = StreamQueue(
            core,
            source,
            open_max=limits.stream_open_max,
            **facts(STREAM_RULES, policy),
        )
        if self._actors is not None:
            cold_reads.use(stream, self._actors)
        stream.use_clock(self.clock)
        places = self._store.groups(queue_id)
        for name, state in places.items():
            try:
                stream.restore(name, state, not self._store.was_clean)
            except ValueError as error:
                log.error("group %r of %s is not restored: %s", name.decode("utf-8", "replace"), description, error)
        self._streams[queue_id] = stream
        self._vhosts[queue_id] = spec.vhost
        self._places[queue_id] = set(places)

    def follow_policy(self, queue: Any) -> None:
        """The policy of a stream in use changed."""
        stream, policy = self._streams.get(queue.queue_id), queue.policy
        if stream is None:
            return
        stream.set_rules(**facts(STREAM_RULES, policy))
        self._store.set_bounds(queue.queue_id, **facts(STREAM_BOUNDS, policy))

    def _check_room(self, vhost: str, description: str) -> None:
        limits = self._state.limits
        reason = ""
        if len(self._streams) >= limits.streams_max:
            reason = f"stream limit ({limits.streams_max}) is reached"
        elif self._thread is not None and list(self._vhosts.values()).count(vhost) >= limits.streams_vhost_max:  # restored ones stay
            reason = f"stream limit in vhost '{vhost}' ({limits.streams_vhost_max}) is reached"
        if reason:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"cannot declare stream {description}: {reason}")

    def delete(self, queue_id: int) -> None:
        """The queue is gone: so are its messages and its groups. Unknown is no error. Waits for no tick."""
        with self._table:
            self._letters.forget(queue_id)
            if self._streams.pop(queue_id, None) is None:
                return
            del self._places[queue_id]
            self._vhosts.pop(queue_id, None)
            waiting = [ready for key in [key for key in self._coming if key[0] == queue_id] for ready in self._coming.pop(key)]
            self._doomed.append(queue_id)
        for ready in waiting:
            ready()  # who asks again is told that the stream is gone
        self._remove()

    def _remove(self) -> None:
        """Removes the files of deleted streams, unless a tick runs, which may be reading them: it calls this when it ends."""
        while self._doomed and self._lock.acquire(blocking=False):
            try:
                with self._table:
                    doomed, self._doomed = self._doomed, []
                for queue_id in doomed:
                    try:
                        self._store.delete(queue_id)
                    except (StoreError, OSError) as error:
                        log.error("files of a deleted stream (queue id %d) stay until the next start: %s", queue_id, error)
            finally:
                self._lock.release()

    def get(self, queue_id: int) -> StreamQueue | None:
        """The stream behind a queue; None when it is none, or gone."""
        return self._streams.get(queue_id)

    def letter(self, queue_id: int) -> None:
        """A dead letter was published to this queue: if it is a stream, its original ends on disk after it (S4). Any thread."""
        if queue_id in self._streams:
            self._store.letter(queue_id)

    def open_seat(
        self,
        queue_id: int,
        ready: Callable[[], None],
        start: tuple[str, int],
        group: bytes | None,
        filters: list[bytes] | None = None,
        unfiltered: bool = False,
        visibility_ms: int = -1,
    ) -> Seat | None:
        """What a consumer, of AMQP or a pull, reads a stream with. Never waits for the disk.

        Args: start: kind and value, for a group that has no place yet; group: None reads for itself; the others as StreamQueue.open_seat.
        None: the group is new, and its place is not on disk; `ready` is called once when it is (any thread; when the stream is deleted as
        well), and the caller asks again then.
        Raises: PeerError 404 the stream is gone, 406 it has as many groups as it may, 541 the log takes no place; FilterDiffers.
        """
        stream = self._streams.get(queue_id)
        if stream is None:
            raise PeerError(ReplyCode.NOT_FOUND, "the stream was deleted")
        self._check_group(queue_id, group)
        seat: Seat = stream.open_seat(*start, group, filters, unfiltered, visibility_ms)
        if not group or group in self._places.get(queue_id, ()):
            return seat
        with self._table:
            if self._streams.get(queue_id) is not stream:
                raise PeerError(ReplyCode.NOT_FOUND, "the stream was deleted")
            if group in self._places[queue_id]:
                return seat
            first = (queue_id, group) not in self._coming
            if first:
                try:
                    ticket = int(self._store.save_group(queue_id, group, stream.state_of(group)))
                except StoreError as error:
                    raise PeerError(ReplyCode.INTERNAL_ERROR, f"the place of a consumer group can't be logged: {error}") from error
            self._coming.setdefault((queue_id, group), []).append(ready)
        if first:
            self._state.log.on_durable(ticket, lambda: self._placed(queue_id, group))
        return None

    def reset(self, queue_id: int, group: bytes, start: tuple[str, int], ready: Callable[[], None]) -> int:
        """Moves a group without members. Blocks for the disk when `start` is a time. Args: start: as of open_seat; ready: called once when
        the new place is on disk (any thread).

        Returns: the offset at which it stands. Raises: PeerError 404 no such group or stream, 406 it has members, 541 the log takes no
        place.
        """
        stream = self._streams.get(queue_id)
        if stream is None:
            raise PeerError(ReplyCode.NOT_FOUND, "the stream was deleted")
        offset = stream.start_offset(*start)
        shown = group.decode("utf-8", "replace")
        with self._table:
            if self._streams.get(queue_id) is not stream or group not in self._places.get(queue_id, ()):
                raise PeerError(ReplyCode.NOT_FOUND, f"the stream has no group '{shown}'")
            try:
                offset = stream.reset(group, offset)
                ticket = int(self._store.save_group(queue_id, group, stream.state_of(group)))
            except KeyError:
                raise PeerError(ReplyCode.NOT_FOUND, f"the stream has no group '{shown}'") from None
            except ValueError:
                reason = f"group '{shown}' has members, or dead letters that wait: stop its consumers first (a pull stays some seconds)"
                raise PeerError(ReplyCode.PRECONDITION_FAILED, reason) from None
            except StoreError as error:
                raise PeerError(ReplyCode.INTERNAL_ERROR, f"the place of a consumer group can't be logged: {error}") from error
        self._state.log.on_durable(ticket, ready)
        return offset

    def _check_group(self, queue_id: int, group: bytes | None) -> None:
        """A group stays as long as its stream, so there is a limit for them. Raises: PeerError 406 when it would be one more."""
        known = self._places.get(queue_id, set())
        most = self._state.limits.stream_groups_max
        if not group or group in known or len(known) < most - len(self._coming):
            return
        coming = [name for number, name in list(self._coming) if number == queue_id]
        if group not in coming and len(known) + len(coming) >= most:
            queue = self._state.queues.get(queue_id)
            description = "the stream" if queue is None else describe("queue", queue.name, queue.vhost)
            raise PeerError(ReplyCode.PRECONDITION_FAILED, f"cannot add a consumer group to {description}: group limit ({most}) is reached")

    def _placed(self, queue_id: int, group: bytes) -> None:
        """The first place of a group is on disk."""
        with self._table:
            waiting = self._coming.pop((queue_id, group), [])
            if queue_id in self._places:
                self._places[queue_id].add(group)
        for ready in waiting:
            ready()

    def __len__(self) -> int:
        return len(self._streams)

    # --- time -------------------------------------------------------------------------------------------------------

    def _give_back(self) -> int:
        """Due messages of all groups come again, without the lock of `tick`, which may wait for the disk. Returns when the next is."""
        first = 0
        for queue_id, stream in list(self._streams.items()):
            try:
                due_ns = stream.give_back()
            except Exception as error:
                caught("what is due in streams", f"queue id {queue_id}", error)
                continue
            if due_ns and (first == 0 or due_ns < first):
                first = due_ns
        return first

    def forget_hot(self) -> None:
        """Memory is short: no stream keeps messages in memory that its disk has; groups read them from there."""
        self._store.forget_hot()

    def tick(self) -> None:
        """One look at every stream: what is due again, what changed, what died; and, less often, what was overtaken."""
        now_ns = time.monotonic_ns()
        look = now_ns - self._looked_ns >= self._state.limits.housekeeping_ms * 1_000_000
        if look:
            self._looked_ns = now_ns
        published = 0
        with self._lock:
            with self._table:
                present = list(self._streams.items())
            for queue_id, stream in present:
                try:
                    published += self._tick_one(queue_id, stream, look)
                except Exception as error:
                    caught("housekeeping of streams", f"queue id {queue_id}", error)
        self._remove()
        if published and self._state.log is not None:
            self._state.log.on_durable(0, _nothing)  # has it written now: no loop does that for this thread

    def _tick_one(self, queue_id: int, stream: StreamQueue, look: bool) -> int:
        stream.tick()
        # Before the dead ones are taken: that they are done goes with a later tick, behind their letters (S3).
        self._save(queue_id, stream, clean=False)
        if look:
            self._report_lost(queue_id, stream)
        return self._letters.bury(queue_id, stream)

    def _save(self, queue_id: int, stream: StreamQueue, clean: bool) -> None:
        for name, state in stream.changed(clean):
            try:
                with self._table:
                    if queue_id not in self._streams:
                        return  # deleted meanwhile: what is noted of it now would stay for ever
                    self._store.save_group(queue_id, name, state)
            except StoreError as error:
                stream.not_saved(name)
                log.debug("the place of group %r is not saved: %s", name, error)
                return

    def _report_lost(self, queue_id: int, stream: StreamQueue) -> None:
        queue = self._state.queues.get(queue_id)
        shown = f"queue id {queue_id}" if queue is None else describe("queue", queue.name, queue.vhost)
        for name, count, offset in stream.take_lost():
            who = "consumers without a group" if name is None else f"group '{name.decode('utf-8', 'replace')}'"
            log.warning("stream %s: retention overtook %s: %d messages are lost to it, it went on at offset %d", shown, who, count, offset)
            self._state.counters.drop("stream_overtaken", count)

    # --- figures ----------------------------------------------------------------------------------------------------

    def figures(self, queue_id: int) -> dict[str, Any] | None:
        """Offsets, bytes and groups of a stream, for management; None when the queue is no stream.

        groups: name -> figures of StreamQueue.groups (lag, in flight, lost, ...).
        """
        stream = self._streams.get(queue_id)
        if stream is None:
            return None
        groups = {name.decode("utf-8", "surrogateescape"): figures for name, figures in stream.groups().items()}
        return {"first_offset": stream.first_offset, "next_offset": stream.next_offset, "bytes": stream.bytes, "groups": groups}


def _nothing() -> None:
    pass

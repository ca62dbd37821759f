"""The micro-batch logic over the data plane: which offset names which prepared set, and when a set is committed.

In: offsets from Spark, answers of the data plane. Out: offsets `{"sub_id", "seq"}`, tickets.
Invariants:
  * an offset is returned only after its set is prepared, which the broker keeps through any crash;
  * set n is committed only after Spark has shown that batch n is in its commit log: `latest(start=n)` (Spark asks for what follows n only
    then) or `commit(n)`; never when the reader ends, for a reader left behind by a killed driver ends late;
  * all that changes anything carries the epoch of this reader: a newer reader of the subscription fences it;
  * nothing is opened before the first call that needs it: Spark makes copies of readers that it never uses;
  * the first set of a checkpoint is committed only when a task has read it: a sink that has batches of an earlier checkpoint (Spark's file
    sink) leaves those with the same numbers out, and runs no task for them;
  * a query with a new checkpoint opens nothing that another query reads, or that served another checkpoint (`onNewCheckpoint`): that the
    checkpoint is new shows when Spark asks for what follows `initial`, because it plans a batch that it knows before it asks for another.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol

from flintmq.flight.calls import Calls
from pyspark_flintmq.errors import NEW_CHECKPOINT, UNREAD, SourceError
from pyspark_flintmq.queue_options import QueueOptions

log = logging.getLogger(__name__)

# Seconds to sleep when there is nothing, the first time and at most: Spark polls again at once, this keeps both from spinning. Not a wait
# in the broker, which would keep one of its few channels busy.
IDLE_FIRST_S, IDLE_MAX_S = 0.005, 0.1
# Seconds for which figures of the backlog are good enough for a progress report.
LAG_AGE_S = 0.5

# Refusals of a broker that may be over soon (publishers are blocked, the disk is nearly full), and seconds between two tries.
LATER = ("NO_ROOM", "LOW_DISK")
LATER_S = 0.5
# A reader without a checkpoint finds another one that was heard of lately: seconds between two looks, seconds after which one that was
# heard of within the last ones works for sure. A reader that was killed is not heard of any more.
LOOK_S, SURE_S, LATELY_MS = 0.2, 3.0, 1_500

Offset = dict[str, Any]
P = ParamSpec("P")
# What a progress report shows, and what it is called in the answer to sub.tail.
_FIGURES = (("messages_behind", "behind_messages"), ("bytes_behind", "behind_bytes"), ("oldest_age_ms", "oldest_age_ms"))


class Plane(Protocol):
    """What a stream needs of the data plane's client (`flintmq.flight.client.DataPlane`)."""

    @property
    def calls(self) -> Calls:
        """The control calls of docs/DATAPLANE.md. All are idempotent, and made again until one is answered."""

    def close(self) -> None: ...


class Claim:
    """One streaming query's claim on its queues. Not thread-safe: Spark calls its reader from one thread."""

    # What the offsets of a query on queues have.
    KEYS = frozenset({"sub_id", "seq"})

    def __init__(self, options: QueueOptions, connect: Callable[[], Plane], now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._connect = connect
        self._now = now
        self._plane: Plane | None = None
        # AvailableNow: last position of each queue when the run began, and whether it was reached.
        self._draining = False
        self._marks: dict[str, int] = {}
        self._drained = False
        self._idle_s = IDLE_FIRST_S
        self.sub_id = ""
        self.epoch = 0
        self._committed = 0
        # What a query without a checkpoint looked at and has not opened: the subscription's identity and committed batch.
        self._looked_at: tuple[str, int] | None = None
        # The subscription's name, for people: what the options say, until a checkpoint's is known.
        self._name = options.subscription
        # Whether the broker was told that this reader ends.
        self._left = False
        # The last set that was planned: Spark may have it in its commit log.
        self._planned = 0
        # The first set of the checkpoint, as its offsets say; 0: they are older than that.
        self._first = 0
        # The set whose commit was refused because nobody has read it.
        self._unread = 0
        # The set that this reader acquired, and its messages then: what a plan of it is compared with.
        self._acquired = (0, 0)
        self._last_batch = float("-inf")
        self._lag: tuple[float, dict[str, int]] | None = None
        # When the set that is prepared was, and how long the one before it was prepared, as far as this reader knows.
        self._since: float | None = None
        self._held: dict[str, int] = {}

    # --- called by the reader -----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """From now on, stop at what the queues hold when the subscription is opened (trigger AvailableNow)."""
        self._draining = True
        if self.sub_id:
            self._mark()

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins. The same until the first batch is committed.

        An existing subscription is looked at, not opened: Spark asks this also for a first batch that it is about to plan again.
        """
        if self.sub_id:
            self._first = self._committed + 1
            return self._offset(self._committed)
        try:
            status = self._call(Calls.sub_status, None, name=self._options.subscription)
        except SourceError as e:
            if e.code != "SUBSCRIPTION_MISSING":
                raise
            self._check_backlog()
            opened = self._create()
            if opened.get("discarded"):
                log.warning(
                    "subscription '%s' is new: %d messages that stood in %s were taken out unread (%s)",
                    *(self._options.subscription, opened["discarded"], self._options.what, self._options.start),
                )
            self._opened_as(opened)
            self._first = self._committed + 1
            return self._offset(self._committed)
        self._looked_at = str(status["sub_id"]), int(status["committed"])
        return {"sub_id": status["sub_id"], "seq": self._looked_at[1], "first": self._looked_at[1] + 1}

    def owns(self, offset: Offset) -> bool:
        """Whether an offset is of this subscription: a query may have more sources than this one. Raises: SourceError.

        An offset of no subscription counts as ours: what follows it is refused then, and nothing is made anew.
        """
        try:
            return bool(self._call(Calls.sub_status, None, sub_id=offset["sub_id"])["name"] == self._options.subscription)
        except SourceError as e:
            if e.code != "SUBSCRIPTION_MISSING":
                raise
            return True

    def before(self, end: Offset) -> Offset | None:
        """Where the first batch of a checkpoint begins, whose end Spark has planned. Raises: SourceError."""
        status = self._call(Calls.sub_status, None, sub_id=end["sub_id"])
        return {**end, "seq": min(int(end["seq"]), max(int(end["seq"]) - 1, int(status["committed"])))}

    def latest(self, start: Offset, max_messages: int, max_bytes: int) -> Offset:
        """Commits set `start`, then has the next set prepared and returns its offset; `start` if there is nothing, or not enough yet.

        Raises: SourceError CHECKPOINT_BEHIND, CHECKPOINT_AHEAD, CHECKPOINT_FOREIGN, CHECKPOINT_LOST, FENCED, UNREACHABLE ...
        """
        if self._looked_at is not None and (start.get("sub_id"), start.get("seq")) == self._looked_at:
            self._begin_anew()
        seq = self._seq(start)
        if seq < self._committed:
            raise self._behind(seq)
        self._commit(seq)
        if self._drained or self._too_early():
            self._end_of_run(self._drained)
            return self._offset(seq)
        options = self._options
        limits = {"max_messages": max_messages, "max_bytes": max_bytes}
        got = self._call(Calls.sub_acquire, seq, sub_id=self.sub_id, epoch=self.epoch, seq=seq + 1, onlost=options.on_lost, **limits)
        self._lag = None
        if not got["count"]:
            if not self._draining:
                self._idle()
            self._end_of_run(self._draining)
            return self._offset(seq)
        self._left = False
        self._acquired = (seq + 1, int(got["count"]))
        self._since = self._now() if self._since is None else self._since
        self._last_batch = self._now()
        self._idle_s = IDLE_FIRST_S
        # The broker stops at the marks by itself, unless it was restarted since: then sets go beyond until nothing below is left.
        beyond = any(run["last"] > self._marks.get(run["queue"], run["last"]) for run in got["queues"])
        self._drained = beyond and not self._below_marks()
        return self._offset(seq + 1)

    def commit(self, end: Offset) -> None:
        """Spark's own notice that `end` is committed. It comes a batch late, so usually there is nothing left to do."""
        self._commit(self._seq(end))

    def tickets(self, start: Offset, end: Offset) -> list[str]:
        """What the tasks of the batch from `start` to `end` read. The same for the same offsets, however often it is asked.

        Raises: SourceError CHECKPOINT_BEHIND, CHECKPOINT_AHEAD, CHECKPOINT_FOREIGN, FENCED, DATA_LOSS ...
        """
        self._looked_at = None  # Spark's checkpoint has this batch
        first, last = self._seq(start) + 1, self._seq(end)
        tickets: list[str] = []
        for seq in range(first, last + 1):
            plan = self._call(Calls.sub_plan, seq, sub_id=self.sub_id, epoch=self.epoch, seq=seq, slices=self._options.partitions)
            self._compare(seq, int(plan["count"]))
            # An unreadable message stops the query, or is left out.
            tolerant = {} if self._options.fail_on_loss else {"tolerant": True}
            tickets += [json.dumps({**ticket, **tolerant}) for ticket in plan["tickets"]]
        self._planned = last
        return tickets

    def lag(self) -> dict[str, int]:
        """messages_behind, bytes_behind (ready in the queues, not yet in a batch), oldest_age_ms (of the oldest of them; 0: none),
        prepared_ms (how long the last batch that was committed was prepared; absent before the first).
        """
        if not self.sub_id:
            return {}
        if self._lag is None or self._now() - self._lag[0] >= LAG_AGE_S:
            tail = self._call(Calls.sub_tail, None, sub_id=self.sub_id, epoch=self.epoch, drain=False)
            figures = {name: int(tail[key] or 0) for name, key in _FIGURES}
            self._lag = (self._now(), figures)
        return self._lag[1] | self._held

    # --- called by the thread beside the reader (presence.py) ---------------------------------------------------------

    def beat(self, *, leave: bool = False) -> bool:
        """Tells the broker that this reader works, or that it ends. False: it has nothing open.

        Raises: PlaneError and errors of the connection, as they are: the reader's own calls explain them.
        """
        plane, sub_id, epoch = self._plane, self.sub_id, self.epoch
        if plane is None or not sub_id or self._left:
            return False
        plane.calls.sub_alive(sub_id=sub_id, epoch=epoch, leave=leave)
        return True

    def prepared(self) -> Offset | None:
        """The end of the newest batch that Spark was given and that is not committed, planned or not; None: there is none."""
        newest = max(self._planned, self._acquired[0])
        return self._offset(newest) if self.sub_id and newest > self._committed else None

    def awaited(self) -> Offset | None:
        """The end of the batch that is planned and not committed; None: there is none."""
        there = self.sub_id and self._planned > self._committed and self._planned != self._unread
        return self._offset(self._planned) if there else None

    def spark_has(self, end: Offset) -> None:
        """`end` is in Spark's commit log: commits its set now, and not when Spark asks for the next batch. Raises: as `beat`."""
        plane, epoch = self._plane, self.epoch
        if plane is not None and end["sub_id"] == self.sub_id and end["seq"] == self._planned:
            try:
                seq = int(end["seq"])
                answer = plane.calls.sub_commit(sub_id=end["sub_id"], epoch=epoch, upto=seq, read=self._must_be_read(seq))
            except Exception as error:
                if getattr(error, "code", "") == "NOT_READ":
                    self._unread = end["seq"]
                    log.warning("%s", self._explained(SourceError("NOT_READ", str(getattr(error, "text", error))), end["seq"]))
                raise
            self._note_commit(answer)

    @property
    def store(self) -> str:
        """Of a broker with several addresses: where the sets are (`Connection.store`)."""
        return getattr(self._plane, "store", "")

    def close(self) -> None:
        """Lets the connection go. Commits and gives back nothing: only Spark knows what became of the last batch."""
        plane, self._plane = self._plane, None
        self.sub_id = ""
        if plane is not None:
            plane.close()

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, checkpoint: str, seq: int) -> None:
        """Opens the subscription once. Args: checkpoint, seq: what Spark's offset names."""
        if not self.sub_id:
            opened = self._attach(checkpoint, seq)
            if opened["sub_id"] != checkpoint:
                # Deleted and made again within a moment.
                raise self._foreign(checkpoint, opened["sub_id"])
            self._opened_as(opened)
        elif checkpoint != self.sub_id:
            raise self._foreign(checkpoint, self.sub_id)

    def _opened_as(self, opened: Any) -> None:
        self._lag = self._looked_at = None
        self.epoch, self._committed = int(opened["epoch"]), int(opened["committed"])
        self.sub_id = opened["sub_id"]
        if self._draining:
            self._mark()

    def _attach(self, checkpoint: str, seq: int) -> Any:
        """With a checkpoint: the subscription is there, or it was lost. One that is not there must not be made anew by this.

        Looks before it opens: a query with a wrong checkpoint must not fence the one that works.
        """
        options = self._options
        try:
            # By the identity: the name that is made of the queues is another one when they are.
            status = self._call(Calls.sub_status, None, sub_id=checkpoint)
        except SourceError as e:
            if e.code != "SUBSCRIPTION_MISSING":
                raise
            raise self._missing(checkpoint) from None
        if "subscription" in options.given and status["name"] != options.subscription:
            raise SourceError(
                "CHECKPOINT_FOREIGN",
                f"the checkpoint belongs to subscription '{status['name']}', and option 'subscription' says '{options.subscription}': use "
                f"the pair that belongs together, or {NEW_CHECKPOINT}",
            )
        self._name = status["name"]
        if seq < int(status["committed"]):
            self._committed = int(status["committed"])
            raise self._behind(seq)
        if age_ms := status.get("prepared_age_ms"):
            self._since = self._now() - age_ms / 1000
        opened = self._when_free(lambda: self._call(Calls.sub_open, None, sub_id=checkpoint, mode="attach", **self._wanted()))
        if opened["queues"] != status["queues"] and not options.pattern:
            log.warning("subscription '%s' reads %s from now on", self._name, options.what)
        return opened

    def _wanted(self) -> dict[str, Any]:
        """The queues that the options name."""
        options = self._options
        return {"pattern": options.pattern} if options.pattern else {"queues": list(options.queues)}

    def _missing(self, checkpoint: str) -> SourceError:
        """The error for a checkpoint whose subscription is not there."""
        name, where = self._name, self._options.connection.where
        try:
            return self._foreign(checkpoint, self._call(Calls.sub_status, None, name=name)["sub_id"])
        except SourceError as e:
            if e.code != "SUBSCRIPTION_MISSING":
                raise
        return SourceError(
            "CHECKPOINT_FOREIGN",
            f"the checkpoint belongs to a subscription that the broker at {where} does not have: '{name}' was deleted, or option "
            f"'subscription' or the broker is another one, or its store was replaced. Correct that, or {NEW_CHECKPOINT}",
        )

    def _check_backlog(self) -> None:
        """Raises: SourceError OPTION_MISSING for a start that would empty a queue, which nobody expects who knows the word from a log."""
        options = self._options
        if options.start != "earliest" and not options.discard:
            raise SourceError(
                "OPTION_MISSING",
                f"a start at {options.start} takes all that stands before it out of {options.what} unread: a queue keeps no message for a "
                "second reader, as a stream does. Leave out startingOffsets and startingTimestamp to begin with the oldest message, or set "
                "option discardBacklog=true to throw those messages away",
            )

    def _begin_anew(self) -> None:
        """With a new checkpoint, on a subscription that is there: opens it, unless that would harm another query.

        Raises: SourceError CHECKPOINT_NEW, CHECKPOINT_LOST, READER_ACTIVE.
        """
        looked_at = self._looked_at
        self._opened_as(self._when_free(self._create))
        if looked_at is not None and self._committed != looked_at[1]:
            raise SourceError("READER_ACTIVE", f"subscription '{self._options.subscription}' was read meanwhile: start this query again")
        if self._committed:
            log.warning(
                "subscription '%s' has committed %d batches for another checkpoint: this query goes on behind them. Its own are counted "
                "from 0 again, and Spark's file sink leaves out those whose numbers its path has: give it a new path",
                *(self._options.subscription, self._committed),
            )

    def _when_free(self, opens: Callable[[], Any]) -> Any:
        """What `opens` opens, while no other reader works.

        Raises: SourceError READER_ACTIVE, once that is sure: a reader that was killed counts as working for seconds, and is waited for.
        """
        began = self._now()
        while True:
            try:
                return opens()
            except SourceError as e:
                if e.code != "READER_ACTIVE":
                    raise
                heard_ms = self._call(Calls.sub_status, None, name=self._name).get("heard_ms")
                if heard_ms is not None and heard_ms <= LATELY_MS and self._now() - began >= SURE_S:
                    raise
            time.sleep(LOOK_S)

    def _create(self) -> Any:
        """Opens the subscription for a query without a checkpoint; makes it when it is not there."""
        options = self._options
        anew = {"name": options.subscription, "fresh": options.on_new, "onlost": options.on_lost}
        return self._call(Calls.sub_open, None, mode="create", start=options.start, **anew, **self._wanted())

    def _mark(self) -> None:
        tail = self._call(Calls.sub_tail, None, sub_id=self.sub_id, epoch=self.epoch, drain=True)
        self._marks = {queue["queue"]: int(queue["last"]) for queue in tail["queues"]}
        self._drained = False

    def _end_of_run(self, ends: bool) -> None:
        """AvailableNow: says good-bye, since nobody stops this reader then; the next run may come at once."""
        if ends and not self._left:
            self.beat(leave=True)
            self._left = True

    def _below_marks(self) -> bool:
        """Whether a queue still holds something that was there when the run began."""
        tail = self._call(Calls.sub_tail, None, sub_id=self.sub_id, epoch=self.epoch, drain=False)
        return any(0 < int(queue["next"]) <= self._marks.get(queue["queue"], 0) for queue in tail["queues"])

    # --- offsets ------------------------------------------------------------------------------------------------------

    def _offset(self, seq: int) -> Offset:
        # Spark compares offsets as text: nothing that changes by itself may be in here.
        return {"sub_id": self.sub_id, "seq": seq} | ({"first": self._first} if self._first else {})

    def _seq(self, offset: Offset) -> int:
        try:
            sub_id, seq, first = str(offset["sub_id"]), int(offset["seq"]), int(offset.get("first", 0))
        except (KeyError, TypeError, ValueError):
            raise SourceError(
                "CHECKPOINT_FOREIGN", f"the checkpoint holds {str(offset)[:100]}, which no queue source wrote: use its own checkpoint"
            ) from None
        self._open(sub_id, seq)
        self._first = first
        return seq

    def _commit(self, seq: int) -> None:
        if seq > self._committed:
            self._note_commit(
                self._call(Calls.sub_commit, seq, sub_id=self.sub_id, epoch=self.epoch, upto=seq, read=self._must_be_read(seq))
            )

    def _note_commit(self, answer: Any) -> None:
        self._committed = max(self._committed, int(answer["committed"]))
        since, self._since = self._since, None
        if since is not None:
            self._held = {"prepared_ms": int((self._now() - since) * 1000)}

    def _must_be_read(self, seq: int) -> bool:
        return seq == self._first and not self._options.unread_is_done

    def _too_early(self) -> bool:
        """Whether to wait for more messages. AvailableNow must come to its end, so it never waits."""
        options = self._options
        if self._draining or options.min_messages <= 1 or self._now() - self._last_batch >= options.max_delay_s:
            return False
        if self.lag()["messages_behind"] >= options.min_messages:
            return False
        self._idle()
        return True

    def _idle(self) -> None:
        time.sleep(self._idle_s)
        self._idle_s = min(2 * self._idle_s, IDLE_MAX_S)

    def _compare(self, seq: int, count: int) -> None:
        """A set loses messages when a broker that is killed had transient ones, or when a queue is deleted."""
        known, acquired = self._acquired
        if known != seq or count >= acquired:
            return
        text = (
            f"batch {seq} had {acquired} messages when it was prepared, and has {count} now: a queue was deleted, or the broker was killed "
            "and its transient messages are gone"
        )
        if self._options.fail_on_loss:
            # Said once: the next plan, also after a restart, goes on with the rest.
            self._acquired = (0, 0)
            raise SourceError("DATA_LOSS", text + ". Start the query again to go on without them; failOnDataLoss=false only logs this")
        log.warning("%s", text)

    # --- calls and their errors ---------------------------------------------------------------------------------------

    def _call(self, call: Callable[Concatenate[Calls, P], Any], seq: int | None, /, *nothing: P.args, **arguments: P.kwargs) -> Any:
        """Args: call: a method of `Calls`; seq: the batch of the checkpoint, for people; arguments: the call's own."""
        options = self._options
        until = self._now() + options.connection.timeout
        while True:
            try:
                with options.connection.errors():
                    return call(self._opened_plane().calls, *nothing, **arguments)
            except SourceError as e:
                if e.code not in LATER or self._now() >= until:
                    raise self._explained(e, seq) from e.__cause__
                log.warning("%s: %s, trying again", call.__name__.replace("_", ".", 1), e)
            time.sleep(LATER_S)

    def _opened_plane(self) -> Plane:
        if self._plane is None:
            self._plane = self._connect()
        return self._plane

    def _explained(self, error: SourceError, seq: int | None) -> SourceError:
        """What a refusal of the broker means for the owner of a query, and what to do."""
        name = self._name
        batch = "a batch" if seq is None else f"batch {seq}"
        if error.code == "FENCED":
            text = (
                f"another reader has opened subscription '{name}' since: one subscription serves one streaming query, and a DataFrame of "
                "this source can be started, joined or unioned only once. This query changed nothing more; give the other one its own "
                "option 'subscription'"
            )
        elif error.code == "CHECKPOINT_BEHIND" and seq is not None:
            return self._behind(seq)
        elif error.code == "CHECKPOINT_LOST":
            text = (
                f"subscription '{name}' holds {batch if seq is None else f'batch {seq + 1}'} of an earlier checkpoint, which may or may "
                "not have been processed. Use that checkpoint again, or set option onLostCheckpoint=redeliver to process the batch (again)"
            )
        elif error.code == "CHECKPOINT_NEW":
            text = (
                f"{error.text}. Nothing was opened or taken. Use that checkpoint again; or give the sink a new path (Spark counts batches "
                "from 0 again, and its file sink leaves out those that a path has), and set option onNewCheckpoint=continue to go on "
                "behind the batches of the other checkpoint"
            )
        elif error.code == "NOT_READ":
            text = (
                f"{batch} of subscription '{name}' is in Spark's commit log, and no task has read it: the sink left it out, because it has "
                "a batch with its number in the query from an earlier checkpoint (a file sink: in _spark_metadata of its path). Nothing is "
                f"lost: its messages are in the broker. {UNREAD}. A foreachBatch that leaves out its first batch on purpose needs option "
                "onUnreadBatch=commit"
            )
            return SourceError("BATCH_UNREAD", text)
        elif error.code == "READER_ACTIVE":
            text = (
                f"{error.text.partition(':')[0]}: another query runs on it, or the same DataFrame is used twice. Nothing was opened or "
                "taken. Stop that query, or give this one its own option 'subscription': then each message goes to one of them"
            )
        elif error.code in ("CHECKPOINT_AHEAD", "NOT_PREPARED"):
            text = (
                f"the checkpoint stands at {batch}, which subscription '{name}' does not have: the broker's store is an older copy, or an "
                f"operator gave the batch back. To go on, {NEW_CHECKPOINT}. {error.text}"
            )
            return SourceError("CHECKPOINT_AHEAD", text)
        elif error.code == "QUEUES_DIFFER":
            text = f"{error.text.partition(';')[0]}. Name the same queues again, or choose another option 'subscription'"
        elif error.code == "NOT_FOUND":
            known = error.text.startswith(("there is no subscription", "subscription '"))
            code = "SUBSCRIPTION_MISSING" if known else "QUEUE_MISSING"
            return SourceError(code, f"{self._options.connection.where}: {error.text}")
        else:
            return error
        return SourceError(error.code, text)

    def _behind(self, seq: int) -> SourceError:
        return SourceError(
            "CHECKPOINT_BEHIND",
            f"the checkpoint stands at batch {seq}, but subscription '{self._name}' has committed "
            f"{f'batch {self._committed}' if self._committed > seq else 'that batch or a later one'}: an old copy of the checkpoint cannot "
            f"go on; {NEW_CHECKPOINT}",
        )

    def _foreign(self, checkpoint: str, sub_id: str) -> SourceError:
        return SourceError(
            "CHECKPOINT_FOREIGN",
            f"the checkpoint belongs to incarnation {checkpoint} of a subscription, '{self._options.subscription}' at "
            f"{self._options.connection.where} is incarnation {sub_id}: it was deleted and made again, or it is another one. "
            f"Use the pair that belongs together, or {NEW_CHECKPOINT}",
        )


def matching_queues(plane: Plane, options: QueueOptions) -> list[str]:
    """Names of the queues that match `queuePattern` now and that the user may read, sorted; without streams and queues that are exclusive
    to a connection: no pipeline may read those.

    Raises: SourceError QUEUE_MISSING.
    """
    names: list[str] = plane.calls.queue_match(pattern=options.pattern)["queues"]
    if not names:
        raise SourceError("QUEUE_MISSING", f"no queue at {options.connection.where} matches '{options.pattern}'")
    return names

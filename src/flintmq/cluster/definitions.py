"""Definitions that are the same on all nodes of an engine: what one node decides, the others have soon after.

in: changes that are durable here (`told`); rows of the engine. out: rows; verbs that change this node as other nodes decided.

N1  The engine is the truth: a shared definition that is there is here; one that is not there is ended here, unless it waits to be told. The
    database of this node has been changed first, and whoever asked is answered when the engine has the change, too.
N2  Of one definition the last commit counts. An exchange can't be changed: of two that differ the first counts, and the other is refused
    (406).
N3  A decision of other nodes that can't be done here is refused by itself, said once in the log, and tried again.
N4  One task talks to the engine and compares. It knows the rows as they were at some moment after its last own commit, and never gives a
    definition an older state than that. What it finds missing it reads again before it ends anything.
N5  Pieces of work are cut: the event loop, which has the queues' commits, waits for a millisecond at most, and no other loop waits.
N6  An engine without definitions gets those of the first node that asks, once. A node that joins others takes theirs; of its own it keeps
    what durable queues of this node hang on. Later a definition without a row is one that was deleted while the node was away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flintmq.cluster.first import Joining, Member
from flintmq.cluster.known import Known
from flintmq.cluster.local_definitions import LocalDefinitions, is_in_use, same, text_of
from flintmq.cluster.slices import Slices
from flintmq.cluster.telling import Telling
from flintmq.cluster.untold import Done, Untold
from flintmq.config import Limits
from flintmq.definitions.change_line import Refused
from flintmq.engines.engine import EngineError
from flintmq.guard import caught
from flintmq.ports import ExchangeRecord, LimitsRecord, QueueRecord, VhostRecord
from flintmq.shared.definition_rows import MADE, Record, SharedQueue, all_rows, describe, has_life, key_of, key_of_name, rank_of
from flintmq.shared.queue_rows import queue_key
from flintmq.store.sql.changes import Change, Save

log = logging.getLogger("flintmq.shared")

# seconds between two looks at those who have waited for too long
_LATE_S = 1.0


class ClusterDefinitions:
    """Args: local: this node's; thread: engine_thread.EngineThread, or what is like it; limits; member: whose definitions this node has.

    Surface: `start`, `wait_first`, `close`; `note` and `when_told` for `told`; `facts`.
    """

    def __init__(self, local: LocalDefinitions, thread: Any, limits: Limits, member: Member) -> None:
        self._local = local
        self._thread = thread
        self._limits = limits
        self._untold = Untold()
        self._first = threading.Event()
        self._late = False  # a look at late waiters is due
        # --- the event loop's own
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._known = Known(thread.engine, limits)
        self._telling = Telling(self._known, self._untold, local, limits, member.node)
        self._joining = Joining(thread.engine, local, limits, member)
        self._is_lost = False  # rows may have changed unseen
        self._changed: set[bytes] = set()
        self._changed_s = 0.0  # when the first of them came; 0: there are none
        self._has_compared = False
        self._ends = 0  # definitions that end as this node joins others
        self._is_joining = False
        self._void: dict[bytes, None] = {}  # rows that hang on ended things
        self._again_s: float | None = None  # the next look at refused definitions and void rows
        self.refusals: dict[bytes, tuple[Record, str]] = {}  # of definitions that are not followed: the reason

    # --- any thread -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to follow. The thread runs, the broker has restored its definitions, its loops run. Once."""
        self._thread.call(self._begin)

    def wait_first(self, timeout_s: float) -> bool:
        """Waits until this node has the engine's definitions for the first time. False: not within that time. Not on a loop."""
        return self._first.wait(timeout_s)

    def note(self, changes: Sequence[Change]) -> None:
        """These changes are durable here. Waits for nothing."""
        noted = False
        for change in changes:
            record: Any = change.record
            gone = not isinstance(change, Save) or (isinstance(record, LimitsRecord) and not record.limits)
            if isinstance(record, QueueRecord):
                if gone:
                    self._untold.forget_under(queue_key(record.vhost, record.name))
            elif self._local.is_shared(record):
                self._untold.note(key_of(record), record, gone)
                noted = True
        if noted:
            self._thread.call(self._wake.set)

    def when_told(self, changes: Sequence[Change], done: Done) -> bool:
        """True: the engine has the present states of what these changes are of. Else `done(error)` is called once, on any thread: PeerError
        541 after shared_waiting_ms_max, when the engine is told later; 406: the engine does not take it."""
        records: list[Any] = [change.record for change in changes if not isinstance(change.record, QueueRecord)]
        return self._wait([key_of(record) for record in records], done)

    def when_named(self, vhost: str, names: Sequence[Any], done: Done) -> bool:
        """The same, of names that a verb of a virtual host reserves: it has changed nothing, for an earlier verb has."""
        if not len(self._untold):
            return True
        keys = [key for name in names if (key := key_of_name(vhost, name)) is not None]
        return self._wait(keys, done)

    def _wait(self, keys: Sequence[bytes], done: Done) -> bool:
        if self._untold.wait(keys, done):
            return True
        if not self._late:
            self._late = True
            if not self._thread.call(self._look_late):
                self._untold.end()
        return False

    def facts(self) -> dict[str, int]:
        """rows: definitions of the engine that are known here; refused: not followed; waiting: not told yet; lag_ms: since when something
        was not told, or not followed."""
        oldest_s = min((one for one in (self._untold.oldest_s(), self._changed_s) if one), default=None)
        lag_ms = 0 if oldest_s is None else math.ceil(1000 * (time.monotonic() - oldest_s)) or 1
        return {"rows": len(self._known), "refused": len(self.refusals), "waiting": len(self._untold), "lag_ms": lag_ms}

    # --- the event loop -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._watch())]

    def _look_late(self) -> None:
        self._late = self._untold.refuse_late(self._limits.shared_waiting_ms_max / 1000)
        if self._late:
            asyncio.get_running_loop().call_later(_LATE_S, self._look_late)

    async def close(self) -> None:
        """Ends it: whoever waits is told so. The last work of the thread. Idempotent."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._untold.end()

    async def _watch(self) -> None:
        pause_s = self._limits.shared_pause_ms_max / 1000
        while True:
            try:
                async with contextlib.aclosing(self._thread.engine.watch(*all_rows())) as events:
                    async for keys in events:
                        self._changed_s = self._changed_s or time.monotonic()
                        if keys is None or len(self._changed) + len(keys) > self._limits.engine_watch_keys_max:
                            self._is_lost = True
                        else:
                            self._changed |= keys
                        self._wake.set()
            except Exception as error:
                caught("shared queues", "the watch of definitions", error)
            self._is_lost = True
            await asyncio.sleep(pause_s)

    async def _run(self) -> None:
        limits = self._limits
        pause_ms = limits.shared_pause_ms
        while True:
            try:
                self._wake.clear()
                await self._pass()
                pause_ms = limits.shared_pause_ms
                await self._idle()
                continue
            except EngineError as error:
                log.debug("definitions are not those of other nodes yet: %s", error)
            except Exception as error:
                caught("shared queues", "definitions", error)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.shared_pause_ms_max)

    async def _idle(self) -> None:
        again_s = self._again_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if again_s is None else max(0.0, again_s - time.monotonic())):
                await self._wake.wait()

    async def _pass(self) -> None:
        """Tells, reads, compares. Raises: EngineError: what is left is done in the next one."""
        if self._is_lost:
            await self._read_all()
        elif self._changed:
            await self._read_changed()
        if not self._has_compared:
            return  # what the engine has is not known
        await self._telling.tell()
        if self._again_s is not None and time.monotonic() >= self._again_s:
            await self._look_again()
        await self._apply()
        self._first.set()  # others go on changing things
        if not self._is_lost and not self._changed:
            self._changed_s = 0.0

    # --- reading --------------------------------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        """Learns all rows, and has all definitions compared. Raises: EngineError, ValueError."""
        self._is_lost = False
        self._changed.clear()
        try:
            joins = await self._joining.join()
            await self._known.read_all()
            if joins:
                await self._give_borne()
            slices = Slices()
            for key in list(self._known.rows):
                self._known.touch(key)
                await slices.step()
            for record in self._local.records():
                self._known.dirty.setdefault(key_of(record), record)
                await slices.step()
        except BaseException:
            self._is_lost = True
            raise
        self._has_compared = True
        self._is_joining = self._is_joining or joins

    async def _give_borne(self) -> None:
        """Others get those of this node's definitions on which its durable queues hang. Raises: EngineError."""
        for record in self._local.borne():
            if key_of(record) not in self._known.rows:
                log.info("%s is given to other nodes: queues of this node need it", describe(record))
                self._untold.note(key_of(record), record, False)
        await self._telling.tell()
        self._joining.keep()

    async def _read_changed(self) -> None:
        keys, self._changed = self._changed, set()
        try:
            await self._known.reread(keys)
        except BaseException:
            self._changed |= keys
            raise
        if MADE in keys:
            self._is_lost = True  # these are other definitions, perhaps
            self._wake.set()

    async def _look_again(self) -> None:
        """At refused definitions, and at rows that hang on ended things."""
        self._again_s = None
        for key, (record, _) in self.refusals.items():
            self._known.dirty.setdefault(key, record)
        void, self._void = list(self._void), {}
        for key in void:
            self._known.touch(key)
        await self._known.sweep(void)

    # --- comparing ------------------------------------------------------------------------------------------------------

    async def _apply(self) -> None:
        """Makes this node what the rows say: things before what hangs on them. Raises: EngineError: the rest is for the next pass."""
        while self._known.dirty:
            dirty, self._known.dirty = self._known.dirty, {}
            ranks: dict[int, list[bytes]] = {}
            slices = Slices()
            try:
                for key in dirty:
                    ranks.setdefault(rank_of(key), []).append(key)
                    await slices.step()
                for _, keys in sorted(ranks.items()):
                    for start in range(0, len(keys), self._limits.shared_definitions_verbs):
                        some = keys[start : start + self._limits.shared_definitions_verbs]
                        await self._follow({key: dirty[key] for key in some})
                        await self._telling.tell()
            except BaseException:
                self._known.dirty = {**dirty, **self._known.dirty}
                raise
        if self._is_joining:
            self._is_joining = False
            if self._ends:
                log.warning("%d definitions of this node were not those of the other nodes, and ended here", self._ends)
        if (self.refusals or self._void) and self._again_s is None:
            self._again_s = time.monotonic() + self._limits.shared_definitions_retry_ms / 1000

    async def _follow(self, dirty: dict[bytes, Record]) -> None:
        """Compares definitions of one kind, and changes those that differ. Raises: EngineError."""
        missing = [key for key, record in dirty.items() if key not in self._known.rows and self._local.twin(record) is not None]
        await self._known.reread([key for key in missing if key not in self._untold])
        tasks = []
        for key, record in dirty.items():
            tasks.append(asyncio.create_task(self._follow_one(key, record)))
            await asyncio.sleep(0)  # it begins, and others have their turn
        await asyncio.gather(*tasks)

    async def _follow_one(self, key: bytes, record: Record) -> None:
        if key in self._untold:
            return  # it is compared when it is told
        why = ""
        try:
            why = await self._change(key, record)
        except Exception as error:
            caught("shared queues", describe(record), error)
            why = type(error).__name__
        if not why:
            self.refusals.pop(key, None)
            return
        if self.refusals.get(key, (record, ""))[1] != why:
            log.warning("%s is not here as on other nodes: %s", describe(record), why)
        self.refusals[key] = record, why

    async def _change(self, key: bytes, record: Record) -> str:
        """Makes one definition what its row says. Returns what it is refused for, or nothing."""
        known, lives = self._known.rows.get(key), self._known.lives
        if known is not None and known.row is None:
            return "its row can't be read: a later version wrote it"
        wanted = known.row.record if known is not None and known.row is not None and self._known.counts(key) else None
        if known is not None and wanted is None:
            self._void[key] = None
        if isinstance(wanted, SharedQueue) and key_of(VhostRecord(wanted.vhost)) in self._untold:
            return "its virtual host has yet to be told"
        here = self._local.twin(wanted or record)
        if wanted is None or known is None:
            lives.pop(key, None)
            return "" if here is None else await self._end(key, here)
        if here is not None and (
            lives.get(key, known.life) != known.life or (isinstance(wanted, ExchangeRecord) and not same(here, wanted))
        ):
            why = await self._end(key, here)
            if why:
                return why
            here = None
        if here is None or not same(here, wanted):
            error = await self._do(self._local.put, wanted)
            if error is not None:
                return text_of(error)
            if self._local.twin(wanted) is None and key not in self._untold:
                return "something that ends with this node has the name, or is an end of it"
            self._known.touch_under(known.life)
        if has_life(wanted):
            lives[key] = known.life
        if isinstance(wanted, SharedQueue):
            self._local.know_queue(wanted)
        return ""

    async def _end(self, key: bytes, here: Record) -> str:
        if self._is_joining:
            self._ends += 1
            if self._ends <= self._limits.shared_definitions_lines:
                log.warning("%s is not on the other nodes, and ends here", describe(here))
        error = await self._do(self._local.end, here)
        if error is None:
            return ""
        if is_in_use(here, error) and key not in self._known.rows:
            self._untold.note(key, here, False)  # an exchange that goes with its last binding: the last one on any node
            self._wake.set()
            return ""
        return text_of(error)

    async def _do(self, verb: Callable[[Any, Done], object], record: Record) -> Exception | None:
        """Runs a verb of this node. Returns its error, if it is one: what is gone already has ended."""
        answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            self._thread.call(partial(_answer, answer, error))

        verb(record, done)
        try:
            async with asyncio.timeout(self._limits.shared_waiting_ms_max / 1000):
                error = await answer
        except TimeoutError:
            return Refused("busy", "it waits for the database")
        is_gone = verb == self._local.end and isinstance(error, Refused) and error.kind == "not_found"
        return None if is_gone else error


def _answer(answer: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not answer.done():
        answer.set_result(error)

"""The verbs of a virtual host on their way: names that they reserve, changes that the database makes durable, work afterwards.

in: verbs. out: changes submitted to Definitions; results when they are durable and in memory.

A verb is a generator. It runs under the virtual host's lock from one `yield` to the next, each part once and in this order:

| it yields | it goes on |
|---|---|
| `Names(alone, shared)` | when no other verb has one of them (C1) |
| `Save(record)`, `Delete(record)` | when that is durable; what the database refuses is raised there |
| a function | when the function has returned True: long work (100,000 bindings that end), a slice for each call |

Between two parts nobody waits: not the loop, not the lock.

C1  A verb reserves the names it depends on before it looks at them, and has them until it is over. So what it has checked holds when it
    changes memory, and everybody else sees the state before the verb or the one after it. Of two verbs that want a name alone, or of one
    that does and others that share it, the later one waits. A verb may take a name alone later that is not there: nobody else shares it.
C2  A verb changes nothing in memory before the database has its change. A verb that raises has changed nothing.
C3  What was given to the database is carried out whether the asker is still there or not: what the database has, memory has. A verb that
    waits for a name is forgotten when its asker is gone: an exclusive queue must not be declared for a connection that has ended.
C4  On a node among others the asker is told when the others can see the verb's change, or the earlier one that left nothing to change. The
    names are free before that.

Without a database that answers later (`submit`), and by `run`, a change is durable before the verb goes on, and long work is one piece.

Threading: everything here happens under the virtual host's lock, but `call`, `finished` and the database's own thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from flintmq.guard import caught
from flintmq.ports import BindingRecord, Definitions, ExchangeRecord, QueueRecord
from flintmq.store.sql.changes import Change, Save
from flintmq.vhost.spreading import InSlices, Spreading

log = logging.getLogger("flintmq.vhost")

T = TypeVar("T")
Key = Hashable
Finished = Callable[[Any, Exception | None], None]
# Runs a function on the thread of whoever asked, soon.
Call = Callable[[Callable[[], object]], object]

_ALONE = -1
# verbs that follow another one before it is answered; the rest in slices
FOLLOW_AT_ONCE = 16


class Names(NamedTuple):
    """Names that a verb reserves. Args: alone: which no other verb may have; shared: which others may share."""

    alone: tuple[Key, ...] = ()
    shared: tuple[Key, ...] = ()


Step = Names | Change | Callable[[], bool]
Verb = Generator[Step, None, T]


def _apply(definitions: Definitions, change: Change) -> None:
    """Makes one change durable before it returns."""
    record = change.record
    saves = isinstance(change, Save)
    if isinstance(record, QueueRecord):
        definitions.save_queue(record) if saves else definitions.delete_queue(record.vhost, record.name)
    elif isinstance(record, ExchangeRecord):
        definitions.save_exchange(record) if saves else definitions.delete_exchange(record.vhost, record.name)
    elif isinstance(record, BindingRecord):
        definitions.save_binding(record) if saves else definitions.delete_binding(record)
    else:
        raise TypeError(f"no verb of a virtual host changes a {type(record).__name__}")


class Job:
    """One verb that was asked for.

    over: it has its result or its failure, and `finished` was called; saving: the database has its change; names: what it reserved; holds:
    they are in `Changes._held`; wants: what it waits for; late: routes that it changed are told in slices; direct: nothing of it is left to
    others; followed: another node has decided it; saved: what the database has of it.
    """

    __slots__ = (
        "call",
        "direct",
        "failure",
        "finished",
        "followed",
        "holds",
        "late",
        "names",
        "over",
        "result",
        "saved",
        "saving",
        "verb",
        "wanted",
        "wants",
        "woken",
    )

    def __init__(self, verb: Verb[Any], call: Call, finished: Finished, wanted: Callable[[], bool] | None, direct: bool = False) -> None:
        self.verb = verb
        self.call = call
        self.finished = finished
        self.wanted = wanted
        self.direct = direct
        self.followed = False
        self.saved: list[Change] | None = None
        self.names: Names | None = None
        self.wants: Names | None = None
        self.over = self.saving = self.holds = self.woken = self.late = False
        self.result: Any = None
        self.failure: Exception | None = None

    def end(self) -> None:
        """Tells the asker, when the routes that the verb changed are told."""
        self.over = True
        self.finished(self.result, self.failure)


def _no_call(function: Callable[[], object]) -> None:
    function()


def _nobody(result: Any, error: Exception | None) -> None:
    """Is told nothing."""


class Changes:
    """Args: name, lock: the virtual host's; definitions; spreading: what a change of routes is told by.

    told_ones: the definitions, when other nodes are told of them; else None.
    """

    def __init__(self, name: str, lock: Any, definitions: Definitions, spreading: Spreading) -> None:
        # runs long work in slices (Broker.in_slices); None: in one piece
        self.in_slices: InSlices | None = None
        self._lock = lock
        self._spreading = spreading
        self._definitions = definitions
        self._name = name
        # of a node among others (cluster/told.py): the definitions that tell nobody of a change, and those that are waited for
        self._untold: Definitions = getattr(definitions, "untold", definitions)
        self.told_ones: Any = definitions if hasattr(definitions, "when_told") else None
        self._job: Job | None = None  # the verb that runs now
        self._held: dict[Key, int] = {}  # -> number of verbs that share it, or _ALONE
        self._waiting: dict[Key, deque[Job]] = {}
        self._after: deque[Job] = deque()
        self._thread = threading.local()

    def is_held(self, key: Key) -> bool:
        """Whether a verb that waits for the database, or is long work, has this name alone."""
        return self._held.get(key, 0) == _ALONE

    @property
    def holds_names(self) -> bool:
        """Whether some verb waits with names that it has, or for some."""
        return len(self._held) > 0

    def perform(
        self, verb: Verb[Any], call: Call, finished: Finished, wanted: Callable[[], bool] | None = None, *, followed: bool = False
    ) -> Job:
        """Runs a verb; `finished(result, error)` is called once: before this returns (Job.over), or by `call` (C3).

        Args: wanted: asked when a name that the verb waits for is free; False: its asker is gone, the verb is forgotten, `finished` is
        not called. followed: another node has decided it: no node is told.
        """
        job = Job(verb, call, finished, wanted)
        job.followed = followed
        try:
            self._advance(job, None)
        finally:
            if self._after:
                self._run_after()
        return job

    def run(self, verb: Verb[T]) -> T:
        """Runs a verb to its end; its change is durable when this returns. For callers that may wait.

        Raises: what the verb raises; what Definitions raises; RuntimeError: another verb has its names.
        """
        job = Job(verb, _no_call, _nobody, None, direct=True)
        self._go_on(job)
        if job.failure is not None:
            raise job.failure
        result: T = job.result
        return result

    def follow(self, verb: Verb[Any], call: Call, finished: Finished) -> None:
        """`verb` is performed when the present one is over, and nobody waits for it; outside of a verb at once."""
        self._after.append(Job(verb, call, finished, None))
        if self._job is None:
            self._run_after()

    # --- one verb -------------------------------------------------------------------------------------------------------

    def _go_on(self, job: Job, error: Exception | None = None) -> None:
        """Runs a verb until it waits or is over, and what follows it. Args: error: what it waited for has failed."""
        try:
            self._advance(job, error)
        finally:
            if self._after:
                self._run_after()

    def _advance(self, job: Job, error: Exception | None) -> None:
        spreading = self._spreading
        with self._lock:
            outer = self._job, spreading.late  # of the verb that this one is asked by
            self._job, spreading.late = job, False
            try:
                over = self._part(job, error)
            finally:
                job.late = job.late or spreading.late
                self._job, spreading.late = outer
            if not over:
                return
            if job.holds:
                self._release(job)
        if self.told_ones is None or self._is_told(job, self.told_ones):
            self._finish(job)

    def _is_told(self, job: Job, definitions: Any) -> bool:
        """Whether the other nodes can see what the verb says (C4); else it goes on when they can."""
        if job.followed or job.direct or job.failure is not None or job.names is None:
            return True
        go_on = partial(self._told, job)
        if job.saved is not None:
            return bool(definitions.when_told(job.saved, go_on))
        return bool(definitions.when_named(self._name, job.names.alone or job.names.shared, go_on))

    def _told(self, job: Job, error: Exception | None) -> None:
        """Any thread: the other nodes can see what the verb has saved, or `error`."""
        if job.failure is None:
            job.failure = error
        job.call(partial(self._finish, job))

    def _finish(self, job: Job) -> None:
        if not job.late or not self._spreading.wait(partial(job.call, job.end)):
            job.end()

    def _part(self, job: Job, error: Exception | None) -> bool:
        """Runs a verb until it waits. True: it is over, with its result or failure."""
        verb = job.verb
        job.saving = False
        step: Step | None = job.wants
        try:
            while True:
                if step is None:
                    step = verb.send(None) if error is None else verb.throw(error)
                    error = None
                if isinstance(step, Names):
                    if not self._held:  # as most of the time
                        job.names, job.wants = step, None
                    elif not self._reserve(job, step):
                        return False
                elif callable(step):
                    if not step() and not self._in_slices(job, step):
                        return False
                elif job.direct or not hasattr(self._definitions, "submit"):
                    error = self._save(job, step)
                else:
                    error = self._hand_over(job, step)
                    if error is None:
                        return False
                step = None
        except StopIteration as end:
            job.result = end.value
        except Exception as failure:
            job.failure = failure
        return True

    def _save(self, job: Job, change: Change) -> Exception | None:
        try:
            _apply(self._to(job, change), change)
        except Exception as error:
            return error
        return None

    def _to(self, job: Job, change: Change) -> Any:
        """The definitions that get a change of a verb."""
        if job.followed:
            return self._untold
        if self.told_ones is not None and not job.direct:
            job.saved = [*(job.saved or ()), change]
        return self._definitions

    def _hand_over(self, job: Job, change: Change) -> Exception | None:
        """Gives a change to the database. Returns what it refuses at once."""
        self._hold(job)
        job.saving = True
        try:
            self._to(job, change).submit([change], partial(self._answered, job))
        except Exception as error:
            job.saving = False
            return error
        return None

    def _answered(self, job: Job, error: Exception | None) -> None:
        """The database's thread: the change of the verb is durable, or `error`."""
        job.call(partial(self._go_on, job, error))

    # --- names ----------------------------------------------------------------------------------------------------------

    def _reserve(self, job: Job, names: Names) -> bool:
        """Reserves names for a verb. False: another one has one of them, and this one is woken when it is free."""
        taken = self._taken(names, job.woken)
        if taken is None:
            job.names, job.wants = names, None
            return True
        if job.direct or job.names is not None:
            raise RuntimeError(f"{taken} is being changed")
        job.wants = names
        self._waiting.setdefault(taken, deque()).append(job)
        return False

    def _taken(self, names: Names, woken: bool) -> Key | None:
        """A name that another verb has. A verb that shares a name does not pass by one that waits to have it alone."""
        held, waiting = self._held, self._waiting
        for key in names.alone:
            if key in held:
                return key
        for key in names.shared:
            if held.get(key, 0) == _ALONE or (key in waiting and not woken):
                return key
        return None

    def _hold(self, job: Job) -> None:
        """The verb is about to wait: its names are held. Until here it had the lock."""
        if job.holds or job.names is None:
            return
        job.holds = True
        for key in job.names.alone:
            self._held[key] = _ALONE
        for key in job.names.shared:
            self._held[key] = self._held.get(key, 0) + 1

    def _release(self, job: Job) -> None:
        assert job.names is not None
        job.holds = False
        held = self._held
        for key in job.names.alone:
            del held[key]
        for key in job.names.shared:
            held[key] -= 1
            if not held[key]:
                del held[key]
        if not self._waiting:
            return
        for key in (*job.names.alone, *job.names.shared):
            if key not in held:
                for waiting in self._waiting.pop(key, ()):
                    waiting.woken = True
                    waiting.call(partial(self._woken, waiting))

    def _woken(self, job: Job) -> None:
        """A name that the verb waited for is free."""
        if job.wanted is None or job.wanted():
            self._go_on(job)
        else:
            job.verb.close()

    # --- long work ------------------------------------------------------------------------------------------------------

    def _in_slices(self, job: Job, piece: Callable[[], bool]) -> bool:
        """The rest of the long work of a verb. True: it is done; False: it is done in slices, with the names held."""
        if self.in_slices is None or job.direct:
            while not piece():
                pass
            return True
        self._hold(job)
        failures: list[Exception] = []
        self.in_slices(partial(self._one_piece, job, piece, failures), partial(self._pieces_done, job, piece, failures))
        return False

    def _one_piece(self, job: Job, piece: Callable[[], bool], failures: list[Exception]) -> bool:
        """A slice of the long work of a verb; what is unused by that follows it. True: the work is done."""
        over = True
        with self._lock:
            outer = self._job, self._spreading.late
            self._job, self._spreading.late = job, False
            try:
                over = piece()
            except Exception as error:
                caught("long changes of definitions", job.names, error)
                failures.append(error)
            finally:
                job.late = job.late or self._spreading.late
                self._job, self._spreading.late = outer
        if self._after:
            self._run_after()
        return over

    def _pieces_done(self, job: Job, piece: Callable[[], bool], failures: list[Exception], whole: bool) -> None:
        while not whole:  # the loop of the slices ends
            whole = self._one_piece(job, piece, failures)
        job.call(partial(self._go_on, job, failures[0] if failures else None))

    # --- what follows ---------------------------------------------------------------------------------------------------

    def _run_after(self) -> None:
        """What follows a verb, and what follows that (a chain of auto-delete exchanges): some at once, the rest in slices."""
        if getattr(self._thread, "follows", False):
            return  # further up on this stack
        self._thread.follows = True
        try:
            for _ in range(FOLLOW_AT_ONCE):
                if self._follow_one():
                    return
        finally:
            self._thread.follows = False
        if self.in_slices is not None:
            self.in_slices(self._follow_one, lambda whole: None)
        else:
            while not self._follow_one():
                pass

    def _follow_one(self) -> bool:
        """True: nothing is left to follow."""
        with self._lock:
            if not self._after:
                return True
            job = self._after.popleft()
        self._advance(job, None)
        return not self._after

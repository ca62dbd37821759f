"""Changes of durable definitions on their way to the database: the names that they hold, the callers that wait, the work afterwards.

in: verbs of a virtual host. out: changes submitted to Definitions, results when they are durable.

Most verbs change nothing that the database has: `attempt` runs them once. A verb that has something to save is run twice by `perform`.
The first run checks the request, says what has to be saved (`save`) and ends there; nothing in memory has changed. When the database has
it, the same verb is run again, `save` returns at once, and the rest of it changes memory. In between nobody waits: not the loop, not the
virtual host's lock.

C1  From `save` to the end of the second run the names of a change are held. A verb that touches a held name is run when it is free: so the
    second run finds what the first one checked, and everybody else sees the state before the change or the one after it.
C2  A verb changes nothing before `save`, and saves at most once.
C3  The second run happens whether whoever asked is still there or not: what the database has, memory has. A verb that still waits for a
    name is forgotten when whoever asked is gone: an exclusive queue must not be declared for a connection that has ended.

A verb whose memory is long work (the end of an exchange with 100,000 bindings) does it in slices, by `piecewise`, between `save` and its
end: its names are held for as long, and each slice leaves bindings and routes that fit together.

Without a database that answers later (`submit`), and outside of `perform`, `save` saves at once, and long work is done in one piece.

Threading: everything here happens under the virtual host's lock, but `call`, `finished` and the database's own thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any

from flintmq.guard import caught
from flintmq.ports import BindingRecord, Definitions, ExchangeRecord, QueueRecord
from flintmq.store.sql.changes import Change, Save
from flintmq.vhost.spreading import InSlices, Spreading

log = logging.getLogger("flintmq.vhost")

Key = Hashable
Finished = Callable[[Any, Exception | None], None]
# Runs a function on the thread of whoever asked, soon.
Call = Callable[[Callable[[], None]], None]

_EXCLUSIVE = -1
# verbs that follow another one before it is answered; the rest in slices
FOLLOW_AT_ONCE = 16


class _Submitted(Exception):
    """The first run of a verb ends here."""


class _InPieces(Exception):
    """A run of a verb ends here, and the next one begins when its long work is done."""


class Later(Exception):
    """A verb that was attempted can't be over at once: the database has to have its change first, another change holds its names, or it
    is long work."""


class Held(Later):
    """Another change holds this name."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"{key} is being changed")
        self.key = key


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
    """One verb that was asked for."""

    # of a verb that has saved nothing yet, as most never do
    change: Change | None = None
    saved = False
    held = False
    woken = False
    piece: Callable[[], bool] | None = None
    failure: Exception | None = None
    exclusive: tuple[Key, ...] = ()
    shared: tuple[Key, ...] = ()
    undo: Callable[[], None] | None = None

    def __init__(self, verb: Callable[[], Any], call: Call, finished: Finished, wanted: Callable[[], bool] | None = None) -> None:
        self.verb = verb
        self.wanted = wanted
        self.call = call
        self.finished = finished


# stands for whatever verb is attempted
_ATTEMPT = Job(lambda: None, lambda function: None, lambda result, error: None)


class Changes:
    """Args: lock: the virtual host's; definitions; spreading: what a change of routes is told by."""

    def __init__(self, lock: Any, definitions: Definitions, spreading: Spreading) -> None:
        # runs long work in slices (Broker.in_slices); None: in one piece
        self.in_slices: InSlices | None = None
        self._lock = lock
        self._spreading = spreading
        self._definitions = definitions
        self._submit: Any = getattr(definitions, "submit", None)
        self._job: Job | None = None
        self._held: dict[Key, int] = {}  # -> number of changes that share it, or _EXCLUSIVE
        self._waiting: dict[Key, deque[Job]] = {}
        self._after: deque[Job] = deque()
        self._thread = threading.local()

    # --- for verbs, under the lock --------------------------------------------------------------------------------------

    @property
    def saved(self) -> bool:
        """True in the runs of a verb after its first one: what it checks was checked."""
        return self._job is not None and self._job.saved

    @property
    def later(self) -> bool:
        """True when the present verb's `save` ends its first run."""
        return self._submit is not None and self._job is not None

    def is_held(self, key: Key) -> bool:
        """Whether a change holds this name alone."""
        return self._held.get(key, 0) == _EXCLUSIVE

    def check(self, *keys: Key) -> None:
        """A verb is about to look at these names. Raises: Held."""
        if not self._held or self.saved:
            return
        for key in keys:
            if self._held.get(key, 0) == _EXCLUSIVE:
                raise Held(key)

    def save(
        self,
        make: Callable[[], Change],
        exclusive: Iterable[Key],
        shared: Iterable[Key] = (),
        undo: Callable[[], None] | None = None,
    ) -> Change:
        """Makes the change durable and returns it. In a first run: submits it and ends the verb. In an attempt: ends the verb.

        Args: make: makes the change, once; exclusive, shared: names it holds; undo: runs when the database refuses.
        Raises: Later, Held; what Definitions raises.
        """
        job = self._job
        if job is None or self._submit is None:
            return self._now(make, undo)
        if job is _ATTEMPT:
            if undo is not None:
                undo()
            raise Later
        if job.saved:
            assert job.change is not None
            return job.change
        job.exclusive, job.shared = tuple(exclusive), tuple(shared)
        try:
            for key in job.exclusive:
                if key in self._held:
                    raise Held(key)
            for key in job.shared:
                # Who shares does not pass by who waits to have it alone.
                if self._held.get(key, 0) == _EXCLUSIVE or (key in self._waiting and not job.woken):
                    raise Held(key)
            job.change = make()
            job.undo = undo
            self._submit([job.change], partial(self._answered, job))
        except BaseException:
            job.change = None
            if undo is not None:
                undo()
            raise
        self._hold(job)
        raise _Submitted

    def _hold(self, job: Job) -> None:
        for key in job.exclusive:
            self._held[key] = _EXCLUSIVE
        for key in job.shared:
            self._held[key] = self._held.get(key, 0) + 1
        job.held = True

    def piecewise(self, piece: Callable[[], bool], long: bool, exclusive: Iterable[Key]) -> None:
        """Calls `piece` until it returns True. In a verb that is performed long work ends the run: it is done in slices, with the names
        held, and the verb is run again then, where `piece` has nothing left to do. In an attempt long work ends the verb.

        Args: long: whether it is more than one slice. Raises: Later, Held: nothing of it is done.
        """
        job = self._job
        if not long or job is None or (self.in_slices is None and job is not _ATTEMPT):
            while not piece():
                pass
            return
        if job is _ATTEMPT:
            raise Later
        if not job.held:
            job.exclusive = tuple(exclusive)
            for key in job.exclusive:
                if key in self._held:
                    raise Held(key)
            self._hold(job)
        job.piece = piece
        raise _InPieces

    def _now(self, make: Callable[[], Change], undo: Callable[[], None] | None) -> Change:
        try:
            change = make()
            _apply(self._definitions, change)
        except BaseException:
            if undo is not None:
                undo()
            raise
        return change

    def follow(self, verb: Callable[[], Any], call: Call, finished: Finished) -> None:
        """`verb` is performed when the present one is over, and nobody waits for it; outside of a verb at once."""
        self._after.append(Job(verb, call, finished))
        if self._job is None:
            self._run_after()

    # --- for whoever asks -----------------------------------------------------------------------------------------------

    def attempt(self, verb: Callable[[], Any]) -> Any:
        """Runs a verb that is over at once, and returns its result. What it changed of routes may still be told then (`wait_for_routes`).

        Raises: Later: it is not, nothing has changed, and `perform` is to be asked; what the verb raises.
        """
        self._spreading.changed_here()
        try:
            with self._lock:
                before, self._job = self._job, _ATTEMPT
                try:
                    return verb()
                finally:
                    self._job = before
        finally:
            if self._after:
                self._run_after()

    def wait_for_routes(self, told: Callable[[], object]) -> bool:
        """After an attempt: `told` is called when what it changed of routes is in force. False: it is, and `told` is not called."""
        return self._spreading.changed_here() and self._spreading.wait(told)

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
        self._run_one(job)
        return not self._after

    def perform(self, verb: Callable[[], Any], call: Call, finished: Finished, wanted: Callable[[], bool] | None = None) -> None:
        """Runs a verb; `finished(result, error)` is called once: before this returns, or by `call` when the database has answered.

        Once begun it is carried out, and `finished` is called, whether whoever asked is still there or not (C3).

        Args: wanted: asked when a held name is free; False: whoever asked is gone, and the verb, which had not begun, is forgotten.
        """
        self._run(Job(verb, call, finished, wanted))

    def _run(self, job: Job) -> None:
        try:
            self._run_one(job)
        finally:
            if self._after:
                self._run_after()

    def _run_one(self, job: Job) -> None:
        before = self._spreading.changed_here()  # by a verb that this one follows: who asked for that one waits for it
        try:
            self._run_now(job)
        finally:
            self._spreading.changed_here(before)

    def _run_now(self, job: Job) -> None:
        result: Any = None
        failure: Exception | None = None
        pieces = False
        if job.wanted is not None and not job.saved and not job.wanted():
            return
        with self._lock:
            before, self._job = self._job, job
            try:
                result = job.verb()
            except _Submitted:
                return
            except _InPieces:
                pieces = True
            except Held as held:
                self._waiting.setdefault(held.key, deque()).append(job)
                return
            except Exception as error:
                failure = error
            finally:
                self._job = before
            if job.held and not pieces:
                self._release(job)
        if pieces:
            assert self.in_slices is not None
            self.in_slices(partial(self._one_piece, job), partial(self._pieces_done, job))
            return
        if not self._spreading.changed_here() or not self._spreading.wait(partial(job.call, partial(job.finished, result, failure))):
            job.finished(result, failure)

    def _one_piece(self, job: Job) -> bool:
        """A slice of the long work of a verb; what is unused by that follows it. True: the work is done."""
        over = True
        with self._lock:
            before, self._job = self._job, job
            try:
                assert job.piece is not None
                over = job.piece()
            except Exception as error:  # run again, the verb would meet it for ever
                caught("long changes of definitions", job.exclusive, error)
                job.failure = error
            finally:
                self._job = before
        if self._after:
            self._run_after()
        return over

    def _pieces_done(self, job: Job, whole: bool) -> None:
        while not whole:  # the loop of the slices ends
            whole = self._one_piece(job)
        job.call(partial(self._go_on, job, job.failure))

    def _answered(self, job: Job, error: Exception | None) -> None:
        """The database's thread: `job.change` is durable, or `error`."""
        job.call(partial(self._go_on, job, error))

    def _go_on(self, job: Job, error: Exception | None) -> None:
        if error is None:
            job.saved = True
            self._run(job)
            return
        with self._lock:
            if job.undo is not None:
                job.undo()
            self._release(job)
        job.finished(None, error)

    def _release(self, job: Job) -> None:
        if not job.held:
            return
        job.change, job.held = None, False
        for key in job.exclusive:
            del self._held[key]
        for key in job.shared:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
        for key in (*job.exclusive, *job.shared):
            if key not in self._held:
                for waiting in self._waiting.pop(key, ()):
                    waiting.woken = True
                    waiting.call(partial(self._run, waiting))

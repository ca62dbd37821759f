"""Group commit: submissions that gathered while the last transaction ran go into the next one together.

in: operations, from any thread. out: each submission durable and answered, or failed by itself.

I1  Submissions take effect in the order in which they came, whoever commits them. One submission is all or nothing.
I2  A caller that waits (`run`) commits everything before it and itself in its own thread: alone, it pays no thread switch.
I3  Callbacks of `submit` run in the writer thread, in the order of submission, after the change is durable or has failed.
I4  When a group fails, each of its submissions is tried again by itself: nobody is refused for a neighbour's mistake.
I5  A StoreError other than NotSaved is latched: from then on every submission fails with it, and nothing reaches the database. Whether
    the change it came from is durable is not known, so `on_failure` hears of it before the caller does: the node ends with it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from flintmq.core import failpoints
from flintmq.errors import StoreError
from flintmq.store.sql.driver import Driver, Operation
from flintmq.store.sql.failures import ConstraintFailure, NotSaved

log = logging.getLogger("flintmq.store.sql")

Callback = Callable[[Exception | None], None]


class _Submission:
    __slots__ = ("callback", "done", "error", "operations")

    def __init__(self, operations: Sequence[Operation], callback: Callback | None) -> None:
        self.operations = operations
        self.callback = callback
        self.done = False
        self.error: Exception | None = None


class GroupCommit:
    """Args: driver: used under this object's lock only; group_max: submissions of one transaction."""

    def __init__(self, driver: Driver, group_max: int) -> None:
        self._driver = driver
        self._group_max = group_max
        self.connection_lock = threading.Lock()  # for whoever reads from the driver
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[_Submission] = deque()
        self._finished: deque[_Submission] = deque()  # with a callback that has not run
        self._writer: threading.Thread | None = None
        self._closed = False
        self._failed: StoreError | None = None
        self.on_failure: Callable[[StoreError], None] | None = None
        self.transactions = 0

    @property
    def failed(self) -> StoreError | None:
        """The latched error."""
        return self._failed

    def run(self, operations: Sequence[Operation]) -> None:
        """Returns when it is durable. Raises: ConstraintFailure, NotSaved, StoreError."""
        submission = _Submission(operations, None)
        self._add(submission)
        with self.connection_lock:
            while not submission.done:
                self._commit_group()
        if submission.error is not None:
            raise submission.error

    def submit(self, operations: Sequence[Operation], callback: Callback) -> None:
        """Returns at once; the writer thread calls `callback` with None when it is durable, else with the error."""
        if self._writer is None:
            with self._changed:
                if self._writer is None and not self._closed:
                    self._writer = threading.Thread(target=self._write, name="flintmq-definitions", daemon=True)
                    self._writer.start()
        self._add(_Submission(operations, callback))

    def close(self) -> None:
        """Commits what waits, runs the callbacks and ends the thread; later calls raise StoreError. Not from a callback."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join()

    def _add(self, submission: _Submission) -> None:
        with self._changed:
            if self._closed:
                raise StoreError(f"{self._driver.where} is closed")
            self._waiting.append(submission)
            if submission.callback is not None:
                self._changed.notify()

    def _commit_group(self) -> None:
        """Commits the oldest submissions. The caller holds connection_lock."""
        with self._changed:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._group_max))]
        if not group:
            return
        error = self._attempt(group)
        if error is not None and len(group) > 1 and self._failed is None:
            for submission in group:
                submission.error = self._attempt([submission])
        elif error is not None:
            for submission in group:
                submission.error = error
        for submission in group:
            submission.done = True
        answers = [submission for submission in group if submission.callback is not None]
        if answers:
            with self._changed:
                self._finished.extend(answers)
                self._changed.notify()

    def _attempt(self, group: Sequence[_Submission]) -> Exception | None:
        """One transaction. Returns its error."""
        if self._failed is not None:
            return self._failed
        operations = group[0].operations if len(group) == 1 else [operation for each in group for operation in each.operations]
        if not operations:
            return None
        try:
            self._driver.run(operations)
        except (ConstraintFailure, NotSaved) as error:
            return error
        except StoreError as error:
            self._failed = error
            log.error("the definitions failed, nothing is saved any more: %s", error)
            if self.on_failure is not None:
                self.on_failure(error)
            return error
        except Exception as error:  # a bug, and nothing was saved (driver I1): the callers must hear of it, not hang
            return error
        self.transactions += 1
        failpoints.hit("sql-committed")
        return None

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._finished and not self._closed:
                    self._changed.wait()
                if self._closed and not self._waiting and not self._finished:
                    return
            if not self._finished:
                with self.connection_lock:
                    self._commit_group()
            while self._finished:
                submission = self._finished.popleft()
                assert submission.callback is not None
                try:
                    submission.callback(submission.error)
                except Exception:
                    log.exception("a callback of the definitions failed")
                del submission  # its asker is not kept until the next change

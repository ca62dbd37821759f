"""A local transaction for Python callers: several queues, one outcome. (The tx class of AMQP 0-9-1 has its own, in the message path.)

in: enqueues and dequeues. out: all of them or none, at a durable commit.

    with coordinator.local() as transaction:
        transaction.dequeue(orders, position)
        transaction.enqueue(invoices, content)
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from flintmq.ports import DequeueReason, StoredContent
from flintmq.transactions.effects import MessageRef, Session
from flintmq.transactions.errors import Condition, TransactionRefused, XaStatus
from flintmq.transactions.outcome import Outcome
from flintmq.transactions.serial import Serial
from flintmq.transactions.work import Work


class LocalTransaction:
    """Made by TransactionCoordinator.local. Threading: any thread. As a context manager: commits and waits, or rolls back on an exception.

    It has no timeout, is not listed, and does not survive a crash.
    """

    def __init__(self, serial: Serial, work: Work, session: Session | None) -> None:
        self._serial = serial
        self._work = work
        self._session = session if session is not None else self
        self._outcome: Outcome | None = None

    def enqueue(
        self,
        queue_id: int,
        message: StoredContent | MessageRef,
        *,
        durable: bool = True,
        priority: int | None = None,
        expires_at_ms: int = 0,
    ) -> MessageRef:
        """As TransactionCoordinator.enqueue."""
        with self._serial:
            self._check_open()
            return self._work.enqueue(queue_id, message, durable=durable, priority=priority, expires_at_ms=expires_at_ms)

    def dequeue(
        self, queue_id: int, position: int, reason: DequeueReason = DequeueReason.ACK, *, consumer: str = "", group: str = ""
    ) -> None:
        """As TransactionCoordinator.dequeue."""
        with self._serial:
            self._check_open()
            self._work.dequeue(queue_id, position, self._session, reason, consumer, group)

    def commit(self) -> Outcome:
        """All of it. Raises: TransactionRefused (ILLEGAL_STATE) when it has ended; StoreError."""
        return self._end(self._work.commit, self._work.apply)

    def rollback(self) -> Outcome:
        """None of it. Raises: as `commit`."""
        return self._end(self._work.rollback, self._work.undo)

    def __enter__(self) -> LocalTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._outcome is not None:
            return
        if error is not None:
            self.rollback()
        else:
            self.commit().result()

    def _end(self, decide: Callable[[], int], effect: Callable[[], None]) -> Outcome:
        with self._serial:
            self._check_open()
            lsn = decide()
            outcome = self._outcome = Outcome()

            def durable() -> None:
                effect()
                outcome.resolve(XaStatus.XA_OK)

            self._serial.later(lsn, durable)
        return outcome

    def _check_open(self) -> None:
        if self._outcome is not None:
            raise TransactionRefused(Condition.ILLEGAL_STATE, "this transaction has ended")

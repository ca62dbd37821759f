"""Transactions on shared queues, as this node coordinates them, and as it takes part in those of others (docs/adr/0015, R10).

in: what a client commits; requests of other coordinators; rows of those that are gone. out: word that it took place on all queues, or never
will.

C1  A commit is answered when the owners of all its queues have its messages in their queues, so what its publisher sends next is behind
    them; or after `shared_waiting_ms_max`, when it is decided and an owner is away: whoever takes that queue over does it first.
C2  Whoever waits is told after `shared_waiting_ms_max` that nobody knows, and once more when it is known.
C3  A decided transaction is kept in mind by its row until no queue has rows of it: by its coordinator, or, when that is gone, by any node.

All of it is of the engine's event loop, but where it says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flintmq.cluster.engine_thread import EngineThread
from flintmq.cluster.node_answers import Answer, Answerer
from flintmq.cluster.set_calls import Others
from flintmq.config import Limits
from flintmq.engines.engine import Commit, EngineError, Full, Unavailable
from flintmq.errors import PeerError, ReplyCode
from flintmq.guard import caught
from flintmq.shared.layout import Owner, owner_key
from flintmq.shared.node_secret import NodeId
from flintmq.shared.queue_log import Lost
from flintmq.shared.queue_transactions import QueueTransactions
from flintmq.shared.scope_commits import ScopeCommits
from flintmq.shared.scope_rows import OPEN
from flintmq.shared.serving import Served
from flintmq.shared.transaction_commits import Changes, Deciding, Moved, QueueGone
from flintmq.shared.transaction_rows import TransactionRow, transaction_id, transaction_key, transaction_of, transactions

log = logging.getLogger("flintmq.shared")

# rows of transactions that are read at once, and their bytes
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 500, 1 << 20


class Outcome(Enum):
    """DECIDED: it takes place, and did as far as C1 says; REFUSED: nothing of it takes place; UNKNOWN: one of the two is told later."""

    DECIDED = 1
    REFUSED = 2
    UNKNOWN = 3


# the outcome, the transaction's id if it is decided, and whatever its client is told in the place of commit-ok
OnOutcome = Callable[[Outcome, bytes, PeerError | None], object]


@dataclass(frozen=True, slots=True)
class Bound:
    """A queue that refuses publishes above its limit is asked first: so many messages, bytes of all and of the last one."""

    queue: bytes
    messages: int
    size: int
    last: int


class Transactions:
    """See module. Args: me: this node; is_deleted: whether this node knows that a queue is.

    Attributes: others: None: no other node can be asked; is_gone: whether a life of another node is over; scopes: whose batches are
    transactions, too; writing: stages that this node takes blocks of."""

    def __init__(self, thread: EngineThread, me: NodeId, limits: Limits, is_deleted: Callable[[bytes], bool]) -> None:
        self.others: Others | None = None
        self.is_gone: Callable[[str, str], bool] = lambda name, life: life != me.life
        self._thread = thread
        self.engine = thread.engine
        self.me = me
        self._limits = limits
        self._is_deleted = is_deleted
        self.deciding = Deciding(self.engine, me.name, me.life, limits, self._owner_here, is_deleted)
        self.rests = False  # the engine has no room for messages
        self._queues: dict[bytes, QueueTransactions] = {}
        self._number = 0
        self._running: Counter[str] = Counter()  # by user
        self._own: set[bytes] = set()  # whose rows this node sees to
        self._applied: dict[bytes, tuple[TransactionRow, set[bytes]]] = {}  # with the queues that may have rows of it
        self._given_up: dict[bytes, TransactionRow] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = False
        self.scopes = ScopeCommits(self.engine, self.deciding, limits, self._finish, self._ask_bound)
        self.writing: set[bytes] = set()  # stages that this node takes blocks of
        self._stages: dict[bytes, tuple[TransactionRow, float]] = {}  # prepared ones, and since when they are so

    # --- queues of this node --------------------------------------------------------------------------------------------

    async def begin(self, served: Served) -> None:
        """What decided transactions have left to do in a queue that is served from now on is done (X2 of QueueTransactions). The caller
        bounds it by a timeout, and looks whether the queue was lost meanwhile. Raises: ValueError: a row can't be read."""
        known = self._queues.get(served.queue)
        if known is not None and known.served is served:
            return
        here = QueueTransactions(self.engine, served, self._limits)
        while True:
            try:
                await here.restore()
                break
            except Lost:
                return
            except EngineError:
                await asyncio.sleep(self._limits.shared_pause_ms / 1000)
        self._queues[served.queue] = here
        self._begin_looks()

    def lost(self, queue: bytes) -> None:
        """This node serves the queue no more. Idempotent."""
        here = self._queues.pop(queue, None)
        if here is not None:
            here.close()

    def _owner_here(self, queue: bytes) -> Owner | None:
        here = self._queues.get(queue)
        return None if here is None else here.served.log.owner

    # --- committing -----------------------------------------------------------------------------------------------------

    def commit(self, changes: Mapping[bytes, Changes], bounds: list[Bound], outcome: OnOutcome, user: str = "") -> None:
        """Args: changes: by the ids of queues; outcome: called once, or twice (C2), on any thread; user: whose it is. Any thread."""
        outcomes: list[Outcome] = []

        def tell(one: Outcome, transaction: bytes, error: PeerError | None) -> None:
            outcomes.append(one)
            outcome(one, transaction, error)

        def done(_: Any, error: Exception | None) -> None:
            if error is not None and not outcomes:  # the broker stops
                outcome(Outcome.UNKNOWN, b"", _refusal(error))

        self._thread.start()
        self._thread.run(lambda: self._commit(dict(changes), bounds, tell, user), done)

    async def _commit(self, changes: dict[bytes, Changes], bounds: list[Bound], outcome: OnOutcome, user: str) -> None:
        if self.rests and any(one.messages for one in changes.values()):
            outcome(Outcome.REFUSED, b"", _refusal(Full("it is nearly full")))
            return
        most = self._limits.shared_transactions_max
        share = max(1, int(most * self._limits.shared_transactions_user_share))
        if self._running.total() >= most or self._running[user] >= share:
            text = f"too many transactions on shared queues are under way on this node ({most}), or of this user ({share})"
            outcome(Outcome.REFUSED, b"", PeerError(ReplyCode.INTERNAL_ERROR, text))
            return
        self._running[user] += 1
        try:
            await self._bounded(changes, bounds, outcome)
        finally:
            self._running[user] -= 1
            if not self._running[user]:
                del self._running[user]

    async def _bounded(self, changes: dict[bytes, Changes], bounds: list[Bound], outcome: OnOutcome) -> None:
        wait_s = self._limits.shared_waiting_ms_max / 1000
        task = asyncio.ensure_future(self._decided(changes, bounds))
        try:
            done, _ = await asyncio.wait({task}, timeout=wait_s)
            if not done:
                text = "the engine of shared queues does not answer: whether the transaction is committed is not known"
                outcome(Outcome.UNKNOWN, b"", PeerError(ReplyCode.INTERNAL_ERROR, text))
            transaction, row, served = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        except Exception as error:
            outcome(Outcome.REFUSED, b"", _refusal(error))
            return
        work = [self._start(self._apply(transaction, queue, row, changes[queue], served.get(queue))) for queue in changes]
        if work:
            await asyncio.wait(work, timeout=wait_s)
        outcome(Outcome.DECIDED, transaction, None)
        if work:
            await asyncio.wait(work)
        if len(row.queues) > 1:
            self._applied[transaction] = row, set(changes)
        else:
            self._own.discard(transaction)  # the queue's owner deletes its row, or a round does

    async def _decided(
        self, changes: dict[bytes, Changes], bounds: list[Bound]
    ) -> tuple[bytes, TransactionRow, dict[bytes, QueueTransactions]]:
        """(id, row, queues that were served here just before)."""
        for bound in bounds:
            await self._ask_room(bound)
        for one in changes.values():
            one.pack(self._limits)
        while True:
            transaction = self.new_id()
            self._own.add(transaction)
            served = {queue: self._queues[queue] for queue in changes if queue in self._queues}
            try:
                row = await self.deciding.decide(transaction, changes)
                return transaction, row, served
            except QueueGone as error:
                self._give_up(transaction, changes)
                del changes[error.queue]  # messages for it go where those for a deleted queue go
                if not changes:
                    return transaction, TransactionRow(True, self.me.name, self.me.life), {}
            except BaseException:
                self._give_up(transaction, changes)
                raise

    def new_id(self) -> bytes:
        self._number += 1
        return transaction_id(self.me.life, self._number)

    async def _finish(self, transaction: bytes, row: TransactionRow) -> None:
        """One that a scope decided: returns as a commit is answered (C1)."""
        work = [self._start(self._apply(transaction, queue.encode(), row, Changes(), None)) for queue in row.queues]
        if work:
            await asyncio.wait(work, timeout=self._limits.shared_waiting_ms_max / 1000)
        self._start(self._finished(transaction, row, work))

    async def _finished(self, transaction: bytes, row: TransactionRow, work: list[asyncio.Task[None]]) -> None:
        if work:
            await asyncio.wait(work)
        self._applied[transaction] = row, {queue.encode() for queue in row.queues}

    async def _ask_bound(self, queue: bytes, messages: int, size: int, last: int) -> None:
        await self._ask_room(Bound(queue, messages, size, last))

    def _give_up(self, transaction: bytes, changes: Mapping[bytes, Changes]) -> None:
        self._given_up[transaction] = TransactionRow(False, self.me.name, self.me.life, sorted(queue.decode() for queue in changes))
        self._begin_looks()

    async def _ask_room(self, bound: Bound) -> None:
        """Raises: PeerError 406: the queue would refuse a part; EngineError."""
        head = {"messages": bound.messages, "bytes": bound.size, "last": bound.last}
        here = self._queues.get(bound.queue)
        if here is not None:
            admits = _admits(here.served, head)
        else:
            answer = await self._ask(bound.queue, "transactions.admits", head)
            admits = answer is None or bool(answer[0].get("admits"))
        if not admits:
            raise PeerError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")

    async def _apply(
        self, transaction: bytes, queue: bytes, row: TransactionRow, changes: Changes, before: QueueTransactions | None
    ) -> None:
        """Until the queue's owner has it in the queue, or the queue is deleted. Args: before: of the queue, before it was decided."""
        while True:
            here = self._queues.get(queue)
            try:
                if here is None:
                    await self._ask(queue, "transactions.apply", {"transaction": transaction.decode()})
                elif here is before:
                    before = None  # what is read from now on may be over
                    await here.apply(transaction, (row, changes.parts), ends_here=bool(changes.ends))
                else:
                    await here.apply(transaction)
                return
            except (EngineError, Lost) as error:
                log.debug("a transaction waits for the owner of a shared queue: %s", error)
            await asyncio.sleep(self._limits.shared_pause_ms / 1000)

    def ended(self, transaction: bytes, queues: list[bytes]) -> None:
        """The deliveries that end with it have ended on this node."""
        for queue in queues:
            here = self._queues.get(queue)
            if here is not None:
                here.ended(transaction)

    # --- other nodes ----------------------------------------------------------------------------------------------------

    async def _ask(self, queue: bytes, name: str, head: dict[str, Any]) -> Answer | None:
        """The answer of the node that serves a queue; None: it is deleted. Raises: EngineError."""
        (value,) = await self.engine.get([owner_key(queue)])
        if value is None:
            if self._is_deleted(queue):
                return None
            raise Unavailable("a shared queue has no owner")
        owner = Owner.unpack(value)
        if self.others is None or owner.node == self.me.name:
            raise Unavailable(f"a shared queue is being taken over, or node {owner.node!r} serves it, which can't be asked")
        self._begin_looks()
        return await self.others.ask(owner, name, {"queue": queue.decode(), **head})

    def answers(self) -> dict[str, Answerer]:
        """By the names of the requests. Each raises EngineError, or KeyError, TypeError, ValueError: the head is none."""
        return {
            "transactions.apply": self._answer_apply,
            "transactions.over": self._answer_over,
            "transactions.admits": self._answer_admits,
        }

    def _served(self, head: dict[str, Any]) -> QueueTransactions:
        here = self._queues.get(head["queue"].encode())
        if here is None:
            raise Unavailable("the queue is not served here")
        return here

    async def _answer_apply(self, head: dict[str, Any], payload: bytes) -> Answer:
        try:
            await self._served(head).apply(head["transaction"].encode())
        except Lost as error:
            raise Unavailable(str(error)) from None
        return {}, b""

    async def _answer_over(self, head: dict[str, Any], payload: bytes) -> Answer:
        here = self._served(head)
        return {"over": [one for one in head["transactions"] if here.is_over(one.encode())]}, b""

    async def _answer_admits(self, head: dict[str, Any], payload: bytes) -> Answer:
        return {"admits": _admits(self._served(head).served, head)}, b""

    # --- rows of transactions -------------------------------------------------------------------------------------------

    def _begin_looks(self) -> None:
        if not self._looking:
            self._looking = True
            self._start(self._look_on())

    async def _look_on(self) -> None:
        rounds = max(1, self._limits.shared_transactions_sweep_ms // self._limits.shared_transactions_look_ms)
        number = 0
        while True:
            await asyncio.sleep(self._limits.shared_transactions_look_ms / 1000)
            await self._quietly(self.look)
            number += 1
            if (number - 1) % rounds == 0:  # the first one soon: of a node that starts again
                await self._quietly(self.sweep)

    @staticmethod
    async def _quietly(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except EngineError as error:
            log.debug("rows of transactions wait: %s", error)
        except Exception as error:
            caught("shared queues", "rows of transactions", error)

    async def look(self) -> None:
        """Deletes the rows of this node's transactions that are over on all queues, or were given up. Raises: EngineError."""
        for transaction, row in list(self._given_up.items()):
            await self._undo(transaction, row)
            del self._given_up[transaction]
            self._own.discard(transaction)
        by_queue: dict[bytes, list[bytes]] = {}
        for transaction, (_, queues) in self._applied.items():
            for queue in queues:
                by_queue.setdefault(queue, []).append(transaction)
        for queue, names in by_queue.items():
            for transaction in await self._over(queue, names):
                self._applied[transaction][1].discard(queue)
        over = {transaction: row for transaction, (row, queues) in self._applied.items() if not queues}
        await self._delete({transaction_key(transaction): row.pack() for transaction, row in over.items()})
        for transaction in over:
            del self._applied[transaction]
            self._own.discard(transaction)

    async def _undo(self, transaction: bytes, row: TransactionRow) -> None:
        await self.deciding.undo(transaction, [queue.encode() for queue in row.queues], row.pack())

    async def _over(self, queue: bytes, names: list[bytes]) -> list[bytes]:
        """Those of the transactions of which a queue, to which they were applied, has no rows; an owner that can't be asked has some."""
        here = self._queues.get(queue)
        if here is not None:
            return [one for one in names if here.is_over(one)]
        try:
            answer = await self._ask(queue, "transactions.over", {"transactions": [one.decode() for one in names[:_ROWS_AT_ONCE]]})
        except EngineError:
            return []
        if answer is None:
            return names
        over = {str(one).encode() for one in answer[0].get("over", ())}
        return [one for one in names if one in over]

    async def _delete(self, rows: Mapping[bytes, bytes]) -> None:
        """Rows, each of which compares."""
        most = max(1, self.engine.limits.commit_rows // 2 - 1)
        keys = list(rows)
        for begin in range(0, len(keys), most):
            some = keys[begin : begin + most]
            if not await self.engine.commit(Commit([(key, rows[key]) for key in some], deletes=some)):
                for key in some:  # one of them was deleted before
                    await self.engine.commit(Commit([(key, rows[key])], deletes=[key]))

    async def sweep(self) -> None:
        """Goes on with transactions of nodes that are gone. Any node, now and then. O(their number). Raises: EngineError."""
        begin, end = transactions()
        there: set[bytes] = set()
        while rows := await self.engine.scan(begin, end, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            for key, value in rows:
                there.add(transaction_of(key))
                try:
                    await self._look_at(transaction_of(key), TransactionRow.unpack(value))
                except ValueError as error:
                    log.warning("%s", error)
            begin = rows[-1][0] + b"\0"

        self._stages = {one: seen for one, seen in self._stages.items() if one in there}

    async def _look_at(self, transaction: bytes, row: TransactionRow) -> None:
        is_mine = (row.node, row.life) == (self.me.name, self.me.life)
        if row.stage is not None and not row.is_decided:
            await self._look_at_stage(transaction, row)
        elif (transaction not in self._own and transaction not in self._applied) if is_mine else self.is_gone(row.node, row.life):
            await self._go_on(transaction, row)

    async def _look_at_stage(self, transaction: bytes, row: TransactionRow) -> None:
        """Rolls back a stage that was left behind. Raises: EngineError; ValueError."""
        now_s = asyncio.get_running_loop().time()
        is_mine = (row.node, row.life) == (self.me.name, self.me.life)
        if (row.stage or {}).get("state") == OPEN:
            is_old = transaction not in self.writing if is_mine else self.is_gone(row.node, row.life)
        else:
            known, since_s = self._stages.get(transaction, (row, now_s))
            since_s = since_s if known == row else now_s
            self._stages[transaction] = row, since_s
            is_old = now_s - since_s > self._limits.stage_prepared_s
        if await self.scopes.is_left(transaction, row, is_old):
            log.info("a stage of scope %s on shared queues was left behind: it is rolled back", (row.stage or {}).get("scope"))
            await self.scopes.undo(transaction, row)
            self._stages.pop(transaction, None)

    async def _go_on(self, transaction: bytes, row: TransactionRow) -> None:
        """Nobody else sees to it."""
        if not row.is_decided:
            await self._undo(transaction, row)
            return
        for name in row.queues:
            queue = name.encode()
            here = self._queues.get(queue)
            try:
                if here is not None:
                    await here.apply(transaction)
                else:
                    await self._ask(queue, "transactions.apply", {"transaction": transaction.decode()})
            except (EngineError, Lost):
                return  # the next round
        over = [name for name in row.queues if await self._over(name.encode(), [transaction])]
        if over == row.queues:
            await self._delete({transaction_key(transaction): row.pack()})

    # --- tasks ----------------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._caught(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _caught(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            caught("shared queues", "a transaction", error)

    def close(self) -> None:
        """The node stops: what is decided others do."""
        for task in list(self._tasks):
            task.cancel()
        for queue in list(self._queues):
            self.lost(queue)


def _admits(served: Served, head: Mapping[str, Any]) -> bool:
    """Whether a queue takes so many messages more. Raises: KeyError, TypeError, ValueError."""
    messages, size, last = int(head["messages"]), int(head["bytes"]), int(head["last"])
    return not served.core.refuses(last, messages - 1, size - last)


def _refusal(error: Exception) -> PeerError:
    """What a client is told of an error."""
    if isinstance(error, PeerError):
        return error
    if isinstance(error, Moved):
        return PeerError(ReplyCode.INTERNAL_ERROR, "a shared queue moved, and messages that the transaction acknowledges go to others")
    if not isinstance(error, EngineError):
        log.error("internal error: a transaction on shared queues failed", exc_info=error)
    reason = "has no room" if isinstance(error, Full) else "does not answer"
    return PeerError(ReplyCode.INTERNAL_ERROR, f"the transaction is not committed: the engine of shared queues {reason}")

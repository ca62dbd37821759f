"""The seed's staged dequeue, with leases: who can't take the head leaves a request, and anybody fulfils requests, many in one commit.

in: takers of one queue on many nodes. out: leases.

D1  A waiter is never overtaken: while requests wait, everybody leaves one.
D2  What a request is given is a lease of its node, and its row says which: a waiter that dies loses nothing (the original hands
    over the value, and loses it).
D3  A fulfilment declares the requests and messages that it pairs and nothing else: enqueues and new requests never abort it.
"""

from __future__ import annotations

import secrets

from flintmq.config import Limits
from flintmq.kv.engine import Conflict, Engine, Transaction, Unavailable, UnknownOutcome
from flintmq.shared.keys import Counts, QueueKeys, after, owner_row, unpack
from flintmq.shared.queue import ALIVE, RELAXED, Pause, SharedQueue, Taken, _taken

_INDEX = 8
_REQUEST = 16
# requests, and messages, of one fulfilment
FULFIL_AT_ONCE = 100
# milliseconds for which a waiter looks for its answer
_PATIENCE_MS = 60_000


class StagedQueue(SharedQueue):
    """A SharedQueue whose `take_staged` is the staged dequeue."""

    def __init__(self, engine: Engine, keys: QueueKeys, owner: bytes, limits: Limits, order: str = RELAXED) -> None:
        super().__init__(engine, keys, owner, limits, order)

    def take_staged(self, count: int) -> list[Taken]:
        """Leases up to `count` messages. Empty: at some moment of the call nothing was ready.

        Raises: Fenced, QueueGone, EngineError.
        """
        request = secrets.token_bytes(_REQUEST)
        taken = self._at_once(count)
        if taken is not None:
            return taken
        self._leave(request, count)
        pause = Pause(self._limits, _PATIENCE_MS)
        while True:
            while not self._fulfil():
                pass
            answer = self._answer(request)
            if answer is not None:
                self.note_taken(answer)
                return answer
            try:
                pause.wait(Conflict("a request waits"))
            except Unavailable:
                self._withdraw(request)
                raise

    def _at_once(self, count: int) -> list[Taken] | None:
        """None: others wait, or another one was faster."""

        def body(transaction: Transaction) -> list[Taken] | None:
            self._declare(transaction)
            if transaction.range(self.keys.waiters, after(self.keys.waiters), 1, snapshot=True):
                return None
            taken = self._lease_head(transaction, count, self._limits.shared_batch_bytes, self.owner)
            if taken:
                self._count(transaction, Counts(leased=len(taken), leased_bytes=sum(one.meta.size for one in taken)))
                transaction.set(self.keys.request(self.owner), number)
            return taken

        self._number += 1
        number = self._number.to_bytes(8, "big")
        transaction = self.engine.begin()
        try:
            taken = body(transaction)
            transaction.commit()
        except Conflict:
            self.conflicts += 1
            return None
        except UnknownOutcome as error:
            if not self._happened(number, Pause(self._limits, _PATIENCE_MS), error):
                return None
        finally:
            transaction.close()
        if taken is not None:
            self.note_taken(taken)
        return taken

    def _leave(self, request: bytes, count: int) -> None:
        def body(transaction: Transaction) -> tuple[None, bool]:
            waiters = self.keys.waiters
            last = transaction.range(waiters, after(waiters), 1, reverse=True, snapshot=True)
            index = int.from_bytes(last[0][0][len(waiters) : len(waiters) + _INDEX], "big") + 1 if last else 1
            transaction.set(waiters + index.to_bytes(_INDEX, "big") + request, self.owner + count.to_bytes(4, "big"))
            transaction.set(self._place_of(request), index.to_bytes(_INDEX, "big"))
            return None, True

        self.run(body)

    def _withdraw(self, request: bytes) -> None:
        """Nobody waits any more: the request goes; what it was given meanwhile goes back."""

        def body(transaction: Transaction) -> tuple[None, bool]:
            index = transaction.get(self._place_of(request))
            if index is None:
                return None, False
            transaction.clear(self._place_of(request))
            transaction.clear(self.keys.waiters + index + request)
            return None, True

        self.run(body)
        answer = self._answer(request)
        if answer:
            self.note_taken(answer)
            self.give_back([(one, False) for one in answer])

    def _place_of(self, request: bytes) -> bytes:
        """The row that says where a request waits; it goes when the request is answered."""
        return self.keys.result(request) + b"p"

    def _answer_of(self, request: bytes) -> bytes:
        return self.keys.result(request) + b"a"

    def _fulfil(self) -> bool:
        """Pairs waiting requests with messages. True: all of them were looked at, or somebody else does it."""

        at_once = max(1, min(FULFIL_AT_ONCE, self.engine.limits.transaction_writes // 6))

        def body(transaction: Transaction) -> bool:
            waiters, ready = self.keys.waiters, self.keys.ready
            waiting = transaction.range(waiters, after(waiters), at_once, snapshot=True)
            rows = transaction.range(ready, after(ready), at_once, snapshot=True) if waiting else []
            index = 0
            for key, value in waiting:
                if index >= len(rows) and len(rows) == at_once:
                    return False  # there may be more than was read
                request = key[len(waiters) + _INDEX :]
                owner, count = value[:-4], int.from_bytes(value[-4:], "big")
                transaction.require(key)
                transaction.clear(key)
                transaction.clear(self._place_of(request))
                if transaction.get(owner_row(owner, b"e")) != ALIVE:
                    continue  # its node is gone, and nobody asks for the answer
                given = rows[index : index + count]
                index += len(given)
                for message, content in given:
                    transaction.require(message)
                    transaction.clear(message)
                    transaction.set(self.keys.leases(owner) + message[len(ready) :], content)
                orders = [message[len(ready) :] for message, _ in given]
                transaction.set(self._answer_of(request), b"".join(bytes([len(order)]) + order for order in orders))
            return len(waiting) < at_once

        transaction = self.engine.begin()
        try:
            done = body(transaction)
            transaction.commit()
            return done
        except (Conflict, UnknownOutcome):
            return True
        finally:
            transaction.close()

    def _answer(self, request: bytes) -> list[Taken] | None:
        """What the request was given; None: it waits."""

        def body(transaction: Transaction) -> tuple[list[Taken] | None, bool]:
            value = transaction.get(self._answer_of(request))
            if value is None:
                return None, False
            transaction.clear(self._answer_of(request))
            leases = self.keys.leases(self.owner)
            taken: list[Taken] = []
            while value:
                order, value = value[1 : 1 + value[0]], value[1 + value[0] :]
                row = transaction.get(leases + order)
                if row is not None:
                    taken.append(_taken(order, *unpack(row)))
            self._count(transaction, Counts(leased=len(taken), leased_bytes=sum(one.meta.size for one in taken)))
            return taken, True

        return self.run(body)

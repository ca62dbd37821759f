"""Histories of a shared queue with one owner at a time, on an engine that loses answers, applies commits late and is away now and then.

in: a seed. out: a verdict on the operations of a window: of clients that publish, get, settle and give back, or of one subscription that
reads sets.

W2  Owners die, are replaced without knowing it, and hand the queue over.
W3  An owner that was replaced gives nothing any more (R11), and what waits there may be confirmed for a while.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

from flintmq.engines.engine import EngineError
from flintmq.errors import FlintError
from flintmq.shared.batch_rows import SealedSet, Subscription
from flintmq.shared.batches import Asked
from flintmq.shared.queue_log import Lost
from tests.shared.owners_of_one_queue import LIMITS as NO_PAUSES
from tests.shared.owners_of_one_queue import QUEUE, OwnerNode, Store
from tools.linearizability.checker import UNKNOWN, Verdict, check
from tools.linearizability.code import TODAY, Code
from tools.linearizability.models import OwnedQueueModel, SetsModel
from tools.linearizability.recorder import BACKLOG, Recorder, run_quickly

# with pauses, or a task that looks again and again would keep the time of the loop from going on
LIMITS = NO_PAUSES.replace(shared_pause_ms=1, shared_pause_ms_max=4)
CLIENTS = 4
_SHARE = 0.12
# seconds between two looks at what the engine has; they take no time
_LOOK_S = 0.001
# looks until a confirm that does not come is given up at an owner that is none any more
_LOOKS = 50
# messages of a set
_SET = 4


class _Away(FlintError):
    """The owner can't be asked."""


class _Owned:
    """A queue, its owners one after the other, and publishers."""

    def __init__(self, seed: int, code: Code) -> None:
        self.code = code
        self.random = random.Random(seed)
        self.recorder = Recorder()
        self.store = Store(seed)
        self.store.faults.share = _SHARE
        self.node: Any = None
        self.nodes: list[Any] = []
        self.is_open = True  # whether there is an owner that serves
        self.publishing = 0

    async def begin(self) -> None:
        """Takes the queue over, by a new node."""
        self.node = await OwnerNode(self.store, f"n{len(self.nodes)}", LIMITS, code=self.code).take_over()
        self.nodes.append(self.node)

    async def end(self) -> None:
        """No task of an owner is left."""
        for node in self.nodes:
            node.kill()
        await asyncio.sleep(_LOOKS * _LOOK_S)

    async def opened(self) -> Any:
        """The owner that serves."""
        while not self.is_open:
            await asyncio.sleep(_LOOK_S)
        return self.node

    async def publish(self, client: int) -> None:
        node = await self.opened()
        message, called = self.recorder.next_id(), self.recorder.now()
        self.publishing += 1
        position = node.publish(b"%d" % message + b" " * self.random.choice((0, 0, 300)))
        looks = 0
        while not node.mirror.is_settled(position) and node.lost is None and looks < _LOOKS:
            looks += node is not self.node
            await asyncio.sleep(_LOOK_S)
        self.publishing -= 1
        is_confirmed = node.lost is None and node.mirror.is_settled(position)
        self.recorder.note(client, "enqueue", (message,), None if is_confirmed else UNKNOWN, called)

    async def replace(self) -> None:
        """Another owner, in one of three ways."""
        way = self.random.choice(("kill", "replace", "hand over"))
        self.is_open = False
        if way == "hand over" and await self._handed_over():
            return
        called = self.recorder.now()
        if way == "kill":
            self.node.kill()
        await self.begin()
        await self.restored()
        self.note_take_over(called)
        self.is_open = True

    async def _handed_over(self) -> bool:
        self.before_hand_over()
        while self.publishing and self.node.lost is None:
            await asyncio.sleep(_LOOK_S)
        called = self.recorder.now()
        try:
            await self.node.drain()
            name = f"n{len(self.nodes)}"
            await self.node.log.hand_over(name, name)
        except (Lost, EngineError):
            return False
        await self.begin()
        await self.restored()
        self.note_hand_over(called)
        self.is_open = True
        return True

    def before_hand_over(self) -> None:
        """What clients hold goes back."""

    async def restored(self) -> None:
        """The new owner is there."""

    def note_take_over(self, called: int) -> None:
        """Where changes of owners are operations."""

    def note_hand_over(self, called: int) -> None:
        """Where changes of owners are operations."""

    async def replace_now_and_then(self) -> None:
        while not self.recorder.is_over:
            until = len(self.recorder.operations) + self.random.randint(10, 50)
            while len(self.recorder.operations) < until and not self.recorder.is_over:
                await asyncio.sleep(_LOOK_S)
            await self.replace()


class _Gets(_Owned):
    """With clients that get, settle and give back."""

    def __init__(self, seed: int, code: Code) -> None:
        super().__init__(seed, code)
        self.held: dict[int, int] = {}  # id -> position

    async def work(self, client: int) -> None:
        """Until the window is full."""
        while not self.recorder.is_over:
            await asyncio.sleep(_LOOK_S)
            draw = self.random.random()
            if draw < 0.4 and self.recorder.backlog() < BACKLOG:
                await self.publish(client)
            elif draw < 0.7 and self.held and self.is_open:
                message = self.random.choice(sorted(self.held))
                if self.random.random() < 0.7:
                    self.settle(client, message)
                else:
                    self.give_back(client, message, self.random.random() < 0.7)
            else:
                await self.get(client)

    async def get(self, client: int) -> int:
        """The message; 0: there is none, or no owner that could give it."""
        node, called = await self.opened(), self.recorder.now()
        try:
            await node.log.open()
        except (Lost, EngineError):
            return 0
        if node is not self.node or not self.is_open:
            return 0
        position = node.handle.next_available(1)
        if not position:
            self.recorder.note(client, "take", (), (), called)
            return 0
        message, flagged = int(node.handle.message_at(position)[3]), node.handle.is_redelivered(position)
        assert node.handle.hold(position)
        self.held[message] = position
        self.recorder.note(client, "take", (), ((message, bool(flagged)),), called)
        return message

    def settle(self, client: int, message: int) -> None:
        called = self.recorder.now()
        assert self.node.handle.settle_held(self.held.pop(message), logged=False)
        self.node.look()
        self.recorder.note(client, "settle", (message,), None, called)

    def give_back(self, client: int, message: int, delivered: bool) -> None:
        called = self.recorder.now()
        assert self.node.handle.release_held(self.held.pop(message), delivered=delivered)
        self.node.look()
        self.recorder.note(client, "give_back", (message, delivered), None, called)

    def before_hand_over(self) -> None:
        for message in sorted(self.held):
            self.give_back(CLIENTS, message, True)

    def note_take_over(self, called: int) -> None:
        self.held.clear()
        self.recorder.note(CLIENTS, "take_over", (), None, called)

    def note_hand_over(self, called: int) -> None:
        self.recorder.note(CLIENTS, "hand_over", (), None, called)

    async def story(self) -> Verdict:
        await self.begin()
        async with asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(self.work(client))
            group.create_task(self.replace_now_and_then())
        self.store.faults.share = 0.0
        await self.replace()
        while message := await self.get(CLIENTS):
            self.settle(CLIENTS, message)
        await self.end()
        return check(OwnedQueueModel(self.recorder.operations), self.recorder.operations)


class _Sets(_Owned):
    """With one subscription, which reads sets, commits some and gives others back."""

    def __init__(self, seed: int, code: Code) -> None:
        super().__init__(seed, code)
        self.sets: Any = None
        self.subscriptions = code.Subscriptions(self.store.engine(), self, LIMITS, lambda: 1_000)

    async def restored(self) -> None:
        sets = self.code.QueueSets(self.node.engine, QUEUE, self.node.handle, self.node.mirror, self.node.log, LIMITS)
        while True:
            try:
                await sets.restore()
                break
            except EngineError:
                await asyncio.sleep(_LOOK_S)
        self.sets = sets

    # --- calls to the owner (OwnerCalls) ----------------------------------------------------------------------------

    async def take(self, queue: str, asked: Asked) -> tuple[int, int]:
        return await self._ask("take", asked)  # type: ignore[no-any-return]

    async def settle(self, queue: str, subscription: bytes) -> bool:
        return await self._ask("settle", subscription)  # type: ignore[no-any-return]

    async def _ask(self, call: str, *arguments: Any) -> Any:
        """An answer may be lost, and a call go to an owner of before."""
        await self.opened()
        try:
            answer = await getattr(self.sets, call)(*arguments)
        except Lost as error:
            raise _Away(str(error)) from error
        if self.random.random() < self.store.faults.share:
            raise _Away("the answer was lost")
        return answer

    # --- the reader -------------------------------------------------------------------------------------------------

    async def _insist(self, call: Any) -> Any:
        while True:
            try:
                return await call()
            except FlintError:
                await asyncio.sleep(_LOOK_S)

    async def _read(self, identity: bytes, sealed: SealedSet) -> tuple[int, ...]:
        ids: list[int] = []
        while len(ids) < sealed.count:
            entries = await self._insist(partial(self._ask, "read", identity, (sealed.seq, sealed.round), len(ids), 2, 1 << 20))
            ids += [int(entry.content.body()) for entry in entries]
        return tuple(ids)

    async def _plan(self, identity: bytes, epoch: int, number: int) -> tuple[int, ...]:
        called = self.recorder.now()
        sealed = await self._insist(lambda: self.subscriptions.plan(identity, epoch, number, _SET, 1 << 20))
        ids = () if sealed is None else await self._read(identity, sealed)
        self.recorder.note(CLIENTS, "plan", (number,), ids, called)
        return ids

    async def read_on(self, identity: bytes, is_over: Any) -> None:
        """Sets, one after the other."""
        subscription = await self._insist(lambda: self.subscriptions.load(identity))
        while not is_over():
            await asyncio.sleep(_LOOK_S)
            epoch, number = subscription.epoch, subscription.committed + 1
            if not await self._plan(identity, epoch, number):
                continue
            if self.random.random() < 0.3:
                assert await self._plan(identity, epoch, number)
            called = self.recorder.now()
            kind = "commit" if self.random.random() < 0.7 else "reset"
            if kind == "commit":
                subscription = await self._insist(partial(self.subscriptions.commit, identity, epoch, number))
            else:
                subscription = await self._insist(partial(self.subscriptions.reset, identity, number, False))
            self.recorder.note(CLIENTS, kind, (number,), None, called)

    async def story(self) -> Verdict:
        await self.begin()
        await self.restored()
        made = Subscription("/", "s", "user", "1", (QUEUE.decode(),), 0)
        self.store.faults.share = 0.0  # whoever does not hear of its name finds the name taken
        identity = await self.subscriptions.create(made)
        self.store.faults.share = _SHARE
        async with asyncio.TaskGroup() as group:
            group.create_task(self.replace_now_and_then())
            group.create_task(self.read_on(identity, lambda: self.recorder.is_over))
            for client in range(2):
                group.create_task(self._publish_on(client))
        self.store.faults.share = 0.0
        await self.replace()
        subscription = await self.subscriptions.load(identity)
        number = subscription.committed + 1
        while await self._plan(identity, subscription.epoch, number):
            called = self.recorder.now()
            await self._insist(partial(self.subscriptions.commit, identity, subscription.epoch, number))
            self.recorder.note(CLIENTS, "commit", (number,), None, called)
            number += 1
        assert self.node.handle.ready_count() == 0
        await self.end()
        return check(SetsModel(self.recorder.operations), self.recorder.operations)

    async def _publish_on(self, client: int) -> None:
        while not self.recorder.is_over:
            planned = sum(len(one.outcome) for one in self.recorder.operations if one.kind == "plan")
            enqueued = sum(one.kind == "enqueue" for one in self.recorder.operations)
            if enqueued - planned < BACKLOG:
                await self.publish(client)
            else:
                await asyncio.sleep(_LOOK_S)


def gets(seed: int, code: Code = TODAY) -> Verdict:
    """One window of clients that publish, get, settle and give back."""
    verdict: Verdict = run_quickly(lambda: _Gets(seed, code).story())
    return verdict


def sets(seed: int, code: Code = TODAY) -> Verdict:
    """One window of a subscription that reads sets."""
    verdict: Verdict = run_quickly(lambda: _Sets(seed, code).story())
    return verdict

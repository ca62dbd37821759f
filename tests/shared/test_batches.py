"""Sets of subscriptions on shared queues: each message is in one committed set, or still in its queue, whatever fails in between."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from flintmq.config import Limits
from flintmq.engines.engine import Commit, EngineError, Full, Unavailable
from flintmq.errors import FlintError
from flintmq.mirror.mirror import Mirror
from flintmq.shared.batch_rows import SealedSet, Subscription, part_row_key, subscription_key, subscription_rows
from flintmq.shared.batches import Asked, QueueSets, Refusal, Subscriptions, Why
from flintmq.shared.layout import new_id
from flintmq.shared.queue_log import Lost
from tests.shared.owners_of_one_queue import ACK, LIMITS, OwnerNode, Store
from tests.twins.faulty_engine import Fate

Bodies = dict[str, list[bytes]]
EMPTY_HEADER = b"\0" * 14


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


class Away(FlintError):
    """The owner can't be asked."""


class Served:
    """One queue, and whoever owns it."""

    def __init__(self, store: Store, limits: Limits, levels: int) -> None:
        self.store = store
        self.limits = limits
        self.levels = levels
        self.key = new_id()
        self.count = 0
        self.settled: list[tuple[int, bytes]] = []

    async def take_over(self) -> None:
        """By a new node. The one before is left as it is: it may not know yet."""
        self.count += 1
        node = OwnerNode(self.store, f"node{self.count}", self.limits, self.levels, self.key)
        await node.take_over()
        assert node.log is not None
        self.node = node
        self.sets = QueueSets(node.engine, self.key, node.handle, node.mirror, node.log, self.limits)
        while True:
            try:
                await self.sets.restore()
                return
            except EngineError:
                await asyncio.sleep(0)

    def rest(self) -> list[bytes]:
        """Messages that are available, which end."""
        bodies = []
        while (message := self.node.handle.take_head(ACK)) is not None:
            bodies.append(message[3])
        return bodies


class World:
    """Queues, their owners, and subscriptions on them. Args: share: of calls to owners that fail, before or after they were done."""

    def __init__(self, queues: int = 1, seed: int = 1, share: float = 0.0, levels: int = 1, value_bytes: int = 1 << 20) -> None:
        self.store = Store(seed, value_bytes)
        self.limits = LIMITS.replace(shared_subscriptions_max=3, shared_set_queues_max=4)
        self.random = random.Random(seed)
        self.share = share
        served = [Served(self.store, self.limits, levels) for _ in range(queues)]
        self.queues = {one.key.decode(): one for one in served}
        self.former: list[tuple[str, QueueSets]] = []
        self.subscriptions = self.client()
        self.made = Subscription("/", "s", "user", "1", tuple(self.queues), 0)

    def client(self) -> Subscriptions:
        return Subscriptions(self.store.engine(), self, self.limits, lambda: 1_000)

    async def start(self) -> bytes:
        for one in self.queues.values():
            await one.take_over()
        identity = await self.subscriptions.create(self.made)
        assert identity is not None
        return identity

    async def move(self, queue: str, kill: bool = True) -> None:
        served = self.queues[queue]
        if kill:
            served.node.kill()
        self.former.append((queue, served.sets))
        await served.take_over()

    # --- OwnerCalls -----------------------------------------------------------------------------------------------------
    async def take(self, queue: str, asked: Asked) -> tuple[int, int]:
        return await self.ask(queue, lambda sets: sets.take(asked))

    async def settle(self, queue: str, subscription: bytes) -> bool:
        return await self.ask(queue, lambda sets: sets.settle(subscription))

    async def ask(self, queue: str, call: Callable[[QueueSets], Coroutine[Any, Any, Any]]) -> Any:
        if self.random.random() < self.share:
            raise Away("before")
        sets = self.queues[queue].sets
        stale = [one for name, one in self.former if name == queue]
        if stale and self.random.random() < self.share:
            sets = self.random.choice(stale)
        work = asyncio.create_task(call(sets))
        if self.random.random() < self.share:  # the caller is gone at some moment
            for _ in range(self.random.randint(0, 30)):
                await asyncio.sleep(0)
            work.cancel()
        try:
            answer = await work
        except (Lost, asyncio.CancelledError) as error:
            raise Away(str(error)) from error
        if self.random.random() < self.share:
            raise Away("after")
        return answer

    # --- what readers do --------------------------------------------------------------------------------------------------
    async def read(self, identity: bytes, sealed: SealedSet) -> Bodies:
        bodies: Bodies = {}
        for queue, (count, size) in sealed.parts.items():
            texts: list[bytes] = []
            while len(texts) < count:
                number = (sealed.seq, sealed.round)
                entries = await self.ask(queue, lambda sets: sets.read(identity, number, len(texts), 3, 1 << 20))  # noqa: B023
                assert entries
                for entry in entries:
                    assert entry.content is not None
                    texts.append(entry.content.body())
            assert sum(map(len, texts)) == size
            bodies[queue] = texts
        return bodies

    def publish(self, queue: str, body: bytes, priority: int = 0) -> int:
        return self.queues[queue].node.publish(body, priority)

    async def fill(self, queue: str, bodies: list[bytes]) -> None:
        for body in bodies:
            self.publish(queue, body)
        await self.queues[queue].node.drain()

    def part_rows(self, identity: bytes) -> int:
        return sum(part_row_key(one.key, identity) in self.store.rows for one in self.queues.values())


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def scene(test: Callable[[World, bytes, str], Coroutine[Any, Any, None]], **options: Any) -> None:
    """With one queue, unless options say more, and a subscription that was opened once."""

    async def whole() -> None:
        world = World(**options)
        identity = await world.start()
        await test(world, identity, next(iter(world.queues)))

    run(whole)


# --- sets ---------------------------------------------------------------------------------------------------------------
def test_committed_messages_end_and_their_rows_go() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 20))
        sealed = await world.subscriptions.plan(identity, 1, 1, 12, 1 << 20)
        assert sealed is not None and sealed.count == 12
        assert (await world.read(identity, sealed))[queue] == numbered(0, 12)
        assert (await world.subscriptions.commit(identity, 1, 1)).committed == 1
        assert world.part_rows(identity) == 0
        assert world.queues[queue].node.mirror.ended_rows == 0, "the ends are in the engine before the row goes"
        await world.move(queue)
        assert world.queues[queue].rest() == numbered(12, 20)

    scene(test)


def test_a_set_that_is_asked_for_again_has_the_same_messages_in_the_same_order_also_at_the_next_owner() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 10))
        first = await world.subscriptions.plan(identity, 1, 1, 5, 1 << 20)
        assert first is not None
        before = await world.read(identity, first)
        await world.fill(queue, numbered(10, 20))
        await world.move(queue)
        again = await world.client().plan(identity, 1, 1, 100, 1 << 20)
        assert again == first
        assert await world.read(identity, first) == before == {queue: numbered(0, 5)}
        assert world.queues[queue].rest() == numbered(5, 20), "others do not get what the set has"

    scene(test)


def test_a_set_is_in_the_order_in_which_its_queue_serves() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        for priority in (0, 255, 128, 127, 255):
            world.publish(queue, b"%d" % priority, priority)
        await world.queues[queue].node.drain()
        sealed = await world.subscriptions.plan(identity, 1, 1, 4, 1 << 20)
        assert sealed is not None
        assert (await world.read(identity, sealed))[queue] == [b"255", b"255", b"128", b"127"]

    scene(test, levels=256)


def test_messages_that_left_memory_are_read_from_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnerNode, "hot_bytes", 1)

    async def test(world: World, identity: bytes, queue: str) -> None:
        bodies = [b"%d" % number * 100 for number in range(30)]
        await world.fill(queue, bodies)
        assert world.queues[queue].node.handle.cold_count > 0
        sealed = await world.subscriptions.plan(identity, 1, 1, 25, 1 << 20)
        assert sealed is not None
        assert (await world.read(identity, sealed))[queue] == bodies[:25]
        await world.move(queue)
        assert (await world.read(identity, sealed))[queue] == bodies[:25]
        await world.subscriptions.commit(identity, 1, 1)
        await world.move(queue)
        assert world.queues[queue].node.restored == 5

    scene(test)


def test_messages_whose_rows_are_not_in_the_engine_wait_for_a_later_set() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        released = asyncio.Event()

        async def gate(call: str) -> None:
            if call == "commit":
                await released.wait()

        world.store.faults.gate = gate
        world.publish(queue, b"new")
        assert await world.subscriptions.plan(identity, 1, 1, 5, 1 << 20) is None
        released.set()
        await world.queues[queue].node.drain()
        assert await world.subscriptions.plan(identity, 1, 1, 5, 1 << 20) is not None

    scene(test)


def test_a_set_ends_at_its_bytes_and_has_one_message_of_any_size() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, [b"x" * 100, b"y" * 60, b"z" * 60])
        sizes = []
        for seq in (1, 2):
            sealed = await world.subscriptions.plan(identity, 1, seq, 100, 90)
            assert sealed is not None
            sizes.append(sealed.size)
            await world.subscriptions.commit(identity, 1, seq)
        assert sizes == [100, 60]

    scene(test)


def test_expired_messages_are_the_queue_s_own() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        node = world.queues[queue].node
        node.handle.publish(b"", b"q", EMPTY_HEADER, b"old", 17, 0, 999)
        node.look()
        await world.fill(queue, [b"young"])
        sealed = await world.subscriptions.plan(identity, 1, 1, 5, 1 << 20)
        assert sealed is not None
        assert (await world.read(identity, sealed))[queue] == [b"young"]

    scene(test)


def test_a_row_has_as_many_runs_as_it_has_room_for() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        bodies = numbered(0, 200)
        await world.fill(queue, bodies)
        node = world.queues[queue].node
        for position in range(2, 201, 2):
            assert node.handle.take_at(position, 7)  # of a consumer
        sealed = await world.subscriptions.plan(identity, 1, 1, 200, 1 << 20)
        assert sealed is not None
        assert sealed.count == (1_000 - 25) // 12
        assert (await world.read(identity, sealed))[queue] == bodies[0 : 2 * sealed.count : 2]

    scene(test, value_bytes=1_000)


def test_a_queue_that_can_not_be_asked_is_left_out_and_what_it_held_for_the_set_goes_back() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        other = next(name for name in world.queues if name != queue)
        await world.fill(queue, numbered(0, 3))
        await world.fill(other, numbered(3, 6))
        take = world.take

        async def half(name: str, asked: Asked) -> tuple[int, int]:
            answer = await take(name, asked)
            if name == other:
                raise Away("after")
            return answer

        world.take = half  # type: ignore[method-assign]
        sealed = await world.subscriptions.plan(identity, 1, 1, 100, 1 << 20)
        assert sealed is not None and set(sealed.parts) == {queue}
        world.take = take  # type: ignore[method-assign]
        await world.subscriptions.commit(identity, 1, 1)
        assert world.part_rows(identity) == 0
        second = await world.subscriptions.plan(identity, 1, 2, 100, 1 << 20)
        assert second is not None
        assert await world.read(identity, second) == {other: numbered(3, 6)}

    scene(test, queues=2)


def test_a_commit_of_the_engine_that_comes_late_brings_no_part_back() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 6))
        faults = world.store.faults
        faults.is_due = lambda: False  # type: ignore[method-assign]
        faults.script.extend([Fate.DONE, Fate.DONE, Fate.LATER])  # reads of the subscription, then the part's row
        with pytest.raises(EngineError):
            await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        assert len(faults.late) == 1
        assert world.queues[queue].node.handle.next_available(0) == 4, "it may come, so nobody else gets its messages"
        assert await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20) is not None
        await world.subscriptions.commit(identity, 1, 1)
        assert not await faults.let_happen(), "it compared the subscription's row"
        assert world.part_rows(identity) == 0
        assert await world.subscriptions.plan(identity, 1, 2, 1, 1 << 20) is not None
        await world.subscriptions.commit(identity, 1, 2)
        await world.move(queue)
        assert world.queues[queue].rest() == numbered(4, 6)

    scene(test)


def test_a_part_that_was_written_without_an_answer_is_known_by_the_next_call() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 6))
        world.store.faults.script.extend([Fate.DONE, Fate.DONE, Fate.HAPPENED])
        with pytest.raises(EngineError):
            await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        assert world.part_rows(identity) == 1
        sealed = await world.subscriptions.plan(identity, 1, 1, 6, 1 << 20)
        assert sealed is not None and (await world.read(identity, sealed))[queue] == numbered(0, 3)

    scene(test)


def test_a_full_engine_gives_no_set_and_holds_nothing() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 3))
        world.store.faults.full = True
        with pytest.raises(Full):
            await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        assert world.queues[queue].rest() == numbered(0, 3)

    scene(test)


def test_a_queue_whose_sets_are_not_restored_can_not_be_asked() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 3))
        node = world.queues[queue].node
        assert node.log is not None
        sets = QueueSets(node.engine, node.queue, node.handle, node.mirror, node.log, LIMITS)
        for call in (sets.take(Asked(identity, 1, 0, 3, 1 << 20, 0)), sets.settle(identity)):
            with pytest.raises(Unavailable):
                await call

    scene(test)


def test_an_owner_that_was_replaced_takes_nothing() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 3))
        await world.move(queue, kill=False)
        with pytest.raises(Lost):
            await world.former[0][1].take(Asked(identity, 1, 0, 3, 1 << 20, 0))
        assert world.queues[queue].rest() == numbered(0, 3)

    scene(test)


@pytest.mark.parametrize("seed", range(10))
def test_calls_for_one_set_at_the_same_time_come_to_the_same(seed: int) -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        for name in world.queues:
            await world.fill(name, numbered(0, 5))
        plans = [world.client().plan(identity, 1, 1, messages, 1 << 20) for messages in (2, 4, 8)]
        first, *others = await asyncio.gather(*plans)
        assert first is not None
        assert others == [first, first]
        assert sum(map(len, (await world.read(identity, first)).values())) == first.count

    scene(test, queues=3, seed=seed)


# --- readers ------------------------------------------------------------------------------------------------------------
def test_a_reader_that_was_replaced_is_fenced() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 3))
        assert await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20) is not None
        assert (await world.subscriptions.open(identity)).epoch == 2
        for call in (world.subscriptions.plan(identity, 1, 1, 3, 1), world.subscriptions.commit(identity, 1, 1)):
            with pytest.raises(Refusal) as refusal:
                await call
            assert refusal.value.why is Why.FENCED
        await world.subscriptions.commit(identity, 2, 1)

    scene(test)


def test_a_reader_that_is_replaced_while_it_collects_is_fenced() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 3))
        take = world.take

        async def late(name: str, asked: Asked) -> tuple[int, int]:
            await world.subscriptions.reset(identity, None, commits=False)
            return await take(name, asked)

        world.take = late  # type: ignore[method-assign]
        with pytest.raises(Refusal) as refusal:
            await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        assert refusal.value.why is Why.FENCED
        assert world.queues[queue].rest() == numbered(0, 3)

    scene(test)


@pytest.mark.parametrize(("epoch", "seq", "why"), [(9, 2, Why.NEVER_OPENED), (1, 1, Why.BEHIND), (1, 3, Why.AHEAD)])
def test_a_checkpoint_that_is_not_the_subscription_s_is_refused(epoch: int, seq: int, why: Why) -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 3))
        await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        await world.subscriptions.commit(identity, 1, 1)
        with pytest.raises(Refusal) as refusal:
            await world.subscriptions.plan(identity, epoch, seq, 3, 1 << 20)
        assert refusal.value.why is why
        if seq > 1:
            with pytest.raises(Refusal) as refusal:
                await world.subscriptions.commit(identity, epoch, seq)
            assert refusal.value.why in (Why.AHEAD, Why.NEVER_OPENED)

    scene(test)


def test_an_operator_gives_a_set_back_or_commits_it_and_its_reader_is_fenced() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 6))
        first = await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        assert first is not None
        await world.read(identity, first)
        assert (await world.subscriptions.reset(identity, 2, commits=True)).epoch == 1, "it is another set"
        after = await world.subscriptions.reset(identity, 1, commits=False)
        assert (after.committed, after.epoch, after.sealed) == (0, 2, None)
        node = world.queues[queue].node
        head = node.handle.peek()
        assert head is not None
        assert (head[1], head[5]) == (True, b"0"), "it is flagged, as a task may have seen it"
        again = await world.subscriptions.plan(identity, 2, 1, 6, 1 << 20)
        assert again is not None and (await world.read(identity, again))[queue] == numbered(0, 6)
        entries = await world.queues[queue].sets.read(identity, (1, again.round), 2, 3, 1 << 20)
        facts = [(entry.position, entry.deliveries, entry.is_redelivered) for entry in entries]
        assert facts == [(3, 1, True), (4, 0, False), (5, 0, False)]
        with pytest.raises(Refusal) as refusal:
            await world.read(identity, first)
        assert refusal.value.why is Why.CHANGED
        assert (await world.subscriptions.reset(identity, None, commits=True)).committed == 1
        await world.move(queue)
        assert world.queues[queue].rest() == []

    scene(test)


def test_a_drain_bounds_the_messages_of_further_sets() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 9))
        await world.subscriptions.change(identity, lambda one: replace(one, drain={queue: 5}))
        counts = []
        for seq in (1, 2):
            sealed = await world.subscriptions.plan(identity, 1, seq, 3, 1 << 20)
            assert sealed is not None
            counts.append(sealed.count)
            await world.subscriptions.commit(identity, 1, seq)
        assert counts == [3, 2]
        assert await world.subscriptions.plan(identity, 1, 3, 3, 1 << 20) is None
        await world.subscriptions.open(identity)
        assert await world.subscriptions.plan(identity, 2, 3, 9, 1 << 20) is not None

    scene(test)


def test_other_queues_are_read_after_what_was_collected_of_those_before_has_gone_back() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        other = next(name for name in world.queues if name != queue)
        await world.fill(queue, numbered(0, 2))
        await world.fill(other, numbered(2, 4))
        await world.subscriptions.open(identity, {queue: "q"})
        assert await world.take(queue, Asked(identity, 1, 1, 5, 1 << 20, 0)) == (2, 2)
        opened = await world.subscriptions.open(identity, {other: "p"})
        assert (opened.queues, opened.epoch) == ((other,), 3)
        sealed = await world.subscriptions.plan(identity, 3, 1, 5, 1 << 20)
        assert sealed is not None and set(sealed.parts) == {other}
        await world.queues[queue].sets.look()
        assert world.queues[queue].rest() == numbered(0, 2)
        await world.subscriptions.commit(identity, 3, 1)
        assert (await world.subscriptions.open(identity, {queue: "q"})).last == {}

    scene(test, queues=2)


# --- making and forgetting ------------------------------------------------------------------------------------------------
def test_a_name_is_given_once_and_there_are_as_many_subscriptions_as_may_be() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        calls = world.subscriptions
        assert await calls.create(world.made) is None
        assert await calls.named("/", "s") == identity
        assert await calls.named("/", "t") is None
        for vhost in ("/a", "/b"):
            assert await calls.create(replace(world.made, vhost=vhost)) is not None
        with pytest.raises(Refusal) as refusal:
            await calls.create(replace(world.made, name="t"))
        assert refusal.value.why is Why.LIMIT
        assert {one.vhost for _, one in await calls.listed()} == {"/", "/a", "/b"}
        for wrong in (replace(world.made, name="x" * 256), replace(world.made, queues=()), replace(world.made, queues=("q",) * 5)):
            with pytest.raises(ValueError):
                await calls.create(wrong)

    scene(test)


def test_a_forgotten_subscription_gives_its_set_back_and_none_of_what_it_committed() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 9))
        await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        world.share = 1.0  # the owner is away
        await world.subscriptions.commit(identity, 1, 1)
        await world.subscriptions.forget(identity)
        assert subscription_key(identity) in world.store.rows, "its commit is not ended"
        with pytest.raises(Refusal) as refusal:
            await world.subscriptions.load(identity)
        assert refusal.value.why is Why.GONE
        assert await world.subscriptions.listed() == [] and await world.subscriptions.named("/", "s") is None
        assert await world.subscriptions.create(world.made) is not None, "its name is free"
        world.share = 0.0
        await world.move(queue)
        await world.subscriptions.sweep()
        assert subscription_key(identity) not in world.store.rows
        assert world.queues[queue].rest() == numbered(3, 9)

    scene(test)


def test_signs_of_life_go_with_their_subscription() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        calls = world.subscriptions
        assert await calls.last_sign(identity) is None
        for token in (b"1", b"2", b""):
            await calls.sign(identity, world.made, token)
            assert await world.client().last_sign(identity) == token
        await calls.forget(identity)
        with pytest.raises(Refusal):
            await calls.sign(identity, world.made, b"3")
        assert not [key for key in world.store.rows if identity in key]

    scene(test)


def test_a_part_of_a_subscription_that_is_gone_goes_back_at_the_next_owner() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        await world.fill(queue, numbered(0, 9))
        await world.subscriptions.plan(identity, 1, 1, 3, 1 << 20)
        del world.store.rows[subscription_key(identity)]
        world.store.store.keys.remove(subscription_key(identity))
        await world.move(queue)
        assert await world.queues[queue].sets.restore() == 3
        await world.queues[queue].sets.look()
        assert world.queues[queue].rest() == numbered(0, 9)

    scene(test)


# --- histories ----------------------------------------------------------------------------------------------------------
class History:
    """Readers, owners and an engine that fail at random. `committed`: seq -> messages, as its reader read them."""

    def __init__(self, seed: int) -> None:
        self.world = World(2, seed, 0.08)
        self.world.store.faults.share = 0.08
        self.random = random.Random(seed)
        self.published: list[bytes] = []
        self.settled: set[bytes] = set()
        self.waiting: list[tuple[Mirror, int, bytes]] = []
        self.read: dict[tuple[int, int], Bodies] = {}
        self.tried: dict[int, Bodies] = {}
        self.committed: dict[int, Bodies] = {}
        self.is_over = False

    async def turns(self, most: int) -> None:
        for _ in range(self.random.randint(0, most)):
            await asyncio.sleep(0)

    async def publish(self) -> None:
        for number in range(120):
            queue = self.random.choice(list(self.world.queues))
            body = b"%d" % number
            self.published.append(body)
            mirror = self.world.queues[queue].node.mirror
            self.waiting.append((mirror, self.world.publish(queue, body), body))
            await self.turns(20)
            self.note_settled()
        self.is_over = True

    def note_settled(self) -> None:
        for mirror, position, body in self.waiting:
            if position and mirror.is_settled(position) and not mirror_is_lost(self.world, mirror):
                self.settled.add(body)

    async def reader(self, identity: bytes) -> None:
        """Opens the subscription again and again, and gives up at any moment."""
        while not self.is_over:
            with contextlib.suppress(FlintError):
                await self.session(identity)
            await self.turns(10)

    async def session(self, identity: bytes) -> None:
        calls = self.world.client()
        subscription = await calls.open(identity)
        seq = subscription.committed + 1
        for _ in range(self.random.randint(1, 6)):
            if await self.one_set(calls, identity, subscription.epoch, seq):
                seq += 1
            await self.turns(5)

    async def one_set(self, calls: Subscriptions, identity: bytes, epoch: int, seq: int) -> bool:
        sealed = await calls.plan(identity, epoch, seq, self.random.randint(1, 9), 1 << 20)
        if sealed is None:
            return False
        bodies = await self.world.read(identity, sealed)
        assert self.read.setdefault((seq, sealed.round), bodies) == bodies, "a set that is read twice has the same messages"
        if self.random.random() < 0.15:
            await calls.reset(identity, seq, commits=False)
            return False
        for _ in range(self.random.randint(1, 2)):
            self.tried[seq] = bodies
            await calls.commit(identity, epoch, seq)
        return True

    async def owners(self) -> None:
        while not self.is_over:
            await self.turns(200)
            await self.world.move(self.random.choice(list(self.world.queues)), kill=self.random.random() < 0.7)

    async def end(self, identity: bytes) -> None:
        """All failures are over; what waits is decided."""
        world = self.world
        world.share = world.store.faults.share = 0.0
        for queue, served in world.queues.items():
            while world.store.faults.late:
                await world.store.faults.let_happen()
            self.note_settled()
            await world.move(queue)
            await served.sets.look()
        subscription = await world.subscriptions.load(identity)
        self.committed = {seq: self.tried[seq] for seq in range(1, subscription.committed + 1)}
        await world.subscriptions.reset(identity, None, commits=False)
        for served in world.queues.values():
            await served.sets.look()
        rest = [body for served in world.queues.values() for body in served.rest()]
        messages = Counter(rest)
        for bodies in self.committed.values():
            for texts in bodies.values():
                messages.update(texts)
        assert set(messages) <= set(self.published)
        assert max(messages.values(), default=1) == 1, "in one committed set, or in its queue"
        assert self.settled <= set(messages), "a message is lost"
        assert world.part_rows(identity) == 0


def mirror_is_lost(world: World, mirror: Mirror) -> bool:
    """Whether its owner was replaced: what it says of messages is not confirmed to anybody."""
    return all(served.node.mirror is not mirror for served in world.queues.values())


@pytest.mark.parametrize("seed", range(30))
def test_each_message_is_in_one_committed_set_or_in_its_queue(seed: int) -> None:
    async def test() -> None:
        history = History(seed)
        identity = await start(history.world)
        tasks = [asyncio.create_task(work) for work in (history.reader(identity), history.reader(identity), history.owners())]
        await history.publish()
        await asyncio.gather(*tasks)
        await history.end(identity)

    run(test)


async def start(world: World) -> bytes:
    share, world.store.faults.share = world.store.faults.share, 0.0
    identity = await world.start()
    world.store.faults.share = share
    return identity


def test_rows_of_subscriptions_that_can_not_be_read_are_refused_and_hide_no_other() -> None:
    async def test(world: World, identity: bytes, queue: str) -> None:
        good = world.made.pack()
        for value in (b"", b"[]", good.replace(b'"format":1', b'"format":2'), good.replace(b'"epoch":1', b'"epoch":true')):
            with pytest.raises(ValueError):
                Subscription.unpack(value)
        assert Subscription.unpack(good) == world.made
        await world.store.engine().commit(Commit(puts={subscription_rows()[0] + b"0" * 32: b"{}"}))
        assert [one for one, _ in await world.subscriptions.listed()] == [identity]

    scene(test)

"""A shared queue's log: what is confirmed outlives its owner, whatever the engine answers."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flintmq.shared.layout import Mark, mark_key, part_key, segment_key
from flintmq.shared.queue_log import Lost
from tests.shared.owners_of_one_queue import ACK, LIMITS, QUEUE, OwnerNode, Store, row_count
from tests.twins.faulty_engine import Fate


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_what_is_settled_is_the_next_owner_s_in_order() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        for number in range(100):
            first.publish(b"%d" % number)
        await first.drain()
        assert first.mirror.is_settled(100) and first.mirror.waiting_bytes == 0
        first.kill()
        second = await OwnerNode(store, "b").take_over()
        assert second.bodies() == [b"%d" % number for number in range(100)]

    run(scene)


def test_ended_messages_are_gone_and_their_rows_too() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        for number in range(100):
            first.publish(b"%d" % number)
        await first.drain()
        assert len(first.bodies()) == 100
        await first.drain()
        assert row_count(store) == 2  # the mark, and that nobody consumes
        second = await OwnerNode(store, "b").take_over()
        assert second.restored == 0
        assert second.publish(b"x") > 100

    run(scene)


def test_a_segment_that_ends_while_its_ends_are_taken_is_deleted() -> None:
    class Ending:
        """A mirror that tells of a segment, of which the last message ends meanwhile, once more."""

        def __getattr__(self, name: str) -> Any:
            return getattr(first.mirror, name)

        def take_ends(self, most: int) -> list[Any]:
            told = first.mirror.take_ends(most)
            if told and first.handle.take_head(ACK) is not None:
                told += first.mirror.take_ends(most)
                seen.append([gone for _, gone, _, _ in told])
            return told

    seen: list[list[bool]] = []

    async def scene() -> None:
        await first.take_over()
        assert first.log is not None
        look, first.log.look = first.log.look, lambda: None  # type: ignore[method-assign]
        first.publish(b"1")
        first.log.look = look  # type: ignore[method-assign]
        first.publish(b"2")
        await first.drain()
        first.log._mirror = Ending()  # type: ignore[assignment]
        first.take()
        await first.drain()
        assert first.lost is None and seen == [[False, True]]
        assert row_count(store) == 2  # the mark, and that nobody consumes

    store = Store()
    first = OwnerNode(store, "a")
    run(scene)


@pytest.mark.parametrize("is_flying", [False, True])
def test_what_follows_messages_that_ended_before_they_were_sent_is_the_next_owner_s(is_flying: bool) -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        assert first.log is not None
        if is_flying:
            first.publish(b"0")
        look, first.log.look = first.log.look, lambda: None  # type: ignore[method-assign]
        ended = first.publish(b"1")
        first.handle.hold(ended)
        first.handle.settle_held(ended, logged=False)
        first.log.look = look  # type: ignore[method-assign]
        first.look()  # a batch of nothing
        position = first.publish(b"2")
        while not first.mirror.is_settled(position):
            await asyncio.sleep(0)
        first.kill()
        assert (await OwnerNode(store, "b").take_over()).bodies() == ([b"0"] if is_flying else []) + [b"2"]

    run(scene)


def test_an_owner_that_was_replaced_writes_nothing_and_confirms_nothing() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        first.publish(b"1")
        await first.drain()
        second = await OwnerNode(store, "b").take_over()
        position = first.publish(b"2")
        with pytest.raises(Lost):
            await first.drain()
        assert first.lost is not None and not first.mirror.is_settled(position)
        assert second.bodies() == [b"1"]
        await second.drain()
        assert (await OwnerNode(store, "c").take_over()).restored == 0

    run(scene)


def test_a_message_above_the_engine_s_row_is_in_parts_and_they_go_with_it() -> None:
    async def scene() -> None:
        store = Store(value_bytes=500)
        first = await OwnerNode(store, "a").take_over()
        body = bytes(range(256)) * 20
        first.publish(b"before")
        await first.drain()
        first.publish(body)
        await first.drain()
        first.kill()
        second = await OwnerNode(store, "b").take_over()
        assert second.bodies() == [b"before", body]
        await second.drain()
        assert row_count(store) == 2

    run(scene)


def test_parts_of_a_message_whose_owner_died_before_its_row_was_there_go_with_the_take_over() -> None:
    async def scene() -> None:
        store = Store(value_bytes=500)
        first = await OwnerNode(store, "a").take_over()
        first.publish(b"small")
        await first.drain()
        first.publish(b"x" * 60_000)
        first.take()
        while Mark.unpack(store.rows[mark_key(QUEUE)]).tails != [2]:  # its place is used, whatever becomes of it
            await asyncio.sleep(0)
        assert part_key(QUEUE, 2, 0) in store.rows and segment_key(QUEUE, 2) not in store.rows
        first.kill()
        second = await OwnerNode(store, "b").take_over()
        assert part_key(QUEUE, 2, 0) not in store.rows
        assert second.restored == 0
        second.publish(b"y" * 2_000)
        await second.drain()
        assert (await OwnerNode(store, "c").take_over()).bodies() == [b"y" * 2_000]

    run(scene)


def test_a_queue_with_all_priorities_is_taken_over_in_their_order() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a", levels=256).take_over()
        for priority in (0, 255, 128, 127, 255):
            first.publish(b"%d" % priority, priority)
        await first.drain()
        second = await OwnerNode(store, "b", levels=256).take_over()
        assert second.bodies() == [b"255", b"255", b"128", b"127", b"0"]
        await second.drain()
        assert row_count(store) == 2

    run(scene)


def test_a_full_engine_takes_no_batch_and_room_comes_from_ends() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        for number in range(40):
            first.publish(b"%d" % number)
        await first.drain()
        for _ in range(8):
            first.take()
        await first.drain()  # a mark covers the batches
        rows = row_count(store)
        store.faults.full = True
        position = first.publish(b"waits")
        for _ in range(30):
            first.take()
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert row_count(store) < rows
        assert not first.mirror.is_settled(position) and first.log is not None and first.log.is_full
        store.faults.full = False
        await first.drain()
        first.kill()
        second = await OwnerNode(store, "b").take_over()
        assert second.bodies() == [b"38", b"39", b"waits"]

    run(scene)


def test_the_commits_that_fill_the_engine_cost_no_epoch_and_what_ended_still_makes_room() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        assert first.log is not None
        for number in range(40):
            first.publish(b"%d" % number)
        await first.drain()
        for _ in range(8):
            first.take()
        await first.drain()
        epoch, rows = first.log.owner.epoch, row_count(store)
        first.engine.crossing = 3
        for number in range(40, 60):
            first.publish(b"%d" % number)
        for _ in range(50):
            await asyncio.sleep(0.001)
        for _ in range(30):
            first.take()
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert store.faults.full and row_count(store) < rows
        store.faults.full = False
        await first.drain()
        assert first.log.owner.epoch == epoch
        first.kill()
        second = await OwnerNode(store, "b").take_over()
        assert second.bodies() == [b"%d" % number for number in range(38, 60)]

    run(scene)


def test_before_anything_is_delivered_the_engine_knows_and_the_next_owner_flags() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        first.publish(b"1")
        await first.drain()
        unseen = await OwnerNode(store, "b").take_over()
        assert unseen.take() == (1, b"1", False)
        unseen.kill()
        third = await OwnerNode(store, "c").take_over()
        assert third.log is not None
        await third.log.open()
        fourth = await OwnerNode(store, "d").take_over()
        assert fourth.take() == (1, b"1", True)

    run(scene)


def test_a_queue_that_is_handed_over_flags_only_what_came_back() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        assert first.log is not None
        await first.log.open()
        first.publish(b"1")
        first.publish(b"2")
        await first.drain()
        assert first.handle.hold(2) and first.handle.release_held(2, delivered=True)
        await first.drain()
        await first.log.hand_over("b", "b")
        second = await OwnerNode(store, "b").take_over()
        assert [second.take(), second.take()] == [(1, b"1", False), (2, b"2", True)]

    run(scene)


@pytest.mark.parametrize("seed", range(40))
def test_confirmed_is_kept_and_ended_is_gone_under_any_faults(seed: int) -> None:
    """Owners come and go, each with an engine that loses answers, applies commits late and is away now and then.

    Model: `alive` holds what was confirmed and did not end for good; `unknown` what the next owner may or may not have.
    """

    async def scene() -> None:
        rng = random.Random(seed)
        store = Store(seed)
        store.faults.share = 0.15
        number = 0
        opening: list[asyncio.Future[None]] = []
        waiting: dict[int, bytes] = {}  # position -> published, not confirmed
        alive: dict[int, bytes] = {}
        ending: dict[int, bytes] = {}  # ended, perhaps not for good
        node = await OwnerNode(store, "n0").take_over()
        for life in range(1, 6):
            for _ in range(rng.randrange(5, 60)):
                step = rng.random()
                if step < 0.5:
                    body = b"%d." % number + b"x" * rng.choice((10, 300, 2_000))
                    number += 1
                    waiting[node.publish(body)] = body
                elif step < 0.8 and (taken := node.take()) is not None:
                    position, body, _ = taken
                    assert {**alive, **waiting}.get(position) == body
                    alive.pop(position, None)
                    waiting.pop(position, None)
                    ending[position] = body
                elif step > 0.97 and node.log is not None:
                    opening.append(asyncio.ensure_future(node.log.open()))
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                for position in [one for one in waiting if node.mirror.is_settled(one)]:
                    alive[position] = waiting.pop(position)
            assert node.lost is None
            if rng.random() < 0.3:
                await node.drain()
                alive.update(waiting)
                waiting, ending = {}, {}
            node.kill()
            node = await OwnerNode(store, f"n{life}").take_over()
            there: dict[int, bytes] = {}
            position = node.handle.next_available(1)
            while position:
                there[position] = node.handle.message_at(position)[3]
                position = node.handle.next_available(position + 1)
            assert alive.items() <= there.items()
            extra = {position: body for position, body in there.items() if position not in alive}
            assert extra.items() <= {**waiting, **ending}.items()
            # What was not confirmed and is there has all that was published before it: nothing overtakes.
            kept = [one for one in waiting if one in extra]
            assert kept == sorted(waiting)[: len(kept)]
            alive, waiting, ending = there, {}, {}
        await asyncio.gather(*opening, return_exceptions=True)
        store.faults.share = 0.0
        assert node.bodies() == [alive[position] for position in sorted(alive)]
        await node.drain()
        assert row_count(store) <= 2

    run(scene)


def test_the_rows_of_a_queue_take_twice_its_messages_at_most() -> None:
    async def scene() -> None:
        store = Store()
        limits = LIMITS.replace(shared_segment_messages=100)
        node = await OwnerNode(store, "a", limits=limits).take_over()
        positions = [node.publish(b"x" * 1_000) for _ in range(1_000)]
        await node.drain()
        for position in positions:
            if position % 10:
                assert node.handle.hold(position) and node.handle.settle_held(position, logged=False)
        await node.drain()
        await node.drain()
        assert sum(map(len, store.rows.values())) <= 2 * 100 * 1_100 + 4 * 10_000
        node.kill()
        assert (await OwnerNode(store, "b").take_over()).restored == 100

    run(scene)


def test_ends_are_said_to_be_written_when_the_commit_that_has_them_is_in() -> None:
    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        first.publish(b"0")
        first.publish(b"1")
        await first.drain()
        released = asyncio.Event()

        async def gate(call: str) -> None:
            await released.wait()

        store.faults.gate = gate
        first.take()
        assert first.log is not None
        first.log._ends_due()  # the line is under way
        written = asyncio.create_task(first.log.ends_written())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not written.done()
        released.set()
        await written
        first.kill()
        assert (await OwnerNode(store, "b").take_over()).bodies() == [b"1"]

    run(scene)


def test_ends_that_a_commit_did_not_bring_are_waited_for_behind_those_that_came_later() -> None:
    """One segment's ends in each commit; the first commit is lost, and its ends are sent behind those of another segment."""

    async def scene() -> None:
        store = Store()
        first = await OwnerNode(store, "a").take_over()
        for number in range(16):
            first.publish(b"%d" % number)
        await first.drain()
        memory = first.engine.engine
        memory.limits = dataclasses.replace(memory.limits, commit_rows=6)  # type: ignore[misc]
        released, commits = asyncio.Event(), []

        async def gate(call: str) -> None:
            if call == "commit":
                commits.append(call)
                await released.wait()

        store.faults.gate = gate
        store.faults.script.append(Fate.NEVER)
        first.take()
        assert first.log is not None
        first.log._ends_due()
        written = asyncio.create_task(first.log.ends_written())
        while not commits:
            await asyncio.sleep(0)
        assert first.handle.hold(9) and first.handle.settle_held(9, ACK, logged=False)
        released.set()
        await written
        first.kill()
        assert (await OwnerNode(store, "b").take_over()).bodies()[0] == b"1"

    run(scene)


def test_a_node_reads_a_bounded_number_of_rows_for_its_consumers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        first = await OwnerNode(Store(), "a").take_over()
        log, most = first.log, LIMITS.shared_loads_max
        assert log is not None
        reading, turn, highest = 0, asyncio.Event(), 0

        async def read(position: int) -> None:
            nonlocal reading, highest
            reading += 1
            highest = max(highest, reading)
            await turn.wait()
            reading -= 1

        monkeypatch.setattr(log, "_read_row", read)
        loads = [asyncio.ensure_future(log._load(position)) for position in range(3 * most)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turn.set()
        await asyncio.gather(*loads)
        assert highest == most

    run(scene)

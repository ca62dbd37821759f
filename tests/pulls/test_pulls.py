"""Pull requests on ordinary queues: admission, answers, holds, batches, groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flintmq.broker.expiry import EXPIRE_AT_ONCE
from flintmq.ports import UserRecord
from flintmq.pulls.pull_service import BUSY as REFUSED_BUSY
from flintmq.pulls.pull_service import INVALID as REFUSED_INVALID
from flintmq.pulls.pull_service import NO_QUEUE, STOPPING, PullRefused
from flintmq.pulls.requests import BUSY, CLOSED, EMPTY, EXPIRED, INVALID, MESSAGES
from tests.pulls.rig import Rig, bodies

ACTORS_PULL = 3  # scheduler/actor.pxd


def test_a_waiting_message_is_answered_at_once(rig: Rig) -> None:
    """A pull of a queue with messages gets the first ones, in order, and leaves the rest."""
    queue = rig.queue()
    rig.publish(queue, b"a", b"b", b"c")
    pull = rig.now(queue, most=2)
    assert (pull.outcome, bodies(pull)) == (MESSAGES, [b"a", b"b"])
    assert (queue.core.ready_count(), queue.core.unacked_count()) == (1, 2)


def test_pull_once_of_an_empty_queue_is_empty(rig: Rig) -> None:
    """Without a hold the answer comes at once, whatever is there."""
    pull = rig.now(rig.queue())
    assert (pull.outcome, pull.count) == (EMPTY, 0)


def test_a_held_pull_is_answered_by_a_new_message(rig: Rig) -> None:
    """A hold ends with the first message, not with its time."""
    queue = rig.queue()
    pull = rig.pull(queue, hold_s=60)
    assert rig.taken() == []
    rig.publish(queue, b"new")
    assert rig.taken() == [pull]
    assert bodies(pull) == [b"new"]


def test_a_hold_that_is_over_is_answered(rig: Rig) -> None:
    """Never silence: at the end of its hold a pull is answered EMPTY, and not before."""
    queue = rig.queue()
    pull = rig.pull(queue, hold_s=10)
    rig.advance(9.9)
    assert rig.taken() == []
    rig.advance(0.2)
    assert rig.taken() == [pull]
    assert pull.outcome == EMPTY


def test_a_long_hold_delays_nobody(rig: Rig) -> None:
    """Head of line: behind a 60 s hold of the same group, a pull without hold and one of a second are answered in their own time."""
    queue = rig.queue()
    long = rig.pull(queue, hold_s=60)
    assert rig.taken() == []
    once = rig.now(queue)
    assert once.outcome == EMPTY
    short = rig.pull(queue, hold_s=1)
    rig.advance(1.1)
    assert rig.taken() == [short]
    rig.publish(queue, b"x")
    assert rig.taken() == [long]


def test_waiters_are_served_in_the_order_they_came(rig: Rig) -> None:
    """Held pulls of one group get new messages first come, first served, one message each."""
    queue = rig.queue()
    waiting = [rig.pull(queue, hold_s=60 - n) for n in range(5)]
    assert rig.taken() == []
    for n in range(5):
        rig.publish(queue, b"%d" % n)
        assert rig.taken() == [waiting[n]]
        assert bodies(waiting[n]) == [b"%d" % n]


def test_several_messages_at_once_wake_as_many_waiters(rig: Rig) -> None:
    """While the consumer is told already the queue says nothing more: each waiter is served all the same."""
    queue = rig.queue()
    waiting = [rig.pull(queue, hold_s=60) for _ in range(5)]
    assert rig.taken() == []
    rig.publish(queue, b"a", b"b", b"c")
    assert rig.taken() == waiting[:3]


def test_a_full_batch_leaves_the_rest_to_the_next_waiter(rig: Rig) -> None:
    """A pull that did not empty the queue wakes the waiter behind it (case 2 of the pull group's argument)."""
    queue = rig.queue()
    first, second = rig.pull(queue, hold_s=60, most=2), rig.pull(queue, hold_s=60, most=2)
    assert rig.taken() == []
    rig.publish(queue, b"a", b"b", b"c")
    assert rig.taken() == [first, second]
    assert (bodies(first), bodies(second)) == ([b"a", b"b"], [b"c"])


def test_a_pull_that_takes_what_another_group_was_told_of_leaves_nobody_waiting(rig: Rig) -> None:
    """A group's consumer that took a message unasked counts as told: its waiters must look for what comes next by themselves."""
    queue = rig.queue()
    told = rig.pull(queue, "told", hold_s=60)
    waiting = rig.pull(queue, "taker", hold_s=60)
    assert rig.taken() == []
    token = rig.actors.suspend(ACTORS_PULL, queue.queue_id, 1)
    rig.publish(queue, b"1")  # the front of the queue's consumers is told, and can't look
    taker = rig.pull(queue, "taker")
    done = rig.taken()
    assert [pull for pull in done if pull.count] in ([taker], [waiting])
    rig.actors.resume(ACTORS_PULL, queue.queue_id, 1, token)
    rig.settle_down()
    rig.publish(queue, b"2")
    rig.publish(queue, b"3")
    done += rig.taken()
    assert queue.core.ready_count() == 0 and {told, waiting} <= set(done)


def test_a_fresh_pull_that_takes_what_a_waiter_was_woken_for_leaves_it_waiting(rig: Rig) -> None:
    """A waiter that finds nothing when it looks goes on waiting, and gets the next message."""
    queue = rig.queue()
    waiting = rig.pull(queue, hold_s=60)
    assert rig.taken() == []
    rig.publish(queue, b"a")
    fresh = rig.pull(queue)
    done = rig.taken()
    assert [pull for pull in done if pull.count] in ([waiting], [fresh])
    rig.publish(queue, b"b")
    assert sum(pull.count for pull in done + rig.taken()) == (2 if fresh.count or waiting not in done else 1)


def test_a_batch_ends_with_the_message_that_reaches_its_bytes(rig: Rig) -> None:
    """bytes_max bounds a batch; one message is always given."""
    queue = rig.queue()
    rig.publish(queue, *[b"x" * 100] * 10)
    assert rig.now(queue, most=10, bytes_max=250).count == 3
    assert rig.now(queue, most=10, bytes_max=1).count == 1
    assert rig.now(queue, most=3, bytes_max=10_000).count == 3


def test_groups_of_a_queue_compete(rig: Rig) -> None:
    """On an ordinary queue each message goes to one group; a group that pulls nothing takes nothing, and no wake-up either."""
    queue = rig.queue()
    assert rig.now(queue, "idle").outcome == EMPTY  # its consumer stays attached for a while
    rig.publish(queue, b"0")
    assert bodies(rig.now(queue, "idle")) == [b"0"]
    held = rig.pull(queue, "busy", hold_s=60)
    assert rig.taken() == []
    rig.publish(queue, b"1")
    assert rig.taken() == [held]
    assert rig.now(queue, "idle").outcome == EMPTY


def test_a_group_whose_pull_ended_passes_its_wake_on(rig: Rig) -> None:
    """A message that woke a group whose only pull is cancelled before it looks goes to the other group's waiter."""
    queue = rig.queue()
    one, two = rig.pull(queue, "one", hold_s=60), rig.pull(queue, "two", hold_s=60)
    assert rig.taken() == []
    rig.publish(queue, b"x")
    assert one.cancel() or two.cancel()
    done = rig.taken()
    assert [pull.outcome for pull in done].count(INVALID) == 1
    left = one if one not in done else two
    if not any(pull.count for pull in done):
        assert left.count == 1 or queue.core.ready_count() == 0
    assert sum(pull.count for pull in done) == 1


def test_group_names_do_not_collide(rig: Rig) -> None:
    """("a", "bc") and ("ab", "c") are different: each name has its own leases and actor."""
    names = ["", "a", "bc", "ab", "c", "a-b", "ä" * 127]
    queue = rig.queue()
    for name in names:
        rig.now(queue, name)
    assert set(rig.pulls.groups(queue)) == set(names)


@pytest.mark.parametrize(
    "options",
    [
        {"most": 0},
        {"most": 1_001},
        {"bytes_max": 0},
        {"bytes_max": 1 << 40},
        {"visibility_s": 0},
        {"visibility_s": 10**6},
        {"hold_s": -1},
        {"hold_s": 60.001},
        {"group": "g" * 256},
    ],
)
def test_what_is_out_of_range_is_refused(rig: Rig, options: dict[str, float]) -> None:
    """INVALID is told with the name of what is wrong, and nothing is asked of the queue."""
    queue = rig.queue()
    with pytest.raises(PullRefused) as refused:
        rig.pull(queue, **options)  # type: ignore[arg-type]
    assert refused.value.kind == REFUSED_INVALID
    assert queue.core.consumer_count() == 0 and rig.pulls.figures()["refused_invalid"] == 1


def test_a_full_mailbox_is_told(make: Callable[..., Rig]) -> None:
    """The pull that finds the group's mailbox full is refused BUSY; those before it are answered."""
    rig = make(actor_mailbox_max=3)
    queue = rig.queue()
    asked = [rig.pull(queue) for _ in range(3)]
    with pytest.raises(PullRefused) as refused:
        rig.pull(queue)
    assert refused.value.kind == REFUSED_BUSY
    assert rig.taken() == asked
    rig.publish(queue, b"x")
    assert rig.now(queue).count == 1


def test_too_many_groups_are_told(make: Callable[..., Rig]) -> None:
    """One group more than allowed is refused BUSY; a group that left makes room."""
    rig = make(pull_groups_max=2, pull_idle_ms=1_000)
    queue = rig.queue()
    rig.now(queue, "a")
    rig.now(queue, "b")
    with pytest.raises(PullRefused) as refused:
        rig.pull(queue, "c")
    assert refused.value.kind == REFUSED_BUSY
    rig.advance(2)
    assert rig.now(queue, "c").outcome == EMPTY


def test_one_user_leaves_groups_to_the_others(make: Callable[..., Rig]) -> None:
    """With two users one of them begins no more than its share of the groups; what leaves makes room; alone it may have all."""
    rig = make(pull_groups_max=4, pull_groups_user_share=0.5, pull_idle_ms=1_000)
    queue = rig.queue()
    for name in ("eve", "ann"):
        rig.users.put(UserRecord(name, "", ()))
    for group in ("a", "b"):
        rig.pull(queue, group, user="eve")
    with pytest.raises(PullRefused, match="user 'eve' has 2 groups"):
        rig.pull(queue, "c", user="eve")
    rig.pull(queue, "a", user="eve")  # one that is there is no new one
    rig.pull(queue, "c", user="ann")
    rig.settle_down()
    rig.advance(2)
    rig.pull(queue, "d", user="eve")
    alone = make(pull_groups_max=4, pull_groups_user_share=0.5)
    assert len(alone.users) <= 1
    mine = alone.queue()
    for group in ("a", "b", "c", "d"):
        alone.pull(mine, group, user="guest")


def test_too_many_leases_are_told(make: Callable[..., Rig]) -> None:
    """A group that holds its limit of messages is answered BUSY until it settles some."""
    rig = make(pull_leases_max=2)
    queue = rig.queue()
    rig.publish(queue, b"a", b"b", b"c")
    first = rig.now(queue, most=5)
    assert bodies(first) == [b"a", b"b"]
    assert rig.now(queue, hold_s=5).outcome == BUSY
    assert rig.now(queue, "other").count == 1
    first.give_back(False)
    assert bodies(rig.now(queue)) == [b"a"]


def test_a_pull_that_waits_too_long_for_its_turn_is_told(make: Callable[..., Rig]) -> None:
    """EXPIRED, not silence, when nobody looked at it in time."""
    rig = make(pull_wait_ms_max=1_000)
    queue = rig.queue()
    pull = rig.pull(queue)
    rig.clock.advance(ms=1_500)
    assert rig.taken() == [pull]
    assert pull.outcome == EXPIRED


def test_pulls_of_a_deleted_queue_end(rig: Rig) -> None:
    """Held pulls are answered CLOSED when their queue is deleted; a new pull is told that it is gone; its group leaves."""
    queue = rig.queue()
    rig.publish(queue, b"leased")
    rig.now(queue, "a")
    held = [rig.pull(queue, "a", hold_s=60), rig.pull(queue, "b", hold_s=60)]
    assert rig.taken() == []
    rig.vhost.run(rig.vhost.delete_queue("q"))
    done = rig.taken()
    assert sorted(map(id, done)) == sorted(map(id, held))
    assert {pull.outcome for pull in done} == {CLOSED}
    with pytest.raises(PullRefused) as refused:
        rig.pull(queue, "a")
    assert refused.value.kind == NO_QUEUE
    rig.advance(1)
    assert rig.pulls.figures()["groups"] == 0


def test_a_stop_answers_everybody(rig: Rig) -> None:
    """Held pulls are answered CLOSED at once; later ones are refused; what was leased is back in the queue, flagged."""
    queue = rig.queue()
    rig.publish(queue, b"x")
    rig.now(queue)
    held = rig.pull(queue, hold_s=60)
    assert rig.taken() == []
    rig.pulls.stop()
    assert rig.taken() == [held]
    assert held.outcome == CLOSED
    with pytest.raises(PullRefused) as refused:
        rig.pull(queue)
    assert refused.value.kind == STOPPING
    rig.pulls.close()
    position, redelivered, *_ = queue.core.peek()
    assert (queue.core.ready_count(), redelivered, position) == (1, True, 1)


def test_expired_messages_are_not_handed_out(rig: Rig) -> None:
    """What is past its time goes to the expiry, not to a pull, even before housekeeping comes round."""
    queue = rig.queue()
    rig.publish(queue, b"old", expires_in_ms=1 - rig.clock.wall_ms())  # in 1970
    rig.publish(queue, b"new")
    assert bodies(rig.now(queue, most=5)) == [b"new"]
    assert rig.broker.counters.drops["expired"] == 1


def test_a_pull_ends_expired_messages_in_slices(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them must not keep the worker, and with it the interpreter: between two slices others have their turn."""
    inner = rig.broker.expiry.expire
    slices: list[bool] = []

    def expire(queue: Any, now_ms: int, until_ns: int = 0) -> bool:
        assert until_ns > rig.clock.monotonic_ns()
        slices.append(inner(queue, now_ms, 1))  # a slice is over after one look at the clock
        return slices[-1]

    monkeypatch.setattr(rig.broker.expiry, "expire", expire)
    queue = rig.queue()
    rig.publish(queue, *[b"old"] * 400, expires_in_ms=1 - rig.clock.wall_ms())
    rig.publish(queue, b"new")
    assert bodies(rig.now(queue, most=5)) == [b"new"]
    assert slices == [False] * (400 // EXPIRE_AT_ONCE) + [True]
    assert rig.broker.counters.drops["expired"] == 400


def test_priorities_are_respected(rig: Rig) -> None:
    """A pull gets what the queue serves first."""
    queue = rig.queue(x_max_priority=5)
    rig.publish(queue, b"low", priority=1)
    rig.publish(queue, b"high", priority=5)
    assert bodies(rig.now(queue, most=2)) == [b"high", b"low"]


def test_an_idle_group_leaves_its_queue(rig: Rig) -> None:
    """A group that nobody pulls from is no consumer of its queue for long; with leases it stays."""
    queue = rig.queue()
    rig.publish(queue, b"x")
    rig.now(queue, "leasing", visibility_s=100)
    rig.now(queue, "idle")
    assert queue.core.consumer_count() == 2
    rig.advance(11)
    assert (queue.core.consumer_count(), set(rig.pulls.groups(queue))) == (1, {"leasing"})


def test_a_cancelled_pull_takes_nothing(rig: Rig) -> None:
    """Cancelled while it waits, a pull is answered INVALID once, and messages are somebody else's."""
    queue = rig.queue()
    pull = rig.pull(queue, hold_s=60)
    assert rig.taken() == []
    assert pull.cancel()
    assert rig.taken() == [pull]
    assert pull.outcome == INVALID
    assert not pull.cancel()
    rig.publish(queue, b"x")
    assert rig.taken() == []
    assert bodies(rig.now(queue)) == [b"x"]

"""Leases: what is handed out is settled, extended, or goes back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pulls.rig import Rig, bodies, leases


def test_an_acked_message_is_gone(rig: Rig) -> None:
    """ack ends the message; the same lease again is gone."""
    queue = rig.queue()
    rig.publish(queue, b"a")
    [lease] = leases(rig, rig.now(queue))
    assert rig.pulls.ack(queue, [lease, lease]) == ["ok", "gone"]
    assert (queue.core.ready_count(), queue.core.unacked_count()) == (0, 0)


def test_a_lease_that_is_over_gives_the_message_back(rig: Rig) -> None:
    """After its visibility time the message is available in its old place, flagged redelivered and counted; the old lease is gone."""
    queue = rig.queue()
    rig.publish(queue, b"a", b"b")
    first = rig.now(queue, visibility_s=5)
    rig.advance(4)
    assert queue.core.ready_count() == 1
    rig.advance(1.5)
    again = rig.now(queue, most=2)
    assert bodies(again) == [b"a", b"b"]
    assert [(message[2], message[3]) for message in again.messages()] == [(1, True), (0, False)]
    assert rig.pulls.ack(queue, leases(rig, first)) == ["gone"]
    assert queue.core.unacked_count() == 2 and rig.pulls.figures()["expired"] == 1


def test_the_end_of_a_lease_wakes_a_waiter(rig: Rig) -> None:
    """A held pull gets the message that came back."""
    queue = rig.queue()
    rig.publish(queue, b"a")
    rig.now(queue, "slow", visibility_s=5)
    held = rig.pull(queue, "other", hold_s=60)
    assert rig.taken() == []
    rig.advance(5.1)
    assert rig.taken() == [held]
    assert bodies(held) == [b"a"]


def test_nack_puts_back_at_once(rig: Rig) -> None:
    """nack: available in its old place, flagged redelivered; whoever waits gets it."""
    queue = rig.queue()
    rig.publish(queue, b"a", b"b")
    pull = rig.now(queue)
    held = [rig.pull(queue, hold_s=60, most=1) for _ in range(2)]
    assert [bodies(one) for one in rig.taken()] == [[b"b"]]
    assert rig.pulls.nack(queue, leases(rig, pull)) == ["ok"]
    assert rig.taken() == [held[1]]
    assert held[1].messages()[0][3] is True


def test_nack_with_delay(rig: Rig) -> None:
    """Until its delay is over a message is nobody's: not ready, and its lease is gone."""
    queue = rig.queue()
    rig.publish(queue, b"a")
    pull = rig.now(queue, visibility_s=2)
    assert rig.pulls.nack(queue, leases(rig, pull), delay_ms=10_000) == ["ok"]
    for settle in (rig.pulls.ack, rig.pulls.nack):
        assert settle(queue, leases(rig, pull)) == ["gone"]
    assert rig.pulls.extend(queue, leases(rig, pull), 5_000) == ["gone"]
    rig.advance(9)
    assert rig.now(queue).count == 0
    rig.advance(1.5)
    assert bodies(rig.now(queue)) == [b"a"]


def test_nack_without_requeue_dead_letters(rig: Rig) -> None:
    """A refused message goes to the dead-letter exchange with its reason; without one it is dropped and counted."""
    dead = rig.queue("dead")
    queue = rig.queue("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    rig.publish(queue, b"a")
    assert rig.pulls.nack(queue, leases(rig, rig.now(queue)), requeue=False) == ["ok"]
    assert (queue.core.ready_count(), queue.core.unacked_count()) == (0, 0)
    letter = rig.now(dead)
    assert bodies(letter) == [b"a"] and b"rejected" in letter.messages()[0][6]
    plain = rig.queue("plain")
    rig.publish(plain, b"b")
    assert rig.pulls.nack(plain, leases(rig, rig.now(plain)), requeue=False) == ["ok"]
    assert plain.core.ready_count() == 0 and rig.broker.counters.drops["rejected"] == 1
    assert (rig.pulls.figures()["acked"], rig.pulls.figures()["nacked"]) == (0, 2)


def test_extend_moves_the_end(rig: Rig) -> None:
    """An extended lease is good for its new time from the moment of the extension."""
    queue = rig.queue()
    rig.publish(queue, b"a")
    pull = rig.now(queue, visibility_s=5)
    rig.advance(4)
    assert rig.pulls.extend(queue, leases(rig, pull), 5_000) == ["ok"]
    rig.advance(4)
    assert rig.pulls.ack(queue, leases(rig, pull)) == ["ok"]


def test_what_a_client_makes_up_is_gone(rig: Rig) -> None:
    """Lease ids of nobody, of another queue, of another run, or of no form are GONE; nothing else happens."""
    one, two = rig.queue("one"), rig.queue("two")
    rig.publish(one, b"a")
    [lease] = leases(rig, rig.now(one))
    key, number = lease.split(".")
    made_up = [
        "",
        ".",
        "x",
        key,
        f"{key}.",
        f"{key}.0",
        f"{key}.g",
        f"{key}.-1",
        f"{key}.{'f' * 16}",
        f"{key}.{'f' * 17}",
        f"{key}.{number}.1",
    ]
    made_up += [f"other.{number}", f"{key}.{int(number, 16) + 1:x}", f"{key}.{int(number, 16) + (1 << 24):x}", f"{key}.٣", f"{key}.1_0"]
    for settle in (rig.pulls.ack, rig.pulls.nack, lambda queue, ids: rig.pulls.extend(queue, ids, 5_000)):
        assert settle(one, made_up) == ["gone"] * len(made_up)
        assert settle(two, [lease]) == ["gone"]
    assert rig.pulls.ack(one, [lease]) == ["ok"]


def test_what_a_lost_client_had_comes_back_unflagged(rig: Rig) -> None:
    """give_back before anything reached the client: in its place, not flagged, and its leases are gone."""
    queue = rig.queue()
    rig.publish(queue, b"a", b"b")
    pull = rig.now(queue, most=2)
    assert pull.give_back(False) == 2
    assert rig.pulls.ack(queue, leases(rig, pull)) == ["gone", "gone"]
    again = rig.now(queue, most=2)
    assert [(message[2], message[3]) for message in again.messages()] == [(0, False), (0, False)]
    assert pull.give_back(False) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["pull", "ack", "extend", "nack", "delay", "time"]), st.integers(0, 30)), max_size=60))
def test_leases_end_at_their_time_in_any_order(steps: list[tuple[str, int]]) -> None:
    """Against a plain model: a lease is good exactly until its end, whatever order ends come in; nothing is leased twice or lost."""
    rig = Rig(pull_idle_ms=1_000_000)
    queue = rig.queue()
    rig.publish(queue, *[b"%d" % n for n in range(40)])
    now, held, back, acked = 0, {}, {}, set()
    try:
        for what, value in steps:
            if what == "pull":
                for message in rig.now(queue, most=3, visibility_s=value + 1).messages():
                    number = int(message[7])
                    assert number not in acked and number not in {one[0] for one in held.values()} and number not in back
                    held[f"{rig.pulls._pull_groups[queue.queue_id, ''].key}.{message[0]:x}"] = (number, now + value + 1)
            elif what == "time":
                rig.advance(value)
                now += value
                held = {lease: entry for lease, entry in held.items() if entry[1] > now}
                back = {number: due for number, due in back.items() if due > now}
            elif held:
                lease = sorted(held)[value % len(held)]
                if what == "extend":
                    assert rig.pulls.extend(queue, [lease], (value + 1) * 1_000) == ["ok"]
                    held[lease] = (held[lease][0], now + value + 1)
                    continue
                number, _ = held.pop(lease)
                if what == "ack":
                    assert rig.pulls.ack(queue, [lease]) == ["ok"]
                    acked.add(number)
                else:
                    delay = value if what == "delay" else 0
                    assert rig.pulls.nack(queue, [lease], delay_ms=delay * 1_000) == ["ok"]
                    if delay:
                        back[number] = now + delay
            assert queue.core.unacked_count() == len(held) + len(back)
            assert queue.core.ready_count() == 40 - len(acked) - len(held) - len(back)
    finally:
        rig.close()

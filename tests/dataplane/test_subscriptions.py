"""Subscriptions: each set is given once and the same each time, whatever is repeated, fenced, restarted or decided by an operator."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from flintmq.dataplane.in_log import NOTE_SUBSCRIPTION
from flintmq.dataplane.shared import Caller
from flintmq.dataplane.times import LogTimes
from flintmq.dataplane.wire import Refused
from flintmq.ports import VhostRecord
from flintmq.transactions import Xid
from flintmq.transactions.bulk import INLINE, ROW

from .rig import Rig


def set_xid(reader: dict[str, object], seq: int) -> Xid:
    return Xid(0x464C4E53, uuid.UUID(str(reader["sub_id"])).bytes, seq.to_bytes(8, "big"), "/")


# --- the life of a set ------------------------------------------------------------------------------------------------------


def test_a_set_is_held_read_and_committed(rig: Rig) -> None:
    rig.put("q", "a", "b", "c")
    reader = rig.open("s")
    acquired = rig.twice("sub.acquire", **reader, seq=1, max_messages=2)
    assert (acquired["count"], acquired["bytes"]) == (2, 2)
    assert [(one["queue"], one["count"], one["first"], one["last"]) for one in acquired["queues"]] == [("q", 2, 1, 2)]
    assert rig.bodies("q") == ["c"]
    assert rig.read(reader, 1) == rig.read(reader, 1) == ["a", "b"]
    assert rig.twice("sub.commit", **reader, upto=1) == {"committed": 1}
    assert rig.core("q").unacked_count() == 0
    assert rig.call("sub.acquire", **reader, seq=2)["count"] == 1
    assert rig.read(reader, 2) == ["c"]


def test_nothing_there_prepares_nothing_and_may_be_asked_again(rig: Rig) -> None:
    reader = rig.open("s")
    empty = {"seq": 1, "count": 0, "bytes": 0, "queues": []}
    assert rig.twice("sub.acquire", **reader, seq=1) == empty
    assert rig.code("sub.plan", **reader, seq=1) == "NOT_PREPARED"
    assert rig.code("sub.commit", **reader, upto=1) == "CHECKPOINT_AHEAD"
    rig.put("q", "a")
    assert rig.call("sub.acquire", **reader, seq=1)["count"] == 1


def test_acquire_waits_for_a_message(rig: Rig) -> None:
    reader = rig.open("s")
    timer = threading.Timer(0.05, lambda: rig.put("q", "late"))
    timer.start()
    assert rig.call("sub.acquire", **reader, seq=1, max_wait_ms=30_000)["count"] == 1
    timer.join()


def test_a_wait_ends_when_the_reader_is_fenced(rig: Rig) -> None:
    reader = rig.open("s")
    timer = threading.Timer(0.05, lambda: rig.service.dispatch({"call": "sub.open", "user": "guest", "name": "s", "queues": ["q"]}))
    timer.start()
    assert rig.code("sub.acquire", **reader, seq=1, max_wait_ms=30_000) == "FENCED"
    timer.join()


def test_a_wait_ends_when_the_broker_stops(rig: Rig) -> None:
    reader = rig.open("s")
    timer = threading.Timer(0.05, rig.service.stop)
    timer.start()
    assert rig.code("sub.acquire", **reader, seq=1, max_wait_ms=30_000) == "UNAVAILABLE"
    timer.join()


def test_bytes_bound_a_set_and_one_large_message_comes_alone(rig: Rig) -> None:
    rig.put("q", "x" * 100, "y" * 10, "z" * 10)
    reader = rig.open("s")
    assert rig.call("sub.acquire", **reader, seq=1, max_bytes=25)["bytes"] == 100
    rig.call("sub.commit", **reader, upto=1)
    assert rig.call("sub.acquire", **reader, seq=2, max_bytes=19)["count"] == 1


def test_transient_messages_are_read_like_others(rig: Rig) -> None:
    rig.declare("t", durable=False)
    rig.put("q", "a", persistent=False)
    rig.put("q", "b")
    rig.put("t", "c")
    reader = rig.open("s", "q", "t")
    assert rig.call("sub.acquire", **reader, seq=1)["count"] == 3
    assert sorted(rig.read(reader, 1)) == ["a", "b", "c"]
    rig.call("sub.commit", **reader, upto=1)
    assert rig.bodies("q") == rig.bodies("t") == []


def inline_times(rig: Rig, ticket: dict[str, Any]) -> dict[str, int]:
    """Body -> microseconds at which it came, of the contents that come inline."""
    answer, data = rig.ask("rows", **ticket, first=0, count=100)
    at = sum(number for _, number, _ in answer["queues"]) * ROW.size
    found = {}
    while at < len(data):
        length, header_size, came_us = INLINE.unpack_from(data, at)
        content = data[at + INLINE.size : at + INLINE.size + length]
        found[content[2 + content[0] + content[1 + content[0]] + header_size :].decode()] = came_us
        at += INLINE.size + length
    return found


def test_a_message_that_only_memory_has_comes_with_the_time_at_which_it_came(rig: Rig) -> None:
    """To one housekeeping pass, and the same each time the set is read: event-time windows count on it."""
    reader = rig.open()
    began_us = rig.clock.wall_ms() * 1000
    for body in "abc":
        rig.clock.advance(ms=60_000)
        rig.put("q", body, persistent=False)
        rig.service.subscriptions.watch()
    rig.put("q", "d", persistent=False)
    rig.clock.advance(ms=60_000)
    rig.call("sub.acquire", **reader, seq=1)
    (ticket,) = rig.call("sub.plan", **reader, seq=1, slices=1)["tickets"]
    minutes = {"a": 1, "b": 2, "c": 3, "d": 3}
    expected = {body: began_us + minute * 60_000_000 for body, minute in minutes.items()}
    assert inline_times(rig, ticket) == expected, "no pass has seen d"
    rig.service.subscriptions.watch()
    assert inline_times(rig, ticket) == expected


def test_a_queue_that_expires_stays_while_its_reader_works(rig: Rig) -> None:
    """Between two triggers nothing is taken: the reader's signs of life count as use, and their end counts as none."""
    rig.declare("e", durable=False, x_expires=1_000)
    reader = rig.open("s", "e")
    vhost = rig.broker.vhosts["/"]
    for _ in range(10):
        rig.call("sub.alive", **reader)
        rig.clock.advance(ms=4_000)
        assert vhost.expire_queues() == 0
    rig.call("sub.alive", **reader, leave=True)
    rig.clock.advance(ms=rig.node.config.limits.subscription_alive_ms)
    assert vhost.expire_queues() == 1 and "e" not in vhost.queues


def test_slices_of_a_set_that_lost_messages_are_not_mixed_with_those_of_before(rig: Rig) -> None:
    """Slices are cut by number: after a loss the same number begins elsewhere, so half a batch of each would lose and repeat messages."""
    for number in range(12):
        rig.put("q", str(number), persistent=number % 4 != 0)
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1)
    old = rig.call("sub.plan", **reader, seq=1, slices=3)["tickets"]
    assert rig.rows(old[0])
    with rig.kill() as again:
        left = [str(number) for number in range(12) if number % 4]
        assert [again.code("rows", **ticket) for ticket in old] == ["SET_CHANGED"] * 3
        assert again.read(reader, 1, slices=3) == left
        assert again.code("rows", **{**old[0], "rows": "12"}) == "BAD_ARGUMENT"


def test_positions_of_a_set_are_not_given_again_after_a_kill(rig: Rig) -> None:
    """The set names the position of a transient message that is gone. The next message must not get it: after another kill it would be in
    the set, held with it and taken with its commit."""
    rig.put("q", "kept")
    rig.put("q", "transient", persistent=False)
    reader = rig.open("s")
    assert rig.call("sub.acquire", **reader, seq=1)["count"] == 2
    with rig.kill() as once:
        assert once.put("q", "later") == [3]
        with once.kill() as twice:
            assert twice.bodies("q") == ["later"]
            assert twice.read(reader, 1) == ["kept"]
            twice.call("sub.commit", **reader, upto=1)
            assert twice.bodies("q") == ["later"]


@pytest.mark.parametrize("planned", [False, True])
def test_a_set_of_which_a_kill_left_nothing_stops_nobody(rig: Rig, planned: bool) -> None:
    """Its reader, who knows it, gets a plan without tickets and goes on; one that never heard of it gets what came since."""
    rig.put("q", "a", "b", persistent=False)
    reader = rig.open("s")
    assert rig.call("sub.acquire", **reader, seq=1)["count"] == 2
    if planned:
        assert len(rig.call("sub.plan", **reader, seq=1, slices=2)["tickets"]) == 2
    with rig.kill() as again:
        again.put("q", "c")
        assert again.call("sub.status", name="s")["prepared"] == 1
        if planned:
            plan = again.twice("sub.plan", **reader, seq=1, slices=2)
            assert (plan["count"], plan["bytes"], plan["tickets"]) == (0, 0, [])
            assert again.call("sub.acquire", **reader, seq=1)["count"] == 0
            assert again.call("sub.commit", **reader, upto=1) == {"committed": 1}
        seq = 2 if planned else 1
        assert again.twice("sub.acquire", **reader, seq=seq)["count"] == 1
        assert again.read(reader, seq) == ["c"]


def test_a_set_whose_queue_was_deleted_does_not_hide_what_comes_after(rig: Rig) -> None:
    rig.put("q", "a")
    reader = rig.open("s")
    assert rig.call("sub.acquire", **reader, seq=1)["count"] == 1
    rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].delete_queue("q"))
    rig.declare("q")
    rig.put("q", "b")
    assert rig.call("sub.acquire", **reader, seq=1)["count"] == 1
    assert rig.read(reader, 1) == ["b"]


# --- queues -----------------------------------------------------------------------------------------------------------------


def test_queues_get_equal_shares_and_what_one_does_not_need_goes_to_the_others(rig: Rig) -> None:
    rig.declare("r", "t")
    rig.put("q", *("q" * 30))
    rig.put("r", *("r" * 30))
    rig.put("t", "t")
    reader = rig.open("s", "q", "r", "t")
    answer = rig.call("sub.acquire", **reader, seq=1, max_messages=21)
    counts = {one["queue"]: one["count"] for one in answer["queues"]}
    assert counts["t"] == 1 and counts["q"] + counts["r"] == 20 and abs(counts["q"] - counts["r"]) <= 1


def test_no_queue_starves_when_sets_are_small(rig: Rig) -> None:
    rig.declare("r", "t")
    for name in "qrt":
        rig.put(name, *(name * 5))
    reader = rig.open("s", "q", "r", "t")
    seen = []
    for seq in range(1, 4):
        answer = rig.call("sub.acquire", **reader, seq=seq, max_messages=1)
        seen += [one["queue"] for one in answer["queues"]]
        rig.call("sub.commit", **reader, upto=seq)
    assert sorted(seen) == ["q", "r", "t"]


def test_a_queue_full_of_gaps_does_not_keep_the_others_from_being_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set has so many pieces at most: what one queue has of them the others do not; each is the first one in its turn."""
    monkeypatch.setattr("flintmq.store.transaction_log.TransactionLog.rows_max", property(lambda self: 4))
    rig.declare("r")
    rig.put("q", *(str(n) for n in range(16)))
    rig.put("r", "a", "b")
    core = rig.core("q")
    for position in range(2, 16, 2):  # every other message is consumed
        assert core.hold(position) and core.settle_held(position, logged=False)
    reader = rig.open("s", "q", "r")
    found: list[str] = []
    for seq in range(1, 7):
        if not rig.call("sub.acquire", **reader, seq=seq)["count"]:
            break
        found += rig.read(reader, seq)
        rig.call("sub.commit", **reader, upto=seq)
        if seq == 1:
            rig.put("r", "c")
    assert sorted(found) == sorted([*(str(n) for n in range(0, 16, 2)), "15", "a", "b", "c"])


def test_slices_cover_the_set_in_order_and_have_about_equal_bytes(rig: Rig) -> None:
    rig.declare("r")
    bodies = [str(number) * (1 + number % 90) for number in range(40)]
    rig.put("q", *bodies[:25])
    rig.put("r", *bodies[25:])
    reader = rig.open("s", "q", "r")
    rig.call("sub.acquire", **reader, seq=1)
    whole = rig.read(reader, 1)
    assert sorted(whole) == sorted(bodies)
    for slices in (2, 3, 7):
        tickets = rig.call("sub.plan", **reader, seq=1, slices=slices)["tickets"]
        parts = [rig.rows(ticket, 5) for ticket in tickets]
        assert len(parts) == slices and [body for part in parts for body in part] == whole
        weights = [sum(len(body) + 64 for body in part) for part in parts]
        assert max(weights) - min(weights) < 2 * max(len(body) + 64 for body in bodies)
    assert len(rig.call("sub.plan", **reader, seq=1, slices=1000)["tickets"]) == 40


def test_one_answer_to_rows_has_a_bounded_number_of_inline_bytes(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"dataplane_inline_max": 3000, "dataplane_rows_max": 7}) as rig:
        rig.declare("q")
        rig.put("q", *(f"{number:01000}" for number in range(12)), persistent=False)
        rig.put("q", *(f"{number}" for number in range(12, 30)), persistent=False)
        reader = rig.open("s")
        rig.call("sub.acquire", **reader, seq=1)
        ticket = rig.call("sub.plan", **reader, seq=1)["tickets"][0]
        sizes = []
        at, more = 0, True
        found = []
        while more:
            answer, data = rig.ask("rows", **ticket, first=at, count=1000)
            rows = rig.contents(answer, data)
            sizes.append(len(data))
            at += len(rows)
            more = answer["more"]
            found += [int(row[-1]) for row in rows]
            assert 1 <= len(rows) <= 7
        assert found == list(range(30)) and max(sizes) < 9000


def test_a_deleted_queue_keeps_the_others_from_nothing_and_counts_again_when_it_is_back(rig: Rig) -> None:
    """The query goes on with what is there; only when all of its queues are gone it hears that."""
    rig.declare("r")
    rig.put("q", "a")
    rig.put("r", "b")
    reader = rig.open("s", "q", "r")
    rig.call("sub.acquire", **reader, seq=1)
    rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].delete_queue("r"))
    assert rig.call("sub.commit", **reader, upto=1) == {"committed": 1}
    rig.put("q", "c")
    assert rig.call("sub.acquire", **reader, seq=2)["count"] == 1
    assert rig.read(reader, 2) == ["c"]
    assert [one["queue"] for one in rig.call("sub.tail", sub_id=reader["sub_id"])["queues"]] == ["q"]
    rig.call("sub.commit", **reader, upto=2)
    assert rig.call("sub.open", name="s", mode="attach", queues=["q", "r"])["queues"] == ["q", "r"], "it was there before"
    reader["epoch"] = 2
    rig.declare("r")
    rig.put("r", "d")
    rig.call("sub.acquire", **reader, seq=3)
    assert rig.read(reader, 3) == ["d"]
    rig.call("sub.commit", **reader, upto=3)
    for name in ("q", "r"):
        rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].delete_queue(name))
    assert rig.code("sub.acquire", **reader, seq=4) == "NOT_FOUND"
    assert rig.code("sub.open", name="s", mode="attach") == "NOT_FOUND"


def test_a_reader_that_attaches_adds_and_removes_queues(rig: Rig) -> None:
    """By the checkpoint's identity or by name; the set that is prepared stays as it is. Who has no checkpoint changes nothing."""
    rig.declare("r", "t")
    for name in "qrt":
        rig.put(name, name)
    reader = rig.open("s", "q", "r")
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    assert rig.code("sub.open", name="s", queues=["q", "t"]) == "QUEUES_DIFFER"
    assert rig.code("sub.open", sub_id=reader["sub_id"], mode="attach", queues=["q", "none"]) == "NOT_FOUND"
    assert rig.code("sub.open", sub_id=reader["sub_id"], mode="attach", queues=["r", "t"]) == "READER_ACTIVE", "it is another query's"
    rig.call("sub.alive", **reader, leave=True)
    opened = rig.call("sub.open", sub_id=reader["sub_id"], mode="attach", queues=["r", "t"])
    assert (opened["queues"], opened["epoch"], opened["prepared"]) == (["r", "t"], 2, 1)
    reader["epoch"] = 2
    assert rig.read(reader, 1) in (["q"], ["r"])
    rig.call("sub.commit", **reader, upto=1)
    with rig.kill() as again:
        assert again.call("sub.status", sub_id=reader["sub_id"])["queues"] == ["r", "t"]
        again.call("sub.acquire", **reader, seq=2)
        assert "t" in again.read(reader, 2)
        assert again.code("sub.open", sub_id=str(uuid.uuid4()), mode="attach") == "NOT_FOUND"
        again.call("sub.alive", **reader, leave=True)
        again.call("sub.commit", **{**reader, "epoch": again.call("sub.open", name="s", mode="attach")["epoch"]}, upto=2)
        again.clock.advance(ms=60_000)
        assert again.call("sub.open", name="s", queues=["q"], fresh="continue")["queues"] == ["q"]


def test_queues_of_a_pattern_come_and_go_between_sets_by_the_rights_of_the_reader(rig: Rig) -> None:
    rig.declare("o.a", "o.b", "secret")
    rig.declare("o.stream", x_queue_type="stream")
    rig.user_with("eve", read="^o[.]")
    rig.put("o.a", "1")
    rig.put("secret", "not hers")
    rig.user = "eve"
    assert rig.call("queue.match", pattern="*") == {"queues": ["o.a", "o.b"]}
    assert rig.code("sub.open", name="p", pattern="none*") == "NOT_FOUND"
    assert rig.code("sub.open", name="p", pattern="*", queues=["o.a"]) == "BAD_ARGUMENT"
    opened = rig.call("sub.open", name="p", pattern="*")
    assert (opened["queues"], opened["pattern"]) == (["o.a", "o.b"], "*")
    reader = {key: opened[key] for key in ("sub_id", "epoch")}

    def batch(rig: Rig, seq: int) -> list[str]:
        rig.clock.advance(ms=rig.node.config.limits.subscription_look_ms)
        count = rig.call("sub.acquire", **reader, seq=seq)["count"]
        found = rig.read(reader, seq) if count else []
        if count:
            rig.call("sub.commit", **reader, upto=seq)
        return found

    assert batch(rig, 1) == ["1"]
    rig.declare("o.c", "other")
    rig.put("o.c", "2")
    rig.put("other", "not hers either")
    assert batch(rig, 2) == ["2"], "a new queue, and no start of the query"
    for name in ("o.a", "o.b", "o.c"):
        rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].delete_queue(name))
    assert batch(rig, 3) == []
    with rig.kill() as again:
        again.user = "eve"
        again.declare("o.d")
        again.put("o.d", "3")
        assert again.code("sub.open", name="p", queues=["o.d"]) == "QUEUES_DIFFER"
        reader["epoch"] = again.call("sub.open", name="p", mode="attach")["epoch"]
        assert batch(again, 3) == ["3"]
        again.put("o.d", "4")
        again.call("sub.acquire", **reader, seq=4)
        again.user_with("eve", read="^none$")
        assert again.code("sub.plan", **reader, seq=4) == "FORBIDDEN", "what a set holds is hers only while she may read it"


def test_a_look_of_another_user_does_not_choose_what_the_reader_takes(rig: Rig) -> None:
    """guest, who may read all, looks at the subscription while eve waits for messages: what eve gets is still what she may read."""
    rig.declare("o.a", "secret")
    rig.user_with("eve", read="^o[.]")
    rig.user = "eve"
    opened = rig.call("sub.open", name="p", pattern="*")
    reader = {key: opened[key] for key in ("sub_id", "epoch")}
    subscriptions = rig.service.subscriptions
    took: list[list[str]] = []
    acquire = subscriptions._acquire

    def acquired(found: Any, *others: Any) -> Any:
        took.append(list(found.queues))
        if len(took) == 1:  # guest's look comes between two looks of eve's wait
            guest = Caller("guest", "/")
            subscriptions._look(guest, found)
            assert found.queues == ["o.a", "q", "secret"]
            rig.put("secret", "not hers")
        return acquire(found, *others) if len(took) > 1 else None

    subscriptions._acquire = acquired  # type: ignore[method-assign]
    assert rig.call("sub.acquire", **reader, seq=1, max_wait_ms=200)["count"] == 0
    assert len(took) > 1 and set(map(tuple, took)) == {("o.a",)}
    assert rig.bodies("secret") == ["not hers"]


def test_a_pattern_reads_a_bounded_number_of_queues_and_says_so(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"subscription_matches_max": 2}) as rig:
        rig.declare("b", "c")
        reader = rig.call("sub.open", name="p", pattern="?")
        rig.declare("a")
        rig.clock.advance(ms=rig.node.config.limits.subscription_look_ms)
        rig.call("sub.acquire", sub_id=reader["sub_id"], epoch=1, seq=1)
        status = rig.call("sub.status", name="p")
        assert (status["queues"], status["left_out"]) == (["b", "c"], 1), "those that it reads stay"
        assert rig.code("queue.match", pattern="?") == "LIMIT"
        rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].delete_queue("b"))
        rig.clock.advance(ms=rig.node.config.limits.subscription_look_ms)
        rig.call("sub.acquire", sub_id=reader["sub_id"], epoch=1, seq=1)
        assert rig.call("sub.status", name="p")["queues"] == ["a", "c"]


# --- refusals ---------------------------------------------------------------------------------------------------------------


def test_an_older_epoch_is_fenced_in_every_call_and_changes_nothing(rig: Rig) -> None:
    rig.put("q", "a", "b")
    old = rig.open("s")
    rig.call("sub.acquire", **old, seq=1, max_messages=1)
    ticket = rig.call("sub.plan", **old, seq=1)["tickets"][0]
    new = rig.open("s")
    assert new["epoch"] > old["epoch"] and new["sub_id"] == old["sub_id"]
    for call, arguments in (
        ("sub.acquire", {"seq": 1, "onlost": "redeliver"}),
        ("sub.plan", {"seq": 1}),
        ("sub.commit", {"upto": 1}),
        ("sub.tail", {"drain": True}),
    ):
        assert rig.code(call, **old, **arguments) == "FENCED"
    assert rig.code("rows", **ticket, first=0, count=1) == "FENCED"
    assert rig.call("sub.status", name="s")["prepared"] == 1 and rig.bodies("q") == ["b"]
    assert rig.code("sub.commit", sub_id=new["sub_id"], epoch=new["epoch"] + 1, upto=1) == "BAD_ARGUMENT"
    assert rig.call("sub.commit", **new, upto=1) == {"committed": 1}


def test_checkpoints_that_do_not_fit_are_refused(rig: Rig) -> None:
    rig.put("q", "a", "b")
    reader = rig.open("s")
    assert rig.code("sub.acquire", **reader, seq=2) == "CHECKPOINT_AHEAD"
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    assert rig.code("sub.acquire", **reader, seq=2) == "CHECKPOINT_AHEAD"
    assert rig.code("sub.plan", **reader, seq=2) == "NOT_PREPARED"
    assert rig.code("sub.commit", **reader, upto=2) == "CHECKPOINT_AHEAD"
    rig.call("sub.commit", **reader, upto=1)
    assert rig.code("sub.acquire", **reader, seq=1) == "CHECKPOINT_BEHIND"
    assert rig.code("sub.plan", **reader, seq=1) == "CHECKPOINT_BEHIND"
    assert rig.call("sub.commit", **reader, upto=0) == {"committed": 1}


def test_a_set_planned_by_an_earlier_reader_is_lost_or_goes_back_when_that_is_asked_for(rig: Rig) -> None:
    rig.put("q", "a", "b", "c")
    old = rig.open("s")
    rig.call("sub.acquire", **old, seq=1, max_messages=2)
    rig.read(old, 1)
    new = rig.open("s")
    with pytest.raises(Refused, match="CHECKPOINT_LOST"):
        rig.call("sub.acquire", **new, seq=1)
    # A reader whose checkpoint knows the set plans it first, and has it.
    assert rig.read(new, 1) == ["a", "b"]
    assert rig.call("sub.acquire", **new, seq=1)["count"] == 2
    newer = rig.open("s")
    assert rig.call("sub.acquire", **newer, seq=1, onlost="redeliver", max_messages=1)["count"] == 1
    assert rig.read(newer, 1) == ["a"]
    assert rig.bodies("q") == ["b", "c"]


def test_a_set_that_was_not_planned_is_given_to_the_next_reader_unchanged(rig: Rig) -> None:
    rig.put("q", "a", "b")
    rig.call("sub.acquire", **rig.open("s"), seq=1, max_messages=1)
    reader = rig.open("s")
    assert rig.call("sub.acquire", **reader, seq=1, max_messages=2)["count"] == 1


def test_names_queues_and_modes_are_checked(rig: Rig) -> None:
    rig.declare("r")
    assert rig.code("sub.open", name="s", queues=["q"], mode="attach") == "NOT_FOUND"
    assert rig.code("sub.open", name="s", queues=["none"]) == "NOT_FOUND"
    assert rig.code("sub.open", name="s") == "BAD_ARGUMENT"
    assert rig.code("sub.open", name="s", queues=["q", "q"]) == "BAD_ARGUMENT"
    assert rig.code("sub.open", name="x" * 256, queues=["q"]) == "BAD_ARGUMENT"
    assert rig.code("sub.open", name="s", queues=["q"], start="yesterday") == "BAD_ARGUMENT"
    rig.open("s", "q", "r")
    assert rig.code("sub.open", name="s", queues=["q"]) == "QUEUES_DIFFER"
    assert rig.call("sub.open", name="s", queues=["r", "q"])["epoch"] == 2
    assert rig.call("sub.open", name="s", mode="attach")["queues"] == ["q", "r"]
    assert rig.code("sub.tail", sub_id=str(uuid.uuid4())) == "NOT_FOUND"
    assert rig.code("sub.status", name="other") == "NOT_FOUND"


def test_limits_of_subscriptions(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"subscriptions_max": 1, "acquire_messages_max": 2, "subscription_queues_max": 1}) as rig:
        rig.declare("q", "r")
        rig.put("q", "a", "b", "c")
        assert rig.code("sub.open", name="s", queues=["q", "r"]) == "BAD_ARGUMENT"
        reader = rig.open("s")
        assert rig.code("sub.open", name="t", queues=["q"]) == "LIMIT"
        assert rig.call("sub.acquire", **reader, seq=1, max_messages=100)["count"] == 2


def test_only_who_may_read_the_queues_has_to_do_with_a_subscription(rig: Rig) -> None:
    rig.put("q", "a")
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1)
    ticket = rig.call("sub.plan", **reader, seq=1)["tickets"][0]
    rig.user_with("eve", read="^other$")
    rig.user = "eve"
    for call, arguments in (
        ("sub.open", {"name": "s", "queues": ["q"]}),
        ("sub.open", {"name": "s", "mode": "attach"}),
        ("sub.acquire", {**reader, "seq": 1}),
        ("sub.plan", {**reader, "seq": 1}),
        ("sub.commit", {**reader, "upto": 1}),
        ("sub.tail", {"sub_id": reader["sub_id"]}),
        ("sub.status", {"name": "s"}),
        ("sub.reset", {"name": "s", "action": "delete"}),
        ("rows", {**ticket, "first": 0, "count": 1}),
    ):
        assert rig.code(call, **arguments) == "FORBIDDEN", call
    assert rig.call("sub.list") == {"subscriptions": []}
    assert rig.call("status")["queues"] == {}
    rig.user_with("eve", read="^q$")
    assert rig.call("sub.commit", **reader, upto=1) == {"committed": 1}


def test_vhosts_are_apart(rig: Rig) -> None:
    rig.broker.definitions.save_vhost(VhostRecord("v"))
    rig.broker.add_vhost("v").restore()
    rig.declare("q", vhost="v")
    rig.put("q", "mine", vhost="v")
    mine = rig.open("s")
    rig.vhost = "v"
    assert rig.code("sub.list") == "FORBIDDEN"
    rig.user_with("guest", read=".*", write=".*", vhost="v")
    assert rig.code("sub.status", name="s") == "NOT_FOUND"
    assert rig.code("sub.acquire", **mine, seq=1) == "NOT_FOUND"
    theirs = rig.open("s")
    rig.call("sub.acquire", **theirs, seq=1)
    assert rig.read(theirs, 1) == ["mine"]


def test_an_exclusive_queue_is_not_readable(rig: Rig) -> None:
    rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].declare_queue("x", exclusive=True, connection_id=77))
    assert rig.code("sub.open", name="s", queues=["x"]) == "FORBIDDEN"


# --- where a new subscription starts ------------------------------------------------------------------------------------------


def test_latest_commits_what_is_there_unread(rig: Rig) -> None:
    rig.declare("r", x_max_priority=3)
    rig.put("q", "old", "older")
    rig.put("r", "old")
    opened = rig.call("sub.open", name="s", queues=["q", "r"], start="latest")
    assert opened["discarded"] == 3
    reader = {key: opened[key] for key in ("sub_id", "epoch")}
    assert rig.bodies("q") == rig.bodies("r") == [] and rig.core("q").unacked_count() == 0
    rig.put("q", "new")
    rig.call("sub.acquire", **reader, seq=1)
    assert rig.read(reader, 1) == ["new"]
    rig.call("sub.open", name="s", queues=["q", "r"], start="latest")
    assert rig.call("sub.status", name="s")["prepared"] == 1


def test_start_by_lsn_and_time_skips_what_is_older_in_position_order(rig: Rig) -> None:
    rig.declare("r", "t")
    for number in range(4):
        for name in "qrt":
            rig.put(name, f"{number}")
    by_lsn = rig.open("lsn", "q", start={"lsn": rig.core("q").message_id_at(3)})
    rig.call("sub.acquire", **by_lsn, seq=1)
    assert rig.read(by_lsn, 1) == ["2", "3"]
    time_us = rig.service.pins.times["messages"].time_of(rig.core("r").message_id_at(3))
    by_time = rig.open("time", "r", start={"time_us": time_us})
    rig.call("sub.acquire", **by_time, seq=1)
    assert rig.read(by_time, 1) == ["2", "3"]
    future = rig.open("future", "t", start={"time_us": 2**60})
    assert rig.call("sub.acquire", **future, seq=1)["count"] == 0


def test_a_start_that_skips_more_than_one_transaction_may_hold(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"acquire_messages_max": 3}) as rig:
        rig.declare("q")
        rig.put("q", *map(str, range(10)))
        rig.open("s", start="latest")
        assert rig.bodies("q") == [] and not rig.broker.transactions.list()  # type: ignore[union-attr]
        again = rig.kill()
        assert again.bodies("q") == [] and again.call("sub.status", name="s")["epoch"] == 1
        again.stop()


# --- figures ----------------------------------------------------------------------------------------------------------------


def test_tail_says_what_waits_and_since_when(rig: Rig) -> None:
    reader = rig.open("s")
    empty = rig.call("sub.tail", sub_id=reader["sub_id"])
    assert (empty["behind_messages"], empty["behind_bytes"], empty["oldest_age_ms"]) == (0, 0, None)
    born_us = rig.clock.wall_ms() * 1000
    rig.put("q", "abc", "de")
    rig.service.tick(0)
    rig.clock.advance(ms=5000)
    rig.put("q", "f")
    rig.service.tick(0)
    answer = rig.call("sub.tail", sub_id=reader["sub_id"])
    assert (answer["behind_messages"], answer["behind_bytes"], answer["oldest_age_ms"]) == (3, 6, 5000)
    assert answer["queues"][0] == {"queue": "q", "ready": 3, "bytes": 6, "oldest_us": born_us, "prepared": 0, "next": 1, "last": 3}
    rig.call("sub.acquire", **reader, seq=1, max_messages=2)
    rig.clock.advance(ms=1000)
    answer = rig.call("sub.tail", sub_id=reader["sub_id"])
    assert (answer["behind_messages"], answer["oldest_age_ms"]) == (1, 1000)
    assert (answer["queues"][0]["prepared"], answer["queues"][0]["next"]) == (2, 3)


def test_the_age_of_what_was_there_before_a_restart_is_known(rig: Rig) -> None:
    rig.open("s")
    rig.put("q", "a")
    written_us = rig.service.pins.times["messages"].time_of(rig.core("q").message_id_at(1))
    again = rig.kill()
    reader = again.open("s")
    assert again.call("sub.tail", sub_id=reader["sub_id"])["queues"][0]["oldest_us"] == written_us
    again.stop()


def test_drain_takes_what_is_there_and_no_more_until_the_next_open(rig: Rig) -> None:
    rig.put("q", "a", "b", "c")
    reader = rig.open("s")
    rig.twice("sub.tail", sub_id=reader["sub_id"], drain=True)
    rig.put("q", "late")
    rig.call("sub.acquire", **reader, seq=1, max_messages=2)
    rig.call("sub.commit", **reader, upto=1)
    rig.call("sub.acquire", **reader, seq=2)
    assert rig.read(reader, 2) == ["c"]
    rig.call("sub.commit", **reader, upto=2)
    assert rig.call("sub.acquire", **reader, seq=3)["count"] == 0
    reader = rig.open("s")
    assert rig.call("sub.acquire", **reader, seq=3)["count"] == 1


def test_status_shows_what_a_pipeline_holds(rig: Rig) -> None:
    rig.put("q", "abc", "d")
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    rig.clock.advance(ms=3000)
    status = rig.call("sub.status", name="s")
    assert (status["prepared"], status["planned"], status["prepared_messages"], status["prepared_bytes"]) == (1, False, 1, 3)
    assert status["prepared_age_ms"] == 3000 and status["prepared_queues"] == {"q": 1}
    assert rig.call("status")["queues"] == {"q": {"ready": 1, "unacked": 1, "prepared_by_pipeline": 1}}
    assert [one["name"] for one in rig.call("sub.list")["subscriptions"]] == ["s"]


# --- operators --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "left", "committed"), [("redeliver", ["a", "b"], 0), ("commit", ["b"], 1)])
def test_reset_decides_the_prepared_set_and_fences_its_reader(rig: Rig, action: str, left: list[str], committed: int) -> None:
    rig.put("q", "a", "b")
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    status = rig.twice("sub.reset", name="s", action=action, seq=1)
    assert (status["prepared"], status["committed"]) == (None, committed) and rig.bodies("q") == left
    assert rig.code("sub.commit", **reader, upto=1) == "FENCED"
    again = rig.kill()
    assert (again.bodies("q"), again.call("sub.status", name="s")["committed"]) == (left, committed)
    again.stop()


def test_reset_delete_gives_back_what_was_prepared_and_forgets(rig: Rig) -> None:
    rig.put("q", "a")
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1)
    assert rig.call("sub.reset", name="s", action="delete")["deleted"] is True
    assert rig.bodies("q") == ["a"]
    assert rig.code("sub.reset", name="s", action="delete") == "NOT_FOUND"
    assert rig.code("sub.commit", **reader, upto=1) == "NOT_FOUND"
    again = rig.kill()
    assert again.bodies("q") == ["a"] and again.call("sub.list") == {"subscriptions": []}
    assert again.open("s")["sub_id"] != reader["sub_id"]
    again.stop()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_what_an_operator_decided_with_flintmq_tx_is_taken_note_of(rig: Rig, commits: bool, restart: bool) -> None:
    rig.put("q", "a", "b")
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    coordinator = rig.broker.transactions
    assert coordinator is not None
    decide = coordinator.heuristic_commit if commits else coordinator.heuristic_rollback
    decide(set_xid(reader, 1)).result(60)
    if restart:
        rig = rig.kill()
    assert (
        rig.call("sub.commit", **reader, upto=1) == {"committed": 1} if commits else rig.code("sub.plan", **reader, seq=1) == "NOT_PREPARED"
    )
    assert rig.bodies("q") == (["b"] if commits else ["a", "b"])
    assert not rig.broker.transactions.list()  # type: ignore[union-attr]
    assert rig.call("sub.acquire", **reader, seq=2 if commits else 1)["count"] == (1 if commits else 2)
    rig.stop()


# --- restarts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_a_prepared_set_is_the_same_after_a_restart(rig: Rig, clean: bool) -> None:
    rig.declare("r", x_max_priority=3)
    rig.put("q", *map(str, range(10)))
    rig.put("r", "x", "y", "z")
    reader = rig.open("s", "q", "r")
    acquired = rig.call("sub.acquire", **reader, seq=1, max_messages=8)
    rows = rig.read(reader, 1, 3)
    again = rig.restart() if clean else rig.kill()
    status = again.call("sub.status", name="s")
    assert (status["prepared"], status["planned"], status["epoch"]) == (1, True, reader["epoch"])
    assert again.call("sub.acquire", **reader, seq=1)["count"] == acquired["count"] == 8
    assert again.read(reader, 1, 3) == rows
    assert len(again.bodies("q")) + len(again.bodies("r")) == 5
    assert again.call("sub.commit", **reader, upto=1) == {"committed": 1}
    last = again.kill()
    assert len(last.bodies("q")) + len(last.bodies("r")) == 5
    assert last.call("sub.commit", **reader, upto=1) == {"committed": 1}
    last.stop()


def test_the_epoch_survives_a_restart_and_still_fences(rig: Rig) -> None:
    old = rig.open("s")
    new = rig.open("s")
    again = rig.kill()
    assert again.code("sub.acquire", **old, seq=1) == "FENCED"
    assert again.call("sub.acquire", **new, seq=1)["count"] == 0
    assert again.open("s")["epoch"] == new["epoch"] + 1
    again.stop()


def test_a_restart_completes_a_commit_of_which_only_the_decision_is_there(rig: Rig) -> None:
    rig.put("q", "a", "b")
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    found = rig.service.subscriptions._by_name["/", "s"]
    plane = rig.service.plane
    plane.durable(plane.store.note(NOTE_SUBSCRIPTION, found.key, plane.encode(found.value(committed=1, planned=None))))
    again = rig.kill()
    assert again.bodies("q") == ["b"] and again.core("q").unacked_count() == 0
    assert again.call("sub.commit", **reader, upto=1) == {"committed": 1}
    assert not again.broker.transactions.list()  # type: ignore[union-attr]
    again.stop()


def test_a_restart_rolls_back_sets_of_no_subscription(rig: Rig) -> None:
    rig.put("q", "a", "b")
    reader = rig.open("s")
    rig.call("sub.acquire", **reader, seq=1)
    plane = rig.service.plane
    plane.durable(plane.store.note(NOTE_SUBSCRIPTION, b"/\0s", b""))
    again = rig.kill()
    assert again.bodies("q") == ["a", "b"] and not again.broker.transactions.list()  # type: ignore[union-attr]
    again.stop()


def test_a_set_that_was_not_prepared_before_the_kill_was_never_there(rig: Rig) -> None:
    rig.put("q", "a", "b")
    reader = rig.open("s")
    plane, xid = rig.service.plane, set_xid(reader, 1)
    plane.begin("somebody", xid)
    plane.coordinator.hold_run("somebody", xid, rig.core("q").queue_id, messages_max=1, bytes_max=100)
    plane.settle()
    again = rig.kill()
    assert again.bodies("q") == ["a", "b"]
    assert again.call("sub.acquire", **reader, seq=1)["count"] == 2
    again.stop()


def test_a_reader_without_a_checkpoint_fences_nobody(rig: Rig) -> None:
    """It is refused while another one is heard of, and where batches of another checkpoint were committed or planned."""
    rig.put("q", *"abcd")
    reader = rig.open()
    anew = {"name": "s", "queues": ["q"]}
    for fresh in ("refuse", "continue"):
        assert rig.code("sub.open", **anew, fresh=fresh) == "READER_ACTIVE"
    rig.clock.advance(ms=rig.node.config.limits.subscription_alive_ms)
    assert rig.call("sub.status", name="s")["heard_ms"] == rig.node.config.limits.subscription_alive_ms
    assert rig.call("sub.open", **anew, fresh="refuse")["epoch"] == 2, "it was killed before it had a batch"
    assert rig.code("sub.alive", **reader) == "FENCED"
    reader["epoch"] = 2
    rig.call("sub.alive", **reader, leave=True)
    rig.call("sub.tail", **reader)
    reader["epoch"] = rig.call("sub.open", **anew, fresh="refuse")["epoch"]
    assert reader["epoch"] == 3, "it said good-bye; a look at its figures does not count"
    rig.call("sub.acquire", **reader, seq=1, max_messages=2)
    assert rig.read(reader, 1) == ["a", "b"]
    rig.clock.advance(ms=60_000)
    assert rig.code("sub.open", **anew, fresh="refuse") == rig.code("sub.open", **anew, fresh="continue") == "CHECKPOINT_LOST"
    rig.call("sub.commit", **reader, upto=1)
    assert rig.code("sub.open", **anew, fresh="refuse") == "CHECKPOINT_NEW"
    assert rig.code("sub.open", **anew, fresh="continue") == "READER_ACTIVE", "a commit is a sign of life"
    rig.call("sub.alive", **reader, leave=True)
    assert rig.code("sub.open", **anew, fresh="refuse") == "CHECKPOINT_NEW"
    assert rig.call("sub.acquire", **reader, seq=2, max_messages=1)["count"] == 1, "none of them changed anything"
    rig.call("sub.alive", **reader, leave=True)
    assert rig.call("sub.open", **anew, fresh="continue")["epoch"] == 4


def test_a_reader_may_be_there_after_a_restart_of_the_broker(rig: Rig) -> None:
    reader = rig.open()
    rig.call("sub.alive", **reader, leave=True)
    with rig.kill() as again:
        assert again.code("sub.open", name="s", queues=["q"], fresh="refuse") == "READER_ACTIVE"
        again.clock.advance(ms=again.node.config.limits.subscription_alive_ms)
        assert again.code("sub.open", name="s", queues=["q"], fresh="refuse") == ""


@pytest.mark.parametrize("action", ["redeliver", "delete"])
def test_what_tasks_may_have_written_is_given_back_only_when_that_is_said(rig: Rig, action: str) -> None:
    rig.put("q", "a", "b")
    reader = rig.open()
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    assert rig.call("sub.reset", name="s", action="redeliver", may_duplicate=False)["prepared"] is None, "nobody has seen it"
    reader["epoch"] = rig.call("sub.open", name="s", queues=["q"])["epoch"]
    rig.call("sub.acquire", **reader, seq=1, max_messages=1)
    rig.read(reader, 1)
    assert rig.code("sub.reset", name="s", action=action, may_duplicate=False) == "MAY_DUPLICATE"
    assert rig.call("sub.commit", **reader, upto=0) == {"committed": 0}, "its reader is not fenced"
    rig.call("sub.reset", name="s", action=action, may_duplicate=True)
    assert rig.bodies("q") == ["a", "b"]


def test_a_set_that_nobody_has_read_is_not_committed_as_read_and_may_be_planned_by_another_reader(rig: Rig) -> None:
    """The sink of a new checkpoint left the batch out: no task ran. Its messages stay, and the next reader has them without a doubt."""
    rig.put("q", "0", "1", "2", "3")
    reader = rig.open()
    rig.call("sub.acquire", **reader, seq=1)
    (ticket,) = rig.call("sub.plan", **reader, seq=1)["tickets"]
    assert rig.code("sub.commit", **reader, upto=1, read=True) == "NOT_READ"
    reader["epoch"] = rig.call("sub.open", sub_id=reader["sub_id"], mode="attach")["epoch"]
    assert rig.call("sub.acquire", **reader, seq=1)["count"] == 4, "an older epoch planned it, and did not read it"
    assert rig.code("rows", **ticket) == "FENCED", "nor does it now"
    assert rig.code("sub.commit", **reader, upto=1, read=True) == "NOT_READ"
    assert rig.read(reader, 1) == ["0", "1", "2", "3"]
    assert rig.call("sub.commit", **reader, upto=1, read=True)["committed"] == 1
    assert rig.call("sub.commit", **reader, upto=1, read=True)["committed"] == 1
    rig.put("q", "more")
    rig.call("sub.acquire", **reader, seq=2)
    assert rig.call("sub.commit", **reader, upto=2)["committed"] == 2, "who does not ask for it commits what it likes"


def test_whether_a_set_was_read_before_a_restart_is_not_known_and_no_refusal(rig: Rig) -> None:
    rig.put("q", "a")
    reader = rig.open()
    rig.call("sub.acquire", **reader, seq=1)
    rig.call("sub.plan", **reader, seq=1)
    again = rig.restart()
    reader["epoch"] = again.call("sub.open", sub_id=reader["sub_id"], mode="attach")["epoch"]
    assert again.code("sub.acquire", **reader, seq=1) == "CHECKPOINT_LOST"
    assert again.call("sub.commit", **reader, upto=1, read=True)["committed"] == 1
    again.stop()


def test_a_container_is_read_once_for_all_queues_whose_oldest_messages_it_has(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first look at a thousand queues read a container of 4 MiB for each of them: 7 to 40 s."""
    names = [f"many.{number:02d}" for number in range(40)]
    rig.declare(*names)
    for name in names:
        rig.put(name, "a")
    times, read = rig.service.pins.times["messages"], []
    expected = [times.time_of(rig.core(name).message_id_at(1)) for name in names]
    assert None not in expected
    reader = rig.open("s", *names)
    load = LogTimes._load
    monkeypatch.setattr(LogTimes, "_load", lambda self, sequence: read.append(sequence) or load(self, sequence))  # type: ignore[func-returns-value]
    found = rig.call("sub.tail", sub_id=reader["sub_id"])["queues"]
    assert [one["oldest_us"] for one in found] == expected
    assert read == []
    rig.put(names[0], "b")
    assert times.time_of(rig.core(names[0]).message_id_at(2)) is not None, "the container has grown"
    assert times.time_of(2**62) is None
    assert len(read) == 2

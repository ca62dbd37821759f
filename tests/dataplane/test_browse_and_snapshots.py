"""Browses read without taking; snapshots keep containers for as long as was asked, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.transactions.bulk import ROW

from .rig import Rig
from .test_subscriptions import inline_times

# --- browse -----------------------------------------------------------------------------------------------------------------


def test_a_browse_reads_all_and_changes_nothing(rig: Rig) -> None:
    rig.declare("r", "t", durable=False)
    rig.put("q", "a", "b", "c")
    rig.put("r", "d", persistent=False)
    answer = rig.call("browse.open", queues=["q", "r", "t"], slices=3)
    assert (answer["count"], answer["more"]) == (4, False)
    assert [(one["queue"], one["count"], one["last"]) for one in answer["queues"]] == [("q", 3, 3), ("r", 1, 1), ("t", 0, 0)]
    for _ in range(2):
        assert [rig.rows(ticket, 1) for ticket in answer["tickets"]] == [["a"], ["b"], ["c", "d"]]
    assert rig.bodies("q") == ["a", "b", "c"] and rig.core("q").unacked_count() == 0
    assert rig.call("browse.close", id=answer["id"])["released"] is True
    assert rig.call("browse.close", id=answer["id"])["released"] is False
    assert rig.code("rows", **answer["tickets"][0]) == "NOT_FOUND"


def test_a_browse_of_nothing_has_one_empty_ticket(rig: Rig) -> None:
    answer = rig.call("browse.open", queues=["q"], slices=4)
    assert [rig.rows(ticket) for ticket in answer["tickets"]] == [[]]


def test_what_was_consumed_meanwhile_is_left_out_without_losing_the_place(rig: Rig) -> None:
    rig.put("q", *map(str, range(10)))
    ticket = rig.call("browse.open", queues=["q"])["tickets"][0]
    answer, data = rig.ask("rows", **ticket, first=0, count=3)
    found = [row[-1].decode() for row in rig.contents(answer, data)]
    for position in (4, 5, 8):
        rig.core("q").hold(position)
        rig.core("q").settle_held(position, logged=False)
    while answer["more"]:
        answer, data = rig.ask("rows", **ticket, first=len(found), count=3)
        found += [row[-1].decode() for row in rig.contents(answer, data)]
    assert found == ["0", "1", "2", "5", "6", "8", "9"]
    rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].delete_queue("q"))
    assert rig.rows(ticket) == []


def test_logged_messages_are_named_by_their_place_and_others_come_inline(rig: Rig) -> None:
    rig.declare("r")
    rig.put("q", "a", "b")
    rig.put("q", "c", persistent=False)
    rig.put("q", "d")
    ticket = rig.call("browse.open", queues=["q"])["tickets"][0]
    rig.service.plane.settle()
    answer, data = rig.ask("rows", **ticket, first=0, count=9)
    rows = [ROW.unpack_from(data, number * ROW.size) for number in range(4)]
    ids = [rig.core("q").message_id_at(position) for position in (1, 2, 3, 4)]
    assert [(position, one, where) for position, one, where, *_ in rows] == [
        (1, ids[0], ids[0]), (2, ids[1], ids[1]), (3, 0, 0), (4, ids[3], ids[3]),
    ]  # fmt: skip
    assert [row[-1] for row in rig.contents(answer, data)] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [(None, None, "01234"), (2, None, "1234"), (None, 4, "012"), (2, 4, "12"), (9, None, ""), (4, 2, "")],
)
@pytest.mark.parametrize("kind", ["position", "lsn", "time_us"])
def test_ranges_of_positions_lsns_and_times(rig: Rig, kind: str, start: int | None, end: int | None, found: str) -> None:
    for number in range(5):
        rig.put("q", str(number))
    ids = [rig.core("q").message_id_at(position) for position in range(1, 6)]
    times = rig.service.pins.times["messages"]

    def place(number: int | None) -> dict[str, int] | None:
        if number is None:
            return None
        if number > 5:
            return {kind: 2**60}
        return {kind: {"position": number, "lsn": ids[number - 1], "time_us": times.time_of(ids[number - 1])}[kind]}  # type: ignore[dict-item]

    answer = rig.call("browse.open", queues=["q"], start=place(start), end=place(end))
    assert "".join(rig.rows(answer["tickets"][0])) == found


def test_a_browse_ends_at_its_limit_and_says_so(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"browse_max": 3, "browse_ttl_s": 10, "snapshots_max": 2}) as rig:
        rig.declare("q")
        rig.put("q", *map(str, range(5)))
        answer = rig.call("browse.open", queues=["q"])
        assert (answer["count"], answer["more"]) == (3, True)
        assert rig.call("browse.open", queues=["q"], max_messages=2)["count"] == 2
        assert rig.code("browse.open", queues=["q"]) == "LIMIT"
        rig.clock.advance(ms=9_000)
        assert rig.rows(answer["tickets"][0]) == ["0", "1", "2"]  # reading extends it
        rig.clock.advance(ms=9_000)
        rig.tick()
        assert rig.call("status")["browses"] == 1
        rig.clock.advance(ms=2_000)
        assert rig.code("rows", **answer["tickets"][0]) == "NOT_FOUND"


def test_browses_that_were_read_make_room_for_others(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"snapshots_max": 2}) as rig:
        rig.declare("q")
        first, second = (rig.call("browse.open", queues=["q"])["tickets"][0] for _ in range(2))
        rig.rows(second)
        assert rig.code("browse.open", queues=["q"]) == ""
        assert rig.code("rows", **second) == "NOT_FOUND" and rig.rows(first) == []


def test_a_browse_is_its_owners_and_needs_permission(rig: Rig) -> None:
    answer = rig.call("browse.open", queues=["q"])
    rig.user_with("eve", read="^other$")
    rig.user = "eve"
    assert rig.code("browse.open", queues=["q"]) == "FORBIDDEN"
    assert rig.code("rows", **answer["tickets"][0]) == "NOT_FOUND"
    assert rig.call("browse.close", id=answer["id"])["released"] is False
    rig.user_with("eve", read=".*")
    mine = rig.call("browse.open", queues=["q"])
    rig.user_with("eve", read="^other$")
    assert rig.code("rows", **mine["tickets"][0]) in ("", "FORBIDDEN")
    rig.user = "guest"
    assert rig.code("browse.open", queues=["none"]) == "NOT_FOUND"
    assert rig.code("browse.open", queues=["q"], start={"lsn": -1}) == "BAD_ARGUMENT"
    assert rig.code("browse.open", queues=["q"], end="now") == "BAD_ARGUMENT"


# --- snapshots --------------------------------------------------------------------------------------------------------------


def test_a_snapshot_says_what_the_logs_have_and_how_far_it_is_durable(rig: Rig) -> None:
    rig.put("q", "a")
    rig.call("sub.acquire", **rig.open("s"), seq=1)
    answer = rig.call("log.snapshot", ttl_s=30)
    store = rig.node.store
    assert store is not None
    for name, managed in (("messages", store.logs.messages), ("transactions", store.logs.transaction_records)):
        facts = answer["logs"][name]
        assert (facts["end"], facts["base"], facts["container_size"]) == (managed.durable_lsn, managed.base_durable, managed.container_size)
        files = sorted(int(path.stem) for path in (rig.directory / name).glob("*.flog"))
        assert facts["containers"] == [one for one in files if one * managed.container_size < facts["end"]] != []
    assert answer["queues"] == {"1": ["/", "q"]}
    assert answer["store"] == {"directory": str(rig.directory), "uuid": store.definitions.store_uuid.hex(), "container_size": 524_288}
    assert [one["state"] for one in answer["transactions"]] == ["prepared"]
    assert set(rig.call("log.snapshot", logs=["messages"])["logs"]) == {"messages"}


def test_containers_of_a_snapshot_stay_until_it_is_released_or_its_time_is_over(rig: Rig) -> None:
    pins = rig.service.pins
    assert pins.lowest("messages") is None
    first = rig.call("log.snapshot", ttl_s=10)
    second = rig.call("log.snapshot", ttl_s=100, logs=["messages"])
    assert pins.lowest("messages") == first["logs"]["messages"]["containers"][0]
    assert pins.lowest("transactions") == first["logs"]["transactions"]["containers"][0]
    rig.clock.advance(ms=9_000)
    assert rig.twice("log.extend", id=first["id"], ttl_s=10) == {"id": first["id"], "ttl_s": 10}
    rig.clock.advance(ms=9_000)
    rig.tick()
    assert pins.lowest("transactions") is not None
    rig.clock.advance(ms=2_000)
    rig.tick()
    assert pins.lowest("transactions") is None and pins.lowest("messages") is not None
    assert rig.code("log.extend", id=first["id"]) == "NOT_FOUND"
    assert rig.call("log.release", id=second["id"])["released"] is True
    assert rig.call("log.release", id=second["id"])["released"] is False
    assert pins.lowest("messages") is None


def test_a_pinned_log_keeps_its_files_although_nothing_in_them_lives(tmp_path: Path) -> None:
    with Rig(tmp_path / "store") as rig:
        rig.declare("q")
        rig.put("q", "first")
        snapshot = rig.call("log.snapshot")
        kept = [rig.directory / "messages" / f"{one:020d}.flog" for one in snapshot["logs"]["messages"]["containers"]]
        inodes = [path.stat().st_ino for path in kept]
        store = rig.node.store
        assert store is not None
        messages = store.logs.messages
        while messages.base_durable // messages.container_size <= snapshot["logs"]["messages"]["containers"][-1] + 2:
            rig.put("q", *("x" * 100_000 for _ in range(3)))
            rig.core("q").purge()
            rig.quiet()
        assert [path.stat().st_ino for path in kept] == inodes
        rig.call("log.release", id=snapshot["id"])


def test_snapshots_are_bounded_in_time_and_number(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"snapshots_max": 1, "snapshot_ttl_s_max": 50}) as rig:
        assert rig.code("log.snapshot", ttl_s=51) == "BAD_ARGUMENT"
        assert rig.code("log.snapshot", ttl_s=0) == "BAD_ARGUMENT"
        assert rig.code("log.snapshot", logs=["pages"]) == "BAD_ARGUMENT"
        assert rig.code("log.snapshot") == ""
        assert rig.code("log.snapshot") == "LIMIT"


def test_a_browse_has_the_times_of_messages_that_no_log_has(rig: Rig) -> None:
    """To a housekeeping pass: `spark.read` had null for them."""
    born_ms = rig.service.plane.now_ms()
    for body in ("a", "b"):
        rig.put("q", body, persistent=False)
        rig.tick()
        rig.clock.advance(ms=60_000)
    rig.put("q", "c", persistent=False)
    found = inline_times(rig, rig.call("browse.open", queues=["q"])["tickets"][0])
    assert {body: came_us // 1000 - born_ms for body, came_us in found.items()} == {"a": 0, "b": 60_000, "c": 120_000}

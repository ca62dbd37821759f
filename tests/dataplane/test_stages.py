"""Stages: of all attempts of a batch those that are named are published, together and once; nothing else of the batch ever is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from crc32c import crc32c

from flintmq.dataplane.in_log import NOTE_SCOPE, NOTE_STAGE
from flintmq.dataplane.wire import Refused
from flintmq.transactions import Xid
from tests.support.image import image_of

from .rig import Rig, block


def epoch(rig: Rig) -> int:
    found: int = rig.call("scope.open")["epoch"]
    return found


def branches(rig: Rig) -> int:
    assert rig.broker.transactions is not None
    return len(rig.broker.transactions.list())


# --- the life of a batch ----------------------------------------------------------------------------------------------------


def test_a_batch_is_staged_prepared_and_published_at_once(rig: Rig) -> None:
    mine = epoch(rig)
    stage_id = rig.call("stage.begin", scope="x", epoch=mine, batch=0, part=1, attempt=2)["stage_id"]
    first, second = block("a", "b"), block("c")
    assert rig.call("block", first, stage_id=stage_id, routes=[["", "q"]]) == {"count": 2, "bytes": 2}
    assert rig.call("block", second, stage_id=stage_id, routes=[["", "q"]]) == {"count": 1, "bytes": 1}
    answer = rig.twice("stage.prepare", stage_id=stage_id)
    assert answer == {"stage_id": stage_id, "count": 3, "bytes": 3, "unroutable": 0, "over_limit": 0, "crc": crc32c(second, crc32c(first))}
    assert rig.bodies("q") == []
    done = rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[stage_id])
    assert done == {"committed": 0, "already": False, "rolled_back": 0}
    assert rig.bodies("q") == ["a", "b", "c"] and branches(rig) == 0
    assert rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[stage_id])["already"] is True
    assert rig.bodies("q") == ["a", "b", "c"]


def test_of_several_attempts_only_the_named_ones_are_published(rig: Rig) -> None:
    mine = epoch(rig)
    lost = rig.stage("x", mine, 0, "lost", part=0, attempt=0)
    half = rig.stage("x", mine, 0, "half", part=0, attempt=1, prepare=False)
    won = rig.stage("x", mine, 0, "won", part=0, attempt=2)
    other = rig.stage("x", mine, 0, "other", part=1)
    later = rig.stage("x", mine, 1, "later")
    stranger = rig.stage("y", mine, 0, "stranger")
    assert rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[won, other])["rolled_back"] == 2
    assert rig.bodies("q") == ["won", "other"]
    for gone in (lost, half):
        assert rig.code("stage.prepare", stage_id=gone) == "NOT_FOUND"
        assert rig.code("block", block("late"), stage_id=gone, routes=[["", "q"]]) == "NOT_FOUND"
    rig.call("stage.commit", scope="x", epoch=mine, batch=1, stage_ids=[later])
    rig.call("stage.commit", scope="y", epoch=mine, batch=0, stage_ids=[stranger])
    assert rig.bodies("q") == ["won", "other", "later", "stranger"] and branches(rig) == 0


def test_what_earlier_batches_left_behind_goes_with_the_next_commit(rig: Rig) -> None:
    mine = epoch(rig)
    rig.stage("x", mine, 3, "left")
    rig.stage("x", mine, 4, "open", prepare=False)
    assert rig.call("stage.commit", scope="x", epoch=mine, batch=5, stage_ids=[rig.stage("x", mine, 5, "a")])["rolled_back"] == 2
    rig.quiet()
    assert rig.bodies("q") == ["a"] and branches(rig) == 0


def test_a_batch_without_messages_is_committed_too(rig: Rig) -> None:
    mine = epoch(rig)
    empty = rig.stage("x", mine, 0)
    assert rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[empty])["already"] is False
    assert rig.call("stage.commit", scope="x", epoch=mine, batch=1, stage_ids=[])["committed"] == 1
    assert rig.call("stage.begin", scope="x", epoch=mine, batch=1) == {"already": True, "committed": 1}


def test_a_batch_that_is_committed_takes_no_more_stages(rig: Rig) -> None:
    mine = epoch(rig)
    rig.call("stage.commit", scope="x", epoch=mine, batch=5, stage_ids=[rig.stage("x", mine, 5, "a")])
    assert rig.call("stage.begin", scope="x", epoch=mine, batch=5)["already"] is True
    assert rig.call("stage.begin", scope="x", epoch=mine, batch=3)["already"] is True
    assert "stage_id" in rig.call("stage.begin", scope="x", epoch=mine, batch=6)


def test_abort_rolls_back_what_the_batch_has(rig: Rig) -> None:
    mine = epoch(rig)
    rig.stage("x", mine, 0, "a")
    rig.stage("x", mine, 0, "b", prepare=False)
    kept = rig.stage("x", mine, 1, "c")
    assert rig.call("stage.abort", scope="x", batch=0) == {"rolled_back": 2}
    assert rig.call("stage.abort", scope="x", batch=0) == {"rolled_back": 0}
    assert rig.call("stage.abort", scope="nobody", batch=0) == {"rolled_back": 0}
    assert branches(rig) == 1
    rig.call("stage.commit", scope="x", epoch=mine, batch=1, stage_ids=[kept])
    assert rig.bodies("q") == ["c"]


def test_an_abort_with_an_epoch_leaves_the_stages_of_later_drivers(rig: Rig) -> None:
    old, new = epoch(rig), epoch(rig)
    rig.stage("x", old, 0, "a")
    assert rig.call("stage.abort", scope="x", batch=0, epoch=old) == {"rolled_back": 1}
    mine = rig.stage("x", new, 0, "b")
    assert rig.code("stage.abort", scope="x", batch=0, epoch=old) == "FENCED"
    rig.call("stage.commit", scope="x", epoch=new, batch=0, stage_ids=[mine])


# --- refusals ---------------------------------------------------------------------------------------------------------------


def test_tasks_that_run_on_after_an_abort_leave_nothing_prepared(rig: Rig) -> None:
    """An abort with an epoch fences it: what such a task begins or prepares is refused. A driver that comes back has a new epoch."""
    mine = epoch(rig)
    begun = rig.stage("x", mine, 0, "a", prepare=False)
    assert [rig.call("stage.abort", scope="x", batch=0, epoch=mine)["rolled_back"] for _ in range(2)] == [1, 0]
    assert rig.code("stage.prepare", stage_id=begun) == "NOT_FOUND"
    assert rig.code("stage.begin", scope="x", epoch=mine, batch=0) == "FENCED"
    assert rig.call("stage.abort", scope="x", batch=0, epoch=epoch(rig))["rolled_back"] == 0
    new = epoch(rig)
    stage_id = rig.stage("x", new, 0, "b")
    rig.call("stage.commit", scope="x", epoch=new, batch=0, stage_ids=[stage_id])
    assert rig.bodies("q") == ["b"] and branches(rig) == 0


def test_epochs_grow_and_older_ones_are_fenced(rig: Rig) -> None:
    old, new = epoch(rig), epoch(rig)
    assert new > old
    stage_id = rig.stage("x", old, 0, "a")
    assert "stage_id" in rig.call("stage.begin", scope="x", epoch=new, batch=0)
    assert rig.code("stage.begin", scope="x", epoch=old, batch=0) == "FENCED"
    assert rig.code("stage.commit", scope="x", epoch=old, batch=0, stage_ids=[stage_id]) == "FENCED"
    assert rig.bodies("q") == []
    assert rig.code("stage.begin", scope="x", epoch=new + 1, batch=0) == "BAD_ARGUMENT"
    assert rig.code("stage.begin", scope="other", epoch=old, batch=0) == ""


def test_a_scope_that_is_opened_by_name_fences_at_once(rig: Rig) -> None:
    old = epoch(rig)
    stage_id = rig.stage("x", old, 0, "a")
    assert rig.call("scope.open", scope="x")["committed"] is None
    assert rig.code("stage.commit", scope="x", epoch=old, batch=0, stage_ids=[stage_id]) == "FENCED"


def test_only_prepared_stages_of_this_batch_and_scope_can_be_committed(rig: Rig) -> None:
    mine = epoch(rig)
    ready = rig.stage("x", mine, 0, "a")
    open_ = rig.stage("x", mine, 0, "b", prepare=False)
    elsewhere = rig.stage("y", mine, 0, "c")
    later = rig.stage("x", mine, 1, "d")
    for wrong in (open_, elsewhere, later, "0" * 32):
        assert rig.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[ready, wrong]) == "NOT_PREPARED"
    for wrong in ("short", "Z" * 32, 7):
        assert rig.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[wrong]) == "BAD_ARGUMENT"
    assert rig.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[ready, ready]) == "BAD_ARGUMENT"
    assert rig.bodies("q") == [] and rig.call("scope.status", scope="x")["prepared"] == 2
    rig.call("stage.prepare", stage_id=open_)
    rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[ready, open_])
    assert sorted(rig.bodies("q")) == ["a", "b"]


def test_stages_that_fit_alone_but_not_together_are_refused_as_a_whole(rig: Rig) -> None:
    """A queue that refuses when it is full: partitions are staged at the same time, each as if it were alone."""
    rig.declare("few", x_max_length=3, x_overflow="reject-publish")
    rig.declare("small", x_max_length_bytes=3, x_overflow="reject-publish")
    for queue in ("few", "small"):
        epoch = rig.call("scope.open")["epoch"]
        stages = [rig.stage(queue, epoch, 0, "a", "b", queue=queue) for _ in range(2)]
        assert rig.code("stage.commit", scope=queue, epoch=epoch, batch=0, stage_ids=stages) == "OVER_LIMIT"
        assert rig.bodies(queue) == [] and rig.call("scope.status", scope=queue)["committed"] is None
        assert rig.call("stage.commit", scope=queue, epoch=epoch, batch=0, stage_ids=stages[:1])["committed"] == 0
        assert rig.bodies(queue) == ["a", "b"]


def test_who_has_another_place_for_what_is_too_much_is_not_refused(rig: Rig) -> None:
    rig.declare("few", x_max_length=3, x_overflow="reject-publish")
    epoch = rig.call("scope.open")["epoch"]
    stages = [rig.stage("x", epoch, 0, "a", "b", queue="few", over_limit="exchange:amq.fanout") for _ in range(2)]
    assert rig.call("stage.commit", scope="x", epoch=epoch, batch=0, stage_ids=stages)["committed"] == 0


def test_a_prepared_stage_takes_no_more_messages(rig: Rig) -> None:
    stage_id = rig.stage("x", epoch(rig), 0, "a")
    assert rig.code("block", block("b"), stage_id=stage_id, routes=[["", "q"]]) == "STAGE_FAILED"
    assert rig.call("stage.prepare", stage_id=stage_id)["count"] == 1


def test_an_operator_who_rolled_a_stage_back_makes_the_commit_fail_as_a_whole(rig: Rig) -> None:
    mine = epoch(rig)
    one, two = rig.stage("x", mine, 0, "a"), rig.stage("x", mine, 0, "b")
    coordinator = rig.broker.transactions
    assert coordinator is not None
    coordinator.heuristic_rollback(next(view.xid for view in coordinator.list() if view.xid.branch_id.hex() == one)).result(60)
    assert rig.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[one, two]) == "NOT_PREPARED"
    assert rig.bodies("q") == [] and rig.call("scope.status", scope="x")["committed"] is None
    again = rig.stage("x", mine, 0, "c")
    rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[two, again])
    assert rig.bodies("q") == ["b", "c"] and branches(rig) == 0


def test_stages_belong_to_their_user_and_scopes_to_theirs(rig: Rig) -> None:
    mine = epoch(rig)
    stage_id = rig.stage("x", mine, 0, "a")
    rig.user_with("eve", write=".*")
    rig.user_with("root", write=".*", tags=("administrator",))
    rig.user = "eve"
    for call, arguments in (
        ("stage.begin", {"scope": "x", "epoch": mine, "batch": 0}),
        ("stage.prepare", {"stage_id": stage_id}),
        ("stage.commit", {"scope": "x", "epoch": mine, "batch": 0, "stage_ids": [stage_id]}),
        ("stage.abort", {"scope": "x", "batch": 0}),
        ("scope.open", {"scope": "x"}),
        ("scope.forget", {"scope": "x"}),
        ("block", {"stage_id": stage_id, "routes": []}),
    ):
        assert rig.code(call, **arguments) == "FORBIDDEN", call
    rig.user = "root"
    assert rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[stage_id])["committed"] == 0


def test_limits_of_stages(tmp_path: Path) -> None:
    limits = {"stage_bytes": 1 << 20, "staged_share": 2.5 / 1024, "scopes_max": 2}
    with Rig(tmp_path / "store", limits=limits, memory_limit=1 << 30) as rig:
        mine = epoch(rig)
        rig.stage("x", mine, 0)
        rig.stage("y", mine, 0, prepare=False)
        assert rig.code("stage.begin", scope="x", epoch=mine, batch=0) == "LIMIT"
        assert rig.code("stage.begin", scope="z", epoch=mine, batch=0) == "LIMIT"
        rig.call("stage.abort", scope="x", batch=0)
        assert "stage_id" in rig.call("stage.begin", scope="x", epoch=mine, batch=0)


def test_the_longest_unused_scope_makes_room_when_that_is_long_ago(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"scopes_max": 2, "scope_remember_s": 100}) as rig:
        mine = epoch(rig)
        for name in ("x", "y"):
            rig.call("stage.commit", scope=name, epoch=mine, batch=0, stage_ids=[])
            rig.clock.advance(ms=60_000)
        again = rig.kill()
        assert [one["scope"] for one in again.call("scope.list")["scopes"]] == ["x", "y"]
        again.call("stage.commit", scope="z", epoch=mine, batch=0, stage_ids=[])
        assert [one["scope"] for one in again.call("scope.list")["scopes"]] == ["y", "z"]
        assert again.code("stage.begin", scope="x", epoch=mine, batch=0) == "LIMIT"
        last = again.kill()
        assert [one["scope"] for one in last.call("scope.list")["scopes"]] == ["y", "z"]
        last.stop()


def write(rig: Rig, scope: str, batch: int = 0, *, commit: bool = True) -> str:
    """A write of one message, as the sink names it. Returns the code with which it is refused."""
    mine, kind = epoch(rig), "once" if scope.startswith("once:") else "write"
    if code := rig.code("stage.begin", scope=scope, epoch=mine, batch=batch, kind=kind):
        return code
    rig.call("stage.abort", scope=scope, batch=batch)
    if commit and "already" not in rig.call("stage.begin", scope=scope, epoch=mine, batch=batch, kind=kind):
        stage = rig.stage(scope, mine, batch, f"{scope} {batch}", kind=kind)
        rig.call("stage.commit", scope=scope, epoch=mine, batch=batch, stage_ids=[stage])
    return ""


def known(rig: Rig) -> list[str]:
    return [one["scope"] for one in rig.call("scope.list")["scopes"]]


def test_a_named_write_is_never_forgotten_while_it_may_be_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One more is refused with what to do, over a restart too; what is forgotten when that is long ago is named in the log."""
    limits = {"writes_user_max": 3, "scopes_user_max": 1, "scope_remember_s": 100, "stage_unprepared_s": 10}
    with Rig(tmp_path / "store", limits=limits) as rig:
        rig.declare("q")
        for name in "abc":
            assert write(rig, f"txn:{name}") == ""
            rig.clock.advance(ms=20_000)
        with pytest.raises(Refused, match="'txnId' whose 'txnVersion' grows"):
            rig.call("stage.begin", scope="txn:d", epoch=epoch(rig), batch=0, kind="write")
        assert rig.call("stage.begin", scope="txn:a", epoch=epoch(rig), batch=0) == {"already": True, "committed": 0}
        assert rig.code("stage.begin", scope="query", epoch=epoch(rig), batch=0, kind="query") == "", "queries have places of their own"
        rig.call("scope.forget", scope="query")
        again = rig.kill()
        assert write(again, "txn:d") == "LIMIT"
        again.clock.advance(ms=41_000)  # the first one was committed 101 s ago
        assert write(again, "txn:d") == "" and known(again) == ["txn:b", "txn:c", "txn:d"]
        assert "scope txn:a of user guest makes room for others" in caplog.text and "published again" in caplog.text
        assert again.service.stages.figures()["forgotten"] == 1
        last = again.kill()
        assert known(last) == ["txn:b", "txn:c", "txn:d"]
        last.stop()


def test_one_name_with_growing_numbers_takes_one_place(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"writes_user_max": 1}) as rig:
        rig.declare("q")
        for version in range(20):
            assert write(rig, "txn:app", version) == ""
        again = rig.kill()
        assert again.call("stage.begin", scope="txn:app", epoch=epoch(again), batch=19) == {"already": True, "committed": 19}
        assert len(again.bodies("q")) == 20 and known(again) == ["txn:app"]
        again.stop()


def test_what_nobody_repeats_makes_room_first(tmp_path: Path) -> None:
    """Writes without a name, and names that never committed anything, once no answer is on its way to them."""
    limits = {"writes_user_max": 3, "stage_unprepared_s": 10}
    with Rig(tmp_path / "store", limits=limits) as rig:
        rig.declare("q")
        assert [write(rig, "txn:a"), write(rig, "once:x"), write(rig, "txn:gave up", commit=False)] == ["", "", ""]
        assert write(rig, "txn:b") == "LIMIT", "the answer to once:x may be on its way"
        rig.clock.advance(ms=11_000)
        assert [write(rig, "txn:b"), write(rig, "txn:c")] == ["", ""]
        assert known(rig) == ["txn:a", "txn:b", "txn:c"] and rig.service.stages.figures()["scopes"] == {"query": 0, "write": 3, "once": 0}
        rig.clock.advance(ms=11_000)
        assert write(rig, "txn:d") == "LIMIT"


def test_what_nobody_repeats_goes_after_the_time_of_a_task(rig: Rig) -> None:
    """Also without need: a write that gave up, or whose `scope.forget` was lost, is in no list for ever. What has a stage stays."""
    assert [write(rig, "once:x"), write(rig, "txn:gave up", commit=False), write(rig, "txn:a")] == ["", "", ""]
    rig.stage("once:under way", epoch(rig), 0, kind="once")
    rig.tick()
    assert known(rig) == ["once:under way", "once:x", "txn:a", "txn:gave up"]
    rig.clock.advance(ms=1000 * rig.node.config.limits.stage_unprepared_s + 1000)
    rig.tick()
    assert known(rig) == ["once:under way", "txn:a"] and rig.service.stages.figures()["forgotten"] == 0
    again = rig.kill()
    assert known(again) == ["once:under way", "txn:a"]
    again.stop()


def test_a_scope_that_got_a_stage_since_it_was_chosen_is_not_forgotten(rig: Rig) -> None:
    """Housekeeping chooses without the scope's lock: a task may begin before it has that."""
    stage_id = rig.stage("once:x", epoch(rig), 0, "a", kind="once")
    scopes = rig.service.stages._scopes
    scope = scopes.get("/", "once:x")
    assert scope is not None and not scopes._forget(scope) and not scope.forgotten
    rig.call("stage.commit", scope="once:x", epoch=epoch(rig), batch=0, stage_ids=[stage_id])
    assert rig.bodies("q") == ["a"]


def test_a_user_whose_places_for_names_run_out_is_told_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Rig(tmp_path / "store", limits={"writes_user_max": 5}) as rig:
        rig.declare("q")
        for name in "abc":
            write(rig, f"txn:{name}")
        assert "named writes" not in caplog.text
        write(rig, "txn:d")
        assert "user guest has 4 named writes, of which 5 are remembered" in caplog.text


def test_forget_rolls_back_and_forgets_what_was_committed(rig: Rig) -> None:
    mine = epoch(rig)
    rig.call("stage.commit", scope="x", epoch=mine, batch=7, stage_ids=[])
    rig.stage("x", mine, 8, "a")
    assert rig.call("scope.forget", scope="x")["rolled_back"] == 1
    assert rig.call("scope.forget", scope="x")["rolled_back"] == 0
    again = rig.kill()
    assert again.call("scope.list")["scopes"] == [] and again.bodies("q") == [] and branches(again) == 0
    assert "stage_id" in again.call("stage.begin", scope="x", epoch=epoch(again), batch=0)
    again.stop()


def test_status_shows_stages_and_their_age(rig: Rig) -> None:
    mine = epoch(rig)
    rig.stage("x", mine, 4, "a", part=3, attempt=1)
    rig.stage("x", mine, 4, prepare=False)
    rig.clock.advance(ms=2500)
    status = rig.call("scope.status", scope="x")
    assert (status["committed"], status["epoch"], status["user"], status["open"], status["prepared"]) == (None, mine, "guest", 1, 1)
    shown = {key: status["stages"][1][key] for key in ("state", "batch", "part", "attempt", "count", "age_ms")}
    assert shown == {"state": "prepared", "batch": 4, "part": 3, "attempt": 1, "count": 1, "age_ms": 2500}
    assert rig.call("scope.status", scope="unknown")["stages"] == []
    assert [one["scope"] for one in rig.call("scope.list")["scopes"]] == ["x"]
    counts = rig.call("status")
    assert (counts["scopes"], counts["open_stages"], counts["prepared_stages"]) == (1, 1, 1)


def test_scopes_are_listed_in_pages(tmp_path: Path) -> None:
    """An answer has a bound, however many scopes and stages there are; all are counted, and found with `after`."""
    with Rig(tmp_path / "store", limits={"scopes_page": 4, "scope_stages_shown": 2}) as rig:
        for number in range(7):
            rig.call("scope.open", scope=f"s{number}")
        for _ in range(5):
            rig.stage("s1", epoch(rig), 0, prepare=False)
        pages: list[list[str]] = []
        more, after = True, {}
        while more:
            answer = rig.call("scope.list", **after)
            pages.append([one["scope"] for one in answer["scopes"]])
            more, after = answer["more"], {"after": pages[-1][-1]}
        assert pages == [["s0", "s1"], ["s2", "s3", "s4", "s5"], ["s6"]]
        status = rig.call("scope.status", scope="s1")
        assert status["open"] == 5 and len(status["stages"]) == 2


# --- time -------------------------------------------------------------------------------------------------------------------


def test_stages_that_were_left_behind_are_rolled_back(tmp_path: Path) -> None:
    with Rig(tmp_path / "store", limits={"stage_unprepared_s": 600, "stage_prepared_s": 86_400}) as rig:
        rig.declare("q")
        mine = epoch(rig)
        left = rig.stage("x", mine, 0, "a", prepare=False)
        rig.clock.advance(ms=599_000)
        rig.tick()
        used = rig.stage("x", mine, 0, "b", prepare=False)
        rig.clock.advance(ms=2_000)
        rig.tick()
        assert rig.code("stage.prepare", stage_id=left) == "NOT_FOUND"
        rig.call("stage.prepare", stage_id=used)
        rig.clock.advance(ms=86_399_000)
        rig.tick()
        assert rig.call("scope.status", scope="x")["prepared"] == 1
        again = rig.kill()
        again.clock.advance(ms=2_000)
        again.tick()
        assert again.call("scope.status", scope="x")["prepared"] == 0 and branches(again) == 0
        last = again.kill()
        assert branches(last) == 0 and not dict(last.service.plane.notes(NOTE_STAGE))
        last.stop()


def test_a_stage_that_is_in_use_is_not_waited_for(rig: Rig) -> None:
    rig.stage("x", epoch(rig), 0, "a", prepare=False)
    stage = next(iter(rig.service.stages._stages.values()))
    rig.clock.advance(ms=10_000_000)
    with stage.lock:
        done = threading.Thread(target=rig.service.tick, args=(0,))
        done.start()
        done.join(60)
        assert not done.is_alive() and branches(rig) == 1
    rig.tick()
    assert rig.call("scope.status", scope="x")["open"] == 0


# --- restarts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_prepared_stages_survive_and_open_ones_do_not(rig: Rig, clean: bool) -> None:
    mine = epoch(rig)
    ready = rig.stage("x", mine, 0, "a", "b", part=3)
    facts = rig.call("stage.prepare", stage_id=ready)
    rig.stage("x", mine, 0, "c", prepare=False)
    again = rig.restart() if clean else rig.kill()
    status = again.call("scope.status", scope="x")
    assert (status["open"], status["prepared"], status["epoch"], status["user"]) == (0, 1, mine, "guest")
    assert again.call("stage.prepare", stage_id=ready) == facts
    assert again.bodies("q") == [] and branches(again) == 1
    assert epoch(again) > mine
    assert again.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[ready])["already"] is False
    last = again.kill()
    assert last.bodies("q") == ["a", "b"]
    assert last.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[ready])["already"] is True
    assert branches(last) == 0
    last.stop()


def test_a_commit_fences_over_restarts(rig: Rig) -> None:
    old, new = epoch(rig), epoch(rig)
    rig.call("stage.commit", scope="x", epoch=new, batch=0, stage_ids=[])
    again = rig.kill()
    assert again.code("stage.begin", scope="x", epoch=old, batch=1) == "FENCED"
    again.stop()


def test_a_restart_completes_a_decision_of_which_only_the_note_is_there(rig: Rig) -> None:
    mine = epoch(rig)
    won, lost = rig.stage("x", mine, 2, "won"), rig.stage("x", mine, 2, "lost")
    early, later = rig.stage("x", mine, 1, "early"), rig.stage("x", mine, 3, "later")
    plane = rig.service.plane
    value = {"committed": 2, "epoch": mine, "user": "guest", "stages": [won], "ms": 0}
    plane.durable(plane.store.note(NOTE_SCOPE, b"/\0x", plane.encode(value)))
    again = rig.kill()
    assert again.bodies("q") == ["won"] and branches(again) == 1
    assert again.call("stage.commit", scope="x", epoch=mine, batch=2, stage_ids=[lost, early])["already"] is True
    again.call("stage.commit", scope="x", epoch=mine, batch=3, stage_ids=[later])
    assert again.bodies("q") == ["won", "later"]
    last = again.kill()
    assert last.bodies("q") == ["won", "later"] and branches(last) == 0 and not dict(last.service.plane.notes(NOTE_STAGE))
    last.stop()


@pytest.mark.parametrize("named", [False, True])
def test_a_restart_completes_a_decision_in_its_order(rig: Rig, named: bool) -> None:
    """Parts in the order of their numbers; a note of an earlier version, which names the stages, in the order of the names."""
    mine = epoch(rig)
    stages = {body: rig.stage("x", mine, 1, body, part="abcd".index(body)) for body in ("bdac" if named else "dcab")}
    rig.stage("x", mine, 2, "of a later batch")
    plane = rig.service.plane
    value = {"committed": 1, "epoch": mine, "user": "guest", "ms": 0}
    if named:
        value["stages"] = [stages[body] for body in "cadb"]
    plane.durable(plane.store.note(NOTE_SCOPE, b"/\0x", plane.encode(value)))
    again = rig.kill()
    assert again.bodies("q") == list("cadb" if named else "abcd") and branches(again) == 1
    again.stop()


def test_a_batch_has_its_parts_in_order_and_of_each_part_what_was_begun_first(rig: Rig) -> None:
    mine = epoch(rig)
    ids = [rig.stage("x", mine, 0, body, part=part) for body, part in (("d", 2), ("a", 0), ("c", 1), ("b", 0))]
    rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=ids)
    assert rig.bodies("q") == ["a", "b", "c", "d"]


def test_the_note_of_a_decision_is_as_small_for_many_stages_as_for_one(rig: Rig) -> None:
    mine = epoch(rig)
    for batch, stages in enumerate((1, 300)):
        ids = [rig.stage("x", mine, batch, part=part) for part in range(stages)]
        rig.call("stage.commit", scope="x", epoch=mine, batch=batch, stage_ids=ids)
        assert len(rig.service.plane.store.notes(NOTE_SCOPE)[b"/\0x"]) < 120


def test_losers_are_rolled_back_durably_before_the_decision(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash behind the note would publish them: what is prepared for the committed batch belongs to it."""
    mine = epoch(rig)
    won, _ = rig.stage("x", mine, 0, "won"), rig.stage("x", mine, 0, "lost", attempt=1)
    coordinator = rig.service.plane.coordinator
    seen: list[int] = []
    decide = coordinator.decide

    def watched(*arguments: object) -> object:
        again = rig_of_now(rig)
        seen.append(again.call("scope.status", scope="x")["prepared"])
        again.stop()
        return decide(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(coordinator, "decide", watched)
    rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[won])
    assert seen == [1] and rig.bodies("q") == ["won"]


def rig_of_now(rig: Rig) -> Rig:
    """What a kill would leave now; the node goes on."""
    return Rig(image_of(rig.directory, rig.directory.with_name("now")), clock=rig.clock, limits=rig.limits)


# --- room -------------------------------------------------------------------------------------------------------------------


def test_a_stage_waits_for_room_and_is_prepared_when_there_is(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room for an outcome is no end of a stage: it is as it was, and prepared by the same call later."""
    mine = epoch(rig)
    stage_id = rig.stage("x", mine, 0, "a", prepare=False)
    transactions = type(rig.service.plane.store.transactions)
    monkeypatch.setattr(transactions, "has_room", False)
    monkeypatch.setattr("flintmq.dataplane.shared.time.monotonic", iter(range(0, 10_000, 2)).__next__)
    with pytest.raises(Refused, match="NO_ROOM: the log has no room"):
        rig.call("stage.prepare", stage_id=stage_id)
    assert rig.call("scope.status", scope="x")["stages"][0]["state"] == "open"
    monkeypatch.setattr(transactions, "has_room", True)
    assert rig.call("stage.prepare", stage_id=stage_id)["count"] == 1
    rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[stage_id])
    assert rig.bodies("q") == ["a"]


def test_a_stage_whose_work_is_lost_is_gone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room went between look and prepare: there is no stage any more, which tells the sink to stage the rows again."""
    mine = epoch(rig)
    stage_id = rig.stage("x", mine, 0, "a", prepare=False)
    monkeypatch.setattr(rig.service.plane, "room_for_outcome", lambda: None)
    transactions = type(rig.service.plane.store.transactions)
    monkeypatch.setattr(transactions, "has_room", False)
    for _ in range(2):
        with pytest.raises(Refused, match="NOT_FOUND: there is no stage"):
            rig.call("stage.prepare", stage_id=stage_id)
    monkeypatch.setattr(transactions, "has_room", True)
    again = rig.stage("x", mine, 0, "a")
    rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[again])
    rig.quiet()
    assert rig.bodies("q") == ["a"] and branches(rig) == 0 and not dict(rig.service.plane.notes(NOTE_STAGE))


@pytest.mark.parametrize("hurry", [False, True])
def test_no_stage_is_refused_while_the_log_enters_its_next_container(tmp_path: Path, hurry: bool) -> None:
    """Stages at full speed, through several containers of the transaction log, beside messages that fill the other one or not."""
    with Rig(tmp_path / "store") as rig:
        rig.declare("q", "other")
        store = rig.service.plane.store
        size, mine = store.transaction_records.container_size, epoch(rig)
        batch = 0
        while store.transaction_records.tail < 4 * size:
            if hurry:
                rig.put("other", b"x" * 60_000)
                rig.core("other").purge()
            ids = [rig.stage("x", mine, batch, "a", part=part) for part in range(10)]
            rig.call("stage.commit", scope="x", epoch=mine, batch=batch, stage_ids=ids)
            batch += 1
        assert rig.core("q").ready_count() == 10 * batch


def test_one_stage_is_aborted_alone(rig: Rig) -> None:
    """What a put left half is given back at once, and the other stages of its batch stay."""
    mine = epoch(rig)
    half, whole = rig.stage("x", mine, 0, "half", prepare=False), rig.stage("x", mine, 0, "whole")
    assert [rig.call("stage.abort", scope="x", batch=0, stage_id=half)["rolled_back"] for _ in range(2)] == [1, 0]
    assert rig.call("scope.status", scope="x")["prepared"] == 1 and branches(rig) == 1
    rig.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[whole])
    assert rig.bodies("q") == ["whole"]


def test_a_note_of_a_stage_that_was_never_prepared_is_removed(rig: Rig) -> None:
    rig.stage("x", epoch(rig), 0, "a", prepare=False)
    stages = rig.service.stages
    stage = next(iter(stages._stages.values()))
    plane = rig.service.plane
    plane.durable(plane.store.note(NOTE_STAGE, stage.identity, plane.encode(stages._note_of(stage))))
    again = rig.kill()
    assert branches(again) == 0 and not dict(again.service.plane.notes(NOTE_STAGE))
    again.stop()


def test_a_prepared_branch_of_no_stage_is_rolled_back(rig: Rig) -> None:
    plane, xid = rig.service.plane, Xid(0x464C4E47, b"g" * 32, b"b" * 16, "/")
    plane.begin("somebody", xid)
    plane.coordinator.enqueue_block("somebody", xid, block("a"), [(b"", b"q")], [[rig.core("q").queue_id]])
    plane.prepare("somebody", xid)
    again = rig.kill()
    assert branches(again) == 0 and again.bodies("q") == []
    again.stop()


def test_transient_messages_of_a_prepared_stage_survive_until_the_commit(rig: Rig) -> None:
    from .rig import entry

    mine = epoch(rig)
    stage_id = rig.call("stage.begin", scope="x", epoch=mine, batch=0)["stage_id"]
    rig.call("block", entry("t", properties={"delivery_mode": 1}), stage_id=stage_id, routes=[["", "q"]])
    rig.call("stage.prepare", stage_id=stage_id)
    again = rig.kill()
    again.call("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[stage_id])
    assert again.bodies("q") == ["t"]
    again.stop()


def test_concurrent_begins_commits_and_aborts_publish_each_batch_once(rig: Rig) -> None:
    mine = epoch(rig)
    problems: list[BaseException] = []

    def work(number: int) -> None:
        from flintmq.dataplane.arguments import Arguments
        from flintmq.dataplane.shared import Caller

        caller, stages = Caller("guest", "/"), rig.service.stages
        try:
            for batch in range(10):
                begun = stages.begin(caller, Arguments("b", {"scope": "x", "epoch": mine, "batch": batch, "part": number}))
                if "stage_id" not in begun:
                    continue
                stage_id = begun["stage_id"]
                try:
                    stages.block(caller, Arguments("b", {"stage_id": stage_id, "routes": [["", "q"]]}), block(f"{batch}"))
                    stages.prepare(caller, Arguments("p", {"stage_id": stage_id}))
                    stages.commit(caller, Arguments("c", {"scope": "x", "epoch": mine, "batch": batch, "stage_ids": [stage_id]}))
                except Refused as refused:
                    assert refused.code in ("NOT_FOUND", "STAGE_FAILED", "NOT_PREPARED"), refused
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    found = rig.bodies("q")
    assert sorted(set(found)) == sorted(found) and found[-1] == "9"
    rig.call("stage.commit", scope="x", epoch=mine, batch=99, stage_ids=[])
    assert branches(rig) == 0

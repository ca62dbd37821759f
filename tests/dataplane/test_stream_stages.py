"""Stages whose messages go to a stream: each is appended once, in the order of its rows, whatever dies when."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pika
import pytest

from flintmq.dataplane.wire import Refused
from flintmq.flight.client import DataPlane
from flintmq.flight.plane_error import PlaneError
from flintmq.transactions import BranchState
from tests.support.broker import Broker, wait_until
from tests.support.image import image_of

from .rig import Rig, block, entry

WAIT_S = 60


@pytest.fixture
def streaming(tmp_path: Path) -> Any:
    """A node with queue `q`, stream `s` and exchange `both`, which leads to the two."""
    with Rig(tmp_path / "store") as made:
        prepare(made)
        yield made


def prepare(rig: Rig) -> None:
    rig.declare("q")
    rig.declare("s", x_queue_type="stream")
    vhost = rig.broker.vhosts["/"]
    vhost.run(vhost.declare_exchange("both", "fanout", durable=True))
    for name in ("q", "s"):
        vhost.run(vhost.bind_queue(name, "both", b""))


def stream_of(rig: Rig) -> Any:
    logs: Any = rig.node.store.logs  # type: ignore[union-attr]
    return logs.streams.get(rig.broker.vhosts["/"].queue("s").queue_id)


def bodies(rig: Rig) -> list[str]:
    """What the stream has, by offset; read from its file."""
    stream = rig.broker.streams.get(rig.broker.vhosts["/"].queue("s").queue_id)  # type: ignore[union-attr]
    assert stream is not None
    return [stream.message(offset)[3].decode() for offset in range(stream_of(rig).visible)]


def other(rig: Rig, text: str) -> None:
    """A message of another publisher; durable in the stream when this returns."""
    upto = stream_of(rig).next
    rig.put("s", text)
    wait_until(lambda: stream_of(rig).visible > upto, WAIT_S)


def visible(rig: Rig, count: int) -> None:
    """Returns when the stream has so many messages."""
    wait_until(lambda: stream_of(rig).visible >= count, WAIT_S)


def nothing_waits(rig: Rig) -> None:
    """Returns when all that was committed is in the stream, and has its ends."""
    wait_until(lambda: stream_of(rig).inbound == 0, WAIT_S)


def epoch(rig: Rig) -> int:
    found: int = rig.call("scope.open")["epoch"]
    return found


def staged(rig: Rig, batch: int, *texts: str, scope: str = "x", exchange: str = "both") -> str:
    """A prepared stage. Returns its id."""
    stage_id: str = rig.call("stage.begin", scope=scope, epoch=epoch(rig), batch=batch)["stage_id"]
    rig.call("block", block(*texts), stage_id=stage_id, routes=[[exchange, "s" if not exchange else ""]])
    rig.call("stage.prepare", stage_id=stage_id)
    return stage_id


def commit(rig: Rig, batch: int, *stage_ids: str, scope: str = "x") -> Any:
    return rig.call("stage.commit", scope=scope, epoch=epoch(rig), batch=batch, stage_ids=list(stage_ids))


def test_a_batch_enters_a_stream_and_a_queue_when_it_is_committed(streaming: Rig) -> None:
    rig = streaming
    other(rig, "before")
    first = staged(rig, 0, "a", "b")
    second = staged(rig, 0, "c")
    assert bodies(rig) == ["before"] and rig.bodies("q") == []
    other(rig, "between")
    commit(rig, 0, second, first)
    nothing_waits(rig)
    assert bodies(rig) == ["before", "between", "a", "b", "c"] and rig.bodies("q") == ["a", "b", "c"]
    assert commit(rig, 0, second, first)["already"] is True
    rig.quiet()
    assert bodies(rig) == ["before", "between", "a", "b", "c"] and rig.broker.transactions.list() == []  # type: ignore[union-attr]


def test_what_is_not_committed_never_comes(streaming: Rig) -> None:
    stage_id = staged(streaming, 0, "a")
    staged(streaming, 0, "b")
    streaming.call("stage.abort", scope="x", batch=0)
    assert streaming.code("stage.commit", scope="x", epoch=epoch(streaming), batch=0, stage_ids=[stage_id]) == "NOT_PREPARED"
    assert bodies(streaming) == []


def test_a_batch_stands_in_the_stream_once_after_any_number_of_kills(streaming: Rig) -> None:
    rig = streaming
    expected: list[str] = []
    for batch in range(3):
        stage_id = staged(rig, batch, f"{batch}a", f"{batch}b", exchange="")
        commit(rig, batch, stage_id)
        visible(rig, len(expected) + 2)
        other(rig, f"{batch} other")
        expected += [f"{batch}a", f"{batch}b", f"{batch} other"]
        rig = rig.kill()
        nothing_waits(rig)
        assert bodies(rig) == expected
    again = rig.restart()
    assert bodies(again) == expected and stream_of(again).inbound == 0
    again.stop()


def test_a_kill_between_the_commit_and_the_append(streaming: Rig) -> None:
    rig = streaming
    other(rig, "before")
    stage_id = staged(rig, 0, "a", "b")
    mine = epoch(rig)
    held, go = threading.Event(), threading.Event()

    def block_effects() -> None:
        held.set()
        go.wait(WAIT_S)

    rig.node.store.logs.bulk.in_background(block_effects)  # type: ignore[union-attr]
    assert held.wait(WAIT_S)
    committing = threading.Thread(target=lambda: rig.code("stage.commit", scope="x", epoch=mine, batch=0, stage_ids=[stage_id]))
    committing.start()
    views = rig.broker.transactions.list  # type: ignore[union-attr]
    wait_until(lambda: any(view.state is BranchState.COMMITTING and view.durable for view in views()), WAIT_S)
    assert bodies(rig) == ["before"]
    image = image_of(rig.directory, rig.directory.with_name("killed"))
    go.set()
    committing.join(WAIT_S)
    with Rig(image) as again:
        nothing_waits(again)
        assert bodies(again) == ["before", "a", "b"] and again.bodies("q") == ["a", "b"]
        # What comes next has positions of its own: a kill after it tells the two apart.
        stage_id = staged(again, 1, "c")
        commit(again, 1, stage_id)
        nothing_waits(again)
        assert bodies(again) == ["before", "a", "b", "c"]


def test_a_prepared_stage_outlives_a_kill(streaming: Rig) -> None:
    stage_id = staged(streaming, 0, "a", "b")
    other(streaming, "meanwhile")
    with streaming.kill() as rig:
        commit(rig, 0, stage_id)
        nothing_waits(rig)
        assert bodies(rig) == ["meanwhile", "a", "b"] and rig.bodies("q") == ["a", "b"]


def test_a_stream_that_was_deleted_takes_only_its_part_with_it(streaming: Rig) -> None:
    rig = streaming
    stage_id = staged(rig, 0, "a")
    rig.broker.vhosts["/"].run(rig.broker.vhosts["/"].delete_queue("s"))
    commit(rig, 0, stage_id)
    assert rig.bodies("q") == ["a"]
    with rig.kill() as again:
        assert again.bodies("q") == ["a"] and "s" not in again.broker.vhosts["/"].queues


def test_a_header_of_a_message_is_its_filter_value(streaming: Rig) -> None:
    rig = streaming
    mine = epoch(rig)
    stage_id = rig.call("stage.begin", scope="x", epoch=mine, batch=0)["stage_id"]
    rows = [entry(text, 0, {"delivery_mode": 2, "headers": {"x-stream-filter-value": text}}) for text in ("north", "south")]
    rig.call("block", b"".join(rows), stage_id=stage_id, routes=[["", "s"]])
    rig.call("stage.prepare", stage_id=stage_id)
    commit(rig, 0, stage_id)
    nothing_waits(rig)
    assert [message[4] for message in stream_of(rig).hot(0, 10, values=[b"south"])[2]] == [b"south"]


def test_nothing_of_a_stream_can_be_held(streaming: Rig) -> None:
    with pytest.raises(Refused, match="'s' in vhost '/' is a stream"):
        streaming.call("sub.open", name="y", queues=["s"])


@pytest.mark.parametrize("point", ["stream-appended:1", "stream-appended:2"])
def test_a_broker_that_is_killed_while_a_batch_goes_into_the_stream(tmp_path: Path, point: str) -> None:
    """kill -9 by the broker itself: some of the batch is durable in the stream, and none of that, or a part, has an end elsewhere."""
    pa = pytest.importorskip("pyarrow")
    rows = pa.record_batch({"body": [f"{number}".encode() for number in range(20_000)]})
    arguments = ("--flight-port", "0", "--data-dir", str(tmp_path / "store"))
    with Broker(*arguments, env={"FLINTMQ_FAILPOINT": point}) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        with DataPlane("127.0.0.1", broker.ready["flight_port"], timeout_s=10) as plane:
            mine = plane.scope_open()
            stage_id = plane.stage_begin("x", mine, 0).stage_id
            assert stage_id is not None
            plane.put(stage_id, [rows], routing_key="s")
            plane.stage_prepare(stage_id)

            def asked() -> None:
                with contextlib.suppress(PlaneError):
                    plane.stage_commit("x", mine, 0, [stage_id])

            threading.Thread(target=asked, daemon=True).start()  # it goes on asking
            wait_until(lambda: not broker.alive(), WAIT_S)
        broker.kill()  # it has ended, and not as one should
    with Broker(*arguments) as broker, DataPlane("127.0.0.1", broker.ready["flight_port"]) as plane:
        assert plane.stage_commit("x", plane.scope_open(), 0, [stage_id]).already
        opened: Any = {}

        def whole() -> bool:
            opened.update(plane.calls.stream_open(queue="s", start="latest"))
            return bool(opened["offset"] >= 20_000)

        wait_until(whole, WAIT_S)
        assert opened["offset"] == 20_000
        tickets = plane.calls.stream_plan(queue="s", stream=opened["stream"], offset=0, end=20_000, slices=1)["tickets"]
        found = [
            body for ticket in tickets for batch in plane.read(json.dumps(ticket).encode()) for body in batch.column("body").to_pylist()
        ]
        assert found == [f"{number}".encode() for number in range(20_000)]

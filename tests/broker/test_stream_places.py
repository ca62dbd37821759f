"""The first place of a stream's group: nothing is given before it is on disk, and nobody waits for the disk under a lock or on a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flintmq.admin.http_refusals import HttpError
from flintmq.admin.pools import Pools
from flintmq.admin.pulls import Held
from flintmq.broker.counters import Counters
from flintmq.broker.dead_letters import DeadLetters
from flintmq.broker.stream_service import StreamService
from flintmq.clock import ManualClock
from flintmq.config import Limits
from flintmq.errors import PeerError, ReplyCode
from flintmq.pulls.pull_service import BUSY, NO_QUEUE, PullRefused, PullService

STREAM = 7


class Log:
    """Durable when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def on_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def sync(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Store:
    def __init__(self) -> None:
        self.saved: list[bytes] = []
        self.deleted: list[int] = []

    def save_group(self, queue_id: int, name: bytes, state: object) -> int:
        self.saved.append(name)
        return 1

    def delete(self, queue_id: int) -> None:
        self.deleted.append(queue_id)


class Stream:
    def open_seat(self, *arguments: Any) -> Any:
        return object()

    def state_of(self, group: bytes) -> bytes:
        return b""

    def tick(self) -> None: ...

    def changed(self, clean: bool) -> list[Any]:
        return []

    def take_dead(self, most: int, behind: tuple[bytes, int] | None = None) -> list[Any]:
        return []


@pytest.fixture
def service() -> StreamService:
    """One stream, on a disk that never finishes by itself."""
    broker: Any = SimpleNamespace(
        limits=Limits(), log=Log(), queues={}, clock=ManualClock(), routes=SimpleNamespace(version=object()), counters=Counters()
    )
    made = StreamService(broker, DeadLetters(broker), Store(), None)
    made._streams[STREAM] = Stream()  # type: ignore[assignment]
    made._places[STREAM] = set()
    return made


def opened(service: StreamService, told: list[str], who: str = "x", group: bytes | None = b"g") -> Any:
    return service.open_seat(STREAM, lambda: told.append(who), ("next", 0), group)


def test_a_group_gives_nothing_before_its_place_is_on_disk(service: StreamService) -> None:
    """Not to who asked first, nor to others that ask meanwhile; all are told, and find the place then. It is noted once."""
    told: list[str] = []
    assert opened(service, told, group=None) is not None
    assert opened(service, told, "first") is None
    assert opened(service, told, "second") is None
    assert told == [] and service._store.saved == [b"g"]
    service._state.log.sync()
    assert told == ["first", "second"]
    assert opened(service, told) is not None
    assert told == ["first", "second"] and service._store.saved == [b"g"]


def test_a_stream_that_is_deleted_meanwhile_is_told(service: StreamService) -> None:
    told: list[str] = []
    assert opened(service, told) is None
    service.delete(STREAM)
    assert told == ["x"]
    with pytest.raises(PeerError) as caught:
        opened(service, told)
    assert caught.value.code == ReplyCode.NOT_FOUND
    service._state.log.sync()
    assert told == ["x"]


def test_groups_of_a_stream_are_limited(service: StreamService) -> None:
    """Those that are there, or come, go on; readers without a group are none."""
    service._state.limits = Limits(stream_groups_max=2)
    told: list[str] = []
    assert opened(service, told, group=b"a") is None
    service._state.log.sync()
    assert opened(service, told, group=b"b") is None
    for group in (b"c", b"d"):
        with pytest.raises(PeerError) as caught:
            opened(service, told, group=group)
        assert caught.value.code == ReplyCode.PRECONDITION_FAILED
        assert caught.value.text == "cannot add a consumer group to the stream: group limit (2) is reached"
    assert opened(service, told, group=b"b") is None, "it comes"
    service._state.log.sync()
    assert None not in (opened(service, told, group=b"a"), opened(service, told, group=b"b"), opened(service, told, group=None))


def test_streams_of_one_vhost_leave_room_for_others(service: StreamService) -> None:
    service._state.limits = Limits(streams_max=4, streams_vhost_max=2)
    service._vhosts = {1: "/", 2: "/"}
    service._check_room("/", "queue 'q'")  # what is restored is never refused
    service._thread = threading.current_thread()
    service._check_room("other", "queue 'q'")
    with pytest.raises(PeerError) as caught:
        service._check_room("/", "queue 'q' in vhost '/'")
    service._thread = None
    assert caught.value.text == "cannot declare stream queue 'q' in vhost '/': stream limit in vhost '/' (2) is reached"


def test_nobody_waits_for_a_tick_that_reads_the_disk(service: StreamService) -> None:
    """A tick stands in the middle of a read: places are opened, the stream is deleted; its files go when the tick ends."""
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(60)

    service._streams[STREAM].tick = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=service.tick)
    thread.start()
    assert begun.wait(60)
    told: list[str] = []
    assert opened(service, told) is None
    service.delete(STREAM)
    assert told == ["x"] and service._store.deleted == []
    go_on.set()
    thread.join(60)
    assert service._store.deleted == [STREAM]


def queue_of() -> Any:
    return SimpleNamespace(
        queue_id=STREAM, name="s", vhost="/", deleted=False, policy=SimpleNamespace(is_stream=True, is_shared=False, browse_only=False)
    )


def pulls_of(service: StreamService) -> PullService:
    broker: Any = SimpleNamespace(
        limits=Limits(),
        streams=service,
        log=service._state.log,
        vhosts={"/": SimpleNamespace(touch=lambda queue: None)},
        paused=frozenset(),
        pauses=SimpleNamespace(followers=[], rests=lambda queue: False),
        is_window=lambda queue: False,
        quotas=SimpleNamespace(alone=lambda: True),
    )
    return PullService(broker, SimpleNamespace(now_ns=lambda: 0))


def test_a_pull_never_waits_for_the_disk(service: StreamService) -> None:
    """The first pull of a group is refused at once while its place is not on disk; `open` says when it is."""
    pulls, told = pulls_of(service), []
    queue = queue_of()
    assert not pulls.is_open(queue, "g")
    assert pulls.declare_group(queue, "g", None, lambda: told.append("open")) is False
    with pytest.raises(PullRefused) as caught:
        pulls.pull(queue, "g", None, None, most=1, bytes_max=1, visibility_ms=30_000, hold_ms=0)  # type: ignore[arg-type]
    assert caught.value.kind == BUSY and not pulls._lock.locked()
    pulls.tick(0)
    service._state.log.sync()
    assert told == ["open"]
    assert pulls.declare_group(queue, "g", None, lambda: told.append("again")) is True
    service.delete(STREAM)
    with pytest.raises(PullRefused) as caught:
        pulls.declare_group(queue, "other", None, lambda: None)
    assert caught.value.kind == NO_QUEUE


def test_the_http_loop_goes_on_while_a_place_is_written(service: StreamService) -> None:
    """The pull waits for its place without its loop; it is over when the place is on disk, and 503 when that takes too long."""
    pulls = pulls_of(service)

    async def run(limits: Limits, sync: bool) -> None:
        parts: Any = SimpleNamespace(pulls=pulls, broker=SimpleNamespace(on_rights_changed=[]))
        held = Held(parts, limits, Pools(limits, lambda: True))
        waiting = asyncio.create_task(held._opened(queue_of(), "g" if sync else "late", None))
        while not service._state.log.waiting:
            await asyncio.sleep(0)  # others' turns
        assert not waiting.done()
        if sync:
            service._state.log.sync()
        await waiting

    asyncio.run(run(Limits(), True))
    with pytest.raises(HttpError) as caught:
        asyncio.run(run(Limits(pull_place_ms=1), False))
    assert caught.value.status == 503

"""What goes by itself and whose deletion the database refuses stays, is tried again later, and holds nothing else up."""

from __future__ import annotations

import pytest

from flintmq.errors import StoreError
from flintmq.store.definitions import MemoryDefinitions
from flintmq.vhost.queue import Queue

from .fakes import World


class Refusing(MemoryDefinitions):
    """Refuses deletions of some names, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()
        self.asked: list[str] = []

    def delete_queue(self, vhost: str, name: str) -> None:
        self._ask(name)
        super().delete_queue(vhost, name)

    def delete_exchange(self, vhost: str, name: str) -> None:
        self._ask(name)
        super().delete_exchange(vhost, name)

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        if name in self.refused:
            raise StoreError("disk full")


@pytest.fixture
def world() -> World:
    return World(Refusing(), sql_retry_ms=1000)


def refusing(world: World) -> Refusing:
    assert isinstance(world.definitions, Refusing)
    return world.definitions


def declare(world: World, name: str, **options: object) -> Queue:
    return world.vhost.run(world.vhost.declare_queue(name, durable=True, **options))  # type: ignore[arg-type]


def test_a_queue_that_should_expire_does_not_stop_the_others_and_is_tried_again(world: World) -> None:
    for name in ("a", "b", "c"):
        declare(world, name, arguments={"x-expires": 100})
    refusing(world).refused = {"b"}
    world.clock.advance(ms=200)
    assert world.vhost.expire_queues() == 2
    assert list(world.vhost.queues) == ["b"]
    for _ in range(5):  # ticks of the housekeeping within sql_retry_ms
        assert world.vhost.expire_queues() == 0
    assert refusing(world).asked.count("b") == 1
    world.clock.advance(ms=1100)
    refusing(world).refused.clear()
    assert world.vhost.expire_queues() == 1
    assert not world.vhost.queues


def test_an_auto_delete_queue_goes_when_the_database_takes_it(world: World) -> None:
    queue = declare(world, "q", auto_delete=True)
    world.vhost.consumer_added(queue)
    refusing(world).refused = {"q"}
    assert world.vhost.consumer_removed(queue) is False
    assert not queue.deleted
    refusing(world).refused.clear()
    world.vhost.expire_queues()
    assert not queue.deleted  # too early
    world.clock.advance(ms=1100)
    world.vhost.expire_queues()
    assert queue.deleted


def test_a_queue_that_got_a_consumer_again_stays(world: World) -> None:
    queue = declare(world, "q", auto_delete=True)
    world.vhost.consumer_added(queue)
    refusing(world).refused = {"q"}
    world.vhost.consumer_removed(queue)
    refusing(world).refused.clear()
    queue.core.consumers = 1
    world.clock.advance(ms=1100)
    world.vhost.expire_queues()
    assert not queue.deleted


def test_the_exclusive_queues_of_a_dead_connection_go_whatever_the_database_says(world: World) -> None:
    """Their auto-delete exchange is durable, and refused: the queues are nobody's any more all the same."""
    world.vhost.run(world.vhost.declare_exchange("x", "fanout", durable=True, auto_delete=True))
    for name in ("a", "b"):
        world.vhost.run(world.vhost.declare_queue(name, exclusive=True, connection_id=1))
        world.vhost.run(world.vhost.bind_queue(name, "x", b""))
    refusing(world).refused = {"x"}
    assert world.vhost.connection_closed(1)
    assert not world.vhost.queues
    assert "x" in world.vhost.exchanges
    refusing(world).refused.clear()
    world.clock.advance(ms=1100)
    world.vhost.expire_queues()
    assert "x" not in world.vhost.exchanges

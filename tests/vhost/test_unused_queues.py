"""x-expires: only queues whose time may be over are looked at, and deleted ones are not kept for it."""

from __future__ import annotations

from .fakes import World


def test_x_expires_looks_at_queues_whose_time_may_be_over() -> None:
    world = World()
    vhost = world.vhost
    for number in range(100):
        vhost.run(vhost.declare_queue(f"q{number}", arguments={"x-expires": 1_000 * (number + 1)}))
    world.clock.advance(ms=999)
    assert (vhost.expire_queues(), vhost.unused.visits) == (0, 0)
    vhost.touch(vhost.queues["q0"])
    world.clock.advance(ms=1)
    assert (vhost.expire_queues(), vhost.unused.visits) == (0, 1)
    world.clock.advance(ms=1_000)
    assert (vhost.expire_queues(), vhost.unused.visits) == (2, 3)  # q0, used once more, and q1


def test_deleted_queues_are_not_kept_until_they_would_have_expired() -> None:
    vhost = World().vhost
    for number in range(1_000):
        vhost.run(vhost.declare_queue(f"q{number}", arguments={"x-expires": 3_600_000}))
        vhost.run(vhost.delete_queue(f"q{number}"))
    assert len(vhost.unused) < 100

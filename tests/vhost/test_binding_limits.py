"""Arguments of bindings are counted, one by one and together, and given back when their binding goes."""

from __future__ import annotations

import pytest

from flintmq.errors import PeerError, ReplyCode

from .fakes import World


def refused(world: World, queue: str, arguments: dict[str, object]) -> str:
    with pytest.raises(PeerError) as error:
        world.vhost.run(world.vhost.bind_queue(queue, "amq.headers", b"", arguments))
    assert error.value.code == ReplyCode.PRECONDITION_FAILED
    return error.value.text


def test_the_arguments_of_one_binding_are_limited() -> None:
    world = World(binding_arguments_bytes_max=1_000)
    world.vhost.run(world.vhost.declare_queue("q"))
    text = refused(world, "q", {"a": "x" * 600})
    assert text.startswith("cannot bind queue 'q' in vhost '/': its arguments take ") and "the limit is 1000" in text
    refused(world, "q", {"a": [{"deep": "x" * 500}]})
    assert world.vhost.run(world.vhost.bind_queue("q", "amq.headers", b"", {"a": "x" * 100}))


def test_the_arguments_of_all_bindings_are_limited_and_given_back() -> None:
    world = World(bindings_arguments_bytes_max=10_000)
    world.vhost.run(world.vhost.declare_queue("q"))
    bound = 0
    while world.vhost.binding_bytes < 9_000:
        world.vhost.run(world.vhost.bind_queue("q", "amq.headers", b"", {"a": bound, "b": "x" * 50}))
        bound += 1
    assert "the limit of 10000 bytes for arguments of bindings in vhost '/' is reached" in refused(world, "q", {"a": "x" * 500})
    assert world.vhost.run(world.vhost.bind_queue("q", "amq.direct", b"no arguments"))
    world.vhost.run(world.vhost.unbind_queue("q", "amq.headers", b"", {"a": 0, "b": "x" * 50}))
    world.vhost.run(world.vhost.delete_queue("q"))
    assert (world.vhost.binding_count, world.vhost.binding_bytes) == (0, 0)

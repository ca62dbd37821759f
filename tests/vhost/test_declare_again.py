"""A queue that is declared again is answered without a verb, and exactly as the verb would answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from flintmq.errors import PeerError
from flintmq.vhost.changes import Names
from flintmq.vhost.virtual_host import VirtualHost

from .fakes import World

NAMES = ["plain", "durable", "own", "others", "limited"]
ARGUMENTS: list[dict[str, Any]] = [{}, {"x-max-length": 5}, {"x-max-length": 6}, {"x-max-length": -1}, {"unknown": 1}]


@pytest.fixture
def vhost() -> VirtualHost:
    vhost = World().vhost
    vhost.run(vhost.declare_queue("plain"))
    vhost.run(vhost.declare_queue("durable", durable=True))
    vhost.run(vhost.declare_queue("own", exclusive=True, auto_delete=True, connection_id=1))
    vhost.run(vhost.declare_queue("others", exclusive=True, connection_id=2))
    vhost.run(vhost.declare_queue("limited", arguments={"x-max-length": 5}))
    return vhost


def outcome(call: Callable[[], Any]) -> Any:
    """The queue, or the refusal's code and text."""
    try:
        return call()
    except PeerError as error:
        return error.code, error.reply_text


@pytest.mark.parametrize("default_type", [None, "quorum"])
def test_the_answers_are_those_of_the_verb(vhost: VirtualHost, default_type: str | None) -> None:
    vhost.default_queue_type = default_type
    for name, arguments in itertools.product(NAMES, ARGUMENTS):
        for passive, durable, exclusive, auto_delete in itertools.product([False, True], repeat=4):
            asked = {"passive": passive, "durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
            asked |= {"arguments": arguments, "connection_id": 1}
            again = outcome(lambda name=name, asked=asked: vhost.declare_again(name, **asked))  # type: ignore[misc]
            assert again is not None
            assert again == outcome(lambda name=name, asked=asked: vhost.run(vhost.declare_queue(name, **asked))), (name, asked)  # type: ignore[misc]


def test_what_is_not_there_or_may_be_under_way_is_left_to_the_verb(vhost: VirtualHost) -> None:
    asked: dict[str, Any] = {"passive": True, "durable": False, "exclusive": False, "auto_delete": False}
    asked |= {"arguments": {}, "connection_id": 1}
    assert vhost.declare_again("nobody", **asked) is None

    pieces = iter([False, True])

    def waits() -> Any:
        yield Names(alone=(("queue", "plain"),))
        yield lambda: next(pieces)

    going: list[Callable[[], bool]] = []
    vhost.use_slices(lambda piece, done=None: going.append(piece))
    vhost.perform(waits(), lambda function: function(), lambda result, failure: None)
    assert going and vhost.declare_again("plain", **asked) is None

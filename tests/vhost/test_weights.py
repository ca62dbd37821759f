"""What definitions and groups of streams take of memory is in the account, and there is an end to it (vhost/weights.py)."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import subprocess
import sys
from functools import partial

import pytest

from flintmq.core.memory_account import bytes_by_kind
from flintmq.errors import PeerError, ReplyCode
from flintmq.vhost.virtual_host import VirtualHost
from flintmq.vhost.weights import Allowance

from .fakes import FakeCore, World


@pytest.mark.parametrize("what", ["definitions", "streams"])
def test_the_account_is_what_malloc_gave(what: str) -> None:
    """Not less than three quarters of what the process grew by, whatever it is: then a limit of the account is one of the process, and the
    gap between the memory limit and the machine's memory (memory_watermark) is wider. Not more than three times as much: a node is not
    refused what it has. In between lie the rounding of malloc and of growing tables, and lengths of names."""
    run = subprocess.run([sys.executable, "-m", "tests.support.weighing", what], capture_output=True, text=True, check=True)
    for name, (process, account) in json.loads(run.stdout).items():
        assert 0.75 * process <= account <= 3 * max(process, 300), (name, process, account)


def limited(one: int, everybody: int) -> tuple[VirtualHost, VirtualHost]:
    world = World()
    allowance = Allowance(one, everybody)
    first, second = (VirtualHost(name, world.definitions, FakeCore, allowance=allowance) for name in ("first", "second"))  # type: ignore[arg-type]
    return first, second


def refusal(call: object) -> str:
    with pytest.raises(PeerError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.code == ReplyCode.PRECONDITION_FAILED
    return caught.value.text


def fill(vhost: VirtualHost) -> str:
    for number in range(10_000):
        try:
            vhost.run(vhost.declare_queue(f"q{number}", arguments={"x-message-ttl": number}))
        except PeerError as error:
            return error.text
    raise AssertionError("there is no end to it")


def test_definitions_of_one_vhost_leave_room_for_those_of_another() -> None:
    first, second = limited(100_000, 150_000)
    first.run(first.declare_exchange("x"))
    text = fill(first)
    assert text.startswith("cannot declare queue 'q")
    assert text.endswith("' in vhost 'first': limit of 100000 bytes of memory for definitions of a vhost is reached")
    assert "cannot declare exchange 'y' in vhost 'first'" in refusal(
        lambda: first.run(first.declare_exchange("y", arguments={"a": "b" * 1000}))
    )
    assert "cannot bind queue 'q1' in vhost 'first': limit of" in refusal(lambda: first.run(first.bind_queue("q1", "x", b"k" * 2000)))
    assert first.run(first.declare_queue("q1", arguments={"x-message-ttl": 1})) is first.queues["q1"], "what is there is not one more"
    assert fill(second).endswith("limit of 150000 bytes of memory for definitions of all vhosts is reached")
    assert second.queues
    first.run(first.delete_queue("q1"))
    first.run(first.delete_queue("q2"))
    assert first.run(first.declare_queue("again"))


def test_what_is_gone_is_not_counted() -> None:
    """Any order of verbs: at the end of everything nothing is held; a restart holds what was held before."""
    gc.collect()  # what other tests left does not go in the midst of it
    world = World()
    vhost = world.vhost
    rng = random.Random(7)
    before = bytes_by_kind()["definitions"] - vhost.holding.bytes
    for step in range(600):
        name = f"n{rng.randrange(12)}"
        other = f"n{rng.randrange(12)}"
        key = b".".join(rng.choice([b"a", b"*", b"#"]) for _ in range(rng.randrange(4)))
        arguments = {"a": step % 3} if rng.random() < 0.5 else {}
        verb = rng.choice(
            [
                partial(vhost.declare_queue, name, durable=True, arguments={"x-message-ttl": 5}),
                partial(vhost.declare_exchange, name, rng.choice(["direct", "topic", "headers"]), durable=True),
                partial(vhost.declare_exchange, name, "topic", auto_delete=True, arguments={"alternate-exchange": other}),
                partial(vhost.bind_queue, name, other, key, arguments),
                partial(vhost.bind_exchange, name, other, key, arguments),
                partial(vhost.unbind_queue, name, other, key, arguments),
                partial(vhost.delete_queue, name),
                partial(vhost.delete_exchange, name),
            ]
        )
        with contextlib.suppress(PeerError):
            vhost.run(verb())
    for exchange in [exchange for exchange in vhost.exchanges.values() if not exchange.durable and exchange.name.startswith("n")]:
        vhost.run(vhost.delete_exchange(exchange.name))
    assert vhost.holding.bytes > 0
    restarted = VirtualHost("/", world.definitions, FakeCore)  # type: ignore[arg-type]
    restarted.restore()
    assert restarted.holding.bytes == vhost.holding.bytes
    for name in list(vhost.queues):
        vhost.run(vhost.delete_queue(name))
    for name in [name for name in vhost.exchanges if name.startswith("n")]:
        vhost.run(vhost.delete_exchange(name))
    assert vhost.holding.bytes == 0
    held = restarted.holding.bytes
    assert bytes_by_kind()["definitions"] == before + held
    del restarted
    gc.collect()
    assert bytes_by_kind()["definitions"] == before, "a vhost that is collected gives back what it had"


def test_an_operator_sets_fewer() -> None:
    vhost = VirtualHost(
        "v",
        World().definitions,
        FakeCore,
        quotas={"max-queues": 1, "max-exchanges": 1, "max-bindings": 1},  # type: ignore[arg-type]
    )
    vhost.run(vhost.declare_queue("q"))
    assert refusal(lambda: vhost.run(vhost.declare_queue("r"))) == "cannot declare queue 'r': queue limit in vhost 'v' (1) is reached"
    vhost.run(vhost.declare_exchange("x"))
    assert (
        refusal(lambda: vhost.run(vhost.declare_exchange("y"))) == "cannot declare exchange 'y': exchange limit in vhost 'v' (1) is reached"
    )
    vhost.run(vhost.bind_queue("q", "x", b"1"))
    assert (
        refusal(lambda: vhost.run(vhost.bind_queue("q", "x", b"2"))) == "cannot bind queue 'q' in vhost 'v': binding limit (1) is reached"
    )
    free = VirtualHost("w", World().definitions, FakeCore, quotas={"max-queues": -1})  # type: ignore[arg-type]
    for number in range(10):
        free.run(free.declare_queue(f"q{number}"))

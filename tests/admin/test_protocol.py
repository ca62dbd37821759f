"""At the limit of HTTP connections one address does not keep the others out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flintmq.admin.protocol import BoundedProtocol, bounded


def made(kind: type[BoundedProtocol], source: str, asks: bool = False) -> Any:
    """A connection of an address, counted; `asks`: a request is on its way."""
    one: Any = object.__new__(kind)
    one._source = source
    one.cycle = SimpleNamespace(response_complete=not asks)
    kind.sources.setdefault(source, {})[one] = None
    return one


def newcomer(kind: type[BoundedProtocol], source: str) -> Any:
    """The connection that makes room for one of an address; it is not counted itself."""
    one: Any = object.__new__(kind)
    one._source = source
    return one._loser()


def test_the_oldest_idle_connection_of_the_largest_address_makes_room() -> None:
    kind = bounded(6, 1.0, {})
    made(kind, "192.0.2.7", asks=True)
    idle = made(kind, "192.0.2.7")
    made(kind, "192.0.2.7")
    made(kind, "192.0.2.8")
    assert newcomer(kind, "192.0.2.9") is idle
    assert newcomer(kind, "192.0.2.8") is idle


def test_the_largest_address_makes_room_for_no_more_of_its_own() -> None:
    kind = bounded(3, 1.0, {})
    for _ in range(3):
        made(kind, "192.0.2.7")
    made(kind, "192.0.2.8")
    made(kind, "192.0.2.8")
    assert newcomer(kind, "192.0.2.7") is None
    assert newcomer(kind, "192.0.2.8") is None, "nearly as many"


def test_requests_that_are_on_their_way_are_cut_for_small_addresses_only() -> None:
    """2,000 held polls of one address keep nobody out, and are not cut for an address with as many of its own."""
    kind = bounded(6, 1.0, {})
    held = [made(kind, "192.0.2.7", asks=True) for _ in range(4)]
    for _ in range(2):
        made(kind, "192.0.2.8", asks=True)
    assert newcomer(kind, "192.0.2.9") is held[0]
    assert newcomer(kind, "192.0.2.8") is None

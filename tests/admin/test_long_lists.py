"""Long lists of the management API are shown in pieces: between two of them the HTTP loop, and the threads of the broker, have a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flintmq.admin import api_access, api_definitions, api_names
from flintmq.admin.api_lists import KEYS_PIECE, PIECE
from flintmq.ports import PermissionRecord, UserRecord
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client

COUNT = 3 * PIECE + 7


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Broker(http_port=0) as broker:
        vhost = broker.node.broker.vhosts["/"]
        for number in range(COUNT):
            broker.node.users.put(UserRecord(f"u{number}", "", ()))
            broker.node.permissions.set_permissions(PermissionRecord(f"u{number}", "/", "", "", ""))
            vhost.run(vhost.declare_queue(f"q{number}", durable=True))
        yield Api(Client(broker))


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the loop was given a turn, in one cell."""
    cell, sleep = [0], asyncio.sleep

    async def counted(seconds: float, *result: Any) -> Any:
        cell[0] += seconds == 0
        return await sleep(seconds, *result)

    monkeypatch.setattr(asyncio, "sleep", counted)
    return cell


# path, the module and name of what shows one object, members of the answer to count (None: the answer itself)
CASES = [
    ("users", api_access, "shown_user", None),
    ("users/without-permissions", api_access, "shown_user", None),
    ("permissions", api_access, "shown_permission", None),
    ("bindings", api_names, "_show_binding", None),
    ("queues/%2F/q1/bindings", api_names, "_show_binding", None),
    ("definitions", api_definitions, "shown_user", "users"),
    ("definitions", api_definitions, "shown_permission", "permissions"),
]


@pytest.mark.parametrize(("path", "module", "show", "member"), CASES)
def test_no_piece_is_long(
    api: Api, turns: list[int], monkeypatch: pytest.MonkeyPatch, path: str, module: Any, show: str, member: Any
) -> None:
    shown: list[int] = []
    before: Callable[..., Any] = getattr(module, show)

    def counted(*arguments: Any) -> Any:
        shown.append(turns[0])
        return before(*arguments)

    monkeypatch.setattr(module, show, counted)
    value = api.get(path)
    found = value[member] if member else value
    assert len(shown) == len(found)
    # a turn behind each 32 KiB of JSON, and each millisecond
    assert not shown or max(shown.count(turn) for turn in set(shown)) <= 4 * PIECE < KEYS_PIECE
    if path in ("users", "permissions", "bindings", "definitions"):
        assert len(found) >= COUNT


def test_a_definitions_file_in_pieces_is_the_file(api: Api) -> None:
    """What is exported is imported again."""
    value = api.get("definitions")
    members = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies")
    assert {*members, "queues", "exchanges", "bindings", "rabbit_version"} <= value.keys()
    assert {one["vhost"] for one in value["queues"]} == {"/"} and len(value["queues"]) == COUNT
    assert api.ask("POST", "definitions", value).status == 204
    assert api.get("definitions") == value

"""Pages, filters, orders and columns of RabbitMQ's lists."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.admin import api_lists
from flintmq.admin.answers import made
from flintmq.admin.api_lists import Listing, listed
from flintmq.admin.http_refusals import HttpError
from flintmq.admin.json_out import steps
from flintmq.testing.broker import Broker
from tests.admin.api import Api
from tests.admin.conftest import Client


def names(text: str, items: list[str]) -> list[str]:
    response = asyncio.run(listed(Listing(items, lambda name: {"name": name}, str), {"page": "1", "name": text, "use_regex": "true"}))
    return [one["name"] for one in json.loads(written(response))["items"]]


def test_patterns_are_those_of_rabbitmq_without_case() -> None:
    items = ["orders.1", "Orders.22", "amq.gen-x", "retry"]
    assert names("^orders\\.[[:digit:]]{2}$", items) == ["Orders.22"]
    assert names("^(?!amq\\.).*s", items) == ["orders.1", "Orders.22"]
    assert names("(a+)+$|retry", ["a" * 100 + "b" * 100, "retry"]) == ["retry"]


def test_a_slow_pattern_holds_nobody_up() -> None:
    """Each name has its budget, and others have turns between names."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> Any:
        task = asyncio.create_task(others())
        items = [f"{'a' * 60}{number}" for number in range(1000)]
        query = {"page": "1", "name": "(a+)+[bc]", "use_regex": "true"}
        found = await listed(Listing(items, lambda name: {"name": name}, str), query)
        task.cancel()
        return json.loads(written(found))

    assert asyncio.run(run())["filtered_count"] == 0
    assert turns > 50


@pytest.mark.parametrize("text", ["[", "(?:a{1,1000}){1,1000}", "a" * 600])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(HttpError, match="Pagination parameters are invalid: 'name' with use_regex"):
        names(text, ["a"])


def written(response: Any) -> str:
    return "".join(piece for piece in steps(response._value) if isinstance(piece, str))


def test_a_page_has_bounded_bytes_and_says_when_it_is_cut() -> None:
    listing = Listing(range(100), lambda number: {"n": number, "pad": "x" * 1_000}, str, {}, 10_000)
    value = json.loads(written(asyncio.run(listed(listing, {"page": "1"}))))
    assert value["item_count"] == len(value["items"]) == 10 and value["filtered_count"] == value["total_count"] == 100
    assert "page_size" in value["cut"]
    assert len(json.loads(written(asyncio.run(listed(listing, {}))))) == 100  # a list without pages holds nothing, and is whole


def test_what_is_fetched_is_fetched_for_the_page_or_in_batches() -> None:
    """Channels are asked for on the loops of their connections: those of the page, or some at a time as the answer leaves."""
    asked: list[int] = []

    async def fetch(some: Sequence[int]) -> list[dict[str, Any]]:
        asked.append(len(some))
        return [{"name": str(number), "n": -number} for number in some]

    async def run(query: dict[str, str]) -> list[int]:
        response = await listed(Listing(range(1_000), lambda number: {}, str, fetch=fetch), query)
        value = json.loads(b"".join([piece async for piece in made(response._value)]))  # type: ignore[attr-defined]
        return [one["n"] for one in (value if isinstance(value, list) else value["items"])]

    assert asyncio.run(run({"page": "3", "page_size": "10"})) == [-number for number in range(20, 30)] and asked == [10]
    asked.clear()
    assert asyncio.run(run({})) == [-number for number in range(1_000)] and max(asked) == api_lists.BATCH
    assert asyncio.run(run({"page": "1", "page_size": "2", "sort": "n"})) == [-999, -998]
    assert asyncio.run(run({"page": "1", "name": "99"}))[0] == -99


def test_what_is_not_on_the_page_is_not_shown() -> None:
    """Of 10,000 objects the page's ten are shown; an order by a cheap value looks at the value alone."""
    shows: list[int] = []

    def show(number: int) -> dict[str, Any]:
        shows.append(number)
        return {"name": str(number), "count": -number}

    listing = Listing(range(10_000), show, str, {"count": lambda number: -number})
    response = asyncio.run(listed(listing, {"page": "3", "page_size": "10", "sort": "count", "columns": "name"}))
    assert response.status_code == 200 and shows == []
    value = json.loads(written(response))
    assert value["item_count"] == 10 and "cut" not in value
    assert shows == [9979 - one for one in range(10)]


@given(st.lists(st.integers(0, 50), max_size=300), st.booleans(), st.integers(1, 40))
def test_sorting_in_pieces_is_sorting(values: list[int], downwards: bool, piece: int) -> None:
    items = list(enumerate(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_lists, "SORT_PIECE", 16)
        found = asyncio.run(api_lists.in_order(items, lambda item: item[1], downwards, piece))
    assert found == sorted(items, key=lambda item: item[1], reverse=downwards)


def test_others_have_turns_while_a_long_list_is_sorted() -> None:
    """Of 20,000 objects no piece that is sorted has more than 2,000."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> list[int]:
        other = asyncio.create_task(others())
        found = await api_lists.in_order(range(20_000, 0, -1), lambda number: number)
        other.cancel()
        return found

    assert asyncio.run(run()) == [*range(1, 20_001)] and turns >= 30


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Broker(http_port=0) as broker:
        api = Api(Client(broker))
        for number in range(25):
            api.put(f"queues/%2F/q{number:02}", {"durable": number % 2 == 0})
        for number in range(3):
            publish = {"properties": {}, "routing_key": f"q0{number}", "payload": "x" * number, "payload_encoding": "string"}
            for _ in range(number):
                api.post("exchanges/%2F/amq.default/publish", publish)
        yield api


def test_a_page(api: Api) -> None:
    value = api.get("queues?page=2&page_size=10&columns=name")
    assert value.pop("items") == [{"name": f"q{number}"} for number in range(10, 20)]
    assert value == {"filtered_count": 25, "item_count": 10, "page": 2, "page_count": 3, "page_size": 10, "total_count": 25}
    assert api.get("queues/%2F?page=1&name=Q1")["filtered_count"] == 10  # small letters are compared
    assert api.get("queues/%2F?page=1&name=%5Eq.*5%24&use_regex=true&columns=name")["items"] == [{"name": "q05"}, {"name": "q15"}]
    assert api.get("queues?page=1&name=nothing")["items"] == []
    assert len(api.get("queues?name=q2")["items"]) == 5


def test_without_a_page(api: Api) -> None:
    assert [one["name"] for one in api.get("queues?columns=name")] == [f"q{number:02}" for number in range(25)]
    names = [one["name"] for one in api.get("queues?sort=name&sort_reverse=true&columns=name")]
    assert names == [f"q{number:02}" for number in reversed(range(25))]
    by_count = api.get("queues?sort=messages&sort_reverse=true&columns=name,messages,message_stats.publish")
    assert by_count[:2] == [
        {"name": "q02", "messages": 2, "message_stats": {"publish": 2}},
        {"name": "q01", "messages": 1, "message_stats": {"publish": 1}},
    ]
    assert api.get("queues?sort=effective_policy_definition&columns=durable")[0].keys() == {"durable"}
    assert api.get("queues?columns=nothing")[0] == {}


def test_without_statistics(api: Api) -> None:
    bare = api.get("queues?disable_stats=true")[2]
    assert bare["name"] == "q02" and "messages" not in bare and "message_stats" not in bare
    totals = api.get("queues?disable_stats=true&enable_queue_totals=true")[2]
    assert totals["messages"] == totals["messages_ready"] == 2 and "message_stats" not in totals


def test_the_page_behind_the_last_one() -> None:
    """As RabbitMQ, whose lists have an empty page behind a full one, and then none."""
    for count, page, empty in ((20, 3, True), (20, 4, False), (15, 2, False), (15, 3, False), (0, 1, True), (0, 2, False)):
        listing = Listing(range(count), lambda number: {"n": number}, str)
        query = {"page": str(page), "page_size": "10"}
        if (page - 1) * 10 > count:
            with pytest.raises(HttpError) as refused:
                asyncio.run(listed(listing, query))
            assert refused.value.error == "page_out_of_range"
            assert refused.value.reason == f"Page out of range, page: {page} page size: 10, len: {count}"
        else:
            assert (json.loads(written(asyncio.run(listed(listing, query))))["items"] == []) is empty


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("page=9&page_size=10", "page_out_of_range"),
        ("page=0", "invalid_pagination_parameters"),
        ("page=1&page_size=501", "invalid_pagination_parameters"),
        ("page=x", "bad_request"),
        ("page=1&name=%5B&use_regex=true", "bad_request"),
    ],
)
def test_pages_that_there_are_not(api: Api, query: str, error: str) -> None:
    assert api.get(f"queues?{query}", 400)["error"] == error


def test_the_order_follows_changes(api: Api) -> None:
    """The order of names is kept between polls; what is declared or deleted is in it at once."""
    assert api.get("queues?page=1&page_size=1&columns=name")["items"] == [{"name": "q00"}]
    api.put("queues/%2F/a-first", {})
    assert api.get("queues?page=1&page_size=1&columns=name")["items"] == [{"name": "a-first"}]
    api.delete("queues/%2F/a-first")
    assert api.get("queues?page=1&page_size=1&columns=name")["items"] == [{"name": "q00"}]

"""Lists of RabbitMQ's API: pages, name filter, order, columns; in pieces, so that a long list holds nobody up.

in: objects, a function that shows one of them, the query. out: a response.

G1  What is not on the page is not shown: only its name, and the value that orders it, are looked at.
G2  No piece of the work takes the interpreter for more than some milliseconds: between pieces other requests, and the I/O loops, have
turns.
G3  `use_regex` is a pattern as RabbitMQ's, without case (patterns.py); what can't be decided within its budget is not in the list.
G4  Items are shown one by one as the answer leaves (admin.answers). A page has Limits.http_page_bytes_max of them, or one item, and
    says when it is cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.responses import Response

from flintmq.admin.answers import answer
from flintmq.admin.http_refusals import HttpError, bad
from flintmq.admin.json_out import Batches, Members, Rows
from flintmq.config import Limits
from flintmq.patterns import SHORT_BYTES_MAX, Among, Pattern, check

T = TypeVar("T")
PAGE_SIZE, PAGE_SIZE_MAX = 100, 500
# characters of a text that orders
_KEY_MAX = 1_024
# objects that are shown, or asked for the value that orders them, in one piece
PIECE, KEYS_PIECE = 50, 250
# objects that are fetched at a time
BATCH = 256
# objects that are sorted in one piece, in which no other thread runs Python: 100,000 at once keep the interpreter for 100 ms
SORT_PIECE = 2_000
# nanoseconds in which names are looked at in one piece
NAMES_NS = 500_000
_INVALID = "Pagination parameters are invalid"


class Listing(NamedTuple, Generic[T]):
    """A list to show. Args: items: in the order of their names; show: one as a dict; name: of one; keys: column -> cheap value of one;
    fetch: in place of `show`, of some at a time: what has to be asked for elsewhere."""

    items: Sequence[T]
    show: Callable[[T], dict[str, Any]]
    name: Callable[[T], str]
    keys: Mapping[str, Callable[[T], Any]] = {}
    page_bytes_max: int = Limits.http_page_bytes_max
    fetch: Callable[[Sequence[T]], Awaitable[Sequence[dict[str, Any]]]] | None = None


async def listed(listing: Listing[T], query: Mapping[str, str], *, paged: bool = True) -> Response:
    """The answer to a list request. Raises: HttpError 400."""
    columns = _columns(query)
    asks_page = paged and any(name in query for name in ("page", "page_size", "name", "use_regex", "pagination"))
    items = listing.items
    if listing.fetch is not None and query.get("sort"):  # an order may be by anything: all are asked for
        values = [one for start in range(0, len(items), BATCH) for one in await listing.fetch(items[start : start + BATCH])]
        named: Listing[Any] = Listing(values, dict, lambda value: str(value["name"]), {}, listing.page_bytes_max)
        return await listed(named, query, paged=paged)
    show = partial(_shown, listing.show, columns)
    if not asks_page:
        if listing.fetch is not None:
            return answer(Batches(_batches(items, listing.fetch, columns)))
        return answer(Rows(await _ordered(listing, items, query), show))
    page, size = _page(query)
    chosen = await _filtered(listing, query)
    ordered = await _ordered(listing, chosen, query)
    pages = -(-len(ordered) // size)
    if (page - 1) * size > len(ordered):  # the empty page behind a full last one is none
        reason = f"Page out of range, page: {page} page size: {size}, len: {len(ordered)}"
        raise HttpError(400, "page_out_of_range", reason)
    some: Sequence[Any] = ordered[(page - 1) * size : page * size]
    if listing.fetch is not None:
        some, show = await listing.fetch(some), partial(_shown, dict, columns)
    rows = Rows(some, show, listing.page_bytes_max)
    counts = {"page": page, "page_count": pages, "page_size": size, "total_count": len(items)}
    return answer(Members(_page_members(rows, {"filtered_count": len(ordered)}, counts)))


def _batches(items: Sequence[T], fetch: Any, columns: Sequence[Sequence[str]]) -> Callable[[], Awaitable[Sequence[Any]]]:
    """What Batches asks for the next values: they are asked for when those before have left."""
    starts = iter(range(0, len(items), BATCH))

    async def next_batch() -> Sequence[Any]:
        start = next(starts, None)
        return [] if start is None else [_cut(one, columns) for one in await fetch(items[start : start + BATCH])]

    return next_batch


def _page_members(rows: Rows, before: Mapping[str, int], behind: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """G4. Rows are counted once they are written."""
    yield from before.items()
    yield "items", rows
    yield "item_count", rows.count
    yield from behind.items()
    if rows.cut:
        yield "cut", f"the page ends at {rows.bytes_max} bytes: ask for a smaller page_size"


def _shown(show: Callable[[T], dict[str, Any]], columns: Sequence[Sequence[str]], item: T) -> dict[str, Any]:
    return _cut(show(item), columns)


def _page(query: Mapping[str, str]) -> tuple[int, int]:
    texts = query.get("page", "1"), query.get("page_size", str(PAGE_SIZE))
    if not all(text.isascii() and text.isdigit() and len(text) <= 9 for text in texts):
        raise bad(_INVALID)
    page, size = map(int, texts)
    if page < 1 or not 1 <= size <= PAGE_SIZE_MAX:
        reason = f"Invalid pagination parameters: page number {page}, page size {size if 'page_size' in query else 'undefined'}"
        raise HttpError(400, "invalid_pagination_parameters", reason)
    return page, size


# --- names ------------------------------------------------------------------------------------------------------------------


async def _filtered(listing: Listing[T], query: Mapping[str, str]) -> Sequence[T]:
    """Raises: HttpError 400."""
    text = query.get("name", "")
    if not text:
        return listing.items
    if query.get("use_regex") != "true":
        wanted = text.lower()  # RabbitMQ compares small letters
        return await _chosen(listing, lambda name: wanted in name.lower())
    reason = check(text, SHORT_BYTES_MAX)
    if reason is not None:
        raise bad(f"{_INVALID}: 'name' with use_regex: {reason}")
    pattern, among = Pattern(text, "filter", caseless=True), Among.for_names()
    return await _chosen(listing, lambda name: pattern.matches(name, among))


async def _chosen(listing: Listing[T], is_wanted: Callable[[str], bool]) -> Sequence[T]:
    """In pieces (G2)."""
    chosen: list[T] = []
    began = time.monotonic_ns()
    for one in listing.items:
        if is_wanted(listing.name(one)):
            chosen.append(one)
        if time.monotonic_ns() - began > NAMES_NS:
            await asyncio.sleep(0)
            began = time.monotonic_ns()
    return chosen


# --- order ------------------------------------------------------------------------------------------------------------------


async def _ordered(listing: Listing[T], items: Sequence[T], query: Mapping[str, str]) -> Sequence[T]:
    column, downwards = query.get("sort", ""), query.get("sort_reverse") == "true"
    if not column:
        return items
    key = listing.keys.get(column)
    if key is None:
        path = column.split(".")
        key = lambda one: _at(listing.show(one), path)  # noqa: E731
    piece = KEYS_PIECE if column in listing.keys else PIECE
    return await in_order(items, lambda one: _comparable(key(one)), downwards, piece)


async def in_order(items: Iterable[T], key: Callable[[T], Any], downwards: bool = False, piece: int = SORT_PIECE) -> list[T]:
    """Sorted, those with equal keys in the order in which they came. In pieces (G2). Args: piece: keys that are asked for in one."""
    items, runs = list(items), []
    run: list[tuple[Any, T]] = []
    for start in range(0, len(items), piece):
        run += [(key(one), one) for one in items[start : start + piece]]
        if len(run) >= SORT_PIECE or start + piece >= len(items):
            run.sort(key=itemgetter(0), reverse=downwards)
            runs.append(run)
            run = []
        await asyncio.sleep(0)
    merged = merge(*runs, key=itemgetter(0), reverse=downwards)
    ordered: list[T] = []
    while some := [one for _, one in islice(merged, KEYS_PIECE)]:
        ordered += some
        await asyncio.sleep(0)
    return ordered


def _comparable(value: Any) -> tuple[int, Any]:
    """Values of all types have an order: what is not there first, then numbers, then texts, then what has no order: lists and objects."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return (2, value[:_KEY_MAX]) if isinstance(value, str) else (3, 0)


# --- columns ----------------------------------------------------------------------------------------------------------------


def _columns(query: Mapping[str, str]) -> list[list[str]]:
    text = query.get("columns", "")
    return [one.split(".") for one in text.split(",") if one][:64]


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _cut(value: dict[str, Any], columns: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The columns that were asked for, in their places; what is not there is left out."""
    if not columns:
        return value
    result: dict[str, Any] = {}
    for path in columns:
        field = _at(value, path)
        if field is None and (len(path) > 1 or path[0] not in value):
            continue
        place = result
        for name in path[:-1]:
            inner = place.setdefault(name, {})
            place = inner if isinstance(inner, dict) else {}
        place[path[-1]] = field
    return result


def one(value: dict[str, Any], query: Mapping[str, str]) -> Response:
    """One object, with the columns that were asked for."""
    return answer(_cut(value, _columns(query)))

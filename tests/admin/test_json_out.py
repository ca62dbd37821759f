"""JSON of answers: what comes out is what the standard library reads back, in bounded pieces; and nobody else makes it."""

from __future__ import annotations

import ast
import asyncio
import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flintmq.admin
from flintmq.admin.answers import made
from flintmq.admin.json_out import PIECE, TURN, Batches, Body, Members, Rows, dumps, steps

# the escape of a control character is six characters, of a character beyond the first plane twelve
LARGEST = PIECE + 12 * 24 * 1024


class Plain:
    """A body in memory, as core.content_view.ContentView shows one. asked: sizes of the pieces that were read."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.asked: list[int] = []

    @property
    def body_bytes(self) -> int:
        return len(self.raw)

    def body(self, start: int = 0, size: int = 0xFFFFFFFF) -> bytes:
        self.asked.append(size)
        return self.raw[start : start + size]


def strict(text: str) -> Any:
    """What a parser reads that takes neither names twice, nor half characters, nor numbers that are none."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in found}) == len(found), "a name stands twice"
        return dict(found)

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    value = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # a half character would fail
    return value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@given(VALUES)
def test_plain_values_are_read_back(value: Any) -> None:
    text = dumps(value)
    assert text.isascii() and strict(text) == value


@given(st.dictionaries(st.text(st.characters(), max_size=3), st.text(st.characters()), max_size=8))
def test_half_characters_never_leave(value: dict[str, str]) -> None:
    """D4. All code points, halves among them, in names and values: what leaves is JSON that strict parsers take, with all members."""
    found = strict(dumps(value))
    assert len(found) == len(value)
    assert sorted(found.values()) == sorted(found.values(), key=str)


def test_names_that_become_equal_stay_apart() -> None:
    assert list(strict(dumps(dict.fromkeys([chr(0xDC80), chr(0xDC81), chr(0xFFFD), "a"])))) == ["\ufffd", "\ufffd~2", "\ufffd~3", "a"]


def test_what_amqp_has_and_json_has_not() -> None:
    found = strict(dumps({"b": b"\xff\x00", "t": b"text", "n": math.nan, "i": -math.inf, "v": memoryview(b"x"), "o": Path("/p"), 7: 1}))
    assert found == {"b": {"base64": "/wA="}, "t": "text", "n": "nan", "i": "-inf", "v": "x", "o": "/p", "7": 1}


@pytest.mark.parametrize("raw", [b"", b"plain", "grün €😀".encode() * 40_000, bytes(range(32)) * 20_000, b"\xff" * 100_001, b"x" * 300_000])
@pytest.mark.parametrize("encoding", ["auto", "base64"])
def test_a_body_is_read_in_pieces(raw: bytes, encoding: str) -> None:
    view = Plain(raw)
    body = Body(view, encoding)

    def members() -> Iterator[tuple[str, Any]]:
        yield from body.look()
        yield "body", body
        yield "kind", body.kind

    pieces = [piece for piece in steps(Members(members())) if isinstance(piece, str)]
    found = strict("".join(pieces))
    got = found["body"].encode() if found["kind"] == "text" else base64.b64decode(found["body"], validate=True)
    assert got == raw and (found["kind"] == "text") == (encoding == "auto" and b"\xff" not in raw)
    assert max(map(len, pieces)) <= LARGEST and max(view.asked, default=0) <= 24 * 1024


@pytest.mark.parametrize(("raw", "most", "shown"), [("aü".encode(), 2, "a"), ("€€".encode(), 4, "€"), (b"abc", 0, ""), (b"abc", 9, "abc")])
def test_a_cut_leaves_whole_characters(raw: bytes, most: int, shown: str) -> None:
    body = Body(Plain(raw), "auto", most)
    assert all(turn is TURN for turn in body.look())
    assert body.kind == "text" and strict(dumps(body)) == shown


def test_a_body_that_ends_in_a_half_character_is_no_text() -> None:
    body = Body(Plain("aü".encode()[:-1]), "auto")
    list(body.look())
    assert body.kind == "base64"


def test_pieces_are_bounded_whatever_is_in_them() -> None:
    value = {"text": "\x00" * 1_000_000, "list": ["ü" * 30_000] * 50, "deep": [[[{"a" * 50_000: b"\xff" * 100_000}]]]}
    pieces = [piece for piece in steps(value) if isinstance(piece, str)]
    assert max(map(len, pieces)) <= LARGEST + 50_000 and len(pieces) > 100
    assert strict("".join(pieces))["text"] == value["text"]


def test_items_are_made_as_they_are_written_and_a_page_ends() -> None:
    made_: list[int] = []

    def show(number: int) -> dict[str, Any]:
        made_.append(number)
        return {"n": number, "pad": "x" * 10_000}

    rows = Rows(range(1_000), show, 100_000)

    def page() -> Iterator[tuple[str, Any]]:
        yield "items", rows
        yield "item_count", rows.count
        yield "cut", rows.cut

    writing = steps(Members(page()))
    next(writing)
    assert len(made_) <= 4  # no more than what was written
    text = "".join(piece for piece in steps(Members(page())) if isinstance(piece, str))
    assert text
    whole = Rows(range(3), lambda number: number, 1)
    assert strict(dumps(whole)) == [0] and whole.cut and whole.count == 1


def test_batches_are_waited_for() -> None:
    left = [[1, 2], [3], []]

    async def fetch() -> list[int]:
        await asyncio.sleep(0)
        return left.pop(0)

    async def run() -> bytes:
        return b"".join([piece async for piece in made({"a": Batches(fetch), "b": 1})])

    assert strict(asyncio.run(run()).decode()) == {"a": [1, 2, 3], "b": 1}


# --- nobody else --------------------------------------------------------------------------------------------------------------

FOLDER = Path(flintmq.admin.__file__).parent
# function -> modules that may call it, and why: nothing there is of unbounded size
ALLOWED = {
    "dumps": {"json_out.py", "answers.py"},
    "dump": set(),
    "JSONEncoder": set(),
    "JSONResponse": set(),
    "encode_basestring_ascii": {"json_out.py"},
    "b64encode": {"json_out.py", "messages.py"},  # messages: a header field as a filter compares it, at most a frame
    "urlsafe_b64encode": {"api_names.py"},  # a hash of four bytes
}
# (module, function) -> why its own `json.dumps` is bounded
BOUNDED = {("filters.py", "dumps"): "a value of JSON of at most search_json_bytes_max"}


def _calls(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node.lineno
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("json"):
            for one in node.names:
                yield one.name, node.lineno


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_other_module_makes_json(path: Path) -> None:
    """J3. An answer of JSON is made by admin.answers.answer alone: it is bounded then, whatever is in it."""
    for name, line in _calls(path):
        where = f"{path.name}:{line}: {name}"
        if name in ALLOWED and (path.name, name) not in BOUNDED:
            assert path.name in ALLOWED[name], f"{where}: use admin.answers.answer, which bounds its pieces"
    if path.name not in ("answers.py", "auth.py", "operations.py", "static.py", "protocol.py"):
        assert '"application/json"' not in path.read_text(), f"{path.name} makes an answer of JSON of its own: use admin.answers.answer"

"""JSON: the one way that values become it. In pieces, so that no answer is held whole and no call keeps the interpreter for long.

in: plain values, values of AMQP's tables, lists and objects that are made as they are written, bodies where they lie. out: pieces of text.

J1  A piece has about PIECE characters, and no call of C works on more than STEP characters or bytes: none keeps the interpreter for longer
    than 0.3 ms, whatever it is given. After SLICE_S of work others have their turn.
J2  What is written is JSON of RFC 8259 in ASCII that strict parsers take: half characters become U+FFFD, in names as in values, and names
    of one object stay different; bytes that are no UTF-8 become {"base64": ...}; nan, inf and what JSON does not know become text.
J3  Nothing else in admin makes JSON (tests/admin/test_json_out.py looks).
"""

from __future__ import annotations

import base64
import codecs
import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from time import perf_counter
from typing import Any, Protocol

# characters of a piece, about; characters, or bytes (a multiple of 3: base64 of pieces is base64 of the whole), of one call of C
PIECE = 32 * 1024
STEP = 24 * 1024
# seconds of work between two turns of others
SLICE_S = 0.001
# values that are written between two looks at the clock
_LOOK = 32
# names whose text is kept: those that the code itself writes
_names: dict[str, str] = {}
_NAMES_MAX = 2_000
# bits of a number that is written as one: Python refuses to write numbers of more than 4,300 digits
_BITS_MAX = 8_192
# what stands for half a character
_HALF = "\ufffd"

# A turn of others ("" as a piece), a piece of text, or something to wait for.
Step = str | Awaitable[Any]


class Readable(Protocol):
    """core.content_view.ContentView"""

    @property
    def body_bytes(self) -> int: ...
    def body(self, start: int = 0, size: int = 0xFFFFFFFF) -> bytes: ...


class Rows:
    """A list whose items are made one by one as they are written.

    Args: items: what there is; show: makes the value of one; bytes_max: characters of JSON after which the list ends before its end, 0: no
    end but its own. After it was written, `count` says how many items were, `cut` whether some were left out.
    """

    __slots__ = ("bytes_max", "count", "cut", "items", "show")

    def __init__(self, items: Sequence[Any], show: Callable[[Any], Any], bytes_max: int = 0) -> None:
        self.items, self.show, self.bytes_max = items, show, bytes_max
        self.count, self.cut = 0, False


class Batches:
    """A list whose items come some at a time. Args: fetch: the next ones, in a list; an empty one: there are no more."""

    __slots__ = ("fetch",)

    def __init__(self, fetch: Callable[[], Awaitable[Sequence[Any]]]) -> None:
        self.fetch = fetch


class Members:
    """An object whose members are made as they are written: (name, value), or TURN, which gives others their turn."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        self.pairs = pairs


TURN: tuple[str, Any] = ("", None)


class Body:
    """A message's body as a text: itself when it is UTF-8 and `encoding` is "auto", else base64.

    Args: view: where it lies; encoding; most: bytes that are shown, None: all. `look` must be gone through before `kind` is known.
    """

    __slots__ = ("_is_text", "_size", "_view")

    def __init__(self, view: Readable, encoding: str, most: int | None = None) -> None:
        self._view = view
        self._size = view.body_bytes if most is None else min(view.body_bytes, most)
        self._is_text = encoding == "auto"

    def _read(self) -> Iterator[bytes]:
        for start in range(0, self._size, STEP):
            yield self._view.body(start, min(STEP, self._size - start))

    def look(self) -> Iterator[tuple[str, Any]]:
        """Finds out whether it is UTF-8; a TURN for each piece. A character that the cut goes through is left out, and is no mistake."""
        if not self._is_text:
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for piece in self._read():
                decoder.decode(piece)
                yield TURN
            self._size -= len(decoder.getstate()[0]) if self._size < self._view.body_bytes else 0
            decoder.decode(b"", self._size == self._view.body_bytes)
        except UnicodeDecodeError:
            self._is_text = False

    @property
    def kind(self) -> str:
        """ "text" or "base64"."""
        return "text" if self._is_text else "base64"

    def texts(self) -> Iterator[str]:
        """The text between the quotes."""
        if self._is_text:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            for piece in self._read():
                yield _quoted(decoder.decode(piece))[1:-1]
        else:
            for piece in self._read():
                yield base64.b64encode(piece).decode()


def whole_text(text: str) -> str:
    """The text with U+FFFD where it has half characters. O(length)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        try:  # octets of AMQP that are no UTF-8: one sign for each sequence, as decoders have it
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _name(name: Any, frame: _Frame) -> str:
    """A member's name with its colon."""
    text = name if type(name) is str else str(name)
    known = _names.get(text)
    if known is not None:
        return known
    if text.isascii():
        written = _quoted(text) + ":"
        if len(text) <= 64 and len(_names) < _NAMES_MAX:
            _names[text] = written
        return written
    whole = whole_text(text)
    if _HALF in whole:  # J2. Only such names can be equal now
        used = frame.used = set() if frame.used is None else frame.used
        plain, number = whole, 1
        while whole in used:
            number += 1
            whole = f"{plain}~{number}"
        used.add(whole)
    return _quoted(whole) + ":"


class _Frame:
    """A list or object that is being written. items: what follows; rows, fetch: of Rows and Batches; begun_at: characters before it."""

    __slots__ = ("begun_at", "closing", "empty", "fetch", "is_object", "items", "rows", "used")

    def __init__(self, items: Iterator[Any], is_object: bool, rows: Rows | None = None, fetch: Any = None, begun_at: int = 0) -> None:
        self.items, self.is_object, self.rows, self.fetch = items, is_object, rows, fetch
        self.closing = "}" if is_object else "]"
        self.empty = True
        self.used: set[str] | None = None
        self.begun_at = begun_at


def _scalar(value: Any) -> str | None:
    """The JSON of a value that is short by its kind; None: it is none of those."""
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return repr(value) if value.bit_length() <= _BITS_MAX else _quoted(hex(value))
    if kind is float:
        return repr(value) if math.isfinite(value) else f'"{value}"'
    if isinstance(value, bool | int):
        return _scalar(int(value))
    return _scalar(float(value)) if isinstance(value, float) else None


def _open(value: Any, written: int) -> _Frame | str:
    """The frame of a list or object; of anything else its text."""
    if isinstance(value, Mapping):
        return _Frame(iter(value.items()), True)
    if isinstance(value, list | tuple):
        return _Frame(iter(value), False)
    if isinstance(value, Rows):
        return _Frame(map(value.show, value.items), False, rows=value, begun_at=written)
    if isinstance(value, Members):
        return _Frame(iter(value.pairs), True)
    if isinstance(value, Batches):
        return _Frame(iter(()), False, fetch=value.fetch)
    if isinstance(value, set | frozenset):
        return _Frame(iter(sorted(value, key=str)), False)
    return value if isinstance(value, str) else str(value)


def _long(value: str | bytes | Body) -> Iterator[str]:
    """The pieces of a text, with its quotes."""
    yield '"'
    if isinstance(value, Body):
        yield from value.texts()
    elif isinstance(value, bytes):
        for start in range(0, len(value), STEP):
            yield base64.b64encode(value[start : start + STEP]).decode()
    else:
        for start in range(0, len(value), STEP):
            yield _quoted(whole_text(value[start : start + STEP]))[1:-1]
    yield '"'


def _of_bytes(raw: bytes) -> Any:
    """A text, or what stands for one."""
    if len(raw) > STEP:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            parts = [decoder.decode(raw[start : start + STEP]) for start in range(0, len(raw), STEP)]
            decoder.decode(b"", True)
            return "".join(parts)
        except UnicodeDecodeError:
            return {"base64": _Base64(raw)}
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": _Base64(raw)}


class _Base64:
    """Bytes that are written as base64."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


def steps(value: Any) -> Generator[Step, Any, None]:
    """The JSON of a value: pieces, turns and things to wait for, whose results are sent back."""
    return _Writer().write(value)


class _Writer:
    """The text that is written and not handed out."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._size = 0  # characters in `_out`
        self._gone = 0  # and those handed out
        self._until = perf_counter() + SLICE_S

    def _taken(self) -> str:
        piece = "".join(self._out)
        self._out.clear()
        self._gone += self._size
        self._size = 0
        return piece

    def _put(self, text: str) -> None:
        self._out.append(text)
        self._size += len(text)

    def _is_late(self) -> bool:
        now = perf_counter()
        late = now > self._until
        if late:
            self._until = now + SLICE_S
        return late

    def write(self, value: Any) -> Generator[Step, Any, None]:
        stack: list[_Frame] = []
        count = 0
        pending: Any = value
        while True:
            if isinstance(pending, memoryview | bytearray):
                pending = bytes(pending)
            if type(pending) is bytes:
                pending = _of_bytes(pending)
            count += 1
            if type(pending) is str and len(pending) <= STEP:
                self._put(_quoted(pending if pending.isascii() else whole_text(pending)))
            elif isinstance(pending, str | Body | _Base64):
                for text in _long(pending.raw if isinstance(pending, _Base64) else pending):
                    self._put(text)
                    if self._size >= PIECE:
                        yield self._taken()
                    elif self._is_late():
                        yield ""
            elif (short := _scalar(pending)) is not None:
                self._put(short)
            else:
                opened = _open(pending, self._gone + self._size)
                if isinstance(opened, str):
                    pending = opened
                    continue
                stack.append(opened)
                self._put("{" if opened.is_object else "[")
            if self._size >= PIECE:
                yield self._taken()
            elif count % _LOOK == 0 and self._is_late():
                yield ""
            while stack:
                frame = stack[-1]
                item = next(frame.items, _END)
                if item is _END:
                    if frame.fetch is not None:
                        batch = yield frame.fetch()
                        if batch:
                            frame.items = iter(batch)
                            continue
                    stack.pop()
                    self._put(frame.closing)
                    continue
                if item is TURN:
                    yield ""
                    continue
                pending = self._next(frame, item)
                if pending is not _END:
                    break
            else:
                break
        yield self._taken()

    def _next(self, frame: _Frame, item: Any) -> Any:
        """Writes what stands before an item; its value, or _END: the list ends here."""
        rows = frame.rows
        if rows is not None:
            if rows.bytes_max and rows.count and self._gone + self._size - frame.begun_at > rows.bytes_max:
                rows.cut = True
                frame.items = iter(())
                return _END
            rows.count += 1
        if not frame.empty:
            self._put(",")
        frame.empty = False
        if not frame.is_object:
            return item
        name, one = item
        self._put(_name(name, frame))
        return one


_END = object()


def dumps(value: Any) -> str:
    """The JSON of a value that is small by its kind: an event, a refusal, a key of an order. Nothing in it is waited for."""
    return "".join(piece for piece in steps(value) if isinstance(piece, str))

"""Checks of a call's arguments: a refusal names the argument, the expected value and the one that came.

in: the head of a request. out: values of the right type and range, or Refused (BAD_ARGUMENT).

A1  Every argument is asked for by name, and what nobody asked for is refused by `done`: a misspelt option must not be ignored.
"""

from __future__ import annotations

import difflib
import uuid
from typing import Any

from flintmq.arguments import is_text, is_whole
from flintmq.dataplane.calls import ENVELOPE
from flintmq.dataplane.wire import Refused

BAD_ARGUMENT = "BAD_ARGUMENT"
# characters of a wrong value that an error repeats
_SHOWN = 80
_MISSING = object()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


class Arguments:
    """The arguments of one request. Args: call: its name, for errors; head: the request."""

    def __init__(self, call: str, head: dict[str, Any]) -> None:
        self.call = call
        self._left = {name: value for name, value in head.items() if name not in ENVELOPE}
        self._known: set[str] = set()

    def refuse(self, name: str, expected: str, value: object) -> Refused:
        """The error for a wrong value."""
        return Refused(BAD_ARGUMENT, f"{self.call}: {name} must be {expected}, not {_shown(value)}")

    def _take(self, name: str, default: Any) -> Any:
        self._known.add(name)
        value = self._left.pop(name, None)
        if value is None:  # null is as good as leaving it out
            if default is _MISSING:
                raise Refused(BAD_ARGUMENT, f"{self.call}: {name} is missing")
            return default
        return value

    def raw(self, name: str, default: Any = _MISSING) -> Any:
        """Anything JSON has."""
        return self._take(name, default)

    def peek(self, name: str) -> Any:
        """Anything JSON has, or None, for a caller that has to know to whom the request goes. It still has to be taken."""
        return self._left.get(name)

    def given(self, name: str) -> bool:
        """Whether it is there and not null."""
        return self._left.get(name) is not None

    def text(self, name: str, most: int, default: Any = _MISSING) -> Any:
        """A string of 1 to `most` bytes of UTF-8, without NUL."""
        value = self._take(name, default)
        return value if value is default else self._text(name, value, most)

    def _text(self, name: str, value: object, most: int, least: int = 1) -> str:
        expected = f"a string of {least} to {most} bytes of UTF-8"
        if not is_text(value, least, most) or "\0" in value:
            raise self.refuse(name, expected, value)
        return value

    def texts(self, name: str, most: int, count: int, default: Any = _MISSING) -> Any:
        """A list of 1 to `count` different strings."""
        value = self._take(name, default)
        if value is default:
            return value
        if not isinstance(value, list) or not 1 <= len(value) <= count:
            raise self.refuse(name, f"a list of 1 to {count} names", value)
        names = [self._text(f"{name}[{number}]", one, most) for number, one in enumerate(value)]
        if len(set(names)) != len(names):
            raise self.refuse(name, "a list of different names", value)
        return names

    def integer(self, name: str, least: int, most: int, default: Any = _MISSING) -> Any:
        """A whole number from `least` to `most`."""
        value = self._take(name, default)
        if value is default:
            return value
        if not is_whole(value, least, most):
            raise self.refuse(name, f"a whole number from {least} to {most}", value)
        return value

    def boolean(self, name: str, default: Any = _MISSING) -> Any:
        """true or false."""
        value = self._take(name, default)
        if value is not default and not isinstance(value, bool):
            raise self.refuse(name, "true or false", value)
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: Any = _MISSING) -> Any:
        """One of a few words."""
        value = self._take(name, default)
        if value is not default and value not in choices:
            raise self.refuse(name, " or ".join(f'"{choice}"' for choice in choices), value)
        return value

    def identity(self, name: str) -> uuid.UUID:
        """A UUID in its usual text form."""
        value = self._take(name, _MISSING)
        if isinstance(value, str) and len(value) in (32, 36):
            try:
                return uuid.UUID(value)
            except ValueError:
                pass
        raise self.refuse(name, "a UUID", value)

    def ignore(self, *names: str) -> None:
        """Arguments that may be there and say nothing."""
        for name in names:
            self._take(name, None)

    def done(self) -> None:
        """Nothing else may be there. Raises: Refused, with the name that was perhaps meant."""
        for name in self._left:
            near = difflib.get_close_matches(str(name), self._known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise Refused(BAD_ARGUMENT, f"{self.call}: there is no argument {_shown(name)}{meant}")

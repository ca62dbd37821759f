"""Secret: text that must not appear in a log, an error or a console."""

from __future__ import annotations


class Secret(str):
    """A str whose repr shows nothing. Formatting it on purpose (f"{secret}") still gives the text: do that only to use it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret()"

"""Checks of values that somebody else made, of JSON mostly: the type, and the bounds. Who refuses a value says it in words of its own.

A1  `true` is no number, and half a character is no text.
"""

from __future__ import annotations

import math
from typing import TypeGuard


def is_whole(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Whether it is a whole number from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, with a fraction or without."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(value: object, least: int, most: int) -> TypeGuard[str]:
    """Whether it is a text of `least` to `most` bytes of UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        return least <= len(value.encode()) <= most
    except UnicodeEncodeError:
        return False
